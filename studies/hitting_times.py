"""Study: what does training on hitting times, the paper's first objective, do beside bridges and ERM?

Two moons, five seeds: losses at and between the data, test accuracy, seconds. Then two Gaussian classes in
2 to 20 dimensions: how walks end, and what networks trained on their ends are worth. Four minutes::

    python studies/hitting_times.py run        # what is not recorded yet, then the tables
    python studies/hitting_times.py table      # tables from the records
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import elliptica
from elliptica.baselines import ERM, InputNoise, Mixup
from elliptica.lab.experiments.records import append_lines, read_lines
from elliptica.lab.models import mlp
from elliptica.landscape import HittingTimes, LossField, bridge_probes
from elliptica.landscape.loss import excess_cross_entropy
from loss_landscape import load_two_moons

HERE = Path(__file__).resolve().parent.parent / "results" / "hitting_times"
RECORDS = HERE / "records.jsonl.gz"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
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


def train(
    method: str, x: Tensor, y: Tensor, seed: int, n_steps: int = STEPS
) -> tuple[nn.Module, dict[str, Any]]:
    """Train a network on ``n_steps`` batches; return it with what was seen on the way."""
    torch.manual_seed(seed)
    model = mlp(x.shape[1], 2, hidden=(32, 32), activation="tanh")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    found: dict[str, Any] = {}
    began = time.process_time()
    for loss in losses(method, model, x, y, n_steps, seed, found):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    found["seconds"] = time.process_time() - began
    return model.eval(), found


def moons(seed: int, methods: list[str]) -> Iterator[dict[str, Any]]:
    """Train and measure methods on two moons."""
    problem = load_two_moons(seed)
    generator = torch.Generator().manual_seed(20_000 + seed)
    rows = torch.randint(len(problem.x), (1000,), generator=generator)
    between = bridge_probes(
        problem.x[rows],
        problem.y[rows],
        target_space="simplex",
        num_classes=2,
        sampling="marginal",
        quadrature="uniform",
        sigma=0.05,
        sigma_y=0.0,
        generator=generator,
    )
    for method in methods:
        model, found = train(method, problem.x, problem.y, seed)
        field = LossField(model, excess_cross_entropy, num_classes=2)
        at_data, at_test = field(problem.x, problem.y), field(problem.test_x, problem.test_y)
        inside = elliptica.check_maximum_principle(at_data, field(*between))
        tested = elliptica.check_maximum_principle(at_data, at_test)
        yield {
            "part": "moons",
            "method": method,
            "seed": seed,
            "data_mean": float(at_data.mean()),
            "data_largest": inside.boundary_max,
            "between_mean": float(field(*between).mean()),
            "between_largest": inside.interior_max,
            "between_above": inside.share_above,
            "test_above": tested.share_above,
            "test_loss": float(at_test.mean()),
            "accuracy": accuracy(model, problem.test_x, problem.test_y),
            **found,
        }


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of rows whose class is right."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def step_cost(repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Time one step of each objective with walks of its own, not drawn ahead; median milliseconds."""
    problem = load_two_moons(0)
    for method in (m for m in METHODS if m not in (WEIGHTED, SMOOTHED)):
        model = mlp(2, 2, hidden=(32, 32), activation="tanh")
        optimizer = torch.optim.Adam(model.parameters())
        objective = (
            hitting(model, problem.x, problem.y, HITTING[method])
            if method in HITTING
            else batch_objective(method, model, problem.x, problem.y)
        )
        arguments = () if method in HITTING else (problem.x[:BATCH], problem.y[:BATCH])
        taken = []
        for _ in range(repeats):
            began = time.process_time()
            optimizer.zero_grad()
            objective(*arguments).backward()
            optimizer.step()
            taken.append(1000 * (time.process_time() - began))
        yield {"part": "cost", "method": method, "milliseconds": statistics.median(taken)}


