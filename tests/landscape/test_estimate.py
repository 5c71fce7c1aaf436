"""Error bars: do intervals cover the truth for rare hits, strong drift, too few steps, repeated data."""

import math

import numpy as np
import pytest
import torch

from elliptica import EllipticWarning, estimate_landscape
from elliptica.landscape import Ball, DataDomain, Operator
from elliptica.landscape.domains import OUTER
from elliptica.landscape.estimate import BoundaryRange, Walks, average
from elliptica.landscape.walks import walk_on_spheres

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
    found = estimate_landscape(value, ball, queries, operator=operator, drift="weight", generator=generator)
    assert covered(found, 1.0) >= 0.85  # fewer of 100 have probability 4e-5 at 95 %
    assert float(found.stderr.median()) < 0.12


@pytest.mark.statistical
def test_no_error_bar_is_zero_where_nothing_was_hit(generator):
    """One walk in 130 meets the ball; often none of a hundred does."""
    domain, at = lone_ball(0.0075)
    options = {"data_values": torch.ones(2, dtype=F64), "solver": "spheres", "n_walks": 100}
    with pytest.warns(EllipticWarning):
        found = estimate_landscape(0.0, domain, at.repeat(200, 1), generator=generator, **options)
    none = found.hit_share == 0
    assert 0.3 < float(none.double().mean()) < 0.65
    assert bool((1.96 * found.stderr[none] > 0.025).all())  # the rule of three: up to 3 of 100 may be hit
    assert covered(found, 0.0075) >= 0.88  # 4.5 standard errors below 95 %
    inside = estimate_landscape(0.0, domain, torch.zeros(1, 3, dtype=F64), generator=generator, **options)
    assert float(inside.stderr) == 0  # a start in the ball: nothing is drawn


def test_times_that_float32_hardly_tells_apart_keep_their_spread():
    """Times 10000 and one float32 further: their mean lies between them, where float32 has nothing."""
    label = torch.full((100,), OUTER)
    zero, step = torch.zeros(100), 2.0**-10
    time = 10_000 + step * (torch.arange(100) % 2).float()
    found = average(Walks(zero[:, None], label, zero, zero, time, torch.ones_like(label)), 100, zero)
    assert float(found.exit_time_stderr) == pytest.approx(step / 2 / math.sqrt(99), rel=1e-3)


def binomial_coverage(n_walks, rule):
    """Coverage of intervals for every share ``p``: each number of hits in turn, with its probability."""
    hits = torch.arange(n_walks + 1)
    label = torch.where(torch.arange(n_walks) < hits[:, None], 0, OUTER).flatten()
    zero = torch.zeros(len(label), dtype=F64)
    walks = Walks(zero[:, None], label, zero, zero, zero, torch.ones_like(label))
    none = torch.zeros(n_walks + 1, dtype=F64)
    found = average(walks, n_walks, (label == 0).double(), BoundaryRange(none, none + 1))
    share = hits / n_walks
    stderr = found.stderr if rule == "plus four" else (share * (1 - share) / (n_walks - 1)).sqrt()
    size = torch.tensor(float(n_walks), dtype=F64)
    logs = torch.lgamma(size + 1) - torch.lgamma(hits + none + 1) - torch.lgamma(size - hits + 1)
    coverage = []
    for p in np.linspace(0.002, 0.5, 250):
        mass = (logs + hits * math.log(p) + (n_walks - hits) * math.log1p(-p)).exp()
        coverage.append(float(mass[(share - p).abs() <= 1.96 * stderr].sum()))
    return coverage


@pytest.mark.parametrize("n_walks", [80, 100, 400])
def test_intervals_of_two_valued_payoffs_cover_exactly(n_walks):
    coverage = binomial_coverage(n_walks, "plus four")
    assert min(coverage) > 0.91
    assert np.mean(coverage) < 0.975
    assert min(binomial_coverage(n_walks, "spread")) < 0.6


