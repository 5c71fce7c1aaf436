"""`elliptica gallery`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app, require_extra


@app.command()
def gallery(
    results: Annotated[
        Path, typer.Argument(help="Folder of results: records in its folder tables, studies, comparisons.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the site.")] = Path("gallery"),
) -> None:
    """Build a static site of all results: an index with a card and a chart for each, and their pages.

    It needs no network and no server: open its index.html. Example: elliptica gallery results -o site
    """
    require_extra("experiments")
    require_extra("report", "jinja2", "markdown")
    from elliptica.gallery.command import run_gallery

    raise typer.Exit(run_gallery(results, out, Console()))
