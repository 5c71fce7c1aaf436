"""`elliptica landscape`: from a model and data to reports on screen, in JSON and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from elliptica import __version__
from elliptica._utils.files import write_atomically
from elliptica.diagnostics.reports import QUESTIONS, Inspector, Section, run_reports
from elliptica.diagnostics.source import Samples, SourceError, load_model, load_samples
from elliptica.diagnostics.subject import Options
from elliptica.diagnostics.train import Method, train_network


def run_landscape(
    data: str,
    model: str | None,
    weights: Path | None,
    method: Method,
    steps: int,
    reports: list[str],
    options: Options,
    out: Path,
    console: Console,
) -> int:
    """Load, look and write; returns the exit status."""
    wanted = _wanted(reports, console)
    if wanted is None:
        return 2
    try:
        samples = load_samples(data, options.seed)
        network = obtain_network(model, weights, samples, method, steps, options.seed, console)
        inspector = Inspector(network, samples, options)
    except (SourceError, ValueError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2
    if model is not None and weights is None:
        console.print(f"Weights are those that {model} comes with (no --weights given).", highlight=False)
    preface = inspector.preface()
    console.print(preface, markup=False, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    sections: list[Section] = []
    for name in wanted:
        with console.status(QUESTIONS[name]):
            (section,) = run_reports(inspector, (name,))
        sections.append(section)
        console.rule(section.question, align="left")
        console.print(section.text, markup=False, highlight=False)
        _write(out / "landscape.json", preface, model or f"trained by {method}", options, sections)
    from elliptica.diagnostics.figure import draw

    with console.status("drawing"):
        draw(inspector, sections, out / "landscape.png")
    console.rule()
    console.print(
        f"Numbers in {out / 'landscape.json'}, picture in {out / 'landscape.png'}.", highlight=False
    )
    return 0


def _wanted(reports: list[str], console: Console) -> tuple[str, ...] | None:
    unknown = [name for name in reports if name not in QUESTIONS]
    if unknown:
        console.print(
            f"[red]error:[/red] no report {unknown[0]!r}. There are {', '.join(QUESTIONS)}.", highlight=False
        )
        return None
    return tuple(reports) or tuple(QUESTIONS)


def obtain_network(
    model: str | None,
    weights: Path | None,
    samples: Samples,
    method: Method,
    steps: int,
    seed: int,
    console: Console,
) -> nn.Module:
    """The user's model, or a small network trained here and now."""
    if weights is not None and model is None:
        raise SourceError("--weights needs --model: the code that the weights belong to.")
    if model is not None:
        return load_model(model, weights)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"training by {method}", total=steps)
        return train_network(
            samples,
            method,
            n_steps=steps,
            seed=seed,
            progress=lambda done: progress.update(task, completed=done),
        )


def _write(file: Path, preface: str, model: str, options: Options, sections: list[Section]) -> None:
    """After each report, atomically: what is finished survives an interruption."""
    content = {
        "elliptica": __version__,
        "about": preface,
        "model": model,
        "options": asdict(options),
        "reports": {s.name: {"question": s.question, "text": s.text, "numbers": s.numbers} for s in sections},
    }
    write_atomically(file, json.dumps(content, indent=1))
