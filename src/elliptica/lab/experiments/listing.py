"""`elliptica list`: the tables, their data and methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from elliptica.lab.data.catalogue import list_datasets, plain_name
from elliptica.lab.experiments.problems import entry_name
from elliptica.lab.experiments.specification import (
    Specification,
    SpecificationError,
    load_specification,
    preset_names,
)


def run_list(console: Console, table: str | None = None, data_dir: Path | None = None) -> int:
    """Print all tables, or one with the settings of its rows; returns the exit status."""
    states = {plain_name(item.entry.name): item.status for item in list_datasets(data_dir, verify=False)}
    try:
        names = preset_names() if table is None else [table]
        found = {name: load_specification(name) for name in names}
    except SpecificationError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 2
    for name, specification in found.items():
        where = specification.paper.split(";")[0]
        console.print(
            f"[bold]{name}[/bold] ({where}): {specification.title}", soft_wrap=True, highlight=False
        )
        console.print(f"  data: {_data(specification, states)}", soft_wrap=True, highlight=False)
        if table is None:
            rows = ", ".join(specification.methods)
            console.print(f"  methods: {rows}", soft_wrap=True, highlight=False, markup=False)
    if table is not None:
        console.print(_rows(found[table]))
    console.print("elliptica data list says how to get data that are missing.")
    return 0


def _data(specification: Specification, states: Mapping[str, str]) -> str:
    return ", ".join(
        f"[green]{name}[/green]" if is_here(states, name, data.load) else f"{name} [dim](missing)[/dim]"
        for name, data in specification.datasets.items()
    )


def is_here(states: Mapping[str, str], name: str, load: Mapping[str, Any]) -> bool:
    """Whether the files of a data set are here, by the catalogue's states under `plain_name`."""
    return states.get(plain_name(entry_name(name, load))) in ("present", "generated")


def _rows(specification: Specification) -> RichTable:
    shown = RichTable("method", "settings", box=box.SIMPLE_HEAD)
    for row, settings in specification.methods.items():
        plain = {name: value for name, value in settings.items() if name != "search"}
        shown.add_row(row, ", ".join(f"{name} = {value}" for name, value in plain.items()))
    return shown
