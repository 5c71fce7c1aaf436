"""`elliptica diagnose`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app
from elliptica.cli.landscape import Model, Steps, Train, Training, Weights


class Format(str, Enum):
    """How `elliptica diagnose` answers."""

    text = "text"
    json = "json"


class Loss(str, Enum):
    """Losses of `elliptica diagnose`."""

    auto = "auto"
    cross_entropy = "cross-entropy"
    mse = "mse"
    l1 = "l1"
    bce = "bce"


@app.command()
def diagnose(
    data: Annotated[
        str,
        typer.Argument(
            help="An .npz file with arrays x and y (and group, if you have it), or two-moons, or digits."
        ),
    ],
    model: Model = None,
    weights: Weights = None,
    train: Train = Training.erm,
    steps: Steps = 2000,
    loss: Annotated[
        Loss,
        typer.Option(help="Loss of your model; auto: cross-entropy for whole numbers in y, else mse."),
    ] = Loss.auto,
    n: Annotated[
        int, typer.Option("--n", min=10, help="Most rows to look at, and points between them.")
    ] = 1000,
    sigma: Annotated[
        str, typer.Option(help="Noise of the bridges: auto, green, or a number in units of x.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    format_: Annotated[Format, typer.Option("--format", help="Text for reading, or JSON.")] = Format.text,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of the screen.", dir_okay=False)
    ] = None,
) -> None:
    """Diagnose a trained model: loss at, between and around its data, in words, with what to do.

    Exit status 0 whatever is found; 2 if model or data cannot be used. Example: elliptica diagnose
    two-moons --train erm
    """
    from elliptica.inspection.diagnose_command import run_diagnose

    status = run_diagnose(
        data,
        model,
        weights,
        train.value,
        steps,
        loss.value,
        n,
        sigma,
        seed,
        format_ is Format.json,
        out,
        Console(),
        Console(stderr=True),
    )
    raise typer.Exit(status)
