"""Score predictions: an average, the worst class, group or fifth of the targets, and calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from elliptica.estimators.wrapped import MIN_PROBABILITY
from elliptica.report.judge import Measure

#: Maximum number of bins of the calibration error, and minimum number of rows per bin.
MAX_BINS, MIN_BIN_ROWS = 15, 20


def show_number(value: float) -> str:
    """Format a number with at least four digits; 61234 is not written as 6.123e+04."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


@dataclass(frozen=True)
class Metric(Measure):
    """A measure in the units of comparison records: percentages as shares, numbers with four digits."""

    scale: ClassVar[float] = 100.0

    #: Whether the verdict judges it. The calibration error is only shown; the log loss judges it.
    judged: bool = True

    def show(self, value: float) -> str:
        """Format a value of this metric."""
        if self.percent:
            return f"{100 * value:.1f} %"
        return f"{value:.3f}" if self.name in ("log_loss", "brier") else show_number(value)


def metrics_of(task: str, grouped: bool) -> tuple[Metric, ...]:
    """Return the metrics of a task: the average one, the worst-case one, then others.

    Without groups, the worst class is judged, or, for regression, the worst of five bands of the target
    (bounded by the quintiles of the targets).
    """
    part = "group" if grouped else "class" if task == "classification" else "fifth"
    if task == "classification":
        return (
            Metric("accuracy", "accuracy", True, True),
            Metric(f"worst_{part}_accuracy", f"worst-{part} accuracy", True, True),
            Metric("balanced_accuracy", "balanced accuracy", True, True),
            Metric("log_loss", "log loss", False, relative=True),
            Metric("brier", "Brier score", False, relative=True),
            Metric("calibration_error", "calibration error", False, True, judged=False),
        )
    words = "worst-group RMSE" if grouped else "RMSE in the worst fifth of targets"
    return (
        Metric("rmse", "RMSE", False, relative=True),
        Metric(f"worst_{part}_rmse", words, False, relative=True),
        Metric("mae", "MAE", False, relative=True),
    )


