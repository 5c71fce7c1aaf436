"""`elliptica list`: list the paper's tables, their data and methods."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

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
