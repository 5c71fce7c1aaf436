"""Fashion-MNIST of our own, for the data sets that are made from it."""

import gzip

import numpy as np
import pytest

from published import publish


def _idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.fixture
def clothes(tmp_path, monkeypatch):
    """Sixty training and ten test images in idx files."""
    rng = np.random.default_rng(5)
    arrays, contents = {}, {}
    for part, n in (("train", 60), ("t10k", 10)):
        x = rng.integers(0, 256, size=(n, 28, 28), dtype=np.uint8)
        x[:, :6] = x[:, -6:] = x[:, :, :6] = x[:, :, -6:] = 0  # as clothes, nothing at the edges
        y = rng.integers(0, 10, size=n).astype(np.uint8)
        contents[f"fashion_mnist/{part}-images-idx3-ubyte.gz"] = _idx(x)
        contents[f"fashion_mnist/{part}-labels-idx1-ubyte.gz"] = _idx(y)
        arrays[part] = x, y
    for name in ("fashion_mnist", "rcf_mnist"):
        publish(monkeypatch, tmp_path, name, contents)
    return tmp_path, arrays
