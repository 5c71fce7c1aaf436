"""`elliptica list`, `run` and `table`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from elliptica.lab.experiments.choice import Choice as Choice
from elliptica.lab.experiments.choice import other_records
from elliptica.lab.experiments.engines import EngineError, is_launched, joined, open_engine, run_jobs
from elliptica.lab.experiments.progress import planned
from elliptica.lab.experiments.records import model_file, read_records
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.specification import Run, SpecificationError, load_specification
from elliptica.lab.experiments.table import Format, Part, make_table, render
from elliptica.lab.experiments.tune import tune_jobs


class Display:
    """Live progress: one line for all runs and one for each that is running."""

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


def run_table(choice: Choice, options: Options, console: Console) -> int:
    """Do what is not recorded of a table, then print it; returns the exit status.

    Processes that ``torchrun`` started share the work of each run; the first one writes and prints.
    """
    try:
        with joined(options) as options:
            return _run_table(choice, options, console if options.ranks.is_first else Console(quiet=True))
    except EngineError as error:
        _print_errors([str(error)], console)
        return 2


def _run_table(choice: Choice, options: Options, console: Console) -> int:
    try:
        wanted = choice.runs(options.out)
    except SpecificationError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2
    try:
        with open_engine(options) as engine:
            wanted, problems = engine.check(wanted, options)
            _print_errors(problems, console)
            if not wanted:
                return 2
            display = Display(console, len(wanted))
            plan = planned(options.out, wanted) if options.ranks.is_first else contextlib.nullcontext()
            with display.progress, plan:
                found = engine.do(run_jobs(wanted, options), display)
    except KeyboardInterrupt:
        console.print("Interrupted: finished runs are recorded, the others go on from their last epoch.")
        return 130
    print_table(choice, wanted, options.out, "markdown", "test", console)
    _print_next(choice, wanted, options, console)
    return int(bool(problems) or not set(found.values()) <= {"done", "skipped"})


def _print_next(choice: Choice, wanted: list[Run], options: Options, console: Console) -> None:
    """How to look at it, and which models were asked for too late."""
    kept = [model_file(options.out, run).exists() for run in wanted]
    if options.keep_models and not all(kept):
        console.print(
            f"{kept.count(False)} of {len(kept)} runs have no model: they were recorded without "
            "--keep-models. To keep it, move their records away and run again.",
            highlight=False,
            soft_wrap=True,
        )
    again = choice.command("table", options.out)
    console.print(f"This table again: {again}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"One page with charts: elliptica report {options.out}", highlight=False, soft_wrap=True)


def _print_errors(problems: list[str], console: Console) -> None:
    for problem in problems:
        console.print(f"error: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)


def run_tune(choice: Choice, trials: int | None, options: Options, console: Console) -> int:
    """Choose settings of a table's rows on the validation part; returns the exit status."""
    if is_launched():
        _print_errors(
            ["torchrun shares the work of one run, and tuning has many. Use --jobs alone."], console
        )
        return 2
    try:
        wanted = choice.runs(options.out)
        specification = load_specification(choice.table)
    except SpecificationError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2

    def listen(label: str, kind: str, details: dict[str, Any]) -> None:
        if kind in ("tuned", "again", "lost", "failed"):
            told = details["result"] if kind == "tuned" else f"{kind}: {details['error']}"
            console.print(f"{label}: {told}", highlight=False, markup=False, soft_wrap=True)

    try:
        jobs = tune_jobs(wanted, specification, trials or specification.trials, options)
        with open_engine(options) as engine:
            doable, problems = engine.check(wanted, options)
            _print_errors(problems, console)
            if not doable:
                return 2
            left = {f"{run.dataset} {run.row}" for run in doable}
            found = engine.do({label: job for label, job in jobs.items() if label in left}, listen)
    except (SpecificationError, EngineError) as error:
        _print_errors([str(error)], console)
        return 2
    except KeyboardInterrupt:
        console.print("Interrupted: trials that are finished are recorded.")
        return 130
    return int(bool(problems) or any(result.startswith(("failed", "lost")) for result in found.values()))


def show_table(choice: Choice, out: Path, form: Format, part: Part, console: Console) -> int:
    """Print a table from its records alone; returns the exit status."""
    try:
        wanted = choice.runs(out)
    except SpecificationError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2
    if not out.is_dir():
        console.print(f"error: There is no folder {out}. Say where the records are with --out.", style="red")
        return 2
    print_table(choice, wanted, out, form, part, console)
    return 0


def print_table(
    choice: Choice, wanted: list[Run], out: Path, form: Format, part: Part, console: Console
) -> None:
    """Print the table of the records in a folder."""
    specification, records = load_specification(choice.table), read_records(out, wanted)
    others = [] if len(records) == len(wanted) else other_records(choice, wanted, out)
    if not records and form == "markdown":
        begin = f"No run of this table is recorded in {out} yet."
        told = others or [f"To do them: {choice.command('run', out)}"]
        console.print("\n".join([begin, *told, ""]), markup=False, highlight=False, soft_wrap=True)
        others = []
    table = make_table(choice.table, specification, wanted, records, part, (*choice.remarks(), *others))
    console.print(render(table, form), markup=False, highlight=False, soft_wrap=True)
