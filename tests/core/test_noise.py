"""The noise's strength: the Green law against an independent derivation, covariances, scales of data."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from elliptica import Covariance, Elliptic, Green, auto_sigma, sample_bridge, sample_paths
from elliptica.core import bridge
from elliptica.core import noise as module
from elliptica.core.noise import AUTO_FACTOR
from laws import assert_covariance, assert_distribution, assert_variance

ROWS = 20_000


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def hitting_law(n):
    """Cumulative law of V / r**2, integrated numerically.

    Conditioning on a hit of a vanishing ball is the transform by the Green function, the integral over
    T of the heat kernel; so T has density proportional to ``T**(-n/2) exp(-r**2 / (2 T))``. No Gamma
    variable is used here.
    """
    log_t = np.linspace(-12, 60 / (n / 2 - 1), 400_001)  # the density in log T, up to 1e-26 of its mass
    density = np.exp((1 - n / 2) * log_t - 0.5 * np.exp(-log_t))
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return lambda v: np.interp(np.log(v), log_t, mass / mass[-1])


def green_paths(n, generator, sigma="green", **settings):
    """Paths between points at random distances."""
    x = torch.randn(ROWS, n, generator=generator, dtype=torch.float64)
    y = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    settings = {"sampling": "path", "n_times": 3} | settings
    return sample_paths(x, y, target_space="real", sigma=sigma, generator=generator, **settings)


def distances(paths):
    gap = paths.x[:, 0, -1] - paths.x[:, 0, 0]
    return gap.flatten(1).norm(dim=1).numpy()


def check_stated_variance(paths, n):
    """The variance that `Paths` states: V / r**2 against the law."""
    v = paths.deviation["x"].square().numpy().ravel() / distances(paths) ** 2
    assert_distribution(v, hitting_law(n))


def check_drawn_points(paths, n):
    """The points themselves: 4 |Z_{1/2} - chord|**2 / r**2 is V / r**2 times a chi-square.

    A chi-square over twice a Gamma variable is a beta prime variable. The ratio to the *stated* variance
    is chi-square by itself, so the points really are that wide.
    """
    middle = paths.x[:, 0, 1] - (paths.x[:, 0, 0] + paths.x[:, 0, -1]) / 2
    q = 4 * middle.square().sum(1).numpy()
    assert_distribution(q / distances(paths) ** 2, stats.betaprime(n / 2, n / 2 - 1).cdf)
    assert_distribution(q / paths.deviation["x"].square().numpy().ravel(), stats.chi2(n).cdf)


@pytest.mark.statistical
@pytest.mark.parametrize("n", [3, 5, 10, 50])
def test_green_law(n, generator):
    """V / r**2 has the hitting law. A shape off by 0.5 or a scale off by 10 % is seen at n = 20 000."""
    paths = green_paths(n, generator)
    check_stated_variance(paths, n)
    check_drawn_points(paths, n)


WRONG_GAMMA = {
    "shape n/2": lambda shape, gamma: gamma(shape + 1),
    "shape (n-1)/2": lambda shape, gamma: gamma(shape + 0.5),
    "deterministic r^2/n": lambda shape, gamma: torch.full_like(gamma(shape), shape + 1),
    "no factor 2": lambda shape, gamma: gamma(shape) / 2,
    "inverted": lambda shape, gamma: 1 / gamma(shape),
    "scale 20 %": lambda shape, gamma: gamma(shape) * 1.2,
}


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", WRONG_GAMMA)
@pytest.mark.parametrize("n", [5, 50])
def test_green_law_rejects(wrong, n, generator, monkeypatch):
    """The same pipeline with another random variable in it."""
    original = module.draw_gamma

    def mutant(shape, rows, **where):
        return WRONG_GAMMA[wrong](shape, lambda s: original(s, rows, **where))

    monkeypatch.setattr(module, "draw_gamma", mutant)
    paths = green_paths(n, generator)
    for check in (check_stated_variance, check_drawn_points):
        with pytest.raises(AssertionError, match="Kolmogorov"):
            check(paths, n)


@pytest.mark.statistical
def test_dimension_option_sets_the_law(generator):
    """``dim=5`` in 12 dimensions: V has the law of n = 5, and not that of n = 12 or 6."""
    paths = green_paths(12, generator, sigma=Green(dim=5.0))
    check_stated_variance(paths, 5)
    for other in (12, 6):
        with pytest.raises(AssertionError, match="Kolmogorov"):
            check_stated_variance(paths, other)


def test_green_scale_shape_and_variances(generator):
    """The scale multiplies deviations; each path has its own variance; the shape of a sample is no matter."""
    seed = generator.clone_state
    whole = green_paths(4, seed())
    half = green_paths(4, seed(), sigma=Green(scale=0.5))
    none = green_paths(4, seed(), sigma=Green(scale=0.0))
    assert torch.allclose(half.deviation["x"], whole.deviation["x"] / 2, rtol=1e-6)
    chord = none.x[:, 0, 1]
    assert torch.allclose(chord, (whole.x[:, 0, 0] + whole.x[:, 0, 2]) / 2, atol=1e-12)
    assert torch.allclose(half.x[:, 0, 1] - chord, (whole.x[:, 0, 1] - chord) / 2, rtol=1e-5, atol=1e-9)
    paths = green_paths(4, generator, n_bridges=3)
    assert paths.deviation["x"].shape == (3 * ROWS, 1)
    assert len(torch.unique(paths.deviation["x"])) > 2.9 * ROWS
    flat, y = torch.randn(50, 6, generator=generator), torch.zeros(50, 1)
    how = {"target_space": "real", "sigma": "green"}
    one = sample_paths(flat, y, **how, generator=seed())
    two = sample_paths(flat.reshape(50, 1, 2, 3), y, **how, generator=seed())
    assert torch.equal(one.x.flatten(3), two.x.flatten(3))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("sigma", ["green", torch.ones(4), Covariance(torch.eye(4))])
def test_targets_are_linear_unless_their_noise_is_given(sigma, sampling, generator):
    """Scales measured on inputs say nothing about targets; a number serves real ones."""
    x, y = normal(64, 4, generator=generator), normal(64, 2, generator=generator)
    partners = torch.arange(64).roll(1)
    how = {"target_space": "real", "sampling": sampling, "sigma": sigma}
    paths = sample_paths(x, y, **how, partners=partners, generator=generator)
    s = paths.s[..., None]
    torch.testing.assert_close(paths.y, (1 - s) * y[:, None, None] + s * y[partners][:, None, None])
    assert sample_paths(x, y, **how, sigma_y=0.1, generator=generator).deviation_y == 0.1
    noise = [
        Elliptic(nn.Linear(2, 2), loss, sigma=0.2).bridges.sigma_y for loss in (nn.MSELoss(), nn.L1Loss())
    ]
    assert noise == [0.2, 0.2]
    for loss in (nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()):
        assert Elliptic(nn.Linear(2, 2), loss, sigma=0.2).bridges.sigma_y == 0.0
        assert Elliptic.paper(nn.Linear(2, 2), loss, sigma=0.2).bridges.sigma_y == 0.2


def every_pair(x, y, sigma, s, monkeypatch, **noise):
    """All ordered pairs of different rows, each with noise that has mean 0 and covariance 1 exactly.

    Instead of normals the noise takes each of the points ``+-sqrt(rank) e_k`` once.
    """
    rank = sigma.roots.shape[-1]
    points = rank**0.5 * torch.cat([torch.eye(rank), -torch.eye(rank)]).double()
    pairs = torch.cartesian_prod(torch.arange(len(x)), torch.arange(len(x)), torch.arange(len(points)))
    i, j, k = pairs[pairs[:, 0] != pairs[:, 1]].t()
    monkeypatch.setattr(bridge, "draw_normal", lambda shape, **_: points[k].view(shape))
    monkeypatch.setattr(bridge, "stratified", lambda n, *_: torch.full((n,), s, dtype=torch.float64))
    how = {"target_space": "real", "sigma": sigma, "quadrature": "uniform"}
    paths = sample_paths(x[i], y[i], end=(x[j], y[j]), **how, **noise)
    return paths.x[:, 0, 0], paths.y[:, 0, 0]


def moments(x, y):
    """Mean, and second moments with a column of ones: all that a linear least-squares fit uses."""
    z = torch.cat([torch.ones(len(x), 1, dtype=x.dtype), x, y], 1)
    return z.t() @ z / len(z)


def slopes(moment, features):
    """Solve the normal equations; intercept first."""
    return torch.linalg.solve(moment[: features + 1, : features + 1], moment[: features + 1, features + 1 :])


@pytest.fixture
def table(generator):
    x = normal(6, 3, generator=generator) @ normal(3, 3, generator=generator) + 4.0
    return x, x @ normal(3, 2, generator=generator) + 0.3 * normal(6, 2, generator=generator) - 1.0


@pytest.mark.parametrize("s", [0.1, 0.5, 0.8])
def test_joint_noise_preserves_mean_covariance_and_the_linear_fit(s, table, monkeypatch):
    """Exactly, at every time, by enumeration; another scale, or a rank too few, does not."""
    x, y = table
    expected = moments(x, y)
    found = moments(*every_pair(x, y, Covariance(x, y), s, monkeypatch))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(slopes(found, 3), slopes(expected, 3), rtol=1e-7, atol=1e-8)
    for wrong in (Covariance(x, y, scale=1.1), Covariance(x, y, rank=2)):
        found = moments(*every_pair(x, y, wrong, s, monkeypatch))
        assert not torch.allclose(found, expected, rtol=1e-6)
        torch.testing.assert_close(found[0], expected[0])  # the mean stays


def test_noise_on_the_inputs_alone_shrinks_the_slope_by_a_quarter(table, monkeypatch):
    """Times of five points: 1 - 2 mean(s (1 - s)) = 3/4; over all times it would be 2/3.

    Exactly so for independent ends. Among n rows, of which one is never its own partner, 2 is 2 n / (n - 1).
    """
    x, y = table
    sigma, clean = Covariance(x), slopes(moments(x, y), 3)
    grid = [every_pair(x, y, sigma, s, monkeypatch) for s in (0.0, 0.25, 0.5, 0.75, 1.0)]
    found = torch.stack([moments(*points) for points in grid]).mean(0)
    torch.testing.assert_close(slopes(found, 3)[1:], (1 - 6 / 5 / 4) * clean[1:], rtol=1e-7, atol=1e-8)
    for s, points in zip((0.0, 0.25, 0.5), grid, strict=False):
        torch.testing.assert_close(moments(*points)[:4, :4], moments(x, y)[:4, :4])  # of x: preserved
        torch.testing.assert_close(slopes(moments(*points), 3)[1:], (1 - 2 * 6 / 5 * s * (1 - s)) * clean[1:])


@pytest.mark.parametrize("s", [0.2, 0.5])
def test_by_class_gives_bridges_the_mean_of_both_classes(s, generator, monkeypatch):
    """Within a class, and between two, the covariance goes linearly from one class' to the other's."""
    x = torch.cat([normal(4, 2, generator=generator), 3 * normal(5, 2, generator=generator) + 7])
    labels = torch.tensor([0] * 4 + [1] * 5)
    sigma = Covariance(x, labels, by_class=True)
    assert not sigma.joint
    own = [x[labels == c].T.cov() for c in (0, 1)]
    for roots, covariance in zip(sigma.roots, own, strict=True):
        torch.testing.assert_close(roots @ roots.T, covariance)
    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    i, j = pairs[pairs[:, 0] != pairs[:, 1]].t()
    how = {"target_space": "simplex", "num_classes": 2, "quadrature": "uniform", "sigma": sigma}
    paths = sample_paths(x[i], labels[i], end=(x[j], labels[j]), **how, generator=generator)
    root = paths.deviation["x"].root
    for a in (0, 1):
        for b in (0, 1):
            of_pair = (labels[i] == a) & (labels[j] == b)
            noise = (root @ root.mT)[of_pair]
            torch.testing.assert_close(noise, (own[a] + own[b]).expand_as(noise))
    same = (labels[i] == 0) & (labels[j] == 0)
    line = torch.lerp(x[i[same]], x[j[same]], s)
    torch.testing.assert_close(line.T.cov(correction=0) + s * (1 - s) * 2 * own[0], x[:4].T.cov(correction=0))


@pytest.mark.statistical
def test_low_rank_noise_for_images(generator):
    """The largest directions of the covariance, in the shape of a sample; nothing beside them."""
    x = normal(ROWS, 1, 2, 3, generator=generator) * torch.tensor([[3.0, 0.1, 0.1], [0.1, 2.0, 0.1]])
    sigma = Covariance(x, rank=2)
    zero = torch.zeros_like(x)
    noise = sample_bridge(zero, zero, n_times=3, sigma=sigma, generator=generator)[:, 0, 1].flatten(1)
    top = torch.linalg.eigh(x.flatten(1).T.cov())
    vectors, values = top.eigenvectors[:, -2:], top.eigenvalues[-2:]
    along = noise @ vectors
    torch.testing.assert_close(along @ vectors.T, noise, atol=1e-9, rtol=0)
    for k in range(2):
        assert_variance(along[:, k], float(2 * values[k] / 4))
        with pytest.raises(AssertionError, match="variance"):
            assert_variance(along[:, k], float(values[k] / 4))  # without the factor of two rows
    assert_covariance(along[:, 0], along[:, 1], *(2 * values / 4).tolist(), 0.0)


def test_auto_sigma_is_a_tenth_of_the_deviation(generator):
    unit = torch.tensor([1e-30, 1.0, 50.0, 1e30])
    x = torch.randn(100, 4, generator=generator) * unit
    expected = AUTO_FACTOR * np.std(x.double().numpy(), axis=0, ddof=1)
    assert np.allclose(auto_sigma(x) / unit, expected / unit.numpy(), rtol=1e-4)
    assert auto_sigma(x.reshape(25, 4, 2, 2)).shape == (4, 2, 2)
    for dtype in (torch.float16, torch.float64):
        assert auto_sigma(x[:, 1:3].to(dtype)).dtype == dtype
        assert torch.equal(auto_sigma(torch.full((9, 2), 3.0, dtype=dtype)), torch.zeros(2, dtype=dtype))
    stamps = 1.7e9 + normal(200, 1, generator=generator)
    assert float(auto_sigma(stamps)) == pytest.approx(AUTO_FACTOR * float(stamps.std()), rel=1e-9)
