"""The paper's domain, a region without a small ball around each data point, and whitened regions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica.landscape.domains import (
    Ball,
    Box,
    Domain,
    Polytope,
    check_domain,
    check_points,
    reflect,
    step_radius,
)
from elliptica.landscape.nearest import NearestBalls, distances, nearest_other

Outer = Literal["ball", "box", "reflecting_box", "hull"]

#: Label of walks that ended on the outer boundary (balls are numbered from 0).
OUTER = -1
#: Rows times centres whose distances are held at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class Whitened:
    """A domain in whitened coordinates ``w``, where ``z = centre + factor @ w``.

    The process is Brownian in ``w``, so the operator is ``1/2 tr(factor factor^T Hess u)`` in ``z``. Data
    with any covariance become isotropic. Distances, balls and exit times are those of ``w``.

    Attributes:
        inner: The domain in coordinates ``w``.
        centre: ``(dim,)``.
        factor: Invertible matrix ``(dim, dim)``, usually a Cholesky factor of the covariance.
    """

    inner: Domain
    centre: Float[Tensor, " dim"]
    factor: Float[Tensor, "dim dim"]

    @classmethod
    def ball(
        cls,
        points: Float[Tensor, "n dim"],
        margin: float = 1.1,
        ridge: float = 1e-3,
        epsilon: float | Tensor | None = None,
        fraction: float | None = None,
    ) -> Whitened:
        """Make a whitened ball around data: an ellipsoid along their covariance, in any dimension.

        Args:
            points: The data.
            margin: Factor on the radius.
            ridge: Share of the mean variance added to every direction, so that constant or
                dependent columns do no harm.
            epsilon: Radius of the balls around the data, in whitened units. None with ``fraction=None``
                means no balls.
            fraction: Radius as a share of the distance to the nearest neighbour.
        """
        check_points(points)
        checks.positive("ridge", ridge)
        centre = points.mean(0)
        deviation = (points - centre).double()
        covariance = deviation.T @ deviation / (len(points) - 1)
        covariance.diagonal().add_(ridge * covariance.diagonal().mean())
        factor = torch.linalg.cholesky(covariance).to(points)
        white = cls(Ball(torch.zeros_like(centre), 1.0), centre, factor)
        w = white.to_inner(points)
        inner: Domain = Ball.around(w, margin)
        if epsilon is not None or fraction is not None:
            inner = DataDomain(w, epsilon=epsilon, fraction=fraction or 0.3, outer=inner)
        return cls(inner, centre, factor)

    def to_inner(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Map points to whitened coordinates."""
        offset = (z - self.centre.to(z)).T
        return torch.linalg.solve(self.factor.to(z), offset).T

    def from_inner(self, w: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Map whitened coordinates to points."""
        return self.centre.to(w) + w @ self.factor.to(w).T


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
        check_points(self.points)
        neighbour = nearest_other(self.points)
        object.__setattr__(self, "epsilon", self._radii(neighbour))
        object.__setattr__(self, "outer", self._outer())
        share = float((self.radii / neighbour).max())
        object.__setattr__(self, "_balls", NearestBalls(self.points, self.radii, share))
        # data lie on the facets of their own hull, up to rounding
        rounding = 16 * torch.finfo(self.points.dtype).eps * float(self.points.abs().max())
        off = self.domain.distance(self.points) < -max(1e-6 * float(neighbour.max()), rounding)
        if bool(off.any()):
            rows = off.nonzero().flatten().tolist()
            raise ValueError(
                f"The outer domain does not contain the data: {len(rows)} of {len(self.points)} points lie "
                f"outside, e.g. rows {rows[:5]}. Enlarge it, or pass outer='ball'."
            )

    def _radii(self, neighbour: Tensor) -> Tensor:
        if self.epsilon is None:
            checks.positive("fraction", self.fraction)
            if self.fraction >= 0.5:
                raise ValueError(
                    f"fraction must be below 0.5, or balls overlap, but got {self.fraction}. Try 0.3."
                )
            return self.fraction * neighbour
        if isinstance(self.epsilon, Tensor):
            checks.tensor("epsilon", self.epsilon)
        else:
            checks.positive("epsilon", self.epsilon)
        radii = torch.as_tensor(self.epsilon, dtype=self.points.dtype, device=self.points.device)
        if radii.ndim > 1 or radii.numel() not in (1, len(self.points)):
            raise ValueError(
                f"epsilon must be one number, or one for each of the {len(self.points)} points, but has "
                f"shape {tuple(radii.shape)}."
            )
        radii = radii.expand(len(self.points))
        if not bool((radii > 0).all() and radii.isfinite().all()):
            raise ValueError(
                "Every value of epsilon must be finite and above 0. Use epsilon=None for a default."
            )
        if bool((neighbour < radii + radii.max()).any()) and self._overlap(radii):
            raise ValueError(
                f"Balls of radius epsilon={float(radii.max()):.3g} overlap: the closest two points are "
                f"{float(neighbour.min()):.3g} apart. Use epsilon below {float(neighbour.min()) / 2:.3g}, or "
                "epsilon=None (a fraction of each point's nearest-neighbour distance)."
            )
        return radii.contiguous()

    def _overlap(self, radii: Tensor) -> bool:
        rows = max(_CHUNK // len(self.points), 1)
        for first, row_radii in zip(self.points.split(rows), radii.split(rows), strict=True):
            distance = distances(first, self.points)
            if bool(((distance > 0) & (distance < row_radii[:, None] + radii)).any()):
                return True
        return False

    def _outer(self) -> Domain:
        if not isinstance(self.outer, str):
            check_domain(self.outer, "outer")
            return self.outer
        checks.choice("outer", self.outer, get_args(Outer))
        if self.outer == "ball":
            return self._ball()
        if self.outer == "hull":
            return Polytope.hull(self.points)
        wall: Literal["absorb", "reflect"] = "reflect" if self.outer == "reflecting_box" else "absorb"
        return Box.around(self.points, self.margin, wall)

    def _ball(self) -> Ball:
        """Return a ball that holds the points and, with the room that monopoles need, their balls."""
        ball = Ball.around(self.points, self.margin)
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
        centre, radius = self.points.to(z)[index], self.radii.to(z)[index][:, None]
        offset = z - centre
        length = offset.norm(dim=1, keepdim=True)
        axis = torch.zeros_like(offset[:1])
        axis[0, 0] = 1  # the centre itself moves along the first axis
        sphere = centre + radius * torch.where(
            length > 0, offset / length.clamp_min(torch.finfo(z.dtype).tiny), axis
        )
        if bool(on_ball.all()):
            return sphere
        return torch.where(on_ball, sphere, self.domain.project(z))

    def reflect(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Fold points back into the domain at reflecting walls."""
        return reflect(self.domain, z)
