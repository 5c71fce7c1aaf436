"""Intervals cover as often as they say and say so where they do not; shuffling finds the columns in use."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from elliptica.tables import compare
from elliptica.tables.after import conformal_quantile, coverages, importances, intervals
from elliptica.tables.problem import make_problem
from elliptica.tables.table import read_table


def test_the_quantile_covers_exactly_and_the_plain_one_does_not(rng):
    """With 19 residuals, a new one is below the 18th with probability 18/20."""
    draws = rng.exponential(size=(20_000, 20))
    inside = np.mean([row[-1] <= conformal_quantile(row[:-1]) for row in draws])
    assert inside == pytest.approx(0.9, abs=0.007)
    assert np.mean(draws[:, -1] <= np.quantile(draws[:, :-1], 0.9, axis=1)) < 0.89
    assert conformal_quantile(draws[0, :8]) == np.inf


def test_coverage_is_that_of_other_parts(rng):
    parts = np.repeat(np.arange(5), 2_000)
    residuals = rng.exponential(size=len(parts))
    assert [share for _, share in coverages(residuals, parts)] == pytest.approx([0.9] * 5, abs=0.02)
    half = coverages(residuals, parts, level=0.8)  # a wrong quantile does not pass
    assert max(share for _, share in half) < 0.83
    grown = residuals * (1 + parts)  # errors grow with time
    later = [share for _, share in coverages(grown, parts, in_order=True)]
    assert len(later) == 4
    assert max(later) < 0.85


@pytest.mark.parametrize("shift", ["random", "time", "far"])
def test_intervals_of_a_comparison(rng, tiny, shift):
    """Errors are as large as the noise: intervals are 1.64 of it, and cover nine of ten under the shift."""
    n = 600
    x, when = rng.normal(size=n), np.arange(n)
    frame = pl.DataFrame({"x": x, "when": when, "y": 2 * x + rng.normal(size=n)})
    more = {"random": {}, "time": {"time": "when"}, "far": {"test": frame[500:]}}[shift]
    table = frame[:500] if shift == "far" else frame
    result = compare(table, "y", methods=["linear"], **more, **tiny)
    limits = intervals(result, "linear")
    assert limits.width == pytest.approx(1.645, abs=0.25)
    if shift == "far":  # one fold says nothing about others
        assert limits.coverage is None
    else:
        assert limits.coverage == pytest.approx(0.9, abs=0.04)
        assert limits.worst <= limits.coverage
    assert not limits.is_log
    low, high = limits.around(np.zeros(1))
    assert (low[0], high[0]) == (-limits.width, limits.width)


def test_intervals_of_skewed_numbers_are_factors(heights, found):
    limits = intervals(heights, "erm")
    residuals = np.log(heights.predictions.values["erm"][0]) - np.log(heights.problem.target)
    assert limits.is_log
    assert limits.width == conformal_quantile(np.abs(residuals))
    assert limits.around(np.array([2.0]))[1] == pytest.approx(2 * np.exp(limits.width))
    assert intervals(found) is None  # classes


def test_shuffling_finds_the_columns_in_use(rng):
    frame = pl.DataFrame(rng.normal(size=(200, 3)), schema=["idle", "weak", "main"])
    frame = frame.with_columns(y=3 * pl.col("main") + pl.col("weak"))
    problem = make_problem(read_table(frame), "y")
    model = SimpleNamespace(predict=lambda rows: (3 * rows["main"] + rows["weak"]).to_numpy())
    used = importances(model, problem, np.arange(200))
    assert [each.label for each in used] == ["main", "weak", "idle"]
    assert used[0].value == pytest.approx(3 * 2**0.5, rel=0.2)  # RMSE of 3 (a - b) with unit spread
    assert used[0].low < used[0].value < used[0].high
    assert (used[2].low, used[2].high) == (0, 0)
