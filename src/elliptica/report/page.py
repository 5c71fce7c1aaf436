"""One page of results, written as self-contained HTML or as Markdown from the same content."""

from __future__ import annotations

import html
import platform
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from elliptica import __version__
from elliptica._utils.files import write_atomically


@dataclass(frozen=True)
class Bar:
    """A number in a bar chart: a label beside the bar, its length, its limits, and the number as text."""

    label: str
    value: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A drawing (SVG of `charts`) with a title and an explanation. Markdown leaves it out."""

    title: str
    figure: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a page; every field except the heading is optional."""

    heading: str
    paragraphs: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()  # rows of text, the header first
    left: Collection[int] = ()  # left-aligned columns, besides the first one
    bold: Collection[tuple[int, int]] = ()  # cells in bold, as (row, column), counted without the header
    points: Sequence[str] = ()  # a list
    bars: Sequence[Bar] = ()  # a bar chart
    charts: Sequence[Chart] = ()
    mark: str = ""  # a word before the heading, such as "warning"
    folded: bool = False  # whether HTML shows only the heading until it is opened


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    headline: str  # the answer in one sentence
    sentences: Sequence[str] = ()  # further sentences, below the headline
    sections: Sequence[Section] = ()
    kind: str = ""  # source of the page, as text


def render(page: Page, path: Path) -> None:
    """Write a page to a file: Markdown if its name ends with .md, otherwise HTML."""
    write_atomically(path, (to_markdown if path.suffix == ".md" else to_html)(page))


def to_markdown(page: Page) -> str:
    """Write a page as Markdown; all texts are escaped."""
    text = _template("page.md", finalize=escape_markdown).render(page=page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def to_html(page: Page) -> str:
    """Write a page as one HTML file that runs no script and requests nothing from a network."""
    template = _template("page.html", autoescape=True)
    return str(template.render(page=page, version=__version__, style=_asset("page.css")))


def escape_markdown(text: Any) -> str:
    """Escape a text: no HTML, links, pictures, formulas, tables, emphasis or line breaks."""
    plain = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]!|#~$])", r"\\\1", plain)


def _template(name: str, **how: Any) -> Any:
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, **how
    )
    return environment.from_string(_asset(name))


def _asset(name: str) -> str:
    return resources.files("elliptica.report").joinpath("assets", name).read_text(encoding="utf-8")


def present_versions(*more: str) -> dict[str, str]:
    """Return the versions that results depend on; ``more`` names distributions besides torch and numpy."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", *more)}
    return {"elliptica": __version__, "python": platform.python_version(), **packages}
