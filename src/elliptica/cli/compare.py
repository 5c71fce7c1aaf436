"""`elliptica compare`: find out how to train on your own table, for the shift that you expect."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from elliptica._utils.text import count
from elliptica.cli.app import YOUR_DATA, app, one_of, print_point, print_text, require_extra

if TYPE_CHECKING:
    from elliptica.tables.comparison import Session
    from elliptica.tables.summary import Summary

Kind = Literal["auto", "classification", "regression"]
Rule = Literal["average", "worst"]

_TABLE, _SHIFT = "Your table", "The shift that you expect (at most one; random rows by default)"
_EFFORT = "Methods, effort and output"
#: Wider tables list only columns with a hint.
_MOST_COLUMNS = 16
#: Sentences of the verdict that only reports show, because the screen shows the facts already.
_IN_REPORTS = ("How rows were held out:", "Intervals compare methods")


@app.command(rich_help_panel=YOUR_DATA)
def compare(
    data: Annotated[
        str, typer.Argument(help="CSV or Parquet file, or diabetes, breast_cancer, wine, iris, digits.")
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Column to predict.", show_default="of built-in tables", rich_help_panel=_TABLE),
    ] = None,
    task: Annotated[
        Kind,
        one_of(Kind, help="auto: text and few distinct whole numbers are classes.", rich_help_panel=_TABLE),
    ] = "auto",
    group: Annotated[
        str | None,
        typer.Option(help="Column of groups; also judges the worst one.", rich_help_panel=_TABLE),
    ] = None,
    as_: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="COLUMN=KIND",
            help="Kind of a column: date, number, category, text or id (not an input). Repeatable.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Time column: train on the past, test on later rows.", rich_help_panel=_SHIFT),
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option(help="Test on unseen values of this column (sites, patients).", rich_help_panel=_SHIFT),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Test on the rows of this file.", dir_okay=False, rich_help_panel=_SHIFT),
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Test on the farthest rows.", rich_help_panel=_SHIFT)
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names of methods: erm,elliptic,trees; an unknown one lists them all.",
            show_default="all that fit",
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    select: Annotated[
        Rule,
        one_of(Rule, help="Judge by the average, or by the worst class or group.", rich_help_panel=_EFFORT),
    ] = "average",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A first impression: fewer settings and epochs.", rich_help_panel=_EFFORT
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop then, and compare finished folds.", rich_help_panel=_EFFORT),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Other settings: folds, repeats, trials, epochs, networks, seed, jobs, max_rows, bounded, "
            "target_rows, group_as_input. Repeatable.",
            show_default=False,
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder.", show_default="compare/NAME", file_okay=False, rich_help_panel=_EFFORT),
    ] = None,
) -> None:
    """Find the best training method for your table, under the shift that you expect, and save the model.

    Every method gets the same rows and the same number of trials. After Ctrl-C, rerun the same command to
    resume. Examples: elliptica compare diabetes; elliptica compare houses.csv --target price --time sold
    """
    require_extra("tables", "polars", "sklearn", "safetensors", "skrub")
    from elliptica.tables.comparison import Options, Session

    options = Options(
        task=task,
        group=group,
        as_=_pairs(as_),
        time=time,
        split_by=split_by,
        test=test,
        extrapolate=extrapolate,
        methods=None if methods is None else [name.strip() for name in methods.split(",")],
        select=select,
        quick=quick,
        minutes=minutes,
        **{name: _value(text) for name, text in _pairs(set_).items()},
    )
    out, console = out or Path("compare") / Path(data).stem, Console()
    with console.status("reading"):
        command = shlex.join(["elliptica", *sys.argv[1:]])
        session = Session.open(data, target, options, out=out, command=command)
    try:
        _print_start(session, console)
        interrupted = _train(session, console)
        _finish(session, out, console, interrupted)
    finally:
        session.close()
    if interrupted:
        raise typer.Exit(130)


def _pairs(values: list[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE; a name may contain an equals sign."""
    parts = [value.rpartition("=") for value in values or ()]
    return {name.strip(): value.strip() for name, _, value in parts}


