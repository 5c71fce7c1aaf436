"""Study: what does training on hitting times, the paper's first objective, do beside bridges and ERM?

Two moons, five seeds: losses at and between the data, test accuracy, seconds. Then two Gaussian classes in
2 to 20 dimensions: how walks end, and what networks trained on their ends are worth. Four minutes::

    python studies/hitting_times.py run        # what is not recorded yet, then the tables
    python studies/hitting_times.py table      # tables from the records
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator
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
METHODS = ("ERM", NOISE, WEIGHTED, SMOOTHED, "mixup", "bridges", *HITTING)
#: What tells records apart.
KEY = ("part", "method", "region", "starts", "dim", "seed")


def hitting(model: nn.Module, x: Tensor, y: Tensor, settings: dict[str, Any]) -> HittingTimes:
    """Make the objective on two classes."""
    return HittingTimes(model, nn.CrossEntropyLoss(), x, y, num_classes=2, n_starts=BATCH, **settings)


def batch_objective(method: str, model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """Make an objective that is called on batches."""
    loss_fn = nn.CrossEntropyLoss()
    if method == NOISE:
        domain = hitting(model, x, y, {}).domain
        # a uniform point of a sphere has this deviation along each axis
        sigma = float((domain.radii.square() / domain.points.shape[1]).mean().sqrt())
        return InputNoise(model, loss_fn, sigma=sigma)
    if method == "mixup":
        return Mixup(model, loss_fn, alpha=1.0)
    if method == "bridges":
        return elliptica.Elliptic(model, loss_fn, num_classes=2, sigma=0.05, sigma_y=0.0)
    return ERM(model, loss_fn)


def losses(
    method: str, model: nn.Module, x: Tensor, y: Tensor, n_steps: int, seed: int, found: dict[str, Any]
) -> Iterator[Tensor]:
    """Yield the loss of each step; ``found`` gets the shares of the walks and the seconds they took."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    if method in (WEIGHTED, SMOOTHED):
        yield from weighted_losses(method, model, x, y, n_steps, generator)
        return
    if method not in HITTING and method != "auto":
        objective = batch_objective(method, model, x, y)
        order = torch.Generator().manual_seed(seed)
        for _ in range(n_steps):
            rows = torch.randint(len(x), (BATCH,), generator=order)
            yield objective(x[rows], y[rows], generator=generator)
        return
    objective = hitting(model, x, y, HITTING.get(method, {}))
    seconds, shares = 0.0, []
    for _ in range(n_steps * BATCH // AHEAD):
        began = time.process_time()
        ends = objective.sample(n_starts=AHEAD, generator=generator)
        seconds += time.process_time() - began
        shares.append(ends.shares["data"])
        for part in ends.split(BATCH):
            yield objective(ends=part)
    found |= {"on_data": statistics.mean(shares), "walk_seconds": seconds}


def weighted_losses(
    method: str, model: nn.Module, x: Tensor, y: Tensor, n_steps: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield losses at uniform points of the balls' surfaces; rows are drawn as often as walks meet them."""
    objective = hitting(model, x, y, {"outer": "reflecting_box"})
    hits = torch.bincount(objective.sample(n_starts=AHEAD, generator=generator).datum, minlength=len(x))
    erm, dim = ERM(model, nn.CrossEntropyLoss()), objective.points.shape[1]
    for _ in range(n_steps):
        rows = torch.multinomial(hits.float(), BATCH, replacement=True, generator=generator)
        direction = nn.functional.normalize(torch.randn(BATCH, dim, generator=generator))
        offset = objective.domain.radii[rows, None] * direction
        target = nn.functional.one_hot(y[rows], 2).float()
        if method == SMOOTHED:  # half of them leave the simplex and return to the corner
            other = offset[:, -1:].clamp_min(0) / 2**0.5
            target = target * (1 - other) + (1 - target) * other
        yield erm(x[rows] + offset[:, : x.shape[1]], target)


def train(method: str, x: Tensor, y: Tensor, seed: int, n_steps: int = STEPS) -> tuple[nn.Module, Record]:
    """Train a network on ``n_steps`` batches; return it with what was seen on the way."""
    torch.manual_seed(seed)
    model = mlp(x.shape[1], 2, hidden=(32, 32), activation="tanh")
    found: Record = {}
    began = time.process_time()
    descend(model, losses(method, model, x, y, n_steps, seed, found), 1e-2, n_steps)
    return model.eval(), found | {"seconds": time.process_time() - began}


def moons(seed: int, method: str) -> Record:
    """Train and measure a method on two moons."""
    problem = load_two_moons(seed)
    probes = between(problem, seed)
    model, found = train(method, problem.x, problem.y, seed)
    field = LossField(model, excess_cross_entropy, num_classes=2)
    at_data, at_test = field(problem.x, problem.y), field(problem.test_x, problem.test_y)
    inside = elliptica.check_maximum_principle(at_data, field(*probes))
    return {
        "data_mean": float(at_data.mean()),
        "data_largest": inside.boundary_max,
        "between_mean": float(field(*probes).mean()),
        "between_largest": inside.interior_max,
        "between_above": inside.share_above,
        "test_above": elliptica.check_maximum_principle(at_data, at_test).share_above,
        "test_loss": float(at_test.mean()),
        "accuracy": accuracy(model, problem.test_x, problem.test_y),
        **found,
    }


def step_cost(method: str, repeats: int = 20) -> float:
    """Time one step with walks of its own, not drawn ahead; median milliseconds."""
    problem, model = load_two_moons(0), mlp(2, 2, hidden=(32, 32), activation="tanh")
    data, is_hitting = (problem.x, problem.y), method in HITTING
    objective = (
        hitting(model, *data, HITTING[method]) if is_hitting else batch_objective(method, model, *data)
    )
    arguments = () if is_hitting else (problem.x[:BATCH], problem.y[:BATCH])
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        descend(model, [objective(*arguments)], 1e-3)
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken)


def gaussians(dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two Gaussian classes whose means are 3 apart: 200 rows for training, 2000 for testing."""
    generator = torch.Generator().manual_seed(30_000 + 100 * dim + seed)
    y = torch.arange(2200) % 2
    x = torch.randn(2200, dim, generator=generator)
    x[:, 0] += 3 * y - 1.5
    return x[:200], y[:200], x[200:], y[200:]


def walks(dim: int, seed: int, outer: str, starts: str) -> Record:
    """Count how walks end in ``dim`` dimensions of the inputs."""
    x, y, *_ = gaussians(dim, seed)
    objective = hitting(nn.Identity(), x, y, {"outer": outer, "starts": starts})
    ends = objective.sample(n_starts=1000, generator=torch.Generator().manual_seed(seed))
    inside = float(((ends.steps == 0) & (ends.datum >= 0)).double().mean())
    return {"started_in_ball": inside, "steps": float(ends.steps.double().mean()), **ends.shares}


def trained(dim: int, seed: int, method: str) -> Record:
    """Train in ``dim`` dimensions of the inputs."""
    x, y, test_x, test_y = gaussians(dim, seed)
    model, found = train(method, x, y, seed, n_steps=300)
    return {"accuracy": accuracy(model, test_x, test_y), **found}


def cells() -> Iterator[Record]:
    """What is to be recorded."""
    yield from ({"part": "cost", "method": m} for m in METHODS if m not in (WEIGHTED, SMOOTHED))
    yield from ({"part": "moons", "method": m, "seed": s} for s in range(N_SEEDS) for m in METHODS)
    for dim in DIMS:
        for seed in range(min(N_SEEDS, 3)):
            for outer in ("hull", "ball", "box", "reflecting_box") if dim <= 5 else ("ball", "box"):
                for starts in ("uniform", "between"):
                    yield {"part": "walks", "region": outer, "starts": starts, "dim": dim, "seed": seed}
            for method in ("ERM", "bridges", "auto"):
                yield {"part": "trained", "method": method, "dim": dim, "seed": seed}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Make the records that are missing."""
    warnings.simplefilter("ignore", elliptica.EllipticWarning)  # that few walks meet data is the result
    done = {tuple(record.get(name) for name in KEY) for record in records}
    make = {
        "cost": lambda method: {"milliseconds": step_cost(method)},
        "moons": lambda method, seed: moons(seed, method),
        "walks": lambda region, starts, dim, seed: walks(dim, seed, region, starts),
        "trained": lambda method, dim, seed: trained(dim, seed, method),
    }
    for cell in cells():
        if tuple(cell.get(name) for name in KEY) not in done:
            yield [{**cell, **make[cell["part"]](**{k: v for k, v in cell.items() if k != "part"})}]


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
    "seconds in all": ("seconds", ".1f"),
    "of them for walks": ("walk_seconds", ".1f"),
}


def blocks(records: list[Record]) -> dict[str, str]:
    """Losses on two moons; shares of walks on data, of that at once, and steps; accuracies."""

    def values(name: str, **wanted: Any) -> list[float]:
        return [r[name] for r in records if name in r and all(r.get(k) == v for k, v in wanted.items())]

    def moons_row(method: str) -> Iterator[str]:
        yield method
        for name, form in COLUMNS.values():
            found = values(name, part="moons", method=method)
            yield spread(found, form) if found else "-"
        yield next((f"{cost:.1f}" for cost in values("milliseconds", method=method)), "-")

    def walks_cell(**wanted: Any) -> str:
        forms = {"data": ".1%", "started_in_ball": ".1%", "steps": ".0f"}
        found = {name: values(name, part="walks", **wanted) for name in forms}
        means = (f"{statistics.mean(found[n]):{form}}" for n, form in forms.items() if found[n])
        return ", ".join(means) or "-"

    ends = dict.fromkeys((r["region"], r["starts"]) for r in records if r["part"] == "walks")
    walked = [
        [region.replace("_", " "), starts, *(walks_cell(region=region, starts=starts, dim=d) for d in DIMS)]
        for region, starts in ends
    ]
    labels = {"ERM": "ERM", "bridges": "bridges", "auto": 'hitting times, `outer="auto"`'}
    scores = [
        [label, *(spread(values("accuracy", part="trained", method=m, dim=d), ".1%") for d in DIMS)]
        for m, label in labels.items()
    ]
    dims = [f"d = {dim}" for dim in DIMS]
    head = ["objective", *COLUMNS, "ms per step, walks drawn in it"]
    lines = [*table(head, (list(moons_row(method)) for method in METHODS)), ""]
    lines += [*table(["outer region", "starts", *dims], walked, "ll"), ""]
    return {"tables": "\n".join([*lines, *table(["test accuracy", *dims], scores)])}


STUDY = Study("hitting_times", blocks, KEY)

if __name__ == "__main__":
    STUDY.main(__doc__, run)
