"""Charges around the data against closed forms, walk on spheres and their own certificate."""

import math

import pytest
import torch

from elliptica.landscape import Ball, DataDomain, Monopoles, Operator, estimate_landscape
from elliptica.landscape.monopole import MAX_BALLS, _Field, relative_bound
from elliptica.landscape.spheres import walk_on_spheres

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")


def cloud(n, dim, generator, fraction=0.3, margin=1.6):
    data = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return DataDomain(data, fraction=fraction, margin=margin)


def free(domain, n, generator):
    """Random points between the balls."""
    z = torch.randn(20 * n, domain.points.shape[1], generator=generator, dtype=torch.float64)
    return z[domain.distance(0.8 * z) > 0][:n] * 0.8


def naive(a, b, radius):
    """Green's function of a ball at the origin, as in textbooks."""
    n = len(a)
    if float(b.norm()) == 0:
        return float((a - b).norm() ** (2 - n) - radius ** (2 - n))
    image = b.norm() * (a - radius**2 * b / b.norm() ** 2).norm() / radius
    return float((a - b).norm() ** (2 - n) - image ** (2 - n))


@pytest.mark.parametrize("dim", [3, 4, 7])
def test_kernel_is_greens_function(dim, generator):
    data = torch.cat([torch.zeros(1, dim), torch.randn(3, dim, generator=generator)]).double()
    sphere = Ball(torch.zeros(dim).double(), 1.3 * float(data.norm(dim=1).max()))
    domain = DataDomain(data, epsilon=0.01, outer=sphere)
    field = _Field(domain, sphere, torch.ones(4, dtype=torch.bool))
    z = 0.5 * torch.randn(5, dim, generator=generator).double()
    kernel = field.log_kernel(z).exp() * 0.01 ** (2 - dim)
    expected = torch.tensor([[naive(a, b, sphere.radius) for b in data] for a in z], dtype=torch.float64)
    assert torch.allclose(kernel, expected, rtol=1e-8)
    edge = sphere.project(z)
    assert float(field.log_kernel(edge).exp().max()) < 1e-8 * 0.01 ** (dim - 2) * 1e4


@pytest.mark.parametrize("dim", [3, 5, 10])
def test_one_concentric_ball_is_exact(dim):
    # the second ball is too small to matter
    data = torch.zeros(2, dim).double()
    data[1, 0] = 1.5
    radii = torch.tensor([0.3, 1e-12]).double()
    domain = DataDomain(data, epsilon=radii, outer=Ball(torch.zeros(dim).double(), 2.0))
    fit = Monopoles.fit(domain, torch.ones(2).double())
    r = torch.tensor([0.31, 0.5, 1.0, 1.9]).double()
    z = torch.zeros(4, dim).double()
    z[:, 1] = r
    truth = (r ** (2 - dim) - 2.0 ** (2 - dim)) / (0.3 ** (2 - dim) - 2.0 ** (2 - dim))
    assert torch.allclose(fit.value(z), truth, rtol=1e-6)
    assert torch.allclose(fit.p_hit(z), truth, rtol=1e-6)
    assert torch.allclose(fit.conditional(z), torch.ones(4).double())
    assert float(fit.mismatch[0]) < 1e-9


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [3, 5, 10])
@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_walk_on_spheres_stays_within_the_certificate(dim, fraction, generator):
    n_walks, without_shielding_fails = 800, False
    for _ in range(4):
        domain = cloud(40, dim, generator, fraction)
        values = torch.rand(40, generator=generator, dtype=torch.float64)
        z = free(domain, 5, generator)
        fit = Monopoles.fit(domain, values)
        walks = estimate_landscape(
            lambda p: torch.zeros(len(p)),
            domain,
            z,
            solver="spheres",
            data_values=values,
            n_walks=n_walks,
            generator=generator,
        )
        ones = Monopoles.fit(domain, torch.ones_like(values))
        # of a mean of payoffs within [0, 1] that are not 0 with this probability (Bernstein); not by the
        # share that was seen, which may well be none
        share = (fit.p_hit(z) + ones.bound(z)).clamp_max(1)
        noise = 4.5 * (share * (1 - share) / n_walks).sqrt() + 4.5**2 / (3 * n_walks)
        assert bool(((fit.value(z) - walks.value).abs() <= fit.bound(z) + noise).all())
        assert bool(((fit.p_hit(z) - walks.hit_share).abs() <= ones.bound(z) + noise).all())
        if dim == 3:  # teeth: the answer without shielding (one ball at a time) fails
            lone = (fit.domain.radii / torch.cdist(z, domain.points)) ** (dim - 2)
            without_shielding_fails |= bool(((lone.sum(1) - walks.hit_share) > noise).any())
    assert without_shielding_fails or fraction == 0.1 or dim > 3


