"""Judge a comparison: which method to use, how much better it is, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from elliptica._utils.statistics import student_quantile
from elliptica.report.judge import (
    CONFIDENCE,
    Difference,
    Result,
    Verdict,
    describe_others,
    join,
    sentence,
)
from elliptica.tables.metrics import Metric, Predictions, metrics_of, part_means, score
from elliptica.tables.plan import CONSTANT, LINEAR, NAMES, REFERENCE, TREES
from elliptica.tables.spread import Spread, cross_validation_spread, simultaneous_level

#: Where the verdict holds, by shift.
PLACES = {
    "random": "on new rows like these",
    "unseen": "on unseen groups of rows",
    "time": "on later rows",
    "extrapolate": "on rows far from the training rows",
    "test_file": "on the rows of the test file",
}
#: Methods that need no evidence to be recommended; ties go to the first.
SIMPLE = (REFERENCE, LINEAR, TREES)
#: Variance of rows in the worst class, relative to that of independent test rows. To first order, training
#: rows decide which class a classifier favours, and all folds share them; measured by `benchmarks.verdict`.
CLASS_FACTOR = 2.0
#: An interval wider than this factor to either side, or than 50 points, says nothing.
MAX_RATIO = 10.0
#: More rows than this multiple of the present ones, or more repeats than this, are not suggested.
MAX_FACTOR, MAX_REPEATS = 100, 20
#: Folds disagree if the error of one exceeds this multiple of the median fold's.
FOLD_RATIO = 2.0
#: A class is rare below this part of an equal share of rows, and missed below this recall.
RARE, MISSED = 0.5, 0.1
_MOST_MISSED = 3

Scores = dict[str, dict[str, float]]


def judge(
    predictions: Predictions,
    *,
    select: str = "average",
    place: str = PLACES["random"],
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

    Args:
        predictions: Predictions of all methods, ordinary training among them.
        select: Column that decides: ``"average"`` (the first) or ``"worst"`` (the second).
        place: Phrase for where the verdict holds, e.g. ``"on unseen patients"``.
        target: Name of the predicted column.
    """
    scores = score(predictions)
    trained = _only(predictions, [method for method in predictions.values if method != CONSTANT])
    choice = Choice(trained, scores, select)
    leader, primary = choice.best(list(trained.values)), choice.primary
    differences = choice.differences(REFERENCE)
    measure = choice.tiebreak(differences, leader)
    ahead = next((d for d in differences if (d.method, d.measure) == (leader, measure.name)), None)
    best = leader
    if ahead is not None and ahead.result == "open" and leader not in SIMPLE:
        level = {d.method for d in choice.differences(leader) if d.result == "open"} | {REFERENCE}
        best = choice.best([method for method in SIMPLE if method in level and method in trained.values])
    over, constant = _constant(predictions)
    verdict = Verdict(
        "",
        cautions=[*_cautions(trained), *_missed(trained, best)],
        differences=[*differences, *constant],
        best=best,
        measures=choice.metrics,
        primary_metric=primary.name,
        tiebreak_metric=measure.name,
        predicts=not over or any(d.result in ("better", "unknown") for d in over),
    )
    words = _Words(verdict, choice, leader, place, ahead, over, _constant_words(trained))
    headline, *sentences = words.sentences(target)
    return replace(verdict, headline=headline, sentences=sentences)


def _only(predictions: Predictions, methods: Sequence[str]) -> Predictions:
    return replace(predictions, values={method: predictions.values[method] for method in methods})


