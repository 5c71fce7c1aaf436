"""Input whose result would be silently wrong: one table of entries and bad values, by the argument."""

import math

import pytest
import torch
from torch import nn

from elliptica import HittingTimes, estimate_landscape
from elliptica.landscape import (
    Ball,
    Box,
    DataDomain,
    LossField,
    Operator,
    certified_lipschitz,
    check_maximum_principle,
    loss_map,
    maximum_principle_report,
    neighbour_loss,
    occupation_report,
    shift_bound,
    shifted_probes,
    subharmonicity_report,
    weights_report,
)
from elliptica.landscape.domains import Polytope
from elliptica.landscape.exits import sample_ball_exit
from elliptica.landscape.hitting_times import draw_uniform_points
from elliptica.landscape.loss import join
from elliptica.landscape.walks import walk_on_spheres

pytestmark = [
    pytest.mark.bad_input,
    pytest.mark.usefixtures("own_checks"),
    pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning"),
]
NAN = math.nan
TWO = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
FOUR = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [6.0, 0.0]])
DISK, AT = Ball(torch.zeros(2), 1.0), torch.tensor([[0.5, 0.3], [-0.2, 0.1]])
CUBE = Box(-torch.ones(3), torch.ones(3))
MOONS, LABELS = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
ZEROS, ORIGIN = torch.zeros(3), torch.zeros(2, 2).double()


def solve(**changes):
    given = {"value": lambda z: z[:, 0], "domain": DISK, "at": AT, "n_walks": 4, "dt": 0.01, **changes}
    return estimate_landscape(**given)


def around(data_values):
    return solve(domain=DataDomain(AT), at=AT[:1], data_values=data_values)


def column(z):
    """A column where a vector belongs."""
    return z[:, :1]


def walk(domain, start):
    walk_on_spheres(domain, torch.tensor(start), Operator(), shell=1e-3, generator=None)


def hitting(**changes):
    given = {"x": MOONS, "y": LABELS, "num_classes": 2, **changes}
    return HittingTimes(nn.Linear(2, 2), nn.CrossEntropyLoss(), given.pop("x"), given.pop("y"), **given)


class Nowhere:
    """A region that does not overlap the box around the data."""

    def distance(self, z):
        return torch.full_like(z[:, 0], -1.0)


class Short(nn.Linear):
    """A model that drops a row."""

    def forward(self, x):
        return super().forward(x)[:-1]


