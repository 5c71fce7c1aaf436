"""`elliptica list`, `run` and `table`: the paper's experiments."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elliptica.cli.app import DataDir, app, require_extra


class Match(str, Enum):
    """What is made equal among methods."""

    evaluations = "evaluations"


class Precision(str, Enum):
    """Number formats of the forward pass."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Part(str, Enum):
    """What a table can be about: parts of the data, or the cost of its runs."""

    test = "test"
    validation = "validation"
    cost = "cost"


class Form(str, Enum):
    """Forms of a table."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


_TABLE = Annotated[str, typer.Argument(help="Name of the table, see elliptica list.")]
_DATASET = Annotated[
    list[str] | None, typer.Option("--dataset", help="Only these data sets: a,b or repeated.")
]
_METHODS = Annotated[list[str] | None, typer.Option("--methods", help="Only these rows: a,b or repeated.")]
_SEEDS = Annotated[int | None, typer.Option(min=1, help="Repetitions.", show_default="the table's")]
_EPOCHS = Annotated[
    int | None, typer.Option(min=1, help="Epochs of every method.", show_default="the table's")
]
_PRECISION = Annotated[Precision | None, typer.Option(help="Of the forward pass.", show_default="float32")]
_MATCH = Annotated[
    Match | None,
    typer.Option(
        "--match",
        help="evaluations: every method sends as many rows through its network as ordinary training does.",
    ),
]
_TUNED = Annotated[bool, typer.Option("--tuned", help="With the settings that elliptica tune has chosen.")]
_JOBS = Annotated[int | None, typer.Option(min=1, help="Processes, each with one thread.", show_default="1")]
_DEVICE = Annotated[str, typer.Option(help="Where to train: cpu, cuda, ...")]
_RECORDS = Annotated[Path, typer.Option("--out", help="Folder of the records.", file_okay=False)]


@app.command("list")
def list_tables(
    table: Annotated[
        str | None, typer.Argument(help="Only this table, with the settings of its rows.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the tables of the paper, their methods, and whether their data are here."""
    require_extra("experiments")
    from elliptica.experiments.listing import run_list

    raise typer.Exit(run_list(Console(), table, data_dir))


@app.command()
def run(
    table: _TABLE,
    dataset: _DATASET = None,
    methods: _METHODS = None,
    seeds: _SEEDS = None,
    epochs: _EPOCHS = None,
    precision: _PRECISION = None,
    match: _MATCH = None,
    tuned: _TUNED = False,
    jobs: _JOBS = None,
    data_dir: DataDir = None,
    device: _DEVICE = "cpu",
    out: _RECORDS = Path("runs"),
) -> None:
    """Run a table of the paper: train what is not recorded yet, then print the table.

    Killed runs continue after their last finished epoch; finished ones are never repeated. Example:
    elliptica run table3 --dataset no2 --seeds 3
    """
    require_extra("experiments")
    from elliptica.experiments.command import run_table
    from elliptica.experiments.run import Options

    wanted = _choice(table, dataset, methods, seeds, epochs, precision, match, tuned)
    options = Options(out=out, data_dir=data_dir, device=device, jobs=jobs)
    raise typer.Exit(run_table(wanted, options, Console()))


@app.command()
def tune(
    table: _TABLE,
    dataset: _DATASET = None,
    methods: _METHODS = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of each row.", show_default="the table's")
    ] = None,
    epochs: _EPOCHS = None,
    precision: _PRECISION = None,
    match: _MATCH = None,
    jobs: _JOBS = None,
    data_dir: DataDir = None,
    device: _DEVICE = "cpu",
    out: _RECORDS = Path("runs"),
) -> None:
    """Choose learning rates and the like on the validation part, with as many trials for every method.

    Then run the table with --tuned. Example: elliptica tune table4 --dataset waterbirds-features
    """
    require_extra("experiments")
    from elliptica.experiments.command import run_tune
    from elliptica.experiments.run import Options

    wanted = _choice(table, dataset, methods, 1, epochs, precision, match, False)
    options = Options(out=out, data_dir=data_dir, device=device, jobs=jobs)
    raise typer.Exit(run_tune(wanted, trials, options, Console()))


@app.command()
def table(
    table: _TABLE,
    dataset: _DATASET = None,
    methods: _METHODS = None,
    seeds: _SEEDS = None,
    epochs: _EPOCHS = None,
    precision: _PRECISION = None,
    match: _MATCH = None,
    tuned: _TUNED = False,
    part: Annotated[
        Part,
        typer.Option(
            help="validation is for choices among methods; cost: rows and seconds to the chosen epoch."
        ),
    ] = Part.test,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = Form.markdown,
    out: _RECORDS = Path("runs"),
) -> None:
    """Print a table from its records: mean, deviation, the paper's values beside ours."""
    require_extra("experiments")
    from elliptica.experiments.command import show_table

    wanted = _choice(table, dataset, methods, seeds, epochs, precision, match, tuned)
    raise typer.Exit(show_table(wanted, out, form.value, part.value, Console()))


def _choice(
    table: str,
    dataset: list[str] | None,
    methods: list[str] | None,
    seeds: int | None,
    epochs: int | None,
    precision: Precision | None,
    match: Match | None,
    tuned: bool,
) -> Any:
    """The options that say which runs are meant."""
    from elliptica.experiments.command import Choice

    training: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    if precision is not None and precision is not Precision.float32:
        training["precision"] = precision.value
    return Choice(table, _split(dataset), _split(methods), seeds, match is not None, training, tuned)


def _split(names: list[str] | None) -> list[str] | None:
    """Names given one by one, or with commas between them."""
    return (
        None
        if names is None
        else [part.strip() for name in names for part in name.split(",") if part.strip()]
    )