class Choice:
    """Choose among methods by their estimates."""

    def __init__(self, predictions: Predictions, scores: Scores, select: str) -> None:
        self.predictions, self.scores = predictions, scores
        self.metrics = metrics_of(predictions.task, predictions.groups is not None)
        self.primary = self.metrics[0 if select == "average" else 1]
        self.columns = {m.name: Column.of(predictions, m) for m in self.metrics if m.judged}

    def differences(self, against: str) -> list[Difference]:
        """Compare all methods with one of them, in every judged column."""
        return [d for column in self.columns.values() for d in column.differences(self.predictions, against)]

    def best(self, methods: Sequence[str]) -> str:
        """Return the method with the best estimate; the Brier score decides between similar accuracies."""
        first = self._best(methods, self.primary)
        if self.primary.name != "accuracy":
            return first
        accuracies = self.columns["accuracy"].differences(self.predictions, first)
        tied = {first, *(d.method for d in accuracies if d.result in ("open", "unknown"))}
        return self._best([m for m in methods if m in tied], self.columns["brier"].metric)

    def _best(self, methods: Sequence[str], metric: Metric) -> str:
        """Return the best shown score; ties go to ordinary training, then to the simplest method."""
        sign = -1 if metric.higher_is_better else 1
        values = {method: self.scores[method][metric.name] for method in methods}
        top = metric.show(min(values.values(), key=lambda value: sign * value))
        rank = {method: SIMPLE.index(method) if method in SIMPLE else len(SIMPLE) for method in methods}
        equal = [method for method in methods if metric.show(values[method]) == top]
        return min(equal, key=lambda method: (rank[method], sign * values[method]))

    def tiebreak(self, differences: Sequence[Difference], leader: str) -> Metric:
        """Return the column of the verdict: the primary one, or the Brier score if accuracies are level."""
        mine = {d.measure: d.result for d in differences if d.method == leader}
        is_level = self.primary.name == "accuracy" and mine.get("accuracy") not in ("better", "unknown")
        return self.columns["brier" if is_level else self.primary.name].metric


@dataclass(frozen=True)
class Column:
    """Estimates of all methods in a column, and the influence of every row on them.

    Attributes:
        metric: Metric of the column.
        estimates: Estimates by method; logarithms for relative metrics.
        influence: Influence of rows, ``(repeats, methods, rows)``, see `cross_validation_spread`.
    """

    metric: Metric
    estimates: np.ndarray
    influence: np.ndarray

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
        return [
            self._difference((methods[k], against), float(gap), spread, i, level, predictions.n_tests)
            for i, (k, gap) in enumerate(zip(others, gaps, strict=True))
        ]

    def _difference(
        self, pair: tuple[str, str], gap: float, spread: Spread, i: int, level: float, n_tests: int
    ) -> Difference:
        quantile = student_quantile((1 + level) / 2, round(float(spread.degrees[i]), 1))
        half = quantile * float(spread.variance[i]) ** 0.5
        result: Result = "open"
        if half > 0 and abs(gap) > half:
            result = "better" if (gap > 0) == self.metric.higher_is_better else "worse"
        elif half > (math.log(MAX_RATIO) if self.metric.relative else 0.5):
            result = "unknown"
        ends = [gap, gap - half, gap + half]
        if self.metric.relative:
            ends = [math.expm1(min(end, 700.0)) for end in ends]
        variances = float(spread.rows[i]), float(spread.training[i])
        return Difference(pair[0], self.metric.name, *ends, n_tests, result, pair[1], *variances, quantile)


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
    pair = _only(predictions, [REFERENCE, CONSTANT])
    judged = [metric for metric in metrics if metric.judged]
    return over, [d for m in judged for d in Column.of(pair, m).differences(pair, REFERENCE)]


def _constant_words(predictions: Predictions) -> str:
    if predictions.task == "regression":
        return "always predicting the mean"
    label = predictions.classes[int(np.bincount(predictions.labels).argmax())]
    return f"always predicting {label!r}, the largest class"


def _name(method: str) -> str:
    return ("the " if method == LINEAR else "") + NAMES.get(method, method)


