"""Judge a comparison: which method to use, how much better it is, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elliptica._utils.statistics import Spread, cross_validation_spread, simultaneous_level, student_quantile
from elliptica.compare.metrics import Metric, Predictions, metrics_of, score
from elliptica.report.content import Difference, Result, Verdict

REFERENCE = "erm"
CONFIDENCE = 0.95
#: Methods that are not networks.
OTHERS = ("trees", "linear")

#: Methods in words, on the screen and in reports alike.
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

#: Results in words.
RESULTS: dict[Result, str] = {"better": "better", "worse": "worse", "open": "not distinguishable"}

#: Variance of rows in the worst class, over that of independent test rows. Training rows decide, to first
#: order, which class a classifier favours, and all folds share them; found by `benchmarks.verdict`.
CLASS_FACTOR = 2.0
#: More rows or repeats than so many times the present ones are not suggested.
MAX_FACTOR = 100
#: Folds disagree if the error of one is so many times that of the median fold.
FOLD_RATIO = 2.0


@dataclass(frozen=True)
class Change(Difference):
    """A method against another one in a column, with an interval.

    ``mean``, ``low`` and ``high`` are shares: a change of -0.12 is 12 % less for relative metrics, 12 points
    less for accuracies. ``n_seeds`` is the number of tests (folds times repeats).

    Attributes:
        against: Method that it is compared with.
        value: Score of the method.
        reference: Score of the other.
        rows_variance: What the choice of rows adds to the variance of the estimate.
        training_variance: What training noise adds; NaN if a single fold cannot tell.
        quantile: Half-width of the interval over the standard error.
    """

    against: str = REFERENCE
    value: float = math.nan
    reference: float = math.nan
    rows_variance: float = math.nan
    training_variance: float = math.nan
    quantile: float = math.nan


@dataclass(frozen=True)
class Needed:
    """What would settle an open comparison, if the difference is as large as it looks.

    Attributes:
        method: Which method.
        measure: Name of the metric.
        against: Method that it is compared with.
        rows: Rows of the table in total; None if more rows of this kind will not tell soon.
        repeats: Repeats in total that would do with the present rows; None if they would not.
        tested: Whether ``rows`` counts tested rows only, because one part of the table is held out.
    """

    method: str
    measure: str
    against: str
    rows: int | None
    repeats: int | None
    tested: bool = False

    @property
    def words(self) -> str:
        """What would tell, as the beginning of a sentence."""
        kind = "tested rows" if self.tested else "rows"
        ways = [f"about {self.rows:,} {kind}"] if self.rows is not None else []
        ways += [f"about {self.repeats} repeats"] if self.repeats is not None else []
        return f"{' or '.join(ways)} would tell" if ways else "more rows of this kind will not tell soon"


@dataclass(frozen=True)
class Judgement(Verdict):
    """The verdict of a comparison.

    ``differences`` has a `Change` for every method and judged column, against ordinary training.

    Attributes:
        metrics: Columns in order; `Metric.judged` says which of them are judged.
        scores: By method and column.
        among: Changes of the best method against the best network, where these are two.
        needed: What would settle what is open in the deciding column.
        deciding: Name of the column that decides.
        cautions: What limits the answer.
    """

    metrics: Sequence[Metric] = ()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    among: Sequence[Change] = ()
    needed: Sequence[Needed] = ()
    deciding: str = ""
    cautions: Sequence[str] = ()

    def change(self, method: str, measure: str) -> Change | None:
        """The change of a method in a column; None for ordinary training and columns that are not judged."""
        return next(
            (
                d
                for d in self.differences
                if isinstance(d, Change) and (d.method, d.measure) == (method, measure)
            ),
            None,
        )

    def cell(self, method: str, measure: str) -> str:
        """Write the change of a method in a column; empty where there is none.

        The same text stands on the screen, in Markdown and on the page: ``"-12 % (-16 to -8) better"``.
        """
        found = self.change(method, measure)
        return "" if found is None else show_change(found, self.metric(measure), result=True)

    def metric(self, name: str) -> Metric:
        """The column of this name."""
        return next(metric for metric in self.metrics if metric.name == name)


def show_change(change: Change, metric: Metric, *, result: bool = False) -> str:
    """Write a change with its interval: percent for relative metrics, points for accuracies.

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
    """Decimals that suit the width of an interval, and keep it off zero if it is clear of it."""
    width = 100 * (high - low)
    least = 0 if metric.relative else 1
    digits = max(least, 0 if width >= 5 else 1 if width >= 0.5 or not width else 2)
    while result != "open" and digits < 3 and not all(round(100 * end, digits) for end in (low, high)):
        digits += 1
    return digits


