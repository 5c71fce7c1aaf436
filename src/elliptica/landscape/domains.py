"""Regions of the data space on which the landscape is defined: balls, boxes and polytopes.

A domain is any object with ``distance(z)`` and ``project(z)``, so you can write your own. Two more
methods are used if present: ``reflect(z)`` (walls that reflect walks) and
``scaled_distance(z, scale)`` (a sharper step when coordinates diffuse at different speeds).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.extras import import_extra

#: Above this dimension a convex hull has too many facets.
MAX_HULL_DIM = 7

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
    """Ball in any dimension. It is the only domain whose exit law is sampled in one step.

    Attributes:
        centre: Its centre, ``(dim,)``.
        radius: Above zero.
    """

    centre: Float[Tensor, " dim"]
    radius: float

    def __post_init__(self) -> None:
        _check_vector("Ball.centre", self.centre)
        checks.positive("Ball.radius", self.radius)

    @classmethod
    def around(cls, points: Float[Tensor, "n dim"], margin: float = 1.1) -> Ball:
        """Make the smallest ball around the mean that holds all points, with its radius times ``margin``."""
        check_points(points)
        _check_margin(margin)
        centre = points.mean(0)
        return cls(centre, margin * float((points - centre).norm(dim=1).max()))

    def distance(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the distance to the sphere."""
        return self.radius - (z - self.centre.to(z)).norm(dim=1)

    def project(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Move points outwards along the radius; the centre moves along the first axis."""
        offset = z - self.centre.to(z)
        length = offset.norm(dim=1, keepdim=True)
        axis = torch.zeros_like(offset[:1])
        axis[0, 0] = 1
        direction = torch.where(length > 0, offset / length.clamp_min(torch.finfo(z.dtype).tiny), axis)
        return self.centre.to(z) + self.radius * direction


@dataclass(frozen=True)
class Box:
    """Axis-parallel box whose walls absorb walks or reflect them.

    Walks never end at reflecting walls, so such a box needs balls around the data (`DataDomain`). Then
    the bound of Proposition 1 holds as stated in the paper. Walks take about ``10 * dim`` steps between
    absorbing walls. Between reflecting walls the number doubles with each dimension (use ``dim <= 8``).

    Attributes:
        low: Lower corner, ``(dim,)``.
        high: Upper corner, ``(dim,)``.
        wall: ``"absorb"`` or ``"reflect"``.
    """

    low: Float[Tensor, " dim"]
    high: Float[Tensor, " dim"]
    wall: Wall = "absorb"

    def __post_init__(self) -> None:
        _check_vector("Box.low", self.low)
        _check_vector("Box.high", self.high)
        checks.choice("Box.wall", self.wall, ("absorb", "reflect"))
        if self.low.shape != self.high.shape or not bool((self.low < self.high).all()):
            raise ValueError(
                "Every value of Box.low must be below the value of Box.high, but got shapes "
                f"{tuple(self.low.shape)} and {tuple(self.high.shape)}, or a side of length 0. Drop "
                "constant columns, or widen the box."
            )

    @classmethod
    def around(cls, points: Float[Tensor, "n dim"], margin: float = 1.1, wall: Wall = "absorb") -> Box:
        """Make the smallest box that holds all points, with each side times ``margin``."""
        check_points(points)
        _check_margin(margin)
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
    """Bounded intersection of half-spaces ``normals @ z <= offsets``, for a few dimensions.

    Attributes:
        normals: One row per facet, of any positive length; normalised to length one.
        offsets: One value per facet.
    """

    normals: Float[Tensor, "facets dim"]
    offsets: Float[Tensor, " facets"]

    def __post_init__(self) -> None:
        checks.floating("Polytope.normals", self.normals)
        checks.floating("Polytope.offsets", self.offsets)
        if self.normals.ndim != 2 or self.offsets.shape != self.normals.shape[:1]:
            raise ValueError(
                "Polytope needs normals (facets, dim) and offsets (facets,), but got "
                f"{tuple(self.normals.shape)} and {tuple(self.offsets.shape)}."
            )
        checks.finite("Polytope.normals", self.normals)
        checks.finite("Polytope.offsets", self.offsets)
        length = self.normals.norm(dim=1)
        if not bool((length > 0).all()):
            raise ValueError("Every row of Polytope.normals must be a direction, but one is zero. Remove it.")
        object.__setattr__(self, "normals", self.normals / length[:, None])
        object.__setattr__(self, "offsets", self.offsets / length)
        self._check_bounded()

    def _check_bounded(self) -> None:
        """Raise if the region is unbounded or empty."""
        optimize: Any = _scipy("optimize")
        a, b = self.normals.double().cpu().numpy(), self.offsets.double().cpu().numpy()
        b = b / (abs(b).max(initial=0.0) or 1.0)  # tolerances of the solver are absolute
        dim = a.shape[1]
        # the largest ball inside: maximise t subject to a z + t <= b
        cost = [0.0] * dim + [-1.0]
        rows = torch.cat([self.normals.double().cpu(), torch.ones(len(a), 1, dtype=torch.float64)], 1).numpy()
        inside = optimize.linprog(cost, A_ub=rows, b_ub=b, bounds=[(None, None)] * (dim + 1))
        if inside.status != 0 or inside.x[-1] <= 0:
            raise ValueError(
                "This polytope is empty, flat or unbounded: no largest ball fits inside. Check the signs "
                "(the inside is normals @ z <= offsets), or use Polytope.hull(points)."
            )
        for sign in (1.0, -1.0):
            for axis in range(dim):
                cost = [sign if i == axis else 0.0 for i in range(dim)]
                if optimize.linprog(cost, A_ub=a, b_ub=b, bounds=[(None, None)] * dim).status != 0:
                    raise ValueError(
                        f"This polytope is unbounded along axis {axis}. Add half-spaces that close it."
                    )

    @classmethod
    def hull(cls, points: Float[Tensor, "n dim"]) -> Polytope:
        """Make the convex hull of points, the paper's outer boundary; up to seven dimensions."""
        check_points(points)
        n, dim = points.shape
        if dim > MAX_HULL_DIM:
            raise ValueError(
                f"A convex hull in {dim} dimensions is not feasible (limit {MAX_HULL_DIM}: the number of "
                "facets explodes, and new points would lie outside it anyway). Use Ball.around(points), "
                'Whitened.ball(points), or DataDomain(points, outer="ball").'
            )
        if n <= dim:
            raise ValueError(
                f"A hull in {dim} dimensions needs at least {dim + 1} points, but got {n}. Pass more."
            )
        if dim == 1:
            return cls(torch.tensor([[-1.0], [1.0]]).to(points), torch.cat([-points.amin(0), points.amax(0)]))
        spatial: Any = _scipy("spatial")
        try:
            equations = spatial.ConvexHull(points.double().cpu().numpy()).equations
        except spatial.QhullError as error:
            raise ValueError(
                "The points have no full-dimensional hull (they lie in a plane, or close to one). Use "
                "Ball.around(points), or reduce the dimension first, e.g. by PCA."
            ) from error
        facets = torch.as_tensor(equations).to(points)
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


def check_domain(value: object, name: str = "domain") -> None:
    """Raise unless ``value`` is a region: an object, not a class, with the two methods."""
    if not isinstance(value, Domain) or isinstance(value, type):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(
            f"{name} must have the methods distance(z) and project(z), but got {got}. Use e.g. "
            "Ball.around(points) or DataDomain(points)."
        )


def inside(domain: Domain, z: Float[Tensor, "rows dim"]) -> Bool[Tensor, " rows"]:
    """Return which points a walk may start from: those inside (balls around data count as inside)."""
    outer = getattr(domain, "outer", domain)
    within = outer.distance(z) > 0
    if hasattr(domain, "nearest_ball") and hasattr(
        domain, "radii"
    ):  # a data point may itself lie on the outer boundary
        slack = outer.distance(z) > -1e-6 * float(domain.radii.max())
        within = within | (slack & (domain.nearest_ball(z)[0] <= 0))
    return within


def reflect(domain: Domain, z: Tensor) -> Tensor:
    """Fold points back at reflecting walls, if the domain has any."""
    return domain.reflect(z) if hasattr(domain, "reflect") else z


def step_radius(domain: Domain, z: Tensor, scale: Tensor) -> Tensor:
    """Return the largest ``t`` known to keep ``z + t * scale * ball`` inside (scale is ``sqrt(a)``)."""
    if hasattr(domain, "scaled_distance"):
        return domain.scaled_distance(z, scale)
    return domain.distance(z) / scale.amax()


def check_points(points: Tensor) -> None:
    """Raise unless there are at least two finite, distinct rows."""
    checks.floating("points", points)
    if points.ndim != 2:
        raise ValueError(f"points must have shape (n, dim), but have {tuple(points.shape)}. Use .flatten(1).")
    if len(points) < 2:
        raise ValueError(f"A domain around data needs at least two points, but got {len(points)}. Pass more.")
    checks.finite("points", points)
    if bool((points == points[0]).all()):
        raise ValueError("All points are the same, so there is no region around them. Pass distinct points.")


def _check_vector(name: str, value: Tensor) -> None:
    checks.floating(name, value)
    if value.ndim != 1 or len(value) == 0:
        raise ValueError(f"{name} must be a vector of shape (dim,), but has shape {tuple(value.shape)}.")
    checks.finite(name, value)


def _check_margin(margin: float) -> None:
    checks.positive("margin", margin)
    if margin < 1:
        raise ValueError(f"margin must be at least 1 to keep the data inside, but got {margin}. Try 1.1.")


def _scipy(module: str) -> Any:
    return import_extra("A polytope (Ball and Box work without it)", "lab", f"scipy.{module}")
