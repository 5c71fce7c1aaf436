"""Read tables from files or frames, and decide in training what the cells of every column are.

The rules, in order; ``--as COLUMN=KIND`` (``as_``) overrides them:

1. *Unused*: no values, the same value in all rows, or a type other than number, text or date.
2. *Number*: all cells are numbers in one notation (decimal sign, separator of thousands, the same currency
   sign, percent sign or unit in every cell). But whole numbers that count the rows, or have a name such as
   ``customer_id`` and more than 50 values, are an *identifier*; those with leading zeros, above 2^53, or with
   a name such as ``zip`` and few values, are a *category*. Others that all differ, or have such a name, are
   numbers, with a hint.
3. *Date*: all cells are dates in one format, with a time zone in every cell or in none.
4. *Identifier*: texts that differ in at least 95 % of the rows, of fewer than three words on average.
5. *Text*: more than 50 texts, of three words on average, or different in more than 20 % of the rows.
6. *Category*: all other text, and true/false. Missing values are a category of their own.

A cell of another table that does not fit the notation of training raises an error with its row and column.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import polars.selectors as cs
from sklearn import datasets

from elliptica._utils.extras import import_extra
from elliptica._utils.random import stream_seed
from elliptica.estimators.preprocess import MISSING, Kind, as_series, has_zone, is_free_text

MAX_ROWS = 200_000
SEPARATORS = (",", ";", "\t", "|")
#: Text that means "missing", besides empty cells; the last line are errors of spreadsheets.
_GAPS = (
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
}
#: Lines from which the separator is detected, and rows that are converted at once.
_HEAD, _PART = 50, 2_000


class TableError(ValueError):
    """A table, a column or an option that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Table:
    """A table as read from a file or frame."""

    frame: pl.DataFrame  # the rows; cells of a CSV file are text
    name: str  # name of the file, for messages
    notices: tuple[str, ...] = ()  # remarks about how it was read
    is_sample: bool = False  # whether rows were drawn from a longer table


def read_table(source: str | Path | Any, *, max_rows: int | None = None, seed: int = 0) -> Table:
    """Read a table from a file, or take it from a frame.

    Text is stripped, and cells such as ``NA`` are missing values. CSV files are in UTF-8, in UTF-16 with a
    byte order mark, or else in Windows-1252, which contains Latin-1; a notice says so.

    Args:
        source: Path of a ``.parquet`` or ``.pq`` file, of a spreadsheet (``.xlsx``, ``.xls``, ``.ods``; its
            first sheet), of a CSV file (any other name), a polars or pandas frame, or, if there is no such
            file, the name of a table of scikit-learn (see `BUILT_IN`).
        max_rows: Use a random sample of so many rows of a longer table; None means no limit.
        seed: Seed of that sample.
    """
    try:
        name, frame, notices = _open(source)
    except (pl.exceptions.PolarsError, OSError, UnicodeError, csv.Error) as error:
        why = str(error).splitlines()[0]
        raise TableError(f"{source} cannot be read: {why}. Save it as CSV in UTF-8.") from error
    n_rows = len(frame)
    if not n_rows:
        raise TableError(f"{name} has column names but no rows.")
    is_sample = max_rows is not None and n_rows > max_rows
    if is_sample:
        draws = np.random.default_rng(stream_seed("sample", seed))
        frame = frame[np.sort(draws.choice(n_rows, max_rows, replace=False))]
        notices = (*notices, f"A random sample of {max_rows:,} of {n_rows:,} rows is used.")
    text = pl.col(pl.String).str.strip_chars()
    frame = frame.with_columns(pl.when(text.is_in(["", *_GAPS])).then(None).otherwise(text).name.keep())
    return Table(frame, name, notices, is_sample)


