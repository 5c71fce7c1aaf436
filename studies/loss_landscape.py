"""Study: does elliptic training bring a network closer to the maximum principle, and by how much?

Trains small networks on two moons and on scikit-learn's digits (ten principal components) by ERM, mixup
and elliptic training, solves the PDE with the training losses on balls around the data, and compares the
loss of each network with that landscape at points between the data. Ten seeds::

    python studies/loss_landscape.py run        # what is not recorded yet, then the tables and the picture
    python studies/loss_landscape.py table      # tables and picture from the records (the picture retrains)
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from elliptica.landscape import (
    Ball,
    Box,
    DataDomain,
    LossField,
    Operator,
    bridge_probes,
    maximum_principle_report,
    subharmonicity_report,
)
from elliptica.landscape.data_domain import nearest_other
from elliptica.landscape.loss import excess_cross_entropy
from elliptica.landscape.spheres import walk_on_spheres
from green_bridge import Screened

N_SEEDS = 10
METHODS = ("erm", "mixup", "elliptic", "elliptic, PDE's noise")
#: Length of the step between two classes, as between one-hot rows.
LABEL_SPAN = 2**0.5


@dataclass(frozen=True)
class Problem:
    """Data of one seed, and how networks are trained on them."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    n_classes: int
    hidden: tuple[int, ...]
    n_steps: int
    batch: int
    pde_sigma: Any


def load_two_moons(seed: int) -> Problem:
    """200 points in the two moons."""
    moons = two_moons(0, 1200, generator=torch.Generator().manual_seed(seed))
    x, y = moons.interior_x, moons.interior_y
    # Green's law needs three dimensions; the screened one exists in the plane. Rate: n**2 / (2 r**2)
    # for pairs at distance 1.
    sigma = Screened(rate=2.0)
    return Problem("two moons", x[:200], y[:200], x[200:], y[200:], 2, (32, 32), 2000, 50, sigma)


def load_digits(seed: int) -> Problem:
    """1000 digits for training, 797 for testing, in ten principal components of the training rows."""
    pixels, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1000], order[1000:]
    centre = x[train].mean(0)
    axes = torch.linalg.svd(x[train] - centre, full_matrices=False).Vh[:10]
    z = (x - centre) @ axes.T
    z = z / z[train].std()
    return Problem("digits", z[train], y[train], z[test], y[test], 10, (64, 64), 2000, 100, elliptica.Green())


LOADERS: dict[str, Callable[[int], Problem]] = {"two moons": load_two_moons, "digits": load_digits}


def train(problem: Problem, method: str, seed: int) -> nn.Module:
    """A network after training; every method makes the same number of evaluations."""
    torch.manual_seed(seed)
    model = mlp(problem.x.shape[1], problem.n_classes, hidden=problem.hidden, activation="tanh")
    loss_fn, sigma = nn.CrossEntropyLoss(), 0.05 if method == "elliptic" else problem.pde_sigma
    objectives: dict[str, Callable[[], nn.Module]] = {
        "erm": lambda: ERM(model, loss_fn),
        "mixup": lambda: Mixup(model, loss_fn, alpha=1.0),
    }
    settings = {"num_classes": problem.n_classes, "sigma": sigma, "sigma_y": 0.0}
    objective = objectives.get(method, lambda: elliptica.Elliptic(model, loss_fn, **settings))()
    order, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(10_000 + seed)

    def losses() -> Iterator[Tensor]:
        for _ in range(problem.n_steps):
            rows = torch.randint(len(problem.x), (problem.batch,), generator=order)
            yield objective(problem.x[rows], problem.y[rows], generator=noise)

    return descend(model, losses(), 1e-2, problem.n_steps).eval()


