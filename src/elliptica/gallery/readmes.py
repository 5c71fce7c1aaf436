"""Pages of studies: their README as HTML, with pictures beside it and links within the site."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elliptica.gallery.thumbnails import Mark, is_own

_LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)
_IMAGE = re.compile(r'<img([^>]*?)src="([^"]*)"')
_NUMBER = re.compile(r"\*{0,2}([-\u2212]?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?\s*%?\*{0,2}")


@dataclass(frozen=True)
class Readme:
    """A page of Markdown.

    Attributes:
        title: Its first heading.
        body: The rest, as HTML.
        pictures: Files that it shows, by the name that they have in the site.
        marks: Values of its first table, for a small chart.
        measure: What they are.
        first: Its first sentence.
    """

    title: str
    body: str
    pictures: Mapping[str, Path]
    marks: list[Mark]
    measure: str
    first: str


def read_readme(file: Path, address: Callable[[Path], str | None]) -> Readme:
    """Read a page; links that lead nowhere in the site become plain text.

    Args:
        file: The Markdown file.
        address: Where a file of the repository is in the site; None if it is not there.

    Raises:
        ModuleNotFoundError: If the package Markdown is missing.
    """
    try:
        import markdown
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'A gallery needs {error.name}: pip install "elliptica[report]"', name=error.name
        ) from error
    text = file.read_text(encoding="utf-8")
    title = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), file.parent.name)
    pictures: dict[str, Path] = {}

    def place(target: str) -> Path:
        return Path(os.path.normpath(file.parent / target.partition("#")[0]))

    def link(match: re.Match[str]) -> str:
        target, words = match.groups()
        if target.startswith("#"):
            return match[0]
        found = None if re.match(r"[a-z]+:", target) else address(place(target))
        return words if found is None else f'<a href="{found}">{words}</a>'

    def image(match: re.Match[str]) -> str:
        source = place(match[2])
        if not source.is_file():
            return f'<img{match[1]}src=""'
        name = f"{source.parent.name}-{source.name}"
        pictures[name] = source
        return f'<img{match[1]}src="{name}"'

    body = markdown.markdown(re.sub(r"^# .*\n", "", text, count=1, flags=re.MULTILINE), extensions=["tables"])
    body = _IMAGE.sub(image, _LINK.sub(link, body))
    body = body.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    measure, marks = best_table(text)
    return Readme(_plain(title), body, pictures, marks, measure, _first_sentence(text))


def best_table(text: str) -> tuple[str, list[Mark]]:
    """The first table of a page that makes a chart: three rows or more, and a column with a name."""
    found = [first_table(part) for part in re.split(r"\n\s*\n", text) if "|" in part]
    fit = (each for each in found if len({m.name for m in each[1]}) >= 3 and re.search(r"[a-z]{3}", each[0]))
    return next(fit, ("", []))


def first_table(text: str) -> tuple[str, list[Mark]]:
    r"""Name and values of the first column with numbers of the first table, for rows like the first one.

    One with deviations is preferred, of the test part if there is one. The column "method", or else the last
    one of words before it, names the rows; earlier ones must be as in the first row.

    Example:
        >>> first_table("| data | method | error |\n|---|---|--:|\n| a | x | 1.5 ± 0.5 |\n| b | x | 3 |")
        ('a: error', [Mark(name='x', value=1.5, low=1.0, high=2.0, is_own=False)])
    """
    rows = [_cells(line) for line in _table_lines(text)]
    if len(rows) < 3:
        return "", []
    head, body = rows[0], rows[2:]
    numeric = [i for i in range(len(head)) if all(_NUMBER.fullmatch(r[i]) for r in body if i < len(r))]
    spread = [i for i in numeric if any("±" in r[i] for r in body if i < len(r))]
    if not numeric or not min(numeric):
        return "", []
    tested = [i for i in spread if "test" in head[i]]
    column = (tested or spread or numeric)[0]
    name = head.index("method") if "method" in head[: min(numeric)] else min(numeric) - 1
    alike = [row for row in body if row[:name] == body[0][:name] and len(row) == len(head)]
    common = f"{', '.join(body[0][:name])}: " if name else ""
    return _plain(common + head[column]), [_mark(_plain(row[name]), row[column]) for row in alike]


def _mark(name: str, cell: str) -> Mark:
    found = _NUMBER.fullmatch(cell)
    assert found is not None
    value = float(found[1].replace("\u2212", "-"))
    if found[2] is None:
        return Mark(name, value, is_own=is_own(name))
    return Mark(name, value, value - float(found[2]), value + float(found[2]), is_own(name))


def _table_lines(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            break
    return lines


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _plain(text: str) -> str:
    """Without the signs of Markdown."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


def _first_sentence(text: str) -> str:
    """Of the first paragraph that is no heading, table, picture or comment."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.strip() and not paragraph.lstrip().startswith(("#", "|", "!", "<", "`")):
            words = _plain(" ".join(paragraph.split()))
            return re.split(r"(?<=[.?!])\s", words)[0]
    return ""