def _open(source: Any) -> tuple[str, pl.DataFrame, tuple[str, ...]]:
    """Read a table; return its name, its rows, and notices."""
    if not isinstance(source, str | Path):
        if not isinstance(source, pl.LazyFrame | pl.DataFrame):  # polars' own conversion needs pyarrow
            columns = enumerate(source.columns)
            source = pl.DataFrame([as_series(str(name), source.iloc[:, i]) for i, name in columns])
        return "frame", source.lazy().collect(), ()
    file = Path(source)
    if not file.is_file():
        if str(source) in BUILT_IN:
            return str(source), _built_in(str(source)), ()
        raise TableError(
            f"{source} is not a file. Pass a CSV, Parquet or xlsx file. Tables that need no file: "
            f"{', '.join(BUILT_IN)}."
        )
    if file.suffix.lower() in (".parquet", ".pq"):
        return file.name, pl.read_parquet(file, glob=False), ()  # data[1].csv is a name, not a pattern
    if file.suffix.lower() in (".xlsx", ".xls", ".xlsb", ".ods"):
        book = import_extra("A spreadsheet", "tables", "fastexcel").read_excel(file)
        frame = pl.DataFrame(book.load_sheet(0, schema_sample_rows=None))  # else a late text becomes a gap
        notice = f"Only the first sheet of {file.name}, {book.sheet_names[0]!r}, is read."
        known = frame.filter(~pl.all_horizontal(pl.all().is_null()))
        floats = known.select(cs.float()).iter_columns()  # a spreadsheet has no whole numbers
        whole = [c.name for c in floats if (c.is_null() | ((c == c.round()) & (c.abs() < 2**53))).all()]
        known = known.with_columns(pl.col(whole).cast(pl.Int64))
        return file.name, known, (notice,) if len(book.sheet_names) > 1 else ()
    with file.open("rb") as handle:
        encoding = "utf-16" if handle.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return file.name, _read_csv(file, encoding), ()
    except UnicodeDecodeError:
        notice = f"{file.name} is not in UTF-8 and is read as Windows-1252. Check letters with accents."
        return file.name, _read_csv(file, "cp1252"), (notice,)


def _read_csv(file: Path, encoding: str) -> pl.DataFrame:
    """Read the cells of a CSV file as text, without blank lines.

    Polars fills short rows with missing values and stops at the sign of an inch, so the standard library
    splits the lines.
    """
    with file.open(encoding=encoding, newline="") as handle:
        head = list(itertools.islice(handle, _HEAD))
        handle.seek(0)
        separator = max(SEPARATORS, key=lambda each: _agreement(head, each))
        reader = csv.reader(handle, delimiter=separator, strict=True)
        names = [name.strip() for name in next(filter(None, reader), [])]
        if len(names) < 2:
            raise TableError(f"{file.name} has {len(names)} columns, but needs two or more.")
        schema = [(name, pl.String) for name in names]
        parts = [pl.DataFrame(schema=schema)]
        try:
            while part := list(itertools.islice(filter(None, reader), _PART)):
                if wrong := next((row for row in part if len(row) != len(names)), None):
                    raise csv.Error(f"{wrong} has {len(wrong)} cells, but the header has {len(names)}")
                parts.append(pl.DataFrame(list(zip(*part, strict=True)), schema, orient="col"))
        except csv.Error as error:
            raise TableError(
                f"{file.name}, by line {reader.line_num}: {error!s:.200}. A missing value is an empty cell; "
                "cells with a separator need quotes."
            ) from error
    return pl.concat(parts, rechunk=True)


def _agreement(head: Sequence[str], separator: str) -> tuple[float, int]:
    """Return the share of the first rows that are as long as the header, and its length."""
    rows = [row for row in csv.reader(head, delimiter=separator) if row]
    width = len(rows[0]) if rows else 0
    return (sum(len(row) == width for row in rows) / len(rows) if width > 1 else 0.0), width


def _built_in(name: str) -> pl.DataFrame:
    """Load a table of scikit-learn."""
    options = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, f"load_{name}")(**options)
    target = np.asarray(data.target)
    if hasattr(data, "target_names") and name != "digits":
        target = np.asarray(data.target_names)[target]
    columns = [pl.Series(each, np.asarray(data.data)[:, j]) for j, each in enumerate(data.feature_names)]
    return pl.DataFrame([*columns, pl.Series(BUILT_IN[name], target.tolist())])


def check_column(table: Table, name: str, what: str) -> None:
    """Raise if a table lacks a column, and list those that it has."""
    if name not in (names := table.frame.columns):
        known = ", ".join(map(repr, names[:12]))
        raise TableError(f"{table.name} has no column {name!r} for the {what}. It has {known}.")


