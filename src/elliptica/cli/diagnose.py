"""`elliptica diagnose`: findings about a trained model, or reports on its loss landscape."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from elliptica import __version__
from elliptica._utils.files import is_not_written, not_written, write_atomically
from elliptica._utils.text import did_you_mean
from elliptica.cli.app import MOST_SEED, YOUR_DATA, app, check_place, one_of, require_extra

if TYPE_CHECKING:
    import torch

    from elliptica.diagnostics.findings import Diagnosis
    from elliptica.diagnostics.fitted_model import FittedModel
    from elliptica.diagnostics.landscape_reports import LandscapeOptions, Section

#: File suffix of a saved model.
SUFFIX = ".elliptica"
#: Default folder of the reports.
_FOLDER = Path("landscape")
#: Suffixes of the output file of a diagnosis.
_SUFFIXES = (".html", ".htm", ".json", ".txt", ".md")
_COLOURS = {"look": "yellow", "warning": "red"}
#: Options of the findings and options of the reports, by argument name.
_OF_FINDINGS = {"n": "--n", "sigma": "--sigma", "format_": "--format"}
_OF_REPORTS = {name: f"--{name}" for name in ("domain", "fraction", "probes", "walks", "shift")}


#: Training methods for the built-in network.
Training = Literal["erm", "mixup", "elliptic"]

#: Outer domains of the reports.
Region = Literal["auto", "ball", "box", "reflecting_box", "hull"]

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
    n: Annotated[
        int, typer.Option("--n", min=10, help="Points between the rows, for the loss landscape.")
    ] = 1000,
    sigma: Annotated[
        str, typer.Option(help="Noise of the bridges: auto, green, or a number in units of x.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of all random numbers.")] = 0,
    format_: Annotated[Format, one_of(Format, "--format", help="Text or JSON.")] = "text",
    reports: Annotated[
        str | None,
        typer.Option(
            help="Print reports on the loss landscape instead of findings: all, or some of between, test, "
            "shifted, subharmonicity, landscape, occupation, hitting, shift, weights, ordering, with commas "
            "between them.",
            metavar="NAMES",
        ),
    ] = None,
    domain: Annotated[
        Region,
        one_of(Region, help="Reports: outer domain; auto: a reflecting box up to 3 features, then a ball."),
    ] = "auto",
    fraction: Annotated[
        float,
        typer.Option(help="Reports: radius of the balls, as a share of the distance between neighbours."),
    ] = 0.3,
    probes: Annotated[int, typer.Option(min=10, help="Reports: points on bridges between the data.")] = 500,
    walks: Annotated[int, typer.Option(min=16, help="Reports: random walks per point.")] = 500,
    shift: Annotated[float, typer.Option(min=0.0, help="Reports: shift of the inputs, in deviations.")] = 0.1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write to this file instead of the terminal: a page (.html), JSON or text; with --reports, "
            "the folder for landscape.json and landscape.png.",
            show_default="the terminal; with --reports, landscape",
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Print every finding, including fine ones, and the landscape."),
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
    if reports is not None:
        require_extra("lab", "matplotlib")
    messages = Console(stderr=True)
    given = {name for name in context.params if _is_given(context, name)}
    try:
        _check_kind(given, out, has_reports=reports is not None)
        wanted = () if reports is None else _wanted(reports)
        noise = parse_sigma(sigma)
        if saved:
            odd = [f"--{name}" for name in ("weights", "loss") if name in given]
            fitted, network, remarks = _from_file(str(model), data, target, group, test, unlabelled, odd)
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
            network, remarks = fitted, remarks_on(model, weights, train, steps)
        for remark in remarks:
            messages.print(remark, markup=False, highlight=False, soft_wrap=True)
        if reports is None:
            generator = torch_generator(seed)
            with messages.status("judging"):
                diagnosis = diagnose_fitted_file(fitted, network, n, noise, generator, first_row=int(saved))
            _show_findings(diagnosis, str(model or data), format_, out, messages, everything=all_)
        else:
            if network is None:
                raise ValueError(
                    f"{model} holds no network, and only networks have a loss landscape. Omit --reports."
                )
            from elliptica.diagnostics.landscape_reports import LandscapeOptions

            options = LandscapeOptions(
                domain=domain,
                fraction=fraction,
                n_probes=probes,
                n_walks=walks,
                shift=shift,
                seed=seed,
            )
            _show_reports(network, wanted, options, data, out or _FOLDER)
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


def _check_kind(given: set[str], out: Path | None, *, has_reports: bool) -> None:
    """Raise for options of the findings with --reports, and vice versa."""
    others = _OF_FINDINGS if has_reports else _OF_REPORTS
    odd = [option for name, option in others.items() if name in given]
    if odd and has_reports:
        raise ValueError(f"{odd[0]} is an option of the findings. Omit it, or omit --reports.")
    if odd:
        raise ValueError(f"{odd[0]} is an option of the reports. Add --reports all, or omit it.")
    if out is not None and has_reports and out.is_file():
        raise ValueError(f"--out {out} is a file, but the reports need a folder. Choose another --out.")
    if out is not None and not has_reports and out.suffix.lower() not in ("", *_SUFFIXES):
        raise ValueError(f"--out {out} has an unknown ending. Use one of {', '.join(_SUFFIXES)}.")
    if out is not None and not has_reports and out.is_dir():
        raise ValueError(f"--out {out} is a folder. Pass the name of a file, e.g. {out / 'findings.txt'}.")
    if has_reports:
        check_place((out or _FOLDER) / "landscape.json")
    elif out is not None:
        check_place(out)


def _wanted(reports: str) -> tuple[str, ...]:
    from elliptica.diagnostics.landscape_reports import QUESTIONS

    names = [name.strip() for name in reports.split(",") if name.strip()]
    if not names or names == ["all"]:
        return tuple(QUESTIONS)
    for name in names:
        if name not in QUESTIONS:
            hint = did_you_mean(name, [*QUESTIONS, "all"])
            hint = hint or f"Pass all, or some of {', '.join(QUESTIONS)}."
            raise ValueError(f"There is no report {name!r}. {hint}")
    return tuple(name for name in QUESTIONS if name in names)


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
) -> tuple[FittedModel, FittedModel | None, list[str]]:
    """Load a model that a comparison or an estimator saved, and tables for it.

    Returns:
        The model as it predicts; its network, None for trees and linear models; and notices.
    """
    from elliptica.compare.predict import fitted_predictor, read_labelled, read_unlabelled
    from elliptica.estimators import EllipticClassifier, EllipticRegressor

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
    fitted = replace(fitted_predictor(rows, held, other), name=Path(model).name)
    network = None
    if isinstance(rows.network, EllipticClassifier | EllipticRegressor):
        network = replace(rows.fitted(), name=Path(model).name)
    return fitted, network, remarks


def torch_generator(seed: int) -> torch.Generator:
    """Make a generator with this seed."""
    import torch

    return torch.Generator().manual_seed(seed)


def diagnose_fitted_file(
    fitted: FittedModel,
    network: FittedModel | None,
    n: int,
    sigma: float | Literal["auto", "green"],
    generator: torch.Generator,
    first_row: int,
) -> Diagnosis:
    """Diagnose a model from a file or from code; without a network, skip the landscape."""
    from elliptica.diagnostics.diagnose import diagnose_fitted

    landscape: bool | FittedModel = False if network is None else True if network is fitted else network
    return diagnose_fitted(
        fitted, n=n, sigma=sigma, generator=generator, landscape=landscape, first_row=first_row
    )


def _show_findings(
    diagnosis: Diagnosis, name: str, form: Format, out: Path | None, messages: Console, *, everything: bool
) -> None:
    """Print or write a diagnosis; nothing else goes to stdout."""
    if out is not None and out.suffix.lower() in (".html", ".htm"):
        require_extra("lab", "jinja2", "plotly")
        from elliptica.diagnostics.model_page import diagnosis_report
        from elliptica.report.page import render_page

        text = render_page(diagnosis_report(diagnosis, f"Diagnosis of {Path(name).name}"))
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


def _show_reports(
    fitted: FittedModel, wanted: tuple[str, ...], options: LandscapeOptions, data: str, out: Path
) -> None:
    """Run the reports one by one; print each, and write the finished ones."""
    from elliptica.diagnostics.landscape_figure import draw_landscape
    from elliptica.diagnostics.landscape_reports import QUESTIONS, LandscapeReports, run_reports

    console = Console()
    reports = LandscapeReports(fitted, options)
    preface = reports.preface()
    console.print(preface, markup=False, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    numbers, picture = out / "landscape.json", out / "landscape.png"
    sections: list[Section] = []
    for name in wanted:
        with console.status(QUESTIONS[name]):
            (section,) = run_reports(reports, (name,))
        sections.append(section)
        console.rule(section.question, align="left")
        console.print(section.text, markup=False, highlight=False)
        content = {
            "elliptica": __version__,
            "about": preface,
            "model": fitted.name,
            "options": asdict(options),
            "reports": {
                s.name: {"question": s.question, "text": s.text, "numbers": s.numbers} for s in sections
            },
        }
        write_atomically(numbers, json.dumps(content, indent=1))  # finished reports survive Ctrl-C
    with console.status("drawing"):
        draw_landscape(reports, sections, f"Loss landscape: {Path(data).name}", picture)
    console.rule()
    console.print(f"Numbers in {numbers}, picture in {picture}.", highlight=False)


def parse_sigma(text: str) -> float | Literal["auto", "green"]:
    """Parse ``auto``, ``green`` or a number.

    Example:
        >>> parse_sigma("auto"), parse_sigma("0.05")
        ('auto', 0.05)
    """
    if text == "auto":
        return "auto"
    if text == "green":
        return "green"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--sigma must be auto, green or a number, but got {text!r}. Try auto.") from None
