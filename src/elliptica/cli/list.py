"""`elliptica list`: list the paper's tables, their data and methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, DataDir, app, require_extra
from elliptica.cli.options import load_own, print_error

if TYPE_CHECKING:
    from elliptica.lab.experiments.specification import Specification


@app.command("list", rich_help_panel=THE_PAPER)
def list_tables(
    table: Annotated[
        str | None,
        typer.Argument(help="Show only this table (or your own: mine.toml), with the settings of its rows."),
    ] = None,
    plugin: shared.Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """List the paper's tables, their methods, and the data that you have."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.data.catalogue import list_datasets, plain_name
    from elliptica.lab.experiments.specification import SpecificationError, load_specification, preset_names

    console = Console()
    load_own(plugin)
    states = {plain_name(item.entry.name): item.status for item in list_datasets(data_dir, verify=False)}
    try:
        names = preset_names() if table is None else [table]
        specifications = {name: load_specification(name) for name in names}
    except SpecificationError as error:
        print_error(error, console)
        raise typer.Exit(2) from None
    for name, specification in specifications.items():
        where = specification.paper.split(";")[0]
        told = f" ({where})" if where else ""
        console.print(f"[bold]{name}[/bold]{told}: {specification.title}", soft_wrap=True, highlight=False)
        console.print(f"  data: {_data(specification, states)}", soft_wrap=True, highlight=False)
        if table is None:
            rows = ", ".join(specification.methods)
            console.print(f"  methods: {rows}", soft_wrap=True, highlight=False, markup=False)
    if table is not None:
        console.print(_rows(specifications[table]))
    console.print("Run elliptica data list to see how to get missing data.")


def _data(specification: Specification, states: Mapping[str, str]) -> str:
    from elliptica.lab.data.catalogue import plain_name
    from elliptica.lab.experiments.plugins import is_own_dataset
    from elliptica.lab.experiments.registry import entry_name

    return ", ".join(
        f"[green]{name}[/green]"
        if states.get(plain_name(entry_name(name, data.load))) in ("present", "generated")
        or is_own_dataset(data.load.get("name", name))
        else f"{name} [dim](missing)[/dim]"
        for name, data in specification.datasets.items()
    )


def _rows(specification: Specification) -> RichTable:
    shown = RichTable("method", "settings", box=box.SIMPLE_HEAD)
    for row, settings in specification.methods.items():
        fixed = {name: value for name, value in settings.items() if name != "search"}
        shown.add_row(row, ", ".join(f"{name} = {value}" for name, value in fixed.items()))
    return shown
