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

from elliptica._utils import checks
from elliptica._utils.extras import remedy
from elliptica.core.partners import AMONG, Among
from elliptica.partner_index import features
from elliptica.partner_index.features import Rows
from elliptica.partner_index.store import Arena, Array, Arrays, Facts, whole_numbers

BackendName = Literal["faiss", "sklearn"]
BACKENDS: tuple[BackendName, ...] = ("faiss", "sklearn")
_EXTRA = {"faiss": "scale", "sklearn": "tables"}

#: Up to so many rows all cells are searched, unless the caller says otherwise.
EXACT_ROWS = 20_000
#: Sizes that half precision holds with all its digits.
_HALF = (1e-2, 1e4)
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
    if name is not None:
        checks.choice("backend", name, BACKENDS)
    for candidate in BACKENDS if name is None else (name,):
        try:
            importlib.import_module(candidate)
        except ImportError as error:
            missing, last = candidate, error
        else:
            return candidate
    what = (
        f"backend={missing!r} cannot be imported" if name else "Neither faiss nor scikit-learn is installed"
    )
    raise ModuleNotFoundError(f"{what} ({last}). Run {remedy(_EXTRA[missing])}.", name=missing) from last


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
    dtype: str,
    backend: BackendName | None,
    arena: Arena,
    generator: torch.Generator | None,
) -> tuple[Arrays, Facts]:
    """Build the arrays in ``arena``; arguments are those of `PartnerIndex.build`."""
    checks.count("k", k)
    checks.choice("among", among, AMONG)
    checks.choice("dtype", dtype, ("float32", "float16"))
    engine = choose_backend(backend)
    rows = Rows(x) if dtype == "float32" else Rows(x, _HALF)
    k = min(k, rows.n - 1)
    classes = _classes(labels, among, rows.n)
    if exact is not None:
        checks.flag("exact", exact)
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
    floor = rows.floor()
    laid |= _search_all(search, k, n_probes, arena)
    laid["distinct"] = _find_distinct(search, laid["distances"], floor, arena)
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
    return arrays, Facts(float(power), floor, among, exact, recall, engine)


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


def _find_distinct(search: Search, distances: Array, floor: float, arena: Arena) -> Array:
    """Return the distance of each row's nearest distinct neighbour; the floor for rows without duplicates."""
    distinct = arena.empty("distinct", (len(distances),), np.float32)
    for cell, (begin, end) in enumerate(itertools.pairwise(search.starts.tolist())):
        away = distances[begin:end]
        duplicate = away < floor
        found = np.where(duplicate, np.inf, away).min(1)
        hidden = np.flatnonzero(duplicate.any(1) & ~np.isfinite(found))  # more copies than are stored
        for part in np.split(hidden, range(_QUERIES, len(hidden), _QUERIES)):
            if len(part):
                found[part] = search.nearest_distinct(cell, begin + part, floor)
        found = np.where(duplicate.any(1) & np.isfinite(found), found, floor)
        distinct[begin:end] = np.maximum(found, floor)
    return distinct


def _probes(search: Search, n_probes: int | None) -> Array:
    """Return which cells were searched for each cell; empty if all were."""
    whole = whole_numbers(len(search.centres))
    if n_probes is None:
        return np.empty((len(search.centres), 0), whole)
    probes = np.full((len(search.centres), n_probes), -1, whole)
    for cell in range(len(probes)):
        cells = search.order(cell)[0][:n_probes]
        probes[cell, : len(cells)] = cells
    return probes


def _missed(search: Search, laid: dict[str, Array], audit: Array) -> tuple[Array, Array]:
    """Return points nearer than an audited row's reach that are not among its stored neighbours."""
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


