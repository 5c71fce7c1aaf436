"""Interleaved timing: two things are compared only with each other, in the same minute."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Clock = Callable[[], float]


@dataclass(frozen=True)
class Measurement:
    """One line of the table: median and quartiles of ratios; an infinite budget is no budget."""

    what: str
    against: str
    ratio: float
    low: float
    high: float
    budget: float
    detail: str = ""  # absolute figures, for orientation only

    @classmethod
    def of(cls, what: str, against: str, ratios: Sequence[float], *rest: Any) -> Measurement:
        """Summarise ratios, or a single one; ``rest`` are the budget and perhaps a detail."""
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [*ratios] * 3
        return cls(what, against, middle, low, high, *rest)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        budget = None if math.isinf(self.budget) else self.budget
        return {**asdict(self), "budget": budget, "within_budget": self.ratio <= self.budget}


def seconds(function: Callable[[], object], repeats: int = 1, clock: Clock = time.perf_counter) -> float:
    """Mean time of one call."""
    begin = clock()
    for _ in range(repeats):
        function()
    return (clock() - begin) / repeats


def compare(
    what: str,
    function: Callable[[], object],
    against: str,
    reference: Callable[[], object],
    budget: float,
    rounds: int = 15,
    repeats: int = 1,
) -> Measurement:
    """Time both in random order, round by round; the ratio is taken within each round."""
    calls, times = (function, reference), ([], [])
    function(), reference()  # warm up
    for _ in range(rounds):
        for which in random.sample((0, 1), 2):
            times[which].append(seconds(calls[which], repeats))
    ratios = [ours / theirs for ours, theirs in zip(*times, strict=True)]
    detail = " against ".join(_readable(statistics.median(each)) for each in times)
    return Measurement.of(what, against, ratios, budget, detail)


def fill(mark: str, block: str) -> None:
    """Replace a block of the README."""
    begin, end, readme = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->", HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(begin)
    readme.write_text(f"{before}{begin}\n{block}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def _readable(value: float) -> str:
    return f"{value * 1e6:.0f} us" if value < 1e-3 else f"{value * 1e3:.3g} ms"
