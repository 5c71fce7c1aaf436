"""Draw the expected loss between data, the solution of an equation, with bridges (paper: Fig. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke
from torch import Tensor

from elliptica.core.bridge import sample_bridge
from elliptica.lab.demo.figures import INK, PRINT, SURFACE, Width, draw_colour_bar, new_figure
from elliptica.landscape import Box, DataDomain, estimate_landscape

#: Positions of the paper's four points and of the query point, and losses that we chose.
POINTS = ((1.0, 2.0), (3.0, 3.0), (4.0, 1.0), (0.0, 0.0))
LOSSES = (0.9, 0.3, 0.6, 0.1)
QUERY = (2.1, 0.6)
RADIUS = 0.28
_LOW, _HIGH = (-0.7, -0.7), (4.7, 3.7)


@dataclass(frozen=True)
class ExpectedLoss:
    """Content of the figure."""

    #: Expected loss over the box, ``(rows, columns)`` from its lower left corner; the given loss within the
    #: balls.
    values: Tensor
    bridges: Tensor  # from the query point to each datum, ``(data, bridge, time, 2)``
    value: float  # expected loss at the query point, by walks
    error: float  # its standard error
    shares: tuple[float, ...]  # share of walks from there that end at each datum


def solve_expected_loss(*, n_walks: int = 20_000, size: int = 216, seed: int = 0) -> ExpectedLoss:
    """Solve Laplace's equation around four balls of given loss, in a box with reflecting walls.

    The background is solved on a grid; the value at the query point and its parts come from walks.
    """
    points = torch.tensor(POINTS, dtype=torch.float64)
    low, high = (torch.tensor(corner, dtype=torch.float64) for corner in (_LOW, _HIGH))
    domain = DataDomain(points, epsilon=RADIUS, outer=Box(low, high, wall="reflect"))
    query = torch.tensor([QUERY], dtype=torch.float64)
    shares, squares = [], 0.0
    for number, loss in enumerate(LOSSES):
        estimate = estimate_landscape(
            0.0,
            domain,
            query,
            n_walks=n_walks,
            data_values=torch.eye(len(POINTS), dtype=torch.float64)[number],
            generator=torch.Generator().manual_seed(seed),  # the same walks for each datum
        )
        shares.append(float(estimate.value))
        squares += loss**2 * shares[-1]
    value = sum(loss * share for loss, share in zip(LOSSES, shares, strict=True))
    bridges = sample_bridge(
        query.expand(len(points), 2),
        points,
        n_times=121,
        n_bridges=2,
        sigma=0.45,
        generator=torch.Generator().manual_seed(seed),
    )
    error = ((squares - value**2) / n_walks) ** 0.5
    return ExpectedLoss(solve_on_grid(size), bridges, value, error, tuple(shares))


def solve_on_grid(size: int, *, tolerance: float = 1e-8) -> Tensor:
    """Solve the same equation by finite differences and conjugate gradients on a grid."""
    rows = round(size * (_HIGH[1] - _LOW[1]) / (_HIGH[0] - _LOW[0]))
    step = (_HIGH[0] - _LOW[0]) / size
    x = _LOW[0] + step * (torch.arange(size, dtype=torch.float64) + 0.5)
    y = _LOW[1] + step * (torch.arange(rows, dtype=torch.float64) + 0.5)
    places = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    distance, nearest = torch.cdist(places, torch.tensor(POINTS, dtype=torch.float64)).min(1)
    free = (distance > RADIUS).reshape(rows, size)
    given = torch.tensor(LOSSES, dtype=torch.float64)[nearest].reshape(rows, size)

    def laplacian(u: Tensor) -> Tensor:
        """Sum the differences to neighbours; there are none beyond a wall, so that it reflects."""
        out = torch.zeros_like(u)
        for axis in (0, 1):
            step_up = u.diff(dim=axis)
            out.narrow(axis, 0, u.shape[axis] - 1).sub_(step_up)
            out.narrow(axis, 1, u.shape[axis] - 1).add_(step_up)
        return out

    fixed = torch.where(free, 0.0, given)
    residual = torch.where(free, -laplacian(fixed), 0.0)
    u, direction = torch.zeros_like(fixed), residual.clone()
    size_now = float(residual.square().sum())
    goal = tolerance**2 * size_now
    while size_now > goal:
        image = torch.where(free, laplacian(direction), 0.0)
        length = size_now / float((direction * image).sum())
        u, residual = u + length * direction, residual - length * image
        size_before, size_now = size_now, float(residual.square().sum())
        direction = residual + size_now / size_before * direction
    return u + fixed


def draw_expected_loss(found: ExpectedLoss, width: Width = "column") -> Figure:
    """Draw the expected loss between four data points, with bridges from the query point to each of them."""
    with mpl.rc_context(PRINT):
        figure = new_figure(width, {"column": 2.35, "page": 4.4}[width])
        axes = figure.add_axes((0.01, 0.02, 0.86, 0.96))
        extent = (_LOW[0], _HIGH[0], _LOW[1], _HIGH[1])
        image = axes.imshow(
            found.values.numpy(),
            origin="lower",
            extent=extent,
            cmap=SURFACE,
            vmin=0.0,
            vmax=1.0,
            interpolation="bilinear",
        )
        _draw_bridges(axes, found)
        halo = [withStroke(linewidth=1.6, foreground="white")]
        for k, (place, loss) in enumerate(zip(POINTS, LOSSES, strict=True), 1):
            colour = mpl.colormaps[SURFACE](loss)
            axes.add_patch(
                Circle(place, RADIUS, facecolor=colour, edgecolor="white", linewidth=0.8, zorder=4)
            )
            tone = INK if loss > 0.5 else "white"
            axes.text(*place, f"{loss:g}", ha="center", va="center", fontsize=6.5, color=tone, zorder=5)
            name = f"$X^{{({k})}}$  {found.shares[k - 1]:.0%}"
            shape: dict[str, Any] = {"ha": "center", "fontsize": 6.5, "zorder": 5, "path_effects": halo}
            above = place[1] + RADIUS + 0.1 if k != 4 else place[1] - RADIUS - 0.14
            at = "bottom" if k != 4 else "top"
            axes.text(place[0], above, name, va=at, **shape)
        axes.plot(*QUERY, "o", color="white", markeredgecolor=INK, markersize=4.5, zorder=6)
        words = f"$X^\\star$  {found.value:.3f} ± {found.error:.3f}"
        axes.text(QUERY[0], QUERY[1] - 0.24, words, ha="center", va="top", zorder=6, path_effects=halo)
        axes.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
        axes.axis("off")
        draw_colour_bar(figure, figure.add_axes((0.895, 0.1, 0.022, 0.78)), image)
    return figure


def _draw_bridges(axes: mpl.axes.Axes, found: ExpectedLoss) -> None:
    """Draw paths up to where they enter the ball."""
    for centre, paths in zip(torch.tensor(POINTS, dtype=torch.float64), found.bridges, strict=True):
        for path in paths:
            inside = ((path - centre).norm(dim=1) < RADIUS).numpy()
            end = int(np.argmax(inside)) + 1 if inside.any() else len(path)
            axes.plot(*path[:end].numpy().T, color=INK, linewidth=0.6, alpha=0.9, zorder=3)
