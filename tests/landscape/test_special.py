"""Bessel functions of a ball against scipy and against elementary closed forms."""

import numpy as np
import pytest
import torch
from scipy import special

from elliptica.landscape.special import log_alpha, log_phi, screened_green_ratio

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


@pytest.mark.parametrize("dim", [3, 4, 5, 6, 20, 47, 48, 49, 120])
def test_log_phi_is_scipys_bessel_function(dim):
    nu, x = dim / 2 - 1, np.logspace(-1, 2.8, 60)
    expected = special.gammaln(nu + 1) + nu * np.log(2 / x) + np.log(special.ive(nu, x)) + x
    got = log_phi(torch.as_tensor(x), dim).numpy()
    reached = np.isfinite(expected)  # scipy underflows for large orders and small x
    assert reached.sum() > 20
    np.testing.assert_allclose(got[reached], expected[reached], rtol=1e-12, atol=1e-11)


def test_log_phi_in_low_dimensions_is_elementary():
    x = KAPPA[1:].numpy()
    x = x[x < 300]
    got = {dim: log_phi(torch.as_tensor(x), dim).numpy() for dim in (1, 2, 3)}
    for dim, expected in ((1, np.cosh(x)), (2, special.i0(x)), (3, np.sinh(x) / x)):
        np.testing.assert_allclose(got[dim], np.log(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dim", [1, 2, 3, 8, 60, 1000])
def test_log_phi_is_the_mean_over_a_sphere_for_small_kappa(dim):
    kappa = torch.tensor([0.0, 1e-4, 1e-3], dtype=torch.float64)
    expected = kappa**2 / (2 * dim) - kappa**4 / (4 * dim**2 * (dim + 2))
    torch.testing.assert_close(log_phi(kappa, dim), expected, rtol=1e-9, atol=1e-14)
    assert log_phi(kappa, dim)[0] == 0


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


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 60])
def test_screened_ratio_without_killing_or_radius_is_one(dim):
    one, zero = torch.ones(3).double(), torch.zeros(3).double()
    rho = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(screened_green_ratio(rho, one, 0.0, dim), one, rtol=0, atol=1e-11)
    torch.testing.assert_close(screened_green_ratio(zero, zero, 1.0, dim), one, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dim", [1, 2, 3, 60])
def test_a_rate_may_be_a_number(dim):
    rho, one = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(3).double()
    rates = torch.full((3,), 2.1, dtype=torch.float64)
    assert torch.equal(screened_green_ratio(rho, one, 2.1, dim), screened_green_ratio(rho, one, rates, dim))


def test_dtype_is_kept():
    x = torch.tensor([0.5, 3.0])
    assert log_phi(x, 5).dtype == log_alpha(x, 5).dtype == torch.float32
    torch.testing.assert_close(log_phi(x, 5), log_phi(x.double(), 5).float())
    assert screened_green_ratio(x / 4, x, 1.0, 5).dtype == torch.float32


@pytest.mark.bad_input
def test_dimensions_without_meaning_are_refused(own_checks):
    with pytest.raises(ValueError, match="dim must be at least 1"):
        log_phi(torch.ones(1), 0)
    with pytest.raises(ValueError, match="dim must be at least 3"):
        log_alpha(torch.ones(1), 2)