Override = Literal["number", "category", "date", "text", "id"]

#: Whole numbers with at most this many values may be classes.
FEW_VALUES = 20
#: Number of texts above which a column may be free text.
MANY_TEXTS = 50
#: Larger numbers do not fit: their squares overflow.
LARGEST = 1e100

_EXACT = 2**53  # floats hold all whole numbers below
_MOST_SEEN = 1000  # categories that are kept to recognise new ones
_RARE = 5  # `TablePreprocessor` joins categories in fewer rows
#: A remark about a column, and the kind that the user may want instead.
Doubt = tuple[str, Override] | None
_ID_NAMES = {
    *("id", "ids", "uuid", "guid", "key", "identifier", "index", "rownames", "unnamed"),
    *("patient", "subject", "customer", "person", "user", "household"),
}
_CODE_NAMES = {
    *("zip", "zipcode", "postcode", "plz", "code", "class", "pclass", "type", "kind", "category", "cluster"),
    *("region", "district", "store", "shop", "sector", "state", "country", "county", "city", "department"),
    *("gender", "race", "species", "occupation", "job"),
}
_CURRENCY = r"[$€£¥₹]|EUR|USD|GBP|CHF|JPY|CAD|AUD|Rs\.?"
_UNIT = r'[A-Za-zµμΩ°"][^\d\s]{0,11}[23²³]?'
_AFFIXES = re.compile(
    rf"[-+]?\s*(?P<prefix>{_CURRENCY})?\s*[-+]?[\d.,'\s]*\d[.,]?(?:[eE][-+]?\d+)?\s*"
    rf"(?P<suffix>%|{_CURRENCY}|{_UNIT})?"
)
#: Decimal signs and separators of thousands, the likeliest first; the last two are narrow spaces.
_SEPARATORS = [(d, t) for d, other in (".,", ",.") for t in ("", other, " ", "'", "\u00a0", "\u202f")]
_WHOLE = r"^(-?(?:0|[1-9]\d*))(?:\.0+)?$"
#: Format of dates such as 2006-01-31, 2006-01-31 12:30 and 2006-01-31T12:30:00Z.
ISO = "ISO 8601"
#: Formats that skrub does not guess: years of two digits, and hours before and after noon. 3.11.2 is no date.
_DAYS = r"^(\d\d\.\d\d\.\d\d|\d+/\d+/(\d\d){1,2}|\d+-\w{3}-\d\d|\d{4}-\d\d-\d\d)( |$)"
_FORMATS = [
    f"{day}{hour}"
    for day in ("%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%y", "%m/%d/%Y", "%d/%m/%Y", "%Y-%m-%d")
    for hour in ("", " %H:%M", " %I:%M %p", " %I:%M:%S %p")
]
_SPAN = 50  # years of two digits that span more may belong to two centuries, so they are no dates
_PARTS = r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2}(?:\.\d+)?)?)?\s?(Z|[-+]\d{2}:?\d{2})?$"


@dataclass(frozen=True)
class ColumnUse:
    """How a column is used, as text."""

    name: str
    kind: str  # a `Kind`, "unused", or "id": not an input, but copied to predictions
    detail: str  # what it becomes, e.g. "25 values"
    hint: str = ""  # option that changes it, if users may want to


