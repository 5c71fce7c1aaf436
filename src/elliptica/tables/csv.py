"""Inspect the text of a CSV file before reading it: separator, header, rows of unequal length."""

from __future__ import annotations

import csv
import io
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEPARATORS = (",", ";", "\t", "|")
_HEAD = 65_536  # bytes inspected for junk and the separator, up to the end of a line
_LONGEST_LINE = 10_000_000
#: Decimal commas and points, but not groups of three digits, which may be thousands.
_DECIMAL_COMMA = re.compile(r"[-+]?(0,\d+|\d*,\d{1,2}|\d*,\d{4,}|\d{4,},\d+|\d{1,3}(\.\d{3})+,\d+)")
_DECIMAL_POINT = re.compile(r"[-+]?(0\.\d+|\d*\.\d{1,2}|\d*\.\d{4,}|\d{4,}\.\d+)([eE][-+]?\d+)?")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

#: First bytes of files that are often passed by mistake.
_KNOWN = {
    b"PK\x03\x04": "a zip file or an Excel workbook. Unpack it, or save the sheet as CSV UTF-8.",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook. Save the sheet as CSV UTF-8.",
    b"\x1f\x8b": "compressed by gzip. Unpack it first: gunzip.",
    b"PAR1": "a Parquet file. Rename it so that it ends in .parquet.",
    b"\xff\xfe": "in UTF-16. Save it as CSV UTF-8, or convert it: iconv -f UTF-16 -t UTF-8.",
    b"\xfe\xff": "in UTF-16. Save it as CSV UTF-8, or convert it: iconv -f UTF-16 -t UTF-8.",
}


