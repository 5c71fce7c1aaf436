"""Do intervals cover the truth as often as they say: rare hits, strong drift, nothing met at all."""

import math

import numpy as np
import pytest
import torch

from elliptica import EllipticWarning, estimate_landscape
from elliptica.landscape import Ball, Box, DataDomain, Operator
from elliptica.landscape.data_domain import OUTER
from elliptica.landscape.spheres import _drifted, walk_on_spheres
from elliptica.landscape.walks import Known, Walks, _corrected, average, unseen_stderr

F64 = torch.float64
RADIUS, DIFFUSION = 1.7, 1.3


def covered(estimate, truth):
    low, high = estimate.interval()
    return float(((low <= truth) & (truth <= high)).double().mean())


def upwind(strength, dim=3):
    """A drift along the first axis, ``u = exp(-2 mu x / a)``, and a start beside the middle."""
    mu = torch.zeros(dim, dtype=F64)
    mu[0] = strength
    at = torch.zeros(dim, dtype=F64)
    at[1] = 0.6 * RADIUS
    ball = Ball(torch.zeros(dim, dtype=F64), RADIUS)
    return lambda z: torch.exp(-2 * (z @ mu) / DIFFUSION), ball, at, Operator(diffusion=DIFFUSION, drift=mu)


def lone_ball(share):
    """One ball in the middle of a sphere, and a start from which it is met with this probability."""
    eps, centre = 0.05, torch.zeros(3, dtype=F64)
    far = torch.tensor([0.0, 0.0, 0.95], dtype=F64)  # a domain needs two points; this ball is never met
    domain = DataDomain(
        torch.stack([centre, far]), epsilon=torch.tensor([eps, 1e-12], dtype=F64), outer=Ball(centre, 1.0)
    )
    at = torch.tensor([1 / (1 + share * (1 / eps - 1)), 0, 0], dtype=F64)
    return domain, at


@pytest.mark.statistical
@pytest.mark.parametrize("strength", [0.4, 3.0])
def test_intervals_cover_under_weak_and_strong_drift(strength, generator):
    value, ball, at, operator = upwind(strength)
    queries = at.repeat(100, 1)
    found = estimate_landscape(value, ball, queries, operator=operator, generator=generator)
    assert covered(found, 1.0) >= 0.85  # fewer of 100 have probability 4e-5 at 95 %
    assert float(found.stderr.median()) < 0.12


@pytest.mark.statistical
def test_walks_that_follow_a_strong_drift_alone_do_not_cover(generator):
    """Teeth: the spread of such walks misses the few against the wind, which determine the value."""
    value, ball, at, operator = upwind(3.0)
    walks = walk_on_spheres(
        ball, at.repeat(100 * 1000, 1), operator, shell=1e-3, drift="sample", generator=generator
    )
    payoff = value(walks.end).reshape(100, 1000)
    miss = (payoff.mean(1) - 1).abs() > 1.96 * payoff.std(1) / math.sqrt(1000)
    assert float(miss.double().mean()) > 0.2
    with pytest.warns(EllipticWarning, match="determine the value"):
        told = estimate_landscape(
            value, ball, at[None], operator=operator, drift="sample", generator=generator
        )
    assert covered(told, 1.0) == 1


@pytest.mark.statistical
def test_a_drift_that_is_too_strong_is_named(generator):
    value, ball, at, operator = upwind(24.0)
    with pytest.warns(EllipticWarning, match="determine the value"):
        found = estimate_landscape(
            value, ball, at.repeat(40, 1), operator=operator, n_walks=500, generator=generator
        )
    assert covered(found, 1.0) >= 0.8  # fewer of 40 have probability 1e-4 at 95 %


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore:At 50 of 50 queries fewer than 50 walks")
def test_a_mixture_is_as_good_as_the_better_law(generator):
    """Values that are alike everywhere favour drifted walks, values against the wind driftless ones."""
    _, ball, at, operator = upwind(3.0)
    queries = at.repeat(50, 1)
    for value, best in ((lambda z: 1 + 0.1 * z[:, 1], "sample"), (upwind(3.0)[0], "weight")):
        error = {
            mode: float(
                estimate_landscape(
                    value, ball, queries, operator=operator, drift=mode, n_walks=400, generator=generator
                ).value.std()
            )
            for mode in ("mixture", "sample", "weight")
        }
        assert error[best] == min(error[mode] for mode in ("sample", "weight"))
        assert error["mixture"] < 2 * error[best]


