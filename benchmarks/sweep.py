"""Throughput of many short runs: two workers against one, in plain processes and on Ray."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Measurement
from elliptica.lab.experiments.engines import Engine, Local
from elliptica.lab.experiments.run import Options, RaySettings
from elliptica.lab.experiments.specification import Run, parse_specification, runs

N_RUNS, ROUNDS, SECONDS = 8, 3, 3.0
#: Two workers must give at least 1.6 times the throughput of one.
BUDGET = 1 / 1.6
_TABLE = """
title = "Sweep"
paper = "none"
metric = "accuracy"
seeds = {seeds}
[methods.elliptic]
[datasets.two_moons]
load = {{ n_boundary = 1000, n_interior = 100 }}
model = {{ name = "mlp", hidden = [128, 128] }}
training = {{ epochs = {epochs}, batch_size = 20, lr = 1e-3 }}
"""


def sweep(engine: Engine, wanted: list[Run]) -> float:
    """Seconds of one sweep, recorded in a folder that is thrown away; not of starting processes."""
    begin, starts, ends = time.perf_counter(), [], []

    def listen(label: str, kind: str, details: dict[str, Any]) -> None:
        if kind == "start":
            starts.append(time.perf_counter())
        elif kind == "done":
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        found = engine.do(wanted, Options(Path(folder)), listen)
    if {each.state for each in found} != {"done"}:
        raise RuntimeError(f"Runs of the sweep were not done: {found}")
    has_processes = isinstance(engine, Local) and engine.n_processes > 1
    return ends[-1] - (starts[0] if has_processes else begin)


def table(seeds: int, epochs: int) -> list[Run]:
    """Runs that differ in their seed."""
    return runs("sweep", parse_specification(_TABLE.format(seeds=seeds, epochs=epochs), "sweep"))


def measure() -> Iterator[Measurement]:
    """Rounds of one and two workers, with one thread each, for both engines in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = _rounds()
    finally:
        torch.set_num_threads(threads)
    two = f"sweep of {N_RUNS} runs of {SECONDS:g} s, two workers that have started"
    for name in ("processes", "Ray"):
        yield _compared(f"{two}, {name}", "one worker", times[name, 2], times[name, 1], BUDGET)
    yield _compared(f"{two}, Ray", "two workers, processes", times["Ray", 2], times["processes", 2], math.inf)


def _rounds() -> dict[tuple[str, int], list[float]]:
    source = str(Path(__file__).resolve().parent.parent / "src")  # workers must not find another copy
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    from elliptica.lab.experiments.ray_engine import (
        open_cluster,
    )  # needs Ray, which tests of this file do not

    with open_cluster(RaySettings(address="local"), 2) as cluster:
        sweep(cluster, table(4, 1))  # workers start and import torch
        wanted = table(N_RUNS, _epochs())
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for jobs in (1, 2):
                cluster.at_once = jobs
                engines: dict[str, Engine] = {"processes": Local(jobs), "Ray": cluster}
                for name, engine in engines.items():
                    times.setdefault((name, jobs), []).append(sweep(engine, wanted))
    return times


def _epochs() -> int:
    """As many epochs as make a run of about `SECONDS` of processor time, however busy the machine is."""
    sweep(Local(), table(1, 1))  # what is imported and prepared once is no part of a run
    n, begin = 20, time.process_time()
    sweep(Local(), table(1, n))
    return max(round(SECONDS * n / (time.process_time() - begin)), 1)


def _compared(what: str, against: str, ours: list[float], theirs: list[float], budget: float) -> Measurement:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    ratio = statistics.median(ratios)
    detail = (
        f"{1 / ratio:.2f} times the throughput; {statistics.median(ours):.1f} s against "
        f"{statistics.median(theirs):.1f} s"
    )
    return Measurement(what, against, ratio, low, high, budget, detail)
