"""Importance weights: finite differences, Taylor's formula, the exponential martingale, a drifted law."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import reference
from elliptica import (
    Elliptic,
    Girsanov,
    GradientNorm,
    GradientSoftmax,
    Multiplicative,
    Paths,
    log_weights,
    path_losses,
    sample_paths,
)
from elliptica.core import weighting as module
from laws import assert_mean, assert_variance

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.inputs.EllipticWarning")

PAIRED = {"sampling": "path", "n_times": 6, "n_bridges": 4, "sigma_y": 0.4}


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softplus()).double()


@pytest.mark.parametrize("task", ["regression", "classes"])
@pytest.mark.parametrize("weighting", [GradientNorm(0.5), Girsanov(0.5), Girsanov(0.5, "both")], ids=str)
def test_second_order_gradients_equal_finite_differences(weighting, task, generator):
    """Every parameter is moved both ways; the noise is fixed by the paths, so values are smooth in it."""
    model, x = network(), normal(4, 3, generator=generator)
    y = normal(4, 2, generator=generator) if task == "regression" else torch.tensor([0, 1, 1, 0])
    loss_fn = nn.MSELoss() if task == "regression" else nn.CrossEntropyLoss()
    settings = {"num_classes": 2 if task == "classes" else None, "sampling": "path", "n_times": 4}
    objective = Elliptic(model, loss_fn, **settings, sigma=0.8, sigma_y=0.3, weighting=weighting)
    paths = objective.sample(x, y, generator=generator)

    names, values = zip(*objective.named_parameters(), strict=True)

    def loss_of(*moved):
        return functional_call(objective, dict(zip(names, moved, strict=True)), (x, y), {"paths": paths})

    assert torch.autograd.gradcheck(loss_of, [value.detach().requires_grad_() for value in values])


def test_short_names_and_no_strength(generator):
    """xi = 0 is no weighting; names stand for objects of strength one."""
    kinds = {"gradient_norm": GradientNorm, "gradient_softmax": GradientSoftmax, "girsanov": Girsanov}
    kinds["multiplicative"] = Multiplicative
    for name, kind in kinds.items():
        settings = {"sampling": "path", "n_bridges": 2}
        named = Elliptic(network(), nn.MSELoss(), weighting=name, **settings).weighting
        assert type(named) is kind
        assert named.xi == 1.0
        assert Elliptic(network(), nn.MSELoss(), weighting=kind(0.0)).weighting is None


class Quadratic(nn.Module):
    """A loss that is its own model: ``1/2 x'Hx + c'x``, so that the gradient is ``Hx + c``."""

    def __init__(self, generator):
        super().__init__()
        half = normal(3, 3, generator=generator)
        self.hessian = nn.Parameter(half + half.t())
        self.slope = nn.Parameter(normal(3, generator=generator))

    def forward(self, x):
        return 0.5 * ((x @ self.hessian) * x).sum(1, keepdim=True) + (x @ self.slope)[:, None]


def value_itself(output, target):
    return output[:, 0] + 0 * target[:, 0]


def test_sum_of_slopes_is_taylors_on_a_quadratic(generator):
    """sum g.dZ = l(b) - l(a) - 1/2 sum dZ'H dZ, exactly; the quadratic term has V and the steps ds."""
    model = Quadratic(generator)
    x, y = normal(6, 3, generator=generator), torch.zeros(6, 1, dtype=torch.float64)
    paths = sample_paths(x, y, target_space="real", sampling="path", n_times=7, n_bridges=2, sigma=0.5)
    step = paths.x[:, :, 1:] - paths.x[:, :, :-1]
    curvature = ((step @ model.hessian) * step).sum((2, 3))
    ends = [model(paths.x[:, :, k].flatten(0, 1)).view(6, 2) for k in (-1, 0)]
    slopes = paths.x[:, :, :-1] @ model.hessian + model.slope
    quadratic = 0.25 * slopes.square().sum((2, 3)) / 6  # ds = 1/6
    expected = 0.3 * (ends[0] - ends[1] - 0.5 * curvature) - 0.5 * 0.3**2 * quadratic
    found = log_weights(model, value_itself, paths, xi=0.3)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def free_brownian_motion(n, n_times, variance, generator, dim=2):
    """Paths that are *not* pinned: the law under which exp of the log-weight has mean one."""
    s = torch.linspace(0, 1, n_times, dtype=torch.float64) ** 2  # an uneven grid
    ds = (s[1:] - s[:-1])[None, :, None]
    steps = (variance * ds).sqrt() * normal(n, n_times - 1, dim, generator=generator)
    x = torch.cat([torch.zeros(n, 1, dim, dtype=torch.float64), steps.cumsum(1)], 1)
    rows, times = x.transpose(0, 1).flatten(0, 1), s.repeat_interleave(n)
    zeros = torch.zeros(n * n_times, 1, dtype=torch.float64)
    return Paths(x, {"x": rows}, zeros, times, 1, {"x": variance**0.5}, zeros, n_times=n_times)


