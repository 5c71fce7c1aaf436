"""Study: what anticipates, row by row, the loss of a network on rows that it has not seen?

Trains small networks in 1 to 64 dimensions and compares what can be said without the labels of the held-out
rows (the PDE's landscape, neighbours, distance, the network's confidence) with the actual losses, without
a shift and under three. About eleven minutes on one core::

    python studies/anticipation.py run        # what is not recorded yet, then the tables
    python studies/anticipation.py table      # tables from the records
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anticipation_table import RECORDS, write_table
from elliptica._utils.statistics import spearman
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.experiments.records import append_lines, read_lines
from elliptica.lab.models import mlp
from elliptica.landscape import Ball, Box, DataDomain, LossField, loss_map, neighbour_loss

HERE = Path(__file__).resolve().parent.parent / "results" / "anticipation"
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
    from sklearn import datasets

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
    from sklearn import datasets

    x, y = datasets.make_friedman1(N_TRAIN + N_TEST, n_features=dim, noise=1.0, random_state=seed)
    return Data(torch.as_tensor(x), torch.as_tensor(y)[:, None])


def bundled(name: str) -> Callable[[int, int], Data]:
    """Data of scikit-learn; fewer dimensions than features are principal components."""

    def load(dim: int, seed: int) -> Data:
        from sklearn import datasets

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
    """Train two hidden layers of 64 ReLU units by ordinary training."""
    torch.manual_seed(seed)
    is_classes = not data.y.is_floating_point()
    model = mlp(data.x.shape[1], n_outputs, hidden=(64, 64), activation="relu")
    loss_fn: nn.Module = nn.CrossEntropyLoss() if is_classes else nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, N_STEPS)
    x, y = data.x.float(), data.y if is_classes else data.y.float()
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        schedule.step()
    return model.double().eval()


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
            field,
            domain,
            at,
            labels="nearest",
            train=(x, y),
            data_values=losses,
            n_walks=N_WALKS,
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


def auroc(score: Tensor, event: Tensor) -> float | None:
    """Area under the ROC curve; None where events or their opposites are too few."""
    from sklearn.metrics import roc_auc_score

    n = int(event.sum())
    return None if min(n, len(event) - n) < FEWEST else float(roc_auc_score(event.numpy(), score.numpy()))


def measure(problem: str, dim: int, seed: int) -> list[dict[str, Any]]:
    """Train and measure under every shift; the first three share their networks."""
    data = PROBLEMS[problem][0](dim, seed)
    n_outputs = 1 if data.y.is_floating_point() else int(data.y.max()) + 1
    records: list[dict[str, Any]] = []
    networks: dict[bool, list[nn.Module]] = {}
    for shift in SHIFTS:
        parts = split(data, shift, seed)
        is_classes = not parts.train.y.is_floating_point()
        key = shift == "extrapolation"
        if key not in networks:
            seeds = [seed] if is_classes else [100 * i + seed for i in range(N_NETWORKS)]
            networks[key] = [train_network(parts.train, n_outputs, s) for s in seeds]
        model = networks[key][0]
        field = LossField(model, nn.CrossEntropyLoss() if is_classes else nn.MSELoss())
        actual = field(*parts.test)
        with torch.no_grad():
            output = model(parts.test.x)
        event = output.argmax(1) != parts.test.y if is_classes else actual > actual.quantile(0.9)
        found, facts = estimates(parts, networks[key], field, seed)
        training = field(*parts.train)
        records.append(
            {
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
                "estimates": {
                    name: {
                        "spearman": _number(spearman(values, actual)),
                        "auroc": auroc(values, event),
                        "level": float(values.mean() / actual.mean()),
                    }
                    for name, values in found.items()
                },
            }
        )
    return records


def _number(value: float) -> float | None:
    return value if value == value else None


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def run() -> None:
    """Record what is not recorded yet."""
    torch.set_num_threads(1)
    for problem, (_, dims) in PROBLEMS.items():
        for dim in dims:
            if any((r["problem"], r["dim"]) == (problem, dim) for r in read_lines(HERE / RECORDS)):
                continue
            began = time.process_time()
            records = [_rounded(record) for seed in SEEDS for record in measure(problem, dim, seed)]
            append_lines(HERE / RECORDS, records)
            print(f"{problem} {dim}: {time.process_time() - began:.1f} s")


def main() -> None:
    """Run, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    if parser.parse_args().what == "run":
        run()
    write_table(HERE)


if __name__ == "__main__":
    main()
