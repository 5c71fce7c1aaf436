"""Find the nearest of many balls, exactly: a k-d tree in few dimensions, one matrix product in many.

Both only propose balls. The distance in float64 decides, so the result is the same as comparing
all balls. Without scipy there is no tree, and the matrix product is used instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

#: A tree is faster than the product from this number of balls, times two to the power of the dimension.
TREE_BALLS = 250
#: Up to this many balls, compare all of them.
_FEW = 128
#: Numbers of neighbours to query from the tree, in turn, until no other ball can be nearer.
_NEIGHBOURS = (2, 8, 64)
#: Rows times balls held at once: in a processor's cache, and in memory.
_CACHED, _HELD = 2**17, 2**22
#: Balls whose distances differ by less than this share are equally near; the first of them counts.
_TIE = 1e-13


class NearestBalls:
    """Search among fixed balls that do not overlap; balls around repeated points count as one.

    Args:
        centres: One row per ball.
        radii: Their radii.
        share: Upper bound on each radius over the distance from its centre to the nearest other centre.
    """

    def __init__(
        self, centres: Float[Tensor, "n dim"], radii: Float[Tensor, " n"], share: float = 1.0
    ) -> None:
        self._kept, self._same = _distinct(centres, radii)
        self._centres, self._radii = centres[self._kept].double(), radii[self._kept].double()
        self._largest, self._share = float(self._radii.max()), share

    def __call__(self, z: Float[Tensor, "rows dim"]) -> Int[Tensor, " rows"]:
        """Return the number of the ball nearest to each point; the first of several equally near ones."""
        return self._kept[self._search(z.to(self._centres), None)]

    def others(self) -> Float[Tensor, " n"]:
        """Return the distance of each ball to the nearest other one."""
        own = torch.arange(len(self._centres), device=self._centres.device)
        return self._gap(self._centres, self._search(self._centres, own))[self._same]

    def _search(self, z: Tensor, own: Tensor | None) -> Tensor:
        """Return the nearest ball, excluding the row's ``own`` number."""
        n, dim = self._centres.shape
        if n <= _FEW:
            return self._by_comparison(z, own)
        if n >= TREE_BALLS * 2**dim and self._tree is not None:
            return self._by_tree(z, own)
        return self._by_product(z, own)

    def _gap(self, z: Tensor, index: Tensor) -> Float[Tensor, " rows"]:
        return (z - self._centres[index]).norm(dim=1) - self._radii[index]

    def _slack(self, length: Tensor) -> Tensor:
        """Return the size of differences that are rounding."""
        return _TIE * (length.abs() + self._largest)

    def _first(self, gaps: Tensor, numbers: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the least distance in each row, and the smallest number among the balls there."""
        if own is not None:
            gaps = torch.where(numbers == own[:, None], torch.inf, gaps)
        least = gaps.amin(1, keepdim=True)
        return least[:, 0], torch.where(gaps <= least + self._slack(least), numbers, len(self._kept)).amin(1)

    def _by_comparison(self, z: Tensor, own: Tensor | None) -> Tensor:
        """Search by all distances, in float64."""
        numbers = torch.arange(len(self._centres), device=z.device)
        nearest = [numbers[:0]]
        for part, mine in _parts(z, own, max(_HELD // len(numbers), 1)):
            nearest.append(self._first(distances(part, self._centres) - self._radii, numbers, mine)[1])
        return torch.cat(nearest)

    @cached_property
    def _tree(self) -> Any:
        """The tree of the centres; None where there is no scipy."""
        if self._centres.device.type != "cpu":
            return None
        try:
            spatial = importlib.import_module("scipy.spatial")
        except ModuleNotFoundError:
            return None
        return spatial.cKDTree(self._centres.numpy())

    def _by_tree(self, z: Tensor, own: Tensor | None) -> Tensor:
        """Search among more and more neighbours, until no other ball can be nearer.

        The nearest centre, at distance ``d``, is at most ``d + d_j`` from that of ball ``j``, whose radius is
        at most ``share`` of this. So ball ``j`` is no nearer than ``d_j - share * (d + d_j)``.
        """
        points, radii, n = z.numpy(), self._radii.numpy(), len(self._centres)
        nearest = np.empty(len(z), dtype=np.int64)
        rows = np.arange(len(z))
        for k in _NEIGHBOURS:
            length, near = self._tree.query(points[rows], k=min(k, n))
            gaps = length - radii[near]
            if own is not None:
                gaps[near == own.numpy()[rows, None]] = np.inf
            least = gaps.min(1)
            limit = least + _TIE * (np.abs(least) + self._largest)
            nearest[rows] = np.where(gaps <= limit[:, None], near, n).min(1)
            if k >= n:
                return torch.from_numpy(nearest)
            last = length[:, -1]
            rows = rows[last - np.minimum(self._share * (length[:, 0] + last), self._largest) <= limit]
            if len(rows) == 0:
                return torch.from_numpy(nearest)
        rest, index = torch.from_numpy(rows), torch.from_numpy(nearest)
        index[rest] = self._by_comparison(z[rest], None if own is None else own[rest])
        return index

    @cached_property
    def _operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Shift, matrix and constants of a product that gives lower bounds of squared distances."""
        shift = self._centres.median(0).values  # the median: a far origin, or one outlier, would cost digits
        centres = self._centres - shift
        fast = self._centres.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
        dtype = torch.float32 if fast and float(centres.abs().max()) < 1e15 else torch.float64
        squares = (1 - self._doubt(dtype)) * centres.square().sum(1)
        matrix = torch.cat([-2 * centres.T, torch.ones_like(squares)[None]])
        return shift, matrix.to(dtype), squares.to(dtype), self._radii.to(dtype)

    def _doubt(self, dtype: torch.dtype) -> float:
        """Bound the error of a squared distance by the product, over the sum of both squared lengths."""
        return 2 * (self._centres.shape[1] + 8) * torch.finfo(dtype).eps

    def _by_product(self, z: Tensor, own: Tensor | None) -> Tensor:
        """Search by lower bounds; compare all balls where the bounds do not settle which is nearest."""
        shift, matrix, squares, radii = self._operands
        moved = z - shift
        length = (1 - self._doubt(matrix.dtype)) * moved.square().sum(1, keepdim=True)
        left = torch.cat([moved, length], 1).to(matrix.dtype)
        size = max(_CACHED // len(squares), 16)
        space = left.new_empty(size, len(squares))  # reused for all parts, or memory would fragment
        index = torch.empty(len(z), dtype=torch.long, device=z.device)
        rest = torch.empty_like(z[:, 0])
        for rows, mine in _parts(torch.arange(len(z), device=z.device), own, size):
            bound = torch.addmm(squares, left[rows], matrix, out=space[: len(rows)])
            bound.clamp_min_(0).sqrt_().sub_(radii)
            if mine is not None:
                bound.scatter_(1, mine[:, None], torch.inf)
            least = bound.argmin(1, keepdim=True)
            index[rows] = least[:, 0]
            rest[rows] = bound.scatter_(1, least, torch.inf).amin(1).double()
        gap = self._gap(z, index)
        rounding = 4 * torch.finfo(matrix.dtype).eps * (rest.abs() + self._largest)
        rows = (rest - rounding <= gap + self._slack(gap)).nonzero().flatten()
        index[rows] = self._by_comparison(z[rows], None if own is None else own[rows])
        return index


def nearest_other(points: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    """Return the distance of each point to the nearest different point."""
    return NearestBalls(points, torch.zeros_like(points[:, 0]), 0.0).others().to(points.dtype)


def distances(first: Float[Tensor, "rows dim"], second: Float[Tensor, "n dim"]) -> Float[Tensor, "rows n"]:
    """Return all distances, from coordinate differences, because a matrix product would lose digits."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def _distinct(centres: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Return one row per place (the first with the largest radius), and the number of each row's place."""
    _, place = centres.unique(dim=0, return_inverse=True)
    everything = torch.arange(len(centres), device=centres.device)
    n_places = int(place.max()) + 1
    if n_places == len(centres):
        return everything, everything
    order = radii.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, everything)
    least = rank.new_zeros(n_places).scatter_reduce(0, place, rank, "amin", include_self=False)
    kept, position = order[least].sort()
    return kept, torch.empty_like(position).scatter_(0, position, everything[:n_places])[place]


def _parts(z: Tensor, own: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Iterate over rows in chunks."""
    for start in range(0, len(z), size):
        yield z[start : start + size], None if own is None else own[start : start + size]
