"""Divide rows into folds that mimic the shift you expect."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skrub import SquashingScaler

from elliptica._utils.extras import count
from elliptica._utils.random import stream_seed
from elliptica.estimators import TablePreprocessor
from elliptica.report.judge import join
from elliptica.tables.problem import TableProblem
from elliptica.tables.table import TableError

Shift = Literal["random", "unseen", "time", "extrapolate", "test_file"]

#: Share of the training rows that is held out to choose settings and epochs, and its most useful rows.
VALIDATION_SHARE, MAX_VALIDATION = 0.25, 4_000
#: Share of the rows that `extrapolate` holds out.
FAR_SHARE = 0.2
#: Number of time blocks that are only trained on, before the first tested one.
EARLIEST_BLOCKS = 2
#: Repeats when every repeat tests the same rows in one fold; a single one would not show training noise.
FIXED_TEST_REPEATS = 3
#: Number of the repeat with random rows, beside the shift that was asked for.
RANDOM = -1
#: More test parts cost time and tell nothing new.
MAX_FOLDS = 50
#: Fewer blocks, or as many, are tested one at a time, whatever the number of folds.
FEW_BLOCKS = 6
#: More blocks are dealt like rows, because balancing them one by one takes long.
MANY_BLOCKS = 500


@dataclass(frozen=True)
class Fold:
    """Row numbers of one training and its test, in ascending order."""

    train: np.ndarray  # all training rows, validation rows included
    validation: np.ndarray  # training rows that choose settings and epochs
    test: np.ndarray
    repeat: int = -1  # each repeat tests every tested row once
    number: int = 0  # number of the fold within the repeat, from 0

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
    place: str = "on new rows like these"  # where a verdict holds
    ordered: bool = False  # whether clusters are stretches of time, one per fold
    random: ShiftPlan | None = None  # random rows of the same table, to see what they would choose
    part_names: np.ndarray | None = None  # by row: the stretch of time or the values that its fold tests


def make_shift(
    problem: TableProblem,
    *,
    folds: int = 5,
    repeats: int | None = None,
    extrapolate: str | bool = False,
    seed: int = 0,
    random: bool = True,
) -> ShiftPlan:
    """Divide the rows of a problem into training, validation and test rows.

    Validation rows are held out from the training rows as the test rows are, so that settings suit the shift.

    Args:
        problem: The rows; its test rows, times or blocks select the shift.
        folds: Number of test parts per repeat; fewer if there are fewer blocks or times.
        repeats: How often everything is repeated with other draws; None: once, or three times if a repeat has
            a single fold.
        extrapolate: Column whose far ends are held out; True: the first principal direction of all numeric
            columns.
        seed: Seed of the draws.
        random: Beside another shift, also divide the rows of the table at random, once.
    """
    if not 2 <= folds <= MAX_FOLDS:
        raise TableError(f"folds is {folds}. Pass a number from 2 to {MAX_FOLDS}.")
    asked: dict[Shift, bool] = {
        "test_file": problem.is_test is not None,
        "time": problem.times is not None,
        "extrapolate": bool(extrapolate),
        "unseen": problem.blocks is not None and problem.is_test is None,  # a test file may have blocks, too
    }
    shift, *more = [name for name, is_asked in asked.items() if is_asked] or ["random"]
    if more:
        raise TableError("Pass only one of test, time, extrapolate and split_by: each selects its test rows.")
    columns = _far_columns(problem, extrapolate) if extrapolate else []
    all_folds: list[Fold] = []
    repeat = 0
    while repeat < (repeats or (FIXED_TEST_REPEATS if len(all_folds) == repeat else 1)):
        draws = np.random.default_rng(stream_seed("folds", seed, repeat))
        parts = _divide(problem, shift, folds, draws, columns)
        all_folds += [replace(fold, repeat=repeat, number=number) for number, fold in enumerate(parts)]
        repeat += 1
    for fold in all_folds:
        if missing := _missing_classes(problem, fold):
            raise TableError(
                f"In fold {fold.number + 1} no training row has the class {missing[0]!r}. Merge classes, "
                "remove its rows, or hold out other rows."
            )
    tested = np.unique(np.concatenate([fold.test for fold in all_folds]))
    if problem.judged is not None and not (problem.judged[tested] != "").any():
        raise TableError(
            f"All test rows are in groups of {problem.group_name!r} that are too small to judge. Merge small "
            "groups, or omit --group."
        )
    clusters, ordered = _clusters(problem, shift, all_folds), shift == "time"
    words, place = _words(problem, shift, [fold for fold in all_folds if fold.repeat == 0], columns)
    plan = ShiftPlan(shift, tuple(all_folds), clusters, words, repeat, place, ordered)
    if shift in ("time", "unseen") and repeat == 1:
        plan = replace(plan, part_names=_part_names(problem, all_folds))
    own = None if problem.judged is None else problem.judged[problem.own_rows]
    if not random or shift == "random" or (own is not None and not (own != "").any()):
        return plan
    return replace(plan, random=_random_plan(problem, folds, seed))


def _random_plan(problem: TableProblem, folds: int, seed: int) -> ShiftPlan:
    """Divide the rows of the table at random, whatever its times, blocks and test file."""
    problem = replace(problem, blocks=None)
    draws = np.random.default_rng(stream_seed("folds", seed, RANDOM))
    parts = _divide(problem, "random", folds, draws, ())
    numbered = tuple(replace(fold, repeat=RANDOM, number=number) for number, fold in enumerate(parts))
    words, _ = _words(problem, "random", numbered, ())
    return ShiftPlan("random", numbered, _clusters(problem, "random", numbered), words, 1)


def make_preprocessor(problem: TableProblem, codes: int = 0) -> TablePreprocessor:
    """Build the preprocessor that converts the columns of a problem to numbers.

    Trees get gaps as they are, and up to so many categories as ``codes``; more become mean targets.
    """
    limit: dict[str, Any] = {"native": True, "max_categories": codes} if codes else {}
    return TablePreprocessor(kinds=problem.kind_of, scale="robust", **limit)


def _divide(
    problem: TableProblem, shift: Shift, folds: int, draws: np.random.Generator, columns: Sequence[str]
) -> list[Fold]:
    """Return the parts of each fold of a repeat."""
    rows = problem.own_rows if shift == "random" else np.arange(len(problem.target))
    if shift == "extrapolate":
        return [_far(problem, columns)]
    if shift == "time":
        return _time_folds(problem, folds, draws)
    if shift == "test_file":
        assert problem.is_test is not None
        tests = [problem.is_test]
    else:
        part = _deal(problem, rows, folds, draws)
        tests = [part == k for k in range(int(part.max()) + 1)]
    return [_with_validation(problem, shift, rows[~test], rows[test], draws) for test in tests]


def _deal(problem: TableProblem, rows: np.ndarray, n_parts: int, draws: np.random.Generator) -> np.ndarray:
    """Deal rows to parts with classes, fifths of the targets and groups in proportion.

    Rows of a block, and copies of a row, stay in the same part.
    """
    target = problem.target[rows]
    if problem.task == "regression":
        target = np.searchsorted(np.quantile(target, (0.2, 0.4, 0.6, 0.8)), target)
    strata = np.unique(target, return_inverse=True)[1]
    if problem.groups is not None:
        crossed = np.char.add(strata.astype(str), problem.groups[rows])
        _, number, counts = np.unique(crossed, return_inverse=True, return_counts=True)
        strata = np.where(counts[number] < n_parts, strata, 1000 + number)
    blocks = problem.copies if problem.blocks is None else problem.blocks
    if blocks is None:
        return _split(StratifiedKFold, strata, n_parts, draws)
    _, first, number = np.unique(blocks[rows], return_index=True, return_inverse=True)
    if len(first) <= max(n_parts, FEW_BLOCKS):  # one at a time
        return number
    if len(first) > MANY_BLOCKS:  # by the stratum of their first row
        return _split(StratifiedKFold, strata[first], n_parts, draws)[number]
    return _split(StratifiedGroupKFold, strata, n_parts, draws, number)


def _split(
    splitter: type, strata: np.ndarray, n_parts: int, draws: np.random.Generator, blocks: Any = None
) -> np.ndarray:
    """Return the part of each row by a splitter of scikit-learn."""
    split = splitter(n_parts, shuffle=True, random_state=int(draws.integers(2**31)))
    part = np.empty(len(strata), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # some parts then have none of it
        for number, (_, test) in enumerate(split.split(strata, strata, blocks)):
            part[test] = number
    return np.unique(part, return_inverse=True)[1]


def _n_validation(n_train: int) -> int:
    return max(1, min(MAX_VALIDATION, round(VALIDATION_SHARE * n_train)))


def _with_validation(
    problem: TableProblem, shift: Shift, train: np.ndarray, test: np.ndarray, draws: np.random.Generator
) -> Fold:
    """Hold out validation rows: later ones with ``--time``, otherwise random ones (of whole blocks)."""
    if shift == "time":
        return Fold(train, _latest(problem, train, draws), test)
    part = _deal(problem, train, -(-len(train) // _n_validation(len(train))), draws)
    if not part.any():
        raise TableError(
            f"All training rows have the same value of {problem.split_name!r}, so none can be held out for "
            "validation. Split by another column."
        )
    return Fold(train, train[part == draws.integers(int(part.max()) + 1)], test)


def _time_folds(problem: TableProblem, folds: int, draws: np.random.Generator) -> list[Fold]:
    """Use an expanding window: each block of time is tested by models trained on all rows before it."""
    assert problem.times is not None
    block = _cut(problem.times, folds + EARLIEST_BLOCKS)
    n_blocks = int(block.max()) + 1
    first = min(EARLIEST_BLOCKS, max(1, n_blocks - 2))
    windows = [(np.flatnonzero(block < k), np.flatnonzero(block == k)) for k in range(first, n_blocks)]
    parts = [_with_validation(problem, "time", train, test, draws) for train, test in windows]
    parts = [part for part in parts if not _missing_classes(problem, part)]  # wait until all have been seen
    if not parts:
        raise TableError(
            f"Some classes of {problem.target_name!r} occur only in the last stretch of "
            f"the time column, so no model of the past can predict them. Merge classes."
        )
    return parts


def _latest(problem: TableProblem, train: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Return the latest part of the training rows; a random part if all have the same time."""
    assert problem.times is not None
    times, n = problem.times[train], _n_validation(len(train))
    begin = np.sort(times)[-n]
    late = train[times >= begin]
    if len(late) > len(train) / 2:  # many rows share one time: begin with the next one
        late = train[times > begin]
    return late if 0 < len(late) <= len(train) / 2 else np.sort(draws.permutation(train)[:n])


