"""Compare the loss between or beyond the data with the loss at the data (Prop. 1, as an observation)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils.statistics import Result, check_level, clopper_pearson
from elliptica.core.elliptic import sample_paths
from elliptica.core.inputs import Inputs
from elliptica.core.targets import TargetSpace
from elliptica.landscape.loss import LossField, MaximumPrinciple, check_maximum_principle

_NOTES = (
    "Observed at these probes, with limits that are too narrow if probes share a datum or a bridge.",
    "Proposition 1 bounds the landscape u; a loss inherits it where subharmonic: see subharmonicity_report.",
)


def bridge_probes(
    x: Tensor,
    y: Tensor,
    *,
    target_space: TargetSpace,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """Draw points on bridges between rows, as in training: inputs and (mixed) targets, one row each.

    Args:
        x: Inputs.
        y: Targets.
        target_space: ``"real"``, ``"simplex"`` (labels; pass ``num_classes``) or ``"unit"``.
        generator: Source of randomness.
        **settings: Those of `elliptica.Elliptic`, e.g. ``sigma``, ``n_times``, ``n_bridges``.
    """
    settings.setdefault("sampling", "path")  # every inner time of the grid
    paths = sample_paths(x, y, target_space=target_space, generator=generator, **settings)
    assert isinstance(paths.x, Tensor)
    inner = (paths.s > 0) & (paths.s < 1)  # the ends are the data themselves
    return paths.x[inner], paths.y[inner]


def shifted_probes(
    x: Tensor,
    y: Tensor,
    matrix: Float[Tensor, "dim dim"] | None = None,
    offset: Float[Tensor, " dim"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply the map ``T x = matrix x + offset`` to inputs (flattened features); targets do not change."""
    moved = x.reshape(len(x), -1)
    if offset is not None and offset.shape != moved.shape[1:]:  # it would broadcast
        raise ValueError(f"offset has shape {tuple(offset.shape)}, inputs {moved.shape[1]} features.")
    if matrix is not None:
        moved = moved @ matrix.to(moved).T
    if offset is not None:
        moved = moved + offset.to(moved)
    return moved.reshape(x.shape), y


@dataclass(frozen=True)
class Violations:
    """Probes of one group whose loss exceeds the largest loss on the boundary."""

    name: str
    n: int  # probes in it
    count: int  # violations among them
    rate: float  # ``count / n``
    lower: float  # lower confidence limit of the rate (Clopper-Pearson)
    upper: float  # upper confidence limit
    worst_excess: float  # largest loss minus the largest loss on the boundary (negative if the bound is met)
    mean_loss: float  # mean loss of the group's probes


@dataclass(frozen=True)
class MaximumPrincipleReport(Result):
    """Result of `maximum_principle_report`."""

    check: MaximumPrinciple  # extremes and verdicts of `check_maximum_principle`
    overall: Violations  # all probes together
    #: One entry per class, if the targets of the probes are integer labels, and per group.
    parts: tuple[Violations, ...]
    worst: tuple[int, ...]  # numbers of the probes with the largest losses, worst first
    worst_losses: tuple[float, ...]  # their losses
    confidence: float  # confidence level of the limits, for each line separately
    notes: tuple[str, ...] = _NOTES  # remarks and cautions


def maximum_principle_report(
    field: LossField,
    boundary: tuple[Inputs, Tensor],
    probes: tuple[Inputs, Tensor],
    *,
    group: Tensor | Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    n_worst: int = 5,
) -> MaximumPrincipleReport:
    """Compare the loss at probes with the largest loss at the data (paper: Prop. 1, as an observation).

    Args:
        field: Loss of the model.
        boundary: Inputs and targets of the data, usually the training set.
        probes: Inputs and targets to compare: `bridge_probes`, `shifted_probes`, or test data.
        group: Group of each probe, to see where violations concentrate.
        confidence: Level of the Clopper-Pearson limits.
        n_worst: How many of the worst probes to list.
    """
    check_level("confidence", confidence)
    at_data, losses = field(*boundary), field(*probes)
    check = check_maximum_principle(at_data, losses)
    excess = losses.double() - check.boundary_max
    labels, parts = probes[1], list[Violations]()
    if labels.ndim == 1 and not labels.is_floating_point():
        parts += _split("class", labels.tolist(), excess, losses, confidence)
    if group is not None:
        names = group.flatten().tolist() if isinstance(group, Tensor) else list(group)
        parts += _split("group", names, excess, losses, confidence)
    worst = losses.argsort(descending=True)[:n_worst]
    return MaximumPrincipleReport(
        check,
        _violations("all", excess, losses, confidence),
        tuple(parts),
        tuple(worst.tolist()),
        tuple(losses[worst].tolist()),
        confidence,
    )


def _violations(name: str, excess: Tensor, losses: Tensor, confidence: float) -> Violations:
    n, count = len(excess), int((excess > 0).sum())
    low, high = clopper_pearson(count, n, confidence)
    return Violations(
        name, n, count, count / n, low, high, float(excess.max()), float(losses.double().mean())
    )


def _split(
    kind: str, names: list[Any], excess: Tensor, losses: Tensor, confidence: float
) -> Iterator[Violations]:
    for name in sorted(set(names), key=lambda key: (isinstance(key, str), key)):
        at = torch.tensor([other == name for other in names], device=losses.device)
        yield _violations(f"{kind} {name}", excess[at], losses[at], confidence)
