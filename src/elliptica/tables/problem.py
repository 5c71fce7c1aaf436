"""Turn a table into a learning problem: decide the task and the use of every column."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import polars as pl

from elliptica._utils.extras import count
from elliptica._utils.random import stream_seed
from elliptica._utils.statistics import is_beyond_chance
from elliptica.estimators.preprocess import MISSING, Kind
from elliptica.tables.table import (
    FEW_VALUES,
    Column,
    ColumnUse,
    Override,
    Table,
    TableError,
    as_category,
    check_column,
    clean,
    find_number,
    is_whole,
    needs_comma,
    read_inputs,
    recognise,
)

Task = Literal["auto", "classification", "regression"]

MIN_ROWS = 50
#: Minimum number of rows in a labelled test file; with fewer, methods are not distinguishable.
MIN_TEST_ROWS = 20
#: Minimum number of rows in a class, so that training, validation and test all have some.
MIN_CLASS_ROWS = 5
#: Groups with fewer rows are not judged, because their scores would be noise.
MIN_GROUP_ROWS = 10
MAX_GROUPS = 50
#: Minimum number of distinct times and of blocks, for training, validation and test.
MIN_PARTS = 3


@dataclass(frozen=True)
class Target:
    """The column to predict: how its cells are read, and its classes."""

    column: Column
    classes: tuple[Any, ...] = ()  # labels (int or str) in order; empty for regression

    def read(self, cells: pl.Series, where: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return which rows have a target, and the targets of these rows; raise for others than classes."""
        known = clean(cells).is_not_null()
        values = self.column.read(cells, where)
        if not self.classes:
            return known.to_numpy(), values.filter(known).to_numpy()
        names = clean(pl.Series([str(label) for label in self.classes])).to_list()
        places = dict(zip(names, self.classes, strict=True))
        new = (known & ~values.is_in(list(places))).arg_true()
        if len(new):
            raise TableError(
                f"{where}Column {self.column.name!r}, row {new[0] + 1}: {values[new[0]]!r} is not among the "
                f"classes ({', '.join(list(places)[:12])}). Correct the cell, or remove the row."
            )
        return known.to_numpy(), np.asarray([places[value] for value in values.filter(known)])

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Target:
        """Restore from the values of `TableProblem.reading`."""
        return cls(Column.from_json(state["column"]), tuple(state["classes"]))


