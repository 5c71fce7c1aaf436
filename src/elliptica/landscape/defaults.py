"""Numbers that `estimate_landscape` chooses when the user does not: sizes, shells, steps."""

from __future__ import annotations

import torch
from torch import Tensor

from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball, Box, Domain
from elliptica.landscape.operator import Operator
from elliptica.landscape.spheres import DriftMode

#: Drift times size over diffusion, up to which weights keep most of their walks.
WEAK_DRIFT = 2.0


def drift_mode(operator: Operator, at: Tensor, size: float) -> DriftMode:
    """Weights of a strong drift rest on a few walks."""
    mu = operator.drift_at(at[:1])
    if mu is None:
        return "weight"
    scale = operator.scale(at)
    return "weight" if float((mu / scale**2).norm() * size) <= WEAK_DRIFT else "sample"


def domain_size(domain: Domain, at: Tensor) -> float:
    """Radius of a ball, half the shortest side of a box, else the largest distance of a query."""
    outer = domain.domain if isinstance(domain, DataDomain) else domain
    if isinstance(outer, Ball):
        return outer.radius
    if isinstance(outer, Box):
        return float((outer.high - outer.low).min()) / 2
    return float(outer.distance(at).max().clamp_min(torch.finfo(at.dtype).tiny))


def default_shell(domain: Domain, at: Tensor, size: float) -> float:
    """Width of the shell in which walks on spheres end: small beside the domain and the balls."""
    shell = 1e-4 * size
    if isinstance(domain, DataDomain):
        shell = min(shell, 1e-2 * float(domain.radii.min()) / max(at.shape[1] - 2, 1))
    resolution = torch.finfo(at.dtype).eps
    floor = max(1e-5 * size if resolution > 1e-10 else 0.0, 16 * resolution * float(at.abs().max()))
    return max(shell, floor)


def euler_steps(operator: Operator, at: Tensor, size: float, dt: float) -> int:
    """Thirty times the time in which a ball of this size is left, but no more than two million steps."""
    slowest = float(operator.scale(at).min()) ** 2
    return min(max(10_000, int(30 * size**2 / (slowest * at.shape[1] * dt))), 2_000_000)


def merge_repeated(domain: Domain, data_values: Tensor | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Repeated points share a ball: its value is the mean of theirs."""
    if data_values is None or not isinstance(domain, DataDomain):
        return data_values, ()
    _, which = domain.points.unique(dim=0, return_inverse=True)
    counts = torch.bincount(which)
    if int(counts.max()) == 1:
        return data_values, ()
    values = data_values.to(domain.points)
    mean = torch.zeros_like(counts, dtype=values.dtype).scatter_add(0, which, values) / counts
    note = f"{len(which) - len(counts)} data points repeat others: the value of their ball is the mean."
    return mean[which], (note,)


def default_step(domain: Domain, at: Tensor, operator: Operator, size: float) -> float:
    """Step in time of Euler-Maruyama: its deviation is small beside the domain and the balls."""
    step = 0.03 * size  # standard deviation of a step
    if isinstance(domain, DataDomain):
        step = min(step, 0.2 * float(domain.radii.min()))
    return (step / float(operator.scale(at).max())) ** 2
