"""Figures of two moons on screen and in print: loss surfaces, and losses by place (paper: Figs. 1 and 3).

Print means sizes in points at the width of a column or a page, and files without dates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray
from torch import Tensor

from elliptica import __version__
from elliptica._utils.files import replacing
from elliptica.lab.demo.results import MethodSummary, headline, verdict
from elliptica.lab.demo.study import Exhibit, moon_surfaces
from elliptica.lab.demo.training import NAMES, DemoSettings, Method

INK = "#22252e"
MUTED = "#6a6f7d"
BOUNDARY = "#1f5fbf"
INSIDE = "#f08a24"
BETWEEN = "#7d8794"
SURFACE = "viridis"

#: Losses are drawn between these, on a logarithmic scale.
FLOOR = 1e-5
TOP = 60.0
#: Surfaces are drawn and coloured between these, in print up to one.
SURFACE_FLOOR = 1e-4
SURFACE_TOP = 2.0
_PRINT_TOP = 1.0

Width = Literal["column", "page"]
Format = Literal["png", "svg", "pdf"]

#: Inches.
WIDTHS: dict[Width, float] = {"column": 3.25, "page": 6.75}
#: Colours of methods, apart for all kinds of colour vision and in grey: those of the demo.
METHOD_COLOURS = {"erm": BETWEEN, "mixup": INSIDE, "elliptic": BOUNDARY}
#: Dots per inch of PNG files.
DPI = 300

#: Sizes in points; type 42 keeps the text of PDF files as text, with its font in the file.
PRINT: dict[Any, Any] = {
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


#: Sizes on screen.
_SCREEN: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
}
_COLUMN, _LEFT, _RIGHT, _HEIGHT = 3.75, 0.85, 0.75, 8.6  # inches, on screen


@dataclass(frozen=True)
class _Surface:
    """How a surface is drawn: losses up to ``top``, its grid, numbers and size of points, and the zoom."""

    top: float
    grid: tuple[int, int]
    shown: tuple[int, int]  # on the boundary, inside
    size: float
    zoom: float
    ring: bool = False  # around the largest loss inside


@dataclass(frozen=True)
class _Column:
    """How a column of losses is drawn: points, the bar at the largest one, and the note on those below."""

    shown: int
    size: float
    alpha: float
    spread: float
    bar: tuple[float, float]  # half its length, width of the line
    note: str
    note_size: float
    note_place: tuple[float, float]  # multiple of the floor, padding


_COLUMN_ON_SCREEN = _Column(1500, 4, 0.4, 0.62, (0.33, 2.2), "▾ {:.0%} lower", 8.5, (1.5, 1.5))
_COLUMN_IN_PRINT = _Column(800, 1.4, 0.55, 0.6, (0.3, 1.2), "{:.0%}\nlower", 5.5, (1.4, 1))


def clip_losses(losses: NDArray[np.floating], top: float = SURFACE_TOP) -> NDArray[np.float64]:
    """Bring losses into the range of the surfaces."""
    return np.clip(losses.astype(np.float64), SURFACE_FLOOR, top)


def new_figure(width: Width, height: float) -> Figure:
    """Make an empty figure of a width in print and a height in inches; draw on it within `PRINT`."""
    return Figure(figsize=(WIDTHS[width], height), facecolor="white")


def label_panel(axes: Axes, text: str) -> None:
    """Write the heading of a panel, on its left edge."""
    axes.set_title(text, loc="left", pad=3, fontweight="bold")


def save_figure(figure: Figure, path: Path, form: Format, command: str) -> None:
    """Write a figure so that the same figure gives the same bytes.

    The command that makes it again stands in the file: as subject of a PDF, description of a PNG or SVG.
    """
    maker = f"elliptica {__version__}"
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Software": maker, "Description": command},
        "svg": {"Creator": [maker], "Description": command, "Date": None},
        "pdf": {"Creator": maker, "Producer": "matplotlib", "Subject": command, "CreationDate": None},
    }
    with replacing(path) as part, mpl.rc_context(PRINT):
        figure.savefig(part, format=form, dpi=DPI, metadata=metadata[form])


def draw_colour_bar(
    figure: Figure, axes: Axes, colours: Any, *, label: float = 6, title: float = 6.5, pads: Any = (1.5, 4)
) -> Any:
    """A bar of the loss without ticks; sizes in points, of its labels and its title."""
    bar = figure.colorbar(colours, cax=axes)
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=label, pad=pads[0])
    bar.ax.set_title("loss", fontsize=title, pad=pads[1])
    bar.outline.set_visible(False)
    return bar


def _draw_surface(axes: Any, exhibit: Exhibit, style: _Surface) -> None:
    """Surface, rim and unseen points above their shadow; heights are logarithms."""
    norm = LogNorm(SURFACE_FLOOR, style.top)
    ground = np.log10(SURFACE_FLOOR) - 0.6
    flat = {"rcount": style.grid[0], "linewidth": 0, "shade": False, "antialiased": False}

    def height(losses: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.log10(clip_losses(losses, style.top))

    moons, losses = exhibit.moons, exhibit.losses
    n_along, n_across = style.grid
    for moon, surface in enumerate(moon_surfaces(exhibit.network, n_along=n_along, n_across=n_across)):
        loss = clip_losses(surface.loss, style.top)
        place = (surface.x, surface.y)
        axes.plot_surface(*place, np.full_like(loss, ground), color="#ececf1", ccount=2, zorder=0, **flat)
        colours = mpl.colormaps[SURFACE](norm(loss))
        front = 3 * moon  # the lower moon is in front of the upper one
        axes.plot_surface(
            *place, np.log10(loss), facecolors=colours, ccount=n_across, zorder=front + 1, **flat
        )
        for x, y, values, n, colour, above in (
            (moons.interior_x, moons.interior_y, losses.inside, style.shown[1], INSIDE, 2),
            (moons.boundary_x, moons.boundary_y, losses.boundary, style.shown[0], BOUNDARY, 3),
        ):
            rows = (y[:n] == moon).numpy()
            points = (*x[:n].numpy()[rows].T, height(values[:n].numpy()[rows]))
            look = {"s": style.size, "c": colour, "linewidths": 0, "depthshade": False}
            axes.scatter(*points, zorder=front + above, **look)
    if style.ring:
        worst = int(losses.inside.argmax())
        points = (*moons.interior_x[worst].numpy(), float(height(losses.inside[worst].numpy())))
        ring = {"s": 14 * style.size**0.5, "facecolors": "none", "edgecolors": INK, "linewidths": 0.7}
        axes.scatter(*([v] for v in points), depthshade=False, zorder=8, **ring)
    axes.set(xlim=(-1.2, 2.2), ylim=(-0.7, 1.2), zlim=(ground, np.log10(style.top)))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((3.4, 1.9, 1.35), zoom=style.zoom)
    axes.view_init(elev=52, azim=-84)
    axes.set_axis_off()
    axes.patch.set_visible(False)


def _draw_column(axes: Axes, place: int, losses: Tensor, colour: str, floor: float, style: _Column) -> None:
    """One column of points, evenly spread without chance, and a bar at the largest loss of all.

    Points below the axis are counted instead.
    """
    values = losses.numpy()
    shown = values[: style.shown]
    golden = np.arange(len(shown), dtype=np.float64) * 0.6180339887498949
    across = place + (golden % 1 - 0.5) * style.spread
    axes.scatter(across, shown, s=style.size, c=colour, alpha=style.alpha, linewidths=0, zorder=2)
    if place > 0:
        half, width = style.bar
        axes.plot([place - half, place + half], [values.max()] * 2, color=colour, linewidth=width, zorder=4)
    below = float((values < floor).mean())
    if below > 0.005:
        above, pad = style.note_place
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": pad}
        look: dict[str, Any] = {"ha": "center", "fontsize": style.note_size, "color": INK, "bbox": box}
        axes.text(place, floor * above, style.note.format(below), zorder=4, **look)


def draw_figure(
    summaries: Sequence[MethodSummary], exhibits: Sequence[Exhibit], settings: DemoSettings
) -> Figure:
    """Draw one column per method: its loss surface on top, its losses below."""
    total = _LEFT + _COLUMN * len(summaries) + _RIGHT
    left, width = _LEFT / total, _COLUMN / total
    with mpl.rc_context(_SCREEN):
        figure = Figure(figsize=(total, _HEIGHT), facecolor="white")
        for column, (summary, exhibit) in enumerate(zip(summaries, exhibits, strict=True)):
            begin = left + column * width
            figure.text(begin, 0.842, NAMES[summary.method], fontsize=15, fontweight="bold")
            box = (begin - 0.06 * width, 0.45, 1.04 * width, 0.42)
            surface = figure.add_axes(box, projection="3d", computed_zorder=False)
            _draw_surface(surface, exhibit, _Surface(SURFACE_TOP, (160, 25), (3000, 500), 3.5, 1.08))
            strips = figure.add_axes((begin, 0.125, 0.9 * width, 0.28))
            _draw_strips(strips, exhibit, summary, is_first=column == 0)
        bar_axes = figure.add_axes((left + len(summaries) * width - 0.02 * width, 0.53, 0.12 / total, 0.25))
        colours = mpl.cm.ScalarMappable(LogNorm(SURFACE_FLOOR, SURFACE_TOP), SURFACE)
        bar = draw_colour_bar(figure, bar_axes, colours, label=9, title=10, pads=(3.5, 6))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        _draw_captions(figure, summaries, settings, left)
    return figure


def _draw_captions(
    figure: Figure, summaries: Sequence[MethodSummary], settings: DemoSettings, left: float
) -> None:
    figure.text(left, 0.945, headline(summaries), fontsize=16, fontweight="bold")
    figure.text(
        left,
        0.905,
        "Loss over the two moons (first seed): height and colour are its logarithm. Blue: the boundary, "
        "trained on. Orange: unseen points inside.",
        fontsize=11.5,
        color=MUTED,
    )
    figure.text(
        left,
        0.022,
        f"Network {settings.architecture}. {summaries[0].n_evaluations:,} function evaluations for every "
        f"method, sigma {settings.sigma:g}, {summaries[0].n_seeds} seeds. Dashed: largest loss on the "
        "boundary; bars: largest loss of a column.\nBetween: points on straight lines between "
        "boundary points, labels mixed alike; their loss is without the entropy of the mixed label, which "
        "no network can avoid.",
        fontsize=9,
        color=MUTED,
        linespacing=1.5,
    )


def _draw_strips(axes: Axes, exhibit: Exhibit, summary: MethodSummary, *, is_first: bool) -> None:
    """Three columns of points: boundary, inside, between, and the boundary's maximum."""
    losses = exhibit.losses
    highest = float(losses.boundary.max())
    axes.set_yscale("log")
    axes.set(ylim=(FLOOR, TOP), xlim=(-0.5, 2.5))
    axes.axhspan(highest, TOP, color="#f7ece9", zorder=0, linewidth=0)
    axes.axhline(highest, color=INK, linestyle=(0, (5, 3)), linewidth=1.1, zorder=3)
    axes.text(-0.44, highest * 1.25, f"largest on the boundary {highest:.3g}", fontsize=8.5, zorder=4)
    groups = ((losses.boundary, BOUNDARY), (losses.inside, INSIDE), (losses.between, BETWEEN))
    for place, (values, colour) in enumerate(groups):
        _draw_column(axes, place, values, colour, FLOOR, _COLUMN_ON_SCREEN)
    between = float(losses.between.max())
    axes.text(2, between * 1.3, f"{between:.3g}", ha="center", fontsize=9, color=INK)
    axes.set_xticks([0, 1, 2], ["boundary", "inside", "between"], fontsize=10.5)
    axes.tick_params(length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value) if is_first else ""))
    axes.minorticks_off()
    if is_first:
        axes.set_ylabel("loss")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(verdict(summary), fontsize=10.5, loc="left", color=INK, pad=8, linespacing=1.4)


