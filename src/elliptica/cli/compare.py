"""`elliptica compare` and `elliptica predict`: how to train on your own table, and predict with it."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica._utils.extras import count
from elliptica.cli.app import YOUR_DATA, app, one_of, print_point, print_text, require_extra

if TYPE_CHECKING:
    from elliptica.tables.comparison import Comparison, Session


Kind = Literal["auto", "classification", "regression"]
Rule = Literal["average", "worst"]

_TABLE, _SHIFT = "Your table", "The shift that you expect (at most one; random rows by default)"
_EFFORT = "Methods, effort and output"
_SETTINGS = "folds, repeats, trials, epochs, networks, hidden, seed, jobs, max_rows, bounded, random"
#: Wider tables list only columns with a hint.
_MOST_COLUMNS = 16


def _option(panel: str, help: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


@app.command(rich_help_panel=YOUR_DATA)
def compare(
    data: Annotated[
        str, typer.Argument(help="CSV, xlsx or Parquet file, or diabetes, breast_cancer, wine, iris, digits.")
    ],
    target: Annotated[str | None, _option(_TABLE, "Column to predict; known for built-in tables.")] = None,
    task: Annotated[
        Kind, one_of(Kind, help="auto: text and few whole numbers are classes.", rich_help_panel=_TABLE)
    ] = "auto",
    group: Annotated[str | None, _option(_TABLE, "Column of groups; also judges the worst one.")] = None,
    as_: Annotated[
        list[str] | None,
        _option(
            _TABLE,
            "Kind of a column: date, number, category, text or id (not an input). Repeatable.",
            "--as",
            metavar="COLUMN=KIND",
        ),
    ] = None,
    time: Annotated[
        str | None, _option(_SHIFT, "Time column: train on the past, test on later rows.")
    ] = None,
    split_by: Annotated[str | None, _option(_SHIFT, "Test on unseen values of this column.")] = None,
    test: Annotated[Path | None, _option(_SHIFT, "Test on the rows of this file.", dir_okay=False)] = None,
    extrapolate: Annotated[
        str | None, _option(_SHIFT, "Test on the far ends of this column; auto: of all numeric ones.")
    ] = None,
    refit_all: Annotated[
        bool, _option(_SHIFT, "Save a model that also learns the rows of --test.", "--refit-all")
    ] = False,
    methods: Annotated[
        str | None,
        _option(
            _EFFORT,
            "Only these: erm,elliptic,trees; an unknown name lists them all. Estimators of yours join as "
            "module:Class.",
            "--methods",
            "--method",
        ),
    ] = None,
    select: Annotated[
        Rule, one_of(Rule, help="Judge by the average or the worst class or group.", rich_help_panel=_EFFORT)
    ] = "average",
    quick: Annotated[
        bool, _option(_EFFORT, "A first impression: fewer settings and epochs.", "--quick")
    ] = False,
    minutes: Annotated[float | None, _option(_EFFORT, "Time limit; finished folds are compared.")] = None,
    set_: Annotated[
        list[str] | None,
        _option(
            _EFFORT,
            f"Other settings: {_SETTINGS}. Repeatable.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    out: Annotated[Path | None, _option(_EFFORT, "Default: compare/NAME-SHIFT.", file_okay=False)] = None,
) -> None:
    """Find the best training method for your table, under the shift that you expect, and save the model.

    Every method gets the same rows. After Ctrl-C, rerun the same command to
    resume. Examples: elliptica compare diabetes; elliptica compare houses.csv --target price --time sold
    """
    require_extra("tables", "polars", "sklearn", "skrub")
    from elliptica._utils import checks
    from elliptica.tables.comparison import Options, Session

    settings = _pairs(set_)
    for name in settings:
        checks.choice("--set", name, _SETTINGS.split(", "))
    options = Options(
        task=task,
        group=group,
        as_=_pairs(as_),
        time=time,
        split_by=split_by,
        test=test,
        extrapolate=extrapolate or False,
        refit_all=refit_all,
        methods=None if methods is None else [name.strip() for name in methods.split(",")],
        select=select,
        quick=quick,
        minutes=minutes,
        **{name: _value(text) for name, text in settings.items()},
    )
    shifts = {"time": time, "split-by": split_by, "extrapolate": extrapolate, "test": test}
    asked = [name for name, value in shifts.items() if value]
    out = out or Path("compare", "-".join([Path(data).stem, *asked]))
    console = Console(width=None if sys.stdout.isatty() else 500)  # a file has no edge
    with console.status("reading"):
        command = shlex.join(["elliptica", *sys.argv[1:]])
        session = Session.open(data, target, options, out=out, command=command)
    interrupted = False
    try:
        _print_start(session, console)
        try:
            with _progress(console) as listen:
                session.run(listen)
        except KeyboardInterrupt:
            interrupted = True
        _finish(session, out, console, interrupted)
    finally:
        session.store.close()
    if interrupted:
        raise typer.Exit(130)


def _pairs(values: list[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE; a name may contain an equals sign."""
    parts = [value.rpartition("=") for value in values or ()]
    return {name.strip(): value.strip() for name, _, value in parts}


