"""Regions of the data space on which the landscape is defined: balls, boxes and polytopes.

A domain is any object with ``distance(z)`` and ``project(z)``, so you can write your own. Three more methods
are used if present: ``reflect(z)`` (walls that reflect walks), ``where(z)`` (which part of the boundary is
nearest) and ``scaled_distance(z, scale)`` (a sharper step when coordinates diffuse at different speeds).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils.extras import import_extra

#: Above this dimension a convex hull has too many facets.
MAX_HULL_DIM = 7
#: Label of walks that ended on the outer boundary (balls are numbered from 0).
OUTER = -1

Wall = Literal["absorb", "reflect"]


@runtime_checkable
class Domain(Protocol):
    """Interface of a region; both methods take rows ``(n, dim)``."""

    def distance(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the distance to the absorbing boundary, or a lower bound of it; negative outside."""
        ...

    def project(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Return a nearest point of the absorbing boundary."""
        ...


@dataclass(frozen=True)
class Ball:
    """Ball in any dimension. It is the only domain whose exit law is sampled in one step."""

    centre: Float[Tensor, " dim"]
    radius: float

    @classmethod
    def around(cls, points: Float[Tensor, "n dim"], margin: float = 1.1) -> Ball:
        """Make the smallest ball around the mean that holds all points, with its radius times ``margin``."""
        centre = points.mean(0)
        return cls(centre, margin * float((points - centre).norm(dim=1).max()))

    def distance(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the distance to the sphere."""
        return self.radius - (z - self.centre.to(z)).norm(dim=1)

    def project(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Move points outwards along the radius; the centre moves along the first axis."""
        return project_to_sphere(z, self.centre.to(z), self.radius)


@dataclass(frozen=True)
class Box:
    """Axis-parallel box whose walls absorb walks or reflect them.

    Walks never end at reflecting walls, so such a box needs balls around the data (`DataDomain`). Walks take
    about ``10 * dim`` steps between absorbing walls; between reflecting walls the number doubles with each
    dimension (use ``dim <= 8``).
    """

    low: Float[Tensor, " dim"]  # lower corner
    high: Float[Tensor, " dim"]  # upper corner
    wall: Wall = "absorb"

    def __post_init__(self) -> None:
        if not bool((self.low < self.high).all()):
            raise ValueError("Box.low must be below Box.high on every side. Drop constant columns.")

    @classmethod
    def around(cls, points: Float[Tensor, "n dim"], margin: float = 1.1, wall: Wall = "absorb") -> Box:
        """Make the smallest box that holds all points, with each side times ``margin``."""
        low, high = points.amin(0), points.amax(0)
        centre, half = (low + high) / 2, margin * (high - low) / 2
        return cls(centre - half, centre + half, wall)

    def _gaps(self, z: Tensor) -> Tensor:
        """Return the distance to each lower and each upper wall, ``(rows, 2 * dim)``."""
        return torch.cat([z - self.low.to(z), self.high.to(z) - z], dim=1)

    def distance(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the distance to the nearest absorbing wall; infinite between reflecting walls."""
        gap = self._gaps(z).amin(1)
        return gap if self.wall == "absorb" else torch.where(gap >= 0, torch.inf, gap)

    def scaled_distance(
        self, z: Float[Tensor, "rows dim"], scale: Float[Tensor, " dim"]
    ) -> Float[Tensor, " rows"]:
        """Largest ``t`` such that ``z + t * scale * ball`` stays inside."""
        if self.wall == "reflect":
            return self.distance(z)
        return (self._gaps(z) / scale.repeat(2)).amin(1)

    def project(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Move points straight to the nearest wall."""
        nearest = self._gaps(z).argmin(1, keepdim=True)
        walls = torch.cat([self.low, self.high]).to(z)[nearest]
        return z.scatter(1, nearest % z.shape[1], walls)

    def reflect(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Fold points that passed a reflecting wall back into the box."""
        if self.wall == "absorb":
            return z
        low, high = self.low.to(z), self.high.to(z)
        folded = high - (torch.remainder(z - low, 2 * (high - low)) - (high - low)).abs()
        return folded.clamp(low, high)  # rounding must not put a walk behind the wall


@dataclass(frozen=True)
class Polytope:
    """Intersection of half-spaces ``normals @ z <= offsets``, for a few dimensions.

    Attributes:
        normals: One row per facet, of any positive length; normalised to length one.
        offsets: One value per facet.
    """

    normals: Float[Tensor, "facets dim"]
    offsets: Float[Tensor, " facets"]

    def __post_init__(self) -> None:
        length = self.normals.norm(dim=1)
        object.__setattr__(self, "normals", self.normals / length[:, None])
        object.__setattr__(self, "offsets", self.offsets / length)

    @classmethod
    def hull(cls, points: Float[Tensor, "n dim"]) -> Polytope:
        """Make the convex hull of points, the paper's outer boundary; up to seven dimensions."""
        dim = points.shape[1]
        if dim > MAX_HULL_DIM:
            raise ValueError(f"A hull of points in {dim} dimensions has too many facets. Use a ball.")
        if dim == 1:
            return cls(torch.tensor([[-1.0], [1.0]]).to(points), torch.cat([-points.amin(0), points.amax(0)]))
        spatial: Any = import_extra("A convex hull", "lab", "scipy.spatial")
        facets = torch.as_tensor(spatial.ConvexHull(points.double().cpu().numpy()).equations).to(points)
        return cls(facets[:, :-1], -facets[:, -1])

    def distance(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the distance to the nearest facet (outside: minus the largest excess)."""
        return self._nearest(z)[0]

    def scaled_distance(
        self, z: Float[Tensor, "rows dim"], scale: Float[Tensor, " dim"]
    ) -> Float[Tensor, " rows"]:
        """Largest ``t`` such that ``z + t * scale * ball`` stays inside."""
        return self._nearest(z, (self.normals.to(z) * scale).norm(dim=1))[0]

    def project(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Move points along the normal of the nearest facet (exact from inside)."""
        gap, facet = self._nearest(z)
        return z + gap[:, None] * self.normals.to(z)[facet]

    def _nearest(self, z: Tensor, length: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the least gap to a facet, in units of ``length``, and its number, in chunks of rows."""
        a, b = self.normals.to(z), self.offsets.to(z)
        parts = [((b - rows @ a.T) / length).min(1) for rows in z.split(max(2**21 // len(a), 1))]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def project_to_sphere(z: Tensor, centre: Tensor, radius: float | Tensor) -> Tensor:
    """Move points along the radius to spheres; a centre itself moves along the first axis."""
    offset = z - centre
    length = offset.norm(dim=1, keepdim=True)
    axis = torch.zeros_like(offset[:1])
    axis[0, 0] = 1
    return centre + radius * torch.where(length > 0, offset / length.clamp_min(1e-38), axis)


def inside(domain: Domain, z: Float[Tensor, "rows dim"]) -> Bool[Tensor, " rows"]:
    """Return which points a walk may start from: those inside (balls around data count as inside)."""
    outer = getattr(domain, "outer", domain)
    within = outer.distance(z) > 0
    if hasattr(domain, "nearest_ball") and hasattr(domain, "radii"):  # a datum may lie on the outer boundary
        slack = outer.distance(z) > -1e-6 * float(domain.radii.max())
        within = within | (slack & (domain.nearest_ball(z)[0] <= 0))
    return within


def reflects(domain: Domain) -> bool:
    """Return whether the outer walls reflect walks."""
    outer = getattr(domain, "outer", domain)
    return getattr(outer, "wall", "reflect" if hasattr(outer, "reflect") else "absorb") == "reflect"


def reflect(domain: Domain, z: Tensor) -> Tensor:
    """Fold points back at reflecting walls, if the domain has any."""
    return domain.reflect(z) if hasattr(domain, "reflect") else z


def where(domain: Domain, z: Tensor) -> Int[Tensor, " rows"]:
    """Return the number of the ball at which walks ended, or `OUTER`."""
    return domain.where(z) if hasattr(domain, "where") else torch.full_like(z[:, 0], OUTER, dtype=torch.long)


def step_radius(domain: Domain, z: Tensor, scale: Tensor) -> Tensor:
    """Return the largest ``t`` known to keep ``z + t * scale * ball`` inside (scale is ``sqrt(a)``)."""
    if hasattr(domain, "scaled_distance"):
        return domain.scaled_distance(z, scale)
    return domain.distance(z) / scale.amax()
