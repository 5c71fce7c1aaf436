"""`elliptica compare`: find out how to train on your own table, for the shift that you expect."""

from __future__ import annotations

import math
import shlex
import sys
import time as clock
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from elliptica._utils.files import not_written
from elliptica._utils.text import count
from elliptica.cli.app import YOUR_DATA, app, one_of, print_point, print_text, require_extra
from elliptica.cli.report import Request, write_report

if TYPE_CHECKING:
    from elliptica.tables.comparison import Session
    from elliptica.tables.summary import Summary


#: Tasks.
Kind = Literal["auto", "classification", "regression"]

#: Rules that choose among the trials of a method.
Rule = Literal["average", "worst"]

#: Kinds of workers.
Engine = Literal["threads", "processes", "ray"]

_TABLE, _SHIFT = "Your table", "The shift that you expect (at most one; random rows by default)"
_EFFORT, _OUTPUT = "Methods and effort", "Size and output"
#: Options that each select their own test rows.
_SHIFTS = {"time": "--time", "test": "--test", "extrapolate": "--extrapolate", "split_by": "--split-by"}
#: Share of the work after which a line of progress is printed if the output is a file.
_STEP = 0.1
#: Wider tables join columns with the same use into one line.
_MOST_COLUMNS = 16
#: Sentences of the verdict that only reports show, because the screen shows the facts already.
_IN_REPORTS = ("How rows were held out:", "Intervals compare methods")


def _names(values: list[str]) -> list[str]:
    """Split names that are repeated, separated by commas, or both; a value without any empties the list."""
    parts = [[name.strip() for name in each.split(",") if name.strip()] for each in values]
    return [name for part in parts for name in part] if all(parts) else []


def _trees_are_default(given: bool) -> bool:
    if given:
        raise typer.BadParameter(
            "Boosted trees and a linear model are always compared now: omit --trees. To run without them, "
            "name the methods, e.g. --methods erm,mixup,elliptic."
        )
    return given


@app.command(rich_help_panel=YOUR_DATA)
def compare(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="CSV or Parquet file with named columns, or diabetes, breast_cancer, wine, iris, digits.",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Column to predict.", show_default="known for built-in tables", rich_help_panel=_TABLE
        ),
    ] = None,
    task: Annotated[
        Kind,
        one_of(Kind, help="auto: text and few distinct whole numbers are classes.", rich_help_panel=_TABLE),
    ] = "auto",
    group: Annotated[
        str | None,
        typer.Option(help="Column of groups; also judges the worst one.", rich_help_panel=_TABLE),
    ] = None,
    group_as_input: Annotated[
        bool, typer.Option("--group-as-input", help="Also use the group as an input.", rich_help_panel=_TABLE)
    ] = False,
    as_: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="COLUMN=KIND",
            help="Kind of a column: date, number, category, text or id. Repeatable.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None,
    id: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that names the rows; copied to predictions, not an input. Repeatable.",
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
        typer.Option(
            help="Test on unseen values of this column (sites, patients).",
            rich_help_panel=_SHIFT,
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Test on the rows of this file.", dir_okay=False, rich_help_panel=_SHIFT),
    ] = None,
    extrapolate: Annotated[
        bool,
        typer.Option(
            "--extrapolate", help="Test on the rows farthest from the rest.", rich_help_panel=_SHIFT
        ),
    ] = False,
    target_rows: Annotated[
        Path | None,
        typer.Option(
            help="Rows that you will predict; reports how far away they are.",
            dir_okay=False,
            rich_help_panel=_SHIFT,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="erm (ordinary training), noise, smoothing, mixup, c-mixup, elliptic, elliptic-weighted, "
            "groupdro, lisa, balanced, jtt, trees, linear: a,b or repeated.",
            show_default="all that fit",
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    select: Annotated[
        Rule,
        one_of(Rule, help="Judge by the average, or by the worst class or group.", rich_help_panel=_EFFORT),
    ] = "average",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Settings to try per method.", show_default="8", rich_help_panel=_EFFORT),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=2, help="Number of test parts.", show_default="5", rich_help_panel=_EFFORT),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repeat with other draws, for narrower intervals.",
            show_default="1; 3 for fixed test rows",
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of epochs.",
            show_default="by size",
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A first impression: fewer settings and epochs.", rich_help_panel=_EFFORT
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(help="Time limit: 90s, 2m, 1h.", show_default="none", rich_help_panel=_EFFORT),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trainings at the same time.", show_default="the cores", rich_help_panel=_EFFORT
        ),
    ] = None,
    engine: Annotated[Engine, one_of(Engine, help="Kind of workers.", rich_help_panel=_EFFORT)] = "threads",
    unbounded: Annotated[
        bool,
        typer.Option(
            "--unbounded",
            help="Do not clip predictions to the range of the training targets.",
            rich_help_panel=_EFFORT,
        ),
    ] = False,
    max_rows: Annotated[
        int, typer.Option(min=50, help="Maximum number of rows.", rich_help_panel=_OUTPUT)
    ] = 200_000,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Use a random sample of that size if the table is longer.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.", rich_help_panel=_OUTPUT)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results.",
            show_default="compare/NAME",
            file_okay=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    trees: Annotated[bool, typer.Option("--trees", hidden=True, callback=_trees_are_default)] = False,
) -> None:
    """Find the best training method for your table, under the shift that you expect, and save the model.

    Every method gets the same rows and the same number of trials. After Ctrl-C, rerun the same command to
    resume. Examples: elliptica compare diabetes; elliptica compare houses.csv --target price --time sold
    """
    require_extra("tables", "polars", "sklearn", "safetensors", "skrub")
    options: dict[str, Any] = {
        "task": task,
        "group": group,
        "group_as_input": group_as_input,
        "as_": _kinds(as_ or []),
        "ids": tuple(id or ()),
        "time": time,
        "split_by": split_by,
        "test": test,
        "extrapolate": extrapolate,
        "target_rows": target_rows,
        "methods": None if methods is None else _names(methods),
        "select": select,
        "trials": trials,
        "folds": folds or 5,
        "repeats": repeats,
        "epochs": epochs,
        "quick": quick,
        "budget": budget,
        "jobs": jobs,
        "workers": engine,
        "bounded": not unbounded,
        "max_rows": max_rows,
        "sample": sample,
        "seed": seed,
    }
    _check_options(data, options, folds)
    folder = out or Path("compare") / Path(data).stem
    raise typer.Exit(_run(data, target, folder, Console(), **options))


