"""Read tables from CSV, Parquet or frames; the cells of a CSV file stay text."""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from elliptica._utils.random import stream_seed

MAX_ROWS = 200_000
SEPARATORS = (",", ";", "\t", "|")
#: Text that means "missing", besides empty cells; the last line are errors of spreadsheets.
MISSING = (
    *("NA", "N/A", "#N/A", "n/a", "#NA", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "?"),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!"),
)
#: Tables that need no file, with the column to predict.
BUILT_IN = {
    "diabetes": "progression",
    "breast_cancer": "diagnosis",
    "wine": "cultivar",
    "digits": "digit",
    "iris": "species",
    "california_housing": "price",
}
#: Meanings of the blood values in the diabetes table.
_DIABETES = {
    "bp": "blood pressure",
    "s1": "cholesterol",
    "s2": "ldl",
    "s3": "hdl",
    "s4": "cholesterol/hdl",
    "s5": "log triglycerides",
    "s6": "glucose",
}
_HEAD = 50  # rows from which the separator is detected


class TableError(ValueError):
    """A table, a column or an option that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Table:
    """A table as read from a file or frame."""

    frame: pl.DataFrame  # the rows; cells of a CSV file are text
    name: str  # name of the file, for messages
    notices: tuple[str, ...] = ()  # remarks about how it was read
    is_sample: bool = False  # whether rows were drawn from a longer table


def read_table(
    source: str | Path | Any, *, max_rows: int | None = MAX_ROWS, sample: bool = False, seed: int = 0
) -> Table:
    """Read a table from a file, or take it from a frame.

    Rows are counted before they are read, so a file that is too long raises without being loaded. Text is
    stripped, and cells such as ``NA`` are missing values.

    Args:
        source: Path of a ``.parquet`` or ``.pq`` file, of a CSV file (any other name), a polars or pandas
            frame, or, if there is no such file, the name of a table of scikit-learn (see `BUILT_IN`).
        max_rows: Maximum number of rows; None means no limit. Longer tables raise.
        sample: Use a random sample of ``max_rows`` rows of a longer table instead of raising.
        seed: Seed of that sample.

    Raises:
        TableError: If the table does not exist or cannot be used.
    """
    blank: list[int] = []
    if not isinstance(source, str | Path):
        name, lazy = "frame", _frame(source).lazy()
    elif (file := Path(source)).is_file():
        name, (lazy, blank) = file.name, _scan(file)
    elif str(source) in BUILT_IN:
        name, lazy = str(source), _built_in(str(source)).lazy()
    else:
        raise TableError(
            f"{source} is not a file. Pass a CSV or Parquet file. Tables that need no file: "
            f"{', '.join(BUILT_IN)}."
        )
    try:
        n_rows = lazy.select(pl.len()).collect().item() - len(blank)
        is_sample = max_rows is not None and n_rows > max_rows
        if is_sample and not sample:
            raise TableError(
                f"{name} has {n_rows:,} rows, but at most {max_rows:,} are read. Split it, or raise "
                "--max-rows (max_rows=)."
            )
        kept = np.delete(np.arange(n_rows + len(blank)), blank)
        if is_sample:
            draws = np.random.default_rng(stream_seed("sample", seed))
            kept = np.sort(kept[draws.choice(n_rows, max_rows, replace=False)])
        frame = lazy.collect() if len(kept) == n_rows + len(blank) else _rows(lazy, kept)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(name, error) from error
    if not len(frame):
        raise TableError(f"{name} has column names but no rows.")
    text = pl.col(pl.String).str.strip_chars()
    frame = frame.with_columns(pl.when(text.is_in(["", *MISSING])).then(None).otherwise(text).name.keep())
    notices = (f"A random sample of {max_rows:,} of {n_rows:,} rows is used.",) if is_sample else ()
    return Table(frame, name, notices, is_sample)


def _unreadable(name: str, error: Exception) -> TableError:
    return TableError(
        f"{name} cannot be read: {str(error).splitlines()[0]}. Save it as CSV in UTF-8, or as Parquet."
    )


def _rows(lazy: pl.LazyFrame, rows: np.ndarray) -> pl.DataFrame:
    index = "row index of elliptica"  # a name that tables do not have
    numbered = lazy.with_row_index(index)
    return numbered.filter(pl.col(index).is_in(rows.astype(np.uint32).tolist())).drop(index).collect()


def _scan(file: Path) -> tuple[pl.LazyFrame, list[int]]:
    """Open a file, and return which of its rows are blank lines."""
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            return pl.scan_parquet(file, glob=False), []  # data[1].csv is a name, not a pattern
        names, separator, blank = _check_csv(file)
        lazy = pl.scan_csv(file, separator=separator, infer_schema=False, glob=False, new_columns=names)
        return lazy, blank
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(file.name, error) from error


def _check_csv(file: Path) -> tuple[list[str], str, list[int]]:
    """Return the column names, the separator and the blank rows of a CSV file.

    Polars fills short rows with missing values and renames columns of equal name, which hides a broken file.
    """
    separator = max(SEPARATORS, key=lambda each: _agreement(file, each))
    with file.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.reader(handle, delimiter=separator)
        names = [name.strip() for name in next(filter(None, reader), [])]
        if len(names) < 2 or len(set(names)) < len(names):
            raise TableError(
                f"{file.name} needs at least two columns with different names, but its first line has "
                f"{', '.join(map(repr, names[:12]))}."
            )
        blank = []
        for number, row in enumerate(reader):
            if not row:
                blank.append(number)
            elif len(row) != len(names):
                raise TableError(
                    f"Line {reader.line_num} of {file.name} has {len(row)} cells, but the header has "
                    f"{len(names)}. A missing value is an empty cell; cells with a separator need quotes."
                )
    return names, separator, blank


def _agreement(file: Path, separator: str) -> tuple[float, int]:
    """Return the share of the first rows that are as long as the header, and its length."""
    with file.open(encoding="utf-8-sig", newline="") as handle:
        rows = [row for row in itertools.islice(csv.reader(handle, delimiter=separator), _HEAD) if row]
    width = len(rows[0]) if rows else 0
    return (sum(len(row) == width for row in rows) / len(rows) if width > 1 else 0.0), width


def _built_in(name: str) -> pl.DataFrame:
    """Load a table of scikit-learn, with column names that say what they hold."""
    from sklearn import datasets

    if name == "california_housing":  # the only one that scikit-learn has to download
        data = datasets.fetch_california_housing(download_if_missing=False)
    else:
        options = {"scaled": False} if name == "diabetes" else {}
        data = getattr(datasets, f"load_{name}")(**options)
    target = np.asarray(data.target)
    if hasattr(data, "target_names") and name not in ("digits", "california_housing"):
        target = np.asarray(data.target_names)[target]
    names = [_DIABETES.get(each, each) for each in data.feature_names]
    columns = [pl.Series(each, np.asarray(data.data)[:, j]) for j, each in enumerate(names)]
    return pl.DataFrame([*columns, pl.Series(BUILT_IN[name], target.tolist())])


def _frame(source: Any) -> pl.DataFrame:
    """Convert a frame of pandas column by column, because polars' own conversion needs pyarrow."""
    if isinstance(source, pl.LazyFrame):
        return source.collect()
    if isinstance(source, pl.DataFrame):
        return source
    return pl.DataFrame([_series(str(name), source.iloc[:, i]) for i, name in enumerate(source.columns)])


def _series(name: str, column: Any) -> pl.Series:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return pl.Series(name, column.to_numpy(), nan_to_null=True)
    values = column.astype(object).where(column.notna(), None).tolist()
    try:
        return pl.Series(name, values)
    except (TypeError, pl.exceptions.PolarsError):  # mixed types
        return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)


def check_column(table: Table, name: str, what: str) -> None:
    """Raise if a table lacks a column, and list those that it has."""
    if name not in (names := table.frame.columns):
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        raise TableError(
            f"{table.name} has no column {name!r} for the {what}. Its columns are "
            f"{', '.join(map(repr, names[:12]))}{more}."
        )
