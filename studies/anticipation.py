"""Study: what anticipates, row by row, the loss of a network on rows that it has not seen?

Trains small networks in 1 to 64 dimensions and compares what can be said without the labels of the held-out
rows (the PDE's landscape, neighbours, distance, the network's confidence) with the actual losses, without
a shift and under three. About eleven minutes on one core::

    python studies/anticipation.py run        # what is not recorded yet, then the tables
    python studies/anticipation.py table      # tables from the records
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
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
#: Steps of Adam on all training rows, networks behind the spread of predictions, walks per row.
N_STEPS, N_NETWORKS, N_WALKS = 300, 5, 100
#: Mean shift of each feature in its deviations, factor of the scale shift, share of rows before the cut.
OFFSET, FACTOR, KEPT = 0.5, 1.5, 0.7
#: Fewest errors (and right answers) of a run for which an AUROC is computed.
FEWEST = 5


class Data(NamedTuple):
    """Rows of a problem; labels are whole numbers, targets of a regression real ones."""

    x: Tensor
    y: Tensor


def moons(dim: int, seed: int) -> Data:
    """Two moons with noise 0.25, padded by noise of deviation 0.5 and rotated."""
    x, y = datasets.make_moons(N_TRAIN + N_TEST, noise=0.25, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    noise = 0.5 * torch.randn(len(x), dim - 2, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    return Data(torch.cat([torch.as_tensor(x), noise], 1) @ rotation, torch.as_tensor(y).long())


def blobs(dim: int, seed: int) -> Data:
    """Two Gaussian classes of deviation 1, centres 2.5 apart in a random direction."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(N_TRAIN + N_TEST) % 2
    direction = nn.functional.normalize(torch.randn(dim, generator=generator, dtype=torch.float64), dim=0)
    noise = torch.randn(len(y), dim, generator=generator, dtype=torch.float64)
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
        x, y = map(torch.as_tensor, getattr(datasets, f"load_{name}")(return_X_y=True))
        x = x.double()
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


def split(data: Data, shift: str, seed: int) -> tuple[Data, Data]:
    """Split rows, standardise them by the training rows, and move the held-out ones.

    Under a shift of mean or scale the inputs move and the labels stay, as when an instrument drifts. To
    extrapolate, the network is trained on the rows before a cut along a random direction.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    order, dim = torch.randperm(len(data.x), generator=generator), data.x.shape[1]
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    signs = torch.randint(2, (dim,), generator=generator).double() * 2 - 1
    n = min(N_TRAIN, int(KEPT * len(order)))
    train, test = order[:n], order[n:]
    scale = lambda x: torch.where(x.std(0) > 0, x.std(0), 1.0)  # noqa: E731
    if shift == "extrapolation":
        along = (data.x / scale(data.x)) @ direction
        before = along[order] <= along.quantile(KEPT)
        train, test = order[before][:N_TRAIN], order[~before]
    (x, y), (at, target) = ((data.x[rows], data.y[rows]) for rows in (train, test[:N_TEST]))
    at, x = (at - x.mean(0)) / scale(x), (x - x.mean(0)) / scale(x)
    if y.is_floating_point():
        target, y = (target - y.mean(0)) / y.std(0), (y - y.mean(0)) / y.std(0)
    at = {"mean": at + OFFSET * signs, "scale": FACTOR * at}.get(shift, at)
    return Data(x, y), Data(at, target)


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
    train: Data, at: Tensor, networks: list[nn.Module], field: LossField, seed: int
) -> tuple[dict[str, Tensor], float]:
    """Return every estimate for the held-out rows, whose labels are not given; the share of walks on data."""
    (x, y), around, losses = train, torch.cat([train.x, at]), field(*train)
    outer = Box.around(around, wall="reflect") if x.shape[1] <= 3 else Ball.around(around)
    options = {"labels": "nearest", "train": (x, y), "data_values": losses, "n_walks": N_WALKS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EllipticWarning)
        domain, generator = DataDomain(x, fraction=0.3, outer=outer), torch.Generator().manual_seed(seed)
        u = loss_map(field, domain, at, **options, generator=generator)
    near = neighbour_loss(field, at, (x, y))
    values = {"u": u.value, "neighbours' losses": losses[near.rows].mean(1)}
    values |= {"neighbours' labels": near.loss, "distance": near.distance}
    with torch.no_grad():
        outputs = torch.stack([network(at) for network in networks])
    if y.is_floating_point():
        values["spread of 5 networks"] = outputs.var(0).mean(1)
    else:
        values["1 - confidence"] = 1 - outputs[0].softmax(1).amax(1)
    return values, float(u.hit_share.mean())


def measures(values: Tensor, actual: Tensor, event: Tensor) -> dict[str, float | None]:
    """How well estimates anticipate losses: their order, the rows with an error, and the level.

    There is no AUROC where errors or right answers are too few.
    """
    rank, n = float(spearmanr(values, actual).statistic), int(event.sum())
    known = min(n, len(event) - n) >= FEWEST
    area = float(roc_auc_score(event.numpy(), values.numpy())) if known else None
    level = float(values.mean() / actual.mean())
    return {"spearman": rank if rank == rank else None, "auroc": area, "level": level}


def measure(problem: str, dim: int, seed: int) -> Iterator[Record]:
    """Train and measure under every shift; the first three share their networks."""
    data = PROBLEMS[problem][0](dim, seed)
    is_classes = not data.y.is_floating_point()
    n_outputs = int(data.y.max()) + 1 if is_classes else 1
    seeds = [seed] if is_classes else [100 * i + seed for i in range(N_NETWORKS)]
    networks: list[nn.Module] = []
    for shift in SHIFTS:
        train, test = split(data, shift, seed)
        if shift in ("none", "extrapolation"):
            networks = [train_network(train, n_outputs, s) for s in seeds]
        field = LossField(networks[0], loss_of(data))
        actual = field(*test)
        event = networks[0](test.x).argmax(1) != test.y if is_classes else actual > actual.quantile(0.9)
        values, on_data = estimates(train, test.x, networks, field, seed)
        yield {
            **{"problem": problem, "task": TASKS[not is_classes], "dim": dim, "shift": shift, "seed": seed},
            "on_data": on_data,
            "estimates": {name: measures(value, actual, event) for name, value in values.items()},
        }


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Record what is not recorded yet."""
    places = [(problem, dim) for problem, (_, dims) in PROBLEMS.items() for dim in dims]
    for problem, dim in STUDY.missing(records, places):
        yield [rounded(record) for seed in SEEDS for record in measure(problem, dim, seed)]


