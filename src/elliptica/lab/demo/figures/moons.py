"""Two moons: loss surfaces (paper: Fig. 1), and losses on the boundary and inside (paper: Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from elliptica.lab.data.toy import two_moons
from elliptica.lab.demo.figures.style import STYLE, WIDTHS, Width, label_panel, new_figure
from elliptica.lab.demo.look import BOUNDARY, INK, INSIDE, SURFACE
from elliptica.lab.demo.settings import NAMES, DemoSettings, Method
from elliptica.lab.demo.study import Exhibit, evaluate_losses, moon_surfaces
from elliptica.lab.demo.training import stream, train

#: Surfaces and points are drawn between these losses.
FLOOR, TOP = 1e-4, 1.0
_NORM = LogNorm(FLOOR, TOP)
#: Points that are drawn: on the boundary, inside.
_SHOWN = (1000, 250)


def train_exhibits(
    methods: Sequence[Method], settings: DemoSettings | None = None, seed: int = 0
) -> dict[Method, Exhibit]:
    """Train the demo's network by each method, with the demo's data and streams of one seed."""
    settings = settings or DemoSettings()
    moons = two_moons(settings.n_boundary, settings.n_interior, generator=stream(seed, "data"))
    found: dict[Method, Exhibit] = {}
    for method in methods:
        network = train(method, moons, settings, seed).network
        found[method] = Exhibit(network, moons, evaluate_losses(network, moons, stream(seed, "between")))
    return found


def draw_surfaces(exhibits: dict[Method, Exhibit], width: Width = "page") -> Figure:
    """Loss surfaces over the two moons, side by side (paper: Fig. 1).

    Blue points are the training data on the boundary, orange ones unseen points inside; the ring marks the
    largest loss inside. Below each surface stands whether the maximum principle holds there.

    Args:
        exhibits: Trained networks, see `train_exhibits`.
        width: Of a column or of the page.
    """
    height = {"column": 1.45, "page": 2.5}[width]
    with mpl.rc_context(STYLE):
        figure = new_figure(width, height)
        n, right = len(exhibits), 0.1 if width == "page" else 0.15
        for column, (method, exhibit) in enumerate(exhibits.items()):
            left, share = column * (1 - right) / n, (1 - right) / n
            figure.text(left + 0.5 * share, 0.92, NAMES[method], ha="center", fontweight="bold", fontsize=8)
            tall = share * WIDTHS[width] / height  # a square: the surface fills its middle
            box = (left, 0.54 - tall / 2, share, tall)
            axes: Any = figure.add_axes(box, projection="3d", computed_zorder=False)
            _draw_surface(axes, exhibit, 2.0 if width == "page" else 0.7)
            words, size = _verdict(exhibit), 7 if width == "page" else 6
            figure.text(left + 0.5 * share, 0.03, words, ha="center", linespacing=1.35, fontsize=size)
        bar_axes = figure.add_axes((1.005 - right, 0.34, 0.012, 0.42))
        bar = figure.colorbar(mpl.cm.ScalarMappable(_NORM, SURFACE), cax=bar_axes)
        bar.ax.minorticks_off()
        bar.ax.tick_params(length=0, labelsize=6, pad=1.5)
        bar.ax.set_title("loss", fontsize=6.5, pad=4)
        bar.outline.set_visible(False)
    return figure


def _verdict(exhibit: Exhibit) -> str:
    outer, inner = (float(losses.max()) for losses in (exhibit.losses.boundary, exhibit.losses.inside))
    sign, words = ("≥", "bound kept") if outer >= inner else ("<", "bound broken")
    return f"boundary {outer:.2g} {sign} inside {inner:.2g}\n{words}"


def _draw_surface(axes: Any, exhibit: Exhibit, size: float) -> None:
    """Surface, rim and unseen points above their shadow; heights are logarithms."""
    ground = np.log10(FLOOR) - 0.6
    flat = {"rcount": 120, "linewidth": 0, "shade": False, "antialiased": False, "rasterized": False}
    moons, losses = exhibit.moons, exhibit.losses
    for moon, surface in enumerate(moon_surfaces(exhibit.network, n_along=120, n_across=17)):
        loss = np.clip(surface.loss, FLOOR, TOP)
        grid = (surface.x, surface.y)
        axes.plot_surface(*grid, np.full_like(loss, ground), color="#ececf1", ccount=2, zorder=0, **flat)
        front = 3 * moon  # the lower moon is in front of the upper one
        colours = mpl.colormaps[SURFACE](_NORM(loss))
        axes.plot_surface(*grid, np.log10(loss), facecolors=colours, ccount=17, zorder=front + 1, **flat)
        for x, y, values, n, colour, above in (
            (moons.interior_x, moons.interior_y, losses.inside, _SHOWN[1], INSIDE, 2),
            (moons.boundary_x, moons.boundary_y, losses.boundary, _SHOWN[0], BOUNDARY, 3),
        ):
            rows = (y[:n] == moon).numpy()
            height = np.log10(np.clip(values[:n].numpy()[rows], FLOOR, TOP))
            points = x[:n].numpy()[rows].T
            axes.scatter(
                *points, height, s=size, c=colour, linewidths=0, depthshade=False, zorder=front + above
            )
    worst = int(losses.inside.argmax())
    height = np.log10(np.clip(float(losses.inside[worst]), FLOOR, TOP))
    place = [[float(v)] for v in moons.interior_x[worst]]
    ring = {"s": 14 * size**0.5, "facecolors": "none", "edgecolors": INK, "linewidths": 0.7, "zorder": 8}
    axes.scatter(*place, [height], depthshade=False, **ring)
    axes.set(xlim=(-1.2, 2.2), ylim=(-0.7, 1.2), zlim=(ground, np.log10(TOP)))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((3.4, 1.9, 1.35), zoom=1.12)
    axes.view_init(elev=52, azim=-84)
    axes.set_axis_off()
    axes.patch.set_visible(False)


def draw_boundary_losses(exhibits: dict[Method, Exhibit], width: Width = "column") -> Figure:
    """Losses on the boundary and inside, one panel per method (paper: Fig. 3).

    The dashed line is the largest loss on the boundary, the bar the largest one inside.

    Args:
        exhibits: Trained networks, see `train_exhibits`.
        width: Of a column or of the page.
    """
    with mpl.rc_context(STYLE):
        figure = new_figure(width, {"column": 1.9, "page": 2.4}[width])
        panels = figure.subplots(1, len(exhibits), sharey=True, squeeze=False)[0]
        left = 0.15 if width == "column" else 0.075
        figure.subplots_adjust(left=left, right=0.995, top=0.9, bottom=0.12, wspace=0.1)
        low = min(float(e.losses.boundary.min()) for e in exhibits.values())
        floor = 10.0 ** max(np.floor(np.log10(low)), -5)
        for axes, (method, exhibit) in zip(panels, exhibits.items(), strict=True):
            _draw_panel(axes, exhibit, floor, width)
            label_panel(axes, NAMES[method])
        panels[0].set_ylabel("loss")
    return figure


def _draw_panel(axes: Axes, exhibit: Exhibit, floor: float, width: Width) -> None:
    groups = ((exhibit.losses.boundary, BOUNDARY), (exhibit.losses.inside, INSIDE))
    highest = float(exhibit.losses.boundary.max())
    axes.set_yscale("log")
    axes.set(ylim=(floor, 3 * TOP), xlim=(-0.55, 1.55))
    axes.axhline(highest, color=INK, linestyle=(0, (4, 2.5)), linewidth=0.8, zorder=3)
    axes.text(1.5, highest * 1.25, f"{highest:.3g}", ha="right", fontsize=6.5)
    for place, (losses, colour) in enumerate(groups):
        values = losses.numpy()[:800]
        axes.scatter(
            place + _spread(len(values)), values, s=1.4, c=colour, alpha=0.55, linewidths=0, zorder=2
        )
        if place:  # the largest of all, also of those that are not drawn
            axes.plot(
                [place - 0.3, place + 0.3], [float(losses.max())] * 2, color=colour, linewidth=1.2, zorder=4
            )
        below = float((losses.numpy() < floor).mean())
        if below > 0.005:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}
            words = f"{below:.0%}\nlower"
            axes.text(place, floor * 1.4, words, ha="center", fontsize=5.5, color=INK, bbox=box, zorder=4)
    axes.set_xticks([0, 1], ["boundary", "inside"])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_locator(LogLocator(10, numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())


def _spread(n: int) -> NDArray[np.float64]:
    """Places that fill a column evenly, without chance: multiples of the golden ratio."""
    return (np.arange(n, dtype=np.float64) * 0.6180339887498949 % 1 - 0.5) * 0.6
