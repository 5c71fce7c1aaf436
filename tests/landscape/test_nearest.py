"""The nearest ball, by tree, by product and by comparing all: one answer, exact wherever the points lie."""

import pytest
import torch

from elliptica.landscape import Ball, nearest
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.nearest import NearestBalls, distances, nearest_other


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


def use(monkeypatch, way):
    """Force one way of searching."""
    monkeypatch.setattr(nearest, "_FEW", 10**9 if way == "comparison" else 0)
    monkeypatch.setattr(nearest, "TREE_BALLS", 0 if way == "tree" else 10**9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dim", [1, 2, 12])
@pytest.mark.parametrize("name", ["plain", "cluster", "repeated", "outlier", "far"])
def test_all_ways_give_the_nearest_ball(name, dim, dtype, generator, monkeypatch):
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
        for way in ("comparison", "tree", "product"):
            use(monkeypatch, way)
            torch.testing.assert_close(nearest_other(points).double(), apart, rtol=1e-6, atol=0)
            answers.append(NearestBalls(points, radii, float((radii / apart).max()))(z))
            found = gaps.gather(1, answers[-1][:, None])[:, 0]
            error = (found - gaps.amin(1)).abs()
            assert bool((error <= 1e-12 * (gaps.amin(1).abs() + radii.max())).all())
        assert torch.equal(answers[0], answers[1])
        assert torch.equal(answers[0], answers[2])


def test_a_product_alone_picks_wrong_balls(generator):
    """The test above has teeth: what cdist proposes in a tight cluster is not the nearest."""
    points = clouds(generator, 600, 2)["cluster"]
    z, domain = points + 1e-8, DataDomain(points)
    truth = (distances(z, points) - domain.radii).argmin(1)
    assert not torch.equal((torch.cdist(z, points) - domain.radii).argmin(1), truth)
    assert torch.equal(domain.nearest_ball(z)[1], truth)


def test_the_answer_does_not_depend_on_scipy(generator, monkeypatch):
    points = torch.randn(3000, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    with_tree = DataDomain(points)
    found = with_tree.nearest_ball(z)
    assert "_tree" in vars(with_tree._balls)

    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(nearest.importlib, "import_module", missing)
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
