"""Loss maps, occupation and hitting against closed forms."""

import json
import math

import pytest
import torch
from torch import nn

from elliptica import elliptic_loss
from elliptica.core.inputs import EllipticWarning
from elliptica.landscape import (
    hitting_report,
    loss_map,
    maximum_principle_report,
    occupation_report,
    ordering_report,
    shift_bound,
    subharmonicity_report,
)
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball, Box
from elliptica.landscape.loss import LossField, join
from elliptica.landscape.operator import Operator
from elliptica.landscape.solve import estimate_landscape


class Square(nn.Module):
    def forward(self, x):
        return x.flatten(1).square().sum(1)


def plain(output, y):
    return output


def ball(dim, radius=1.0):
    return Ball(torch.zeros(dim, dtype=torch.float64), radius)


def line():
    """Two balls of radius 0.1 around 0 and 1 in the interval (-0.5, 1.5)."""
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    return DataDomain(points, epsilon=0.1, outer=Ball(torch.tensor([0.5]).double(), 1.0))


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 3, 12])
@pytest.mark.parametrize("diffusion", [1.0, 4.0])
def test_occupation_of_a_square(dim, diffusion, generator):
    """v = (1 - |x|^4) / (2 (n + 2) sigma^2) in the unit ball."""
    field = LossField(Square(), plain)
    at = torch.zeros(3, dim, dtype=torch.float64)
    at[1, 0], at[2, 0] = 0.4, -0.8
    y = torch.zeros(3, dtype=torch.float64)
    report = occupation_report(field, ball(dim), at, y, 1500, diffusion=diffusion, generator=generator)
    r = at.norm(dim=1)
    v = (1 - r**4) / (2 * (dim + 2) * diffusion)
    time = (1 - r**2) / (dim * diffusion)
    assert float(((report.integral - v) / report.integral_stderr).abs().max()) < 4.5
    assert float(((report.mean_loss - v / time) / report.mean_loss_stderr).abs().max()) < 4.5
    assert float((report.mean_loss_stderr / report.mean_loss).max()) < 0.1  # small enough to mean something
    assert float((((2 * v / time) - report.mean_loss) / report.mean_loss_stderr).abs().min()) > 8
    torch.testing.assert_close(report.loss, r.square())
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.statistical
def test_the_bridge_objective_is_not_the_mean_over_visits(generator):
    """400 normal points in three dimensions, loss ``|x|^2``: walks from the data visit the whole ball.

    Bridges stay between the data: two thirds of the mean of ``|x|^2``, plus noise. On the way from ``x``
    to the sphere of radius ``R`` the mean over a walk's visits is ``n (R^2 + |x|^2) / (2 (n + 2))``.
    """
    x = torch.randn(400, 3, dtype=torch.float64, generator=generator)
    x, y = x - x.mean(0), torch.zeros(400, 1, dtype=torch.float64)
    settings = {"sigma": 0.05, "n_times": 101, "target_space": "real", "generator": generator}
    objective = [float(elliptic_loss(Square(), plain, x, y, **settings)) for _ in range(50)]
    along_bridges = 2 / 3 * float(x.square().sum(1).mean()) + 3 * 0.05**2 / 6
    assert sum(objective) / 50 == pytest.approx(along_bridges, rel=0.02)
    around = Ball.around(x)
    visits = 3 * (around.radius**2 + x.square().sum(1)) / 10
    report = occupation_report(LossField(Square(), plain), around, x[:5], y[:5, 0], 400, generator=generator)
    assert float(((report.mean_loss - visits[:5]) / report.mean_loss_stderr).abs().max()) < 4.5
    assert float(visits.mean()) > 2.5 * along_bridges


def test_occupation_of_a_constant_has_no_error(generator):
    field = LossField(Square(), lambda output, y: 0 * output + 3.0)
    at, y = torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    report = occupation_report(field, ball(4), at, y, 50, generator=generator)
    torch.testing.assert_close(report.mean_loss, torch.full((2,), 3.0, dtype=torch.float64))
    assert float(report.mean_loss_stderr.max()) < 1e-9