@dataclass(frozen=True)
class TableProblem:
    """A learning problem: inputs, targets and the structure of the rows."""

    #: Inputs. Numbers: Float64, null where missing. Categories: text, "(missing)" where missing. Free text:
    #: text, empty where missing. Dates: Datetime without a zone, null where missing.
    features: pl.DataFrame
    target: np.ndarray  # one label (int or str) or number per row
    task: Literal["classification", "regression"]
    target_name: str  # name of the target column
    inputs: tuple[Column, ...]  # how each input is read, also from other tables
    goal: Target  # how the target is read from other tables
    columns: tuple[ColumnUse, ...]  # every column of the table except the target
    groups: np.ndarray | None = None  # group of each row as text
    judged: np.ndarray | None = None  # the same, but empty if the group is too small to judge
    group_name: str | None = None
    blocks: np.ndarray | None = None  # number of the block of each row; a block is never divided
    split_name: str | None = None
    split_values: np.ndarray | None = None  # value of the split column of each row
    copies: np.ndarray | None = None  # number per row that copies of a row share; None: no copies
    #: Time of each row (days since 1970, or the numbers of the column). Rows are sorted by it.
    times: np.ndarray | None = None
    clock: Column | None = None  # how times are read
    is_test: np.ndarray | None = None  # rows of the test file, which follow the training rows
    notices: tuple[str, ...] = ()  # remarks that the table of columns does not show
    ids: tuple[str, ...] = ()  # columns that name the rows: not inputs, but copied to predictions
    log_target_candidate: bool = False  # whether the logarithm of the target is worth trying
    giveaways: tuple[str, ...] = ()  # inputs that alone predict the target almost perfectly

    @property
    def classes(self) -> list[Any]:
        """Classes in order; empty for regression."""
        return list(self.goal.classes)

    @property
    def own_rows(self) -> np.ndarray:
        """Numbers of the rows of the table, without those of a test file."""
        return np.arange(len(self.target)) if self.is_test is None else np.flatnonzero(~self.is_test)

    @property
    def kind_of(self) -> dict[str, Kind]:
        """Kind of each input."""
        return {column.name: column.kind for column in self.inputs}

    def reading(self) -> dict[str, Any]:
        """Return how columns and target are read, for JSON."""
        return {"columns": [asdict(column) for column in self.inputs], "target": asdict(self.goal)}

    def show_time(self, time: float) -> str:
        """Write a time as a day, or as its number."""
        is_date = self.clock is not None and self.clock.kind == "date"
        return str(np.datetime64(int(time // 1), "D")) if is_date else f"{time:g}"

    def digest(self) -> str:
        """Return a fingerprint of inputs, targets, groups, blocks, times and test rows."""
        sha = hashlib.sha256(self.features.write_csv().encode())
        for part in (self.target, self.groups, self.blocks, self.times, self.is_test):
            sha.update(b"" if part is None else "\n".join(map(str, part.tolist())).encode())
        sha.update(",".join(self.kind_of.values()).encode())
        return sha.hexdigest()[:16]


def make_problem(
    table: Table,
    target: str,
    *,
    task: Task = "auto",
    group: str | None = None,
    split_by: str | None = None,
    time: str | None = None,
    as_: Mapping[str, str] | None = None,
    test: Table | None = None,
) -> TableProblem:
    """Decide the task and the columns that are used; arguments are those of `elliptica.tables.compare`.

    Rows without a target or a time are dropped, and rows are sorted by time. The task ``"auto"`` predicts
    classes for text, true/false and whole numbers with at most 20 values. Rows of ``test`` have labels, and
    are read in the notation of ``table``.
    """
    as_ = as_ or {}
    _check_roles(table, [target, *(name for name in (group, split_by, time) if name is not None), *as_], as_)
    uses: dict[str, ColumnUse] = {}
    if split_by is not None:
        uses[split_by] = ColumnUse(split_by, "unused", "rows of equal value stay together")
    if group is not None:
        uses[group] = ColumnUse(group, "unused", "group, not an input")
    notices = list(table.notices)
    comma = any(needs_comma(column) for column in table.frame.iter_columns())
    goal = find_target(table.frame[target], task, comma, notices)
    roles = [as_category(clean(table.frame[name])) for name in uses]
    inputs = _recognise_inputs(table, target, uses, as_, comma)
    clock = None if time is None else _find_time(table.frame[time], as_.get(time), comma)
    names = [column.name for column in inputs]
    parts = [_read_part(table, goal, clock, [*inputs, *roles], MIN_ROWS, notices)]
    _check_target(goal, parts[0].target)
    giveaways = _mark_giveaways(uses, parts[0].features.select(names), parts[0].target, goal)
    is_test = None
    if test is not None:
        parts.append(_read_part(test, goal, clock, [*inputs, *roles], MIN_TEST_ROWS, notices))
        is_test = np.repeat([False, True], [len(part.target) for part in parts])
    rows, targets = pl.concat([part.features for part in parts]), [part.target for part in parts]
    groups = None if group is None else rows[group]
    return TableProblem(
        features=rows.select(names),
        target=np.concatenate(targets),
        task="classification" if goal.classes else "regression",
        target_name=target,
        inputs=inputs,
        goal=goal,
        columns=tuple(uses[name] for name in table.frame.columns if name != target),
        groups=None if groups is None else groups.to_numpy().astype(str),
        judged=None if groups is None else _judged(groups, is_test, notices),
        group_name=group,
        blocks=None if split_by is None else _blocks(rows[split_by]),
        split_name=split_by,
        split_values=None if split_by is None else rows[split_by].to_numpy(),
        copies=_find_copies(rows.select(names), targets, notices),
        times=None if time is None else np.concatenate([part.times for part in parts]),
        clock=clock,
        is_test=is_test,
        notices=tuple(notices),
        ids=tuple(name for name, use in uses.items() if use.kind == "id"),
        log_target_candidate=not goal.classes and is_log_candidate(parts[0].target),
        giveaways=giveaways,
    )


def _check_roles(table: Table, names: Sequence[str], as_: Mapping[str, str]) -> None:
    """Raise if columns do not exist, or if the first of them, the target, has another role."""
    for name in names:
        check_column(table, name, "target" if name == names[0] else "other roles")
    if names[0] in names[1:]:
        raise TableError(f"{names[0]!r} is the target, so it cannot have another role.")
    if wrong := set(as_.values()) - {*get_args(Override)}:
        raise TableError(f"--as takes {', '.join(get_args(Override))}, but got {', '.join(wrong)}.")


def find_target(cells: pl.Series, task: Task, comma: bool, notices: list[str]) -> Target:
    """Decide the task and how the target is read."""
    name, known = cells.name, clean(cells)
    if known.dtype.is_temporal():
        raise TableError(f"The target {name!r} holds dates or times. Compute a number from them, e.g. days.")
    n_values = known.drop_nulls().n_unique()
    number = _number_column(known, n_values, comma) if task != "classification" else None
    if task == "auto":
        task = "classification"
        if number is not None:
            has_points = known.dtype.is_float() or known.cast(pl.String).str.contains(r"\d\.").any()
            whole = bool((number.read(cells).drop_nulls() % 1 == 0).all())
            few = whole and n_values <= (2 if has_points else FEW_VALUES)
            task = "classification" if few else "regression"
        notices.append(
            f"Task: {task}, because {name!r} holds {'text' if number is None else 'numbers'} with "
            f"{n_values} distinct values (change it with --task)."
        )
    if task == "regression":
        return Target(number or Column(name, "number"))
    column = as_category(known)
    labels = column.read(cells).filter(known.is_not_null()).unique().sort()
    if is_whole(labels) and all(abs(int(label)) < 2**63 for label in labels):
        return Target(column, tuple(sorted(int(label) for label in labels)))
    return Target(column, tuple(labels))


def _number_column(known: pl.Series, n_values: int, comma: bool) -> Column | None:
    """Return the notation of a target that holds numbers; a few other cells raise when it is read."""
    if known.dtype.is_numeric():
        return Column(known.name, "number")
    if known.str.contains(r"^[-+]?0\d+$").any():
        return None
    column, share = find_number(known, comma=comma)
    return column if share == 1 or (share >= 0.9 and n_values > FEW_VALUES) else None


def _check_target(goal: Target, target: np.ndarray) -> None:
    name = goal.column.name
    values, counts = np.unique(target, return_counts=True)
    if len(values) < 2:
        raise TableError(f"The target {name!r} has the same value in all rows, so there is nothing to learn.")
    if goal.classes and counts.min() < MIN_CLASS_ROWS:
        raise TableError(
            f"Class {values[counts.argmin()].item()!r} of {name!r} has {count(int(counts.min()), 'row')}, "
            f"but {MIN_CLASS_ROWS} are needed so that training, validation and test each have some. Merge "
            "classes, remove these rows, or pass --task regression."
        )


def _recognise_inputs(
    table: Table, target: str, uses: dict[str, ColumnUse], as_: Mapping[str, str], comma: bool
) -> tuple[Column, ...]:
    """Decide how all other columns than the target and those in ``uses`` are used, and add them there."""
    inputs = []
    for name in table.frame.columns:
        if name != target and name not in uses:
            kind = cast("Override | None", as_.get(name))
            uses[name], column = recognise(table.frame[name], as_=kind, comma=comma)
            inputs += [] if column is None else [column]
    if not inputs:
        raise TableError(f"{table.name} has no column to predict {target!r} from.")
    return tuple(inputs)


def _find_time(cells: pl.Series, as_: str | None, comma: bool) -> Column:
    """Decide how a column of times is read: as dates, or as increasing numbers."""
    kind: Any = as_ if as_ in ("date", "number") else None  # what else it is concerns inputs
    column = recognise(cells, as_=kind, comma=comma)[1]
    if column is None or column.kind not in ("date", "number"):
        column = recognise(cells, as_="number", comma=comma)[1]
    if column is None:
        raise TableError(f"The time column {cells.name!r} holds neither dates nor numbers that differ.")
    return column


class _Part(NamedTuple):
    """Rows of one table that have a target and, if there is a time column, a time."""

    features: pl.DataFrame  # inputs, and group and split-by columns as categories
    target: np.ndarray
    times: np.ndarray


def _read_part(
    table: Table, goal: Target, clock: Column | None, used: Sequence[Column], least: int, notices: list[str]
) -> _Part:
    """Read a table in the notation of training, in the order of time."""
    for column in filter(None, (goal.column, clock)):
        check_column(table, column.name, "test rows")
    known, target = goal.read(table.frame[goal.column.name], f"{table.name}: ")
    features = read_inputs(used, table)
    rows, times = np.flatnonzero(known), np.empty(0)
    if lost := len(known) - len(rows):
        notices.append(f"{lost} of {len(known)} rows of {table.name} have no target and are dropped.")
    if clock is not None:
        values = clock.read(table.frame[clock.name], f"{table.name}: ")
        if clock.kind == "date":
            values = values.cast(pl.Int64) / 8.64e10  # days since 1970
        times = values.to_numpy()[rows]
        if lost := int(np.isnan(times).sum()):
            notices.append(f"{lost} rows of {table.name} have no time in {clock.name!r} and are dropped.")
        order = np.argsort(times, kind="stable")[: len(times) - lost]  # missing times are last
        rows, target, times = rows[order], target[order], times[order]
        if len(np.unique(times)) < MIN_PARTS:
            raise TableError(
                f"The time column {clock.name!r} has {len(np.unique(times))} values, but {MIN_PARTS} are "
                "needed to train on the past and test on what follows."
            )
    if len(rows) < least:
        raise TableError(
            f"{table.name} has {count(len(rows), 'row')} with a target{' and a time' if clock else ''}, "
            f"but at least {least} are needed."
        )
    return _Part(features[rows], target, times)


def _mark_giveaways(
    uses: dict[str, ColumnUse], features: pl.DataFrame, target: np.ndarray, goal: Target
) -> tuple[str, ...]:
    """Mark inputs that give the target away."""
    task = "classification" if goal.classes else "regression"
    giveaways = find_giveaways(features, target, task)
    for name in giveaways:
        hint = f"--as {shlex.quote(f'{name}=id')}"
        detail = "; ".join(part for part in (uses[name].detail, "gives the target away?") if part)
        uses[name] = replace(uses[name], detail=detail, hint=hint)
    return tuple(giveaways)


def _find_copies(
    features: pl.DataFrame, targets: Sequence[np.ndarray], notices: list[str]
) -> np.ndarray | None:
    """Number the rows so that copies share a number; None if there are no copies."""
    block = find_copies(features.with_columns(pl.Series("target of elliptica", np.concatenate(targets))))
    if block is None:
        return None
    n, n_equal = len(targets[0]), len(block) - int(block.max()) - 1
    notices.append(f"{n_equal:,} of {len(block):,} rows equal another. Random folds keep copies together.")
    if n_known := int(np.isin(block[n:], block[:n]).sum()):
        notices.append(f"Warning: {n_known:,} test rows are copies of training rows. Remove them.")
    return block


def _judged(text: pl.Series, is_test: np.ndarray | None, notices: list[str]) -> np.ndarray:
    """Return the groups that have enough tested rows to be judged; others are empty."""
    tested = text if is_test is None else text.filter(pl.Series(is_test))
    counts = dict(tested.value_counts().iter_rows())
    small = sorted(name for name, n in counts.items() if n < MIN_GROUP_ROWS)
    n_large = len(counts) - len(small)
    if n_large < 2 or len(counts) > MAX_GROUPS:
        raise TableError(
            f"The group column {text.name!r} has {len(counts)} values, {n_large} of them with at least "
            f"{MIN_GROUP_ROWS} rows, but 2 to {MAX_GROUPS} groups can be judged. Merge groups."
        )
    if small:
        notices.append(
            f"Groups with fewer than {MIN_GROUP_ROWS} rows are not judged separately: {', '.join(small)}."
        )
    return np.asarray(["" if name in small else name for name in text])


def _blocks(text: pl.Series) -> np.ndarray:
    gaps = int((text == MISSING).sum())
    n_values = text.n_unique() - (gaps > 0)
    if gaps or n_values < MIN_PARTS:
        raise TableError(
            f"The split-by column {text.name!r} has {count(n_values, 'value')} and {count(gaps, 'gap')}. It "
            f"needs {MIN_PARTS} values or more, and no gaps: one to test, one to choose settings, one to "
            "train. With two values, put the rows of one into a file and pass --test FILE."
        )
    return text.rank("dense").to_numpy().astype(np.int64) - 1


def is_log_candidate(values: np.ndarray) -> bool:
    """Return whether numbers are positive and so skewed that their logarithm is worth trying.

    At least 20 differ, their skewness is above 1, and that of their logarithms less than half of it.
    """
    if len(np.unique(values)) < FEW_VALUES or values.min() <= 0:
        return False
    before, after = (float(pl.Series(each).skew() or 0) for each in (values, np.log(values)))
    return before > 1 and abs(after) < 0.5 * before


#: A column that alone explains this share of the target gives it away.
GIVEN_AWAY = 0.99
#: Maximum number of rows that are inspected.
MOST_ROWS = 5_000


def find_giveaways(features: pl.DataFrame, target: np.ndarray, task: str) -> list[str]:
    """Return the names of inputs that predict the target almost perfectly on their own.

    Every row is predicted from other rows by two tiny models: from rows with an equal value, and from the two
    neighbours in the order of the column. Numbers are predicted by rank, so units and heavy tails do not
    matter. The skill of the better model is the share that it explains of the variance of ranks, or of the
    errors of a random guess.
    """
    draws = np.random.default_rng(stream_seed("giveaways", 0))
    if len(target) > MOST_ROWS:
        rows = np.sort(draws.choice(len(target), MOST_ROWS, replace=False))
        features, target = features[rows], target[rows]
    skill_of = _class_skill if task == "classification" else _number_skill
    labels = np.unique(target, return_inverse=True)[1]
    values = labels if task == "classification" else pl.Series(target).rank().to_numpy()
    jitter = draws.random(len(target))
    giveaways = []
    for column in features.iter_columns():
        codes = np.unique(column.rank("dense").fill_null(0).to_numpy(), return_inverse=True)[1]
        ordered = values[np.lexsort((jitter, codes))]  # equal values in random order
        if skill_of(codes, values, ordered) > GIVEN_AWAY:
            giveaways.append(column.name)
    return giveaways


def _number_skill(codes: np.ndarray, values: np.ndarray, ordered: np.ndarray) -> float:
    """Predict numbers from other rows with an equal value (or all rows), or from neighbours."""
    sizes = np.bincount(codes)[codes]
    others = (np.bincount(codes, values)[codes] - values) / np.maximum(sizes - 1, 1)
    by_value = np.square(values - np.where(sizes > 1, others, values.mean())).mean() / values.var()
    by_neighbours = np.square(ordered[1:-1] - (ordered[:-2] + ordered[2:]) / 2).mean() / ordered[1:-1].var()
    return 1 - float(min(by_value, by_neighbours))


def _class_skill(codes: np.ndarray, labels: np.ndarray, ordered: np.ndarray) -> float:
    """Predict classes likewise; borders between sorted classes do not count as errors of neighbours."""
    votes = np.zeros((codes.max() + 1, labels.max() + 1))
    np.add.at(votes, (codes, labels), 1)
    votes = votes[codes]
    votes[np.arange(len(labels)), labels] -= 1  # a row must not predict itself
    votes[~votes.any(1)] = np.bincount(labels)
    changes = int((ordered[1:] != ordered[:-1]).sum()) - int(ordered.max())
    errors = min(float((votes.argmax(1) != labels).mean()), changes / len(labels))
    return 1 - errors / float(1 - np.square(np.bincount(labels) / len(labels)).sum())  # of a random guess


def find_copies(frame: pl.DataFrame) -> np.ndarray | None:
    """Number the rows, equal ones alike; None if none are equal, or only by chance.

    Rows with a few categories agree by chance. If columns were independent, the share of equal pairs of rows
    would be the product of the shares of all columns; a hundred times more means copies.
    """
    index = "row of elliptica"  # a name that tables do not have
    first = frame.with_row_index(index).select(pl.col(index).first().over(frame.columns))
    block = np.unique(first.to_series().to_numpy(), return_inverse=True)[1]
    columns = (column.value_counts()[:, 1].to_numpy() for column in frame.iter_columns())
    return block if is_beyond_chance(np.bincount(block), columns) else None
