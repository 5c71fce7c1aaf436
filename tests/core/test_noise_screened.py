"""The screened law against scipy and against killed walks, and the intrinsic dimension on known surfaces."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from elliptica import Elliptic, Green, Screened, intrinsic_dimension, sample_paths
from elliptica._utils.random import draw_inverse_gaussian
from elliptica.core.noise import check_sigma, noise_std
from laws import assert_distribution


def screened_cdf(n, r, rate):
    """By quadrature in log V, from the definition alone."""
    grid = np.linspace(-14, 14, 40_001) + math.log(r * r / n)
    v = np.exp(grid)
    density = np.exp((1 - n / 2) * grid - r * r / (2 * v) - rate * v)
    cumulative = integrate.cumulative_trapezoid(density, grid, initial=0)
    return lambda x: np.interp(np.log(x), grid, cumulative / cumulative[-1])


def variances(n, r, rate, rows, generator, sigma=None):
    start = torch.zeros(rows, n)
    end = start.clone()
    end[:, 0] = r
    return noise_std(sigma or Screened(rate), start, end, 1.0, generator).flatten().double() ** 2


@pytest.mark.statistical
@pytest.mark.parametrize(("n", "r", "rate"), [(1, 1.0, 2.0), (2, 0.5, 1.0), (5, 2.0, 3.0), (50, 1.0, 1250.0)])
def test_law_of_the_variance(n, r, rate, generator):
    assert_distribution(variances(n, r, rate, 20_000, generator), screened_cdf(n, r, rate))


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [Screened(3.3), Screened(3.0, dim=6.0), Screened(3.0, scale=1.03), Green()])
def test_law_rejects_neighbours(wrong, generator):
    samples = variances(5, 2.0, 3.0, 50_000, generator, sigma=wrong)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_distribution(samples, screened_cdf(5, 2.0, 3.0))


@pytest.mark.statistical
@pytest.mark.parametrize("p", [-60.0, -0.5, 0.0, 0.5, 4.0])
@pytest.mark.parametrize("omega", [0.01, 1.0, 50.0])
def test_inverse_gaussian_sampler(p, omega, generator):
    draws = draw_inverse_gaussian(p, torch.full((5000,), omega), generator=generator)
    grid = np.linspace(-16, 16, 40_001) + math.asinh(p / omega)
    log_density = p * grid - omega * np.cosh(grid)
    density = np.exp(log_density - log_density.max())
    cumulative = integrate.cumulative_trapezoid(density, grid, initial=0)
    assert_distribution(draws, lambda x: np.interp(np.log(x), grid, cumulative / cumulative[-1]))


@pytest.mark.statistical
def test_half_order_is_the_inverse_gaussian_law(generator):
    # order -1/2 is Wald's law: mean 1, shape omega
    draws = draw_inverse_gaussian(-0.5, torch.full((20_000,), 0.7), generator=generator)
    assert_distribution(draws, stats.invgauss(1 / 0.7, scale=0.7).cdf)


@pytest.mark.statistical
def test_small_rates_are_green_and_large_ones_straight(generator):
    assert_distribution(variances(6, 1.0, 1e-9, 20_000, generator), stats.invgamma(6 / 2 - 1, scale=0.5).cdf)
    assert float(variances(6, 1.0, 1e8, 100, generator).max()) < 1e-3


@pytest.mark.statistical
def test_the_law_is_that_of_killed_walks(generator):
    """Bridge lengths weighted by survival: thin Green's law by the chance to live through it."""
    n, r, rate = 5, 1.0, 0.8
    green = variances(n, r, 0.0, 60_000, generator, sigma=Green())
    alive = torch.rand(len(green), generator=generator, dtype=torch.float64) < (-rate * green).exp()
    assert_distribution(green[alive], screened_cdf(n, r, rate))


