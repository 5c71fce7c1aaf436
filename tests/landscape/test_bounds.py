"""The shift bound and the ordering: true where proved, and the paper's forms refuted where they fail."""

import json

import pytest
import torch
from torch import nn

from elliptica.landscape import (
    certified_lipschitz,
    ordering_report,
    shift_bound,
    subharmonicity_report,
)
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball, Box
from elliptica.landscape.loss import LossField, join

STAY = (None, None)


def absolute_value():
    """``|x|`` as a two-layer ReLU network, for which ``W1 W0 = 0``."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    model[0].weight.data = torch.tensor([[1.0], [-1.0]]).double()
    model[2].weight.data = torch.tensor([[1.0, 1.0]]).double()
    return LossField(model, nn.MSELoss())


def printed_bound(model, report):
    """``2 |W1 W0|^2 tau + C |D| (|D| + 2 e)``: the right side of Prop. 2 as printed, which is not a bound."""
    product = (model[2].weight @ model[0].weight).detach().square().sum()
    shift = report.lipschitz * report.shift * (report.shift + 2 * report.error)
    return 2 * product * report.exit_time + shift


def interval():
    return Ball(torch.zeros(1).double(), 1.0)


def one(value):
    return torch.tensor([[value]], dtype=torch.float64)


@pytest.mark.parametrize(("y", "u"), [(0.5, 0.25), (-0.5, 2.25)])
def test_the_printed_bound_fails_at_a_kink(y, u, generator):
    """f = |x| on (-1, 1) from 1/2: every walk ends where |x| = 1, so u is known without error."""
    field = absolute_value()
    report = shift_bound(field, one(0.5), one(y), STAY, interval(), joint=False, generator=generator)
    assert float(report.value) == pytest.approx(u, abs=1e-9)
    assert float(printed_bound(field.model, report)) == 0.0  # 2 W1 W0 (W1 W0)^T tau, and no shift
    assert report.violations == 0
    assert float(report.bound) >= u


def test_the_laplacian_claim_is_false(generator):
    """Prop. 2 uses Lap (f - y)^2 <= 2 W1 W0 (W1 W0)^T, which is 0 here; it is 2, and 4 with the target."""
    for joint, truth in ((False, 2.0), (True, 4.0)):
        report = subharmonicity_report(
            absolute_value(), one(0.5), one(0.5), (0.1,), 4000, joint=joint, generator=generator
        )
        error = max(float(report.laplacian_stderr), 1e-9)
        assert abs(float(report.laplacian) - truth) < 4.5 * error


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 9])
def test_the_bound_is_attained_in_any_dimension(dim, generator):
    """f(x) = x with targets 0: u = |Tx|^2 + R^2 - |Tx - c|^2, and the bound is (|D| + R)^2 from x = 0."""
    model = nn.Linear(dim, dim, bias=False).double()
    model.weight.data = torch.eye(dim).double()
    field, zero = LossField(model, nn.MSELoss()), torch.zeros(1, dim).double()
    still = shift_bound(field, zero, zero, STAY, Ball(zero[0], 2.0), joint=False, generator=generator)
    torch.testing.assert_close(still.value, still.bound)
    torch.testing.assert_close(dim * still.bound, torch.tensor([4.0]).double())
    offset = torch.full((dim,), 1.0).double()
    moved = shift_bound(
        field, zero, zero, (None, offset), Ball(offset, 1e-3), joint=False, n_walks=400, generator=generator
    )
    assert float(moved.bound / moved.value) == pytest.approx(1.0, abs=3e-3)  # hardly any room
    torch.testing.assert_close(dim * moved.bound, torch.tensor([(dim**0.5 + 1e-3) ** 2]).double())
    assert moved.violations == 0


@pytest.mark.parametrize("slope", [0.5, 3.0])
def test_the_bound_of_the_loss_is_attained(slope):
    """f = slope * x: an error of 1 and a shift of 0.2 away from the target give (1 + 0.2 slope)^2."""
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(slope)
    shift, ball = (None, torch.tensor([0.2]).double()), Ball(torch.zeros(1).double(), 2.0)
    field, x = LossField(model, nn.MSELoss()), one(0.3)
    report = shift_bound(field, x, slope * x - 1, shift, ball, joint=False)
    assert report.lipschitz == pytest.approx(slope)
    assert float(report.loss_bound) == pytest.approx((1 + 0.2 * slope) ** 2)
    torch.testing.assert_close(report.loss, report.loss_bound)
    assert report.loss_violations == 0
    towards = shift_bound(field, x, slope * x + 1, shift, ball, joint=False)
    assert float(towards.loss) == pytest.approx((1 - 0.2 * slope) ** 2)
    torch.testing.assert_close(towards.loss_bound, report.loss_bound)
    wrong = shift_bound(field, x, slope * x - 1, shift, ball, joint=False, lipschitz=0.9 * slope)
    assert wrong.loss_violations == 1  # the check has teeth


@pytest.mark.statistical
def test_linear_regression_is_known_exactly(generator):
    """u = (w.x - y)^2 + sigma^2 (|w|^2 + 1) E tau, and not without the target's share."""
    model = nn.Linear(4, 1).double()
    field = LossField(model, nn.MSELoss())
    x, y = (
        torch.randn(2, 6, 4, generator=generator).double()[0],
        torch.randn(6, 1, generator=generator).double(),
    )
    offset = torch.full((4,), 0.3).double()
    ball = Ball(torch.zeros(5).double(), 8.0)
    for diffusion in (1.0, 2.5):
        report = shift_bound(
            field, x, y, (None, offset), ball, n_walks=4000, diffusion=diffusion, generator=generator
        )
        slope = float(model.weight.detach().square().sum())
        truth = field(x + offset, y) + diffusion * (slope + 1) * report.exit_time
        assert float(((report.value - truth) / report.stderr).abs().max()) < 4.5
        wrong = field(x + offset, y) + diffusion * slope * report.exit_time
        assert float(((report.value - wrong) / report.stderr).abs().min()) > 10
        assert bool((report.bound >= truth).all())


