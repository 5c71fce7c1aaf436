"""Figures 2 and 4 of the paper (1 and 3 are those of `elliptica demo`), written to docs/images.

Figure 2: the expected loss between four data points with losses that we chose, in a box whose walls reflect;
at the query point with its standard error and the share of walks that end at each datum; bridges to them.
Figure 4: the entropy of the predictions by class, as a share of the entropy of ignorance, from the records of
Table 6; class sizes are counted in the data, which must be there (ELLIPTICA_DATA)::

    python studies/paper_figures.py 2
    python studies/paper_figures.py 4
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke
from scipy.sparse.linalg import LaplacianNd, spsolve

from common import ROOT
from elliptica import sample_bridge
from elliptica.lab.experiments.records import read_records
from elliptica.lab.experiments.registry import load_dataset
from elliptica.lab.experiments.specification import load_specification, runs
from elliptica.landscape import Box, DataDomain, estimate_landscape

INK = "#22252e"
STYLE: dict[Any, Any] = {"font.family": "DejaVu Sans", "font.size": 7, "text.color": INK}

#: Positions of the paper's four points and of the query point, and losses that we chose.
POINTS, LOSSES = ((1.0, 2.0), (3.0, 3.0), (4.0, 1.0), (0.0, 0.0)), (0.9, 0.3, 0.6, 0.1)
QUERY, RADIUS = (2.1, 0.6), 0.28
LOW, HIGH = (-0.7, -0.7), (4.7, 3.7)

TITLES = {"breastmnist-per-batch": "Breast", "retinamnist": "Retina", "pathmnist_subset": "Path (a tenth)"}
METHODS = {"erm": ("ERM", "#7d8794"), "mixup": ("mixup", "#f08a24"), "elliptic": ("elliptic", "#1f5fbf")}


def estimate_shares(n_walks: int = 20_000) -> np.ndarray[Any, Any]:
    """Estimate the share of walks from the query point that end at each datum; all use the same walks."""
    points = torch.tensor(POINTS, dtype=torch.float64)
    low, high = (torch.tensor(corner, dtype=torch.float64) for corner in (LOW, HIGH))
    domain = DataDomain(points, epsilon=RADIUS, outer=Box(low, high, wall="reflect"))
    query = torch.tensor([QUERY], dtype=torch.float64)
    shares = []
    for values in torch.eye(len(POINTS), dtype=torch.float64):
        settings = {"n_walks": n_walks, "generator": torch.Generator().manual_seed(0)}
        estimate = estimate_landscape(0.0, domain, query, data_values=values, **settings)
        shares.append(float(estimate.value))
    return np.array(shares)


def solve_on_grid(size: int = 216) -> np.ndarray[Any, Any]:
    """Solve Laplace's equation around the balls by finite differences; walls reflect."""
    step = (HIGH[0] - LOW[0]) / size
    rows = round((HIGH[1] - LOW[1]) / step)
    x, y = (low + step * (np.arange(n) + 0.5) for low, n in zip(LOW, (size, rows), strict=True))
    places = np.stack(np.meshgrid(x, y), -1).reshape(-1, 1, 2)
    distance = np.linalg.norm(places - np.array(POINTS), axis=2)
    free = distance.min(1) > RADIUS
    u = np.where(free, 0.0, np.array(LOSSES)[distance.argmin(1)])
    laplacian = LaplacianNd((rows, size), boundary_conditions="neumann", dtype=float).tosparse().tocsr()
    u[free] = spsolve(laplacian[free][:, free].tocsc(), -(laplacian @ u)[free])
    return u.reshape(rows, size)


