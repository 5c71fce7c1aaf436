"""Controls: noise without mixing, smoothing without noise, and lines that are bridges without noise."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn

import elliptica
import laws
from baseline_cases import Recorder, batch, network, problem, replay, same, value_and_gradient
from elliptica.baselines import InputNoise, LabelSmoothing, matched_smoothing

CE = nn.CrossEntropyLoss()
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double())


# noise


@pytest.mark.parametrize("sigma", [0.3, torch.tensor([0.1, 0.0, 2.0])])
@pytest.mark.parametrize("law", ["gaussian", "bridge"])
def test_noise_is_its_formula(law, sigma, generator):
    """A time for each row, a normal for each entry."""
    model, x, y = problem(generator)
    again = replay(generator)
    loss = InputNoise(model, CE, sigma=sigma, law=law)(x, y, generator=generator)
    spread = 1.0
    if law == "bridge":
        s = torch.rand(12, generator=again).double()
        spread = (s * (1 - s)).sqrt().unsqueeze(1)
    z = torch.randn(12, 3, generator=again, dtype=torch.float64)
    scale = sigma.double() if isinstance(sigma, torch.Tensor) else sigma
    same(value_and_gradient(loss, model), value_and_gradient(CE(model(x + spread * scale * z), y), model))


def noise_of(generator, law, sigma=0.5, n=20_000):
    model = Recorder()
    zeros = torch.zeros(n, 1)
    InputNoise(model, nn.MSELoss(), sigma=sigma, law=law)(zeros, zeros, generator=generator)
    return model.seen.numpy().ravel()


def bridge_cdf(sigma):
    """Law of ``sigma * sqrt(s (1 - s)) * z`` for uniform s, by Gauss-Legendre in s."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    spread = sigma * np.sqrt((1 - nodes**2) / 4)
    return lambda v: (stats.norm.cdf(np.asarray(v)[:, None] / spread) * weights / 2).sum(1)


@pytest.mark.statistical
def test_noise_has_its_law(generator):
    """The bridge law has the variance of a normal law of a sixth, and heavier tails: both are told apart."""
    gaussian, bridge = noise_of(generator, "gaussian"), noise_of(generator, "bridge")
    laws.assert_variance(gaussian, 0.25)
    laws.assert_distribution(gaussian, stats.norm(0, 0.5).cdf)
    laws.assert_distribution(bridge, bridge_cdf(0.5))
    assert abs(bridge.var() / (0.25 / 6) - 1) < 0.08  # six standard errors
    for sample, wrong in (
        (bridge, stats.norm(0, 0.5 / math.sqrt(6)).cdf),
        (bridge, stats.norm(0, 0.25).cdf),  # the middle of the bridge only
        (gaussian, bridge_cdf(0.5)),
    ):
        with pytest.raises(AssertionError):
            laws.assert_distribution(sample, wrong)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("given", [True, False])
def test_green_noise_has_the_variance_of_the_bridge(given, generator):
    """``r**2 / (n - 4)`` on average, a sixth of it over the times of a bridge; two points are each other's
    partners in a batch.
    """
    n, r = 20, 3.0
    model, far = Recorder(), r * torch.eye(n)[:1]
    rows = torch.zeros(2, n) if given else torch.cat([torch.zeros(1, n), far])
    end = (far.expand(2, n), torch.zeros(2, n)) if given else None
    objective = InputNoise(model, nn.MSELoss(), sigma="green", law="bridge")
    squares = []
    for _ in range(3000):
        objective(rows, torch.zeros(2, n), end=end, generator=generator)
        squares.append((model.seen - rows).square().mean().item())
    expected = r**2 / (n - 4) / 6
    assert abs(np.mean(squares) / expected - 1) < 6 * np.std(squares) / expected / math.sqrt(len(squares))
    assert abs(np.mean(squares) / expected - 1) < 0.1


@pytest.mark.bad_input
def test_noise_of_a_feature_never_runs_along_the_batch(generator):
    x, y = batch(generator)
    for sigma in (torch.ones(4), torch.ones(12, 1)):
        with pytest.raises(RuntimeError):
            InputNoise(network(), CE, sigma=sigma)(x, y)


# smoothing


@pytest.mark.parametrize("smoothing", [0.1, 0.7, 1.0])
def test_smoothing_is_that_of_torch(smoothing, generator):
    model, x, y = problem(generator)
    ours = LabelSmoothing(model, CE, smoothing=smoothing)(x, y)
    theirs = nn.CrossEntropyLoss(label_smoothing=smoothing)(model(x), y)
    same(value_and_gradient(ours, model), value_and_gradient(theirs, model))


