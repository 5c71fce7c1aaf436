"""Study: what do path and marginal sampling cost, and what do they give?

Needs ELLIPTICA_DATA::

python studies/sampling_modes.py run       # all runs that are not recorded yet, then the table
python studies/sampling_modes.py table     # only the table, from the records
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import elliptica
from common import Record, Study, Values, paired_p, spread, table
from elliptica.baselines import ERM
from elliptica.lab.experiments.records import versions
from green_bridge import SEEDS, TASKS, Stack

#: Paper: Table 12. n_b = 20 (Airfoil) and 10 (NO2), n_t = 5.
N_BRIDGES, N_TIMES = {"airfoil": 20, "no2": 10}, 5


def methods(dataset: str) -> dict[str, dict[str, Any]]:
    """Settings of `Elliptic` by name; none for ordinary training."""
    marginal = {"sampling": "marginal", "sigma": TASKS[dataset].sigma}
    path = {"sampling": "path", "sigma": TASKS[dataset].sigma, "n_times": N_TIMES}
    return {
        "erm": {},
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
        "path (paper)": {**path, "n_bridges": N_BRIDGES[dataset]},
        "marginal (as many rows)": {**marginal, "n_bridges": N_BRIDGES[dataset] * N_TIMES},
    }


def train(dataset: str, method: str, seed: int) -> Record:
    """Train one network."""
    runs, settings = Stack(TASKS[dataset], [seed]), methods(dataset)[method]
    if settings.get("sigma") == "auto":
        settings = {**settings, "sigma": elliptica.auto_sigma(runs.x)}
    kind = elliptica.Elliptic if settings else ERM
    module, begin = kind(runs.model, runs.loss, **settings), time.process_time()
    best = runs.fit(module)
    return {
        **{"dataset": dataset, "method": method, "seed": seed, "epoch": int(best.epoch)},
        "validation_rmse": -float(best.score),
        "test_rmse": float(runs.errors(best.output, runs.test).mean().sqrt()),
        "cpu_seconds": time.process_time() - begin,
        "versions": versions(),
    }


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train what is not recorded yet."""
    cells = [(name, method, seed) for name in N_BRIDGES for seed in SEEDS for method in methods(name)]
    yield from ([train(*cell)] for cell in STUDY.missing(records, cells))


def blocks(records: list[Record]) -> dict[str, str]:
    """Mean and sample deviation over seeds, and differences to ERM on the same split."""
    rows, values = [], Values(records, "dataset", "method")
    for dataset, method, settings in ((d, m, s) for d in N_BRIDGES for m, s in methods(d).items()):
        gaps = values.gaps((dataset, method), (dataset, "erm"), "test_rmse")
        gap = f"{statistics.mean(gaps):+.4f} (p = {paired_p(gaps):.2g})" if settings else "-"
        scores = [spread(values(dataset, method, of=f"{part}_rmse")) for part in ("test", "validation")]
        seconds = f"{statistics.median(values(dataset, method, of='cpu_seconds')):.1f}"
        n_rows = settings.get("n_times", 1) * settings.get("n_bridges", 1)
        rows.append([dataset, method, str(n_rows), *scores, gap, seconds, str(len(gaps))])
    head = ["data", "method", "rows per sample", "test RMSE", "validation RMSE", "test, against ERM"]
    return {"table": "\n".join(table([*head, "seconds (CPU)", "seeds"], rows, "ll"))}


STUDY = Study("sampling_modes", blocks, ("dataset", "method", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
