"""Recognise the kind of every column, and read other tables by the same decisions.

The rules are tried in this order; ``--as COLUMN=KIND`` (``as_``) overrides all of them:

1. *Unused*: no values, the same value in all rows, or a type other than number, text or time.
2. *Number*: numbers, durations (days), times of day (hours), and text in which at least 90 % of the cells are
   numbers. Text may have thousands separators, one currency sign, percent signs, or one unit (``104,62 m²``)
   in at least 90 % of the cells. Several units raise a warning. Other cells of text count as missing. If a
   comma or a point is ambiguous (``3,655``), the other cells of the column decide, then the file: one cell
   that must be a decimal comma makes all such commas decimal; otherwise ``3,655`` is three thousand.
3. *Identifier*: whole numbers that count the rows. If at least 95 % of the values differ, also whole numbers
   with 15 or more digits or a name such as ``customer_id``, and texts of fewer than three words on average.
4. *Category* instead of number: whole numbers with leading zeros, or with 15 or more digits, which a float
   cannot hold; whole numbers of three to six digits, all of equal length, with gaps, not all multiples of
   five, not years, with few values (at most 100, and 5 % of the rows); whole numbers with a name such as
   ``zip``, ``region`` or ``class`` and few values (at most 50, or 5 % of the rows).
5. *Date*: columns of dates, text in a common format (at least 90 % of the cells), and whole numbers of eight
   digits that are all dates, such as 20060131.
6. *Free text*: more than 50 texts, of three words on average, or different in more than 20 % of the rows.
7. *Category*: all other text, and true/false. Missing values are a category of their own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from elliptica._utils.text import count
from elliptica.estimators.preprocess import MISSING, is_free_text
from elliptica.tables.table import TableError, check_column

Kind = Literal["number", "category", "date", "text", "id", "unused"]
Override = Literal["date", "number", "category", "text", "id"]

#: Whole numbers with at most this many values may be codes.
FEW_VALUES = 20
#: Below this share, text among numbers (or dates) counts as a typing error.
STRAY_SHARE = 0.1
#: Squares of larger numbers overflow. Inputs are clipped to it; targets raise.
LARGEST = 1e150
#: Number of texts above which a column may be free text.
MANY_TEXTS = 50

_ID_SHARE = 0.95
_LONG_DIGITS = 15
_CODE_NAMES = frozenset(
    (
        *("zip", "zipcode", "postcode", "postal", "plz", "code", "class", "type", "kind", "category", "cat"),
        *("cluster", "region", "district", "fips", "sku", "dept", "department", "store", "shop", "sector"),
        *(
            "state",
            "country",
            "county",
            "city",
            "gender",
            "race",
            "ethnicity",
            "species",
            "occupation",
            "job",
        ),
    )
)
_CODE_ENDINGS = ("class", "code", "type")
#: Names that tools give to row numbers; in a sample of a table these no longer count the rows one by one.
_ROW_NAMES = ("", "index", "row", "rownames", "unnamed: 0")
#: Names of what rows may belong to; such a number carries no information about a new one.
_OWNER_NAMES = frozenset(
    ("individual", "person", "patient", "subject", "customer", "user", "household", "student")
)
_ID_NAMES = frozenset(["id", "ids", "uuid", "guid", "key", "identifier"])
_CURRENCY = r"[$€£¥₹]|EUR|USD|GBP|CHF|JPY|CAD|AUD|Rs\.?"
_SIGN_OF = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥", "Rs": "₹", "Rs.": "₹"}
_PREFIX = rf"^([-+]?)\s*(?:{_CURRENCY})\s*"
_SUFFIX = rf"\s*(?:{_CURRENCY}|%)$"
#: Characters that may follow a number: letters, degrees, squares, a fraction of two units.
_LETTERS = r"a-zA-Z\x{b5}\x{3bc}\x{3a9}\x{b0}\x{2103}\x{2109}\x{2032}\x{2033}\""
_UNIT = (
    r"^[-+]?(?:\d[\d.,\s'\x{2019}]*|[.,]\d+)(?:[eE][-+]?\d+)?\s*"
    rf"([{_LETTERS}][{_LETTERS}\x{{b2}}\x{{b3}}/\s]*[23]?)$"
)
#: Up to this many units in a column are units; more are parts of names.
_MOST_UNITS = 6
_SIGN = rf"^[-+]?\s*({_CURRENCY})\s*[-+]?[\d.,]|\d\s*({_CURRENCY}|%)$"
#: Groups of three digits, by the decimal sign.
_GROUPED = {
    ".": r"^[-+]?\d{1,3}([,\s'\x{2019}]\d{3})+(\.\d+)?$",
    ",": r"^[-+]?\d{1,3}([.\s'\x{2019}]\d{3})+(,\d+)?$",
}
_BETWEEN_GROUPS = {".": r"[,\s'\x{2019}]", ",": r"[.\s'\x{2019}]"}
_CLOCK = r"^([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?$"
_DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%Y",
    "%d.%m.%y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d %B %Y",
    "%d-%B-%Y",
    "%d-%b-%y",
    "%B %d, %Y",
    "%B %d %Y",
)
_TIMES = ("%H:%M:%S%.f", "%H:%M", "%I:%M %p", "%I:%M:%S %p")
_FORMATS = (
    *_DATES,
    *(f"{date} {time}" for date in _DATES for time in _TIMES),
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m",
)
_YEARS = (1600, 2300)
_SAMPLE = 200


@dataclass(frozen=True)
class ColumnUse:
    """How a column is used, as text."""

    name: str
    #: ``"id"``: not an input, but copied to predictions; ``"unused"``: constant, empty, or of another type.
    kind: Kind
    detail: str  # what it becomes, e.g. "25 values" or "heavy tail: scaled by quantiles"
    hint: str = ""  # option that changes it, if users may want to


@dataclass(frozen=True)
class Reading:
    """How an input is parsed, so that it can be parsed from other tables in the same way."""

    name: str
    kind: Literal["number", "category", "date", "text"]
    #: For text parsed as numbers: decimal sign ("." or ","), currency or percent sign, whether thousands had
    #: separators. For dates: the format. For categories: whether they were numbers.
    form: Mapping[str, Any] = field(default_factory=dict)
    text_as_missing: bool = False  # whether cells of text count as missing

    @property
    def notation(self) -> Notation:
        """The notation of the numbers in training."""
        return Notation(**{name: self.form[name] for name in Notation._fields if name in self.form})

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can store."""
        return {
            "name": self.name,
            "kind": self.kind,
            "form": dict(self.form),
            "text_as_missing": self.text_as_missing,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Reading:
        """Restore from the values of `to_dict`.

        Raises:
            TableError: If ``state`` is not of this form.
        """
        form = state.get("form", {})
        is_form = isinstance(form, Mapping) and isinstance(form.get("sign", ""), str)
        if state.get("kind") not in get_args(Kind)[:4] or not is_form:
            raise TableError("The model file does not say how to read its columns. Save the model again.")
        return cls(str(state.get("name")), state["kind"], form, bool(state.get("text_as_missing")))


class Recognised(NamedTuple):
    """The decision about a column."""

    use: ColumnUse
    reading: Reading | None  # None if it is not an input
    values: pl.Series | None  # the input, as `read_column` returns it


class Strays(NamedTuple):
    """Cells of text in a column that holds mostly numbers or dates."""

    numbers: pl.Series  # the column as numbers or dates, missing where there is text
    odd: pl.Series  # the cells of text
    n_known: int  # number of non-empty cells

    @property
    def share(self) -> float:
        """Share of text among the non-empty cells."""
        return len(self.odd) / max(1, self.n_known)

    def words(self, name: str, noun: str = "number") -> str:
        """Report the number of such cells, with an example."""
        verb = f"is not a {noun}" if len(self.odd) == 1 else f"are not {noun}s"
        return f"column {name!r}: {len(self.odd)} of {self.n_known} values {verb}, e.g. {self.odd[0]!r}"


class Notation(NamedTuple):
    """The notation of the numbers in a column of text."""

    decimal: str = "."
    sign: str = ""  # a currency sign, % or a unit
    grouped: bool = False  # whether thousands have separators

    def words(self) -> list[str]:
        """Return remarks about the notation."""
        remarks = ["thousands separators removed"] if self.grouped else []
        if self.sign:
            remarks.append("in percent" if self.sign == "%" else f"in {self.sign}")
        return remarks


def find_strays(
    column: pl.Series, *, decimal_comma: bool = False, notation: Notation | None = None
) -> Strays:
    """Separate numbers from other text in a column of text.

    Example:
        >>> strays = find_strays(pl.Series("age", ["41", "unknown", None]))
        >>> strays.words("age")
        "column 'age': 1 of 2 values is not a number, e.g. 'unknown'"
    """
    notation = notation or find_notation(column, decimal_comma=decimal_comma)
    numbers = parse_numbers(column, notation)
    return Strays(
        numbers, column.filter(numbers.is_null() & column.is_not_null()), len(column) - column.null_count()
    )


def parse_numbers(column: pl.Series, notation: Notation | None = None) -> pl.Series:
    """Parse text as numbers; other cells become missing.

    skrub's ``ToFloat`` would reject the whole column for a single cell of text.

    Example:
        >>> parse_numbers(pl.Series(["1.234,5 €", "7"]), Notation(",", "€")).to_list()
        [1234.5, 7.0]
    """
    text, notation = column.str.strip_chars(), notation or Notation()
    if notation.sign:
        text = _without_sign(text, notation.sign)
    elif notation == Notation():
        return text.cast(pl.Float64, strict=False)
    grouped = text.str.contains(_GROUPED[notation.decimal]).fill_null(False)
    text = pl.select(
        pl.when(grouped).then(text.str.replace_all(_BETWEEN_GROUPS[notation.decimal], "")).otherwise(text)
    ).to_series()
    if notation.decimal == ",":
        text = text.str.replace(",", ".", literal=True)
    return text.cast(pl.Float64, strict=False).alias(column.name)


def find_notation(
    column: pl.Series, *, decimal_comma: bool = False, known: Notation | None = None
) -> Notation:
    """Detect the notation of numbers in a column of text.

    Args:
        column: The cells as text.
        decimal_comma: Whether some cell of the file must be a decimal comma.
        known: Notation of the training table, used for ambiguous cells.

    Example:
        >>> find_notation(pl.Series(["3,655", "812"]))
        Notation(decimal='.', sign='', grouped=True)
        >>> find_notation(pl.Series(["3,655", "81,2"]))
        Notation(decimal=',', sign='', grouped=False)
    """
    cells = column.drop_nulls().unique().str.strip_chars()
    sign = _sign(cells) or (known.sign if known else "") or _unit(cells)
    if sign:
        cells = _without_sign(cells, sign)
    grouped = {decimal: cells.str.contains(pattern) for decimal, pattern in _GROUPED.items()}
    plain = cells.str.contains(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
    comma = cells.str.contains(r"^[-+]?\d*,\d+([eE][-+]?\d+)?$")
    whole = cells.str.contains(r"^[-+]?\d+$")
    # 0,123 has no thousands; 1.5 in a column of commas is a typing error that can still be parsed
    no_thousand = cells.str.contains(r"^[-+]?0[.,]")
    n_point = int((plain | (grouped["."] & ~no_thousand)).sum())
    n_comma = int((comma | whole | (grouped[","] & ~no_thousand)).sum())
    if n_point == n_comma and int((comma | (plain & ~whole)).sum()):  # every such cell is ambiguous
        prefer_comma = decimal_comma or _knows_commas(known, has_commas=bool(comma.any()))
    else:
        prefer_comma = n_comma > n_point
    decimal = "," if prefer_comma else "."
    return Notation(decimal, sign, bool((grouped[decimal] & ~no_thousand).any()))


def _knows_commas(known: Notation | None, *, has_commas: bool) -> bool:
    """Return whether training decides for decimal commas: it had them, and its points were no decimals."""
    return known is not None and known.decimal == "," and (known.grouped or has_commas)


def _without_sign(cells: pl.Series, sign: str) -> pl.Series:
    """Remove the currency sign, percent sign or unit."""
    if re.fullmatch(f"{_CURRENCY}|%", sign):
        return cells.str.replace(_PREFIX, "$1").str.replace(_SUFFIX, "")
    # "day" and "days" are the same unit
    bare = cells.str.strip_suffix(f"{sign}s") if sign.isalpha() else cells
    return bare.str.strip_suffix(sign).str.strip_chars()


def find_units(cells: pl.Series) -> dict[str, int]:
    """Count the units that follow the numbers in cells of text, the most frequent one first.

    Example:
        >>> find_units(pl.Series(["104,62 m²", "80 m²", "1 day", "3 days", "unknown"]))
        {'m²': 2, 'day': 2}
    """
    counts: dict[str, int] = {}
    for unit in cells.str.strip_chars().str.extract(_UNIT, 1).drop_nulls().str.strip_chars().to_list():
        single = unit[:-1] if unit.isalpha() and len(unit) > 2 and unit.endswith("s") else unit
        counts[single] = counts.get(single, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _unit(cells: pl.Series) -> str:
    """Return the unit of nearly all cells; empty if there is none."""
    units = find_units(cells)
    return next((unit for unit, n in units.items() if n >= (1 - STRAY_SHARE) * len(cells)), "")


def _sign(cells: pl.Series) -> str:
    """Return the sign that the cells share; empty if there is none or if they differ."""
    if not cells.str.contains(r"[$€£¥₹%]|[A-Z]{3}|Rs").any():
        return ""
    frame = cells.to_frame("cell").select(
        pl.col("cell").str.contains(r"^[-+]?[\d.,\s'\x{2019}]+$").alias("bare"),
        pl.coalesce(pl.col("cell").str.extract(_SIGN, 1), pl.col("cell").str.extract(_SIGN, 2)).alias("sign"),
    )
    signs = frame["sign"].drop_nulls()
    if signs.n_unique() != 1:
        return ""
    if signs[0] == "%" and int(frame["bare"].sum()) > STRAY_SHARE * len(signs):
        return ""  # 12% and 0.12 in one column: the second is ambiguous
    return str(signs[0])


def _parse_dates(column: pl.Series, form: str) -> pl.Series:
    """Parse text in a date format as times without a zone (converted to UTC if there was one)."""
    text = column.str.strip_chars()
    if form == "%Y-%m":
        text, form = text + "-01", "%Y-%m-%d"
    if "%H" in form or "%I" in form:
        dates = text.str.to_datetime(form, strict=False, time_unit="us")
    else:
        dates = text.str.to_date(form, strict=False).cast(pl.Datetime("us"))
    dates = _without_zone(dates)
    return dates.set(~dates.dt.year().is_between(*_YEARS).fill_null(False), None)


def _without_zone(column: pl.Series) -> pl.Series:
    if getattr(column.dtype, "time_zone", None):
        column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return column.cast(pl.Datetime("us"))


def find_date_format(column: pl.Series) -> str | None:
    """Find the format in which at least 90 % of the cells of a column of text are dates.

    skrub's ``ToDatetime`` would reject a column for a cell such as "unknown" among the first, and does not
    report when day and month are ambiguous.

    Example:
        >>> find_date_format(pl.Series(["31/01/2006", "1/2/2006"]))
        '%d/%m/%Y'
    """
    cells = column.drop_nulls().unique(maintain_order=True)
    some = cells.head(_SAMPLE)
    if not len(some) or some.str.contains(r"\d").sum() < (1 - STRAY_SHARE) * len(some):
        return None
    needed = (1 - STRAY_SHARE) * len(cells)
    likely = [form for form in _FORMATS if _parse_dates(some, form).count() >= 0.5 * len(some)]
    counts = {form: _parse_dates(cells, form).count() for form in likely}
    best = max(counts, key=lambda form: counts[form], default=None)  # ties: the first format
    return best if best is not None and counts[best] > needed else None


def recognise(
    column: pl.Series,
    table_column: pl.Series | None = None,
    *,
    distinct: pl.Series | None = None,
    decimal_comma: bool = False,
    as_: Override | None = None,
    notices: list[str],
) -> Recognised:
    """Decide how a column is used.

    Args:
        column: Values of all training rows.
        table_column: The column before rows were dropped or sorted, where it may count the rows; by default
            ``column``.
        distinct: The column without copies of rows, on which the decision is based; by default ``column``.
        decimal_comma: Whether the file has decimal commas.
        as_: Kind that the user gave.
        notices: List to which remarks are appended that the table of columns does not show.

    Raises:
        TableError: If the column cannot be read as the user's kind.

    Example:
        >>> recognise(pl.Series("price", [f"€ {i},{i}00" for i in range(1, 9)]), notices=[]).use.detail
        'thousands separators removed; in €'
    """
    column = _without_blanks(column)
    distinct = column if distinct is None else _without_blanks(distinct)
    reason = _useless(column)
    counts = counts_rows(column if table_column is None else table_column) or counts_rows(distinct)
    if as_ == "id" or (as_ is None and reason is None and (counts or _is_id(distinct))):
        return _identifier(column, as_)
    if reason is not None:
        if as_ is not None and not is_usable(column):
            raise TableError(f"Column {column.name!r} cannot be read as {as_}: {reason}.")
        return Recognised(ColumnUse(column.name, "unused", reason), None, None)
    reading = (
        _decide(distinct, decimal_comma, notices) if as_ is None else _override(column, decimal_comma, as_)
    )
    if reading is None:
        return _identifier(column, as_)
    values = read_column(column, reading, decimal_comma=decimal_comma, notices=notices)
    if reason := _useless(values if reading.kind != "text" else column):
        return Recognised(ColumnUse(column.name, "unused", reason), None, None)
    return Recognised(_describe(column, values, reading, as_), reading, values)


def _without_blanks(column: pl.Series) -> pl.Series:
    """Strip cells of text and replace blank ones by missing values, in frames and files alike."""
    if column.dtype != pl.String:
        return column
    text = column.str.strip_chars()
    return text.set((text == "").fill_null(False), None)


def _useless(column: pl.Series) -> str | None:
    if column.null_count() == len(column):
        return "all its values are missing"
    if not is_usable(column):
        return f"it is of type {column.dtype}; convert it to numbers or categories"
    known = column.drop_nulls()
    if len(known) == len(column) and known.n_unique() == 1:
        return f"it is {known[0]!r} in all rows"
    return None


def is_usable(column: pl.Series) -> bool:
    """Return whether a column can be an input: numbers, text, categories, true/false, dates and times."""
    dtype = column.dtype
    return (
        dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean)
    )


def _tokens(name: str) -> list[str]:
    """Split a name into words; 'PassengerId', 'passenger_id' and 'passenger id' give the same ones."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _named_id(name: str) -> bool:
    return name.lower() in _ROW_NAMES or bool(_ID_NAMES.intersection(_tokens(name)[-1:]))


def _is_id(column: pl.Series) -> bool:
    known = column.drop_nulls()
    n_values = known.n_unique()
    if column.dtype.is_integer():
        long = bool((known.cast(pl.Float64).abs() >= 10.0 ** (_LONG_DIGITS - 1)).all())
        return (long or _named_id(column.name)) and n_values >= _ID_SHARE * len(known)
    if column.dtype != pl.String or n_values < _ID_SHARE * len(known):
        return False
    digits = known.str.contains(rf"^\d{{{_LONG_DIGITS},}}$").all()
    return bool(digits) or (_named_id(column.name) and not is_free_text(known.to_list()))


def counts_rows(column: pl.Series) -> bool:
    """Return whether a column holds whole numbers that increase by one from row to row."""
    return column.dtype.is_integer() and not column.null_count() and bool((column.diff()[1:] == 1).all())


def _identifier(column: pl.Series, as_: Override | None) -> Recognised:
    name = column.name
    kind = "number" if column.dtype.is_numeric() else "category"
    hint = "" if as_ else f"--as {shlex.quote(f'{name}={kind}')}"
    return Recognised(ColumnUse(name, "id", "identifier, not used", hint), None, None)


def _decide(column: pl.Series, decimal_comma: bool, notices: list[str]) -> Reading | None:
    """Decide the kind of an input; None means an identifier."""
    name, dtype = column.name, column.dtype
    if dtype in (pl.Date, pl.Datetime):
        return Reading(name, "date")
    if dtype in (pl.Duration, pl.Time):
        return Reading(name, "number", {"clock": True} if dtype == pl.Time else {})
    if dtype.is_integer() and _is_compact_date(column):
        return Reading(name, "date", {"format": "%Y%m%d"})
    if dtype.is_numeric():
        if _is_code(column):
            return Reading(name, "category", {"numeric": True})
        return Reading(name, "number", _file_notation(column, decimal_comma))
    if dtype == pl.String:
        return _decide_text(column, decimal_comma, notices)
    return Reading(name, "category")


def _file_notation(column: pl.Series, decimal_comma: bool) -> dict[str, str]:
    """Note that decimals had commas, for ambiguous cells of other files; the reader has parsed them here."""
    return {"decimal": ","} if decimal_comma and column.dtype.is_float() else {}


def _decide_text(column: pl.Series, decimal_comma: bool, notices: list[str]) -> Reading | None:
    name, known = column.name, column.drop_nulls()
    codes = known.str.contains(rf"^[-+]?0\d+$|^[-+]?\d{{{_LONG_DIGITS},}}$").any()
    if codes and known.str.contains(r"^[-+]?\d+$").all():
        few = known.n_unique() < _ID_SHARE * len(known)
        return Reading(name, "category") if few else None
    if known.str.contains(_CLOCK).all():
        return Reading(name, "number", {"clock": True})
    if (numbers := _as_numbers(column, decimal_comma, notices)) is not None:
        return numbers
    if (form := find_date_format(known)) is not None:
        odd = known.filter(_parse_dates(known, form).is_null())
        return Reading(name, "date", {"format": form}, len(odd) > 0)
    n_values = known.n_unique()
    if n_values > FEW_VALUES and (units := _mixed_units(known)):
        notices.append(
            f"Warning: column {name!r} holds numbers with different units ({', '.join(units)}) and is read "
            "as text. Convert them to one unit to use them as numbers."
        )
        return Reading(name, "text")
    worded = is_free_text(known.to_list())
    if n_values >= _ID_SHARE * len(known) and not worded:
        return None
    if n_values > MANY_TEXTS and (worded or n_values > 0.2 * len(known)):
        return Reading(name, "text")
    return Reading(name, "category")


def _mixed_units(known: pl.Series) -> list[str]:
    """Return the units of a column in which nearly all cells are numbers with one; otherwise empty."""
    units = find_units(known)
    is_number = known.str.contains(r"^[-+]?[\d.,]+$").sum() + sum(units.values())
    if not 1 <= len(units) <= _MOST_UNITS or is_number < (1 - STRAY_SHARE) * len(known):
        return []
    return [*units, *(["none"] if is_number > sum(units.values()) else [])]


def _as_numbers(column: pl.Series, decimal_comma: bool, notices: list[str]) -> Reading | None:
    """Read text as numbers despite a few other cells; None if it is not a column of numbers."""
    notation = find_notation(column, decimal_comma=decimal_comma)
    strays = find_strays(column, notation=notation)
    form = notation._asdict()
    n_values = strays.numbers.drop_nulls().n_unique()
    if not len(strays.odd):
        return Reading(column.name, "number", form)
    # few numbers may be codes among other codes; but a single text, such as "unknown", works as a gap
    if n_values <= FEW_VALUES and strays.odd.n_unique() > 1:
        return None
    if strays.share < STRAY_SHARE:
        return Reading(column.name, "number", form, text_as_missing=True)
    if strays.share < 0.5 and n_values > FEW_VALUES:
        notices.append(
            f"Warning: {strays.words(column.name)}. These are too many for typing errors, so the column is "
            "read as text. If it should hold numbers, correct or empty these cells, or pass --as "
            f"{shlex.quote(f'{column.name}=number')} to treat them as missing."
        )
    return None


def _is_compact_date(column: pl.Series) -> bool:
    known = column.drop_nulls().cast(pl.Int64, strict=False)  # small types cannot hold the bounds
    if known.null_count() or not bool(known.is_between(19_000_101, 21_001_231).all()):
        return False
    return _parse_dates(known.unique().cast(pl.String), "%Y%m%d").null_count() == 0


def _is_code(column: pl.Series) -> bool:
    """Return whether whole numbers are labels, by rule 4 of the module."""
    known = column.drop_nulls()
    if not column.dtype.is_integer() and not bool((known.cast(pl.Float64) % 1 == 0).all()):
        return False
    values = known.unique()
    n_values, n_rows = len(values), len(known)
    if n_values < 3 or bool((values < 0).any()):
        return False
    tokens = _tokens(column.name)
    named = bool(_CODE_NAMES.union(_ID_NAMES).intersection(tokens)) or any(
        token.endswith(_CODE_ENDINGS) for token in tokens
    )
    low, high = float(values.min()), float(values.max())  # type: ignore[arg-type]
    if low >= 10.0 ** (_LONG_DIGITS - 1) or (named and n_values <= max(50, 0.05 * n_rows)):
        return True
    if n_values > min(100, 0.05 * n_rows):
        return False
    same_length = low >= 100 and len(str(int(low))) == len(str(int(high))) <= 6
    years = low >= 1800 and high <= 2100
    return same_length and not years and bool((values % 5 != 0).any()) and high - low + 1 > 2 * n_values


def _override(column: pl.Series, decimal_comma: bool, as_: Override) -> Reading:
    """Apply the user's kind; raise if most cells do not fit it."""
    name = column.name
    if as_ in ("category", "text"):
        numeric = {"numeric": True} if column.dtype.is_numeric() else {}
        return Reading(name, as_, numeric)
    text = column if column.dtype == pl.String else column.cast(pl.String)
    known = text.drop_nulls()
    if as_ == "number":
        if (
            column.dtype in (pl.Boolean, pl.Date, pl.Datetime, pl.Duration, pl.Time)
            or column.dtype.is_numeric()
        ):
            return Reading(name, "number", _file_notation(column, decimal_comma))
        if known.str.contains(_CLOCK).all():
            return Reading(name, "number", {"clock": True})
        notation = find_notation(text, decimal_comma=decimal_comma)
        odd = find_strays(text, notation=notation).odd
        _check_override(name, as_, odd, len(known))
        return Reading(name, "number", notation._asdict(), len(odd) > 0)
    if column.dtype in (pl.Date, pl.Datetime):
        return Reading(name, "date")
    if column.dtype.is_integer():
        form = "%Y%m%d"
    else:
        counts = {form: _parse_dates(known, form).count() for form in _FORMATS}
        form = max(counts, key=lambda each: counts[each])
    odd = known.filter(_parse_dates(known, form).is_null())
    _check_override(name, as_, odd, len(known))
    return Reading(name, "date", {"format": form}, len(odd) > 0)


def time_reading(column: pl.Series, *, decimal_comma: bool = False, as_: Override | None = None) -> Reading:
    """Decide how a column of times is parsed: as dates, or as increasing numbers.

    Raises:
        TableError: If it holds neither.
    """
    name = column.name
    if as_ in ("date", "number"):
        return _override(column, decimal_comma, as_)
    if column.null_count() == len(column):
        raise TableError(f"The time column {name!r} is empty. Name another column.")
    if column.dtype != pl.String:
        reading = _decide(column, decimal_comma, [])
        if column.dtype.is_numeric() and (reading is None or reading.kind == "category"):
            return Reading(name, "number")
    else:
        form = find_date_format(column)
        reading = (
            Reading(name, "date", {"format": form}, True) if form else _as_numbers(column, decimal_comma, [])
        )
    if reading is None or reading.kind not in ("date", "number"):
        raise TableError(
            f"The time column {name!r} holds neither dates nor numbers, e.g. "
            f"{str(column.drop_nulls()[0])!r}. Write dates as 2006-01-31, or name another column."
        )
    return reading


def _check_override(name: str, as_: str, odd: pl.Series, n_known: int) -> None:
    if len(odd) > 0.5 * n_known:
        what = "numbers" if as_ == "number" else "dates in a known format, such as 2006-01-31"
        raise TableError(
            f"Column {name!r} cannot be read as {as_}: {len(odd)} of {n_known} values are not {what}, e.g. "
            f"{odd[0]!r}. Correct them, or omit --as {shlex.quote(f'{name}={as_}')}."
        )


def read_column(
    column: pl.Series, reading: Reading, *, decimal_comma: bool = False, notices: list[str]
) -> pl.Series:
    """Parse a column as decided in training.

    Args:
        column: A column of any table, with any type.
        reading: The decision.
        decimal_comma: Whether the file has decimal commas.
        notices: List to which remarks about cells that count as missing are appended.

    Returns:
        Numbers as Float64, null where missing, infinite or text; categories as text, ``"(missing)"`` where
        missing; free text as text; dates as Datetime without a zone.

    Raises:
        TableError: If most cells do not fit the decision.
    """
    if not is_usable(column) and column.null_count() < len(column):
        raise TableError(
            f"Column {column.name!r} is of type {column.dtype}, but the model expects a {reading.kind}."
        )
    column = _without_blanks(column.cast(pl.String) if column.dtype == pl.Null else column)
    if reading.kind == "number":
        return _read_numbers(column, reading, decimal_comma, notices)
    if reading.kind == "date":
        return _read_dates(column, reading, notices)
    text = as_text(column, numeric=bool(reading.form.get("numeric")))
    return text.fill_null(MISSING if reading.kind == "category" else "")


def _read_numbers(column: pl.Series, reading: Reading, decimal_comma: bool, notices: list[str]) -> pl.Series:
    name, dtype = column.name, column.dtype
    if dtype.is_temporal():
        return _time_as_number(column)
    if not dtype.is_numeric() and dtype != pl.Boolean:
        text = column.cast(pl.String)
        if reading.form.get("clock"):
            return _clock(text)
        strays = read_written_numbers(text, reading, decimal_comma=decimal_comma)
        _comment_on_strays(strays, reading, notices)
        _comment_on_sign(text, reading, notices)
        column = strays.numbers
    numbers = column.cast(pl.Float64)
    n_infinite = int(numbers.is_infinite().sum())
    if n_infinite:
        notices.append(f"Column {name!r}: {count(n_infinite, 'infinite value')} treated as missing.")
    numbers = numbers.set(~numbers.is_finite(), None)
    n_huge = int((numbers.abs() > LARGEST).sum())
    if n_huge:
        notices.append(
            f"Column {name!r}: {count(n_huge, 'value')} beyond {LARGEST:g} clipped to {LARGEST:g}, because "
            "larger squares overflow."
        )
        numbers = numbers.clip(-LARGEST, LARGEST)
    return numbers


def read_written_numbers(text: pl.Series, reading: Reading, *, decimal_comma: bool = False) -> Strays:
    """Parse text as numbers in the notation of training, which decides ambiguous cells and the unit."""
    known = reading.notation
    notation = find_notation(text, decimal_comma=decimal_comma, known=known)
    return find_strays(text, notation=notation._replace(sign=known.sign))


def _time_as_number(column: pl.Series) -> pl.Series:
    """Convert a time of day to hours, a duration to days, and a date to days since 1970."""
    if column.dtype == pl.Time:
        return column.cast(pl.Int64).cast(pl.Float64) / 3.6e12
    if column.dtype == pl.Duration:
        return column.cast(pl.Duration("us")).cast(pl.Int64).cast(pl.Float64) / 8.64e10
    return days_since_1970(_without_zone(column))


def days_since_1970(column: pl.Series) -> pl.Series:
    """Convert dates to numbers."""
    return column.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 8.64e10


def _clock(text: pl.Series) -> pl.Series:
    """Convert times of day such as 14:30 to hours."""
    known = text.str.contains(_CLOCK).fill_null(False)
    parts = text.set(~known, None).str.split(":").list
    hours, minutes = (parts.get(i, null_on_oob=True).cast(pl.Float64) for i in (0, 1))
    seconds = parts.get(2, null_on_oob=True).cast(pl.Float64).fill_null(0.0)
    return (hours + minutes / 60 + seconds / 3600).alias(text.name)


def _read_dates(column: pl.Series, reading: Reading, notices: list[str]) -> pl.Series:
    if column.dtype in (pl.Date, pl.Datetime):
        return _without_zone(column)
    text = column.cast(pl.String)
    form = reading.form.get("format")
    known = text.drop_nulls()
    if not isinstance(form, str) or _parse_dates(known, form).null_count() > 0.5 * len(known):
        form = find_date_format(known) or form  # another file may use another format
    dates = (
        _parse_dates(text, form) if isinstance(form, str) else text.clear(len(text)).cast(pl.Datetime("us"))
    )
    odd = text.filter(dates.is_null() & text.is_not_null())
    _comment_on_strays(Strays(dates, odd, len(known)), reading, notices)
    return dates.alias(text.name)


#: This many cells of text without a single number cannot be typing errors.
_MANY_ODD = 10


def _comment_on_strays(found: Strays, reading: Reading, notices: list[str]) -> None:
    """Treat cells that do not fit as missing if they are few or if training had such cells; else raise."""
    if not len(found.odd):
        return
    n_odd, n_known = len(found.odd), found.n_known
    other = n_odd == n_known >= _MANY_ODD  # another column, or another notation
    if other or (not reading.text_as_missing and found.share >= STRAY_SHARE):
        raise TableError(
            f"Column {reading.name!r} held {reading.kind}s when the model was trained, but now {n_odd} of "
            f"{n_known} values are not, e.g. {found.odd[0]!r}. Correct them; empty cells count as missing "
            "values."
        )
    notices.append(f"Warning: {found.words(reading.name, reading.kind)}. Treated as missing.")


def _comment_on_sign(text: pl.Series, reading: Reading, notices: list[str]) -> None:
    """Warn if numbers are in another currency than in training."""
    now, known = (_SIGN_OF.get(each, each) for each in (_sign(text.drop_nulls()), reading.notation.sign))
    if now and known and now != known:
        notices.append(
            f"Warning: column {reading.name!r} was in {known} when the model was trained, but is in {now} "
            "now. The numbers are not converted: convert them first."
        )


def as_text(column: pl.Series, *, numeric: bool = False) -> pl.Series:
    """Convert categories to text; 1, 1.0 and 01 are the same number.

    Example:
        >>> as_text(pl.Series([1.0, 2.5])).to_list()
        ['1', '2.5']
    """
    if column.dtype.is_numeric() or numeric:
        numbers = column.cast(pl.Float64, strict=False)
        whole = numbers.cast(pl.Int64, strict=False)
        is_whole = (whole.cast(pl.Float64) == numbers).fill_null(False)
        return pl.select(
            pl.when(is_whole).then(whole.cast(pl.String)).otherwise(column.cast(pl.String)).alias(column.name)
        ).to_series()
    return column.cast(pl.String)


def _describe(column: pl.Series, values: pl.Series, reading: Reading, as_: Override | None) -> ColumnUse:
    """Describe a column for the table of columns."""
    name, kind = reading.name, reading.kind
    hint = ""
    if kind == "number":
        parts, hint = _describe_number(column, values, reading)
    elif kind == "category":
        n_values = values.n_unique()
        parts = [f"{n_values:,} values"]
        if reading.form.get("numeric"):
            parts.append("whole numbers read as codes")
            hint = _change(name, "number")
        elif column.dtype == pl.String and column.str.contains(r"^0\d+$").any():
            parts.append("codes with leading zeros")
            hint = _change(name, "number")
        elif n_values > MANY_TEXTS:
            parts.append("rare ones joined")
            hint = _change(name, "text")
        if column.null_count():
            parts.append(f"{MISSING} for {column.null_count():,} rows")
    elif kind == "date":
        parts = [_describe_date(values, reading)]
        if values.null_count():
            parts.append(f"{values.null_count():,} missing")
    else:
        parts = [f"free text, {column.drop_nulls().n_unique():,} distinct texts: parts of words"]
        hint = _change(name, "id")
    return ColumnUse(name, kind, "; ".join(part for part in parts if part), "" if as_ else hint)


def _change(name: str, kind: str) -> str:
    return f"--as {shlex.quote(f'{name}={kind}')}"


def _describe_number(column: pl.Series, values: pl.Series, reading: Reading) -> tuple[list[str], str]:
    known = values.drop_nulls()
    notation = reading.notation
    parts = notation.words()
    if reading.form.get("clock") or column.dtype == pl.Time:
        parts.append("time of day in hours")
    elif column.dtype == pl.Duration:
        parts.append("days")
    if has_heavy_tail(known.to_numpy()):
        parts.append("heavy tail: scaled by quantiles")
    if reading.text_as_missing:
        parts.append("cells of text treated as missing")
    if values.null_count():
        parts.append(f"{values.null_count():,} missing")
    n_values = known.n_unique()
    is_unit = notation.sign and not re.fullmatch(f"{_CURRENCY}|%", notation.sign)
    hint = _change(reading.name, "category") if is_unit else ""
    if column.dtype.is_integer() and 3 <= n_values <= FEW_VALUES:
        spread = float(known.max()) - float(known.min()) + 1  # type: ignore[arg-type]
        hint = _change(reading.name, "category") if spread > 2 * n_values else ""
    if column.dtype.is_integer() and _OWNER_NAMES.intersection(_tokens(reading.name)):
        hint = _change(reading.name, "id")
    return parts, hint


def _describe_date(values: pl.Series, reading: Reading) -> str:
    days = days_since_1970(values).drop_nulls().to_numpy()
    parts = {
        "year": "year",
        "month": "year, month",
        "day": "year, month, day, day of week",
        "hour": "year, month, day, day of week, hour",
    }
    words = f"{parts[date_resolution(days)]}, days since {str(values.min())[:10]}"
    form = str(reading.form.get("format", ""))
    if form[:5] in ("%m/%d", "%d/%m"):
        words += f", written {'month/day' if form.startswith('%m') else 'day/month'}"
    return words


def read_inputs(
    readings: Sequence[Reading],
    table: Any,
    *,
    what: str = "inputs of the model",
    state: Mapping[str, Any] | None = None,
    notices: list[str],
) -> pl.DataFrame:
    """Parse the inputs of another table by the decisions of training.

    Args:
        readings: One per input, in order.
        table: A `Table`, as text or with types.
        what: Name of the columns in messages.
        state: ``TablePreprocessor.to_dict()`` of the model. If given, remarks are added about values that
            training never saw and about gaps where training had none.
        notices: List to which remarks about deviations from training are appended.

    Raises:
        TableError: If columns are missing, or do not fit the decisions of training.
    """
    names = [reading.name for reading in readings]
    missing = [name for name in names if name not in table.frame.columns]
    if len(missing) > 1:
        raise TableError(
            f"{table.name} lacks {len(missing)} of the {len(names)} {what}: "
            f"{', '.join(map(repr, missing[:12]))}{' ...' if len(missing) > 12 else ''}."
        )
    for name in missing:
        check_column(table, name, "model")
    frame = pl.DataFrame(
        [
            read_column(table.frame[each.name], each, decimal_comma=table.decimal_comma, notices=notices)
            for each in readings
        ]
    )
    for column in (state or {}).get("columns", []):
        _comment_on_deviations(frame[column["name"]], column, notices)
    return frame


def _comment_on_deviations(values: pl.Series, column: Mapping[str, Any], notices: list[str]) -> None:
    name, kind = values.name, column["kind"]
    if kind in ("number", "date") and (gaps := values.null_count()) and not column["had_gaps"]:
        filled = f"{column['median']:g}" if kind == "number" else "the middle date"
        notices.append(
            f"Column {name!r}: {gaps} missing values are replaced by {filled}, the median in training. None "
            "were missing in training."
        )
    if kind == "category":
        unknown = values.filter(~values.is_in(column["frequent"]))
        if len(unknown):
            why = (
                "were rare in training, or not seen in it"
                if column["n_rare"]
                else "were not seen in training"
            )
            notices.append(
                f"Column {name!r}: {len(unknown)} values {why}, e.g. {unknown[0]!r}; they count as rare."
            )


def readings_of(state: Mapping[str, Any], text_as_missing: Sequence[str] = ()) -> list[Reading]:
    """Derive the decisions of a model that was saved without them from its preprocessor.

    Args:
        state: ``TablePreprocessor.to_dict()``.
        text_as_missing: Numeric inputs in which text counts as missing.
    """
    return [
        Reading(column["name"], column["kind"], {}, column["name"] in text_as_missing)
        for column in state["columns"]
    ]


def robust_scale(values: np.ndarray) -> tuple[float, float]:
    """Return median and spread of numbers.

    The spread is the distance between the quartiles. If they are equal, it is the median of the nonzero
    distances from the median.
    """
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    if high > low:
        return float(median), float(high - low)
    distances = np.abs(values - median)
    distances = distances[distances > 0]
    return float(median), float(np.median(distances)) if len(distances) else 1.0


def has_heavy_tail(values: np.ndarray) -> bool:
    """Return whether some number is more than ten spreads (see `robust_scale`) from the median.

    This is practically never so for normal numbers, but usual for a thousand log-normal ones.

    Example:
        >>> has_heavy_tail(np.arange(100.0)), has_heavy_tail(np.append(np.arange(100.0), 1e4))
        (False, True)
    """
    if not len(values):
        return False
    median, spread = robust_scale(values)
    return bool(np.abs(values - median).max() > 10.0 * spread)


def date_resolution(days: np.ndarray) -> str:
    """Return the finest of year, month, day and hour in which dates (in days since 1970) differ.

    Example:
        >>> date_resolution(np.array([0.0, 31.0, 59.0])), date_resolution(np.array([0.0, 0.5]))
        ('month', 'hour')
    """
    dates = np.floor(days).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    if len(np.unique(days % 1)) > 1:
        return "hour"
    if len(np.unique(dates - months)) > 1:
        return "day"
    return "month" if len(np.unique(months.astype(int) % 12)) > 1 else "year"
