"""`elliptica diagnose`: findings about a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from elliptica._utils.files import write_atomically
from elliptica.cli.app import YOUR_DATA, app, check_place, require_extra

_PAGE = (".html", ".htm")


@app.command(rich_help_panel=YOUR_DATA)
def diagnose(
    data: Annotated[Path, typer.Argument(help="Training rows, a CSV or Parquet file.", dir_okay=False)],
    model: Annotated[
        Path,
        typer.Option(
            help="A file that elliptica compare or elliptica.estimators.save wrote (model.elliptica).",
            dir_okay=False,
        ),
    ],
    target: Annotated[
        str | None, typer.Option(help="Column that it predicts.", show_default="as in the comparison")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Column of groups to judge, besides classes.")] = None,
    test: Annotated[
        Path | None, typer.Option(help="Table of held-out rows with targets.", dir_okay=False)
    ] = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="Table of rows on which you will use it.", dir_okay=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a page (.html), JSON (.json) or text to this file.", show_default="the terminal"
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Print every finding, including fine ones.")] = False,
) -> None:
    """Find problems of a trained model, and advise what to do.

    Pass held-out rows if you have any (--test): without them overfitting, confidence and shift cannot be
    judged. The exit status is 0 for any result. For a network in your own code call elliptica.diagnose.
    Example: elliptica diagnose patients.csv --model patients/model.elliptica --test later.csv
    """
    if out is not None:
        check_place(out)
        if out.suffix.lower() in _PAGE:
            require_extra("lab", "jinja2")
    require_extra("tables", "polars", "sklearn")
    from elliptica.tables.diagnose import diagnose_fitted, diagnosis_page
    from elliptica.tables.model import read_fitted

    fitted, notices = read_fitted(model, data, target, group=group, test=test, unlabelled=unlabelled)
    for notice in notices:
        typer.echo(f"- {notice}", err=True)
    diagnosis = diagnose_fitted(fitted)
    if out is None:
        for line in diagnosis.text(everything=all_).splitlines():
            colour = {"[warning]": "red", "[look]": "yellow"}.get(line.split(" ")[0])
            typer.secho(line, fg=colour, bold=colour is not None)
        return
    if out.suffix.lower() in _PAGE:
        from elliptica.report.page import to_html

        text = to_html(diagnosis_page(diagnosis, f"Diagnosis of {model.name}"))
    else:
        is_json = out.suffix.lower() == ".json"
        text = json.dumps(diagnosis.to_dict(), indent=1) if is_json else diagnosis.text(everything=all_)
    write_atomically(out, text + "\n")
    typer.echo(f"{diagnosis.headline()} Written to {out}.", err=True)
