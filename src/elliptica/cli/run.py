"""`elliptica run`: train the runs of a table, with a progress bar, then print it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, DataDir, app, require_extra
from elliptica.cli.options import load_own, make_choice, print_error, ray_settings
from elliptica.cli.table import make_text

if TYPE_CHECKING:
    from elliptica.lab.experiments.choice import Choice
    from elliptica.lab.experiments.run import Options
    from elliptica.lab.experiments.specification import Run


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
    jobs: shared.Jobs = None,
    engine: shared.Engine = "processes",
    address: shared.Address = None,
    cpus_per_run: shared.Cpus = None,
    gpus_per_run: shared.Gpus = None,
    retries: shared.Retries = None,
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
    if tensorboard is not None:
        require_extra("lab", "tensorboard")
    from elliptica.lab.experiments.run import Options

    choice = make_choice(table, dataset, methods, seeds, epochs, precision, match, tuned, select, plugin)
    options = Options(
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        tensorboard=tensorboard,
        keep_models=keep_models,
        every_epoch=every_epoch,
        ray=ray_settings(engine, address, cpus_per_run, gpus_per_run, retries),
        plugins=load_own(plugin),
    )
    raise typer.Exit(run_table(choice, options, Console()))


def run_table(choice: Choice, options: Options, console: Console) -> int:
    """Do what is not recorded of a table, then print it; returns the exit status.

    Processes that ``torchrun`` started share the work of each run; the first one writes and prints.
    """
    from elliptica.lab.experiments.engines import EngineError, launched

    try:
        with launched(options) as options:
            return _run_table(choice, options, console if options.ranks.is_first else Console(quiet=True))
    except EngineError as error:
        print_error(error, console)
        return 2


def _run_table(choice: Choice, options: Options, console: Console) -> int:
    from elliptica.lab.experiments.engines import open_engine
    from elliptica.lab.experiments.preflight import check_names
    from elliptica.lab.experiments.specification import SpecificationError

    try:
        wanted = choice.runs(options.out)
        check_names(wanted)
    except SpecificationError as error:
        print_error(error, console)
        return 2
    try:
        with open_engine(options) as engine:
            wanted, problems = engine.check(wanted, options)
            for problem in problems:
                print_error(problem, console)
            if not wanted:
                return 2
            display = Display(console, len(wanted))
            with display.progress:
                outcomes = engine.do(wanted, options, display)
    except KeyboardInterrupt:
        console.print("Interrupted: finished runs are recorded; the others resume after their last epoch.")
        return 130
    text = make_text(choice, wanted, options.out, "markdown")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    _print_next(choice, wanted, options, console)
    return int(bool(problems) or any(each.state not in ("done", "skipped") for each in outcomes))


def _print_next(choice: Choice, wanted: list[Run], options: Options, console: Console) -> None:
    """Print how to look at the results, and which models were asked for too late."""
    from elliptica.lab.experiments.records import model_file

    has_model = [model_file(options.out, run).exists() for run in wanted]
    if options.keep_models and not all(has_model):
        console.print(
            f"{has_model.count(False)} of {len(has_model)} runs have no model: they were recorded without "
            "--keep-models. To keep it, move their records away and run again.",
            highlight=False,
            soft_wrap=True,
        )
    again = choice.command("table", options.out)
    console.print(f"This table again: {again}", highlight=False, markup=False, soft_wrap=True)
    page = choice.page_command(options.out)
    console.print(f"One page with charts: {page}", highlight=False, markup=False, soft_wrap=True)


class Display:
    """A progress bar for all runs and one for each that is under way."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self.all = self.progress.add_task("runs", total=total, state="")
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, label: str, kind: str, details: dict[str, Any]) -> None:
        """Take an event of a run."""
        if kind == "start":
            where = f"on {details['node']}" if "node" in details else ""
            self.tasks[label] = self.progress.add_task(f"  {label}", total=details["epochs"], state=where)
        elif kind == "epoch" and label in self.tasks:
            state = f"loss {details['loss']:.4g}, validation {details['score']:.4g}"
            done, total = details["epoch"], details["epochs"]
            self.progress.update(self.tasks[label], completed=done, total=total, state=state)
        elif kind in ("done", "skipped", "failed", "lost", "again"):
            if label in self.tasks:
                self.progress.remove_task(self.tasks.pop(label))
            if kind != "again":
                self.progress.advance(self.all)
            if kind == "done":
                shown = ", ".join(
                    f"{name} {value:.4g}" for name, value in details.items() if name in ("average", "worst")
                )
                self.console.print(f"{label}: {shown}", highlight=False)
            elif kind != "skipped":
                style = "yellow" if kind == "again" else "red"
                self.console.print(
                    f"[{style}]{kind}[/{style}] {label}: {escape(details['error'])}", highlight=False
                )
