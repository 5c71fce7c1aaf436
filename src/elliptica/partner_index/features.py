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
from elliptica.core.partners import (
    DISTANCE_FLOOR,
    SQUARABLE,
    distance_floor,
    pairwise_distances,
    scale_exponent,
)
from elliptica.core.types import Inputs

#: Numbers read at a time.
CHUNK = 2**23

#: Inputs as a tensor, a dataset whose items begin with the input, or a loader that does not shuffle.
Source = Tensor | Dataset[Any] | DataLoader[Any]


class Rows:
    """The rows of ``x`` as flat, centred vectors, read on demand.

    Args:
        x: A tensor, an array, or a memory-mapped array, ``(n, *feature)``.
        squarable: Sizes that are left alone; larger and smaller rows are divided by a power of two.
    """

    def __init__(self, x: Tensor | NDArray[np.generic], squarable: tuple[float, float] = SQUARABLE) -> None:
        if isinstance(x, Tensor):
            checks.tensor("x", x)
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
        self._exponent, self._mean = self._measure(squarable)

    def _measure(self, squarable: tuple[float, float]) -> tuple[int, NDArray[np.float64]]:
        """Power of two that the rows are divided by, and their mean afterwards."""
        total = np.zeros(self.d)
        low, high = np.full(self.d, np.inf), np.full(self.d, -np.inf)
        for begin, end in self._spans():
            rows = self._raw(slice(begin, end))
            low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
            if not (np.isfinite(low) & np.isfinite(high)).all():
                bad = begin + np.flatnonzero(~np.isfinite(rows).all(1))
                raise ValueError(
                    f"x must be finite, but {len(bad)} rows, from row {bad[0]} on, hold NaN or infinities. "
                    "Impute or drop them (elliptica never does so silently)."
                )
            with np.errstate(over="ignore"):
                total += rows.sum(0, dtype=np.float64)
        mean = total / self.n
        if not np.isfinite(mean).all():  # the sum overflows, and so may what is left about the mean
            exponent = scale_exponent(float(max(-low.min(), high.max())), squarable)
            parts = (np.ldexp(self._raw(slice(*span)), -exponent).sum(0) for span in self._spans())
            return exponent, np.asarray(sum(parts) / self.n)
        with np.errstate(over="ignore"):
            largest = min(float(np.maximum(high - mean, mean - low).max()), float(np.finfo(np.float64).max))
        exponent = scale_exponent(largest, squarable)
        return exponent, np.ldexp(mean, -exponent)

    def _raw(self, which: slice | NDArray[np.integer]) -> NDArray[Any]:
        """Some rows as they were given, flat."""
        rows = np.asarray(self._x[which])
        rows = rows.reshape(len(rows), -1)
        return rows if rows.dtype == np.float32 else rows.astype(np.float64)

    def __getitem__(self, which: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows, centred, in units in which they can be squared."""
        return self._centred(which).astype(np.float32)

    def _centred(self, which: slice | NDArray[np.integer]) -> NDArray[np.float64]:
        rows = self._raw(which)
        if self._exponent:
            rows = np.ldexp(rows.astype(np.float64), -self._exponent)
        return rows - self._mean

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Iterate over all rows in chunks, each with the number of its first row."""
        for begin, end in self._spans():
            yield begin, self[begin:end]

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Iterate over the first and last row of each chunk."""
        step = max(1, CHUNK // self.d)
        for begin in range(0, self.n, step):
            yield begin, min(begin + step, self.n)

    def floor(self) -> float:
        """Return the distance below which two points are duplicates, as in `PartnerTable`."""
        which = slice(None, None, max(1, self.n // ROWS_FOR_MEDIAN))
        some = np.ascontiguousarray(self._x[which])
        dtype = np.float64 if some.dtype == np.float64 else np.float32
        if self._exponent:
            some = np.ldexp(some.astype(np.float64), -self._exponent)
        self._check_rounding(self._centred(which))
        return distance_floor(pairwise_distances(torch.from_numpy(some.astype(dtype))))

    def _check_rounding(self, some: NDArray[np.float64]) -> None:
        """Raise where float32 cannot tell ordinary rows apart, as with a huge outlier among them."""
        rounding = np.median(np.linalg.norm(some - some.astype(np.float32), axis=1))
        spread = np.median(np.linalg.norm(some - np.median(some, axis=0), axis=1))
        if rounding > DISTANCE_FLOOR * spread > 0:
            raise ValueError(
                "x holds values so far apart that float32, in which an index keeps its rows, cannot tell "
                f"ordinary rows apart: rounding moves them by {rounding / spread:.2g} of their typical "
                "distance from each other. Clip or drop outliers, or scale the columns to like ranges."
            )


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
    checks.tensor("the network's output", out)
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
