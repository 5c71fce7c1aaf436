"""Error statements under stress: too few steps, sampled constants, repeated data, strong drift."""

import math

import pytest
import torch

from elliptica import EllipticWarning, estimate_landscape
from elliptica.landscape import Ball, DataDomain, Operator
from elliptica.landscape.estimate import judge
from elliptica.landscape.solve import euler_steps

DISK = Ball(torch.zeros(2, dtype=torch.float64), 1.0)


def cloud(generator, n=30, dim=3):
    return torch.randn(n, dim, dtype=torch.float64, generator=generator)


def test_unfinished_walks_make_the_bias_unknown(generator):
    """With five steps most walks are cut off, and what they would have earned is not known."""
    at = torch.tensor([[0.5, 0.3]], dtype=torch.float64)
    with pytest.warns(EllipticWarning, match="ran out of steps"):
        found = estimate_landscape(
            lambda z: torch.zeros_like(z[:, 0]),
            DISK,
            at,
            operator=Operator(source=lambda z: torch.ones_like(z[:, 0])),
            solver="spheres",
            max_steps=5,
            generator=generator,
        )
    assert float(found.unfinished_share) > 0.5
    assert math.isinf(float(found.bias))
    low, high = found.interval()
    assert float(low) < 0.33 < float(high)


@pytest.mark.statistical
def test_few_unfinished_walks_enter_the_bias(generator):
    """Balls of value 1 in a sphere of value 0: a small share of lost walks moves the value by that share."""
    domain = DataDomain(cloud(generator), fraction=0.3)
    places = 0.3 * cloud(generator)
    at = places[domain.distance(places).argmax()][None]  # in no ball, where walks would end at once
    options = {"data_values": torch.ones(30), "solver": "spheres", "generator": generator, "n_walks": 1500}
    whole = estimate_landscape(0.0, domain, at, **options)
    for max_steps in range(400, 20, -20):
        found = estimate_landscape(0.0, domain, at, max_steps=max_steps, **options)
        if 0 < float(found.unfinished_share) <= 0.01:
            break
    else:
        pytest.fail("no setting with a small share of unfinished walks")
    assert float(found.bias) >= float(found.unfinished_share) * 0.99
    gap = abs(float(found.value - whole.value))
    assert gap <= float(found.bias) + 4 * float(found.stderr.hypot(whole.stderr))


@pytest.mark.statistical
def test_euler_gets_enough_steps_for_its_step(generator):
    """With balls the step is tiny; the limit follows it, and the answer is that of walk on spheres."""
    points = cloud(generator, n=15)
    domain = DataDomain(points, fraction=0.4)
    middle = (points[1:] + points[:-1]) / 2
    at = middle[domain.distance(middle).argmax()][None]
    options = {"operator": Operator(source=1.0), "data_values": torch.zeros(15), "generator": generator}
    euler = estimate_landscape(0.0, domain, at, solver="euler", n_walks=300, **options)
    spheres = estimate_landscape(0.0, domain, at, solver="spheres", n_walks=2000, **options)
    assert float(euler.unfinished_share) < 0.01
    error = float(euler.stderr.hypot(spheres.stderr))
    assert abs(float(euler.value - spheres.value)) < 5 * error + 0.05 * float(spheres.value)


def test_steps_of_euler_follow_the_domain_and_the_step():
    at = torch.zeros(1, 3)
    assert euler_steps(Operator(), at, 1.0, 1e-2) == 10_000
    assert euler_steps(Operator(), at, 1.0, 1e-5) == pytest.approx(30 / 3 / 1e-5, rel=1e-3)
    assert euler_steps(Operator(), at, 1.0, 1e-9) == 2_000_000


def test_only_a_given_constant_is_proved(generator):
    """A function that was seen to be constant at a sample may differ elsewhere."""
    points = cloud(generator, n=20, dim=5)
    domain = DataDomain(points, fraction=0.2)
    at = torch.zeros(1, 5, dtype=torch.float64)
    options = {"data_values": torch.ones(20), "solver": "green", "generator": generator, "n_walks": 200}
    assert estimate_landscape(0.0, domain, at, **options).bias_kind == "bound"
    seen = estimate_landscape(lambda z: torch.zeros_like(z[:, 0]), domain, at, **options)
    assert seen.bias_kind == "estimate"


