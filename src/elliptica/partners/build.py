"""Building the arrays of a partner index: cells, neighbours, and an audit of the neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica import _checks
from elliptica.pairing import AMONG, Among
from elliptica.partners.arrays import Arena, Array, Arrays, Facts, whole_numbers
from elliptica.partners.backends import BackendName, choose_backend
from elliptica.partners.cells import default_cells, find_cells, lay_out
from elliptica.partners.search import Search, brute_force, probes_needed, true_neighbours
from elliptica.partners.source import Rows

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
    _checks.count("k", k)
    _checks.choice("among", among, AMONG)
    _checks.choice("dtype", dtype, ("float32", "float16"))
    engine = choose_backend(backend)
    rows = Rows(x)
    k = min(k, rows.n - 1)
    classes = _classes(labels, among, rows.n)
    if cells is not None:
        _checks.count("cells", cells)
    if probes is not None:
        _checks.count("probes", probes)
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
    _checks.same_rows("labels", torch.from_numpy(found), n)
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
