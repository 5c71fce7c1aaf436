"""Turn a table into a learning problem: decide the task and the use of every column."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from elliptica._utils.text import count, did_you_mean
from elliptica.estimators.preprocess import MISSING
from elliptica.tables.columns import (
    FEW_VALUES,
    LARGEST,
    STRAY_SHARE,
    ColumnUse,
    Override,
    Reading,
    as_text,
    days_since_1970,
    find_notation,
    find_strays,
    is_usable,
    read_column,
    read_inputs,
    read_written_numbers,
    recognise,
    time_reading,
)
from elliptica.tables.leaks import Copies, find_copies, find_giveaways
from elliptica.tables.table import MAX_COLUMNS, Table, TableError, check_column

Task = Literal["auto", "classification", "regression"]

MIN_ROWS = 50
#: Minimum number of rows in a labelled test file; with fewer, methods are not distinguishable.
MIN_TEST_ROWS = 20
#: Minimum number of rows in a class, so that training, validation and test all have some.
MIN_CLASS_ROWS = 5
#: Minimum number of values of a split-by column, for training, validation and test.
MIN_BLOCKS = 3
#: Groups with fewer rows are not judged, because their scores would be noise.
MIN_GROUP_ROWS = 10
MAX_GROUPS = 50
#: Minimum number of distinct times, for training, validation and test.
MIN_TIMES = 3


@dataclass(frozen=True)
class TableProblem:
    """A learning problem: inputs, targets and the structure of the rows."""

    #: Inputs. Numbers: Float64, null where missing. Categories: text, "(missing)" where missing. Free text:
    #: text, empty where missing. Dates: Datetime without a zone, null where missing.
    features: pl.DataFrame
    target: np.ndarray  # one label (int or str) or number per row
    task: Literal["classification", "regression"]
    target_name: str  # name of the target column
    #: Group of each row as text; empty for groups that are too small to judge. None: no groups.
    groups: np.ndarray | None = None
    group_name: str | None = None  # name of the group column
    #: Number of the block of each row; a block is never divided. None: rows are independent.
    blocks: np.ndarray | None = None
    #: Number per row that copies of a row share. None: no copies.
    copies: np.ndarray | None = None
    notices: tuple[str, ...] = ()  # remarks about decisions that the table of columns does not show
    ids: tuple[str, ...] = ()  # columns that name the rows: not inputs, but copied to predictions
    text_as_missing: tuple[str, ...] = ()  # inputs in which cells of text count as missing
    kinds: tuple[str, ...] = ()  # kinds of the inputs, in order: "number", "category", "date" or "text"
    columns: tuple[ColumnUse, ...] = ()  # every column of the table except the target
    #: Time of each row (days since 1970, or the numbers of the column). Rows are sorted by it; rows of a test
    #: file follow, sorted among themselves.
    times: np.ndarray | None = None
    #: Rows of the test file, which follow the training rows. None: no test file.
    is_test: np.ndarray | None = None
    target_rows: pl.DataFrame | None = None  # unlabelled rows to predict, as `features`
    time_name: str | None = None
    split_name: str | None = None
    readings: tuple[Reading, ...] = ()  # how each input is parsed, also in other tables
    #: Whether the target is positive and skewed, so that its logarithm is worth trying.
    log_target_candidate: bool = False
    giveaways: tuple[str, ...] = ()  # inputs that alone predict the target almost perfectly
    target_reading: Reading | None = None  # how a numeric target is parsed from other tables

    @property
    def classes(self) -> list[Any]:
        """Classes in order; empty for regression."""
        return [] if self.task == "regression" else np.unique(self.target).tolist()

    @property
    def kind_of(self) -> dict[str, str]:
        """Kind of each input, as `TablePreprocessor` expects it."""
        return dict(zip(self.features.columns, self.kinds, strict=True))

    def reading(self) -> dict[str, Any]:
        """Return how the columns are parsed, for JSON; `columns.read_inputs` parses other tables with it."""
        target = {} if self.target_reading is None else {"target": self.target_reading.to_dict()}
        return {"columns": [reading.to_dict() for reading in self.readings], **target}

    def digest(self) -> str:
        """Return a fingerprint of inputs, targets, groups, blocks, times, test rows and target rows."""
        sha = hashlib.sha256(self.features.write_csv().encode())
        for part in (self.target, self.groups, self.blocks, self.times, self.is_test):
            sha.update(b"" if part is None else "\n".join(map(str, part.tolist())).encode())
        if self.kinds:
            sha.update(",".join(self.kinds).encode())
        if self.target_rows is not None:
            sha.update(self.target_rows.write_csv().encode())
        return sha.hexdigest()[:16]


def make_problem(
    table: Table,
    target: str,
    *,
    task: Task = "auto",
    group: str | None = None,
    split_by: str | None = None,
    time: str | None = None,
    group_as_input: bool = False,
    ids: Sequence[str] = (),
    as_: Mapping[str, str] | None = None,
    test: Table | None = None,
    target_rows: Table | None = None,
) -> TableProblem:
    """Decide the task and the columns that are used.

    Args:
        table: The rows.
        target: Column to predict; rows without it are dropped.
        task: ``"auto"`` predicts classes for text, true/false and whole numbers with at most 20 values, and
            numbers otherwise.
        group: Column of groups in which methods are judged.
        split_by: Column whose equal values stay on the same side of every split (a patient, a site).
        time: Column of dates or numbers. Rows are sorted by it; rows without a time are dropped.
        group_as_input: Also use the group column as an input.
        ids: Columns that name the rows; they are not inputs.
        as_: Kinds of columns that are recognised wrongly: ``"date"``, ``"number"``, ``"category"``,
            ``"text"`` or ``"id"``.
        test: Labelled rows for testing, read by the same rules.
        target_rows: Unlabelled rows to predict, read by the same rules.

    Raises:
        TableError: If there is nothing to learn, or if the options do not fit the table.

    Example:
        >>> frame = pl.DataFrame({"x": [i % 7 for i in range(60)], "y": ["a", "b"] * 30})
        >>> make_problem(Table(frame, "frame"), "y").task
        'classification'
    """
    if task not in get_args(Task):
        raise TableError(f"task must be one of {', '.join(get_args(Task))}, but got {task!r}.")
    roles = _Roles(target, group, split_by, time, group_as_input, tuple(ids), _overrides(table, target, as_))
    _check_roles(table, roles)
    notices = list(table.notices)
    main = _prepare(table, roles, notices)
    kind, labels = _target(main.frame[target], task, notices, table.decimal_comma)
    reading = _target_reading(main.frame[target], labels, table.decimal_comma)
    inputs = _recognise_inputs(main.frame, table, roles, notices)
    inputs, giveaways = _warn_of_giveaways(inputs, target, labels, kind, notices)
    copies = find_copies(_with_labels(inputs.features, labels))
    _say_copies(copies, roles, test is not None, notices)
    parts, targets, features = [main], [labels], [inputs.features]
    is_test = wanted = None
    if test is not None:
        said = list(test.notices)
        other, more = _read_test(test, table, roles, main.time, (labels, reading), said)
        rows = replace(test, frame=other.frame)
        features.append(read_inputs(inputs.readings, rows, what="inputs", notices=said))
        _say_known_rows(inputs.features, labels, features[-1], more, said)
        notices += _with_name(test, said)
        parts.append(other)
        targets.append(more)
        is_test = np.repeat([False, True], [len(part.frame) for part in parts])
    if target_rows is not None:
        said = list(target_rows.notices)
        wanted = read_inputs(inputs.readings, target_rows, what="inputs", notices=said)
        notices += _with_name(target_rows, said)
    return TableProblem(
        features=pl.concat(features),
        target=np.concatenate(targets),
        task=kind,
        target_name=target,
        groups=None if group is None else _groups(_joined(parts, group), is_test, notices),
        group_name=group,
        blocks=None if split_by is None else _blocks(_joined(parts, split_by)),
        copies=_copies_of(copies, sum(len(part.frame) for part in parts[1:])),
        notices=tuple(dict.fromkeys(notices)),
        ids=tuple(dict.fromkeys((*ids, *(use.name for use in inputs.uses if use.kind == "id")))),
        text_as_missing=tuple(reading.name for reading in inputs.readings if reading.text_as_missing),
        kinds=tuple(reading.kind for reading in inputs.readings),
        columns=inputs.uses,
        times=None if time is None else np.concatenate([part.times for part in parts]),
        is_test=is_test,
        target_rows=wanted,
        time_name=time,
        split_name=split_by,
        readings=inputs.readings,
        log_target_candidate=kind == "regression" and is_log_candidate(labels),
        giveaways=giveaways,
        target_reading=reading,
    )


def _warn_of_giveaways(
    inputs: _Inputs, target: str, labels: np.ndarray, task: str, notices: list[str]
) -> tuple[_Inputs, tuple[str, ...]]:
    """Mark columns that give the target away and add warnings."""
    giveaways = {each.name: each for each in find_giveaways(inputs.features, labels, task)}
    for each in giveaways.values():
        notices.append(
            f"Warning: {each.words(target)}. If you do not know it before the target, the scores are too "
            f"good to be true. Drop it with --as {shlex.quote(f'{each.name}=id')}."
        )
    uses = tuple(
        replace(
            use,
            detail="; ".join(part for part in (use.detail, "gives the target away?") if part),
            hint=f"--as {shlex.quote(f'{use.name}=id')}",
        )
        if use.name in giveaways
        else use
        for use in inputs.uses
    )
    return inputs._replace(uses=uses), tuple(giveaways)


def _with_labels(features: pl.DataFrame, labels: np.ndarray) -> pl.DataFrame:
    return features.with_columns(pl.Series("target of elliptica", labels))  # a name that tables do not have


def _say_copies(copies: Copies, roles: _Roles, has_test: bool, notices: list[str]) -> None:
    """Report rows that are equal in all inputs and in the target."""
    n = copies.n_equal
    if not n:
        return
    rows = f"{count(n, 'row')} of {len(copies.block):,}"
    if copies.by_chance:
        notices.append(
            f"{rows} {'equals' if n == 1 else 'equal'} another one. The columns have few values, so this is "
            "expected; all of them count as separate rows."
        )
        return
    text = f"{rows} {'is a copy' if n == 1 else 'are copies'} of another one."
    if roles.time is None and roles.split_by is None and not has_test:
        text += " Copies stay in the same fold, so no row is tested by a model that was trained on its copy."
    notices.append(text)


def _copies_of(copies: Copies, n_more: int) -> np.ndarray | None:
    """Number the copies; rows of a test file have none."""
    if not copies.n_equal or copies.by_chance:
        return None
    return np.append(copies.block, copies.block.max() + 1 + np.arange(n_more))


def _say_known_rows(
    features: pl.DataFrame, labels: np.ndarray, other: pl.DataFrame, more: np.ndarray, notices: list[str]
) -> None:
    """Warn about test rows that are among the training rows."""
    both = pl.concat([_with_labels(features, labels), _with_labels(other, more)])
    copies = find_copies(both)
    known = np.isin(copies.block[len(labels) :], copies.block[: len(labels)]).sum()
    if known and not copies.by_chance:
        notices.append(
            f"Warning: {count(int(known), 'test row')} of {len(more):,} "
            f"{'is a copy of a training row' if known == 1 else 'are copies of training rows'}, so scores "
            "look too good. Remove them."
        )


def _with_name(table: Table, notices: list[str]) -> list[str]:
    """Prefix notices with the name of the file that they are about."""
    return [each if table.name in each else f"{table.name}: {each}" for each in notices]


class _Roles(NamedTuple):
    """Roles of columns, as named by options."""

    target: str
    group: str | None
    split_by: str | None
    time: str | None
    group_as_input: bool
    ids: tuple[str, ...]
    as_: Mapping[str, Override]


def _overrides(table: Table, target: str, as_: Mapping[str, str] | None) -> dict[str, Override]:
    overrides: dict[str, Override] = {}
    for name, kind in (as_ or {}).items():
        check_column(table, name, "--as option")
        if kind not in get_args(Override):
            kinds = get_args(Override)
            hint = did_you_mean(kind, kinds) or f"Pass one of {', '.join(kinds)}."
            raise TableError(f"Column {name!r} cannot be read as {kind!r}. {hint}")
        if name == target:
            raise TableError(f"{name!r} is the target. Set its kind with --task, not with --as.")
        overrides[name] = kind  # type: ignore[assignment]
    return overrides


def _check_roles(table: Table, roles: _Roles) -> None:
    """Check that columns exist and that their roles do not exclude each other."""
    if (n := len(table.frame.columns)) > MAX_COLUMNS:
        raise TableError(
            f"{table.name} has {n:,} columns, but at most {MAX_COLUMNS:,} are supported. Keep the best ones."
        )
    target, group, ids = roles.target, roles.group, roles.ids
    special = [
        ("target", target),
        ("group", group),
        ("split-by", roles.split_by),
        ("time", roles.time),
        *(("id", name) for name in ids),
    ]
    for what, name in special:
        if name is not None:
            check_column(table, name, what)
    if target in (group, roles.split_by, roles.time, *ids):
        raise TableError(
            f"{target!r} is the target, so it cannot also be the group, split-by, time or id column. Name "
            "another column."
        )
    if roles.group_as_input and group is None:
        raise TableError("--group-as-input needs --group COLUMN.")
    if roles.group_as_input and group in ids:
        raise TableError(f"{group!r} cannot be both an id and an input. Omit --group-as-input or its --id.")


def has_target(column: pl.Series) -> pl.Series:
    """Mark the rows with a known target: not missing, and finite if it is a number."""
    known = column.is_not_null()
    if column.dtype.is_float():
        known &= column.is_finite().fill_null(False)
    return known


class _Rows(NamedTuple):
    """Rows with a target and, if there is a time column, a time."""

    frame: pl.DataFrame
    times: np.ndarray
    time: Reading | None

    def filter(self, known: np.ndarray) -> _Rows:
        """Keep some of the rows."""
        return _Rows(
            self.frame.filter(pl.Series(known)), self.times[known] if self.time else self.times, self.time
        )


def _prepare(table: Table, roles: _Roles, notices: list[str]) -> _Rows:
    """Return the usable rows of the training table, in the order of time."""
    frame = _with_target(table, roles.target, notices)
    if len(frame) < MIN_ROWS:
        raise TableError(
            f"There are {len(frame)} rows with a target, but at least {MIN_ROWS} are needed. With fewer, no "
            "test part is large enough to compare methods."
        )
    if roles.time is None:
        return _Rows(frame, np.empty(0), None)
    as_ = roles.as_.get(roles.time)
    time = time_reading(frame[roles.time], decimal_comma=table.decimal_comma, as_=as_)
    rows = _by_time(table, frame, time, notices)
    _check_times(rows, roles.time)
    return rows


def _with_target(table: Table, target: str, notices: list[str]) -> pl.DataFrame:
    known = has_target(table.frame[target])
    if lost := int((~known).sum()):
        notices.append(f"{lost} of {len(known)} rows have no target and are dropped.")
    return table.frame.filter(known)


def _by_time(table: Table, frame: pl.DataFrame, reading: Reading, notices: list[str]) -> _Rows:
    name = reading.name
    values = read_column(frame[name], reading, decimal_comma=table.decimal_comma, notices=notices)
    times = days_since_1970(values) if reading.kind == "date" else values
    if gaps := times.null_count():
        notices.append(
            f"{gaps} of {len(frame)} rows of {table.name} have no time in {name!r} and are dropped, because "
            "they cannot be placed before or after the others."
        )
        frame, times = frame.filter(times.is_not_null()), times.drop_nulls()
    if not times.is_sorted():
        notices.append(f"The rows of {table.name} are sorted by {name!r}.")
        order = np.argsort(times.to_numpy(), kind="stable")
        frame, times = frame[order], times[order]
    return _Rows(frame, times.to_numpy(), reading)


def _check_times(rows: _Rows, name: str) -> None:
    if (n := len(np.unique(rows.times))) < MIN_TIMES:
        same = f"the same value in all rows, {rows.frame[name][0]!r}" if n == 1 else f"{n} different values"
        raise TableError(
            f"The time column {name!r} has {same}, but at least {MIN_TIMES} are needed to train on the past "
            "and test on what follows. Name another column, or omit --time."
        )
    if len(rows.frame) < MIN_ROWS:
        raise TableError(
            f"There are {len(rows.frame)} rows with a target and a time, but at least {MIN_ROWS} are needed."
        )


def _read_test(
    test: Table,
    table: Table,
    roles: _Roles,
    time: Reading | None,
    learnt: tuple[np.ndarray, Reading | None],
    notices: list[str],
) -> tuple[_Rows, np.ndarray]:
    """Return the rows of the test file that can be scored, and their targets."""
    _check_test(test, table, roles)
    frame = _with_target(test, roles.target, notices)
    rows = _Rows(frame, np.empty(0), None)
    if time is not None and len(frame):
        rows = _by_time(test, frame, time, notices)
    if len(rows.frame):
        known, target = _test_target(rows.frame[roles.target], *learnt, notices, test)
        rows = rows.filter(known)
    if len(rows.frame) < MIN_TEST_ROWS:
        raise TableError(
            f"{test.name} has {len(rows.frame)} rows to test on, but at least {MIN_TEST_ROWS} are needed."
        )
    return rows, target


def _check_test(test: Table, table: Table, roles: _Roles) -> None:
    """Check that the test file has the columns that options name; inputs are checked when they are read."""
    for what, name in (("target", roles.target), ("group", roles.group), ("time", roles.time)):
        if name is not None and name not in test.frame.columns:
            others = [each for each in test.frame.columns if each not in table.frame.columns]
            hint = did_you_mean(name, others) or "A test file needs the columns of the table."
            raise TableError(f"{test.name} has no column {name!r}, the {what} of {table.name}. {hint}")
    if roles.split_by is not None and roles.split_by not in test.frame.columns:
        raise TableError(
            f"{test.name} has no column {roles.split_by!r}, the split-by column of {table.name}."
        )


def _test_target(
    column: pl.Series, labels: np.ndarray, reading: Reading | None, notices: list[str], test: Table
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the test file that can be scored, and their targets.

    Rows with a label that training never saw are dropped with a warning. Every method is wrong on them, so
    they do not show which one is better. If they are the majority, the labels are probably written
    differently, which raises.
    """
    if reading is not None and labels.dtype.kind == "f":
        values = read_column(column, reading, decimal_comma=test.decimal_comma, notices=notices).to_numpy()
        known = np.isfinite(values)
        return known, values[known]
    names = _label_names(column, reading, test.decimal_comma)
    classes = {str(label): label for label in np.unique(labels).tolist()}
    known = np.isin(names, list(classes))
    if not known.all():
        unseen = sorted(set(names[~known].tolist()))
        shown = ", ".join(map(repr, unseen[:5])) + (" ..." if len(unseen) > 5 else "")
        words = (
            f"{int((~known).sum())} of {len(names)} rows of {test.name} have a {column.name!r} that training"
        )
        if known.sum() <= 0.5 * len(known):
            raise TableError(
                f"{words} never saw: {shown}. Training has {', '.join(map(repr, list(classes)[:5]))}. Write "
                "the labels in the same way in both files."
            )
        notices.append(
            f"Warning: {words} never saw ({shown}). They are dropped, as no method can predict them."
        )
    return known, np.asarray([classes[label] for label in names[known].tolist()], dtype=labels.dtype)


