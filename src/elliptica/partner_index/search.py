"""Search the nearest neighbours of every row: cells by k-means, a search by cells, an audit by brute force.

The work is done by faiss, or by scikit-learn where faiss is not installed.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils.extras import import_extra
from elliptica.partner_index.store import Among, Arena, Array, Arrays, Facts, Rows

BackendName = Literal["faiss", "sklearn"]

#: Up to so many rows all cells are searched, unless the caller says otherwise.
EXACT_ROWS = 20_000
_AUDITED = 128
_RECALL = 0.95
_MOST_PROBES = 64
_SAMPLE_PER_CELL = 32
_ITERATIONS = 8
#: Points searched beyond the ones kept, so that rounding in the search cannot drop a near one unnoticed.
_SPARE = 8
_QUERIES = 4096
_BASE = 2**14


def choose_backend(name: BackendName | None) -> BackendName:
    """Return the requested backend, or the first one that is installed."""
    if name != "sklearn":
        try:
            import_extra("PartnerIndex", "scale", "faiss")
        except ModuleNotFoundError:
            if name == "faiss":
                raise
        else:
            return "faiss"
    import_extra("PartnerIndex", "tables", "sklearn")
    return "sklearn"


def knn(
    backend: BackendName, queries: NDArray[np.float32], base: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return squared distances to the ``k`` nearest rows of ``base`` and their numbers, in float32."""
    if backend == "faiss":
        faiss = importlib.import_module("faiss")
        squared, index = faiss.knn(np.ascontiguousarray(queries), np.ascontiguousarray(base), k)
        return np.maximum(squared, 0), index
    neighbors = importlib.import_module("sklearn.neighbors")
    search = neighbors.NearestNeighbors(n_neighbors=k, algorithm="brute").fit(base)
    distance, index = search.kneighbors(queries)
    return (distance**2).astype(np.float32), index.astype(np.int64)


