"""What the chosen model does: intervals around its numbers, its probabilities, the columns it depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from elliptica.report.page import Bar
from elliptica.tables.metrics import score, single_test

if TYPE_CHECKING:  # predictions of a saved model need not wait for what trains it
    from elliptica.tables.comparison import Comparison
    from elliptica.tables.problem import TableProblem

#: Share of new rows that intervals should cover.
LEVEL = 0.9
#: Numbers of rows whose columns are shuffled, cells (rows times columns) to aim at, shuffles of each column,
#: and rows that are predicted at once.
_LEAST_ROWS, _MOST_ROWS, _MOST_CELLS, _SHUFFLES, _MOST_STACKED = 100, 500, 20_000, 5, 20_000


def conformal_quantile(residuals: np.ndarray, level: float = LEVEL) -> float:
    """Return the residual that a new one, exchangeable with these, stays below with this probability.

    It is the ``ceil((n + 1) level)``-th smallest: the new residual is equally likely to take each of the
    ``n + 1`` places. Infinite if there are too few.
    """
    place = math.ceil((len(residuals) + 1) * level - 1e-9)
    return float(np.sort(residuals)[place - 1]) if place <= len(residuals) else math.inf


def coverages(
    residuals: np.ndarray, parts: np.ndarray, *, in_order: bool = False, level: float = LEVEL
) -> list[tuple[int, float]]:
    """Return rows and coverage of each part by the quantile of the others (of earlier ones if in order)."""
    measured = []
    for part in np.unique(parts):
        others = residuals[parts < part if in_order else parts != part]
        if math.isfinite(width := conformal_quantile(others, level)):
            inside = residuals[parts == part] <= width
            measured.append((len(inside), float(inside.mean())))
    return measured


@dataclass(frozen=True)
class Intervals:
    """Split-conformal intervals around predicted numbers, from the residuals of the tested rows."""

    width: float  # half of it; of the logarithm if ``is_log``
    is_log: bool  # the target is positive and skewed: errors grow with it
    coverage: float | None  # measured share of tested rows inside; None: not measured
    worst: float  # the same in the worst fold

    def around(self, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper ends; NaN where a logarithm has none."""
        if not self.is_log:
            return predicted - self.width, predicted + self.width
        center = np.where(predicted > 0, predicted, np.nan)
        return center * math.exp(-self.width), center * math.exp(self.width)


def intervals(comparison: Comparison, method: str | None = None) -> Intervals | None:
    """Return the intervals of the recommended method; None for classes, or with too few tested rows.

    Residuals are those of the folds, so that intervals are as wide as errors under the shift. A fold is
    covered by the residuals of the others (with ``time``, of earlier ones); one fold alone is not measured.
    """
    predictions, shift = comparison.predictions, comparison.shift
    if predictions.classes:
        return None
    values = predictions.values[method or comparison.best]
    target, tested = predictions.target, predictions.tested
    is_log = comparison.plan.log_target and bool((values[tested] > 0).all())
    widths, measured = [], []
    for row, fold, here in zip(values, predictions.fold, tested, strict=True):
        pair = (np.log(row[here]), np.log(target[here])) if is_log else (row[here], target[here])
        residuals = np.abs(pair[0] - pair[1])
        widths.append(conformal_quantile(residuals))
        measured += coverages(residuals, fold[here], in_order=shift.shift == "time")
    if not math.isfinite(width := float(np.mean(widths))):
        return None
    n = sum(rows for rows, _ in measured)
    share = sum(rows * inside for rows, inside in measured) / n if n else None
    return Intervals(width, is_log, share, min((inside for _, inside in measured), default=0.0))


def importances(model: Any, problem: TableProblem, rows: np.ndarray, seed: int = 0) -> list[Bar]:
    """Return the increase of RMSE or Brier score by shuffling each column, with its spread, largest first."""
    draws, is_class = np.random.default_rng(seed), problem.task == "classification"
    columns = problem.features.columns
    n = min(len(rows), _MOST_ROWS, max(_LEAST_ROWS, _MOST_CELLS // len(columns)))
    rows = np.sort(draws.choice(rows, n, replace=False))
    inputs, target = problem.features[rows], problem.target[rows]

    def errors(frames: list[pl.DataFrame]) -> np.ndarray:
        predict = model.predict_proba if is_class else model.predict
        values = np.split(np.asarray(predict(pl.concat(frames))), len(frames))
        classes = list(model.classes_) if is_class else None
        named = {str(number): value for number, value in enumerate(values)}
        scores = score(single_test(problem.task, target, named, classes=classes))
        return np.array([each["brier" if is_class else "rmse"] for each in scores.values()])

    (before,), bars, size = errors([inputs]), list[Bar](), max(1, _MOST_STACKED // (n * _SHUFFLES))
    for begin in range(0, len(columns), size):  # many at once: preprocessing a wide table takes its time
        names = columns[begin : begin + size]
        shuffled = [inputs.with_columns(inputs[c].shuffle(seed=k)) for c in names for k in range(_SHUFFLES)]
        for name, gaps in zip(names, np.split(errors(shuffled) - before, len(names)), strict=True):
            mean, spread = float(gaps.mean()), float(gaps.std(ddof=1))
            bars.append(Bar(name, mean, mean - spread, mean + spread, f"{mean:+.3g} ± {spread:.2g}"))
    return sorted(bars, key=lambda bar: -bar.value)
