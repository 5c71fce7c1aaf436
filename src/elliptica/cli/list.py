"""`elliptica list` and `elliptica data`: list the paper's tables and data, and download the latter."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica.cli.app import THE_PAPER, DataDir, app, require_extra


@app.command("list", rich_help_panel=THE_PAPER)
def list_tables(
    table: Annotated[
        str | None,
        typer.Argument(help="Show only this table (or your own: mine.toml), with the settings of its rows."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the paper's tables, their methods, and the data that you have."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.data.catalogue import list_datasets, plain_name
    from elliptica.lab.experiments.registry import entry_name
    from elliptica.lab.experiments.specification import load_specification, preset_names

    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True, highlight=False)

    states = {plain_name(item.entry.name): item.status for item in list_datasets(data_dir, verify=False)}
    for name in preset_names() if table is None else [table]:
        specification = load_specification(name)
        where = specification.paper.split(";")[0]
        say(f"{name}{f' ({where})' if where else ''}: {specification.title}")
        names = [
            f"{dataset} (missing)"
            if states.get(plain_name(entry_name(dataset, spec.load)), "present")
            not in ("present", "generated")
            else dataset
            for dataset, spec in specification.datasets.items()
        ]
        say(f"  data: {', '.join(names)}")
        if table is None:
            say(f"  methods: {', '.join(specification.methods)}")
        for row, settings in specification.methods.items() if table is not None else ():
            shown = ", ".join(f"{key} = {value}" for key, value in settings.items() if key != "search")
            say(f"  {row}: {shown}")
    say("Run elliptica data list to see how to get missing data.")


data_app = typer.Typer(help="List data sets, see how to get them, and download them.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=THE_PAPER)

_COLOURS = {"present": "green", "missing": "dim", "wrong": "red", "generated": "green"}


@data_app.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """List data sets with their licences, and whether you have their files, unchanged."""
    from elliptica.lab.data import data_directories, list_datasets

    console = Console()
    with console.status("checking the files"):
        listings = list_datasets(data_dir)
    table = Table("name", "what", "rows", "licence", "state", box=box.SIMPLE_HEAD, pad_edge=False)
    for listing in listings:
        entry = listing.entry
        rows = " / ".join(map(str, entry.rows)) or "any"
        state = f"[{_COLOURS[listing.status]}]{listing.status}[/]"
        table.add_row(entry.name, entry.title, rows, entry.licence, state)
    console.print(table)
    places = ", then in ".join(map(str, data_directories(data_dir)))
    lines = [f"\nFiles are searched in {places} (change this with --data-dir, or ELLIPTICA_DATA)."]
    for listing in listings:
        name, hint = listing.entry.name, listing.entry.hint
        if listing.status == "wrong":
            lines.append(f"{name}: {listing.detail}. Delete it and get the original: {listing.entry.source}.")
        elif listing.status == "missing":
            command = f" elliptica data fetch {name}." if listing.entry.can_fetch else ""
            lines.append(f"{name}:{command} {hint}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(int(any(listing.status == "wrong" for listing in listings)))


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set, see elliptica data list.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set; verified, never left incomplete."""
    from elliptica.lab.data.catalogue import fetch, find_entry

    console = Console()
    entry = find_entry(name)
    console.print(f"{entry.name}: {entry.title}. {entry.licence}. Source: {entry.source}.", markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def on_bytes(file: str, have: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total or None)
            bar.update(tasks[file], completed=have)

        paths = fetch(name, data_dir, progress=on_bytes)
    for line in map(str, paths) if paths else ["It needs no files."]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
