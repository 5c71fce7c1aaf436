"""Walk on spheres: jump from the centre of a ball inside the domain to its surface, until the boundary.

There is no time step and so no time-stepping error. The only bias comes from the shell in which a walk ends.
Coordinates are divided by ``sqrt(a)``, so that every step is that of Brownian motion. A killing rate ``c``
and a drift ``mu`` that is constant on the ball are exact too. With ``k^2 = 2 c + |mu|^2``, the step ``delta``

    ``u(z) = E[exp(mu . delta) u(z + delta)] / Phi(k t) + E[integral of the source in the ball]``,

uniform on the sphere of radius ``t`` (``Phi``: `elliptica.landscape.special`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks, random
from elliptica.landscape.data_domain import OUTER
from elliptica.landscape.domains import Domain, reflect, step_radius
from elliptica.landscape.exits import sample_drifted_direction
from elliptica.landscape.operator import Operator
from elliptica.landscape.special import log_phi, screened_green_ratio
from elliptica.landscape.walks import UNFINISHED, Walks

#: Finished walks are removed from the working set once they are this share of it.
_COMPACT = 0.25

DriftMode = Literal["weight", "sample", "mixture"]


def walk_on_spheres(
    domain: Domain,
    start: Float[Tensor, "walks dim"],
    operator: Operator,
    *,
    shell: float,
    max_steps: int = 10_000,
    drift: DriftMode = "weight",
    max_radius: float | None = None,
    generator: torch.Generator | None,
) -> Walks:
    """Follow one walk from each row of ``start`` to the boundary.

    ``u(z)`` is the mean of ``exp(log_weight) * g(end) + integral`` over walks from ``z``.

    A walk that starts in a ball around a data point ends there at once. Spheres may reach through reflecting
    walls; the landing point is folded back.

    Args:
        domain: Domain of the walks. Its ``where`` method, if any, labels the ends.
        start: Points of the domain.
        operator: Coefficients. The absorption must be a number. A drift function is frozen at the centre of
            each sphere (see ``max_radius``).
        shell: A walk ends when it is nearer to the boundary than this, and is projected to it.
        max_steps: Walks that need more keep their position and get the label `UNFINISHED`.
        drift: ``"weight"``: walks ignore the drift and carry weights; best if the boundary values
            are large where the drift does not lead. ``"sample"``: walks follow the drift without weights;
            best if the values are similar everywhere. ``"mixture"``: half of the walks do each, and all
            carry the weight of the mixture, at most 2; nearly as good as the better of the two.
        max_radius: Largest radius of a sphere, in units of the points. Use a small one if the drift is a
            function: its change over a sphere is neglected.
        generator: Source of randomness; None is torch's global one.

    Returns:
        Ends of walks. ``time`` is the mean time given the radii of the spheres, ``sum t^2 / dim``; under
        a drift or absorption it is that of the walk without them.
    """
    _check(domain, start, operator, shell, max_steps, drift, max_radius, generator)
    drift = drift if operator.drift is not None else "weight"
    scale = operator.scale(start)
    even = bool((scale == scale[0]).all())
    step = _Step(domain, operator, scale[:1] if even else scale, drift, max_radius, generator)
    live = _Live.begin(start, _drifted(start, drift, generator))
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
    return _gather(domain, [*parts, live], drift)


@dataclass
class _Live:
    """State of a set of walks; finished ones stay until enough have finished."""

    row: Tensor
    z: Tensor
    drifted: Tensor
    log_survival: Tensor
    log_ratio: Tensor
    integral: Tensor
    time: Tensor
    steps: Tensor
    done: Tensor

    @classmethod
    def begin(cls, start: Tensor, drifted: Tensor) -> _Live:
        row = torch.arange(len(start), device=start.device)
        zero = start.new_zeros(len(start))
        return cls(row, start, drifted, zero, zero, zero, zero, torch.zeros_like(row), row < 0)

    def select(self, rows: Tensor) -> _Live:
        return _Live(*(value[rows] for value in vars(self).values()))

    def log_weight(self, drift: DriftMode) -> Tensor:
        """Return the log-weight: survival, and the density under the drift over that of the walk's own law.

        ``log_ratio`` is the logarithm of ``L``, the density with the drift over that without. The mixture
        of both has density ``(1 + L) / 2``, so its weight is ``2 L / (1 + L)``.
        """
        if drift == "sample":
            return self.log_survival
        if drift == "weight":
            return self.log_survival + self.log_ratio
        return self.log_survival + math.log(2) + torch.nn.functional.logsigmoid(self.log_ratio)


def _drifted(start: Tensor, drift: DriftMode, generator: torch.Generator | None) -> Tensor:
    """Choose which walks follow the drift; in a mixture a random one of each pair of neighbours."""
    if drift != "mixture":
        return torch.full_like(start[:, 0], drift == "sample", dtype=torch.bool)
    coin = random.draw_uniform((-(-len(start) // 2),), device=start.device, generator=generator) < 0.5
    return torch.stack([coin, ~coin], 1).flatten()[: len(start)]


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
            weight = live.log_weight(self.drift).exp()
            live.integral = live.integral + weight * self._source(z, radius, push)
        if push is not None and self.drift != "weight":
            pull = push * (radius * live.drifted)[:, None]
            direction = sample_drifted_direction(pull, generator=self.generator)
        else:
            direction = self._direction(z)
        self._weigh(live, radius, push, direction)
        live.z = reflect(self.domain, torch.addcmul(z, direction, radius[:, None] * self.scale))
        live.time = live.time + radius.square() / dim
        live.steps = live.steps + ~live.done

    def _radius(self, live: _Live, distance: Tensor) -> Tensor:
        """Return the radius in scaled coordinates; zero for finished walks, so that they do not move."""
        if len(self.scale) == 1:
            radius = distance / self.scale
        else:
            radius = step_radius(self.domain, live.z, self.scale)
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
        """Multiply by the survival within the sphere, and by the ratio of the densities of the step."""
        if push is None and not self._absorption:
            return
        dim, lost = direction.shape[1], torch.zeros_like(radius)
        if push is not None and (self._absorption or self.drift != "sample"):
            lost = log_phi(push.norm(dim=1) * radius, dim)
            live.log_ratio = live.log_ratio + radius * (push * direction).sum(1) - lost
        if self._absorption:
            killed = log_phi(self._rate(push, radius) * radius, dim)
            live.log_survival = live.log_survival + lost - killed

    def _source(self, z: Tensor, radius: Tensor, push: Tensor | None) -> Tensor:
        """Return the source's integral up to the sphere: exact for constants, else from one random point."""
        dim = z.shape[1]
        time = radius.square() / dim
        lower = push is not None or self._absorption > 0
        if not callable(self.operator.source) and push is None:
            if lower:
                time = -torch.expm1(-log_phi(self._rate(push, radius) * radius, dim)) / self._absorption
            return self.operator.source_at(z) * time
        first, second = random.draw_uniform((2, len(z)), device=z.device, generator=self.generator).to(z)
        rho = radius * first.sqrt() * second ** (1 / dim)
        offset = rho[:, None] * self._direction(z)
        if lower:
            time = time * screened_green_ratio(rho, radius, self._rate(push, radius), dim)
        if push is not None:
            time = time * (push * offset).sum(1).exp()
        return self.operator.source_at(reflect(self.domain, z + self.scale * offset)) * time


