"""`elliptica demo`."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app, require_extra


class Reading(str, Enum):
    """Readings of the paper's "2-layer, 4-hidden unit" network."""

    one_hidden = "one-hidden"
    two_hidden = "two-hidden"


class Activation(str, Enum):
    """Non-linearities of the demo's network."""

    tanh = "tanh"
    relu = "relu"
    leaky_relu = "leaky_relu"


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures and the record.", file_okay=False)] = Path(
        "demo"
    ),
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions.", show_default="10")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each training.", show_default="1000")
    ] = None,
    sigma: Annotated[float, typer.Option(min=0.0, help="Diffusion coefficient of the bridges.")] = 0.05,
    reading: Annotated[
        Reading, typer.Option(help='Reading of the paper\'s "2-layer, 4-hidden unit" network.')
    ] = Reading.one_hidden,
    activation: Annotated[
        Activation, typer.Option(help="Non-linearity (not in the paper).")
    ] = Activation.tanh,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes; not converged.")
    ] = False,
) -> None:
    """Train ERM, mixup and elliptic on two moons; draw and compare their losses.

    About a minute and a half on two cores. Ctrl-C stops it and keeps what is finished.
    """
    require_extra("lab", "jinja2", "matplotlib", "plotly")
    from elliptica.lab.demo.command import run_demo
    from elliptica.lab.demo.settings import QUICK, DemoSettings

    base = QUICK if quick else DemoSettings()
    settings = dataclasses.replace(
        base,
        n_seeds=seeds or base.n_seeds,
        n_steps=steps or base.n_steps,
        sigma=sigma,
        reading=reading.value,
        activation=activation.value,
    )
    raise typer.Exit(run_demo(settings, out, Console()))
