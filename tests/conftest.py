"""Fixtures for all tests: one random stream per test, and where the real data are."""

import hashlib
import os
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

from browser import visit as visit

torch.set_num_threads(1)

#: Fixtures that open a browser, start processes or read data, and the markers of tests that use them.
_NEEDS = {
    "visit": "browser",
    "cluster": "distributed",
    "two_processes": "distributed",
    "data_dir": "needs_data",
}


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items):
    """Mark tests by the fixtures that they use."""
    for item in items:
        for fixture, marker in _NEEDS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def _seed(request, stream):
    key = f"{request.node.nodeid}/{stream}{os.environ.get('EXTRA_SEED', '0')}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")


@pytest.fixture(autouse=True)
def initial_weights(request):
    """Networks made in a test get the same weights in every run."""
    torch.manual_seed(_seed(request, "weights"))


@pytest.fixture
def generator(request):
    """A stream owned by this test; EXTRA_SEED moves every stream at once."""
    return torch.Generator().manual_seed(_seed(request, ""))


@pytest.fixture
def seed(request):
    """A seed owned by this test, for what takes a number and no generator; EXTRA_SEED moves it."""
    return _seed(request, "number") % 2**31


@pytest.fixture
def rng(seed):
    """NumPy's stream of this test; EXTRA_SEED moves it."""
    return np.random.default_rng(seed)


@pytest.fixture
def data_dir():
    """Folder of the real data; the test is skipped where they are absent."""
    folder = os.environ.get("ELLIPTICA_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real data are absent: set ELLIPTICA_DATA to the folder that holds them")
    return Path(folder)


@pytest.fixture(scope="session")
def results():
    """Folder of the committed records and their pages; the test is skipped where they are absent."""
    folder = Path(__file__).resolve().parent.parent / "results"
    if not folder.is_dir():
        pytest.skip("results/ is absent: the source distribution leaves it out, a clone has it")
    return folder


@pytest.fixture
def own_checks():
    """Switch the suite's shape checker off, so that bad input meets the library's own errors."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
