"""How figures look in print: sizes in points at the width of a column or a page, and files without dates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from elliptica import __version__
from elliptica._utils.files import replacing
from elliptica.lab.demo.look import BETWEEN, BOUNDARY, INK, INSIDE, MUTED

Width = Literal["column", "page"]
Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)

#: Inches.
WIDTHS: dict[Width, float] = {"column": 3.25, "page": 6.75}
#: Colours of methods, apart for all kinds of colour vision and in grey: those of the demo.
METHOD_COLOURS = {"erm": BETWEEN, "mixup": INSIDE, "elliptic": BOUNDARY}
#: Dots per inch of PNG files.
DPI = 300

#: Sizes in points; type 42 keeps the text of PDF files as text, with its font in the file.
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "legend.frameon": False,
    "lines.linewidth": 0.8,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "elliptica",
    "path.simplify": True,
}


def new_figure(width: Width, height: float) -> Figure:
    """An empty figure of a width in inches of its own and a given height; draw on it within `STYLE`."""
    return Figure(figsize=(WIDTHS[width], height), facecolor="white")


def label_panel(axes: Axes, text: str) -> None:
    """Heading of a panel, on its left edge."""
    axes.set_title(text, loc="left", pad=3, fontweight="bold")


def save_figure(figure: Figure, path: Path, form: Format, command: str) -> None:
    """Write a figure so that the same figure gives the same bytes.

    The command that makes it again stands in the file: as subject of a PDF, description of a PNG or SVG.

    Args:
        figure: Drawn within `STYLE`.
        path: Where to.
        form: Format.
        command: As typed in a shell.
    """
    maker = f"elliptica {__version__}"
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Software": maker, "Description": command},
        "svg": {"Creator": [maker], "Description": command, "Date": None},
        "pdf": {"Creator": maker, "Producer": "matplotlib", "Subject": command, "CreationDate": None},
    }
    with replacing(path) as part, mpl.rc_context(STYLE):
        figure.savefig(part, format=form, dpi=DPI, metadata=metadata[form])
