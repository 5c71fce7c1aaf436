"""Grouping rows into cells by k-means, the frame for both the search and the bounds of the far part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elliptica.partners.arrays import Arena, Array, whole_numbers
from elliptica.partners.backends import Backend
from elliptica.partners.source import Rows

_SAMPLE_PER_CELL = 32
_CHUNK = 2**23


def default_cells(n: int) -> int:
    """About ``4 sqrt(n)``, the usual choice for an inverted file, and never fewer than four rows a cell."""
    return max(1, min(round(4 * math.sqrt(n)), n // 4))


def find_cells(
    rows: Rows, labels: NDArray[np.int64], n_cells: int, backend: Backend, seed: int
) -> tuple[Array, Array, Array]:
    """Cell of each row, centres and classes of the cells; every cell has members, all of one class."""
    classes, inverse = np.unique(labels, return_inverse=True)
    by_class = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    rng = np.random.default_rng(seed)
    centres: list[NDArray[np.float32]] = []
    for members in by_class:
        wanted = max(1, round(n_cells * len(members) / rows.n))
        size = min(len(members), max(_SAMPLE_PER_CELL * wanted, 256))
        some = rows[np.sort(rng.choice(members, size, replace=False))]
        many = wanted > 1
        centres.append(backend.kmeans(some, wanted, seed) if many else some.mean(0, keepdims=True))
    first = np.cumsum([0, *(len(c) for c in centres)])
    cell = np.empty(rows.n, np.int64)
    for begin, some in rows.chunks():
        here = inverse[begin : begin + len(some)]
        for c in np.unique(here):
            mine = np.flatnonzero(here == c)
            _, nearest = backend.knn(some[mine], centres[c], 1)
            cell[begin + mine] = first[c] + nearest[:, 0]
    used, cell = np.unique(cell, return_inverse=True)
    class_of = np.repeat(classes, np.diff(first))
    return cell, np.concatenate(centres)[used], class_of[used]


def lay_out(rows: Rows, cell: Array, centres: Array, arena: Arena, dtype: Any) -> dict[str, Array]:
    """Write the points cell by cell; measure the cells."""
    whole = whole_numbers(rows.n)
    order = np.argsort(cell, kind="stable")
    found = {
        "points": arena.empty("points", (rows.n, rows.d), dtype),
        "rows": arena.empty("rows", (rows.n,), whole),
        "positions": arena.empty("positions", (rows.n,), whole),
    }
    found["rows"][:] = order
    found["positions"][order] = np.arange(rows.n, dtype=whole)
    radius = np.zeros(len(centres))
    step = max(1, _CHUNK // rows.d)
    for begin in range(0, rows.n, step):
        here = order[begin : begin + step]
        # from the stored numbers, which half precision has rounded: the bounds hold for these
        with np.errstate(over="ignore"):  # said below
            found["points"][begin : begin + step] = rows[here]
        stored = found["points"][begin : begin + step].astype(np.float64)
        if not np.isfinite(stored).all():
            raise ValueError(f"x has values that dtype {np.dtype(dtype)} cannot hold. Use dtype='float32'.")
        away = np.linalg.norm(stored - centres[cell[here]], axis=1)
        np.maximum.at(radius, cell[here], away)
    starts = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=len(centres)))])
    return {**found, "centres": centres, "radius": radius, "starts": starts}
