"""`elliptica watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app


@app.command()
def watch(
    runs: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print one frame and stop.")] = False,
    rows: Annotated[
        int | None, typer.Option(min=0, help="Rows at most; 0 is all.", show_default="what fits")
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch the runs of a folder, while elliptica run works on it in another terminal.

    It only reads files. Ctrl-C ends it; the runs go on. Example: elliptica watch runs
    """
    from elliptica.watch.command import run_watch

    raise typer.Exit(run_watch(runs, Console(), once=once, rows=rows, every=every))
