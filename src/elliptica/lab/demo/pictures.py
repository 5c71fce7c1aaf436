"""Draw the two moons of the demo: the surfaces of the loss, and the losses by place."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from elliptica.lab.demo.moons import METHODS, SMALL_PRINT, Exhibit, Run, Settings, Study

INK, MUTED, BOUNDARY, INSIDE, ABOVE = "#22252e", "#6a6f7d", "#1f5fbf", "#f08a24", "#c81e1e"
#: Heights of surfaces are multiples of the largest loss on the boundary, at most this one.
TOP = 3.0
#: The lower moon is drawn this much below its place: half discs overlap.
APART = -1.0
_DASHED: Any = (0, (4, 2.5))
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
Array = NDArray[np.float64]


class Surface(NamedTuple):
    """Loss over one moon, on a grid whose border is the outline: rows along the moon, columns across."""

    x: Array
    y: Array
    loss: Array


def moon_surfaces(network: nn.Module, n_along: int = 161, n_across: int = 61) -> tuple[Surface, Surface]:
    """Evaluate the loss over both half discs, upper and lower, each at its own label.

    Example:
        >>> upper, lower = moon_surfaces(nn.Linear(2, 2).double())
        >>> upper.loss.shape
        (161, 61)
    """
    # From the chord straight up to the half circle; evenly in angle, so that its ends stay round.
    angle = torch.linspace(math.pi, 0, n_along, dtype=torch.float64)
    height = torch.linspace(0, 1, n_across, dtype=torch.float64)
    upper = torch.stack([angle.cos()[:, None].expand(-1, n_across), angle.sin()[:, None] * height], dim=2)
    surfaces = []
    for moon, grid in enumerate((upper, torch.tensor([1.0, 0.5], dtype=torch.float64) - upper)):
        points = grid.flatten(0, 1)
        with torch.no_grad():
            loss = F.cross_entropy(network(points), torch.full((len(points),), moon), reduction="none")
        x, y = grid.numpy().transpose(2, 0, 1)
        surfaces.append(Surface(x, y, loss.reshape(grid.shape[:2]).numpy()))
    return surfaces[0], surfaces[1]


def draw_figure(study: Study) -> Figure:
    """Draw the loss surface of the typical seed of each method, and all its seeds (paper: Fig. 1)."""
    ratios = {method: [run.ratio for run in runs] for method, runs in study.runs.items()}
    highest = max(1.2, *(float(e.inside.max() / e.boundary.max()) for e in study.exhibits.values()))
    left, share = 0.06, 0.935 / len(study.runs)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.6 * len(study.runs) + 0.6, 8.8), facecolor="white")
        for column, (method, runs) in enumerate(study.runs.items()):
            begin = left + column * share
            colour = ABOVE if 2 * study.kept(method) < len(runs) else BOUNDARY
            accuracy = sum(run.accuracy for run in runs) / len(runs)
            figure.text(begin, 0.84, METHODS[method], fontsize=18, fontweight="bold")
            kept = f"bound kept in {study.kept(method)} of {len(runs)} seeds"
            figure.text(begin, 0.803, kept, fontsize=13, color=colour, fontweight="bold")
            figure.text(begin, 0.772, f"accuracy inside {accuracy:.0%}", fontsize=11, color=MUTED)
            box = (begin - 0.1 * share, 0.325, 1.12 * share, 0.49)
            surface = figure.add_axes(box, projection="3d", computed_zorder=False)
            _draw_surface(surface, study.exhibits[method], min(TOP, highest))
            dots = figure.add_axes((begin, 0.165, 0.88 * share, 0.17))
            _draw_seeds(dots, runs, max(max(values) for values in ratios.values()), is_first=column == 0)
        figure.text(left, 0.945, study.headline(), fontsize=16.5, fontweight="bold")
        explained = (
            "Height: the loss over two moons, trained on their blue rim only. Dashed: the largest loss on "
            "the rim. Red: the loss inside is above it."
        )
        figure.text(left, 0.9, explained, fontsize=12.5, color=MUTED)
        lines = [line for text in captions(study.settings) for line in textwrap.wrap(text, 201)]
        figure.text(left, 0.128, "\n".join(lines), fontsize=9, color=MUTED, linespacing=1.45, va="top")
    return figure


def draw_surfaces(study: Study) -> Figure:
    """Draw the surfaces alone, with letters that can be read at a width of 400 pixels."""
    share = 1 / len(study.runs)
    highest = max(1.2, *(float(e.inside.max() / e.boundary.max()) for e in study.exhibits.values()))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.6 * len(study.runs), 4.6), facecolor="white")
        for column, (method, runs) in enumerate(study.runs.items()):
            middle, kept = (column + 0.5) * share, study.kept(method)
            colour = ABOVE if 2 * kept < len(runs) else BOUNDARY
            name = "ordinary" if method == "erm" else METHODS[method]
            figure.text(middle, 0.87, name, fontsize=34, fontweight="bold", ha="center")
            figure.text(
                middle, 0.75, f"kept in {kept} of {len(runs)}", fontsize=28, color=colour, ha="center"
            )
            box = (column * share, -0.1, share, 0.94)
            surface = figure.add_axes(box, projection="3d", computed_zorder=False)
            _draw_surface(surface, study.exhibits[method], min(TOP, highest), with_points=False)
    return figure


def captions(settings: Settings) -> list[str]:
    """Say how the networks were trained and what the picture does not show."""
    return [
        "Surfaces: the median seed of each method, by largest loss inside / largest on the rim; heights are "
        "multiples of the latter. The half discs overlap; they are drawn apart. Orange: unseen points. "
        f"Network Linear(2, 4) - tanh - Linear(4, 2), {settings.n_steps * settings.batch:,} evaluations for "
        f"every method, sigma {settings.sigma:g}.",
        SMALL_PRINT,
    ]


def _draw_surface(axes: Any, exhibit: Exhibit, top: float, *, with_points: bool = True) -> None:
    """Draw surfaces of both moons, rims, unseen points, and the boundary's largest loss (dashed)."""
    moons, bound = exhibit.moons, float(exhibit.boundary.max())
    flat = {"rcount": 161, "ccount": 61, "linewidth": 0, "shade": False, "antialiased": False}
    for moon, surface in enumerate(moon_surfaces(exhibit.network)):
        front, down = 8 * moon, APART * moon  # the lower moon is in front of the upper one
        height = np.clip(surface.loss / bound, 0, top)
        x, y = surface.x, surface.y + down
        axes.plot_surface(x, y, np.zeros_like(height), color="#ececf1", zorder=front, **flat)
        axes.plot_surface(x, y, height, facecolors=surface_colours(height), zorder=front + 3, **flat)
        for side in (0, -1):  # inner and outer edge; the one behind is hidden by the surface
            in_front = (side == 0) == (moon == 0)
            edge, above = np.s_[:, side], front + (5 if in_front else 1)
            lifted = 0.0 if in_front else 0.02  # else the surface would hide half of the line
            axes.plot(x[edge], y[edge], height[edge] + lifted, zorder=above, color=BOUNDARY, linewidth=2.2)
            ceiling = {"color": INK, "linewidth": 1.3, "linestyle": _DASHED, "zorder": above + 1}
            axes.plot(x[edge], y[edge], np.ones(len(x)), **ceiling)
        if not with_points:
            continue
        rows = (moons.interior_y[:400] == moon).numpy()
        places = moons.interior_x[:400].numpy()[rows]
        points = np.clip(exhibit.inside[:400].numpy()[rows] / bound, 0, top)
        look = {"s": 3.5, "c": INSIDE, "linewidths": 0, "depthshade": False}
        axes.scatter(places[:, 0], places[:, 1] + down, points, zorder=front + 4, **look)
    axes.set(xlim=(-1.2, 2.2), ylim=(-1.55, 1.05), zlim=(0, top))
    axes.set_proj_type("ortho")
    aspect = (3.4, 2.6, 0.75 * top)
    axes.set_box_aspect(aspect, zoom=0.99 * math.hypot(*aspect) / aspect[0])  # the same width for any height
    axes.view_init(elev=38, azim=-84)
    axes.set_axis_off()
    axes.patch.set_visible(False)


