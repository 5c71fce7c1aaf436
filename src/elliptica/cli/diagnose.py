"""`elliptica diagnose`: findings about a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elliptica._utils.files import write_atomically
from elliptica.cli.app import YOUR_DATA, app, check_place, one_of, require_extra

if TYPE_CHECKING:
    from elliptica.tables.fitted_model import FittedModel

#: File suffix of a saved model.
SUFFIX = ".elliptica"
_PAGE = (".html", ".htm")

#: Losses for a model from the user's code.
Loss = Literal["auto", "cross-entropy", "mse", "l1", "bce"]

#: Option of every command that takes a model from the user's code.
Weights = Annotated[
    Path | None, typer.Option(help="Its state dict, as written by torch.save.", dir_okay=False)
]


@app.command(rich_help_panel=YOUR_DATA)
def diagnose(
    data: Annotated[
        Path,
        typer.Argument(
            help="Training rows: for a saved model a CSV or Parquet file; for your code an .npz file with "
            "arrays x and y (and x_test, y_test, group, group_test, x_unlabelled, if you have them).",
            dir_okay=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="A file that elliptica compare or elliptica.estimators.save wrote (model.elliptica), or "
            "your model as package.module:name (a module, or a function that makes one)."
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
    weights: Weights = None,
    loss: Annotated[
        Loss, one_of(Loss, help="Loss of your code's model; auto: cross-entropy for integers in y, else mse.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a page (.html), JSON (.json) or text to this file.", show_default="the terminal"
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Print every finding, including fine ones.")] = False,
) -> None:
    """Find problems of a trained model, and advise what to do.

    Pass held-out rows if you have any (--test, or x_test and y_test in the file): without them overfitting,
    confidence and shift cannot be judged. The exit status is 0 for any result. Examples: elliptica diagnose
    patients.csv --model patients/model.elliptica --test later.csv; elliptica diagnose data.npz --model
    my_code:make_model --weights model.pt --out page.html
    """
    is_saved = model.endswith(SUFFIX) or Path(model).is_file()
    if out is not None:
        check_place(out)
        if out.suffix.lower() in _PAGE:
            require_extra("lab", "jinja2")
    of_tables = {"--target": target, "--group": group, "--test": test, "--unlabelled": unlabelled}
    of_code = {"--weights": weights, "--loss": None if loss == "auto" else loss}
    for name, value in (of_code if is_saved else of_tables).items():
        if value is not None:
            kind = "a model from your code" if is_saved else "a saved model and a table"
            raise typer.BadParameter(f"{name} is only for {kind}.")
    if is_saved:
        require_extra("tables", "polars", "sklearn", "safetensors")
        fitted = _saved(Path(model), data, target, group, test, unlabelled)
    else:
        from elliptica.cli.model_source import fitted_from_code

        fitted = fitted_from_code(data, model, weights, loss)
    from elliptica.tables.diagnose import diagnose_fitted

    diagnosis = diagnose_fitted(fitted, first_row=int(is_saved))
    if out is None:
        for line in diagnosis.text(everything=all_).splitlines():
            colour = {"[warning]": "red", "[look]": "yellow"}.get(line.split(" ")[0])
            typer.secho(line, fg=colour, bold=colour is not None)
        return
    if out.suffix.lower() in _PAGE:
        from elliptica.report.page import to_html
        from elliptica.tables.model_page import diagnosis_page

        text = to_html(diagnosis_page(diagnosis, f"Diagnosis of {Path(model).name}"))
    else:
        is_json = out.suffix.lower() == ".json"
        text = json.dumps(diagnosis.to_dict(), indent=1) if is_json else diagnosis.text(everything=all_)
    write_atomically(out, text + "\n")
    typer.echo(f"{diagnosis.headline()} Written to {out}.", err=True)


def _saved(
    model: Path, data: Path, target: str | None, group: str | None, test: Path | None, unlabelled: Path | None
) -> FittedModel:
    """Load a model that a comparison or an estimator saved, with tables for it; print notices."""
    from elliptica.tables.model import fitted_predictor, read_labelled, read_unlabelled

    tables = [data] if test is None else [data, test]
    rows = [read_labelled(model, table, target, group=group) for table in tables]
    others, notices = (None, []) if unlabelled is None else read_unlabelled(model, unlabelled)
    for notice in dict.fromkeys([*(notice for part in rows for notice in part.notices), *notices]):
        typer.echo(f"- {notice}", err=True)
    return fitted_predictor(rows[0], rows[1] if len(rows) > 1 else None, others)
