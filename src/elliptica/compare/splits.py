"""Repeated splits into training, validation and test rows, balanced by class, group or target."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import GroupShuffleSplit, StratifiedGroupKFold, StratifiedShuffleSplit

from elliptica._utils.random import stream_seed
from elliptica.compare.csv import TableError
from elliptica.compare.problem import MIN_CLASS_ROWS, Problem

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.2


class Split(NamedTuple):
    """Numbers of the rows of each part, ascending."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split_rows(problem: Problem, repeat: int, seed: int) -> Split:
    """Draw the parts of one repeat: about 60 % training, 20 % validation, 20 % test.

    Rows are balanced by class (targets in fifths for regression), within groups where these are large
    enough. Blocks (``--split-by``) are never divided; for regression they are drawn at random.

    Args:
        problem: The rows.
        repeat: Number of the repeat.
        seed: Of the whole comparison.

    Raises:
        TableError: If blocks leave a class without training rows, or a part without rows of judged groups.

    Example:
        >>> import polars as pl
        >>> rows = pl.DataFrame({"x": range(100)})
        >>> split = split_rows(Problem(rows, np.arange(100) % 2, "classification", "y"), 0, 0)
        >>> [len(part) for part in split]
        [60, 20, 20]
    """
    state = stream_seed("split", seed, repeat) % 2**32
    rows = np.arange(len(problem.target))
    strata = _strata(problem)
    rest, test = _divide(problem, strata, rows, TEST_SHARE, state)
    train, validation = _divide(problem, strata, rest, VALIDATION_SHARE / (1 - TEST_SHARE), state + 1)
    _check_classes(problem, train, repeat)
    _check_groups(problem, {"validation": validation, "test": test}, repeat)
    return Split(np.sort(train), np.sort(validation), np.sort(test))


def _divide(
    problem: Problem, strata: np.ndarray, rows: np.ndarray, share: float, state: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut a share off some rows."""
    if problem.blocks is None:
        splitter = StratifiedShuffleSplit(1, test_size=share, random_state=state % 2**32)
        parts = splitter.split(rows, _common(strata[rows], math.ceil(share * len(rows))))
    elif problem.task == "classification":
        folds = StratifiedGroupKFold(round(1 / share), shuffle=True, random_state=state % 2**32)
        parts = folds.split(rows, problem.target[rows], problem.blocks[rows])
    else:
        shuffle = GroupShuffleSplit(1, test_size=share, random_state=state % 2**32)
        parts = shuffle.split(rows, groups=problem.blocks[rows])
    every = [part for part in parts if all(map(len, part))]  # few blocks leave folds empty
    if not every:
        raise TableError(
            "The blocks of the split-by column are too few or too unequal to be divided into training, "
            "validation and test rows. Split by a column with more values."
        )
    # folds are filled greedily, large blocks first, and only ties depend on the state: the first fold would
    # test the same blocks in every repeat, so one of the folds is drawn
    kept, cut = every[np.random.default_rng(state).integers(len(every))]
    return rows[kept], rows[cut]


def _strata(problem: Problem) -> np.ndarray:
    if problem.task == "classification":
        base = np.unique(problem.target, return_inverse=True)[1]
    else:
        base = np.searchsorted(np.quantile(problem.target, (0.2, 0.4, 0.6, 0.8)), problem.target)
    if problem.groups is None:
        return base
    groups = np.unique(problem.groups, return_inverse=True)[1]
    cells = base + (base.max() + 1) * (groups + 1)
    counts = np.bincount(cells)
    # a class within a group that is too small to divide goes with the rest of its class
    return np.where(counts[cells] >= MIN_CLASS_ROWS, cells, base)


def _common(strata: np.ndarray, n_cut: int) -> np.ndarray:
    """Strata as the splitter accepts them: of at least two rows each, and no more than either part has rows.

    Single rows join the commonest stratum; the two smallest strata are merged while there are too many.
    """
    values, inverse, counts = np.unique(strata, return_inverse=True, return_counts=True)
    found = np.where(counts[inverse] >= 2, strata, values[counts.argmax()])
    while len(np.unique(found)) > min(n_cut, len(found) - n_cut):
        values, counts = np.unique(found, return_counts=True)
        smallest, second = values[np.argsort(counts, kind="stable")[:2]]
        found = np.where(found == smallest, second, found)
    return found


def _check_classes(problem: Problem, train: np.ndarray, repeat: int) -> None:
    if problem.task == "classification":
        missing = set(problem.classes) - set(problem.target[train].tolist())
        if missing:
            raise TableError(
                f"In repeat {repeat + 1} no training row has the class {sorted(missing)[0]!r}: its rows lie "
                "in too few blocks of the split-by column. Join classes, or split by another column."
            )


def _check_groups(problem: Problem, parts: dict[str, np.ndarray], repeat: int) -> None:
    """A part with unjudged groups only has no worst group."""
    if problem.groups is None:
        return
    for name, rows in parts.items():
        if not (problem.groups[rows] != "").any():
            raise TableError(
                f"In repeat {repeat + 1} all {name} rows are of groups that are too small to be judged: "
                "rows of the same split-by value stay together. Join small groups of "
                f"{problem.group_name!r}, or split by another column."
            )
