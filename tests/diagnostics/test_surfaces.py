"""Loss surfaces: planes through the data, targets on them, and the loss where a page shows it."""

import numpy as np
import pytest
import torch
from torch import nn

from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.surfaces import BRIDGES, GRID, TIMES, choose_planes, loss_surfaces
from elliptica.report import ReportError


@pytest.fixture
def planes(generator):
    x = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    losses = torch.rand(30, generator=generator, dtype=torch.float64)
    return x, losses, choose_planes(x, torch.arange(30) % 3, losses, generator)


def test_planes_have_right_angles_and_pass_through_their_points(planes):
    x, losses, found = planes
    assert [len(plane.corners) for plane in found] == [0, 3, 3, 3]
    for plane in found:
        assert abs(float(plane.first @ plane.second)) < 1e-12
        assert float(plane.first.norm()) == pytest.approx(1)
        for row in plane.corners:
            u, v = plane.coordinates(x[row : row + 1])[0]
            torch.testing.assert_close(plane.origin + u * plane.first + v * plane.second, x[row])
            assert plane.low[0] < u < plane.high[0]
            assert plane.low[1] < v < plane.high[1]
    assert all(len({row % 3 for row in plane.corners}) == 3 for plane in found[1:])  # of different classes
    assert int(losses.argmax()) in found[-1].corners


def test_the_principal_plane_holds_most_of_the_spread(planes):
    x, _, (principal, *_) = planes
    spread = principal.coordinates(x).var(0).sum()
    others = torch.linalg.eigvalsh(torch.cov(x.T))
    torch.testing.assert_close(spread, others[-2:].sum())


def test_targets_on_a_plane_are_those_of_its_corners(planes):
    x, _, (_, plane, *_) = planes
    labels = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    corners = x[list(plane.corners)]
    torch.testing.assert_close(
        plane.targets(corners, x, labels, is_share=True), labels[list(plane.corners)], atol=1e-9, rtol=0
    )
    middle = plane.targets(corners.mean(0, keepdim=True), x, labels, is_share=True)
    torch.testing.assert_close(middle, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    beyond = plane.targets((3 * corners[0] - 2 * corners[1])[None], x, labels, is_share=True)
    assert float(beyond.min()) >= 0
    assert float(beyond.sum()) == pytest.approx(1)
    real = x[:, :1] * 2 + 1  # linear in x: the plane goes on beyond the triangle
    far = plane.targets((3 * corners[0] - 2 * corners[1])[None], x, real, is_share=False)
    torch.testing.assert_close(far, 3 * real[[plane.corners[0]]] - 2 * real[[plane.corners[1]]])


def test_points_on_a_line_and_duplicates_have_no_plane(generator):
    line = torch.linspace(0, 1, 12).double()[:, None] * torch.ones(4).double()
    assert [p.corners for p in choose_planes(line, None, torch.rand(12), generator)] == [()]
    with pytest.raises(ValueError, match="one feature"):
        choose_planes(torch.rand(5, 1), None, torch.rand(5), generator)


def test_a_grid_evaluates_the_loss_where_it_says(generator):
    x = torch.randn(50, 2, generator=generator)
    y = (3 * x[:, :1] - x[:, 1:]).clone()
    model = nn.Linear(2, 1)
    found = loss_surfaces(
        FittedModel(model, nn.MSELoss(), x, y, name="m", location=(10.0, 20.0), scale=(2.0, 3.0))
    )
    (plane,) = found["planes"]
    assert np.shape(plane["loss"]) == (GRID, GRID)
    u, v = (plane["x"][7] - 10) / 2, (plane["y"][31] - 20) / 3  # back to the network's units
    point = torch.tensor([[u, v]])
    target = y[torch.cdist(point, x).argmin(1)]
    assert plane["loss"][31][7] == pytest.approx(float((model(point) - target).detach() ** 2), rel=1e-4)
    losses = ((model(x) - y) ** 2).detach().flatten()
    assert found["band"] == pytest.approx([float(losses.min()), float(losses.max())], rel=1e-5)
    bridges = found["bridges"]
    assert np.shape(bridges["loss"]) == (BRIDGES, TIMES)
    assert np.shape(bridges["path"]) == (BRIDGES, TIMES, 2)
    known = [float(value) for value in losses]
    for line in bridges["loss"]:  # both ends are data
        assert min(abs(line[0] - k) for k in known) < 1e-4 * (1 + line[0])
        assert min(abs(line[-1] - k) for k in known) < 1e-4 * (1 + line[-1])


def test_a_perfect_model_stays_in_the_band(generator):
    """A linear model with its own outputs as targets has no loss anywhere on a bridge; a bent one has."""
    x, model = torch.randn(60, 5, generator=generator), nn.Linear(5, 2)
    found = loss_surfaces(FittedModel(model, nn.MSELoss(), x, model(x).detach()))
    assert np.max(found["bridges"]["loss"]) < 0.1  # the noise of the bridges is not the targets'

    class Bent(nn.Module):
        def forward(self, z):
            return z.square().sum(1, keepdim=True)

    bent = loss_surfaces(FittedModel(Bent(), nn.MSELoss(), x, x.square().sum(1, keepdim=True)))
    assert bent["above"]["share"] == 1.0
    assert bent["above"]["low"] < 1.0 <= bent["above"]["high"]


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_a_model_that_cannot_be_looked_at_says_so():
    with pytest.raises(ReportError, match=r"the model cannot be evaluated.*evaluated on x"):
        loss_surfaces(
            FittedModel(nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.randn(20, 2), torch.arange(20) % 2)
        )