def surface_colours(height: Array) -> Array:
    """Colour losses given as multiples of the boundary's largest: blue up to one, red above."""
    below = mpl.colormaps["Blues"](0.12 + 0.5 * np.clip(height, 0, 1))
    above = mpl.colormaps["Reds"](0.6 + 0.35 * np.clip((height - 1) / (TOP - 1), 0, 1))
    return np.where((height > 1)[..., None], above, below)


def _draw_seeds(axes: Axes, runs: Sequence[Run], most: float, *, is_first: bool) -> None:
    """Draw one dot for each seed, sorted: the largest loss inside over the rim's."""
    ratios = np.sort([run.ratio for run in runs])
    place = np.arange(len(ratios))
    axes.set_yscale("log")
    axes.set(ylim=(0.6, max(1.6, 1.4 * most)), xlim=(-0.9, len(ratios) - 0.1))
    axes.axhline(1, color=INK, linestyle=_DASHED, linewidth=1.3, zorder=1)
    axes.vlines(place, np.minimum(ratios, 1), np.maximum(ratios, 1), color="#d5d7de", linewidth=2, zorder=0)
    axes.scatter(place, ratios, s=42, c=np.where(ratios > 1, ABOVE, BOUNDARY), linewidths=0, zorder=2)
    middle = (len(ratios) - 1) // 2
    axes.scatter(middle, ratios[middle], s=130, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=3)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= 1.4 * most]
    axes.set_yticks(ticks, [f"{tick}" if is_first else "" for tick in ticks])
    axes.set_xticks([])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    if is_first:
        axes.set_ylabel("largest inside /\nlargest on rim")
    title = f"{len(runs)} seeds, one dot each; the ringed one is drawn above"
    axes.set_title(title, fontsize=10, loc="left", color=MUTED, pad=4)


