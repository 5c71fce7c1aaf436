"""Exits from a ball against their law, and control variates against the plain mean."""

import numpy as np
import pytest
import torch

from elliptica.landscape.exits import (
    _log_density,
    _tabulated,
    ball_exit_time,
    control_variates,
    sample_ball_exit,
    sample_drifted_direction,
)
from elliptica.landscape.special import log_phi
from laws import assert_distribution, assert_equal_means, assert_mean


def origin(dim):
    return torch.zeros(dim, dtype=torch.float64)


def exits(generator, dim, share, n, dtype=torch.float64, radius=1.0):
    start = torch.zeros(1, dim, dtype=dtype)
    start[0, 0] = share * radius
    return sample_ball_exit(start, origin(dim), radius, n, generator=generator)[0]


def uniform_exits(generator, dim, n):
    """The wrong sampler: right only from the centre."""
    return torch.nn.functional.normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1)


def assert_mean_is(samples, expected):
    assert_mean(samples, expected, float(np.std(np.asarray(samples, dtype=np.float64))))


def circle_cdf(rho):
    return lambda t: 0.5 + np.arctan((1 + rho) / (1 - rho) * np.tan(t / 2)) / np.pi


def angle_cdf(dim, rho):
    """Distribution function of the angle to the start, by quadrature of the Poisson kernel."""
    theta = np.logspace(-9, np.log10(np.pi), 200_000)[:-1]
    height = (dim - 2) * np.log(np.sin(theta)) - dim / 2 * np.log(
        (1 - rho) ** 2 + 4 * rho * np.sin(theta / 2) ** 2
    )
    density = np.exp(height - height.max())
    cdf = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(theta))])
    return lambda angle: np.interp(angle, theta, cdf / cdf[-1])


def angle_to_start(y):
    return torch.atan2(y[:, 1:].norm(dim=1), y[:, 0])


@pytest.mark.statistical
@pytest.mark.parametrize("rho", [0.0, 0.4, 0.95, 1 - 1e-6])
def test_on_the_circle_the_angle_follows_poissons_kernel(generator, rho):
    y = exits(generator, 2, rho, 50_000)
    angle = torch.atan2(y[:, 1], y[:, 0])
    assert_distribution(angle, circle_cdf(rho))
    if 0 < rho < 0.99:
        with pytest.raises(AssertionError):
            assert_distribution(angle, circle_cdf(rho - 0.05))


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [3, 4, 7, 50, 3072])
@pytest.mark.parametrize("rho", [0.0, 0.6, 0.99, 1 - 1e-6])
def test_the_angle_follows_poissons_kernel(generator, dim, rho):
    angle = angle_to_start(exits(generator, dim, rho, 2000 if dim == 3072 else 50_000))
    assert_distribution(angle, angle_cdf(dim, rho))
    if dim < 10 and rho:
        with pytest.raises(AssertionError):
            assert_distribution(angle, angle_cdf(dim, 1 - 1.06 * (1 - rho)))
        with pytest.raises(AssertionError):
            assert_distribution(angle, angle_cdf(dim + 1, rho))


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 50, 1000])
@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_harmonic_polynomials_keep_their_value(generator, dim, rho):
    n = 4000 if dim == 1000 else 20_000
    wrong = uniform_exits(generator, dim, n)
    y = exits(generator, dim, rho, n)
    torch.testing.assert_close(y.norm(dim=1), torch.ones(n, dtype=torch.float64))
    assert_mean_is(y[:, 0], rho)
    with pytest.raises(AssertionError):
        assert_mean_is(wrong[:, 0], rho)
    if dim > 1:
        assert_mean_is(y[:, 1], 0.0)
        assert_mean_is(y[:, 0] ** 2 - y[:, 1] ** 2, rho**2)
        assert_mean_is(y[:, 0] * y[:, 1], 0.0)
        assert_mean_is(y[:, 0] ** 3 - 3 * y[:, 0] * y[:, 1] ** 2, rho**3)
    if dim in (3, 5):  # a pole outside: |y - p|^(2 - dim)
        pole = 2 * torch.eye(dim, dtype=torch.float64)[1]
        assert_mean_is((y - pole).norm(dim=1) ** (2 - dim), (4 + rho**2) ** (1 - dim / 2))


@pytest.mark.statistical
@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
def test_far_exits_from_next_to_the_sphere_are_as_rare_as_they_should_be(generator, gap):
    """Three dimensions: P(distance to the exit > s) in closed form; half of E(1 - cos) comes from them."""
    rho, n = 1 - gap, 400_000
    start = torch.tensor([rho, 0.0, 0.0], dtype=torch.float64)
    distance = (exits(generator, 3, rho, n) - start).norm(dim=1)
    s = 30 * gap
    share = (1 - rho**2) / (2 * rho) * (1 / s - 1 / (1 + rho))
    assert_mean((distance > s).double(), share, (share * (1 - share)) ** 0.5)
    assert float(distance.min()) >= 0.999 * gap


