"""Training on hitting times: its value against exact harmonic measures, its gradient, starts and ends."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import EllipticWarning, HittingTimes
from elliptica.landscape import Ball, Box, Polytope
from elliptica.landscape.estimate import UNFINISHED
from elliptica.landscape.hitting_times import draw_between, draw_uniform_points
from laws import assert_distribution, assert_frequencies, assert_mean
from multipole import solve_disk

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")


def cloud(generator, n=20, dim=1, dtype=torch.float64):
    """Inputs and real targets, uniform in [-1, 1]."""
    z = 2 * torch.rand(n, dim + 1, generator=generator, dtype=dtype) - 1
    return z[:, :dim], z[:, dim:]


def product(output, target):
    """``x y``, a loss that is itself harmonic in the joint plane."""
    return (output * target).flatten()


def moons_like(generator, n=40, dim=2, n_classes=2):
    y = torch.arange(n) % n_classes
    return torch.randn(n, dim, generator=generator) + y[:, None], y


def harmonic(generator, **settings):
    return HittingTimes(nn.Identity(), product, *cloud(generator), target_space="real", **settings)


def free_places(objective, n, generator):
    """Inputs and targets farthest from the balls among many near the middle."""
    z = torch.rand(500, 2, generator=generator).double() - 0.5
    z = z[objective.domain.distance(z).topk(n).indices]
    assert float(objective.domain.distance(z).min()) > 0.01
    return z[:, :1], z[:, 1:]


def loss_at(objective, ends):
    """Loss of every end by itself."""
    return objective.loss(objective.model(ends.x), ends.y)


# The value: the landscape at the starts, averaged.


@pytest.mark.statistical
@pytest.mark.parametrize("outer", ["ball", "box", "hull", "reflecting_box"])
def test_the_mean_of_a_harmonic_loss_is_its_value_at_the_start(generator, outer):
    """E l(end) = l(start) for harmonic l, whatever the boundary; walls that reflect are another problem."""
    objective = harmonic(generator, outer=outer, n_walks=4000, fraction=0.45)
    x, y = free_places(objective, 2, generator)
    ends = objective.sample(x, y, generator=generator)
    values = loss_at(objective, ends).reshape(2, -1)
    assert float(objective.loss_on(ends)) == pytest.approx(float(values.mean()))
    truth = (x * y).flatten()
    if outer == "reflecting_box":  # the product does not have slope zero at the walls
        assert ends.shares["data"] == 1
        return
    for row, value in zip(values, truth, strict=True):
        assert_mean(row, float(value), float(row.std()))


@pytest.mark.statistical
def test_the_test_above_rejects_targets_of_the_data(generator):
    """Not the walk's own target at its end but that of the datum it met: another number."""
    x, y = torch.tensor([[0.6], [-0.6]]).double(), torch.tensor([[0.6], [-0.6]]).double()
    objective = HittingTimes(nn.Identity(), product, x, y, target_space="real", epsilon=0.4, outer="ball")
    middle = torch.zeros(4000, 1).double()
    ends = objective.sample(middle, middle, generator=generator)
    right = product(ends.x, ends.y)
    assert_mean(right, 0.0, float(right.std()))
    met = (ends.datum >= 0)[:, None]
    wrong = torch.where(met, objective.points[ends.datum.clamp_min(0), 1:], ends.y)
    values = product(ends.x, wrong)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(values, 0.0, float(values.std()))


@pytest.mark.statistical
def test_value_among_several_balls_equals_a_series(generator):
    """Five balls with values of their own in the disk: a least-squares series knows the landscape."""
    angle = 2 * math.pi * torch.arange(5).double() / 5
    centres = 0.55 * torch.stack([angle.cos(), angle.sin()], 1)
    value = torch.tensor([0.0, 1.0, 0.3, 0.7, 2.0]).double()

    def loss(output, target):
        z = torch.cat([output, target], 1)
        distance, nearest = torch.cdist(z, centres).min(1)
        return torch.where(distance < 0.11, value[nearest], 0.5 + 0.3 * z[:, 0])

    objective = HittingTimes(
        nn.Identity(),
        loss,
        centres[:, :1],
        centres[:, 1:],
        target_space="real",
        epsilon=0.1,
        outer=Ball(torch.zeros(2).double(), 1.0),
        n_walks=3000,
    )
    u, residual = solve_disk(
        (centres[:, 0] + 1j * centres[:, 1]).numpy(), [0.1] * 5, value.numpy(), lambda z: 0.5 + 0.3 * z.real
    )
    assert residual < 1e-3
    x, y = torch.tensor([[0.0], [0.3]]).double(), torch.tensor([[0.1], [-0.4]]).double()
    values = loss_at(objective, objective.sample(x, y, generator=generator)).reshape(2, -1)
    for row, z in zip(values, [0.1j, 0.3 - 0.4j], strict=True):
        assert_mean(row, float(u(np.array([z]))[0]), float(row.std()))


