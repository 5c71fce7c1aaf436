"""Decide in training what the cells of a column are, and read other tables in the same notation.

The rules, in order; ``--as COLUMN=KIND`` (``as_``) overrides them:

1. *Unused*: no values, the same value in all rows, or a type other than number, text or time.
2. *Number*: all cells are numbers in one notation, with one decimal sign, one separator of thousands, and the
   same currency sign, percent sign or unit in every cell; or all cells are times of day (hours).
3. *Identifier* instead of number: whole numbers that count the rows; with a name such as ``customer_id`` and
   more than 50 values; or above 2^53 and nearly all different. *Category* instead of number: leading zeros, a
   name such as ``zip`` or ``class`` with few values, and other names or numbers of an identifier.
4. *Date*: all cells are dates in one format, with a time zone in every cell or in none.
5. *Identifier*: texts that differ in at least 95 % of the rows, of fewer than three words on average.
6. *Text*: more than 50 texts, of three words on average, or different in more than 20 % of the rows.
7. *Category*: all other text, and true/false. Missing values are a category of their own.

A cell of another table that does not fit the notation of training raises an error with its row and column.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from elliptica.tables.table import Table, TableError, check_column

Kind = Literal["number", "category", "date", "text"]
Override = Literal["number", "category", "date", "text", "id"]

#: Name of the category of missing values.
MISSING = "(missing)"
#: Whole numbers with at most this many values may be classes.
FEW_VALUES = 20
#: Number of texts above which a column may be free text.
MANY_TEXTS = 50
#: Larger numbers do not fit: their squares overflow.
LARGEST = 1e100

_EXACT = 2**53  # floats hold all whole numbers below
_MOST_SEEN = 1000  # categories that are kept to recognise new ones
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
_CLOCKS = ("%H:%M", "%H:%M:%S%.f")
_ISO = "ISO 8601"
_ISO_PARTS = r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2}(?:\.\d+)?)?)?\s?(Z|[-+]\d{2}:?\d{2})?$"


@dataclass(frozen=True)
class ColumnUse:
    """How a column is used, as text."""

    name: str
    #: A `Kind`; ``"id"``: not an input, but copied to predictions; ``"unused"``: not an input.
    kind: str
    detail: str  # what it becomes, e.g. "25 values"
    hint: str = ""  # option that changes it, if users may want to


@dataclass(frozen=True)
class Column:
    """The notation of a column in training: the only place where a cell becomes a value.

    Example:
        >>> price = Column("price", "number", thousands=",", prefix="$")
        >>> price.read(pl.Series("price", ["$1,200", "-$3.5", ""])).to_list()
        [1200.0, -3.5, None]
    """

    name: str
    kind: Kind
    decimal: str = "."
    thousands: str = ""  # separator of thousands, which a cell may omit
    prefix: str = ""  # currency sign before every number
    suffix: str = ""  # currency sign, percent sign or unit after every number
    format: str = ""  # of dates and times of day
    zone: bool = False  # whether dates have a time zone; they are converted to UTC
    cells: Literal["text", "number", "boolean"] = "text"  # what categories are
    missing: tuple[str, ...] = ()  # texts among numbers that mean "missing"
    seen: tuple[Any, ...] = ()  # training's smallest and largest number, or its categories if they are few

    def read(self, cells: pl.Series) -> pl.Series:
        """Convert cells to Float64, to text, or to dates without a zone.

        Missing numbers and dates are null, missing categories ``"(missing)"``, missing texts empty.

        Raises:
            TableError: If a cell does not fit the notation; the message names its row, counted from 1.
        """
        known = clean(cells)
        known = known.set(known.is_in(self.missing), None) if self.missing else known
        read = {"number": _numbers, "category": _categories, "date": _dates, "text": _texts}[self.kind]
        empty = known.null_count() == len(known)  # does not reveal its type
        values = read(known.cast(pl.String) if empty else known, self)
        odd = (values.is_null() & known.is_not_null()).arg_true()
        if len(odd):
            raise TableError(
                f"Column {self.name!r}, row {odd[0] + 1}: {str(cells[odd[0]])!r:.60} does not fit. Expected "
                f"{self.words()}. Correct the cell, or leave it empty if the value is missing."
            )
        gap = {"category": MISSING, "text": ""}.get(self.kind)
        return values if gap is None else values.fill_null(gap)

    def words(self) -> str:
        """Describe the notation of a cell."""
        if self.kind == "date" or self.format:
            return f"{self.format} {'with' if self.zone else 'without'} a time zone"
        if self.kind == "number":
            return f"a number like {self.prefix}1{self.thousands}234{self.decimal}5{self.suffix}"
        return {"text": "text", "number": "a number", "boolean": "true or false"}[self.cells]

    def trained(self, values: pl.Series) -> Column:
        """Remember which values training had."""
        seen: tuple[Any, ...] = ()
        if self.kind == "number" and values.count():
            seen = (values.min(), values.max())
        elif self.kind == "category" and values.n_unique() <= _MOST_SEEN:
            seen = tuple(values.unique().sort())
        return dataclasses.replace(self, seen=seen)

    def is_new(self, values: pl.Series) -> pl.Series:
        """Mark values that training did not have: outside its range, or a new category."""
        if self.kind == "number" and self.seen:
            return ~values.is_between(*self.seen).fill_null(True)
        return ~values.is_in(self.seen or values)

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON can store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Column:
        """Restore from the values of `to_json`."""
        return cls(**{**state, "missing": tuple(state["missing"]), "seen": tuple(state["seen"])})


def clean(cells: pl.Series) -> pl.Series:
    """Make missing values null and text plain: NaN, blank cells, categories, spaces around text."""
    if cells.dtype in (pl.Categorical, pl.Enum, pl.Null):
        cells = cells.cast(pl.String)
    if cells.dtype.is_float():
        return cells.fill_nan(None)
    if cells.dtype != pl.String:
        return cells
    text = cells.str.strip_chars()
    return text.set((text == "").fill_null(False), None)


# ---- from cells to values; what does not fit becomes null


def _none(cells: pl.Series, dtype: Any) -> pl.Series:
    return pl.Series(cells.name, [None] * len(cells), dtype=dtype)


def _numbers(cells: pl.Series, column: Column) -> pl.Series:
    if cells.dtype == pl.String:
        values = _clock(cells, column.format) if column.format else _parse(cells, column)
    elif cells.dtype == pl.Time and column.format:
        values = _hours(cells)
    elif column.format or column.prefix or column.suffix or not _is_number(cells):
        return _none(cells, pl.Float64)
    else:
        values = cells.cast(pl.Float64)
    return values.set((values.abs() > LARGEST).fill_null(False), None)


def _parse(text: pl.Series, column: Column) -> pl.Series:
    marks = (column.decimal, column.thousands, column.prefix, column.suffix)
    decimal, thousands, prefix, suffix = map(re.escape, marks)
    digits = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|\d+" if thousands else r"\d+"
    number = rf"(?:{digits})?(?:{decimal}\d*)?(?:[eE][-+]?\d+)?"
    pattern = rf"^([-+]?)\s*{prefix}\s*([-+]?{number})\s*{suffix}$"
    plain = text.str.extract(pattern, 1) + text.str.extract(pattern, 2)
    plain = plain.str.replace_all(column.thousands, "", literal=True) if thousands else plain
    return plain.str.replace(column.decimal, ".", literal=True).cast(pl.Float64, strict=False)


def _clock(text: pl.Series, form: str) -> pl.Series:
    return _hours(text.str.to_time(form, strict=False))


def _hours(times: pl.Series) -> pl.Series:
    return times.cast(pl.Int64).cast(pl.Float64) / 3.6e12


def _categories(cells: pl.Series, column: Column) -> pl.Series:
    if column.cells == "number":
        return _canonical(cells)
    if column.cells == "boolean":
        text = cells.cast(pl.String).str.to_lowercase()
        return text.set(~text.is_in(["true", "false"]), None)
    return _none(cells, pl.String) if _is_number(cells) else cells.cast(pl.String)


def _texts(cells: pl.Series, column: Column) -> pl.Series:
    return cells.cast(pl.String)


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
    if cells.dtype not in (pl.Date, pl.Datetime) or _has_zone(cells) != column.zone:
        return _none(cells, pl.Datetime("us"))
    if column.zone:
        cells = cells.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return cells.cast(pl.Datetime("us"))


def _parse_dates(text: pl.Series, form: str, zone: bool) -> pl.Series:
    if form != _ISO:
        return text.str.to_datetime(form, strict=False, time_unit="us")
    day, time, seconds, offset = (text.str.extract(_ISO_PARTS, part) for part in range(1, 5))
    parts = day + "T" + time.fill_null("00:00") + seconds.fill_null(":00")
    parts = parts + offset if zone else parts.set(offset.is_not_null(), None)
    return parts.str.to_datetime(f"%Y-%m-%dT%H:%M:%S%.f{'%#z' * zone}", strict=False, time_unit="us")


def days_since_1970(dates: pl.Series) -> pl.Series:
    """Convert dates to numbers."""
    return dates.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 8.64e10


def _is_number(cells: pl.Series) -> bool:
    return cells.dtype.is_numeric() or cells.dtype == pl.Boolean


def is_whole(cells: pl.Series) -> bool:
    """Return whether all known cells are whole numbers without leading zeros."""
    return bool(_canonical(cells).drop_nulls().str.contains(_WHOLE).all()) and (
        cells.dtype != pl.String or bool(cells.str.contains(_WHOLE).all())
    )


def _has_zone(cells: pl.Series) -> bool:
    return getattr(cells.dtype, "time_zone", None) is not None


# ---- the notation of a column


def find_number(cells: pl.Series, *, comma: bool = False) -> tuple[Column, float] | None:
    """Find the notation that fits most texts of a column, and the share of texts that it fits.

    Args:
        cells: Cells of text.
        comma: Whether other columns of the file have decimal commas, which decides for ``1.234``.

    Example:
        >>> column, share = find_number(pl.Series("area", ["1.204,5 m²", "80 m²"]))
        >>> column.decimal, column.thousands, column.suffix, share
        (',', '.', 'm²', 1.0)
    """
    text = cells.drop_nulls().unique(maintain_order=True)
    like = next((match for cell in text.head(100) if (match := _AFFIXES.fullmatch(cell))), None)
    if like is None:
        return None
    prefix, suffix = (part or "" for part in like.groups())
    best, most = Column(cells.name, "number"), -1.0
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
    numbers = find_number(cells)
    return numbers is not None and numbers[1] == 1 and numbers[0].decimal == ","


def find_date(cells: pl.Series) -> Column | None:
    """Find the notation of a column of dates; None if some cell is not a date in it."""
    if cells.dtype in (pl.Date, pl.Datetime):
        return Column(cells.name, "date", format=_ISO, zone=_has_zone(cells))
    text = cells.cast(pl.String).drop_nulls().unique(maintain_order=True)
    if not text.str.contains(r"\d").all():
        return None
    for zone in (False, True):
        if not _parse_dates(text, _ISO, zone).null_count():
            return Column(cells.name, "date", format=_ISO, zone=zone)
    from skrub import ToDatetime
    from skrub.core import RejectColumn

    finder = ToDatetime()
    try:
        zone = _has_zone(finder.fit_transform(text))
    except RejectColumn:
        return None
    return Column(cells.name, "date", format=str(finder.format_), zone=zone)


def as_category(cells: pl.Series) -> Column:
    """Read a column as categories, exactly as they are written."""
    kind: Literal["text", "number", "boolean"] = "text"
    if cells.dtype == pl.Boolean:
        kind = "boolean"
    elif cells.dtype.is_numeric() or is_whole(cells):
        kind = "number"
    return Column(cells.name, "category", cells=kind)


# ---- the rules of the module


def recognise(
    cells: pl.Series, *, as_: Override | None = None, comma: bool = False, n_rows: int | None = None
) -> tuple[ColumnUse, Column | None]:
    """Decide how a column is used; the column is None if it is not an input.

    Args:
        cells: The column of the training table.
        as_: Kind that the user gave.
        comma: Whether other columns of the file have decimal commas.
        n_rows: Number of distinct rows of the table, if it has copies.

    Raises:
        TableError: If the column cannot be read as the user's kind.

    Example:
        >>> recognise(pl.Series("price", ["€ 1,200", "€ 900", "€ 1,450"]))[0].detail
        "in €, thousands separated by ','"
    """
    name, known = cells.name, clean(cells)
    if as_ == "id":
        return ColumnUse(name, "id", "identifier, not used"), None
    if reason := _useless(known):
        return ColumnUse(name, "unused", reason), None
    column, remark = _override(known, as_, comma) if as_ else _decide(known, comma, n_rows or len(known))
    if column is None:
        hint = _change(name, "number" if is_whole(known) else "category")
        return ColumnUse(name, "id", "identifier, not used", hint), None
    values = column.read(cells)
    detail, hint = _describe(column, values, known.null_count())
    if remark:
        detail, hint = f"{detail}; {remark}", _change(name, "number")
    return ColumnUse(name, column.kind, detail, "" if as_ else hint), column.trained(values)


def _change(name: str, kind: str) -> str:
    return f"--as {shlex.quote(f'{name}={kind}')}"


def _useless(cells: pl.Series) -> str:
    if cells.null_count() == len(cells):
        return "all its values are missing"
    if not (_is_number(cells) or cells.dtype in (pl.String, pl.Date, pl.Datetime, pl.Time)):
        return f"it is of type {cells.dtype}; convert it to numbers, dates or categories"
    return f"it is {cells[0]!r} in all rows" if cells.n_unique() == 1 else ""


def _decide(cells: pl.Series, comma: bool, n_rows: int) -> tuple[Column | None, str]:
    """Apply the rules of the module; return the column (None: an identifier) and a remark."""
    name = cells.name
    if cells.dtype == pl.Boolean:
        return Column(name, "category", cells="boolean"), ""
    if cells.dtype == pl.Time:
        return Column(name, "number", format=_CLOCKS[1]), ""
    if cells.dtype in (pl.Date, pl.Datetime):
        return find_date(cells), ""
    if cells.dtype != pl.String:
        return _decide_whole(cells, Column(name, "number"), n_rows), ""
    if cells.str.contains("(?i)^(true|false)$").all():
        return Column(name, "category", cells="boolean"), ""
    if cells.str.contains(r"^[-+]?0\d").any() and cells.str.contains(r"^[-+]?\d+$").all():
        return (None if _is_distinct(cells, n_rows) else Column(name, "category")), ""
    for form in _CLOCKS:
        if _clock(cells, form).null_count() == cells.null_count():
            return Column(name, "number", format=form), ""
    numbers = find_number(cells, comma=comma)
    if numbers is not None and numbers[1] == 1:
        return _decide_whole(cells, numbers[0], n_rows), ""
    date = find_date(cells)
    return _decide_text(cells, numbers, n_rows) if date is None else (date, "")


def _is_distinct(cells: pl.Series, n_rows: int) -> bool:
    """Return whether nearly every row has a value of its own."""
    return cells.drop_nulls().n_unique() >= 0.95 * min(cells.count(), n_rows)


def _decide_whole(cells: pl.Series, column: Column, n_rows: int) -> Column | None:
    """Tell identifiers (None), categories and dates from numbers, among whole numbers."""
    if not is_whole(cells):
        return column
    whole = _canonical(cells).drop_nulls()
    numbers, n_values, distinct = whole.cast(pl.Float64), whole.n_unique(), _is_distinct(cells, n_rows)
    category = Column(cells.name, "category", cells="number")
    if float(numbers.abs().max()) >= _EXACT:  # type: ignore[arg-type]
        return None if distinct else category
    counts = len(numbers) == len(cells) and bool((numbers.diff()[1:] == 1).all())
    if counts and not cells.dtype.is_float():
        return None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", cells.name)]
    if not cells.name or _ID_NAMES.intersection(words[-1:]):
        return None if n_values > MANY_TEXTS or distinct else category
    if n_values > 2 and _CODE_NAMES.intersection(words) and n_values <= max(MANY_TEXTS, 0.05 * n_rows):
        return category
    days = numbers.is_between(19_000_101, 21_001_231).all() and _parse_dates(whole, "%Y%m%d", False)
    return column if days is False or days.null_count() else Column(cells.name, "date", format="%Y%m%d")


def _decide_text(
    cells: pl.Series, numbers: tuple[Column, float] | None, n_rows: int
) -> tuple[Column | None, str]:
    known, remark = cells.drop_nulls(), ""
    n_values = known.n_unique()
    if numbers is not None and numbers[1] >= 0.5 and n_values > FEW_VALUES:
        odd = known.filter(_parse(known, numbers[0]).is_null())[0]
        remark = f"not numbers, because {odd!r:.40} is not {numbers[0].words()}"
    worded = float(known.str.split(" ").list.len().mean()) >= 3  # type: ignore[arg-type]
    if _is_distinct(cells, n_rows) and not worded and not remark:
        return None, ""
    is_text = n_values > MANY_TEXTS and (worded or n_values > 0.2 * len(known))
    return Column(cells.name, "text" if is_text else "category"), remark


def _override(cells: pl.Series, as_: Override, comma: bool) -> tuple[Column, str]:
    """Apply the user's kind."""
    if as_ == "text":
        return Column(cells.name, "text"), ""
    if as_ == "category":
        return as_category(cells), ""
    if as_ == "date":
        if (date := find_date(cells)) is None:
            raise TableError(
                f"Column {cells.name!r} cannot be read as date: its cells have no common format."
            )
        return date, ""
    if cells.dtype != pl.String:
        return Column(cells.name, "number", format=_CLOCKS[1] if cells.dtype == pl.Time else ""), ""
    numbers = find_number(cells, comma=comma)
    if numbers is None or numbers[1] < 0.5:
        raise TableError(
            f"Column {cells.name!r} cannot be read as number: most of its cells are not numbers."
        )
    odd = cells.filter(_parse(cells, numbers[0]).is_null()).drop_nulls().unique(maintain_order=True)
    return dataclasses.replace(numbers[0], missing=tuple(odd)), ""


