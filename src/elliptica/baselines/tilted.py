"""Tilted training: an average anywhere between the smallest and the largest loss (Li et al., ICLR 2021)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines._reweighted import Reweighted, base_measure
from elliptica.baselines.names import named
from elliptica.core.types import LossFn

_MOST = 1e30  # beyond it, a tilt would not fit into float32


@named("tilted")
class Tilted(Reweighted):
    """Tilted training: ``log(mean(exp(t * loss))) / t`` (Li et al., ICLR 2021).

    With ``t`` from minus to plus infinity it changes from the smallest loss of the batch over the mean
    (``t = 0``) to the largest. Its gradient is that of the losses weighted by ``softmax(t * loss)``: positive
    ``t`` emphasises hard samples, and negative ``t`` easy ones, which reduces the effect of outliers and
    wrong labels. Weights depend on the batch.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        t: The tilt, in units of one over the loss, of either sign; 0 is plain training.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = Tilted(nn.Linear(4, 3), nn.CrossEntropyLoss(), t=2.0)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> bool(objective(x, y) > objective.clean_loss(x, y))
        True
    """

    settings = ("t",)

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, t: float = 1.0, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        _check_tilt(t)
        self.t = float(t)

    def _combine(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        return tilted_mean(losses, self.t, sample_weight=weight)


def tilted_mean(
    losses: Float[Tensor, " batch"], t: float, *, sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, ""]:
    """Return the average ``log(mean(exp(t * loss))) / t`` of losses; the mean at ``t = 0``.

    It is accurate for large and for tiny ``t``.

    Args:
        losses: One loss per sample.
        t: The tilt, of either sign.
        sample_weight: Weights of the mean inside; only their ratios matter.

    Example:
        >>> losses = torch.tensor([0.0, 1.0, 2.0])
        >>> [round(tilted_mean(losses, t).item(), 3) for t in (-100.0, 0.0, 1.0, 100.0)]
        [0.011, 1.0, 1.309, 1.989]
    """
    checks.batch("losses", losses)
    checks.finite("losses", losses)
    _check_tilt(t)
    losses = losses.to(compute_dtype(losses.dtype))
    base = base_measure(losses, sample_weight)
    if abs(t) < 1 / _MOST:
        return (base * losses).sum()
    present = losses.detach()[base > 0]
    largest = present.max() if t > 0 else present.min()
    # all exponents are at most 0, so nothing overflows; expm1 and log1p keep the digits of small ones
    excess = t * (torch.where(base > 0, losses, largest) - largest)
    return largest + (base * excess.expm1()).sum().log1p() / t


def _check_tilt(t: float) -> None:
    checks.number("t", t)
    if not abs(t) <= _MOST:
        raise ValueError(
            f"t must be a number from {-_MOST:.0e} to {_MOST:.0e}, but got {t}. For the largest loss itself "
            "use DRO with a small alpha."
        )
