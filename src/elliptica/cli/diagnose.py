"""`elliptica diagnose`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app, require_extra
from elliptica.cli.landscape import Steps, Train, Training, Weights

if TYPE_CHECKING:
    from elliptica.diagnostics.diagnose_command import Trained

#: Of a saved model.
SUFFIX = ".elliptica"


class Format(str, Enum):
    """How `elliptica diagnose` answers."""

    text = "text"
    json = "json"


class Loss(str, Enum):
    """Losses of `elliptica diagnose`."""

    auto = "auto"
    cross_entropy = "cross-entropy"
    mse = "mse"
    l1 = "l1"
    bce = "bce"


@app.command()
def diagnose(
    data: Annotated[
        str,
        typer.Argument(
            help="An .npz file with arrays x and y (and group, if you have it), or two-moons, or digits; for "
            "a saved model, a CSV or Parquet file."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Your model as package.module:name (a module, or a function that makes one), or a file that "
            "elliptica compare or elliptica.estimators.save wrote (model.elliptica)."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="For a saved model: column of the table that it predicts.",
            show_default="as in the comparison",
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="For a saved model: column of groups to compare, instead of classes.")
    ] = None,
    weights: Weights = None,
    train: Train = Training.erm,
    steps: Steps = 2000,
    loss: Annotated[
        Loss,
        typer.Option(help="Loss of your model; auto: cross-entropy for whole numbers in y, else mse."),
    ] = Loss.auto,
    n: Annotated[
        int, typer.Option("--n", min=10, help="Most rows to look at, and points between them.")
    ] = 1000,
    sigma: Annotated[
        str, typer.Option(help="Noise of the bridges: auto, green, or a number in units of x.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    format_: Annotated[Format, typer.Option("--format", help="Text for reading, or JSON.")] = Format.text,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of the screen.", dir_okay=False)
    ] = None,
) -> None:
    """Diagnose a trained model: loss at, between and around its data, in words, with what to do.

    Exit status 0 whatever is found; 2 if model or data cannot be used. Examples: elliptica diagnose
    two-moons --train erm; elliptica diagnose patients.csv --model compare/patients/model.elliptica
    """
    saved = model is not None and (model.endswith(SUFFIX) or Path(model).is_file())
    if saved:
        require_extra("tables", "polars", "sklearn", "safetensors")
    from elliptica.diagnostics.diagnose_command import from_code, run_diagnose

    messages = Console(stderr=True)

    def obtain() -> Trained:
        if saved:
            given = {"--weights": weights is not None, "--loss": loss is not Loss.auto}
            return _from_file(
                str(model), data, target, group, [name for name, is_set in given.items() if is_set]
            )
        _check_options(data, model, target, group)
        return from_code(data, model, weights, train.value, steps, loss.value, seed, messages)

    status = run_diagnose(
        obtain,
        n=n,
        sigma=sigma,
        seed=seed,
        as_json=format_ is Format.json,
        out=out,
        console=Console(),
        messages=messages,
    )
    raise typer.Exit(status)


def _check_options(data: str, model: str | None, target: str | None, group: str | None) -> None:
    """Options of a saved model, without one."""
    if data.endswith(SUFFIX):
        raise ValueError(
            f"{data} is a model, not data. Write: elliptica diagnose DATA --model {data} --target COLUMN"
        )
    if target is not None or group is not None:
        raise ValueError(
            f"--target and --group are columns of a table for a saved model (--model FILE{SUFFIX}), but "
            f"--model is {model or 'not given'}. In an .npz file they are the arrays y and group."
        )


def _from_file(model: str, data: str, target: str | None, group: str | None, odd: list[str]) -> Trained:
    """A model that a comparison or an estimator has left, and a table for it."""
    from elliptica.compare.predict import read_labelled
    from elliptica.diagnostics.diagnose_command import Trained

    if odd:
        raise ValueError(f"{odd[0]} is for a model from your code; {model} holds weights and loss.")
    rows = read_labelled(Path(model), Path(data), target, group=group)
    network = rows.network
    classes = getattr(network, "classes_", None)
    remarks = [f"- {notice}" for notice in rows.notices]
    if classes is None and network.standardize:
        remarks.append("- Targets are standardised as in training: a loss of 1 is their variance there.")
    return Trained(
        *network.network_rows(rows.inputs, rows.target),
        groups=rows.groups,
        class_names=None if classes is None else [str(label) for label in classes.tolist()],
        remarks=tuple(remarks),
    )
