"""`elliptica run`, `elliptica table` and `elliptica tune`: train the runs of a table, print it, tune it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from elliptica.cli.app import THE_PAPER, DataDir, app, check_place, one_of, require_extra

if TYPE_CHECKING:
    from elliptica.lab.experiments.choice import Choice
    from elliptica.lab.experiments.records import Record
    from elliptica.lab.experiments.run import Options
    from elliptica.lab.experiments.specification import Run
    from elliptica.lab.training.loop import EpochEnd


#: What is matched between methods.
MatchName = Literal["evaluations"]

TableName = Annotated[
    str, typer.Argument(help="Name of the table, see elliptica list; or a file of your own, mine.toml.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Your own methods, data and networks: a Python file, which is run. Repeatable.",
    ),
]
Dataset = Annotated[
    list[str] | None, typer.Option("--dataset", help="Only these data sets: a,b or repeated.")
]
Methods = Annotated[list[str] | None, typer.Option("--methods", help="Only these rows: a,b or repeated.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Number of repetitions.", show_default="the table's")]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Epochs of every method.", show_default="the table's")
]
Match = Annotated[
    MatchName | None,
    one_of(
        MatchName,
        "--match",
        help="evaluations: every method evaluates as many rows as ordinary training does.",
    ),
]
Tuned = Annotated[bool, typer.Option("--tuned", help="Use the settings that elliptica tune chose.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time; if several, with one thread each.")]
Ray = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Do the runs on this Ray cluster: auto, local or HOST:PORT."),
]
Device = Annotated[str, typer.Option(help="Device to train on: cpu, cuda, ...")]
Records = Annotated[Path, typer.Option("--out", "--runs", help="Folder of the records.", file_okay=False)]


def make_choice(
    table: str,
    dataset: list[str] | None,
    methods: list[str] | None,
    seeds: int | None,
    epochs: int | None,
    match: MatchName | None,
    tuned: bool,
) -> Choice:
    """Collect the options that select runs."""
    from elliptica.lab.experiments.choice import Choice

    training: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    names = _split(dataset), _split(methods)
    return Choice(table, *names, seeds, match is not None, training, tuned)


def load_own(plugin: list[str] | None) -> tuple[str, ...]:
    """Run the user's own files."""
    from elliptica.lab.experiments.registry import load_plugins

    return load_plugins(plugin or ())


def _split(names: list[str] | None) -> list[str] | None:
    """Split names that are given one by one or separated by commas."""
    return names and [part.strip() for name in names for part in name.split(",") if part.strip()]


def print_error(error: object, console: Console) -> None:
    """Print an error message without markup."""
    console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)


Part = Literal["test", "validation"]
Epoch = Literal["chosen", "last", "late", "best"]

_PART = "validation is for choices among methods."
_EPOCH = (
    "chosen on validation; last; late: mean of the last tenth; best on the part itself. All but chosen need "
    "elliptica run --every-epoch."
)


