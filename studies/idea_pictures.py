"""Draw the pictures of docs/idea.md: a bridge and its band, labels on the simplex, the loss along bridges.

`python studies/idea_pictures.py` writes them to docs/images. Every point in them is
drawn by the library's own functions.
"""

from __future__ import annotations

import math

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import elliptica
from common import ROOT
from elliptica.landscape.loss import excess_cross_entropy
from loss_landscape import load_two_moons, train

INK, MUTED, BLUE, ORANGE, GREEN, BAND = "#22252e", "#6a6f7d", "#1f5fbf", "#f08a24", "#2a8f5b", "#dbe6f7"
COLOURS, NAMES = {"erm": MUTED, "mixup": GREEN, "elliptic": BLUE}, {"erm": "ERM"}
STYLE = {
    **{"font.size": 11, "legend.frameon": False},
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    **{"axes.edgecolor": MUTED, "axes.spines.right": False, "axes.spines.top": False},
    **{"axes.titlelocation": "left", "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlepad": 12},
}


def stream(seed: int = 0) -> torch.Generator:
    """A random stream of its own for each picture."""
    return torch.Generator().manual_seed(seed)


def draw_bridge() -> Figure:
    """Left: bridges on a grid and their two-sigma band. Right: one point of each bridge."""
    sigma, start, end = 0.5, torch.zeros(1, 1), torch.ones(1, 1)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    s = torch.linspace(0, 1, 201)
    fine = elliptica.sample_bridge(start, end, n_times=201, n_bridges=4, sigma=sigma, generator=stream(3))
    for path in fine[0, :, :, 0]:
        left.plot(s, path, color=BLUE, linewidth=0.8, alpha=0.55)
    coarse = elliptica.sample_bridge(start, end, n_times=5, sigma=sigma, generator=stream(5))[0, 0, :, 0]
    left.plot(torch.linspace(0, 1, 5), coarse, "o-", color=ORANGE, linewidth=1.2, markersize=8, zorder=3)
    look = {"color": ORANGE, "arrowprops": {"arrowstyle": "-", "color": ORANGE}}
    words = "what the model sees of a bridge:\nn_times = 5 points"
    left.annotate(words, (0.5, float(coarse[2])), (0.5, -0.3), **look)
    left.set_title('sampling="path": points of one bridge')
    x, y = torch.cat([start, end]).repeat(40, 1), torch.zeros(80, 1)
    partners = torch.arange(80) + torch.tensor([1, -1]).repeat(40)
    settings = {"target_space": "real", "sampling": "marginal", "sigma": sigma, "generator": stream(1)}
    paths = elliptica.sample_paths(x, y, partners=partners, **settings)
    from_end = torch.arange(80) % 2 == 1  # these bridges run the other way
    times = torch.where(from_end, 1 - paths.s.flatten(), paths.s.flatten())
    right.plot(times, paths.x.flatten(), "o", color=ORANGE, markersize=6, alpha=0.6)
    right.set_title('sampling="marginal": one point of a bridge')
    for axes in (left, right):
        width = 2 * sigma * (s * (1 - s)).sqrt()
        axes.fill_between(s, s - width, s + width, color=BAND, zorder=0, label="mean ± 2 deviations")
        axes.plot(s, s, color=MUTED, linestyle="--", linewidth=1, label="straight line (mixup, sigma = 0)")
        axes.plot([0, 1], [0, 1], "o", color=INK, markersize=9, zorder=4)
        axes.set(xlabel="time s along the bridge", ylim=(-0.5, 1.4))
    left.set_ylabel("one coordinate of the input")
    left.annotate("a data point", (0, 0), (0.0, -0.36))
    left.annotate("its partner", (1, 1), (0.84, 1.24))
    here = int(((times == 0) | (times == 1)).sum())
    words = f"{here} of the 80 are data points\n(two of the five times)"
    right.annotate(words, (0, 0), (0.0, 1.02), color=ORANGE)
    right.legend(loc="lower right")
    return figure


def _corner(p: Tensor) -> tuple[Tensor, Tensor]:
    """Place of class probabilities in an equilateral triangle."""
    return p[..., 1] + 0.5 * p[..., 2], p[..., 2] * math.sqrt(3) / 2