def _far_columns(problem: TableProblem, extrapolate: str | bool) -> list[str]:
    """Return the columns that extrapolation goes along: the one that is named, or all numeric ones.

    Indicators, which have two values, do not count: their far end is a rare category.
    """
    n_values = {name: problem.features[name].drop_nulls().n_unique() for name in problem.features.columns}
    numbers = [name for name, kind in problem.kind_of.items() if kind == "number" and n_values[name] > 2]
    if extrapolate in numbers:
        return [str(extrapolate)]
    if extrapolate not in (True, "auto") or not numbers:
        raise TableError(
            f"extrapolate is {extrapolate!r}. Name a numeric column with more than two values "
            f"({', '.join(numbers[:12]) or 'there is none'}), or auto for all of them."
        )
    return numbers


def _far(problem: TableProblem, columns: Sequence[str]) -> Fold:
    """Test the rows farthest out along the first principal direction; the next ones are for validation.

    Far is far from the median, so a skewed column is held out at its long end, others at both ends. Outliers
    are squashed before, which keeps their order. Equal distances stay together.
    """
    scale = make_pipeline(SimpleImputer(strategy="median"), SquashingScaler(), StandardScaler(), PCA(1))
    along = scale.fit_transform(problem.features.select(columns).to_numpy())[:, 0]
    distance = np.abs(along - np.median(along)).round(9)
    if len(np.unique(distance)) < 3:
        raise TableError(f"extrapolate: {columns[0]!r} has too few distinct values to hold out its far end.")
    is_test = _farthest(distance, FAR_SHARE * len(distance))
    train = np.flatnonzero(~is_test)
    is_validation = _farthest(distance[train], _n_validation(len(train)))
    return Fold(train, train[is_validation], np.flatnonzero(is_test))