@dataclass(frozen=True)
class _Words:
    """Sentences that describe a verdict; every number is a cell of its table."""

    verdict: Verdict
    choice: Choice
    leader: str
    place: str
    ahead: Difference | None  # the leader against ordinary training
    over: Sequence[Difference]  # all methods against the constant prediction
    constant: str

    def sentences(self, target: str) -> list[str]:
        """Return all sentences, the answer first."""
        if not self.verdict.predicts:
            return self._nothing(target)
        if not self.choice.differences(REFERENCE):
            return [f"{sentence(_name(REFERENCE))} is the only method that was run.", *self._no_gain()]
        trained = [d for d in self.verdict.differences if d.method != CONSTANT]
        measures = [measure for measure in self.choice.metrics if measure.judged]
        others = describe_others(trained, measures, self._measure, str(self.verdict.best), _name)
        return [*self._headline(), *self._tie(), *self._level(), *self._no_gain(), *others, *self._needed()]

    @property
    def _measure(self) -> Metric:
        return self.choice.columns[self.verdict.tiebreak_metric].metric

    def _headline(self) -> list[str]:
        best, label, ahead = _name(str(self.verdict.best)), self._measure.label, self.ahead
        reference = _name(REFERENCE)
        if ahead is None:
            return [f"{sentence(best)} will do: no method has a better {label} {self.place}."]
        change = f"{label} {ahead.show(self._measure)} compared with {reference}"
        if ahead.result == "better":
            return [f"Use {best}: {change} {self.place}."]
        if ahead.result == "unknown":
            return [
                f"Which method is best {self.place} cannot be judged: the test rows are too few, or depend "
                "too much on each other.",
                f"By the estimates alone, {best} would be used: {change}.",
            ]
        return [
            f"{sentence(best)} will do: no method is shown to have a better {label} than {reference} "
            f"{self.place}.",
            f"The best estimate is that of {_name(self.leader)}: {change}, not distinguishable.",
        ]

    def _tie(self) -> list[str]:
        if self.verdict.tiebreak_metric == self.verdict.primary_metric:
            return []
        return [f"Accuracies do not tell the best methods apart, so the {self._measure.label} decides."]

    def _level(self) -> list[str]:
        """Name the methods that are level with one that is shown to be better than ordinary training."""
        if self.ahead is None or self.ahead.result != "better":
            return []
        column = self.choice.columns[self.verdict.tiebreak_metric]
        against = column.differences(self.choice.predictions, self.leader)
        level = [_name(d.method) for d in against if d.result == "open"]
        return [f"Not distinguishable from it in {self._measure.label}: {join(level)}."] if level else []

    def _nothing(self, target: str) -> list[str]:
        """Report that no method beats a constant prediction."""
        first = self.choice.metrics[0]
        closest = next(d for d in self.over if (d.method, d.measure) == (self.leader, first.name))
        return [
            f"Nothing here is shown to predict {target}: no method is shown to be better than "
            f"{self.constant}.",
            f"The best estimate is that of {_name(self.leader)}: {first.label} {closest.show(first)} compared "
            "with that. No model is worth keeping.",
        ]

    def _no_gain(self) -> list[str]:
        """Report that probabilities are better than a constant prediction, but accuracies are not."""
        first = self.choice.metrics[0]
        mine = [d for d in self.over if d.measure == first.name]
        if not mine or any(d.result in ("better", "unknown") for d in mine):
            return []
        level = first.show(self.choice.scores[CONSTANT][first.name])
        return [
            f"No method is shown to have a better {first.label} than {self.constant} ({level}); only the "
            "probabilities tell rows apart."
        ]

    def _needed(self) -> list[str]:
        """Say how much data would settle the headline's comparison, if its estimate is right."""
        if self.ahead is None or self.ahead.result != "open":
            return []
        ways = needed(self.ahead, self.choice.predictions, relative=self._measure.relative)
        pair = f"whether {_name(self.leader)} and {_name(REFERENCE)} differ"
        return [f"{sentence(' or '.join(ways))} would tell {pair}."] if ways else []


