"""From a table to a learning problem: the task, usable columns, and what was decided, in words."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from elliptica._utils.text import count
from elliptica.compare.table import Table, TableError, as_numbers, check_column

Task = Literal["auto", "classification", "regression"]

MIN_ROWS = 50
#: Rows that a class needs so that training, validation and test all have one.
MIN_CLASS_ROWS = 5
#: Groups with fewer rows are not judged: their figures would be noise.
MIN_GROUP_ROWS = 10
MAX_GROUPS = 50
#: Whole numbers with at most so many values may be codes.
FEW_VALUES = 20
#: Below this share, text among numbers is taken for a slip.
STRAY_SHARE = 0.1
_MANY_CATEGORIES = 50


@dataclass(frozen=True)
class TableProblem:
    """What is to be learnt."""

    features: pl.DataFrame  # inputs: numbers (Float64, with missing values) or text (String)
    target: np.ndarray  # one label (int or str) or number per row
    task: Literal["classification", "regression"]  # ``"classification"`` or ``"regression"``
    target_name: str  # name of the column of targets
    #: Group of each row as text; empty for groups that are too small to judge. None: no groups.
    groups: np.ndarray | None = None
    group_name: str | None = None  # name of that column
    #: Number of the block of rows that must stay together. None: rows are independent.
    blocks: np.ndarray | None = None
    notices: tuple[str, ...] = ()  # what was decided, in words
    ids: tuple[str, ...] = ()  # columns that name the rows: no inputs, but carried to predictions
    text_as_missing: tuple[str, ...] = ()  # inputs of numbers in which cells of text are taken as missing

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
) -> TableProblem:
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
    return TableProblem(
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


class Inputs(NamedTuple):
    """The inputs of a problem."""

    features: pl.DataFrame  # numbers (Float64, with missing values) or text (String)
    text_as_missing: tuple[str, ...]  # columns of numbers in which cells of text are taken as missing


class Strays(NamedTuple):
    """Cells of text in a column that mostly holds numbers."""

    numbers: pl.Series  # the column as numbers, missing where there is text
    odd: pl.Series  # the cells of text
    n_known: int  # number of cells that are not empty

    @property
    def share(self) -> float:
        """How many of the cells that are not empty are text."""
        return len(self.odd) / max(1, self.n_known)

    def words(self, name: str) -> str:
        """How many, of how many, and one of them."""
        verb = "is no number" if len(self.odd) == 1 else "are no numbers"
        return f"column {name!r}: {len(self.odd)} of {self.n_known} values {verb}, e.g. {self.odd[0]!r}"


def find_strays(column: pl.Series, *, decimal_comma: bool = False) -> Strays:
    """Tell numbers and text of a column of text apart.

    Example:
        >>> found = find_strays(pl.Series("age", ["41", "unknown", None]))
        >>> found.words("age")
        "column 'age': 1 of 2 values is no number, e.g. 'unknown'"
    """
    numbers = as_numbers(column, decimal_comma=decimal_comma)
    return Strays(
        numbers, column.filter(numbers.is_null() & column.is_not_null()), len(column) - column.null_count()
    )


def make_inputs(frame: pl.DataFrame, notices: list[str], *, decimal_comma: bool = False) -> Inputs:
    """Decide what every column is used as.

    Args:
        frame: Columns that may be inputs.
        notices: What is decided is added here, in words.
        decimal_comma: Whether 1,5 is a number.

    Raises:
        TableError: If no column is left.

    Example:
        >>> notices = []
        >>> frame = pl.DataFrame({"age": [str(i * i) for i in range(30)] + ["old"], "one": [1] * 31})
        >>> make_inputs(frame, notices).features.columns
        ['age']
        >>> print(notices[0])
        Warning: column 'age': 1 of 31 values is no number, e.g. 'old'. Taken as missing.
    """
    kept, mended, said = [], [], len(notices)
    for column in frame.iter_columns():
        numbers = _without_strays(column, decimal_comma, notices)
        if numbers is not None:
            mended.append(column.name)
            column = numbers
        if reason := _useless(column):
            notices.append(f"Column {column.name!r} is not used: {reason}.")
        else:
            kept.append(as_feature(column))
            _comment(column, notices)
    if not kept:
        raise TableError("No column is left to predict from. " + " ".join(notices[said:][-5:]))
    features = pl.DataFrame(kept)
    return Inputs(features, tuple(name for name in mended if name in features.columns))


def is_usable(column: pl.Series) -> bool:
    """Whether a column can be an input: numbers, text, categories, true/false."""
    return column.dtype.is_numeric() or column.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean)


def as_feature(column: pl.Series) -> pl.Series:
    """Numbers as Float64 with infinities and NaN as missing, all else as text with gaps as a text."""
    if not column.dtype.is_numeric():
        return column.cast(pl.String).fill_null("(missing)")
    numbers = column.cast(pl.Float64)
    return numbers.set(~numbers.is_finite(), None)


def _without_strays(column: pl.Series, decimal_comma: bool, notices: list[str]) -> pl.Series | None:
    """Numbers, where a few cells of text would make hundreds of categories of them; None: not the case."""
    if column.dtype != pl.String:
        return None
    found = find_strays(column, decimal_comma=decimal_comma)
    n_values = found.numbers.drop_nulls().n_unique()
    # few numbers may be codes beside other codes; but one text, such as "unknown", is told by a gap as well
    if not len(found.odd) or (n_values <= FEW_VALUES and found.odd.n_unique() > 1):
        return None
    if found.share < STRAY_SHARE:
        notices.append(f"Warning: {found.words(column.name)}. Taken as missing.")
        return found.numbers
    if found.share < 0.5 and n_values > FEW_VALUES:
        notices.append(
            f"Warning: {found.words(column.name)}. That is too much for slips, so the column is taken as "
            "text. Correct or empty these cells if numbers are meant."
        )
    return None


def _useless(column: pl.Series) -> str | None:
    if column.null_count() == len(column):
        return "all its values are missing"
    if not is_usable(column):
        return f"it is of type {column.dtype}; make numbers or categories of it"
    known = column.drop_nulls()
    n_values = known.n_unique()
    carry = f" (--id {shlex.quote(column.name)} carries it to predictions)"
    if n_values == 1 and len(known) == len(column):
        return f"it is {known[0]!r} in all rows"
    if column.dtype == pl.String and n_values >= 0.95 * len(known):
        return f"nearly every row has a text of its own, as in an identifier{carry}"
    if column.dtype.is_integer() and len(known) == len(column) and (known.diff().drop_nulls() == 1).all():
        return f"it numbers the rows{carry}"
    return None


def _comment(column: pl.Series, notices: list[str]) -> None:
    if column.dtype.is_float() and (infinite := int(column.is_infinite().sum())):
        notices.append(f"Column {column.name!r}: {infinite} infinite values are taken as missing.")
    if not column.dtype.is_numeric() and (n := column.drop_nulls().n_unique()) > _MANY_CATEGORIES:
        notices.append(
            f"Column {column.name!r} has {n} different texts, each of which becomes an input (or shares one "
            "with other rare texts). Free text is not understood: if it is such, "
            f"--id {shlex.quote(column.name)} leaves the column out of the inputs."
        )
