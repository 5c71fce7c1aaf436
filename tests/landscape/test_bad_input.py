"""Input whose result would be silently wrong: each entry, each bad value, and the exception."""

import math

import pytest
import torch
from torch import nn

from elliptica import HittingTimes, estimate_landscape
from elliptica.landscape import Ball, Box, DataDomain, LossField, Operator, Whitened, check_maximum_principle
from elliptica.landscape.domains import Polytope
from elliptica.landscape.exits import sample_ball_exit
from elliptica.landscape.hitting_times import draw_uniform_points
from elliptica.landscape.loss import join
from elliptica.landscape.spheres import walk_on_spheres

pytestmark = [pytest.mark.bad_input, pytest.mark.usefixtures("own_checks")]
NAN = math.nan
TWO = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
DISK, AT = Ball(torch.zeros(2), 1.0), torch.tensor([[0.5, 0.3], [-0.2, 0.1]])
WALLS = Box(-torch.ones(2), torch.ones(2), "reflect")
MOONS, LABELS = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: DataDomain(TWO, epsilon=0.6), "epsilon"),
        (lambda: DataDomain(TWO, fraction=0.6), "epsilon"),
        (lambda: DataDomain(TWO, epsilon=torch.tensor([0.1, -1.0])), "epsilon"),
        (lambda: DataDomain(TWO, epsilon=torch.tensor([0.1, NAN])), "epsilon"),
        (lambda: DataDomain(TWO[:1]), "epsilon"),
        (lambda: DataDomain(torch.ones(3, 2)), "epsilon"),
        (lambda: DataDomain(TWO * NAN), "points"),
        (lambda: DataDomain(TWO, outer=Ball(torch.zeros(2), 0.5)), "outer"),
        (lambda: DataDomain(TWO, outer="bal"), "outer"),
        (lambda: DataDomain(TWO, outer="box"), "Box"),
        (lambda: Box(torch.zeros(2), torch.tensor([1.0, NAN])), "Box"),
        (lambda: Polytope.hull(torch.randn(30, 8)), "points"),
        (lambda: Operator(diffusion=torch.tensor([1.0, 0.0])), "diffusion"),
        (lambda: Operator(diffusion=-1.0), "diffusion"),
    ],
)
def test_domains_and_coefficients(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()


def test_balls_that_overlap_far_from_the_closest_pair():
    points = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [6.0, 0.0]])
    with pytest.raises(ValueError, match="epsilon"):
        DataDomain(points, epsilon=torch.tensor([0.01, 0.01, 0.6, 0.6]))


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"at": torch.tensor([[0.0, 0.0], [0.9, 0.9]])}, "at"),
        ({"at": torch.tensor([[NAN, 0.0]])}, "at"),
        ({"at": torch.zeros(2, 1)}, "at"),
        ({"at": torch.zeros(2)}, "at"),
        ({"n_walks": 1}, "n_walks"),
        ({"solver": "sphere"}, "solver"),
        ({"solver": "exact", "operator": Operator(absorption=1.0)}, "solver"),
        ({"solver": "spheres", "operator": Operator(diffusion=torch.eye(2))}, "solver"),
        ({"drift": "mixture", "operator": Operator(drift=torch.ones(2))}, "drift"),
        ({"operator": Operator(drift=torch.ones(1))}, "drift"),
        ({"operator": Operator(diffusion=torch.ones(1))}, "diffusion"),
        ({"operator": Operator(drift=lambda z: z[:, :1])}, "drift"),
        ({"operator": Operator(source=lambda z: z[:, :1])}, "source"),
        ({"operator": Operator(absorption=lambda z: z[:, :1])}, "absorption"),
        ({"operator": Operator(diffusion=lambda z: z[:, :1])}, "diffusion"),
        ({"data_values": torch.ones(3)}, "data_values"),
        ({"domain": DataDomain(AT), "at": AT[:1], "data_values": torch.ones(1)}, "data_values"),
        ({"domain": DataDomain(AT), "at": AT[:1], "data_values": torch.full((2,), NAN)}, "data_values"),
        ({"context": torch.ones(3, 1)}, "context"),
        ({"value": NAN}, "value"),
        ({"value": lambda z: torch.where(z[:, 0] > 0, NAN, 0.0)}, "value"),
        ({"value": lambda z: z[:, :1]}, "value"),
        (
            {"domain": Whitened(DISK, torch.zeros(2), torch.eye(2)), "operator": Operator(diffusion=2.0)},
            "operator",
        ),
    ],
)
def test_estimate_landscape(changes, argument):
    arguments = {"value": lambda z: z[:, 0], "domain": DISK, "at": AT, "n_walks": 4, "dt": 0.01, **changes}
    with pytest.raises(ValueError, match=argument):
        estimate_landscape(**arguments)


