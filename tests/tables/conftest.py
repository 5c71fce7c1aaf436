"""Tables and comparisons that several tests share."""

import numpy as np
import polars as pl
import pytest

from elliptica.tables import compare

#: Sizes of a comparison that only has to run.
TINY = {"trials": 2, "epochs": 4, "networks": 1, "hidden": (8,), "folds": 3, "jobs": 1}


@pytest.fixture(scope="session")
def tiny():
    """Sizes of a comparison that only has to run."""
    return TINY


@pytest.fixture(scope="session")
def flowers():
    """Two noisy classes with a category, missing values and a group."""
    draws = np.random.default_rng(0)
    n = 120
    label = draws.integers(0, 2, n)
    x = draws.normal(label, 1.0)
    return pl.DataFrame(
        {
            "size": [None if i % 11 == 0 else float(v) for i, v in enumerate(x)],
            "colour": [["red", "blue", "white"][int(v)] for v in draws.integers(0, 3, n)],
            "site": ["north" if v else "south" for v in draws.integers(0, 2, n)],
            "kind": ["iris" if v else "rose" for v in label],
            "height": [float(v) for v in x + draws.normal(size=n)],
        }
    )


@pytest.fixture(scope="session")
def found(flowers):
    """A finished comparison of classes, with groups and all methods."""
    return compare(flowers.drop("height"), "kind", group="site", **TINY)


@pytest.fixture(scope="session")
def heights(flowers):
    """A finished comparison of numbers, above zero and skewed."""
    frame = flowers.with_columns(pl.col("height").exp()).drop("kind")
    return compare(frame, "height", **{**TINY, "trials": 4})
