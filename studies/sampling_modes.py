"""Study: what do path and marginal sampling cost, and what do they give, on two real tables?

Trains the paper's perceptron on Airfoil and NO2 with the paper's settings (Table 12), ten seeds, the
epoch chosen on the validation split, and writes one JSON record per run. Needs ELLIPTICA_DATA::

    python studies/sampling_modes.py run       # all runs that are not recorded yet, then the table
    python studies/sampling_modes.py table     # only the table, from the records
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import elliptica
from common import Record, Study, descend, paired_p, spread, table
from elliptica.baselines import ERM
from elliptica.lab.data import load_airfoil, load_no2
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.records import versions
from elliptica.lab.models import mlp

N_SEEDS = 10
LOADERS: dict[str, Callable[..., Dataset]] = {"airfoil": load_airfoil, "no2": load_no2}

# Paper: Table 12. n_b = 20 (Airfoil) and 10 (NO2), n_t = 5.
TRAINING = {
    "airfoil": {"epochs": 100, "batch_size": 16, "lr": 1e-2, "sigma": 0.05, "n_bridges": 20},
    "no2": {"epochs": 100, "batch_size": 32, "lr": 1e-2, "sigma": 0.01, "n_bridges": 10},
}
N_TIMES = 5


def methods(dataset: str) -> dict[str, dict[str, Any] | None]:
    """Settings of `Elliptic` by name; None is ordinary training."""
    sigma, n_bridges = TRAINING[dataset]["sigma"], int(TRAINING[dataset]["n_bridges"])
    marginal = {"sampling": "marginal", "sigma": sigma}
    path = {"sampling": "path", "sigma": sigma, "n_times": N_TIMES}
    return {
        "erm": None,
        # the price of ordinary training: one row per sample
        "marginal": marginal,
        "marginal uniform": {**marginal, "quadrature": "uniform"},
        "marginal nearest": {**marginal, "pairing": "nearest"},
        "marginal auto": {"sampling": "marginal", "sigma": "auto"},
        "marginal green": {"sampling": "marginal", "sigma": "green"},
        # five rows per sample
        "path 1x5": path,
        "marginal 5": {**marginal, "n_bridges": N_TIMES},
        # the paper's setting, and marginal sampling with as many rows
        "path (paper)": {**path, "n_bridges": n_bridges},
        "marginal (as many rows)": {**marginal, "n_bridges": n_bridges * N_TIMES},
    }


def rows_per_sample(settings: dict[str, Any] | None) -> int:
    """Evaluations of the network for each sample."""
    return 1 if settings is None else settings.get("n_times", 1) * settings.get("n_bridges", 1)


def rmse(model: nn.Module, split: Split) -> float:
    """Root mean squared error on a split."""
    with torch.no_grad():
        return math.sqrt(nn.functional.mse_loss(model(split.x), split.y).item())


def train(dataset: str, method: str, seed: int) -> Record:
    """One run; the record holds everything needed to repeat it."""
    training, settings, data = TRAINING[dataset], methods(dataset)[method], LOADERS[dataset](seed)
    torch.manual_seed(seed)  # initial weights, the same for every method
    model = mlp(data.n_features, 1)
    given = dict(settings or {})
    if given.get("sigma") == "auto":
        given["sigma"] = elliptica.auto_sigma(data.train.x)
    objective = elliptica.Elliptic(model, nn.MSELoss(), **given) if settings else ERM(model, nn.MSELoss())
    order, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1_000_003 + seed)
    batch, best = int(training["batch_size"]), {"validation_rmse": math.inf}
    wall, cpu = time.perf_counter(), time.process_time()

    def losses() -> Iterator[Tensor]:
        for epoch in range(int(training["epochs"])):
            parts = torch.randperm(data.train.n_rows, generator=order).split(batch)
            for index in parts[: data.train.n_rows // batch]:  # the reference drops an incomplete batch
                yield objective(data.train.x[index], data.train.y[index], generator=noise)
            validation = rmse(model, data.validation)
            if validation <= best["validation_rmse"]:
                test = {"test_rmse": rmse(model, data.test), "epoch": epoch}
                best.update({"validation_rmse": validation, **test})

    descend(model, losses(), training["lr"])
    return {
        "dataset": dataset,
        "method": method,
        "seed": seed,
        **best,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "settings": {**training, "objective": settings},
        "versions": versions(),
    }


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train what is not recorded yet."""
    done = {(r["dataset"], r["method"], r["seed"]) for r in records}
    cells = [(name, method, seed) for name in LOADERS for seed in range(N_SEEDS) for method in methods(name)]
    yield from ([train(*cell)] for cell in cells if cell not in done)


def blocks(records: list[Record]) -> dict[str, str]:
    """Mean and sample deviation over seeds, and differences to ERM on the same split."""
    rows, gaps = [], []
    for dataset in LOADERS:
        found = sorted((r for r in records if r["dataset"] == dataset), key=lambda r: r["seed"])
        runs = {method: [r for r in found if r["method"] == method] for method in methods(dataset)}
        for method, settings in methods(dataset).items():
            test, validation = ([r[f"{part}_rmse"] for r in runs[method]] for part in ("test", "validation"))
            seconds = f"{statistics.median(r['cpu_seconds'] for r in runs[method]):.1f}"
            about = [dataset, method, str(rows_per_sample(settings))]
            rows.append([*about, spread(test), spread(validation), seconds, str(len(test))])
            apart = [a - erm["test_rmse"] for a, erm in zip(test, runs["erm"], strict=True)]
            if settings:
                p = f"(p = {paired_p(apart):.2g})"
                gaps.append(f"- {dataset}, {method}: {statistics.mean(apart):+.4f} {p}")
    head = ["data", "method", "rows per sample", "test RMSE", "validation RMSE", "seconds (CPU)", "seeds"]
    title = "Difference of test RMSE to ERM on the same split (mean, two-sided p of a paired t test):"
    return {"table": "\n".join([*table(head, rows, "ll"), "", title, "", *gaps])}


STUDY = Study("sampling_modes", blocks, ("dataset", "method", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