def _value(text: str) -> Any:
    """Read a number, a truth value in any spelling, or a tuple; everything else is text."""
    words = dict.fromkeys(("true", "yes", "on"), "True") | dict.fromkeys(("false", "no", "off"), "False")
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(words.get(text.lower(), text))
    return text


def _finish(session: Session, out: Path, console: Console, interrupted: bool) -> None:
    """Write reports and model of what is finished, and print the result."""
    from elliptica.tables.card import write_card
    from elliptica.tables.comparison import CARD, MODEL
    from elliptica.tables.model import fit_model
    from elliptica.tables.page import describe_model, facts, write_reports

    comparison = session.result()
    n_folds = count(len(comparison.shift.folds), "fold")
    done = f"Interrupted: {len(comparison.finished)} of {n_folds} finished and kept in {out}."
    done += " Rerun the same command to resume."
    if not comparison.finished:
        print_text(console, escape(done if interrupted else comparison.verdict.headline))
        return
    session.store.write({"summary": facts(comparison)})
    with console.status("measuring what the model depends on"):
        write_reports(comparison, out, measure=not interrupted)
    for name in (MODEL, CARD):
        (out / name).unlink(missing_ok=True)  # one of an earlier run is not the model of this report
    _print_result(comparison, console)
    file, page = shlex.quote(str(out / MODEL)), f"Report: {out / 'report.html'}"
    if interrupted:
        print_text(console, escape(f"{done} {page}"))
        return
    with console.status("training the model on all rows"):
        fit_model(comparison, out / MODEL)
        write_card(comparison, out / CARD)
    print_text(console, escape(f"Saved: {file} ({describe_model(comparison)}). {page}"))
    print_text(console, escape(f"To predict other rows: elliptica predict {file} NEW.csv"))


def _print_start(session: Session, console: Console) -> None:
    """Print the table, the task, the use of every column, and the effort."""
    from elliptica.tables.page import column_rows

    problem, plan, shift = session.problem, session.plan, session.shift
    rows = count(len(problem.own_rows), "row")
    about = f"{session.name}: {rows}. Predict {problem.target_name} ({problem.task}). {shift.words}"
    print_text(console, escape(about))
    lines = column_rows(problem.columns)
    if len(lines) > _MOST_COLUMNS:
        shown = [line for line in lines if line[2]][:_MOST_COLUMNS]
        lines = [*shown, [f"{len(lines) - len(shown):,} others", "see the report", ""]]
    _print_table([["column", "used as", "change with"], *lines], console)
    for notice in problem.notices:
        print_point(console, notice)
    done = len(session.result().finished)
    most = count(max(map(plan.trials_of, plan.methods)), "setting")
    effort = f"{count(len(plan.methods), 'method')}, up to {most} each, "
    effort += count(len(shift.folds), "fold")
    effort += f" and {len(shift.random.folds)} of random rows" if shift.random else ""
    effort += f" ({done} of an earlier run kept)" if done else ""
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
    console.print(grid, highlight=False)


def _print_result(comparison: Comparison, console: Console) -> None:
    from elliptica.tables.page import FOOTNOTE, cautions, remarks, result_rows

    narrow = console.is_terminal and console.width < 100
    rows = result_rows(comparison, most=2 if narrow else 3)
    if narrow:  # the interval on one line, its result on the next
        rows = [[*row[:-1], row[-1].replace(") ", ")\n")] for row in rows]
    _print_table(rows, console, right=range(1, len(rows[0]) - 1))
    verdict = comparison.verdict
    if any("†" in row[0] for row in rows):
        print_text(console, f"  {FOOTNOTE}")
    print_text(console, f"[bold]{escape(verdict.headline)}[/bold]")
    for text in (" ".join(verdict.sentences), *remarks(comparison)):
        if text:
            print_text(console, escape(text))
    for caution in cautions(comparison):
        print_point(console, f"Caution: {caution}")


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar on a screen, or print a line for every tenth if the output is a file."""
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
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


@app.command(rich_help_panel=YOUR_DATA)
def predict(
    model: Annotated[Path, typer.Argument(help="model.elliptica, as written by elliptica compare.")],
    data: Annotated[Path, typer.Argument(help="CSV, xlsx or Parquet file with the same input columns.")],
    out: Annotated[
        Path, typer.Option(help="CSV (or .parquet) file for the predictions.", dir_okay=False)
    ] = Path("predictions.csv"),
    proba: Annotated[
        bool, typer.Option("--proba", help="Also write the probabilities of all classes.")
    ] = False,
    id: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to copy to the predictions. Repeatable.",
            show_default="the ids of the comparison",
        ),
    ] = None,
) -> None:
    """Predict new rows with a saved model.

    Works with networks, trees and linear models. Every prediction has the number of its row. Example:
    elliptica predict compare/patients/model.elliptica new.csv --id patient --proba
    """
    require_extra("tables", "polars", "sklearn")
    from elliptica.tables.saved import predict_file

    console = Console()
    predictions, notices = predict_file(model, data, out, proba=proba, ids=id or ())
    for notice in notices:
        print_point(console, notice)
    print_text(console, escape(f"{len(predictions):,} predictions in {out}"))
