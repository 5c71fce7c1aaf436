"""Problems, plans and listeners for the tests of `elliptica.tables`."""

import numpy as np
import polars as pl

from elliptica.tables.methods import Plan
from table_cases import problem_of

#: Two networks of each of two methods, two trials, three epochs.
PLAN = Plan(("erm", "elliptic"), trials=2, epochs=3, networks=2, hidden=(8,))


def quiet(share, words):
    """Listen to nothing."""


def two_classes():
    """150 rows of two noisy classes in two groups."""
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, 150)
    frame = pl.DataFrame(
        {
            "x": draws.normal(label, 1.0),
            "z": draws.normal(size=150),
            "g": ["u", "v"] * 75,
            "y": np.array(["no", "yes"])[label],
        }
    )
    return problem_of(frame, group="g")


def prices():
    """200 positive and skewed targets, linear in the logarithm."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(200, 2))
    return problem_of(pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.exp(2 * x[:, 0] + x[:, 1])}))