class Twice(nn.Linear):
    """A layer whose constant is not that of its kind."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_forward_hook(lambda m, x, out: 2 * out)
    return model


def field(function=lambda output: output):
    """The square, or a function of it, whatever the target."""
    return LossField(nn.Identity(), lambda output, y: function(output.square().sum(1)))


def late():
    """A loss that is NaN away from the queries."""
    return field(lambda square: (0.5 - square).sqrt())


def subharmonic(made=None, x=ORIGIN, y=ORIGIN[:, 0], radii=0.1, *more):
    return subharmonicity_report(made or field(), x, y, radii, *more)


def classes(y):
    return LossField(nn.Linear(3, 2), nn.CrossEntropyLoss())(torch.randn(2, 3), y)


def real(y, model=None):
    return LossField(model or nn.Linear(3, 1), nn.MSELoss())(torch.randn(2, 3), y)


def near(at, x, y):
    return neighbour_loss(LossField(nn.Tanh(), nn.MSELoss()), at, (x, y))


def shifted(domain, loss=None, offset=None):
    made = LossField(nn.Linear(2, 1), loss or nn.MSELoss())
    return shift_bound(made, torch.zeros(1, 2), torch.zeros(1, 1), (None, offset), domain)


VALUE_ERRORS = {
    # domains and coefficients
    "epsilon": [
        *(lambda v=v: DataDomain(TWO, epsilon=v) for v in (0.6, *torch.tensor([[0.1, -1.0], [0.1, NAN]]))),
        lambda: DataDomain(TWO, fraction=0.6),
        *(lambda v=v: DataDomain(v) for v in (TWO[:1], torch.ones(3, 2))),
        # balls that overlap far from the closest pair
        lambda: DataDomain(FOUR, epsilon=torch.tensor([0.01, 0.01, 0.6, 0.6])),
    ],
    "points": [
        lambda: DataDomain(TWO * NAN),
        lambda: Polytope.hull(torch.randn(30, 8)),
        lambda: hitting(x=MOONS * NAN),
    ],
    "outer": [*(lambda v=v: DataDomain(TWO, outer=v) for v in (Ball(torch.zeros(2), 0.5), "bal"))],
    "Box": [lambda: DataDomain(TWO, outer="box"), lambda: Box(torch.zeros(2), torch.tensor([1.0, NAN]))],
    "diffusion": [
        *(lambda v=v: Operator(diffusion=v) for v in (torch.tensor([1.0, 0.0]), -1.0)),
        *(lambda v=v: solve(operator=Operator(diffusion=v)) for v in (torch.ones(1), column)),
    ],
    # the solver
    "at": [*(lambda v=v: solve(at=v) for v in (AT + 0.5, AT * NAN, torch.zeros(2, 1), torch.zeros(2)))],
    "n_walks": [lambda: solve(n_walks=1)],
    "solver": [
        lambda: solve(solver="sphere"),
        lambda: solve(solver="exact", operator=Operator(absorption=1.0)),
        lambda: solve(solver="spheres", operator=Operator(diffusion=torch.eye(2))),
    ],
    "drift": [
        lambda: solve(drift="mixture", operator=Operator(drift=torch.ones(2))),
        *(lambda v=v: solve(operator=Operator(drift=v)) for v in (torch.ones(1), column)),
    ],
    "source": [lambda: solve(operator=Operator(source=column))],
    "absorption": [lambda: solve(operator=Operator(absorption=column))],
    "data_values": [
        lambda: solve(data_values=torch.ones(3)),
        *(lambda v=v: around(v) for v in (torch.ones(1), torch.full((2,), NAN))),
    ],
    "context": [lambda: solve(context=torch.ones(3, 1))],
    "value": [
        *(lambda v=v: solve(value=v) for v in (NAN, lambda z: torch.where(z[:, 0] > 0, NAN, 0.0), column))
    ],
    "start": [
        lambda: walk(DISK, [[0.9, 0.9]]),
        lambda: sample_ball_exit(TWO[1:], torch.zeros(2), 1.0, 4, generator=None),
        lambda: hitting()(100 * MOONS, LABELS),
    ],
    # hitting times
    "y": [lambda: hitting(y=LABELS + 1)],
    "x requires": [
        lambda: hitting(x=MOONS.clone().requires_grad_()),
        lambda: hitting()(MOONS.clone().requires_grad_(), LABELS),
    ],
    "x and y": [lambda: hitting()(MOONS), lambda: hitting().eval()(MOONS)],
    "starts": [lambda: draw_uniform_points(Nowhere(), MOONS, 3, None)],
    "max_steps": [lambda: hitting(outer="ball", max_steps=1)(torch.zeros(1, 2), torch.full((1, 2), 0.5))],
    # losses and reports
    "boundary_losses": [lambda: check_maximum_principle(torch.tensor([NAN]), torch.ones(2))],
    "interior_losses": [lambda: check_maximum_principle(torch.ones(2), torch.tensor([math.inf]))],
    "confidence": [lambda: maximum_principle_report(field(), (AT, AT), (AT, AT), confidence=95)],
    "labels": [
        lambda: loss_map(field(), DISK, AT),
        lambda: loss_map(field(), DISK, AT, labels="nearest"),
        lambda: loss_map(field(), DISK, AT, torch.zeros(2), labels="nearst"),
    ],
    r"\by\b": [
        *(lambda v=v: classes(torch.tensor(v)) for v in ([0, 0, 0], [1, 2], [1, -100])),
        lambda: real(torch.zeros(2)),
        lambda: real(torch.zeros(2, 1), Short(3, 1)),
        *(lambda f=f: f(field(), DISK, AT, ZEROS) for f in (loss_map, occupation_report)),
        lambda: subharmonic(y=ZEROS),
    ],
    r"\bx\b": [lambda: subharmonic(x=ORIGIN / 0)],
    "radii": [*(lambda v=v: subharmonic(radii=v) for v in (-0.1, NAN))],
    "n_directions": [lambda: subharmonic(None, ORIGIN, ORIGIN[:, 0], 0.1, 8)],
    "offset": [lambda: shifted_probes(AT, AT, None, torch.zeros(1))],
    "NaN": [
        lambda: real(torch.tensor([[NAN], [0.0]])),
        lambda: loss_map(late(), DISK, ORIGIN, ORIGIN[:, 0], n_walks=20),
        lambda: subharmonic(late(), radii=1.0),
    ],
    r"\bat\b": [lambda: near(torch.full((2, 1), -math.inf), ZEROS[:, None], ZEROS[:, None])],
    "train": [
        lambda: near(torch.zeros(2, 1), ZEROS[:, None] * NAN, ZEROS[:, None]),
        lambda: near(torch.zeros(2, 1, 2), torch.zeros(3, 2, 1), torch.zeros(3, 2, 1)),
        lambda: near(torch.zeros(2, 1), ZEROS[:, None], torch.zeros(4, 1)),
    ],
    "log_weights": [
        *(lambda v=v: weights_report(torch.tensor([0.0, v])) for v in (NAN, math.inf)),
        *(lambda v=v: weights_report(v) for v in (torch.zeros(40, 1), torch.zeros(1), torch.zeros(2, 2, 2))),
        lambda: weights_report(torch.full((3,), -math.inf)),
        lambda: weights_report(torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])),
    ],
    # what the proof of the bound does not cover
    "MSELoss": [lambda: shifted(Ball(ZEROS, 1.0), nn.L1Loss()), lambda: shifted(CUBE)],
    "outside": [lambda: shifted(Ball(ZEROS, 1.0), offset=torch.tensor([5.0, 0.0]))],
}
OTHER_ERRORS = {
    (TypeError, "y"): [lambda: join(torch.randn(2, 3), torch.tensor([0, 1]))],
    (TypeError, "lipschitz"): [
        *(
            lambda m=m: certified_lipschitz(nn.Sequential(m))
            for m in (Twice(2, 2), hooked(), nn.GELU(), nn.LayerNorm(3), nn.Conv1d(1, 1, 1))
        )
    ],
}
ERRORS = {**{(ValueError, word): calls for word, calls in VALUE_ERRORS.items()}, **OTHER_ERRORS}


@pytest.mark.parametrize(
    ("error", "word", "call"),
    [(error, word, call) for (error, word), calls in ERRORS.items() for call in calls],
)
def test_what_would_be_silently_wrong_is_refused(error, word, call):
    with pytest.raises(error, match=word):
        call()