def _label_names(column: pl.Series, reading: Reading | None, decimal_comma: bool) -> np.ndarray:
    """Return labels as text, whole numbers without signs and separators."""
    if reading is None or column.dtype != pl.String:
        return _labels(column).astype(str)
    numbers = read_written_numbers(column, reading, decimal_comma=decimal_comma).numbers.to_list()
    pairs = zip(column.to_list(), numbers, strict=True)
    return np.asarray([text if value is None or value % 1 else str(int(value)) for text, value in pairs])


def is_log_candidate(values: np.ndarray) -> bool:
    """Return whether numbers are positive and so skewed that their logarithm is worth trying.

    The rule: all are positive, at least 20 differ, their skewness is above 1, and the skewness of their
    logarithms is less than half of it.

    Example:
        >>> is_log_candidate(np.exp(np.linspace(0, 9, 50))), is_log_candidate(np.linspace(1, 9, 50))
        (True, False)
    """
    if len(np.unique(values)) < FEW_VALUES or values.min() <= 0:
        return False
    skewness = _skewness(values)
    return skewness > 1 and abs(_skewness(np.log(values))) < 0.5 * skewness


def _skewness(values: np.ndarray) -> float:
    centred = (values - values.mean()) / values.std()
    return float((centred**3).mean())


def _target(
    column: pl.Series, task: Task, notices: list[str], decimal_comma: bool
) -> tuple[Literal["classification", "regression"], np.ndarray]:
    if column.dtype.is_temporal():
        raise TableError(
            f"The target {column.name!r} holds dates or times. Compute a number from them, e.g. days."
        )
    if task != "classification" and column.dtype == pl.String:
        column = _written_numbers(column, notices, decimal_comma)
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
            "(change it with --task)."
        )
    if task == "regression":
        if not numeric:
            raise TableError(
                f"Regression needs a numeric target, but {column.name!r} holds text, e.g. "
                f"{str(column[0])!r}. Correct the column, or pass --task classification."
            )
        if n_values < 2:
            raise TableError(
                f"The target {column.name!r} has the same value in all rows, so there is nothing to learn."
            )
        return "regression", _real(column)
    labels = _labels(column)
    _check_classes(labels, column)
    return "classification", labels


