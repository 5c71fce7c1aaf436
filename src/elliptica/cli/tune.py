"""`elliptica tune`: choose settings on the validation part, with as many trials for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, DataDir, app, require_extra
from elliptica.cli.options import load_own, make_choice
from elliptica.cli.run import Display, runs_to_do


@app.command(rich_help_panel=THE_PAPER)
def tune(
    table: shared.TableName,
    plugin: shared.Plugins = None,
    dataset: shared.Dataset = None,
    methods: shared.Methods = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of each row.", show_default="the table's")
    ] = None,
    epochs: shared.Epochs = None,
    precision: shared.Precision = None,
    match: shared.Match = None,
    select: shared.Select = None,
    jobs: shared.Jobs = 1,
    ray: shared.Ray = None,
    data_dir: DataDir = None,
    device: shared.Device = "cpu",
    out: shared.Records = Path("runs"),
) -> None:
    """Tune every method of a table alike, on validation rows; then run it with --tuned.

    Learning rates and the like, with as many trials for every method. Example:
    elliptica tune table4 --dataset waterbirds-features
    """
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments import tune as tuning
    from elliptica.lab.experiments.run import Options

    console = Console()
    choice = make_choice(table, dataset, methods, 1, epochs, precision, match, False, select)
    options = Options(out=out, data_dir=data_dir, device=device, jobs=jobs, ray=ray, plugins=load_own(plugin))
    rows, has_problem = runs_to_do(choice.runs(out), options, console)
    n_trials = trials or choice.specification.trials
    with Display(console, n_trials * len(rows)) as display:
        choices = tuning.tune(rows, choice.specification, n_trials, options, display)
    for label, chosen in choices.items():
        text = f"failed: {chosen}" if isinstance(chosen, str) else _describe(chosen)
        console.print(f"{label}: {text}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(int(has_problem or any(isinstance(chosen, str) for chosen in choices.values())))


def _describe(chosen: dict[str, Any]) -> str:
    values = ", ".join(f"{name} {value:.3g}" for name, value in chosen["values"].items())
    return f"{values or 'the setting of the table'} ({chosen['rule']}: {chosen['score']:.4g})"
