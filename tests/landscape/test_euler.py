"""Time stepping against closed forms; what it gets wrong is predicted too."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_bvp

from elliptica.landscape import Ball, Box, DataDomain, Operator
from elliptica.landscape.estimate import average
from elliptica.landscape.walks import SHIFT, euler_maruyama

INTERVAL = Box(torch.tensor([-1.0]).double(), torch.tensor([1.0]).double())


def run(domain, start, operator=None, n=40_000, *, value=lambda z: z[:, 0], generator, **options):
    z = torch.tensor([start]).double().repeat(n, 1)
    walks = euler_maruyama(domain, z, operator or Operator(), generator=generator, **options)
    return average(walks, n, value(walks.end))


def close(result, expected, slack=0.0, what="mean"):
    value = float(getattr(result, what))
    error = float(result.stderr if what == "mean" else result.exit_time_stderr)
    return abs(value - expected) <= 4.5 * error + slack


@pytest.mark.statistical
def test_plain_exit_times_are_late_by_the_overshoot(generator):
    # seen every dt, the walk leaves an interval that is wider by SHIFT * sqrt(dt) on each side
    for dt, n in ((1e-2, 10_000), (4e-3, 16_000)):
        late = run(INTERVAL, [0.0], n=n, dt=dt, shift=False, generator=generator)
        assert close(late, (1 + SHIFT * math.sqrt(dt)) ** 2, 2 * dt, "exit_time")
        assert not close(late, 1.0, 2 * dt, "exit_time")


@pytest.mark.statistical
def test_the_shift_removes_nine_tenths_of_it(generator):
    disk, start = Ball(torch.zeros(2).double(), 1.0), [0.5, 0.3]
    truth = (1 - 0.34) / 2
    plain = run(disk, start, n=60_000, dt=1e-2, shift=False, generator=generator)
    shifted = run(disk, start, n=60_000, dt=1e-2, generator=generator)
    late = float(plain.exit_time) - truth
    assert late / truth == pytest.approx(0.188, abs=0.02)
    assert abs(float(shifted.exit_time) - truth) < late / 10 + 3 * float(shifted.exit_time_stderr)
    assert abs(float(shifted.exit_time) - truth) < late / 4


@pytest.mark.statistical
def test_gamblers_ruin_with_drift(generator):
    box, mu, x = Box(torch.zeros(1).double(), torch.ones(1).double()), 1.0, 0.3
    truth = math.expm1(-2 * mu * x) / math.expm1(-2 * mu)
    rich = lambda z: (z[:, 0] > 0.5).double()  # noqa: E731
    options = {"dt": 2e-3, "value": rich, "generator": generator}
    for drift in (torch.tensor([mu]), lambda z: torch.full_like(z, mu)):
        assert close(run(box, [x], Operator(drift=drift), n=8_000, **options), truth, 2e-3)
    wrong = run(box, [x], Operator(drift=torch.tensor([-mu])), n=1_000, **options)
    assert not close(wrong, truth, 2e-3)


def ode(rate, source, x):
    """``u'' / 2 - r u = -f`` on (-1, 1), ``u = 1`` at both ends."""
    grid = np.linspace(-1, 1, 401)
    solution = solve_bvp(
        lambda s, u: np.vstack([u[1], 2 * (rate(s) * u[0] - source(s))]),
        lambda a, b: np.array([a[0] - 1, b[0] - 1]),
        grid,
        np.ones((2, len(grid))),
        tol=1e-8,
    )
    return float(solution.sol(x)[0])


@pytest.mark.slow
@pytest.mark.statistical
def test_absorption_and_source_that_vary(generator):
    rate, source = lambda s: 1 + 4 * s**2, lambda s: 2 + s
    operator = Operator(absorption=lambda z: rate(z[:, 0]), source=lambda z: source(z[:, 0]))
    result = run(
        INTERVAL, [0.4], operator, dt=1e-3, value=lambda z: torch.ones(len(z)), n=10_000, generator=generator
    )
    assert close(result, ode(rate, source, 0.4), 3e-3)
    assert not close(result, ode(lambda s: 1 + 0 * s, source, 0.4), 3e-3)  # the rate at the centre
    assert not close(result, ode(rate, lambda s: 2 - s, 0.4), 3e-3)


@pytest.mark.statistical
@pytest.mark.parametrize("varies", [False, True])
def test_a_diffusion_matrix_with_a_drift(varies, generator):
    """Eq. (14): ``u = exp(b . z)`` solves ``1/2 tr(a Hess u) + mu . grad u = 0`` for ``mu = -a b / 2``."""
    b, disk = torch.tensor([0.9, -0.6]).double(), Ball(torch.zeros(2).double(), 1.0)
    matrix = torch.tensor([[1.0, 0.8], [0.8, 1.5]]).double()

    def a(z):
        return (1 + z[:, 0] ** 2)[:, None, None] * matrix if varies else matrix.expand(len(z), 2, 2)

    def drift(z):
        return -0.5 * a(z) @ b

    def solve(diffusion):
        operator = Operator(diffusion=diffusion, drift=drift)
        options = {"value": lambda z: torch.exp(z @ b), "dt": 2e-3, "n": 6_000, "generator": generator}
        return run(disk, [0.3, 0.2], operator, **options)

    truth = math.exp(0.9 * 0.3 - 0.6 * 0.2)
    assert close(solve(a if varies else matrix), truth, 3e-3)
    assert not close(solve(matrix.diagonal()), truth, 3e-3)  # without the correlation


@pytest.mark.statistical
def test_a_diffusion_that_varies(generator):
    """``1/2 (1 + x^2) v'' = -1`` gives the exit time; ``u`` itself does not see a change of time."""
    operator = Operator(diffusion=lambda z: 1 + z[:, 0] ** 2)
    x = 0.4
    result = run(INTERVAL, [x], operator, dt=4e-3, n=8_000, generator=generator)
    primitive = [s * math.atan(s) - math.log1p(s**2) / 2 for s in (1.0, x)]
    truth = 2 * (primitive[0] - primitive[1])
    assert close(result, truth, 3e-3, "exit_time")
    assert close(result, x, 3e-3)
    constant = run(INTERVAL, [x], Operator(), dt=4e-3, n=2_000, generator=generator)
    assert not close(constant, truth, 3e-3, "exit_time")


@pytest.mark.statistical
def test_the_shift_of_a_matrix_is_along_the_normal(generator):
    """Coordinates that diffuse at their own speed, as a vector and as a matrix: the same exits."""
    a, square = torch.tensor([1.0, 9.0]).double(), Box(-torch.ones(2).double(), torch.ones(2).double())
    times = [
        run(square, [0.2, 0.1], Operator(diffusion=diffusion), dt=1e-2, n=20_000, generator=generator)
        for diffusion in (a, torch.diag(a))
    ]
    noise = math.hypot(*(float(t.exit_time_stderr) for t in times))
    assert abs(float(times[0].exit_time - times[1].exit_time)) < 4.5 * noise


@pytest.mark.slow
@pytest.mark.statistical
def test_reflecting_wall(generator):
    # between the wall at 0 and the ball that begins at 0.15: E tau = 0.15^2 - x^2
    points = torch.tensor([[0.2], [0.8]]).double()
    domain = DataDomain(points, epsilon=0.05, outer=Box(torch.zeros(1), torch.ones(1), "reflect"))
    z = torch.full((5_000, 1), 0.1).double()
    walks = euler_maruyama(domain, z, Operator(), dt=5e-5, generator=generator)
    assert bool((walks.label == 0).all())
    assert torch.allclose(walks.end, torch.tensor(0.15).double())
    result = average(walks, len(z), walks.end[:, 0])
    assert close(result, 0.15**2 - 0.1**2, 5e-5, "exit_time")