@pytest.mark.statistical
@pytest.mark.parametrize("defect", [None, "sign", "quadratic", "variance", "time"])
def test_exponential_martingale_has_mean_one(defect, generator):
    """Free Brownian motion, constant drift mu: log w ~ N(-m/2, m) with m = |mu|**2 / V, so E w = 1.

    The sharper statistic: (log w + m/2) / sqrt(m) is standard normal, and w has variance exp(m) - 1.
    Teeth: a wrong sign, no quadratic term, V in place of 1/V, or twice the time.
    """
    n, variance = 20_000, 0.5
    mu = torch.tensor([0.4, -0.3], dtype=torch.float64)
    m = float(mu @ mu) / variance
    paths = free_brownian_motion(n, 6, variance, generator)

    def drift(x, y):
        return mu.expand_as(x)

    if defect == "time":
        paths = reference.with_points(paths, s=2 * paths.s)
    if defect == "variance":
        paths = reference.with_points(paths, deviation={"x": variance**-0.5})
    logs = log_weights(nn.Linear(2, 1).double(), nn.MSELoss(), paths, drift=drift)
    if defect == "sign":
        logs = -logs
    if defect == "quadratic":
        logs = logs + m / 2
    logs = logs.detach().numpy()

    with contextlib.nullcontext() if defect is None else pytest.raises(AssertionError):
        assert_mean(np.exp(logs), 1.0, np.sqrt(np.expm1(m)))
        assert_variance(logs + m / 2, m)