def gaussians(dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two Gaussian classes whose means are 3 apart: 200 rows for training, 2000 for testing."""
    generator = torch.Generator().manual_seed(30_000 + 100 * dim + seed)
    y = torch.arange(2200) % 2
    x = torch.randn(2200, dim, generator=generator)
    x[:, 0] += 3 * y - 1.5
    return x[:200], y[:200], x[200:], y[200:]


def walks(dim: int, seed: int) -> Iterator[dict[str, Any]]:
    """Count how walks end in ``dim`` dimensions of the inputs."""
    x, y, *_ = gaussians(dim, seed)
    for outer in ("hull", "ball", "box", "reflecting_box"):
        if outer in ("hull", "reflecting_box") and dim > 5:
            continue
        for starts in ("uniform", "between"):
            objective = hitting(nn.Identity(), x, y, {"outer": outer, "starts": starts})
            ends = objective.sample(n_starts=1000, generator=torch.Generator().manual_seed(seed))
            yield {
                "part": "walks",
                "region": outer,
                "starts": starts,
                "dim": dim,
                "seed": seed,
                "started_in_ball": float(((ends.steps == 0) & (ends.datum >= 0)).double().mean()),
                "steps": float(ends.steps.double().mean()),
                **ends.shares,
            }


def trained(dim: int, seed: int) -> Iterator[dict[str, Any]]:
    """Train in ``dim`` dimensions of the inputs."""
    x, y, test_x, test_y = gaussians(dim, seed)
    for method in ("ERM", "bridges", "auto"):
        model, found = train(method, x, y, seed, n_steps=300)
        share = accuracy(model, test_x, test_y)
        yield {"part": "trained", "method": method, "dim": dim, "seed": seed, "accuracy": share, **found}


def show(records: list[dict[str, Any]], name: str, form: str, spread: bool = True) -> str:
    """Mean and sample deviation over seeds; a dash where there is nothing."""
    values = [r[name] for r in records if name in r]
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):{form}}" if spread and len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}"


def lines_of_moons(records: list[dict[str, Any]]) -> list[str]:
    """Table of the first part."""
    columns: dict[str, tuple[str, str]] = {
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
    cost = {r["method"]: r["milliseconds"] for r in records if r["part"] == "cost"}
    lines = [
        "| objective | " + " | ".join(columns) + " | ms per step, walks drawn in it |",
        "|---|" + "--:|" * (len(columns) + 1),
    ]
    for method in METHODS:
        runs = [r for r in records if r["part"] == "moons" and r["method"] == method]
        cells = [show(runs, name, form) for name, form in columns.values()]
        cells.append(f"{cost[method]:.1f}" if method in cost else "-")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def lines_of_dimensions(records: list[dict[str, Any]]) -> list[str]:
    """Tables of the second part: share on data, of that at once, steps; and accuracies."""
    dims = sorted({r["dim"] for r in records if r["part"] == "walks"})
    ends = [r for r in records if r["part"] == "walks"]
    lines = [
        "| outer region | starts | " + " | ".join(f"d = {dim}" for dim in dims) + " |",
        "|---|---|" + "--:|" * len(dims),
    ]
    for region, starts in dict.fromkeys((r["region"], r["starts"]) for r in ends):
        cells = []
        for dim in dims:
            runs = [r for r in ends if (r["region"], r["starts"], r["dim"]) == (region, starts, dim)]
            shares = (show(runs, "data", ".1%", False), show(runs, "started_in_ball", ".1%", False))
            cells.append(f"{shares[0]}, {shares[1]}, {show(runs, 'steps', '.0f', False)}" if runs else "-")
        lines.append(f"| {region.replace('_', ' ')} | {starts} | " + " | ".join(cells) + " |")
    lines += ["", "| test accuracy | " + " | ".join(f"d = {dim}" for dim in dims) + " |"]
    lines.append("|---|" + "--:|" * len(dims))
    scores = [r for r in records if r["part"] == "trained"]
    for method in ("ERM", "bridges", "auto"):
        cells = [
            show([r for r in scores if (r["method"], r["dim"]) == (method, dim)], "accuracy", ".1%")
            for dim in dims
        ]
        label = 'hitting times, `outer="auto"`' if method == "auto" else method
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def write_tables(records: list[dict[str, Any]]) -> None:
    """Put the tables between the markers of the README."""
    text = "\n".join([*lines_of_moons(records), "", *lines_of_dimensions(records)])
    print(text)
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def read_records() -> list[dict[str, Any]]:
    """Read all committed records."""
    return read_lines(RECORDS)


def run(n_seeds: int) -> Iterator[dict[str, Any]]:
    """Make the records that are missing."""
    done = {tuple(record.get(name) for name in KEY) for record in read_records()}
    parts = {key[0] for key in done}
    if "cost" not in parts:
        yield from step_cost()
    for seed in range(n_seeds):
        yield from moons(seed, [m for m in METHODS if ("moons", m, None, None, None, seed) not in done])
    for dim in (2, 5, 10, 20):
        for seed in range(min(n_seeds, 3)):
            if ("walks", None, "ball", "uniform", dim, seed) not in done:
                yield from walks(dim, seed)
            if ("trained", "auto", None, None, dim, seed) not in done:
                yield from trained(dim, seed)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", elliptica.EllipticWarning)  # that few walks meet data is the result
    if arguments.action == "run":
        for record in run(arguments.seeds):
            append_lines(RECORDS, [record])
            print(record, flush=True)
    write_tables(read_records())


if __name__ == "__main__":
    main()
