"""Walk on spheres against closed forms: harmonic functions, sources, absorption, drift, balls and walls."""

import math

import numpy as np
import pytest
import torch

from elliptica.landscape import Ball, Box, DataDomain, Operator, Polytope
from elliptica.landscape.domains import OUTER
from elliptica.landscape.exits import log_phi
from elliptica.landscape.walks import walk_on_spheres
from laws import assert_mean

SHELL = 1e-4


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def axis_point(dim, first, n):
    """The same start, ``first`` along the first axis, for ``n`` walks."""
    start = torch.zeros(n, dim, dtype=torch.float64)
    start[:, 0] = first
    return start


def unit_ball(dim):
    return Ball(torch.zeros(dim, dtype=torch.float64), 1.0)


def walk(domain, start, generator, operator=None, **options):
    options = {"shell": SHELL} | options
    return walk_on_spheres(domain, start, operator or Operator(), generator=generator, **options)


def outcome(walks, boundary=None):
    values = (
        walks.integral if boundary is None else walks.integral + walks.log_weight.exp() * boundary(walks.end)
    )
    return values.double().numpy()


def assert_estimates(samples, expected):
    samples = np.asarray(samples, dtype=np.float64)
    assert_mean(samples, float(expected), float(np.std(samples)))


def phi(x, dim):
    return float(log_phi(vector(x), dim).exp())


@pytest.mark.statistical
@pytest.mark.parametrize(("dim", "n"), [(1, 4000), (2, 4000), (5, 4000), (30, 600), (100, 200)])
def test_time_to_leave_a_ball(generator, dim, n):
    walks = walk(unit_ball(dim), axis_point(dim, 0.4, n), generator, shell=1e-4)
    assert_estimates(walks.time, (1 - 0.16) / dim)
    assert (walks.label == OUTER).all()
    torch.testing.assert_close(walks.end.norm(dim=1), torch.ones(n, dtype=torch.float64))
    if 1 < dim < 30:
        early = walk(unit_ball(dim), axis_point(dim, 0.4, n), generator, shell=0.15)
        with pytest.raises(AssertionError):
            assert_estimates(early.time, (1 - 0.16) / dim)


HARMONIC = {
    "linear": lambda z: 1 + 2 * z[:, 0] - z[:, 1],
    "cubic": lambda z: z[:, 0] ** 3 - 3 * z[:, 0] * z[:, 1] ** 2,
    "exponential": lambda z: torch.exp(z[:, 0]) * torch.cos(z[:, 1]),
}


def regions(dim):
    corners = torch.cat([torch.zeros(1, dim), torch.eye(dim)]).double() * 2 - 0.6
    one = torch.ones(dim, dtype=torch.float64)
    return {
        "ball": Ball(0.1 * one, 0.9),
        "box": Box(-0.5 * one, 0.8 * one),
        "polytope": Polytope.hull(torch.cat([corners, 0.7 * one[None]])),
    }


@pytest.mark.statistical
@pytest.mark.parametrize("region", ["ball", "box", "polytope"])
@pytest.mark.parametrize("dim", [2, 3])
def test_harmonic_functions_keep_their_value(generator, region, dim):
    start = vector(*([0.2, -0.1, 0.15][:dim])).repeat(8000, 1)
    domain = regions(dim)[region]
    walks = walk(domain, start, generator)
    assert float(domain.distance(walks.end).abs().max()) < 1e-12
    for function in HARMONIC.values():
        samples = outcome(walks, function)
        assert_estimates(samples, function(start[:1]))
        with pytest.raises(AssertionError):
            assert_estimates(samples, function(start[:1]) + 0.15)
    if dim == 3:
        pole = vector(1.5, 1.0, -1.0)
        assert_estimates(outcome(walks, lambda z: 1 / (z - pole).norm(dim=1)), 1 / (start[0] - pole).norm())