def draw_expected_loss() -> Figure:
    """Draw the expected loss between four data points, with bridges from the query point to each of them."""
    n_walks, losses = 20_000, np.array(LOSSES)
    shares = estimate_shares(n_walks)
    value = float(shares @ losses)
    error = float((shares @ losses**2 - value**2) / n_walks) ** 0.5
    points = torch.tensor(POINTS, dtype=torch.float64)
    query = torch.tensor([QUERY], dtype=torch.float64).expand_as(points)
    noise = {"sigma": 0.45, "generator": torch.Generator().manual_seed(0)}
    bridges = sample_bridge(query, points, n_times=121, n_bridges=2, **noise)
    halo = [withStroke(linewidth=1.6, foreground="white")]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.25, 2.35))
        axes = figure.add_axes((0.01, 0.02, 0.86, 0.96))
        extent = (LOW[0], HIGH[0], LOW[1], HIGH[1])
        look: dict[str, Any] = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0, "interpolation": "bilinear"}
        image = axes.imshow(solve_on_grid(), origin="lower", extent=extent, **look)
        for k, (centre, paths) in enumerate(zip(points, bridges, strict=True)):
            for path in paths:  # up to where it enters the ball
                inside = ((path - centre).norm(dim=1) < RADIUS).nonzero()
                end = int(inside[0]) + 1 if len(inside) else len(path)
                axes.plot(*path[:end].numpy().T, color=INK, linewidth=0.6)
            (left, up), loss = POINTS[k], LOSSES[k]
            colour = mpl.colormaps["viridis"](loss)
            axes.add_patch(Circle((left, up), RADIUS, facecolor=colour, edgecolor="white", zorder=4))
            tone = INK if loss > 0.5 else "white"
            axes.text(left, up, f"{loss:g}", ha="center", va="center", color=tone, zorder=5)
            name = f"$X^{{({k + 1})}}$  {shares[k]:.0%}"
            below = 0.52 if k == 3 else -RADIUS - 0.1
            axes.text(left, up - below, name, ha="center", path_effects=halo, zorder=5)
        axes.plot(*QUERY, "o", color="white", markeredgecolor=INK, markersize=4.5, zorder=6)
        words = f"$X^\\star$  {value:.3f} ± {error:.3f}"
        axes.text(QUERY[0], QUERY[1] - 0.24, words, ha="center", va="top", path_effects=halo, zorder=6)
        axes.set(xlim=extent[:2], ylim=extent[2:])
        axes.axis("off")
        figure.colorbar(image, cax=figure.add_axes((0.895, 0.1, 0.022, 0.78))).outline.set_visible(False)
    return figure


def chosen_runs(dataset: str, method: str) -> list[Any]:
    """The runs of Table 6 on one data set by one method."""
    return runs("table6", load_specification("table6"), datasets=[dataset], methods=[method])


def read_uncertainty(dataset: str, method: str) -> np.ndarray[Any, Any]:
    """Read the score of each class from the records: one row per seed."""
    records = read_records(ROOT / "results" / "tables", chosen_runs(dataset, method))
    scores = [record.metrics["test"].uncertainty for record in records]
    return np.array([[score[str(c)] for c in range(len(score))] for score in scores if score])


def draw_uncertainty() -> Figure:
    """Draw the score of each class, rarest first, scaled over all methods and classes of a data set."""
    sizes = {}
    for dataset in TITLES:
        run = chosen_runs(dataset, "erm")[0]
        sizes[dataset] = torch.bincount(load_dataset(run.load, run.seed).train.y).numpy()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.75, 1.9), layout="constrained")
        widths = [max(len(counts), 2.5) for counts in sizes.values()]
        panels = figure.subplots(1, len(sizes), squeeze=False, width_ratios=widths)[0]
        for axes, (dataset, counts) in zip(panels, sizes.items(), strict=True):
            order = np.argsort(counts, kind="stable")
            scores = {method: read_uncertainty(dataset, method)[:, order] for method in METHODS}
            means = np.stack([score.mean(0) for score in scores.values()])
            low, span, top = means.min(), np.ptp(means), 1.0
            for k, (method, (name, colour)) in enumerate(METHODS.items()):
                places = np.arange(len(order)) + (k - 1) * 0.27
                spread = scores[method].std(0, ddof=1) / span
                height = (means[k] - low) / span
                axes.bar(places, height, 0.25, yerr=spread, color=colour, label=name, error_kw={"lw": 0.5})
                top = max(top, float((height + spread).max()))
            for c, number in enumerate(order):
                axes.text(c, 1.09 * top, f"{counts[number]}", ha="center", fontsize=6)
            axes.set(ylim=(0, 1.18 * top), xlabel="class, rarest first", yticks=(0, 0.5, 1))
            axes.set_xticks(range(len(order)), [str(c) for c in order])
            axes.set_title(TITLES[dataset], loc="left", fontweight="bold")
        panels[0].set_ylabel("uncertainty score")
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper right", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    figure = {"2": draw_expected_loss, "4": draw_uncertainty}[sys.argv[1]]()
    figure.savefig(ROOT / "docs" / "images" / f"figure-{sys.argv[1]}.png", dpi=300)
