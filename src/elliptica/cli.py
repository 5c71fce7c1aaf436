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
EXTRAS = {"report": ("matplotlib", "plotly"), "experiments": ("pydantic", "safetensors")}

_TABLE = Annotated[str, typer.Argument(help="Name of the table, see elliptica list.")]
_DATASET = Annotated[list[str] | None, typer.Option("--dataset", help="Only this data set (repeatable).")]
_SEEDS = Annotated[int | None, typer.Option(min=1, help="Repetitions.", show_default="the table's")]
_MATCH = Annotated[
    bool,
    typer.Option(
        "--match-evaluations",
        help="Give every method as many function evaluations as ordinary training has.",
    ),
]
_RECORDS = Annotated[Path, typer.Option("--out", help="Folder of the records.", file_okay=False)]


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


class Form(str, Enum):
    """Forms of a table."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


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
    require_extra("report")
    from elliptica.inspection.command import run_landscape
    from elliptica.inspection.subject import Options

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


data_app = typer.Typer(
    help="Data sets: what they are, whether they are here, how to get them.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
_DATA_DIR = Annotated[
    Path | None, typer.Option(help="Where data are.", show_default="ELLIPTICA_DATA, or the cache")
]


@data_app.command("list")
def list_data(
    data_dir: _DATA_DIR = None,
    verify: Annotated[bool, typer.Option(help="Check hashes of the files that are here.")] = True,
) -> None:
    """List data sets with their licence, and whether their files are here."""
    require_extra("experiments")
    from elliptica.data.command import run_list

    raise typer.Exit(run_list(Console(), data_dir, verify=verify))


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set, see elliptica data list.")],
    data_dir: _DATA_DIR = None,
) -> None:
    """Download a data set: resumable, checked, and complete or not there at all."""
    require_extra("experiments")
    from elliptica.data.command import run_fetch

    raise typer.Exit(run_fetch(Console(), name, data_dir))


@app.command("list")
def list_tables() -> None:
    """List the tables of the paper that can be run."""
    require_extra("experiments")
    from elliptica.experiments.command import run_list

    raise typer.Exit(run_list(Console()))


@app.command()
def run(
    table: _TABLE,
    dataset: _DATASET = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method (repeatable).")
    ] = None,
    seeds: _SEEDS = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")] = 1,
    match_evaluations: _MATCH = False,
    data_dir: _DATA_DIR = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, ...")] = "cpu",
    out: _RECORDS = Path("runs"),
) -> None:
    """Run a table of the paper: train what is not recorded yet, then print the table.

    Killed runs continue after their last finished epoch; finished ones are never repeated. Example:
    elliptica run table3 --dataset no2 --seeds 3
    """
    require_extra("experiments")
    from elliptica.experiments.command import run_table
    from elliptica.experiments.run import Options

    options = Options(out=out, data_dir=data_dir, device=device, jobs=jobs)
    raise typer.Exit(
        run_table(table, dataset or [], method or [], seeds, match_evaluations, options, Console())
    )


@app.command()
def table(
    table: _TABLE,
    dataset: _DATASET = None,
    seeds: _SEEDS = None,
    match_evaluations: _MATCH = False,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = Form.markdown,
    out: _RECORDS = Path("runs"),
) -> None:
    """Print a table from its records: mean, deviation, the paper's values beside ours."""
    require_extra("experiments")
    from elliptica.experiments.command import show_table

    raise typer.Exit(show_table(table, dataset or [], seeds, match_evaluations, out, form.value, Console()))