def draw_losses(study: Study) -> Figure:
    """Draw losses on the boundary and inside, one panel per method (paper: Fig. 3).

    The dashed line is the largest loss on the boundary; above it the panel is red.
    """
    exhibits = study.exhibits.values()
    top = 2.5 * max(float(torch.cat([e.boundary, e.inside]).max()) for e in exhibits)
    floor = 10.0 ** max(math.floor(min(float(e.boundary.min().log10()) for e in exhibits)), -5)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.6), facecolor="white", layout="constrained")
        panels = figure.subplots(1, len(exhibits), sharey=True, squeeze=False)[0]
        for axes, (method, exhibit) in zip(panels, study.exhibits.items(), strict=True):
            bound = float(exhibit.boundary.max())
            axes.set(yscale="log", ylim=(floor, top), xlim=(-0.55, 1.55), xticks=(0, 1))
            axes.set_xticklabels(["boundary", "inside"])
            axes.axhline(bound, color=INK, linestyle=_DASHED, linewidth=1.2, zorder=3)
            axes.axhspan(bound, top, color="#fbeaea", zorder=0, linewidth=0)
            columns = ((0, exhibit.boundary, BOUNDARY), (1, exhibit.inside, INSIDE))
            for place, losses, colour in columns:
                points = losses[:800].numpy()
                across = place + 0.6 * (np.arange(len(points)) * 0.6180339887498949 % 1 - 0.5)  # evenly
                axes.scatter(across, points, s=3, c=colour, alpha=0.55, linewidths=0)
                largest = float(losses.max())
                axes.plot([place - 0.3, place + 0.3], [largest] * 2, color=colour, linewidth=2, zorder=4)
                axes.text(place, largest * 1.2, f"{largest:.3g}", ha="center", fontsize=9)
            axes.set_title(METHODS[method], loc="left", fontweight="bold")
        panels[0].set_ylabel("loss")
    return figure
