"""Judge a comparison: which method to use, how much better it is, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elliptica._utils.extras import count
from elliptica._utils.statistics import bonferroni, student_quantile
from elliptica.report.judge import CONFIDENCE, Difference, Result, Verdict, describe, join, sentence
from elliptica.tables.methods import CONSTANT, LINEAR, REFERENCE, TREES, name_of
from elliptica.tables.metrics import Metric, Predictions, metrics_of, part_means, score

#: Methods by simplicity; all others are special ones. On later rows trees come last: they follow no trend.
SIMPLE, SIMPLE_LATER = (LINEAR, TREES, REFERENCE), (LINEAR, REFERENCE, TREES)
#: Fewer tested stretches of time say nothing about other times.
MIN_STRETCHES = 4
#: Variance of rows in the worst class, relative to that of independent test rows. To first order, training
#: rows decide which class a classifier favours, and all folds share them; measured by `benchmarks.verdict`.
CLASS_FACTOR = 2.0
#: Estimates are close within this share of the best one, or a fifth of it as points of accuracy.
CLOSE = 0.05
#: An interval wider than this factor to either side, or than 50 points, says nothing.
MAX_RATIO = 3.0


def judge(
    predictions: Predictions,
    *,
    select: str = "average",
    place: str = "on new rows like these",
    target: str = "the target",
    at_random: str | None = None,
    asked: Sequence[str] = (),
) -> Verdict:
    """Compare every method with ordinary training in every judged column, and recommend one.

    Methods are compared row by row. Intervals include the choice of rows (clustered) and training noise, the
    variation between folds and repeats that rows do not explain (see `cross_validation_spread`). They hold
    jointly with 95 % confidence for all methods of a column (max-t).

    The simplest method that is not distinguishable from the best estimate, and close to it, is recommended:
    the linear model, boosted trees (on later rows after the next one), ordinary training, then the best
    estimate. (Methods that are not shown to be worse than the best estimate contain the best one with 95 %
    confidence; Gupta, 1965.) Accuracy is a
    coarse measure: among the methods that are not distinguishable from the most accurate one, the Brier score
    decides. If predictions of `CONSTANT` are given and no method is shown to beat them in the average column
    or in the Brier score, the headline says so.

    Args:
        predictions: Predictions of all methods.
        select: ``"average"`` or ``"worst"``.
        place: Where the verdict holds.
        target: Name of the target.
        at_random: Method that random rows would have chosen, if other rows are tested.
        asked: Methods that may be recommended, if not all.
    """
    choice = Choice(predictions, select, asked)
    over, constant = _constant(predictions)
    predicts = not over or bool({"better", "unknown"} & {d.result for d in over})
    headline = _headline(choice, place)
    said = _facts(choice, over, at_random)
    if not predicts:
        always = _constant_name(choice.trained)
        headline = f"No method is shown to predict {target} {place} better than {always}."
        said = [f"The best estimate is that of {name_of(choice.leader)}."]
    return Verdict(
        headline,
        said,
        _limits(choice.trained),
        [*choice.differences, *constant],
        choice.best,
        choice.metrics,
        choice.primary.name,
        choice.measure.name,
        predicts,
        choice.leader,
        choice.error,
    )


class Choice:
    """Choose among methods by their estimates.

    ``leader`` has the best estimate in ``measure``, ``level`` are the others that are not shown to be worse,
    and ``best`` is the method to recommend.
    """

    def __init__(self, predictions: Predictions, select: str, asked: Sequence[str] = ()) -> None:
        methods = [method for method in predictions.values if method != CONSTANT]
        self.trained, self.scores = predictions.only(methods), score(predictions)
        methods = [method for method in methods if method in asked] or methods
        self.metrics = metrics_of(predictions.task, predictions.groups is not None)
        self.primary = self.measure = self.metrics[0 if select == "average" else 1]
        self.columns = {m.name: Column.of(self.trained, m) for m in self.metrics if m.judged}
        self.differences = [d for c in self.columns.values() for d in c.differences(self.trained, REFERENCE)]
        self.leader, results = self._leading(methods)
        near = [m for m in methods if results.get(m) != "worse"]
        if self.primary.name == "accuracy" and len(near) > 1:
            self.measure = self.columns["brier"].metric
            self.leader, results = self._leading(near)
        self.level = [m for m in near if results.get(m, "worse") != "worse"]
        self.beaten = len(self.level) + 1 < len(methods)
        self.unknown = set(results.values()) == {"unknown"}
        rank = {method: k for k, method in enumerate(SIMPLE_LATER if predictions.ordered else SIMPLE)}
        close = [method for method in self.level if self._is_close(method)]
        self.best = min([self.leader, *close], key=lambda method: rank.get(method, len(rank)))
        self.error = self.columns[self.primary.name].error(self.trained, self.best)

    def _leading(self, methods: Sequence[str]) -> tuple[str, dict[str, Result]]:
        """Return the best estimate in the measure, and how the others compare with it.

        Scores that are equal in the digits that are shown are not distinguishable.
        """
        metric, sign = self.measure, -1 if self.measure.higher_is_better else 1
        values = {method: self.scores[method][metric.name] for method in methods}
        leader = min(values, key=lambda method: sign * values[method])
        results = {d.method: d.result for d in self._against(leader) if d.method in values}
        if (cell := self.cell(leader, REFERENCE)) and cell.result == "better" and REFERENCE in results:
            results[REFERENCE] = "worse"
        equal = [method for method in results if metric.show(values[method]) == metric.show(values[leader])]
        return leader, results | dict.fromkeys(equal, "open")

    def _is_close(self, method: str) -> bool:
        """Return whether the estimate of a method is as good for practice as the best one."""
        value, best = (self.scores[name][self.measure.name] for name in (method, self.leader))
        return abs(value - best) <= (CLOSE * abs(best) if self.measure.relative else CLOSE / 5)

    def _against(self, other: str) -> list[Difference]:
        return self.columns[self.measure.name].differences(self.trained, other)

    def cell(self, method: str, other: str) -> Difference | None:
        """Return the difference of two methods in the measure; None for a method and itself."""
        return next((d for d in self._against(other) if d.method == method), None)


@dataclass(frozen=True)
class Column:
    """Estimates of all methods in a column, and the influence of every row on them."""

    metric: Metric
    estimates: np.ndarray  # by method; logarithms for relative metrics
    influence: np.ndarray  # (repeats, methods, rows), see `cross_validation_spread`

    @classmethod
    def of(cls, predictions: Predictions, metric: Metric) -> Column:
        """Compute the estimates and influences."""
        kind = {"log_loss": "log", "brier": "brier", "mae": "absolute"}.get(metric.name)
        kind = kind or ("right" if predictions.task == "classification" else "square")
        losses = predictions.losses[kind]
        n_repeats, n_methods, n = losses.shape
        centre: np.ndarray | None = None
        # relative metrics are compared by logarithms, so that differences become ratios; an RMSE is a root
        power = 0.0 if not metric.relative else 0.5 if kind == "square" else 1.0
        if metric.name == "balanced_accuracy":
            counts, by_class = part_means(predictions, losses, predictions.labels, len(predictions.classes))
            shares = 1 / np.maximum(counts, 1) / (counts > 0).sum()
            weights = np.broadcast_to(shares[predictions.labels], (n_methods, n))
            centre = by_class[:, predictions.labels]  # each class is centred on its own mean
        elif metric.name.startswith("worst_"):
            weights = _worst_weights(predictions, losses, metric)
        else:
            weights = np.full((n_methods, n), 1 / predictions.tested.sum())
        weights = predictions.tested[:, None] * weights
        means = (weights * losses).sum((0, 2))
        influence = n_repeats * weights * (losses - (means[:, None] if centre is None else centre))
        if not power:
            return cls(metric, means, influence)
        safe = np.maximum(means, 1e-300)
        # delta method: the influence on log(mean) is that on the mean, divided by it
        return cls(metric, power * np.log(safe), power * influence / safe[:, None])

    def differences(self, predictions: Predictions, against: str) -> list[Difference]:
        """Compare all methods with one of them; the intervals hold jointly."""
        methods = list(predictions.values)
        base = methods.index(against)
        others = [number for number in range(len(methods)) if number != base]
        if not others:
            return []
        gaps = self.estimates[others] - self.estimates[base]
        spread = self._spread(predictions, self.influence[:, others] - self.influence[:, [base]])
        level = simultaneous_level(spread.correlation, CONFIDENCE)
        differences = []
        for k, gap, variance, degrees in zip(others, gaps, spread.variance, spread.degrees, strict=True):
            quantile = student_quantile((1 + level) / 2, round(float(degrees), 1))
            half = quantile * float(variance) ** 0.5
            result: Result = "open"
            if half > 0 and abs(gap) > half:
                result = "better" if (gap > 0) == self.metric.higher_is_better else "worse"
            elif half > (math.log(MAX_RATIO) if self.metric.relative else 0.5):
                result = "unknown"
            mean, low, high = float(gap), float(gap) - half, float(gap) + half
            if self.metric.relative:
                mean, low, high = (math.expm1(min(end, 700.0)) for end in (mean, low, high))
            tests = predictions.n_tests, result, against
            differences.append(Difference(methods[k], self.metric.name, mean, low, high, *tests))
        return differences

    def error(self, predictions: Predictions, method: str) -> tuple[float, float, float]:
        """Return the score of a method with limits that hold jointly for all methods; infinite if unknown."""
        k = list(predictions.values).index(method)
        spread = self._spread(predictions, self.influence)
        level = simultaneous_level(spread.correlation, CONFIDENCE)  # whichever method is chosen
        quantile = student_quantile((1 + level) / 2, round(float(spread.degrees[k]), 1))
        half = quantile * float(spread.variance[k]) ** 0.5
        mean = float(self.estimates[k])
        if half > (math.log(MAX_RATIO) if self.metric.relative else 0.5):
            half = math.inf
        if self.metric.relative:
            return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
        return mean, max(mean - half, 0.0 if half < 1 else -half), min(mean + half, 1.0 if half < 1 else half)

    def _spread(self, predictions: Predictions, influence: np.ndarray) -> Spread:
        shared = CLASS_FACTOR if self.metric.name == "worst_class_accuracy" else None
        where = predictions.clusters, predictions.fold
        return cross_validation_spread(influence, *where, shared, ordered=predictions.ordered)


def _worst_weights(predictions: Predictions, losses: np.ndarray, metric: Metric) -> np.ndarray:
    """Weight the rows of each method's worst part."""
    names, numbers = predictions.parts
    counts, means = part_means(predictions, losses, numbers, len(names))
    means[:, counts == 0] = np.inf if metric.higher_is_better else -np.inf
    worst = means.argmin(1) if metric.higher_is_better else means.argmax(1)
    return (numbers == worst[:, None]) / counts[worst][:, None]


