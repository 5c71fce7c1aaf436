"""Variance of estimates from cross-validation, and intervals that hold at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from elliptica._utils.statistics import bonferroni

_TINY = 1e-300
#: Shorter series say nothing about the correlation of neighbours.
_SHORTEST_SERIES = 8
_LARGEST_CORRELATION = 0.9


@dataclass(frozen=True)
class Spread:
    """Variance of estimates from cross-validation, by source."""

    variance: np.ndarray  # of each estimate, all sources together
    rows: np.ndarray  # contribution of the choice of rows
    training: np.ndarray  # further contribution of training; NaN if a single fold cannot show it
    degrees: np.ndarray  # degrees of freedom of the variance
    correlation: np.ndarray  # between the estimates


def cross_validation_spread(
    influence: np.ndarray,
    clusters: np.ndarray,
    fold: np.ndarray,
    shared: float | None = None,
    *,
    ordered: bool = False,
) -> Spread:
    """Estimate the variance of estimates that are sums over rows tested by cross-validation.

    Two sources are added. Rows: the sum of squared influence of clusters, averaged over repeats. The same
    rows train the other folds, which this does not see; for K folds it is widened by K / (K - 1), the limit
    of the correction by Nadeau and Bengio (2003) for many repeats. Training: the variation between folds
    beyond what their rows explain. With several repeats rows drop out of it, because other models test the
    same rows in another repeat. Folds are few, so half of it is the average over the other estimates.

    Degrees of freedom are those of Satterthwaite. For rows they take account of the fourth moments, so that
    few clusters, a few large errors or a few rows on which two classifiers disagree count as little. With a
    single cluster the variance is infinite.

    Clusters that are stretches of time depend on their neighbours. With ``ordered=True`` the variance of rows
    grows, and its degrees of freedom shrink, by a factor from the correlation of neighbours.

    Args:
        influence: Contribution of each row to each estimate, ``(repeats, estimates, rows)``; an estimate is
            the truth plus the sum over rows, averaged over repeats.
        clusters: Cluster of each row.
        fold: Fold by repeat and row, -1 where a row is not tested.
        shared: Factor for rows that also train the other folds, by default K / (K - 1); a single fold has
            none.
        ordered: Whether the numbers of clusters are their order in time.
    """
    mean = influence.mean(0)
    tested = (fold >= 0).any(0)
    clusters = np.unique(clusters, return_inverse=True)[1]
    by_cluster = _sums(mean[:, tested], np.unique(clusters[tested], return_inverse=True)[1])
    n_clusters = by_cluster.shape[1]
    small = n_clusters / max(n_clusters - 1, 1)
    squares = (by_cluster**2).sum(1)
    n_folds = max(len(np.unique(row[row >= 0])) for row in fold)
    rows = small * squares * ((shared or n_folds / (n_folds - 1)) if n_folds > 1 else 1)
    fourth = (by_cluster**4).sum(1) - squares**2 / n_clusters
    degrees_rows = np.minimum(2 * squares**2 / np.maximum(fourth, _TINY), max(n_clusters - 1, 1))
    if ordered:
        serial = _serial_inflation(by_cluster)
        rows, degrees_rows = rows * serial, degrees_rows / serial
    degrees_rows = np.maximum(degrees_rows, 1.0)
    training, subtracted, degrees_training = _training_noise(influence, clusters, fold)
    positive = rows > 0
    pooled = float(np.mean(training[positive] / rows[positive])) if positive.any() else 0.0
    training = (training + pooled * rows) / 2
    n = len(rows)
    degrees_training = degrees_training * 2 * n / (n + 1)
    extra = np.maximum(training, 0.0) if degrees_training else np.zeros(n)
    variance = rows + extra
    parts = rows**2 / degrees_rows + (extra > 0) * (extra + subtracted) ** 2 / max(degrees_training, 1.0)
    degrees = np.where(variance > 0, np.maximum(variance**2 / np.maximum(parts, _TINY), 1.0), 1.0)
    scale = np.sqrt(np.maximum(squares, _TINY))
    correlation = (by_cluster @ by_cluster.T) / scale[:, None] / scale
    np.fill_diagonal(correlation, 1.0)
    if n_clusters < 2:  # one cluster shows nothing about the variance between clusters
        unknown = np.full(n, np.inf)
        return Spread(unknown, unknown, np.full(n, np.nan), np.ones(n), np.eye(n))
    return Spread(variance, rows, extra if degrees_training else np.full(n, np.nan), degrees, correlation)


def _serial_inflation(by_cluster: np.ndarray) -> np.ndarray:
    """Return the factor by which the correlation of neighbours widens the variance of sums over a series.

    For an autoregressive series of the first order it is (1 + r) / (1 - r). The sample correlation of a
    short series is too small by about (1 + 4 r) / n, which is added.
    """
    n = by_cluster.shape[1]
    if n < _SHORTEST_SERIES:
        return np.ones(len(by_cluster))
    squares = np.maximum((by_cluster**2).sum(1), _TINY)
    r = (by_cluster[:, 1:] * by_cluster[:, :-1]).sum(1) / squares
    r = ((r + 1 / n) / (1 - 4 / n)).clip(0.0, _LARGEST_CORRELATION)
    return np.asarray((1 + r) / (1 - r))


def simultaneous_level(correlation: np.ndarray, confidence: float = 0.95, n_draws: int = 20_000) -> float:
    """Return the level of each interval such that all hold at once, given the estimates' correlation (max-t).

    Correlated estimates fail together, so that intervals may be shorter than Bonferroni's. The draws are
    always the same.

    Example:
        >>> independent, same = np.eye(4), np.ones((4, 4))
        >>> round(simultaneous_level(independent), 2), round(simultaneous_level(same), 2)
        (0.99, 0.95)
    """
    n = len(correlation)
    if n < 2:
        return confidence
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = np.random.default_rng(0).standard_normal((n_draws, n)) @ root.T
    largest = float(np.quantile(np.abs(draws).max(1), confidence))
    level = math.erf(largest / math.sqrt(2))
    return min(max(level, confidence), bonferroni(confidence, n))


def _sums(values: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Add the columns of equal number; numbers are 0, 1, ..., each at least once."""
    order = np.argsort(number, kind="stable")
    if number[order[-1]] + 1 == len(number):
        return values[:, order]
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.add.reduceat(values[:, order], begins, axis=1)


