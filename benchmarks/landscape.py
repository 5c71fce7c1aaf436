"""Solvers of the landscape against time stepping, at equal error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.timing import Measurement, compare
from elliptica.landscape import Ball, Operator
from elliptica.landscape.euler import euler_maruyama
from elliptica.landscape.exits import sample_ball_exit
from elliptica.landscape.spheres import walk_on_spheres

LAPLACE = Operator()
#: Error to reach, bias and noise together.
TARGET = 2e-3


def on_disk() -> Measurement:
    """Walk on spheres against plain Euler-Maruyama for ``e^x cos y``: time to an error of 2e-3.

    Half of the squared error goes to the bias, half to noise. The bias of time stepping is measured at
    ``dt = 1e-2`` and falls with ``sqrt(dt)``, which gives the step that leaves half; that of walk on spheres
    is below a tenth of the target. One walk varies as much in both, so both need as many walks, and the
    ratio is that of the time per walk, in batches of the same size.
    """
    disk, start, n = Ball(torch.zeros(2).double(), 1.0), torch.tensor([0.5, 0.3]).double(), 5000
    truth, exit_time = math.exp(0.5) * math.cos(0.3), 0.33
    late = {}

    def plain(dt: float, walks: int = n) -> float:
        """Bias of u; notes that of the exit time."""
        found = euler_maruyama(
            disk, start.repeat(walks, 1), LAPLACE, dt=dt, shift=False, max_steps=10**6, generator=None
        )
        late["plain"] = float(found.time.mean()) / exit_time - 1
        return float((found.end[:, 0].exp() * found.end[:, 1].cos()).mean()) - truth

    def spheres() -> None:
        walks = walk_on_spheres(disk, start.repeat(n, 1), LAPLACE, shell=1e-4, generator=None)
        late["spheres"] = float(walks.time.mean()) / exit_time - 1

    bias = plain(1e-2, 200_000)
    dt = 1e-2 * (TARGET / math.sqrt(2) / bias) ** 2
    result = compare(
        f"walk on spheres, unit disk, error {TARGET:g}",
        spheres,
        f"plain Euler-Maruyama at the step that is expected to give the same error (dt {dt:.1e})",
        lambda: plain(dt),
        budget=0.02,
        rounds=3,
    )
    detail = (
        f"{result.detail} for {n} walks; exit times off by {late['spheres']:+.1%} and {late['plain']:+.1%} "
        f"(noise {1 / math.sqrt(n):.1%}); at dt 1e-2 the bias was {bias:+.3f}"
    )
    return replace(result, detail=detail)


def exact_exit() -> Measurement:
    """One step against a walk in 200 dimensions."""
    dim, n = 200, 1000
    centre = torch.zeros(dim).double()
    start = torch.zeros(1, dim).double()
    start[0, 0] = 0.7
    ball, rows = Ball(centre, 1.0), start.repeat(n, 1)
    return compare(
        f"exact exit from a ball, {dim} dimensions, {n} walks",
        lambda: sample_ball_exit(start, centre, 1.0, n, generator=None),
        "walk on spheres (shell 1e-3)",
        lambda: walk_on_spheres(ball, rows, LAPLACE, shell=1e-3, generator=None),
        budget=0.01,
        rounds=5,
    )


def measure() -> Iterator[Measurement]:
    """Solvers against time stepping and against each other."""
    yield on_disk()
    yield exact_exit()
