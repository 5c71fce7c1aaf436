"""Study: what anticipates, row by row, the loss of a network on rows that it has not seen?

Trains small networks in 1 to 64 dimensions and compares what can be said without the labels of the held-out
rows (the PDE's landscape, neighbours, distance, the network's confidence) with the actual losses, without
a shift and under three. About eleven minutes on one core::

    python studies/anticipation.py run        # what is not recorded yet, then the tables
    python studies/anticipation.py table      # tables from the records
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn import datasets
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from common import Record, Study, descend, rounded, table
from elliptica import EllipticWarning
from elliptica.lab.models import mlp
from elliptica.landscape import Ball, Box, DataDomain, LossField, loss_map, neighbour_loss

SEEDS = (0, 1, 2)
SHIFTS = ("none", "mean", "scale", "extrapolation")
#: Most training and held-out rows.
N_TRAIN, N_TEST = 300, 200
#: Steps of Adam on all training rows at once.
N_STEPS = 300
#: Networks behind the spread of predictions, a control for regression.
N_NETWORKS = 5
#: Walks per row for the landscape.
N_WALKS = 100
#: Mean shift of each feature in its deviations, factor of the scale shift, share of rows before the cut.
OFFSET, FACTOR, KEPT = 0.5, 1.5, 0.7
#: Fewest errors (and right answers) of a run for which an AUROC is computed.
FEWEST = 5


class Data(NamedTuple):
    """Rows of a problem; labels are whole numbers, targets of a regression real ones."""

    x: Tensor
    y: Tensor


class Split(NamedTuple):
    """Rows for training and rows to anticipate, standardised by the former."""

    train: Data
    test: Data


def moons(dim: int, seed: int) -> Data:
    """Two moons with noise 0.25, padded by noise of deviation 0.5 and rotated."""
    x, y = datasets.make_moons(N_TRAIN + N_TEST, noise=0.25, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    points = torch.as_tensor(x)
    noise = 0.5 * torch.randn(len(points), dim - 2, generator=generator, dtype=points.dtype)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=points.dtype)).Q
    return Data(torch.cat([points, noise], 1) @ rotation, torch.as_tensor(y).long())


def blobs(dim: int, seed: int) -> Data:
    """Two Gaussian classes of deviation 1, centres 2.5 apart in a random direction."""
    generator = torch.Generator().manual_seed(seed)
    n = N_TRAIN + N_TEST
    y = torch.arange(n) % 2
    direction = nn.functional.normalize(torch.randn(dim, generator=generator, dtype=torch.float64), dim=0)
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return Data(noise + 2.5 * (y[:, None] - 0.5) * direction, y)


def sines(dim: int, seed: int) -> Data:
    """``sum_i sin(2 x_i) / sqrt(dim)`` plus noise of deviation 0.1, normal inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N_TRAIN + N_TEST, dim, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
    return Data(x, (2 * x).sin().sum(1, keepdim=True) / dim**0.5 + noise)


def friedman(dim: int, seed: int) -> Data:
    """Friedman's first function with noise 1: five features matter."""
    x, y = datasets.make_friedman1(N_TRAIN + N_TEST, n_features=dim, noise=1.0, random_state=seed)
    return Data(torch.as_tensor(x), torch.as_tensor(y)[:, None])


def bundled(name: str) -> Callable[[int, int], Data]:
    """Data of scikit-learn; fewer dimensions than features are principal components."""

    def load(dim: int, seed: int) -> Data:
        pixels, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        x, y = torch.as_tensor(pixels).double(), torch.as_tensor(labels)
        if dim < x.shape[1]:
            centred = x - x.mean(0)
            x = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:dim].T
        return Data(x, y.double()[:, None] if y.is_floating_point() else y.long())

    return load


#: Problems with their dimensions.
PROBLEMS: dict[str, tuple[Callable[[int, int], Data], tuple[int, ...]]] = {
    "moons": (moons, (2, 3, 5, 8, 13)),
    "blobs": (blobs, (1, 2, 3, 5, 8, 13, 30, 64)),
    "digits": (bundled("digits"), (2, 3, 5, 8, 13, 30, 64)),
    "wine": (bundled("wine"), (13,)),
    "breast_cancer": (bundled("breast_cancer"), (30,)),
    "sines": (sines, (1, 2, 3, 5, 8, 13, 30)),
    "diabetes": (bundled("diabetes"), (10,)),
    "friedman": (friedman, (10, 30, 64)),
}


