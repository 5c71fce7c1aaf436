"""Appendix E: each formulation against its identity, and the readings that must not be minimised."""

import math

import pytest
import torch
from scipy import integrate
from torch import nn

from elliptica import Elliptic
from elliptica.core.formulations import DynkinSum, SourceTerm


class Quadratic(nn.Module):
    """Output ``w . x``; with the squared error the expected loss along a diffusion is known."""

    def __init__(self, n=3):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, n, dtype=torch.float64))

    def forward(self, x):
        return (x @ self.weight)[:, None]


def batch(rows, generator, n=3):
    x = torch.randn(rows, n, dtype=torch.float64, generator=generator)
    return x, torch.randn(rows, 1, dtype=torch.float64, generator=generator)


@pytest.mark.statistical
@pytest.mark.parametrize("n_steps", [1, 4])
@pytest.mark.parametrize("sigma_y", [0.0, 0.7])
def test_dynkin_sum_is_the_expected_loss_at_the_end(n_steps, sigma_y, generator):
    model, sigma, horizon = Quadratic(), 0.8, 2.0
    x, y = batch(1, generator)
    many = x.expand(200_000, -1), y.expand(200_000, -1)
    objective = DynkinSum(model, nn.MSELoss(), sigma=sigma, sigma_y=sigma_y, horizon=horizon, n_steps=n_steps)
    # one value per row, by weights that pick it: the mean over rows and its error
    value = float(objective(*many, generator=generator).detach())
    norm = float(model.weight.detach().square().sum())
    exact = float((model(x) - y).detach().square()) + horizon * (sigma**2 * norm + sigma_y**2)
    spread = 4 * math.sqrt(2) * horizon * (sigma**2 * norm + sigma_y**2) / math.sqrt(200_000)
    assert value == pytest.approx(exact, abs=2 * spread)
    wrong = float((model(x) - y).detach().square()) + horizon * (sigma * norm + sigma_y)  # no square
    assert value != pytest.approx(wrong, abs=2 * spread)


def test_without_noise_and_in_eval_dynkin_is_ordinary_training(generator):
    model = Quadratic()
    x, y = batch(16, generator)
    plain = nn.functional.mse_loss(model(x), y)
    torch.testing.assert_close(DynkinSum(model, nn.MSELoss(), sigma=0.0)(x, y), plain)
    torch.testing.assert_close(DynkinSum(model, nn.MSELoss(), sigma=3.0).eval()(x, y), plain)


def test_source_term_is_clean_loss_plus_duration_times_bridges(generator):
    model = Quadratic()
    x, y = batch(16, generator)
    objective = SourceTerm(model, nn.MSELoss(), duration=0.3, sigma=0.2, sampling="path")
    bridges = Elliptic(model, nn.MSELoss(), sigma=0.2, sampling="path")
    seed = torch.Generator().manual_seed(3)
    value = objective(x, y, generator=seed)
    expected = nn.functional.mse_loss(model(x), y) + 0.3 * bridges(
        x, y, generator=torch.Generator().manual_seed(3)
    )
    torch.testing.assert_close(value, expected)
    zero = SourceTerm(model, nn.MSELoss(), duration=0.0)(x, y)
    torch.testing.assert_close(zero, nn.functional.mse_loss(model(x), y))
    torch.testing.assert_close(objective.eval()(x, y), nn.functional.mse_loss(model(x), y))


def test_dynkin_over_bridges_with_brownian_successors_has_no_lower_bound():
    """Why it is not offered: with ``l = a (1 - cos k x) >= 0`` the sum falls with ``a`` without end."""
    c = 3.0  # k * sigma, for a bridge from pi / k to itself, horizon 1

    def along(s):  # -E cos(k X_s) when X_s is normal about pi / k with variance sigma**2 s (1 - s)
        return math.exp(-(c**2) * s * (1 - s) / 2)

    sum_over_a = 2 - c**2 / 2 * integrate.quad(along, 0, 1)[0]
    assert sum_over_a < -0.2