@dataclass(frozen=True)
class Column:
    """The notation of a column in training: the only place where a cell becomes a value."""

    name: str
    kind: Kind
    decimal: str = "."
    thousands: str = ""  # separator of thousands, which a cell may omit
    prefix: str = ""  # currency sign before every number
    suffix: str = ""  # currency sign, percent sign or unit after every number
    format: str = ""  # of dates
    zone: bool = False  # whether dates have a time zone; they are converted to UTC
    coded: bool = False  # whether categories are numbers; 1 and 1.0 are the same
    seen: tuple[Any, ...] = ()  # training's least and greatest number or date, or its categories if few

    def read(self, cells: pl.Series, where: str = "") -> pl.Series:
        """Convert cells to Float64, to text, or to dates without a zone; ``where`` begins messages.

        Missing numbers and dates are null, missing categories ``"(missing)"``, missing texts empty.
        """
        known = clean(cells)
        read = {"number": _numbers, "category": _texts, "date": _dates, "text": _texts}[self.kind]
        empty = known.null_count() == len(known)  # does not reveal its type
        values = read(known.cast(pl.String) if empty else known, self)
        odd = (values.is_null() & known.is_not_null()).arg_true()
        if len(odd):
            raise TableError(
                f"{where}Column {self.name!r}, row {odd[0] + 1}: {str(cells[odd[0]])!r:.60} does not fit. "
                f"Expected {self.words()}. Correct the cell, or leave it empty if the value is missing."
            )
        gap = {"category": MISSING, "text": ""}.get(self.kind)
        return values if gap is None else values.fill_null(gap)

    def words(self) -> str:
        """Describe the notation of a cell."""
        if self.kind == "date":
            return f"{self.format} {'with' if self.zone else 'without'} a time zone"
        if self.kind == "number":
            return f"a number like {self.prefix}1{self.thousands}234{self.decimal}5{self.suffix}"
        return "a number" if self.coded else "text"

    def trained(self, values: pl.Series) -> Column:
        """Remember which values training had."""
        if self.kind in ("number", "date"):
            keys = values.cast(pl.String) if self.kind == "date" else values
            return dataclasses.replace(self, seen=(keys.min(), keys.max()))
        few = self.kind == "category" and values.n_unique() <= _MOST_SEEN
        return dataclasses.replace(self, seen=tuple(values.unique().sort()) if few else ())

    def is_new(self, values: pl.Series) -> pl.Series:
        """Mark values that training did not have: outside its range, or a new category."""
        if not self.seen:
            return values.is_null() & False
        keys = values.cast(pl.String) if self.kind == "date" else values
        known = keys.is_in(self.seen) if self.kind == "category" else keys.is_between(*self.seen)
        return ~known.fill_null(True)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Column:
        """Restore from the fields as JSON stores them."""
        return cls(**{**state, "seen": tuple(state["seen"])})


def clean(cells: pl.Series) -> pl.Series:
    """Make missing values null (NaN, blank cells) and text plain: categories, true/false, outer spaces."""
    if cells.dtype.is_float():
        return cells.fill_nan(None)
    if cells.dtype not in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
        return cells
    text = cells.cast(pl.String).str.strip_chars()
    text = text.str.replace("(?i)^true$", "true").str.replace("(?i)^false$", "false")
    return text.set((text == "").fill_null(False), None)


# From cells to values; what does not fit becomes null.


def _numbers(cells: pl.Series, column: Column) -> pl.Series:
    if cells.dtype == pl.String:
        values = _parse(cells, column)
    elif column.prefix or column.suffix or not cells.dtype.is_numeric():
        return pl.Series(cells.name, [None] * len(cells), dtype=pl.Float64)
    else:
        values = cells.cast(pl.Float64)
    return values.set((values.abs() > LARGEST).fill_null(False), None)


def _parse(text: pl.Series, column: Column) -> pl.Series:
    marks = (column.decimal, column.thousands, column.prefix, column.suffix)
    if marks == (".", "", "", ""):  # the fast way, for columns that are plain throughout
        values = text.cast(pl.Float64, strict=False)
        if values.null_count() == text.null_count() and values.is_finite().all():
            return values
    decimal, thousands, prefix, suffix = map(re.escape, marks)
    digits = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|\d+" if thousands else r"\d+"
    number = rf"(?:{digits})?(?:{decimal}\d*)?(?:[eE][-+]?\d+)?"
    pattern = rf"^([-+]?)\s*{prefix}\s*([-+]?{number})\s*{suffix}$"
    plain = text.str.extract(pattern, 1) + text.str.extract(pattern, 2)
    plain = plain.str.replace_all(column.thousands, "", literal=True) if thousands else plain
    return plain.str.replace(column.decimal, ".", literal=True).cast(pl.Float64, strict=False)


