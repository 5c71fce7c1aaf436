"""Recognise what every column of a table is, and read other tables by the same decisions.

The rules, in their order; `--as COLUMN=KIND` (``as_``) overrides all of them:

1. *Unused*: no values at all, one value in all rows, or a type that is neither number, text nor time.
2. *Number*: numbers, durations (days), times of day (hours), and text of which at least 90 % of the cells are
   numbers. Text may have thousands separators, one currency sign or percent signs, or one unit
   (``104,62 m²``) in at least 90 % of the cells. Several units are asked about. Cells of text are missing.
   Where a comma or a point may be both (``3,655``), the other cells of the column decide, then the file: any
   cell that can only be a decimal comma makes all such commas decimal, otherwise it is three thousand.
3. *Identifier*: whole numbers that count the rows; if at least 95 % of them differ, also whole numbers of 15
   and more digits or with a name such as ``customer_id``, and texts of fewer than three words on average.
4. *Category* instead of number: whole numbers written with leading zeros, or of 15 and more digits, which a
   float does not hold; whole numbers of three to six digits, all of equal length, with gaps, not all
   multiples of five, no years, with few values (at most 100, and 5 % of the rows); whole numbers with a name
   such as ``zip``, ``region`` or ``class`` and few values (at most 50, or 5 % of the rows).
5. *Date*: columns of dates, text in a common format (at least 90 % of the cells), and whole numbers of eight
   digits that are all dates, such as 20060131.
6. *Free text*: more than 50 texts, of three words on average, or different in more than 20 % of the rows.
7. *Category*: all other text, and true/false. A missing category is a category.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import polars as pl

from elliptica._utils.text import count
from elliptica.compare.table import TableError, check_column
from elliptica.estimators.columns import MISSING, is_free_text
from elliptica.estimators.preprocess import date_resolution, has_heavy_tail

Kind = Literal["number", "category", "date", "text", "id", "unused"]
Override = Literal["date", "number", "category", "text", "id"]

#: Whole numbers with at most so many values may be codes.
FEW_VALUES = 20
#: Below this share, text among numbers (or dates) is taken for a slip.
STRAY_SHARE = 0.1
#: Squares of larger numbers overflow; inputs are cut here, targets raise.
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
#: Names that tools give to the numbers of rows, which a sample of a table no longer counts one by one.
_ROW_NAMES = ("", "index", "row", "rownames", "unnamed: 0")
#: Names of what rows may belong to: its number says nothing of a new one.
_OWNER_NAMES = frozenset(
    ("individual", "person", "patient", "subject", "customer", "user", "household", "student")
)
_ID_NAMES = frozenset(["id", "ids", "uuid", "guid", "key", "identifier"])
_CURRENCY = r"[$€£¥₹]|EUR|USD|GBP|CHF|JPY|CAD|AUD|Rs\.?"
_PREFIX = rf"^([-+]?)\s*(?:{_CURRENCY})\s*"
_SUFFIX = rf"\s*(?:{_CURRENCY}|%)$"
#: What may follow a number: letters, degrees, squares, a fraction of two units.
_LETTERS = r"a-zA-Z\x{b5}\x{3bc}\x{3a9}\x{b0}\x{2103}\x{2109}\x{2032}\x{2033}\""
_UNIT = (
    r"^[-+]?(?:\d[\d.,\s'\x{2019}]*|[.,]\d+)(?:[eE][-+]?\d+)?\s*"
    rf"([{_LETTERS}][{_LETTERS}\x{{b2}}\x{{b3}}/\s]*[23]?)$"
)
#: So many units in a column are units; more are parts of names.
_MOST_UNITS = 6
_SIGN = rf"^[-+]?\s*({_CURRENCY})\s*[-+]?[\d.,]|\d\s*({_CURRENCY}|%)$"
#: Groups of three digits, by the decimal sign.
_GROUPED = {
    ".": r"^[-+]?\d{1,3}([,\s'\x{2019}]\d{3})+(\.\d+)?$",
    ",": r"^[-+]?\d{1,3}([.\s'\x{2019}]\d{3})+(,\d+)?$",
}
_BETWEEN_GROUPS = {".": r"[,\s'\x{2019}]", ",": r"[.\s'\x{2019}]"}
_CLOCK = r"^([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?$"
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
    """What a column is used as, in words."""

    name: str
    #: ``"id"``: not an input, but carried to predictions; ``"unused"``: constant, empty, or of another type.
    kind: Kind
    detail: str  # what it becomes, e.g. "25 values" or "heavy tail: scaled by quantiles"
    hint: str = ""  # option that changes it, where a user may well want to


@dataclass(frozen=True)
class Reading:
    """How an input is read: enough to read it from another table."""

    name: str
    kind: Literal["number", "category", "date", "text"]
    #: Of text that is read as numbers: decimal sign ("." or ","), currency or percent sign, whether thousands
    #: had separators. Of dates: the format. Of categories: whether they were numbers.
    form: Mapping[str, Any] = field(default_factory=dict)
    text_as_missing: bool = False  # whether cells of text were taken as missing

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "form": dict(self.form),
            "text_as_missing": self.text_as_missing,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Reading:
        """Restore what `to_dict` returned.

        Raises:
            TableError: If ``state`` is something else.
        """
        form = state.get("form", {})
        if state.get("kind") not in get_args(Kind)[:4] or not isinstance(form, Mapping):
            raise TableError("The model file does not say how its columns are read. Save the model again.")
        return cls(str(state.get("name")), state["kind"], form, bool(state.get("text_as_missing")))


class Recognised(NamedTuple):
    """What was decided about a column."""

    use: ColumnUse
    reading: Reading | None  # None: it is not an input
    values: pl.Series | None  # the input, as `read_column` gives it


class Strays(NamedTuple):
    """Cells of text in a column that mostly holds numbers, or dates."""

    numbers: pl.Series  # the column as numbers or dates, missing where there is text
    odd: pl.Series  # the cells of text
    n_known: int  # number of cells that are not empty

    @property
    def share(self) -> float:
        """How many of the cells that are not empty are text."""
        return len(self.odd) / max(1, self.n_known)

    def words(self, name: str, noun: str = "number") -> str:
        """How many, of how many, and one of them."""
        verb = f"is no {noun}" if len(self.odd) == 1 else f"are no {noun}s"
        return f"column {name!r}: {len(self.odd)} of {self.n_known} values {verb}, e.g. {self.odd[0]!r}"


class Notation(NamedTuple):
    """How the numbers of a column are written."""

    decimal: str = "."
    sign: str = ""  # a currency sign, % or a unit
    grouped: bool = False  # whether thousands have separators

    def words(self) -> list[str]:
        """What is said of it."""
        found = ["thousands separators removed"] if self.grouped else []
        if self.sign:
            found.append("in percent" if self.sign == "%" else f"in {self.sign}")
        return found


def find_strays(
    column: pl.Series, *, decimal_comma: bool = False, notation: Notation | None = None
) -> Strays:
    """Tell numbers and text of a column of text apart.

    Example:
        >>> found = find_strays(pl.Series("age", ["41", "unknown", None]))
        >>> found.words("age")
        "column 'age': 1 of 2 values is no number, e.g. 'unknown'"
    """
    notation = notation or find_notation(column, decimal_comma=decimal_comma)
    numbers = parse_numbers(column, notation)
    return Strays(
        numbers, column.filter(numbers.is_null() & column.is_not_null()), len(column) - column.null_count()
    )


def parse_numbers(column: pl.Series, notation: Notation | None = None) -> pl.Series:
    """Text as numbers; what is none becomes missing.

    By hand and not with skrub's ``ToFloat``, which rejects a column for a single cell of text.

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
    """How numbers in a column of text are written.

    Args:
        column: Text.
        decimal_comma: Whether the file has cells that can only be decimal commas.
        known: How they were written in the table of training, for cells that may be read in two ways.

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
    # 0,123 has no thousand; 1.5 in a column of commas is a slip that can be read
    no_thousand = cells.str.contains(r"^[-+]?0[.,]")
    n_point = int((plain | (grouped["."] & ~no_thousand)).sum())
    n_comma = int((comma | whole | (grouped[","] & ~no_thousand)).sum())
    if n_point == n_comma and int((comma | (plain & ~whole)).sum()):  # every such cell may be both
        prefer_comma = decimal_comma or (known is not None and known.decimal == "," and known.grouped)
    else:
        prefer_comma = n_comma > n_point
    decimal = "," if prefer_comma else "."
    return Notation(decimal, sign, bool((grouped[decimal] & ~no_thousand).any()))


def _without_sign(cells: pl.Series, sign: str) -> pl.Series:
    """Cells without a currency sign, percent sign or unit."""
    if re.fullmatch(f"{_CURRENCY}|%", sign):
        return cells.str.replace(_PREFIX, "$1").str.replace(_SUFFIX, "")
    # of day and days one is the unit, the other is written in some cells
    bare = cells.str.strip_suffix(f"{sign}s") if sign.isalpha() else cells
    return bare.str.strip_suffix(sign).str.strip_chars()


def find_units(cells: pl.Series) -> dict[str, int]:
    """Units that follow the numbers in cells of text, and in how many cells, the most frequent one first.

    Example:
        >>> find_units(pl.Series(["104,62 m²", "80 m²", "1 day", "3 days", "unknown"]))
        {'m²': 2, 'day': 2}
    """
    found: dict[str, int] = {}
    for unit in cells.str.strip_chars().str.extract(_UNIT, 1).drop_nulls().str.strip_chars().to_list():
        single = unit[:-1] if unit.isalpha() and len(unit) > 2 and unit.endswith("s") else unit
        found[single] = found.get(single, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _unit(cells: pl.Series) -> str:
    """The one unit of nearly all cells; empty if there is none."""
    units = find_units(cells)
    return next((unit for unit, n in units.items() if n >= (1 - STRAY_SHARE) * len(cells)), "")


def _sign(cells: pl.Series) -> str:
    """The sign that the cells share; empty if there is none, or if they have different ones."""
    if not cells.str.contains(r"[$€£¥₹%]|[A-Z]{3}|Rs").any():
        return ""
    frame = cells.to_frame("cell").select(
        pl.col("cell").str.contains(r"^[-+]?[\d.,\s'\x{2019}]+$").alias("bare"),
        pl.coalesce(pl.col("cell").str.extract(_SIGN, 1), pl.col("cell").str.extract(_SIGN, 2)).alias("sign"),
    )
    found = frame["sign"].drop_nulls()
    if found.n_unique() != 1:
        return ""
    if found[0] == "%" and int(frame["bare"].sum()) > STRAY_SHARE * len(found):
        return ""  # 12% and 0.12 in one column: no telling what the second is
    return str(found[0])


def _parse_dates(column: pl.Series, form: str) -> pl.Series:
    """Text, by its format, as times without a zone (in UTC, where there was one)."""
    text = column.str.strip_chars()
    if form == "%Y-%m":
        text, form = text + "-01", "%Y-%m-%d"
    if "%H" in form or "%I" in form:
        found = text.str.to_datetime(form, strict=False, time_unit="us")
    else:
        found = text.str.to_date(form, strict=False).cast(pl.Datetime("us"))
    found = _without_zone(found)
    return found.set(~found.dt.year().is_between(*_YEARS).fill_null(False), None)


def _without_zone(column: pl.Series) -> pl.Series:
    if getattr(column.dtype, "time_zone", None):
        column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return column.cast(pl.Datetime("us"))


def find_date_format(column: pl.Series) -> str | None:
    """Find the format in which at least 90 % of the cells of a column of text are dates.

    By hand and not with skrub's ``ToDatetime``: that rejects a column for a cell such as "unknown" among the
    first, and does not say when day and month cannot be told apart.

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
    best = max(counts, key=lambda form: counts[form], default=None)  # the first among equals
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
    """Decide what a column is used as.

    Args:
        column: Values of all training rows.
        table_column: The same before rows were dropped or sorted, in which it may count the rows; None: it
            is ``column``.
        distinct: The same without copies of rows, by which it is decided; None: it is ``column``.
        decimal_comma: Whether the file has decimal commas.
        as_: What the user says that it is.
        notices: What the table of columns does not say is added here, in words.

    Raises:
        TableError: If the column cannot be what the user says.

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
    """Blank cells of text as missing, in frames as in files."""
    if column.dtype != pl.String:
        return column
    return column.set(column.str.contains(r"^\s*$").fill_null(False), None)


def _useless(column: pl.Series) -> str | None:
    if column.null_count() == len(column):
        return "all its values are missing"
    if not is_usable(column):
        return f"it is of type {column.dtype}; make numbers or categories of it"
    known = column.drop_nulls()
    if len(known) == len(column) and known.n_unique() == 1:
        return f"it is {known[0]!r} in all rows"
    return None


def is_usable(column: pl.Series) -> bool:
    """Whether a column can be an input: numbers, text, categories, true/false, dates and times."""
    dtype = column.dtype
    return (
        dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean)
    )


def _tokens(name: str) -> list[str]:
    """Words of a name: 'PassengerId', 'passenger_id' and 'passenger id' have the same ones."""
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
    """Whether a column holds whole numbers, each one more than that of the row before."""
    return column.dtype.is_integer() and not column.null_count() and bool((column.diff()[1:] == 1).all())


def _identifier(column: pl.Series, as_: Override | None) -> Recognised:
    name = column.name
    kind = "number" if column.dtype.is_numeric() else "category"
    hint = "" if as_ else f"--as {shlex.quote(f'{name}={kind}')}"
    return Recognised(ColumnUse(name, "id", "identifier, not used", hint), None, None)


def _decide(column: pl.Series, decimal_comma: bool, notices: list[str]) -> Reading | None:
    """The kind of an input; None: an identifier."""
    name, dtype = column.name, column.dtype
    if dtype in (pl.Date, pl.Datetime):
        return Reading(name, "date")
    if dtype in (pl.Duration, pl.Time):
        return Reading(name, "number")
    if dtype.is_integer() and _is_compact_date(column):
        return Reading(name, "date", {"format": "%Y%m%d"})
    if dtype.is_numeric():
        return Reading(name, "category", {"numeric": True}) if _is_code(column) else Reading(name, "number")
    if dtype == pl.String:
        return _decide_text(column, decimal_comma, notices)
    return Reading(name, "category")


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
            f"Warning: column {name!r} holds numbers with different units ({', '.join(units)}), which are "
            "taken as text. Convert them to one unit, so that they are read as numbers."
        )
        return Reading(name, "text")
    worded = is_free_text(known.to_list())
    if n_values >= _ID_SHARE * len(known) and not worded:
        return None
    if n_values > MANY_TEXTS and (worded or n_values > 0.2 * len(known)):
        return Reading(name, "text")
    return Reading(name, "category")


def _mixed_units(known: pl.Series) -> list[str]:
    """Units of a column in which nearly all cells are numbers with one; empty if it is something else."""
    units = find_units(known)
    is_number = known.str.contains(r"^[-+]?[\d.,]+$").sum() + sum(units.values())
    if not 1 <= len(units) <= _MOST_UNITS or is_number < (1 - STRAY_SHARE) * len(known):
        return []
    return [*units, *(["none"] if is_number > sum(units.values()) else [])]


def _as_numbers(column: pl.Series, decimal_comma: bool, notices: list[str]) -> Reading | None:
    """Numbers, where a few cells of text would make hundreds of categories of them; None: not the case."""
    notation = find_notation(column, decimal_comma=decimal_comma)
    found = find_strays(column, notation=notation)
    form = notation._asdict()
    n_values = found.numbers.drop_nulls().n_unique()
    if not len(found.odd):
        return Reading(column.name, "number", form)
    # few numbers may be codes beside other codes; but one text, such as "unknown", is told by a gap as well
    if n_values <= FEW_VALUES and found.odd.n_unique() > 1:
        return None
    if found.share < STRAY_SHARE:
        return Reading(column.name, "number", form, text_as_missing=True)
    if found.share < 0.5 and n_values > FEW_VALUES:
        notices.append(
            f"Warning: {found.words(column.name)}. That is too much for slips, so the column is taken as "
            f"text. Correct or empty these cells if numbers are meant, or pass --as "
            f"{shlex.quote(f'{column.name}=number')}, which takes them as missing."
        )
    return None


def _is_compact_date(column: pl.Series) -> bool:
    known = column.drop_nulls().cast(pl.Int64, strict=False)  # small types do not hold the bounds
    if known.null_count() or not bool(known.is_between(19_000_101, 21_001_231).all()):
        return False
    return _parse_dates(known.unique().cast(pl.String), "%Y%m%d").null_count() == 0


def _is_code(column: pl.Series) -> bool:
    """Whether whole numbers are labels; rule 4 of the module."""
    known = column.drop_nulls()
    if column.dtype.is_float() and not bool((known % 1 == 0).all()):
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
    """What the user says; raised if most cells cannot be that."""
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
            return Reading(name, "number")
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
    """How a column of times is read: as dates, or as numbers that grow.

    Raises:
        TableError: If it holds something else.
    """
    name = column.name
    if as_ in ("date", "number"):
        return _override(column, decimal_comma, as_)
    if column.null_count() == len(column):
        raise TableError(f"The time column {name!r} is empty.")
    if column.dtype != pl.String:
        found = _decide(column, decimal_comma, [])
        if column.dtype.is_numeric() and (found is None or found.kind == "category"):
            return Reading(name, "number")
    else:
        form = find_date_format(column)
        found = (
            Reading(name, "date", {"format": form}, True) if form else _as_numbers(column, decimal_comma, [])
        )
    if found is None or found.kind not in ("date", "number"):
        raise TableError(
            f"The time column {name!r} holds neither dates nor numbers, e.g. "
            f"{str(column.drop_nulls()[0])!r}. Write dates as 2006-01-31, or name another column."
        )
    return found


def _check_override(name: str, as_: str, odd: pl.Series, n_known: int) -> None:
    if len(odd) > 0.5 * n_known:
        what = "numbers" if as_ == "number" else "dates in a format that is known, such as 2006-01-31"
        raise TableError(
            f"Column {name!r} cannot be read as {as_}: {len(odd)} of {n_known} values are no {what}, e.g. "
            f"{odd[0]!r}. Correct them, or leave --as {shlex.quote(f'{name}={as_}')} out."
        )


def read_column(
    column: pl.Series, reading: Reading, *, decimal_comma: bool = False, notices: list[str]
) -> pl.Series:
    """Read a column as it was decided in training.

    Args:
        column: Of any table, with any type.
        reading: The decision.
        decimal_comma: Whether the file has decimal commas.
        notices: Cells that are taken as missing are added here, in words.

    Returns:
        Numbers as Float64, null where missing, infinite or text; categories as text, ``"(missing)"`` where
        missing; free text as text; dates as Datetime without a zone.

    Raises:
        TableError: If most cells are something else.
    """
    if not is_usable(column) and column.null_count() < len(column):
        raise TableError(
            f"Column {column.name!r} is of type {column.dtype}, but a {reading.kind} is expected."
        )
    column = _without_blanks(column.cast(pl.String) if column.dtype == pl.Null else column)
    if reading.kind == "number":
        return _read_numbers(column, reading, decimal_comma, notices)
    if reading.kind == "date":
        return _read_dates(column, reading, notices)
    text = _as_text(column, bool(reading.form.get("numeric")))
    return text.fill_null(MISSING if reading.kind == "category" else "")


def _read_numbers(column: pl.Series, reading: Reading, decimal_comma: bool, notices: list[str]) -> pl.Series:
    name, dtype = column.name, column.dtype
    if dtype.is_temporal():
        return _time_as_number(column)
    if not dtype.is_numeric() and dtype != pl.Boolean:
        text = column.cast(pl.String)
        if reading.form.get("clock"):
            return _clock(text)
        known = Notation(**{k: reading.form[k] for k in Notation._fields if k in reading.form})
        notation = find_notation(text, decimal_comma=decimal_comma, known=known)
        found = find_strays(text, notation=notation._replace(sign=known.sign))
        _comment_on_strays(found, reading, notices)
        column = found.numbers
    numbers = column.cast(pl.Float64)
    n_infinite = int(numbers.is_infinite().sum())
    if n_infinite:
        notices.append(f"Column {name!r}: {count(n_infinite, 'infinite value')} taken as missing.")
    numbers = numbers.set(~numbers.is_finite(), None)
    n_huge = int((numbers.abs() > LARGEST).sum())
    if n_huge:
        notices.append(
            f"Column {name!r}: {count(n_huge, 'value')} beyond {LARGEST:g} set to {LARGEST:g}, whose square "
            "still is a number."
        )
        numbers = numbers.clip(-LARGEST, LARGEST)
    return numbers


def _time_as_number(column: pl.Series) -> pl.Series:
    """Hours of a time of day, days of a duration, days since 1970 of a date."""
    if column.dtype == pl.Time:
        return column.cast(pl.Int64).cast(pl.Float64) / 3.6e12
    if column.dtype == pl.Duration:
        return column.cast(pl.Duration("us")).cast(pl.Int64).cast(pl.Float64) / 8.64e10
    return days_since_1970(_without_zone(column))


def days_since_1970(column: pl.Series) -> pl.Series:
    """Dates as numbers."""
    return column.cast(pl.Datetime("us")).cast(pl.Int64).cast(pl.Float64) / 8.64e10


def _clock(text: pl.Series) -> pl.Series:
    """Times of day such as 14:30 as hours."""
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
        form = find_date_format(known) or form  # another file may be written in another way
    found = (
        _parse_dates(text, form) if isinstance(form, str) else text.clear(len(text)).cast(pl.Datetime("us"))
    )
    odd = text.filter(found.is_null() & text.is_not_null())
    _comment_on_strays(Strays(found, odd, len(known)), reading, notices)
    return found.alias(text.name)


#: So many cells of text without a number among them are no chance.
_MANY_ODD = 10


def _comment_on_strays(found: Strays, reading: Reading, notices: list[str]) -> None:
    """Cells that do not fit are missing where training had such, or where they are few."""
    if not len(found.odd):
        return
    n_odd, n_known = len(found.odd), found.n_known
    other = n_odd == n_known >= _MANY_ODD  # another column, or another way to write it
    if other or (not reading.text_as_missing and found.share >= STRAY_SHARE):
        raise TableError(
            f"Column {reading.name!r} held {reading.kind}s when the model was trained, but now {n_odd} of "
            f"{n_known} values are none, e.g. {found.odd[0]!r}. Correct them; an empty cell is a missing "
            "value."
        )
    notices.append(f"Warning: {found.words(reading.name, reading.kind)}. Taken as missing.")


def _as_text(column: pl.Series, numeric: bool) -> pl.Series:
    """Categories as text; 1, 1.0 and 01 are the same number."""
    if column.dtype.is_numeric() or numeric:
        numbers = column.cast(pl.Float64, strict=False)
        whole = numbers.cast(pl.Int64, strict=False)
        is_whole = (whole.cast(pl.Float64) == numbers).fill_null(False)
        return pl.select(
            pl.when(is_whole).then(whole.cast(pl.String)).otherwise(column.cast(pl.String)).alias(column.name)
        ).to_series()
    return column.cast(pl.String)


def _describe(column: pl.Series, values: pl.Series, reading: Reading, as_: Override | None) -> ColumnUse:
    """The line of the table of columns."""
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
        parts = [f"free text, {column.drop_nulls().n_unique():,} different ones: parts of words"]
        hint = _change(name, "id")
    return ColumnUse(name, kind, "; ".join(part for part in parts if part), "" if as_ else hint)


def _change(name: str, kind: str) -> str:
    return f"--as {shlex.quote(f'{name}={kind}')}"


def _describe_number(column: pl.Series, values: pl.Series, reading: Reading) -> tuple[list[str], str]:
    known = values.drop_nulls()
    notation = Notation(**{k: reading.form[k] for k in Notation._fields if k in reading.form})
    parts = notation.words()
    if reading.form.get("clock") or column.dtype == pl.Time:
        parts.append("time of day in hours")
    elif column.dtype == pl.Duration:
        parts.append("days")
    if has_heavy_tail(known.to_numpy()):
        parts.append("heavy tail: scaled by quantiles")
    if reading.text_as_missing:
        parts.append("cells of text taken as missing")
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
    """Read the inputs from another table, by the decisions of training.

    Args:
        readings: One per input, in their order.
        table: A `Table`, as text or with types.
        what: What the columns are, for messages.
        state: ``TablePreprocessor.to_dict()`` of the model: with it, values that training never saw and gaps
            where training had none are added to the notices.
        notices: What deviates from training is added here, in words.

    Raises:
        TableError: If columns are missing, or hold something else than in training.
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
            f"Column {name!r}: {gaps} missing values are replaced by {filled}, the median in training, where "
            "none were missing."
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
                f"Column {name!r}: {len(unknown)} values {why}, e.g. {unknown[0]!r}; they count as rare ones."
            )


def readings_of(state: Mapping[str, Any], text_as_missing: Sequence[str] = ()) -> list[Reading]:
    """Decisions of a model that was saved without them: the kinds of its preprocessor.

    Args:
        state: ``TablePreprocessor.to_dict()``.
        text_as_missing: Inputs of numbers in which text was taken as missing.
    """
    return [
        Reading(column["name"], column["kind"], {}, column["name"] in text_as_missing)
        for column in state["columns"]
    ]