@pytest.mark.parametrize(("place", "dim"), [(0.0, 3), (2.0, 3), (6.0, 3), (1.0, 4), (4.0, 40)])
def test_tabulated_draws_are_quantiles(place, dim):
    """Also between nodes: a wrong interpolation would shift draws by a part of a cell."""
    at, uniform = torch.tensor([[place]]).double(), torch.linspace(0.001, 0.999, 300).double()[None]
    drawn = _tabulated(at, uniform, dim)[0].numpy()
    y = np.linspace(-place - 45, place + 45, 400_001)
    density = np.exp(_log_density(torch.as_tensor(y), at[0], dim).numpy())
    cdf = np.cumsum(density)
    found = np.interp(drawn, y, (cdf - density / 2) / cdf[-1])
    np.testing.assert_allclose(found, uniform[0], rtol=0, atol=1e-5)


def test_from_the_centre_the_exit_is_uniform(generator):
    y = exits(generator, 3, 0.0, 50_000)
    assert_distribution(y[:, 0], lambda t: (1 + t) / 2)
    assert_distribution(y[:, 2], lambda t: (1 + t) / 2)


@pytest.mark.statistical
def test_queries_have_their_own_law_and_place(generator):
    """Many queries at once, a ball elsewhere, in float32."""
    centre = torch.tensor([1.0, -2.0, 0.5, 3.0])
    offset = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, -0.5, 0.2], [0.0, 0.0, 0.0, -1.9]])
    start = (centre + offset).repeat(300, 1)
    y = sample_ball_exit(start, centre, 2.0, 200, generator=generator)
    assert y.shape == (900, 200, 4)
    assert y.dtype == torch.float32
    torch.testing.assert_close((y - centre).norm(dim=2), torch.full((900, 200), 2.0))
    for row in range(3):
        for axis in range(4):
            assert_mean_is(y[row::3, :, axis], float(start[row, axis]))


def test_the_same_seed_gives_the_same_exits():
    start = torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) * 0.3
    first, again, other = (
        sample_ball_exit(start, torch.zeros(6), 1.0, 7, generator=torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 10, 1000])
def test_exit_time_is_the_mean_squared_distance(generator, dim):
    """E|Z - z|^2 = dim * a * E tau."""
    start = torch.full((1, dim), 0.6 / dim**0.5, dtype=torch.float64)
    time = ball_exit_time(start, origin(dim), 1.0, diffusion=2.0)
    assert float(time) == pytest.approx((1 - 0.36) / (2 * dim))
    y = sample_ball_exit(start, origin(dim), 1.0, 5000, generator=generator)
    squared = (y - start).square().sum(2)
    if dim > 1:
        assert_mean_is(squared, dim * 2.0 * float(time))
    coordinates = ball_exit_time(start, origin(dim), 1.0, torch.full((dim,), 2.0))
    torch.testing.assert_close(coordinates, time)


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 6, 50])
def test_control_variates_lower_the_variance_and_keep_the_mean(generator, dim):
    start = torch.rand(40, dim, generator=generator, dtype=torch.float64) * 0.6 / dim**0.5
    slope = torch.randn(dim, generator=generator, dtype=torch.float64)

    def loss(z):  # u = (b + slope . z)^2 + |slope|^2 E tau exactly, plus a harmonic exponential
        return (1 + z @ slope).square() + torch.exp(z[..., 0]) * torch.cos(z[..., 1])

    truth = loss(start) + slope.square().sum() * ball_exit_time(start, origin(dim), 1.0)
    z = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(z).sum(), z)
    y = sample_ball_exit(start, origin(dim), 1.0, 500, generator=generator)
    values = loss(y)
    mean, stderr = control_variates(values, y, start, gradient, origin(dim), 1.0)
    plain = values.std(1) / 500**0.5
    assert float((stderr / plain).median()) < 0.8
    score = (mean - truth) / stderr
    assert_mean(score, 0.0, 1.05)
    assert float(score.abs().max()) < 5
    assert 0.55 < float(score.std()) < 1.6  # of 40: 1e-5 on either side
    shifted, _ = control_variates(values, y, start, gradient, origin(dim), 1.15)  # a wrong known mean
    with pytest.raises(AssertionError):
        assert_mean((shifted - truth) / stderr, 0.0, 1.05)


