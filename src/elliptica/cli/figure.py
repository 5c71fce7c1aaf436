"""`elliptica figure`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import DataDir, app, require_extra


class Which(str, Enum):
    """Figures of the paper."""

    surfaces = "1"
    idea = "2"
    boundary = "3"
    uncertainty = "uncertainty"


class Form(str, Enum):
    """Formats of files."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


class Width(str, Enum):
    """Widths in print."""

    column = "column"
    page = "page"


@app.command()
def figure(
    name: Annotated[
        Which,
        typer.Argument(
            help="1: loss surfaces. 2: the idea. 3: loss inside against loss on the boundary. "
            "uncertainty: by class, from records."
        ),
    ],
    form: Annotated[
        Form | None, typer.Option("--format", help="Of the file.", show_default="by its name, or png")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File.", dir_okay=False, show_default="figure-NAME.FORMAT"),
    ] = None,
    width: Annotated[
        Width | None, typer.Option(help="3.25 or 6.75 inches.", show_default="as in the paper")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the records, for uncertainty.")] = Path("runs"),
    data_dir: DataDir = None,
) -> None:
    """Draw a figure of the paper from what is computed now, or from records, ready for print.

    The file says which command makes it again, and the same command gives the same bytes on the same machine.
    Example: elliptica figure 3 --format pdf
    """
    require_extra("lab", "matplotlib")
    if name is Which.uncertainty:
        require_extra("lab", "pydantic", "safetensors")
    known = [each.value for each in Form]
    suffix = "" if out is None else out.suffix.lstrip(".").lower()
    if out is not None and suffix not in ([form.value, ""] if form else known):
        meant = f".{form.value}, the --format" if form else f"one of .{', .'.join(known)}"
        raise typer.BadParameter(f"The ending of {out.name} should be {meant}.")
    from elliptica.lab.demo.figures.command import Order, run_figure

    order = Order(
        name=name.value,
        form=(form or Form(suffix or "png")).value,
        width=None if width is None else width.value,
        out=out,
        runs=runs,
        data_dir=data_dir,
    )
    raise typer.Exit(run_figure(order, Console()))
