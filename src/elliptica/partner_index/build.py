"""Building the arrays of a partner index: cells, neighbours, and an audit of the neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.core.partners import _ROWS_FOR_MEDIAN, AMONG, Among, distance_floor, pairwise_distances
from elliptica.partner_index.search import (
    Arena,
    Array,
    Arrays,
    Backend,
    BackendName,
    Facts,
    Search,
    brute_force,
    choose_backend,
    probes_needed,
    true_neighbours,
    whole_numbers,
)

#: Up to so many rows all cells are searched, unless the caller says otherwise.
EXACT_ROWS = 20_000
_AUDITED = 128
_RECALL = 0.95
_MOST_PROBES = 64


def build_arrays(
    x: Tensor | NDArray[Any],
    *,
    k: int,
    power: float,
    labels: Tensor | NDArray[Any] | None,
    among: Among,
    exact: bool | None,
    cells: int | None,
    probes: int | None,
    dtype: str,
    backend: BackendName | None,
    arena: Arena,
    generator: torch.Generator | None,
) -> tuple[Arrays, Facts]:
    """Arguments as of `PartnerIndex.build`; the arrays are made in ``arena``."""
    checks.count("k", k)
    checks.choice("among", among, AMONG)
    checks.choice("dtype", dtype, ("float32", "float16"))
    engine = choose_backend(backend)
    rows = Rows(x)
    k = min(k, rows.n - 1)
    classes = _classes(labels, among, rows.n)
    if cells is not None:
        checks.count("cells", cells)
    if probes is not None:
        checks.count("probes", probes)
    wanted = min(default_cells(rows.n) if cells is None else cells, rows.n)
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    cell, centres, class_of = find_cells(rows, classes, wanted, engine, seed)
    laid = lay_out(rows, cell, centres, arena, np.dtype(dtype))
    search = Search(
        **{name: laid[name] for name in ("points", "rows", "centres", "radius", "starts")},
        classes=class_of,
        among=among,
        backend=engine,
    )
    if exact is None:
        exact = probes is None and rows.n <= EXACT_ROWS
    rng = np.random.default_rng(seed)
    audit = np.sort(rng.choice(rows.n, min(_AUDITED, rows.n), replace=False))
    away, true = true_neighbours(search, audit, k)
    n_probes = None
    if not exact:
        n_probes = probes or probes_needed(search, audit, true, _RECALL, _MOST_PROBES)
    laid |= _search_all(search, k, n_probes, arena)
    # by distance, so that of equal neighbours any will do
    last = np.where(np.isfinite(away), away, 0).max(1, keepdims=True) * (1 + 1e-6)
    found = (laid["distances"][audit] <= last).sum() / max(1, np.isfinite(away).sum())
    missed_by, missed = _missed(search, laid, audit)
    arrays = Arrays(
        **laid,
        classes=class_of,
        probes=_probes(search, n_probes),
        audit=audit,
        missed_by=missed_by,
        missed=missed,
    )
    recall = float(min(found, 1.0)) if np.isfinite(away).any() else 1.0
    return arrays, Facts(float(power), rows.floor(), among, exact, recall, engine.name)


def _classes(labels: Tensor | NDArray[Any] | None, among: Among, n: int) -> NDArray[np.int64]:
    if among == "all":
        return np.zeros(n, np.int64)
    if labels is None:
        raise ValueError(f"among={among!r} needs class labels. Pass labels=...")
    given = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.ndim != 1 or given.dtype.kind not in "iub":
        raise TypeError(
            f"labels must be one integer a row, but have shape {given.shape} and dtype {given.dtype}."
        )
    found = given.astype(np.int64)
    checks.same_rows("labels", torch.from_numpy(found), n)
    return found


def _search_all(search: Search, k: int, n_probes: int | None, arena: Arena) -> dict[str, Array]:
    n = len(search.points)
    near = arena.empty("near", (n, k), whole_numbers(n))
    distances = arena.empty("distances", (n, k), np.float32)
    reach = arena.empty("reach", (n,), np.float32)
    for cell in range(len(search.centres)):
        for block, where, away, least in search.near(cell, k, n_probes):
            near[block], distances[block] = where, away
            # rounded down, so that it stays a lower bound
            reach[block] = np.nextafter(least.astype(np.float32), np.float32(0))
    return {"near": near, "distances": distances, "reach": reach}


def _probes(search: Search, n_probes: int | None) -> Array:
    """Which cells were searched for each cell; nothing when all were."""
    whole = whole_numbers(len(search.centres))
    if n_probes is None:
        return np.empty((len(search.centres), 0), whole)
    probes = np.full((len(search.centres), n_probes), -1, whole)
    for cell in range(len(probes)):
        cells = search.order(cell)[0][:n_probes]
        probes[cell, : len(cells)] = cells
    return probes


def _missed(search: Search, laid: dict[str, Array], audit: Array) -> tuple[Array, Array]:
    """Points nearer than an audited row's reach that are not among its stored neighbours."""
    reach = torch.from_numpy(laid["reach"][audit].astype(np.float64))
    by, away = [], []
    for begin, distance in brute_force(search, audit):
        row, column = (
            t.numpy() for t in torch.nonzero(distance < reach[:, None] * (1 - 1e-6), as_tuple=True)
        )
        unknown = ~(laid["near"][audit[row]] == begin + column[:, None]).any(1)
        by.append(row[unknown])
        away.append(distance.numpy()[row[unknown], column[unknown]])
    return np.concatenate(by), np.concatenate(away)


# Grouping rows into cells by k-means, the frame for both the search and the bounds of the far part.


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


# Reading the rows of a data set in pieces, whatever holds them: a tensor, an array or a file.


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