def test_a_linear_function_needs_no_luck(generator):
    """Fully explained: no error left. A direction of zero changes nothing."""
    start = torch.rand(4, 5, generator=generator, dtype=torch.float64) * 0.3
    slope = torch.arange(5.0, dtype=torch.float64)
    y = sample_ball_exit(start, origin(5), 1.0, 64, generator=generator)
    mean, stderr = control_variates(y @ slope, y, start, slope.expand(4, 5), origin(5), 1.0)
    torch.testing.assert_close(mean, start @ slope)
    assert float(stderr.max()) < 1e-9
    mean, stderr = control_variates(y @ slope, y, start, torch.zeros(4, 5).double(), origin(5), 1.0)
    torch.testing.assert_close(mean, (y @ slope).mean(1))
    torch.testing.assert_close(stderr, (y @ slope).std(1) / 8, rtol=0.3, atol=0)


@pytest.mark.parametrize(("shift", "share"), [(0.0, 0.5), (0.0, 0.9999), (1000.0, 0.5)])
def test_control_variates_of_float32_exits_lose_nothing(generator, shift, share):
    """The same exits in float64: the mean differs by a hundredth of its error, or the rounding of float32."""
    start = torch.nn.functional.normalize(torch.randn(20, 10, generator=generator), dim=1) * share + shift
    centre, direction = torch.full((10,), shift), torch.randn(20, 10, generator=generator)
    y = sample_ball_exit(start, centre, 1.0, 200, generator=generator)
    values = torch.einsum("qwd,qd->qw", y - centre, direction).tanh()
    mean, stderr = control_variates(values, y, start, direction, centre, 1.0)
    exact = control_variates(*(t.double() for t in (values, y, start, direction, centre)), 1.0)
    assert bool(((mean - exact[0]).abs() <= 0.01 * exact[1] + 2**-23).all())
    torch.testing.assert_close(stderr.double(), exact[1], rtol=0.05, atol=0)


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 20, 500])
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 8.0, 300.0])
def test_drifted_directions_follow_von_mises_and_fisher(generator, dim, kappa):
    axis = torch.ones(dim, dtype=torch.float64) / dim**0.5
    n = 4000 if dim == 500 else 20_000
    xi = sample_drifted_direction((kappa * axis).expand(n, dim), generator=generator)
    torch.testing.assert_close(xi.norm(dim=1), torch.ones(n, dtype=torch.float64))
    cos = xi @ axis
    if dim == 1 and kappa > 1:  # the other side is too rare to be seen
        assert float(cos.min()) == 1 or kappa < 10
        return
    # exp(-s cos) has mean Phi(kappa - s) / Phi(kappa), every s
    s = min(kappa, 2.0) / 2 + 0.1
    log_mean = log_phi(torch.tensor([abs(kappa - s), kappa], dtype=torch.float64), dim)
    ratio = torch.exp(-s * cos - (log_mean[0] - log_mean[1]))
    assert_mean_is(ratio, 1.0)
    if dim == 3 and 0 < kappa < 100:
        assert_distribution(cos, lambda t: np.expm1(kappa * (t + 1)) / np.expm1(2 * kappa))
    if dim > 1:
        side = torch.zeros(dim, dtype=torch.float64)
        side[0], side[1] = 2**-0.5, -(2**-0.5)
        assert_mean_is(xi @ side, 0.0)
    if kappa >= 1 and dim <= 20:
        with pytest.raises(AssertionError):
            assert_mean_is(ratio, 1.04)


@pytest.mark.statistical
def test_drifted_directions_of_different_strength_do_not_mix(generator):
    drift = torch.zeros(20_000, 3)
    drift[::2, 0], drift[1::2, 1] = 5.0, 0.2
    xi = sample_drifted_direction(drift, generator=generator)
    assert xi.dtype == torch.float32
    assert_mean_is(xi[::2, 0], 1 / np.tanh(5.0) - 1 / 5.0)
    assert_mean_is(xi[1::2, 1], 1 / np.tanh(0.2) - 1 / 0.2)
    assert_equal_means(xi[::2, 1], xi[1::2, 0])


@pytest.mark.bad_input
def test_bad_input_is_named(own_checks):
    zero = torch.zeros(2)
    with pytest.raises(ValueError, match=r"1 of 2 do not, e.g. rows \[1\]"):
        sample_ball_exit(torch.tensor([[0.1, 0.0], [1.0, 0.0]]), zero, 1.0, 4, generator=None)
    with pytest.raises(ValueError, match="inside the ball"):
        ball_exit_time(torch.tensor([[float("nan"), 0.0]]), zero, 1.0)
    with pytest.raises(ValueError, match=r"centre \(dim,\)"):
        sample_ball_exit(torch.zeros(1, 3), zero, 1.0, 4, generator=None)
    with pytest.raises(ValueError, match="n_walks must be at least 16"):
        control_variates(
            torch.zeros(1, 8), torch.zeros(1, 8, 2), torch.zeros(1, 2), torch.ones(1, 2), zero, 1.0
        )