def _texts(cells: pl.Series, column: Column) -> pl.Series:
    if column.coded:
        return _canonical(cells)
    fits = column.kind == "text" or not cells.dtype.is_numeric()
    return cells.cast(pl.String) if fits else pl.Series(cells.name, [None] * len(cells), dtype=pl.String)


def _canonical(cells: pl.Series) -> pl.Series:
    """Write numbers in one way: 1 and 1.0 are the same, and whole numbers keep all their digits."""
    if cells.dtype.is_float():
        cells = cells.set((cells.abs() >= _EXACT).fill_null(False), None)  # these have lost digits
    text = cells.cast(pl.String)
    return text.str.extract(_WHOLE, 1).fill_null(text.cast(pl.Float64, strict=False).cast(pl.String))


def _dates(cells: pl.Series, column: Column) -> pl.Series:
    if cells.dtype.is_integer() and column.format == "%Y%m%d":
        cells = cells.cast(pl.String)
    if cells.dtype == pl.String:
        cells = _parse_dates(cells, column.format, column.zone)
    if cells.dtype not in (pl.Date, pl.Datetime) or has_zone(cells) != column.zone:
        return pl.Series(cells.name, [None] * len(cells), dtype=pl.Datetime("us"))
    if column.zone:
        cells = cells.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return cells.cast(pl.Datetime("us"))


def _parse_dates(text: pl.Series, form: str, zone: bool) -> pl.Series:
    if form != ISO:
        dates = text.str.to_datetime(form, strict=False, time_unit="us")
        return dates.set(~dates.dt.year().is_between(1000, 2999).fill_null(True), None)  # 20 is no year
    day, time, seconds, offset = (text.str.extract(_PARTS, part) for part in range(1, 5))
    parts = day + "T" + time.fill_null("00:00") + seconds.fill_null(":00")
    parts = parts + offset if zone else parts.set(offset.is_not_null(), None)
    return parts.str.to_datetime(f"%Y-%m-%dT%H:%M:%S%.f{'%#z' * zone}", strict=False, time_unit="us")


def is_whole(cells: pl.Series) -> bool:
    """Return whether all known cells are whole numbers without leading zeros."""
    return bool(cells.cast(pl.String).str.contains(_WHOLE).all())


def find_number(cells: pl.Series, *, comma: bool = False) -> tuple[Column, float]:
    """Find the notation that fits most texts of a column, and the share of texts that it fits.

    ``comma``: whether other columns of the file have decimal commas, which decides for ``1.234``.
    """
    text = cells.drop_nulls().unique(maintain_order=True)
    like = next((match for cell in text.head(100) if (match := _AFFIXES.fullmatch(cell))), None)
    best, most = Column(cells.name, "number"), 0.0
    if like is None:
        return best, most
    prefix, suffix = (part or "" for part in like.groups())
    for decimal, thousands in sorted(_SEPARATORS, key=lambda pair: comma and pair[0] == "."):
        column = Column(cells.name, "number", decimal, thousands, prefix, suffix)
        share = _parse(text, column).count() / len(text)
        if share > most:
            best, most = column, share
        if share == 1:
            break
    return best, most


def needs_comma(cells: pl.Series) -> bool:
    """Return whether the numbers of a column can only have decimal commas."""
    if cells.dtype != pl.String or not cells.str.contains(r"\d,\d").any():
        return False
    column, share = find_number(cells)
    return share == 1 and column.decimal == ","


def find_date(cells: pl.Series) -> Column | None:
    """Find the notation of a column of dates; None if some cell is not a date in it."""
    if cells.dtype in (pl.Date, pl.Datetime):
        return Column(cells.name, "date", format=ISO, zone=has_zone(cells))
    text = cells.cast(pl.String).drop_nulls().unique(maintain_order=True)
    if not text.str.contains(r"\d\D+.*\d|^\d{8}$").all():
        return None
    for zone in (False, True):
        if not _parse_dates(text, ISO, zone).null_count():
            return Column(cells.name, "date", format=ISO, zone=zone)
    from skrub import ToDatetime  # importing it takes seconds
    from skrub.core import RejectColumn

    finder = ToDatetime()
    with suppress(RejectColumn):
        zone = has_zone(finder.fit_transform(text))
        return Column(cells.name, "date", format=str(finder.format_), zone=zone)
    for form in _FORMATS if text.str.contains(_DAYS).all() else ():
        dates = _parse_dates(text, form, False)
        if not dates.null_count() and ("%y" not in form or np.ptp(dates.dt.year().to_numpy()) <= _SPAN):
            return Column(cells.name, "date", format=form)
    return None


