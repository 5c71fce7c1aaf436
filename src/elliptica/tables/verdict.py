"""Judge a comparison: which method to use, how much better it is, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elliptica._utils.statistics import bonferroni, student_quantile
from elliptica.report.judge import CONFIDENCE, Difference, Result, Verdict, describe_others, join, sentence
from elliptica.tables.methods import CONSTANT, LINEAR, REFERENCE, TREES, name_of
from elliptica.tables.metrics import Metric, Predictions, metrics_of, part_means, score

#: Methods that need no evidence to be recommended; ties go to the first.
SIMPLE = (REFERENCE, LINEAR, TREES)
#: Variance of rows in the worst class, relative to that of independent test rows. To first order, training
#: rows decide which class a classifier favours, and all folds share them; measured by `benchmarks.verdict`.
CLASS_FACTOR = 2.0
#: An interval wider than this factor to either side, or than 50 points, says nothing.
MAX_RATIO = 10.0
#: More rows than this multiple of the present ones are not suggested.
MAX_FACTOR = 100


def judge(
    predictions: Predictions,
    *,
    select: str = "average",
    place: str = "on new rows like these",
    target: str = "the target",
) -> Verdict:
    """Compare every method with ordinary training in every judged column, and recommend one.

    Methods are compared row by row. Intervals include the choice of rows (clustered) and training noise, the
    variation between folds and repeats that rows do not explain (see `cross_validation_spread`). They hold
    jointly with 95 % confidence for all methods of a column (max-t).

    A method is recommended if it has the best estimate and is shown to be better than ordinary training. If
    none is, the best estimate among ordinary training, boosted trees and the linear model is recommended.
    Accuracy is a coarse measure: among the methods that are not distinguishable from the most accurate one,
    the Brier score decides. If predictions of `CONSTANT` are given and no method is shown to beat them in the
    average column or in the Brier score, the headline says so.
    """
    choice = Choice(predictions, select)
    over, constant = _constant(predictions)
    results = {d.result for d in over}
    is_better = not over or "better" in results or results == {"unknown"}
    said = _headline(choice, over, place) if is_better else _nothing(choice, over, target)
    if is_better:
        said += [*_level(choice), *_no_gain(choice, over)]
        judged = [column.metric for column in choice.columns.values()]
        said += describe_others(choice.differences, judged, choice.measure, choice.best, name_of)
    return Verdict(
        said[0],
        said[1:],
        _blocks(choice.trained),
        [*choice.differences, *constant],
        choice.best,
        choice.metrics,
        choice.primary.name,
        choice.measure.name,
        is_better,
    )


class Choice:
    """Choose among methods by their estimates.

    ``leader`` has the best estimate, ``ahead`` is its difference from ordinary training in ``measure`` (None
    if it is ordinary training), and ``best`` is the method to recommend.
    """

    def __init__(self, predictions: Predictions, select: str) -> None:
        methods = [method for method in predictions.values if method != CONSTANT]
        self.trained, self.scores = predictions.only(methods), score(predictions)
        self.metrics = metrics_of(predictions.task, predictions.groups is not None)
        self.primary = self.measure = self.metrics[0 if select == "average" else 1]
        self.columns = {m.name: Column.of(self.trained, m) for m in self.metrics if m.judged}
        self.differences = self._against(REFERENCE)
        self.best = self.leader = self._best(methods)
        mine = {d.measure: d for d in self.differences if d.method == self.leader}
        results = {name: d.result for name, d in mine.items()}
        if self.primary.name == "accuracy" and (
            results.get("accuracy") not in ("better", "unknown") and results.get("brier") != "worse"
        ):
            self.measure = self.columns["brier"].metric
        self.ahead = mine.get(self.measure.name)
        if self.ahead is not None and self.ahead.result == "open" and self.leader not in SIMPLE:
            level = {d.method for d in self._against(self.leader) if d.result == "open"} | {REFERENCE}
            self.best = self._best([method for method in SIMPLE if method in methods and method in level])

    def _against(self, other: str) -> list[Difference]:
        return [d for column in self.columns.values() for d in column.differences(self.trained, other)]

    def _best(self, methods: Sequence[str]) -> str:
        """Return the method with the best estimate; the Brier score decides between similar accuracies."""
        first = self._best_in(methods, self.primary)
        if self.primary.name != "accuracy":
            return first
        accuracies = self.columns["accuracy"].differences(self.trained, first)
        tied = {first, *(d.method for d in accuracies if d.result in ("open", "unknown"))}
        return self._best_in([m for m in methods if m in tied], self.columns["brier"].metric)

    def _best_in(self, methods: Sequence[str], metric: Metric) -> str:
        """Return the method with the best shown score; ties go to the simplest method."""
        sign = -1 if metric.higher_is_better else 1
        values = {method: self.scores[method][metric.name] for method in methods}
        top = metric.show(min(values.values(), key=lambda value: sign * value))
        rank = {method: SIMPLE.index(method) if method in SIMPLE else len(SIMPLE) for method in methods}
        equal = [method for method in methods if metric.show(values[method]) == top]
        return min(equal, key=lambda method: (rank[method], sign * values[method]))


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
        spread = cross_validation_spread(
            self.influence[:, others] - self.influence[:, [base]],
            predictions.clusters,
            predictions.fold,
            shared=CLASS_FACTOR if self.metric.name == "worst_class_accuracy" else None,
            ordered=predictions.ordered,
        )
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
            tests = predictions.n_tests, result, against, float(variance), quantile
            differences.append(Difference(methods[k], self.metric.name, mean, low, high, *tests))
        return differences


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


# ---- Words: each number in a sentence is a cell of the table.


def _constant_name(predictions: Predictions) -> str:
    if predictions.task == "regression":
        return "always predicting the mean"
    label = predictions.classes[int(np.bincount(predictions.labels).argmax())]
    return f"always predicting {label!r}, the largest class"


def _headline(choice: Choice, over: Sequence[Difference], place: str) -> list[str]:
    """Recommend a method, and say what the recommendation rests on."""
    best, measure, ahead, reference = name_of(choice.best), choice.measure, choice.ahead, name_of(REFERENCE)
    if not choice.differences:
        return [f"{sentence(reference)} is the only method that was run."]
    tie = f"Accuracies do not tell the best methods apart, so the {measure.label} decides."
    ties = [tie] if measure != choice.primary else []
    change = "" if ahead is None else f"{measure.label} {ahead.show(measure)} compared with {reference}"
    if ahead is not None and ahead.result == "better":
        return [f"Use {best}: {change} {place}.", *ties]
    decisive = [ahead] if ahead else [d for d in choice.differences if d.measure == measure.name]
    if any({d.result for d in pairs} == {"unknown"} for pairs in (decisive, over)):
        return [
            f"Which method is best {place} cannot be judged: the test rows are too few, or depend too much "
            "on each other.",
            f"By the estimates alone it is {best}{': ' * bool(change)}{change}.",
        ]
    than = "it" if choice.best == REFERENCE else reference
    why = f"no method is shown to have a better {measure.label} than {than}"
    if any(d.measure == measure.name and d.result == "better" for d in choice.differences):
        why = "its estimate is among the best"  # level in the digits that are shown
    said = [f"{sentence(best)} will do: {why} {place}."]
    if ahead is None:
        return [*said, *ties]
    said.append(f"The best estimate is that of {name_of(choice.leader)}: {change}, not distinguishable.")
    return [*said, *ties, *_needed(ahead, choice.trained, relative=measure.relative)]


def _level(choice: Choice) -> list[str]:
    """Name the methods that are level with one that is shown to be better than ordinary training."""
    if choice.ahead is None or choice.ahead.result != "better":
        return []
    others = choice.columns[choice.measure.name].differences(choice.trained, choice.leader)
    level = [name_of(d.method) for d in others if d.result == "open"]
    return [f"Not distinguishable from it in {choice.measure.label}: {join(level)}."] if level else []


def _nothing(choice: Choice, over: Sequence[Difference], target: str) -> list[str]:
    """Report that no method beats a constant prediction."""
    first, leader = choice.metrics[0], choice.leader
    closest = next(d for d in over if (d.method, d.measure) == (leader, first.name)).show(first)
    constant = _constant_name(choice.trained)
    return [
        f"Nothing here is shown to predict {target}: no method is shown to be better than {constant}.",
        f"The best estimate is that of {name_of(leader)}: {first.label} {closest} compared with that. No "
        "model is worth keeping.",
    ]


def _no_gain(choice: Choice, over: Sequence[Difference]) -> list[str]:
    """Report that probabilities are better than a constant prediction, but accuracies are not."""
    first = choice.metrics[0]
    results = [d.result for d in over if d.measure == first.name]
    if not results or {"better", "unknown"} & set(results):
        return []
    level = f"{_constant_name(choice.trained)} ({first.show(choice.scores[CONSTANT][first.name])})"
    return [
        f"No method is shown to have a better {first.label} than {level}; only the probabilities tell rows "
        "apart."
    ]


def _needed(ahead: Difference, predictions: Predictions, *, relative: bool) -> list[str]:
    """Say how many rows would exclude zero from the interval, if the estimate is right."""
    gap = math.log1p(ahead.mean) if relative else ahead.mean
    factor = ahead.variance * (ahead.quantile / gap) ** 2 if gap else math.inf
    if not 1 <= factor <= MAX_FACTOR:
        return []
    is_fixed = not predictions.fold.max()  # one part of the table is held out
    rows = int(predictions.tested.any(0).sum()) if is_fixed else len(predictions.target)
    number = float(f"{1.05 * rows * factor:.1g}")
    kind = "tested rows" if is_fixed else "rows"
    pair = f"whether {name_of(ahead.method)} and {name_of(ahead.against)} differ"
    return [f"About {number:,.0f} {kind} would tell {pair}."]


def _blocks(predictions: Predictions) -> list[str]:
    """List what limits the intervals."""
    tested = predictions.tested.any(0)
    n_clusters = len(np.unique(predictions.clusters[tested]))
    cautions = []
    if predictions.n_tests == 1:
        cautions.append("Every method was trained once, so the intervals do not include training noise.")
    if n_clusters < min(20, tested.sum()):
        cautions.append(f"Independent blocks of test rows: {n_clusters}. Intervals are wide and rough.")
    return cautions


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

    Two sources are added. Rows: the sum of squared influence of clusters, averaged over repeats, widened by
    K / (K - 1) for K folds, because the same rows train the other folds (the limit of the correction by
    Nadeau and Bengio, 2003, for many repeats). Training: the variation between folds beyond what their rows
    explain; half of it is the average over the other estimates, because folds are few. With several repeats
    rows drop out of it, because other models test the same rows in another repeat.

    Degrees of freedom are those of Satterthwaite; for rows they take account of the fourth moments, so that
    few clusters or a few large errors count as little. A single cluster has infinite variance.

    Args:
        influence: Contribution of each row to each estimate, ``(repeats, estimates, rows)``; an estimate is
            the truth plus the sum over rows, averaged over repeats.
        clusters: Cluster of each row.
        fold: Fold by repeat and row, -1 where a row is not tested.
        shared: Factor for rows that also train the other folds, by default K / (K - 1).
        ordered: Whether clusters are numbered in time, so that the correlation of neighbours widens the
            variance of rows and takes degrees of freedom.
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
    """Return (1 + r) / (1 - r), the widening for an autoregressive series of the first order.

    The sample correlation of a short series is too small by about (1 + 4 r) / n, which is added.
    """
    n = by_cluster.shape[1]
    if n < _SHORTEST_SERIES:
        return np.ones(len(by_cluster))
    squares = np.maximum((by_cluster**2).sum(1), _TINY)
    r = (by_cluster[:, 1:] * by_cluster[:, :-1]).sum(1) / squares
    r = ((r + 1 / n) / (1 - 4 / n)).clip(0.0, _LARGEST_CORRELATION)
    return np.asarray((1 + r) / (1 - r))


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