def _farthest(distance: np.ndarray, n: float) -> np.ndarray:
    """Return whether rows are among about the n farthest, but not the nearest ones."""
    cuts, counts = np.unique(distance, return_counts=True)
    beyond = np.cumsum(counts[::-1])[::-1]
    first = min(2, len(cuts) - 1)  # leaves two distances, for training and validation
    return np.asarray(distance >= cuts[first:][np.abs(beyond[first:] - n).argmin()])


def _cut(times: np.ndarray, n_blocks: int) -> np.ndarray:
    """Assign rows to blocks of consecutive times and about equal sizes; equal times stay together."""
    _, inverse, counts = np.unique(times, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    # the middle of the rows of a time decides, so that a common time does not pull others into its block
    middle = (ends - counts / 2) / ends[-1]
    block = np.floor(middle * n_blocks).astype(np.int64).clip(0, n_blocks - 1)
    return np.unique(block, return_inverse=True)[1][inverse]


def _missing_classes(problem: TableProblem, fold: Fold) -> list[object]:
    """Return the classes without a training row outside the validation rows."""
    return sorted(set(problem.classes) - set(problem.target[fold.fit].tolist()), key=str)


def _clusters(problem: TableProblem, shift: Shift, folds: Sequence[Fold]) -> np.ndarray:
    """Return the cluster of each row; stretches of time are those that folds test."""
    if problem.blocks is not None:
        return problem.blocks
    rows = np.arange(len(problem.target))
    if shift == "time":
        rows[:] = -1
        for fold in folds:
            rows[fold.test] = fold.number
        return rows
    return rows if problem.copies is None else problem.copies


def _part_names(problem: TableProblem, folds: Sequence[Fold]) -> np.ndarray:
    """Name the stretch of time, or the values of the split column, that each row is tested in."""
    names = np.full(len(problem.target), "", dtype=object)
    for fold in folds:
        if problem.times is not None:
            ends = [problem.times[fold.test].min(), problem.times[fold.test].max()]
            text = list(map(problem.show_time, ends))
            names[fold.test] = text[0] if text[0] == text[1] else " to ".join(text)
        elif problem.split_values is not None:
            values = [str(value) for value in np.unique(problem.split_values[fold.test])]
            names[fold.test] = join(
                values if len(values) <= 3 else [*values[:2], f"{len(values) - 2} others"]
            )
    return names.astype(str)


def _words(
    problem: TableProblem, shift: Shift, folds: Sequence[Fold], columns: Sequence[str]
) -> tuple[str, str]:
    """Describe what is trained on and what is tested, and where a verdict holds."""
    rows, by, n = count(len(folds[0].test), "row"), problem.split_name, len(folds)
    if shift == "time":
        assert problem.times is not None
        assert problem.clock is not None
        first = min(problem.times[fold.test].min() for fold in folds)
        where = f"{problem.clock.name} from {problem.show_time(first)} on, in {n} stretch{'es' * (n > 1)}"
        words = f"Train on the past, test on later rows ({where}, each predicted from all rows before it)."
        return words, "on later rows"
    if len(columns) == 1:
        known = problem.features[columns[0]].to_numpy()[folds[0].train]
        ends = f"{np.nanmin(known):.4g} to {np.nanmax(known):.4g}"
        words = f"Train on rows with {columns[0]} from {ends}, test on the {rows} outside."
        return words, f"beyond the {columns[0]} of the training rows"
    every = "every row is predicted by models that were trained"
    return {
        "random": (f"Test on random rows: {every} without it.", ShiftPlan.place),
        "unseen": (f"Test on unseen values of {by}: {every} on other values.", f"on unseen values of {by}"),
        "extrapolate": (
            "Test on the fifth of the rows that lies farthest out along the first principal direction of "
            f"{len(columns)} numeric columns, train on the others.",
            "on rows far from the training rows",
        ),
        "test_file": (
            f"Train on the table, test on the {rows} of the test file.",
            "on the rows of the test file",
        ),
    }[shift]
