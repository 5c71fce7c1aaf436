"""Euler-Maruyama time stepping, as in the paper: slow and biased, but works for any coefficient."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elliptica._utils import random
from elliptica.landscape.domains import Domain, reflect, step_radius, where
from elliptica.landscape.estimate import UNFINISHED, Walks
from elliptica.landscape.operator import Operator

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

    A discrete walk leaves too late, so its error falls only with ``sqrt(dt)``. With ``shift`` the boundary is
    moved inwards by the mean overshoot along its normal, which removes that term. Walks that need
    more than ``max_steps`` are unfinished. The weight is ``exp(-int r)``.
    """
    operator.check_dim(start.shape[1])
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
