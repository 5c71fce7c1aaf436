"""Reading the rows of a data set in pieces, whatever holds them: a tensor, an array or a file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._random import compute_dtype
from elliptica.pairing import distance_floor, pairwise_distances
from elliptica.partner_table import _ROWS_FOR_MEDIAN

_CHUNK = 2**23


class Rows:
    """The rows of ``x`` as flat vectors about their mean, read when asked for.

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
                "A single feature goes in as x[:, None]."
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
        """Some rows, about the mean."""
        rows = np.asarray(self._x[which])
        return (rows.reshape(len(rows), -1) - self._mean).astype(np.float32)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """All rows in pieces, each with the number of its first."""
        step = max(1, _CHUNK // self.d)
        for begin in range(0, self.n, step):
            yield begin, self[begin : begin + step]

    def floor(self) -> float:
        """The smallest distance told apart from zero, as in `PartnerTable`."""
        some = np.ascontiguousarray(self._x[:: max(1, self.n // _ROWS_FOR_MEDIAN)])
        dtype = np.float64 if some.dtype == np.float64 else np.float32
        return distance_floor(pairwise_distances(torch.from_numpy(some.astype(dtype))))