def test_occupation_keeps_the_label_of_the_query(generator):
    """The loss is the label itself, so the mean along every walk is the label."""
    field = LossField(Square(), lambda output, y: 0 * output + y)
    at, y = torch.zeros(5, 2, dtype=torch.float64), torch.tensor([2, 0, 1, 2, 0])
    report = occupation_report(field, ball(2), at, y, 20, generator=generator)
    torch.testing.assert_close(report.mean_loss, y.double())


@pytest.mark.statistical
def test_occupation_with_targets_that_diffuse(generator):
    """Loss y^2 in the joint ball: half of |z|^2 for one input and one target, by symmetry at the centre."""
    field = LossField(nn.Linear(1, 1).double(), lambda output, y: y[:, 0].square())
    at = torch.zeros(1, 1, dtype=torch.float64)
    report = occupation_report(field, ball(2), at, at, 4000, joint=True, generator=generator)
    truth = 0.5 * 1 / (2 * (2 + 2))
    assert abs(float((report.integral - truth) / report.integral_stderr)) < 4.5


def test_a_loss_map_is_the_solver_with_labels_carried_along():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    field = LossField(model, nn.CrossEntropyLoss())
    at, y = 0.1 * torch.randn(3, 1, 2, 2).double(), torch.tensor([0, 2, 1])
    first = loss_map(field, ball(4), at, y, n_walks=100, generator=torch.Generator().manual_seed(1))

    def value(z, label):
        return nn.functional.cross_entropy(model(z.reshape(-1, 1, 2, 2)), label, reduction="none")

    second = estimate_landscape(
        value, ball(4), at.flatten(1), context=y, n_walks=100, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(first.value, second.value)
    torch.testing.assert_close(first.stderr, second.stderr)


@pytest.mark.statistical
def test_labels_of_the_nearest_point(generator):
    """From 0.3 between balls that end at 0.1 and 0.9: a quarter of the walks reach the one labelled 1."""
    field = LossField(Square(), lambda output, y: 0 * output + y)
    train = (torch.tensor([[0.0], [1.0]]).double(), torch.tensor([0, 1]))
    found = loss_map(
        field,
        line(),
        torch.tensor([[0.3]]).double(),
        labels="nearest",
        train=train,
        n_walks=4000,
        generator=generator,
    )
    assert abs(float(found.value) - 0.25) < 4.5 * math.sqrt(0.25 * 0.75 / 4000) + 1e-3
    assert float(found.hit_share) == 1.0


def test_queries_outside_the_training_region_are_counted(generator):
    """Of the rows passed, or of the domain's own where its balls have values: u is bounded by these."""
    x, y = torch.rand(60, 2, generator=generator).double(), (torch.arange(60) % 4).double()
    far, label = x[:5] + 3, LossField(Square(), lambda output, y: 0 * output + y)
    domain = DataDomain(x, outer=Box.around(torch.cat([x, far]), wall="reflect"))

    def notes(at, *y, **more):
        found = loss_map(label, domain, at, *y, **more, n_walks=20, generator=generator)
        return [note for note in found.notes if "training region" in note]

    known = {"labels": "nearest", "train": (x, y), "data_values": y}
    (note,) = notes(torch.cat([x[:5] + 1e-4, far]), **known)
    assert "5 of 10" in note
    assert not notes(x[:5] + 1e-4, **known)
    assert notes(far, torch.zeros(5), data_values=y)
    assert not notes(far, torch.zeros(5))  # the balls have the loss of the query's label


@pytest.mark.statistical
def test_joint_loss_map_of_linear_regression(generator):
    model = nn.Linear(2, 1).double()
    field = LossField(model, nn.MSELoss())
    at, y = torch.tensor([[0.1, 0.2]]).double(), torch.tensor([[0.3]]).double()
    found = loss_map(field, ball(3, 2.0), at, y, labels="joint", n_walks=4000, generator=generator)
    time = (4 - float(join(at, y).square().sum())) / 3
    truth = float(field(at, y)) + (float(model.weight.detach().square().sum()) + 1) * time
    assert abs(float((found.value - truth) / found.stderr)) < 4.5


@pytest.mark.statistical
def test_hitting_on_a_line(generator):
    """Between -0.5 and -0.1 from -0.2: the ball with probability 3/4, after a time of 0.3 * 0.1."""
    at = torch.tensor([[-0.2], [-0.4], [0.5]]).double()
    report = hitting_report(line(), at, n_walks=4000, generator=generator)
    truth = torch.tensor([0.75, 0.25, 1.0]).double()
    assert float((report.hit - truth).abs().max()) < 4.5 * math.sqrt(0.75 * 0.25 / 4000) + 1e-3
    time = torch.tensor([0.03, 0.03, 0.16]).double()
    assert float(((report.exit_time - time).abs() / (report.exit_time_stderr + 1e-5)).max()) < 4.5
    assert report.hit_bound.tolist() == [1.0, 1.0, 1.0]
    json.dumps(report.to_dict(), allow_nan=False)


def test_hits_of_other_domains(generator):
    """None in many dimensions, as a warning says; all between walls that reflect."""
    high = torch.randn(50, 30, generator=generator).double()
    with pytest.warns(EllipticWarning, match="outer boundary"):
        report = hitting_report(DataDomain(high), high[:4] * 0.5, n_walks=50, generator=generator)
    assert float(report.hit_bound.max()) < 0.05
    points = torch.rand(20, 2, generator=generator).double()
    at = torch.full((3, 2), 0.5).double() + 0.01 * torch.arange(3)[:, None]
    walls = DataDomain(points, outer="reflecting_box")
    assert hitting_report(walls, at, n_walks=20, generator=generator).hit.tolist() == [1.0, 1.0, 1.0]


def test_the_operator_can_be_given(generator):
    """Absorption lowers the expected loss of a positive loss."""
    field = LossField(Square(), plain)
    at, y = torch.zeros(1, 3).double(), torch.zeros(1).double()
    free = loss_map(field, ball(3), at, y, n_walks=50, generator=generator)
    damped = loss_map(
        field, ball(3), at, y, n_walks=50, operator=Operator(absorption=2.0), generator=generator
    )
    assert float(free.value) == pytest.approx(1.0)
    assert float(damped.value) == pytest.approx(2 / math.sinh(2), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_report_in_either_precision(dtype, generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(dtype)
    field = LossField(model, nn.MSELoss())
    x, y = (
        torch.randn(12, 3, generator=generator).to(dtype),
        torch.randn(12, 1, generator=generator).to(dtype),
    )
    region, draws = Ball.around(join(x, y), 1.5), {"n_walks": 20, "generator": generator}
    found = [
        occupation_report(field, region, x[:2], y[:2], joint=True, **draws),
        occupation_report(field, Ball.around(x), x[:2] / 2, y[:2], **draws),
        hitting_report(DataDomain(x), x[:3] / 2, **draws),
        shift_bound(field, x[:2], y[:2], (None, torch.full((3,), 0.1)), region, **draws),
        ordering_report(field, region, (x[:2], y[:2]), (x[2:4], y[2:4]), **draws),
        subharmonicity_report(field, x[:2], y[:2], (0.5,), 16, generator=generator),
        maximum_principle_report(field, (x, y), (x / 2, y)),
    ]
    for report in found:
        json.dumps(report.to_dict(), allow_nan=False)
        assert len(str(report).splitlines()) > 2
        assert "nan" not in str(report)
    assert loss_map(field, region, x, y, labels="joint", **draws).value.dtype == dtype
