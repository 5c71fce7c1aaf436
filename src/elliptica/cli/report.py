"""`elliptica report`: write one self-contained page about runs, a comparison or a saved model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from elliptica.cli.app import YOUR_DATA, app, check_place, print_text, require_extra
from elliptica.cli.experiments import Plugins, load_own

if TYPE_CHECKING:
    from elliptica.report.page import Page

#: File that `elliptica compare` leaves beside its pages.
COMPARED = "results.json"


@app.command(rich_help_panel=YOUR_DATA)
def report(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of elliptica run or elliptica compare; or model.elliptica with --data."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File of the page: HTML, or Markdown if it ends with .md.")
    ] = Path("report.html"),
    data: Annotated[
        Path | None, typer.Option(help="Table (CSV or Parquet) for model.elliptica.", dir_okay=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target column of the table.", show_default="the model's")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Group column of the table.")] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Your own table that the records are of, mine.toml. Repeatable.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write one page to share: verdict, tables, charts.

    The page loads nothing from the network. For a model of your own code: elliptica diagnose DATA --model
    my_code:make_model --out page.html. Example: elliptica report runs -o report.html
    """
    check_place(out)
    if out.is_file() and not _is_page(out):
        raise ValueError(f"{out} exists and is not a page. Choose another -o, so that it is not lost.")
    console = Console()
    with console.status("reading"):
        if (source / COMPARED).is_file():
            page = None
            shutil.copyfile(source / f"report{'.md' if out.suffix == '.md' else '.html'}", out)
        else:
            from elliptica.report.page import render

            page = (
                _runs_page(source, table, plugin)
                if source.is_dir()
                else _model_page(source, data, target, group)
            )
            render(page, out)
    if page is not None:
        print_text(console, escape(page.headline))
    print_text(console, escape(f"Written: {out} ({out.stat().st_size / 1e6:.1f} MB)."))


def _runs_page(source: Path, tables: list[str] | None, plugins: list[str] | None) -> Page:
    require_extra("lab", "pydantic", "sklearn")
    from elliptica.lab.experiments.page import runs_page

    load_own(plugins)
    return runs_page(source, tables=tables or (), plugins=plugins or ())


def _model_page(source: Path, data: Path | None, target: str | None, group: str | None) -> Page:
    if data is None:
        raise ValueError(f"{source} is no folder; a saved model needs a table: --data table.csv.")
    require_extra("tables", "polars", "sklearn", "skrub")
    from elliptica.tables.diagnose import saved_model_page

    return saved_model_page(source, data, target, group)


def _is_page(file: Path) -> bool:
    """Return whether a file is empty or starts like a page."""
    with file.open("rb") as handle:
        head = handle.read(64).lstrip().lower()
    return not head or head.startswith((b"<!doctype html", b"<html", b"# "))