@dataclass(frozen=True)
class Probes:
    """Points to look at, and which datum a diffusion from each of them meets first.

    The walks do not depend on the network, so all methods of a seed share them.
    """

    x: Tensor
    y: Tensor
    hits: Tensor  # (probes, data): share of the walks that end on each ball
    n_walks: int

    def landscape(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """The PDE's solution with these losses on the balls, and its standard error."""
        value = self.hits @ losses.double()
        square = self.hits @ losses.double().square()
        error = (square - value**2).clamp_min(0).sqrt() / max(self.n_walks, 1) ** 0.5
        return value, error if self.n_walks else torch.zeros_like(value)


def walk(problem: Problem, x: Tensor, y: Tensor, seed: int, n_walks: int = 300) -> Probes:
    """Which data the probes meet.

    Two moons: inputs and label together (three dimensions) between reflecting walls, by walk on spheres.
    Digits: in the inputs' ten dimensions walks rarely meet a ball before the outer sphere, so this is the
    law of those that do, by charges at the data.
    """
    n_data = len(problem.x)
    if problem.name == "two moons":
        points, at = joint(problem.x, F.one_hot(problem.y, 2)), joint(x, y)
        both = torch.cat([points, at])
        domain = DataDomain(points, outer=Box(both.amin(0) - 0.05, both.amax(0) + 0.05, wall="reflect"))
        walks = walk_on_spheres(
            domain,
            at.repeat_interleave(n_walks, 0),
            Operator(),
            shell=1e-2 * float(domain.radii.min()),
            generator=torch.Generator().manual_seed(seed),
        )
        assert bool((walks.label >= 0).all())  # reflecting walls: every walk ends on a ball
        flat = torch.arange(len(at)).repeat_interleave(n_walks) * n_data + walks.label
        counts = torch.bincount(flat, minlength=len(at) * n_data).reshape(len(at), n_data)
        return Probes(x, y, counts.double() / n_walks, n_walks)
    points = problem.x.double()
    centre = points.mean(0)
    reach = (torch.cat([points, x.double()]) - centre).norm(dim=1).max()
    domain = DataDomain(points, outer=Ball(centre, 1.5 * float(reach)))
    hits = hit_probabilities(domain, x.double())
    return Probes(x, y, hits / hits.sum(1, keepdim=True), 0)


def hit_probabilities(domain: DataDomain, z: Tensor) -> Tensor:
    """Probability to meet each ball first, from one charge per ball and its image in the outer ball.

    The charges reproduce the value of every ball at its centre; small balls in many dimensions are met so
    rarely that the variation over a ball is negligible.
    """
    sphere = domain.domain
    assert isinstance(sphere, Ball)
    kept = domain.nearest_ball(domain.points)[1].unique()  # repeated points share a ball
    centres, eps, power = domain.points[kept], domain.radii[kept], domain.points.shape[1] - 2

    def field(at: Tensor, distance: Tensor) -> Tensor:
        """Green's function of the outer ball, one on the surface of each ball but for its image."""
        a, b = at - sphere.centre, centres - sphere.centre
        lengths = a.square().sum(1)[:, None] * b.square().sum(1) / sphere.radius**2
        image = (lengths + sphere.radius**2 - 2 * a @ b.T).clamp_min(0).sqrt()
        return (eps / distance) ** power - (eps / image) ** power

    apart = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    matrix = field(centres, apart + torch.diag(eps))
    away = torch.cdist(z, centres, compute_mode="donot_use_mm_for_euclid_dist")
    hits = z.new_zeros(len(z), len(domain.points))
    hits[:, kept] = torch.linalg.solve(matrix, field(z, away), left=False)
    return hits


def joint(x: Tensor, y: Tensor) -> Tensor:
    """Inputs and, for two classes, one label coordinate."""
    return torch.cat([x, LABEL_SPAN * y[:, 1:].to(x)], dim=1)


def between(problem: Problem, seed: int) -> tuple[Tensor, Tensor]:
    """1000 points on bridges between the data."""
    generator = torch.Generator().manual_seed(20_000 + seed)
    rows = torch.randint(len(problem.x), (1000,), generator=generator)
    settings = {"sampling": "marginal", "quadrature": "uniform", "sigma": 0.05, "sigma_y": 0.0}
    space = {"target_space": "simplex", "num_classes": problem.n_classes}
    return bridge_probes(problem.x[rows], problem.y[rows], **space, **settings, generator=generator)


def measure(problem: Problem, probes: dict[str, Probes], model: nn.Module, seed: int) -> dict[str, Any]:
    """One network in numbers."""
    field = LossField(model, excess_cross_entropy)
    hard = F.one_hot(problem.y, problem.n_classes).float()
    found: dict[str, Any] = {"problem": problem.name, "seed": seed}
    at_data = field(problem.x, hard)
    for place, points in probes.items():
        report = maximum_principle_report(field, (problem.x, hard), (points.x, points.y))
        losses = field(points.x, points.y).double()
        u, error = points.landscape(at_data)
        found[place] = {
            "violation_rate": report.overall.rate,
            "violation_upper": report.overall.upper,
            "largest": report.check.interior_max,
            "mean": float(losses.mean()),
            "landscape_mean": float(u.mean()),
            "share_above_landscape": float((losses > u + 3 * error).double().mean()),
            "mean_excess_over_landscape": float((losses - u).clamp_min(0).mean()),
        }
    found["data_largest"], found["data_mean"] = float(at_data.max()), float(at_data.mean())
    middle = probes["between"]
    defects = subharmonicity_report(
        LossField(copy.deepcopy(model).double(), excess_cross_entropy),  # rounding hides defects in float32
        *(middle.x[:200].double(), middle.y[:200].double()),
        [0.5 * float(nearest_other(problem.x).median())],
        generator=torch.Generator().manual_seed(seed),
    )
    found["not_subharmonic"] = len(defects.failed) / len(defects.defect)
    found["accuracy"] = accuracy(model, problem.test_x, problem.test_y)
    return found


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train and measure what is not recorded."""
    done = {(r["problem"], r["seed"], r["method"]) for r in records}
    for name, load in LOADERS.items():
        for seed in range(N_SEEDS):
            wanted = [method for method in METHODS if (name, seed, method) not in done]
            if not wanted:
                continue
            problem = load(seed)
            test = problem.test_x[:500], F.one_hot(problem.test_y[:500], problem.n_classes).float()
            places = {"between": between(problem, seed), "test": test}
            probes = {place: walk(problem, *points, seed) for place, points in places.items()}
            for method in wanted:
                yield [{"method": method, **measure(problem, probes, train(problem, method, seed), seed)}]


#: Columns of the tables, and whether they are shares.
COLUMNS: dict[str, tuple[Callable[[Record], float], bool]] = {
    "largest loss at the data": (lambda r: r["data_largest"], False),
    "largest between": (lambda r: r["between"]["largest"], False),
    "mean between": (lambda r: r["between"]["mean"], False),
    "above the largest at the data": (lambda r: r["between"]["violation_rate"], True),
    "above u": (lambda r: r["between"]["share_above_landscape"], True),
    "mean excess over u": (lambda r: r["between"]["mean_excess_over_landscape"], False),
    "not subharmonic": (lambda r: r["not_subharmonic"], True),
    "test points above the largest at the data": (lambda r: r["test"]["violation_rate"], True),
    "test accuracy": (lambda r: r["accuracy"], True),
}


def tables(records: list[Record], problem: str) -> list[str]:
    """Mean and sample deviation over seeds of each column; differences to ERM on the same seeds."""
    ordered = sorted((r for r in records if r["problem"] == problem), key=lambda r: r["seed"])
    runs = {method: [r for r in ordered if r["method"] == method] for method in METHODS}
    rows = []
    for method, found in runs.items():
        cells = []
        for read, is_share in COLUMNS.values():
            values = [read(r) for r in found]
            cells.append(spread(values, ".1%") if is_share else spread(values, ".3g", ".2g"))
        rows.append([method, *cells, str(len(found))])
    note = " (u: the landscape given that a walk meets the data)" if problem == "digits" else ""
    lines = [f"**{problem}**{note}", "", *table(["method", *COLUMNS, "seeds"], rows), ""]
    lines += ["Against ERM on the same seeds (mean difference, p of a paired t test):", ""]
    for method in METHODS[1:]:
        parts = []
        for column, (read, _) in COLUMNS.items():
            gaps = [read(r) - read(erm) for r, erm in zip(runs[method], runs["erm"], strict=True)]
            if len(set(gaps)) > 1:
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
    models = {method: train(problem, method, 0) for method in METHODS[:3]}
    low, high = problem.x.amin(0) - 0.15, problem.x.amax(0) + 0.15
    xs = [torch.linspace(float(low[i]), float(high[i]), n) for i in range(2)]
    grid = torch.stack(torch.meshgrid(xs[0], xs[1], indexing="xy"), dim=2).flatten(0, 1)
    label = F.one_hot(problem.y[torch.cdist(grid, problem.x).argmin(1)], 2).float()
    probes, rows = walk(problem, grid, label, 0), []
    for model in models.values():
        field = LossField(model, excess_cross_entropy)
        u, _ = probes.landscape(field(problem.x, F.one_hot(problem.y, 2).float()))
        rows.append(torch.stack([field(grid, label), u.float()]).reshape(2, n, n))
    values = torch.stack(rows).clamp_min(1e-6).log10()
    figure, axes = plt.subplots(2, len(models), figsize=(4 * len(models), 5.6), layout="constrained")
    for column, method in enumerate(models):
        for row, what in enumerate(("loss of the network", "landscape u (PDE)")):
            axis, bounds = axes[row][column], {"vmin": float(values.min()), "vmax": float(values.max())}
            image = axis.pcolormesh(xs[0], xs[1], values[column][row], cmap="viridis", **bounds)
            axis.scatter(*problem.x.T, c=problem.y, s=6, cmap="coolwarm", lw=0.3, edgecolors="white")
            axis.set(xticks=[], yticks=[], title=f"{method}: {what}")
    figure.colorbar(image, ax=axes, label="log10 loss", shrink=0.8)
    figure.savefig(STUDY.folder / "two_moons_landscape.png", dpi=110)
    plt.close(figure)


STUDY = Study("loss_landscape", blocks, ("problem", "seed", "method"))

if __name__ == "__main__":
    STUDY.main(__doc__, run, draw)
