"""Study: what does training on hitting times, the paper's first objective, do beside bridges and ERM?

Two moons, five seeds: losses at and between the data, test accuracy, seconds. Then two Gaussian classes in
2 to 20 dimensions: how many walks end on data, and what networks trained so are worth.
A few minutes::

    python studies/hitting_times.py run        # what is not recorded yet, then the tables
    python studies/hitting_times.py table      # tables from the records
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

import elliptica
from common import Record, Study, accuracy, descend, spread, table
from elliptica.baselines import ERM, InputNoise, Mixup
from elliptica.lab.models import mlp
from elliptica.landscape import HittingTimes, LossField
from elliptica.landscape.loss import excess_cross_entropy
from loss_landscape import between, load_two_moons

N_SEEDS, DIMS = 5, (2, 5, 10, 20)
BATCH, STEPS = 50, 1000
#: Walks that are drawn at once.
AHEAD = 5000
HITTING = {
    "hitting times, reflecting box": {"outer": "reflecting_box"},
    "hitting times, reflecting box, starts between": {"outer": "reflecting_box", "starts": "between"},
    "hitting times, ball": {"outer": "ball"},
    "hitting times, hull": {"outer": "hull"},
}
NOISE = "ERM, noise as large as the balls"
WEIGHTED = "the same, rows as often as walks meet them"
SMOOTHED = "the same, labels moved as far as inputs"
#: Objectives on two moons, and on Gaussian classes.
METHODS = ("ERM", NOISE, WEIGHTED, SMOOTHED, "mixup", "bridges", *HITTING)
OVERLAPPING = {"ERM": "ERM", "bridges": "bridges", "auto": 'hitting times, `outer="auto"`'}


def hitting(model: nn.Module, x: Tensor, y: Tensor, **settings: Any) -> HittingTimes:
    """Make the objective on two classes."""
    return HittingTimes(model, nn.CrossEntropyLoss(), x, y, num_classes=2, n_starts=BATCH, **settings)


def batch_losses(
    method: str, model: nn.Module, x: Tensor, y: Tensor, seed: int, noise: torch.Generator
) -> Iterator[Tensor]:
    """Yield losses of an objective that is called on batches."""
    loss_fn, order = nn.CrossEntropyLoss(), torch.Generator().manual_seed(seed)
    domain = hitting(model, x, y).domain
    # a uniform point of a sphere has this deviation along each axis
    deviation = float((domain.radii.square() / domain.points.shape[1]).mean().sqrt())
    objective = {
        "ERM": ERM(model, loss_fn),
        NOISE: InputNoise(model, loss_fn, sigma=deviation),
        "mixup": Mixup(model, loss_fn, alpha=1.0),
        "bridges": elliptica.Elliptic(model, loss_fn, num_classes=2, sigma=0.05, sigma_y=0.0),
    }[method]
    while True:
        rows = torch.randint(len(x), (BATCH,), generator=order)
        yield objective(x[rows], y[rows], generator=noise)


def weighted_losses(
    method: str, model: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
) -> Iterator[Tensor]:
    """Yield losses at uniform points of the balls' surfaces; rows are drawn as often as walks meet them."""
    objective = hitting(model, x, y, outer="reflecting_box")
    hits = torch.bincount(objective.sample(n_starts=AHEAD, generator=noise).datum, minlength=len(x))
    erm, dim = ERM(model, nn.CrossEntropyLoss()), objective.points.shape[1]
    while True:
        rows = torch.multinomial(hits.float(), BATCH, replacement=True, generator=noise)
        direction = nn.functional.normalize(torch.randn(BATCH, dim, generator=noise))
        offset = objective.domain.radii[rows, None] * direction
        target = nn.functional.one_hot(y[rows], 2).float()
        if method == SMOOTHED:  # half of them leave the simplex and return to the corner
            other = offset[:, -1:].clamp_min(0) / 2**0.5
            target = target * (1 - other) + (1 - target) * other
        yield erm(x[rows] + offset[:, : x.shape[1]], target)


def walk_losses(objective: HittingTimes, noise: torch.Generator, seen: Record) -> Iterator[Tensor]:
    """Yield losses where walks end; ``seen`` gets the share of them on data."""
    shares = []
    while True:
        ends = objective.sample(n_starts=AHEAD, generator=noise)
        shares.append(ends.shares["data"])
        seen["on_data"] = statistics.mean(shares)
        yield from (objective(ends=part) for part in ends.split(BATCH))


