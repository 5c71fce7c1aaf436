"""Maximum principle and subharmonicity of losses whose answer is known."""

import json
import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import nn

from elliptica._utils.statistics import holm, student_quantile
from elliptica.landscape import (
    bridge_probes,
    maximum_principle_report,
    mean_value_defect,
    shifted_probes,
    subharmonicity_report,
)
from elliptica.landscape.loss import LossField
from elliptica.landscape.subharmonicity import _log_capital, _p_values


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def field_of(function):
    """A field whose loss at ``x`` is ``function(x)`` whatever the target."""
    return LossField(Function(function), lambda output, y: output)


def square(x):
    return x.square().sum(1)


def points(n, dim, generator, dtype=torch.float64):
    return torch.randn(n, dim, generator=generator, dtype=dtype), torch.zeros(n, 1, dtype=dtype)


def test_violations_by_class_and_group():
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [1.0], [2.0]])
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    report = maximum_principle_report(
        field_of(lambda x: x[:, 0]), (x[:2], y[:2]), (x, y), group=["b", "a", "a", "b", "a", "b"], n_worst=2
    )
    assert (report.overall.n, report.overall.count, report.overall.worst_excess) == (6, 3, 2.0)
    counts = {v.name: (v.n, v.count) for v in report.parts}
    assert counts == {"class 0": (3, 1), "class 1": (3, 2), "group a": (3, 1), "group b": (3, 2)}
    assert report.worst == (3, 2) or report.worst == (3, 5)
    assert report.worst_losses == (3.0, 2.0)
    exact = stats.binomtest(3, 6).proportion_ci(0.95, method="exact")
    assert (report.overall.lower, report.overall.upper) == pytest.approx((exact.low, exact.high), rel=1e-8)
    assert report.check.boundary_max == 1.0
    json.dumps(report.to_dict(), allow_nan=False)


def test_bridge_probes_lie_between_and_carry_mixed_labels(generator):
    x, y = torch.randn(30, 2, generator=generator), torch.randint(3, (30,), generator=generator)
    probe_x, probe_y = bridge_probes(
        x, y, target_space="simplex", num_classes=3, sigma=0.0, n_times=5, generator=generator
    )
    assert probe_x.shape == (90, 2)  # three inner times
    torch.testing.assert_close(probe_y.sum(1), torch.ones(90))
    assert bool(((probe_x <= x.amax(0)) & (probe_x >= x.amin(0))).all())
    losses = LossField(nn.Linear(2, 3), nn.CrossEntropyLoss(), num_classes=3)
    report = maximum_principle_report(losses, (x, y), (probe_x, probe_y))
    assert report.parts == ()


def test_a_convex_loss_keeps_the_bound_between_the_data_and_a_bump_does_not(generator):
    x, y = points(100, 3, generator)
    x = nn.functional.normalize(x, dim=1)  # no data near the top of the bump
    probes = bridge_probes(x, y, target_space="real", sigma=0.0, generator=generator)
    assert maximum_principle_report(field_of(square), (x, y), probes).overall.count == 0
    bump = maximum_principle_report(field_of(lambda z: -square(z)), (x, y), probes)
    assert bump.overall.count > 0


def test_shifted_probes(generator):
    x = torch.randn(5, 1, 2, 2, generator=generator)
    matrix, offset = torch.randn(4, 4, generator=generator), torch.randn(4, generator=generator)
    moved, _ = shifted_probes(x, torch.zeros(5), matrix, offset)
    expected = torch.stack([matrix @ row.flatten() + offset for row in x]).reshape(x.shape)
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize("dim", [1, 2, 10, 100])
def test_laplacian_of_known_functions(dim, generator):
    x, y = points(6, dim, generator)
    for function, truth in (
        (square, 2.0 * dim),
        (lambda z: z.sum(1), 0.0),
        (lambda z: -square(z), -2.0 * dim),
    ):
        report = subharmonicity_report(field_of(function), x, y, (0.1, 0.5), 32, generator=generator)
        expected = torch.full((6, 2), truth, dtype=torch.float64)
        torch.testing.assert_close(report.laplacian, expected, atol=1e-8 * dim, rtol=1e-8)
        assert sorted(report.failed) == ([*range(6)] if truth < 0 else [])
        assert report.passed == (truth >= 0)


