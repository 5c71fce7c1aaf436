"""Regions and nearest balls: distances and projections against brute force."""

import numpy as np
import pytest
import torch

from elliptica.landscape import Ball, Box, DataDomain, Polytope, data_domain
from elliptica.landscape.data_domain import NearestBalls, distances, nearest_other
from elliptica.landscape.domains import OUTER, inside, step_radius


def points(n, dim, generator, dtype=torch.float64):
    return torch.randn(n, dim, generator=generator, dtype=torch.float64).to(dtype)


def unit(n, dim, generator):
    return torch.nn.functional.normalize(points(n, dim, generator), dim=1)


def check_projection(domain, z, atol=1e-9):
    """The projection is on the boundary, as far away as the distance says."""
    target = domain.project(z)
    assert torch.allclose((target - z).norm(dim=1), domain.distance(z), atol=atol)
    assert float(domain.distance(target).abs().max()) < atol


@pytest.mark.parametrize("dim", [1, 2, 7, 300])
def test_ball(dim, generator):
    ball = Ball(points(1, dim, generator)[0], 2.0)
    z = ball.centre + 2 * torch.rand(50, 1, generator=generator, dtype=torch.float64) * unit(
        50, dim, generator
    )
    check_projection(ball, z)
    on_sphere = ball.centre + 2 * unit(20_000, dim, generator)
    if dim <= 2:  # enough random directions to come near the nearest point
        brute = torch.cdist(z, on_sphere).amin(1)
        assert float((ball.distance(z) - brute).abs().max()) < 1e-2
    assert bool((ball.distance(z)[:, None] <= torch.cdist(z, on_sphere[:100]) + 1e-9).all())
    assert torch.allclose(ball.project(ball.centre[None]).sub(ball.centre).norm(), torch.tensor(2.0).double())
    assert bool((ball.distance(ball.centre + 2.1 * unit(5, dim, generator)) < 0).all())


def test_box(generator):
    box = Box(torch.tensor([-1.0, 0.0, 2.0]).double(), torch.tensor([1.0, 0.5, 5.0]).double())
    z = box.low + (box.high - box.low) * torch.rand(100, 3, generator=generator, dtype=torch.float64)
    check_projection(box, z)
    brute = torch.stack([(z[:, i] - side[i]).abs() for side in (box.low, box.high) for i in range(3)], 1)
    assert torch.allclose(box.distance(z), brute.amin(1))
    assert box.reflect(z) is z
    assert float(box.distance(torch.tensor([[0.0, 0.7, 3.0]]).double())) == pytest.approx(-0.2)


def fold(x, low, high):
    """Reflection at two walls, one bounce at a time."""
    while not low <= x <= high:
        x = 2 * low - x if x < low else 2 * high - x
    return x


def test_reflecting_box_folds_and_never_absorbs(generator):
    box = Box(torch.tensor([-1.0, 0.0]).double(), torch.tensor([1.0, 0.5]).double(), wall="reflect")
    z = 4 * points(200, 2, generator)
    brute = [
        [fold(float(x), float(a), float(b)) for x, a, b in zip(row, box.low, box.high, strict=True)]
        for row in z
    ]
    assert torch.allclose(box.reflect(z), torch.tensor(brute).double(), atol=1e-9)
    kept = torch.tensor([[0.3, 0.2], [-0.9, 0.45]]).double()
    assert torch.allclose(box.reflect(kept), kept, atol=1e-12)
    assert bool(box.distance(kept).isinf().all())


def largest_stretch(domain, z, scale, directions):
    """Largest t with ``z + t * scale * direction`` inside, for the worst direction, by bisection."""
    low, high = torch.zeros(len(directions)).double(), torch.full((len(directions),), 20.0).double()
    for _ in range(50):
        t = (low + high) / 2
        within = domain.distance(z + t[:, None] * scale * directions) > 0
        low, high = torch.where(within, t, low), torch.where(within, high, t)
    return float(low.min())


