"""`elliptica run`: train the runs of a table, with a progress bar, then print it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, DataDir, app, check_place, require_extra
from elliptica.cli.options import load_own, make_choice, print_error
from elliptica.cli.table import make_text

if TYPE_CHECKING:
    from elliptica.lab.experiments.records import Record
    from elliptica.lab.experiments.run import Options
    from elliptica.lab.experiments.specification import Run
    from elliptica.lab.training.loop import EpochEnd


@app.command(rich_help_panel=THE_PAPER)
def run(
    table: shared.TableName,
    plugin: shared.Plugins = None,
    dataset: shared.Dataset = None,
    methods: shared.Methods = None,
    seeds: shared.Seeds = None,
    epochs: shared.Epochs = None,
    precision: shared.Precision = None,
    match: shared.Match = None,
    select: shared.Select = None,
    tuned: shared.Tuned = False,
    jobs: shared.Jobs = 1,
    ray: shared.Ray = None,
    data_dir: DataDir = None,
    device: shared.Device = "cpu",
    tensorboard: shared.Board = None,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the selected weights.")] = False,
    every_epoch: Annotated[
        bool,
        typer.Option(
            "--every-epoch",
            help="Record right answers after every epoch, for elliptica table --epoch; they choose nothing.",
        ),
    ] = False,
    out: shared.Records = Path("runs"),
) -> None:
    """Train the runs that a table, or your own TOML file, still lacks; then print it.

    Killed runs continue after their last finished epoch; finished ones are never repeated. Example:
    elliptica run table3 --dataset no2 --seeds 3
    """
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments.run import Options
    from elliptica.lab.experiments.workers import do_runs

    console = Console()
    choice = make_choice(table, dataset, methods, seeds, epochs, precision, match, tuned, select)
    options = Options(
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        ray=ray,
        tensorboard=tensorboard,
        keep_models=keep_models,
        every_epoch=every_epoch,
        plugins=load_own(plugin),
    )
    wanted, has_problem = runs_to_do(choice.runs(out), options, console)
    with Display(console, len(wanted)) as display:
        failures = do_runs(wanted, options, display)
    typer.echo(make_text(choice, wanted, out, "markdown"))
    line = f"Again: elliptica table with the same options. One page with charts: elliptica report {out}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(int(has_problem or bool(failures)))


def runs_to_do(runs: list[Run], options: Options, console: Console) -> tuple[list[Run], bool]:
    """Check the runs that are not recorded before anything trains; print which data cannot be loaded."""
    from elliptica.lab.experiments.records import is_recorded
    from elliptica.lab.experiments.run import check_runs

    check_place(options.out / "records")
    left = [run for run in runs if not is_recorded(options.out, run, with_epochs=options.every_epoch)]
    problems = check_runs(left, options)
    for problem in problems.values():
        print_error(f"{problem} See: elliptica data list", console)
    doable = [run for run in runs if run.dataset not in problems]
    if not doable:
        raise typer.Exit(2)
    return doable, bool(problems)


class Display:
    """A progress bar for all runs, with the epoch of the one under way."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        bar = BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()
        self.progress = Progress(*bar, TextColumn("{task.fields[state]}", markup=False), console=console)
        self.task = self.progress.add_task("runs", total=total, state="")

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, run: Run, event: EpochEnd | Record | str | None) -> None:
        """Take an event of a run."""
        from elliptica.lab.training.loop import EpochEnd

        if isinstance(event, EpochEnd):
            state = f"{run.label}: epoch {event.epoch} of {event.epochs}, loss {event.loss:.4g}"
            self.progress.update(self.task, state=f"{state}, validation {event.score:.4g}")
            return
        self.progress.advance(self.task)
        if event is None:
            return
        if isinstance(event, str):
            print_error(f"{run.label}: {event}", self.console)
            return
        scores = event.metrics["test"]
        worst = "" if scores.worst is None else f", worst {scores.worst:.4g}"
        text = f"{run.label}: average {scores.average:.4g}{worst}"
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
