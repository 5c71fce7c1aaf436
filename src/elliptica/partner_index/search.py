"""Nearest neighbours of every point, cell by cell, and what the search may have missed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from elliptica._utils import checks
from elliptica.core.partners import Among

#: Points searched beyond the ones kept, so that rounding in the search cannot drop a near one unnoticed.
_SPARE = 8
_MOST_ROWS = 2**15
_QUERIES = 4096


def allowed_cells(classes: Array, own: int, among: Among) -> NDArray[np.bool_]:
    """Cells whose members may be partners of the members of class ``own``."""
    if among == "all":
        return np.ones(len(classes), bool)
    return (classes == own) == (among == "same_class")


@dataclass(frozen=True)
class Search:
    """Searches for the members of one cell at a time.

    Attributes:
        points: All points, cell by cell.
        rows: Row of each position; ties of distance go by row.
        centres: Centres of the cells.
        radius: Their radii.
        starts: Their first positions.
        classes: Their classes.
        among: Which classes are eligible.
        backend: What compares blocks of points.
    """

    points: Array
    rows: Array
    centres: Array
    radius: Array
    starts: Array
    classes: Array
    among: Among
    backend: Backend

    def order(self, cell: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Eligible cells, nearest centre first, and the distances of the centres."""
        eligible = np.flatnonzero(allowed_cells(self.classes, int(self.classes[cell]), self.among))
        away = np.linalg.norm(self.centres[eligible].astype(np.float64) - self.centres[cell], axis=1)
        by_distance = np.argsort(away, kind="stable")
        return eligible[by_distance], away[by_distance]

    def near(self, cell: int, k: int, n_probes: int | None) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Positions, distances and reach of the members; a slice of positions at a time.

        With ``n_probes=None`` all eligible cells are searched that can hold a neighbour. Otherwise so many,
        and more where these are too small to hold ``k`` neighbours.
        """
        cells, away = self.order(cell)
        if n_probes is not None:
            held = np.cumsum(np.diff(self.starts)[cells]) - 1  # a point is no neighbour of itself
            n_probes = max(n_probes, 1 + int(np.searchsorted(held, k + _SPARE)))
            cells, away = cells[:n_probes], away[:n_probes]
        least = away - self.radius[cell] - self.radius[cells]
        begin, end = int(self.starts[cell]), int(self.starts[cell + 1])
        for first in range(begin, end, _QUERIES):
            block = slice(first, min(first + _QUERIES, end))
            yield (block, *self._of_block(block, self.centres[cell], cells, least, k))

    def _of_block(
        self, block: slice, centre: Array, cells: Array, least: Array, k: int
    ) -> tuple[Array, Array, Array]:
        # about the cell's centre, so that float32 does not lose small distances in large coordinates
        queries = self.points[block].astype(np.float32) - centre
        keep = k + _SPARE
        own = np.arange(block.start, block.stop)
        squared = np.full((len(queries), keep), np.inf, np.float32)
        found = np.full((len(queries), keep), -1, np.int64)
        while len(cells):
            count = max(1, int(np.searchsorted(np.cumsum(np.diff(self.starts)[cells]), _MOST_ROWS)))
            position = np.concatenate([np.arange(self.starts[c], self.starts[c + 1]) for c in cells[:count]])
            base = np.concatenate([self.points[self.starts[c] : self.starts[c + 1]] for c in cells[:count]])
            base = base.astype(np.float32, copy=False) - centre
            # one more than kept: a point finds itself
            d2, index = self.backend.knn(queries, base, min(keep + 1, len(base)))
            where = position[index]
            d2 = np.where(where == own[:, None], np.inf, d2)
            squared, found = _merged(squared, found, d2, where, keep)
            cells, least = cells[count:], least[count:]
            possible = least < np.sqrt(squared[:, -1].max()) * (1 + 1e-5)
            cells, least = cells[possible], least[possible]
        return self._ranked(block, queries, squared, found, k)

    def _ranked(
        self, block: slice, queries: Array, squared: Array, found: Array, k: int
    ) -> tuple[Array, Array, Array]:
        """Distances anew, by differences; those beyond ``k`` only tell how far the others are."""
        apart = self.points[found.clip(0)].astype(np.float32)
        apart -= self.points[block].astype(np.float32)[:, None]
        direct = np.sqrt(np.einsum("qkd,qkd->qk", apart, apart).astype(np.float64))
        direct[~np.isfinite(squared)] = np.inf
        by_distance = np.lexsort((self.rows[found.clip(0)], direct), axis=-1)
        direct = np.take_along_axis(direct, by_distance, 1)
        found = np.take_along_axis(found, by_distance, 1)
        # The search dropped what it saw as farther than its last; its rounding, and ours, is at most this.
        last = squared[:, -1].astype(np.float64)
        norm = np.linalg.norm(queries.astype(np.float64), axis=1)
        with np.errstate(invalid="ignore"):
            error = (queries.shape[1] + 8) * np.finfo(np.float32).eps * (2 * norm + np.sqrt(last)) ** 2
            others = np.sqrt(np.maximum(last - error, 0))
        rounding = 1 - queries.shape[1] * np.finfo(np.float32).eps
        reach = np.minimum(direct[:, k] * rounding, np.where(np.isfinite(last), others, np.inf))
        return np.where(np.isfinite(direct[:, :k]), found[:, :k], -1), direct[:, :k], reach


def _merged(d2: Array, where: Array, more_d2: Array, more: Array, keep: int) -> tuple[Array, Array]:
    """The ``keep`` nearest of two lists, in order."""
    d2, where = np.concatenate([d2, more_d2], 1), np.concatenate([where, more], 1)
    order = np.argsort(d2, axis=1, kind="stable")[:, :keep]
    return np.take_along_axis(d2, order, 1), np.take_along_axis(where, order, 1)


def brute_force(search: Search, audit: Array, chunk: int = 2**14) -> Iterator[tuple[int, torch.Tensor]]:
    """Distances from the audited positions to all points, in pieces; infinite where not eligible."""
    start = torch.from_numpy(search.points[audit].astype(np.float64))
    own = torch.from_numpy(np.asarray(audit, np.int64))
    cell = np.searchsorted(search.starts, audit, side="right") - 1
    for begin in range(0, len(search.points), chunk):
        some = torch.from_numpy(search.points[begin : begin + chunk].astype(np.float64))
        distance = torch.cdist(start, some)
        position = torch.arange(begin, begin + len(some))
        distance[own[:, None] == position] = float("inf")
        if search.among != "all":
            there = search.classes[np.searchsorted(search.starts, position.numpy(), side="right") - 1]
            same = torch.from_numpy(search.classes[cell][:, None] == there)
            distance[same if search.among == "other_class" else ~same] = float("inf")
        yield begin, distance


def true_neighbours(search: Search, audit: Array, k: int) -> tuple[Array, Array]:
    """Distances and positions of the ``k`` nearest of some points, by brute force."""
    best = torch.full((len(audit), k), float("inf"), dtype=torch.float64)
    where = torch.full((len(audit), k), -1)
    for begin, distance in brute_force(search, audit):
        both = torch.cat([best, distance], 1)
        position = torch.arange(begin, begin + distance.shape[1]).expand_as(distance)
        best, index = both.topk(k, largest=False)
        where = torch.cat([where, position], 1).gather(1, index)
    return best.numpy(), np.where(np.isfinite(best.numpy()), where.numpy(), -1)


def probes_needed(search: Search, audit: Array, true: Array, recall: float, most: int) -> int:
    """The fewest cells to search that hold the share ``recall`` of the true neighbours (at most ``most``)."""
    rank = []
    for position, neighbours in zip(audit, true, strict=True):
        own = int(np.searchsorted(search.starts, position, side="right")) - 1
        cells = search.order(own)[0]
        place = np.full(len(search.centres), len(search.centres))
        place[cells] = np.arange(len(cells))
        theirs = neighbours[neighbours >= 0]
        rank.append(place[np.searchsorted(search.starts, theirs, side="right") - 1])
    ranks = np.concatenate(rank) if rank else np.zeros(0)
    if not len(ranks):
        return 1
    return int(min(np.quantile(ranks, recall, method="inverted_cdf") + 1, most))


# What a partner index consists of: plain arrays, in memory or in files, and a few facts about them.


Array = NDArray[Any]


@dataclass(frozen=True)
class Arrays:
    """The arrays. Points are kept cell by cell; a *position* counts in that order, a *row* in the data's.

    Attributes:
        points: Points about their mean, ``(n, d)``.
        rows: Row of each position, ``(n,)``.
        positions: Position of each row, ``(n,)``.
        near: Positions of the stored neighbours, nearest first, ``(n, k)``; -1 where there are fewer.
        distances: Their distances, ``(n, k)``.
        reach: Points of searched cells that are not stored are at least so far, ``(n,)``.
        centres: Centre of each cell, ``(cells, d)``.
        radius: Largest distance of a member from its centre, ``(cells,)``.
        starts: First position of each cell, and n, ``(cells + 1,)``.
        classes: Class of each cell's members (zero without labels), ``(cells,)``.
        probes: Cells that were searched for the members of each cell, ``(cells, probes)``, -1 where there are
            fewer; ``(cells, 0)`` when all were.
        audit: Positions of some rows whose true neighbours were found by brute force, ``(audit,)``.
        missed_by: For points within reach that the search missed: which of the audited rows, ``(missed,)``.
        missed: Their distances, ``(missed,)``.
    """

    points: Array
    rows: Array
    positions: Array
    near: Array
    distances: Array
    reach: Array
    centres: Array
    radius: Array
    starts: Array
    classes: Array
    probes: Array
    audit: Array
    missed_by: Array
    missed: Array

    def cell_of(self, position: Array) -> Array:
        """Cell of each position."""
        return np.searchsorted(self.starts, position, side="right") - 1

    def named(self) -> dict[str, Array]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.named().values())


@dataclass(frozen=True)
class Facts:
    """What the arrays do not say.

    Attributes:
        power: Exponent of the inverse distance.
        floor: Distances below it count as it.
        among: Partners of any class, of the same or of another class.
        exact: Whether all cells were searched (or shown to be too far).
        recall: Share of the true neighbours of the audited rows that were found.
        backend: What found them.
    """

    power: float
    floor: float
    among: Among
    exact: bool
    recall: float
    backend: str


class Arena:
    """Where new arrays are made: in memory, or as files of a folder that are mapped into memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array to be filled."""
        if self.folder is None or 0 in shape:
            return np.empty(shape, dtype)
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def whole_numbers(n: int) -> type[np.signedinteger[Any]]:
    """The smallest usual dtype that counts to ``n``."""
    return np.int32 if n < 2**31 else np.int64


# Nearest neighbours and k-means by faiss, else scikit-learn, else torch: two functions each.


BackendName = Literal["faiss", "sklearn", "torch"]
BACKENDS: tuple[BackendName, ...] = ("faiss", "sklearn", "torch")

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_MODULE = {"faiss": "faiss", "sklearn": "sklearn.neighbors", "torch": "torch"}
_EXTRA = {"faiss": "scale", "sklearn": "tables"}
_ITERATIONS = 8
_TORCH_BLOCK = 2**22


@runtime_checkable
class Backend(Protocol):
    """What building an index asks for. All arithmetic may be in float32; bounds allow for its rounding."""

    name: BackendName

    def knn(self, queries: Floats, base: Floats, k: int) -> tuple[Floats, Ints]:
        """Squared distances to the ``k`` nearest rows of ``base`` and their numbers, ``k <= len(base)``."""

    def kmeans(self, points: Floats, n_centres: int, seed: int) -> Floats:
        """Centres of ``points``; ``n_centres <= len(points)``."""


def choose_backend(name: BackendName | None) -> Backend:
    """The backend asked for, or the first one that is installed."""
    if name is not None:
        checks.choice("backend", name, BACKENDS)
        return _MAKE[name](_import(name))
    for candidate in BACKENDS:
        try:
            return _MAKE[candidate](_import(candidate))
        except ImportError:
            continue
    raise AssertionError("torch is always there")  # pragma: no cover


def _import(name: BackendName) -> Any:
    try:
        return importlib.import_module(_MODULE[name])
    except ImportError as error:
        raise ModuleNotFoundError(
            f'backend={name!r} cannot be imported ({error}): pip install "elliptica[{_EXTRA[name]}]", or use '
            'backend="torch".',
            name=name,
        ) from error


@dataclass(frozen=True)
class _Faiss:
    faiss: Any
    name: BackendName = "faiss"

    def knn(self, queries: Floats, base: Floats, k: int) -> tuple[Floats, Ints]:
        squared, index = self.faiss.knn(np.ascontiguousarray(queries), np.ascontiguousarray(base), k)
        return np.maximum(squared, 0), index

    def kmeans(self, points: Floats, n_centres: int, seed: int) -> Floats:
        engine = self.faiss.Kmeans(
            points.shape[1],
            n_centres,
            niter=_ITERATIONS,
            seed=seed,
            min_points_per_centroid=1,
            max_points_per_centroid=2**20,
        )
        engine.train(np.ascontiguousarray(points))
        return np.asarray(engine.centroids, dtype=np.float32)


@dataclass(frozen=True)
class _Sklearn:
    neighbors: Any
    name: BackendName = "sklearn"

    def knn(self, queries: Floats, base: Floats, k: int) -> tuple[Floats, Ints]:
        search = self.neighbors.NearestNeighbors(n_neighbors=k, algorithm="brute").fit(base)
        distance, index = search.kneighbors(queries)
        return (distance**2).astype(np.float32), index.astype(np.int64)

    def kmeans(self, points: Floats, n_centres: int, seed: int) -> Floats:
        cluster = importlib.import_module("sklearn.cluster")
        engine = cluster.MiniBatchKMeans(
            n_centres, init="random", n_init=1, max_iter=_ITERATIONS, batch_size=4096, random_state=seed
        )
        return np.asarray(engine.fit(points).cluster_centers_, dtype=np.float32)


@dataclass(frozen=True)
class _Torch:
    _module: Any
    name: BackendName = "torch"

    def knn(self, queries: Floats, base: Floats, k: int) -> tuple[Floats, Ints]:
        others = torch.from_numpy(np.ascontiguousarray(base))
        step = max(1, _TORCH_BLOCK // len(base))
        parts = []
        for begin in range(0, len(queries), step):
            some = torch.from_numpy(np.ascontiguousarray(queries[begin : begin + step]))
            parts.append(torch.cdist(some, others).topk(k, largest=False))
        distance = torch.cat([part.values for part in parts])
        return distance.square().numpy(), torch.cat([part.indices for part in parts]).numpy()

    def kmeans(self, points: Floats, n_centres: int, seed: int) -> Floats:
        """Lloyd's algorithm from random rows; a centre that nobody is nearest to stays where it is."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.from_numpy(np.ascontiguousarray(points))
        centres = rows[torch.randperm(len(rows), generator=generator)[:n_centres]].clone()
        for _ in range(_ITERATIONS):
            _, nearest = self.knn(points, centres.numpy(), 1)
            label = torch.from_numpy(nearest[:, 0])
            count = torch.bincount(label, minlength=n_centres)
            total = torch.zeros_like(centres).index_add_(0, label, rows)
            centres = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], centres)
        return centres.numpy()


_MAKE: dict[BackendName, Any] = {"faiss": _Faiss, "sklearn": _Sklearn, "torch": _Torch}
