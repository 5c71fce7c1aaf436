"""What methods are judged by: an average, the worst class, group or fifth of the targets, the log loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from elliptica.compare.problem import TableProblem
from elliptica.report.content import Measure


def show_number(value: float, digits: int, form: str = "") -> str:
    """A number with so many digits, or more: 61234 is not written as 6.123e+04.

    Example:
        >>> show_number(61234.5, 4), show_number(0.123456, 2), show_number(61.0, 4, "#")
        ('61,234', '0.12', '61.00')
    """
    if 10**digits <= abs(value) < 1e9:
        return f"{value:{form.replace('#', '')},.0f}"
    return f"{value:{form}.{digits}g}".rstrip(".")


class Metric(Measure):
    """A measure as records of comparisons hold it: percentages as shares, numbers with four digits."""

    def show(self, value: float, *, sign: bool = False, unit: bool = True) -> str:
        """Write a value of this metric, or a difference of two (``sign=True``), as text."""
        form = "+" if sign else ""
        if not self.percent:
            return show_number(value, 4, form)
        return f"{100 * value:{form}.1f}" + ((" points" if sign else " %") if unit else "")


def metrics_of(task: str, grouped: bool) -> tuple[Metric, ...]:
    """Metrics of a task: first the average one, then the worst-case one, then others.

    Without groups the worst class is looked at, or, for regression, the worst of five bands of the target
    (bounds are the quintiles of the training targets).

    Example:
        >>> [m.name for m in metrics_of("regression", grouped=False)]
        ['rmse', 'worst_fifth_rmse']
    """
    part = "group" if grouped else "class" if task == "classification" else "fifth"
    if task == "classification":
        return (
            Metric("accuracy", "accuracy", True, True),
            Metric(f"worst_{part}_accuracy", f"worst-{part} accuracy", True, True),
            Metric("balanced_accuracy", "balanced accuracy", True, True),
            Metric("log_loss", "log loss", False, False),
        )
    words = "worst-group RMSE" if grouped else "RMSE in the worst fifth of targets"
    return (Metric("rmse", "RMSE", False, False), Metric(f"worst_{part}_rmse", words, False, False))


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
    names = np.asarray(classes)
    right = names[probabilities.argmax(1)] == target
    by_class = _means(right, target)
    column = np.searchsorted(names, target)
    chosen = np.clip(probabilities[np.arange(len(target)), column], 1e-15, 1.0)
    parts = by_class if groups is None else _judged(right, groups)
    kind = "class" if groups is None else "group"
    return {
        "accuracy": float(right.mean()),
        f"worst_{kind}_accuracy": min(parts.values()),
        "balanced_accuracy": float(np.mean(list(by_class.values()))),
        "log_loss": float(-np.log(chosen).mean()),
        "parts": parts,
    }


def regression_scores(
    target: np.ndarray, predicted: np.ndarray, bounds: np.ndarray, groups: np.ndarray | None
) -> dict[str, Any]:
    """Metrics of predicted numbers; ``parts`` has the RMSE of every group or fifth of the targets.

    Args:
        target: True values.
        predicted: Predicted values.
        bounds: Upper bounds of the bands of the target, the last one left out.
        groups: Of the rows; None: the bands are the parts.

    Example:
        >>> y = np.array([0.0, 0.0, 10.0, 10.0])
        >>> found = regression_scores(y, y + [0, 0, 3, 3], np.array([5.0]), None)
        >>> found["worst_fifth_rmse"], found["parts"]
        (3.0, {'band 1': 0.0, 'band 2': 3.0})
    """
    squares = (predicted - target) ** 2
    if groups is None:
        bands = np.asarray([f"band {1 + i}" for i in np.searchsorted(bounds, target)])
        kind, means = "fifth", _means(squares, bands)
    else:
        kind, means = "group", _judged(squares, groups)
    parts = {name: value**0.5 for name, value in means.items()}
    return {
        "rmse": float(squares.mean() ** 0.5),
        f"worst_{kind}_rmse": max(parts.values()),
        "parts": parts,
    }


def target_bounds(problem: TableProblem, train: np.ndarray) -> np.ndarray:
    """Quintiles of the training targets; fewer where they coincide."""
    return np.unique(np.quantile(problem.target[train], (0.2, 0.4, 0.6, 0.8)))


def _means(values: np.ndarray, parts: np.ndarray) -> dict[str, float]:
    """Mean of each part that has rows."""
    return {str(name): float(values[parts == name].mean()) for name in np.unique(parts).tolist()}


def _judged(values: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Mean of each group; groups without a name are too small to be judged."""
    named = groups != ""
    return _means(values[named], groups[named])