def test_smoothing_with_class_and_sample_weights_is_a_loop(generator):
    model, x, y = problem(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    ours = LabelSmoothing(model, WEIGHTED, smoothing=0.3)(x, y, sample_weight=weight)
    total, divisor = 0.0, 0.0
    for i in range(12):
        f = model(x[i])
        for k in range(4):
            mass = 0.3 / 4 + (0.7 if k == y[i] else 0.0)
            total = total - weight[i] * mass * (k + 1) * (f[k] - f.exp().sum().log())
            divisor += mass * (k + 1)
    same(value_and_gradient(ours, model), value_and_gradient(total / divisor, model))


def test_smoothing_of_label_maps(generator):
    """Classes are axis 1 there."""
    model = nn.Conv2d(2, 3, 1)
    x = torch.randn(4, 2, 5, 5, generator=generator)
    y = torch.randint(3, (4, 5, 5), generator=generator)
    theirs = nn.CrossEntropyLoss(label_smoothing=0.2)(model(x), y)
    torch.testing.assert_close(LabelSmoothing(model, CE, smoothing=0.2)(x, y), theirs)


def mass_by_laplace(num_classes, std):
    """Mean mass of the true class under the map "abs", as one integral.

    With A = |1 + std Z| and B the sum of the others, E[A / (A + B)] is the integral over u > 0 of
    E[A exp(-u A)] E[exp(-u B)], and the second factor is a power of a scaled error function.
    """
    z, weights = np.polynomial.hermite_e.hermegauss(150)
    size = np.abs(1 + std * z)

    def integrand(u):
        own = (weights * size * np.exp(-u * size)).sum() / weights.sum()
        return own * special.erfcx(u * std / math.sqrt(2)) ** (num_classes - 1)

    return integrate.quad(integrand, 0, np.inf, limit=200)[0]


@pytest.mark.parametrize(
    ("num_classes", "sigma_y"), [(2, 0.05), (3, 1.0), (10, 0.1), (100, 0.05), (200, 0.3)]
)
def test_matched_smoothing_is_the_integral_over_noise_and_time(num_classes, sigma_y):
    nodes, weights = np.polynomial.legendre.leggauss(16)
    angle = (nodes + 1) * math.pi / 4  # s = sin(angle)^2 smooths the root at both ends
    s, ds = np.sin(angle) ** 2, np.sin(2 * angle) * weights * math.pi / 4
    stds = sigma_y * np.sqrt(s * (1 - s))
    mass = sum(d * mass_by_laplace(num_classes, std) for d, std in zip(ds, stds, strict=True))
    expected = (1 - mass) * num_classes / (num_classes - 1)
    ours = matched_smoothing(num_classes, sigma_y)
    assert abs(ours - expected) < 5e-4  # the error that is documented
    assert ours == matched_smoothing(num_classes, sigma_y)
    assert abs(ours - matched_smoothing(num_classes, sigma_y / 2, horizon=4.0)) < 1e-12
    at_the_middle = (1 - mass_by_laplace(num_classes, sigma_y / 2)) * num_classes / (num_classes - 1)
    assert abs(ours - at_the_middle) > 5e-4


@pytest.mark.statistical
@pytest.mark.parametrize("simplex", ["abs", "euclidean"])
@pytest.mark.parametrize("quadrature", ["uniform", "mean"])
def test_matched_smoothing_is_what_the_objective_does_to_labels(simplex, quadrature, generator):
    """The labels that Elliptic draws between samples of one class; the other law of times is rejected."""
    objective = elliptica.Elliptic(
        network(n_out=6), CE, num_classes=6, sigma_y=0.2, simplex=simplex, quadrature=quadrature
    )
    y = torch.full((20_000,), 2)
    paths = objective.sample(torch.zeros(20_000, 3, dtype=torch.float64), y, generator=generator)
    smoothing = (1 - paths.y[..., 2].numpy()) * 6 / 5
    settings = {q: matched_smoothing(6, 0.2, simplex=simplex, quadrature=q) for q in ("uniform", "mean")}
    laws.assert_mean(smoothing, settings.pop(quadrature), smoothing.std())
    with pytest.raises(AssertionError):
        laws.assert_mean(smoothing, *settings.values(), smoothing.std())


def test_matched_smoothing_in_its_limits():
    for simplex in ("abs", "euclidean"):
        assert matched_smoothing(10, 0.0, simplex=simplex) == 0.0
        values = [matched_smoothing(10, sigma, simplex=simplex) for sigma in (0.01, 0.1, 1.0, 1000.0)]
        assert values == sorted(values)
        assert values[-1] > 0.99  # nothing is left of the label
        assert matched_smoothing(10, 1.0, simplex=simplex, n_times=2, quadrature="mean") == 0.0  # ends only
