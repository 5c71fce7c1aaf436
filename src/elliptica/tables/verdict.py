"""Judge a comparison: which method to use, how much better it is, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elliptica._utils.statistics import student_quantile
from elliptica.report.content import Difference, Result, Verdict
from elliptica.tables.methods import CONSTANT
from elliptica.tables.metrics import Metric, Predictions, metrics_of, score
from elliptica.tables.spread import Spread, cross_validation_spread, simultaneous_level

REFERENCE = "erm"
CONFIDENCE = 0.95
#: Methods that are not networks.
OTHERS = ("trees", "linear")
#: Rank of simplicity; methods that are not listed have rank 2.
SIMPLICITY = {"linear": 0, "trees": 1, "erm": 1}

#: Display names of the methods, the same on the screen and in reports.
NAMES = {
    "erm": "ordinary training",
    "noise": "input noise",
    "smoothing": "label smoothing",
    "mixup": "mixup",
    "c-mixup": "C-Mixup",
    "elliptic": "elliptic training",
    "elliptic-weighted": "weighted elliptic training",
    "groupdro": "GroupDRO",
    "jtt": "JTT",
    "lisa": "LISA",
    "balanced": "balanced batches",
    "trees": "boosted trees",
    "linear": "linear model",
}

#: Where the verdict holds, by shift.
PLACES = {
    "random": "on new rows like these",
    "unseen": "on unseen groups of rows",
    "time": "on later rows",
    "extrapolate": "on rows far from the training rows",
    "test_file": "on the rows of the test file",
}

#: Display names of the results.
RESULTS: dict[Result, str] = {"better": "better", "worse": "worse", "open": "not distinguishable"}

#: Variance of rows in the worst class, relative to that of independent test rows. To first order, training
#: rows decide which class a classifier favours, and all folds share them; measured by `benchmarks.verdict`.
CLASS_FACTOR = 2.0
#: More rows or repeats than this multiple of the present ones are not suggested.
MAX_FACTOR = 100
#: Folds disagree if the error of one exceeds this multiple of the median fold's.
FOLD_RATIO = 2.0
#: A class is rare below this part of an equal share of rows, and missed below this recall.
RARE, MISSED = 0.5, 0.1
_PLURAL = ("trees", "balanced")
_MOST_MISSED = 3


@dataclass(frozen=True)
class Change(Difference):
    """The difference between two methods in a column, with an interval.

    ``mean``, ``low`` and ``high`` are shares: a change of -0.12 is 12 % less for relative metrics, 12 points
    less for accuracies. ``n_seeds`` is the number of tests (folds times repeats).

    Attributes:
        against: Method that it is compared with.
        value: Score of the method.
        reference: Score of the other method.
        rows_variance: Variance of the estimate due to the choice of rows.
        training_variance: Variance due to training noise; NaN if there is only one fold.
        quantile: Half-width of the interval divided by the standard error.
    """

    against: str = REFERENCE
    value: float = math.nan
    reference: float = math.nan
    rows_variance: float = math.nan
    training_variance: float = math.nan
    quantile: float = math.nan


@dataclass(frozen=True)
class Needed:
    """The amount of data that would settle an open comparison, if the estimate is right.

    Attributes:
        method: Name of the method.
        measure: Name of the metric.
        against: Method that it is compared with.
        rows: Total number of rows; None if more rows of this kind would not help soon.
        repeats: Total number of repeats of the present rows; None if repeats would not help.
        tested: Whether ``rows`` counts only tested rows, because one part of the table is held out.
    """

    method: str
    measure: str
    against: str
    rows: int | None
    repeats: int | None
    tested: bool = False

    @property
    def words(self) -> str:
        """The missing evidence, as the beginning of a sentence."""
        kind = "tested rows" if self.tested else "rows"
        ways = [f"about {self.rows:,} {kind}"] if self.rows is not None else []
        ways += [f"about {self.repeats} repeats"] if self.repeats is not None else []
        return f"{' or '.join(ways)} would tell" if ways else "more rows of this kind will not tell soon"


@dataclass(frozen=True)
class Judgement(Verdict):
    """The verdict of a comparison.

    ``differences`` holds a `Change` against ordinary training for every method and judged column.

    Attributes:
        metrics: Columns in order; `Metric.judged` says which of them are judged.
        scores: Scores by method and column.
        among: Changes of the best method against the best network, if these differ.
        simpler: Changes of the best method against simpler ones that are not distinguishable from it.
        over_constant: Changes of every method against the constant prediction, in the average column and, for
            classes, the Brier score.
        constant: Changes of the constant prediction against ordinary training.
        needed: Evidence that would settle the open comparisons in the telling column.
        deciding: Name of the column that decides.
        telling: Name of the column that separates the best method from others: the deciding one, or the
            Brier score if accuracies are not distinguishable.
        cautions: Limits of the answer.
    """

    metrics: Sequence[Metric] = ()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    among: Sequence[Change] = ()
    simpler: Sequence[Change] = ()
    over_constant: Sequence[Change] = ()
    constant: Sequence[Change] = ()
    needed: Sequence[Needed] = ()
    deciding: str = ""
    telling: str = ""
    cautions: Sequence[str] = ()

    @property
    def predicts(self) -> bool:
        """Whether some method is shown to be better than the constant prediction."""
        return not self.over_constant or any(c.result == "better" for c in self.over_constant)

    def change(self, method: str, measure: str) -> Change | None:
        """Return the change of a method in a column; None for ordinary training and unjudged columns."""
        return next(
            (
                d
                for d in (*self.differences, *self.constant)
                if isinstance(d, Change) and (d.method, d.measure) == (method, measure)
            ),
            None,
        )

    def cell(self, method: str, measure: str) -> str:
        """Format the change of a method in a column; empty if there is none.

        The screen, Markdown and the page show the same text: ``"-12 % (-16 to -8) better"``.
        """
        change = self.change(method, measure)
        return "" if change is None else show_change(change, self.metric(measure), result=True)

    def metric(self, name: str) -> Metric:
        """Return the column with this name."""
        return next(metric for metric in self.metrics if metric.name == name)


def show_change(change: Change, metric: Metric, *, result: bool = False) -> str:
    """Format a change with its interval, in percent for relative metrics and in points for accuracies.

    Example:
        >>> rmse, accuracy = metrics_of("regression", False)[0], metrics_of("classification", False)[0]
        >>> show_change(Change("trees", "rmse", -0.12, -0.16, -0.08, 5, "better"), rmse, result=True)
        '-12 % (-16 to -8) better'
        >>> show_change(Change("mixup", "accuracy", 0.004, -0.011, 0.019, 5, "open"), accuracy)
        '+0.4 points (-1.1 to +1.9)'
    """
    low, high = change.low, change.high
    if math.isinf(high):
        unit = "%" if metric.relative else "points"
        text = f"{_signed(100 * change.mean, 1)} {unit} (interval unknown)"
        return f"{text} {RESULTS[change.result]}" if result else text
    if not metric.relative:  # shares cannot differ by more than 1
        low, high = max(-1.0, low), min(1.0, high)
    digits = _digits(low, high, change.result, metric)
    mean, low_text, high_text = (_signed(100 * each, digits) for each in (change.mean, low, high))
    text = f"{mean} {'%' if metric.relative else 'points'} ({low_text} to {high_text})"
    return f"{text} {RESULTS[change.result]}" if result else text


def _digits(low: float, high: float, result: Result, metric: Metric) -> int:
    """Choose decimals that suit the width of an interval and do not round a clear result to zero."""
    width = 100 * (high - low)
    least = 0 if metric.relative else 1
    digits = max(least, 0 if width >= 5 else 1 if width >= 0.5 or not width else 2)
    while result != "open" and digits < 3 and not all(round(100 * end, digits) for end in (low, high)):
        digits += 1
    return digits


def _signed(value: float, digits: int) -> str:
    """Format a number with its sign; zero has none."""
    if math.isinf(value):
        return "unknown"
    if abs(value) >= 1000:
        return f"{value:+,.0f}"
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if rounded else ''}.{digits}f}"


def judge(
    predictions: Predictions,
    *,
    select: str = "average",
    reference: str = REFERENCE,
    shift: str = "random",
    shift_words: str = "",
    names: Mapping[str, str] = NAMES,
    networks: Collection[str] | None = None,
    place: str | None = None,
    target: str = "the target",
) -> Judgement:
    """Compare every method with ordinary training in every judged column, and recommend one.

    Methods are compared row by row. Intervals include the choice of rows (clustered) and training noise, the
    variation between folds and repeats that rows do not explain (see
    `elliptica._utils.statistics.cross_validation_spread`). They hold jointly with 95 % confidence for all
    methods of a column (max-t). The recommended method has the best estimate in the deciding column. Ordinary
    training wins ties, then the simplest method. Accuracy is a coarse measure: among the methods that are not
    distinguishable from the most accurate one, the Brier score decides.

    If predictions of `CONSTANT` are given and no method is shown to beat them in the average column or in the
    Brier score, the headline says so. ``best`` still names the method with the best estimate.

    Args:
        predictions: Predictions of all methods, including the reference.
        select: Column that decides: ``"average"`` (the first) or ``"worst"`` (the second).
        reference: Name of ordinary training.
        shift: Shift that the folds stand for, a key of `PLACES`.
        shift_words: A sentence that says how rows were held out.
        names: Display names of the methods.
        networks: Methods that are networks; by default all except `OTHERS`.
        place: Phrase for where the verdict holds, e.g. ``"on unseen patients"``; by default from ``shift``.
        target: Name of the predicted column.
    """
    everyone = predictions
    predictions = _only(everyone, [method for method in everyone.values if method != CONSTANT])
    metrics = metrics_of(predictions.task, predictions.groups is not None)
    methods = list(predictions.values)
    if reference not in methods:
        raise ValueError(
            f"Predictions of {reference!r} are missing; methods with predictions: {', '.join(methods)}."
        )
    judged = [metric for metric in metrics if metric.judged]
    deciding = metrics[0] if select == "average" else metrics[1]
    scores = score(everyone)
    columns = {metric.name: Column.of(predictions, metric) for metric in judged}
    choice = _Choice(predictions, columns, scores, deciding, reference)
    changes = [
        change for metric in judged for change in columns[metric.name].changes(predictions, reference, scores)
    ]
    best = choice.best(methods)
    nets = [m for m in methods if (m not in OTHERS if networks is None else m in networks)]
    among: list[Change] = []
    if best not in nets and nets:
        rival = choice.best(nets)
        among = [choice.change(best, rival, m.name) for m in judged]
    rivals = among or [c for c in changes if c.method == best]
    telling = choice.telling(rivals)
    over, constant = _constant(everyone, scores, reference)
    needed = [_needed(c, predictions, columns[c.measure]) for c in (*changes, *among) if c.result == "open"]
    judgement = Judgement(
        "",
        differences=changes,
        best=best,
        winners=[c.method for c in _ranked(changes, telling) if c.result == "better"],
        confidence=CONFIDENCE,
        metrics=metrics,
        scores=scores,
        among=among,
        simpler=choice.simpler(best, telling),
        over_constant=over,
        constant=constant,
        needed=[need for need in needed if need.measure == telling.name],
        deciding=deciding.name,
        telling=telling.name,
        cautions=[*_cautions(predictions, methods, names), *_missed(predictions, best, names)],
    )
    place = PLACES[shift] if place is None else place
    words = _Words(judgement, reference, nets, names, place, target, _constant_words(predictions))
    headline, *sentences = [*words.sentences(), *judgement.cautions, *words.basis(shift_words)]
    return replace(judgement, headline=headline, sentences=sentences)


def _only(predictions: Predictions, methods: Sequence[str]) -> Predictions:
    """Keep the predictions of some methods."""
    return replace(predictions, values={method: predictions.values[method] for method in methods})


def _best(
    scores: Mapping[str, Mapping[str, float]], methods: Sequence[str], metric: Metric, reference: str
) -> str:
    """Return the method with the best shown score; ties go to the reference, then to the simplest method."""
    sign = -1 if metric.higher_is_better else 1
    values = {method: scores[method][metric.name] for method in methods}
    best = metric.show(min(values.values(), key=lambda value: sign * value))
    equal = [method for method in methods if metric.show(values[method]) == best]
    return min(equal, key=lambda method: (method != reference, _level(method), sign * values[method]))


def _level(method: str) -> int:
    return SIMPLICITY.get(method, 2)


@dataclass(frozen=True)
class _Choice:
    """Choose among methods by their estimates."""

    predictions: Predictions
    columns: Mapping[str, Column]
    scores: Mapping[str, Mapping[str, float]]
    deciding: Metric
    reference: str

    @property
    def second(self) -> Metric | None:
        """The column that breaks ties in the first one."""
        return self.columns["brier"].metric if self.deciding.name == "accuracy" else None

    def change(self, method: str, against: str, measure: str) -> Change:
        """Compare two methods in a column."""
        changes = self.columns[measure].changes(self.predictions, against, self.scores)
        return next(c for c in changes if c.method == method)

    def best(self, methods: Sequence[str]) -> str:
        """Return the method with the best estimate; the Brier score decides between similar accuracies."""
        first = _best(self.scores, methods, self.deciding, self.reference)
        if self.second is None:
            return first
        changes = self.columns[self.deciding.name].changes(self.predictions, first, self.scores)
        tied = {first, *(c.method for c in changes if c.result == "open")}
        return _best(self.scores, [m for m in methods if m in tied], self.second, self.reference)

    def telling(self, rivals: Sequence[Change]) -> Metric:
        """Return the column of the verdict, given the changes of the best method against its rival."""
        is_shown = any(c.measure == self.deciding.name and c.result == "better" for c in rivals)
        return self.deciding if self.second is None or is_shown else self.second

    def simpler(self, best: str, telling: Metric) -> list[Change]:
        """Compare the best method with simpler ones that are not distinguishable from it in any column."""
        names = [m for m in SIMPLICITY if m in self.predictions.values and _level(m) < _level(best)]
        measures = [self.deciding.name, *([self.second.name] if self.second else [])]
        simpler = []
        for name in names:
            changes = [self.change(best, name, measure) for measure in measures]
            if all(change.result == "open" for change in changes):
                simpler += [change for change in changes if change.measure == telling.name]
        return simpler


def _constant(
    everyone: Predictions, scores: Mapping[str, Mapping[str, float]], reference: str
) -> tuple[list[Change], list[Change]]:
    """Compare all methods with the constant prediction, and the constant prediction with the reference."""
    if CONSTANT not in everyone.values:
        return [], []
    metrics = metrics_of(everyone.task, everyone.groups is not None)
    own = [metric for number, metric in enumerate(metrics) if not number or metric.name == "brier"]
    over = [c for m in own for c in Column.of(everyone, m).changes(everyone, CONSTANT, scores)]
    pair = _only(everyone, [reference, CONSTANT])
    judged = [metric for metric in metrics if metric.judged]
    return over, [c for m in judged for c in Column.of(pair, m).changes(pair, reference, scores)]


def _constant_words(predictions: Predictions) -> str:
    """Describe the constant prediction."""
    if predictions.task == "regression":
        return "always predicting the mean"
    label = predictions.classes[int(np.bincount(predictions.labels).argmax())]
    return f"always predicting {label!r}, the largest class"


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
            counts, by_class = _part_means(predictions, losses, predictions.labels, len(predictions.classes))
            each = 1 / np.maximum(counts, 1) / (counts > 0).sum()
            weights = np.broadcast_to(each[predictions.labels], (n_methods, n))
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

    def changes(
        self, predictions: Predictions, reference: str, scores: Mapping[str, Mapping[str, float]]
    ) -> list[Change]:
        """Compare all methods with one of them; the intervals hold jointly."""
        methods = list(predictions.values)
        base = methods.index(reference)
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
            self._change(methods[number], reference, float(gap), spread, place, level, predictions, scores)
            for place, (number, gap) in enumerate(zip(others, gaps, strict=True))
        ]

    def _change(
        self,
        method: str,
        reference: str,
        gap: float,
        spread: Spread,
        place: int,
        level: float,
        predictions: Predictions,
        scores: Mapping[str, Mapping[str, float]],
    ) -> Change:
        quantile = student_quantile((1 + level) / 2, round(float(spread.degrees[place]), 1))
        half = quantile * float(spread.variance[place]) ** 0.5
        result: Result = "open"
        if half > 0 and abs(gap) > half:
            result = "better" if (gap > 0) == self.metric.higher_is_better else "worse"
        ends = [gap, gap - half, gap + half]
        mean, low, high = map(_ratio, ends) if self.metric.relative else ends
        name = self.metric.name
        return Change(
            method,
            name,
            mean,
            low,
            high,
            predictions.n_tests,
            result,
            reference,
            scores[method][name],
            scores[reference][name],
            float(spread.rows[place]),
            float(spread.training[place]),
            quantile,
        )


def _ratio(logarithm: float) -> float:
    return math.inf if math.isinf(logarithm) and logarithm > 0 else math.expm1(min(logarithm, 700.0))


def _part_means(
    predictions: Predictions, losses: np.ndarray, numbers: np.ndarray, n_parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tests and the means per part, ``(methods, parts)``; part -1 is ignored."""
    # the last column belongs to part -1 and is cut off
    member = np.eye(n_parts + 1)[numbers][:, :-1]
    counts = (predictions.tested.astype(float) @ member).sum(0)
    return counts, (losses @ member).sum(0) / np.maximum(counts, 1)