@pytest.mark.statistical
@pytest.mark.parametrize("region", ["ball", "box", "polytope"])
def test_coordinates_that_diffuse_at_their_own_speed(generator, region):
    a = vector(0.25, 2.0)
    start = vector(0.2, -0.1).repeat(8000, 1)
    walks = walk(regions(2)[region], start, generator, Operator(diffusion=a))
    isotropic = walk(regions(2)[region], start, generator, Operator(diffusion=1.0))

    def saddle(z):
        return z[:, 0] ** 2 / a[0] - z[:, 1] ** 2 / a[1]

    def wave(z):
        return torch.exp(z[:, 0] / a[0].sqrt()) * torch.cos(z[:, 1] / a[1].sqrt())

    for function in (saddle, wave):
        assert_estimates(outcome(walks, function), function(start[:1]))
        with pytest.raises(AssertionError):
            assert_estimates(outcome(isotropic, function), function(start[:1]))


# --- balls and walls ---------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_one_ball_in_the_middle(generator, dim):
    """A domain needs two points: the second has a ball too small to be met."""
    eps, r = 0.3, 0.45
    points = torch.zeros(2, dim, dtype=torch.float64)
    points[1, 0] = 0.95
    domain = DataDomain(points, epsilon=vector(eps, 1e-12), outer=unit_ball(dim))
    start = axis_point(dim, 0.0, 8000)
    start[:, 1] = r
    walks = walk(domain, start, generator, shell=1e-6)
    expected = math.log(r) / math.log(eps) if dim == 2 else (r ** (2 - dim) - 1) / (eps ** (2 - dim) - 1)
    hit = (walks.label == 0).double()
    assert_estimates(hit.numpy(), expected)
    with pytest.raises(AssertionError):
        assert_estimates(hit.numpy(), expected * 1.2)
    on_ball = walks.end[walks.label == 0].norm(dim=1)
    torch.testing.assert_close(on_ball, torch.full_like(on_ball, eps))


def test_a_walk_from_inside_a_ball_ends_at_once(generator):
    points = vector(0.0, 1.0, 3.0)[:, None]
    domain = DataDomain(points, epsilon=0.2)
    walks = walk(domain, vector(0.9, 3.0, 1.2)[:, None], generator)
    assert walks.steps.tolist() == [0, 0, 0]
    assert walks.label.tolist() == [1, 2, 1]
    assert float(walks.end[0]) == pytest.approx(0.8)


SHIELDED = {2: (0.458, 0.054, 0.244), 3: (0.223, 0.043, 0.099)}


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 3])
def test_the_nearer_ball_need_not_be_likelier(dim, generator):
    """Lemma 2 would have the second ball likelier than the third, which is farther away."""
    data = torch.zeros(3, dim).double()
    data[:, 0] = torch.tensor([1.0, 1.61, -1.70])
    domain = DataDomain(data, epsilon=0.3, outer=Ball(torch.zeros(dim).double(), 4.0))
    walks = walk(domain, torch.zeros(10_000, dim).double(), generator)
    shares = [float((walks.label == k).double().mean()) for k in range(3)]
    for share, truth in zip(shares, SHIELDED[dim], strict=True):
        assert abs(share - truth) < 4.5 * math.sqrt(truth * (1 - truth) / 10_000) + 2e-3
    assert shares[1] < shares[2] / 1.5


def segment():
    """Balls end at 0.15 and start at 0.85, ..., walls at 0 and 1."""
    box = Box(vector(0.0), vector(1.0), "reflect")
    return DataDomain(vector(0.1, 0.9)[:, None], epsilon=0.05, outer=box)


@pytest.mark.statistical
def test_a_reflecting_end_in_one_dimension(generator):
    start = torch.full((8000, 1), 0.99, dtype=torch.float64)
    walks = walk(segment(), start, generator, shell=1e-6)
    assert (walks.label == 1).all()
    time = (0.99 - 0.95) * (2 - 0.99 - 0.95)  # 1/2 v'' = -1, v(0.95) = 0, v'(1) = 0
    assert_estimates(walks.time, time)
    with pytest.raises(AssertionError):  # an absorbing end
        assert_estimates(walks.time, (0.99 - 0.95) * (1 - 0.99))
    source = walk(segment(), start, generator, Operator(source=lambda z: z[:, 0]), shell=1e-6)
    force = (0.99 - 0.95) - (0.99**3 - 0.95**3) / 3  # v' = 1 - x^2
    assert_estimates(outcome(source), force)
    killed = walk(segment(), start, generator, Operator(absorption=400.0), shell=1e-6)
    k = math.sqrt(800.0)
    assert_estimates(killed.log_weight.exp(), math.cosh(k * 0.01) / math.cosh(k * 0.05))


