"""Solvers of the landscape against time stepping, at equal error, and a loss map at work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica.landscape import Ball, DataDomain, Operator, estimate_landscape
from elliptica.landscape.euler import euler_maruyama
from elliptica.landscape.exits import sample_ball_exit
from elliptica.landscape.solve import default_shell, domain_size
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


def loss_map() -> Measurement:
    """Expected loss of a 128-wide network at 1000 points in 100 dimensions, 256 exits each."""
    dim, queries, n_walks = 100, 1000, 256
    net = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    data = torch.randn(2000, dim)
    at = data[:queries]
    labels = net(at).detach() + 0.3 * torch.randn(queries, 1)
    ball = Ball.around(data)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return (net(z) - y).square().squeeze(-1)

    found = []

    def ours() -> None:
        found.append(estimate_landscape(loss, ball, at, context=labels, n_walks=n_walks))

    @torch.no_grad()
    def forward() -> None:
        for part in range(0, queries, 64):
            z = at[part : part + 64].repeat_interleave(n_walks, 0)
            loss(z, labels[part : part + 64].repeat_interleave(n_walks, 0))

    result = compare(
        f"loss map of {queries} points, {dim} dimensions, {n_walks} exits each, 128-wide network",
        ours,
        "forward passes at as many points",
        forward,
        budget=math.inf,
        rounds=3,
    )
    error = float((found[-1].stderr / found[-1].value).median())
    return replace(result, detail=f"{result.detail}; median standard error {error:.1%} of the value")


class BruteForce(DataDomain):
    """The same domain, the nearest ball found among all of them."""

    def nearest_ball(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """All distances by ``torch.cdist``, the least of each row."""
        centres, radii = self.points, self.radii
        shift = centres.mean(0)
        found = []
        for part in z.split(max(2**22 // len(centres), 1)):
            index = (torch.cdist(part - shift, centres - shift) - radii).argmin(1)
            found.append(((part - centres[index]).norm(dim=1) - radii[index], index))
        return torch.cat([d for d, _ in found]), torch.cat([i for _, i in found])


def among_points(dim: int, n_points: int, budget: float) -> Measurement:
    """Walk on spheres among normal points, from near the middle."""
    n_walks = 200 if n_points <= 10_000 else 50
    draw = torch.Generator().manual_seed(dim)
    points = torch.randn(n_points, dim, dtype=torch.float64, generator=draw)
    domain = DataDomain(points)
    slow = object.__new__(BruteForce)
    vars(slow).update(vars(domain))  # nearest neighbours are looked for once
    start = 0.5 * torch.randn(n_walks, dim, dtype=torch.float64, generator=draw)

    shell = default_shell(domain, start, domain_size(domain, start))

    def walk(domain: DataDomain) -> None:
        walk_on_spheres(domain, start, LAPLACE, shell=shell, generator=torch.Generator().manual_seed(0))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a tree is searched by one
    try:
        return compare(
            f"walk on spheres among {n_points:g} points, {dim} dimensions, {n_walks} walks",
            lambda: walk(domain),
            "the nearest of all by cdist and argmin, one thread",
            lambda: walk(slow),
            budget=budget,
            rounds=5,
        )
    finally:
        torch.set_num_threads(threads)


def measure() -> Iterator[Measurement]:
    """Solvers, a loss map, and walks among many points."""
    yield on_disk()
    yield exact_exit()
    yield loss_map()
    for dim in (2, 10):
        for n_points in (1_000, 10_000, 100_000):
            yield among_points(dim, n_points, 0.1 if (dim, n_points) == (2, 10_000) else math.inf)
