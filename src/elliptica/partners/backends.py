"""Nearest neighbours and k-means by faiss, else scikit-learn, else torch: two functions each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from elliptica import _checks

BackendName = Literal["faiss", "sklearn", "torch"]
BACKENDS: tuple[BackendName, ...] = ("faiss", "sklearn", "torch")

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_MODULE = {"faiss": "faiss", "sklearn": "sklearn.neighbors", "torch": "torch"}
_EXTRA = {"faiss": "index", "sklearn": "sklearn"}
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
        _checks.choice("backend", name, BACKENDS)
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