def split(data: Data, shift: str, seed: int) -> Split:
    """Split rows, standardise them by the training rows, and move the held-out ones.

    Under a shift of mean or scale the inputs move and the labels stay, as when an instrument drifts. To
    extrapolate, the network is trained on the rows before a cut along a random direction.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(len(data.x), generator=generator)
    dim = data.x.shape[1]
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    signs = torch.randint(2, (dim,), generator=generator).double() * 2 - 1
    if shift == "extrapolation":
        spread = data.x.std(0)
        along = (data.x / torch.where(spread > 0, spread, 1.0)) @ direction
        cut = along.quantile(KEPT)
        train, test = order[along[order] <= cut], order[along[order] > cut]
    else:
        n = min(N_TRAIN, int(KEPT * len(order)))
        train, test = order[:n], order[n:]
    train, test = train[:N_TRAIN], test[:N_TEST]
    x, y = data.x[train], data.y[train]
    deviation = x.std(0)
    at = (data.x[test] - x.mean(0)) / torch.where(deviation > 0, deviation, 1.0)
    x = (x - x.mean(0)) / torch.where(deviation > 0, deviation, 1.0)
    target = data.y[test]
    if y.is_floating_point():
        centre, scale = y.mean(0), y.std(0)
        y, target = (y - centre) / scale, (target - centre) / scale
    if shift == "mean":
        at = at + OFFSET * signs
    elif shift == "scale":
        at = FACTOR * at
    return Split(Data(x, y), Data(at, target))


def train_network(data: Data, n_outputs: int, seed: int) -> nn.Module:
    """Train two hidden layers of 64 ReLU units by ordinary training, on all rows at once."""
    torch.manual_seed(seed)
    model = mlp(data.x.shape[1], n_outputs, hidden=(64, 64), activation="relu")
    x, y = data.x.float(), data.y.float() if data.y.is_floating_point() else data.y
    losses = (loss_of(data)(model(x), y) for _ in range(N_STEPS))
    return descend(model, losses, 5e-3, N_STEPS).double().eval()


def loss_of(data: Data) -> nn.Module:
    """The loss of a task."""
    return nn.MSELoss() if data.y.is_floating_point() else nn.CrossEntropyLoss()


def estimates(
    parts: Split, networks: list[nn.Module], field: LossField, seed: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return every estimate for the held-out rows, none of which sees their labels, and facts about ``u``."""
    (x, y), at = parts.train, parts.test.x
    losses = field(x, y)
    around = torch.cat([x, at])
    outer = Box.around(around, wall="reflect") if x.shape[1] <= 3 else Ball.around(around)
    domain = DataDomain(x, fraction=0.3, outer=outer)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EllipticWarning)
        u = loss_map(
            *(field, domain, at),
            **{"labels": "nearest", "train": (x, y), "data_values": losses, "n_walks": N_WALKS},
            generator=torch.Generator().manual_seed(seed),
        )
    seconds = time.process_time() - began
    near = neighbour_loss(field, at, (x, y))
    found = {
        "u": u.value,
        "neighbours' losses": losses[near.rows].mean(1),
        "neighbours' labels": near.loss,
        "distance": near.distance,
    }
    with torch.no_grad():
        outputs = torch.stack([network(at) for network in networks])
    if y.is_floating_point():
        found["spread of 5 networks"] = outputs.var(0).mean(1)
    else:
        p = outputs[0].softmax(1)
        found["1 - confidence"] = 1 - p.amax(1)
        found["entropy"] = -torch.special.xlogy(p, p).sum(1)
    facts = {
        "on_data": float(u.hit_share.mean()),
        "unfinished": float(u.unfinished_share.mean()),
        "u_stderr": float(u.stderr.mean()),
        "u_spread": float(u.value.std()),
        "largest_training_loss": float(losses.max()),
        "far": float(near.far.double().mean()),
        "walk_seconds": seconds,
    }
    return found, facts


def measures(values: Tensor, actual: Tensor, event: Tensor) -> dict[str, float | None]:
    """How well estimates anticipate losses: their order, the rows with an error, and the level.

    There is no AUROC where errors or right answers are too few.
    """
    rank, n = float(spearmanr(values, actual).statistic), int(event.sum())
    known = min(n, len(event) - n) >= FEWEST
    area = float(roc_auc_score(event.numpy(), values.numpy())) if known else None
    return {
        "spearman": rank if rank == rank else None,
        "auroc": area,
        "level": float(values.mean() / actual.mean()),
    }


