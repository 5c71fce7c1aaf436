"""Two moons: geometry against brute force, samplers against their laws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from elliptica.lab.data.toy import distance_to_moons, two_moons

ALPHA = 1e-6
R = 0.2


def centre_lines(n=20_001):
    """Both half circles as scikit-learn's make_moons writes them, densely, in double precision."""
    t = np.linspace(0, np.pi, n)
    return np.c_[np.cos(t), np.sin(t)], np.c_[1 - np.cos(t), 1 - np.sin(t) - 0.5]


def brute_force_distance(points):
    return np.stack([[np.hypot(*(line - p).T).min() for p in points] for line in centre_lines()], axis=1)


def to_upper(x, y):
    """Undo the reflection, so that both moons are tested as one sample."""
    x = x.double().numpy()
    return np.where(y.numpy()[:, None] == 0, x, np.array([1.0, 0.5]) - x)


def test_distances_equal_brute_force(generator):
    points = 4 * torch.rand(300, 2, generator=generator, dtype=torch.float64) - 1.5
    expected = brute_force_distance(points.numpy())
    np.testing.assert_allclose(distance_to_moons(points).numpy(), expected, atol=1e-4)


def test_distance_is_one_lipschitz(generator):
    a, b = 4 * torch.rand(2, 2000, 2, generator=generator, dtype=torch.float64) - 1.5
    change = (distance_to_moons(a) - distance_to_moons(b)).abs()
    assert torch.all(change <= (a - b).norm(dim=1, keepdim=True) + 1e-12)


def test_tubes_do_not_touch():
    """The centre lines are 0.5 apart, so tubes of radius below 0.25 are disjoint."""
    upper, lower = map(torch.from_numpy, centre_lines())
    gaps = torch.stack([distance_to_moons(upper)[:, 1].min(), distance_to_moons(lower)[:, 0].min()])
    torch.testing.assert_close(gaps, torch.full_like(gaps, 0.5))


@pytest.mark.parametrize("radius", [0.05, 0.2, 0.2499])
def test_distances_of_the_samples(radius, generator):
    moons = two_moons(4001, 4001, radius=radius, generator=generator)
    own, other = 0, 1
    for x, y in ((moons.boundary_x, moons.boundary_y), (moons.interior_x, moons.interior_y)):
        distances = distance_to_moons(x.double())
        distances = torch.where(y[:, None] == 0, distances, distances.flip(1))
        if x is moons.boundary_x:
            assert torch.all((distances[:, own] - radius).abs() < 1e-5)
        else:
            assert torch.all(distances[:, own] < radius + 1e-6)
        assert torch.all(distances[:, other] > 0.5 - radius - 1e-6)


@pytest.mark.parametrize(("n", "zeros"), [(0, 0), (1, 1), (2, 1), (7, 4), (100, 50)])
def test_labels_are_balanced(n, zeros, generator):
    moons = two_moons(n, n, generator=generator)
    for x, y in ((moons.boundary_x, moons.boundary_y), (moons.interior_x, moons.interior_y)):
        assert x.shape == (n, 2)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert int((y == 0).sum()) == zeros
        assert int((y == 1).sum()) == n - zeros


