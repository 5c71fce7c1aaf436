"""Whole comparisons with defaults and all methods: seconds by number of rows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import polars as pl

from benchmarks.timing import Measurement
from elliptica.tables import compare

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


def measure() -> Iterator[Measurement]:
    """Seconds against the promise."""
    for n_rows, promise in PROMISES.items():
        wall, processor = time.perf_counter(), time.process_time()
        assert compare(table(n_rows), "y").verdict.text
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        detail = f"{wall:.0f} s on the clock, {processor:.0f} s of the processor"
        what = f"compare, {n_rows:,} rows, defaults, all methods"
        yield Measurement.of(what, f"{promise:.0f} s", [wall / promise], 1.0, detail)