def finite_elements(points, radii, values, queries, n=96):
    """Landscape in the unit square, natural conditions at the walls, nodes moved onto the circles."""
    skfem = pytest.importorskip("skfem")
    from skfem.models.poisson import laplace

    grid = np.linspace(0, 1, n + 1)
    mesh = skfem.MeshTri.init_tensor(grid, grid)
    nodes = mesh.p.copy()
    fixed, pinned = np.zeros(nodes.shape[1]), np.zeros(nodes.shape[1], bool)
    for centre, radius, value in zip(points, radii, values, strict=True):
        offset = nodes - centre[:, None]
        length = np.linalg.norm(offset, axis=0)
        near = np.abs(length - radius) < 0.45 / n
        nodes[:, near] = centre[:, None] + radius * offset[:, near] / length[near]
        inside = length < radius + 0.45 / n
        fixed[inside], pinned[inside] = value, True
    basis = skfem.Basis(skfem.MeshTri(nodes, mesh.t), skfem.ElementTriP1())
    solution = skfem.solve(*skfem.condense(laplace.assemble(basis), x=fixed, D=np.flatnonzero(pinned)))
    return basis.probes(queries.T) @ solution


@pytest.mark.slow
@pytest.mark.statistical
def test_reflecting_walls_agree_with_finite_elements(generator):
    points = vector(0.2, 0.25, 0.75, 0.2, 0.6, 0.7, 0.25, 0.8).reshape(4, 2)
    radii, values = vector(0.1, 0.08, 0.12, 0.06), vector(1.0, 0.0, 0.3, 0.8)
    queries = vector(0.03, 0.04, 0.5, 0.4, 0.97, 0.95, 0.9, 0.5).reshape(4, 2)
    domain = DataDomain(points, epsilon=radii, outer=Box(vector(0.0, 0.0), vector(1.0, 1.0), "reflect"))
    walks = walk(domain, queries.repeat_interleave(15_000, 0), generator)
    found = values[walks.label].reshape(4, -1)
    expected = finite_elements(points.numpy(), radii.numpy(), values.numpy(), queries.numpy())
    error = (found.mean(1) - torch.as_tensor(expected)).abs()
    assert float(error.max()) < 0.01 + 4 * float(found.std(1).max()) / 15_000**0.5
    closed = DataDomain(points, epsilon=radii, outer=Box(vector(0.0, 0.0), vector(1.0, 1.0), "absorb"))
    lost = walk(closed, queries.repeat_interleave(500, 0), generator).label == OUTER
    assert float(lost.double().mean()) > 0.3  # the walls matter here


# --- sources, absorption, drift ----------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_sources(generator, dim):
    start = axis_point(dim, 0.5, 4000)
    one = walk(unit_ball(dim), start, generator, Operator(source=1.0))
    torch.testing.assert_close(one.integral, one.time)
    assert_estimates(one.integral, 0.75 / dim)
    sampled = walk(unit_ball(dim), start, generator, Operator(source=lambda z: 3 * torch.ones(len(z)).to(z)))
    assert_estimates(outcome(sampled), 3 * 0.75 / dim)
    square = walk(unit_ball(dim), start, generator, Operator(source=lambda z: z.square().sum(1)))
    assert_estimates(outcome(square), (1 - 0.5**4) / (2 * (dim + 2)))
    with pytest.raises(AssertionError):  # the source at the centres only
        assert_estimates(outcome(square), (1 - 0.5**4) / (2 * (dim + 2)) * 0.85)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_absorption(generator, dim):
    rate, n = 1.5, 2000
    k = math.sqrt(2 * rate)
    centre = walk(unit_ball(dim), axis_point(dim, 0.0, 1), generator, Operator(absorption=rate))
    assert float(centre.log_weight.exp()) == pytest.approx(1 / phi(k, dim), rel=1e-9)  # one step, no noise
    start = axis_point(dim, 0.6, n)
    survive = phi(0.6 * k, dim) / phi(k, dim)
    killed = walk(unit_ball(dim), start, generator, Operator(absorption=rate))
    assert_estimates(killed.log_weight.exp(), survive)
    half_killed = walk(unit_ball(dim), start, generator, Operator(absorption=rate / 2))
    with pytest.raises(AssertionError):
        assert_estimates(half_killed.log_weight.exp(), survive)
    for source in (2.0, lambda z: torch.full_like(z[:, 0], 2.0)):
        both = walk(unit_ball(dim), start, generator, Operator(absorption=rate, source=source))
        assert_estimates(both.integral, 2 / rate * (1 - survive))