@pytest.mark.statistical
def test_targets_that_move_add_their_own_laplacian(generator):
    """Squared loss of a linear model: 2 |w|^2 in the inputs, and 2 more per target that diffuses."""
    model = nn.Linear(4, 1).double()
    field = LossField(model, nn.MSELoss())
    x, y = points(8, 4, generator)
    slope = float(model.weight.detach().square().sum())
    for joint in (False, True):
        report = subharmonicity_report(field, x, y, (0.3,), 4000, joint=joint, generator=generator)
        off = (report.laplacian - 2 * slope - 2 * joint) / report.laplacian_stderr
        assert float(off.abs().max()) < 4.5
        assert float(report.laplacian_stderr.max()) < 0.1 * (slope + joint)


@pytest.mark.statistical
def test_a_kink_is_seen_by_the_sphere(generator):
    """``|x_1|`` at its kink: mean over the sphere of radius r in two dimensions is ``2 r / pi``."""
    x, y = torch.zeros(1, 2).double(), torch.zeros(1, 1).double()
    field = field_of(lambda z: nn.functional.relu(z[:, 0]) + nn.functional.relu(-z[:, 0]))
    report = subharmonicity_report(field, x, y, (0.1, 1.0), 4000, generator=generator)
    z = (report.defect - torch.tensor([[0.1, 1.0]]).double() * 2 / torch.pi) / report.stderr
    assert float(z.abs().max()) < 4.5
    assert report.passed
    concave = subharmonicity_report(field_of(lambda z: -z[:, 0].abs()), x, y, (0.1,), generator=generator)
    assert concave.failed == (0,)


@pytest.mark.statistical
def test_power_statement(generator):
    """A Laplacian as small as stated is found at about 90 % of the probes, a third of it rarely."""
    dim, radius = 20, 0.5
    trace_free = torch.linspace(-1.0, 1.0, dim).double()
    x, y = points(200, dim, generator)

    def run(laplacian):
        def function(z):
            return (z.square() * (trace_free + laplacian / (2 * dim))).sum(1)

        return subharmonicity_report(field_of(function), x, y, (radius,), alpha=1e-5, generator=generator)

    null = run(0.0)
    assert null.passed
    (smallest,) = null.detectable
    assert smallest < 0
    assert 0.8 < len(run(smallest).failed) / 200 <= 1
    assert len(run(smallest / 3).failed) / 200 < 0.2


@pytest.mark.statistical
def test_rounding_is_not_taken_for_a_failure(generator):
    """A linear loss in float32 is harmonic; without the allowance rounding alone would be significant."""
    model = nn.Linear(200, 1)
    x, y = points(50, 200, generator, torch.float32)
    field = LossField(model, lambda output, y: output[:, 0])
    radii = (1e-4, 1e-2, 1.0)
    assert subharmonicity_report(field, x, y, radii, alpha=1e-4, generator=generator).passed
    found = mean_value_defect(lambda z, rows: field(z, y[rows]), x, radii, generator=generator)
    naive = _p_values(replace(found, rounding=0 * found.rounding))
    assert float(holm(naive).min()) < 1e-4


def pole(z):
    """``|z|^(2 - n)``, harmonic but for the origin."""
    return z.norm(dim=1) ** (2 - z.shape[1])


@pytest.mark.statistical
@pytest.mark.parametrize(("dim", "radius"), [(10, 0.5), (10, 0.9), (30, 0.7)])
def test_skewed_differences_keep_the_level(dim, radius, generator):
    """A few directions towards the pole balance all others; hardly a sample has its share of them."""
    x = nn.functional.normalize(torch.randn(300, dim, generator=generator, dtype=torch.float64), dim=1)
    report = subharmonicity_report(field_of(pole), x, torch.zeros(300, 1), (radius,), generator=generator)
    assert report.passed
    student = student_quantile(0.05 / 300, 127)
    assert bool((report.defect / report.stderr < student).any())  # what Student's test would name


