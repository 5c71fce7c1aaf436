"""The landscape at points: which solver is taken, and whether its result is right."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from elliptica import EllipticWarning, estimate_landscape
from elliptica.landscape import Ball, Box, DataDomain, Operator
from multipole import solve_disk

quiet = pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
DISK = Ball(torch.zeros(2).double(), 1.0)
AT = torch.tensor([[0.5, 0.3], [-0.2, 0.1]]).double()


def harmonic(z):
    return z[:, 0].exp() * z[:, 1].cos()


def zero(z):
    return torch.zeros(len(z))


def close(estimate, truth, slack=0.0):
    truth = torch.as_tensor(truth).to(estimate.value)
    return bool(((estimate.value - truth).abs() <= 4.5 * estimate.stderr + estimate.bias + slack).all())


@pytest.mark.statistical
@pytest.mark.parametrize("solver", ["exact", "spheres", "euler"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_solver_finds_a_harmonic_function(solver, dtype, generator):
    disk, at = Ball(torch.zeros(2), 1.0), AT.to(dtype)
    estimate = estimate_landscape(
        harmonic, disk, at, solver=solver, n_walks=3000, dt=4e-3, generator=generator
    )
    assert close(estimate, harmonic(at))
    assert not close(estimate, harmonic(at) + 0.1)
    assert estimate.value.dtype == dtype
    assert estimate.solver == solver
    assert float(estimate.outer_share.min()) == 1.0
    time = (1 - at.square().sum(1)) / 2
    assert estimate.exit_time is not None
    assert bool(((estimate.exit_time - time).abs() < 4.5 * estimate.exit_time_stderr + 1e-2).all())
    assert "n_walks: 3000" in str(estimate)
    low, high = estimate.interval()
    assert bool((low < high).all())


@pytest.mark.statistical
def test_a_domain_of_your_own(generator):
    estimate = estimate_landscape(harmonic, Strip(1.0), AT, n_walks=3000, generator=generator)
    assert estimate.solver == "spheres"
    assert close(estimate, harmonic(AT))


@dataclass
class Strip:
    """A user's own region: a square, with the two methods only."""

    half: float

    def distance(self, z):
        return (self.half - z.abs()).amin(1)

    def project(self, z):
        side = z.abs().argmax(1, keepdim=True)
        return z.scatter(1, side, self.half * z.gather(1, side).sign())


@pytest.mark.slow
@quiet
def test_auto(generator):
    def chosen(domain, at, value=zero, **options):
        return estimate_landscape(value, domain, at, n_walks=20, generator=generator, **options).solver

    data = torch.randn(20, 10, generator=generator).double()
    values = torch.rand(20, generator=generator).double()
    high = torch.randn(20, 60, generator=generator).double()
    near, far = 0.4 * data, 0.1 * high
    assert chosen(DISK, AT) == "exact"
    assert chosen(DISK, AT, operator=Operator(source=1.0)) == "exact"
    assert chosen(DISK, AT, operator=Operator(absorption=1.0)) == "spheres"
    assert chosen(DISK, AT, operator=Operator(source=lambda z: z[:, 0])) == "spheres"
    assert chosen(DISK, AT, operator=Operator(diffusion=torch.tensor([1.0, 2.0]))) == "spheres"
    assert chosen(DISK, AT, operator=Operator(drift=torch.ones(2))) == "spheres"
    assert chosen(DISK, AT, operator=Operator(drift=lambda z: -z)) == "euler"
    assert chosen(DISK, AT, operator=Operator(absorption=lambda z: z[:, 0] ** 2)) == "euler"
    assert chosen(Box(-torch.ones(2), torch.ones(2)), AT) == "spheres"
    assert chosen(DataDomain(high, fraction=0.2), far) == "exact"  # balls are never met
    assert chosen(DataDomain(data, fraction=0.45, margin=2.0), near, data_values=values) == "spheres"
    assert chosen(DISK, AT, operator=Operator(diffusion=torch.eye(2) + 0.5)) == "euler"
    assert chosen(DISK, AT, operator=Operator(diffusion=lambda z: 1 + z[:, 0] ** 2)) == "euler"
    small = DataDomain(AT, outer=Box(-torch.ones(2), torch.ones(2), "reflect"))
    assert chosen(small, torch.zeros(1, 2).double()) == "spheres"
    assert chosen(small, torch.zeros(1, 2).double(), operator=Operator(drift=torch.ones(2))) == "euler"


