"""Divide rows into folds that mimic the shift you expect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, cast

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.preprocessing import StandardScaler

from elliptica._utils.random import stream_seed
from elliptica._utils.text import count
from elliptica.estimators import TablePreprocessor
from elliptica.estimators.preprocess import Kind
from elliptica.tables.problem import TableProblem
from elliptica.tables.table import TableError

Shift = Literal["random", "unseen", "time", "extrapolate", "test_file"]

#: Share of the training rows that is held out to choose settings and epochs,
VALIDATION_SHARE = 0.25
#: and its largest useful number of rows.
MAX_VALIDATION = 4_000
#: Share of the rows that `extrapolate` holds out.
FAR_SHARE = 0.2
#: Number of time blocks that are only trained on, before the first tested one.
EARLIEST_BLOCKS = 2
#: Number of time stretches that are treated as independent of each other.
TIME_CLUSTERS = 40
#: Repeats when every repeat tests the same rows in one fold; a single one would not show training noise.
FIXED_TEST_REPEATS = 3


@dataclass(frozen=True)
class Fold:
    """Row numbers of one training and its test, in ascending order."""

    repeat: int  # each repeat tests every tested row once
    number: int  # number of the fold within the repeat, from 0
    train: np.ndarray  # all training rows, validation rows included
    validation: np.ndarray  # training rows that choose settings and epochs
    test: np.ndarray

    @property
    def fit(self) -> np.ndarray:
        """Training rows without the validation rows."""
        return np.setdiff1d(self.train, self.validation, assume_unique=True)


@dataclass(frozen=True)
class ShiftPlan:
    """The folds of a comparison and the shift that they stand for."""

    shift: Shift
    folds: tuple[Fold, ...]  # repeat by repeat
    clusters: np.ndarray  # int per row: rows of one cluster depend on each other
    words: str  # a sentence that says what is trained on and what is tested
    n_repeats: int

    @property
    def folds_per_repeat(self) -> int:
        """Number of folds of each repeat."""
        return len(self.folds) // self.n_repeats


class _Parts(NamedTuple):
    """Rows of a fold; ``train`` includes ``validation``."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def make_shift(
    problem: TableProblem,
    *,
    folds: int = 5,
    repeats: int | None = None,
    extrapolate: bool = False,
    seed: int = 0,
) -> ShiftPlan:
    """Divide the rows of a problem into training, validation and test rows.

    The test rows are those of ``--test FILE`` if it is given. Otherwise they are later rows (``--time``),
    rows far from the rest (``extrapolate``), rows with unseen values (``--split-by``), or random rows.
    Validation rows are held out from the training rows in the same way, so that settings suit the shift.

    Args:
        problem: The rows.
        folds: Number of test parts per repeat; fewer if there are fewer blocks or times.
        repeats: How often everything is repeated with other draws; by default once, or three times if the
            test rows are the same in every repeat.
        extrapolate: Hold out the fifth of the rows that lies farthest from the rest.
        seed: Seed of the draws.

    Raises:
        TableError: If the rows cannot be divided like this, or if a class would be missing in training.

    Example:
        >>> import polars as pl
        >>> from elliptica.tables.problem import make_problem
        >>> from elliptica.tables.table import Table
        >>> frame = pl.DataFrame({"x": [i % 7 for i in range(60)], "y": ["a", "b"] * 30})
        >>> plan = make_shift(make_problem(Table(frame, "frame"), "y"))
        >>> plan.words
        'Test on random rows: every row is predicted by models that were trained without it.'
        >>> [len(fold.test) for fold in plan.folds]
        [12, 12, 12, 12, 12]
    """
    shift = _which(problem, extrapolate)
    if repeats is None:
        repeats = FIXED_TEST_REPEATS if shift in ("extrapolate", "test_file") else 1
    make = {
        "random": _random_folds,
        "unseen": _unseen_folds,
        "time": _time_folds,
        "extrapolate": _far_folds,
        "test_file": _file_folds,
    }[shift]
    all_folds = []
    for repeat in range(repeats):
        draws = np.random.default_rng(stream_seed("folds", seed, repeat))
        parts = make(problem, folds, draws)
        all_folds += [Fold(repeat, number, *map(np.sort, part)) for number, part in enumerate(parts)]
    for fold in all_folds:
        _check_classes(problem, fold, shift)
    _check_groups(problem, np.concatenate([fold.test for fold in all_folds]))
    return ShiftPlan(
        shift, tuple(all_folds), _clusters(problem, shift), _words(problem, shift, all_folds), repeats
    )


