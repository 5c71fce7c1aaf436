"""Read tables from CSV, Parquet or frames; columns hold numbers or text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from elliptica._utils.random import stream_seed
from elliptica._utils.text import did_you_mean
from elliptica.tables.csv import TableError as TableError
from elliptica.tables.csv import check_rectangular, looks_like_numbers, read_dialect

MAX_ROWS = 200_000
#: Largest supported number of columns; networks on more take hours.
MAX_COLUMNS = 10_000
TOO_LONG = (
    "because every method is trained many times. Pass --sample (sample=True) for a random sample of that "
    "size, or raise --max-rows (max_rows=)."
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


class _Limit(NamedTuple):
    """Maximum number of rows, and how longer tables are handled."""

    max_rows: int | None
    sample: bool
    seed: int
    too_long: str


#: Cells of a CSV file that mean "missing", besides empty ones; the last line are errors of spreadsheets.
MISSING = (
    *("NA", "N/A", "#N/A", "n/a", "#NA", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "?"),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!"),
)
#: Points that separate thousands if the file has decimal commas.
_GROUPED = r"^[-+]?[1-9]\d{0,2}(\.\d{3})+$"


@dataclass(frozen=True)
class Table:
    """A table as read from a file or frame."""

    frame: pl.DataFrame  # the rows
    name: str  # name of the file, for messages
    notices: tuple[str, ...] = ()  # remarks about how it was read
    headless: bool = False  # whether the column names are numbers, as in a file without a header
    decimal_comma: bool = False  # whether 1,5 is a number, for cells that stay text


def read_table(
    source: str | Path | Any,
    *,
    max_rows: int | None = MAX_ROWS,
    sample: bool = False,
    seed: int = 0,
    as_text: bool = False,
    decimal_comma: bool = False,
    too_long: str = TOO_LONG,
) -> Table:
    """Read a table from a file, or take it from a frame.

    Rows are counted before they are read, so a file that is too long raises without being loaded.

    Args:
        source: Path of a ``.parquet`` or ``.pq`` file, of a CSV file (any other name), a polars or pandas
            frame, or, if there is no such file, the name of a table of scikit-learn (see `BUILT_IN`).
        max_rows: Maximum number of rows; None means no limit. Longer tables raise.
        sample: Use a random sample of ``max_rows`` rows of a longer table instead of raising.
        seed: Seed of that sample.
        as_text: Leave the cells of a CSV file as text.
        decimal_comma: Whether the table that this one belongs to has decimal commas, so that ``3.655`` may
            be three thousand here as well.
        too_long: Reason and remedy in the error for longer tables.

    Raises:
        TableError: If the table does not exist or cannot be used.

    Example:
        >>> table = read_table(pl.DataFrame({"age": [41, 29], "sick": ["no", "yes"]}))
        >>> table.frame.shape
        (2, 2)
    """
    limit = _Limit(max_rows, sample, seed, too_long)
    if not isinstance(source, str | Path):
        return _from_frame(source, limit)
    file = Path(source)
    check_path(file)
    if not file.exists() and str(source) in BUILT_IN:
        return _from_frame(_built_in(str(source)), limit, str(source))
    if not file.is_file():
        other = "is a pipe or a device" if file.exists() else "does not exist"
        what = "is a folder" if file.is_dir() else other
        hint = did_you_mean(str(source), BUILT_IN) or f"Tables that need no file: {', '.join(BUILT_IN)}."
        raise TableError(f"{file} {what}. Pass the path of a CSV or Parquet file. {hint}")
    if file.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(file, limit)
    return _read_csv(file, limit, as_text, decimal_comma)


def _read_csv(file: Path, limit: _Limit, as_text: bool, decimal_comma: bool) -> Table:
    dialect = read_dialect(file)
    _check_width(file.name, len(dialect.header))
    # read all cells as text: we decide types later, and an odd value far down must not stop the reader
    lazy = pl.scan_csv(file, separator=dialect.separator, infer_schema=False, glob=False)
    try:
        n_rows = lazy.select(pl.len()).collect().item()
        notices = _check_length(file.name, n_rows, limit)
        if (n := len(lazy.collect_schema())) != len(dialect.header):
            raise TableError(
                f"The first line of {file.name} has {n} or {len(dialect.header)} column names, depending on "
                "which line ends and quotes count. Save it with plain line ends (LF or CRLF)."
            )
        is_whole = limit.max_rows is None or n_rows <= limit.max_rows
        n_records, blank = check_rectangular(file, dialect, None if is_whole else limit.max_rows)
        frame = _collect(lazy, n_rows, limit)
    except pl.exceptions.PolarsError as error:
        raise TableError(
            f"{file.name} cannot be read as CSV: {str(error).splitlines()[0]}. Open it and look for broken "
            "quotes, rows of unequal length, or text that is not UTF-8."
        ) from error
    frame = frame.rename(dict(zip(frame.columns, dialect.header, strict=True)))
    text = pl.all().str.strip_chars()
    frame = frame.select(pl.when(text.is_in(["", *MISSING])).then(None).otherwise(text).name.keep())
    if n_rows == len(frame):  # line numbers of a sample are unknown, but it needs targets anyway
        frame = frame.filter(~pl.int_range(pl.len()).is_in(blank))
        if len(frame) != (n := n_records - len(blank)):  # such as \r\r\n, of a writer in text mode
            raise TableError(
                f"{file.name} has {len(frame)} or {n} rows, depending on which line ends and quotes count. "
                "Save it with plain line ends (LF or CRLF), e.g. with "
                f"tr -d '\\r' < {file.name} > plain-{file.name}"
            )
    _check_not_empty(file.name, frame)
    if dialect.separator != ",":
        notices.append(f"Cells are separated by {dialect.separator!r}.")
    if not as_text:
        commas = dialect.decimal_comma or decimal_comma
        frame = frame.with_columns(_typed(column, commas) for column in frame.iter_columns())
    headless = looks_like_numbers(dialect.header)
    return Table(frame, file.name, tuple(notices), headless, dialect.decimal_comma)


def _typed(column: pl.Series, decimal_comma: bool) -> pl.Series:
    """Convert to integers or floats if all cells are numbers, otherwise keep text; kinds are decided later.

    Codes with leading zeros and integers that no type can hold stay text, because as numbers they would lose
    digits. In a file with decimal commas, so do columns whose points may all separate thousands.
    """
    whole = column.cast(pl.Int64, strict=False)
    if whole.null_count() == column.null_count():
        return column if column.str.contains(r"^[-+]?0\d").any() else whole
    numbers = as_numbers(column, decimal_comma=decimal_comma)
    if numbers.null_count() > column.null_count() or column.str.contains(r"^[-+]?\d{19,}$|^[-+]?0\d").any():
        return column
    points = column.filter(column.str.contains(".", literal=True))
    if decimal_comma and len(points) and points.str.contains(_GROUPED).all():
        return column
    return numbers


def as_numbers(column: pl.Series, *, decimal_comma: bool = False) -> pl.Series:
    """Parse text as numbers; other cells become missing."""
    if decimal_comma:
        column = column.str.replace(",", ".", literal=True)
    return column.cast(pl.Float64, strict=False)


def _read_parquet(file: Path, limit: _Limit) -> Table:
    lazy = pl.scan_parquet(file, glob=False)  # data[1].csv is a name, not a pattern
    try:
        _check_width(file.name, len(lazy.collect_schema()))
        n_rows = lazy.select(pl.len()).collect().item()
        notices = _check_length(file.name, n_rows, limit)
        frame = _collect(lazy, n_rows, limit)
    except pl.exceptions.PolarsError as error:
        raise TableError(
            f"{file.name} cannot be read as Parquet: {str(error).splitlines()[0]}. Check that it was written "
            "completely."
        ) from error
    _check_not_empty(file.name, frame)
    return Table(frame, file.name, tuple(notices))


def _from_frame(source: Any, limit: _Limit, name: str = "frame") -> Table:
    if isinstance(source, pl.LazyFrame):
        source = source.collect()
    if not isinstance(source, pl.DataFrame):
        source = _from_pandas(source)
    _check_width("The frame", source.width)
    notices = _check_length("The frame", len(source), limit)
    frame = _collect(source.lazy(), len(source), limit)
    _check_not_empty("The frame", frame)
    return Table(frame, name, tuple(notices))


def _built_in(name: str) -> pl.DataFrame:
    """Load a table of scikit-learn, with column names that say what they hold."""
    from sklearn import datasets

    if name == "california_housing":  # the only one that scikit-learn has to download
        try:
            data = datasets.fetch_california_housing(download_if_missing=False)
        except OSError as error:
            raise TableError(
                "The table california_housing is not on this machine. Download it once: "
                "python -c 'from sklearn.datasets import fetch_california_housing as f; f()'"
            ) from error
    else:
        options = {"scaled": False} if name == "diabetes" else {}
        data = getattr(datasets, f"load_{name}")(**options)
    target = np.asarray(data.target)
    if hasattr(data, "target_names") and name not in ("digits", "california_housing"):
        target = np.asarray(data.target_names)[target]
    names = [_DIABETES.get(each, each) for each in data.feature_names]
    columns = [pl.Series(each, np.asarray(data.data)[:, j]) for j, each in enumerate(names)]
    return pl.DataFrame([*columns, pl.Series(BUILT_IN[name], target.tolist())])


def _from_pandas(source: Any) -> pl.DataFrame:
    """Convert column by column, because polars' own conversion needs pyarrow."""
    if not hasattr(source, "columns") or not hasattr(source, "to_numpy"):
        raise TableError(
            f"Expected a path, or a polars or pandas frame, but got {type(source).__name__}. Convert it to a "
            "frame with named columns."
        )
    names = [str(name) for name in source.columns]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise TableError(f"The frame has several columns named {double[0]!r}. Rename all but one of them.")
    return pl.DataFrame([_series(name, source.iloc[:, i]) for i, name in enumerate(names)])


