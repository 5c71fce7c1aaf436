"""Small tables for the tests of `elliptica.tables` and of commands about models."""

import numpy as np
import polars as pl

from elliptica.tables.problem import make_problem
from elliptica.tables.table import read_table


def rows(n=60, **columns):
    """A frame with a useful input, two classes, and what is asked for."""
    base = {"x": [0.5 * (i % 7) for i in range(n)], "y": ["a", "b"] * (n // 2)}
    return pl.DataFrame({**base, **columns})


def problem_of(frame, target="y", **options):
    """Make a problem of a file or a frame."""
    return make_problem(read_table(frame), target, **options)


def npz_table(path, n=40, d=3, classes=None, seed=0, **extra):
    """Write inputs with targets, and test rows, as an .npz file."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (x.sum(1) > 0).astype(np.int64) if classes else x @ np.arange(1.0, d + 1)
    np.savez(path, x=x, y=y, x_test=x[:15] + 0.3, y_test=y[:15], **extra)
    return path