@pytest.mark.statistical
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_bound_is_never_missed_by_random_networks(joint, scale, generator):
    """The formula as printed is missed by most networks with small weights (its last term is then small)."""
    violations, printed = 0, 0
    for _ in range(20):
        dim = int(torch.randint(1, 8, (1,), generator=generator))
        width = int(torch.randint(2, 30, (1,), generator=generator))
        model = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1)).double()
        for p in model.parameters():
            p.data *= scale
        x = torch.randn(10, dim, generator=generator).double()
        y = torch.randn(10, 1, generator=generator).double()
        matrix = torch.eye(dim).double() + 0.2 * torch.randn(dim, dim, generator=generator).double()
        offset = torch.randn(dim, generator=generator).double() / 2
        moved = x @ matrix.T + offset
        report = shift_bound(
            LossField(model, nn.MSELoss()),
            x,
            y,
            (matrix, offset),
            Ball.around(join(moved, y) if joint else moved, 1.3),
            joint=joint,
            n_walks=500,
            generator=generator,
        )
        violations += report.violations
        above = report.value - 4 * report.stderr > printed_bound(model, report)
        printed += int(above.sum())
    assert violations == 0
    if scale == 0.3:
        assert printed > 60  # of 200: the check has teeth


def test_several_outputs_and_balls_around_data(generator):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x, y = (
        torch.randn(12, 1, 2, 2, generator=generator).double(),
        torch.randn(12, 2, generator=generator).double(),
    )
    field = LossField(model, nn.MSELoss())
    domain = DataDomain(join(x, y), margin=1.5)
    offset = torch.full((4,), 0.1).double()
    report = shift_bound(field, x, y, (None, offset), domain, n_walks=200, generator=generator)
    torch.testing.assert_close(report.error, (model(x) - y).norm(dim=1).detach())
    assert report.violations == 0
    json.dumps(report.to_dict(), allow_nan=False)


def test_constants():
    linear = nn.Linear(3, 2, bias=False).double()
    linear.weight.data = torch.diag(torch.tensor([3.0, 4.0, 1.0]).double())[:2]
    assert certified_lipschitz(linear) == pytest.approx(4.0)
    norm = nn.BatchNorm1d(2).double()
    norm.running_var.data, norm.weight.data = (
        torch.tensor([0.25, 4.0]).double(),
        torch.tensor([1.0, -8.0]).double(),
    )
    model = nn.Sequential(linear, norm, nn.Sequential(nn.LeakyReLU(2.0), nn.Sigmoid()), nn.Dropout(0.5))
    assert certified_lipschitz(model) == pytest.approx(4.0 * 4.0 * 2.0 * 0.25, rel=1e-4)


def test_a_layer_that_appears_twice_counts_twice():
    """The same module object at two places of a sequence: its constant enters for each."""
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 3.0)
    assert certified_lipschitz(nn.Sequential(layer, nn.ReLU(), layer)) == pytest.approx(9.0)


@pytest.mark.statistical
def test_ordering_of_linear_regression_is_that_of_the_exit_times(generator):
    """m = M = sigma^2 (|w|^2 + 1): both bounds are the landscape itself."""
    model = nn.Linear(3, 1).double()
    field = LossField(model, nn.MSELoss())
    ball = Ball(torch.zeros(4).double(), 5.0)

    def at(radius):
        x = radius * nn.functional.normalize(torch.randn(4, 3, generator=generator).double(), dim=1)
        return x, model(x).detach() + 0.5  # equal losses

    inner, outer = at(0.5), at(3.0)
    report = ordering_report(
        field, ball, inner, outer, diffusion=2.0, n_walks=4000, n_directions=2000, generator=generator
    )
    truth = 2.0 * (float(model.weight.detach().square().sum()) + 1)
    assert report.least == pytest.approx(truth, rel=0.2)
    assert report.largest == pytest.approx(truth, rel=0.2)
    for side in (report.rare, report.common):
        assert abs(side.value - side.loss - truth * side.exit_time) < 4.5 * side.stderr
        assert abs(side.value - side.loss - (truth - 2) * side.exit_time) > 10 * side.stderr
    assert report.rare.exit_time > report.common.exit_time
    assert report.sufficient
    assert report.order == "rare higher"
    swapped = ordering_report(field, ball, outer, inner, n_walks=4000, generator=generator)
    assert not swapped.sufficient
    assert swapped.order == "common higher"
    json.dumps(swapped.to_dict(), allow_nan=False)


def test_ordering_with_fixed_labels_and_own_probes(generator):
    field = LossField(nn.Linear(2, 3).double(), nn.CrossEntropyLoss())
    x, y = torch.rand(6, 2, generator=generator).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    box = Box(torch.full((2,), -1.0).double(), torch.full((2,), 2.0).double())
    how = {"probes": (x, y), "joint": False, "n_walks": 50, "generator": generator}
    report = ordering_report(field, box, (x[:3], y[:3]), (x[3:], y[3:]), **how)
    assert report.n_probes == 6
    assert report.least >= 0  # cross-entropy of a linear model is convex