def _signed(value: float, digits: int) -> str:
    """Write a number with its sign; zero has none."""
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
) -> Judgement:
    """Compare every method with ordinary training on every judged column, and name one to use.

    Methods are compared row by row. Intervals include the choice of rows (clustered) and training noise (the
    variation between folds and repeats beyond what rows explain), see
    `elliptica._utils.statistics.cross_validation_spread`, and hold with 95 % for all methods of a column
    together (max-t). The method to use is the one with the best estimate in the deciding column; ordinary
    training wins ties.

    Args:
        predictions: Of all methods, the reference among them.
        select: Which column decides: ``"average"`` (the first) or ``"worst"`` (the second).
        reference: Ordinary training.
        shift: Which shift the folds stand for, a key of `PLACES`.
        shift_words: One sentence that says how rows were held out.
        names: Methods in words.
        networks: Methods that are networks; by default all but `OTHERS`.
        place: Words for where the verdict holds, such as ``"on unseen patients"``; by default from ``shift``.
    """
    metrics = metrics_of(predictions.task, predictions.groups is not None)
    methods = list(predictions.values)
    if reference not in methods:
        raise ValueError(f"Predictions of {reference!r} are missing; there are: {', '.join(methods)}.")
    judged = [metric for metric in metrics if metric.judged]
    deciding = metrics[0] if select == "average" else metrics[1]
    scores = score(predictions)
    columns = {metric.name: Column.of(predictions, metric) for metric in judged}
    changes = [
        change for metric in judged for change in columns[metric.name].changes(predictions, reference, scores)
    ]
    best = _best(scores, methods, deciding, reference)
    nets = [m for m in methods if (m not in OTHERS if networks is None else m in networks)]
    among: list[Change] = []
    if best not in nets and nets:
        rival = _best(scores, nets, deciding, reference)
        among = [
            next(c for c in columns[m.name].changes(predictions, rival, scores) if c.method == best)
            for m in judged
        ]
    needed = [_needed(c, predictions, columns[c.measure]) for c in (*changes, *among) if c.result == "open"]
    found = Judgement(
        "",
        differences=changes,
        best=best,
        winners=[c.method for c in _ranked(changes, deciding) if c.result == "better"],
        confidence=CONFIDENCE,
        metrics=metrics,
        scores=scores,
        among=among,
        needed=[need for need in needed if need.measure == deciding.name],
        deciding=deciding.name,
        cautions=_cautions(predictions, methods, names),
    )
    words = _Words(found, reference, nets, names, PLACES[shift] if place is None else place)
    headline, *sentences = [*words.sentences(), *found.cautions, *words.basis(shift_words)]
    return replace(found, headline=headline, sentences=sentences)


def _best(
    scores: Mapping[str, Mapping[str, float]], methods: Sequence[str], metric: Metric, reference: str
) -> str:
    """Find the method with the best score; the reference wins if it looks as good, then the first."""
    sign = 1 if metric.higher_is_better else -1
    best = max(methods, key=lambda method: sign * scores[method][metric.name])
    if reference in methods:
        shown = {metric.show(scores[method][metric.name]) for method in (best, reference)}
        if len(shown) == 1:
            return reference
    return best