@pytest.mark.statistical
@pytest.mark.parametrize("mode", ["weight", "sample"])
def test_gamblers_ruin(generator, mode):
    domain, start = Box(vector(0.0), vector(1.0)), torch.full((10_000, 1), 0.3, dtype=torch.float64)
    fair = walk(domain, start, generator)
    assert_estimates(outcome(fair, lambda z: (z[:, 0] > 0.5).double()), 0.3)
    for mu in (-1.0, 1.5):
        biased = walk(domain, start, generator, Operator(drift=vector(mu)), drift=mode)
        expected = math.expm1(-2 * mu * 0.3) / math.expm1(-2 * mu)
        assert_estimates(outcome(biased, lambda z: (z[:, 0] > 0.5).double()), expected)
        with pytest.raises(AssertionError):
            assert_estimates(outcome(biased, lambda z: (z[:, 0] > 0.5).double()), 0.3)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("mode", ["weight", "sample"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_everything_at_once(generator, mode, dim):
    """Diffusion per coordinate, drift, absorption and source, for u = exp(b x_1)."""
    a = torch.linspace(0.5, 2.0, dim).double()
    mu = torch.linspace(0.6, -0.5, dim).double()
    b, rate = 0.8, 2.5
    level = rate - a[0] * b**2 / 2 - mu[0] * b

    def solution(z):
        return torch.exp(b * z[:, 0])

    operator = Operator(diffusion=a, drift=mu, absorption=rate, source=lambda z: level * solution(z))
    start = axis_point(dim, 0.3, 4000)
    walks = walk(unit_ball(dim), start, generator, operator, drift=mode, shell=1e-4)
    assert_estimates(outcome(walks, solution), math.exp(0.3 * b))
    with pytest.raises(AssertionError):  # the source left out
        assert_estimates(walks.log_weight.exp() * solution(walks.end), math.exp(0.3 * b))


@pytest.mark.statistical
def test_a_drift_that_is_a_function_is_frozen_on_small_spheres(generator):
    """1/2 u'' + mu(x) u' = 0 on (-1, 1): u' is proportional to exp(-2 int mu)."""
    x = np.linspace(-1, 1, 100_001)
    scale = np.cumsum(np.exp(-2 * np.cumsum(1.5 * (1 + np.tanh(10 * x))) * (x[1] - x[0])))
    expected = float(np.interp(-0.2, x, scale / scale[-1]))
    domain, start = Box(vector(-1.0), vector(1.0)), torch.full((3000, 1), -0.2, dtype=torch.float64)
    operator = Operator(drift=lambda z: 1.5 * (1 + torch.tanh(10 * z)))

    def up(z):
        return (z[:, 0] > 0).double()

    for mode in ("weight", "sample"):
        walks = walk(domain, start, generator, operator, drift=mode, max_radius=0.05, shell=1e-4)
        assert_estimates(outcome(walks, up), expected)
    assert float(walks.steps.double().mean()) > 50
    coarse = walk(domain, start, generator, operator, shell=1e-4)
    with pytest.raises(AssertionError):
        assert_estimates(outcome(coarse, up), expected)


# --- bookkeeping -------------------------------------------------------------------------------------


def test_rows_keep_their_order(generator):
    """Walks end at different times; row i must still be the walk from start i."""
    start = vector(-0.999, 0.0, 0.999, 0.5, -0.5)[:, None].repeat(50, 1)
    near = walk(Box(vector(-1.0), vector(1.0)), start, generator, Operator(source=1.0), shell=0.01)
    assert (near.end[0::5] == -1).all()
    assert (near.end[2::5] == 1).all()
    assert (near.steps[0::5] == 0).all()
    assert (near.integral[2::5] == 0).all()
    assert (near.steps[1::5] == 1).all()
    assert (near.time[1::5] == 1).all()
