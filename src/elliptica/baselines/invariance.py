"""Invariance across groups: IRM, IB-IRM, V-REx, CORAL and Fish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines.erm import between
from elliptica.baselines.groups import GroupBatch, GroupObjective, Groups, find_groups
from elliptica.core.inputs import Inputs, LossFn, call_model, count_rows, named_inputs, rebuild_inputs
from elliptica.core.layers import replaced_output


class Annealed(GroupObjective):
    """Base class of objectives with a penalty of weight 1 for ``anneal_steps`` calls, ``penalty`` afterwards.

    The number of training calls is saved with the objective. DomainBed makes a new optimiser when the weight
    jumps, because Adam reacts badly to sudden large gradients: do so after a call where
    ``objective.just_annealed`` is true, before the backward pass.
    """

    steps: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        penalty: float = 100.0,
        anneal_steps: int = 500,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        self.penalty = between("penalty", penalty)
        self.anneal_steps = anneal_steps
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))  # training calls so far

    @property
    def just_annealed(self) -> bool:
        """Whether the last training call was the first with the full weight; if so, reset the optimiser."""
        return self._jumped(self.anneal_steps)

    def _jumped(self, anneal_steps: int) -> bool:
        return anneal_steps > 0 and int(self.steps) == anneal_steps + 1

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        strength = self.penalty if int(self.steps) >= self.anneal_steps else 1.0
        loss = self._penalised(batch, strength)
        self.steps += 1
        return loss

    def _penalised(self, batch: GroupBatch, strength: float) -> Tensor:
        """Return the loss of a batch with the penalty at its current weight."""
        raise NotImplementedError


class IRM(Annealed):
    """Penalise the slope of group risks in the scale of the output (Arjovsky et al., arXiv 2019, IRMv1).

    With the risk ``R_e`` of group ``e``, its mean loss, and the slope ``D_e`` of ``R_e(s * output)`` in
    ``s`` at 1, the loss is ``mean_e R_e + w * mean_e D_e**2``. The weight ``w`` is 1 for the first
    ``anneal_steps`` calls in training mode, and ``penalty`` afterwards; see ``just_annealed``. The loss is
    differentiated twice. The authors also add the squared norm of the weights; use weight decay.

    As in DomainBed and WILDS, the square is replaced by the product of the slopes of two halves of the
    group's rows, taken by turns: its mean over batches is the square of the mean slope. It may be negative.
    A group with a single row in the batch has one half only, and adds nothing to the penalty.

    Args:
        penalty: Weight after the jump; 100 in DomainBed.
        anneal_steps: Training calls before the jump; 500 in DomainBed.

    Example:
        >>> objective = IRM(nn.Linear(4, 3), nn.CrossEntropyLoss(), penalty=10.0, anneal_steps=1)
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> for _ in range(2):
        ...     loss = objective(x, y, group)
        >>> objective.just_annealed
        True
    """

    def _penalised(self, batch: GroupBatch, strength: float) -> Tensor:
        return self._risk_and_penalty(call_model(self.model, batch.x), batch, strength)

    def _risk_and_penalty(self, output: Any, batch: GroupBatch, strength: float) -> Tensor:
        """Return the mean over groups of the risk, plus that of the squared slope."""
        target, weight, groups = self._encode(batch.y, output), batch.weight, batch.groups
        losses, slopes = self._losses_and_slopes(output, target)
        risk = self._risks(losses, target, weight, groups).mean()
        even, odd = self._risks(slopes, target, weight, groups.halves()).view(-1, 2).unbind(1)
        return risk + strength * (even * odd).mean()

    def _losses_and_slopes(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, and its derivative with respect to a factor on the row's output."""
        output = output.to(compute_dtype(output.dtype))
        with torch.enable_grad():
            # a factor for each row: one backward pass gives the slopes of all groups
            scale = output.new_ones(len(output), *[1] * (output.ndim - 1)).requires_grad_()
            losses = self.loss(output * scale, target)
            (slopes,) = torch.autograd.grad(losses.sum(), scale, create_graph=True)
        return losses, slopes.flatten()