def test_same_generator_same_points():
    first, again, other = (
        two_moons(10, 10, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.boundary_x, other.boundary_x)
    assert not torch.equal(first.interior_x, other.interior_x)


def test_default_stream_is_used_only_without_a_generator(generator):
    before = torch.get_rng_state()
    two_moons(5, 5, generator=generator)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        two_moons(5, 5)
        assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("radius", [0.0, -0.1, 0.25, 1.0, math.nan])
def test_radius_is_refused_where_tubes_touch_or_vanish(radius):
    with pytest.raises(ValueError, match=r"radius must be above 0 and below 0.25.*Pass e\.g\."):
        two_moons(2, 2, radius=radius)


@pytest.mark.parametrize("name", ["n_boundary", "n_interior"])
def test_negative_counts_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must not be negative, but got -1. Pass 0"):
        two_moons(**{"n_boundary": 1, "n_interior": 1, name: -1})


# Laws. Each check rejects a right sampler with probability ALPHA.


def arc_length(points):
    """Position along the outline of the upper tube, anticlockwise from the outer arc's right."""
    px, py = points.T
    r, angle = np.hypot(px, py), np.arctan2(py, px) % (2 * np.pi)
    outer, cap, inner = np.pi * (1 + R), np.pi * R, np.pi * (1 - R)
    is_arc = py >= 0
    on_outer = (1 + R) * angle
    left = outer + R * (np.arctan2(py, px + 1) % (2 * np.pi) - np.pi)
    on_inner = outer + cap + (1 - R) * (np.pi - angle)
    right = outer + cap + inner + R * (np.arctan2(py, px - 1) % (2 * np.pi) - np.pi)
    on_arc = np.where(r > 1, on_outer, on_inner)
    return np.where(is_arc, on_arc, np.where(px < 0, left, right))


def assert_uniform_on_outline(points):
    """Kolmogorov-Smirnov test of the position along the outline."""
    p = stats.kstest(arc_length(points) / (2 * np.pi * (1 + R)), "uniform").pvalue
    assert p > ALPHA, f"not uniform by arc length, p={p:.1e} (n={len(points)})"


def cell_areas():
    """Exact areas of the cells that `cells` numbers: 8 sectors x 4 rings, then 2 ends x 3 rings."""
    rings = np.linspace(1 - R, 1 + R, 5)
    band = np.repeat(np.diff(rings**2)[None] * np.pi / 8 / 2, 8, axis=0)
    caps = np.repeat(np.diff(np.linspace(0, R, 4) ** 2)[None] * np.pi / 2, 2, axis=0)
    return np.concatenate([band.ravel(), caps.ravel()])


def cells(points):
    px, py = points.T
    sector = np.clip((np.arctan2(py, px) / np.pi * 8).astype(int), 0, 7)
    ring = np.clip(((np.hypot(px, py) - (1 - R)) / (2 * R) * 4).astype(int), 0, 3)
    end_ring = np.clip((np.hypot(np.abs(px) - 1, py) / R * 3).astype(int), 0, 2)
    return np.where(py >= 0, sector * 4 + ring, 32 + (px < 0) * 3 + end_ring)


def assert_uniform_in_tube(points):
    """Chi-square test of counts against areas."""
    areas = cell_areas()
    observed = np.bincount(cells(points), minlength=len(areas))
    p = stats.chisquare(observed, len(points) * areas / areas.sum()).pvalue
    assert p > ALPHA, f"not uniform by area, p={p:.1e} (n={len(points)})"


def test_cell_areas_add_up():
    assert cell_areas().sum() == pytest.approx(2 * np.pi * R + np.pi * R**2)


@pytest.mark.statistical
@pytest.mark.parametrize("moon", [0, 1])
def test_boundary_is_uniform_by_arc_length(moon, generator):
    """Law: uniform on the outline. At n = 20 000 a share wrong by 0.03 is four critical values."""
    moons = two_moons(40_000, 0, generator=generator)
    mine = moons.boundary_y == moon
    assert_uniform_on_outline(to_upper(moons.boundary_x, moons.boundary_y)[mine.numpy()])


def wrong_outline(u, v, w, *, arcs_equally_likely, with_caps=True):
    """Arcs drawn by angle alone, or the ends of the tube left open."""
    is_cap = (u < R / (1 + R)) & with_caps
    share_outer = 0.5 if arcs_equally_likely else (1 + R) / 2
    r = np.where(w < share_outer, 1 + R, 1 - R)
    on_arc = np.c_[r * np.cos(np.pi * v), r * np.sin(np.pi * v)]
    turn = 2 * np.pi * v
    side = np.where(turn < np.pi, 1.0, -1.0)
    on_cap = np.c_[side + R * np.cos(turn % np.pi), -R * np.sin(turn % np.pi)]
    return np.where(is_cap[:, None], on_cap, on_arc)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "defect", [{"arcs_equally_likely": True}, {"arcs_equally_likely": False, "with_caps": False}]
)
def test_boundary_check_rejects_wrong_samplers(defect, generator):
    u, v, w = torch.rand(3, 20_000, generator=generator, dtype=torch.float64).numpy()
    with pytest.raises(AssertionError, match="not uniform by arc length"):
        assert_uniform_on_outline(wrong_outline(u, v, w, **defect))


@pytest.mark.statistical
def test_boundary_check_accepts_the_wrong_sampler_put_right(generator):
    """So that the rejections above are due to the defects and to nothing else."""
    u, v, w = torch.rand(3, 20_000, generator=generator, dtype=torch.float64).numpy()
    assert_uniform_on_outline(wrong_outline(u, v, w, arcs_equally_likely=False))


@pytest.mark.statistical
@pytest.mark.parametrize("moon", [0, 1])
def test_interior_is_uniform_by_area(moon, generator):
    """Law: uniform in the tube. Uniform in radius instead shifts each ring by up to 25 %."""
    moons = two_moons(0, 40_000, generator=generator)
    mine = moons.interior_y == moon
    assert_uniform_in_tube(to_upper(moons.interior_x, moons.interior_y)[mine.numpy()])


def wrong_tube(u, v, w, *, band_by_radius=False, caps_by_radius=False, share=R / (2 + R)):
    """Interior with one of three mistakes; none by default."""
    r = 1 - R + 2 * R * w if band_by_radius else np.sqrt((1 - R) ** 2 + 4 * R * w)
    in_band = np.c_[r * np.cos(np.pi * v), r * np.sin(np.pi * v)]
    rho = R * (w if caps_by_radius else np.sqrt(w))
    turn = 2 * np.pi * v
    side = np.where(turn < np.pi, 1.0, -1.0)
    in_cap = np.c_[side + rho * np.cos(turn % np.pi), -rho * np.sin(turn % np.pi)]
    return np.where((u < share)[:, None], in_cap, in_band)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "defect",
    [{"band_by_radius": True}, {"caps_by_radius": True}, {"share": R / (1 + R)}, {"share": 0.0}],
    ids=str,
)
def test_interior_check_rejects_wrong_samplers(defect, generator):
    u, v, w = torch.rand(3, 20_000, generator=generator, dtype=torch.float64).numpy()
    with pytest.raises(AssertionError, match="not uniform by area"):
        assert_uniform_in_tube(wrong_tube(u, v, w, **defect))


@pytest.mark.statistical
def test_interior_check_accepts_the_wrong_sampler_put_right(generator):
    u, v, w = torch.rand(3, 20_000, generator=generator, dtype=torch.float64).numpy()
    assert_uniform_in_tube(wrong_tube(u, v, w))