def _target_reading(column: pl.Series, labels: np.ndarray, decimal_comma: bool) -> Reading | None:
    """Return how numbers, also those that are classes, are parsed from other tables; None for text."""
    if labels.dtype.kind not in "if":
        return None
    if column.dtype != pl.String:
        return Reading(column.name, "number", {"decimal": ","} if decimal_comma else {})
    return Reading(column.name, "number", find_notation(column, decimal_comma=decimal_comma)._asdict())


def _written_numbers(column: pl.Series, notices: list[str], decimal_comma: bool) -> pl.Series:
    """Parse numbers with thousands separators or signs; return other columns unchanged."""
    notation = find_notation(column, decimal_comma=decimal_comma)
    strays = find_strays(column, notation=notation)
    if len(strays.odd) or not notation.words():
        return column
    notices.append(f"Target {column.name!r}: {', '.join(notation.words())}.")
    whole = bool((strays.numbers % 1 == 0).all()) and bool((strays.numbers.abs() < 2**53).all())
    return strays.numbers.cast(pl.Int64) if whole else strays.numbers


def _real(column: pl.Series) -> np.ndarray:
    values = column.cast(pl.Float64).to_numpy()
    if (largest := float(np.abs(values).max())) > LARGEST:
        raise TableError(
            f"The target {column.name!r} has a value of {largest:g}, whose square overflows. If it is a code "
            "for a missing value, empty the cell; otherwise divide the column by a constant."
        )
    if (spread := float(np.ptp(values))) < 1 / LARGEST:
        raise TableError(
            f"The values of the target {column.name!r} differ by {spread:g} at most, whose square is zero in "
            "floating point. Multiply the column by a constant."
        )
    return values