def _describe(column: Column, values: pl.Series, n_missing: int) -> tuple[str, str]:
    """Return what the table of columns says, and the option that would change it."""
    gaps, hint = f"{values.null_count():,} missing" if values.null_count() else "", ""
    if column.kind == "number":
        sign = column.prefix or column.suffix
        parts = [
            f"in {'percent' if sign == '%' else sign}" if sign else "",
            f"thousands separated by {column.thousands!r}" if column.thousands else "",
            "hours of the day" if column.format else "",
            f"read as missing: {', '.join(map(repr, column.missing[:3]))}" if column.missing else "",
            gaps,
        ]
        hint = _change(column.name, "category") if re.fullmatch(_UNIT, column.suffix) else ""
    elif column.kind == "date":
        order = {"%m/%d": "written month/day", "%d/%m": "written day/month"}.get(column.format[:5], "")
        parts = [order, "with a time zone" if column.zone else "", gaps]
    elif column.kind == "category":
        codes = "whole numbers read as codes" if column.cells == "number" else ""
        parts = [
            f"{values.n_unique():,} values",
            codes,
            f"{MISSING} for {n_missing:,} rows" if n_missing else "",
        ]
        hint = _change(column.name, "number") if codes else ""
    else:
        parts = [f"free text, {values.n_unique():,} distinct texts"]
        hint = _change(column.name, "id")
    return ", ".join(part for part in parts if part), hint


def read_inputs(columns: Sequence[Column], table: Table) -> pl.DataFrame:
    """Read the inputs of a table in the notation of training.

    Raises:
        TableError: If a column is missing, or a cell does not fit.
    """
    for column in columns:
        check_column(table, column.name, "input")
    try:
        return pl.DataFrame([column.read(table.frame[column.name]) for column in columns])
    except TableError as error:
        raise TableError(f"{table.name}: {error}") from None


def find_new_values(columns: Sequence[Column], inputs: pl.DataFrame) -> str:
    """Count the rows with values that training did not have; empty if there are none."""
    new = pl.DataFrame([column.is_new(inputs[column.name]).alias(column.name) for column in columns])
    counts = {name: n for name in new.columns if (n := int(new[name].sum()))}
    if not counts:
        return ""
    rows = int(new.max_horizontal().sum())
    shown = ", ".join(
        f"{name!r} in {counts[name]:,}" for name in sorted(counts, key=counts.__getitem__)[:-4:-1]
    )
    return (
        f"{rows:,} of {len(inputs):,} rows have numbers outside the range of training, or new categories "
        f"({shown}{' ...' if len(counts) > 3 else ''}). The model was not tested there."
    )
