"""Throughput of many short runs: two workers against one, in processes and on Ray."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.timing import Measurement
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.specification import Run, parse_specification, runs
from elliptica.lab.experiments.workers import do_runs

N_RUNS, ROUNDS, SECONDS = 8, 3, 3.0
#: Two workers must give at least 1.6 times the throughput of one.
BUDGET = 1 / 1.6
_TABLE = """
title = "Sweep"
metric = "accuracy"
seeds = {seeds}
[methods.elliptic]
[datasets.two_moons]
load = {{ n_boundary = 1000, n_interior = 100 }}
model = {{ name = "mlp", hidden = [128, 128] }}
training = {{ epochs = {epochs}, batch_size = 20, lr = 1e-3 }}
"""


def sweep(wanted: list[Run], jobs: int = 1, ray: str | None = None) -> float:
    """Seconds of one sweep, recorded in a folder that is thrown away."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        failures = do_runs(wanted, Options(Path(folder), jobs=jobs, ray=ray))
    if failures:
        raise RuntimeError(f"Runs of the sweep failed: {failures}")
    return time.perf_counter() - begin


def table(seeds: int, epochs: int) -> list[Run]:
    """Runs that differ in their seed."""
    return runs("sweep", parse_specification(_TABLE.format(seeds=seeds, epochs=epochs), "sweep"))


def measure() -> Iterator[Measurement]:
    """Rounds of one worker, and of two that have started, with one thread each."""
    source = str(Path(__file__).resolve().parent.parent / "src")  # workers must not find another copy
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    os.environ["OMP_NUM_THREADS"] = "1"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        wanted = table(N_RUNS, _epochs())
        kinds: dict[str, tuple[int, str | None]] = {"processes": (2, None), "Ray": (1, "local")}
        for name, (jobs, address) in kinds.items():
            sweep(table(4, 1), jobs, address)  # workers start and import torch
            pairs = [(sweep(wanted, jobs, address), sweep(wanted)) for _ in range(ROUNDS)]
            what = f"sweep of {N_RUNS} runs of {SECONDS:g} s, two workers that have started, {name}"
            yield _compared(what, pairs)
    finally:
        ray.shutdown()
        torch.set_num_threads(threads)


def _epochs() -> int:
    """As many epochs as make a run of about `SECONDS` of processor time, however busy the machine is."""
    sweep(table(1, 1))  # what is imported and prepared once is no part of a run
    n, begin = 20, time.process_time()
    sweep(table(1, n))
    return max(round(SECONDS * n / (time.process_time() - begin)), 1)


def _compared(what: str, pairs: list[tuple[float, float]]) -> Measurement:
    ratios = [two / one for two, one in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    ratio = statistics.median(ratios)
    detail = f"{1 / ratio:.2f} times the throughput"
    return Measurement(what, "one worker", ratio, low, high, BUDGET, detail)
