"""Solve for the landscape around data in a ball without random walks: one charge per point, one linear solve.

The field of a charge that vanishes on the outer sphere is ``G(a, b) = |a - b|^(2-n) - I(a, b)^(2-n)``,
``I^2 = |a|^2 |b|^2 / R^2 + R^2 - 2 a . b`` (positions from the centre). A sum of such fields is exactly
harmonic and exact on the outer sphere. The charges are chosen to match the value of each ball at its centre.
The mismatch on the balls bounds the error everywhere (maximum principle), and has an analytic bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elliptica._utils import checks
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball

#: Largest number of balls; the solve takes N^2 memory and N^3 time.
MAX_BALLS = 5000
#: Rows times balls that are held at once.
_CHUNK = 2**20


@dataclass(frozen=True)
class Monopoles:
    """Approximate solution of Laplace's equation around data in a ball, from three dimensions up.

    Use it for ``DataDomain(points, outer="ball")`` when each ball has one value. It answers thousands of
    queries at the cost of a few walks. The closer the balls, the larger its error; see `bound`.
    In high dimension its weights become a softmax over distances, almost a nearest-neighbour rule.

    Attributes:
        domain: Balls around data in an outer ball.
        values: Value of each ball.
        outer: Value at each centre from the outer boundary values alone (no balls); None for zero.
        mismatch: Bound on the error of the solution on the surface of each ball.
    """

    domain: DataDomain
    values: Float[Tensor, " n"]
    outer: Float[Tensor, " n"] | None
    mismatch: Float[Tensor, " n"]
    _kept: Bool[Tensor, " n"]
    _charges: Float[Tensor, " balls"]
    _unit: Float[Tensor, " balls"]
    _given: Float[Tensor, " balls"]
    _lu: tuple[Tensor, Tensor]

    @classmethod
    def fit(
        cls,
        domain: DataDomain,
        values: Float[Tensor, " n"],
        outer: Float[Tensor, " n"] | None = None,
        outer_range: float = 0.0,
    ) -> Monopoles:
        """Solve for the charges.

        Args:
            domain: Domain whose outer domain is a ball that holds all small balls.
            values: Value of each ball. Of balls around repeated points, the first counts.
            outer: Harmonic extension of the outer data, at the centres; None if the outer value is 0.
            outer_range: Largest minus least outer value, for the bound.
        """
        sphere = check_domain(domain)
        if values.shape != domain.points.shape[:1]:
            raise ValueError(
                f"values must have one value per data point, ({len(domain.points)},), but have shape "
                f"{tuple(values.shape)}."
            )
        checks.finite("values", values)
        values = values.to(domain.points.device)
        kept = domain.nearest_ball(domain.points)[1] == torch.arange(len(values), device=values.device)
        field = _Field(domain, sphere, kept)
        matrix = field.log_kernel(field.centres, own=True).exp()
        lu = torch.linalg.lu_factor(matrix)
        level = values.double() - (0 if outer is None else outer.double())
        sides = torch.stack([level[kept], torch.ones_like(level[kept]), values.double()[kept]], 1)
        charges, unit, given = torch.linalg.lu_solve(*lu, sides).T
        missed = field.variation(charges) + (matrix @ charges - level[kept]).abs()
        if outer_range:
            missed = missed + field.outer_variation(outer_range)
        mismatch = torch.zeros_like(level)
        mismatch[kept] = missed
        return cls(domain, values, outer, mismatch, kept, charges, unit, given, (lu[0], lu[1]))

    @cached_property
    def _field(self) -> _Field:
        return _Field(self.domain, check_domain(self.domain), self._kept)

    def _sums(self, z: Tensor, charges: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field of charges as a log-scale per query and a sum of order one."""
        tops, sums = [], []
        for part in self._field.split(z):
            log_kernel = self._field.log_kernel(part)
            top = log_kernel.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).min)
            tops.append(top[:, 0])
            sums.append((log_kernel - top).exp() @ charges)
        return torch.cat(tops), torch.cat(sums)

    def value(
        self, z: Float[Tensor, "rows dim"], outer: Float[Tensor, " rows"] | None = None
    ) -> Float[Tensor, " rows"]:
        """Return the landscape at points; ``outer`` is the value there from the outer boundary alone."""
        top, sums = self._sums(z, self._charges[:, None])
        u = top.exp() * sums[:, 0] + (0 if outer is None else outer.double())
        gap, ball = self.domain.nearest_ball(z)
        return torch.where(gap <= 0, self.values.to(u)[ball], u).to(z.dtype)

    def log_p_hit(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the log-probability to hit a ball before the outer sphere; finite in any dimension."""
        top, sums = self._sums(z, self._unit[:, None])
        inside = self.domain.nearest_ball(z)[0] <= 0
        log_p = top + sums[:, 0].clamp_min(torch.finfo(torch.float64).tiny).log()
        return torch.where(inside, 0.0, log_p.clamp_max(0)).to(z.dtype)

    def p_hit(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the probability to hit a ball before the outer sphere."""
        return self.log_p_hit(z).exp()

    def conditional(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the mean value of the ball that is hit, given that one is hit."""
        _, sums = self._sums(z, torch.stack([self._given, self._unit], 1))
        gap, ball = self.domain.nearest_ball(z)
        return torch.where(gap <= 0, self.values.to(sums)[ball], sums[:, 0] / sums[:, 1]).to(z.dtype)

    def hitting(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows n"]:
        """Return the probability to hit each ball first, from outside (approximate; may be below 0)."""
        parts = [
            torch.linalg.lu_solve(*self._lu, self._field.log_kernel(part).exp(), left=False)
            for part in self._field.split(z)
        ]
        shares = z.new_zeros(len(z), len(self.values))
        shares[:, self._kept] = torch.cat(parts).to(z.dtype)
        return shares

    def bound(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return a proved bound on the error of `value`, given exact ``outer`` values.

        The error is harmonic, zero outside and at most ``mismatch`` on the balls; ball ``j`` is hit with
        probability at most ``(eps_j / r_j)^(n-2)``.
        """
        return self._field.reached(z, self.mismatch[self._kept])


class _Field:
    """Kernels of the charges in float64, each scaled to one on the surface of its own ball."""

    def __init__(self, domain: DataDomain, sphere: Ball, kept: Tensor) -> None:
        self.origin = sphere.centre.double().to(domain.points.device)
        self.centres = domain.points[kept].double()
        self.local = self.centres - self.origin
        self.log_eps = domain.radii[kept].double().log()
        self.radius = sphere.radius
        self.power = domain.points.shape[1] - 2

    def split(self, z: Tensor) -> tuple[Tensor, ...]:
        return z.to(self.centres).split(max(_CHUNK // len(self.centres), 1))

    def image(self, z: Tensor) -> Tensor:
        """``I(z, c_k)``, ``(rows, balls)``."""
        a, b = z - self.origin, self.local
        lengths = a.square().sum(1)[:, None] * b.square().sum(1) / self.radius**2
        return (lengths + self.radius**2 - 2 * a @ b.T).clamp_min(0).sqrt()

    def log_direct(self, z: Tensor) -> Tensor:
        """Logarithm of ``(eps_k / r_k)^(n-2)``."""
        r = torch.cdist(z, self.centres, compute_mode="donot_use_mm_for_euclid_dist")
        return self.power * (self.log_eps - r.log())

    def log_kernel(self, z: Tensor, *, own: bool = False) -> Tensor:
        """Logarithm of the kernel; with ``own`` the rows are the centres, their own charge at ``eps``."""
        direct = self.log_direct(z)
        if own:
            direct = direct.fill_diagonal_(0.0)
        image = self.power * (self.log_eps - self.image(z).log())
        return direct + torch.log1p(-(image - direct).clamp_max(0).exp())

    def reached(self, z: Tensor, mismatch: Tensor) -> Tensor:
        """Bound a harmonic function at points that is at most ``mismatch`` on the balls and zero outside."""
        direct = [self.log_direct(part) for part in self.split(z)]
        total = torch.cat([part.clamp_max(0).exp() @ mismatch for part in direct])
        in_ball = torch.cat([(part >= 0).any(1) for part in direct])
        return torch.where(in_ball, 0.0, total.clamp_max(float(mismatch.max()))).to(z.dtype)

    def variation(self, charges: Tensor) -> Tensor:
        """Bound the change of the field from the centre of each ball to its surface, without its own charge.

        The distance to another centre shrinks by at most ``eps_j``, ``I(., c_k)`` by ``eps_j |c_k| / R``;
        as ``s^(2-n)`` is convex, growing distances change it less.
        """
        eps = self.log_eps.exp()[:, None]
        r = torch.cdist(self.centres, self.centres, compute_mode="donot_use_mm_for_euclid_dist")
        direct = self._power(r - eps) - self._power(r)
        direct = direct.fill_diagonal_(0.0)
        image = self.image(self.centres)
        nearer = image - eps * self.local.norm(dim=1) / self.radius
        return (direct + self._power(nearer) - self._power(image)) @ charges.abs()

    def _power(self, distance: Tensor) -> Tensor:
        tiny = torch.finfo(distance.dtype).tiny
        return (self.power * (self.log_eps - distance.clamp_min(tiny).log())).exp()

    def outer_variation(self, outer_range: float) -> Tensor:
        """Bound the same for the extension of the outer values, by the gradient bound for harmonic functions.

        ``|grad h(z)| <= n E|xi_1| (range / 2) / d(z)``, ``xi`` uniform on the unit sphere, ``d`` the distance
        to the outer sphere; integrated from the centre of the ball to its surface.
        """
        n = self.power + 2
        first = math.exp(math.lgamma(n / 2) - math.lgamma((n + 1) / 2)) / math.sqrt(math.pi)
        gap = self.radius - self.local.norm(dim=1)
        path = -torch.log1p(-self.log_eps.exp() / gap)
        return outer_range * (n * first / 2 * path).clamp_max(1.0)


def relative_bound(
    domain: DataDomain, z: Float[Tensor, "rows dim"], outer_share: float
) -> Float[Tensor, " rows"]:
    """Predict `Monopoles.bound` without a solve, in units of the range of all values.

    Args:
        domain: Balls in an outer ball.
        z: Queries.
        outer_share: Range of the outer values in the same units.
    """
    kept = torch.ones(len(domain.points), dtype=torch.bool, device=domain.points.device)
    field = _Field(domain, check_domain(domain), kept)
    ones = torch.ones_like(field.log_eps)
    return field.reached(z, field.variation(ones) + field.outer_variation(outer_share))


def check_domain(domain: DataDomain) -> Ball:
    """Return the outer ball of a domain; raise if this solver cannot treat it."""
    sphere = domain.domain
    dim = domain.points.shape[1]
    if not isinstance(sphere, Ball) or dim < 3:
        raise ValueError(
            "The Green-kernel solver needs a ball as outer domain and at least 3 dimensions, but got a "
            f'{type(sphere).__name__} in {dim}. Use solver="spheres".'
        )
    if len(domain.points) > MAX_BALLS:
        raise ValueError(
            f"The Green-kernel solver takes up to {MAX_BALLS} points, but got {len(domain.points)} (its "
            'matrix grows with the square). Use solver="spheres", or a subset of the points.'
        )
    gap = sphere.distance(domain.points) - domain.radii
    if not bool((gap > 0).all()):
        raise ValueError(
            f"{int((gap <= 0).sum())} of {len(gap)} balls cross the outer sphere. Use a larger "
            'margin, smaller balls, or solver="spheres".'
        )
    return sphere