TASKS = ("classification", "regression")
GROUPS = ("d ≤ 2", "d = 3-5", "d = 8-13", "d = 30-64")
#: Number of the group of a dimension.
GROUP = pl.sum_horizontal(pl.col("dim") > top for top in (2, 5, 13))
CELL = ("problem", "dim", "shift")
#: Estimates in the unit of the loss: only these have a level.
LEVELLED = ("u", "neighbours' losses", "neighbours' labels", "spread of 5 networks")


def cells(records: list[Record], task: str) -> pl.DataFrame:
    """One row per cell and estimate: means over the seeds, geometric ones of levels."""
    rows = [
        {**{key: r[key] for key in CELL}, "estimate": name, **values}
        for r in records
        for name, values in r["estimates"].items()
        if r["task"] == task
    ]
    level = pl.col("level").clip(1e-12).log().mean().exp()
    found = pl.DataFrame(rows, infer_schema_length=None).group_by(*CELL, "estimate", maintain_order=True)
    return found.agg(pl.col("spearman", "auroc").mean(), level).sort(GROUP, maintain_order=True)


def show(found: pl.DataFrame, measure: str) -> str:
    """Mean over cells, and 95 % of the means when problems are drawn anew, each with all its cells."""
    known = found.drop_nulls(measure)
    sums = known.group_by("problem", "dim", maintain_order=True).agg(pl.col(measure).sum(), n=pl.len())
    pairs = sums.select(measure, "n").to_numpy()
    draw = np.random.default_rng(0).integers(len(pairs), size=(2000, len(pairs)))
    totals = pairs[draw].sum(1)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [0.025, 0.975])
    return f"{known[measure].mean():.2f} ({low:.2f} to {high:.2f})"


def by_dimension(found: pl.DataFrame) -> list[str]:
    """All shifts together: each estimate in each group of dimensions; 5 networks do not compete."""
    alone = found.filter(~pl.col("estimate").str.starts_with("spread")).drop_nulls("spearman")
    order = alone.sort("spearman", descending=True, maintain_order=True)
    best = order.unique(CELL, keep="first", maintain_order=True)
    rows = []
    for (group, name), part in found.group_by(GROUP, "estimate", maintain_order=True):
        low, middle, high = (part["level"].quantile(q, "linear") for q in (0.1, 0.5, 0.9))
        level = f"{middle:.2g} ({low:.2g} to {high:.2g})" if name in LEVELLED else "-"
        wins = len(best.filter(group == GROUP, estimate=name))
        count = "control" if str(name).startswith("spread") else f"{wins} of {len(part)}"
        rows.append([GROUPS[group], name, show(part, "spearman"), show(part, "auroc"), level, count])
    head = ["dimension", "estimate", "Spearman", "AUROC", "level: median (10 to 90 %)", "best Spearman in"]
    return table(head, rows, "ll")


def blocks(records: list[Record]) -> dict[str, str]:
    """Both tables, and where walks end."""
    undefined = sum(record["estimates"]["u"]["auroc"] is None for record in records)
    found = {task: cells(records, task) for task in TASKS}
    n_cells = sum(len(each.unique(CELL)) for each in found.values())
    ends = pl.DataFrame(records, infer_schema_length=None).group_by(GROUP).agg(pl.col("on_data").mean())
    shares = ", ".join(f"{share:.0%} ({GROUPS[group]})" for group, share in ends.sort("dim").iter_rows())
    lines = [
        f"{n_cells} cells, {len(records)} runs; in {undefined} runs too few rows are "
        f"misclassified (or right) for an AUROC. So many of the walks behind `u` end on data: {shares}."
    ]
    for task in TASKS:
        lines += ["", f"**{task.capitalize()}, all shifts**", "", *by_dimension(found[task])]
    return {"tables": "\n".join(lines)}


STUDY = Study("anticipation", blocks, ("problem", "dim"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