@dataclass(frozen=True)
class Column:
    """Estimates of all methods in a column, and what every row adds to them.

    Attributes:
        metric: Which column.
        estimates: By method, logarithms for relative metrics.
        influence: ``(repeats, methods, rows)``, see `cross_validation_spread`.
    """

    metric: Metric
    estimates: np.ndarray
    influence: np.ndarray

    @classmethod
    def of(cls, predictions: Predictions, metric: Metric) -> Column:
        """Compute them."""
        kind = {"log_loss": "log", "brier": "brier", "mae": "absolute"}.get(metric.name)
        kind = kind or ("right" if predictions.task == "classification" else "square")
        losses = predictions.losses[kind]
        n_repeats, n_methods, n = losses.shape
        centre: np.ndarray | None = None
        power = 0.0 if not metric.relative else 0.5 if kind == "square" else 1.0
        if metric.name == "balanced_accuracy":
            counts, by_class = _part_means(predictions, losses, predictions.labels, len(predictions.classes))
            each = 1 / np.maximum(counts, 1) / (counts > 0).sum()
            weights = np.broadcast_to(each[predictions.labels], (n_methods, n))
            centre = by_class[:, predictions.labels]
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
        return cls(metric, power * np.log(safe), power * influence / safe[:, None])

    def changes(
        self, predictions: Predictions, reference: str, scores: Mapping[str, Mapping[str, float]]
    ) -> list[Change]:
        """Compare all methods with one of them, intervals that hold together."""
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
    """Count tests in every part, and take means, ``(methods, parts)``; rows of part -1 are in none."""
    member = np.eye(n_parts + 1)[numbers][:, :-1]
    counts = (predictions.tested.astype(float) @ member).sum(0)
    return counts, (losses @ member).sum(0) / np.maximum(counts, 1)


def _worst_weights(predictions: Predictions, losses: np.ndarray, metric: Metric) -> np.ndarray:
    """Weights of the rows of each method's worst part."""
    names, numbers = predictions.parts
    counts, means = _part_means(predictions, losses, numbers, len(names))
    means[:, counts == 0] = np.inf if metric.higher_is_better else -np.inf
    worst = means.argmin(1) if metric.higher_is_better else means.argmax(1)
    return (numbers == worst[:, None]) / counts[worst][:, None]


def _needed(change: Change, predictions: Predictions, column: Column) -> Needed:
    """Scale the variance until the interval is clear of zero."""
    gap = math.log1p(change.mean) if column.metric.relative else change.mean
    n_repeats = len(predictions.fold)
    tested = not predictions.fold.max()
    n_rows = int(predictions.tested.any(0).sum()) if tested else len(predictions.target)
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
    """Round to a figure that does not pretend to be exact.

    Example:
        >>> round_up(2931), round_up(1210), round_up(87)
        (3000, 1300, 90)
    """
    size = 10 ** max(0, len(str(int(number))) - (2 if str(int(number))[0] == "1" else 1))
    return math.ceil(number / size) * size


def _ranked(changes: Sequence[Change], metric: Metric) -> list[Change]:
    """Changes in a column, the best one first."""
    sign = -1 if metric.higher_is_better else 1
    return sorted((c for c in changes if c.measure == metric.name), key=lambda c: sign * c.mean)


