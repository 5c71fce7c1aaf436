"""Group DRO: minimise the loss of the worst group (Sagawa et al., ICLR 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines._groups import GroupBatch, GroupObjective, find_groups
from elliptica.core.inputs import call_model
from elliptica.core.types import LossFn


class GroupDRO(GroupObjective):
    """Group DRO: group losses weighted by ``q``, which grows where the loss is large.

    With the mean loss ``L_g`` of group ``g`` in the batch, first ``q_g <- q_g * exp(step_size * L_g)``,
    divided by the sum, then the loss is ``sum_g q_g * L_g``. ``q`` starts uniform and has no gradient. A
    group that is not in the batch keeps its ``q`` up to that division, and adds no loss (Sagawa et al., ICLR
    2020, Algorithm 1, as in the authors' code). ``step_size=0`` is the mean of group means.

    The authors draw batches in which groups are balanced; `group_balanced_weights` returns the weights for
    that. Their adjustment adds ``adjustment / sqrt(n_g)`` to ``L_g``, with ``n_g`` training rows; their code
    also adds it for groups that are not in the batch; ours does not.

    ``q`` changes with each call in training mode, and is saved with the objective. In ``eval()`` mode it is
    the ordinary loss. The module owns the model.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        n_groups: Number of groups; they are numbered from 0.
        step_size: Step size of ``q``; the authors use 0.01.
        adjustment: The authors' C, which favours small groups; it needs ``group_sizes``.
        group_sizes: Training rows of each group. A group without rows gets ``q = 0`` and must not occur.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = GroupDRO(nn.Linear(4, 3), nn.CrossEntropyLoss(), n_groups=2)
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> objective(x, y, group).backward()
        >>> objective.q.shape
        torch.Size([2])
    """

    q: Tensor
    _margin: Tensor
    _exists: Tensor

    settings = ("n_groups", "step_size", "adjustment")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        n_groups: int,
        *,
        step_size: float = 0.01,
        adjustment: float = 0.0,
        group_sizes: Int[Tensor, " groups"] | Sequence[int] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.count("n_groups", n_groups)
        checks.nonnegative("step_size", step_size)
        checks.nonnegative("adjustment", adjustment)
        if adjustment > 0 and group_sizes is None:
            raise ValueError(
                f"adjustment={adjustment} is divided by the square root of group sizes, but group_sizes is "
                "None. Pass group_sizes=torch.bincount(group, minlength=n_groups) of the training data."
            )
        self.n_groups = int(n_groups)
        self.step_size = float(step_size)
        self.adjustment = float(adjustment)
        sizes = _check_sizes(group_sizes, self.n_groups)
        exists = sizes > 0
        self.register_buffer("q", exists / exists.sum())
        margin = torch.where(exists, adjustment / sizes.clamp_min(1).sqrt(), 0.0)
        self.register_buffer("_margin", margin, persistent=False)
        self.register_buffer("_exists", exists, persistent=False)

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        labels = batch.groups.labels
        self._check_known(labels)
        risks = self._risks_at(call_model(self.model, batch.x), batch) + self._margin[labels]
        self._update(labels, risks.detach())
        return (self.q[labels] * risks).sum()

    @torch.no_grad()
    def _update(self, labels: Tensor, risks: Tensor) -> None:
        """Move ``q`` towards groups of large loss, by logarithms, so that no exponential overflows."""
        gain = self.step_size * risks.to(self.q.dtype)
        updated = self.q.log().index_add(0, labels, gain).softmax(0)
        # an infinite loss, as under automatic mixed precision, must not make q NaN forever
        self.q.copy_(torch.where(updated.isfinite().all(), updated, self.q))

    def _check_known(self, labels: Tensor) -> None:
        if int(labels.max()) >= self.n_groups:
            raise ValueError(
                f"group must lie in 0..{self.n_groups - 1} (n_groups={self.n_groups}), but has values up to "
                f"{int(labels.max())}. Correct n_groups, or number the groups from 0."
            )
        unknown = labels[~self._exists[labels]].tolist()
        if unknown:
            raise ValueError(
                f"group {unknown[0]} is in the batch, but according to group_sizes the training data have "
                "none of it. Pass group_sizes=torch.bincount(group, minlength=n_groups) of the data you "
                "train on."
            )


def group_balanced_weights(group: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return weights ``n / n_g`` of rows, with which a sampler draws each group equally often.

    Args:
        group: Group of each row of the training data.

    Returns:
        Weights for ``torch.utils.data.WeightedRandomSampler(weights, len(weights))``, which draws with
        replacement.

    Example:
        >>> group_balanced_weights(torch.tensor([0, 0, 0, 1])).tolist()
        [1.3333333333333333, 1.3333333333333333, 1.3333333333333333, 4.0]
    """
    if isinstance(group, Tensor):
        checks.batch("group", group)
    groups = find_groups(group, len(group))
    return (len(group) / groups.counts.double())[groups.index]


def _check_sizes(group_sizes: Tensor | Sequence[int] | None, n_groups: int) -> Tensor:
    """Return sizes of groups as floating-point numbers; all equal if not given."""
    if group_sizes is None:
        return torch.ones(n_groups)
    try:
        sizes = torch.as_tensor(group_sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"group_sizes must hold integer numbers of rows, but got {group_sizes!r:.60}. Use "
            "torch.bincount(group, minlength=n_groups)."
        ) from error
    if sizes.is_floating_point() or sizes.is_complex() or sizes.dtype == torch.bool:
        raise TypeError(
            f"group_sizes must hold integer numbers of rows, but has dtype {sizes.dtype}. Use .long()."
        )
    if sizes.shape != (n_groups,):
        raise ValueError(
            f"group_sizes must hold n_groups={n_groups} numbers, but has shape {tuple(sizes.shape)}. Use "
            "torch.bincount(group, minlength=n_groups)."
        )
    if int(sizes.min()) < 0 or int(sizes.max()) < 1:
        raise ValueError(
            f"group_sizes must be at least 0, with at least one above 0, but got {sizes.tolist()}. Use "
            "torch.bincount(group, minlength=n_groups)."
        )
    return sizes.float()
