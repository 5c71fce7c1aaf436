"""Shared code of methods that use groups: checks, risks of groups, features, annealing.

Only groups that occur in the batch count. All rows go through the model in one pass, so batch norm sees
the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines.erm import ERM, Batch
from elliptica.core.hidden import replaced_output
from elliptica.core.inputs import call_model, count_rows, named_inputs
from elliptica.core.types import Inputs, LossFn


@dataclass(frozen=True)
class Groups:
    """The groups that occur in a batch."""

    labels: Tensor  # their numbers, ascending
    index: Tensor  # position among ``labels`` of each row's group
    counts: Tensor  # number of rows of each

    def sum(self, values: Tensor) -> Tensor:
        """Sum ``values`` (rows first) over each group; half precision is summed in float32."""
        values = values.to(compute_dtype(values.dtype))
        return values.new_zeros(len(self.labels), *values.shape[1:]).index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """Average ``values`` over each group; 0 for a group without rows (an empty half)."""
        return self.sum(values) / _column(self.counts.clamp_min(1), values)

    def deviations(self, values: Tensor) -> Tensor:
        """Subtract the mean of its group from each row of ``values``."""
        return values - self.mean(values)[self.index]

    def variance(self, values: Tensor) -> Tensor:
        """Return the unbiased variance within each group; 0 for a group of one row."""
        return self.sum(self.deviations(values).square()) / _column((self.counts - 1).clamp_min(1), values)

    def halves(self) -> Groups:
        """Split every group in two, taking rows alternately; the second half of a single row is empty."""
        order = self.index.argsort(stable=True)
        first = self.counts.cumsum(0) - self.counts
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first[self.index[order]]
        counts = torch.stack([(self.counts + 1) // 2, self.counts // 2], 1).flatten()
        return Groups(self.labels.repeat_interleave(2), 2 * self.index + rank % 2, counts)


def find_groups(group: object, rows: int) -> Groups:
    """Check the groups of ``rows`` rows and return those that occur."""
    if group is None:
        raise TypeError(
            "group is missing, but this method needs the group of each row. Call objective(x, y, group) "
            f"with an integer tensor of shape ({rows},)."
        )
    checks.same_rows("group", group, rows)  # type: ignore[arg-type]  # it checks the type
    values = cast(Tensor, group)
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(
            f"group must hold the integer number of each row's group, but has dtype {values.dtype}. "
            "Convert it with group.long()."
        )
    if values.ndim > 1:
        raise ValueError(
            f"group must hold one number per row, shape ({rows},), but has shape {tuple(values.shape)}. Use "
            "group.flatten(), or number the combinations of several attributes."
        )
    if int(values.min()) < 0:
        raise ValueError(
            f"group must be at least 0, but its smallest value is {int(values.min())}. Number the groups "
            "from 0, and drop rows whose group is unknown."
        )
    return Groups(*values.long().unique(return_inverse=True, return_counts=True))


@dataclass(frozen=True)
class GroupBatch(Batch):
    """The checked arguments of a training call with groups."""

    groups: Groups  # groups of the rows


class GroupObjective(ERM):
    """Base class of objectives with groups, ``objective(x, y, group)``; see `GroupDRO` for an example."""

    def forward(  # type: ignore[override]  # with groups, and without ends
        self,
        x: Inputs,
        y: Tensor,
        group: Int[Tensor, " batch"] | None = None,
        *,
        sample_weight: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar.

        Args:
            x: Inputs: a tensor, or the tuple or dict of tensors that your model takes.
            y: Targets: integer labels, soft labels, or real values.
            group: Number of each row's group, from 0; not needed in ``eval()`` mode. A batch need not contain
                every group.
            sample_weight: Weight of each sample, not normalised. The risk of a group is its mean of weight
                times loss.
            generator: Source of randomness of methods that draw. None means torch's default generator.
        """
        if not self.training:
            return self.clean_loss(x, y, sample_weight=sample_weight)
        self._check(x, y, sample_weight, generator)
        groups = find_groups(group.to(y.device) if isinstance(group, Tensor) else group, len(y))
        return self._group_loss(GroupBatch(x, y, sample_weight, None, generator, groups))

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        """Return the training loss of a checked batch."""
        raise NotImplementedError

    def _risks(self, losses: Tensor, target: Tensor, weight: Tensor | None, groups: Groups) -> Tensor:
        """Return the mean loss of each group, as `ERM` computes it on its rows alone."""
        total = losses if weight is None else losses * weight
        if not self.loss.weights_classes:
            return groups.mean(total)
        size = groups.sum(self.loss.class_weight(target))
        return groups.sum(total) / torch.where(size > 0, size, 1.0)

    def _risks_at(self, output: Any, batch: GroupBatch) -> Tensor:
        """Return the risks of groups from the model's output."""
        target = self._encode(batch.y, output)
        return self._risks(self.loss(output, target), target, batch.weight, batch.groups)


