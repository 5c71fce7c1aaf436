"""`elliptica compare` and `elliptica predict` on the screen: progress, tables, files, interruption."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

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
from rich.table import Table as Grid

from elliptica._utils.text import count
from elliptica.compare.comparison import Comparison, Listener, Session, fit_model
from elliptica.compare.csv import TableError
from elliptica.compare.predict import predict_file
from elliptica.compare.report import cautions, markdown, model_words, page, result_rows
from elliptica.compare.store import MODEL
from elliptica.compare.verdict import MIN_REPEATS


def run_compare(source: Path, target: str, out: Path, console: Console, **options: Any) -> int:
    """Compare, print, write; returns the exit status."""
    command = shlex.join(["elliptica", *sys.argv[1:]])
    session: Session | None = None
    try:
        with console.status("reading"):
            session = Session.open(source, target, out=out, command=command, **options)
        _introduce(session, console)
        if console.is_terminal:
            with _progress(console) as progress:
                task = progress.add_task("", total=session.plan.n_runs)
                session.run(lambda done, _, text: progress.update(task, completed=done, description=text))
        else:
            session.run(_lines(console))
        found = session.result()
        write_reports(session, found)
        with console.status("training the model on all rows"):
            fit_model(found, out / MODEL)
    except (TableError, RuntimeError) as error:
        _say(console, f"[red]error:[/red] {escape(str(error))}")
        return 2 if isinstance(error, TableError) else 1
    except KeyboardInterrupt:
        return _interrupted(session, out, console)
    _conclude(found, console)
    _say(console, escape(model_words(found)))
    _say(console, escape(f"Report: {out / 'report.md'} and report.html. Numbers: {out / 'results.json'}."))
    return 0


def run_predict(model: Path, source: Path, out: Path, console: Console, **options: Any) -> int:
    """Predict, write; returns the exit status."""
    try:
        found, notices = predict_file(model, source, out, **options)
    except TableError as error:
        _say(console, f"[red]error:[/red] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        _say(console, escape(f"Interrupted: {out} was not written, or not completely."))
        return 130
    for notice in notices:
        _list(console, notice)
    _say(console, escape(f"{len(found):,} predictions in {out}"))
    return 0


def write_reports(session: Session, found: Comparison) -> None:
    """Reports and the verdict beside the records, also of a comparison that is not finished."""
    folder = session.store.folder
    if folder is None:
        return
    verdict = found.verdict
    session.store.write({"verdict": {"best": found.best, "text": verdict.text, "complete": found.complete}})
    (folder / "report.md").write_text(markdown(found), encoding="utf-8")
    (folder / "report.html").write_text(page(found), encoding="utf-8")


def _interrupted(session: Session | None, out: Path, console: Console) -> int:
    if session is None or not session.store.records():
        _say(console, "Interrupted before a run was finished.")
        return 130
    found = session.result()
    write_reports(session, found)
    _conclude(found, console)
    _say(
        console,
        f"Interrupted: {len(found.records)} of {found.plan.n_runs} runs are finished and kept in "
        f"{escape(str(out))}. The same command goes on.",
    )
    return 130


def _introduce(session: Session, console: Console) -> None:
    problem, plan = session.problem, session.plan
    if plan.repeats < MIN_REPEATS:
        _list(
            console,
            f"{plan.repeats} repeat{'s give' if plan.repeats > 1 else ' gives'} scores but no verdict, which "
            f"needs {MIN_REPEATS} or more. The same command with more --repeats goes on from there.",
        )
    for notice in problem.notices:
        _list(console, notice)
    done = len(session.store.records())
    _say(
        console,
        f"{len(problem.target):,} rows, {count(problem.features.width, 'input')}; "
        f"{count(len(plan.methods), 'method')} x {count(plan.repeats, 'repeat')} x "
        f"{count(plan.trials, 'trial')}" + (f"; {count(done, 'run')} done already" if done else ""),
    )


def _conclude(found: Comparison, console: Console) -> None:
    header, *rows = result_rows(found, short=True)
    grid = Grid()
    for number, name in enumerate(header):
        grid.add_column(escape(name), justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        grid.add_row(*map(escape, row))
    console.print(grid)
    _say(console, f"[bold]{escape(found.verdict.text)}[/bold]")
    for caution in cautions(found):
        _list(console, f"Note: {caution}")


def _progress(console: Console) -> Progress:
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()),
        TextColumn("{task.description}"),
    )
    # a run may need longer than the half minute from which speed is estimated by default
    return Progress(*columns, console=console, transient=True, speed_estimate_period=24 * 3600)


def _lines(console: Console) -> Listener:
    """A line for every finished run, where there is no terminal for a bar."""
    begin = time.monotonic()
    running: list[str] = []

    def listen(done: int, total: int, text: str) -> None:
        if running:
            _say(console, escape(f"{running.pop()} done, {_duration(time.monotonic() - begin)} so far"))
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


def _say(console: Console, text: str) -> None:
    """Whole words on a screen, whole lines in a file."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _list(console: Console, text: str) -> None:
    """A point of a list, indented below its dash."""
    if not console.is_terminal:
        _say(console, f"- {escape(text)}")
        return
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_row("-", escape(text))
    console.print(grid, highlight=False)
