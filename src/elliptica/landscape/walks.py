"""Walks to the boundary: from sphere to sphere, or in small steps of time (`euler_maruyama`).

A walk on spheres jumps from the centre of a ball inside the domain to its surface, until the boundary.

There is no time step and so no time-stepping error. The only bias comes from the shell in which a walk ends.
Coordinates are divided by ``sqrt(a)``, so that every step is that of Brownian motion. A killing rate ``c``
and a drift ``mu`` that is constant on the ball are exact too. With ``k^2 = 2 c + |mu|^2``, the step ``delta``

    ``u(z) = E[exp(mu . delta) u(z + delta)] / Phi(k t) + E[integral of the source in the ball]``,

uniform on the sphere of radius ``t`` (``Phi``: `elliptica.landscape.exits`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elliptica._utils import random
from elliptica.landscape.domains import Domain, reflect, step_radius, where
from elliptica.landscape.estimate import UNFINISHED, Walks
from elliptica.landscape.exits import log_phi, sample_drifted_direction, screened_green_ratio
from elliptica.landscape.operator import Operator

#: Finished walks are removed from the working set once they are this share of it.
_COMPACT = 0.25

DriftMode = Literal["weight", "sample"]


def walk_on_spheres(
    domain: Domain,
    start: Float[Tensor, "walks dim"],
    operator: Operator,
    *,
    shell: float,
    max_steps: int = 10_000,
    drift: DriftMode = "sample",
    max_radius: float | None = None,
    generator: torch.Generator | None,
) -> Walks:
    """Follow one walk from each row of ``start`` to the boundary.

    ``u(z)`` is the mean of ``exp(log_weight) * g(end) + integral`` over walks from ``z``. A walk that starts
    in a ball around a data point ends there at once. Spheres may reach through reflecting walls; the landing
    point is folded back. ``time`` is its mean given the radii, ``sum t^2 / dim``, without drift and killing.

    Args:
        domain: Domain of the walks. Its ``where`` method, if any, labels the ends.
        start: Points of the domain.
        operator: Coefficients. The diffusion and the absorption must be constant, the diffusion no matrix.
            A drift function is frozen at the centre of each sphere (see ``max_radius``).
        shell: A walk ends when it is nearer to the boundary than this, and is projected to it.
        max_steps: Walks that need more keep their position and get the label `UNFINISHED`.
        drift: ``"sample"`` (walks follow the drift) or ``"weight"`` (they ignore it and carry weights, paper:
            appendix C.1); see `elliptica.estimate_landscape`.
        max_radius: Largest radius of a sphere, in units of the points; small if the drift is a function.
        generator: Source of randomness; None is torch's global one.
    """
    _check(domain, start, shell, drift)
    scale = operator.scale(start)
    even = bool((scale == scale[0]).all())
    step = _Step(domain, operator, scale[:1] if even else scale, drift, max_radius, generator)
    live = _Live.begin(start)
    parts: list[_Live] = []
    for taken in range(max_steps + 1):
        distance = domain.distance(live.z)
        live.done |= distance < shell
        n_done = int(live.done.sum())
        if n_done >= max(_COMPACT * len(live.z), 1):
            parts.append(live.select(live.done))
            going = ~live.done
            live, distance = live.select(going), distance[going]
        if taken == max_steps or len(live.z) == 0:
            break
        step(live, distance)
    return _gather(domain, [*parts, live])


@dataclass
class _Live:
    """State of a set of walks; finished ones stay until enough have finished."""

    row: Tensor
    z: Tensor
    log_weight: Tensor
    integral: Tensor
    time: Tensor
    steps: Tensor
    done: Tensor

    @classmethod
    def begin(cls, start: Tensor) -> _Live:
        row = torch.arange(len(start), device=start.device)
        zero = start.new_zeros(len(start))
        return cls(row, start, zero, zero, zero, torch.zeros_like(row), row < 0)

    def select(self, rows: Tensor) -> _Live:
        return _Live(*(value[rows] for value in vars(self).values()))


@dataclass(frozen=True)
class _Step:
    """One step of every walk of a set; ``scale`` has one value if all coordinates share it."""

    domain: Domain
    operator: Operator
    scale: Tensor
    drift: DriftMode
    max_radius: float | None
    generator: torch.Generator | None

    def __call__(self, live: _Live, distance: Tensor) -> None:
        z, dim = live.z, live.z.shape[1]
        radius = self._radius(live, distance)
        mu = self.operator.drift_at(z)
        push = None if mu is None else (mu / self.scale).expand_as(z)  # drift in scaled coordinates
        if self.operator.has_source:
            live.integral = live.integral + live.log_weight.exp() * self._source(z, radius, push)
        if push is not None and self.drift == "sample":
            direction = sample_drifted_direction(push * radius[:, None], generator=self.generator)
        else:
            direction = self._direction(z)
        self._weigh(live, radius, push, direction)
        live.z = reflect(self.domain, torch.addcmul(z, direction, radius[:, None] * self.scale))
        live.time = live.time + radius.square() / dim
        live.steps = live.steps + ~live.done

    def _radius(self, live: _Live, distance: Tensor) -> Tensor:
        """Return the radius in scaled coordinates; zero for finished walks, so that they do not move."""
        is_even = len(self.scale) == 1
        radius = distance / self.scale if is_even else step_radius(self.domain, live.z, self.scale)
        if self.max_radius is not None:
            radius = radius.clamp_max(self.max_radius / float(self.scale.amax()))
        return torch.where(live.done, 0.0, radius)

    def _direction(self, z: Tensor) -> Tensor:
        normal = random.draw_normal(z.shape, dtype=z.dtype, device=z.device, generator=self.generator)
        return normal.div_(normal.norm(dim=1, keepdim=True))

    def _rate(self, push: Tensor | None, radius: Tensor) -> Tensor:
        """Return ``k``, one per walk."""
        squared = torch.full_like(radius, 2 * self._absorption)
        return (squared if push is None else squared + push.square().sum(1)).sqrt()

    @property
    def _absorption(self) -> float:
        assert not callable(self.operator.absorption)
        return self.operator.absorption

    def _weigh(self, live: _Live, radius: Tensor, push: Tensor | None, direction: Tensor) -> None:
        """Multiply by the survival within the sphere and by the change of measure of the step."""
        if not self._absorption and (push is None or self.drift == "sample"):
            return
        dim = direction.shape[1]
        gain = -log_phi(self._rate(push, radius) * radius, dim)
        if push is not None and self.drift == "weight":
            gain = gain + radius * (push * direction).sum(1)
        elif push is not None:  # the drawn direction already has the density exp(mu . delta) / Phi
            gain = gain + log_phi(push.norm(dim=1) * radius, dim)
        live.log_weight = live.log_weight + gain

    def _source(self, z: Tensor, radius: Tensor, push: Tensor | None) -> Tensor:
        """Return the source's integral up to the sphere: exact for constants, else from one random point."""
        dim = z.shape[1]
        time = radius.square() / dim
        lower = push is not None or self._absorption > 0
        if not callable(self.operator.source) and push is None:
            if lower:
                time = -torch.expm1(-log_phi(self._rate(push, radius) * radius, dim)) / self._absorption
            return self.operator.source_at(z) * time
        # the place has the density of Green's function without drift and killing; the ratio corrects it
        first, second = random.draw_uniform((2, len(z)), device=z.device, generator=self.generator).to(z)
        rho = radius * first.sqrt() * second ** (1 / dim)
        offset = rho[:, None] * self._direction(z)
        if lower:
            time = time * screened_green_ratio(rho, radius, self._rate(push, radius), dim)
        if push is not None:
            time = time * (push * offset).sum(1).exp()
        return self.operator.source_at(reflect(self.domain, z + self.scale * offset)) * time


