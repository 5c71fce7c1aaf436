"""Which columns of a table are inputs: as numbers, as categories, or not at all, and why, in words."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import polars as pl

from elliptica.compare.csv import TableError
from elliptica.compare.table import as_numbers

#: Whole numbers with at most so many values may be codes.
FEW_VALUES = 20
#: Below this share, text among numbers is taken for a slip.
STRAY_SHARE = 0.1
_MANY_CATEGORIES = 50


class Inputs(NamedTuple):
    """The inputs of a problem.

    Attributes:
        features: Numbers (Float64, with missing values) or text (String).
        text_as_missing: Columns of numbers in which cells of text are taken as missing.
    """

    features: pl.DataFrame
    text_as_missing: tuple[str, ...]


class Strays(NamedTuple):
    """Cells of text in a column that mostly holds numbers.

    Attributes:
        numbers: The column as numbers, missing where there is text.
        odd: The cells of text.
        n_known: Number of cells that are not empty.
    """

    numbers: pl.Series
    odd: pl.Series
    n_known: int

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