class TableError(ValueError):
    """A table, a column or an option that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Dialect:
    """The format of a CSV file."""

    separator: str  # between the cells
    decimal_comma: bool  # whether 1,5 is a number (only if the separator is not a comma)
    header: tuple[str, ...]  # names of the columns, as written


def read_dialect(file: Path) -> Dialect:
    """Detect the format of a CSV file from its first lines.

    Args:
        file: An existing file.

    Raises:
        TableError: If the file is empty, not text, not a table, or has unusable column names.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = file.write_text(chr(10).join(["age;height", "41;1,75", "29;1,81"]))
        >>> read_dialect(file)
        Dialect(separator=';', decimal_comma=True, header=('age', 'height'))
    """
    text = _head(file)
    rows = {separator: split for separator in SEPARATORS if (split := _split(text, separator))}
    if not rows:
        raise _too_long(file)
    # the separator that splits the header into most cells; ties go to commas
    separator = max(rows, key=lambda each: (_agreement(rows[each]), len(rows[each][0])))
    header = tuple(name.strip() for name in rows[separator][0])
    if len(header) < 2:
        if len(rows) < len(SEPARATORS):  # the right one may be among those with too long cells
            raise _too_long(file)
        raise TableError(
            f"{file.name} has only one column: none of the separators comma, semicolon, tab and | splits its "
            "first line. A table needs at least one column of inputs and one of targets."
        )
    _check_header(file, header)
    cells = [cell.strip() for row in rows[separator][1:] for cell in row]
    commas = separator != "," and any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    points = any(_DECIMAL_POINT.fullmatch(cell) for cell in cells)
    return Dialect(separator, commas and not points, header)


def looks_like_numbers(header: tuple[str, ...]) -> bool:
    """Return whether the first line holds only numbers, as in a file without column names."""
    return all(_NUMBER.fullmatch(name) for name in header)


def check_rectangular(file: Path, dialect: Dialect, max_rows: int | None) -> tuple[int, list[int]]:
    """Raise for rows with more or fewer cells than the header.

    Readers silently fill short rows with missing values, which hides a broken file. At most ``max_rows`` rows
    are checked.

    Returns:
        The number of rows, and which of them are blank lines.
    """
    width, blank, number = len(dialect.header), [], 0
    most = sys.maxsize if max_rows is None else min(max_rows, sys.maxsize - 1) + 1
    with file.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.reader(handle, delimiter=dialect.separator)
        rows = itertools.dropwhile(
            lambda row: not row, _rows(file, reader)
        )  # skip blank lines above the header
        for number, row in enumerate(itertools.islice(rows, most)):
            if not row:
                blank.append(number - 1)  # the header does not count
            elif len(row) != width:
                raise TableError(
                    f"Line {reader.line_num} of {file.name} has {len(row)} cells, but the header has {width}"
                    ". Correct the file: a missing value is an empty cell, and cells that contain the "
                    "separator need quotes."
                )
    return number, blank


def _rows(file: Path, reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield rows; raise if the csv module cannot read the file."""
    try:
        yield from reader
    except (csv.Error, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise _not_utf8(file) from error
        if "field limit" in str(error):
            raise _too_long(file) from error
        raise _no_text(file, str(error)) from error


def _split(text: str, separator: str) -> list[list[str]]:
    """Split rows by a separator; empty if it leaves cells that are too long for the csv module."""
    try:
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:
        return []


def _head(file: Path) -> str:
    with file.open("rb") as handle:
        raw = handle.read(_HEAD) + handle.readline(_LONGEST_LINE)
    if not raw.strip():
        raise TableError(f"{file.name} is empty. Expected a CSV file with a line of column names and rows.")
    for start, what in _KNOWN.items():
        if raw.startswith(start):
            raise TableError(f"{file.name} is {what}")
    if b"\0" in raw:
        raise _no_text(file, "it contains zero bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(file) from error
    if any(ord(c) < 32 and c not in "\t\r\n\f" for c in text):
        raise _no_text(file, "it contains control characters")
    if re.match(r"\s*sep=.?\s*$", text, re.MULTILINE):
        raise TableError(
            f"The first line of {file.name} names the separator for Excel, where column names are expected. "
            f"Remove it: tail -n +2 {file.name} > plain-{file.name}"
        )
    if "\r" in text and "\n" not in text:
        raise TableError(
            f"The lines of {file.name} end in carriage returns only, as on old Macs. Save it with Unix or "
            "Windows line ends (LF or CRLF)."
        )
    return text.lstrip("\r\n")


def _too_long(file: Path) -> TableError:
    return TableError(
        f"{file.name} has a cell of more than {csv.field_size_limit():,} characters. Look for an unclosed "
        "quote. If the cell is intended, remove its column, or pass a file that ends in .parquet."
    )


def _not_utf8(file: Path) -> TableError:
    """Name the line, and two remedies that nearly always work."""
    with file.open("rb") as handle:
        number = next(n for n, line in enumerate(handle, 1) if _is_broken(line))
    return TableError(
        f"{file.name} is not in UTF-8: see line {number}. It was probably saved in a Windows encoding. "
        "Save it again as CSV UTF-8 (Excel can do that), or convert it: "
        f"iconv -f WINDOWS-1252 -t UTF-8 {file.name} > utf8-{file.name}"
    )


def _is_broken(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _no_text(file: Path, reason: str) -> TableError:
    return TableError(
        f"{file.name} is not a CSV file in UTF-8 ({reason}). Unpack or export it as CSV (UTF-8), or pass a "
        "file that ends in .parquet."
    )


def _agreement(rows: list[list[str]]) -> float:
    """Return the share of rows as long as the header; zero if the header is not split at all."""
    width, rest = len(rows[0]), [row for row in rows[1:] if row]
    if width < 2:
        return 0.0
    # rounded to quarters, so that a few broken lines do not select another separator
    return round(4 * sum(len(row) == width for row in rest) / len(rest)) / 4 if rest else 1.0


def _check_header(file: Path, header: tuple[str, ...]) -> None:
    double = sorted(name for name, count in Counter(header).items() if name and count > 1)
    if double:
        raise TableError(f"{file.name} has several columns named {double[0]!r}. Rename all but one of them.")
    if header.count("") > 1:
        raise TableError(f"{file.name} has {header.count('')} columns without a name. Name or remove them.")