@pytest.mark.statistical
@pytest.mark.parametrize("defect", [None, "right point", "equal steps"])
def test_martingale_with_a_drift_that_depends_on_the_point(defect, generator):
    """The left-point sum is a martingale at any grid: each step's factor has conditional mean one.

    Teeth: the drift at the right end of each step (the path run backwards), or equal steps on a grid
    that is not equal, put the mean more than 12 standard errors away.
    """
    n, variance = 50_000, 0.5
    paths = free_brownian_motion(n, 4, variance, generator)
    if defect == "right point":
        paths = reference.with_points(paths, x=paths.x.flip(2), s=1 - paths.s.flip(2))
    if defect == "equal steps":
        paths = reference.with_points(paths, s=torch.linspace(0, 1, 4).double().expand(n, 1, 4))
    logs = log_weights(nn.Linear(2, 1).double(), nn.MSELoss(), paths, drift=lambda x, y: torch.tanh(2 * x))
    weights = logs.detach().exp().numpy()
    with contextlib.nullcontext() if defect is None else pytest.raises(AssertionError, match="errors"):
        assert_mean(weights, 1.0, weights.std(ddof=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", ["x", "x and y"])
@pytest.mark.parametrize("task", ["regression", "classes"])
def test_drifts_of_ones_own_equal_the_slow_loop(task, parts, weighted, generator):
    """Of x, and of x and the targets (before projection); a sigma for each feature; differentiable."""
    sigma, pull = torch.tensor([0.3, 0.5, 0.8], dtype=torch.float64), nn.Linear(3, 3).double()
    model = nn.Linear(3, 3).double()

    def drift(x, y):
        mu = torch.tanh(pull(x)) + y
        return mu if parts == "x" else (mu, x * y - pull(y))

    x = normal(4, 3, generator=generator)
    y = normal(4, 3, generator=generator) if task == "regression" else torch.tensor([0, 1, 2, 0])
    loss_fn, row_loss = nn.MSELoss(), reference.squared_error
    if task == "classes":
        loss_fn, row_loss = nn.CrossEntropyLoss(), reference.cross_entropy
    settings = {"num_classes": 3 if task == "classes" else None, "sigma": sigma, "sampling": "path"}
    law = {"xi": 0.5, "variance": sigma**2, "variance_y": 0.36, "drift": drift}
    weighting = Multiplicative(0.5, drift)
    objective = Elliptic(model, loss_fn, n_bridges=2, sigma_y=0.6, weighting=weighting, **settings)
    paths = objective.sample(x, y, generator=generator)
    if weighted:
        expected = reference.objective(model, row_loss, paths, weighting="multiplicative", **law)
        reference.assert_same(objective.loss_on(paths), expected, model)
        return
    # a strength multiplies the drift, so that the second term has its square
    logs = log_weights(model, loss_fn, paths, xi=0.5, drift=drift)
    expected = reference.log_weights(model, row_loss, paths, **law)
    reference.assert_same(logs.sum(), sum(expected.values()), pull)


@pytest.mark.parametrize("sigma", [0.5, "green"])
@pytest.mark.parametrize("parts", ["x", "x and y"])
def test_a_constant_drift_leaves_bridges_alone(sigma, parts, generator):
    """It does not change the law of a bridge, so all weights are one: the objective is the unweighted one."""
    mu, mu_y = normal(3, generator=generator), normal(2, generator=generator)

    def drift(x, y):
        return mu.expand_as(x) if parts == "x" else (mu.expand_as(x), mu_y.expand_as(y))

    model, x, y = network(), normal(5, 3, generator=generator), normal(5, 2, generator=generator)
    objective = Elliptic(model, nn.MSELoss(), **PAIRED, sigma=sigma, weighting=Multiplicative(3.0, drift))
    paths = objective.sample(x, y, generator=generator)
    logs = log_weights(model, nn.MSELoss(), paths, drift=drift, xi=3.0)
    torch.testing.assert_close(logs, logs[:, :1].expand_as(logs), rtol=0, atol=1e-6)
    assert logs[:, 0].std() > 0.1  # it differs between pairs, which is why weights must not be compared there
    expected = path_losses(model, nn.MSELoss(), paths).mean()
    reference.assert_same(objective.loss_on(paths), expected, model, 1e-6)


class Square(nn.Module):
    def forward(self, x):
        return x.square()


def over_the_batch(weighting, losses, slopes, paths):
    logs = module.path_log_weights(module.drift_slopes(weighting.drift, paths), paths, weighting.xi)
    return losses * logs.softmax(0) * len(logs)


@pytest.mark.statistical
@pytest.mark.parametrize("defect", [None, "over the batch", "no drift"])
def test_weights_move_bridges_to_those_of_the_drifted_process(defect, generator, monkeypatch):
    """Ornstein-Uhlenbeck, ``dX = -k X ds + sqrt(V) dW``, pinned at a and b: mean and variance half-way are
    ``(a + b) / (2 cosh(k / 2))`` and ``V tanh(k / 2) / (2 k)``. The objective's loss reads them off: targets
    go from 0 to 1, so they are the time. Teeth: weights over the batch, and no weights at all.
    """
    k, variance, n_times, n_bridges = 1.5, 1.0, 65, 1000
    start = torch.tensor([[1.2], [0.0], [-0.5]], dtype=torch.float64)
    end = torch.tensor([[0.8], [0.1], [1.7]], dtype=torch.float64)
    mean = ((start + end) / (2 * np.cosh(k / 2))).numpy()
    spread = variance * np.tanh(k / 2) / (2 * k)

    def half_way(output, y):
        return n_times * torch.where(y[:, 0] == 0.5, output[:, 0], 0.0)

    strength = 0.0 if defect == "no drift" else k
    settings = {"sampling": "path", "n_times": n_times, "n_bridges": n_bridges, "target_space": "real"}
    settings |= {"sigma": variance**0.5, "sigma_y": 0.0}
    settings["weighting"] = Multiplicative(1.0, lambda x, y: -strength * x)
    zeros = torch.zeros(3, 1, dtype=torch.float64)
    objectives = [Elliptic(model, half_way, **settings) for model in (nn.Identity(), Square())]
    if defect == "over the batch":  # bridges of different pairs compared with each other
        monkeypatch.setattr(Multiplicative, "__call__", over_the_batch)
    found, repeats = [], 10
    for _ in range(repeats):
        paths = objectives[0].sample(start, zeros, end=(end, zeros + 1), generator=generator)
        with torch.no_grad():
            found.append([float(objective.loss_on(paths)) for objective in objectives])
    found = np.array(found)
    error = 6 * found.std(0, ddof=1) / np.sqrt(repeats)  # of each mean; more than the grid is off by
    assert (error < 0.05).all()
    expected = [mean.mean(), (np.square(mean) + spread).mean()]
    with contextlib.nullcontext() if defect is None else pytest.raises(AssertionError, match="half-way"):
        assert (np.abs(found.mean(0) - expected) < error).all(), f"half-way {found.mean(0)}, not {expected}"


@pytest.mark.parametrize("name", ["gradient_softmax", "gradient_norm"])
def test_points_that_the_quadrature_skips_do_not_count(name, generator):
    """With two times and "left", a path and a single point are the same point."""
    model, x, y = (
        nn.Linear(2, 1).double(),
        normal(4, 2, generator=generator),
        normal(4, 1, generator=generator),
    )
    how = {"sigma": 0.0, "n_times": 2, "quadrature": "left", "weighting": name}
    path, point = (Elliptic(model, nn.MSELoss(), sampling=s, **how)(x, y) for s in ("path", "marginal"))
    torch.testing.assert_close(path, point)
