"""Score predictions: an average, the worst class, group or fifth of the targets, and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from elliptica.compare.problem import TableProblem
from elliptica.report.content import Measure

#: The calibration error has at most so many bins, and bins of at least so many rows.
MAX_BINS, MIN_BIN_ROWS = 15, 20
#: A predicted probability of zero counts as this one.
MIN_PROBABILITY = 1e-15


def show_number(value: float, digits: int, form: str = "") -> str:
    """A number with so many digits, or more: 61234 is not written as 6.123e+04.

    Example:
        >>> show_number(61234.5, 4), show_number(0.123456, 2), show_number(61.0, 4, "#")
        ('61,234', '0.12', '61.00')
    """
    if 10**digits <= abs(value) < 1e9:
        return f"{value:{form.replace('#', '')},.0f}"
    return f"{value:{form}.{digits}g}".rstrip(".")


@dataclass(frozen=True)
class Metric(Measure):
    """A measure as records of comparisons hold it: percentages as shares, numbers with four digits.

    Attributes:
        relative: Whether methods are compared by the ratio of their values rather than by the difference.
        judged: Whether the verdict judges it; the calibration error is shown, and judged by the log loss.
    """

    relative: bool = False
    judged: bool = True

    def show(self, value: float, *, sign: bool = False, unit: bool = True) -> str:
        """Write a value of this metric, or a difference of two (``sign=True``), as text."""
        form = "+" if sign else ""
        if not self.percent:
            is_loss = self.name in ("log_loss", "brier")
            return f"{value:{form}.3f}" if is_loss else show_number(value, 4, form)
        return f"{100 * value:{form}.1f}" + ((" points" if sign else " %") if unit else "")


def metrics_of(task: str, grouped: bool) -> tuple[Metric, ...]:
    """Metrics of a task: first the average one, then the worst-case one, then others.

    Without groups the worst class is looked at, or, for regression, the worst of five bands of the target
    (bounds are the quintiles of the targets).

    Example:
        >>> [m.name for m in metrics_of("regression", grouped=False)]
        ['rmse', 'worst_fifth_rmse', 'mae']
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
    """What every method predicted for the rows that were held out.

    Attributes:
        task: ``"classification"`` or ``"regression"``.
        classes: In the order of the probabilities; empty for regression.
        target: Of every row of the table.
        groups: Name per row, empty for rows that no worst group counts; None: classes or fifths are the
            parts.
        clusters: Number per row; rows of one cluster are not independent of each other.
        fold: Which fold tested the row, by repeat and row; -1 for rows that are not tested.
        bounds: Upper bounds of the bands of the target, without the last one; empty for classification.
        values: By method: probabilities ``(repeats, rows, classes)`` or numbers ``(repeats, rows)``, NaN
            where the row is not tested.
        ordered: Whether clusters are stretches of time, numbered in their order, so that neighbours depend
            on each other, too.

    Example:
        >>> y = np.array([0.0, 0.0, 10.0, 10.0])
        >>> found = single_test("regression", y, {"erm": y + [0, 0, 3, 3]}, bounds=np.array([5.0]))
        >>> {name: round(value, 3) for name, value in score(found)["erm"].items()}
        {'rmse': 2.121, 'worst_fifth_rmse': 3.0, 'mae': 1.5}
    """

    task: str
    classes: list[Any]
    target: np.ndarray
    groups: np.ndarray | None
    clusters: np.ndarray
    fold: np.ndarray
    bounds: np.ndarray
    values: Mapping[str, np.ndarray]
    ordered: bool = False

    def __post_init__(self) -> None:
        n = len(self.target)
        shape = (len(self.fold), n, *([len(self.classes)] if self.task == "classification" else []))
        if self.fold.shape != shape[:2] or len(self.clusters) != n:
            raise ValueError(
                f"fold must have the shape (repeats, {n}) and clusters ({n},), but they have "
                f"{self.fold.shape} and {np.shape(self.clusters)}."
            )
        if not self.tested.any():
            raise ValueError("No row was tested. Wait until at least one fold is finished.")
        for name, each in self.values.items():
            if each.shape != shape:
                raise ValueError(f"Predictions of {name!r} must have the shape {shape}, not {each.shape}.")
            if not np.isfinite(each[self.tested]).all():
                raise ValueError(
                    f"Predictions of {name!r} are missing or not finite for tested rows. Leave the method "
                    "out, or set the fold of these rows to -1."
                )

    @cached_property
    def tested(self) -> np.ndarray:
        """Whether the row was tested, by repeat and row."""
        return self.fold >= 0

    @cached_property
    def n_tests(self) -> int:
        """Folds that were tested, in all repeats together."""
        return sum(len(np.unique(row[row >= 0])) for row in self.fold)

    @cached_property
    def parts(self) -> tuple[list[str], np.ndarray]:
        """Names of the classes, groups or bands, and the number of each row's part (-1: none)."""
        if self.groups is not None:
            named = self.groups != ""
            names, numbers = np.unique(self.groups[named], return_inverse=True)
            found = np.full(len(self.target), -1)
            found[named] = numbers
            return [str(name) for name in names], found
        if self.task == "classification":
            return [str(name) for name in self.classes], self.labels
        return _bands(self.bounds), np.searchsorted(self.bounds, self.target)

    @cached_property
    def labels(self) -> np.ndarray:
        """Number of each row's class."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        names, inverse = np.unique(self.target, return_inverse=True)
        if unknown := [name for name in names.tolist() if name not in numbers]:
            raise ValueError(f"The target {unknown[0]!r} is not one of the classes {self.classes}.")
        return np.array([numbers[name] for name in names.tolist()])[inverse]

    @property
    def part_kind(self) -> str:
        """What parts are: ``"group"``, ``"class"`` or ``"fifth"``."""
        return "group" if self.groups is not None else "class" if self.classes else "fifth"

    @cached_property
    def losses(self) -> dict[str, np.ndarray]:
        """Losses by repeat, method and row, zero where a row is not tested: what averages are taken of."""
        found = [self._losses(each) for each in self.values.values()]
        return {name: np.stack([each[name] for each in found], axis=1) for name in found[0]}

    def _losses(self, values: np.ndarray) -> dict[str, np.ndarray]:
        if self.task != "classification":
            gaps = np.where(self.tested, values - self.target, 0.0)
            return {"square": gaps**2, "absolute": np.abs(gaps)}
        values = np.where(self.tested[..., None], values, 0.0)
        chosen = np.take_along_axis(values, self.labels[None, :, None], axis=2)[..., 0]
        found = {
            "right": values.argmax(2) == self.labels,
            "log": -np.log(np.clip(chosen, MIN_PROBABILITY, 1.0)),
            "brier": np.square(values).sum(2) - 2 * chosen + 1,
        }
        return {name: np.where(self.tested, each, 0.0) for name, each in found.items()}


def single_test(
    task: str,
    target: np.ndarray,
    values: Mapping[str, np.ndarray],
    *,
    classes: list[Any] | None = None,
    groups: np.ndarray | None = None,
    bounds: np.ndarray | None = None,
) -> Predictions:
    """Wrap predictions of one test set, every row once, rows independent of each other."""
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
    """Scores of the classes, groups or fifths that have tested rows.

    Attributes:
        kind: ``"group"``, ``"class"`` or ``"fifth"``.
        rows: Tested rows of each part, by name.
        values: By method and part: accuracy or RMSE.
    """

    kind: str
    rows: dict[str, int]
    values: dict[str, dict[str, float]]


def score(
    predictions: Predictions, *, unbounded: Mapping[str, np.ndarray] | None = None
) -> dict[str, dict[str, float]]:
    """Compute one number per method and column, over all tested rows of all repeats.

    The calibration error is the mean gap between confidence and accuracy in bins of equally many rows: 15
    bins, fewer where a bin would have less than 20 rows; rows of one confidence share a bin. It is computed
    for each repeat, then averaged.

    Args:
        predictions: Of all methods.
        unbounded: Regression: what the methods predicted before predictions were confined to the range of
            the training targets. ``"beyond_range"`` is then the share of predictions that this changed.
    """
    found = {}
    parts = score_parts(predictions)
    n_tests = predictions.tested.sum()
    for number, method in enumerate(predictions.values):
        means = {name: float(each[:, number].sum() / n_tests) for name, each in predictions.losses.items()}
        values = parts.values[method].values()
        if predictions.task == "classification":
            found[method] = {
                "accuracy": means["right"],
                f"worst_{parts.kind}_accuracy": min(values),
                "balanced_accuracy": _balanced(predictions, number),
                "log_loss": means["log"],
                "brier": means["brier"],
                "calibration_error": _calibration_error(predictions, method),
            }
        else:
            found[method] = {
                "rmse": means["square"] ** 0.5,
                f"worst_{parts.kind}_rmse": max(values),
                "mae": means["absolute"],
            }
            if method in (unbounded or {}):
                changed = predictions.values[method] != (unbounded or {})[method]
                found[method]["beyond_range"] = float(changed[predictions.tested].mean())
    return found


def score_parts(predictions: Predictions) -> PartScores:
    """Compute accuracy or RMSE of each class, group or fifth of the targets.

    Raises:
        ValueError: If no tested row belongs to a part.
    """
    names, numbers = predictions.parts
    rows, _ = _part_means(predictions, predictions.tested, numbers, len(names))
    present = [number for number in range(len(names)) if rows[number]]
    if not present:
        raise ValueError("All tested rows are of groups that are too small to be judged. Join small groups.")
    values = {}
    loss = predictions.losses["right" if predictions.task == "classification" else "square"]
    for place, method in enumerate(predictions.values):
        means = _part_means(predictions, loss[:, place], numbers, len(names))[1]
        if predictions.task != "classification":
            means = means**0.5
        values[method] = {names[number]: float(means[number]) for number in present}
    tested = predictions.tested.any(0)
    counts = np.bincount(numbers[tested & (numbers >= 0)], minlength=len(names))
    return PartScores(predictions.part_kind, {names[k]: int(counts[k]) for k in present}, values)


def classification_scores(
    target: np.ndarray, probabilities: np.ndarray, classes: list[Any], groups: np.ndarray | None
) -> dict[str, Any]:
    """Metrics of predicted probabilities; ``parts`` has the accuracy of every class or group.

    Example:
        >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
        >>> found = classification_scores(np.array([0, 1, 1]), p, [0, 1], None)
        >>> found["balanced_accuracy"], found["worst_class_accuracy"]
        (0.75, 0.5)
    """
    test = single_test("classification", target, {"": probabilities}, classes=classes, groups=groups)
    return {**score(test)[""], "parts": score_parts(test).values[""]}


def regression_scores(
    target: np.ndarray, predicted: np.ndarray, bounds: np.ndarray, groups: np.ndarray | None
) -> dict[str, Any]:
    """Metrics of predicted numbers; ``parts`` has the RMSE of every group or band of the targets.

    Args:
        target: True values.
        predicted: Predicted values.
        bounds: Upper bounds of the bands of the target, the last one left out.
        groups: Of the rows; None: the bands are the parts.

    Example:
        >>> y = np.array([0.0, 0.0, 10.0, 10.0])
        >>> found = regression_scores(y, y + [0, 0, 3, 3], np.array([5.0]), None)
        >>> found["worst_fifth_rmse"], found["parts"]
        (3.0, {'band 1: up to 5': 0.0, 'band 2: above 5': 3.0})
    """
    test = single_test("regression", target, {"": predicted}, groups=groups, bounds=bounds)
    return {**score(test)[""], "parts": score_parts(test).values[""]}


def target_bounds(problem: TableProblem, train: np.ndarray) -> np.ndarray:
    """Quintiles of the training targets; fewer where they coincide."""
    return np.unique(np.quantile(problem.target[train], (0.2, 0.4, 0.6, 0.8)))


def _bands(bounds: np.ndarray) -> list[str]:
    """Name the bands between bounds by their ends."""
    if not len(bounds):
        return ["band 1: all"]
    ends = [show_number(float(each), 4) for each in bounds]
    inner = [f"{low} to {high}" for low, high in pairwise(ends)]
    names = [f"up to {ends[0]}", *inner, f"above {ends[-1]}"]
    return [f"band {1 + number}: {name}" for number, name in enumerate(names)]


def _part_means(
    predictions: Predictions, values: np.ndarray, numbers: np.ndarray, n_parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Count tests in every part, and take means of values over them."""
    use = predictions.tested & (numbers >= 0)
    part = np.broadcast_to(numbers, use.shape)[use]
    counts = np.bincount(part, minlength=n_parts)
    sums = np.bincount(part, weights=values[use], minlength=n_parts)
    return counts, sums / np.maximum(counts, 1)


def _balanced(predictions: Predictions, place: int) -> float:
    right = predictions.losses["right"][:, place]
    counts, means = _part_means(predictions, right, predictions.labels, len(predictions.classes))
    return float(means[counts > 0].mean())


def _calibration_error(predictions: Predictions, method: str) -> float:
    found = []
    for values, tested in zip(predictions.values[method], predictions.tested, strict=True):
        if tested.any():
            confidence = values[tested].max(1)
            right = values[tested].argmax(1) == predictions.labels[tested]
            found.append(_gap(confidence, right))
    return float(np.mean(found))


def _gap(confidence: np.ndarray, right: np.ndarray) -> float:
    """Mean gap between confidence and accuracy over bins of equally many rows."""
    n_bins = int(np.clip(len(right) // MIN_BIN_ROWS, 1, MAX_BINS))
    inner = np.quantile(confidence, np.arange(1, n_bins) / n_bins)
    number = np.searchsorted(np.unique(inner), confidence)
    gaps = np.bincount(number, weights=confidence - right)
    return float(np.abs(gaps).sum() / len(right))
