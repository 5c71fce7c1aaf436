"""The paper's domain: a region without a small ball around each data point.

The nearest ball is found exactly, by a k-d tree or by comparing all; the distance in float64 decides.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica.landscape.domains import OUTER as OUTER
from elliptica.landscape.domains import Ball, Box, Domain, Polytope, project_to_sphere, reflect, step_radius

Outer = Literal["ball", "box", "reflecting_box", "hull"]

#: A tree is faster than comparing all balls from this number on, times two to the power of the dimension.
TREE_BALLS = 32
#: Numbers of neighbours to query from the tree, in turn, until no other ball can be nearer.
_NEIGHBOURS = (2, 8, 64)
#: Rows times balls whose distances are held at once.
_CHUNK = 2**18
#: Balls whose distances differ by less than this share are equally near; the first of them counts.
_TIE = 1e-13


class NearestBalls:
    """Search among fixed balls; balls around repeated points count as one.

    ``share`` is an upper bound on each radius over the distance from its centre to the nearest other centre.
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
        """Return the distance of each ball's centre to the nearest other ball; infinite for a single one."""
        own = torch.arange(len(self._centres), device=self._centres.device)
        if len(own) == 1:
            return torch.full_like(self._same, torch.inf, dtype=torch.float64)
        other = self._search(self._centres, own)
        return ((self._centres - self._centres[other]).norm(dim=1) - self._radii[other])[self._same]

    def _search(self, z: Tensor, own: Tensor | None) -> Tensor:
        """Return the nearest ball, excluding the row's ``own`` number."""
        n, dim = self._centres.shape
        tree = self._tree if n >= TREE_BALLS * 2**dim else None
        return self._by_comparison(z, own) if tree is None else self._by_tree(tree, z, own)

    @cached_property
    def _tree(self) -> Any:
        """The tree of the centres; None where there is no scipy."""
        try:
            spatial = importlib.import_module("scipy.spatial")
        except ModuleNotFoundError:
            return None
        return spatial.cKDTree(self._centres.numpy()) if self._centres.device.type == "cpu" else None

    def _by_comparison(self, z: Tensor, own: Tensor | None) -> Tensor:
        """Search by all distances; the smallest number among equally near balls counts."""
        numbers = torch.arange(len(self._centres), device=z.device)
        nearest = [numbers[:0]]
        rows = max(_CHUNK // len(numbers), 1)
        for i in range(0, len(z), rows):
            gaps = distances(z[i : i + rows], self._centres) - self._radii
            if own is not None:
                gaps.scatter_(1, own[i : i + rows, None], torch.inf)
            least = gaps.amin(1, keepdim=True)
            tied = gaps <= least + _TIE * (least.abs() + self._largest)
            nearest.append(torch.where(tied, numbers, len(numbers)).amin(1))
        return torch.cat(nearest)

    def _by_tree(self, tree: Any, z: Tensor, own: Tensor | None) -> Tensor:
        """Search among more and more neighbours, until no other ball can be nearer.

        The nearest centre, at distance ``d``, is at most ``d + d_j`` from that of ball ``j``, whose radius is
        at most ``share`` of this. So ball ``j`` is no nearer than ``d_j - share * (d + d_j)``.
        """
        points, radii, n = z.numpy(), self._radii.numpy(), len(self._centres)
        nearest = np.empty(len(z), dtype=np.int64)
        rows = np.arange(len(z))
        for k in _NEIGHBOURS:
            length, near = tree.query(points[rows], k=min(k, n))
            gaps = length - radii[near]
            if own is not None:
                gaps[near == own.numpy()[rows, None]] = np.inf
            least = gaps.min(1)
            limit = least + _TIE * (np.abs(least) + self._largest)
            nearest[rows] = np.where(gaps <= limit[:, None], near, n).min(1)
            last = length[:, -1]
            rows = rows[last - np.minimum(self._share * (length[:, 0] + last), self._largest) <= limit]
            if len(rows) == 0 or k >= n:
                return torch.from_numpy(nearest)
        rest, index = torch.from_numpy(rows), torch.from_numpy(nearest)
        index[rest] = self._by_comparison(z[rest], None if own is None else own[rest])
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
    order = radii.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    least = rank.new_zeros(int(place.max()) + 1).scatter_reduce(0, place, rank, "amin", include_self=False)
    kept, position = order[least].sort()
    return kept, position.argsort()[place]


@dataclass(frozen=True)
class DataDomain:
    """The paper's domain: an outer region without the balls of radius ``epsilon`` around the data.

    Args:
        points: Centres of the balls, ``(n, dim)``. Repeated points share one ball.
        epsilon: Radius, one for all or one per point. None means ``fraction`` of the distance to the
            nearest other point.
        fraction: Radius as a share of that distance, below one half so that balls cannot overlap.
        outer: ``"ball"`` (any dimension), ``"box"``, ``"reflecting_box"`` (up to about 8 dimensions),
            ``"hull"`` (the paper's; up to 7 dimensions), or any `Domain`.
        margin: Factor by which a ball or box is larger than the data.
    """

    points: Float[Tensor, "n dim"]
    epsilon: float | Float[Tensor, " n"] | None = None
    fraction: float = 0.3
    outer: Outer | Domain = "ball"
    margin: float = 1.1
    _balls: NearestBalls = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not bool(self.points.isfinite().all()):
            raise ValueError("points must be finite, but hold NaN or infinity.")
        neighbour = nearest_other(self.points)
        radii = self.fraction * neighbour if self.epsilon is None else self.epsilon
        radii = torch.as_tensor(radii).to(self.points).expand(len(self.points)).contiguous()
        balls = NearestBalls(self.points, radii, float((radii / neighbour).max()))
        fits = (radii > 0) & radii.isfinite()
        if bool(fits.all()):
            fits = radii <= (neighbour / 2 if self.epsilon is None else balls.others())
        if not bool(fits.all()):
            raise ValueError(
                "epsilon must be above 0 and so small that balls do not overlap; the closest two points are "
                f"{float(neighbour.min()):.3g} apart."
            )
        object.__setattr__(self, "epsilon", radii)
        object.__setattr__(self, "outer", self._outer())
        object.__setattr__(self, "_balls", balls)
        # data lie on the facets of their own hull, up to rounding
        rounding = 16 * torch.finfo(self.points.dtype).eps * float(self.points.abs().max())
        if bool((self.domain.distance(self.points) < -max(1e-6 * float(radii.max()), rounding)).any()):
            raise ValueError("outer must contain all points. Enlarge it, or pass outer='ball'.")

    def _outer(self) -> Domain:
        if not isinstance(self.outer, str):
            return self.outer
        if self.outer == "hull":
            return Polytope.hull(self.points)
        if self.outer in ("box", "reflecting_box"):
            return Box.around(self.points, self.margin, "absorb" if self.outer == "box" else "reflect")
        if self.outer != "ball":
            raise ValueError(f"outer must be ball, box, reflecting_box, hull or a domain, not {self.outer}.")
        ball = Ball.around(self.points, self.margin)  # with room for the small balls
        reach = (self.points - ball.centre).norm(dim=1) + 1.5 * self.radii
        return Ball(ball.centre, max(ball.radius, float(reach.max())))

    @property
    def domain(self) -> Domain:
        """The outer domain as an object."""
        assert not isinstance(self.outer, str)
        return self.outer

    @property
    def radii(self) -> Float[Tensor, " n"]:
        """Radius of each ball."""
        assert isinstance(self.epsilon, Tensor)
        return self.epsilon

    def nearest_ball(
        self, z: Float[Tensor, "rows dim"]
    ) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
        """Return the distance to the nearest ball (negative inside it), and its number."""
        index = self._balls(z.to(self.points.device)).to(z.device)
        # float64 for any dtype of z: near a ball the difference cancels most digits
        offset = z.double() - self.points.to(z.device)[index].double()
        return (offset.norm(dim=1) - self.radii.to(z.device)[index].double()).to(z.dtype), index

    def distance(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the distance to the nearest ball or to the outer boundary."""
        return torch.minimum(self.nearest_ball(z)[0], self.domain.distance(z))

    def scaled_distance(
        self, z: Float[Tensor, "rows dim"], scale: Float[Tensor, " dim"]
    ) -> Float[Tensor, " rows"]:
        """Return the largest ``t`` known to keep ``z + t * scale * ball`` inside."""
        return torch.minimum(self.nearest_ball(z)[0] / scale.amax(), step_radius(self.domain, z, scale))

    def where(self, z: Float[Tensor, "rows dim"]) -> Int[Tensor, " rows"]:
        """Return the number of the ball that is nearer than the outer boundary, or `OUTER`."""
        gap, index = self.nearest_ball(z)
        return torch.where(gap <= self.domain.distance(z), index, OUTER)

    def project(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Return the nearest point of a ball's surface or of the outer boundary."""
        index = self.where(z)
        on_ball = (index != OUTER)[:, None]
        sphere = project_to_sphere(z, self.points.to(z)[index], self.radii.to(z)[index][:, None])
        return sphere if bool(on_ball.all()) else torch.where(on_ball, sphere, self.domain.project(z))

    def reflect(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Fold points back into the domain at reflecting walls."""
        return reflect(self.domain, z)
