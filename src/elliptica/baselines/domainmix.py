"""DomainMix: mixup between the samples of two groups (Xu et al., AAAI 2020, as in DomainBed)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import draw_permutation
from elliptica.baselines._groups import GroupBatch, GroupObjective, Groups, mix_rows
from elliptica.baselines.mixup import draw_share
from elliptica.baselines.names import named
from elliptica.core.inputs import call_model, named_inputs, rebuild_inputs
from elliptica.core.types import LossFn


@named("domainmix")
class DomainMix(GroupObjective):
    """DomainMix: mixup in which each sample's partner is of another group.

    The groups of the batch are put in a random cyclic order. Each is mixed with the next, row by row in the
    order of the batch, and the longer of the two is cut to the length of the shorter. Every pair has
    one share from Beta(alpha, alpha) and the loss ``mean(share * loss(y) + (1 - share) * loss(y_partner))``
    at the mixed points; the result is the mean over pairs. With one group in the batch nothing is mixed.

    The idea is that of Xu et al. (AAAI 2020), who adapt to a known target domain; without one, this is
    DomainBed's "Mixup". DomainBed draws equally many rows of every group, so that nothing is cut.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        alpha: 0.2 in DomainBed; 0 means no mixing.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = DomainMix(nn.Linear(4, 3), nn.CrossEntropyLoss())
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> objective(x, y, group).backward()
    """

    settings = ("alpha",)
    mixes_inputs = True

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, alpha: float = 0.2, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.nonnegative("alpha", alpha)
        self.alpha = float(alpha)

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        x, y, weight, generator = batch.x, batch.y, batch.weight, batch.generator
        # draws, in this order: the order of groups, then two gamma variables for each pair
        near, far, pairs = pair_groups(batch.groups, generator)
        shares = [draw_share(self.alpha, generator) for _ in pairs.labels]
        share = torch.tensor(shares, device=y.device)[pairs.index]
        mixed = {name: mix_rows(v[near], v[far], share) for name, v in named_inputs(x).items()}
        output = call_model(self.model, rebuild_inputs(x, mixed))
        target = self._encode(y, output)
        losses = mix_rows(self.loss(output, target[near]), self.loss(output, target[far]), share)
        between = mix_rows(target[near], target[far], share)
        mixed_weight = None if weight is None else mix_rows(weight[near], weight[far], share)
        return self._risks(losses, between, mixed_weight, pairs).mean()


def pair_groups(groups: Groups, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Groups]:
    """Return rows of each group and of the next in a random cyclic order, and the pair of each."""
    n = len(groups.labels)
    device = groups.index.device
    order = draw_permutation(n, device=device, generator=generator).tolist()
    rows = [(groups.index == number).nonzero().flatten() for number in order]
    near, far = [], []
    for number, own in enumerate(rows):
        other = rows[(number + 1) % n]
        length = min(len(own), len(other))
        near.append(own[:length])
        far.append(other[:length])
    counts = torch.tensor([len(part) for part in near], device=device)
    labels = torch.arange(n, device=device)
    return torch.cat(near), torch.cat(far), Groups(labels, labels.repeat_interleave(counts), counts)
