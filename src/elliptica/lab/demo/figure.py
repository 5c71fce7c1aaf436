"""The demo's figure: loss surfaces over the moons, and the losses themselves (paper: Figs. 1, 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from torch import Tensor

from elliptica.lab.demo.look import (
    BETWEEN,
    BOUNDARY,
    FLOOR,
    INK,
    INSIDE,
    MUTED,
    SURFACE,
    SURFACE_FLOOR,
    SURFACE_TOP,
    TOP,
    clip_losses,
    headline,
    verdict,
)
from elliptica.lab.demo.settings import NAMES, DemoSettings
from elliptica.lab.demo.study import Exhibit, moon_surfaces
from elliptica.lab.demo.summary import MethodSummary

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
}
_N_SHOWN = 1500
_NORM = LogNorm(SURFACE_FLOOR, SURFACE_TOP)
_COLUMN, _LEFT, _RIGHT, _HEIGHT = 3.75, 0.85, 0.75, 8.6  # inches


def draw_figure(
    summaries: Sequence[MethodSummary], exhibits: Sequence[Exhibit], settings: DemoSettings
) -> Figure:
    """Draw one column per method: its loss surface on top, its losses below.

    Args:
        summaries: Verdicts over all seeds.
        exhibits: A network of each method, in the same order.
        settings: For the small print.

    Returns:
        The figure; saving it is the caller's business.
    """
    total = _LEFT + _COLUMN * len(summaries) + _RIGHT
    left, width = _LEFT / total, _COLUMN / total
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(total, _HEIGHT), facecolor="white")
        for column, (summary, exhibit) in enumerate(zip(summaries, exhibits, strict=True)):
            begin = left + column * width
            figure.text(begin, 0.842, NAMES[summary.method], fontsize=15, fontweight="bold")
            box = (begin - 0.06 * width, 0.45, 1.04 * width, 0.42)
            _draw_surface(figure.add_axes(box, projection="3d", computed_zorder=False), exhibit)
            strips = figure.add_axes((begin, 0.125, 0.9 * width, 0.28))
            _draw_strips(strips, exhibit, summary, is_first=column == 0)
        bar_axes = figure.add_axes((left + len(summaries) * width - 0.02 * width, 0.53, 0.12 / total, 0.25))
        _draw_colour_bar(figure, bar_axes)
        _draw_words(figure, summaries, settings, left)
    return figure


def _draw_words(
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


def _draw_colour_bar(figure: Figure, axes: Axes) -> None:
    bar = figure.colorbar(mpl.cm.ScalarMappable(_NORM, SURFACE), cax=axes)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=9)
    bar.ax.set_title("loss", fontsize=10, pad=6)
    bar.outline.set_visible(False)


def _draw_surface(axes: Any, exhibit: Exhibit) -> None:
    """Surface, rim and unseen points above their shadow; heights are logarithms."""
    floor, top = np.log10([SURFACE_FLOOR, SURFACE_TOP])
    ground = floor - 0.6
    flat = {"rcount": 160, "linewidth": 0, "shade": False, "antialiased": False}
    moons, losses = exhibit.moons, exhibit.losses
    for moon, surface in enumerate(moon_surfaces(exhibit.network)):
        x, y, loss = surface.x, surface.y, clip_losses(surface.loss)
        axes.plot_surface(x, y, np.full_like(loss, ground), color="#ececf1", ccount=2, zorder=0, **flat)
        colours = mpl.colormaps[SURFACE](_NORM(loss))
        front = 3 * moon  # the lower moon is in front of the upper one
        axes.plot_surface(x, y, np.log10(loss), facecolors=colours, ccount=25, zorder=front + 1, **flat)
        seen, unseen = moons.boundary_y[:3000] == moon, moons.interior_y[:500] == moon
        _scatter(axes, moons.interior_x[:500][unseen], losses.inside[:500][unseen], INSIDE, front + 2)
        _scatter(axes, moons.boundary_x[:3000][seen], losses.boundary[:3000][seen], BOUNDARY, front + 3)
    axes.set(xlim=(-1.2, 2.2), ylim=(-0.7, 1.2), zlim=(ground, top))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((3.4, 1.9, 1.35), zoom=1.08)
    axes.view_init(elev=52, azim=-84)
    axes.set_axis_off()
    axes.patch.set_visible(False)


def _scatter(axes: Any, x: Tensor, losses: Tensor, colour: str, zorder: int) -> None:
    height = np.log10(clip_losses(losses.numpy()))
    axes.scatter(*x.numpy().T, height, s=3.5, c=colour, linewidths=0, depthshade=False, zorder=zorder)


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
        _draw_strip(axes, place, values.numpy(), colour)
    axes.set_xticks([0, 1, 2], ["boundary", "inside", "between"], fontsize=10.5)
    axes.tick_params(length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value) if is_first else ""))
    axes.minorticks_off()
    if is_first:
        axes.set_ylabel("loss")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(verdict(summary), fontsize=10.5, loc="left", color=INK, pad=8, linespacing=1.4)


def _draw_strip(axes: Axes, place: int, losses: NDArray[np.float64], colour: str) -> None:
    """One column of points; those below the axis are counted instead."""
    shown = losses[:_N_SHOWN]
    axes.scatter(place + _even(len(shown)), shown, s=4, c=colour, alpha=0.4, linewidths=0, zorder=2)
    highest = losses.max()
    if place > 0:
        axes.plot([place - 0.33, place + 0.33], [highest] * 2, color=colour, linewidth=2.2, zorder=4)
    if place == 2:
        axes.text(place, highest * 1.3, f"{highest:.3g}", ha="center", fontsize=9, color=INK)
    below = float((losses < FLOOR).mean())
    if below > 0.005:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
        axes.text(place, FLOOR * 1.5, f"▾ {below:.0%} lower", ha="center", fontsize=8.5, color=INK, bbox=box)


def _even(n: int) -> NDArray[np.float64]:
    """Places that fill a column evenly, without chance: multiples of the golden ratio."""
    return (np.arange(n, dtype=np.float64) * 0.6180339887498949 % 1 - 0.5) * 0.62


def _power(value: float) -> str:
    exponent = round(np.log10(value))
    return {0: "1", 1: "10", -1: "0.1"}.get(exponent, f"$10^{{{exponent}}}$")