def measure(problem: str, dim: int, seed: int) -> Iterator[Record]:
    """Train and measure under every shift; the first three share their networks."""
    data = PROBLEMS[problem][0](dim, seed)
    is_classes = not data.y.is_floating_point()
    n_outputs = int(data.y.max()) + 1 if is_classes else 1
    seeds = [seed] if is_classes else [100 * i + seed for i in range(N_NETWORKS)]
    networks: list[nn.Module] = []
    for shift in SHIFTS:
        parts = split(data, shift, seed)
        if shift in ("none", "extrapolation"):
            networks = [train_network(parts.train, n_outputs, s) for s in seeds]
        field = LossField(networks[0], loss_of(data))
        actual, training = field(*parts.test), field(*parts.train)
        with torch.no_grad():
            output = networks[0](parts.test.x)
        event = output.argmax(1) != parts.test.y if is_classes else actual > actual.quantile(0.9)
        values, facts = estimates(parts, networks, field, seed)
        yield {
            "problem": problem,
            "task": "classification" if is_classes else "regression",
            "dim": dim,
            "shift": shift,
            "seed": seed,
            "n_train": len(parts.train.x),
            "n_test": len(parts.test.x),
            "loss": float(actual.mean()),
            "training_loss": float(training.mean()),
            "errors": int(event.sum()),
            "above_largest_training_loss": float((actual > training.max()).double().mean()),
            **facts,
            "estimates": {name: measures(each, actual, event) for name, each in values.items()},
        }


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Record what is not recorded yet."""
    done = {(r["problem"], r["dim"]) for r in records}
    for problem, (_, dims) in PROBLEMS.items():
        for dim in (dim for dim in dims if (problem, dim) not in done):
            yield [rounded(record) for seed in SEEDS for record in measure(problem, dim, seed)]


#: Groups of dimensions: name, least and largest.
GROUPS = {"d ≤ 2": (1, 2), "d = 3-5": (3, 5), "d = 8-13": (8, 13), "d = 30-64": (30, 64)}
TASKS = ("classification", "regression")
MEASURES = ("spearman", "auroc", "level")
#: Estimates in the unit of the loss: only these have a level.
LEVELLED = ("u", "neighbours' losses", "neighbours' labels", "entropy", "spread of 5 networks")
RESAMPLES = 2000
#: For each estimate and measure, its mean over the seeds; None where no seed has it.
Cell = dict[str, dict[str, float | None]]
#: Cells by problem, dimension and shift.
Cells = dict[tuple[str, int, str], Cell]


def cells(records: list[Record]) -> Cells:
    """Average over seeds; levels by the geometric mean."""
    runs: dict[tuple[str, int, str], list[Record]] = {}
    for record in records:
        runs.setdefault((record["problem"], record["dim"], record["shift"]), []).append(record)
    return {key: _average(found) for key, found in runs.items()}


def _average(runs: list[Record]) -> Cell:
    cell: Cell = {name: {} for name in runs[0]["estimates"]}
    for name in cell:
        for measure in MEASURES:
            known = [v for run in runs if (v := run["estimates"][name][measure]) is not None]
            if measure == "level":
                cell[name][measure] = statistics.geometric_mean(max(v, 1e-12) for v in known)
            else:
                cell[name][measure] = statistics.mean(known) if known else None
    return cell


def chosen(records: list[Record], task: str, group: str, shift: str | None = None) -> Cells:
    """Cells of a task, a group of dimensions and perhaps a shift."""
    low, high = GROUPS[group]
    found = (r for r in records if r["task"] == task and low <= r["dim"] <= high)
    return cells([r for r in found if shift in (None, r["shift"])])


def values_of(found: Cells, name: str, measure: str) -> list[float]:
    """Values of one estimate in all cells that have it."""
    return [value for cell in found.values() if (value := cell[name][measure]) is not None]


def interval(found: Cells, name: str, measure: str) -> tuple[float, float]:
    """95 % of the means when problems are drawn anew, each with all its cells."""
    problems: dict[tuple[str, int], list[float]] = {}
    for (problem, dim, _), cell in found.items():
        if (value := cell[name][measure]) is not None:
            problems.setdefault((problem, dim), []).append(value)
    sums = np.array([[sum(v), len(v)] for v in problems.values()])
    draw = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    totals = sums[draw].sum(1)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [0.025, 0.975])
    return float(low), float(high)


def show(found: Cells, name: str, measure: str, form: str = ".2f") -> str:
    """Mean over cells with its interval."""
    ends = "{:{form}} to {:{form}}".format(*interval(found, name, measure), form=form)
    return f"{statistics.mean(values_of(found, name, measure)):{form}} ({ends})"


def wins(found: Cells) -> Counter[str]:
    """Count the cells in which each estimate has the best Spearman; 5 networks do not compete."""
    best = []
    for cell in found.values():
        ranks = {name: m["spearman"] for name, m in cell.items() if not name.startswith("spread")}
        known = {name: value for name, value in ranks.items() if value is not None}
        best += [max(known, key=lambda name: known[name])] if known else []
    return Counter(best)


def by_dimension(records: list[Record], task: str) -> list[str]:
    """All shifts together: each estimate in each group of dimensions."""
    rows = []
    for group in GROUPS:
        found = chosen(records, task, group)
        best = wins(found)
        for name in next(iter(found.values())):
            level = "-"
            if name in LEVELLED:
                low, middle, high = np.quantile(values_of(found, name, "level"), [0.1, 0.5, 0.9])
                level = f"{middle:.2g} ({low:.2g} to {high:.2g})"
            count = "control" if name.startswith("spread") else f"{best[name]} of {len(found)}"
            rows.append([group, name, *(show(found, name, m) for m in MEASURES[:2]), level, count])
    head = ["dimension", "estimate", "Spearman", "AUROC", "level: median (10 to 90 %)", "best Spearman in"]
    return table(head, rows, "ll")


def by_shift(records: list[Record], task: str) -> list[str]:
    """Spearman / AUROC (level) of each estimate in each group of dimensions and under each shift."""

    def cell(found: Cells, name: str) -> str:
        rank, area, level = (values_of(found, name, measure) for measure in MEASURES)
        text = " / ".join(f"{statistics.mean(v):.2f}" if v else "-" for v in (rank, area))
        return f"{text} ({statistics.median(level):.2g})" if name in LEVELLED else text

    names = list(next(iter(chosen(records, task, "d ≤ 2").values())))
    found = {(group, shift): chosen(records, task, group, shift) for group in GROUPS for shift in SHIFTS}
    rows = ([*key, *(cell(each, name) for name in names), str(len(each))] for key, each in found.items())
    return table(["dimension", "shift", *names, "cells"], rows, "ll")


def walks(records: list[Record]) -> list[str]:
    """Why ``u`` has its level: where walks end, and what it cannot exceed."""
    shares = {
        "on_data": "walks that end on data",
        "above_largest_training_loss": "held-out rows with a loss above the largest training loss",
        "far": "rows outside the training region",
    }
    rows = []
    for group, (low, high) in GROUPS.items():
        for shift in SHIFTS:
            runs = [r for r in records if low <= r["dim"] <= high and r["shift"] == shift]
            ratio = statistics.median(r["loss"] / r["training_loss"] for r in runs)
            means = (f"{statistics.mean(r[name] for r in runs):.0%}" for name in shares)
            rows.append([group, shift, *means, f"{ratio:.2g}"])
    return table(["dimension", "shift", *shares.values(), "held-out / training loss (median)"], rows, "ll")


def against(records: list[Record], first: str, second: str) -> list[str]:
    """Compare two estimates cell by cell: mean difference of their Spearman correlations."""
    rows = []
    for task in TASKS:
        for group in GROUPS:
            pairs = {
                key: (cell[first]["spearman"], cell[second]["spearman"])
                for key, cell in chosen(records, task, group).items()
            }
            gaps: Cells = {k: {"": {"gap": a - b}} for k, (a, b) in pairs.items() if None not in (a, b)}
            higher = sum(value > 0 for value in values_of(gaps, "", "gap"))
            rows.append([task, group, show(gaps, "", "gap", "+.2f"), f"{higher} of {len(gaps)}"])
    return [*table(["task", "dimension", f"{first} minus {second}", "higher in"], rows, "ll"), ""]


def extremes(records: list[Record], n: int = 5) -> list[str]:
    """Show the cells in which ``u`` does best and worst against the neighbours' labels."""
    names = ("u", "neighbours' labels")
    pairs = {key: tuple(cell[name]["spearman"] for name in names) for key, cell in cells(records).items()}
    known = {key: pair for key, pair in pairs.items() if None not in pair}
    order = sorted(known, key=lambda key: known[key][0] - known[key][1], reverse=True)
    rows = ([*map(str, key), *(f"{v:.2f}" for v in known[key])] for key in [*order[:n], *order[-n:]])
    return table(["problem", "dimension", "shift", *names], rows, "lrl")


def blocks(records: list[Record]) -> dict[str, str]:
    """All tables."""
    minutes = sum(record["walk_seconds"] for record in records) / 60
    undefined = sum(record["estimates"]["u"]["auroc"] is None for record in records)
    lines = [
        f"{len(cells(records))} cells, {len(records)} runs; in {undefined} runs too few rows are "
        f"misclassified (or right) for an AUROC. The walks behind `u` took {minutes:.1f} minutes.",
        "",
    ]
    for task in TASKS:
        lines += [f"**{task.capitalize()}, all shifts**", "", *by_dimension(records, task), ""]
    for task in TASKS:
        title = f"**{task.capitalize()} by shift: Spearman / AUROC (median level)**"
        lines += [title, "", *by_shift(records, task), ""]
    lines += ["**Spearman, cell by cell**", "", *against(records, "neighbours' labels", "u")]
    lines += [*against(records, "u", "neighbours' losses"), *against(records, "u", "distance")]
    title = "**Where `u` is best and worst beside the neighbours' labels (Spearman)**"
    lines += [title, "", *extremes(records)]
    return {"tables": "\n".join([*lines, "", "**Why `u` has its level**", "", *walks(records)])}


STUDY = Study("anticipation", blocks, ("problem", "dim"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