def _value(text: str) -> Any:
    """Read a number, True, False or a tuple; everything else is text."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


def _train(session: Session, console: Console) -> bool:
    """Train what is not finished; return whether it was interrupted."""
    try:
        with _progress(console) as listen:
            session.run(listen)
    except KeyboardInterrupt:
        return True
    return False


def _finish(session: Session, out: Path, console: Console, interrupted: bool) -> None:
    """Write reports and model of what is finished, and print the result."""
    from elliptica.tables.markdown import describe_model, write_reports
    from elliptica.tables.model import describe_target_rows, fit_model
    from elliptica.tables.store import MODEL
    from elliptica.tables.summary import summarise, target_rows_words

    comparison = session.result()
    if not comparison.finished:
        words = "Interrupted before a fold was finished." if interrupted else comparison.verdict.headline
        print_text(console, escape(f"{words} Finished work is kept in {out}."))
        return
    summary = summarise(comparison)
    write_reports(session.store, summary)
    if not interrupted:
        with console.status("training the model on all rows"):
            model = fit_model(comparison, out / MODEL)
            if (rows := describe_target_rows(comparison, model)) is not None:
                summary = replace(summary, target_rows=target_rows_words(rows, summary.saved))
                write_reports(session.store, summary)
    words = _write_page(out)
    _print_result(summary, console)
    page = f"Report: {out / 'report.html'}{words}"
    if interrupted:
        done = f"{len(comparison.finished)} of {count(len(comparison.shift.folds), 'fold')}"
        print_text(
            console,
            escape(f"Interrupted: {done} finished and kept. {page}. Rerun the same command to resume."),
        )
        return
    file = shlex.quote(str(out / MODEL))
    print_text(console, escape(f"Saved: {file} ({describe_model(summary)}). {page}"))
    print_text(console, escape(f"To predict other rows: elliptica predict {file} NEW.csv"))


def _print_start(session: Session, console: Console) -> None:
    """Print the table, the task, the use of every column, and the effort."""
    from elliptica.tables.markdown import about, column_rows

    problem, plan, shift = session.problem, session.plan, session.shift
    print_text(console, escape(about(session.name, problem, shift.words)))
    rows = column_rows(problem.columns)
    if len(rows) > _MOST_COLUMNS:
        shown = [row for row in rows if row[2]][:_MOST_COLUMNS]
        rows = [*shown, [f"{len(rows) - len(shown):,} others", "see the report", ""]]
    _print_table([["column", "used as", "change with"], *rows], console)
    for notice in problem.notices:
        print_point(console, notice)
    done = len({(r.repeat, r.fold) for r in session.result().records})
    effort = f"{count(len(plan.methods), 'method')}, {count(plan.trials, 'setting')} each, "
    effort += count(len(shift.folds), "fold") + (f" ({done} of an earlier run kept)" if done else "")
    print_text(console, f"{effort}. Ctrl-C keeps finished folds.")


def _print_table(lines: list[list[str]], console: Console, right: Collection[int] = ()) -> None:
    """Print rows, the header first: aligned on a screen, whole lines in a file; empty columns are skipped."""
    used = [i for i in range(len(lines[0])) if any(row[i] for row in lines[1:])]
    grid = Table(box=None, padding=(0, 1), header_style="dim")
    for i in used:
        side: Literal["left", "right"] = "right" if i in right else "left"
        grid.add_column(escape(lines[0][i]), justify=side, no_wrap=not i, overflow="fold")
    for row in lines[1:]:
        grid.add_row(*(escape(row[i]) for i in used))
    wide = None if console.is_terminal else 1000  # a file has no edge
    console.print(grid, highlight=False, width=wide, crop=False)


def _print_result(summary: Summary, console: Console) -> None:
    from elliptica.tables.markdown import footnotes, range_words, result_rows

    narrow = console.is_terminal and console.width < 100
    rows = result_rows(summary, most=2 if narrow else 3)
    if narrow:  # the interval on one line, its result on the next
        rows = [[*row[:-1], row[-1].replace(") ", ")\n")] for row in rows]
    _print_table(rows, console, right=range(1, len(rows[0]) - 1))
    for note in footnotes(summary):
        print_text(console, f"  {escape(note)}")
    print_text(console, f"[bold]{escape(summary.verdict.headline)}[/bold]")
    sentences = [text for text in summary.verdict.sentences if not text.startswith(_IN_REPORTS)]
    for text in (" ".join(sentences), *range_words(summary), " ".join(summary.target_rows)):
        if text:
            print_text(console, escape(text))
    for caution in summary.cautions:
        print_point(console, f"Caution: {caution}")


def _write_page(folder: Path) -> str:
    """Replace the plain page by one with charts if possible; otherwise return the reason as text."""
    from elliptica.cli.report import Request, write_report
    from elliptica.report.content import ReportError

    try:
        write_report(Request(str(folder)), folder / "report.html")
    except (ModuleNotFoundError, ReportError) as error:
        return f" (without charts: {error})"
    return ""


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar on a screen, or print a line for every tenth if the output is a file."""
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    tenth = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)

        def listen(share: float, words: str) -> None:
            nonlocal tenth
            progress.update(task, completed=share, description=escape(words))
            if not console.is_terminal and int(10 * share + 1e-9) > tenth:
                tenth = int(10 * share + 1e-9)
                print_text(console, escape(f"  {10 * tenth:3d} %  {words}"))

        yield listen