def _power(value: float) -> str:
    exponent = round(np.log10(value))
    return {0: "1", 1: "10", -1: "0.1"}.get(exponent, f"$10^{{{exponent}}}$")


def draw_surfaces(exhibits: dict[Method, Exhibit], width: Width = "page") -> Figure:
    """Loss surfaces over the two moons, side by side (paper: Fig. 1).

    Blue points are the training data on the boundary, orange ones unseen points inside; the ring marks the
    largest loss inside. Below each surface stands whether the maximum principle holds there.
    """
    height = {"column": 1.45, "page": 2.5}[width]
    with mpl.rc_context(PRINT):
        figure = new_figure(width, height)
        n, right = len(exhibits), 0.1 if width == "page" else 0.15
        for column, (method, exhibit) in enumerate(exhibits.items()):
            left, share = column * (1 - right) / n, (1 - right) / n
            figure.text(left + 0.5 * share, 0.92, NAMES[method], ha="center", fontweight="bold", fontsize=8)
            tall = share * WIDTHS[width] / height  # a square: the surface fills its middle
            box = (left, 0.54 - tall / 2, share, tall)
            axes: Any = figure.add_axes(box, projection="3d", computed_zorder=False)
            size = 2.0 if width == "page" else 0.7
            style = _Surface(_PRINT_TOP, (120, 17), (1000, 250), size, 1.12, ring=True)
            _draw_surface(axes, exhibit, style)
            look: dict[str, Any] = {"linespacing": 1.35, "fontsize": 7 if width == "page" else 6}
            figure.text(left + 0.5 * share, 0.03, _bound(exhibit), ha="center", **look)
        bar_axes = figure.add_axes((1.005 - right, 0.34, 0.012, 0.42))
        colours = mpl.cm.ScalarMappable(LogNorm(SURFACE_FLOOR, _PRINT_TOP), SURFACE)
        draw_colour_bar(figure, bar_axes, colours)
    return figure


