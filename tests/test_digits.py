"""Printed digits against an enumeration of everything that could have been measured."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from digits import fits

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


def test_bounds_count():
    assert fits(100.0, 0.0, seeds=10, rows=21)
    assert not fits(100.0, 3.0, seeds=10, rows=21)  # would need more than all rows right
    assert fits(50.0, 52.7, seeds=10, rows=21, deviation="sample")  # five times all, five times none
    assert not fits(50.0, 55.0, seeds=10, rows=21)


@pytest.mark.parametrize(("mean", "std"), PRINTED)
def test_the_papers_rows_fit_the_validation_part(mean, std):
    assert fits(mean, std, seeds=10, rows=21, deviation="sample")
    assert fits(mean, std, seeds=10, rows=42, deviation="sample")  # half as coarse: nothing is excluded