def _worst_weights(predictions: Predictions, losses: np.ndarray, metric: Metric) -> np.ndarray:
    """Weight the rows of each method's worst part."""
    names, numbers = predictions.parts
    counts, means = _part_means(predictions, losses, numbers, len(names))
    means[:, counts == 0] = np.inf if metric.higher_is_better else -np.inf
    worst = means.argmin(1) if metric.higher_is_better else means.argmax(1)
    return (numbers == worst[:, None]) / counts[worst][:, None]


def _needed(change: Change, predictions: Predictions, column: Column) -> Needed:
    """Scale the variance until the interval excludes zero."""
    gap = math.log1p(change.mean) if column.metric.relative else change.mean
    n_repeats = len(predictions.fold)
    tested = not predictions.fold.max()
    n_rows = int(predictions.tested.any(0).sum()) if tested else len(predictions.target)
    # the interval excludes zero once the variance is below this
    allowed = (abs(gap) / change.quantile) ** 2 if change.quantile else 0.0
    training = max(0.0, change.training_variance) if math.isfinite(change.training_variance) else 0.0
    total = change.rows_variance + training
    rows = repeats = None
    if allowed > 0 and total / allowed <= MAX_FACTOR:
        rows = round_up(n_rows * total / allowed)
    if allowed > change.rows_variance and training > 0:
        factor = training / (allowed - change.rows_variance)
        if n_repeats * factor <= 20:
            repeats = max(n_repeats + 1, math.ceil(n_repeats * factor))
    return Needed(change.method, change.measure, change.against, rows, repeats, tested)