def trial_rows(problem: TableProblem, shift: Shift, most: int, seed: int) -> np.ndarray:
    """Return the rows that a trial on the whole table would train on: no validation rows, at most ``most``.

    With ``--time`` these are the earlier rows, otherwise random ones (of whole blocks).
    """
    draws = np.random.default_rng(stream_seed("trial rows", seed))
    rows = np.arange(len(problem.target))
    if shift == "time":
        assert problem.times is not None
        held = _latest(problem.times, rows, draws)
    else:
        held = _with_validation(problem, rows, rows[:0], draws).validation
    if _missing_classes(problem, _Parts(rows, held, rows[:0])):
        held = rows[:0]
    fit = np.setdiff1d(rows, held, assume_unique=True)
    return fit if len(fit) <= most else np.sort(draws.choice(fit, most, replace=False))


def make_preprocessor(problem: TableProblem) -> TablePreprocessor:
    """Build the preprocessor that converts the columns of a problem to numbers."""
    return TablePreprocessor(kinds=cast("dict[str, Kind]", problem.kind_of), scale="robust")


def _which(problem: TableProblem, extrapolate: bool) -> Shift:
    """Return the one shift that the options select."""
    asked = {
        "--test": problem.is_test is not None,
        "--time": problem.times is not None,
        "--extrapolate": extrapolate,
    }
    chosen = [name for name, is_asked in asked.items() if is_asked]
    if problem.blocks is not None and chosen != ["--test"]:  # a test file may have its own blocks
        chosen.append("--split-by")
    if len(chosen) > 1:
        raise TableError(
            f"{' and '.join(chosen)} select different test rows. Pass only one of them, and run a second "
            "comparison for the other."
        )
    shifts: dict[str, Shift] = {
        "--test": "test_file",
        "--time": "time",
        "--extrapolate": "extrapolate",
        "--split-by": "unseen",
    }
    return shifts[chosen[0]] if chosen else "random"


def _random_folds(problem: TableProblem, folds: int, draws: np.random.Generator) -> list[_Parts]:
    """Cross-validate with classes, fifths of the targets and groups in proportion."""
    rows = np.arange(len(problem.target))
    part = _deal_rows(problem, rows, folds, draws)
    return [_with_validation(problem, rows[part != k], rows[part == k], draws) for k in range(folds)]


def _unseen_folds(problem: TableProblem, folds: int, draws: np.random.Generator) -> list[_Parts]:
    """Cross-validate with all rows of a block in the same test part."""
    assert problem.blocks is not None
    rows = np.arange(len(problem.target))
    part = _deal_blocks(problem.blocks, _strata(problem), folds, draws)
    return [
        _with_validation(problem, rows[part != k], rows[part == k], draws) for k in range(int(part.max()) + 1)
    ]


def _file_folds(problem: TableProblem, folds: int, draws: np.random.Generator) -> list[_Parts]:
    """Train on the table and test on the test file."""
    assert problem.is_test is not None
    is_test = problem.is_test
    return [_with_validation(problem, np.flatnonzero(~is_test), np.flatnonzero(is_test), draws)]


def _time_folds(problem: TableProblem, folds: int, draws: np.random.Generator) -> list[_Parts]:
    """Use an expanding window: each block of time is tested by models trained on all rows before it."""
    times = problem.times
    assert times is not None
    if len(np.unique(times)) < 2:
        raise TableError(
            f"The time column {problem.time_name!r} has the same value in all rows, so there are no later "
            "rows to test on. Choose another column, or omit --time."
        )
    block = _cut(times, folds + EARLIEST_BLOCKS)
    n_blocks = int(block.max()) + 1
    first = min(EARLIEST_BLOCKS, n_blocks - 1)
    parts_of_folds = []
    for number in range(first, n_blocks):
        train, test = np.flatnonzero(block < number), np.flatnonzero(block == number)
        parts = _Parts(train, _latest(times, train, draws), test)
        if not _missing_classes(problem, parts):  # skip blocks until all classes have been seen
            parts_of_folds.append(parts)
    if not parts_of_folds:
        raise TableError(
            f"Some classes of {problem.target_name!r} occur only in the last stretch of "
            f"{problem.time_name!r}, so no model of the past can predict them. Merge classes, or choose "
            "another --time."
        )
    return parts_of_folds


