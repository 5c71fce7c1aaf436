"""Compare the loss between or beyond the data with the loss at the data, with confidence limits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.statistics import check_level, clopper_pearson
from elliptica.core.types import Inputs
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.landscape.loss import LossField, MaximumPrinciple, check_maximum_principle

_NOTES = (
    "Observed at these probes; elsewhere it may differ. The limits treat probes as independent. Probes "
    "that share a datum or a bridge are not, and the limits are then too narrow.",
    "Proposition 1 bounds the landscape u, not the loss of the network. The bound is inherited where the "
    "loss is subharmonic: see subharmonicity_report.",
)


@dataclass(frozen=True)
class Violations:
    """Probes of one group whose loss exceeds the largest loss on the boundary.

    Attributes:
        name: Name of the group.
        n: Probes in it.
        count: Violations among them.
        rate: ``count / n``.
        lower: Lower confidence limit of the rate (Clopper-Pearson).
        upper: Upper confidence limit.
        worst_excess: Largest loss minus the largest loss on the boundary (negative if the bound is met).
        mean_loss: Mean loss of the group's probes.
    """

    name: str
    n: int
    count: int
    rate: float
    lower: float
    upper: float
    worst_excess: float
    mean_loss: float


@dataclass(frozen=True)
class MaximumPrincipleReport(Result):
    """Result of `maximum_principle_report`.

    Attributes:
        check: Extremes and verdicts of `check_maximum_principle`.
        overall: All probes together.
        by_class: One entry per class, if the targets of the probes are integer labels.
        by_group: One entry per group, if groups were given.
        worst: Numbers of the probes with the largest losses, worst first.
        worst_losses: Their losses.
        confidence: Confidence level of the limits, for each line separately.
        notes: Remarks and cautions.
    """

    check: MaximumPrinciple
    overall: Violations
    by_class: tuple[Violations, ...]
    by_group: tuple[Violations, ...]
    worst: tuple[int, ...]
    worst_losses: tuple[float, ...]
    confidence: float
    notes: tuple[str, ...] = _NOTES

    def __str__(self) -> str:
        all_, c = self.overall, self.check
        lines = [
            f"maximum principle, observed at {all_.n} probes: {all_.count} above the largest loss at the "
            f"data ({c.boundary_max:.4g})",
            f"  rate {all_.rate:.3%}, {self.confidence:.0%} limits {all_.lower:.3%} to {all_.upper:.3%}; "
            f"worst excess {all_.worst_excess:+.4g}",
            "  largest losses: "
            + ", ".join(
                f"{loss:.4g} (probe {i})" for i, loss in zip(self.worst, self.worst_losses, strict=True)
            ),
        ]
        for title, rows in (("class", self.by_class), ("group", self.by_group)):
            if rows:
                head = (title, "probes", "above", "rate", "lower", "upper", "worst excess", "mean loss")
                lines += table(head, [tuple(vars(row).values()) for row in rows], limit=20)
        return "\n".join([*lines, *notes_lines(self.notes)])


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
    checks.count("n_worst", n_worst)
    at_data = field(*boundary)
    losses = field(*probes)
    result = check_maximum_principle(at_data, losses)
    excess = losses.double() - result.boundary_max
    labels = probes[1]
    is_label = labels.ndim == 1 and not labels.is_floating_point()
    worst = losses.argsort(descending=True)[:n_worst]
    return MaximumPrincipleReport(
        result,
        _violations("all", excess, losses, confidence),
        _split(labels.tolist(), excess, losses, confidence) if is_label else (),
        () if group is None else _split(_names(group, len(losses)), excess, losses, confidence),
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
    names: Sequence[Hashable], excess: Tensor, losses: Tensor, confidence: float
) -> tuple[Violations, ...]:
    rows: dict[Hashable, list[int]] = {}
    for i, name in enumerate(names):
        rows.setdefault(name, []).append(i)
    parts = []
    for name in sorted(rows, key=lambda key: (isinstance(key, str), key)):
        at = torch.tensor(rows[name], device=losses.device)
        parts.append(_violations(str(name), excess[at], losses[at], confidence))
    return tuple(parts)


def _names(group: Tensor | Sequence[Hashable], n: int) -> Sequence[Hashable]:
    names = group.flatten().tolist() if isinstance(group, Tensor) else list(group)
    if len(names) != n:
        raise ValueError(f"group must have one entry per probe ({n}), but has {len(names)}.")
    return names