def kmeans(
    backend: BackendName, points: NDArray[np.float32], n_centres: int, seed: int
) -> NDArray[np.float32]:
    """Return k-means centres of ``points``; ``n_centres <= len(points)``."""
    if backend == "faiss":
        engine = importlib.import_module("faiss").Kmeans(
            points.shape[1],
            n_centres,
            niter=_ITERATIONS,
            seed=seed,
            min_points_per_centroid=1,
            max_points_per_centroid=2**20,
        )
        engine.train(np.ascontiguousarray(points))
        return np.asarray(engine.centroids, dtype=np.float32)
    engine = importlib.import_module("sklearn.cluster").MiniBatchKMeans(
        n_centres, init="random", n_init=1, max_iter=_ITERATIONS, batch_size=4096, random_state=seed
    )
    return np.asarray(engine.fit(points).cluster_centers_, dtype=np.float32)


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
    backend: BackendName | None,
    arena: Arena,
    generator: torch.Generator | None,
) -> tuple[Arrays, Facts]:
    """Build the arrays in ``arena``; arguments are those of `PartnerIndex.build`."""
    engine, rows = choose_backend(backend), Rows(x)
    k = min(k, rows.n - 1)
    classes = np.zeros(rows.n, np.int64) if among == "all" else np.asarray(labels)
    if classes.shape != (rows.n,):
        raise ValueError(f"labels must be one class per row, shape ({rows.n},), but have {classes.shape}.")
    floor = rows.floor()
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    if cells is None:  # the usual choice, with at least four rows per cell
        cells = max(1, min(round(4 * math.sqrt(rows.n)), rows.n // 4))
    cell, centres, cell_classes = find_cells(rows, classes, min(cells, rows.n), engine, seed)
    layout = lay_out(rows, cell, centres, arena)
    search = Search(
        **{name: layout[name] for name in ("points", "rows", "centres", "radius", "starts")},
        classes=cell_classes,
        backend=engine,
    )
    if exact is None:
        exact = probes is None and rows.n <= EXACT_ROWS
    audit = np.sort(np.random.default_rng(seed).choice(rows.n, min(_AUDITED, rows.n), replace=False))
    true_distances, true = true_neighbours(search, audit, k)
    n_probes = None
    if not exact:
        n_probes = probes or probes_needed(search, audit, true, _RECALL, _MOST_PROBES)
    layout |= _search_all(search, k, n_probes, arena)
    layout["distinct"] = _find_distinct(search, layout["distances"], floor, arena)
    # by distance, so that of equal neighbours any will do
    there = np.isfinite(true_distances)
    last = np.where(there, true_distances, 0).max(1, keepdims=True) * (1 + 1e-6)
    found = (layout["distances"][audit] <= last).sum()
    missed_by, missed = _missed(search, layout, audit)
    arrays = Arrays(
        **layout,
        classes=cell_classes,
        probes=_probes(search, n_probes),
        audit=audit,
        missed_by=missed_by,
        missed=missed,
    )
    recall = min(float(found / there.sum()), 1.0) if there.any() else 1.0
    return arrays, Facts(float(power), floor, among, bool(exact), recall, engine)


def _search_all(search: Search, k: int, n_probes: int | None, arena: Arena) -> dict[str, Array]:
    n = len(search.points)
    near = arena.empty("near", (n, k), search.rows.dtype)
    distances = arena.empty("distances", (n, k), np.float32)
    reach = arena.empty("reach", (n,), np.float32)
    for cell in range(len(search.centres)):
        for block, neighbours, distance, least in search.near(cell, k, n_probes):
            near[block], distances[block] = neighbours, distance
            # rounded down, so that it stays a lower bound
            reach[block] = np.nextafter(least.astype(np.float32), np.float32(0))
    return {"near": near, "distances": distances, "reach": reach}


def _find_distinct(search: Search, distances: Array, floor: float, arena: Arena) -> Array:
    """Return the distance of each row's nearest distinct neighbour; the floor for rows without duplicates."""
    distinct = arena.empty("distinct", (len(distances),), np.float32)
    for cell, (begin, end) in enumerate(itertools.pairwise(search.starts.tolist())):
        duplicate = distances[begin:end] < floor
        nearest = np.where(duplicate, np.inf, distances[begin:end]).min(1)
        hidden = np.flatnonzero(duplicate.any(1) & ~np.isfinite(nearest))  # more copies than are stored
        for part in np.split(hidden, range(_QUERIES, len(hidden), _QUERIES)):
            if len(part):
                nearest[part] = search.nearest_distinct(cell, begin + part, floor)
        nearest = np.where(duplicate.any(1) & np.isfinite(nearest), nearest, floor)
        distinct[begin:end] = np.maximum(nearest, floor)
    return distinct


def _probes(search: Search, n_probes: int | None) -> Array:
    """Return which cells were searched for each cell; empty if all were."""
    probes = np.full((len(search.centres), n_probes or 0), -1, np.int32)
    for cell in range(len(probes) if n_probes else 0):
        cells = search.order(cell)[0][:n_probes]
        probes[cell, : len(cells)] = cells
    return probes


def _missed(search: Search, layout: dict[str, Array], audit: Array) -> tuple[Array, Array]:
    """Return points nearer than an audited row's reach that are not among its stored neighbours."""
    reach = torch.from_numpy(layout["reach"][audit].astype(np.float64))
    by, distances = [], []
    for begin, distance in brute_force(search, audit):
        nearer = torch.nonzero(distance < reach[:, None] * (1 - 1e-6), as_tuple=True)
        row, column = (t.numpy() for t in nearer)
        unknown = ~(layout["near"][audit[row]] == begin + column[:, None]).any(1)
        by.append(row[unknown])
        distances.append(distance.numpy()[row[unknown], column[unknown]])
    return np.concatenate(by), np.concatenate(distances)


def find_cells(
    rows: Rows, labels: Array, n_cells: int, backend: BackendName, seed: int
) -> tuple[Array, Array, Array]:
    """Return the cell of each row, and the cells' centres and classes; each has members, all of one class."""
    inverse = np.unique(labels, return_inverse=True)[1]
    by_class = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    rng = np.random.default_rng(seed)
    centres: list[NDArray[np.float32]] = []
    for members in by_class:
        wanted = max(1, round(n_cells * len(members) / rows.n))
        size = min(len(members), max(_SAMPLE_PER_CELL * wanted, 256))
        some = rows[np.sort(rng.choice(members, size, replace=False))]
        centres.append(kmeans(backend, some, wanted, seed) if wanted > 1 else some.mean(0, keepdims=True))
    first = np.cumsum([0, *(len(c) for c in centres)])
    cell = np.empty(rows.n, np.int64)
    for span in rows.spans():
        some, here = rows[span], inverse[span]
        for c in np.unique(here):
            members = np.flatnonzero(here == c)
            _, nearest = knn(backend, some[members], centres[c], 1)
            cell[span.start + members] = first[c] + nearest[:, 0]
    used, cell = np.unique(cell, return_inverse=True)
    cell_classes = np.repeat(np.arange(len(centres)), np.diff(first))
    return cell, np.concatenate(centres)[used], cell_classes[used]


def lay_out(rows: Rows, cell: Array, centres: Array, arena: Arena) -> dict[str, Array]:
    """Write the points cell by cell; measure the cells."""
    integer = np.int32 if rows.n < 2**31 else np.int64
    order = np.argsort(cell, kind="stable")
    points = arena.empty("points", (rows.n, rows.d), np.float32)
    row_of, positions = (arena.empty(name, (rows.n,), integer) for name in ("rows", "positions"))
    row_of[:] = order
    positions[order] = np.arange(rows.n)
    radius = np.zeros(len(centres))
    for span in rows.spans():
        members = order[span]
        points[span] = rows[members]
        # from the stored numbers, which float32 has rounded: the bounds hold for these
        distance = np.linalg.norm(points[span].astype(np.float64) - centres[cell[members]], axis=1)
        np.maximum.at(radius, cell[members], distance)
    return {
        "points": points,
        "rows": row_of,
        "positions": positions,
        "centres": centres,
        "radius": radius,
        "starts": np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=len(centres)))]),
    }