@dataclass(frozen=True)
class Predictions:
    """Predictions of all methods for the rows that were held out."""

    task: str
    classes: list[Any]  # in the order of the probabilities; empty for regression
    target: np.ndarray  # of every row of the table
    #: Group name per row, empty for rows that no worst group counts; None: classes or fifths are the parts.
    groups: np.ndarray | None
    clusters: np.ndarray  # number per row; rows of one cluster depend on each other
    fold: np.ndarray  # fold that tested the row, by repeat and row; -1 for rows that are not tested
    bounds: np.ndarray  # upper bounds of the bands of the target, except the last; empty for classes
    #: By method: probabilities (repeats, rows, classes) or numbers (repeats, rows); NaN: not tested.
    values: Mapping[str, np.ndarray]
    ordered: bool = False  # whether clusters are stretches of time, so that neighbours depend on each other

    def __post_init__(self) -> None:
        for name, values in self.values.items():
            if not np.isfinite(values[self.tested]).all():
                raise ValueError(f"Predictions of {name!r} are not finite for tested rows.")

    def only(self, methods: Sequence[str]) -> Predictions:
        """Return the predictions of these methods."""
        return replace(self, values={method: self.values[method] for method in methods})

    @cached_property
    def tested(self) -> np.ndarray:
        """Whether the row was tested, by repeat and row."""
        return self.fold >= 0

    @cached_property
    def n_tests(self) -> int:
        """Number of tested folds in all repeats."""
        return sum(len(np.unique(row[row >= 0])) for row in self.fold)

    @cached_property
    def parts(self) -> tuple[list[str], np.ndarray]:
        """Names of the classes, groups or bands, and the number of each row's part (-1: none)."""
        if self.groups is not None:
            named = self.groups != ""
            names, numbers = np.unique(self.groups[named], return_inverse=True)
            parts = np.full(len(self.target), -1)
            parts[named] = numbers
            return [str(name) for name in names], parts
        if self.task == "classification":
            return [str(name) for name in self.classes], self.labels
        return _bands(self.bounds), np.searchsorted(self.bounds, self.target)

    @cached_property
    def labels(self) -> np.ndarray:
        """Class number of each row."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        names, inverse = np.unique(self.target, return_inverse=True)
        return np.array([numbers[name] for name in names.tolist()])[inverse]

    @property
    def part_kind(self) -> str:
        """Kind of the parts: ``"group"``, ``"class"`` or ``"fifth"``."""
        return "group" if self.groups is not None else "class" if self.classes else "fifth"

    @cached_property
    def losses(self) -> dict[str, np.ndarray]:
        """Losses by repeat, method and row, zero where a row is not tested; averages are taken of them."""
        by_method = [self._losses(each) for each in self.values.values()]
        return {name: np.stack([each[name] for each in by_method], axis=1) for name in by_method[0]}

    def _losses(self, values: np.ndarray) -> dict[str, np.ndarray]:
        if self.task != "classification":
            gaps = np.where(self.tested, values - self.target, 0.0)
            return {"square": gaps**2, "absolute": np.abs(gaps)}
        values = np.where(self.tested[..., None], values, 0.0)
        chosen = np.take_along_axis(values, self.labels[None, :, None], axis=2)[..., 0]
        losses = {
            "right": values.argmax(2) == self.labels,
            "log": -np.log(np.clip(chosen, MIN_PROBABILITY, 1.0)),
            "brier": np.square(values).sum(2) - 2 * chosen + 1,
        }
        return {name: np.where(self.tested, each, 0.0) for name, each in losses.items()}


def single_test(
    task: str,
    target: np.ndarray,
    values: Mapping[str, np.ndarray],
    *,
    classes: list[Any] | None = None,
    groups: np.ndarray | None = None,
    bounds: np.ndarray | None = None,
) -> Predictions:
    """Wrap predictions of one test set with independent rows, each tested once."""
    n = len(target)
    return Predictions(
        task,
        list(classes or []),
        target,
        groups,
        np.arange(n),
        np.zeros((1, n), dtype=np.int64),
        np.empty(0) if bounds is None else bounds,
        {name: np.asarray(each)[None] for name, each in values.items()},
    )


@dataclass(frozen=True)
class PartScores:
    """Scores of the classes, groups or fifths that have tested rows."""

    rows: dict[str, int]  # tested rows of each part, by name
    values: dict[str, dict[str, float]]  # accuracy or RMSE, by method and part


def score(predictions: Predictions) -> dict[str, dict[str, float]]:
    """Compute one number per method and column, over all tested rows of all repeats.

    The calibration error is the mean gap between confidence and accuracy in at most 15 bins of equally many
    rows, at least 20, averaged over repeats.
    """
    scores: dict[str, dict[str, float]] = {}
    parts = score_parts(predictions)
    means = {name: each.sum((0, 2)) / predictions.tested.sum() for name, each in predictions.losses.items()}
    if predictions.task == "classification":
        right, labels = predictions.losses["right"], predictions.labels
        counts, by_class = part_means(predictions, right, labels, len(predictions.classes))
        balanced = by_class[:, counts > 0].mean(1)
    for number, method in enumerate(predictions.values):
        mean = {name: float(each[number]) for name, each in means.items()}
        values = parts.values[method].values()
        if predictions.task == "classification":
            scores[method] = {
                "accuracy": mean["right"],
                f"worst_{predictions.part_kind}_accuracy": min(values),
                "balanced_accuracy": float(balanced[number]),
                "log_loss": mean["log"],
                "brier": mean["brier"],
                "calibration_error": float(np.mean([_gap(*each) for each in _sure(predictions, method)])),
            }
            continue
        scores[method] = {
            "rmse": mean["square"] ** 0.5,
            f"worst_{predictions.part_kind}_rmse": max(values),
            "mae": mean["absolute"],
        }
    return scores


def score_parts(predictions: Predictions) -> PartScores:
    """Compute accuracy or RMSE of each class, group or fifth of the targets."""
    names, numbers = predictions.parts
    is_class = predictions.task == "classification"
    loss = predictions.losses["right" if is_class else "square"]
    counts, means = part_means(predictions, loss, numbers, len(names))
    present = np.flatnonzero(counts)
    if not len(present):
        raise ValueError("All tested rows are in groups that are too small to judge. Merge small groups.")
    means = means if is_class else np.sqrt(means)
    values = {
        method: {names[k]: float(means[place, k]) for k in present}
        for place, method in enumerate(predictions.values)
    }
    rows = np.bincount(numbers[predictions.tested.any(0)] + 1, minlength=len(names) + 1)[1:]
    return PartScores({names[k]: int(rows[k]) for k in present}, values)


def part_means(
    predictions: Predictions, losses: np.ndarray, numbers: np.ndarray, n_parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tests and the means per part, ``(methods, parts)``; part -1 is ignored."""
    member = np.eye(n_parts + 1)[numbers][:, :-1]  # the last column belongs to part -1
    counts = (predictions.tested.astype(float) @ member).sum(0)
    return counts, (losses @ member).sum(0) / np.maximum(counts, 1)


def fifths(target: np.ndarray) -> np.ndarray:
    """Return the quintiles of targets; fewer if some coincide."""
    return np.unique(np.quantile(target, (0.2, 0.4, 0.6, 0.8)))


def _bands(bounds: np.ndarray) -> list[str]:
    """Name bands by their bounds."""
    if not len(bounds):
        return ["band 1: all"]
    ends = [show_number(float(each)) for each in bounds]
    inner = [f"{low} to {high}" for low, high in pairwise(ends)]
    names = [f"up to {ends[0]}", *inner, f"above {ends[-1]}"]
    return [f"band {1 + number}: {name}" for number, name in enumerate(names)]


def _sure(predictions: Predictions, method: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each repeat, the confidence of tested rows and whether they are right."""
    for values, tested in zip(predictions.values[method], predictions.tested, strict=True):
        if tested.any():
            yield values[tested].max(1), values[tested].argmax(1) == predictions.labels[tested]


def reliability(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, mean confidence and share of right rows in bins of equally many rows."""
    n_bins = int(np.clip(len(right) // MIN_BIN_ROWS, 1, MAX_BINS))
    inner = np.quantile(confidence, np.arange(1, n_bins) / n_bins)
    number = np.searchsorted(np.unique(inner), confidence)  # equal confidences share a bin
    _, number, rows = np.unique(number, return_inverse=True, return_counts=True)
    return rows, np.bincount(number, confidence) / rows, np.bincount(number, right) / rows


def _gap(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the mean gap between confidence and accuracy over bins."""
    rows, sure, share = reliability(confidence, right)
    return float(rows @ np.abs(sure - share) / rows.sum())