@app.command(rich_help_panel=THE_PAPER)
def table(
    table: TableName,
    plugin: Plugins = None,
    dataset: Dataset = None,
    methods: Methods = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    match: Match = None,
    tuned: Tuned = False,
    part: Annotated[Part, one_of(Part, help=_PART)] = "test",
    epoch: Annotated[Epoch, one_of(Epoch, help=_EPOCH)] = "chosen",
    out: Records = Path("runs"),
) -> None:
    """Print a table from its records, the paper's values beside ours."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    load_own(plugin)
    choice = make_choice(table, dataset, methods, seeds, epochs, match, tuned)
    typer.echo(make_text(choice, choice.runs(out), out, part=part, epoch=epoch))


def make_text(choice: Choice, wanted: list[Run], out: Path, **shown: Any) -> str:
    """The table of the records in a folder as text."""
    from elliptica.lab.experiments.records import read_records
    from elliptica.lab.experiments.table import make_table, render

    records, remarks = read_records(out, wanted), choice.remarks()
    if not records:
        remarks += (f"Nothing is recorded in {out}: elliptica run with the same options does these runs.",)
    found = make_table(choice.name, choice.specification, wanted, records, remarks=remarks, **shown)
    return render(found, escaped=not sys.stdout.isatty())


@app.command(rich_help_panel=THE_PAPER)
def run(
    table: TableName,
    plugin: Plugins = None,
    dataset: Dataset = None,
    methods: Methods = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    match: Match = None,
    tuned: Tuned = False,
    jobs: Jobs = 1,
    ray: Ray = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    every_epoch: Annotated[
        bool,
        typer.Option(
            "--every-epoch",
            help="Record right answers after every epoch, for elliptica table --epoch; they choose nothing.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing; print what is left to do, and its cost.")
    ] = False,
    out: Records = Path("runs"),
) -> None:
    """Train the runs that a table, or your own TOML file, still lacks; then print it.

    Killed runs continue after their last finished epoch; finished ones are never repeated. Example:
    elliptica run table3 --dataset no2 --seeds 3
    """
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments.records import is_recorded
    from elliptica.lab.experiments.run import Options, do_runs

    console = Console()
    choice = make_choice(table, dataset, methods, seeds, epochs, match, tuned)
    options = Options(
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        ray=ray,
        every_epoch=every_epoch,
        plugins=load_own(plugin),
    )
    runs = choice.runs(out)
    left = [run for run in runs if not is_recorded(out, run, with_epochs=every_epoch)]
    if dry_run:
        typer.echo(make_plan(left, out, data_dir, console))
        return
    wanted, has_problem = runs_to_do(runs, left, options, console)
    try:
        with Display(console, len(runs), len(runs) - len(left)) as display:
            failures = do_runs(wanted, options, display)
    except KeyboardInterrupt:
        kept = f"{sum(is_recorded(out, run) for run in runs)} of {len(runs)} runs"
        typer.echo(f"Interrupted: {kept} finished and kept. Rerun the same command to resume.", err=True)
        raise
    typer.echo(make_text(choice, runs, out))
    line = f"Again: elliptica table with the same options. One page with charts: elliptica report {out}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(int(has_problem or bool(failures)))


def make_plan(left: list[Run], out: Path, data_dir: Path | None, console: Console) -> str:
    """What runs would cost, as text."""
    from elliptica.lab.experiments import plan
    from elliptica.lab.experiments.records import SUFFIX
    from elliptica.lab.experiments.table import markdown_lines

    try:
        lines = markdown_lines(plan.grid(left, data_dir))
    except (OSError, ImportError) as error:
        print_error(error, console)
        raise typer.Exit(2) from error
    files = ", ".join(sorted({f"{out / run.table}{SUFFIX}" for run in left}))
    notes = (
        f"Pflop, hours and GB are those of one run. The hours assume {plan.SPEED / 1e12:g} Tflop/s; small "
        "networks are slower: the first epoch shows your speed.",
        "Not counted: reading data, measuring, gradients of inputs (a weighting adds a third), rows that a "
        "method draws in excess.",
        f"Without --dry-run the same command trains (with --device cuda), and records in {files or out}.",
        "Files of records are merged by joining them: cat A B > C.",
    )
    return "\n".join([*lines, "", *notes])


def runs_to_do(
    runs: list[Run], left: list[Run], options: Options, console: Console
) -> tuple[list[Run], bool]:
    """Check those that are left of the runs before anything trains; print which data cannot be loaded."""
    from elliptica.lab.experiments.run import check_runs

    check_place(options.out / "records")
    problems = check_runs(left, options)
    for problem in problems.values():
        print_error(f"{problem} See: elliptica data list", console)
    doable = [run for run in left if run.dataset not in problems]
    if not doable and len(left) == len(runs):  # nothing to do, nothing to show
        raise typer.Exit(2)
    return doable, bool(problems)


class Display:
    """A progress bar for all runs, with the epoch of the one under way."""

    def __init__(self, console: Console, total: int, finished: int = 0) -> None:
        self.console = console
        bar = BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()
        self.progress = Progress(*bar, TextColumn("{task.fields[state]}", markup=False), console=console)
        self.task = self.progress.add_task("runs", total=total, completed=finished, state="")

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
            self.progress.update(self.task, state=f"{state}, validation {abs(event.score):.4g}")
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


@app.command(rich_help_panel=THE_PAPER)
def tune(
    table: TableName,
    plugin: Plugins = None,
    dataset: Dataset = None,
    methods: Methods = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of each row.", show_default="the table's")
    ] = None,
    epochs: Epochs = None,
    match: Match = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    out: Records = Path("runs"),
) -> None:
    """Tune every method of a table alike, on validation rows; then run it with --tuned.

    Learning rates and the like, with as many trials for every method. Example:
    elliptica tune table4 --dataset waterbirds-features
    """
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments import tune as tuning
    from elliptica.lab.experiments.run import Options

    console = Console()
    choice = make_choice(table, dataset, methods, 1, epochs, match, False)
    options = Options(out=out, data_dir=data_dir, device=device, jobs=jobs, ray=ray, plugins=load_own(plugin))
    runs = choice.runs(out)
    rows, has_problem = runs_to_do(runs, runs, options, console)
    n_trials = trials or choice.specification.trials
    with Display(console, n_trials * len(rows)) as display:
        choices = tuning.tune(rows, choice.specification, n_trials, options, display)
    for label, chosen in choices.items():
        text = f"failed: {chosen}" if isinstance(chosen, str) else _describe(chosen)
        console.print(f"{label}: {text}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(int(has_problem or any(isinstance(chosen, str) for chosen in choices.values())))


def _describe(chosen: dict[str, Any]) -> str:
    values = ", ".join(f"{name} {value:.3g}" for name, value in chosen["values"].items())
    return f"{values or 'the setting of the table'} ({chosen['rule']}: {chosen['score']:.4g})"
