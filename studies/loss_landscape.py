"""Study: does elliptic training bring a network closer to the maximum principle, and by how much?

Trains small networks on two moons and on scikit-learn's digits (ten principal components) by ERM, mixup
and elliptic training, and looks at the loss between the data. On two moons it also solves the PDE with the
training losses on balls around the data, and compares each network with that landscape. Ten seeds::

    python studies/loss_landscape.py run        # what is not recorded yet, then the tables and the picture
    python studies/loss_landscape.py table      # tables and picture from the records (the picture retrains)
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

import elliptica
from common import Record, Study, accuracy, descend, paired_p, spread, table
from elliptica.baselines import ERM, Mixup
from elliptica.lab.data import two_moons
from elliptica.lab.models import mlp
from elliptica.landscape import Box, DataDomain, LossField, Operator, bridge_probes, subharmonicity_report
from elliptica.landscape.data_domain import nearest_other
from elliptica.landscape.loss import excess_cross_entropy
from elliptica.landscape.walks import walk_on_spheres
from green_bridge import screened

N_SEEDS, N_WALKS = 10, 300
METHODS = ("erm", "mixup", "elliptic", "elliptic, PDE's noise")
#: Length of the step between two classes, as between one-hot rows.
LABEL_SPAN = 2**0.5


@dataclass(frozen=True)
class Problem:
    """Data of one seed, and how networks are trained on them."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    n_classes: int
    hidden: tuple[int, ...]
    batch: int
    pde_sigma: Any


def load_two_moons(seed: int) -> Problem:
    """200 points in the two moons."""
    moons = two_moons(0, 1200, generator=torch.Generator().manual_seed(seed))
    x, y = moons.interior_x, moons.interior_y
    # Green's law needs three dimensions; the screened one exists in the plane. Rate: n**2 / (2 r**2)
    # for pairs at distance 1.
    return Problem(x[:200], y[:200], x[200:], y[200:], 2, (32, 32), 50, partial(screened, rate=2.0))


def load_digits(seed: int) -> Problem:
    """1000 digits for training, 797 for testing, in ten principal components of the training rows."""
    pixels, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1000], order[1000:]
    centre = x[train].mean(0)
    z = (x - centre) @ torch.linalg.svd(x[train] - centre, full_matrices=False).Vh[:10].T
    z = z / z[train].std()
    return Problem(z[train], y[train], z[test], y[test], 10, (64, 64), 100, elliptica.Green())


LOADERS: dict[str, Callable[[int], Problem]] = {"two moons": load_two_moons, "digits": load_digits}


def train(problem: Problem, method: str, seed: int, n_steps: int = 2000) -> nn.Module:
    """A network after training; every method makes the same number of evaluations."""
    torch.manual_seed(seed)
    model = mlp(problem.x.shape[1], problem.n_classes, hidden=problem.hidden, activation="tanh")
    loss_fn, sigma = nn.CrossEntropyLoss(), 0.05 if method == "elliptic" else problem.pde_sigma
    settings = {"num_classes": problem.n_classes, "sigma": sigma, "sigma_y": 0.0}
    others = {"erm": ERM(model, loss_fn), "mixup": Mixup(model, loss_fn, alpha=1.0)}
    objective = others.get(method) or elliptica.Elliptic(model, loss_fn, **settings)
    order, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(10_000 + seed)

    def losses() -> Iterator[Tensor]:
        for _ in range(n_steps):
            rows = torch.randint(len(problem.x), (problem.batch,), generator=order)
            yield objective(problem.x[rows], problem.y[rows], generator=noise)

    return descend(model, losses(), 1e-2, n_steps).eval()