@pytest.mark.parametrize("kind", ["box", "hull", "ball", "data"])
def test_scaled_distance(kind, generator):
    data, scale = points(12, 2, generator), torch.tensor([0.5, 2.0]).double()
    domain = {
        "box": Box.around(data),
        "hull": Polytope.hull(data),
        "ball": Ball.around(data),
        "data": DataDomain(data, outer="box"),
    }[kind]
    places = data.mean(0) + 0.3 * points(50, 2, generator)
    z = places[domain.distance(places).argmax()][None]  # the mean may lie in the ball around a data point
    t, directions = float(step_radius(domain, z, scale)), unit(20_000, 2, generator)
    assert t > 0
    share = torch.rand(20_000, 1, generator=generator).double().sqrt() * (1 - 1e-9)
    assert (domain.distance(z + t * share * scale * directions) > 0).all()  # never more than the truth
    if kind in ("box", "hull"):  # sharp where facets are flat
        assert t == pytest.approx(largest_stretch(domain, z, scale, directions), rel=1e-3)


def test_hull_against_support_functions(generator):
    data = points(25, 2, generator)
    hull = Polytope.hull(data)
    angle = torch.linspace(0, 2 * torch.pi, 100_001, dtype=torch.float64)
    direction = torch.stack([angle.cos(), angle.sin()])
    z = data.mean(0) + 0.3 * points(40, 2, generator)
    # distance to the boundary of a convex set: least gap of its support function
    gap = ((data @ direction).amax(0) - z @ direction).amin(1)
    within = gap > 0
    assert int(within.sum()) > 10
    assert torch.allclose(hull.distance(z)[within], gap[within], atol=1e-4)
    assert bool((hull.distance(z)[~within] <= 0).all())
    check_projection(hull, z[within])


def test_hull_in_one_and_three_dimensions():
    line = Polytope.hull(torch.tensor([[0.0], [3.0], [1.0]]).double())
    assert line.distance(torch.tensor([[1.0], [2.5], [4.0]]).double()).tolist() == [1.0, 0.5, -1.0]
    cube = torch.tensor(np.stack(np.meshgrid([0, 1], [0, 1], [0, 1]), -1).reshape(-1, 3)).double()
    z = torch.rand(20, 3, dtype=torch.float64)
    assert torch.allclose(Polytope.hull(cube).distance(z), torch.minimum(z, 1 - z).amin(1))


def test_data_domain_against_brute_force(generator):
    data = points(40, 3, generator)
    domain = DataDomain(data, fraction=0.4)
    z = points(300, 3, generator)
    gaps = torch.stack([(z - c).norm(dim=1) - r for c, r in zip(data, domain.radii, strict=True)], 1)
    wall = domain.domain.distance(z)
    assert torch.allclose(domain.distance(z), torch.minimum(gaps.amin(1), wall))
    where = torch.where(gaps.amin(1) <= wall, gaps.argmin(1), OUTER)
    assert torch.equal(domain.where(z), where)
    assert bool((where == OUTER).any())
    assert bool((where >= 0).any())
    free = domain.distance(z) > 0
    check_projection(domain, z[free])
    nearest = (torch.cdist(data, data) + 1e9 * torch.eye(40).double()).amin(1)
    assert torch.allclose(domain.radii, 0.4 * nearest)


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_rounding_does_not_put_data_outside_their_hull(generator, shift):
    """In float32 the corners of a hull miss its facets by more than a millionth of their distance."""
    for _ in range(20):
        points = torch.randn(200, 3, generator=generator) + shift
        points[:, 2] = shift + (points[:, 2] > shift)  # many on one facet, as classes are
        assert isinstance(DataDomain(points, outer="hull").domain, Polytope)


def test_data_on_the_hull_count_as_inside():
    corners = torch.tensor([[0.0, 0], [1, 0], [0, 1]]).double()
    domain = DataDomain(corners, epsilon=0.1, outer="hull")
    queries = torch.cat([corners, torch.tensor([[0.3, 0.3], [2.0, 2.0]]).double()])
    assert inside(domain, queries).tolist() == [True, True, True, True, False]


# The nearest ball: one answer by tree and by comparison, exact wherever the points lie.