def _kinds(values: list[str]) -> dict[str, str]:
    """Parse COLUMN=KIND; a name may contain an equals sign, a kind does not."""
    kinds = {}
    for value in values:
        name, sign, kind = value.rpartition("=")
        if not sign or not name or not kind:
            raise typer.BadParameter(
                f"--as takes COLUMN=KIND, e.g. --as zip=category, but got {value!r}.", param_hint="'--as'"
            )
        kinds[name.strip()] = kind.strip().lower()
    return kinds


def _check_options(data: str, options: dict[str, Any], folds: int | None) -> None:
    """Raise for incompatible options, before anything is read."""
    asked = [flag for name, flag in _SHIFTS.items() if options[name]]
    if len(asked) > 1 and set(asked) != {"--test", "--split-by"}:  # a test file may have blocks
        raise typer.BadParameter(
            f"{' and '.join(asked)} select different test rows. Pass only one of them, and run a second "
            "comparison for the other."
        )
    fixed = next((flag for flag in asked if flag in ("--test", "--extrapolate")), None)
    if fixed and folds is not None:
        raise typer.BadParameter(
            f"{fixed} has a single set of test rows, so there are no folds. Omit --folds; --repeats trains "
            "more often."
        )
    if options["group_as_input"] and options["group"] is None:
        raise typer.BadParameter("--group-as-input needs --group COLUMN.")
    both = [name for name in options["ids"] if options["as_"].get(name, "id") != "id"]
    if both:
        raise typer.BadParameter(
            f"--id {both[0]} and --as {both[0]}={options['as_'][both[0]]} exclude each other. Omit one."
        )
    for name in ("test", "target_rows"):
        file = options[name]
        if file is not None and file.exists() and Path(data).exists() and file.samefile(data):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is the table itself. Pass other rows, or omit it."
            )


