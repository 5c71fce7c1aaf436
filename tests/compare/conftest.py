"""Tables and comparisons that several tests share."""

import numpy as np
import polars as pl
import pytest

from elliptica.compare import compare


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
    """A finished comparison on them."""
    return compare(flowers.drop("height"), "kind", group="site", repeats=3, trials=2, epochs=4, hidden=(8,))