@pytest.mark.statistical
def test_no_error_bar_is_zero_where_nothing_was_hit(generator):
    """One walk in 130 meets the ball; often none of a hundred does."""
    domain, at = lone_ball(0.0075)
    options = {"data_values": torch.ones(2, dtype=F64), "solver": "spheres", "n_walks": 100}
    with pytest.warns(EllipticWarning, match="meet a ball"):
        found = estimate_landscape(0.0, domain, at.repeat(200, 1), generator=generator, **options)
    none = found.hit_share == 0
    assert 0.3 < float(none.double().mean()) < 0.65
    assert bool((1.96 * found.stderr[none] > 0.025).all())  # the rule of three: up to 3 of 100 may be hit
    assert covered(found, 0.0075) >= 0.88  # 4.5 standard errors below 95 %
    assert any("conservative" in note for note in found.notes)
    inside = estimate_landscape(0.0, domain, torch.zeros(1, 3, dtype=F64), generator=generator, **options)
    assert float(inside.stderr) == 0  # a start in the ball: nothing is drawn


def test_nothing_but_hits_leaves_room_for_the_outer_value(generator):
    domain, _ = lone_ball(0.5)
    at = torch.tensor([[0.0501, 0, 0]], dtype=F64)
    found = estimate_landscape(
        0.0,
        domain,
        at,
        data_values=torch.ones(2, dtype=F64),
        solver="spheres",
        n_walks=50,
        generator=generator,
    )
    assert float(found.hit_share) == 1
    assert float(found.stderr) > 0.01


def test_exits_that_all_have_one_value_leave_room_for_others(generator):
    """A cap behind the start that exits rarely meet."""
    ball = Ball(torch.zeros(3, dtype=F64), 1.0)
    at = torch.tensor([[0.97, 0.0, 0.0]], dtype=F64)
    found = estimate_landscape(lambda z: (z[:, 0] < 0).double(), ball, at, n_walks=20, generator=generator)
    assert float(found.value) == 0
    assert float(found.stderr) > 0.05
    assert float(estimate_landscape(0.0, ball, at, n_walks=20, generator=generator).stderr) == 0


def test_times_that_float32_hardly_tells_apart_keep_their_spread():
    """Times 10000 and one float32 further: their mean lies between them, where float32 has nothing."""
    label = torch.full((100,), OUTER)
    zero, step = torch.zeros(100), 2.0**-10
    time = 10_000 + step * (torch.arange(100) % 2).float()
    found = average(Walks(zero[:, None], label, zero, zero, time, torch.ones_like(label)), 100, zero)
    assert float(found.exit_time_stderr) == pytest.approx(step / 2 / math.sqrt(99), rel=1e-3)


@pytest.mark.parametrize("n_walks", [80, 100, 400])
def test_intervals_of_two_valued_payoffs_cover_exactly(n_walks):
    """Every number of hits in turn, weighted by its binomial probability: no draws at all."""
    hits = torch.arange(n_walks + 1)
    label = torch.where(torch.arange(n_walks) < hits[:, None], 0, OUTER).flatten()
    zero = torch.zeros(len(label), dtype=F64)
    walks = Walks(zero[:, None], label, zero, zero, zero, torch.ones_like(label))
    none = torch.zeros(n_walks + 1, dtype=F64)
    found = average(walks, n_walks, (label == 0).double(), Known(none, none + 1))
    share = hits / n_walks
    size = torch.tensor(float(n_walks), dtype=F64)
    logs = torch.lgamma(size + 1) - torch.lgamma(hits + none + 1) - torch.lgamma(size - hits + 1)
    coverage = {}
    for name in ("stderr", "spread"):
        coverage[name] = []
        for p in np.linspace(0.002, 0.5, 250):
            mass = (logs + hits * math.log(p) + (n_walks - hits) * math.log1p(-p)).exp()
            coverage[name].append(float(mass[(share - p).abs() <= 1.96 * getattr(found, name)].sum()))
    assert min(coverage["stderr"]) > 0.92
    assert np.mean(coverage["stderr"]) < 0.975
    assert min(coverage["spread"]) < 0.6


def cap(share):
    """A cap of the unit sphere in three dimensions that exits from the centre meet with this probability."""
    return lambda z: (z[:, 0] > 1 - 2 * share).double()


UNIT_BALL = Ball(torch.zeros(3, dtype=F64), 1.0)


@pytest.mark.statistical
@pytest.mark.parametrize(("n_walks", "share"), [(100, 0.05), (100, 0.03), (50, 0.1), (1000, 0.005)])
def test_exact_exits_cover_with_one_or_two_rare_hits(n_walks, share, generator):
    at = torch.zeros(1000, 3, dtype=F64)
    found = estimate_landscape(
        cap(share), UNIT_BALL, at, n_walks=n_walks, solver="exact", generator=generator
    )
    assert covered(found, share) >= 0.92  # 4.4 standard errors below 95 %