def test_pairs_at_distance_zero_stay_put(generator):
    x = torch.ones(4, 3)
    paths = sample_paths(x, x[:, :1], target_space="real", sigma=("screened", 1.0), generator=generator)
    assert torch.equal(paths.x, torch.ones_like(paths.x))


def test_short_forms():
    assert check_sigma(("green", 0.3)) == Green(0.3)
    assert check_sigma(("screened", 2.0)) == Screened(2.0)


def test_objective_takes_the_short_form(generator):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    x, y = torch.randn(16, 2, generator=generator), torch.randn(16, 1, generator=generator)
    objective = Elliptic(model, torch.nn.MSELoss(), sigma=("screened", 1.0), n_bridges=2, antithetic=True)
    objective(x, y, generator=generator).backward()
    assert bool(model.weight.grad.isfinite().all())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("sigma", "message"),
    [
        (("screned", 1.0), r'\("green", scale\) or \("screened", rate\)'),
        (("green",), r"Pass \(.green., scale\)"),
        (("screened", 0.0), r"Screened\.rate must be finite and above 0"),
    ],
)
def test_wrong_short_forms(sigma, message):
    with pytest.raises(ValueError, match=message):
        check_sigma(sigma)


@pytest.mark.bad_input
def test_wrong_settings():
    with pytest.raises(ValueError, match=r"Screened\.dim must be at least 1"):
        Screened(1.0, dim=0.5)
    with pytest.raises(ValueError, match="at least 10 distinct points, but x has 1"):
        intrinsic_dimension(torch.ones(50, 3))
    with pytest.raises(ValueError, match="discard must be at least 0"):
        intrinsic_dimension(torch.rand(50, 3), discard=1.0)


@pytest.mark.statistical
@pytest.mark.parametrize("m", [1, 2, 5])
def test_intrinsic_dimension_of_a_rotated_cube(m, generator):
    x = torch.rand(2000, m, generator=generator) @ torch.randn(m, 20, generator=generator)
    x = torch.cat([x, x[:500]])  # repeated points do not count
    assert abs(intrinsic_dimension(x) - m) < 0.1 * m + 0.1
    assert intrinsic_dimension(7 * x) == pytest.approx(intrinsic_dimension(x), rel=1e-3)


@pytest.mark.statistical
def test_intrinsic_dimension_of_noise_is_the_number_of_columns(generator):
    assert abs(intrinsic_dimension(torch.randn(2000, 4, generator=generator)) - 4) < 0.5


@pytest.mark.parametrize("rate", [1e-26, 1e-60, 1e-160, 1e-300])
@pytest.mark.parametrize("dim", [3, 10])
def test_a_vanishing_rate_is_greens_law(rate, dim):
    """Below a product of rate and squared distance of 1e-24 the noise once grew without bound."""
    start, end = torch.zeros(4000, dim), torch.full((4000, dim), dim**-0.5)
    green, screened = (
        noise_std(law, start, end, 1.0, torch.Generator().manual_seed(0)).log().median()
        for law in (Green(), Screened(rate))
    )
    torch.testing.assert_close(screened, green, rtol=0, atol=0.1)


@pytest.mark.bad_input
@pytest.mark.parametrize("dim", [1, 2])
def test_a_variance_beyond_the_numbers_is_refused(dim):
    start, end = torch.zeros(5, dim), torch.ones(5, dim)
    with pytest.raises(ValueError, match=r"Screened\(rate=1e-300\).*more than float32 can hold.*larger rate"):
        noise_std(Screened(1e-300), start, end, 1.0, torch.Generator().manual_seed(0))


@pytest.mark.bad_input
def test_the_law_in_one_dimension_may_be_asked_for():
    x = torch.linspace(-1, 1, 8)[:, None]

    def draw(dim):
        seeded, sigma = torch.Generator().manual_seed(3), Screened(2.0, dim=dim)
        return sample_paths(x, x, target_space="real", sigma=sigma, generator=seeded).x

    assert torch.equal(draw(1), draw(None))
    assert not torch.equal(draw(2), draw(None))
