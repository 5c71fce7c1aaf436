"""`elliptica report`: write one self-contained page about runs or a comparison."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from elliptica.cli.app import YOUR_DATA, app, check_place, print_text, require_extra
from elliptica.cli.experiments import Plugins, load_own

#: File that `elliptica compare` leaves beside its pages.
COMPARED = "results.json"


@app.command(rich_help_panel=YOUR_DATA)
def report(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of elliptica run or elliptica compare."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File of the page: HTML, or Markdown if it ends with .md.")
    ] = Path("report.html"),
    table: Annotated[
        list[str] | None, typer.Option(help="Your own table that the records are of, mine.toml. Repeatable.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write one page to share: verdict, tables, charts.

    The page loads nothing from the network. For a model: elliptica diagnose DATA --model MODEL --out
    page.html. Example: elliptica report runs -o report.html
    """
    check_place(out)
    if out.is_file() and not _is_page(out):
        raise ValueError(f"{out} exists and is not a page. Choose another -o, so that it is not lost.")
    console = Console()
    with console.status("reading"):
        if (source / COMPARED).is_file():
            shutil.copyfile(source / f"report{'.md' if out.suffix == '.md' else '.html'}", out)
        else:
            require_extra("lab", "pydantic", "sklearn")
            from elliptica.lab.experiments.page import runs_page
            from elliptica.report.page import render

            load_own(plugin)
            page = runs_page(source, tables=table or (), plugins=plugin or ())
            render(page, out)
            print_text(console, escape(page.headline))
    print_text(console, escape(f"Written: {out} ({out.stat().st_size / 1e6:.2f} MB)."))


def _is_page(file: Path) -> bool:
    """Return whether a file is empty or starts like a page."""
    with file.open("rb") as handle:
        head = handle.read(64).lstrip().lower()
    return not head or head.startswith((b"<!doctype html", b"<html", b"# "))