def _latest(times: np.ndarray, train: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Return the latest part of the training rows; a random part if all have the same time."""
    order = train[np.argsort(times[train], kind="stable")]
    n = _n_validation(len(train))
    begin = times[order[-n]]
    late = train[times[train] >= begin]
    if len(late) > len(train) / 2:  # many rows share one time: begin with the next one
        late = train[times[train] > begin]
    return late if 0 < len(late) <= len(train) / 2 else draws.permutation(train)[:n]


def _far_folds(problem: TableProblem, folds: int, draws: np.random.Generator) -> list[_Parts]:
    """Test the rows farthest from the mean; the farthest of the others are for validation.

    Distances are measured in whitened inputs. The same share of every class is held out, so none is missing.
    """
    inputs = StandardScaler().fit_transform(make_preprocessor(problem).fit_transform(problem.features))
    distance = LedoitWolf().fit(inputs).mahalanobis(inputs)
    classes = np.unique(problem.target, return_inverse=True)[1] if problem.task == "classification" else 0
    label = np.broadcast_to(classes, len(distance))
    place = np.empty(len(distance))  # 0 for the farthest row of a class, 1 for its nearest
    for value in np.unique(label):
        own = np.flatnonzero(label == value)
        place[own[np.argsort(-distance[own], kind="stable")]] = (np.arange(len(own)) + 0.5) / len(own)
    validation_end = FAR_SHARE + _n_validation(round((1 - FAR_SHARE) * len(place))) / len(place)
    train = np.flatnonzero(place > FAR_SHARE)
    validation = train[place[train] <= validation_end]
    return [_Parts(train, validation, np.flatnonzero(place <= FAR_SHARE))]


def _with_validation(
    problem: TableProblem, train: np.ndarray, test: np.ndarray, draws: np.random.Generator
) -> _Parts:
    """Choose validation rows at random: whole blocks if there are any, otherwise in proportion to strata."""
    n_parts = math.ceil(len(train) / _n_validation(len(train)))
    if problem.blocks is not None and len(np.unique(problem.blocks[train])) < 2:
        raise TableError(
            f"All training rows have the same value of {problem.split_name!r}, so no validation rows can be "
            "held out by it. Omit --split-by, or split by another column."
        )
    if problem.blocks is None:
        part = _deal_rows(problem, train, n_parts, draws)
    else:
        part = _deal_blocks(problem.blocks[train], _strata(problem, train), n_parts, draws)
    chosen = int(draws.integers(int(part.max()) + 1))
    return _Parts(train, train[part == chosen], test)


def _n_validation(n_train: int) -> int:
    return max(1, min(MAX_VALIDATION, round(VALIDATION_SHARE * n_train)))


def _deal(strata: np.ndarray, n_parts: int, draws: np.random.Generator) -> np.ndarray:
    """Deal rows to parts like cards, stratum by stratum; sizes and shares differ by at most one row."""
    part = np.empty(len(strata), dtype=np.int64)
    part[np.lexsort((draws.random(len(strata)), strata))] = np.arange(len(strata)) % n_parts
    return part


def _deal_rows(
    problem: TableProblem, rows: np.ndarray, n_parts: int, draws: np.random.Generator
) -> np.ndarray:
    """Deal rows to parts by strata and keep copies of a row in the same part."""
    strata = _strata(problem, rows)
    if problem.copies is None:
        return _deal(strata, n_parts, draws)
    _, first, number = np.unique(problem.copies[rows], return_index=True, return_inverse=True)
    return _deal(strata[first], n_parts, draws)[number]


def _deal_blocks(
    blocks: np.ndarray, strata: np.ndarray, n_parts: int, draws: np.random.Generator
) -> np.ndarray:
    """Deal whole blocks to parts of about equal size and equal shares of strata, large blocks first.

    The order is blurred by a few per cent of the sizes, so that repeats differ.
    """
    _, block = np.unique(blocks, return_inverse=True)
    _, stratum = np.unique(strata, return_inverse=True)
    counts = np.zeros((block.max() + 1, stratum.max() + 1))
    np.add.at(counts, (block, stratum), 1)
    n_parts = min(n_parts, len(counts))
    counts = np.column_stack([counts, counts.sum(1)])
    # the size of a part weighs as much as all its strata together
    weight = np.append(np.full(counts.shape[1] - 1, 1 / (counts.shape[1] - 1)), 1.0)
    weight /= (counts.sum(0) / n_parts) ** 2
    filled = np.zeros((n_parts, counts.shape[1]))
    part_of_block = np.empty(len(counts), dtype=np.int64)
    for number in np.argsort(-counts[:, -1] * np.exp(0.05 * draws.normal(size=len(counts)))):
        cost = ((filled + counts[number]) ** 2 - filled**2) @ weight
        cost[filled[:, -1] == 0] = -1.0  # no part stays empty
        part_of_block[number] = chosen = int(cost.argmin())
        filled[chosen] += counts[number]
    return part_of_block[block]


def _cut(times: np.ndarray, n_blocks: int) -> np.ndarray:
    """Assign rows to blocks of consecutive times and about equal sizes; equal times stay together."""
    _, inverse, counts = np.unique(times, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    # the middle of the rows of a time decides, so that a common time does not pull others into its block
    middle = (ends - counts / 2) / ends[-1]
    block = np.floor(middle * n_blocks).astype(np.int64).clip(0, n_blocks - 1)
    return np.unique(block, return_inverse=True)[1][inverse]


def _strata(problem: TableProblem, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return the class or fifth of the targets of some rows, crossed with groups that are large enough."""
    target = problem.target[rows]
    if problem.task == "classification":
        base = np.unique(target, return_inverse=True)[1]
    else:
        base = np.searchsorted(np.quantile(target, (0.2, 0.4, 0.6, 0.8)), target)
    if problem.groups is None:
        return base
    groups = np.unique(problem.groups[rows], return_inverse=True)[1]
    return base * (groups.max() + 1) + groups  # neighbours in this order share a class


def _missing_classes(problem: TableProblem, parts: _Parts | Fold) -> list[object]:
    """Return the classes without a training row outside the validation rows."""
    if problem.task != "classification":
        return []
    fit = np.setdiff1d(parts.train, parts.validation, assume_unique=True)
    return sorted(set(problem.classes) - set(problem.target[fit].tolist()), key=str)


def _check_classes(problem: TableProblem, fold: Fold, shift: Shift) -> None:
    missing = _missing_classes(problem, fold)
    if not missing:
        return
    reason = {
        "unseen": f"its rows have too few values of {problem.split_name!r}. Merge classes, or split by "
        "another column",
        "test_file": "it occurs only in the test file, or in too few training rows. Merge classes, or remove "
        "its rows",
    }.get(shift, "it has too few distinct rows. Merge classes, or remove its rows")
    raise TableError(f"In fold {fold.number + 1} no training row has the class {missing[0]!r}: {reason}.")


def _check_groups(problem: TableProblem, tested: np.ndarray) -> None:
    """Raise if no test row belongs to a group that is large enough to judge."""
    if problem.groups is not None and not (problem.groups[tested] != "").any():
        raise TableError(
            f"All test rows are in groups of {problem.group_name!r} that are too small to judge. Merge small "
            "groups, or omit --group."
        )


def _clusters(problem: TableProblem, shift: Shift) -> np.ndarray:
    if problem.blocks is not None:
        return problem.blocks
    if shift == "time":
        assert problem.times is not None
        return _cut(problem.times, TIME_CLUSTERS)
    if problem.copies is not None:
        return problem.copies
    return np.arange(len(problem.target))


def _words(problem: TableProblem, shift: Shift, folds: Sequence[Fold]) -> str:
    """Describe what is trained on and what is tested."""
    if shift == "time":
        return _time_words(problem, [fold for fold in folds if fold.repeat == 0])
    return {
        "random": "Test on random rows: every row is predicted by models that were trained without it.",
        "unseen": f"Test on unseen values of {problem.split_name}: every row is predicted by models that "
        "were trained on other values.",
        "extrapolate": "Test on the fifth of the rows that lies farthest from the rest, train on the others.",
        "test_file": f"Train on the table, test on the {count(len(folds[0].test), 'row')} of the test file.",
    }[shift]


def _time_words(problem: TableProblem, folds: Sequence[Fold]) -> str:
    times = problem.times
    assert times is not None
    begin = _show_time(problem, float(min(times[fold.test].min() for fold in folds)))
    if len(folds) == 1:
        return f"Train on rows before {begin}, test on later ones."
    return (
        f"Train on the past, test on later rows ({problem.time_name} from {begin} on, in "
        f"{len(folds)} stretches, each predicted from all rows before it)."
    )


def _show_time(problem: TableProblem, value: float) -> str:
    """Format a time as in the column: a date, with its hour if it has one, or a number."""
    kinds = {column.name: column.kind for column in problem.columns}
    if kinds.get(problem.time_name or "") != "date":
        return f"{value:g}"
    moment = datetime(1970, 1, 1) + timedelta(days=value)
    return f"{moment:%Y-%m-%d}" if moment.hour == moment.minute == 0 else f"{moment:%Y-%m-%d %H:%M}"