def _training_noise(
    influence: np.ndarray, clusters: np.ndarray, fold: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the variance of the estimates from training, not truncated at zero.

    Also what was subtracted because rows alone explain it, and degrees of freedom of the sum of both.
    """
    if len(fold) > 1 and fold.max() > 0 and (fold == fold[0]).all():
        # equal folds share their training rows in all repeats: only other folds tell what these do
        influence, fold = influence.mean(0, keepdims=True), fold[:1]
    n_repeats = len(influence)
    total = influence.sum(0)
    variance, subtracted, n_folds = np.zeros(influence.shape[1]), np.zeros(influence.shape[1]), 0
    for repeat, (mine, where) in enumerate(zip(influence, fold, strict=True)):
        others = (fold >= 0).sum(0) - 1
        use = (where >= 0) & (others > 0) if n_repeats > 1 else where >= 0
        if not use.any():
            continue
        gap = mine[:, use]
        if n_repeats > 1:  # rows cancel
            gap = gap - (total[:, use] - gap) / others[use]
        names, number = np.unique(where[use], return_inverse=True)
        keys, cell = np.unique(number * (clusters.max() + 1) + clusters[use], return_inverse=True)
        of_cell = keys // (clusters.max() + 1)
        by_cell = _sums(gap, cell)
        sums, count = _sums(by_cell, of_cell), np.bincount(of_cell)
        # what rows alone would do to the squared sum of a fold
        noise = _sums((by_cell - (sums / count)[:, of_cell]) ** 2, of_cell)
        noise = noise * count / np.maximum(count - 1, 1)
        n_folds += len(names)
        factor = np.full(len(names), len(names) / max(len(names) - 1, 1))  # the sums add up to zero
        if n_repeats > 1:
            factor = 1 / _overlap(fold, repeat, number, use)
            noise = noise * factor
        variance += (factor * sums**2 - noise).sum(1)
        subtracted += noise.sum(1)
    return variance / n_repeats**2, subtracted / n_repeats**2, float(max(n_folds - 1, 0))


def _overlap(fold: np.ndarray, repeat: int, number: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return one plus the share of other repeats' training noise that remains in sums over these folds."""
    others = [r for r in range(len(fold)) if r != repeat]
    count = np.bincount(number)
    squares = np.zeros(len(count))
    for other in others:
        there = fold[other][use]
        n_there = int(there.max()) + 2
        both = np.bincount(number * n_there + there + 1, minlength=len(count) * n_there)
        squares += (both.reshape(len(count), n_there)[:, 1:] ** 2).sum(1)
    return 1 + squares / count**2 / len(others) ** 2