def _triangle(axes: Axes, sigma_y: float) -> None:
    labels, settings = torch.eye(3), {"n_times": 33, "n_bridges": 8, "generator": stream(2)}
    free = elliptica.sample_bridge(labels[:1], labels[1:2], sigma=sigma_y, **settings)
    axes.plot(*_corner(labels[[0, 1, 2, 0]]), color=MUTED, linewidth=1)
    for path in elliptica.project_to_simplex(free[0]):
        axes.plot(*_corner(path), ".-", color=BLUE, markersize=4, linewidth=0.6, alpha=0.7)
    axes.plot(*_corner(labels[:2]), "--", color=MUTED, linewidth=1)
    axes.plot(*_corner(labels[:2]), "o", color=INK, markersize=9, zorder=4)
    for k, (dx, dy) in enumerate([(-0.04, -0.09), (-0.02, -0.09), (-0.06, 0.04)]):
        a, b = _corner(labels[k])
        axes.text(float(a) + dx, float(b) + dy, f"class {'ABC'[k]}")
    axes.set_title(f"labels from A to B, sigma_y = {sigma_y}")
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.14, 0.98), aspect="equal")
    axes.axis("off")


def draw_labels() -> Figure:
    """Left: label bridges in the triangle of three classes. Right: what the map leaves on the true class."""
    figure = Figure(figsize=(12.5, 4.1), layout="constrained")
    small, large, mass = figure.subplots(1, 3, width_ratios=[1, 1, 1.15])
    _triangle(small, 0.05)
    _triangle(large, 0.3)
    classes = [2, 3, 5, 10, 20, 50, 100, 200]
    maps = [("euclidean", GREEN, "nearest point"), ("abs", BLUE, "the paper's map (default)")]
    for how, colour, words in maps:
        left = []
        for k in classes:
            label = torch.eye(k)[:1].expand(4000, k)
            bridges = elliptica.sample_bridge(label, label, n_times=3, sigma=0.05, generator=stream(k))
            left.append(float(elliptica.project_to_simplex(bridges[:, 0, 1], how)[:, 0].mean()))
        mass.plot(classes, left, "o-", color=colour, label=f'simplex="{how}": {words}')
    mass.set(xscale="log", ylim=(0, 1.05), xlabel="number of classes")
    mass.set_xticks(classes, [str(k) for k in classes])
    mass.minorticks_off()
    mass.set_title("mass left on the true class, sigma_y = 0.05\n(half-way, both ends of one class)")
    mass.legend(loc="lower left")
    return figure


def draw_loss() -> Figure:
    """Loss of three networks along bridges between the two classes: one bridge, and all of them."""
    problem = load_two_moons(0)
    x, y = problem.x, problem.y
    space = {"target_space": "simplex", "num_classes": 2, "end": (x[y == 1], y[y == 1])}
    settings = {"sampling": "path", "n_times": 101, "sigma": 0.05, "generator": stream(4)}
    paths = elliptica.sample_paths(x[y == 0], y[y == 0], **space, **settings)
    losses = {}
    for method in COLOURS:
        output = train(problem, method, 0)(paths.x.flatten(0, 2)).detach()
        losses[method] = excess_cross_entropy(output, paths.y.flatten(0, 2)).view(-1, 101)
    one = int(losses["erm"].mean(1).argsort()[len(x) // 4])  # the bridge of median loss
    figure = Figure(figsize=(12.5, 4.1), layout="constrained")
    place, single, many = figure.subplots(1, 3, width_ratios=[1.15, 1, 1])
    for k, colour in enumerate((BLUE, ORANGE)):
        place.plot(*x[y == k].T, ".", color=colour, markersize=6, alpha=0.6)
    place.plot(*paths.x[one, 0].T, color=INK, linewidth=1.8)
    place.plot(*paths.x[one, 0, [0, -1]].T, "o", color=INK, markersize=7)
    place.set(aspect="equal")
    place.axis("off")
    place.set_title("200 training points and one bridge")
    s = torch.linspace(0, 1, 101)
    for method, colour in COLOURS.items():
        single.plot(s, losses[method][one], color=colour, label=NAMES.get(method, method))
        low, middle, high = losses[method].quantile(torch.tensor([0.1, 0.5, 0.9]), dim=0)
        if method != "mixup":  # its band covers that of elliptic training
            many.fill_between(s, low, high, color=colour, alpha=0.18, linewidth=0)
        many.plot(s, middle, color=colour, label=NAMES.get(method, method))
    single.set_title("loss along that bridge")
    many.set_title("median over 100 bridges")
    for axes in (single, many):
        axes.set(yscale="log", ylim=(1e-3, 60), xlabel="time s along the bridge")
        axes.legend(loc="upper right", ncols=3, fontsize=10, columnspacing=1)
    single.set_ylabel("cross-entropy minus entropy of the label")
    return figure


if __name__ == "__main__":
    pictures = {"bridge": draw_bridge, "label_bridge": draw_labels, "loss_along_bridges": draw_loss}
    with mpl.rc_context(STYLE):
        for name, draw in pictures.items():
            draw().savefig(ROOT / "docs" / "images" / f"{name}.png", dpi=120)