@pytest.mark.parametrize(("dim", "fraction"), [(3, 0.1), (3, 0.45), (5, 0.3), (10, 0.45)])
def test_the_certificate_bounds_what_is_missed_on_the_balls(dim, fraction, generator):
    domain = cloud(30, dim, generator, fraction)
    values = torch.rand(30, generator=generator, dtype=torch.float64)
    fit = Monopoles.fit(domain, values)
    used = []
    for j in range(30):
        direction = torch.randn(2000, dim, generator=generator, dtype=torch.float64)
        direction = direction / direction.norm(dim=1, keepdim=True)
        surface = domain.points[j] + (1 + 1e-9) * domain.radii[j] * direction
        missed = float((fit.value(surface) - values[j]).abs().max())
        assert missed <= float(fit.mismatch[j]) + 1e-7
        used.append(missed / float(fit.mismatch[j]))
    assert max(used) > 0.1  # not idle
    z = free(domain, 10, generator)
    assert bool((fit.bound(z) <= fit.mismatch.max() + 1e-12).all())
    assert bool((relative_bound(domain, z, 0.0) <= relative_bound(domain, z, 1.0)).all())


@pytest.mark.parametrize("dim", [3, 8])
def test_the_certificate_covers_outer_data(dim, generator):
    # h = R x_0 + x_0^2 - x_1^2 is harmonic; values on balls are those of h, so the truth is h itself
    domain = cloud(20, dim, generator, 0.4)
    origin, radius = domain.domain.centre, domain.domain.radius

    def h(z):
        w = z - origin
        return radius * w[:, 0] + w[:, 0] ** 2 - w[:, 1] ** 2

    # on the sphere h lies between -5/4 and 2 times R^2 at most
    fit = Monopoles.fit(domain, h(domain.points), h(domain.points), outer_range=3.25 * radius**2)
    z = torch.cat(
        [free(domain, 10, generator), domain.points + 1.001 * domain.radii[:, None] / math.sqrt(dim)]
    )
    missed = (h(z[10:]) - h(domain.points)).abs()
    assert bool((missed <= fit.mismatch).all())
    plain = Monopoles.fit(domain, h(domain.points), h(domain.points))
    assert not bool((missed <= plain.mismatch).all())  # without the range there is no certificate


def test_hitting_weights_are_the_same_solution(generator):
    domain = cloud(30, 4, generator)
    values = torch.rand(30, generator=generator, dtype=torch.float64)
    outer = torch.rand(30, generator=generator, dtype=torch.float64)
    z = free(domain, 8, generator)
    weights = Monopoles.fit(domain, values).hitting(z)
    plain, lifted = Monopoles.fit(domain, values), Monopoles.fit(domain, values, outer)
    assert torch.allclose(weights @ values, plain.value(z))
    assert torch.allclose(weights.sum(1), plain.p_hit(z))
    here = torch.rand(8, generator=generator, dtype=torch.float64)
    assert torch.allclose(here + weights @ (values - outer), lifted.value(z, here))
    assert torch.allclose(plain.conditional(z), plain.value(z) / plain.p_hit(z))
    assert torch.allclose(lifted.conditional(z), plain.conditional(z))