def _refuse_stray_text(column: pl.Series, decimal_comma: bool) -> None:
    """Raise if a few cells of text turn a numeric target into text, which makes no sense as classes."""
    strays = find_strays(column, decimal_comma=decimal_comma)
    if 0 < strays.share < STRAY_SHARE:
        raise TableError(
            f"In the target {strays.words(column.name)}. Correct or empty them for a regression (rows "
            "without a target are dropped), or pass --task classification."
        )


def _labels(column: pl.Series) -> np.ndarray:
    """Return whole numbers as integers, and everything else as text, also integers that are too large."""
    if column.dtype.is_numeric() and bool((column.cast(pl.Float64) % 1 == 0).all()):
        whole = column.cast(pl.Int64, strict=False)
        if not whole.null_count():
            return whole.to_numpy()
    return np.asarray(column.cast(pl.String).to_list())


def _check_classes(labels: np.ndarray, column: pl.Series) -> None:
    values, counts = np.unique(labels, return_counts=True)
    if len(values) < 2:
        raise TableError(
            f"The target {column.name!r} has only one class, {values.tolist()[0]!r}. Nothing can be learnt."
        )
    if counts.min() < MIN_CLASS_ROWS:
        rare = values[counts < MIN_CLASS_ROWS].tolist()
        hint = " Or pass --task regression." if column.dtype.is_numeric() else ""
        raise TableError(
            f"Class {values[counts.argmin()].item()!r} of {column.name!r} has "
            f"{count(int(counts.min()), 'row')}, but {MIN_CLASS_ROWS} are needed so "
            f"that training, validation and test each have some ({len(rare)} of "
            f"{len(values)} classes are too small). Merge classes, or remove these rows.{hint}"
        )


