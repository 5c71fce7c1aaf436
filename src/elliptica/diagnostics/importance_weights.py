"""Can importance weights be trusted? Effective number, mean and concentration of Girsanov weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica.diagnostics.result import Result, notes_lines
from elliptica.landscape.estimate import FEW_EFFECTIVE

#: Standard errors by which the mean weight may be off one.
_FAR = 4.0


@dataclass(frozen=True)
class WeightsReport(Result):
    """What `weights_report` found.

    Attributes:
        n: Number of weights.
        effective: ``(sum w)^2 / sum w^2``, from 1 to ``n``.
        effective_share: ``effective / n``.
        mean_weight: Mean of the weights; one for a true change of measure.
        mean_stderr: Its standard error.
        largest_share: Share of the sum that the largest weight has.
        row_effective_share: Least effective share among the rows (data points) of weights of bridges,
            where weights are compared within a row; None for plain paths.
        trust: Whether averages with these weights can be relied on.
        notes: Why not, and what else to know.
    """

    n: int
    effective: float
    effective_share: float
    mean_weight: float
    mean_stderr: float
    largest_share: float
    row_effective_share: float | None
    trust: bool
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.n} importance weights: {'trust' if self.trust else 'do not trust'}",
            f"  effective number {self.effective:.4g} ({self.effective_share:.1%}), mean weight "
            f"{self.mean_weight:.4g} ± {self.mean_stderr:.2g}, largest weight "
            f"{self.largest_share:.1%} of the sum",
        ]
        if self.row_effective_share is not None:
            lines.append(f"  least effective share within a row: {self.row_effective_share:.1%}")
        return "\n".join([*lines, *notes_lines(self.notes)])


def weights_report(
    log_weights: Float[Tensor, " paths"] | Float[Tensor, "batch bridge"],
) -> WeightsReport:
    """Judge weights of a change of measure.

    Args:
        log_weights: Logarithms. One axis: walks under a true change of measure, whose mean weight must be
            one. Two axes ``(batch, bridge)``, as `elliptica.log_weights` returns them: on bridges a factor
            per pair of end points is unknown, so the mean says nothing; the effective share is judged over
            the batch, as training uses the weights, and within each row.
    """
    checks.floating("log_weights", log_weights)
    if log_weights.ndim not in (1, 2):
        raise ValueError(
            f"log_weights must have shape (paths,) or (batch, bridge), but have {tuple(log_weights.shape)}."
        )
    on_bridges = log_weights.ndim == 2
    flat = log_weights.detach().double().flatten()
    n = len(flat)
    if n < 2:
        raise ValueError(f"A report on weights needs at least two of them, but got {n}.")
    if not bool((flat < math.inf).all()):
        raise ValueError(
            f"{int((~(flat < math.inf)).sum())} of {n} log_weights are NaN or +infinity. Look at the drift "
            "and the loss gradient that they come from."
        )
    if not bool((flat > -math.inf).any()):
        raise ValueError("All weights are zero: every entry of log_weights is -infinity.")
    share = flat.softmax(0)
    effective = float(1 / share.square().sum())
    mean = math.exp(min(float(flat.logsumexp(0)) - math.log(n), 700.0))
    stderr = mean * math.sqrt(max(n / effective - 1, 0.0) / (n - 1))
    rows = _rows(log_weights) if on_bridges else None
    least = effective / n if rows is None else min(rows, effective / n)
    notes = _judge(n, least, mean, stderr, on_bridges)
    trust = not notes
    if on_bridges:
        notes = (
            *notes,
            "Weights of bridges: known up to a factor per pair of end points, so compare them within a row "
            "(self-normalise); their mean need not be one.",
        )
    return WeightsReport(n, effective, effective / n, mean, stderr, float(share.max()), rows, trust, notes)


def _rows(log_weights: Tensor) -> float | None:
    """Least effective share within a row; None with one bridge per row."""
    if log_weights.shape[1] < 2:
        return None
    share = torch.nan_to_num(log_weights.detach().double().softmax(1), nan=1.0)  # a row without weight: 1/n
    return float((1 / share.square().sum(1)).min()) / log_weights.shape[1]


def _judge(n: int, share: float, mean: float, stderr: float, on_bridges: bool) -> tuple[str, ...]:
    notes = []
    if share < FEW_EFFECTIVE:
        notes.append(
            f"The effective number is {share:.1%} of the weights, below {FEW_EFFECTIVE:.0%}: averages rest "
            "on a few paths. Use a weaker drift (smaller xi), more paths, or sample the drifted process."
        )
    if not on_bridges and abs(mean - 1) > _FAR * stderr + 1e-6:
        notes.append(
            f"The mean weight {mean:.4g} is more than {_FAR:.0f} standard errors from 1: this is not a "
            "change of measure, or the weights are so uneven that their standard error is itself too small."
        )
    if n < 30:
        notes.append(f"{n} weights are too few to judge.")
    return tuple(notes)