def _constant(predictions: Predictions) -> tuple[list[Difference], list[Difference]]:
    """Compare all methods with the constant prediction, and the constant prediction with the reference."""
    if CONSTANT not in predictions.values:
        return [], []
    metrics = metrics_of(predictions.task, predictions.groups is not None)
    deciding = [metric for number, metric in enumerate(metrics) if not number or metric.name == "brier"]
    over = [d for m in deciding for d in Column.of(predictions, m).differences(predictions, CONSTANT)]
    pair = predictions.only([REFERENCE, CONSTANT])
    judged = [metric for metric in metrics if metric.judged]
    return over, [d for m in judged for d in Column.of(pair, m).differences(pair, REFERENCE)]


# ---- Words: one fact per sentence; differences are written as in the table.


def _constant_name(predictions: Predictions) -> str:
    if predictions.task == "regression":
        return "always predicting the mean"
    label = predictions.classes[int(np.bincount(predictions.labels).argmax())]
    return f"always predicting {label!r}, the largest class"


def _headline(choice: Choice, place: str) -> str:
    best = name_of(choice.best)
    value, low, high = (choice.primary.show(end) for end in choice.error)
    interval = f" ({low} to {high})" if math.isfinite(choice.error[2]) and low != high else ""
    error = f"{choice.primary.label} {value}{interval}"
    if len(choice.trained.values) == 1:
        return f"Only {best} was run: {error} {place}."
    estimate = "best estimate" if choice.best == choice.leader else "simplest of the best"
    if choice.unknown:
        return f"Which method is best {place} is unknown; the {estimate}: {best}, {error}."
    ordinary = choice.cell(choice.best, REFERENCE)
    if ordinary is not None and ordinary.result == "worse":
        return f"Ordinary training is better {place} than what was asked for; of that: {best}, {error}."
    is_shown = choice.beaten if ordinary is None else ordinary.result == "better"
    if is_shown and choice.best == choice.leader:
        return f"Use {best}: {error} {place}."
    return f"No clear winner {place}; the {estimate}: {best}, {error}."


