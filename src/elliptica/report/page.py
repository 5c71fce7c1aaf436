"""One page of results, written as self-contained HTML or as Markdown from the same content."""

from __future__ import annotations

import html
import json
import math
import platform
import re
from collections.abc import Collection, Mapping, Sequence
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
    """A plotly figure (``data`` and ``layout``) with a title and an explanation. Markdown leaves it out."""

    title: str
    figure: Mapping[str, Any]
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
    """Write a page as one HTML file that requests nothing from a network; charts need plotly."""
    charts = [chart for section in page.sections for chart in section.charts]
    script = ""
    if charts:
        try:
            from plotly import offline

            script = re.sub(r"</(?=script)", r"<\\/", offline.get_plotlyjs(), flags=re.IGNORECASE)
        except ModuleNotFoundError:
            charts = []
    return str(
        _template("page.html", autoescape=True).render(
            page=page,
            version=__version__,
            style=_asset("page.css"),
            script=_asset("page.js"),
            plotly=script,
            figures=embed([chart.figure for chart in charts]),
            has_charts=bool(charts),
        )
    )


def embed(content: Any) -> str:
    r"""Convert to JSON that cannot end its script element; numbers that are not finite become null.

    Example:
        >>> embed(["</script>&", float("nan"), 0.1234567])
        '["\\u003c/script\\u003e\\u0026",null,0.12346]'
    """
    text = json.dumps(_rounded(content), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


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
