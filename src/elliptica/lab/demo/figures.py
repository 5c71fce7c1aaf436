"""Draw two moons for screen and print: loss surfaces, and losses by place (paper: Figs. 1 and 3).

Print means sizes in points at the width of a column or a page, and files without dates.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray
from torch import Tensor

from elliptica import __version__
from elliptica._utils.files import replacing
from elliptica.lab.demo.results import SMALL_PRINT, MethodSummary, headline, is_default, verdict
from elliptica.lab.demo.study import Exhibit, moon_surfaces
from elliptica.lab.demo.training import NAMES, DemoSettings, Method

INK = "#22252e"
MUTED = "#6a6f7d"
BOUNDARY = "#1f5fbf"
INSIDE = "#f08a24"
BETWEEN = "#7d8794"
SURFACE = "viridis"
ABOVE = "#c81e1e"

#: Methods in the picture; the control is in the table.
SHOWN: tuple[Method, ...] = ("erm", "mixup", "elliptic")
#: Heights of surfaces are multiples of the largest loss on the boundary, at most this one.
TOP = 3.0
#: The lower moon is drawn this much below its place: half discs overlap.
APART = -1.0

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


@dataclass(frozen=True)
class _Surface:
    """Style of a surface: its grid, number and size of points inside, line width and zoom."""

    grid: tuple[int, int]
    shown: int
    size: float
    line: float
    zoom: float


@dataclass(frozen=True)
class _Column:
    """Style of a column of losses: points, the bar at the largest, and the note on those below."""

    shown: int
    size: float
    alpha: float
    spread: float
    bar: tuple[float, float]  # half its length, width of the line
    note: str
    note_size: float
    note_place: tuple[float, float]  # multiple of the floor, padding


_COLUMN_IN_PRINT = _Column(800, 1.4, 0.55, 0.6, (0.3, 1.2), "{:.0%}\nlower", 5.5, (1.4, 1))


def surface_colours(height: NDArray[np.floating]) -> NDArray[np.float64]:
    """Colour losses given as multiples of the boundary's largest: blue up to one, red above."""
    below = mpl.colormaps["Blues"](0.12 + 0.5 * np.clip(height, 0, 1))
    above = mpl.colormaps["Reds"](0.6 + 0.35 * np.clip((height - 1) / (TOP - 1), 0, 1))
    return np.where((height > 1)[..., None], above, below)


def new_figure(width: Width, height: float) -> Figure:
    """Make an empty figure of a width in print and a height in inches; draw on it within `PRINT`."""
    return Figure(figsize=(WIDTHS[width], height), facecolor="white")


def label_panel(axes: Axes, text: str) -> None:
    """Write the heading of a panel, on its left edge."""
    axes.set_title(text, loc="left", pad=3, fontweight="bold")


def save_figure(figure: Figure, path: Path, form: Format, command: str) -> None:
    """Write a figure so that the same figure gives the same bytes.

    The command that reproduces it is stored in the file: as subject of a PDF, description of a PNG or SVG.
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
    """Draw a colour bar of the loss without ticks; sizes of labels and title are in points."""
    bar = figure.colorbar(colours, cax=axes)
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=label, pad=pads[0])
    bar.ax.set_title("loss", fontsize=title, pad=pads[1])
    bar.outline.set_visible(False)
    return bar


def _draw_surface(axes: Any, exhibit: Exhibit, style: _Surface, settings: DemoSettings, top: float) -> None:
    """Draw surfaces of both moons, rims, unseen points, and the boundary's largest loss (dashed)."""
    moons, losses = exhibit.moons, exhibit.losses
    bound = float(losses.boundary.max())
    n_along, n_across = style.grid
    flat = {"rcount": n_along, "ccount": n_across, "linewidth": 0, "shade": False, "antialiased": False}
    surfaces = moon_surfaces(exhibit.network, region=settings.region, n_along=n_along, n_across=n_across)
    for moon, surface in enumerate(surfaces):
        down = APART * moon if settings.region == "half-disc" else 0.0
        front = 8 * moon  # the lower moon is in front of the upper one
        height = np.clip(surface.loss / bound, 0, top)
        x, y = surface.x, surface.y + down
        axes.plot_surface(x, y, np.zeros_like(height), color="#ececf1", zorder=front, **flat)
        axes.plot_surface(x, y, height, facecolors=surface_colours(height), zorder=front + 3, **flat)
        rim_look = {"color": BOUNDARY, "linewidth": 1.7 * style.line}
        ceiling = {"color": INK, "linewidth": style.line, "linestyle": (0, (4, 2.5))}
        for side in (0, -1):  # inner and outer edge; the one behind is hidden by the surface
            in_front = (side == 0) == (moon == 0)
            edge = np.s_[:, side]
            above = front + (5 if in_front else 1)
            lifted = 0.0 if in_front else 0.02  # else the surface would hide half of the line
            axes.plot(x[edge], y[edge], height[edge] + lifted, zorder=above, **rim_look)
            axes.plot(x[edge], y[edge], np.ones(n_along), zorder=above + 1, **ceiling)
        rows = (moons.interior_y[: style.shown] == moon).numpy()
        places = moons.interior_x[: style.shown].numpy()[rows]
        points = np.clip(losses.inside[: style.shown].numpy()[rows] / bound, 0, top)
        look = {"s": style.size, "c": INSIDE, "linewidths": 0, "depthshade": False}
        axes.scatter(places[:, 0], places[:, 1] + down, points, zorder=front + 4, **look)
    apart = APART if settings.region == "half-disc" else 0.0
    beyond = max(float(surface.x.max()) for surface in surfaces) - 2  # of the half disc's right end
    width, depth = 3.4 + 2 * beyond, 1.6 - apart + 2 * beyond
    axes.set(xlim=(0.5 - width / 2, 0.5 + width / 2), zlim=(0, top))
    axes.set(ylim=(0.25 + apart / 2 - depth / 2, 0.25 + apart / 2 + depth / 2))
    axes.set_proj_type("ortho")
    aspect = (width, depth, 0.75 * top)
    zoom = 0.76 * style.zoom * float(np.linalg.norm(aspect)) / width  # the same width for any height
    axes.set_box_aspect(aspect, zoom=zoom)
    axes.view_init(elev=38, azim=-84)
    axes.set_axis_off()
    axes.patch.set_visible(False)