def train(method: str, x: Tensor, y: Tensor, seed: int, n_steps: int = STEPS) -> tuple[nn.Module, Record]:
    """Train a network on ``n_steps`` batches; return it with what was seen on the way."""
    torch.manual_seed(seed)
    model = mlp(x.shape[1], 2, hidden=(32, 32), activation="tanh")
    seen: Record = {}
    began, noise = time.process_time(), torch.Generator().manual_seed(10_000 + seed)
    if method in (WEIGHTED, SMOOTHED):
        losses = weighted_losses(method, model, x, y, noise)
    elif method in HITTING or method == "auto":
        losses = walk_losses(hitting(model, x, y, **HITTING.get(method, {})), noise, seen)
    else:
        losses = batch_losses(method, model, x, y, seed, noise)
    descend(model, islice(losses, n_steps), 1e-2, n_steps)
    return model.eval(), seen | {"seconds": time.process_time() - began}


def moons(seed: int, method: str) -> Record:
    """Train and measure a method on two moons."""
    problem = load_two_moons(seed)
    model, seen = train(method, problem.x, problem.y, seed)
    field = LossField(model, excess_cross_entropy, num_classes=2)
    at_data, at_test = field(problem.x, problem.y), field(problem.test_x, problem.test_y)
    losses = field(*between(problem, seed))
    inside = elliptica.check_maximum_principle(at_data, losses)
    return {
        **{"data_mean": float(at_data.mean()), "data_largest": inside.boundary_max},
        **{"between_mean": float(losses.mean()), "between_largest": inside.interior_max},
        "between_above": inside.share_above,
        "test_above": elliptica.check_maximum_principle(at_data, at_test).share_above,
        "accuracy": accuracy(model, problem.test_x, problem.test_y),
        **seen,
    }


def gaussians(dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two Gaussian classes whose means are 3 apart: 200 rows for training, 2000 for testing."""
    generator = torch.Generator().manual_seed(30_000 + 100 * dim + seed)
    y = torch.arange(2200) % 2
    x = torch.randn(2200, dim, generator=generator)
    x[:, 0] += 3 * y - 1.5
    return x[:200], y[:200], x[200:], y[200:]


def trained(dim: int, seed: int, method: str) -> Record:
    """Train in ``dim`` dimensions of the inputs."""
    x, y, test_x, test_y = gaussians(dim, seed)
    model, seen = train(method, x, y, seed, n_steps=300)
    return {"accuracy": accuracy(model, test_x, test_y), **seen}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Make the records that are missing; those of two moons have no dimension."""
    warnings.simplefilter("ignore", elliptica.EllipticWarning)  # that few walks meet data is the result
    cells = [*product(METHODS, [None], range(N_SEEDS)), *product(OVERLAPPING, DIMS, range(3))]
    for method, dim, seed in STUDY.missing(records, cells):
        found = moons(seed, method) if dim is None else trained(dim, seed, method)
        yield [{"method": method, "dim": dim, "seed": seed, **found}]


#: Columns of the first table.
COLUMNS = {
    "mean loss at the data": ("data_mean", ".2g"),
    "largest at the data": ("data_largest", ".2g"),
    "mean between": ("between_mean", ".2g"),
    "largest between": ("between_largest", ".3g"),
    "between, above the largest at the data": ("between_above", ".1%"),
    "test points above it": ("test_above", ".1%"),
    "test accuracy": ("accuracy", ".1%"),
    "walks on data": ("on_data", ".1%"),
    "seconds": ("seconds", ".1f"),
}


def blocks(records: list[Record]) -> dict[str, str]:
    """Losses on two moons; accuracies and shares of walks on data in several dimensions."""

    def cell(name: str, form: str, method: str, dim: int | None = None) -> str:
        found = [r[name] for r in records if (r["method"], r["dim"]) == (method, dim) and name in r]
        return spread(found, form) if found else "-"

    losses = ([m, *(cell(*column, m) for column in COLUMNS.values())] for m in METHODS)
    scores = [[label, *(cell("accuracy", ".1%", m, d) for d in DIMS)] for m, label in OVERLAPPING.items()]
    walks = ["share of its walks on data", *(cell("on_data", ".1%", "auto", d) for d in DIMS)]
    lines = [*table(["objective", *COLUMNS], losses), ""]
    lines += table(["test accuracy", *(f"d = {dim}" for dim in DIMS)], [*scores, walks])
    return {"tables": "\n".join(lines)}


STUDY = Study("hitting_times", blocks, ("method", "dim", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
