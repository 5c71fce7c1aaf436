"""Small tables for the tests of `elliptica.tables` and of commands about models."""

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
