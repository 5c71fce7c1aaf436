"""Clopper-Pearson limits, corrected intervals and spreads of cross-validation against scipy, or by law."""

import math

import numpy as np
import pytest
from scipy import stats

from elliptica._utils.statistics import (
    clopper_pearson,
    corrected_interval,
)
from elliptica.tables.verdict import cross_validation_spread, simultaneous_level
from laws import assert_coverage


@pytest.mark.parametrize("n", [1, 7, 5000])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_clopper_pearson(n, confidence):
    for k in sorted({0, 1, n // 3, n - 1, n}):
        low, high = clopper_pearson(k, n, confidence)
        exact = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
        assert math.isclose(low, exact.low, rel_tol=1e-8, abs_tol=1e-12)
        assert math.isclose(high, exact.high, rel_tol=1e-8, abs_tol=1e-12)


@pytest.mark.bad_input
@pytest.mark.parametrize("given", [(4, 3), (1, 3, 95.0)])
def test_limits(given):
    with pytest.raises(ValueError):
        clopper_pearson(*given)


def test_interval_by_hand():
    """Differences 1, 2, 4, 5: mean 3, variance 10/3; with n_test/n_train = 1/4, t(0.975, 3) = 3.182446."""
    interval = corrected_interval([1.0, 2.0, 4.0, 5.0], 0.25, 0.95)
    half = 3.182446305284263 * math.sqrt(10 / 3 * (1 / 4 + 1 / 4))
    assert interval.mean == 3.0
    assert interval.low == pytest.approx(3 - half)
    assert interval.high == pytest.approx(3 + half)
    assert interval.n_repeats == 4


def test_without_overlap_it_is_the_ordinary_t_interval():
    values = np.random.default_rng(1).normal(size=9)
    interval = corrected_interval(values.tolist(), 0.0, 0.9)
    ordinary = stats.t.interval(0.9, 8, values.mean(), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(ordinary)


def test_one_repeat_has_no_limits():
    interval = corrected_interval([0.3], 0.25)
    assert (interval.low, interval.high) == (-math.inf, math.inf)


@pytest.mark.statistical
def test_correction_keeps_its_level_on_overlapping_splits(rng):
    """Differences that share a common part, as overlapping repeats do: variance rho, covariance n2/(n1+n2).

    The corrected interval misses zero in about 5 % of 2000 tables; the ordinary one in far more.
    """
    share, repeats, tables = 0.25, 5, 2000
    rho = share / (1 + share)
    common = rng.normal(size=(tables, 1)) * rho**0.5
    values = common + rng.normal(size=(tables, repeats)) * (1 - rho) ** 0.5
    misses = {
        each: np.mean(
            [not (i.low <= 0 <= i.high) for i in (corrected_interval(v, each) for v in values.tolist())]
        )
        for each in (share, 0.0)
    }
    assert misses[share] < 0.05 + 5 * (0.05 * 0.95 / tables) ** 0.5
    assert misses[0.0] > 0.1


def partition(draws, n, n_folds, repeats):
    return np.stack([draws.permutation(np.arange(n) % n_folds) for _ in range(repeats)])


@pytest.mark.statistical
def test_spread_of_independent_rows_is_that_of_their_mean(rng):
    """Rows alone: the variance of a mean of normal rows, times K / (K - 1) for rows that also train."""
    n = 2000
    fold = partition(rng, n, 5, 1)
    found = []
    for _ in range(200):
        values = rng.normal(size=(1, 3, n))
        found.append(
            cross_validation_spread((values - values.mean(2, keepdims=True)) / n, np.arange(n), fold)
        )
    assert np.mean([f.rows for f in found]) == pytest.approx(1.25 / n, rel=0.02)
    assert np.mean([f.training for f in found]) < 0.3 / n  # truncated at zero, so a little above it
    assert min(f.degrees.min() for f in found) > 4


@pytest.mark.statistical
@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_training_noise_is_found(repeats, rng):
    """Noise per fold of known size; its share in the variance of the mean shrinks with repeats."""
    n, tau = 500, 0.3
    found = []
    for _ in range(300):
        fold = partition(rng, n, 5, repeats)
        rows = rng.normal(size=(1, 4, n))
        effects = tau * rng.normal(size=(repeats, 4, 5))
        values = rows + np.stack([effects[r][:, fold[r]] for r in range(repeats)])
        influence = (values - values.mean((0, 2), keepdims=True)) / n
        found.append(cross_validation_spread(influence, np.arange(n), fold).training.mean())
    assert np.mean(found) == pytest.approx(tau**2 / 5 / repeats, rel=0.15)


@pytest.mark.statistical
def test_repeats_of_one_test_set(rng):
    """One fold, several trainings: rows cancel, what is left is the variance of the mean over trainings."""
    found = []
    for _ in range(400):
        effects = 0.3 * rng.normal(size=(3, 20, 1))
        values = rng.normal(size=(1, 20, 100)) + effects
        influence = (values - values.mean((0, 2), keepdims=True)) / 100
        found.append(cross_validation_spread(influence, np.arange(100), np.zeros((3, 100), int)).training)
    assert np.mean(found) == pytest.approx(0.3**2 / 3, rel=0.1)  # nine standard errors
    once = cross_validation_spread(influence[:1], np.arange(100), np.zeros((1, 100), int))
    assert np.isnan(once.training).all()
    assert np.isfinite(once.variance).all()


@pytest.mark.statistical
def test_equal_folds_in_all_repeats_do_not_hide_what_their_training_rows_do(rng):
    """A fold effect that all repeats share is seen between folds only; differences of repeats lose it."""
    fold = np.repeat(np.arange(500)[None] % 5, 2, axis=0)
    found = []
    for _ in range(300):
        shared = 0.3 * rng.normal(size=(1, 8, 5))
        values = np.repeat(rng.normal(size=(1, 8, 500)) + shared[..., fold[0]], 2, axis=0)
        influence = (values - values.mean((0, 2), keepdims=True)) / 500
        found.append(cross_validation_spread(influence, np.arange(500), fold).training.mean())
    assert np.mean(found) == pytest.approx(0.3**2 / 5, rel=0.15)  # nine standard errors


def test_degrees_know_few_clusters_and_few_large_values():
    draws = np.random.default_rng(4)
    fold = np.zeros((1, 1000), int)
    values = draws.normal(size=1000)
    blocks = cross_validation_spread(values[None, None] / 1000, np.arange(1000) // 200, fold)
    assert blocks.degrees[0] <= 4
    single = np.where(np.arange(1000) < 3, 1.0, 0.0)  # three rows on which two classifiers disagree
    few = cross_validation_spread(single[None, None] / 1000, np.arange(1000), fold)
    assert few.degrees[0] == pytest.approx(6, rel=0.01)
    many = cross_validation_spread(values[None, None] / 1000, np.arange(1000), fold)
    assert many.degrees[0] > 800


@pytest.mark.statistical
@pytest.mark.parametrize(("repeats", "tau"), [(1, 0.0), (1, 0.15), (1, 0.6), (2, 0.15), (2, 0.6)])
def test_intervals_cover_together_and_wrong_estimators_do_not(repeats, tau, rng):
    """Five methods equal in law, folds with noise of their own; without training noise intervals fail."""
    n, n_methods, n_tables = 300, 5, 400
    level = simultaneous_level(0.5 + 0.5 * np.eye(n_methods))
    ours = rows_only = 0
    for _ in range(n_tables):
        fold = partition(rng, n, 5, repeats)
        effects = tau * rng.normal(size=(repeats, n_methods + 1, 5))
        values = 0.7 * rng.normal(size=(1, n_methods + 1, n)) + np.stack(
            [effects[r][:, fold[r]] for r in range(repeats)]
        )
        gaps = values[:, 1:] - values[:, :1]
        estimate = gaps.mean((0, 2))
        spread = cross_validation_spread((gaps - estimate[:, None]) / n, np.arange(n), fold)
        quantiles = stats.t.ppf((1 + level) / 2, spread.degrees)
        ours += bool((np.abs(estimate) <= quantiles * spread.variance**0.5).all())
        normal = stats.norm.ppf((1 + level) / 2)
        rows_only += bool((np.abs(estimate) <= normal * (spread.rows / 1.25) ** 0.5).all())
    assert_coverage(ours, n_tables, 0.95)
    if tau:
        assert rows_only / n_tables < 0.9
    if tau > 0.5:
        assert rows_only / n_tables < 0.5


@pytest.mark.statistical
@pytest.mark.parametrize("phi", [0.0, 0.9, 0.97])
def test_stretches_of_time_are_independent_where_rows_are_not(phi, rng):
    """Intervals for the mean of an autoregressive series from five stretches; rows are too sure."""
    series, stretch, covered = rng.normal(size=(500, 600)), np.arange(600) // 120, []
    for i in range(1, 600):
        series[:, i] = phi * series[:, i - 1] + (1 - phi**2) ** 0.5 * series[:, i]
    for values in series:
        influence = (values - values.mean())[None, None] / 600
        for clusters, ordered in ((stretch, True), (np.arange(600), False)):
            spread = cross_validation_spread(influence, clusters, stretch[None], ordered=ordered)
            half = stats.t.ppf(0.975, spread.degrees[0]) * spread.rows[0] ** 0.5
            covered.append(abs(values.mean()) <= half)
    assert np.mean(covered[::2]) > 0.92
    assert np.mean(covered[1::2]) > 0.92 if phi == 0 else np.mean(covered[1::2]) < 0.75


def test_simultaneous_levels():
    """Between the level of one interval and Bonferroni's; Dunnett's value for a common reference."""
    assert simultaneous_level(np.eye(1)) == 0.95
    common = 0.5 + 0.5 * np.eye(8)
    level = simultaneous_level(common)
    assert stats.norm.ppf((1 + level) / 2) == pytest.approx(2.65, abs=0.02)
    assert 0.95 < level <= 1 - 0.05 / 8