def _facts(choice: Choice, over: Sequence[Difference], at_random: str | None) -> list[str]:
    """State how the recommended method, the best estimate and the choice of random rows compare."""
    best, leader, measure = choice.best, choice.leader, choice.measure
    said = [f"Decided by the {measure.label}."] if measure != choice.primary else []
    if best != leader:
        said += [f"The best estimate is that of {name_of(leader)}.", *_compared(choice, leader, best)]
    if REFERENCE not in (best, leader) or best == leader:
        said += _compared(choice, best, REFERENCE)
    if level := [name_of(method) for method in choice.level if method not in (best, leader)]:
        names = join(level) if len(level) < 4 else count(len(level), "method")
        said.append(f"Also not shown to be worse than the best estimate in {measure.label}: {names}.")
    if at_random == best:
        said.append(f"Random rows would have chosen {name_of(best)}, too.")
    elif at_random is not None:
        said.append(f"Random rows would have chosen {name_of(at_random)}.")
        said += [] if at_random in (leader, REFERENCE) else _compared(choice, at_random, best)
    judged = [column.metric for column in choice.columns.values()]
    others = [d for d in choice.differences if (d.method, d.measure) != (best, measure.name)]
    return [*said, *_no_gain(choice, over), *describe(others, judged, name_of)]