# Starts.


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_uniform_starts_in_a_ball(generator, dim):
    centre = torch.arange(dim).double()
    z = draw_uniform_points(Ball(centre, 2.0), torch.zeros(1, dim).double(), 4000, generator) - centre
    assert_distribution((z.norm(dim=1) / 2) ** dim, "uniform")
    assert_mean(z[:, 0] > 0, 0.5, 0.5)
    if dim > 1:  # a uniform radius crowds the middle
        wrong = torch.rand(4000, generator=generator)
        with pytest.raises(AssertionError):
            assert_distribution(wrong**dim, "uniform")


@pytest.mark.statistical
def test_uniform_starts_in_box_and_hull(generator):
    low, high = torch.tensor([0.0, -1.0]).double(), torch.tensor([1.0, 3.0]).double()
    z = draw_uniform_points(Box(low, high), torch.zeros(2, 2).double(), 4000, generator)
    for i in range(2):
        assert_distribution((z[:, i] - low[i]) / (high - low)[i], "uniform")
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
    z = draw_uniform_points(Polytope.hull(corners), corners, 4000, generator)
    assert len(z) == 4000
    assert float(z.sum(1).max()) < 1
    assert_distribution(1 - (1 - z[:, 0]) ** 2, "uniform")  # the marginal law of a triangle


@pytest.mark.statistical
def test_starts_between_data(generator):
    """On the line between two different rows, every pair and every place alike."""
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
    z = draw_between(points, 6000, generator)
    edges = torch.stack([z[:, 1] == 0, z[:, 0] == 0, (z.sum(1) - 1).abs() < 1e-6], 1)
    assert bool((edges.sum(1) == 1).all())
    assert_frequencies(edges.sum(0), [1 / 3] * 3)
    assert_distribution(z[edges[:, 0], 0], "uniform")


def test_walks_from_the_data_are_ordinary_training(generator):
    """The printed sum starts at the data: every hitting time is zero."""
    x, y = moons_like(generator)
    model, loss_fn = nn.Linear(2, 2), nn.CrossEntropyLoss()
    objective = HittingTimes(model, loss_fn, x, y, num_classes=2)
    loss = objective(x, y, generator=generator)
    torch.testing.assert_close(loss, loss_fn(model(x), y))
    assert objective.shares == {"data": 1.0, "outer": 0.0, "unfinished": 0.0}


def test_a_start_in_a_ball_ends_where_it_is(generator):
    """Not on the surface: tau is zero there."""
    x, y = torch.zeros(2, 1), torch.tensor([[0.0], [1.0]])
    objective = HittingTimes(nn.Identity(), product, x, y, target_space="real", epsilon=0.2, outer="ball")
    ends = objective.sample(torch.tensor([[0.05]]), torch.tensor([[0.1]]), generator=generator)
    assert int(ends.datum) == 0
    torch.testing.assert_close((ends.x, ends.y), (torch.tensor([[0.05]]), torch.tensor([[0.1]])))


# Ends.


@pytest.mark.parametrize(("n_classes", "dim"), [(2, 3), (3, 4), (4, 5)])
def test_classes_walk_in_the_plane_of_the_simplex(generator, n_classes, dim):
    """One coordinate less than classes, distances kept, and back to the same labels."""
    x, y = moons_like(generator, n=12, n_classes=n_classes)
    objective = HittingTimes(
        nn.Linear(2, n_classes), nn.CrossEntropyLoss(), x, y, num_classes=n_classes, outer="ball"
    )
    z = objective.join(x, y)
    assert z.shape == (12, dim)
    hot = torch.cat([x, F.one_hot(y, n_classes).float()], 1)
    torch.testing.assert_close(torch.cdist(z, z), torch.cdist(hot, hot), atol=1e-5, rtol=1e-5)
    ends = objective.sample(n_starts=200, generator=generator)
    assert ends.y.shape == (200, n_classes)
    torch.testing.assert_close(ends.y.sum(1), torch.ones(200))
    assert float(ends.y.min()) >= 0
    met = ends.datum[ends.datum >= 0]
    radius = objective.domain.radii[met][:, None]
    # the simplex is convex, so the way back to it brings nobody farther from the label
    assert bool(((ends.y[ends.datum >= 0] - F.one_hot(y, n_classes)[met]).norm(dim=1, keepdim=True)
                 <= radius * 1.001).all())  # fmt: skip


