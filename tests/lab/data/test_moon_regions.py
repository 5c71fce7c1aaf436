"""Regions of two moons: geometry of each, and the half discs against their laws."""

import numpy as np
import pytest
import torch
from scipy import stats

from elliptica.lab.data.moon_regions import REGIONS, best_accuracy, draw_region
from elliptica.lab.data.toy import distance_to_moons, two_moons
from laws import ALPHA


def to_upper(x, y):
    """Undo the reflection, so that both moons are tested as one sample."""
    return torch.where(y[:, None] == 0, x, torch.tensor([1.0, 0.5]) - x).double().numpy()


def position(points):
    """Place on the outline of the half disc: along the half circle, then along the chord."""
    px, py = points.T
    return np.where(py > 1e-7, np.arctan2(py, px), np.pi + 1 + px) / (np.pi + 2)


@pytest.mark.statistical
def test_half_discs_are_uniform(generator):
    """By arc length on the boundary, by area inside; uniform in radius, or by equal pieces, is rejected."""
    moons = draw_region("half-disc", 20_000, 20_000, generator=generator)
    rim, inside = to_upper(moons.boundary_x, moons.boundary_y), to_upper(moons.interior_x, moons.interior_y)
    on_circle = np.abs(np.hypot(*rim.T) - 1) < 1e-6
    on_chord = (np.abs(rim[:, 1]) < 1e-6) & (np.abs(rim[:, 0]) <= 1 + 1e-6)
    assert np.all(on_circle | on_chord)
    assert stats.kstest(position(rim), "uniform").pvalue > ALPHA
    assert stats.binomtest(int(on_chord.sum()), len(rim), 0.5).pvalue < ALPHA
    radius = np.hypot(*inside.T)
    assert radius.max() <= 1 + 1e-6
    assert inside[:, 1].min() >= -1e-6
    assert stats.kstest(radius**2, "uniform").pvalue > ALPHA
    assert stats.kstest(radius, "uniform").pvalue < ALPHA
    assert stats.kstest(np.arctan2(inside[:, 1], inside[:, 0]) / np.pi, "uniform").pvalue > ALPHA


@pytest.mark.statistical
def test_best_accuracy_is_that_of_the_overlap(generator):
    moons = draw_region("half-disc", 0, 200_000, generator=generator)
    other = to_upper(moons.interior_x, 1 - moons.interior_y)
    in_both = (np.hypot(*other.T) <= 1) & (other[:, 1] >= 0)
    assert best_accuracy() == pytest.approx(1 - in_both.mean() / 2, abs=0.004)


@pytest.mark.parametrize("region", REGIONS)
def test_points_alternate_and_repeat(region):
    first, second = (draw_region(region, 7, 5, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert first.boundary_y.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert first.interior_x.shape == (5, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.isfinite(first.boundary_x).all()


def test_the_tube_is_that_of_two_moons():
    a = draw_region("tube", 50, 50, generator=torch.Generator().manual_seed(1))
    b = two_moons(50, 50, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("region", "rim", "inside"),
    [
        ("thin-tube", (0.1, 0.1), (0, 0.1)),
        ("band", (0.2, 0.2), (0, 0.2)),
        ("thin-band", (0.1, 0.1), (0, 0.1)),
        ("outer-arc", (0.2, 0.2), (0, 0.2)),
        ("hull", (0.2, 0.2), (0, 0.2)),
        ("curve", (0, 0), (0, 1)),
        ("shell", (0, 1), (0, 0.215)),  # nine tenths are within 2.146 deviations
        ("wide-shell", (0, 2), (0, 0.43)),
    ],
)
def test_distances_from_the_half_circle(region, rim, inside, generator):
    moons = draw_region(region, 2000, 2000, generator=generator)
    for x, y, (least, most) in (
        (moons.boundary_x, moons.boundary_y, rim),
        (moons.interior_x, moons.interior_y, inside),
    ):
        distance = distance_to_moons(x.double()).gather(1, y[:, None])
        assert float(distance.min()) >= least - 1e-6
        assert float(distance.max()) <= most + 1e-6


def test_the_hull_is_convex_and_holds_both_moons(generator):
    from scipy.spatial import ConvexHull

    moons = draw_region("outer-arc", 20_000, 0, generator=generator)
    corners = moons.boundary_x[ConvexHull(moons.boundary_x.numpy()).vertices.copy()]
    labels = moons.boundary_y[ConvexHull(moons.boundary_x.numpy()).vertices.copy()]
    angle = np.arctan2(*to_upper(corners, labels).T[::-1])
    drawn = draw_region("hull", 20_000, 0, generator=generator)
    mine = np.arctan2(*to_upper(drawn.boundary_x, drawn.boundary_y).T[::-1])
    assert angle.min() == pytest.approx(mine.min(), abs=0.02)


@pytest.mark.usefixtures("own_checks")
def test_an_unknown_region_is_refused():
    with pytest.raises(ValueError, match="region"):
        draw_region("square", 2, 2)
