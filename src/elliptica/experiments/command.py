"""`elliptica list`, `run` and `table`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from elliptica.experiments.records import read_records
from elliptica.experiments.run import Options, do_all
from elliptica.experiments.specification import (
    Run,
    SpecificationError,
    load_specification,
    preset_names,
    runs,
)
from elliptica.experiments.table import Format, make_table, render


def run_list(console: Console) -> int:
    """Print the tables that can be run."""
    shown = RichTable("table", "in the paper", "title", "data", "methods", "seeds")
    for name in preset_names():
        spec = load_specification(name)
        shown.add_row(
            name, spec.paper, spec.title, ", ".join(spec.datasets), ", ".join(spec.methods), str(spec.seeds)
        )
    console.print(shown)
    return 0


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
            self.tasks[label] = self.progress.add_task(f"  {label}", total=details["epochs"], state="")
        elif kind == "epoch" and label in self.tasks:
            state = f"loss {details['loss']:.4g}, validation {details['score']:.4g}"
            self.progress.update(self.tasks[label], completed=details["epoch"], state=state)
        elif kind in ("done", "skipped", "failed"):
            self.progress.advance(self.all)
            if label in self.tasks:
                self.progress.remove_task(self.tasks.pop(label))
            if kind == "failed":
                self.console.print(f"[red]failed[/red] {label}: {details['error']}", highlight=False)
            elif kind == "done":
                shown = ", ".join(
                    f"{name} {value:.4g}" for name, value in details.items() if name in ("average", "worst")
                )
                self.console.print(f"{label}: {shown}", highlight=False)


def run_table(
    name: str,
    datasets: list[str],
    methods: list[str],
    seeds: int | None,
    match_evaluations: bool,
    options: Options,
    console: Console,
) -> int:
    """Do what is not recorded of a table, then print it; returns the exit status."""
    try:
        specification = load_specification(name)
        wanted = runs(
            name,
            specification,
            datasets=datasets or None,
            methods=methods or None,
            seeds=seeds,
            match_evaluations=match_evaluations,
        )
    except SpecificationError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2
    display = Display(console, len(wanted))
    interrupted = False
    with display.progress:
        try:
            found = do_all(wanted, options, display)
        except KeyboardInterrupt:
            interrupted, found = True, {}
    print_table(name, wanted, options.out, "markdown", console)
    if interrupted:
        console.print("Interrupted: finished runs are recorded, the others go on from their last epoch.")
        return 130
    return 1 if "failed" in found.values() else 0


def print_table(name: str, wanted: list[Run], out: Path, form: Format, console: Console) -> None:
    """Print the table of the records in a folder."""
    table = make_table(name, load_specification(name), wanted, read_records(out, name))
    console.print(render(table, form), markup=False, highlight=False, soft_wrap=True)


def show_table(
    name: str,
    datasets: list[str],
    seeds: int | None,
    match_evaluations: bool,
    out: Path,
    form: Format,
    console: Console,
) -> int:
    """Print a table from its records alone; returns the exit status."""
    try:
        wanted = runs(
            name,
            load_specification(name),
            datasets=datasets or None,
            seeds=seeds,
            match_evaluations=match_evaluations,
        )
    except SpecificationError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2
    print_table(name, wanted, out, form, console)
    return 0
