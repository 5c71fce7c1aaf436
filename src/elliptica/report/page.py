"""One self-contained page: template, style, scripts, data and plotly.js in a single text."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from elliptica._version import __version__
from elliptica.report.content import Report
from elliptica.report.payload import embed, report_data

STYLES = ("style.css", "layout.css")
SCRIPTS = ("theme.js", "tables.js", "charts.js", "plots.js", "plots-more.js", "landscape.js", "start.js")


def render_page(report: Report, *, plotly: str | None = None, home: str | None = None) -> str:
    """Write a report as the text of an HTML file.

    Everything is in it, plotly.js once; it asks for nothing from a network, and says so in its content
    security policy. Names that come from users' data are escaped in the text, and again by the scripts
    wherever they reach plotly, whose labels are read as HTML.

    Args:
        report: What to show.
        plotly: Address of a file that holds plotly.js, for pages that lie in one folder and share it; None
            puts it into the page.
        home: Address of a page that this one belongs to, for a link back.

    Raises:
        ModuleNotFoundError: If Jinja2 or plotly is missing.
    """
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'A report needs {error.name}: pip install "elliptica[report]"', name=error.name
        ) from error

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["anchor"] = anchor
    return environment.from_string(_asset("page.html")).render(
        report=report,
        version=__version__,
        style="\n".join(map(_asset, STYLES)),
        scripts=[_asset(name) for name in SCRIPTS],
        plotly=_inline(get_plotlyjs()) if plotly is None else None,
        plotly_file=plotly,
        home=home,
        data=embed(report_data(report)),
    )


def anchor(text: Any) -> str:
    """A text as the name of a place on the page."""
    return re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-") or "part"


def _inline(script: str) -> str:
    """A script that may stand in the page: nothing in it ends the element."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _asset(name: str) -> str:
    return resources.files("elliptica.report").joinpath("assets", name).read_text(encoding="utf-8")
