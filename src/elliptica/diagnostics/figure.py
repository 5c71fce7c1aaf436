"""The picture of `elliptica landscape`: losses at and between the data, and the surface in the plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from elliptica.diagnostics.reports import Inspector, Section
from elliptica.landscape.solve import estimate_landscape

_FLOOR = 1e-8
_GRID = 40
_COLOURS = {"at the data": "#444444", "between the data": "#d55e00", "test points": "#0072b2"}


def draw(inspector: Inspector, sections: list[Section], file: Path) -> None:
    """Write a PNG: two panels for any data, two more for data in the plane."""
    in_plane = inspector.flat.shape[1] == 2
    rows = 2 if in_plane else 1
    figure, axes = plt.subplots(rows, 2, figsize=(10, 4.2 * rows), layout="constrained", squeeze=False)
    _draw_tails(axes[0][0], inspector)
    _draw_map(axes[0][1], inspector, sections)
    if in_plane:
        _draw_surfaces(figure, axes[1], inspector)
    figure.suptitle(f"Loss landscape: {inspector.samples.name}")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _draw_tails(axis: Any, inspector: Inspector) -> None:
    """Share of points above each loss; to the right of the dashed line the bound is missed."""
    x, y = inspector.probes
    curves = {"at the data": inspector.at_data, "between the data": inspector.field(x, y)}
    if inspector.samples.test_x is not None:
        curves["test points"] = inspector.field(inspector.test_x, inspector.test_y)
    for name, losses in curves.items():
        ordered = losses.double().clamp_min(_FLOOR).sort().values.numpy()
        share = 1 - np.arange(len(ordered)) / len(ordered)
        axis.step(ordered, share, where="post", label=name, color=_COLOURS[name])
    axis.axvline(float(inspector.at_data.max().clamp_min(_FLOOR)), color="black", ls="--", lw=1)
    axis.set(xscale="log", yscale="log", xlabel="loss", ylabel="share of points above")
    axis.set_title("Beyond the dashed line: above every loss at the data", fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def _draw_map(axis: Any, inspector: Inspector, sections: list[Section]) -> None:
    """The loss of the network against what the PDE expects."""
    found = next((s.numbers for s in sections if s.name == "landscape"), None)
    if found is None:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no landscape was computed", ha="center")
        return
    u = np.maximum(np.array(found["value"], dtype=float), _FLOOR)
    rows = inspector.queries[: len(u)]
    losses = (
        inspector.field(inspector.test_x[rows], inspector.test_y[rows]).double().clamp_min(_FLOOR).numpy()
    )
    axis.errorbar(
        u,
        losses,
        xerr=np.array(found["stderr"], dtype=float),
        fmt="o",
        ms=3,
        lw=0.6,
        alpha=0.6,
        color="#0072b2",
    )
    ends = [min(u.min(), losses.min()), max(u.max(), losses.max())]
    axis.plot(ends, ends, color="black", lw=0.8)
    hits = np.median(np.array(found["hit_share"], dtype=float))
    axis.set(xscale="log", yscale="log", ylabel="loss of the network at the query")
    axis.set_xlabel(f"landscape u ({hits:.0%} of the walks end on the data, at the median)")
    axis.set_title("Above the line: worse than the PDE expects", fontsize=10)


def _draw_surfaces(figure: Any, axes: Any, inspector: Inspector) -> None:
    """Loss (label of the nearest datum) and u over the plane, on one colour scale."""
    flat = inspector.flat
    low, high = flat.amin(0), flat.amax(0)
    lines = [torch.linspace(float(low[i]), float(high[i]), _GRID) for i in range(2)]
    grid = torch.stack(torch.meshgrid(lines[0], lines[1], indexing="xy"), dim=2).flatten(0, 1)
    inside = inspector.domain.domain.distance(grid) > 0
    u = torch.full((len(grid),), torch.nan)
    u[inside] = estimate_landscape(
        lambda z: inspector.field(z.reshape(len(z), *inspector.samples.x.shape[1:]), _nearest(inspector, z)),
        inspector.domain,
        grid[inside],
        data_values=inspector.at_data,
        n_walks=100,
        generator=inspector.generator(),
    ).value
    loss = inspector.field(grid.reshape(len(grid), *inspector.samples.x.shape[1:]), _nearest(inspector, grid))
    values = [v.double().clamp_min(_FLOOR).log10().reshape(_GRID, _GRID) for v in (loss, u)]
    finite = torch.cat([v[v.isfinite()] for v in values])
    for axis, value, title in zip(axes, values, ("loss of the network", "landscape u"), strict=True):
        image = axis.pcolormesh(
            lines[0].numpy(),
            lines[1].numpy(),
            value.numpy(),
            cmap="viridis",
            vmin=float(finite.min()),
            vmax=float(finite.max()),
        )
        axis.scatter(*flat.T.numpy(), s=4, color="white", edgecolors="black", lw=0.2)
        axis.set(xticks=[], yticks=[], title=title)
    figure.colorbar(image, ax=list(axes), label="log10 loss", shrink=0.8)


def _nearest(inspector: Inspector, z: Tensor) -> Tensor:
    return inspector.samples.y[torch.cdist(z, inspector.flat).argmin(1)]