def _compared(choice: Choice, method: str, other: str) -> list[str]:
    """State the difference of two methods, of ordinary training as in the table."""
    method, other = (other, method) if method == REFERENCE else (method, other)
    difference, measure = choice.cell(method, other), choice.measure
    if difference is None:
        return []
    pair = f"{sentence(name_of(method))} compared with {name_of(other)}"
    return [f"{pair}: {measure.label} {difference.cell(measure)}."]


def _no_gain(choice: Choice, over: Sequence[Difference]) -> list[str]:
    """Report that accuracies are not shown to be better than a constant prediction."""
    first = choice.metrics[0]
    results = [d.result for d in over if d.measure == first.name]
    if not results or {"better", "unknown"} & set(results):
        return []
    level = f"{_constant_name(choice.trained)} ({first.show(choice.scores[CONSTANT][first.name])})"
    is_shown = any(d.result == "better" for d in over)  # by the probabilities
    only = "; only the probabilities tell rows apart" * is_shown
    return [f"No method is shown to have a better {first.label} than {level}{only}."]


def _limits(predictions: Predictions) -> list[str]:
    """List what limits the intervals."""
    tested = predictions.tested.any(0)
    n_clusters = len(np.unique(predictions.clusters[tested]))
    if predictions.ordered and n_clusters < MIN_STRETCHES:
        return [f"Tested stretches of time: {n_clusters}. Intervals need {MIN_STRETCHES}."]
    cautions = []
    if predictions.n_tests == 1:
        cautions.append("Every method was trained once, so the intervals do not include training noise.")
    if n_clusters < min(20, tested.sum()):
        cautions.append(f"Independent blocks of test rows: {n_clusters}. Intervals are wide and rough.")
    return cautions


_TINY = 1e-300


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

    Two sources are added. Rows: the sum of squared influence of clusters, averaged over repeats, widened by
    K / (K - 1) for K folds, because the same rows train the other folds (the limit of the correction by
    Nadeau and Bengio, 2003, for many repeats). Training: the variation between folds beyond what their rows
    explain; half of it is the average over the other estimates, because folds are few. With several repeats
    rows drop out of it, because other models test the same rows in another repeat.

    Degrees of freedom are those of Satterthwaite; for rows they take account of the fourth moments, so that
    few clusters or a few large errors count as little. A single cluster has infinite variance. Blocks that
    agree by chance do not make the variance less than that of independent rows.

    Args:
        influence: Contribution of each row to each estimate, ``(repeats, estimates, rows)``; an estimate is
            the truth plus the sum over rows, averaged over repeats.
        clusters: Cluster of each row.
        fold: Fold by repeat and row, -1 where a row is not tested.
        shared: Factor for rows that also train the other folds, by default K / (K - 1).
        ordered: Whether clusters are stretches of time, one per fold. Rows and training of a stretch
            depend on each other, so stretches are compared as in a paired t-test, with one degree of freedom
            less; fewer than `MIN_STRETCHES` have infinite variance.
    """
    mean = influence.mean(0)
    tested = (fold >= 0).any(0)
    clusters = np.unique(clusters, return_inverse=True)[1]
    by_cluster = _sums(mean[:, tested], np.unique(clusters[tested], return_inverse=True)[1])
    n_clusters = by_cluster.shape[1]
    small = n_clusters / max(n_clusters - 1, 1)
    squares = (by_cluster**2).sum(1)
    if not ordered:
        squares = np.maximum(squares, (mean[:, tested] ** 2).sum(1))
    n_folds = max(len(np.unique(row[row >= 0])) for row in fold)
    rows = small * squares * ((shared or n_folds / (n_folds - 1)) if n_folds > 1 else 1)
    fourth = (by_cluster**4).sum(1) - squares**2 / n_clusters
    degrees_rows = np.minimum(2 * squares**2 / np.maximum(fourth, _TINY), max(n_clusters - 1, 1))
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
    if ordered and n_clusters >= MIN_STRETCHES:
        return Spread(rows, rows, np.full(n, np.nan), np.full(n, n_clusters - 1.0), correlation)
    if n_clusters < 2 or ordered:  # one cluster shows nothing about the variance between clusters
        unknown = np.full(n, np.inf)
        return Spread(unknown, unknown, np.full(n, np.nan), np.ones(n), np.eye(n))
    return Spread(variance, rows, extra if degrees_training else np.full(n, np.nan), degrees, correlation)


def simultaneous_level(correlation: np.ndarray, confidence: float = 0.95, n_draws: int = 20_000) -> float:
    """Return the level of each interval such that all hold at once, for correlated estimates (max-t)."""
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
