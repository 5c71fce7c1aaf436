"""Study: does elliptic training bring a network closer to the maximum principle, and by how much?

Trains small networks on two moons and on scikit-learn's digits (ten principal components) by ERM, mixup
and elliptic training, and looks at the loss between the data. Ten seeds::

    python studies/loss_landscape.py run        # what is not recorded yet, then the tables
    python studies/loss_landscape.py table      # tables from the records
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

import elliptica
from common import Record, Study, accuracy, descend, paired_p, spread, table
from elliptica.baselines import ERM, Mixup
from elliptica.lab.data import two_moons
from elliptica.lab.models import mlp
from elliptica.landscape import LossField, bridge_probes, subharmonicity_report
from elliptica.landscape.data_domain import nearest_other
from elliptica.landscape.loss import excess_cross_entropy

N_SEEDS = 10
METHODS = ("erm", "mixup", "elliptic")


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


def load_two_moons(seed: int) -> Problem:
    """200 points in the two moons."""
    moons = two_moons(0, 1200, generator=torch.Generator().manual_seed(seed))
    x, y = moons.interior_x, moons.interior_y
    return Problem(x[:200], y[:200], x[200:], y[200:], 2, (32, 32), 50)


def load_digits(seed: int) -> Problem:
    """1000 digits for training, 797 for testing, in ten principal components of the training rows."""
    pixels, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1000], order[1000:]
    centre = x[train].mean(0)
    z = (x - centre) @ torch.linalg.svd(x[train] - centre, full_matrices=False).Vh[:10].T
    z = z / z[train].std()
    return Problem(z[train], y[train], z[test], y[test], 10, (64, 64), 100)


LOADERS: dict[str, Callable[[int], Problem]] = {"two moons": load_two_moons, "digits": load_digits}


def train(problem: Problem, method: str, seed: int, n_steps: int = 2000) -> nn.Module:
    """A network after training; every method makes the same number of evaluations."""
    torch.manual_seed(seed)
    model = mlp(problem.x.shape[1], problem.n_classes, hidden=problem.hidden, activation="tanh")
    loss_fn, settings = nn.CrossEntropyLoss(), {"sigma": 0.05, "sigma_y": 0.0}
    objective = {
        "erm": ERM(model, loss_fn),
        "mixup": Mixup(model, loss_fn, alpha=1.0),
        "elliptic": elliptica.Elliptic(model, loss_fn, num_classes=problem.n_classes, **settings),
    }[method]
    order, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(10_000 + seed)

    def losses() -> Iterator[Tensor]:
        for _ in range(n_steps):
            rows = torch.randint(len(problem.x), (problem.batch,), generator=order)
            yield objective(problem.x[rows], problem.y[rows], generator=noise)

    return descend(model, losses(), 1e-2, n_steps).eval()


def between(problem: Problem, seed: int) -> tuple[Tensor, Tensor]:
    """1000 points on bridges between the data."""
    generator = torch.Generator().manual_seed(20_000 + seed)
    rows = torch.randint(len(problem.x), (1000,), generator=generator)
    settings = {"sampling": "marginal", "quadrature": "uniform", "sigma": 0.05, "sigma_y": 0.0}
    space = {"target_space": "simplex", "num_classes": problem.n_classes}
    return bridge_probes(problem.x[rows], problem.y[rows], **space, **settings, generator=generator)


def measure(problem: Problem, model: nn.Module, seed: int) -> Record:
    """One network in numbers, at the data, at 1000 probes between them and at 500 test points."""
    field, probes = LossField(model, excess_cross_entropy), between(problem, seed)
    hard, test_hard = (F.one_hot(y, problem.n_classes).float() for y in (problem.y, problem.test_y))
    at_data, losses = field(problem.x, hard), field(*probes).double()
    places = {"between": losses, "test": field(problem.test_x[:500], test_hard[:500])}
    found: Record = {}
    for place, there in places.items():
        check = elliptica.check_maximum_principle(at_data, there)
        found[place] = {"violation_rate": check.share_above, "largest": check.interior_max}
    found["between"]["mean"] = float(losses.mean())
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
    cells = product(LOADERS, range(N_SEEDS), METHODS)
    for name, seed, method in STUDY.missing(records, cells):
        problem = LOADERS[name](seed)
        found = measure(problem, train(problem, method, seed), seed)
        yield [{"problem": name, "method": method, "seed": seed, **found}]


#: Columns of the tables, and whether they are shares.
COLUMNS: dict[str, tuple[Callable[[Record], float], bool]] = {
    "largest loss at the data": (lambda r: r["data_largest"], False),
    "largest between": (lambda r: r["between"]["largest"], False),
    "mean between": (lambda r: r["between"]["mean"], False),
    "above the largest at the data": (lambda r: r["between"]["violation_rate"], True),
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
        values = [([read(r) for r in found], is_share) for read, is_share in COLUMNS.values()]
        cells = (spread(v, ".1%") if is_share else spread(v, ".3g", ".2g") for v, is_share in values)
        rows.append([method, *cells, str(len(found))])
    lines = [f"**{problem}**", "", *table(["method", *COLUMNS, "seeds"], rows), ""]
    lines += ["Against ERM on the same seeds (mean difference, p of a paired t test):", ""]
    for method in METHODS[1:]:
        parts = []
        for column, (read, _) in COLUMNS.items():
            gaps = [read(r) - read(erm) for r, erm in zip(runs[method], runs["erm"], strict=True)]
            parts.append(f"{column} {statistics.mean(gaps):+.3g} (p = {paired_p(gaps):.2g})")
        lines.append(f"- {method}: " + "; ".join(parts))
    return [*lines, ""]


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables of both problems."""
    return {"tables": "\n".join(line for name in LOADERS for line in tables(records, name)).rstrip()}


STUDY = Study("loss_landscape", blocks, ("problem", "seed", "method"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
