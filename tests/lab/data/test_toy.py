"""Two moons: geometry against brute force, samplers against their laws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from elliptica.lab.data.toy import half_discs, two_moons

ALPHA = 1e-6
R = 0.2


def centre_lines(n=20_001):
    """Both half circles as scikit-learn's make_moons writes them, densely, in double precision."""
    t = np.linspace(0, np.pi, n)
    return np.c_[np.cos(t), np.sin(t)], np.c_[1 - np.cos(t), 1 - np.sin(t) - 0.5]


def distances(points, n=2001):
    """Distances of points from both centre lines, by brute force."""
    lines = [torch.from_numpy(line) for line in centre_lines(n)]
    return torch.stack([torch.cdist(points.double(), line).amin(1) for line in lines], 1)


def to_upper(x, y):
    """Undo the reflection, so that both moons are tested as one sample."""
    x = x.double().numpy()
    return np.where(y.numpy()[:, None] == 0, x, np.array([1.0, 0.5]) - x)


@pytest.mark.parametrize("radius", [0.05, 0.2, 0.2499])
def test_distances_of_the_samples(radius, generator):
    moons = two_moons(2001, 2001, radius=radius, generator=generator)
    own, other = 0, 1
    for x, y in ((moons.boundary_x, moons.boundary_y), (moons.interior_x, moons.interior_y)):
        measured = distances(x)
        measured = torch.where(y[:, None] == 0, measured, measured.flip(1))
        if x is moons.boundary_x:
            assert torch.all((measured[:, own] - radius).abs() < 1e-4)
        else:
            assert torch.all(measured[:, own] < radius + 1e-4)
        assert torch.all(measured[:, other] > 0.5 - radius - 1e-6)


@pytest.mark.parametrize(("n", "zeros"), [(0, 0), (1, 1), (2, 1), (7, 4), (100, 50)])
def test_labels_are_balanced_and_the_generator_decides(n, zeros):
    moons, again = (two_moons(n, n, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(moons, again, strict=True))
    for x, y in ((moons.boundary_x, moons.boundary_y), (moons.interior_x, moons.interior_y)):
        assert x.shape == (n, 2)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert int((y == 0).sum()) == zeros
        assert int((y == 1).sum()) == n - zeros


@pytest.mark.parametrize("radius", [0.0, -0.1, 0.25, 1.0, math.nan])
def test_radius_is_refused_where_tubes_touch_or_vanish(radius):
    with pytest.raises(ValueError, match="radius"):
        two_moons(2, 2, radius=radius)


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


@pytest.mark.statistical
@pytest.mark.parametrize("moon", [0, 1])
def test_boundary_is_uniform_by_arc_length(moon, generator):
    """Law: uniform on the outline. At n = 20 000 a share wrong by 0.03 is four critical values."""
    moons = two_moons(40_000, 0, generator=generator)
    mine = moons.boundary_y == moon
    assert_uniform_on_outline(to_upper(moons.boundary_x, moons.boundary_y)[mine.numpy()])


@pytest.mark.statistical
@pytest.mark.parametrize("moon", [0, 1])
def test_interior_is_uniform_by_area(moon, generator):
    """Law: uniform in the tube. Uniform in radius instead shifts each ring by up to 25 %."""
    moons = two_moons(0, 40_000, generator=generator)
    mine = moons.interior_y == moon
    assert_uniform_in_tube(to_upper(moons.interior_x, moons.interior_y)[mine.numpy()])


@pytest.mark.statistical
def test_half_discs_are_uniform(generator):
    """By arc length on the boundary, by area inside; uniform in radius, or by equal pieces, is rejected."""
    moons = half_discs(20_000, 20_000, generator=generator)
    assert moons.boundary_y[:4].tolist() == moons.interior_y[:4].tolist() == [0, 1, 0, 1]
    rim, inside = to_upper(moons.boundary_x, moons.boundary_y), to_upper(moons.interior_x, moons.interior_y)
    on_circle = np.abs(np.hypot(*rim.T) - 1) < 1e-6
    on_chord = (np.abs(rim[:, 1]) < 1e-6) & (np.abs(rim[:, 0]) <= 1 + 1e-6)
    assert np.all(on_circle | on_chord)
    position = np.where(rim[:, 1] > 1e-7, np.arctan2(rim[:, 1], rim[:, 0]), np.pi + 1 + rim[:, 0])
    assert stats.kstest(position / (np.pi + 2), "uniform").pvalue > ALPHA
    assert stats.binomtest(int(on_chord.sum()), len(rim), 0.5).pvalue < ALPHA
    radius = np.hypot(*inside.T)
    assert radius.max() <= 1 + 1e-6
    assert inside[:, 1].min() >= -1e-6
    assert stats.kstest(radius**2, "uniform").pvalue > ALPHA
    assert stats.kstest(radius, "uniform").pvalue < ALPHA
    assert stats.kstest(np.arctan2(inside[:, 1], inside[:, 0]) / np.pi, "uniform").pvalue > ALPHA
    other = to_upper(moons.interior_x, 1 - moons.interior_y)
    in_both = (np.hypot(*other.T) <= 1) & (other[:, 1] >= 0)
    assert 1 - in_both.mean() / 2 == pytest.approx(0.855, abs=0.01)  # the best accuracy inside
