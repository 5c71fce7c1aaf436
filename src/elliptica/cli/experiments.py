"""`elliptica list`, `run` and `table`: the paper's experiments."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elliptica.cli.app import DataDir, app, require_extra
from elliptica.cli.cluster import (
    AddressOption,
    CpusOption,
    Engine,
    EngineOption,
    GpusOption,
    RetriesOption,
    ray_settings,
)


class Match(str, Enum):
    """What is made equal among methods."""

    evaluations = "evaluations"


class Precision(str, Enum):
    """Number formats of the forward pass."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Select(str, Enum):
    """By what epochs and settings are chosen."""

    average = "average"
    worst = "worst"


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


TableName = Annotated[str, typer.Argument(help="Name of the table, see elliptica list.")]
DatasetOption = Annotated[
    list[str] | None, typer.Option("--dataset", help="Only these data sets: a,b or repeated.")
]
MethodsOption = Annotated[
    list[str] | None, typer.Option("--methods", help="Only these rows: a,b or repeated.")
]
_SEEDS = Annotated[int | None, typer.Option(min=1, help="Repetitions.", show_default="the table's")]
EpochsOption = Annotated[
    int | None, typer.Option(min=1, help="Epochs of every method.", show_default="the table's")
]
PrecisionOption = Annotated[
    Precision | None, typer.Option(help="Of the forward pass.", show_default="float32")
]
MatchOption = Annotated[
    Match | None,
    typer.Option(
        "--match",
        help="evaluations: every method sends as many rows through its network as ordinary training does.",
    ),
]
SelectOption = Annotated[
    Select | None,
    typer.Option(
        help="Choose epochs (and settings) by this on the validation part.", show_default="the table's"
    ),
]
_TUNED = Annotated[bool, typer.Option("--tuned", help="With the settings that elliptica tune has chosen.")]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Runs at once, each with one thread.", show_default="1; with Ray, what the cluster holds"
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Where to train: cpu, cuda, ...")]
BoardOption = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", help="Folder for TensorBoard event files.", file_okay=False, show_default="none"
    ),
]
RecordsOption = Annotated[
    Path, typer.Option("--out", "--runs", help="Folder of the records.", file_okay=False)
]


@app.command("list")
def list_tables(
    table: Annotated[
        str | None, typer.Argument(help="Only this table, with the settings of its rows.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the tables of the paper, their methods, and whether their data are here."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments.listing import run_list

    raise typer.Exit(run_list(Console(), table, data_dir))


@app.command()
def run(
    table: TableName,
    dataset: DatasetOption = None,
    methods: MethodsOption = None,
    seeds: _SEEDS = None,
    epochs: EpochsOption = None,
    precision: PrecisionOption = None,
    match: MatchOption = None,
    select: SelectOption = None,
    tuned: _TUNED = False,
    jobs: JobsOption = None,
    engine: EngineOption = Engine.processes,
    address: AddressOption = None,
    cpus_per_run: CpusOption = None,
    gpus_per_run: GpusOption = None,
    retries: RetriesOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = "cpu",
    tensorboard: BoardOption = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep the selected weights, for the landscape of a report.")
    ] = False,
    out: RecordsOption = Path("runs"),
) -> None:
    """Run a table of the paper: train what is not recorded yet, then print the table.

    Killed runs continue after their last finished epoch; finished ones are never repeated. Example:
    elliptica run table3 --dataset no2 --seeds 3
    """
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    if tensorboard is not None:
        require_extra("lab", "tensorboard")
    from elliptica.lab.experiments.command import run_table
    from elliptica.lab.experiments.run import Options

    wanted = make_choice(table, dataset, methods, seeds, epochs, precision, match, tuned, select)
    options = Options(
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        tensorboard=tensorboard,
        keep_models=keep_models,
        ray=ray_settings(engine, address, cpus_per_run, gpus_per_run, retries),
    )
    raise typer.Exit(run_table(wanted, options, Console()))


@app.command()
def table(
    table: TableName,
    dataset: DatasetOption = None,
    methods: MethodsOption = None,
    seeds: _SEEDS = None,
    epochs: EpochsOption = None,
    precision: PrecisionOption = None,
    match: MatchOption = None,
    select: SelectOption = None,
    tuned: _TUNED = False,
    part: Annotated[
        Part,
        typer.Option(
            help="validation is for choices among methods; cost: rows and seconds to the chosen epoch."
        ),
    ] = Part.test,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = Form.markdown,
    out: RecordsOption = Path("runs"),
) -> None:
    """Print a table from its records: mean, deviation, the paper's values beside ours."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments.command import show_table

    wanted = make_choice(table, dataset, methods, seeds, epochs, precision, match, tuned, select)
    raise typer.Exit(show_table(wanted, out, form.value, part.value, Console()))


def make_choice(
    table: str,
    dataset: list[str] | None,
    methods: list[str] | None,
    seeds: int | None,
    epochs: int | None,
    precision: Precision | None,
    match: Match | None,
    tuned: bool,
    select: Select | None = None,
) -> Any:
    """The options that say which runs are meant."""
    from elliptica.lab.experiments.command import Choice

    training: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    if precision is not None and precision is not Precision.float32:
        training["precision"] = precision.value
    column = None if select is None else select.value
    return Choice(table, _split(dataset), _split(methods), seeds, match is not None, training, tuned, column)


def _split(names: list[str] | None) -> list[str] | None:
    """Names given one by one, or with commas between them."""
    return (
        None
        if names is None
        else [part.strip() for name in names for part in name.split(",") if part.strip()]
    )
