"""The command line. Only typer and rich are imported here; torch waits until a command needs it."""

from __future__ import annotations

import dataclasses
import importlib
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica._version import __version__

app = typer.Typer(
    help="Elliptic loss regularisation for PyTorch: train on Brownian bridges between your data points.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Packages that an extra brings, by the name under which they are imported.
EXTRAS = {"report": ("matplotlib", "plotly")}


class Reading(str, Enum):
    """Readings of the paper's "2-layer, 4-hidden unit" network."""

    one_hidden = "one-hidden"
    two_hidden = "two-hidden"


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


class Activation(str, Enum):
    """Non-linearities of the demo's network."""

    tanh = "tanh"
    relu = "relu"
    leaky_relu = "leaky_relu"


def require_extra(extra: str) -> None:
    """Try the packages of an extra; stop with one line on how to install them if one is missing.

    Called before anything slow is imported, so that the answer comes at once.
    """
    for package in EXTRAS[extra]:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            typer.echo(f'This command needs {package}: pip install "elliptica[{extra}]"', err=True)
            raise typer.Exit(1) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elliptica {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


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
    require_extra("report")
    from elliptica.demo.command import run_demo
    from elliptica.demo.settings import QUICK, DemoSettings

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


@app.command()
def landscape(
    data: Annotated[
        str,
        typer.Argument(
            help="An .npz file with arrays x and y (and x_test, y_test, group_test if you have them), or "
            "two-moons, or digits."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Your model as package.module:name (a module, or a function that makes one)."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Its state dict, as written by torch.save.", dir_okay=False)
    ] = None,
    train: Annotated[
        Training, typer.Option(help="Without --model: train a small network by this method.")
    ] = Training.elliptic,
    steps: Annotated[int, typer.Option(min=1, help="Steps of that training.")] = 2000,
    report: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this report (repeatable): between, test, subharmonicity, landscape, occupation, "
            "hitting, shift, ordering."
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

    Prints eight short reports, each with its error bars and its limits, and writes them as JSON and as a
    picture. Example: elliptica landscape two-moons --train erm
    """
    require_extra("report")
    from elliptica.inspection.command import run_landscape
    from elliptica.inspection.reports import Options

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