def _groups(column: pl.Series, is_test: np.ndarray | None, notices: list[str]) -> np.ndarray:
    # the empty name stands for groups that are not judged, so no group of the table may have it
    text = column.cast(pl.String).fill_null(MISSING).replace("", "(empty)")
    if gaps := column.null_count():
        notices.append(f"Group {MISSING!r}: {count(gaps, 'row')} without a value in {column.name!r}.")
    judged = text if is_test is None else text.filter(pl.Series(is_test))
    counts = dict(judged.value_counts().iter_rows())
    if len(counts) > MAX_GROUPS:
        raise TableError(
            f"The group column {column.name!r} has {len(counts)} values, but at most {MAX_GROUPS} groups can "
            "be judged. Merge them, e.g. into ranges of a number."
        )
    small = sorted(name for name, count in counts.items() if count < MIN_GROUP_ROWS)
    large = [name for name in counts if name not in small]
    if len(large) < 2:
        where = "" if is_test is None else " in the test file"
        raise TableError(
            f"The group column {column.name!r} has {len(large)} groups of at least "
            f"{MIN_GROUP_ROWS} rows{where}, but at least two are needed. Merge small groups."
        )
    if small:
        notices.append(
            f"Groups with fewer than {MIN_GROUP_ROWS} rows are not judged separately: {', '.join(small)}."
        )
    if is_test is not None:
        new = sorted(set(counts) - set(text.filter(pl.Series(~is_test)).to_list()))
        if new:
            notices.append(f"Groups only in the test file: {', '.join(new)}. Training never sees them.")
    least = min(counts[name] for name in large)
    if least < 5 * MIN_GROUP_ROWS:
        notices.append(f"The smallest group has {least} rows, so worst-group scores are rough.")
    return np.asarray(["" if name in small else name for name in text.to_list()])