def _run(source: str, target: str | None, out: Path, console: Console, **options: Any) -> int:
    """Compare, print and write; return the exit status."""
    from elliptica.tables.comparison import Options, Session
    from elliptica.tables.markdown import write_reports
    from elliptica.tables.model import describe_target_rows, fit_model
    from elliptica.tables.store import MODEL
    from elliptica.tables.summary import summarise, target_rows_words
    from elliptica.tables.table import TableError

    command = shlex.join(["elliptica", *sys.argv[1:]])
    session: Session | None = None
    try:
        with console.status("reading"):
            target = target or _known_target(source)
            session = Session.open(source, target, Options(**options), out=out, command=command)
        _print_start(session, console)
        with _progress(console) as listen:
            session.run(listen)
        comparison = session.result()
        summary = summarise(comparison)
        write_reports(session.store, summary)
        with console.status("training the model on all rows"):
            model = fit_model(comparison, out / MODEL)
            if (rows := describe_target_rows(comparison, model)) is not None:
                summary = replace(summary, target_rows=target_rows_words(rows, summary.saved))
                write_reports(session.store, summary)
        words = _write_page(out)
        _print_result(summary, console)
        _print_saved(summary, out, console, words)
    except (TableError, RuntimeError) as error:
        print_text(console, f"[red]error:[/red] {escape(str(error))}")
        return 2 if isinstance(error, TableError) else 1
    except KeyboardInterrupt:
        return _interrupted(session, out, console)
    except OSError as error:  # e.g. a full disk, or an output that cannot be written
        return _not_written(error, session, out)
    finally:
        if session is not None:
            session.close()
    return 0


def _known_target(source: str) -> str:
    """Return the target of a built-in table; for a file, raise and list its columns.

    Raises:
        TableError: If it is a file.
    """
    from elliptica.tables.table import BUILT_IN, TableError, read_table

    if source in BUILT_IN and not Path(source).exists():
        return BUILT_IN[source]
    table = read_table(source, max_rows=50, sample=True)
    names = table.frame.columns
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
    raise TableError(f"No target column was given. Pass --target COLUMN. {table.name} has {shown}.")


def _not_written(error: OSError, session: Session | None, out: Path) -> int:
    """Report on the error stream what could not be written."""
    if isinstance(error, BrokenPipeError):
        raise error  # the reader has gone, as with | head
    kept = f" Finished folds are kept in {out}." if session else ""
    typer.echo(f"error: {not_written(error)}{kept}", err=True)
    return 1


def _interrupted(session: Session | None, out: Path, console: Console) -> int:
    """Report what is finished after an interruption."""
    from elliptica.tables.markdown import progress_words, write_reports
    from elliptica.tables.summary import summarise

    comparison = None if session is None else session.result()
    if session is None or comparison is None or not comparison.finished:
        kept = f" Finished work is kept in {out}." if comparison and comparison.records else ""
        print_text(console, escape(f"Interrupted before a fold was finished.{kept}"))
        return 130
    summary = summarise(comparison)
    write_reports(session.store, summary)
    words = _write_page(out)
    _print_result(summary, console)
    print_text(
        console,
        escape(
            f"Interrupted: {progress_words(summary)} Report: {out / 'report.html'}{words}. Rerun the same "
            "command to resume and to save a model."
        ),
    )
    return 130


def _print_start(session: Session, console: Console) -> None:
    """Print the table, the task, the use of every column, and the estimated time."""
    from elliptica.tables.markdown import about, column_rows

    problem, plan, shift = session.problem, session.plan, session.shift
    print_text(console, escape(about(session.name, problem, shift.words)))
    _print_table([["column", "used as", "change with"], *shorten(column_rows(problem.columns))], console)
    for notice in problem.notices:
        print_point(console, notice)
    settings = f", {count(plan.trials, 'setting')} each" if plan.trials > 1 else ""
    folds = count(shift.folds_per_repeat, "fold")
    repeats = f", {shift.n_repeats} times" if shift.n_repeats > 1 else ""
    done = len({(r.repeat, r.fold) for r in session.result().records})
    resumed = f" {count(done, 'fold')} of an earlier run kept." if done else ""
    print_text(
        console,
        f"{count(len(plan.methods), 'method')}{settings}, {folds}{repeats}: about "
        f"{duration(session.estimate)}.{resumed} Ctrl-C keeps finished folds.",
    )


def shorten(rows: list[list[str]], most: int = _MOST_COLUMNS) -> list[list[str]]:
    """Join columns of a wide table with the same use; those with a hint stay separate.

    Example:
        >>> rows = [[f"x{i}", "number", ""] for i in range(98)] + [["code", "category", "--as code=number"]]
        >>> shorten(rows)
        [['x0, x1, x2 and 95 more', 'number', ''], ['code', 'category', '--as code=number']]
    """
    for exact in (True, False):  # the same text, then the same kind
        if len(rows) <= most:
            return rows
        joined: dict[Any, list[list[str]]] = {}
        for number, row in enumerate(rows):
            key = number if row[2] else row[1] if exact else row[1].partition(",")[0].partition(" (")[0]
            joined.setdefault(key, []).append(row)
        merged = [
            group[0] if len(group) == 1 else [_join([row[0] for row in group]), str(key), ""]
            for key, group in joined.items()
        ]
        if exact and len(merged) > most:
            continue
        rows = merged
    rest = len(rows) - most
    return rows if rest <= 0 else [*rows[:most], [f"... and {rest:,} more", "see the report", ""]]


