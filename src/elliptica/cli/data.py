"""`elliptica data list` and `elliptica data fetch`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import DataDir, app

data_app = typer.Typer(
    help="Data sets: what they are, whether they are here, how to get them.", no_args_is_help=True
)
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data(
    data_dir: DataDir = None,
    verify: Annotated[bool, typer.Option(help="Check hashes of the files that are here.")] = True,
) -> None:
    """List data sets with their licence, and whether their files are here."""
    from elliptica.lab.data.command import run_list

    raise typer.Exit(run_list(Console(), data_dir, verify=verify))


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set, see elliptica data list.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set: resumable, checked, and complete or not there at all."""
    from elliptica.lab.data.command import run_fetch

    raise typer.Exit(run_fetch(Console(), name, data_dir))
