"""Euler-Maruyama time stepping, as in the paper: slow and biased, but works for any coefficient."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks, random
from elliptica.landscape.data_domain import OUTER
from elliptica.landscape.domains import Domain, reflect, step_radius
from elliptica.landscape.operator import Operator
from elliptica.landscape.walks import UNFINISHED, Walks

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
    """Simulate ``dZ = mu dt + sqrt(a) dW`` in steps of ``dt`` until the walks leave the domain.

    A discrete walk misses exits between two steps and leaves too late, so its error falls
    only with ``sqrt(dt)``. With ``shift`` the boundary is moved inwards by the mean overshoot, which
    removes that term at no cost. Walk on spheres has no such error. Use this function for a drift or an
    absorption that varies in space.

    Args:
        domain: Domain of the walks.
        start: One row per walk.
        operator: Coefficients, each a constant or a function of the points.
        dt: Length of a step in time.
        shift: Correct for the overshoot; ``False`` is the plain scheme.
        max_steps: Walks that need more are reported as unfinished.
        generator: Source of randomness.

    Returns:
        The ends of the walks, with ``exp(-int r)`` as weight and ``steps * dt`` as time.
    """
    checks.floating("start", start)
    checks.positive("dt", dt)
    checks.count("max_steps", max_steps)
    random.check_generator(generator, start.device)
    operator.check_dim(start.shape[1])
    scale = operator.scale(start)
    margin = SHIFT * math.sqrt(dt) if shift else 0.0
    end = start.clone()
    label = torch.full_like(start[:, 0], UNFINISHED, dtype=torch.long)
    steps = torch.zeros_like(label)
    log_weight, integral = torch.zeros_like(start[:, 0]), torch.zeros_like(start[:, 0])
    live, z = torch.arange(len(start), device=start.device), start
    log_w, total = log_weight.clone(), integral.clone()
    for step in range(max_steps + 1):
        left = step_radius(domain, z, scale) < margin
        last = step == max_steps
        if last or bool(left.any()):
            out = torch.ones_like(left) if last else left
            at = live[out]
            end[at], log_weight[at], integral[at], steps[at] = z[out], log_w[out], total[out], step
            done = live[left]
            if len(done):
                label[done], end[done] = _where(domain, z[left]), domain.project(z[left])
            live, z, log_w, total = live[~out], z[~out], log_w[~out], total[~out]
        if not len(live):
            break
        if operator.has_source:
            total = total + dt * log_w.exp() * operator.source_at(z)
        log_w = log_w - dt * _rate(operator, z)
        z = _advance(domain, z, operator, scale, dt, generator)
    return Walks(end, label, log_weight, integral, dt * steps.to(start), steps)


def _advance(
    domain: Domain,
    z: Tensor,
    operator: Operator,
    scale: Tensor,
    dt: float,
    generator: torch.Generator | None,
) -> Tensor:
    noise = random.draw_normal(z.shape, dtype=z.dtype, device=z.device, generator=generator)
    drift = operator.drift_at(z)
    moved = z + noise.mul_(math.sqrt(dt) * scale)
    if drift is not None:
        if callable(operator.drift):
            checks.finite("The result of the drift", drift)
        moved = moved.add_(drift, alpha=dt)
    return reflect(domain, moved)


def _rate(operator: Operator, z: Tensor) -> Tensor | float:
    rate = operator.absorption_at(z)
    if isinstance(rate, Tensor):
        checks.nonnegative("The result of the absorption", rate)
    return rate


def _where(domain: Domain, z: Tensor) -> Tensor:
    if hasattr(domain, "where"):
        return domain.where(z)
    return torch.full_like(z[:, 0], OUTER, dtype=torch.long)