def walk(domain, start, operator=None):
    walk_on_spheres(domain, torch.tensor(start), operator or Operator(), shell=1e-3, generator=None)


def hitting(**changes):
    given = {"x": MOONS, "y": LABELS, "num_classes": 2, **changes}
    return HittingTimes(nn.Linear(2, 2), nn.CrossEntropyLoss(), given.pop("x"), given.pop("y"), **given)


class Nowhere:
    """A region that does not overlap the box around the data."""

    def distance(self, z):
        return torch.full_like(z[:, 0], -1.0)


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: walk(DISK, [[0.9, 0.9]]), ValueError, "start"),
        (lambda: walk(WALLS, [[0.5, 0.5]], Operator(drift=torch.ones(2))), ValueError, "drift"),
        (
            lambda: sample_ball_exit(torch.tensor([[1.0, 0.0]]), torch.zeros(2), 1.0, 4, generator=None),
            ValueError,
            "start",
        ),
        (lambda: check_maximum_principle(torch.tensor([NAN]), torch.ones(2)), ValueError, "boundary_losses"),
        (
            lambda: check_maximum_principle(torch.ones(2), torch.tensor([math.inf])),
            ValueError,
            "interior_losses",
        ),
        (lambda: join(torch.randn(2, 3), torch.tensor([0, 1])), TypeError, "y"),
        (lambda: hitting(x=MOONS * NAN), ValueError, "points"),
        (lambda: hitting(y=LABELS + 1), ValueError, "y"),
        (lambda: hitting(sample_weight=torch.ones(11)), ValueError, "sample_weight"),
        (lambda: hitting(x=MOONS.clone().requires_grad_()), ValueError, "x requires"),
        (lambda: hitting(sample_weight=torch.ones(12, requires_grad=True)), ValueError, "sample_weight"),
        (lambda: hitting()(MOONS.clone().requires_grad_(), LABELS), ValueError, "x requires"),
        (lambda: hitting()(100 * MOONS, LABELS), ValueError, "start"),
        (lambda: hitting()(MOONS), ValueError, "x and y"),
        (lambda: hitting()(sample_weight=torch.ones(12)), ValueError, "sample_weight"),
        (lambda: hitting()(MOONS, LABELS, sample_weight=torch.ones(12, 1)), ValueError, "sample_weight"),
        (lambda: hitting().eval()(MOONS), ValueError, "x and y"),
        (lambda: draw_uniform_points(Nowhere(), MOONS, 3, None), ValueError, "starts"),
    ],
)
def test_walks_and_losses(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_no_finished_walk_is_no_loss():
    objective = hitting(outer="ball", max_steps=1)
    with pytest.raises(ValueError, match="max_steps"):
        objective(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))


class Short(nn.Linear):
    """A model that drops a row."""

    def forward(self, x):
        return super().forward(x)[:-1]


@pytest.mark.parametrize(
    ("model", "loss_fn", "y"),
    [
        (nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.zeros(3).long()),
        (nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.tensor([1, 2])),
        (nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.tensor([1, -100])),
        (nn.Linear(3, 1), nn.MSELoss(), torch.tensor([[NAN], [0.0]])),
        (nn.Linear(3, 1), nn.MSELoss(), torch.zeros(2)),
        (Short(3, 1), nn.MSELoss(), torch.zeros(2, 1)),
        (Short(3, 2), nn.CrossEntropyLoss(), torch.zeros(2).long()),
    ],
)
def test_loss_field(model, loss_fn, y):
    with pytest.raises(ValueError):
        LossField(model, loss_fn)(torch.randn(2, 3), y)
