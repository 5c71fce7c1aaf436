"""Study: what do simple controls give on SkillCraft and Crime (paper: Table 5)?

Trains ordinary networks, C-Mixup, elliptic training with the paper's and with Green's noise, noise without
any bridge, and networks on the log of the target. Measures each with and without clipping predictions to the
range of the training targets, beside ensembles of nine, boosted trees and ridge regression. Loaders, network,
schedule and the choice of the epoch are those of Table 5. Ten seeds, trained side by side. Needs
ELLIPTICA_DATA::

    python studies/regression_controls.py run      # what is not recorded yet (twenty minutes), then the page
    python studies/regression_controls.py table    # the page from the records
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import elliptica
from elliptica.baselines import CMixup, InputNoise, TargetKernel
from elliptica.lab.data import Dataset
from elliptica.lab.experiments.records import append_lines, read_lines, versions
from green_bridge import TASKS as GREEN_TASKS
from green_bridge import Stack, Task
from green_bridge import objective as bridge_objective
from regression_controls_table import ENSEMBLE, write_page

#: From row numbers to the loss, summed over networks.
Loss = Callable[[Tensor], Tensor]
#: Row, seed and what was measured.
Record = tuple[str, int, dict[str, Any]]

HERE = Path(__file__).resolve().parent.parent / "results" / "regression_controls"
RECORDS = HERE / "records.jsonl.gz"
#: As in Table 5. Elliptic training takes one point of each bridge, with partners by distance from all rows.
TASKS = {
    "skillcraft": GREEN_TASKS["skillcraft"],
    "crime": dataclasses.replace(GREEN_TASKS["crime"], epochs=100),
}
#: Added before the logarithm: latencies are positive; rates of crime are hundredths and may be 0.
SHIFT = {"skillcraft": 0.0, "crime": 0.01}
N_SEEDS = 10
#: How far the range of the training targets is widened, as a share of it.
MARGINS = (0.0, 0.05, 0.1, 0.25)
_ELLIPTIC = {"name": "elliptic", "power": "1"}
#: Settings of `green_bridge.objective`; noise without bridges and C-Mixup are made here.
NETWORKS: dict[str, dict[str, Any]] = {
    "erm": {"name": "erm"},
    "c-mixup": {"name": "c-mixup"},
    "elliptic": {**_ELLIPTIC, "noise": "paper", "label_noise": "sigma"},
    "green": {**_ELLIPTIC, "noise": "green 1", "label_noise": False},
    "noise as green": {"name": "noise", "law": "green"},
    "plain noise": {"name": "noise", "law": "normal"},
    "erm, log target": {"name": "erm", "log": True},
    "green, log target": {**_ELLIPTIC, "noise": "green 1", "label_noise": False, "log": True},
}


def noise_objective(
    runs: Stack, law: str, noise: torch.Generator
) -> tuple[Callable[[Tensor], Tensor], float]:
    """Noise without any bridge, and its deviation.

    ``"green"``: the noise of Green's bridge to a partner by distance, at a uniform time; ``"normal"``: normal
    noise of the same variance, the mean over pairs and times.
    """
    x, y, k = runs.x, runs.y, len(runs.seeds)
    partners = runs.tables(lambda split: elliptica.PartnerTable(split.x, power=1.0))
    index = torch.arange(runs.train[0].n_rows)
    everywhere = (index + runs.first[:, None]).flatten()
    draws = torch.Generator().manual_seed(0)
    green = elliptica.Green()
    ends = [x[partners(everywhere, draws)] for _ in range(10)]
    std = torch.cat([green(x[everywhere], end, generator=draws) for end in ends])
    deviation = math.sqrt(float(std.double().square().mean()) / 6)  # s (1 - s) is a sixth on average
    if law == "normal":
        plain = InputNoise(runs.model, runs.loss, sigma=deviation)
        return lambda index: k * plain(x[index], y[index], generator=noise), deviation
    module = InputNoise(runs.model, runs.loss, sigma="green", law="bridge")

    def loss(index: Tensor) -> Tensor:
        j = partners(index, noise)
        return k * module(x[index], y[index], end=(x[j], y[j]), generator=noise)

    return loss, deviation


def cmixup_objective(runs: Stack, noise: torch.Generator) -> Loss:
    """C-Mixup; networks side by side share the weights of mixing, nothing else."""
    x, y, k, task = runs.x, runs.y, len(runs.seeds), runs.task
    bandwidth = task.bandwidth
    assert bandwidth is not None
    partners = runs.tables(lambda split: TargetKernel(split.y, bandwidth))
    module = CMixup(runs.model, runs.loss, bandwidth=bandwidth, alpha=task.alpha, at=task.manifold)

    def loss(index: Tensor) -> Tensor:
        j = partners(index, noise)
        return k * module(x[index], y[index], end=(x[j], y[j]), generator=noise)

    return loss


def train(dataset: str, method: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
    """Train networks side by side; predict the test rows at the epoch of the lowest validation RMSE."""
    task, shift = TASKS[dataset], SHIFT[dataset]
    runs = Stack(task, method, seeds)
    noise = torch.Generator().manual_seed(1_000_003 + seeds[0])
    has_log = method.get("log", False)
    if has_log:
        runs.y = (runs.y + shift).log()
    details: dict[str, Any] = {}
    if method["name"] == "noise":
        loss, details["deviation"] = noise_objective(runs, method["law"], noise)
    elif method["name"] == "c-mixup":
        loss = cmixup_objective(runs, noise)
    else:
        loss, _ = bridge_objective(runs, method, noise)
    optimizer = torch.optim.Adam(runs.model.parameters(), lr=task.lr)
    data, k = runs.data[0], len(seeds)

    def predict(x: Tensor) -> Tensor:
        with torch.no_grad():
            output = runs.model(x.repeat(k, 1)).view(k, len(x)).double()
        return output.exp() - shift if has_log else output

    best, epochs = torch.full((k,), math.inf, dtype=torch.float64), torch.zeros(k, dtype=torch.int64)
    found = torch.zeros(k, data.test.n_rows, dtype=torch.float64)
    for epoch in range(task.epochs):
        for index in runs.batches():
            optimizer.zero_grad()
            loss(index).backward()
            optimizer.step()
        error = (predict(data.validation.x) - data.validation.y.flatten()).square().mean(1).sqrt()
        better = error <= best
        if bool(better.any()):
            best, epochs[better] = torch.where(better, error, best), epoch
            found[better] = predict(data.test.x)[better]
    return {"predictions": found, "validation": best.tolist(), "epoch": epochs.tolist(), **details}


def measure(predictions: Tensor, data: Dataset) -> dict[str, Any]:
    """Errors with and without clipping, how often predictions leave the range, and what one row carries."""
    y, group = data.test.y.flatten().double(), data.test.group
    assert group is not None
    low, high = float(data.train.y.min()), float(data.train.y.max())
    found: dict[str, Any] = {"plain": _errors(predictions, y, group)}
    for margin in MARGINS:
        extra = margin * (high - low)
        clipped = predictions.clamp(low - extra, high + extra)
        found[f"clipped {margin:g}"] = _errors(clipped, y, group)
    squares = (predictions - y).square()
    inside = squares[group == found["plain"]["group"]]
    found["outside"] = _rounded(((predictions < low) | (predictions > high)).double().mean())
    found["largest_row"] = _rounded(inside.max() / inside.sum())
    return found


def _errors(predictions: Tensor, y: Tensor, group: Tensor) -> dict[str, Any]:
    squares = (predictions - y).square()
    by_group = {int(g): float(squares[group == g].mean().sqrt()) for g in group.unique()}
    worst = max(by_group, key=lambda g: by_group[g])
    return {"average": _rounded(squares.mean().sqrt()), "worst": _rounded(by_group[worst]), "group": worst}


def _rounded(value: float | Tensor) -> float:
    return float(f"{float(value):.6g}")


def networks(dataset: str, row: str) -> Iterator[Record]:
    """One record for each seed of a row."""
    method, data, seeds = NETWORKS[row], TASKS[dataset].load(0), list(range(N_SEEDS))
    # in a hidden layer C-Mixup joins rows and partners, which networks side by side would mistake for rows
    is_alone = method["name"] == "c-mixup" and TASKS[dataset].manifold is not None
    for group in [[seed] for seed in seeds] if is_alone else [seeds]:
        found = train(dataset, method, group)
        predictions = found.pop("predictions")
        for i, seed in enumerate(group):
            details = {key: value[i] if isinstance(value, list) else value for key, value in found.items()}
            yield row, seed, {**details, **measure(predictions[i], data)}


def ensembles(dataset: str) -> Iterator[Record]:
    """Means of ordinary networks of all ten seeds but one, so that ensembles overlap.

    Predictions are clipped before the mean is taken.
    """
    data = TASKS[dataset].load(0)
    members = train(dataset, NETWORKS["erm"], list(range(N_SEEDS)))["predictions"]
    low, high = float(data.train.y.min()), float(data.train.y.max())
    for seed in range(N_SEEDS):
        others = members[[other for other in range(N_SEEDS) if other != seed]]
        clipped = measure(others.clamp(low, high).mean(0), data)  # as `EllipticRegressor` does
        yield ENSEMBLE, seed, {**measure(others.mean(0), data), "clipped 0": clipped["plain"]}


def trees(data: Dataset) -> Iterator[Record]:
    """Boosted trees with scikit-learn's defaults: nothing is chosen, and hardly anything is random."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, y, test = data.train.x.numpy(), data.train.y.numpy().ravel(), data.test.x.numpy()
    for seed in range(N_SEEDS):
        model = HistGradientBoostingRegressor(random_state=seed).fit(x, y)
        yield "boosted trees", seed, measure(torch.from_numpy(model.predict(test)).double(), data)