def _bound(exhibit: Exhibit) -> str:
    outer, inner = (float(losses.max()) for losses in (exhibit.losses.boundary, exhibit.losses.inside))
    sign, words = ("≥", "bound kept") if outer >= inner else ("<", "bound broken")
    return f"boundary {outer:.2g} {sign} inside {inner:.2g}\n{words}"


def draw_boundary_losses(exhibits: dict[Method, Exhibit], width: Width = "column") -> Figure:
    """Losses on the boundary and inside, one panel per method (paper: Fig. 3).

    The dashed line is the largest loss on the boundary, the bar the largest one inside.
    """
    with mpl.rc_context(PRINT):
        figure = new_figure(width, {"column": 1.9, "page": 2.4}[width])
        panels = figure.subplots(1, len(exhibits), sharey=True, squeeze=False)[0]
        left = 0.15 if width == "column" else 0.075
        figure.subplots_adjust(left=left, right=0.995, top=0.9, bottom=0.12, wspace=0.1)
        low = min(float(e.losses.boundary.min()) for e in exhibits.values())
        floor = 10.0 ** max(np.floor(np.log10(low)), -5)
        for axes, (method, exhibit) in zip(panels, exhibits.items(), strict=True):
            _draw_panel(axes, exhibit, floor)
            label_panel(axes, NAMES[method])
        panels[0].set_ylabel("loss")
    return figure


def _draw_panel(axes: Axes, exhibit: Exhibit, floor: float) -> None:
    groups = ((exhibit.losses.boundary, BOUNDARY), (exhibit.losses.inside, INSIDE))
    highest = float(exhibit.losses.boundary.max())
    axes.set_yscale("log")
    axes.set(ylim=(floor, 3 * _PRINT_TOP), xlim=(-0.55, 1.55))
    axes.axhline(highest, color=INK, linestyle=(0, (4, 2.5)), linewidth=0.8, zorder=3)
    axes.text(1.5, highest * 1.25, f"{highest:.3g}", ha="right", fontsize=6.5)
    for place, (losses, colour) in enumerate(groups):
        _draw_column(axes, place, losses, colour, floor, _COLUMN_IN_PRINT)
    axes.set_xticks([0, 1], ["boundary", "inside"])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_locator(LogLocator(10, numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
