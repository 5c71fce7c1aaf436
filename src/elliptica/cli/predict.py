"""`elliptica predict`: predict the rows of another table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from elliptica.cli.app import YOUR_DATA, app, print_point, print_text, require_extra


@app.command(rich_help_panel=YOUR_DATA)
def predict(
    model: Annotated[Path, typer.Argument(help="model.elliptica, as written by elliptica compare.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the same input columns.")],
    out: Annotated[
        Path, typer.Option(help="CSV (or .parquet) file for the predictions.", dir_okay=False)
    ] = Path("predictions.csv"),
    proba: Annotated[
        bool, typer.Option("--proba", help="Also write the probabilities of the classes.")
    ] = False,
    id: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to copy to the predictions. Repeatable.",
            show_default="the ids of the comparison",
        ),
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 2_000_000,
) -> None:
    """Predict new rows with a saved model.

    Works with networks, trees and linear models. Every prediction has the number of its row. Example:
    elliptica predict compare/patients/model.elliptica new.csv --id patient --proba
    """
    require_extra("tables", "polars", "sklearn", "safetensors")
    from elliptica.tables.model import predict_file
    from elliptica.tables.table import TableError

    console = Console()
    try:
        predictions, notices = predict_file(model, data, out, proba=proba, ids=id or (), max_rows=max_rows)
    except TableError as error:
        print_text(console, f"[red]error:[/red] {escape(str(error))}")
        raise typer.Exit(2) from error
    for notice in notices:
        print_point(console, notice)
    print_text(console, escape(f"{len(predictions):,} predictions in {out}"))