def test_a_number_and_a_constant_function_agree(generator):
    domain = DataDomain(cloud(generator), fraction=0.3)
    at = torch.tensor([[0.3, 0.1, 0.2]], dtype=torch.float64)
    values = torch.rand(30, generator=generator)
    twin = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    one = estimate_landscape(0.7, domain, at, data_values=values, solver="spheres", generator=twin[0])
    two = estimate_landscape(
        lambda z: torch.full_like(z[:, 0], 0.7),
        domain,
        at,
        data_values=values,
        solver="spheres",
        generator=twin[1],
    )
    assert torch.equal(one.value, two.value)


def test_repeated_points_share_the_mean_of_their_values(generator):
    points = cloud(generator, n=10)
    twice = torch.cat([points, points[:1]])
    values = torch.cat([torch.tensor([0.0]), torch.rand(9, generator=generator), torch.tensor([10.0])])
    merged = torch.cat([torch.tensor([5.0]), values[1:10]])
    at = points[:1] + 0.5 * (points[1:2] - points[:1])
    found = [
        estimate_landscape(
            0.0,
            DataDomain(p, fraction=0.3, outer=Ball(torch.zeros(3, dtype=torch.float64), 5.0)),
            at,
            data_values=v,
            solver="spheres",
            generator=torch.Generator().manual_seed(1),
        )
        for p, v in ((twice, values), (points, merged))
    ]
    assert torch.allclose(found[0].value, found[1].value)
    assert "repeat others" in found[0].notes[-1]


def test_queries_in_a_ball_are_named(generator):
    points = cloud(generator, n=10)
    found = estimate_landscape(
        0.0, DataDomain(points, fraction=0.3), points[:3], data_values=torch.rand(10), generator=generator
    )
    assert any("3 of 3 queries lie in a ball" in note for note in found.notes)


def test_a_strong_drift_reaches_the_far_wall(generator):
    """Weights alone would rest on a few walks; half of the walks follow the drift."""
    at = torch.zeros(1, 2, dtype=torch.float64)
    strong = Operator(drift=torch.tensor([5.0, 0.0], dtype=torch.float64))
    found = estimate_landscape(
        lambda z: z[:, 0], Ball(torch.zeros(2), 6.0), at, operator=strong, n_walks=200, generator=generator
    )
    assert 5.5 < float(found.value) <= 6.0
    assert float(found.stderr) < 0.1
    assert float(found.effective) > 50


@pytest.mark.statistical
def test_plain_euler_is_reachable_and_worse(generator):
    at = torch.tensor([[0.5, 0.3]], dtype=torch.float64)
    options = {"solver": "euler", "dt": 1e-2, "n_walks": 20_000, "generator": generator}
    plain = estimate_landscape(0.0, DISK, at, boundary_shift=False, **options)
    shifted = estimate_landscape(0.0, DISK, at, **options)
    exact = (1 - 0.34) / 2
    assert float(plain.exit_time) / exact - 1 > 0.15
    assert abs(float(shifted.exit_time) / exact - 1) < 0.04
    assert float(plain.bias) >= float(shifted.bias)


def test_progress_is_told_more_than_once(generator):
    told = []
    at = torch.zeros(40, 2, dtype=torch.float64)
    estimate_landscape(
        lambda z: z[:, 0],
        DISK,
        at,
        n_walks=10,
        generator=generator,
        progress=lambda done, total: told.append((done, total)),
    )
    assert len(told) == 20
    assert told[-1] == (40, 40)


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [math.nan, "zero", None])
def test_wrong_values(value):
    with pytest.raises((ValueError, TypeError), match="value must be"):
        estimate_landscape(value, DISK, torch.zeros(1, 2))


@pytest.mark.bad_input
def test_overlap_far_from_the_closest_pair_is_found():
    """The closest two points have tiny balls; two others overlap."""
    points = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [6.0, 0.0]])
    with pytest.raises(ValueError, match="overlap"):
        DataDomain(points, epsilon=torch.tensor([0.01, 0.01, 0.6, 0.6]))


@pytest.mark.parametrize(
    ("has_balls", "shares", "words"),
    [
        (True, (0.2, 0.3, 0.9), "At half of the queries 70% or more of the walks end on the outer boundary"),
        (True, (0.2, 0.6, 0.9), None),
        (False, (0.2, 0.3, 0.9), None),
    ],
)
def test_a_result_that_comes_from_the_outer_boundary_says_so(has_balls, shares, words):
    share = torch.tensor(shares)
    none = torch.zeros(3)
    notes = judge(
        has_balls=has_balls,
        dim=2,
        hit_share=share,
        unfinished_share=none,
        effective=none + 100,
        n_walks=100,
        max_steps=None,
    )
    assert len(notes) == (words is not None)
    assert words is None or notes[0].startswith(words)
