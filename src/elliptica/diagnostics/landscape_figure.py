"""Draw the figure of the landscape reports: losses at and between the data, and surfaces in the plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from elliptica._utils.files import replacing
from elliptica.diagnostics.landscape_reports import LandscapeReports, Section
from elliptica.landscape.solve import estimate_landscape

_FLOOR = 1e-8
_GRID = 40
_COLOURS = {"at the data": "#444444", "between the data": "#d55e00", "test points": "#0072b2"}


def draw_landscape(reports: LandscapeReports, sections: list[Section], title: str, file: Path) -> None:
    """Draw a PNG: two panels for any data, two more for data in the plane."""
    in_plane = reports.flat.shape[1] == 2
    rows = 2 if in_plane else 1
    figure, axes = plt.subplots(rows, 2, figsize=(10, 4.2 * rows), layout="constrained", squeeze=False)
    _draw_tails(axes[0][0], reports)
    _draw_map(axes[0][1], reports, sections)
    if in_plane:
        _draw_surfaces(figure, axes[1], reports)
    figure.suptitle(title)
    with replacing(file) as part:
        figure.savefig(part, format="png", dpi=120)
    plt.close(figure)


def _draw_tails(axis: Any, reports: LandscapeReports) -> None:
    """Draw the share of points above each loss; right of the dashed line the bound is exceeded."""
    x, y = reports.probes
    curves = {"at the data": reports.at_data, "between the data": reports.field(x, y)}
    if reports.fitted.test is not None:
        curves["test points"] = reports.field(reports.test_x, reports.test_y)
    for name, losses in curves.items():
        ordered = losses.double().clamp_min(_FLOOR).sort().values.numpy()
        share = 1 - np.arange(len(ordered)) / len(ordered)
        axis.step(ordered, share, where="post", label=name, color=_COLOURS[name])
    axis.axvline(float(reports.at_data.max().clamp_min(_FLOOR)), color="black", ls="--", lw=1)
    axis.set(xscale="log", yscale="log", xlabel="loss", ylabel="share of points above")
    axis.set_title("Beyond the dashed line: above every loss at the data", fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def _draw_map(axis: Any, reports: LandscapeReports, sections: list[Section]) -> None:
    """Draw the loss of the network against what the PDE expects."""
    numbers = next((s.numbers for s in sections if s.name == "landscape"), None)
    if numbers is None:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no landscape was computed", ha="center")
        return
    u = np.maximum(np.array(numbers["value"], dtype=float), _FLOOR)
    rows = reports.queries[: len(u)]
    losses = reports.field(reports.test_x[rows], reports.test_y[rows]).double().clamp_min(_FLOOR).numpy()
    axis.errorbar(
        u,
        losses,
        xerr=np.array(numbers["stderr"], dtype=float),
        fmt="o",
        ms=3,
        lw=0.6,
        alpha=0.6,
        color="#0072b2",
    )
    ends = [min(u.min(), losses.min()), max(u.max(), losses.max())]
    axis.plot(ends, ends, color="black", lw=0.8)
    hits = np.median(np.array(numbers["hit_share"], dtype=float))
    axis.set(xscale="log", yscale="log", ylabel="loss of the network at the query")
    axis.set_xlabel(f"landscape u ({hits:.0%} of the walks end on the data, at the median)")
    axis.set_title("Above the line: worse than the PDE expects", fontsize=10)


def _draw_surfaces(figure: Any, axes: Any, reports: LandscapeReports) -> None:
    """Draw loss (label of the nearest datum) and u over the plane, on one colour scale."""
    flat = reports.flat
    low, high = flat.amin(0), flat.amax(0)
    lines = [torch.linspace(float(low[i]), float(high[i]), _GRID) for i in range(2)]
    grid = torch.stack(torch.meshgrid(lines[0], lines[1], indexing="xy"), dim=2).flatten(0, 1)
    inside = reports.domain.domain.distance(grid) > 0
    u = torch.full((len(grid),), torch.nan)
    u[inside] = estimate_landscape(
        lambda z: reports.field(z.reshape(len(z), *reports.fitted.x.shape[1:]), _nearest(reports, z)),
        reports.domain,
        grid[inside],
        data_values=reports.at_data,
        n_walks=100,
        generator=reports.generator(),
    ).value
    loss = reports.field(grid.reshape(len(grid), *reports.fitted.x.shape[1:]), _nearest(reports, grid))
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


def _nearest(reports: LandscapeReports, z: Tensor) -> Tensor:
    return reports.fitted.y[torch.cdist(z, reports.flat).argmin(1)]