def _blocks(column: pl.Series) -> np.ndarray:
    if column.null_count():
        raise TableError(
            f"The split-by column {column.name!r} has {column.null_count()} missing values, so their side of "
            "the split is unknown. Fill them in, or remove the rows."
        )
    blocks = column.cast(pl.String).to_physical().rank("dense").to_numpy().astype(np.int64) - 1
    if (n := len(np.unique(blocks))) < MIN_BLOCKS:
        raise TableError(
            f"The split-by column {column.name!r} has {n} values, but at least {MIN_BLOCKS} are needed "
            "for training, validation and test. Split by another column."
        )
    return blocks


class _Inputs(NamedTuple):
    """The inputs of a problem."""

    features: pl.DataFrame
    readings: tuple[Reading, ...]
    uses: tuple[ColumnUse, ...]  # every column except the target


def _recognise_inputs(frame: pl.DataFrame, table: Table, roles: _Roles, notices: list[str]) -> _Inputs:
    """Decide how every column is used."""
    kept, readings, uses = [], [], []
    copies = find_copies(frame.select(column for column in frame.iter_columns() if is_usable(column)))
    distinct = frame.filter(copies.is_first) if copies.n_equal and not copies.by_chance else frame
    for column in frame.iter_columns():
        if column.name == roles.target:
            continue
        if (use := _use_by_role(column, roles)) is None:
            as_ = roles.as_.get(column.name)
            use, reading, values = recognise(
                column,
                table.frame[column.name],
                distinct=distinct[column.name],
                decimal_comma=table.decimal_comma,
                as_=as_,
                notices=notices,
            )
            if reading is not None and values is not None:
                kept.append(values)
                readings.append(reading)
        uses.append(use)
    if not kept:
        why = [f"Column {use.name!r} is not used: {use.detail}." for use in uses][-5:]
        why = why or [f"{table.name} has no column besides the target {roles.target!r}."]
        raise TableError("No column is left to predict from. " + " ".join(why))
    return _Inputs(pl.DataFrame(kept), tuple(readings), tuple(uses))


def _use_by_role(column: pl.Series, roles: _Roles) -> ColumnUse | None:
    """Return the use of a column that an option names; None if it may be an input."""
    name = column.name
    if name in roles.ids:
        return ColumnUse(name, "id", "identifier, not used")
    if name == roles.split_by:
        return ColumnUse(
            name, "unused", f"rows of equal value stay together, {count(column.n_unique(), 'value')}"
        )
    if name == roles.group and not roles.group_as_input:
        return ColumnUse(name, "unused", "group, not an input", "--group-as-input")
    return None


def _joined(parts: Sequence[_Rows], name: str) -> pl.Series:
    """Join a column of the table and of the test file, as text; 1 and 1.0 are equal."""
    return pl.concat([as_text(part.frame[name]) for part in parts])