def as_category(cells: pl.Series) -> Column:
    """Read a column as categories, exactly as they are written."""
    return Column(cells.name, "category", coded=cells.dtype.is_numeric() or is_whole(cells))


def recognise(
    cells: pl.Series, *, as_: Override | None = None, comma: bool = False
) -> tuple[ColumnUse, Column | None]:
    """Decide how a column is used; the column is None if it is not an input.

    ``as_`` is the kind that the user gave; ``comma`` as in `find_number`.
    """
    name, known = cells.name, clean(cells)
    if as_ == "id":
        return ColumnUse(name, "id", "identifier, not used"), None
    if reason := _useless(known):
        return ColumnUse(name, "unused", reason), None
    column, doubt = (_override(known, as_, comma), None) if as_ else _decide(known, comma)
    if column is None:
        hint = _change(name, "number" if is_whole(known) else "category")
        return ColumnUse(name, "id", "identifier, not used", hint), None
    values = column.read(cells)
    detail, hint = _describe(column, values, known.null_count())
    if doubt is not None:
        detail, hint = "; ".join(filter(None, (detail, doubt[0]))), _change(name, doubt[1])
    return ColumnUse(name, column.kind, detail, "" if as_ else hint), column.trained(values)


def _change(name: str, kind: str) -> str:
    return f"--as {shlex.quote(f'{name}={kind}')}"


def _useless(cells: pl.Series) -> str:
    if cells.null_count() == len(cells):
        return "all its values are missing"
    if not (cells.dtype.is_numeric() or cells.dtype in (pl.String, pl.Date, pl.Datetime)):
        return f"it is of type {cells.dtype}; convert it to numbers, dates or categories"
    return f"it is {cells[0]!r} in all rows" if cells.n_unique() == 1 else ""


def _decide(cells: pl.Series, comma: bool) -> tuple[Column | None, Doubt]:
    """Apply the rules of the module; return the column (None: an identifier) and a doubt."""
    if cells.dtype in (pl.Date, pl.Datetime):
        return find_date(cells), None
    number, share = Column(cells.name, "number"), 1.0
    if cells.dtype == pl.String:
        if cells.str.contains(r"^[-+]?0\d").any() and cells.str.contains(r"^[-+]?\d+$").all():
            return (None if _is_distinct(cells) else Column(cells.name, "category")), None
        number, share = find_number(cells, comma=comma)
    if share == 1:
        return _decide_whole(cells, number)
    date = find_date(cells)
    return (date, None) if date else _decide_text(cells, number if share >= 0.5 else _likely_date(cells))


def _is_distinct(cells: pl.Series) -> bool:
    """Return whether nearly every row has a value of its own."""
    return cells.drop_nulls().n_unique() >= 0.95 * cells.count()


def _decide_whole(cells: pl.Series, column: Column) -> tuple[Column | None, Doubt]:
    """Tell identifiers (None), categories and dates from numbers, among whole numbers."""
    if not is_whole(cells):
        return column, None
    whole = _canonical(cells).drop_nulls()
    numbers, n_values, distinct = whole.cast(pl.Float64), whole.n_unique(), _is_distinct(cells)
    counts = len(numbers) == len(cells) and bool((numbers.diff()[1:] == 1).all())
    if counts and not cells.dtype.is_float():
        return None, None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", cells.name)]
    is_id = not cells.name or bool(_ID_NAMES.intersection(words[-1:]))
    is_code = n_values > 2 and bool(_CODE_NAMES.intersection(words))
    if is_id or float(numbers.abs().max()) >= _EXACT:  # type: ignore[arg-type]
        return None if distinct or (is_id and n_values > MANY_TEXTS) else as_category(cells), None
    if is_code and n_values <= max(MANY_TEXTS, 0.05 * len(cells)):
        return as_category(cells), None
    is_day = numbers.is_between(19_000_101, 21_001_231).all()
    if is_day and not _parse_dates(whole, "%Y%m%d", False).null_count():
        return Column(cells.name, "date", format="%Y%m%d"), None
    if n_values == len(cells):
        return column, ("all different: an identifier?", "id")
    return column, ("a code?", "category") if is_code else None