def _series(name: str, column: Any) -> pl.Series:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return pl.Series(name, column.to_numpy(), nan_to_null=True)
    values = column.astype(object).where(column.notna(), None).tolist()
    try:
        return pl.Series(name, values)
    except (TypeError, pl.exceptions.PolarsError):  # mixed types
        return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)


def _check_width(name: str, n_columns: int) -> None:
    if n_columns > MAX_COLUMNS:
        raise TableError(
            f"{name} has {n_columns:,} columns, but at most {MAX_COLUMNS:,} are supported, because each one "
            "becomes an input of every network. Keep the columns that matter, e.g. those that vary most."
        )


def _check_length(name: str, n_rows: int, limit: _Limit) -> list[str]:
    max_rows = limit.max_rows
    if max_rows is None or n_rows <= max_rows:
        return []
    if not limit.sample:
        raise TableError(f"{name} has {n_rows:,} rows, but at most {max_rows:,} are read, {limit.too_long}")
    return [f"A random sample of {max_rows:,} of {n_rows:,} rows is used."]


def _collect(lazy: pl.LazyFrame, n_rows: int, limit: _Limit) -> pl.DataFrame:
    max_rows = limit.max_rows
    if max_rows is None or n_rows <= max_rows:
        return lazy.collect()
    rows = np.random.default_rng(stream_seed("sample", limit.seed)).choice(n_rows, max_rows, replace=False)
    index = "row index of elliptica"  # a name that tables do not have
    kept = lazy.with_row_index(index).filter(pl.col(index).is_in(np.sort(rows).astype(np.uint32).tolist()))
    return kept.drop(index).collect(engine="streaming")


def _check_not_empty(name: str, frame: pl.DataFrame) -> None:
    if not len(frame):
        raise TableError(f"{name} has column names but no rows.")


def check_path(path: Path) -> None:
    """Raise if the system cannot follow a path: its name is too long, or links lead in a circle.

    Raises:
        TableError: If it cannot.
    """
    try:
        path.resolve().exists()
    except (OSError, RuntimeError) as error:  # Python raises the latter for links
        shown = f"{path}" if len(str(path)) < 100 else f"{str(path)[:80]}..."
        reason = error.strerror if isinstance(error, OSError) else "its links lead in a circle"
        raise TableError(f"The path {shown} cannot be used ({reason}). Pass another one.") from error


def check_column(table: Table, name: str, what: str) -> None:
    """Raise if a column does not exist, and suggest similar names.

    Raises:
        TableError: If there is no such column.
    """
    names = table.frame.columns
    if name in names:
        return
    hint = did_you_mean(name, names, n=3) or f"Its columns are {_listed(names)}."
    if table.headless:
        hint = "Its first line holds only numbers: add a line with the column names."
    raise TableError(f"{table.name} has no column {name!r} for the {what}. {hint}")


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
