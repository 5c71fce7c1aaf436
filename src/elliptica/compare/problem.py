"""From a table to a learning problem: the task, usable columns, and what was decided, in words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from elliptica._utils.text import count
from elliptica.compare.columns import FEW_VALUES, STRAY_SHARE, find_strays, make_inputs
from elliptica.compare.csv import TableError
from elliptica.compare.table import Table, check_column

Task = Literal["auto", "classification", "regression"]

MIN_ROWS = 50
#: Rows that a class needs so that training, validation and test all have one.
MIN_CLASS_ROWS = 5
#: Groups with fewer rows are not judged: their figures would be noise.
MIN_GROUP_ROWS = 10
MAX_GROUPS = 50


@dataclass(frozen=True)
class Problem:
    """What is to be learnt.

    Attributes:
        features: Inputs: numbers (Float64, with missing values) or text (String).
        target: One label (int or str) or number per row.
        task: ``"classification"`` or ``"regression"``.
        target_name: Name of the column of targets.
        groups: Group of each row as text; empty for groups that are too small to judge. None: no groups.
        group_name: Name of that column.
        blocks: Number of the block of rows that must stay together. None: rows are independent.
        notices: What was decided, in words.
        ids: Columns that name the rows: no inputs, but carried to predictions.
        text_as_missing: Inputs of numbers in which cells of text are taken as missing.
    """

    features: pl.DataFrame
    target: np.ndarray
    task: Literal["classification", "regression"]
    target_name: str
    groups: np.ndarray | None = None
    group_name: str | None = None
    blocks: np.ndarray | None = None
    notices: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    text_as_missing: tuple[str, ...] = ()

    @property
    def classes(self) -> list[Any]:
        """Classes in order; empty for regression."""
        return [] if self.task == "regression" else np.unique(self.target).tolist()

    def digest(self) -> str:
        """Fingerprint of inputs, targets, groups and blocks."""
        found = hashlib.sha256(self.features.write_csv().encode())
        for part in (self.target, self.groups, self.blocks):
            found.update(b"" if part is None else "\n".join(map(str, part.tolist())).encode())
        return found.hexdigest()[:16]


def make_problem(
    table: Table,
    target: str,
    *,
    task: Task = "auto",
    group: str | None = None,
    split_by: str | None = None,
    group_as_input: bool = False,
    ids: Sequence[str] = (),
) -> Problem:
    """Decide on the task and on the columns that are used.

    Args:
        table: The rows.
        target: Column to predict; rows without it are dropped.
        task: ``"auto"``: text, true/false, and whole numbers with at most 20 values are classes, other
            numbers are predicted as numbers.
        group: Column of groups in which methods are judged; training does not use it.
        split_by: Column whose equal values stay on the same side of every split (a patient, a site).
        group_as_input: Use the column of groups as an input, too.
        ids: Columns that name the rows; they are no inputs.

    Raises:
        TableError: If there is nothing to learn, or the options do not fit the table.

    Example:
        >>> frame = pl.DataFrame({"x": [i % 7 for i in range(60)], "y": ["a", "b"] * 30})
        >>> make_problem(Table(frame, "frame"), "y").task
        'classification'
    """
    if task not in get_args(Task):
        raise TableError(f"task must be one of {', '.join(get_args(Task))}, but got {task!r}.")
    _check_roles(table, target, group, split_by, group_as_input, ids)
    notices = list(table.notices)
    frame = _with_target(table.frame, target, notices)
    kind, labels = _target(frame[target], task, notices, table.decimal_comma)
    outside = {target, split_by, *ids} | (set() if group_as_input else {group})
    inputs = make_inputs(
        frame.select(name for name in frame.columns if name not in outside),
        notices,
        decimal_comma=table.decimal_comma,
    )
    return Problem(
        inputs.features,
        labels,
        kind,
        target,
        None if group is None else _groups(frame[group], notices),
        group,
        None if split_by is None else _blocks(frame[split_by]),
        tuple(notices),
        tuple(ids),
        inputs.text_as_missing,
    )


def _check_roles(
    table: Table,
    target: str,
    group: str | None,
    split_by: str | None,
    group_as_input: bool,
    ids: Sequence[str],
) -> None:
    """Columns exist, and none has two parts that exclude each other."""
    special = [("target", target), ("group", group), ("split-by", split_by), *(("id", name) for name in ids)]
    for what, name in special:
        if name is not None:
            check_column(table, name, what)
    if target in (group, split_by, *ids):
        raise TableError(
            f"{target!r} is the target, so it cannot be the group, the split-by or an id column, too."
        )
    if group_as_input and group is None:
        raise TableError("--group-as-input needs a --group.")
    if group_as_input and group in ids:
        raise TableError(f"{group!r} cannot be an id and an input. Leave --group-as-input or its --id out.")


def has_target(column: pl.Series) -> pl.Series:
    """Mark the rows whose target is known: not missing, and finite where it is a number."""
    known = column.is_not_null()
    if column.dtype.is_float():
        known &= column.is_finite().fill_null(False)
    return known


def _with_target(frame: pl.DataFrame, target: str, notices: list[str]) -> pl.DataFrame:
    known = has_target(frame[target])
    frame = frame.filter(known)
    if lost := len(known) - len(frame):
        notices.append(f"{lost} of {len(known)} rows have no target and are dropped.")
    if len(frame) < MIN_ROWS:
        raise TableError(
            f"There are {len(frame)} rows with a target, but at least {MIN_ROWS} are needed: with fewer, no "
            "test part is large enough to tell methods apart."
        )
    return frame


def _target(
    column: pl.Series, task: Task, notices: list[str], decimal_comma: bool
) -> tuple[Literal["classification", "regression"], np.ndarray]:
    numeric = column.dtype.is_numeric()
    n_values = column.n_unique()
    if task != "classification" and column.dtype == pl.String and n_values > FEW_VALUES:
        _refuse_stray_text(column, decimal_comma)
    if task == "auto":
        whole = numeric and bool((column.cast(pl.Float64) % 1 == 0).all())
        few = whole and n_values <= (2 if column.dtype.is_float() else FEW_VALUES)
        task = "classification" if not numeric or few else "regression"
        kind = "text" if not numeric else "whole numbers" if whole else "numbers"
        notices.append(
            f"Task: {task}, because {column.name!r} holds {kind} with {n_values} distinct values "
            "(--task decides otherwise)."
        )
    if task == "regression":
        if not numeric:
            raise TableError(
                f"Regression needs a target of numbers, but {column.name!r} holds text, e.g. "
                f"{str(column[0])!r}. Correct the column, or pass --task classification."
            )
        if n_values < 2:
            raise TableError(f"The target {column.name!r} has the same value in all rows: nothing to learn.")
        return "regression", column.cast(pl.Float64).to_numpy()
    labels = _labels(column)
    _check_classes(labels, column)
    return "classification", labels


def _refuse_stray_text(column: pl.Series, decimal_comma: bool) -> None:
    """A cell or two of text make a column of numbers text; as classes it would make no sense."""
    found = find_strays(column, decimal_comma=decimal_comma)
    if 0 < found.share < STRAY_SHARE:
        raise TableError(
            f"In the target {found.words(column.name)}. Correct or empty them for a regression (rows "
            "without a target are dropped), or pass --task classification."
        )


def _labels(column: pl.Series) -> np.ndarray:
    """Whole numbers as such, everything else as text."""
    if column.dtype.is_numeric() and bool((column.cast(pl.Float64) % 1 == 0).all()):
        return column.cast(pl.Int64).to_numpy()
    return np.asarray(column.cast(pl.String).to_list())


def _check_classes(labels: np.ndarray, column: pl.Series) -> None:
    values, counts = np.unique(labels, return_counts=True)
    if len(values) < 2:
        raise TableError(
            f"The target {column.name!r} has one class only, {values.tolist()[0]!r}: nothing to tell apart."
        )
    if counts.min() < MIN_CLASS_ROWS:
        rare = values[counts < MIN_CLASS_ROWS].tolist()
        hint = " Or is --task regression meant?" if column.dtype.is_numeric() else ""
        raise TableError(
            f"Class {values[counts.argmin()].item()!r} of {column.name!r} has "
            f"{count(int(counts.min()), 'row')}, but {MIN_CLASS_ROWS} are needed so "
            f"that training, validation and test have some ({len(rare)} of "
            f"{len(values)} classes are too small). Join classes, or remove these rows.{hint}"
        )


def _groups(column: pl.Series, notices: list[str]) -> np.ndarray:
    # no group of the table may have the empty name, which stands for groups that are not judged
    text = column.cast(pl.String).fill_null("(missing)").replace("", "(empty)")
    counts = dict(text.value_counts().iter_rows())
    if len(counts) > MAX_GROUPS:
        raise TableError(
            f"The group column {column.name!r} has {len(counts)} values; at most {MAX_GROUPS} groups can be "
            "judged. Make fewer of them, e.g. ranges of a number."
        )
    small = sorted(name for name, count in counts.items() if count < MIN_GROUP_ROWS)
    if len(counts) - len(small) < 2:
        raise TableError(
            f"The group column {column.name!r} has {len(counts) - len(small)} groups of at least "
            f"{MIN_GROUP_ROWS} rows, but a worst group needs two to choose from."
        )
    if small:
        notices.append(
            f"Groups with fewer than {MIN_GROUP_ROWS} rows are not judged on their own: {', '.join(small)}."
        )
    least = min(count for count in counts.values() if count >= MIN_GROUP_ROWS)
    if least < 5 * MIN_GROUP_ROWS:
        notices.append(f"The smallest group has {least} rows, so that worst-group figures are rough.")
    return np.asarray(["" if name in small else name for name in text.to_list()])


def _blocks(column: pl.Series) -> np.ndarray:
    if column.null_count():
        raise TableError(
            f"The split-by column {column.name!r} has {column.null_count()} missing values, so that their "
            "side of the split is unknown. Fill them in or remove the rows."
        )
    blocks = column.cast(pl.String).to_physical().rank("dense").to_numpy().astype(np.int64) - 1
    if (n := len(np.unique(blocks))) < MIN_CLASS_ROWS:
        raise TableError(
            f"The split-by column {column.name!r} has {n} values, but at least {MIN_CLASS_ROWS} are needed "
            "for training, validation and test."
        )
    return blocks
