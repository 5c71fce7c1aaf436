"""`elliptica diagnose`: findings about a trained model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from elliptica._utils.files import is_not_written, not_written, write_atomically
from elliptica.cli.app import MOST_SEED, YOUR_DATA, app, check_place, one_of, require_extra

if TYPE_CHECKING:
    import torch

    from elliptica.tables.findings import Diagnosis
    from elliptica.tables.fitted_model import FittedModel

#: File suffix of a saved model.
SUFFIX = ".elliptica"
#: Suffixes of the output file of a diagnosis.
_SUFFIXES = (".html", ".htm", ".json", ".txt", ".md")
_COLOURS = {"look": "yellow", "warning": "red"}


#: Training methods for the built-in network.
Training = Literal["erm", "mixup", "elliptic"]

#: Output formats of `elliptica diagnose`.
Format = Literal["text", "json"]

#: Losses for a model from the user's code.
Loss = Literal["auto", "cross-entropy", "mse", "l1", "bce"]

#: Options of every command that examines a model.
Weights = Annotated[
    Path | None, typer.Option(help="Its state dict, as written by torch.save.", dir_okay=False)
]
Train = Annotated[Training, one_of(Training, help="Without --model: train a small network by this method.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of that training.")]


@app.command(rich_help_panel=YOUR_DATA)
def diagnose(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="Training rows: an .npz file with arrays x and y (and x_test, y_test, group, group_test, "
            "x_unlabelled, if you have them), or two-moons, or digits; for a saved model, a CSV or "
            "Parquet file."
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
    test: Annotated[
        Path | None,
        typer.Option(help="For a saved model: table of held-out rows with targets.", dir_okay=False),
    ] = None,
    unlabelled: Annotated[
        Path | None,
        typer.Option(help="For a saved model: table of rows on which you will use it.", dir_okay=False),
    ] = None,
    weights: Weights = None,
    train: Train = "erm",
    steps: Steps = 2000,
    loss: Annotated[
        Loss,
        one_of(Loss, help="Loss of your model; auto: cross-entropy for integers in y, else mse."),
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of all random numbers.")] = 0,
    format_: Annotated[Format, one_of(Format, "--format", help="Text or JSON.")] = "text",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write to this file instead of the terminal: a page (.html), JSON or text.",
            show_default="the terminal",
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Print every finding, including fine ones."),
    ] = False,
) -> None:
    """Find problems of a trained model, and advise what to do.

    Pass held-out rows if you have any (--test, or x_test and y_test in the file): without them overfitting,
    confidence and shift cannot be judged. The exit status is 0 for any result, and 2 if model or data cannot
    be used. Examples: elliptica diagnose patients.csv --model patients/model.elliptica --test later.csv;
    elliptica diagnose data.npz --model my_code:make_model --weights model.pt --out page.html
    """
    saved = model is not None and (model.endswith(SUFFIX) or Path(model).is_file())
    if saved:
        require_extra("tables", "polars", "sklearn", "safetensors")
    if not saved and model is None:
        require_extra("lab", "safetensors")
    messages = Console(stderr=True)
    given = {name for name in context.params if _is_given(context, name)}
    try:
        _check_out(out)
        if saved:
            odd = [f"--{name}" for name in ("weights", "loss") if name in given]
            fitted, remarks = _from_file(str(model), data, target, group, test, unlabelled, odd)
        else:
            from elliptica.cli.model_source import fitted_from_code, remarks_on

            _check_columns(data, model, target, group)
            if test is not None or unlabelled is not None:
                raise ValueError(
                    "--test and --unlabelled are tables for a saved model. In an .npz file they are the "
                    "arrays x_test, y_test and x_unlabelled."
                )
            fitted = fitted_from_code(
                data,
                model=model,
                weights=weights,
                method=train,
                steps=steps,
                loss=loss,
                seed=seed,
                messages=messages,
            )
            remarks = remarks_on(model, weights, train, steps)
        for remark in remarks:
            messages.print(remark, markup=False, highlight=False, soft_wrap=True)
        from elliptica.tables.diagnose import diagnose_fitted

        with messages.status("judging"):
            diagnosis = diagnose_fitted(fitted, generator=torch_generator(seed), first_row=int(saved))
        _show_findings(diagnosis, str(model or data), format_, out, messages, everything=all_)
    except (ValueError, TypeError, OSError) as error:
        text = _text_of(error)
        messages.print("[red]error:[/red] ", end="")
        messages.print(text, markup=False, highlight=False)
        raise typer.Exit(2) from None


def _text_of(error: Exception) -> str:
    """Return the message of an error; of one of the system, with the file that it is about."""
    if isinstance(error, BrokenPipeError):
        raise error  # the reader has gone, as with | head
    if isinstance(error, OSError) and is_not_written(error):
        return not_written(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'The output'} cannot be used ({error.strerror or error})."
    return str(error)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_out(out: Path | None) -> None:
    """Raise before the work is done if the file cannot be written."""
    if out is None:
        return
    if out.suffix.lower() not in ("", *_SUFFIXES):
        raise ValueError(f"--out {out} has an unknown ending. Use one of {', '.join(_SUFFIXES)}.")
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder. Pass the name of a file, e.g. {out / 'findings.txt'}.")
    check_place(out)


def _check_columns(data: str, model: str | None, target: str | None, group: str | None) -> None:
    """Raise for options of a saved model if there is none."""
    if data.endswith(SUFFIX):
        raise ValueError(
            f"{data} is a model, not data. Write: elliptica diagnose DATA --model {data} --target COLUMN"
        )
    if Path(data).suffix.lower() in (".csv", ".tsv", ".parquet"):
        raise ValueError(
            f"{data} is a table, which needs a saved model: elliptica diagnose {data} --model "
            f"model{SUFFIX}. For a model from your code, save arrays: numpy.savez(file, x=..., y=...)."
        )
    if target is not None or group is not None:
        raise ValueError(
            f"--target and --group are columns of a table for a saved model (--model FILE{SUFFIX}), but "
            f"--model is {model or 'not given'}. In an .npz file they are the arrays y and group."
        )


def _from_file(
    model: str,
    data: str,
    target: str | None,
    group: str | None,
    test: Path | None,
    unlabelled: Path | None,
    odd: list[str],
) -> tuple[FittedModel, list[str]]:
    """Load a model that a comparison or an estimator saved, with tables for it; also return notices."""
    from elliptica.tables.predict import fitted_predictor, read_labelled, read_unlabelled

    if odd:
        raise ValueError(
            f"{odd[0]} is for a model from your code, but {model} holds weights and loss. Omit it."
        )
    if Path(model).suffix in (".pt", ".pth"):
        raise ValueError(
            f"{model} holds weights. Pass them as --weights {model} with --model package.module:name."
        )
    rows = read_labelled(Path(model), Path(data), target, group=group, networks_only=False)
    held = (
        None if test is None else read_labelled(Path(model), test, target, group=group, networks_only=False)
    )
    other, notices = (None, []) if unlabelled is None else read_unlabelled(Path(model), unlabelled)
    remarks = [f"- {notice}" for notice in (*rows.notices, *(held.notices if held else ()), *notices)]
    remarks = list(dict.fromkeys(remarks))
    return replace(fitted_predictor(rows, held, other), name=Path(model).name), remarks


def torch_generator(seed: int) -> torch.Generator:
    """Make a generator with this seed."""
    import torch

    return torch.Generator().manual_seed(seed)


def _show_findings(
    diagnosis: Diagnosis, name: str, form: Format, out: Path | None, messages: Console, *, everything: bool
) -> None:
    """Print or write a diagnosis; nothing else goes to stdout."""
    if out is not None and out.suffix.lower() in (".html", ".htm"):
        from elliptica.report.page import to_html
        from elliptica.tables.model_page import diagnosis_page

        text = to_html(diagnosis_page(diagnosis, f"Diagnosis of {Path(name).name}"))
    elif form == "json" or (out is not None and out.suffix.lower() == ".json"):
        text = json.dumps(diagnosis.to_dict(), indent=1)
    else:
        text = diagnosis.everything() if everything else str(diagnosis)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text + "\n")
        messages.print(f"{diagnosis.headline()} Written to {out}.", markup=False, highlight=False)
    elif form == "json":
        typer.echo(text)  # not wrapped to the width of the terminal
    elif everything:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        _print_findings(diagnosis, Console())


def _print_findings(diagnosis: Diagnosis, console: Console) -> None:
    """Print the text of ``print(diagnosis)`` with coloured headings."""
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    console.print("\n".join(diagnosis.preface()), **plain)
    if not diagnosis.problems:
        console.print("\n[bold green]Nothing stands out.[/]", highlight=False)
    for finding in diagnosis.problems:
        heading = Text.assemble("\n", (finding.severity, f"bold {_COLOURS[finding.severity]}"), "  ")
        heading.append(finding.title or finding.name, style="bold")
        console.print(heading, highlight=False)
        console.print("\n".join(finding.brief()), **plain)
    console.print("\n" + "\n".join(diagnosis.closing()), **plain)
