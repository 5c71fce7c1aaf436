"""`elliptica data list` and `elliptica data fetch`: list and download data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica.cli.app import THE_PAPER, DataDir, app

if TYPE_CHECKING:
    from elliptica.lab.data import Listing

data_app = typer.Typer(help="List data sets, see how to get them, and download them.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=THE_PAPER)

_COLOURS = {"present": "green", "missing": "dim", "wrong": "red", "generated": "green"}


@data_app.command("list")
def list_data(
    data_dir: DataDir = None,
    verify: Annotated[bool, typer.Option(help="Check the hashes of existing files.")] = True,
) -> None:
    """List data sets with their licences, and whether you have their files."""
    from elliptica.lab.data import data_directories, list_datasets
    from elliptica.lab.data.files import ENVIRONMENT_VARIABLE

    console = Console()
    with console.status("checking the files"):
        listings = list_datasets(data_dir, verify=verify)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("name", "what", "rows", "licence", "state"):
        table.add_column(column, no_wrap=column in ("name", "state"))
    for listing in listings:
        entry = listing.entry
        rows = " / ".join(map(str, entry.rows)) or "any"
        state = f"[{_COLOURS[listing.status]}]{listing.status}[/]"
        table.add_row(entry.name, entry.title, rows, entry.licence, state)
    console.print(table)
    places = ", then in ".join(str(place) for place in data_directories(data_dir))
    other = "" if data_dir is not None else f" (change this with --data-dir, or {ENVIRONMENT_VARIABLE})"
    _print(console, f"\nFiles are searched in {places}{other}.")
    for listing in listings:
        if listing.status in ("missing", "wrong"):
            _print(console, f"{listing.entry.name}: {_advice(listing)}")
    raise typer.Exit(int(any(listing.status == "wrong" for listing in listings)))


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set, see elliptica data list.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set; resumable and verified, never left incomplete."""
    from elliptica.lab.data.catalogue import find_entry

    console = Console()
    try:
        entry = find_entry(name)
        console.print(
            f"{entry.name}: {entry.title}. Licence: {entry.licence}. Source: {entry.source}.",
            highlight=False,
            markup=False,
        )
        paths = _fetch_with_bar(console, entry.name, data_dir)
    except (ValueError, OSError) as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("Stopped. Downloaded parts are kept. Rerun the same command to resume.")
        raise typer.Exit(130) from None
    if not paths:
        console.print(f"It needs no files: {entry.call} generates it.", highlight=False, markup=False)
    for path in paths:
        _print(console, f"ready: {path}")


def _fetch_with_bar(console: Console, name: str, data_dir: Path | None) -> tuple[Path, ...]:
    from elliptica.lab.data import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def on_bytes(file: str, have: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=have, total=total)

        return fetch(name, data_dir, progress=on_bytes)


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _advice(listing: Listing) -> str:
    """Say how to get a data set that is missing or not the published one."""
    entry = listing.entry
    if listing.status == "wrong":
        return f"{listing.detail}. Delete it and download the original: {entry.source}."
    ways = [f"elliptica data fetch {entry.name}."] if entry.can_fetch else []
    ways += [entry.hint] if entry.hint else []
    return " ".join(ways)