def _gather(domain: Domain, parts: list[_Live]) -> Walks:
    """Collect all walks in the order of their starts; project finished ones to the boundary."""
    live = _Live(*(torch.cat(values) for values in zip(*(vars(p).values() for p in parts), strict=True)))
    live = live.select(live.row.argsort())
    label = torch.full_like(live.row, UNFINISHED)
    end, at = live.z, live.z[live.done]
    if len(at):
        label[live.done] = where(domain, at)
        end = end.clone()
        end[live.done] = domain.project(at)
    return Walks(end, label, live.log_weight, live.integral, live.time, live.steps)


def _check(domain: Domain, start: Tensor, shell: float, drift: str) -> None:
    """Raise where walks would silently answer another question."""
    if drift not in ("weight", "sample"):
        raise ValueError(f'drift must be "weight" or "sample", but got {drift!r}.')
    if not bool((getattr(domain, "outer", domain).distance(start) >= -shell).all()):
        raise ValueError("start must lie in the domain. Enlarge it, or drop the rows outside (see `inside`).")


#: ``-zeta(1/2) / sqrt(2 pi)``: mean overshoot of a discrete walk, in standard deviations of a step.
SHIFT = 0.5826


def euler_maruyama(
    domain: Domain,
    start: Float[Tensor, "walks dim"],
    operator: Operator,
    *,
    dt: float,
    shift: bool = True,
    max_steps: int = 10_000,
    generator: torch.Generator | None = None,
) -> Walks:
    """Simulate ``dZ = mu(Z) dt + sqrt(a(Z)) dW`` in steps of ``dt`` until the walks leave the domain.

    As in the paper: slow and biased, but it works for any coefficient.
    A discrete walk leaves too late, so its error falls only with ``sqrt(dt)``. With ``shift`` the boundary is
    moved inwards by the mean overshoot along its normal, which removes that term. Walks that need
    more than ``max_steps`` are unfinished. The weight is ``exp(-int r)``.
    """
    root, margin = math.sqrt(dt), SHIFT * math.sqrt(dt) * shift
    scale = operator.scale(start) if operator.is_axial else None
    end = start.clone()
    label = torch.full_like(start[:, 0], UNFINISHED, dtype=torch.long)
    steps = torch.zeros_like(label)
    log_weight, integral = torch.zeros_like(start[:, 0]), torch.zeros_like(start[:, 0])
    live, z = torch.arange(len(start), device=start.device), start
    log_w, total = log_weight.clone(), integral.clone()
    for step in range(max_steps + 1):
        left = _has_left(domain, z, operator, scale, margin)
        last = step == max_steps
        if last or bool(left.any()):
            out = torch.ones_like(left) if last else left
            at = live[out]
            end[at], log_weight[at], integral[at], steps[at] = z[out], log_w[out], total[out], step
            done = live[left]
            if len(done):
                label[done], end[done] = where(domain, z[left]), domain.project(z[left])
            live, z, log_w, total = live[~out], z[~out], log_w[~out], total[~out]
        if not len(live):
            break
        if operator.has_source:
            total = total + dt * log_w.exp() * operator.source_at(z)
        log_w = log_w - dt * operator.absorption_at(z)
        normal = random.draw_normal(z.shape, dtype=z.dtype, device=z.device, generator=generator)
        moved = z + (operator.spread(z, root * normal) if scale is None else normal * (root * scale))
        drift = operator.drift_at(z)
        z = reflect(domain, moved if drift is None else moved + dt * drift)
    return Walks(end, label, log_weight, integral, dt * steps.to(start), steps)


def _has_left(
    domain: Domain, z: Tensor, operator: Operator, scale: Tensor | None, margin: float
) -> Bool[Tensor, " rows"]:
    """Return which walks are outside, or nearer to the boundary than the mean overshoot of a step."""
    if scale is not None:
        return step_radius(domain, z, scale) < margin
    distance = domain.distance(z)
    if margin == 0:
        return distance < 0
    # the overshoot is that of the walk's coordinate along the normal, so a matrix counts in that direction
    unit = torch.nn.functional.normalize(domain.project(z) - z, dim=1)
    return distance < margin * operator.speed_along(z, unit)
