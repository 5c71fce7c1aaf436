"""Intervals for differences between methods that were tested on the same repeated splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from elliptica._statistics import student_quantile
from elliptica.compare.metrics import Metric


@dataclass(frozen=True)
class Interval:
    """A mean over repeats and an interval for it."""

    mean: float
    low: float
    high: float
    n_repeats: int

    @property
    def half_width(self) -> float:
        """How far the interval reaches to either side."""
        return (self.high - self.low) / 2


def corrected_interval(differences: Sequence[float], test_share: float, confidence: float = 0.95) -> Interval:
    """Interval for a mean difference over repeated splits of the same rows (Nadeau and Bengio, 2003).

    Repeats share training rows, so their spread understates the uncertainty. The corrected resampled
    t-test replaces the variance ``s^2 / J`` of the mean of J repeats by ``s^2 (1 / J + n_test / n_train)``,
    with J - 1 degrees of freedom.

    Args:
        differences: One per repeat.
        test_share: ``n_test / n_train``, where training rows are all that the learner saw (validation
            rows among them).
        confidence: Of the two-sided interval.

    Returns:
        The interval; without limits for a single repeat.

    Example:
        >>> found = corrected_interval([1.0, 2.0, 3.0], test_share=0.25)
        >>> f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
        '2.00 (-1.29 to 5.29)'
    """
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        return Interval(mean, -np.inf, np.inf, n)
    variance = float(np.var(differences, ddof=1)) * (1 / n + test_share)
    half = _quantile((1 + confidence) / 2, n - 1) * variance**0.5
    return Interval(mean, mean - half, mean + half, n)


@lru_cache(maxsize=256)
def _quantile(probability: float, degrees: int) -> float:
    """The same few are asked for again and again, and each is a bisection."""
    return student_quantile(probability, degrees)


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