@pytest.mark.slow
@pytest.mark.statistical
def test_cloud_of_balls_against_a_series(generator):
    rng = np.random.default_rng(7)  # one problem, whose series is known to converge; the walks move
    centres = []
    while len(centres) < 12:
        c = complex(*(1.7 * rng.random(2) - 0.85))
        if abs(c) < 0.85 and all(abs(c - other) > 0.2 for other in centres):
            centres.append(c)
    values, eps = rng.random(12), 0.05
    solution, residual = solve_disk(centres, [eps] * 12, values, lambda z: 0.5 + 0.3 * z.real)
    assert residual < 2e-4
    data = torch.tensor([[c.real, c.imag] for c in centres]).double()
    domain = DataDomain(data, epsilon=eps, outer=DISK)
    at = torch.tensor([[0.0, 0.0], [0.4, -0.2], [-0.5, 0.3], [0.1, 0.7]]).double()
    at = at[domain.distance(at) > 0]
    truth = torch.tensor(solution(at[:, 0].numpy() + 1j * at[:, 1].numpy()))
    estimate = estimate_landscape(
        lambda z: 0.5 + 0.3 * z[:, 0],
        domain,
        at,
        data_values=torch.tensor(values),
        n_walks=10_000,
        shell=1e-4,
        generator=generator,
    )
    slack = 2 * 1e-4 / eps
    assert bool(((estimate.value - truth).abs() <= 4.5 * estimate.stderr + slack).all())
    assert not bool(((estimate.value - truth.flip(0)).abs() <= 4.5 * estimate.stderr + slack).all())


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [3, 51])
def test_linear_model_meets_dynkins_formula(dim, generator):
    # squared loss of a linear model: u = (w.x - y)^2 + sigma^2 (|w|^2 + 1) E tau, exactly
    w = torch.randn(dim - 1, generator=generator).double()
    at = 0.3 * torch.randn(4, dim, generator=generator).double() / math.sqrt(dim)
    loss = lambda z: (z[:, :-1] @ w - z[:, -1]).square()  # noqa: E731
    ball, sigma2 = Ball(torch.zeros(dim).double(), 1.0), 0.7
    tau = (1 - at.square().sum(1)) / (dim * sigma2)
    truth = loss(at) + sigma2 * (w.square().sum() + 1) * tau
    options = {"operator": Operator(diffusion=sigma2), "generator": generator, "n_walks": 2000}
    estimate = estimate_landscape(loss, ball, at, **options)
    assert close(estimate, truth)
    assert not close(estimate, loss(at))  # u is not the loss
    assert torch.allclose(estimate.exit_time, tau)


TRIANGLE = torch.tensor([[-1.0, 1], [1, 1], [0, 0]]).double()


def parabola(z):
    return (z[:, 0] ** 2 - z[:, 1]).square()


@quiet
@pytest.mark.statistical
def test_proposition_1_fails_on_the_hull_and_holds_with_reflecting_walls(generator):
    # f = x^2 fits all three points, yet the landscape between them is not zero: the hull's edges count
    query = torch.tensor([[0.0, 0.6]]).double()
    hull = DataDomain(TRIANGLE, epsilon=0.01, outer="hull")
    high = estimate_landscape(parabola, hull, query, n_walks=20_000, generator=generator)
    assert close(high, 0.363, 1e-3)
    assert float(high.value) > 0.3
    walls = DataDomain(TRIANGLE, epsilon=0.2, outer="reflecting_box")
    values = torch.tensor([0.1, 0.2, 0.0]).double()
    kept = estimate_landscape(parabola, walls, query, data_values=values, n_walks=2000, generator=generator)
    assert 0.0 < float(kept.value) < 0.2
    assert float(kept.hit_share) == 1.0


@pytest.mark.statistical
def test_context_goes_with_its_query(generator):
    target = torch.tensor([[10.0], [-20.0]]).double()
    value = lambda z, t: z[:, 0] + t[:, 0]  # noqa: E731
    for solver in ("exact", "spheres"):
        estimate = estimate_landscape(
            value, DISK, AT, context=target, solver=solver, n_walks=500, generator=generator
        )
        assert close(estimate, AT[:, 0] + target[:, 0], 1e-9)


@quiet
def test_dropped_balls_are_in_the_bias(generator):
    data = torch.randn(30, 30, generator=generator).double()
    domain = DataDomain(data, fraction=0.4)
    at = 0.2 * data[:4]
    estimate = estimate_landscape(
        zero, domain, at, data_values=torch.full((30,), 5.0).double(), n_walks=20, generator=generator
    )
    power = (domain.radii / torch.cdist(at, data)) ** 28
    assert estimate.solver == "exact"
    assert torch.allclose(estimate.bias, 5 * power.sum(1))
    assert float(estimate.bias.min()) > 0
    # with a source, a walk that a ball would have stopped may collect it until it leaves the outer ball
    operator, outer = Operator(source=-2.0, diffusion=3.0), domain.outer
    estimate = estimate_landscape(
        0.0,
        domain,
        at,
        operator=operator,
        data_values=torch.zeros(30).double(),
        solver="exact",
        n_walks=20,
        generator=generator,
    )
    assert torch.allclose(estimate.bias, 2 * outer.radius**2 / (30 * 3.0) * power.sum(1))


def test_unfinished_walks_are_reported_and_left_out(generator):
    with pytest.warns(EllipticWarning):
        none = estimate_landscape(
            harmonic, DISK, AT, solver="euler", dt=1e-6, n_walks=5, max_steps=1, generator=generator
        )
    assert bool(none.value.isnan().all())
    assert bool(none.bias.isinf().all())
    assert bool(none.stderr.isinf().all())
