"""Judge importance weights: effective number, mean and concentration of Girsanov weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica.diagnostics.result import Result, notes_lines
from elliptica.landscape.estimate import FEW_EFFECTIVE

#: Standard errors by which the mean weight may be off one.
_FAR = 4.0


@dataclass(frozen=True)
class WeightsReport(Result):
    """Result of `weights_report`.

    Attributes:
        n: Number of weights.
        effective: ``(sum w)^2 / sum w^2``, from 1 to ``n``; for weights of bridges the sum of that over the
            rows, so from the number of rows to ``n``.
        effective_share: ``effective / n``.
        mean_weight: Mean of the weights; one for a true change of measure. None for weights of bridges.
        mean_stderr: Its standard error.
        largest_share: Share of the sum (on bridges: of its row's sum) that the largest weight has.
        row_effective_share: Least effective share among the rows (data points) of weights of bridges; None
            for plain paths.
        trust: Whether averages with these weights can be relied on.
        notes: Reasons why not, and other remarks.
    """

    n: int
    effective: float
    effective_share: float
    mean_weight: float | None
    mean_stderr: float | None
    largest_share: float
    row_effective_share: float | None
    trust: bool
    notes: tuple[str, ...]

    def __str__(self) -> str:
        mean = ""
        if self.mean_weight is not None:
            mean = f"mean weight {self.mean_weight:.4g} ± {self.mean_stderr:.2g}, "
        of = "the sum" if self.row_effective_share is None else "a row's sum"
        lines = [
            f"{self.n} importance weights: {'trust' if self.trust else 'do not trust'}",
            f"  effective number {self.effective:.4g} ({self.effective_share:.1%}), {mean}largest weight "
            f"{self.largest_share:.1%} of {of}",
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
            one. Two axes ``(batch, bridge)``, as `elliptica.log_weights` returns them for bridges drawn with
            ``same_partner=True``: a factor per pair of end points is unknown, so weights are judged within
            each row, as training uses them, and their mean says nothing. For both halves of the drift pass
            ``log_weights(..., drift="both")``.
    """
    checks.floating("log_weights", log_weights)
    if log_weights.ndim not in (1, 2):
        raise ValueError(
            f"log_weights must have shape (paths,) or (batch, bridge), but have {tuple(log_weights.shape)}."
        )
    on_bridges = log_weights.ndim == 2
    values = log_weights.detach().double()
    n = values.numel()
    if n < 2:
        raise ValueError(f"A report on weights needs at least two weights, but got {n}. Draw more paths.")
    if on_bridges and values.shape[1] < 2:
        raise ValueError(
            "Weights of bridges are known up to a factor per pair of end points, so they are judged against "
            "each other within a row, but each row has one. Draw paths with n_bridges=2 or more and "
            "same_partner=True."
        )
    if not bool((values < math.inf).all()):
        raise ValueError(
            f"{int((~(values < math.inf)).sum())} of {n} log_weights are NaN or +infinity. Look at the drift "
            "and the loss gradient that they come from."
        )
    rows = values if on_bridges else values[None]
    empty = int((~(rows > -math.inf).any(1)).sum())
    if empty:
        where = f"in {empty} of {len(rows)} rows every" if on_bridges else "every"
        raise ValueError(f"All weights are zero: {where} entry of log_weights is -infinity. Check the drift.")
    share = rows.softmax(1)
    each = 1 / share.square().sum(1)  # effective number of each row
    effective, largest = float(each.sum()), float(share.max())
    if on_bridges:
        # relative to the minimum of one effective path per row
        notes = _judge(n, float((each.mean() - 1) / (rows.shape[1] - 1)), "further bridges of a pair")
        least = float(each.min()) / rows.shape[1]
        trust = not notes
        notes += (
            "Weights of bridges are known up to a factor per pair of end points, so they are compared within "
            "a row; their mean says nothing.",
        )
        return WeightsReport(n, effective, effective / n, None, None, largest, least, trust, notes)
    mean = math.exp(min(float(values.logsumexp(0)) - math.log(n), 700.0))
    stderr = mean * math.sqrt(max(n / effective - 1, 0.0) / (n - 1))
    notes = _judge(n, effective / n, "weights")
    if abs(mean - 1) > _FAR * stderr + 1e-6:
        notes += (
            f"The mean weight {mean:.4g} is more than {_FAR:.0f} standard errors from 1: this is not a "
            "change of measure, or the weights are so uneven that their standard error is itself too small.",
        )
    return WeightsReport(n, effective, effective / n, mean, stderr, largest, None, not notes, notes)


def _judge(n: int, share: float, of: str) -> tuple[str, ...]:
    """Return the objections to weights with this effective share."""
    notes = []
    if share < FEW_EFFECTIVE:
        notes.append(
            f"The effective number is {share:.1%} of the {of}, below {FEW_EFFECTIVE:.0%}: averages depend "
            "on a few paths. Use a weaker drift (smaller xi), more paths, or sample the drifted process."
        )
    if n < 30:
        notes.append(f"{n} weights are too few to judge.")
    return tuple(notes)