def _cautions(predictions: Predictions, methods: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Name what limits the answer."""
    found = []
    folds = [(r, k) for r, row in enumerate(predictions.fold) for k in np.unique(row[row >= 0])]
    if len(folds) == 1:
        found.append(
            "Every method was trained once: the intervals know nothing of training noise. Run more repeats."
        )
    tested = predictions.tested.any(0)
    n_clusters = len(np.unique(predictions.clusters[tested]))
    if n_clusters < min(20, tested.sum()):
        found.append(
            f"The test rows form {n_clusters} independent blocks only: intervals are wide, and rough."
            if n_clusters > 1
            else "All test rows belong to one block, so that nothing shows how far results scatter: no "
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
        found.append(
            f"Folds disagree for {_list(named)}: the error of one fold is more than twice that of the median "
            "fold."
        )
    return found


def _wild(errors: np.ndarray, counts: np.ndarray, task: str) -> np.ndarray:
    """Whether a fold of each method is far from the median fold; errors are ``(folds, methods)``."""
    middle = np.median(errors, axis=0)
    limit = FOLD_RATIO * middle
    if task == "classification":  # a few rows more are no disagreement
        share = np.clip(middle, 0.01, 0.99)
        limit = np.maximum(limit, middle + 4 * np.sqrt(share * (1 - share) / counts.min()))
    return (errors > limit).any(0)


def _list(names: Sequence[str]) -> str:
    """Join names: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _are(names: Sequence[str]) -> str:
    return f"{_list(names)} {'is' if len(names) == 1 else 'are'}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class _Words:
    """Sentences about a judgement."""

    found: Judgement
    reference: str
    networks: Sequence[str]
    names: Mapping[str, str]
    place: str

    def sentences(self) -> list[str]:
        """The answer first."""
        if not self.found.differences:
            return [f"Use {self.name(self.reference)}: no other method was run."]
        return [
            *self.headline(),
            *self.columns(),
            *(self.among_networks() if self.found.among else self.others()),
            *self.elsewhere(),
            *self.settle(),
        ]

    def name(self, method: str) -> str:
        """Write a method in a sentence."""
        return ("the " if method == "linear" else "") + self.names.get(method, method)

    def of(
        self, result: Result, measure: str | None = None, within: Collection[str] | None = None
    ) -> list[str]:
        """Methods with this result in a column (the deciding one), other than the best one."""
        metric = self.found.metric(measure or self.found.deciding)
        return [
            c.method
            for c in _ranked(self.changes, metric)
            if c.result == result and c.method != self.found.best and (within is None or c.method in within)
        ]

    @property
    def changes(self) -> list[Change]:
        return [c for c in self.found.differences if isinstance(c, Change)]

    @property
    def deciding(self) -> Metric:
        return self.found.metric(self.found.deciding)

    @property
    def main(self) -> Change | None:
        """The change that the headline is about: against the best network, or against ordinary training."""
        among = [c for c in self.found.among if c.measure == self.found.deciding]
        return among[0] if among else self.found.change(str(self.found.best), self.found.deciding)

    def rival(self, change: Change) -> str:
        """What the best method is compared with."""
        if not self.found.among:
            return self.name(change.against)
        return "the best network" + ("" if len(self.networks) == 1 else f" ({self.name(change.against)})")

    def headline(self) -> list[str]:
        """Name one method, and say by how much it is better."""
        change, metric = self.main, self.deciding
        best = self.name(str(self.found.best))
        if change is None:
            return [f"Use {best}: no method has a better {metric.label} {self.place}."]
        if change.result != "better":
            return [
                f"Use {best}: the best {metric.label} {self.place}, but not distinguishable from "
                f"{self.rival(change)}.",
                f"The change is {show_change(change, metric)}.",
            ]
        return [
            f"Use {best}: {_gain(change, metric)} than {self.rival(change)} {self.place}.",
            f"The interval is {_gain_interval(change, metric)}.",
        ]

    def columns(self) -> list[str]:
        """How the best method does in the other columns, against ordinary training."""
        best = str(self.found.best)
        mine = [c for c in self.changes if c.method == best and c.measure != self.found.deciding]
        main = self.found.change(best, self.found.deciding)
        if main is None:
            return []
        by_result = {r: [self._column(c) for c in mine if c.result == r] for r in RESULTS}
        said = []
        if self.found.among and main.against != self.found.among[0].against:
            said.append(f"Against {self.name(self.reference)}: {self.found.cell(best, main.measure)}.")
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
        """How networks compare with ordinary training, where trees or a linear model win."""
        if len(self.networks) < 2:
            return []
        better, worse, open_ = (self.of(r, within=self.networks) for r in ("better", "worse", "open"))
        reference = self.name(self.reference)
        if better:
            text = f"Among networks {_are(self._named(better))} better than {reference}"
        elif open_ and not worse:
            text = f"Among networks none is distinguishable from {reference}"
        else:
            text = f"Among networks none is better than {reference}"
        return [f"{text}; {_are(self._named(worse))} worse." if worse else f"{text}."]

    def others(self) -> list[str]:
        """How the remaining methods compare with ordinary training."""
        reference, said = self.name(self.reference), []
        if better := self.of("better"):
            said.append(f"Also better than {reference}: {_list(self._named(better))}.")
        if self.found.best == self.reference and (open_ := self.of("open")):
            said.append(f"Not distinguishable from it: {_list(self._named(open_))}.")
        if worse := self.of("worse"):
            said.append(f"Worse than {reference}: {_list(self._named(worse))}.")
        return said

    def elsewhere(self) -> list[str]:
        """Methods other than the best one that are better in another column: trades, or gains there only."""
        said, first = [], self.of("better")
        reference = self.name(self.reference)
        for method in dict.fromkeys(c.method for c in self.changes if c.method != self.found.best):
            mine = {r: [c for c in self.changes if c.method == method and c.result == r] for r in RESULTS}
            better, worse = ([self._column(c) for c in mine[r]] for r in ("better", "worse"))
            if better and worse:
                said.append(
                    f"{_upper(self.name(method))} is a trade against {reference}: better {_list(better)}, "
                    f"worse {_list(worse)}."
                )
            elif better and method not in first:
                said.append(f"{_upper(self.name(method))} is better than {reference} {_list(better)}.")
        return said

    def settle(self) -> list[str]:
        """What would settle the open comparison that matters most."""
        change = self._open()
        if change is None:
            return []
        need = next(n for n in self.found.needed if (n.method, n.against) == (change.method, change.against))
        pair = f"{self.name(need.method)} and {self.name(need.against)} differ"
        return [f"{_upper(need.words)} whether {pair} in {self.deciding.label}."]

    def _open(self) -> Change | None:
        """The open comparison that the headline is about, or that of the best challenger."""
        main = self.main
        if main is not None and main.result == "open":
            return main
        if main is not None and not self.found.among:
            return None
        within = self.networks if self.found.among else list(self.found.scores)
        mine = [c for c in _ranked(self.changes, self.deciding) if c.method in within]
        is_settled = any(c.result == "better" for c in mine)
        return None if is_settled else next((c for c in mine if c.result == "open"), None)

    def basis(self, shift_words: str) -> list[str]:
        """What all of it rests on."""
        said = [f"How rows were held out: {shift_words}"] if shift_words else []
        if not self.found.differences:
            return said
        return [
            *said,
            "Intervals compare methods row by row, include training noise, and hold for all methods of a "
            "column together with 95 %.",
        ]

    def _column(self, change: Change) -> str:
        return f"in {self.found.metric(change.measure).label}"

    def _named(self, methods: Sequence[str]) -> list[str]:
        return [self.name(method) for method in methods]


def _gain(change: Change, metric: Metric) -> str:
    """Write a gain without a sign: 12 % lower RMSE."""
    digits = _digits(change.low, change.high, change.result, metric)
    unit, side = "%" if metric.relative else "points", "higher" if change.mean > 0 else "lower"
    return f"{100 * abs(change.mean):.{digits}f} {unit} {side} {metric.label}"


def _gain_interval(change: Change, metric: Metric) -> str:
    digits = _digits(change.low, change.high, change.result, metric)
    low, high = sorted(100 * abs(end) for end in (change.low, change.high))
    return f"{low:.{digits}f} to {high:.{digits}f} {'%' if metric.relative else 'points'}"