def _decide_text(cells: pl.Series, likely: Column | None) -> tuple[Column | None, Doubt]:
    """Tell identifiers (None), text and categories; ``likely`` is the notation of most of the cells."""
    known, doubt = cells.drop_nulls(), None
    n_values = known.n_unique()
    if likely is not None and n_values > FEW_VALUES:
        read = _parse(known, likely) if likely.kind == "number" else _dates(known, likely)
        if not read.null_count():
            return likely, None
        misfit = known.filter(read.is_null())[0]
        doubt = f"not {likely.kind}s, because {misfit!r:.40} is not {likely.words()}", likely.kind
    worded = is_free_text(known.to_list())
    if _is_distinct(cells) and not worded and not doubt:
        return None, None
    is_text = n_values > MANY_TEXTS and (worded or n_values > 0.2 * len(known))
    return Column(cells.name, "text" if is_text else "category"), doubt


def _likely_date(cells: pl.Series) -> Column | None:
    """Find the notation of most cells, if they look alike up to digits and letters, and are dates."""
    shape = cells.drop_nulls().str.replace_all(r"\d+", "0").str.replace_all(r"\pL+", "a")
    common, n = shape.value_counts(sort=True).row(0)
    return find_date(cells.drop_nulls().filter(shape == common)) if n >= 0.5 * len(shape) else None


def _override(cells: pl.Series, as_: Override, comma: bool) -> Column:
    """Apply the user's kind."""
    if as_ == "category":
        return as_category(cells)
    if as_ == "text":
        return Column(cells.name, "text")
    if as_ == "number" and cells.dtype != pl.String:
        return Column(cells.name, "number")
    column, share = find_number(cells, comma=comma) if as_ == "number" else (find_date(cells), 1.0)
    if column is None and cells.dtype == pl.String:
        column = _likely_date(cells)
    if column is None or not share:
        raise TableError(f"Column {cells.name!r} cannot be read as {as_}: its cells have no common notation.")
    return column


def _describe(column: Column, values: pl.Series, n_missing: int) -> tuple[str, str]:
    """Return what the table of columns says, and the option that would change it."""
    counts = values.value_counts()["count"]
    is_category, is_text = column.kind == "category", column.kind == "text"
    n_values, n_rare = len(counts) - (n_missing > 0), int((counts < _RARE).sum())
    is_many = is_category and n_values > MANY_TEXTS
    sign = column.prefix or column.suffix
    parts = {
        f"in {'percent' if sign == '%' else sign}": bool(sign),
        f"thousands separated by {column.thousands!r}": bool(column.thousands),
        "written month/day": column.format.startswith("%m/%d"),
        "written day/month": column.format.startswith("%d/%m"),
        "with a time zone": column.zone,
        f"{n_values:,} value{'s' * (n_values > 1)}": is_category,
        "as mean targets, or as codes for trees": is_many,
        f"the {n_rare:,} rarest as one": is_category and n_rare > 1 and not is_many,
        "numbers read as codes": column.coded,
        f"free text, {n_values:,} distinct texts": is_text,
        f"{n_missing:,} missing": n_missing > 0,
    }
    changes = {
        "number": column.coded,
        "category": re.fullmatch(_UNIT, column.suffix),
        "text": is_many or (is_category and n_rare > 1),
        "id": is_text,
    }
    hint = next((_change(column.name, kind) for kind, may in changes.items() if may), "")
    return ", ".join(part for part, applies in parts.items() if applies), hint


def read_inputs(columns: Sequence[Column], table: Table) -> pl.DataFrame:
    """Read the inputs of a table in the notation of training; raise if a column or a cell does not fit."""
    for column in columns:
        check_column(table, column.name, "input")
    return pl.DataFrame([column.read(table.frame[column.name], f"{table.name}: ") for column in columns])