def test_the_bias_is_at_most_the_range_of_the_values(generator):
    """In float32 the shell of two points 1e-6 apart is many times their balls; values lie in [0, 1]."""
    points = torch.rand(20, 4, generator=generator)
    points[1] = points[0] + torch.tensor([1e-6, 0, 0, 0])
    domain = DataDomain(points)
    at = points[2:3] + 1.2 * domain.radii[2] * torch.tensor([[1.0, 0, 0, 0]])
    found = estimate_landscape(
        0.0, domain, at, data_values=torch.rand(20, generator=generator), solver="spheres", n_walks=200,
        generator=generator,
    )  # fmt: skip
    assert float(found.hit_share) > 0
    assert 0 < float(found.bias) <= 1


@pytest.mark.slow
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
    found = estimate_landscape(value, ball, at.repeat(40, 1), operator=operator, generator=generator)
    assert covered(found, 1.0) >= 0.8  # fewer of 40 have probability 1e-4 at 95 %


@pytest.mark.statistical
@pytest.mark.parametrize("strength", [6.0, 24.0])
def test_a_drift_that_is_too_strong_is_named(strength, generator):
    value, ball, at, operator = upwind(strength)
    options = {"operator": operator, "drift": "weight", "n_walks": 500, "generator": generator}
    with pytest.warns(EllipticWarning):
        assert covered(estimate_landscape(value, ball, at.repeat(40, 1), **options), 1.0) >= 0.8


def cap(share):
    """A cap of the unit sphere in three dimensions that exits from the centre meet with this probability."""
    return lambda z: (z[:, 0] > 1 - 2 * share).double()


UNIT_BALL = Ball(torch.zeros(3, dtype=F64), 1.0)


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


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
@pytest.mark.parametrize(("strength", "n_walks"), [(3.0, 300), (1.5, 200)])
def test_intervals_cover_downstream(strength, n_walks, generator):
    """The value is carried by walks that cross the whole ball against the drift."""
    value, ball, at, operator = upwind(strength)
    at = torch.tensor([0.9 * RADIUS, 0, 0], dtype=F64)
    options = {"operator": operator, "drift": "weight", "n_walks": n_walks, "generator": generator}
    found = estimate_landscape(value, ball, at.repeat(100, 1), **options)
    truth = float(value(at[None]))
    assert covered(found, truth) >= 0.85  # fewer of 100 have probability 4e-5 at 95 %
    if strength < 2:
        assert float(found.stderr.median()) < 0.3 * truth  # wide, but not as wide as the boundary's values


# Unfinished walks, repeated data, time steps.


def cloud(generator, n=30, dim=3):
    return torch.randn(n, dim, dtype=F64, generator=generator)


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_few_unfinished_walks_enter_the_bias(generator):
    """Balls of value 1 in a sphere of value 0: a small share of lost walks moves the value by that share."""
    domain = DataDomain(cloud(generator), fraction=0.3)
    places = 0.3 * cloud(generator)
    at = places[domain.distance(places).argmax()][None]  # in no ball, where walks would end at once
    options = {"data_values": torch.ones(30), "solver": "spheres", "shell": 1e-5, "n_walks": 1000}
    options["generator"] = generator
    whole = estimate_landscape(0.0, domain, at, **options)
    for max_steps in range(40, 400, 20):
        found = estimate_landscape(0.0, domain, at, max_steps=max_steps, **options)
        if float(found.unfinished_share) <= 0.01:
            break
    assert 0 < float(found.unfinished_share) <= 0.01
    assert float(found.bias) >= float(found.unfinished_share) * 0.99
    gap = abs(float(found.value - whole.value))
    assert gap <= float(found.bias) + 4 * float(found.stderr.hypot(whole.stderr))


def test_repeated_points_share_the_mean_of_their_values(generator):
    points = cloud(generator, n=10)
    twice = torch.cat([points, points[:1]])
    values = torch.cat([torch.tensor([0.0]), torch.rand(9, generator=generator), torch.tensor([10.0])])
    merged = torch.cat([torch.tensor([5.0]), values[1:10]])
    at = points[:1] + 0.5 * (points[1:2] - points[:1])
    found = [
        estimate_landscape(
            0.0,
            DataDomain(p, fraction=0.3, outer=Ball(torch.zeros(3, dtype=F64), 5.0)),
            at,
            data_values=v,
            solver="spheres",
            generator=torch.Generator().manual_seed(1),
        )
        for p, v in ((twice, values), (points, merged))
    ]
    assert torch.allclose(found[0].value, found[1].value)