def test_inside_a_ball_its_value_counts(generator):
    domain = cloud(20, 3, generator)
    values = torch.rand(20, generator=generator, dtype=torch.float64)
    fit = Monopoles.fit(domain, values)
    assert torch.equal(fit.value(domain.points), values)
    assert torch.equal(fit.conditional(domain.points), values)
    assert torch.equal(fit.p_hit(domain.points), torch.ones_like(values))
    assert torch.equal(fit.bound(domain.points), torch.zeros_like(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_thousand_dimensions_become_a_softmax(dtype, generator):
    data = torch.randn(50, 1000, generator=generator).to(dtype)
    domain = DataDomain(data, margin=1.5)
    values = torch.rand(50, generator=generator).to(dtype)
    z = torch.randn(6, 1000, generator=generator).to(dtype)
    fit = Monopoles.fit(domain, values)
    logits = -998 * (torch.cdist(z.double(), data.double()).log() - domain.radii.double().log())
    expected = torch.softmax(logits, 1) @ values.double()
    assert fit.conditional(z).dtype == dtype
    assert torch.allclose(fit.conditional(z).double(), expected, atol=1e-3)
    assert bool(fit.log_p_hit(z).isfinite().all())
    assert bool((fit.log_p_hit(z) < -300).all())
    assert bool((fit.p_hit(z) <= 1e-30).all())


def test_repeated_points(generator):
    domain = cloud(10, 3, generator)
    values = torch.rand(10, generator=generator, dtype=torch.float64)
    twice = DataDomain(
        torch.cat([domain.points, domain.points[:3]]),
        epsilon=torch.cat([domain.radii, domain.radii[:3]]),
        outer=domain.domain,
    )
    z = free(domain, 5, generator)
    again = Monopoles.fit(twice, torch.cat([values, values[:3]]))
    assert torch.allclose(again.value(z), Monopoles.fit(domain, values).value(z))


SHIELDED = {2: (0.458, 0.054, 0.244), 3: (0.223, 0.043, 0.099)}


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 3])
def test_the_nearer_ball_need_not_be_likelier(dim, generator):
    # the paper's hitting lemma would have the second ball likelier than the third, which is farther away
    data = torch.zeros(3, dim).double()
    data[:, 0] = torch.tensor([1.0, 1.61, -1.70])
    domain = DataDomain(data, epsilon=0.3, outer=Ball(torch.zeros(dim).double(), 4.0))
    start = torch.zeros(10_000, dim).double()
    walks = walk_on_spheres(domain, start, Operator(), shell=1e-4, generator=generator)
    shares = [float((walks.label == k).double().mean()) for k in range(3)]
    for share, truth in zip(shares, SHIELDED[dim], strict=True):
        assert abs(share - truth) < 4.5 * math.sqrt(truth * (1 - truth) / 10_000) + 2e-3
    assert shares[1] < shares[2] / 1.5
    if dim == 3:
        first, second, third = Monopoles.fit(domain, torch.ones(3).double()).hitting(start[:1])[0].tolist()
        assert first > third > second


@pytest.mark.bad_input
def test_bad_input(generator, own_checks):
    domain = cloud(10, 3, generator)
    with pytest.raises(ValueError, match="one value per data point"):
        Monopoles.fit(domain, torch.ones(9).double())
    with pytest.raises(ValueError, match="finite"):
        Monopoles.fit(domain, torch.full((10,), torch.nan).double())
    with pytest.raises(ValueError, match="at least 3 dimensions"):
        Monopoles.fit(cloud(10, 2, generator), torch.ones(10).double())
    with pytest.raises(ValueError, match=r'ball as outer.*"spheres"'):
        Monopoles.fit(DataDomain(domain.points, outer="box"), torch.ones(10).double())
    tight = DataDomain(domain.points, fraction=0.4, outer=Ball.around(domain.points, 1.0))
    with pytest.raises(ValueError, match="cross the outer sphere"):
        Monopoles.fit(tight, torch.ones(10).double())
    many = DataDomain(torch.randn(MAX_BALLS + 1, 3, generator=generator), epsilon=1e-5)
    with pytest.raises(ValueError, match=r"up to 5000 points.*subset"):
        Monopoles.fit(many, torch.ones(MAX_BALLS + 1))


def test_error_bars_hold_the_noise_of_the_query_and_of_the_balls():
    """Next to a ball the outer mean at the ball enters with a weight of about one, beside that at the query.

    Both are means of 200 zeros and ones, with a standard error of at most 0.035 each.
    """
    domain = DataDomain(torch.tensor([[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0]]).double(), epsilon=0.3, margin=3.0)
    found = [
        estimate_landscape(
            lambda z: (z[:, 0] > 0.2).double(),
            domain,
            torch.tensor([[0.5, 0.32, 0.0]]).double(),
            data_values=torch.tensor([0.0, 1.0]).double(),
            solver="green",
            n_walks=200,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in range(30)
    ]
    stderr = float(torch.cat([each.stderr for each in found]).square().mean().sqrt())
    spread = float(torch.cat([each.value for each in found]).std())
    assert 0.04 < stderr < 0.05
    assert 0.6 < spread / stderr < 1.5  # 30 values: the spread is known to 13 %