class IBIRM(IRM):
    """Add the variance of the features in a layer to `IRM` (Ahuja et al., NeurIPS 2021, as in DomainBed).

    The loss is that of `IRM` plus ``w * V``, with ``w = 0`` for the first ``ib_anneal_steps`` calls in
    training mode and ``ib_penalty`` afterwards. ``V`` is the mean over groups and features of the unbiased
    variance within the group; a group with a single row in the batch has variance 0.

    Args:
        at: Name of the layer whose output holds the features: the input of the classifier.
        penalty: Weight of IRM's penalty after its jump.
        anneal_steps: Training calls before that jump.
        ib_penalty: Weight of the variance after its jump; 100 in DomainBed.
        ib_anneal_steps: Training calls before that jump.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        at: str,
        penalty: float = 100.0,
        anneal_steps: int = 500,
        ib_penalty: float = 100.0,
        ib_anneal_steps: int = 500,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, penalty=penalty, anneal_steps=anneal_steps, num_classes=num_classes)
        self.at = at
        self.ib_penalty = between("ib_penalty", ib_penalty)
        self.ib_anneal_steps = ib_anneal_steps

    @property
    def just_annealed(self) -> bool:
        """Whether a weight jumped in the last training call; if so, reset the optimiser."""
        return self._jumped(self.anneal_steps) or self._jumped(self.ib_anneal_steps)

    def _penalised(self, batch: GroupBatch, strength: float) -> Tensor:
        output, features = read_layer(self.model, batch.x, self.at)
        loss = self._risk_and_penalty(output, batch, strength)
        if int(self.steps) < self.ib_anneal_steps:
            return loss
        return loss + self.ib_penalty * batch.groups.variance(features).mean()


class VREx(Annealed):
    """Penalise the variance of the risks of groups (Krueger et al., ICML 2021, as in DomainBed).

    With the risk ``R_e`` of a group, its mean loss in the batch, the loss is ``mean_e R_e + w *
    mean_e (R_e - mean)**2``. The weight ``w`` is 1 for the first ``anneal_steps`` calls in training mode, and
    ``penalty`` afterwards; see ``just_annealed``. With one group in the batch there is no penalty.

    Args:
        penalty: Weight after the jump; 10 in DomainBed.
        anneal_steps: Training calls before the jump; 500 in DomainBed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        penalty: float = 10.0,
        anneal_steps: int = 500,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, penalty=penalty, anneal_steps=anneal_steps, num_classes=num_classes)

    def _penalised(self, batch: GroupBatch, strength: float) -> Tensor:
        risks = self._risks_at(call_model(self.model, batch.x), batch)
        return risks.mean() + strength * (risks - risks.mean()).square().mean()


