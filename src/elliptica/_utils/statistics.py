"""Results of reports, and classical statistics for them; scipy is imported where it is needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils.extras import import_extra


def _invert(increasing: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Return where an increasing function takes a value, by bisection to the last bit."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if increasing(middle) < value else (low, middle)
    return (low + high) / 2


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return two-sided limits of a binomial probability, with at least this confidence."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie in 0..{trials}, but got {successes}.")
    check_level("confidence", confidence)
    tail = (1 - confidence) / 2
    hit, miss = float(successes), float(trials - successes)
    quantile = _special().betaincinv
    low = 0.0 if successes == 0 else float(quantile(hit, miss + 1, tail))
    high = 1.0 if successes == trials else float(quantile(hit + 1, miss, 1 - tail))
    return low, high


def student_tail(t: float, degrees: float | int) -> float:
    """Return the probability that a Student variable is below ``t``."""
    return float(_special().stdtr(degrees, t))


def student_quantile(probability: float, degrees: float | int) -> float:
    """Invert `student_tail`."""
    return float(_special().stdtrit(degrees, probability))


def _special() -> Any:
    return import_extra("A confidence interval", "lab", "scipy.special")


@dataclass(frozen=True)
class Interval:
    """A mean over repeats and an interval for it."""

    mean: float
    low: float
    high: float
    n_repeats: int

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2


def corrected_interval(differences: Sequence[float], test_share: float, confidence: float = 0.95) -> Interval:
    """Return an interval for a mean difference over repeated splits (Nadeau and Bengio, 2003).

    Repeats share training rows, so their spread understates the uncertainty. The corrected resampled
    t-test replaces the variance ``s^2 / J`` of the mean of J repeats by ``s^2 (1 / J + n_test / n_train)``,
    with J - 1 degrees of freedom. A single repeat gives no limits.

    ``test_share`` is ``n_test / n_train``, where training rows are all that the learner saw (validation rows
    among them).
    """
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        return Interval(mean, -np.inf, np.inf, n)
    variance = float(np.var(differences, ddof=1)) * (1 / n + test_share)
    half = student_quantile((1 + confidence) / 2, n - 1) * variance**0.5
    return Interval(mean, mean - half, mean + half, n)


def bonferroni(confidence: float, n: int) -> float:
    """Return the level of each of ``n`` intervals so that all hold at once with this confidence."""
    return 1 - (1 - confidence) / max(n, 1)


def holm(p: Float[Tensor, "*tests"]) -> Float[Tensor, "*tests"]:
    """Return Holm's adjusted p-values: those below ``alpha`` are significant for the whole family."""
    flat = p.flatten()
    order = flat.argsort()
    count = torch.arange(len(flat), 0, -1, dtype=flat.dtype, device=flat.device)
    adjusted = (flat[order] * count).cummax(0).values.clamp_max(1.0)
    out = torch.empty_like(flat)
    out[order] = adjusted
    return out.reshape(p.shape)


def fit_temperature(logits: np.ndarray, codes: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Fit the temperature ``T`` that minimises the negative log-likelihood of ``softmax(logits / T)``.

    The result equals that of scikit-learn's ``CalibratedClassifierCV(method="temperature")``, but for given
    logits. If every row is classified correctly, the likelihood increases without limit as ``T`` approaches
    0. Such rows determine no temperature, and the result is 1.

    ``logits`` are those of rows that were not trained on, ``codes`` their classes. The result lies between
    ``exp(-10)`` and ``exp(10)``.
    """
    margin = logits - np.take_along_axis(logits, codes[:, None], 1)  # the loss is log(sum(exp(margin / T)))
    if int((margin < 0).sum()) == margin.size - len(codes):
        return 1.0

    def slope(log_beta: float) -> float:
        """Return the derivative of the loss by the inverse temperature; it is increasing."""
        share = torch.from_numpy(margin * np.exp(log_beta)).softmax(1).numpy()
        return float(np.average((share * margin).sum(axis=1), weights=weight))

    return float(np.exp(-_invert(slope, 0.0, -10.0, 10.0)))


def is_beyond_chance(counts: np.ndarray, columns: Iterable[np.ndarray]) -> bool:
    """Return whether equal rows are copies, and not rows that agree by chance.

    If columns were independent, the share of equal pairs of rows would be the product of the shares of all
    columns; a hundred times more means copies. ``counts`` says how often each distinct row occurs,
    ``columns`` how often each distinct value of each column.
    """
    share, expected = _share_of_pairs(counts), 100.0
    for column in columns:
        expected *= _share_of_pairs(column)
        if share >= expected:  # further columns would only lower it
            return share > 0
    return False


def _share_of_pairs(counts: np.ndarray) -> float:
    """Return the share of pairs of rows that are equal, given the numbers of equal rows."""
    counts = counts.astype(float)
    return float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))


def check_level(name: str, value: float) -> None:
    """Raise unless a probability lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, but got {value}. Write 0.95 for 95 %.")


@dataclasses.dataclass(frozen=True)
class Result:
    """Base class of the dataclasses that reports return."""

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain numbers, lists and strings; values that are not finite become None."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def __str__(self) -> str:
        """List single values (properties, too), tables of what there is one of per row, and the notes."""
        names = [field.name for field in dataclasses.fields(self)]
        names += [name for name, value in vars(type(self)).items() if isinstance(value, property)]
        values = {name: getattr(self, name) for name in names}
        notes = values.pop("notes", ())
        columns = {name: v.tolist() for name, v in values.items() if isinstance(v, Tensor) and v.ndim == 1}
        tables = {name: rows for name, v in values.items() if (rows := _rows(v))}
        rest = [name for name, v in values.items() if not isinstance(v, Tensor) and name not in tables]
        lines = [f"{type(self).__name__}", *(f"  {name}: {_cell(values[name])}" for name in rest)]
        for name, rows in tables.items():
            lines += [f"  {name}:", *table([*vars(rows[0])], [[*vars(row).values()] for row in rows], 20)]
        lines += table([*columns], list(zip(*columns.values(), strict=True))) if columns else []
        return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def plain(value: Any) -> Any:
    """Convert a value to one that `json.dumps` accepts."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(head: Sequence[str], rows: Sequence[Sequence[object]], limit: int = 10) -> list[str]:
    """Format the first ``limit`` rows of a table with right-aligned columns."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows[:limit])]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells
    ]
    if len(rows) > limit:
        lines.append(f"  ... and {len(rows) - limit} more")
    return lines


def _rows(value: object) -> tuple[Any, ...]:
    """Return a dataclass, or some of one class, as rows of a table; nothing for other values."""
    rows = value if isinstance(value, tuple) else (value,)
    return tuple(row for row in rows if dataclasses.is_dataclass(row))


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_cell, value[:10])) + (", ..." if len(value) > 10 else "") if value else "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
