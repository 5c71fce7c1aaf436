"""Proposition 4: with the loss as a source, the landscape stays below the boundary's largest value."""

import pytest
import torch

from elliptica.landscape import Ball, DataDomain, Operator, check_maximum_principle, estimate_landscape

pytestmark = [pytest.mark.statistical, pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")]


def loss(z):
    """A loss that is nowhere negative, and largest inside."""
    return 3 * torch.exp(-4 * z.square().sum(1))


def boundary(z):
    """Values from 0 to 1 on the unit sphere."""
    return (1 + z[:, 0]) / 2


def region(around_data, generator):
    ball = Ball(torch.zeros(3, dtype=torch.float64), 1.0)
    if not around_data:
        return ball
    points = 0.4 * torch.randn(6, 3, dtype=torch.float64, generator=generator).clamp(-1, 1)
    return DataDomain(points, outer=ball)


def least_landscape(source, around_data, generator):
    """``u`` with ``1/2 Laplacian(u) = loss`` (Eq. (16)) at points of the ball, less four standard errors."""
    directions = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    at = 0.8 * torch.rand(40, 1, dtype=torch.float64, generator=generator) * directions
    at = at / directions.norm(dim=1, keepdim=True)
    domain = region(around_data, generator)
    if around_data:
        at = at[domain.nearest_ball(at)[0] > 0.01]
    estimate = estimate_landscape(
        boundary, domain, at, operator=Operator(source=source), n_walks=400, generator=generator
    )
    return estimate.value - 4 * estimate.stderr - estimate.bias


def holds(source, around_data, generator):
    values = least_landscape(source, around_data, generator)
    return check_maximum_principle(torch.tensor([0.0, 1.0], dtype=torch.float64), values).holds


@pytest.mark.parametrize("around_data", [False, True])
def test_the_boundary_bounds_the_landscape(around_data, generator):
    """``A u = l >= 0``: subharmonic, so that the largest value is on the boundary."""
    assert holds(lambda z: -loss(z), around_data, generator)
    strong = least_landscape(lambda z: -8 * loss(z), around_data, generator)
    assert float(strong.min()) < 0  # below every loss, so it is not an expected one


@pytest.mark.parametrize("around_data", [False, True])
@pytest.mark.parametrize(
    "planted",
    [lambda z: 4 * loss(z), lambda z: -4 * loss(z) + 8, lambda z: 4 * (loss(z) - 1.5).abs()],
    ids=["the other sign", "a loss below zero", "a size instead of a loss"],
)
def test_planted_defects_are_rejected(planted, around_data, generator):
    """What is not ``A u = l`` with ``l >= 0`` exceeds the boundary by more than the error bars allow."""
    assert not holds(planted, around_data, generator)
