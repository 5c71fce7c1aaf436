"""`elliptica data list` and `elliptica data fetch`: the catalogue on the terminal."""

from __future__ import annotations

import os

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica.lab.data.catalogue import Listing, fetch, find_entry, list_datasets
from elliptica.lab.data.location import ENVIRONMENT_VARIABLE, data_directories

_COLOURS = {"present": "green", "missing": "dim", "wrong": "red", "generated": "green"}


def run_list(console: Console, data_dir: str | os.PathLike[str] | None = None, *, verify: bool = True) -> int:
    """Print every data set with its licence, its state and how to get it; returns the exit status.

    The status is 1 if a file is not the published one, 0 otherwise.
    """
    with console.status("looking at the files"):
        listings = list_datasets(data_dir, verify=verify)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("name", "what", "rows", "licence", "state"):
        table.add_column(column, no_wrap=column in ("name", "state"))
    for listing in listings:
        entry = listing.entry
        state = f"[{_COLOURS[listing.status]}]{listing.status}[/]"
        table.add_row(entry.name, entry.title, entry.rows, entry.licence, state)
    console.print(table)
    places = ", then in ".join(str(place) for place in data_directories(data_dir))
    other = "" if data_dir is not None else f" (another place: --data-dir, or {ENVIRONMENT_VARIABLE})"
    console.print(
        f"\nFiles are looked for in {places}{other}.", highlight=False, markup=False, soft_wrap=True
    )
    for listing in listings:
        if listing.status in ("missing", "wrong"):
            text = f"{listing.entry.name}: {_advice(listing)}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    return int(any(listing.status == "wrong" for listing in listings))


def run_fetch(console: Console, name: str, data_dir: str | os.PathLike[str] | None = None) -> int:
    """Download a data set under a progress bar; returns the exit status.

    Ctrl-C stops it and keeps what has arrived; the same command goes on from there.
    """
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
        return 1
    except KeyboardInterrupt:
        console.print("Stopped. What has arrived is kept; the same command goes on from there.")
        return 130
    if not paths:
        console.print(f"It needs no files: {entry.loader} makes it.", highlight=False, markup=False)
    for path in paths:
        console.print(f"ready: {path}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _fetch_with_bar(
    console: Console, name: str, data_dir: str | os.PathLike[str] | None
) -> tuple[os.PathLike[str], ...]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def on_bytes(file: str, have: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=have, total=total)

        return fetch(name, data_dir, progress=on_bytes)


def _advice(listing: Listing) -> str:
    """What to do about a data set that is not there, or not the published one."""
    entry = listing.entry
    if listing.status == "wrong":
        return f"{listing.detail}. Delete it and get the original: {entry.source}."
    ways = [f"elliptica data fetch {entry.name}."] if entry.can_fetch else []
    ways += [entry.hint] if entry.hint else []
    return " ".join(ways)