def default_cells(n: int) -> int:
    """Return about ``4 sqrt(n)`` cells, the usual choice, with at least four rows per cell."""
    return max(1, min(round(4 * math.sqrt(n)), n // 4))


def find_cells(
    rows: Rows, labels: NDArray[np.int64], n_cells: int, backend: BackendName, seed: int
) -> tuple[Array, Array, Array]:
    """Return the cell of each row, and the cells' centres and classes; each has members, all of one class."""
    classes, inverse = np.unique(labels, return_inverse=True)
    by_class = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    rng = np.random.default_rng(seed)
    centres: list[NDArray[np.float32]] = []
    for members in by_class:
        wanted = max(1, round(n_cells * len(members) / rows.n))
        size = min(len(members), max(_SAMPLE_PER_CELL * wanted, 256))
        some = rows[np.sort(rng.choice(members, size, replace=False))]
        many = wanted > 1
        centres.append(kmeans(backend, some, wanted, seed) if many else some.mean(0, keepdims=True))
    first = np.cumsum([0, *(len(c) for c in centres)])
    cell = np.empty(rows.n, np.int64)
    for begin, some in rows.chunks():
        here = inverse[begin : begin + len(some)]
        for c in np.unique(here):
            mine = np.flatnonzero(here == c)
            _, nearest = knn(backend, some[mine], centres[c], 1)
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
    step = max(1, features.CHUNK // rows.d)
    for begin in range(0, rows.n, step):
        here = order[begin : begin + step]
        found["points"][begin : begin + step] = rows[here]
        # from the stored numbers, which half precision has rounded: the bounds hold for these
        stored = found["points"][begin : begin + step].astype(np.float64)
        away = np.linalg.norm(stored - centres[cell[here]], axis=1)
        np.maximum.at(radius, cell[here], away)
    starts = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=len(centres)))])
    return {**found, "centres": centres, "radius": radius, "starts": starts}


def allowed_cells(classes: Array, own: int, among: Among) -> NDArray[np.bool_]:
    """Return the cells whose members may be partners of the members of class ``own``."""
    if among == "all":
        return np.ones(len(classes), bool)
    return (classes == own) == (among == "same_class")


@dataclass(frozen=True)
class Search:
    """Search for the neighbours of one cell's members at a time."""

    points: Array  # all points, cell by cell
    rows: Array  # row of each position; ties of distance go by row
    centres: Array  # centres of the cells
    radius: Array  # their radii
    starts: Array  # their first positions
    classes: Array  # their classes
    among: Among  # which classes are eligible
    backend: BackendName  # what compares blocks of points

    def order(self, cell: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return eligible cells, nearest centre first, and the distances of the centres."""
        eligible = np.flatnonzero(allowed_cells(self.classes, int(self.classes[cell]), self.among))
        away = np.linalg.norm(self.centres[eligible].astype(np.float64) - self.centres[cell], axis=1)
        by_distance = np.argsort(away, kind="stable")
        return eligible[by_distance], away[by_distance]

    def near(self, cell: int, k: int, n_probes: int | None) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Yield positions, distances and reach of the members, a slice of positions at a time.

        Searches ``n_probes`` cells, and more where these are too small to hold ``k`` neighbours. With
        ``n_probes=None`` it then searches all eligible cells that can hold a nearer point.
        """
        cells, away = self.order(cell)
        least = away - self.radius[cell] - self.radius[cells]
        held = np.cumsum(np.diff(self.starts)[cells]) - 1  # a point is no neighbour of itself
        enough = max(n_probes or 1, 1 + int(np.searchsorted(held, k + _SPARE)))
        begin, end = int(self.starts[cell]), int(self.starts[cell + 1])
        for first in range(begin, end, _QUERIES):
            block = slice(first, min(first + _QUERIES, end))
            # about the cell's centre, so that float32 does not lose small distances in large coordinates
            queries = self.points[block].astype(np.float32) - self.centres[cell]
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
        away = torch.cdist(rows, torch.from_numpy(self.centres[cells].astype(np.float64) - centre)).numpy()
        # cells of which all members are duplicates of all these rows tell nothing
        useful = (away + self.radius[cells]).max(0) >= floor
        least = (away - self.radius[cells]).min(0)[useful]
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
        if len(cells):
            spans = [slice(self.starts[c], self.starts[c + 1]) for c in cells]
            base = np.concatenate([self.points[span] for span in spans]).astype(np.float32, copy=False)
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


def brute_force(search: Search, audit: Array, chunk: int = 2**14) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield distances from the audited positions to all points in chunks; infinite where not eligible."""
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
    ranks = np.concatenate(rank) if rank else np.zeros(0)
    if not len(ranks):
        return 1
    return int(min(np.quantile(ranks, recall, method="inverted_cdf") + 1, most))