def test_many_dimensions_leave_the_outer_boundary(generator):
    """In 21 dimensions no walk meets a datum: the loss is that on the sphere, and a warning says so."""
    x, y = moons_like(generator, n=60, dim=20)
    objective = HittingTimes(nn.Linear(20, 2), nn.CrossEntropyLoss(), x, y, num_classes=2, n_starts=150)
    with pytest.warns(EllipticWarning):
        ends = objective.sample(generator=generator)
    assert ends.shares == {"data": 0.0, "outer": 1.0, "unfinished": 0.0}
    ball = objective.domain.domain
    assert isinstance(ball, Ball)  # "auto" gave up on reflecting walls
    assert not bool((ends.x.norm(dim=1) > float(ball.centre.norm()) + ball.radius).any())


# Gradient and averages.


def test_gradient_is_that_of_the_loss_at_the_ends(generator):
    x, y = moons_like(generator)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    objective = HittingTimes(model, nn.CrossEntropyLoss(), x, y, num_classes=2, n_starts=20, n_walks=3)
    seed = generator.get_state()
    objective(generator=generator).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    ends = objective.sample(generator=generator.set_state(seed))
    assert len(ends) == 60
    assert not ends.x.requires_grad
    total = sum(
        -(target * F.log_softmax(model(point[None]), 1)[0]).sum()
        for point, target in zip(ends.x, ends.y, strict=True)
    )
    (total / 60).backward()
    for a, b in zip(found, (p.grad for p in model.parameters()), strict=True):
        torch.testing.assert_close(a, b)


def test_unfinished_walks_are_skipped_and_reported(generator):
    objective = harmonic(generator, outer="ball", max_steps=4, n_starts=200)
    with pytest.warns(EllipticWarning):
        ends = objective.sample(generator=generator)
    lost = ends.datum == UNFINISHED
    assert 0.05 < ends.shares["unfinished"] == float(lost.double().mean()) < 1
    assert sum(ends.shares.values()) == pytest.approx(1)
    kept = product(ends.x, ends.y)[~lost]
    torch.testing.assert_close(objective.loss_on(ends), kept.mean())


def test_class_weights_are_averaged_as_torch_does(generator):
    """From the data, where walks end at once, and in eval mode: torch's own number, whatever is drawn."""
    x, y = moons_like(generator, n=41, n_classes=3)
    model, loss_fn = nn.Linear(2, 3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]))
    objective = HittingTimes(model, loss_fn, x, y, outer="ball")
    torch.testing.assert_close(objective(x, y), loss_fn(model(x), y))
    for target in (y, F.one_hot(y, 3).float()):
        torch.testing.assert_close(objective.eval()(x, target), loss_fn(model(x), target))
    ends = objective.train().sample(generator=generator)
    expected = objective.loss(model(ends.x), ends.y).mean() / loss_fn.weight[y].mean()
    torch.testing.assert_close(objective.loss_on(ends), expected)


# As a module.


def test_eval_mode_is_the_ordinary_loss(generator):
    x, y = moons_like(generator)
    model, loss_fn = nn.Linear(2, 2), nn.CrossEntropyLoss()
    objective = HittingTimes(model, loss_fn, x, y, num_classes=2).eval()
    torch.testing.assert_close(objective(x[:7] + 1, y[:7]), loss_fn(model(x[:7] + 1), y[:7]))


@pytest.mark.slow
def test_a_compiled_objective_is_the_same(generator):
    x, y = moons_like(generator)
    objective = HittingTimes(nn.Linear(2, 2), nn.CrossEntropyLoss(), x, y, num_classes=2)
    seed = generator.get_state()
    expected = objective(generator=generator).item()
    compiled = torch.compile(objective, backend="eager")
    assert compiled(generator=generator.set_state(seed)).item() == pytest.approx(expected)
