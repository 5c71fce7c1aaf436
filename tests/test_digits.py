"""Printed digits against an enumeration of everything that could have been measured."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from digits import chance_of_fit, fits

#: The worst class of Breast as printed in Tables 6, 9 and 10 of the paper.
PRINTED = [(32.4, 13.8), (47.1, 10.9), (16.7, 11.3), (67.6, 4.4), (67.6, 3.0), (67.6, 4.9), (67.6, 3.8)]


def printed(counts: tuple[int, ...], rows: int, divisor: int) -> set[tuple[float, float]]:
    """All roundings to one digit of mean and deviation in percent, both where a half can go either way."""
    total, squares = sum(counts), sum(k * k for k in counts)
    mean = Fraction(1000 * total, len(counts) * rows)  # in tenths of a percent
    spread = (squares - Fraction(total * total, len(counts))) / divisor * Fraction(1000, rows) ** 2
    root = math.isqrt(math.floor(spread))  # the deviation in tenths lies in [root, root + 1]
    half = Fraction(2 * root + 1, 2) ** 2
    deviations = {root} if spread < half else {root + 1} if spread > half else {root, root + 1}
    floor = mean.numerator // mean.denominator
    rest = mean - floor
    means = {floor} if 2 * rest < 1 else {floor + 1} if 2 * rest > 1 else {floor, floor + 1}
    return {(m / 10, d / 10) for m in means for d in deviations}


def neighbour(value: float, step: int) -> float:
    """A printed value some last digits away, from 0 to 100."""
    return min(max(round(10 * value) + step, 0), 1000) / 10


@pytest.mark.parametrize(("seeds", "rows"), [(1, 4), (2, 7), (3, 4), (4, 5), (5, 3)])
def test_agrees_with_enumeration(seeds, rows):
    scores = list(itertools.combinations_with_replacement(range(rows + 1), seeds))
    population = {pair for k in scores for pair in printed(k, rows, seeds)}
    sample = {pair for k in scores if seeds > 1 for pair in printed(k, rows, seeds - 1)}
    means = {mean for mean, _ in population}
    near = {neighbour(mean, step) for mean in means for step in (-1, 0, 1)}
    spreads = {std for _, std in sample | population}
    nearby = {neighbour(std, step) for std in spreads for step in (-1, 0, 1)}
    for mean in near:
        assert fits(mean, None, seeds=seeds, rows=rows) == (mean in means)
        for std in nearby:
            pair = (mean, std)
            assert fits(*pair, seeds=seeds, rows=rows, deviation="sample") == (pair in sample), pair
            assert fits(*pair, seeds=seeds, rows=rows, deviation="population") == (pair in population), pair
            assert fits(*pair, seeds=seeds, rows=rows) == (pair in sample | population), pair


def test_two_scores_need_more_than_parity():
    # counts 10 and 10 +- d of 20: the deviation is that of a whole d; parity alone would allow others
    assert fits(50.0, 14.1, seeds=2, rows=20, deviation="sample")  # 8 and 12
    assert fits(50.0, 7.1, seeds=2, rows=20, deviation="sample")  # 9 and 11
    assert not fits(50.0, 10.0, seeds=2, rows=20, deviation="sample")  # squares 200 + 4: even


def test_bounds_count():
    assert fits(100.0, 0.0, seeds=10, rows=21)
    assert not fits(100.0, 3.0, seeds=10, rows=21)  # would need more than all rows right
    assert fits(50.0, 52.7, seeds=10, rows=21, deviation="sample")  # five times all, five times none
    assert not fits(50.0, 55.0, seeds=10, rows=21)


def test_half_is_rounded_either_way():
    # 1 of 8 with one seed is 12.5: no digits after the point give 12 (to even) or 13 (up)
    assert fits(12, None, seeds=1, rows=8, decimals=0)
    assert fits(13, None, seeds=1, rows=8, decimals=0)
    assert not fits(11, None, seeds=1, rows=8, decimals=0)


@pytest.mark.parametrize(("mean", "std"), PRINTED)
def test_the_papers_rows_fit_the_validation_part(mean, std):
    assert fits(mean, std, seeds=10, rows=21, deviation="sample")
    assert fits(mean, std, seeds=10, rows=42, deviation="sample")  # half as coarse: nothing is excluded


def test_most_digits_do_not_fit():
    share = sum(fits(m / 10, None, seeds=10, rows=21) for m in range(200, 800)) / 600
    assert 0.19 < share < 0.23  # 0.1 % of every 0.476 %


def test_chance_lies_below_that_of_even_sums():
    # the mean alone fits for every even sum of right answers, which is half of them
    chance = chance_of_fit(32.4, 13.8, seeds=10, rows=21, finer=42, draws=200)
    assert 0 < chance < 0.6
    assert chance_of_fit(32.4, 13.8, seeds=10, rows=42, finer=42, draws=50) == 1


@pytest.mark.parametrize("wrong", [{"seeds": 0, "rows": 21}, {"seeds": 10, "rows": 0}])
def test_nothing_measured(wrong):
    with pytest.raises(ValueError, match="must be positive"):
        fits(50.0, 1.0, **wrong)
