"""`elliptica report`: one self-contained page about runs, a comparison or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import DataDir, app, require_extra
from elliptica.cli.diagnose import Loss
from elliptica.cli.landscape import Model, Steps, Train, Training, Weights


@app.command()
def report(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of elliptica run or elliptica compare; model.elliptica (with --data and --target); "
            "or data for a model of your own: an .npz file, two-moons, digits."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.", dir_okay=False)] = Path("report.html"),
    data: Annotated[
        Path | None, typer.Option(help="Table (CSV or Parquet) of a model.elliptica.", dir_okay=False)
    ] = None,
    target: Annotated[str | None, typer.Option(help="Its column of targets.")] = None,
    group: Annotated[str | None, typer.Option(help="Its column of groups.")] = None,
    model: Model = None,
    weights: Weights = None,
    train: Train = Training.erm,
    steps: Steps = 2000,
    loss: Annotated[Loss, typer.Option(help="Loss of your model, as in elliptica diagnose.")] = Loss.auto,
    data_dir: DataDir = None,
    no_landscape: Annotated[
        bool, typer.Option("--no-landscape", help="Leave the loss between the data out, which needs time.")
    ] = False,
    title: Annotated[str | None, typer.Option(help="Of the page.", show_default="what it is about")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
) -> None:
    """Make one page to look at and to share: verdict, tables, charts, loss landscape.

    The page needs no network. Exit status 0, or 2 if nothing can be made of what was given. Example:
    elliptica report runs -o report.html
    """
    require_extra("report")
    from elliptica.report.command import run_report
    from elliptica.report.source import Request

    request = Request(
        source=source,
        data=data,
        target=target,
        group=group,
        model=model,
        weights=weights,
        train=train.value,
        steps=steps,
        loss=loss.value,
        data_dir=data_dir,
        landscape=not no_landscape,
        seed=seed,
        title=title,
    )
    raise typer.Exit(run_report(request, out, Console()))