def ridge(data: Dataset) -> Iterator[Record]:
    """Ridge regression, its penalty chosen on validation as epochs are; it has no seeds."""
    from sklearn.linear_model import Ridge

    x, y = data.train.x.double().numpy(), data.train.y.double().numpy().ravel()
    wanted = data.validation.y.double().numpy().ravel()
    scores = {}
    for alpha in np.logspace(-3, 3, 13).tolist():
        model = Ridge(alpha=alpha).fit(x, y)
        error = model.predict(data.validation.x.double().numpy()) - wanted
        scores[alpha] = float(np.sqrt(np.mean(error**2)))
    best = min(scores, key=lambda alpha: scores[alpha])
    found = Ridge(alpha=best).fit(x, y).predict(data.test.x.double().numpy())
    yield "ridge", 0, {"alpha": best, "validation": scores[best], **measure(torch.from_numpy(found), data)}


def read(dataset: str) -> dict[str, dict[str, Any]]:
    """Records of a data set, by row and seed."""
    records: dict[str, dict[str, Any]] = {}
    for line in read_lines(RECORDS):
        if line["dataset"] == dataset:
            records.setdefault(line["row"], {})[line["seed"]] = line["values"]
    return records


def run(datasets: list[str]) -> None:
    """Do what is not recorded yet, row by row."""
    torch.set_num_threads(1)
    for dataset in datasets:
        task: Task = TASKS[dataset]
        jobs: dict[str, Callable[[], Iterator[Record]]] = {
            "boosted trees": lambda task=task: trees(task.load(0)),
            "ridge": lambda task=task: ridge(task.load(0)),
            **{row: lambda row=row, dataset=dataset: networks(dataset, row) for row in NETWORKS},
            ENSEMBLE: lambda dataset=dataset: ensembles(dataset),
        }
        for row, job in jobs.items():
            if row in read(dataset):
                continue
            lines = [
                {"dataset": dataset, "row": name, "seed": str(seed), "values": values, "versions": versions()}
                for name, seed, values in job()
            ]
            append_lines(RECORDS, lines)
            print(f"{dataset} {row}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--datasets", nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    if arguments.action == "run":
        run(arguments.datasets)
    write_page({dataset: read(dataset) for dataset in TASKS}, HERE)


if __name__ == "__main__":
    main()