class CORAL(GroupObjective):
    """Penalise differences between the features of groups (Sun and Saenko, ECCV workshops 2016).

    With means ``m`` and unbiased covariances ``C`` of the ``d`` features of a layer, the loss is
    ``mean_e R_e + penalty * P``, and ``P`` is the mean over pairs of groups in the batch of
    ``|m_a - m_b|**2 / d + |C_a - C_b|**2 / d**2``, as in DomainBed and WILDS.

    A group with a single row in the batch has a mean but no covariance, so its pairs have only the first
    term. With one group in the batch there is no penalty. Covariances take ``d**2`` numbers per group, so
    choose a layer of at most a few thousand features.

    Args:
        at: Name of the layer whose output holds the features: the input of the classifier.
        penalty: Weight of ``P``; 1 in DomainBed, 0.1 in WILDS for Camelyon17.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        at: str,
        penalty: float = 1.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        self.at = at
        self.penalty = between("penalty", penalty)

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        groups, n = batch.groups, len(batch.groups.labels)
        output, features = read_layer(self.model, batch.x, self.at)
        risk = self._risks_at(output, batch).mean()
        gap = _sum_over_pairs(groups.mean(features)) + _sum_over_pairs(_covariances(features, groups))
        return risk + self.penalty * gap / max(n * (n - 1) // 2, 1)


def _covariances(features: Tensor, groups: Groups) -> Tensor:
    """Return the covariance of the features in each group of two rows or more; one zero if there is none."""
    rows = groups.deviations(features)
    covariances = []
    with torch.autocast(rows.device.type, enabled=False):  # sums of products overflow half precision
        for number, count in enumerate(groups.counts.tolist()):
            if count > 1:
                own = rows[groups.index == number]
                covariances.append(own.T @ own / (count - 1))
    return torch.stack(covariances) if covariances else rows.new_zeros(1, 1)


def _sum_over_pairs(values: Tensor) -> Tensor:
    """Sum the mean squared difference between rows over all pairs of rows."""
    flat = values.reshape(len(values), -1)
    # the sum over pairs of |a - b|**2 is n times the sum of |a - mean|**2, so no pairs are formed
    return len(flat) * (flat - flat.mean(0)).square().mean(1).sum()


def read_layer(model: nn.Module, x: Inputs, at: str) -> tuple[Any, Tensor]:
    """Return the output of the model, and that of its layer ``at`` as rows of features."""
    kept: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        kept.append(hidden)
        return hidden

    with replaced_output(model, at, keep):
        output = call_model(model, x)
    (features,) = kept
    checks.same_rows(f"The output of the layer at={at!r}", features, count_rows(named_inputs(x)))
    return output, features.reshape(len(features), -1).to(compute_dtype(features.dtype))


def fish_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Callable[..., Tensor],
    minibatches: Iterable[tuple[Any, ...]],
    *,
    rate: float = 0.5,
) -> Tensor:
    """Take one optimiser step on each domain in turn, then move part of the way to the result (Fish).

    From the weights ``theta`` the steps lead to ``end``. The model ends at ``theta + rate * (end -
    theta)``, which to first order adds the inner products of the domains' gradients to the objective (Shi et
    al., ICLR 2022, Algorithm 1). ``rate=1`` is ordinary training on one domain after the other. Floating
    buffers, such as batch norm statistics, move by the same part; integer counters keep their new value. The
    optimiser keeps its state, as in DomainBed and in the authors' code. The authors train without Fish first,
    and draw a few domains at random for each step. Returns the mean of the losses before the inner steps.

    Args:
        model: The network, whose parameters the optimiser holds.
        optimizer: Optimiser of the inner steps.
        objective: Called as ``objective(*minibatch)``, in the mode you set: `ERM`, `Mixup`,
            `elliptica.Elliptic` or any function.
        minibatches: One tuple ``(x, y)`` for each domain, e.g. from `split_by_group`.
        rate: Part of the way to move, from 0 to 1; 0.5 in DomainBed. The authors' ``meta_lr`` is this times
            the number of minibatches (0.01 for Camelyon17).
    """
    between("rate", rate, 0, 1)
    if getattr(objective, "model", model) is not model:
        raise ValueError("objective owns another model than the one passed as model.")
    start = [value.detach().clone() for value in _floating_state(model)]
    losses = []
    for batch in minibatches:
        loss = objective(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        for value, before in zip(_floating_state(model), start, strict=True):
            value.copy_(torch.lerp(before, value, rate))
    return torch.stack(losses).mean()


def split_by_group(x: Inputs, y: Tensor, group: Int[Tensor, " batch"]) -> list[tuple[Inputs, Tensor]]:
    """Split a batch into the rows of each group, ordered by the number of the group.

    Example:
        >>> x, y = torch.arange(3.0), torch.tensor([0, 1, 0])
        >>> split_by_group(x, y, torch.tensor([5, 2, 5]))
        [(tensor([1.]), tensor([1])), (tensor([0., 2.]), tensor([0, 0]))]
    """
    inputs = named_inputs(x)
    groups = find_groups(group, count_rows(inputs))
    parts = []
    for number in range(len(groups.labels)):
        own = groups.index == number
        parts.append((rebuild_inputs(x, {name: v[own] for name, v in inputs.items()}), y[own]))
    return parts


def _floating_state(model: nn.Module) -> Iterator[Tensor]:
    """Iterate over floating-point parameters and buffers, which can be interpolated."""
    return (value for value in chain(model.parameters(), model.buffers()) if value.is_floating_point())
