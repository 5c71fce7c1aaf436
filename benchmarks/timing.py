"""Interleaved timing: two things are compared only with each other, in the same minute."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """One line of the table.

    Attributes:
        what: What was measured.
        against: What it is compared with.
        ratio: Median over rounds of the ratio within a round.
        low: First quartile of those ratios.
        high: Third quartile.
        budget: The most that we allow; infinite for what is only reported.
        detail: Absolute figures, for orientation only.
    """

    what: str
    against: str
    ratio: float
    low: float
    high: float
    budget: float
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        within = self.ratio <= self.budget
        return {
            **asdict(self),
            "budget": None if math.isinf(self.budget) else self.budget,
            "within_budget": within,
        }


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Mean time of one call."""
    begin = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - begin) / repeats


def compare(
    what: str,
    function: Callable[[], object],
    against: str,
    reference: Callable[[], object],
    *,
    budget: float,
    rounds: int = 15,
    repeats: int = 1,
) -> Measurement:
    """Time both in random order, round by round; the ratio is taken within each round."""
    function(), reference()  # warm up
    ratios: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        pair = [(function, ours), (reference, theirs)]
        random.shuffle(pair)
        for call, times in pair:
            times.append(seconds(call, repeats))
        ratios.append(ours[-1] / theirs[-1])
    low, _, high = statistics.quantiles(ratios, n=4)
    detail = f"{_readable(statistics.median(ours))} against {_readable(statistics.median(theirs))}"
    return Measurement(what, against, statistics.median(ratios), low, high, budget, detail)


def _readable(value: float) -> str:
    return f"{value * 1e6:.0f} us" if value < 1e-3 else f"{value * 1e3:.3g} ms"
