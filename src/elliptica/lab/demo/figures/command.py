"""`elliptica figure`: compute what a figure of the paper shows, draw it, write it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from rich.console import Console

from elliptica.lab.demo.figures.idea import draw_idea, solve_idea
from elliptica.lab.demo.figures.moons import draw_boundary_losses, draw_surfaces, train_exhibits
from elliptica.lab.demo.figures.style import WIDTHS, Format, Width, save_figure
from elliptica.lab.demo.figures.uncertainty import DATASETS, draw_uncertainty, read_uncertainty
from elliptica.lab.experiments.problems import load_dataset
from elliptica.lab.experiments.specification import Run

Name = Literal["1", "2", "3", "uncertainty"]


@dataclass(frozen=True)
class Order:
    """What is wanted.

    Attributes:
        name: Which figure.
        form: Format of the file.
        width: None is the figure's own.
        out: File; None is a name of its own in the current folder.
        runs: Folder of the records that the uncertainty is read from.
        data_dir: Where data are.
    """

    name: Name
    form: Format = "png"
    width: Width | None = None
    out: Path | None = None
    runs: Path = Path("runs")
    data_dir: Path | None = None

    @property
    def file(self) -> Path:
        """Where the figure goes."""
        return self.out or Path(f"figure-{self.name}.{self.form}")

    def command(self) -> str:
        """The command that gives the same file; without paths, except that of records where they matter."""
        words = ["elliptica", "figure", self.name, "--format", self.form, "--width", self.shown_width]
        if self.name == "uncertainty":
            words += ["--runs", self.runs.as_posix()]
        return shlex.join(words)

    @property
    def shown_width(self) -> Width:
        """Width that is drawn."""
        return self.width or WIDTH[self.name]


#: Widths as in the paper.
WIDTH: dict[Name, Width] = {"1": "page", "2": "column", "3": "column", "uncertainty": "page"}


def run_figure(order: Order, console: Console) -> int:
    """Make a figure; returns the exit status."""
    try:
        _check_out(order.file)
        figure = DRAW[order.name](order)
        save_figure(figure, order.file, order.form, order.command())
    except (ValueError, OSError) as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 2
    inches = WIDTHS[order.shown_width]
    console.print(
        f"{order.file} ({inches} in wide): {ABOUT[order.name]}", highlight=False, markup=False, soft_wrap=True
    )
    return 0


def _check_out(file: Path) -> None:
    """Refuse before minutes of work: a figure must be able to go there. Nothing is made yet."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder. Pass the name of a file to --out.")
    near = next(folder for folder in file.absolute().parents if folder.exists())
    if not near.is_dir() or not os.access(near, os.W_OK):
        raise ValueError(f"Nothing can be written to {near}. Choose another --out.")


def _surfaces(order: Order) -> Figure:
    return draw_surfaces(train_exhibits(["erm", "path"]), order.shown_width)


def _idea(order: Order) -> Figure:
    return draw_idea(solve_idea(), order.shown_width)


def _boundary(order: Order) -> Figure:
    return draw_boundary_losses(train_exhibits(["erm", "mixup", "path"]), order.shown_width)


def _uncertainty(order: Order) -> Figure:
    def sizes(run: Run) -> Sequence[int]:
        found: list[int] = torch.bincount(load_dataset(run.load, run.seed, order.data_dir).train.y).tolist()
        return found

    return draw_uncertainty(read_uncertainty(order.runs, sizes, DATASETS), order.shown_width)


DRAW: dict[Name, Callable[[Order], Figure]] = {
    "1": _surfaces,
    "2": _idea,
    "3": _boundary,
    "uncertainty": _uncertainty,
}
ABOUT: dict[Name, str] = {
    "1": "loss surfaces over two moons, ordinary and elliptic training, first seed of the demo",
    "2": "the expected loss between four points, and bridges to them",
    "3": "losses on the boundary and inside the moons; dashed: the largest on the boundary",
    "uncertainty": "entropy of predictions by class, scaled within each data set; above: training rows",
}
