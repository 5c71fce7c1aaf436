"""`elliptica compare` and `elliptica predict` on the screen: progress, tables, files, interruption."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from elliptica.compare._csv import TableError
from elliptica.compare.comparison import Comparison, Session
from elliptica.compare.model import fit_model
from elliptica.compare.predict import predict_file
from elliptica.compare.report import markdown, model_words, page, result_rows

MODEL = "model.elliptica"


def run_compare(source: Path, target: str, out: Path, console: Console, **options: Any) -> int:
    """Compare, print, write; returns the exit status."""
    command = shlex.join(["elliptica", *sys.argv[1:]])
    session: Session | None = None
    try:
        with console.status("reading"):
            session = Session.open(source, target, out=out, command=command, **options)
        _introduce(session, console)
        with _progress(console) as progress:
            task = progress.add_task("", total=session.plan.n_runs)
            session.run(lambda done, _, text: progress.update(task, completed=done, description=text))
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


def run_predict(model: Path, source: Path, out: Path, proba: bool, console: Console) -> int:
    """Predict, write; returns the exit status."""
    try:
        found, notices = predict_file(model, source, out, proba=proba)
    except TableError as error:
        _say(console, f"[red]error:[/red] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        _say(console, escape(f"Interrupted: {out} was not written, or not completely."))
        return 130
    for notice in notices:
        _say(console, f"- {escape(notice)}")
    _say(console, escape(f"{len(found):,} predictions in {out}"))
    return 0


def write_reports(session: Session, found: Comparison) -> None:
    """Reports and the verdict beside the records, also of a comparison that is not finished."""
    folder = session.store.folder
    if folder is None:
        return
    verdict = found.verdict
    session.store.write({"verdict": {"best": verdict.best, "text": verdict.text, "complete": found.complete}})
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
    for notice in problem.notices:
        _say(console, f"- {escape(notice)}")
    done = len(session.store.records())
    _say(
        console,
        f"{len(problem.target):,} rows, {problem.features.width} inputs; {len(plan.methods)} methods x "
        f"{plan.repeats} repeats x {plan.trials} trials" + (f"; {done} runs are done" if done else ""),
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


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, transient=True)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
