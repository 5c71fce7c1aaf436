"""Whole comparisons with defaults and all methods: seconds by number of rows, and the gain over a loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from benchmarks.timing import Measurement
from elliptica.estimators import EllipticClassifier
from elliptica.estimators.stacked import one_thread
from elliptica.tables import runner
from elliptica.tables.comparison import Comparison, Options, Session
from elliptica.tables.methods import NETWORKS, Plan
from elliptica.tables.protocol import Record, Trial, prepare

#: Rows, and seconds that a person may have to wait on a quiet machine with two cores.
PROMISES = {500: 15.0, 5_000: 60.0, 50_000: 180.0}


def table(n_rows: int, seed: int = 0) -> pl.DataFrame:
    """Ten columns: numbers (one with a heavy tail, one with gaps), a category, a date; a binary target."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(n_rows, 7))
    tail = np.exp(1.5 * draws.normal(size=n_rows))
    town = draws.integers(0, 12, n_rows)
    day = draws.integers(0, 1000, n_rows)
    score = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + 0.3 * np.log(tail) + 0.2 * (town % 3)
    columns = {f"x{j}": x[:, j] for j in range(6)}
    columns["gaps"] = np.where(draws.random(n_rows) < 0.1, np.nan, x[:, 6])
    frame = pl.DataFrame({**columns, "income": tail, "town": [f"town {t}" for t in town]})
    return frame.with_columns(
        pl.Series("day", [f"{2020 + d // 365}-{1 + d % 12:02d}-{1 + d % 28:02d}" for d in day]),
        pl.Series("y", np.where(score + 0.7 * draws.normal(size=n_rows) > 0, "yes", "no")),
    ).with_columns(pl.col("gaps").fill_nan(None))


class Run(NamedTuple):
    """A comparison and its cost."""

    found: Comparison
    wall: float  # seconds on the clock
    processor: float  # seconds of the processor,
    networks: float  # and those of them that networks took; only with one worker


def run(n_rows: int, **options: object) -> Run:
    """Compare on a table of so many rows."""
    networks = 0.0
    usual = runner.run_networks

    def timed(*arguments: Any) -> list[Record]:
        nonlocal networks
        begin = time.process_time()
        try:
            return usual(*arguments)
        finally:
            networks += time.process_time() - begin

    wall, processor = time.perf_counter(), time.process_time()
    runner.run_networks = timed  # type: ignore[assignment]
    try:
        session = Session.open(table(n_rows), "y", Options(**options))  # type: ignore[arg-type]
        session.run()
    finally:
        runner.run_networks = usual
    found = session.result()
    assert found.verdict.text
    return Run(found, time.perf_counter() - wall, time.process_time() - processor, networks)


def loop(found: Comparison) -> float:
    """Seconds of the same trainings of networks, one after the other by the loop of the estimators.

    Every network is trained for as many epochs as in the stack: dropped trials for the first ones, others
    until their patience ends, and ensembles for the chosen number.
    """
    problem, plan, seconds = found.problem, found.plan, 0.0
    for fold in found.shift.folds:
        rows = prepare(problem, fold, plan)
        for record in (r for r in found.records if r.fold == fold.number and r.method in NETWORKS):
            assert record.chosen is not None
            fits = [(rows.fit, trial.settings, _epochs(trial, plan)) for trial in record.trials]
            fits += [(rows.train, record.trials[record.chosen].settings, record.length)] * plan.networks
            for part, settings, epochs in fits:
                weighted = record.method == "elliptic-weighted"
                network = EllipticClassifier(
                    method="elliptic" if weighted else record.method,
                    weighting="gradient_softmax" if weighted else "none",
                    hidden=plan.hidden,
                    batch_size=plan.batch_size,
                    max_iter=epochs,
                    random_state=0,
                    **settings,
                )
                seconds += _fit_seconds(network, rows.x[part], rows.y[part])
    return seconds


def _epochs(trial: Trial, plan: Plan) -> int:
    """Epochs that a trial was trained for, in both rounds."""
    last = 0 if trial.dropped else min(plan.epochs, trial.length + plan.patience)
    return plan.first_epochs + last


def _fit_seconds(network: EllipticClassifier, x: np.ndarray, y: np.ndarray) -> float:
    """Processor time of a training."""
    begin = time.process_time()
    with one_thread():
        network.fit(x, y)
    return time.process_time() - begin


def measure() -> Iterator[Measurement]:
    """Seconds against the promise, and a comparison of 500 rows against a loop, in processor time."""
    for n_rows, promise in PROMISES.items():
        result = run(n_rows)
        ratio = result.wall / promise
        yield Measurement(
            f"compare, {n_rows:,} rows, defaults, all methods",
            f"{promise:.0f} s",
            *(ratio, ratio, ratio),
            1.0,
            f"{result.wall:.0f} s on the clock, {result.processor:.0f} s of the processor",
        )
    result = run(500, jobs=1)
    one_by_one = loop(result.found)
    theirs = result.processor - result.networks + one_by_one
    ratio = result.processor / theirs
    yield Measurement(
        "compare, 500 rows, defaults, all methods and trees, processor time",
        "the same with networks one after the other",
        *(ratio, ratio, ratio),
        0.15,
        f"{result.processor:.1f} s against {theirs:.0f} s",
    )
    ratio = result.networks / one_by_one
    yield Measurement(
        "its networks alone",
        "the loop of the estimators",
        *(ratio, ratio, ratio),
        math.inf,
        f"{result.networks:.1f} s against {one_by_one:.0f} s",
    )
