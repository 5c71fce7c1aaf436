"""`elliptica tune`: settings chosen on the validation part, for all rows alike or by a search of one."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

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
from elliptica.cli.experiments import (
    BoardOption,
    DatasetOption,
    DeviceOption,
    EpochsOption,
    JobsOption,
    MatchOption,
    MethodsOption,
    PrecisionOption,
    RecordsOption,
    SelectOption,
    TableName,
    make_choice,
)


class Sampler(str, Enum):
    """How a search draws settings."""

    tpe = "tpe"
    random = "random"


class Pruner(str, Enum):
    """How a search stops trials early."""

    median = "median"
    hyperband = "hyperband"
    none = "none"


@app.command()
def tune(
    table: TableName,
    dataset: DatasetOption = None,
    methods: MethodsOption = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of each row.", show_default="the table's")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Search one row with Optuna: a space that the table names, or auto.", metavar="NAME"
        ),
    ] = None,
    sampler: Annotated[Sampler | None, typer.Option(help="Of a search.", show_default="tpe")] = None,
    pruner: Annotated[Pruner | None, typer.Option(help="Of a search.", show_default="median")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Trials of a search: a journal file (fit for clusters) or sqlite:///FILE. Workers share it.",
            show_default="searches.journal in the folder of the records",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of a search.", show_default="0")] = None,
    epochs: EpochsOption = None,
    precision: PrecisionOption = None,
    match: MatchOption = None,
    select: SelectOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = Engine.processes,
    address: AddressOption = None,
    cpus_per_run: CpusOption = None,
    gpus_per_run: GpusOption = None,
    retries: RetriesOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = "cpu",
    tensorboard: BoardOption = None,
    out: RecordsOption = Path("runs"),
) -> None:
    """Choose settings on the validation part; then run the table with --tuned.

    Without --search: learning rates and the like, with as many trials for every method. Example:
    elliptica tune table4 --dataset waterbirds-features

    With --search: all settings of one method, with pruning, as many workers as you start, and a storage from
    which a killed search goes on. Example: elliptica tune table4 --dataset waterbirds-features --methods
    marginal --search auto --trials 50 --jobs 2
    """
    given = {"--sampler": sampler, "--pruner": pruner, "--storage": storage, "--seed": seed}
    alone = [name for name, value in given.items() if value is not None]
    if search is None and alone:
        raise typer.BadParameter(f"{', '.join(alone)} belongs to a search: say --search auto, too.")
    if search is not None and engine is Engine.ray:
        raise typer.BadParameter(
            "A search has workers of its own: start the same command on each machine, with one --storage for "
            "all, in place of --engine ray."
        )
    require_extra("lab", "pydantic", "safetensors", "sklearn", "optuna")
    if tensorboard is not None:
        if search is not None:
            raise typer.BadParameter("--tensorboard is for trials without --search.")
        require_extra("lab", "tensorboard")
    from elliptica.lab.experiments.run import Options

    wanted = make_choice(table, dataset, methods, 1, epochs, precision, match, False, select)
    ray = ray_settings(engine, address, cpus_per_run, gpus_per_run, retries)
    options = Options(out=out, data_dir=data_dir, device=device, jobs=jobs, tensorboard=tensorboard, ray=ray)
    if search is None:
        from elliptica.lab.experiments.command import run_tune

        raise typer.Exit(run_tune(wanted, trials, options, Console()))
    from elliptica.lab.experiments.search.command import SearchOptions, run_search

    how = SearchOptions(
        space=search,
        trials=trials,
        storage=storage,
        sampler="tpe" if sampler is None else sampler.value,
        pruner="median" if pruner is None else pruner.value,
        seed=seed or 0,
    )
    raise typer.Exit(run_search(wanted, how, options, Console()))
