"""`elliptica diagnose`: findings about a trained model, saved or from the user's code."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elliptica._utils.files import write_atomically
from elliptica.cli.app import YOUR_DATA, app, check_place, one_of, require_extra

if TYPE_CHECKING:
    from torch import Tensor

    from elliptica.tables.evidence import FittedModel, Rows
    from elliptica.tables.findings import RowsOf

#: File suffix of a saved model.
SUFFIX = ".elliptica"
_PAGE = (".html", ".htm")

#: Losses for a model from the user's code.
Loss = Literal["auto", "cross-entropy", "mse", "l1", "bce"]


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
    weights: Annotated[
        Path | None, typer.Option(help="Its state dict, as written by torch.save.", dir_okay=False)
    ] = None,
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
    require_extra("tables", "polars", "sklearn")
    from elliptica.tables.diagnose import diagnose_fitted, diagnosis_page
    from elliptica.tables.model import read_fitted

    if is_saved:
        file, other = Path(model), unlabelled
        fitted, notices = read_fitted(file, data, target, group=group, test=test, unlabelled=other)
        for notice in notices:
            typer.echo(f"- {notice}", err=True)
    else:
        fitted = fitted_from_code(data, model, weights, loss)
    diagnosis = diagnose_fitted(fitted)
    if out is None:
        for line in diagnosis.text(everything=all_).splitlines():
            colour = {"[warning]": "red", "[look]": "yellow"}.get(line.split(" ")[0])
            typer.secho(line, fg=colour, bold=colour is not None)
        return
    if out.suffix.lower() in _PAGE:
        from elliptica.report.page import to_html

        text = to_html(diagnosis_page(diagnosis, f"Diagnosis of {Path(model).name}"))
    else:
        is_json = out.suffix.lower() == ".json"
        text = json.dumps(diagnosis.to_dict(), indent=1) if is_json else diagnosis.text(everything=all_)
    write_atomically(out, text + "\n")
    typer.echo(f"{diagnosis.headline()} Written to {out}.", err=True)


def fitted_from_code(data: Path, model: str, weights: Path | None, loss: str) -> FittedModel:
    """Combine the user's model, ``package.module:name``, with the rows of an ``.npz`` file.

    The file holds ``x`` (rows, *feature) and ``y`` (rows,) or (rows, targets), whole numbers for classes;
    optional are ``group``, ``x_test``, ``y_test``, ``group_test`` and ``x_unlabelled``. A loss ``"auto"``
    follows from the targets.
    """
    import torch
    from torch import nn

    from elliptica._utils.files import read_arrays
    from elliptica.tables.evidence import FittedModel, Rows

    module_name, _, name = model.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # where the command was started
    try:
        loaded = getattr(importlib.import_module(module_name), name)
    finally:
        sys.path.remove(str(Path.cwd()))
    network: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded()
    if weights is not None:
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    arrays = read_arrays(data)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(f"{data.name} holds only one of x_test and y_test. Save both or neither.")
    if "x" not in arrays or "y" not in arrays:
        raise ValueError(f"{data.name} needs arrays x and y. Write numpy.savez(file, x=..., y=...).")
    if loss == "auto":
        loss = "mse" if arrays["y"].dtype.kind == "f" else "cross-entropy"
    losses = {"mse": nn.MSELoss, "l1": nn.L1Loss, "bce": nn.BCEWithLogitsLoss}

    def targets(array: Any) -> Tensor:
        y = torch.as_tensor(array)
        if loss != "cross-entropy":
            return y.float().reshape(len(y), -1)
        return y.float() if y.is_floating_point() else y.long().reshape(len(y))

    def part(suffix: str) -> Rows:
        y, group = arrays.get(f"y{suffix}"), arrays.get(f"group{suffix}")
        return Rows(
            torch.as_tensor(arrays[f"x{suffix}"]).float(),
            None if y is None else targets(y),
            None if group is None else group.tolist(),
        )

    kinds: dict[str, RowsOf] = {"": "training", "_test": "held-out", "_unlabelled": "unlabelled"}
    rows = {kind: part(suffix) for suffix, kind in kinds.items() if f"x{suffix}" in arrays}
    return FittedModel(network, losses.get(loss, nn.CrossEntropyLoss)(), rows)
