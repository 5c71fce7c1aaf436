"""Study: what do path and marginal sampling cost, and what do they give, on two real tables?

Trains the paper's perceptron on Airfoil and NO2 with the paper's settings (Table 12), ten seeds, the
epoch chosen on the validation split, and writes one JSON record per run. Needs ELLIPTICA_DATA::

    python studies/sampling_modes.py                 # all runs that are not recorded yet, then the table
    python studies/sampling_modes.py --table         # only the table, from the records
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

import elliptica
from elliptica.lab.data import load_airfoil, load_no2
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.records import append_lines, read_lines
from elliptica.lab.models import mlp

HERE = Path(__file__).resolve().parent.parent / "results" / "sampling_modes"
LOADERS: dict[str, Callable[..., Dataset]] = {"airfoil": load_airfoil, "no2": load_no2}

# Paper: Table 12. n_b = 20 (Airfoil) and 10 (NO2), n_t = 5.
TRAINING = {
    "airfoil": {"epochs": 100, "batch_size": 16, "lr": 1e-2, "sigma": 0.05, "n_bridges": 20},
    "no2": {"epochs": 100, "batch_size": 32, "lr": 1e-2, "sigma": 0.01, "n_bridges": 10},
}
N_TIMES = 5
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def methods(sigma: float, n_bridges: int) -> dict[str, dict[str, Any] | None]:
    """Settings of `Elliptic` by name; None is ordinary training."""
    return {
        "erm": None,
        # the price of ordinary training: one row per sample
        "marginal": {"sampling": "marginal", "sigma": sigma},
        "marginal uniform": {"sampling": "marginal", "sigma": sigma, "quadrature": "uniform"},
        "marginal nearest": {"sampling": "marginal", "sigma": sigma, "pairing": "nearest"},
        "marginal auto": {"sampling": "marginal", "sigma": "auto"},
        "marginal green": {"sampling": "marginal", "sigma": "green"},
        # five rows per sample
        "path 1x5": {"sampling": "path", "sigma": sigma, "n_times": N_TIMES},
        "marginal 5": {"sampling": "marginal", "sigma": sigma, "n_bridges": N_TIMES},
        # the paper's setting, and marginal sampling with as many rows
        "path (paper)": {"sampling": "path", "sigma": sigma, "n_times": N_TIMES, "n_bridges": n_bridges},
        "marginal (as many rows)": {
            "sampling": "marginal",
            "sigma": sigma,
            "n_bridges": n_bridges * N_TIMES,
        },
    }


def rmse(model: nn.Module, split: Split) -> float:
    """Root mean squared error on a split."""
    with torch.no_grad():
        return math.sqrt(nn.functional.mse_loss(model(split.x), split.y).item())


def train(dataset: str, method: str, seed: int) -> dict[str, Any]:
    """One run; the record holds everything needed to repeat it."""
    settings = TRAINING[dataset]
    data = LOADERS[dataset](seed)
    torch.manual_seed(seed)  # initial weights, the same for every method
    model = mlp(data.n_features, 1)
    objective: Callable[..., Tensor]
    bridge_settings = methods(settings["sigma"], int(settings["n_bridges"]))[method]
    if bridge_settings is None:
        objective = lambda x, y, generator: nn.functional.mse_loss(model(x), y)  # noqa: E731
        rows = 1
    else:
        given = dict(bridge_settings)
        if given["sigma"] == "auto":
            given["sigma"] = elliptica.auto_sigma(data.train.x)
        objective = elliptica.Elliptic(model, nn.MSELoss(), **given)
        n_times = N_TIMES if bridge_settings["sampling"] == "path" else 1
        rows = n_times * int(bridge_settings.get("n_bridges", 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    order = torch.Generator().manual_seed(seed)
    noise = torch.Generator().manual_seed(1_000_003 + seed)
    batch = int(settings["batch_size"])
    best = {"validation_rmse": math.inf}
    wall, cpu, evaluations = time.perf_counter(), time.process_time(), 0
    for epoch in range(int(settings["epochs"])):
        for index in torch.randperm(data.train.n_rows, generator=order).split(batch):
            if len(index) < batch:  # the reference drops the last incomplete batch
                continue
            loss = objective(data.train.x[index], data.train.y[index], generator=noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            evaluations += rows * batch
        validation = rmse(model, data.validation)
        if validation <= best["validation_rmse"]:
            best = {"validation_rmse": validation, "test_rmse": rmse(model, data.test), "epoch": epoch}
    return {
        "dataset": dataset,
        "method": method,
        "seed": seed,
        **best,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "function_evaluations": evaluations,
        "settings": {**settings, "objective": bridge_settings},
        "versions": {
            "elliptica": elliptica.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def read_records() -> list[dict[str, Any]]:
    """All committed records."""
    return read_lines(HERE / "records.jsonl.gz")


def table(records: list[dict[str, Any]]) -> str:
    """Markdown table: mean and sample deviation over seeds."""
    lines = [
        "| data | method | rows per sample | test RMSE | validation RMSE | seconds (CPU) | seeds |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for dataset in LOADERS:
        base = TRAINING[dataset]
        for method, settings in methods(base["sigma"], int(base["n_bridges"])).items():
            runs = [r for r in records if r["dataset"] == dataset and r["method"] == method]
            if not runs:
                continue
            rows = 1
            if settings:
                n_times = N_TIMES if settings["sampling"] == "path" else 1
                rows = n_times * settings.get("n_bridges", 1)
            lines.append(
                f"| {dataset} | {method} | {rows} | {_spread(runs, 'test_rmse')} "
                f"| {_spread(runs, 'validation_rmse')} "
                f"| {statistics.median(r['cpu_seconds'] for r in runs):.1f} | {len(runs)} |"
            )
    lines += [
        "",
        "Difference of test RMSE to ERM on the same split (mean, two-sided p of a paired t test):",
        "",
    ]
    for dataset in LOADERS:
        found = [r for r in records if r["dataset"] == dataset]
        erm = {r["seed"]: r["test_rmse"] for r in found if r["method"] == "erm"}
        for method in methods(0.0, 1):
            gaps = [
                r["test_rmse"] - erm[r["seed"]] for r in found if r["method"] == method and r["seed"] in erm
            ]
            if method != "erm" and len(gaps) > 1:
                p = stats.ttest_1samp(gaps, 0.0).pvalue
                lines.append(f"- {dataset}, {method}: {statistics.mean(gaps):+.4f} (p = {p:.2g})")
    return "\n".join(lines)


def _spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [r[key] for r in runs]
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--datasets", nargs="+", choices=list(LOADERS), default=list(LOADERS))
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        done = {(r["dataset"], r["method"], r["seed"]) for r in read_records()}
        for dataset in arguments.datasets:
            for seed in range(arguments.seeds):
                base = TRAINING[dataset]
                for method in methods(base["sigma"], int(base["n_bridges"])):
                    if (dataset, method, seed) in done:
                        continue
                    record = train(dataset, method, seed)
                    append_lines(HERE / "records.jsonl.gz", [record])
                    print(f"{dataset} seed {seed} {method}: {record['test_rmse']:.4f}", flush=True)
    text = table(read_records())
    print(text)
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
