"""Exits from a ball against their law; Bessel functions against scipy and elementary closed forms."""

import numpy as np
import pytest
import torch
from scipy import special

from elliptica.landscape.exits import (
    ball_exit_time,
    log_alpha,
    log_phi,
    sample_ball_exit,
    sample_drifted_direction,
    screened_green_ratio,
)
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
@pytest.mark.parametrize("dim", [2, 3, 4, 7, 50, 3072])
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


# Bessel functions of a ball.

KAPPA = torch.cat([torch.zeros(1), torch.logspace(-8, 3, 80)]).double()


def log_series(kappa, dim):
    """Log of sum (kappa^2/4)^m / (m! (dim/2)_m), summed in log space: an independent route."""
    m = np.arange(4000)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.where(m == 0, 0.0, 2 * m * np.log(kappa / 2))
    terms = power - special.gammaln(m + 1) - special.gammaln(m + dim / 2) + special.gammaln(dim / 2)
    return special.logsumexp(terms, axis=0)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 7, 10, 49, 50, 51, 100, 1000, 3072, 10_000])
def test_log_phi_is_the_series(dim):
    expected = log_series(KAPPA.numpy(), dim)
    scale = np.maximum(1, special.gammaln(dim / 2 + KAPPA.numpy()))  # what rounding in the reference costs
    assert np.all(np.abs(log_phi(KAPPA, dim).numpy() - expected) < 1e-13 * scale + 1e-12)


@pytest.mark.parametrize("dim", [3, 4, 5, 6, 9, 20, 49, 50, 51, 100])
def test_log_alpha_is_scipys_bessel_function(dim):
    nu, x = dim / 2 - 1, np.logspace(-1.5, 2.5, 60)
    expected = np.log(2) + nu * np.log(x / 2) + np.log(special.kve(nu, x)) - x - special.gammaln(nu)
    np.testing.assert_allclose(log_alpha(torch.as_tensor(x), dim), expected, rtol=1e-12, atol=1e-11)
    assert log_alpha(torch.zeros(1).double(), dim) == pytest.approx(0, abs=1e-14)


def green_ratio(rho, radius, k, dim):
    """The definition, term by term."""
    nu = dim / 2 - 1
    if dim == 1:
        return np.sinh(k * (radius - rho)) / (k * (radius - rho) * np.cosh(k * radius))

    def regular(x):
        return x**-nu * special.iv(nu, x)

    def singular(x):
        return x**-nu * special.kv(nu, x)

    vanishing = singular(k * rho) - singular(k * radius) * regular(k * rho) / regular(k * radius)
    if dim == 2:
        return vanishing / np.log(radius / rho)
    pole = 2 ** (nu - 1) * special.gamma(nu) / k ** (2 * nu)
    return vanishing / (pole * (rho ** (2 - dim) - radius ** (2 - dim)))


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 6, 9, 20, 51, 60])
def test_screened_ratio_is_its_definition(dim):
    radius = 1.7
    rho, k = np.meshgrid(radius * np.array([0.05, 0.3, 0.6, 0.9, 0.999]), [0.1, 0.3, 3.0, 12.0])
    expected = green_ratio(rho.ravel(), radius, k.ravel(), dim)
    got = screened_green_ratio(
        torch.as_tensor(rho.ravel()),
        torch.full((rho.size,), radius, dtype=torch.float64),
        torch.as_tensor(k.ravel()),
        dim,
    )
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 9, 60, 1000])
def test_screened_ratio_at_the_sphere_is_the_chance_to_survive(dim):
    gap = torch.tensor([0.0, 1e-12, 1e-9, 1e-7, 1e-6], dtype=torch.float64)
    for k in (0.0, 0.5, 4.0):
        got = screened_green_ratio(1 - gap, torch.ones(5).double(), k, dim)
        survive = torch.exp(-log_phi(torch.tensor([k]).double(), dim)).expand(5)
        torch.testing.assert_close(got, survive, rtol=0, atol=3e-6)
        torch.testing.assert_close(got[:3], survive[:3], rtol=0, atol=1e-8)