def _gather(domain: Domain, parts: list[_Live], drift: DriftMode) -> Walks:
    """Collect all walks in the order of their starts; project finished ones to the boundary."""
    live = _Live(*(torch.cat(values) for values in zip(*(vars(p).values() for p in parts), strict=True)))
    live = live.select(live.row.argsort())
    label = torch.full_like(live.row, UNFINISHED)
    end, at = live.z, live.z[live.done]
    if len(at):
        label[live.done] = domain.where(at) if hasattr(domain, "where") else OUTER
        end = end.clone()
        end[live.done] = domain.project(at)
    return Walks(end, label, live.log_weight(drift), live.integral, live.time, live.steps)


def _check(
    domain: Domain,
    start: Tensor,
    operator: Operator,
    shell: float,
    max_steps: int,
    drift: str,
    max_radius: float | None,
    generator: torch.Generator | None,
) -> None:
    checks.floating("start", start)
    if start.ndim != 2:
        raise ValueError(f"start must have shape (walks, dim), but has {tuple(start.shape)}.")
    checks.finite("start", start)
    operator.check_dim(start.shape[1])
    checks.positive("shell", shell)
    checks.count("max_steps", max_steps)
    checks.choice("drift", drift, get_args(DriftMode))
    if max_radius is not None:
        checks.positive("max_radius", max_radius)
    random.check_generator(generator, start.device)
    if callable(operator.absorption):
        raise ValueError(
            "Walk on spheres needs an absorption that is a number, but got a function. Use "
            'solver="euler", which steps in time.'
        )
    _check_region(domain, start, operator, shell)


def _check_region(domain: Domain, start: Tensor, operator: Operator, shell: float) -> None:
    """Raise unless starts lie inside, walks can end, and no drift meets reflecting walls."""
    outer = getattr(domain, "outer", domain)
    away = (outer.distance(start) < -shell).nonzero().flatten().tolist()
    if away:
        raise ValueError(
            f"Every walk must start in the domain, but {len(away)} of {len(start)} rows lie outside it, e.g. "
            f"rows {away[:5]}. Enlarge the domain, or drop those rows (see `inside`)."
        )
    wall = getattr(outer, "wall", "reflect" if hasattr(outer, "reflect") else "absorb")
    if wall == "reflect" and operator.drift is not None:
        raise ValueError(
            "Walk on spheres cannot follow a drift between reflecting walls, because the drift would reverse "
            'behind a wall. Use solver="euler", absorbing walls, or no drift.'
        )
    if len(start) and not bool(domain.distance(start).isfinite().all()):
        raise ValueError(
            "Walks never end between reflecting walls. Put balls around the data: "
            'DataDomain(points, outer="reflecting_box").'
        )
