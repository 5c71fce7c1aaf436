"""Judge importance weights: effective number, mean and concentration (paper: Eq. (4), appendix C.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from elliptica._utils.statistics import Result
from elliptica.landscape.estimate import FEW_EFFECTIVE

#: Standard errors by which the mean weight may be off one, and fewest weights to judge.
_FAR, _FEW = 4.0, 30


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


def weights_report(log_weights: Float[Tensor, " paths"] | Float[Tensor, "batch bridge"]) -> WeightsReport:
    """Judge weights of a change of measure.

    Args:
        log_weights: Logarithms. One axis: walks under a true change of measure, whose mean weight must be
            one. Two axes ``(batch, bridge)``, as `elliptica.log_weights` returns them: a factor per pair of
            end points is unknown, so weights are judged within each row, and their mean says nothing.
    """
    values = log_weights.detach().double()
    on_bridges, n = values.ndim == 2, values.numel()
    rows = values if on_bridges else values[None]
    if values.ndim not in (1, 2) or rows.shape[1] < 2:
        raise ValueError(f"log_weights must be (paths,) or (batch, bridge > 1), not {tuple(values.shape)}.")
    # NaN compares as False, so that this finds it, too
    if not bool(((rows < math.inf).all(1) & (rows > -math.inf).any(1)).all()):
        raise ValueError("log_weights are NaN or +infinity somewhere, or -infinity in a whole row.")
    share = rows.softmax(1)
    per_row = 1 / share.square().sum(1)
    effective, largest = float(per_row.sum()), float(share.max())
    if on_bridges:
        # relative to the minimum of one effective path per row
        notes = _judge(n, float((per_row.mean() - 1) / (rows.shape[1] - 1)), "further bridges of a pair")
        least = float(per_row.min()) / rows.shape[1]
        trust = not notes
        notes += ("Known up to a factor per pair of ends: compared within a row. Their mean says nothing.",)
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
    notes: tuple[str, ...] = ()
    if share < FEW_EFFECTIVE:
        notes += (
            f"The effective number is {share:.1%} of the {of}, below {FEW_EFFECTIVE:.0%}: use a weaker drift "
            "(smaller xi), more paths, or sample the drifted process.",
        )
    return notes if n >= _FEW else (*notes, f"{n} weights are too few to judge.")
