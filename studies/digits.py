"""Tell whether a printed mean and deviation can come from whole rows: GRIM and GRIMMER, exactly.

A score of one seed is ``k / rows`` with a whole number ``k`` of right answers. Not every mean and deviation
over a few seeds can then be printed: with 10 seeds and 21 rows, means are multiples of 0.476 %. The digits
thus tell which numbers of rows are impossible. They never prove a number of rows: whatever fits 21 rows fits
42 of them, too.
"""

from __future__ import annotations

import random
import statistics
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, isqrt
from typing import Literal, get_args

#: How a deviation over seeds was computed: division by their number less one, or by their number.
Deviation = Literal["sample", "population", "either"]


def fits(
    mean: float,
    std: float | None,
    *,
    seeds: int,
    rows: int,
    decimals: int = 1,
    deviation: Deviation = "either",
) -> bool:
    """Whether some whole numbers of right answers give a printed mean and deviation.

    The decision is exact: it looks for ``seeds`` whole numbers from 0 to ``rows`` whose sum and sum of
    squares are among those that round to the printed values. At the edge both roundings of a half count.

    Args:
        mean: In percent, as printed.
        std: Deviation over seeds in percent, as printed; None looks at the mean alone (GRIM).
        seeds: Number of repetitions.
        rows: Number of rows that each score is about.
        decimals: Printed digits after the point.
        deviation: How the deviation was computed.

    Example:
        >>> fits(32.4, 13.8, seeds=10, rows=21)
        True
        >>> fits(32.5, None, seeds=10, rows=21)  # 68 of 210 is 32.38, 69 of 210 is 32.86
        False
    """
    if seeds < 1 or rows < 1:
        raise ValueError(f"seeds and rows must be positive, but got {seeds} and {rows}.")
    if deviation not in get_args(Deviation):
        raise ValueError(f"deviation must be one of {get_args(Deviation)}, but got {deviation!r}.")
    low, high = _interval(mean, decimals)
    scale = Fraction(seeds * rows, 100)
    totals = range(max(ceil(low * scale), 0), min(floor(high * scale), seeds * rows) + 1)
    if std is None:
        return bool(totals)
    ways = ("sample", "population") if deviation == "either" else (deviation,)
    spreads = [
        _squares(std, decimals, rows, seeds - (way == "sample"))
        for way in ways
        if seeds > 1 or way == "population"
    ]
    return any(_exists(total, spread, seeds, rows) for total in totals for spread in spreads)


def chance_of_fit(
    mean: float, std: float, *, seeds: int, rows: int, finer: int, draws: int = 2000, decimals: int = 1
) -> float:
    """Draw scores on ``finer`` rows that look like a printed pair; returns how often they fit ``rows``.

    Each draw rounds ``seeds`` normal numbers with the printed mean and deviation to whole right answers out
    of ``finer``, prints the sample's mean and deviation, and asks `fits` (with either deviation).
    """
    generator = random.Random(f"{mean} {std} {seeds} {rows} {finer}")
    hits = 0
    for _ in range(draws):
        scores = [
            100 * min(max(round(generator.gauss(mean, std) / 100 * finer), 0), finer) / finer
            for _ in range(seeds)
        ]
        printed = (round(value, decimals) for value in (statistics.mean(scores), statistics.stdev(scores)))
        hits += fits(*printed, seeds=seeds, rows=rows, decimals=decimals)
    return hits / draws


def _interval(printed: float, decimals: int) -> tuple[Fraction, Fraction]:
    """Values that a printed one may stand for, not below 0."""
    value, half = Fraction(f"{printed:.{decimals}f}"), Fraction(1, 2 * 10**decimals)
    return max(value - half, Fraction(0)), value + half


def _squares(std: float, decimals: int, rows: int, divisor: int) -> tuple[Fraction, Fraction]:
    """Sums of squared distances from the mean, of right answers, that a printed deviation may stand for."""
    low, high = (bound * rows / 100 for bound in _interval(std, decimals))
    return low**2 * divisor, high**2 * divisor


def _exists(total: int, spread: tuple[Fraction, Fraction], seeds: int, rows: int) -> bool:
    """Whether whole numbers from 0 to ``rows`` have a sum, and squared distances from the mean in a range.

    Numbers are counted from near their mean, where all squares are small.
    """
    centre = total // seeds
    rest = total - seeds * centre  # the sum as counted from there
    shift = Fraction(rest * rest, seeds)
    low, high = ceil(spread[0] + shift), floor(spread[1] + shift)
    if low > high:
        return False
    size = isqrt(high)
    found = _reachable(seeds, max(-centre, -size), min(rows - centre, size), high).get(rest, 0)
    return bool(found >> low)


@lru_cache(maxsize=4096)
def _reachable(n: int, low: int, high: int, most: int) -> dict[int, int]:
    """Sums of squares up to ``most``, as bits of a number, by the sum of ``n`` whole numbers of a range."""
    values = range(low, high + 1)
    mask = (1 << (most + 1)) - 1
    found = {0: 1}
    for _ in range(n):
        longer: dict[int, int] = {}
        for total, squares in found.items():
            for value in values:
                more = (squares << (value * value)) & mask
                if more:
                    longer[total + value] = longer.get(total + value, 0) | more
        found = longer
    return found
