"""Study: does elliptic training bring a network closer to the maximum principle, and by how much?

Trains small networks on two moons and on scikit-learn's digits (ten principal components) by ERM, mixup
and elliptic training, solves the PDE with the training losses on balls around the data, and compares the
loss of each network with that landscape at points between the data. Ten seeds::

    python studies/loss_landscape.py run        # what is not recorded yet, then the tables and the picture
    python studies/loss_landscape.py table      # tables and picture from the records (the picture retrains)
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import elliptica
from elliptica.baselines import ERM, Mixup
from elliptica.lab.data import two_moons
from elliptica.lab.experiments.records import append_lines, read_lines
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
from loss_landscape_table import draw_surfaces, write_table

HERE = Path(__file__).resolve().parent.parent / "results" / "loss_landscape"
RECORDS = HERE / "records.jsonl.gz"
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
    from sklearn import datasets

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


def train(problem: Problem, method: str, seed: int) -> nn.Sequential:
    """A network after training; every method makes the same number of evaluations."""
    torch.manual_seed(seed)
    model = mlp(problem.x.shape[1], problem.n_classes, hidden=problem.hidden, activation="tanh")
    loss_fn = nn.CrossEntropyLoss()
    settings = {"num_classes": problem.n_classes, "sigma_y": 0.0}
    objective: nn.Module
    if method == "erm":
        objective = ERM(model, loss_fn)
    elif method == "mixup":
        objective = Mixup(model, loss_fn, alpha=1.0)
    elif method == "elliptic":
        objective = elliptica.Elliptic(model, loss_fn, sigma=0.05, **settings)
    else:
        objective = elliptica.Elliptic(model, loss_fn, sigma=problem.pde_sigma, **settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, problem.n_steps)
    order, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(10_000 + seed)
    for _ in range(problem.n_steps):
        rows = torch.randint(len(problem.x), (problem.batch,), generator=order)
        optimizer.zero_grad()
        objective(problem.x[rows], problem.y[rows], generator=noise).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


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


def make_probes(problem: Problem, seed: int) -> dict[str, Probes]:
    """1000 points on bridges between the data, and 500 test points."""
    generator = torch.Generator().manual_seed(20_000 + seed)
    rows = torch.randint(len(problem.x), (1000,), generator=generator)
    between = bridge_probes(
        problem.x[rows],
        problem.y[rows],
        target_space="simplex",
        num_classes=problem.n_classes,
        sampling="marginal",
        quadrature="uniform",
        sigma=0.05,
        sigma_y=0.0,
        generator=generator,
    )
    test = problem.test_x[:500], F.one_hot(problem.test_y[:500], problem.n_classes).float()
    return {"between": walk(problem, *between, seed), "test": walk(problem, *test, seed)}


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
    between = probes["between"]
    defects = subharmonicity_report(
        LossField(copy.deepcopy(model).double(), excess_cross_entropy),  # rounding hides defects in float32
        between.x[:200].double(),
        between.y[:200].double(),
        [0.5 * float(nearest_other(problem.x).median())],
        generator=torch.Generator().manual_seed(seed),
    )
    found["not_subharmonic"] = len(defects.failed) / len(defects.defect)
    with torch.no_grad():
        right = model(problem.test_x).argmax(1) == problem.test_y
    found["accuracy"] = float(right.double().mean())
    return found


def read_records() -> list[dict[str, Any]]:
    """All committed records."""
    return read_lines(RECORDS)


def run(n_seeds: int) -> Iterator[dict[str, Any]]:
    """Train and measure what is not recorded."""
    done = {(r["problem"], r["seed"], r["method"]) for r in read_records()}
    for name, load in LOADERS.items():
        for seed in range(n_seeds):
            wanted = [method for method in METHODS if (name, seed, method) not in done]
            if wanted:
                problem = load(seed)
                probes = make_probes(problem, seed)
                for method in wanted:
                    yield {"method": method, **measure(problem, probes, train(problem, method, seed), seed)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    HERE.mkdir(parents=True, exist_ok=True)
    if arguments.action == "run":
        for record in run(arguments.seeds):
            append_lines(RECORDS, [record])
            print(record["problem"], record["seed"], record["method"], record["between"], flush=True)
    write_table(read_records(), HERE)
    problem = load_two_moons(0)
    models = {method: train(problem, method, 0) for method in ("erm", "mixup", "elliptic")}
    fields = {method: LossField(model, excess_cross_entropy) for method, model in models.items()}
    draw_surfaces(problem, fields, walk, HERE / "two_moons_landscape.png")


if __name__ == "__main__":
    main()
