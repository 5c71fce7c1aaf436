"""`elliptica landscape`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app, require_extra


class Training(str, Enum):
    """How `elliptica landscape` trains a network if it is given none."""

    erm = "erm"
    mixup = "mixup"
    elliptic = "elliptic"


class Region(str, Enum):
    """Outer domains of `elliptica landscape`."""

    auto = "auto"
    ball = "ball"
    box = "box"
    reflecting_box = "reflecting_box"
    hull = "hull"


#: Options of every command that looks at a model.
Model = Annotated[
    str | None,
    typer.Option(help="Your model as package.module:name (a module, or a function that makes one)."),
]
Weights = Annotated[
    Path | None, typer.Option(help="Its state dict, as written by torch.save.", dir_okay=False)
]
Train = Annotated[Training, typer.Option(help="Without --model: train a small network by this method.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of that training.")]


@app.command()
def landscape(
    data: Annotated[
        str,
        typer.Argument(
            help="An .npz file with arrays x and y (and x_test, y_test, group_test if you have them), or "
            "two-moons, or digits."
        ),
    ],
    model: Model = None,
    weights: Weights = None,
    train: Train = Training.elliptic,
    steps: Steps = 2000,
    report: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this report (repeatable): between, test, shifted, subharmonicity, landscape, "
            "occupation, hitting, shift, weights, ordering."
        ),
    ] = None,
    domain: Annotated[
        Region, typer.Option(help="Outer domain; auto: a reflecting box up to 3 features, then a ball.")
    ] = Region.auto,
    fraction: Annotated[
        float, typer.Option(help="Radius of the balls, as a share of the distance between neighbours.")
    ] = 0.3,
    probes: Annotated[int, typer.Option(min=10, help="Points on bridges between the data.")] = 500,
    walks: Annotated[int, typer.Option(min=16, help="Random walks per point.")] = 500,
    shift: Annotated[
        float, typer.Option(min=0.0, help="Shift of the inputs, in deviations (regression).")
    ] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the results.", file_okay=False)] = Path("landscape"),
) -> None:
    """Look at the loss of a model as a function of the data: maximum principle, PDE, bounds.

    Prints ten short reports, each with its error bars and its limits, and writes them as JSON and as a
    picture. Example: elliptica landscape two-moons --train erm
    """
    require_extra("lab", "jinja2", "matplotlib", "plotly")
    from elliptica.diagnostics.command import run_landscape
    from elliptica.diagnostics.subject import Options

    try:
        options = Options(
            domain=domain.value,
            fraction=fraction,
            n_probes=probes,
            n_walks=walks,
            shift=shift,
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    status = run_landscape(data, model, weights, train.value, steps, report or [], options, out, Console())
    raise typer.Exit(status)
