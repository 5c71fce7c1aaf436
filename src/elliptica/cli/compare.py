"""`elliptica compare` and `elliptica predict`: tables of your own."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app, parser_of, require_extra


class Kind(str, Enum):
    """Tasks."""

    auto = "auto"
    classification = "classification"
    regression = "regression"


class Rule(str, Enum):
    """What decides among the trials of a method."""

    average = "average"
    worst = "worst"


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
        typer.Option(
            parser=parser_of(Kind),
            metavar="<auto|classification|regression>",
            help="auto: text, and whole numbers with few values, are classes; else a regression.",
        ),
    ] = Kind.auto,
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
        typer.Option(
            parser=parser_of(Rule),
            metavar="<average|worst>",
            help="Choose settings by the average or by the worst class or group.",
        ),
    ] = Rule.average,
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
    """Is elliptic training better than ordinary training on your table? Measures, answers, leaves a model.

    Interrupted with Ctrl-C, the same command goes on where it was. Example:
    elliptica compare patients.csv --target outcome --group hospital
    """
    require_extra("tables", "polars", "sklearn", "safetensors")
    from elliptica.compare.command import run_compare

    folder = out or Path("compare") / data.stem
    status = run_compare(
        data,
        target,
        folder,
        Console(),
        group=group,
        task=task.value,
        split_by=split_by,
        group_as_input=group_as_input,
        methods=None if methods is None else _names(methods),
        trees=trees,
        repeats=repeats,
        trials=trials,
        select=select.value,
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
    try:
        from elliptica.cli.report import Request, write_report
        from elliptica.report.content import ReportError

        page = folder / "report.html"
        try:
            write_report(Request(str(folder), data=data, landscape=status == 0), page)
        except ReportError as error:  # the charts of the scores do not need the table
            write_report(Request(str(folder), landscape=False), page)
            typer.echo(f"report.html shows no loss landscape: {error}", err=True)
    except ModuleNotFoundError as error:
        typer.echo(f'A page with charts needs {error.name}: pip install "elliptica[lab]"')
    except (ReportError, OSError) as error:
        typer.echo(f"report.html has no charts: {error}", err=True)
    else:
        again = shlex.join(["elliptica", "report", str(folder), "--data", str(data), "-o", str(page)])
        typer.echo(f"report.html has charts; to make it again: {again}")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="model.elliptica, as written by elliptica compare.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the same columns of inputs.")],
    out: Annotated[Path, typer.Option(help="Where predictions go.", dir_okay=False)] = Path(
        "predictions.csv"
    ),
    proba: Annotated[bool, typer.Option("--proba", help="Probabilities of the classes, too.")] = False,
    id: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to carry to the predictions. May be repeated.",
            show_default="the --id of the comparison",
        ),
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Longer tables are refused.")] = 2_000_000,
) -> None:
    """Predict the rows of another table with a model that a comparison has left.

    Predictions have the number of their row. Example:
    elliptica predict compare/patients/model.elliptica new.csv --id patient --proba
    """
    require_extra("tables", "polars", "sklearn", "safetensors")
    from elliptica.compare.command import run_predict

    status = run_predict(model, data, out, Console(), proba=proba, ids=id or (), max_rows=max_rows)
    raise typer.Exit(status)