def clouds(generator, n, dim):
    """Points that a careless search gets wrong, and plain ones."""
    plain = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    outlier = plain.clone()
    outlier[0] = 1e6
    half = n // 2
    return {
        "plain": plain,
        "cluster": torch.cat([plain[:half], plain[:1] + 1e-7 * plain[half:]]),
        "repeated": torch.cat([plain[:half], plain[: n - half]]),
        "outlier": outlier,
        "far": plain + 1e5,
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dim", [1, 2, 12])
@pytest.mark.parametrize("name", ["plain", "cluster", "repeated", "outlier", "far"])
def test_both_ways_give_the_nearest_ball(name, dim, dtype, generator, monkeypatch):
    points = clouds(generator, 600, dim)[name].to(dtype)
    apart = distances(points.double(), points.double())
    apart = torch.where(apart > 0, apart, torch.inf).amin(1)
    pick = torch.randint(600, (300,), generator=generator)
    noise = torch.randn(300, dim, generator=generator, dtype=torch.float64)
    spots = [points[pick] + (apart[pick, None] * noise).to(dtype), points[:60], points.median(0).values[None]]
    z = torch.cat([*spots, (points.median(0).values + noise).to(dtype)])
    for radii in (0.4 * apart, torch.full_like(apart, 0.4 * float(apart.min()))):
        gaps = distances(z.double(), points.double()) - radii
        answers = []
        for least in (10**9, 0):  # by comparison, by tree
            monkeypatch.setattr(data_domain, "TREE_BALLS", least)
            torch.testing.assert_close(nearest_other(points).double(), apart, rtol=1e-6, atol=0)
            answers.append(NearestBalls(points, radii, float((radii / apart).max()))(z))
            found = gaps.gather(1, answers[-1][:, None])[:, 0]
            error = (found - gaps.amin(1)).abs()
            assert bool((error <= 1e-12 * (gaps.amin(1).abs() + radii.max())).all())
        assert torch.equal(answers[0], answers[1])


def test_the_answer_does_not_depend_on_scipy(generator, monkeypatch):
    points = torch.randn(3000, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    with_tree = DataDomain(points)
    found = with_tree.nearest_ball(z)
    assert "_tree" in vars(with_tree._balls)

    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(data_domain.importlib, "import_module", missing)
    without = DataDomain(points)
    assert without._balls._tree is None
    for first, second in zip(found, without.nearest_ball(z), strict=True):
        assert torch.equal(first, second)


def test_the_first_of_equally_near_balls_counts():
    """A lattice, seen from the middles of its cells; of repeated points the widest ball, then the first."""
    side = torch.arange(40, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    middle = grid[grid.amax(1) < 39] + 0.5
    expected = (grid[:, None] == middle - 0.5).all(2).long().argmax(0)
    for points in (grid, torch.cat([grid, grid])):
        assert torch.equal(DataDomain(points).nearest_ball(middle)[1], expected)
    radii = torch.tensor([0.1, 0.2, 0.2, 0.1])
    balls = NearestBalls(torch.tensor([[0.0], [0.0], [0.0], [9.0]]), radii)
    assert balls(torch.tensor([[1.0], [8.0]])).tolist() == [1, 3]
    assert balls.others().tolist() == pytest.approx([8.9, 8.9, 8.9, 8.8])


def test_one_large_ball_among_many_small_ones_is_found(generator):
    """Its centre is not among the first neighbours; the largest share of a radius decides, not the mean."""
    small = 10 * torch.rand(3000, 2, dtype=torch.float64, generator=generator)
    far = torch.tensor([[30.0, 30.0], [34.0, 30.0], [34.0, 31.0], [34.0, 29.0]], dtype=torch.float64)
    points = torch.cat([small, far])
    radii = torch.full((len(points),), 1e-6, dtype=torch.float64)
    radii[len(small)] = 3.9
    domain = DataDomain(points, epsilon=radii, outer=Ball(torch.full((2,), 15.0, dtype=torch.float64), 60.0))
    z = torch.tensor([[33.9, 30.0 + 0.2 * k] for k in range(-3, 4)], dtype=torch.float64)
    gap, which = domain.nearest_ball(z)
    truth = ((z[:, None] - points).norm(dim=2) - radii).min(1)
    torch.testing.assert_close(gap, truth.values)
    assert torch.equal(which, truth.indices)
