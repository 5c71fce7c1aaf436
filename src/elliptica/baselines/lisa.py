"""LISA: mix samples that share the label but not the domain, or the other way (Yao et al., ICML 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import draw_gamma, draw_uniform
from elliptica.baselines._groups import GroupBatch, GroupObjective, mix_rows
from elliptica.baselines.names import named
from elliptica.core.inputs import call_model, named_inputs, rebuild_inputs
from elliptica.core.partners import draw_from
from elliptica.core.types import Inputs, LossFn

LISAMix = Literal["input", "cutmix"]
LISA_MIXES: tuple[LISAMix, ...] = ("input", "cutmix")


@named("lisa")
class LISA(GroupObjective):
    """LISA: mixup within a label across domains, or within a domain across labels.

    ``group`` is the domain, or the spurious attribute, *without* the label. With probability ``selection``
    every sample of the batch is mixed with one of the same label and another group, otherwise with one of
    the same group and another label (Yao et al., ICML 2022). Partners are uniform among those of the batch;
    a sample without one is not mixed. Each sample has its own share from Beta(alpha, alpha), and
    the loss is ``share * loss(y) + (1 - share) * loss(y_partner)``, for cross-entropy that of the mixed
    label. Targets that are not integers count as one label where they are equal.

    The authors instead draw batches from two groups at a time, with equally many rows of each. To come close,
    balance the batches with `group_balanced_weights` over the combinations of label and group.

    ``mix="cutmix"`` replaces a box of the image by the partner's instead of mixing pixels. The box
    covers ``1 - share`` of the area before it is clipped at the border, and the share becomes the remaining
    part of the image. The authors use ``alpha=0.2`` with it for CelebA, and 2 for Camelyon17.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        selection: Probability, for a batch, of mixing within a label; the authors' ``p_sel``.
        alpha: 2 in the authors' settings; 0 means no mixing.
        mix: ``"input"``, or ``"cutmix"`` for images ``(batch, channel, height, width)``.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = LISA(nn.Linear(4, 3), nn.CrossEntropyLoss())
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> objective(x, y, group).backward()
    """

    settings = ("selection", "alpha", "mix")
    mixes_inputs = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        selection: float = 0.5,
        alpha: float = 2.0,
        mix: LISAMix = "input",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.number("selection", selection)
        if not 0 <= selection <= 1:
            raise ValueError(f"selection must be between 0 and 1, but got {selection}. The authors use 0.5.")
        checks.nonnegative("alpha", alpha)
        checks.choice("mix", mix, LISA_MIXES)
        self.selection = float(selection)
        self.alpha = float(alpha)
        self.mix = mix

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        x, y, weight, generator = batch.x, batch.y, batch.weight, batch.generator
        # draws, in this order: the choice, the partners, two gamma variables per row, places of boxes
        chosen = draw_uniform((1,), device=y.device, generator=generator)
        allowed = eligible(y, batch.groups.index, within_label=bool(chosen < self.selection))
        partners, is_alone = draw_partners(allowed, generator)
        share = draw_shares(self.alpha, len(y), y.device, generator).masked_fill(is_alone, 1.0)
        if self.mix == "cutmix":
            x, share = cutmix(x, partners, share, generator)
        else:
            mixed = {name: mix_rows(v, v[partners], share) for name, v in named_inputs(x).items()}
            x = rebuild_inputs(x, mixed)
        output = call_model(self.model, x)
        target = self._encode(y, output)
        losses = mix_rows(self.loss(output, target), self.loss(output, target[partners]), share)
        mixed_weight = None if weight is None else mix_rows(weight, weight[partners], share)
        return self._mean(losses, mix_rows(target, target[partners], share), mixed_weight)


def eligible(y: Tensor, group: Tensor, *, within_label: bool) -> Tensor:
    """Return which partners (columns) each row may be mixed with."""
    label = y.reshape(len(y), -1).unique(dim=0, return_inverse=True)[1]
    same_label, same_group = (v[:, None] == v[None] for v in (label, group))
    return same_label & ~same_group if within_label else same_group & ~same_label


def draw_partners(allowed: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a uniform allowed partner of each row (itself if there is none); also return which have none."""
    is_alone = ~allowed.any(1)
    counts = (allowed | torch.diag(is_alone)).float().cumsum(1)
    return draw_from(counts, 1, generator).squeeze(1), is_alone


def draw_shares(alpha: float, n: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw ``n`` shares from Beta(alpha, alpha), from two gammas; for alpha 0 return 1, no draw."""
    if alpha == 0:
        return torch.ones(n, device=device)
    first, second = draw_gamma(alpha, 2 * n, device=device, generator=generator).view(2, n)
    coin = draw_uniform((n,), device=device, generator=generator) < 0.5
    # both underflow for small alpha, where the law is a coin flip
    return torch.where(first == second, coin.to(first.dtype), first / (first + second))


def cutmix(
    x: Inputs, partners: Tensor, share: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return images with a box from their partner, and the part of the area that is their own.

    Sides of the box are ``sqrt(1 - share)`` of those of the image, rounded down to an even number of
    pixels; its centre is uniform over the image (Yun et al., ICCV 2019).
    """
    if not isinstance(x, Tensor) or x.ndim != 4:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f'mix="cutmix" needs images (batch, channel, height, width), but x is {got}. Use mix="input".'
        )
    side = (1 - share).sqrt()
    places = draw_uniform((2, len(x)), device=x.device, generator=generator)
    inside = []
    for extent, place in zip(x.shape[2:], places, strict=True):
        centre, half = (extent * place).long(), (extent * side).long() // 2
        pixel = torch.arange(extent, device=x.device) - centre[:, None]
        inside.append((pixel >= -half[:, None]) & (pixel < half[:, None]))
    box = inside[0][:, :, None] & inside[1][:, None]  # (batch, height, width)
    return torch.where(box[:, None], x[partners], x), 1 - box.float().mean((1, 2))