class AnnealedObjective(GroupObjective):
    """Base class of objectives with a penalty whose weight jumps once, after ``anneal_steps`` calls."""

    #: Penalty and steps before it, by variant.
    variants: ClassVar[dict[str, tuple[float, int]]]
    settings: ClassVar[tuple[str, ...]] = ("penalty", "anneal_steps", "variant")
    steps: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        penalty: float | None,
        anneal_steps: int | None,
        variant: str,
        num_classes: int | None,
    ) -> None:
        checks.choice("variant", variant, self.variants)
        usual_penalty, usual_steps = self.variants[variant]
        penalty = usual_penalty if penalty is None else penalty
        anneal_steps = usual_steps if anneal_steps is None else anneal_steps
        super().__init__(model, loss_fn, num_classes=num_classes)
        self.variant = variant
        checks.nonnegative("penalty", penalty)
        checks.count("anneal_steps", anneal_steps, 0)
        self.penalty = float(penalty)
        self.anneal_steps = int(anneal_steps)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))  # training calls so far

    @property
    def just_annealed(self) -> bool:
        """Whether the last training call was the first with the full weight; if so, reset the optimiser."""
        return self._jumped(self.anneal_steps)

    def _jumped(self, anneal_steps: int) -> bool:
        return anneal_steps > 0 and int(self.steps) == anneal_steps + 1

    def _is_past(self, anneal_steps: int) -> bool:
        return int(self.steps) >= anneal_steps

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        loss = self._penalised(batch)
        self.steps += 1
        return loss

    def _penalised(self, batch: GroupBatch) -> Tensor:
        """Return the loss of a batch with the penalty at its current weight."""
        raise NotImplementedError


def read_layer(model: nn.Module, x: Inputs, at: str) -> tuple[Any, Tensor]:
    """Return the output of the model, and that of its layer ``at`` as rows of features."""
    with replaced_output(model, at, lambda hidden: hidden) as outputs:
        output = call_model(model, x)
    features = outputs[0]
    checks.same_rows(f"the output of the layer at={at!r}", features, count_rows(named_inputs(x)))
    return output, features.reshape(len(features), -1).to(compute_dtype(features.dtype))


def sum_over_pairs(values: Tensor) -> Tensor:
    """Sum the mean squared difference between rows over all pairs of rows."""
    flat = values.reshape(len(values), -1)
    # the sum over pairs of |a - b|**2 is n times the sum of |a - mean|**2, so no pairs are formed
    return len(flat) * (flat - flat.mean(0)).square().mean(1).sum()


def count_pairs(n: int) -> int:
    """Return the number of pairs among ``n``; 1 if there is none, so that one can divide by it."""
    return max(n * (n - 1) // 2, 1)


def mix_rows(near: Tensor, far: Tensor, share: Tensor) -> Tensor:
    """Interpolate between ``near`` (share 1) and ``far`` (share 0), with a share for each row."""
    part = _column(share, near).to(compute_dtype(near.dtype))
    return (part * near + (1 - part) * far).to(near.dtype)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per row to as many axes as ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