@pytest.mark.statistical
@pytest.mark.parametrize("slope", [0.0, 100.0])
@pytest.mark.parametrize("both", [False, True])
def test_neither_a_slope_nor_a_second_pole_breaks_the_level(slope, both, generator):
    """The bound on a bet must not follow the slope, which has no Laplacian."""
    dim, probes = 20, 200
    place = torch.zeros(dim, dtype=torch.float64)
    place[0] = 1.5

    def function(z):
        far = pole(z + place) if both else 0.0
        return pole(z - place) + far + slope * z[:, 1]

    x = torch.zeros(probes, dim, dtype=torch.float64)
    found = mean_value_defect(lambda z, rows: function(z), x, [1.0], generator=generator)
    assert float((_p_values(found) < 0.05).double().mean()) < 0.05
    truth = float(function(place[None] / 1.5) + function(-place[None] / 1.5)) / 2 - float(function(x[:1]))
    assert float((found.largest[:, 0] >= 0.9 * truth).double().mean()) > 0.95


def test_the_bound_on_differences_leaves_room_above_those_seen(generator):
    """A loss without a gradient, so that only the pairs themselves are known."""
    x, _ = points(20, 4, generator)
    found = mean_value_defect(lambda z, rows: z.detach()[:, 0].abs(), x, [1.0], 16, generator=generator)
    seen = found.pairs.amax(2)
    torch.testing.assert_close(found.largest.maximum(2 * seen - found.mean), found.largest)
    assert bool((found.largest > seen).any())


def test_differences_that_are_all_negative_bound_each_other(generator):
    """Without a positive difference the capital of a pair at most doubles: no certainty from a few."""
    x, _ = points(3, 4, generator)
    found = mean_value_defect(lambda z, rows: -square(z), x, [1.0], 2, generator=generator)
    assert bool((found.largest > 0).all())
    assert bool((_p_values(found) > 0.2).all())


@pytest.mark.statistical
def test_skewed_failures_are_found(generator):
    """A bump is named at every probe near its top, though its differences are skewed, too."""
    x = 0.3 * points(50, 10, generator)[0]
    field = field_of(lambda z: torch.exp(-square(z) / 10) + 0.1 * (z[:, 0] ** 2 - z[:, 1] ** 2))
    report = subharmonicity_report(field, x, torch.zeros(50, 1), (1.0,), generator=generator)
    assert len(report.failed) == 50


def test_betting_is_fair_on_a_distribution_that_fools_student():
    """Loses one, wins 99 once in a hundred: mean zero. All outcomes weighted by their probability."""
    n, p = 128, 0.01
    wins = torch.arange(n + 1).double()
    log_mass = (
        torch.lgamma(torch.tensor(n + 1.0).double())
        - torch.lgamma(wins + 1)
        - torch.lgamma(n - wins + 1)
        + wins * math.log(p)
        + (n - wins) * math.log1p(-p)
    )
    draws = torch.where(torch.arange(n) < wins[:, None], 99.0, -1.0).double()
    capital = _log_capital(draws, torch.full((n + 1,), 99.0).double())
    assert float((log_mass + capital).logsumexp(0)) == pytest.approx(0.0, abs=1e-9)  # a fair game
    assert float(log_mass[capital > math.log(20)].exp().sum()) < 0.05
    short = _log_capital(draws, torch.full((n + 1,), 1.0).double())  # a bound that is missed, and broken
    assert float(short[0]) > math.log(20)


def test_the_region_that_fails_is_named(generator):
    """Convex on the left, a bump on the right: only probes on the right are named."""
    x, y = points(40, 3, generator)
    x[:, 0] = torch.linspace(-3, 3, 40).double()
    x[(x[:, 0].abs() < 1), 0] += 2
    field = field_of(lambda z: -z[:, 0].pow(3) + 0.1 * z[:, 1])
    report = subharmonicity_report(field, x, y, (0.1,), generator=generator)
    assert sorted(report.failed) == (x[:, 0] > 0).nonzero().flatten().tolist()
    worst_first = report.laplacian[list(report.failed), 0]
    assert torch.equal(worst_first, worst_first.sort().values)
    json.dumps(report.to_dict(), allow_nan=False)
