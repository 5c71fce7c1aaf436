"""Read the rows for distances in chunks: from an array, or from a network's features."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, TensorDataset

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.core.batchnorm import evaluation_mode
from elliptica.core.hidden import find_layer, hidden_features
from elliptica.core.inputs import call_model
from elliptica.core.partner_table import ROWS_FOR_MEDIAN
from elliptica.core.partners import distance_floor, pairwise_distances
from elliptica.core.types import Inputs

#: Numbers read at a time.
CHUNK = 2**23

#: Inputs as a tensor, a dataset whose items begin with the input, or a loader that does not shuffle.
Source = Tensor | Dataset[Any] | DataLoader[Any]


class Rows:
    """The rows of ``x`` as flat, centred vectors, read on demand.

    Args:
        x: A tensor, an array, or a memory-mapped array, ``(n, *feature)``.
    """

    def __init__(self, x: Tensor | NDArray[np.generic]) -> None:
        if isinstance(x, Tensor):
            x = x.detach().cpu().to(compute_dtype(x.dtype)).numpy()
        if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiu":
            got = f"an array of dtype {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
            raise TypeError(f"x must be a torch.Tensor or a numpy array of numbers, but got {got}.")
        if x.ndim < 2 or len(x) < 2 or 0 in x.shape:
            raise ValueError(
                f"x must have at least two rows and a feature axis, but has shape {x.shape}. "
                "Pass a single feature as x[:, None]."
            )
        self._x = x
        self.n, self.d = len(x), int(np.prod(x.shape[1:]))
        self._mean = np.zeros(self.d)
        total = np.zeros(self.d)
        for begin, rows in self.chunks():
            sums = rows.sum(0, dtype=np.float64)
            if not np.isfinite(sums).all():
                bad = begin + np.flatnonzero(~np.isfinite(rows).all(1))
                raise ValueError(
                    f"x must be finite, but {len(bad)} rows, from row {bad[0]} on, hold NaN or infinities. "
                    "Impute or drop them (elliptica never does so silently)."
                )
            total += sums
        self._mean = total / self.n

    def __getitem__(self, which: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows, centred."""
        rows = np.asarray(self._x[which])
        return (rows.reshape(len(rows), -1) - self._mean).astype(np.float32)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Iterate over all rows in chunks, each with the number of its first row."""
        step = max(1, CHUNK // self.d)
        for begin in range(0, self.n, step):
            yield begin, self[begin : begin + step]

    def floor(self) -> float:
        """Return the distance below which two points are duplicates, as in `PartnerTable`."""
        some = np.ascontiguousarray(self._x[:: max(1, self.n // ROWS_FOR_MEDIAN)])
        dtype = np.float64 if some.dtype == np.float64 else np.float32
        return distance_floor(pairwise_distances(torch.from_numpy(some.astype(dtype))))


@contextmanager
def features(
    network: nn.Module,
    data: Source,
    *,
    at: str | None,
    batch_size: int,
    beside: str | os.PathLike[str] | None,
) -> Iterator[NDArray[np.float32]]:
    """Yield features ``(n, d)`` of all rows; in a temporary file if ``beside`` names a folder."""
    checks.model(network, "PartnerIndex.of_features")
    if at is not None:
        find_layer(network, at)
    loader = _in_order(data, batch_size)
    rows = len(loader.dataset)  # type: ignore[arg-type]  # a sequential loader has asked for it, too
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    with (
        tempfile.TemporaryDirectory(prefix=".features.", dir=_parent(beside)) as scratch,
        evaluation_mode(network),
    ):
        found: NDArray[np.float32] | None = None
        done = 0
        for item in loader:
            x = item[0] if isinstance(item, tuple | list) else item
            some = _run(network, _moved(x, device), at)
            if found is None:
                file = None if beside is None else Path(scratch) / "features.npy"
                found = _empty(file, (rows, some.shape[1]))
            found[done : done + len(some)] = some
            done += len(some)
        if found is None or done != rows:
            raise ValueError(
                f"The loader returned {done} of the {rows} rows of its data set. "
                "Make it with drop_last=False."
            )
        yield found


def _parent(beside: str | os.PathLike[str] | None) -> Path | None:
    if beside is None:
        return None
    parent = Path(beside).resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    return parent


def _empty(file: Path | None, shape: tuple[int, int]) -> NDArray[np.float32]:
    if file is None:
        return np.empty(shape, np.float32)
    return np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)


@torch.no_grad()
def _run(network: nn.Module, x: Inputs, at: str | None) -> NDArray[np.float32]:
    out = call_model(network, x) if at is None else hidden_features(network, x, at)
    if not isinstance(out, Tensor):
        raise TypeError(
            f"The network returned {type(out).__name__}, not a tensor. Choose a layer with at=...."
        )
    return out.detach().flatten(1).float().cpu().numpy()


def _in_order(data: Source, batch_size: int) -> DataLoader[Any]:
    """Make a loader over all rows with its own random stream, because each pass draws a number."""
    if isinstance(data, DataLoader):
        batches = data.batch_sampler  # a loader that was given one has a sequential sampler besides
        rows = batches.sampler if type(batches) is BatchSampler else batches
        if not isinstance(rows, SequentialSampler):
            raise ValueError(
                f"The loader must return batches of rows in order, but its sampler is {type(rows).__name__}. "
                "Make it with shuffle=False and a batch_size, or pass the data set."
            )
        loader = copy.copy(data)
        loader._iterator = None  # of persistent workers
    else:
        checks.count("batch_size", batch_size)
        rows_of = TensorDataset(data) if isinstance(data, Tensor) else data
        if not hasattr(rows_of, "__len__") or not hasattr(rows_of, "__getitem__"):
            raise TypeError(
                "data must be a tensor, a data set with a length and numbered rows, or a loader of one, but "
                f"got {type(data).__name__}."
            )
        loader = DataLoader(rows_of, batch_size)
    loader.generator = torch.Generator()
    return loader


def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {name: _moved(value, device) for name, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(_moved(value, device) for value in x)
    raise TypeError(f"Items of the data set must begin with tensors, but one begins with {type(x).__name__}.")