def walk(problem: Problem, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Share of the walks from each probe that meet each datum of two moons first.

    Inputs and label together (three dimensions) between reflecting walls, by walk on spheres. Walks do not
    depend on the network, so all methods of a seed share them.
    """
    hard = F.one_hot(problem.y, 2)
    points, at = (torch.cat([a, LABEL_SPAN * b[:, 1:].to(a)], 1) for a, b in ((problem.x, hard), (x, y)))
    both = torch.cat([points, at])
    domain = DataDomain(points, outer=Box(both.amin(0) - 0.05, both.amax(0) + 0.05, wall="reflect"))
    starts, generator = at.repeat_interleave(N_WALKS, 0), torch.Generator().manual_seed(seed)
    shell = 1e-2 * float(domain.radii.min())
    walks = walk_on_spheres(domain, starts, Operator(), shell=shell, generator=generator)
    assert bool((walks.label >= 0).all())  # reflecting walls: every walk ends on a ball
    flat = torch.arange(len(at)).repeat_interleave(N_WALKS) * len(points) + walks.label
    return torch.bincount(flat, minlength=len(at) * len(points)).reshape(len(at), -1).double() / N_WALKS


def landscape(hits: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """The PDE's solution with these losses on the balls, and its standard error."""
    value, square = hits @ losses.double(), hits @ losses.double().square()
    return value, (square - value**2).clamp_min(0).sqrt() / N_WALKS**0.5


def between(problem: Problem, seed: int) -> tuple[Tensor, Tensor]:
    """1000 points on bridges between the data."""
    generator = torch.Generator().manual_seed(20_000 + seed)
    rows = torch.randint(len(problem.x), (1000,), generator=generator)
    settings = {"sampling": "marginal", "quadrature": "uniform", "sigma": 0.05, "sigma_y": 0.0}
    space = {"target_space": "simplex", "num_classes": problem.n_classes}
    return bridge_probes(problem.x[rows], problem.y[rows], **space, **settings, generator=generator)


def measure(
    problem: Problem, probes: tuple[Tensor, Tensor], hits: Tensor | None, model: nn.Module, seed: int
) -> Record:
    """One network in numbers, at the data, at 1000 probes between them and at 500 test points."""
    field = LossField(model, excess_cross_entropy)
    hard, test_hard = (F.one_hot(y, problem.n_classes).float() for y in (problem.y, problem.test_y))
    at_data, losses = field(problem.x, hard), field(*probes).double()
    places = {"between": losses, "test": field(problem.test_x[:500], test_hard[:500])}
    found: Record = {}
    for place, there in places.items():
        check = elliptica.check_maximum_principle(at_data, there)
        found[place] = {"violation_rate": check.share_above, "largest": check.interior_max}
    found["between"]["mean"] = float(losses.mean())
    if hits is not None:
        u, error = landscape(hits, at_data)
        found["between"] |= {
            "share_above_landscape": float((losses > u + 3 * error).double().mean()),
            "mean_excess_over_landscape": float((losses - u).clamp_min(0).mean()),
        }
    defects = subharmonicity_report(
        LossField(copy.deepcopy(model).double(), excess_cross_entropy),  # rounding hides defects in float32
        *(each[:200].double() for each in probes),
        [0.5 * float(nearest_other(problem.x).median())],
        generator=torch.Generator().manual_seed(seed),
    )
    found["not_subharmonic"] = len(defects.failed) / len(defects.defect)
    right = accuracy(model, problem.test_x, problem.test_y)
    return {**found, "data_largest": float(at_data.max()), "accuracy": right}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train and measure what is not recorded."""
    done = {(r["problem"], r["seed"], r["method"]) for r in records}
    for name, load in LOADERS.items():
        for seed in range(N_SEEDS):
            wanted = [method for method in METHODS if (name, seed, method) not in done]
            if wanted:
                problem = load(seed)
                probes = between(problem, seed)
                hits = walk(problem, *probes, seed) if name == "two moons" else None
            for method in wanted:
                found = measure(problem, probes, hits, train(problem, method, seed), seed)
                yield [{"problem": name, "method": method, "seed": seed, **found}]


#: Columns of the tables, and whether they are shares.
COLUMNS: dict[str, tuple[Callable[[Record], float | None], bool]] = {
    "largest loss at the data": (lambda r: r["data_largest"], False),
    "largest between": (lambda r: r["between"]["largest"], False),
    "mean between": (lambda r: r["between"]["mean"], False),
    "above the largest at the data": (lambda r: r["between"]["violation_rate"], True),
    "above u": (lambda r: r["between"].get("share_above_landscape"), True),
    "mean excess over u": (lambda r: r["between"].get("mean_excess_over_landscape"), False),
    "not subharmonic": (lambda r: r["not_subharmonic"], True),
    "test points above the largest at the data": (lambda r: r["test"]["violation_rate"], True),
    "test accuracy": (lambda r: r["accuracy"], True),
}


def tables(records: list[Record], problem: str) -> list[str]:
    """Mean and sample deviation over seeds of each column; differences to ERM on the same seeds."""
    ordered = sorted((r for r in records if r["problem"] == problem), key=lambda r: r["seed"])
    columns = {name: column for name, column in COLUMNS.items() if column[0](ordered[0]) is not None}
    runs = {method: [r for r in ordered if r["method"] == method] for method in METHODS}
    rows = []
    for method, found in runs.items():
        values = [([read(r) for r in found], is_share) for read, is_share in columns.values()]
        cells = (spread(v, ".1%") if is_share else spread(v, ".3g", ".2g") for v, is_share in values)
        rows.append([method, *cells, str(len(found))])
    lines = [f"**{problem}**", "", *table(["method", *columns, "seeds"], rows), ""]
    lines += ["Against ERM on the same seeds (mean difference, p of a paired t test):", ""]
    for method in METHODS[1:]:
        parts = []
        for column, (read, _) in columns.items():
            gaps = [read(r) - read(erm) for r, erm in zip(runs[method], runs["erm"], strict=True)]
            parts.append(f"{column} {statistics.mean(gaps):+.3g} (p = {paired_p(gaps):.2g})")
        lines.append(f"- {method}: " + "; ".join(parts))
    return [*lines, ""]


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables of both problems."""
    return {"tables": "\n".join(line for name in LOADERS for line in tables(records, name)).rstrip()}


def draw(n: int = 40) -> None:
    """The loss of each network, each point with the label of its nearest datum, and u below it."""
    import matplotlib.pyplot as plt

    problem = load_two_moons(0)
    low, high = problem.x.amin(0) - 0.15, problem.x.amax(0) + 0.15
    xs = [torch.linspace(float(low[i]), float(high[i]), n) for i in range(2)]
    grid = torch.stack(torch.meshgrid(xs[0], xs[1], indexing="xy"), dim=2).flatten(0, 1)
    hard = F.one_hot(problem.y, 2).float()
    label = hard[torch.cdist(grid, problem.x).argmin(1)]
    hits, surfaces = walk(problem, grid, label, 0), {}
    for method in METHODS[:3]:
        field = LossField(train(problem, method, 0), excess_cross_entropy)
        u, _ = landscape(hits, field(problem.x, hard))
        surfaces[f"{method}: loss of the network"] = field(grid, label)
        surfaces[f"{method}: landscape u (PDE)"] = u.float()
    values = torch.stack([*surfaces.values()]).clamp_min(1e-6).log10()
    bounds = {"vmin": float(values.min()), "vmax": float(values.max()), "cmap": "viridis"}
    figure, axes = plt.subplots(2, 3, figsize=(12, 5.6), layout="constrained")
    for axis, title, surface in zip(axes.T.flat, surfaces, values, strict=True):
        image = axis.pcolormesh(*xs, surface.reshape(n, n), **bounds)
        axis.scatter(*problem.x.T, c=problem.y, s=6, cmap="coolwarm", lw=0.3, edgecolors="white")
        axis.set(xticks=[], yticks=[], title=title)
    figure.colorbar(image, ax=axes, label="log10 loss", shrink=0.8)
    figure.savefig(STUDY.folder / "two_moons_landscape.png", dpi=110)
    plt.close(figure)


STUDY = Study("loss_landscape", blocks, ("problem", "seed", "method"))

if __name__ == "__main__":
    STUDY.main(__doc__, run, draw)