@dataclass(frozen=True)
class Search:
    """Search for the neighbours of one cell's members at a time."""

    points: Array  # all points, cell by cell
    rows: Array  # row of each position; ties of distance go by row
    centres: Array  # centres of the cells
    radius: Array  # their radii
    starts: Array  # their first positions
    classes: Array  # their classes; neighbours are of the same
    backend: BackendName  # what compares blocks of points

    def order(self, cell: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return eligible cells, nearest centre first, and the distances of the centres."""
        eligible = np.flatnonzero(self.classes == self.classes[cell])
        distance = np.linalg.norm(self.centres[eligible].astype(np.float64) - self.centres[cell], axis=1)
        by_distance = np.argsort(distance, kind="stable")
        return eligible[by_distance], distance[by_distance]

    def near(self, cell: int, k: int, n_probes: int | None) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Yield positions, distances and reach of the members, a slice of positions at a time.

        Searches ``n_probes`` cells, and more where these are too small to hold ``k`` neighbours. With
        ``n_probes=None`` it then searches all eligible cells that can hold a nearer point.
        """
        cells, distance = self.order(cell)
        least = distance - self.radius[cell] - self.radius[cells]
        held = np.cumsum(np.diff(self.starts)[cells]) - 1  # a point is no neighbour of itself
        enough = max(n_probes or 1, 1 + int(np.searchsorted(held, k + _SPARE)))
        begin, end = int(self.starts[cell]), int(self.starts[cell + 1])
        for first in range(begin, end, _QUERIES):
            block = slice(first, min(first + _QUERIES, end))
            # about the cell's centre, so that float32 does not lose small distances in large coordinates
            queries = self.points[block] - self.centres[cell]
            squared, found = self._among(block, queries, cells[:enough], cell, k + _SPARE)
            if n_probes is None:
                possible = least <= np.sqrt(squared[:, -1].max()) * (1 + 1e-5)
                if possible[enough:].any():
                    squared, found = self._among(block, queries, cells[possible], cell, k + _SPARE)
            yield (block, *self._ranked(block, queries, squared, found, k))

    def nearest_distinct(self, cell: int, positions: Array, floor: float) -> NDArray[np.float64]:
        """Return the distance of the nearest eligible point at least ``floor`` away; infinite if none is.

        Of members of one cell, by brute force in the cells that can hold such a point.
        """
        cells, _ = self.order(cell)
        centre = self.centres[cell].astype(np.float64)
        points, copy_of = np.unique(self.points[positions], axis=0, return_inverse=True)
        rows = torch.from_numpy(points.astype(np.float64) - centre)
        to_centres = torch.from_numpy(self.centres[cells].astype(np.float64) - centre)
        to_cells = torch.cdist(rows, to_centres).numpy()
        # cells of which all members are duplicates of all these rows tell nothing
        useful = (to_cells + self.radius[cells]).max(0) >= floor
        least = (to_cells - self.radius[cells]).min(0)[useful]
        order = np.argsort(least, kind="stable")
        cells, least = cells[useful][order], least[order]
        best = np.full(len(points), np.inf)
        done, size = 0, 4
        while done < len(cells) and least[done] <= best.max():
            spans = [slice(self.starts[c], self.starts[c + 1]) for c in cells[done : done + size]]
            base = np.concatenate([self.points[span] for span in spans]).astype(np.float64) - centre
            for part in np.split(base, range(_BASE, len(base), _BASE)):
                distance = torch.cdist(rows, torch.from_numpy(part))
                distance[distance < floor] = float("inf")
                best = np.minimum(best, distance.amin(1).numpy())
            done, size = done + size, 2 * size
        return best[copy_of.ravel()]

    def _among(self, block: slice, queries: Array, cells: Array, cell: int, keep: int) -> tuple[Array, Array]:
        """Return squared distances and positions of the ``keep`` nearest in some cells; infinite if fewer."""
        squared = np.full((len(queries), keep), np.inf, np.float32)
        found = np.full((len(queries), keep), -1, np.int64)
        spans = [slice(self.starts[c], self.starts[c + 1]) for c in cells]
        base = np.concatenate([self.points[span] for span in spans])
        position = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        # one more than kept: a point finds itself
        d2, index = knn(self.backend, queries, base - self.centres[cell], min(keep + 1, len(base)))
        where = position[index]
        d2[where == np.arange(block.start, block.stop)[:, None]] = np.inf
        order = np.argsort(d2, axis=1, kind="stable")[:, :keep]
        squared[:, : order.shape[1]] = np.take_along_axis(d2, order, 1)
        found[:, : order.shape[1]] = np.take_along_axis(where, order, 1)
        return squared, found

    def _ranked(
        self, block: slice, queries: Array, squared: Array, found: Array, k: int
    ) -> tuple[Array, Array, Array]:
        """Recompute distances by differences; those beyond ``k`` only bound how far the others are."""
        apart = self.points[found.clip(0)] - self.points[block][:, None]
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


def brute_force(search: Search, audit: Array, chunk: int = 2**14) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield distances from the audited positions to all points in chunks; infinite where not eligible."""
    start = torch.from_numpy(search.points[audit].astype(np.float64))
    own = torch.from_numpy(audit)
    cell = np.searchsorted(search.starts, audit, side="right") - 1
    for begin in range(0, len(search.points), chunk):
        some = torch.from_numpy(search.points[begin : begin + chunk].astype(np.float64))
        distance = torch.cdist(start, some)
        position = torch.arange(begin, begin + len(some))
        distance[own[:, None] == position] = float("inf")
        there = search.classes[np.searchsorted(search.starts, position.numpy(), side="right") - 1]
        distance[torch.from_numpy(search.classes[cell][:, None] != there)] = float("inf")
        yield begin, distance


def true_neighbours(search: Search, audit: Array, k: int) -> tuple[Array, Array]:
    """Return distances and positions of the ``k`` nearest of some points, by brute force."""
    best = torch.full((len(audit), k), float("inf"), dtype=torch.float64)
    where = torch.full((len(audit), k), -1)
    for begin, distance in brute_force(search, audit):
        both = torch.cat([best, distance], 1)
        position = torch.arange(begin, begin + distance.shape[1]).expand_as(distance)
        best, index = both.topk(k, largest=False)
        where = torch.cat([where, position], 1).gather(1, index)
    return best.numpy(), np.where(np.isfinite(best.numpy()), where.numpy(), -1)


def probes_needed(search: Search, audit: Array, true: Array, recall: float, most: int) -> int:
    """Return the fewest cells that hold the share ``recall`` of the true neighbours (at most ``most``)."""
    rank = []
    for position, neighbours in zip(audit, true, strict=True):
        own = int(np.searchsorted(search.starts, position, side="right")) - 1
        cells = search.order(own)[0]
        place = np.full(len(search.centres), len(search.centres))
        place[cells] = np.arange(len(cells))
        theirs = neighbours[neighbours >= 0]
        rank.append(place[np.searchsorted(search.starts, theirs, side="right") - 1])
    ranks = np.concatenate(rank)
    if not len(ranks):  # nobody has a partner
        return 1
    return int(min(np.quantile(ranks, recall, method="inverted_cdf") + 1, most))
