"""Differences between methods that were tested on the same repeated splits, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elliptica._statistics import Interval as Interval
from elliptica._statistics import corrected_interval as corrected_interval
from elliptica.compare.metrics import Metric


@dataclass(frozen=True)
class Difference:
    """A method minus ordinary training, on one metric.

    Attributes:
        method: Which method.
        metric: Which metric.
        interval: Of the difference.
        value: Mean of the method's scores.
        reference: Mean of those of ordinary training.
    """

    method: str
    metric: Metric
    interval: Interval
    value: float
    reference: float

    @property
    def gain(self) -> float:
        """Mean difference in the metric's good direction."""
        return self.interval.mean if self.metric.higher_is_better else -self.interval.mean

    @property
    def result(self) -> Literal["better", "worse", "open"]:
        """Open if the interval contains zero, or has no width: equal differences are too coarse to judge."""
        if self.interval.half_width < 1e-12 or self.interval.low <= 0 <= self.interval.high:
            return "open"
        return "better" if self.gain > 0 else "worse"

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval; shares cannot differ by more than 1, whatever few repeats allow."""
        ends = self.interval.low, self.interval.high
        return (max(-1.0, ends[0]), min(1.0, ends[1])) if self.metric.percent else ends

    def words(self) -> str:
        """Both means, and the difference with its interval."""
        show = self.metric.show
        low, high = (show(end, sign=True, unit=False) for end in self.ends)
        return (
            f"{self.metric.label} {show(self.value)} against {show(self.reference)} (difference "
            f"{show(self.interval.mean, sign=True)}, interval {low} to {high})"
        )
