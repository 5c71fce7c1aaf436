"""Fish: gradients of domains that agree, by small steps through all of them (Shi et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines._groups import find_groups
from elliptica.core.inputs import count_rows, named_inputs, rebuild_inputs
from elliptica.core.types import Inputs


def fish_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Callable[..., Tensor],
    minibatches: Iterable[tuple[Any, ...]],
    *,
    rate: float | None = None,
    meta_lr: float | None = None,
) -> Tensor:
    """Take one optimiser step on each domain in turn, then move part of the way to the result (Fish).

    From the weights ``theta`` the steps lead to ``end``. The model ends at ``theta + rate * (end -
    theta)``, which to first order adds the inner products of the domains' gradients to the objective (Shi et
    al., ICLR 2022, Algorithm 1). ``rate=1`` is ordinary training on one domain after the other, ``rate=0``
    changes no weight. Floating buffers, such as batch norm statistics, move by the same part;
    integer counters keep their new value. The optimiser keeps its state, as in DomainBed and in
    the authors' code.

    The authors train without Fish first, and take a few domains drawn at random for each step: pass
    ``random.sample(minibatches, 3)``.

    Args:
        model: The network, whose parameters the optimiser holds.
        optimizer: Optimiser of the inner steps.
        objective: Called as ``objective(*minibatch)``, in the mode you set: `ERM`, `Mixup`,
            `elliptica.Elliptic` or any function.
        minibatches: One tuple ``(x, y)`` for each domain, e.g. from `split_by_group`.
        rate: Part of the way to move, from 0 to 1. None means DomainBed's 0.5, unless ``meta_lr`` is given.
        meta_lr: The authors' step size instead: ``rate`` is then ``meta_lr`` divided by the number of
            minibatches (0.01 for Camelyon17).

    Returns:
        Mean of the losses before the inner steps.

    Example:
        >>> from elliptica.baselines import ERM
        >>> model = nn.Linear(4, 3)
        >>> objective, optimizer = ERM(model, nn.CrossEntropyLoss()), torch.optim.Adam(model.parameters())
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> loss = fish_step(model, optimizer, objective, split_by_group(x, y, group))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, but got {type(model).__name__}. The order is "
            "fish_step(model, optimizer, objective, minibatches)."
        )
    owned = getattr(objective, "model", model)
    if owned is not model:
        raise ValueError(
            "The objective owns another model than the one passed to fish_step. Make it with the same model, "
            "e.g. ERM(model, loss_fn)."
        )
    batches = list(minibatches)
    if not batches or not all(isinstance(batch, (tuple, list)) for batch in batches):
        got = ", ".join(sorted({type(batch).__name__ for batch in batches})) or "none"
        raise ValueError(
            f"minibatches must hold a tuple (x, y) for each domain, but got {got}. Use split_by_group(x, y, "
            "group)."
        )
    rate = _resolve_rate(rate, meta_lr, len(batches))
    start = [value.detach().clone() for value in _floating_state(model)]
    losses = []
    for batch in batches:
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

    Args:
        x: Inputs: a tensor, or a tuple or dict of tensors.
        y: Targets.
        group: Number of each row's group, from 0.

    Example:
        >>> x, y = torch.arange(3.0), torch.tensor([0, 1, 0])
        >>> split_by_group(x, y, torch.tensor([5, 2, 5]))
        [(tensor([1.]), tensor([1])), (tensor([0., 2.]), tensor([0, 0]))]
    """
    inputs = named_inputs(x)
    rows = count_rows(inputs)
    checks.same_rows("y", y, rows)
    groups = find_groups(group, rows)
    parts = []
    for number in range(len(groups.labels)):
        own = groups.index == number
        parts.append((rebuild_inputs(x, {name: v[own] for name, v in inputs.items()}), y[own]))
    return parts


def _resolve_rate(rate: float | None, meta_lr: float | None, steps: int) -> float:
    """Return the part of the way to move."""
    if rate is not None and meta_lr is not None:
        raise ValueError(f"Got both rate={rate} and meta_lr={meta_lr}. Pass only one of them.")
    if meta_lr is not None:
        checks.nonnegative("meta_lr", meta_lr)
        rate = meta_lr / steps
    elif rate is None:
        rate = 0.5
    checks.number("rate", rate)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be between 0 and 1, but got {rate}. DomainBed uses 0.5.")
    return float(rate)


def _floating_state(model: nn.Module) -> Iterator[Tensor]:
    """Iterate over floating-point parameters and buffers, which can be interpolated."""
    return (value for value in chain(model.parameters(), model.buffers()) if value.is_floating_point())