def _highest(exhibits: Iterable[Exhibit]) -> float:
    """Return the height of the axes that shows all surfaces."""
    ratios = [float(e.losses.inside.max() / e.losses.boundary.max()) for e in exhibits]
    return min(TOP, max(1.2, *ratios))


def _draw_column(axes: Axes, place: int, losses: Tensor, colour: str, floor: float, style: _Column) -> None:
    """Draw one column of points, evenly spread, and a bar at the largest loss.

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
    summaries: Sequence[MethodSummary], exhibits: dict[Method, Exhibit], settings: DemoSettings
) -> Figure:
    """Draw one column for each method of `SHOWN`: the loss surface of its typical seed, and all its seeds."""
    shown = [summary for summary in summaries if summary.method in SHOWN]
    left, share = 0.06, 0.935 / len(shown)
    top = _highest(exhibits[summary.method] for summary in shown)
    with mpl.rc_context(_SCREEN):
        figure = Figure(figsize=(4.6 * len(shown) + 0.6, 8.8), facecolor="white")
        for column, summary in enumerate(shown):
            begin = left + column * share
            colour = ABOVE if 2 * summary.n_broken > summary.n_seeds else BOUNDARY
            heading = "ERM (ordinary training)" if summary.method == "erm" else NAMES[summary.method]
            figure.text(begin, 0.84, heading, fontsize=18, fontweight="bold")
            figure.text(begin, 0.803, verdict(summary), fontsize=13, color=colour, fontweight="bold")
            right = f"accuracy inside {summary.accuracy:.0%}"
            figure.text(begin, 0.772, right, fontsize=11, color=MUTED)
            box = (begin - 0.1 * share, 0.325, 1.12 * share, 0.49)
            surface = figure.add_axes(box, projection="3d", computed_zorder=False)
            style = _Surface((161, 61), 400, 3.5, 1.3, 1.3)
            _draw_surface(surface, exhibits[summary.method], style, settings, top)
            dots = figure.add_axes((begin, 0.165, 0.88 * share, 0.17))
            _draw_seeds(dots, summary, max(max(s.ratios) for s in shown), is_first=column == 0)
        _draw_captions(figure, shown, settings, left)
    return figure


def _draw_captions(
    figure: Figure, summaries: Sequence[MethodSummary], settings: DemoSettings, left: float
) -> None:
    figure.text(left, 0.945, headline(summaries), fontsize=16.5, fontweight="bold")
    figure.text(
        left,
        0.9,
        "Height: the loss over two moons, trained on their blue rim only. Dashed: the largest loss on "
        "the rim. Red: the loss inside is above it.",
        fontsize=12.5,
        color=MUTED,
    )
    apart = " The half discs overlap; they are drawn apart." if settings.region == "half-disc" else ""
    paragraphs = [
        "Surfaces: the median seed of each method, by largest loss inside / largest on the rim; heights are "
        f"multiples of the latter.{apart} Orange: unseen points. Network {settings.architecture}, "
        f"{summaries[0].n_evaluations:,} evaluations for every method, sigma {settings.sigma:g}."
    ]
    if is_default(settings):
        paragraphs.append(SMALL_PRINT)
    lines = [line for text in paragraphs for line in textwrap.wrap(text, 67 * len(summaries))]
    look: dict[str, Any] = {"fontsize": 9, "color": MUTED, "linespacing": 1.45, "verticalalignment": "top"}
    figure.text(left, 0.128, "\n".join(lines), **look)


def _draw_seeds(axes: Axes, summary: MethodSummary, most: float, *, is_first: bool) -> None:
    """Draw one dot for each seed, sorted: the largest loss inside over the rim's."""
    ratios = np.sort(np.asarray(summary.ratios))
    place = np.arange(len(ratios))
    axes.set_yscale("log")
    axes.set(ylim=(0.6, max(1.6, 1.4 * most)), xlim=(-0.9, len(ratios) - 0.1))
    axes.axhline(1, color=INK, linestyle=(0, (4, 2.5)), linewidth=1.3, zorder=1)
    axes.vlines(place, np.minimum(ratios, 1), np.maximum(ratios, 1), color="#d5d7de", linewidth=2, zorder=0)
    axes.scatter(place, ratios, s=42, c=np.where(ratios > 1, ABOVE, BOUNDARY), linewidths=0, zorder=2)
    middle = (len(ratios) - 1) // 2
    axes.scatter(middle, ratios[middle], s=130, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=3)
    axes.set_xticks([])
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= 1.4 * most]
    axes.set_yticks(ticks, [f"{tick}" if is_first else "" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    if is_first:
        axes.set_ylabel("largest inside /\nlargest on rim")
    above = f"{summary.n_seeds} seeds, one dot each; the ringed one is drawn above"
    axes.set_title(above, fontsize=10, loc="left", color=MUTED, pad=4)


def draw_surfaces(
    exhibits: dict[Method, Exhibit], width: Width = "page", settings: DemoSettings | None = None
) -> Figure:
    """Draw loss surfaces over the two moons, side by side (paper: Fig. 1).

    Trained on the blue rim only; orange are unseen points inside. Heights are multiples of the largest loss
    on the rim, which is dashed; red is above it. A line below each surface says whether the bound is kept.
    """
    height = {"column": 1.6, "page": 2.9}[width]
    with mpl.rc_context(PRINT):
        figure = new_figure(width, height)
        n = len(exhibits)
        for column, (method, exhibit) in enumerate(exhibits.items()):
            left, share = column / n, 1 / n
            figure.text(left + 0.5 * share, 0.92, NAMES[method], ha="center", fontweight="bold", fontsize=8)
            tall = share * WIDTHS[width] / height  # a square: the surface fills its middle
            box = (left, 0.54 - tall / 2, share, tall)
            axes: Any = figure.add_axes(box, projection="3d", computed_zorder=False)
            wide = width == "page"
            style = _Surface((121, 41), 250, 2.0 if wide else 0.7, 0.8 if wide else 0.5, 1.22)
            _draw_surface(axes, exhibit, style, settings or DemoSettings(), _highest(exhibits.values()))
            look: dict[str, Any] = {"linespacing": 1.35, "fontsize": 7 if wide else 6}
            figure.text(left + 0.5 * share, 0.03, _bound(exhibit), ha="center", **look)
    return figure


def _bound(exhibit: Exhibit) -> str:
    outer, inner = (float(losses.max()) for losses in (exhibit.losses.boundary, exhibit.losses.inside))
    sign, words = ("≥", "bound kept") if outer >= inner else ("<", "bound broken")
    return f"boundary {outer:.2f} {sign} inside {inner:.2f}\n{words}"


def draw_boundary_losses(exhibits: dict[Method, Exhibit], width: Width = "column") -> Figure:
    """Draw losses on the boundary and inside, one panel per method (paper: Fig. 3).

    The dashed line is the largest loss on the boundary, the bar the largest one inside.
    """
    with mpl.rc_context(PRINT):
        figure = new_figure(width, {"column": 1.9, "page": 2.4}[width])
        panels = figure.subplots(1, len(exhibits), sharey=True, squeeze=False)[0]
        left = 0.15 if width == "column" else 0.075
        figure.subplots_adjust(left=left, right=0.995, top=0.9, bottom=0.12, wspace=0.1)
        low = min(float(e.losses.boundary.min()) for e in exhibits.values())
        floor = 10.0 ** max(np.floor(np.log10(low)), -5)
        top = 2.5 * max(
            float(torch.maximum(e.losses.boundary.max(), e.losses.inside.max())) for e in exhibits.values()
        )
        for axes, (method, exhibit) in zip(panels, exhibits.items(), strict=True):
            _draw_panel(axes, exhibit, floor, top)
            label_panel(axes, NAMES[method])
        panels[0].set_ylabel("loss")
    return figure


def _draw_panel(axes: Axes, exhibit: Exhibit, floor: float, top: float) -> None:
    groups = ((exhibit.losses.boundary, BOUNDARY), (exhibit.losses.inside, INSIDE))
    highest = float(exhibit.losses.boundary.max())
    axes.set_yscale("log")
    axes.set(ylim=(floor, top), xlim=(-0.55, 1.55))
    axes.axhline(highest, color=INK, linestyle=(0, (4, 2.5)), linewidth=0.8, zorder=3)
    axes.text(-0.5, highest * 1.25, f"{highest:.3g}", ha="left", fontsize=6.5)
    inner = float(exhibit.losses.inside.max())
    if inner > highest:
        axes.axhspan(highest, top, color="#fbeaea", zorder=0, linewidth=0)
        axes.text(1, inner * 1.25, f"{inner:.3g}", ha="center", fontsize=6.5, color=ABOVE)
    for place, (losses, colour) in enumerate(groups):
        _draw_column(axes, place, losses, colour, floor, _COLUMN_IN_PRINT)
    axes.set_xticks([0, 1], ["boundary", "inside"])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_locator(LogLocator(10, numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