def _join(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _print_table(lines: list[list[str]], console: Console, right: Collection[int] = ()) -> None:
    """Print rows, the header first: aligned on a screen, whole lines in a file; empty columns are skipped."""
    used = [i for i in range(len(lines[0])) if any(row[i] for row in lines[1:])]
    header, *rows = [[row[i] for i in used] for row in lines]
    if not console.is_terminal:
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        for row in (header, *rows):
            cells = [
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print_text(console, escape("  " + "  ".join(cells).rstrip()))
        return
    grid = Table(box=None, padding=(0, 1), header_style="dim")
    for i, name in enumerate(header):
        grid.add_column(
            escape(name), justify="right" if i in right else "left", no_wrap=not i, overflow="fold"
        )
    for row in rows:
        grid.add_row(*map(escape, row))
    console.print(grid, highlight=False)


def _print_result(found: Summary, console: Console) -> None:
    from elliptica.tables.markdown import footnotes, range_words, result_rows

    narrow = console.is_terminal and console.width < 100
    rows = result_rows(found, most=2 if narrow else 3)
    if narrow:  # the interval on one line, its result on the next
        rows = [[*row[:-1], row[-1].replace(") ", ")\n")] for row in rows]
    _print_table(rows, console, right=range(1, len(rows[0]) - 1))
    for note in footnotes(found):
        print_text(console, f"  {escape(note)}")
    print_text(console, f"[bold]{escape(found.verdict.headline)}[/bold]")
    said = [sentence for sentence in found.verdict.sentences if not sentence.startswith(_IN_REPORTS)]
    for text in (" ".join(said), *range_words(found), " ".join(found.target_rows)):
        if text:
            print_text(console, escape(text))
    for caution in found.cautions:
        print_point(console, f"Caution: {caution}")


def _print_saved(found: Summary, out: Path, console: Console, page_words: str) -> None:
    from elliptica.tables.markdown import describe_model
    from elliptica.tables.store import MODEL

    model = shlex.quote(str(out / MODEL))
    print_text(
        console,
        escape(f"Saved: {model} ({describe_model(found)}). Report: {out / 'report.html'}{page_words}"),
    )
    print_text(console, escape(f"To predict other rows: elliptica predict {model} NEW.csv"))


def _write_page(folder: Path) -> str:
    """Replace the plain page by one with charts if possible; otherwise return the reason as text."""
    from elliptica.report.content import ReportError

    try:
        write_report(Request(str(folder)), folder / "report.html")
    except (ModuleNotFoundError, ReportError, OSError) as error:
        return f" (without charts: {error})"
    return ""


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar on a screen, or print a line for every tenth if the output is a file."""
    begin, last = clock.monotonic(), ""

    def describe(share: float, words: str) -> str:
        """Describe the current work, and the remaining time once it can be estimated."""
        nonlocal last
        last = words or last
        if share >= 1:
            return "done"
        spent = clock.monotonic() - begin
        left = f"{duration(spent * (1 - share) / share)} left" if share > 0.05 else ""
        return ", ".join(part for part in (last, left) if part)

    if not console.is_terminal:
        yield _progress_lines(console, describe)
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share, words: progress.update(
            task, completed=share, description=escape(describe(share, words))
        )


def _progress_lines(console: Console, describe: Callable[[float, str], str]) -> Callable[[float, str], None]:
    printed = 0.0

    def listen(share: float, words: str) -> None:
        nonlocal printed
        text = describe(share, words)
        if share >= min(1.0, printed + _STEP) and printed < 1.0:
            printed = math.floor(share / _STEP + 1e-9) * _STEP
            print_text(console, escape(f"  {100 * share:3.0f} %  {text}"))

    return listen


def duration(seconds: float) -> str:
    """Format seconds with a sensible precision.

    Example:
        >>> duration(12.3), duration(100), duration(7500)
        ('12 s', '2 min', '2 h 5 min')
    """
    minutes = round(seconds / 60)
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