def round_up(number: float) -> int:
    """Round up to one digit, or two after a leading 1, so that the figure does not look exact.

    Example:
        >>> round_up(2931), round_up(1210), round_up(87)
        (3000, 1300, 90)
    """
    size = 10 ** max(0, len(str(int(number))) - (2 if str(int(number))[0] == "1" else 1))
    return math.ceil(number / size) * size


def _ranked(changes: Sequence[Change], metric: Metric) -> list[Change]:
    """Return the changes in a column, the best one first."""
    sign = -1 if metric.higher_is_better else 1
    return sorted((c for c in changes if c.measure == metric.name), key=lambda c: sign * c.mean)


def _cautions(predictions: Predictions, methods: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """List what limits the answer."""
    cautions = []
    folds = [(r, k) for r, row in enumerate(predictions.fold) for k in np.unique(row[row >= 0])]
    if len(folds) == 1:
        cautions.append(
            "Every method was trained once, so the intervals do not include training noise. Run more repeats."
        )
    tested = predictions.tested.any(0)
    n_clusters = len(np.unique(predictions.clusters[tested]))
    if n_clusters < min(20, tested.sum()):
        cautions.append(
            f"The test rows form only {n_clusters} independent blocks, so intervals are wide and rough."
            if n_clusters > 1
            else "All test rows belong to one block, so the spread of the results is unknown and no "
            "difference can be called better or worse. Test on more blocks or times."
        )
    losses = predictions.losses["right" if predictions.task == "classification" else "square"]
    errors, counts = [], []
    for repeat, fold in folds:
        use = predictions.fold[repeat] == fold
        mean = losses[repeat][:, use].mean(1)
        errors.append(1 - mean if predictions.task == "classification" else mean**0.5)
        counts.append(use.sum())
    wild = _wild(np.array(errors), np.array(counts), predictions.task)
    if named := [names.get(m, m) for m, each in zip(methods, wild, strict=True) if each]:
        cautions.append(
            f"Folds disagree for {_list(named)}: the error of one fold is more than twice that of the median "
            "fold."
        )
    return cautions


def _wild(errors: np.ndarray, counts: np.ndarray, task: str) -> np.ndarray:
    """Tell which methods have a fold far from the median fold; errors are ``(folds, methods)``."""
    middle = np.median(errors, axis=0)
    limit = FOLD_RATIO * middle
    if task == "classification":  # a few more wrong rows do not count as disagreement
        share = np.clip(middle, 0.01, 0.99)
        limit = np.maximum(limit, middle + 4 * np.sqrt(share * (1 - share) / counts.min()))
    return (errors > limit).any(0)


def _missed(predictions: Predictions, best: str, names: Mapping[str, str]) -> list[str]:
    """Report rare classes that the best method hardly ever predicts."""
    if predictions.task != "classification":
        return []
    counts, recall = _part_means(
        predictions, predictions.losses["right"], predictions.labels, len(predictions.classes)
    )
    rows = np.bincount(predictions.labels[predictions.tested.any(0)], minlength=len(counts))
    rare = (rows < RARE * rows.sum() / len(rows)) & (counts > 0)
    methods = list(predictions.values)
    missed = np.flatnonzero(rare & (recall[methods.index(best)] < MISSED))
    said = []
    for number in missed[:_MOST_MISSED]:
        own, most = recall[methods.index(best), number], recall[:, number].max()
        what = f"the {rows[number]:,} rows of class {predictions.classes[number]!r}"
        if most < MISSED:
            text = (
                f"No method finds more than {100 * most:.0f} % of {what}"
                if most
                else f"No method finds any of {what}"
            )
        else:
            other = names.get(methods[int(recall[:, number].argmax())], "another method")
            verb = "find" if best in _PLURAL else "finds"
            text = f"{_upper(names.get(best, best))} {verb} {100 * own:.0f} % of {what}"
            text += f" ({other}: {100 * most:.0f} %)"
        said.append(f"{text}. Use its probability, not the predicted class, or try --select worst.")
    return said


def _list(names: Sequence[str]) -> str:
    """Join names as in "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class _Words:
    """Sentences that describe a judgement."""

    found: Judgement
    reference: str
    networks: Sequence[str]
    names: Mapping[str, str]
    place: str
    target: str
    constant: str  # description of the constant prediction

    def sentences(self) -> list[str]:
        """Return all sentences, the answer first."""
        if not self.found.predicts:
            return self.nothing()
        if not self.found.differences:
            return [f"Use {self.name(self.reference)}: no other method was run.", *self.no_gain()]
        return [
            *self.headline(),
            *self.simpler(),
            *self.tie(),
            *self.no_gain(),
            *self.columns(),
            *(self.among_networks() if self.found.among else self.others()),
            *self.elsewhere(),
            *self.settle(),
        ]

    def name(self, method: str) -> str:
        """Return the name of a method inside a sentence."""
        return ("the " if method == "linear" else "") + self.names.get(method, method)

    def of(self, result: Result, within: Collection[str] | None = None) -> list[str]:
        """Return methods with this result in the telling column, except the best one."""
        return [
            c.method
            for c in _ranked(self.changes, self.telling)
            if c.result == result and c.method != self.found.best and (within is None or c.method in within)
        ]

    @property
    def changes(self) -> list[Change]:
        return [c for c in self.found.differences if isinstance(c, Change)]

    @property
    def telling(self) -> Metric:
        return self.found.metric(self.found.telling)

    @property
    def best(self) -> str:
        return str(self.found.best)

    @property
    def main(self) -> Change | None:
        """The change in the headline: against the best network, or against ordinary training."""
        among = [c for c in self.found.among if c.measure == self.found.telling]
        return among[0] if among else self.found.change(self.best, self.found.telling)

    def rival(self, change: Change) -> str:
        """Name what the best method is compared with."""
        if not self.found.among:
            return self.name(change.against)
        return "the best network" + ("" if len(self.networks) == 1 else f" ({self.name(change.against)})")

    def headline(self) -> list[str]:
        """Recommend one method and say by how much it is better."""
        change, metric = self.main, self.telling
        best = self.name(self.best)
        if change is None:
            return [f"Use {best}: no method has a better {metric.label} {self.place}{self._most_accurate}."]
        if change.result != "better":
            rival, change = self.rival(change), change
            if self.found.simpler:
                change = self.found.simpler[0]
                rival = f"{self.name(change.against)}, which {self._is(change.against)} simpler"
            return [
                f"Use {best}: the best {metric.label} {self.place}{self._most_accurate}, but not "
                f"distinguishable from {rival}.",
                f"Compared with that, the {metric.label} changes by {show_change(change, metric)}.",
            ]
        return [
            f"Use {best}: {_gain(change, metric)} than {self.rival(change)} {self.place}.",
            f"The interval is {_gain_interval(change, metric)}.",
        ]

    def simpler(self) -> list[str]:
        """List simpler methods that do about as well, unless the headline mentions them."""
        change = self.main
        said = change is not None and change.result != "better"
        if not self.found.simpler[int(said) :]:
            return []
        names = [f"{self.name(c.against)}, {show_change(c, self.telling)}" for c in self.found.simpler[said:]]
        return [
            f"{'Also simpler' if said else 'Simpler'} and not distinguishable from it: {'; '.join(names)}."
        ]

    def tie(self) -> list[str]:
        """Explain that the Brier score decided, and how accuracies compare."""
        if self.found.telling == self.found.deciding:
            return []
        metric, scores = self.found.metric(self.found.deciding), self.found.scores
        top = _best(scores, [m for m in scores if m != CONSTANT], metric, self.best)
        if top == self.best:
            return []
        own, most = (metric.show(scores[method][metric.name]) for method in (self.best, top))
        return [
            f"Its {metric.label} ({own}) is not distinguishable from the best one ({self.name(top)}, "
            f"{most}), so the {self.telling.label} decides."
        ]

    def nothing(self) -> list[str]:
        """Report that no method beats a constant prediction."""
        metric = self.found.metrics[0]
        change = next(
            c for c in self.found.over_constant if (c.method, c.measure) == (self.best, metric.name)
        )
        is_gain = change.mean and (change.mean > 0) == metric.higher_is_better
        shown = "is shown to predict" if is_gain else "predicts"
        return [
            f"Nothing here {shown} {self.target}: no method is {'distinguishably ' if is_gain else ''}better "
            f"than {self.constant}.",
            f"{_upper(self.name(self.best))} {'come' if self.best in _PLURAL else 'comes'} closest: compared "
            f"with that, the {metric.label} changes by {show_change(change, metric)}. No model is worth "
            "keeping; the one that is saved has the best estimate.",
        ]

    def no_gain(self) -> list[str]:
        """Report that probabilities are better than a constant prediction, but accuracies are not."""
        first = self.found.metrics[0]
        mine = [c for c in self.found.over_constant if c.measure == first.name]
        if not mine or any(c.result == "better" for c in mine):
            return []
        level = first.show(self.found.scores[CONSTANT][first.name])
        return [
            f"No method is shown to have a better {first.label} than {self.constant} ({level}); only the "
            "probabilities tell rows apart."
        ]

    def columns(self) -> list[str]:
        """Compare the best method with ordinary training in the other columns."""
        main = self.found.change(self.best, self.found.telling)
        if main is None:
            return []
        mine = [c for c in self.changes if c.method == self.best and c.measure != self.found.telling]
        by_result = {r: [self._column(c) for c in mine if c.result == r] for r in RESULTS}
        said = []
        if self.found.among and main.against != self.found.among[0].against:
            cell = self.found.cell(self.best, main.measure)
            said.append(f"Against {self.name(self.reference)}: {cell}.")
        if better := by_result["better"]:
            also = "also " if main.result == "better" else ""
            said.append(f"It is {also}better than {self.name(self.reference)} {_list(better)}.")
        if worse := by_result["worse"]:
            kind = (
                "It is a trade: it" if "better" in (main.result, *(c.result for c in mine)) else "Careful: it"
            )
            said.append(f"{kind} is worse than {self.name(self.reference)} {_list(worse)}.")
        return said

    def among_networks(self) -> list[str]:
        """Compare networks with ordinary training if trees or a linear model win."""
        if len(self.networks) < 2:
            return []
        better, worse, open_ = (self.of(r, self.networks) for r in ("better", "worse", "open"))
        reference = self.name(self.reference)
        if better:
            text = f"Among networks {self._are(better)} better than {reference}{self._where}"
        elif open_ and not worse:
            text = f"Among networks none is distinguishable from {reference}{self._where}"
        else:
            text = f"Among networks none is better than {reference}{self._where}"
        return [f"{text}; {self._are(worse)} worse." if worse else f"{text}."]

    def others(self) -> list[str]:
        """Compare the remaining methods with ordinary training."""
        reference, said = self.name(self.reference), []
        if better := self.of("better"):
            said.append(f"Also better than {reference}{self._where}: {_list(self._named(better))}.")
        if self.best == self.reference and (open_ := self.of("open")):
            said.append(f"Not distinguishable from it{self._where}: {_list(self._named(open_))}.")
        if worse := self.of("worse"):
            said.append(f"Worse than {reference}{self._where}: {_list(self._named(worse))}.")
        return said

    def elsewhere(self) -> list[str]:
        """List other methods that are better in another column, as trades or as gains there only."""
        said, first = [], self.of("better")
        reference = self.name(self.reference)
        for method in dict.fromkeys(c.method for c in self.changes if c.method != self.found.best):
            mine = {r: [c for c in self.changes if c.method == method and c.result == r] for r in RESULTS}
            better, worse = ([self._column(c) for c in mine[r]] for r in ("better", "worse"))
            who = f"{_upper(self.name(method))} {self._is(method)}"
            if better and worse:
                said.append(
                    f"{who} a trade against {reference}: better {_list(better)}, worse {_list(worse)}."
                )
            elif better and method not in first:
                said.append(f"{who} better than {reference} {_list(better)}.")
        return said

    def settle(self) -> list[str]:
        """Say what would settle the most important open comparison."""
        change = self._open()
        if change is None:
            return []
        need = next(n for n in self.found.needed if (n.method, n.against) == (change.method, change.against))
        pair = f"{self.name(need.method)} and {self.name(need.against)} differ"
        return [f"{_upper(need.words)} whether {pair} in {self.telling.label}."]

    def _open(self) -> Change | None:
        """Return the open comparison of the headline, or that of the best challenger."""
        main = self.main
        if main is not None and main.result == "open":
            return main
        if main is not None and not self.found.among:
            return None
        within = self.networks if self.found.among else list(self.found.scores)
        mine = [c for c in _ranked(self.changes, self.telling) if c.method in within]
        is_settled = any(c.result == "better" for c in mine)
        return None if is_settled else next((c for c in mine if c.result == "open"), None)

    def basis(self, shift_words: str) -> list[str]:
        """Describe the evidence behind the verdict."""
        said = [f"How rows were held out: {shift_words}"] if shift_words else []
        if not self.found.differences:
            return said
        return [
            *said,
            "Intervals compare methods row by row, include training noise, and hold jointly for all methods "
            "of a column with 95 % confidence.",
        ]

    def _column(self, change: Change) -> str:
        return f"in {self.found.metric(change.measure).label}"

    def _named(self, methods: Sequence[str]) -> list[str]:
        return [self.name(method) for method in methods]

    @property
    def _where(self) -> str:
        """Name the column if the table of scores compares another one."""
        return "" if self.found.telling == self.found.deciding else f" in {self.telling.label}"

    @property
    def _most_accurate(self) -> str:
        """Note that a less accurate method has a better Brier score."""
        trained = [method for method in self.found.scores if method != CONSTANT]
        is_best = _best(self.found.scores, trained, self.telling, self.best) == self.best
        return "" if is_best else " among the most accurate methods"

    def _is(self, method: str) -> str:
        return "are" if method in _PLURAL else "is"

    def _are(self, methods: Sequence[str]) -> str:
        verb = "are" if len(methods) > 1 else self._is(methods[0])
        return f"{_list(self._named(methods))} {verb}"


def _gain(change: Change, metric: Metric) -> str:
    """Format a gain without a sign, as in "12 % lower RMSE"."""
    digits = _digits(change.low, change.high, change.result, metric)
    unit, side = "%" if metric.relative else "points", "higher" if change.mean > 0 else "lower"
    return f"{100 * abs(change.mean):.{digits}f} {unit} {side} {metric.label}"


def _gain_interval(change: Change, metric: Metric) -> str:
    digits = _digits(change.low, change.high, change.result, metric)
    low, high = sorted(100 * abs(end) for end in (change.low, change.high))
    return f"{low:.{digits}f} to {high:.{digits}f} {'%' if metric.relative else 'points'}"