def needed(difference: Difference, predictions: Predictions, *, relative: bool) -> list[str]:
    """Scale the variance until the interval excludes zero; return numbers of rows and repeats in words."""
    gap = math.log1p(difference.mean) if relative else difference.mean
    allowed = (gap / difference.quantile) ** 2 if difference.quantile else 0.0
    rows, training = difference.rows_variance, np.nan_to_num(difference.training_variance)
    is_fixed = not predictions.fold.max()  # one part of the table is held out
    ways = []
    if allowed > 0 and (factor := (rows + training) / allowed) <= MAX_FACTOR:
        n_rows = int(predictions.tested.any(0).sum()) if is_fixed else len(predictions.target)
        ways.append(f"about {round_up(n_rows * factor):,} {'tested ' if is_fixed else ''}rows")
    if allowed > rows and training > 0:
        n_repeats = len(predictions.fold)
        repeats = n_repeats * training / (allowed - rows)
        if repeats <= MAX_REPEATS:
            ways.append(f"about {max(n_repeats + 1, math.ceil(repeats))} repeats")
    return ways


def round_up(number: float) -> int:
    """Round up to one digit, or two after a leading 1, so that the figure does not look exact.

    Example:
        >>> round_up(2931), round_up(1210), round_up(87)
        (3000, 1300, 90)
    """
    size = 10 ** max(0, len(str(int(number))) - (2 if str(int(number))[0] == "1" else 1))
    return math.ceil(number / size) * size


def _cautions(predictions: Predictions) -> list[str]:
    """List what limits the answer."""
    cautions = []
    if predictions.n_tests == 1:
        cautions.append(
            "Every method was trained once, so the intervals do not include training noise. Run more repeats."
        )
    tested = predictions.tested.any(0)
    n_clusters = len(np.unique(predictions.clusters[tested]))
    if n_clusters < min(20, tested.sum()):
        cautions.append(
            f"Independent blocks of test rows: {n_clusters}. Intervals are wide and rough."
            if n_clusters > 1
            else "All test rows belong to one block, so no difference can be judged. Test on more blocks."
        )
    is_class = predictions.task == "classification"
    losses = predictions.losses["right" if is_class else "square"]
    errors, least = [], len(tested)
    for repeat, row in enumerate(predictions.fold):
        for fold in np.unique(row[row >= 0]):
            mean = losses[repeat][:, row == fold].mean(1)
            errors.append(1 - mean if is_class else mean**0.5)
            least = min(least, int((row == fold).sum()))
    middle = np.median(errors, axis=0)
    limit = FOLD_RATIO * middle
    if is_class:  # a few more wrong rows do not count as disagreement
        share = np.clip(middle, 0.01, 0.99)
        limit = np.maximum(limit, middle + 4 * np.sqrt(share * (1 - share) / least))
    wild = (np.array(errors) > limit).any(0)
    if names := [_name(method) for method, is_wild in zip(predictions.values, wild, strict=True) if is_wild]:
        cautions.append(
            f"Folds disagree for {join(names)}: the error of one fold is more than twice that of the median "
            "fold."
        )
    return cautions


def _missed(predictions: Predictions, best: str) -> list[str]:
    """Report rare classes that the best method hardly ever predicts."""
    if predictions.task != "classification":
        return []
    right, methods = predictions.losses["right"], list(predictions.values)
    counts, recall = part_means(predictions, right, predictions.labels, len(predictions.classes))
    rows = np.bincount(predictions.labels[predictions.tested.any(0)], minlength=len(counts))
    rare = (rows < RARE * rows.sum() / len(rows)) & (counts > 0)
    cautions = []
    for number in np.flatnonzero(rare & (recall[methods.index(best)] < MISSED))[:_MOST_MISSED]:
        shares = [methods.index(best), int(recall[:, number].argmax())]
        found = dict.fromkeys(f"{100 * recall[k, number]:.0f} % by {_name(methods[k])}" for k in shares)
        cautions.append(
            f"Of the {rows[number]:,} rows of class {predictions.classes[number]!r}, only {join([*found])} "
            "are predicted as such. Use the probability of that class, or try --select worst."
        )
    return cautions
