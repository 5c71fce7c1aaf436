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


def fits(mean: float, std: float | None, *, seeds: int, rows: int, deviation: str = "either") -> bool:
    """Whether some whole numbers of right answers give a mean and deviation, in percent with one digit.

    The decision is exact: it looks for ``seeds`` whole numbers from 0 to ``rows`` whose sum and sum of
    squares are among those that round to the printed values. At the edge both roundings of a half count.
    ``deviation`` is ``"sample"``, ``"population"`` or ``"either"``; without ``std`` the mean alone decides.
    """
    low, high = (bound * seeds * rows / 100 for bound in _interval(mean))
    totals = range(max(ceil(low), 0), min(floor(high), seeds * rows) + 1)
    if std is None:
        return bool(totals)
    divisors = {"sample": [seeds - 1], "population": [seeds], "either": [seeds - 1, seeds]}[deviation]
    spread = [bound * rows / 100 for bound in _interval(std)]
    squares = [tuple(bound**2 * divisor for bound in spread) for divisor in divisors if divisor]
    return any(_exists(total, *bounds, seeds, rows) for total in totals for bounds in squares)


def chance_of_fit(mean: float, std: float, *, seeds: int, rows: int, finer: int, draws: int = 2000) -> float:
    """Draw scores on ``finer`` rows that look like a printed pair; returns how often they fit ``rows``.

    Each draw rounds ``seeds`` normal numbers with the printed mean and deviation to whole right answers out
    of ``finer``, prints the sample's mean and deviation, and asks `fits` (with either deviation).
    """
    generator = random.Random(f"{mean} {std} {seeds} {rows} {finer}")
    hits = 0
    for _ in range(draws):
        right = (round(generator.gauss(mean, std) / 100 * finer) for _ in range(seeds))
        scores = [100 * min(max(k, 0), finer) / finer for k in right]
        printed = (round(value, 1) for value in (statistics.mean(scores), statistics.stdev(scores)))
        hits += fits(*printed, seeds=seeds, rows=rows)
    return hits / draws


def _interval(printed: float) -> tuple[Fraction, Fraction]:
    """Values that a printed one may stand for, not below 0."""
    value, half = Fraction(f"{printed:.1f}"), Fraction(1, 20)
    return max(value - half, Fraction(0)), value + half


def _exists(total: int, least: Fraction, most: Fraction, seeds: int, rows: int) -> bool:
    """Whether whole numbers from 0 to ``rows`` have a sum, and squared distances from the mean in a range.

    Numbers are counted from near their mean, where all squares are small.
    """
    centre, rest = divmod(total, seeds)
    shift = Fraction(rest * rest, seeds)
    low, high = ceil(least + shift), floor(most + shift)
    if low > high:
        return False
    size = isqrt(high)
    return bool(_reachable(seeds, max(-centre, -size), min(rows - centre, size), high).get(rest, 0) >> low)


@lru_cache(maxsize=4096)
def _reachable(n: int, low: int, high: int, most: int) -> dict[int, int]:
    """Sums of squares up to ``most``, as bits of a number, by the sum of ``n`` whole numbers of a range."""
    mask, found = (1 << (most + 1)) - 1, {0: 1}
    for _ in range(n):
        longer: dict[int, int] = {}
        for total, squares in found.items():
            for value in range(low, high + 1):
                if more := (squares << (value * value)) & mask:
                    longer[total + value] = longer.get(total + value, 0) | more
        found = longer
    return found
