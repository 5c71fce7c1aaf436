"""`elliptica demo`: train three methods on two moons, and draw what happens to their losses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from elliptica._utils.files import replacing, write_atomically
from elliptica.cli.app import TRY, app, require_extra


@app.command(rich_help_panel=TRY)
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of repetitions.")] = 24,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 1000,
) -> None:
    """Train three methods on two moons, and compare what happens to their losses.

    Takes less than a minute. Writes two_moons.png and losses.png (the paper's Figures 1 and 3),
    surfaces.png, a simpler form of the first, and two_moons.json with every number.
    """
    require_extra("lab", "matplotlib", "safetensors")
    import torch

    from elliptica.lab.demo.moons import METHODS, Settings, run_study
    from elliptica.lab.demo.pictures import draw_figure, draw_losses, draw_surfaces

    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the networks are too small for several threads
    console = Console()
    with console.status("") as status:
        study = run_study(
            Settings(n_seeds=seeds, n_steps=steps),
            lambda method: status.update(f"training {seeds} networks: {METHODS[method]}"),
        )
        write_atomically(out / "two_moons.json", study.to_json())
        status.update("drawing")
        figures = {"surfaces": draw_surfaces, "two_moons": draw_figure, "losses": draw_losses}
        for name, draw in figures.items():
            with replacing(out / f"{name}.png") as part:
                draw(study).savefig(part, format="png", dpi=150)
    header, *rows = study.table()
    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"{study.headline()}.\nOpen {out}/two_moons.png and losses.png.", highlight=False)
