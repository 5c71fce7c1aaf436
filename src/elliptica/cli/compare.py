"""`elliptica compare`: which training for a table of your own."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from elliptica._utils.text import count
from elliptica.cli.app import app, one_of, print_point, print_text, require_extra
from elliptica.cli.report import Request, write_report

if TYPE_CHECKING:
    from elliptica.compare.comparison import Comparison, Session


#: Tasks.
Kind = Literal["auto", "classification", "regression"]

#: What decides among the trials of a method.
Rule = Literal["average", "worst"]


def _names(values: list[str]) -> list[str]:
    """Names that are repeated, separated by commas, or both."""
    return [name.strip() for each in values for name in each.split(",") if name.strip()]


@app.command()
def compare(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with named columns.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    group: Annotated[
        str | None, typer.Option(help="Column of groups: methods are judged in the worst one, too.")
    ] = None,
    task: Annotated[
        Kind,
        one_of(
            Kind,
            help="auto: text, and whole numbers with few values, are classes; else a regression.",
        ),
    ] = "auto",
    split_by: Annotated[
        str | None,
        typer.Option(help="Column whose equal values stay on one side of a split (patients, sites)."),
    ] = None,
    id: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that names the rows: no input, carried to predictions. May be repeated.",
            show_default=False,
        ),
    ] = None,
    group_as_input: Annotated[
        bool, typer.Option("--group-as-input", help="Predict from the group, too.")
    ] = False,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="erm (ordinary training), mixup, c-mixup, elliptic, elliptic-weighted: a,b or repeated.",
            show_default="all of the task",
        ),
    ] = None,
    trees: Annotated[bool, typer.Option("--trees", help="Compare with boosted trees, too.")] = False,
    repeats: Annotated[
        int, typer.Option(min=1, help="Random splits; 3 or more for a verdict, more for narrower intervals.")
    ] = 5,
    trials: Annotated[int, typer.Option(min=1, help="Settings tried per method and repeat.")] = 4,
    select: Annotated[
        Rule,
        one_of(
            Rule,
            help="Choose settings by the average or by the worst class or group.",
        ),
    ] = "average",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows, at most.")] = 100,
    max_rows: Annotated[int, typer.Option(min=50, help="Longer tables are refused ...")] = 200_000,
    sample: Annotated[
        bool, typer.Option("--sample", help="... or reduced to a random sample of that size.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results.", show_default="compare/NAME", file_okay=False),
    ] = None,
) -> None:
    """Compare training methods on your table and save the best model.

    After Ctrl-C, rerun the same command to resume. Example:
    elliptica compare patients.csv --target outcome --group hospital
    """
    require_extra("tables", "polars", "sklearn", "safetensors")
    folder = out or Path("compare") / data.stem
    status = _run(
        data,
        target,
        folder,
        Console(),
        group=group,
        task=task,
        split_by=split_by,
        group_as_input=group_as_input,
        methods=None if methods is None else _names(methods),
        trees=trees,
        repeats=repeats,
        trials=trials,
        select=select,
        epochs=epochs,
        hidden=(128, 128),
        seed=seed,
        max_rows=max_rows,
        sample=sample,
        ids=id or (),
    )
    _write_page(folder, data, status)
    raise typer.Exit(status)


def _write_page(folder: Path, data: Path, status: int) -> None:
    """The page with charts in place of the plain one, where its packages are installed."""
    if status not in (0, 130) or not (folder / "report.html").exists():
        return
    from elliptica.report.content import ReportError

    page = folder / "report.html"
    try:
        try:
            write_report(Request(str(folder), data=data, landscape=status == 0), page)
        except ReportError as error:  # the charts of the scores do not need the table
            write_report(Request(str(folder), landscape=False), page)
            typer.echo(f"report.html shows no loss landscape: {error}", err=True)
    except ModuleNotFoundError as error:
        typer.echo(str(error))
    except (ReportError, OSError) as error:
        typer.echo(f"report.html has no charts: {error}", err=True)
    else:
        again = shlex.join(["elliptica", "report", str(folder), "--data", str(data), "-o", str(page)])
        typer.echo(f"report.html has charts; to make it again: {again}")


def _run(source: Path, target: str, out: Path, console: Console, **options: Any) -> int:
    """Compare, print and write; returns the exit status."""
    from elliptica.compare.comparison import Session, fit_model
    from elliptica.compare.markdown import describe_model, write_reports
    from elliptica.compare.store import MODEL
    from elliptica.compare.table import TableError

    command = shlex.join(["elliptica", *sys.argv[1:]])
    session: Session | None = None
    try:
        with console.status("reading"):
            session = Session.open(source, target, out=out, command=command, **options)
        _print_plan(session, console)
        if console.is_terminal:
            with _progress_bar(console) as progress:
                task = progress.add_task("", total=session.plan.n_runs)
                session.run(lambda done, _, text: progress.update(task, completed=done, description=text))
        else:
            session.run(_progress_lines(console))
        found = session.result()
        write_reports(session, found)
        with console.status("training the model on all rows"):
            fit_model(found, out / MODEL)
    except (TableError, RuntimeError) as error:
        print_text(console, f"[red]error:[/red] {escape(str(error))}")
        return 2 if isinstance(error, TableError) else 1
    except KeyboardInterrupt:
        return _interrupted(session, out, console)
    _print_result(found, console)
    print_text(console, escape(describe_model(found)))
    files = f"Report: {out / 'report.md'} and report.html. Numbers: {out / 'results.json'}."
    print_text(console, escape(files))
    return 0


def _interrupted(session: Session | None, out: Path, console: Console) -> int:
    from elliptica.compare.markdown import write_reports

    if session is None or not session.store.records():
        print_text(console, "Interrupted before a run was finished.")
        return 130
    found = session.result()
    write_reports(session, found)
    _print_result(found, console)
    print_text(
        console,
        f"Interrupted: {len(found.records)} of {found.plan.n_runs} runs are finished and kept in "
        f"{escape(str(out))}. Rerun the same command to resume.",
    )
    return 130


def _print_plan(session: Session, console: Console) -> None:
    from elliptica.compare.verdict import MIN_REPEATS

    problem, plan = session.problem, session.plan
    if plan.repeats < MIN_REPEATS:
        print_point(
            console,
            f"{plan.repeats} repeat{'s give' if plan.repeats > 1 else ' gives'} scores but no verdict, which "
            f"needs {MIN_REPEATS} or more. Rerun the same command with more --repeats to add them.",
        )
    for notice in problem.notices:
        print_point(console, notice)
    done = len(session.store.records())
    print_text(
        console,
        f"{len(problem.target):,} rows, {count(problem.features.width, 'input')}; "
        f"{count(len(plan.methods), 'method')} x {count(plan.repeats, 'repeat')} x "
        f"{count(plan.trials, 'trial')}" + (f"; {count(done, 'run')} done already" if done else ""),
    )


def _print_result(found: Comparison, console: Console) -> None:
    from elliptica.compare.markdown import cautions, result_rows

    header, *rows = result_rows(found, short=True)
    grid = Table()
    for number, name in enumerate(header):
        grid.add_column(escape(name), justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        grid.add_row(*map(escape, row))
    console.print(grid)
    print_text(console, f"[bold]{escape(found.verdict.text)}[/bold]")
    for caution in cautions(found):
        print_point(console, f"Note: {caution}")


def _progress_bar(console: Console) -> Progress:
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()),
        TextColumn("{task.description}"),
    )
    # a run may need longer than the half minute from which speed is estimated by default
    return Progress(*columns, console=console, transient=True, speed_estimate_period=24 * 3600)


def _progress_lines(console: Console) -> Callable[[int, int, str], None]:
    """A line for every finished run, where there is no terminal for a bar."""
    begin = time.monotonic()
    running: list[str] = []

    def listen(done: int, total: int, text: str) -> None:
        if running:
            print_text(console, escape(f"{running.pop()} done, {_duration(time.monotonic() - begin)} so far"))
        if done < total:
            running.append(text)

    return listen


def _duration(seconds: float) -> str:
    """In words, as exactly as one wants to know.

    Example:
        >>> _duration(12.3), _duration(100), _duration(7500)
        ('12 s', '2 min', '2 h 5 min')
    """
    minutes = round(seconds / 60)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