@pytest.mark.parametrize("solver", ["exact", "spheres", "euler"])
@pytest.mark.parametrize("context", [False, True])
def test_no_error_bar_is_zero_where_a_function_has_a_rare_value(solver, context, generator):
    """Hardly a walk meets the cap, but the boundary is seen to have its value."""
    share = 0.02
    at = torch.zeros(20, 3, dtype=F64)
    value = (lambda z, c: cap(share)(z) * c) if context else cap(share)
    extra = {"context": torch.ones(20, dtype=F64)} if context else {}
    found = estimate_landscape(
        value, UNIT_BALL, at, n_walks=20, solver=solver, dt=0.02, generator=generator, **extra
    )
    assert bool((found.value == 0).any())
    assert bool((found.stderr > 0.05).all())
    assert covered(found, share) == 1


@pytest.mark.parametrize("solver", ["exact", "spheres"])
def test_one_query_leaves_room_for_values_elsewhere(solver, generator):
    for domain in (UNIT_BALL, Box(-torch.ones(3, dtype=F64), torch.ones(3, dtype=F64))):
        if solver == "exact" and not isinstance(domain, Ball):
            continue
        at = torch.tensor([[0.99, 0.0, 0.0]], dtype=F64)
        found = estimate_landscape(
            lambda z: (z[:, 0] < 0).double(), domain, at, n_walks=10, solver=solver, generator=generator
        )
        assert float(found.value) == 0
        assert float(found.stderr) > 0.1


@pytest.mark.parametrize("solver", ["exact", "spheres"])
def test_a_zero_error_bar_of_a_function_is_named(solver, generator):
    with pytest.warns(EllipticWarning, match="nothing is known about rarer"):
        found = estimate_landscape(
            lambda z: torch.ones_like(z[:, 0]),
            UNIT_BALL,
            torch.zeros(2, 3, dtype=F64),
            solver=solver,
            n_walks=20,
            generator=generator,
        )
    assert float(found.stderr.max()) == 0
    assert not any("conservative" in note for note in found.notes)


@pytest.mark.statistical
@pytest.mark.parametrize(("strength", "n_walks"), [(3.0, 300), (1.5, 200)])
def test_intervals_cover_downstream_and_say_what_decides(strength, n_walks, generator):
    """The value is carried by walks that cross the whole ball against the drift."""
    value, ball, at, operator = upwind(strength)
    at = torch.tensor([0.9 * RADIUS, 0, 0], dtype=F64)
    with pytest.warns(EllipticWarning, match="against the drift determine"):
        found = estimate_landscape(
            value, ball, at.repeat(100, 1), operator=operator, n_walks=n_walks, generator=generator
        )
    truth = float(value(at[None]))
    assert covered(found, truth) >= 0.85  # fewer of 100 have probability 4e-5 at 95 %
    assert not any("conservative" in note for note in found.notes)
    if strength < 2:
        assert float(found.stderr.median()) < 0.3 * truth  # wide, but not as wide as the boundary's values


@pytest.mark.parametrize("mode", ["sample", "mixture"])
def test_values_against_the_drift_count_as_known(mode, generator):
    """All walks bring the same; the boundary is seen to have other values where the drift comes from."""
    _, ball, at, operator = upwind(1.5)
    at = torch.tensor([[0.95 * RADIUS, 0, 0]], dtype=F64)
    found = estimate_landscape(
        lambda z: (z[:, 0] < 0).double(),
        ball,
        at,
        operator=operator,
        drift=mode,
        n_walks=10,
        generator=generator,
    )
    assert float(found.value) == 0
    assert float(found.stderr) > 0.01


def test_an_unseen_ball_counts_with_the_largest_weight_of_the_mixture(generator):
    domain, _ = lone_ball(0.5)
    operator = Operator(drift=torch.tensor([20.0, 0, 0], dtype=F64))
    at = torch.tensor([[0.99, 0, 0]], dtype=F64)
    with pytest.warns(EllipticWarning):
        found = estimate_landscape(
            0.0,
            domain,
            at,
            operator=operator,
            data_values=torch.ones(2, dtype=F64),
            n_walks=20,
            generator=generator,
        )
    assert float(found.hit_share) == 0
    expected = unseen_stderr(torch.tensor([0.0, 2.0], dtype=F64), 20)  # a weight is at most 2
    assert float(found.stderr) == pytest.approx(float(expected))


def test_slopes_of_the_correction_come_from_the_other_half():
    """The second half explains nothing, the first all: only the second half is corrected."""
    excess = torch.linspace(-1, 1, 20, dtype=F64).repeat(1, 2)
    payoff = torch.cat([3 * excess[:, :20], 0 * excess[:, 20:]], 1)
    left = _corrected(payoff, excess, torch.ones_like(payoff, dtype=torch.bool))
    torch.testing.assert_close(left[:, :20], payoff[:, :20])
    torch.testing.assert_close(left[:, 20:], -3 * excess[:, 20:])


@pytest.mark.statistical
def test_either_walk_of_a_pair_may_follow_the_drift(generator):
    drifted = _drifted(torch.zeros(2000, 3), "mixture", generator).reshape(-1, 2)
    assert bool((drifted.sum(1) == 1).all())
    assert 0.4 < float(drifted[:, 0].double().mean()) < 0.6
