"""Importance weights: finite differences, Ito's formula on quadratics, and the exponential martingale."""

import contextlib
import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import reference
from elliptica import BridgeMix, Elliptic, Paths, log_weights, path_losses, sample_paths
from elliptica.core.bridge import flatten_rows, view_rows
from elliptica.core.hidden import HiddenBridge
from elliptica.core.weighting import VARIANTS, Grid, self_normalised
from laws import assert_mean, assert_variance

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")

SECOND_ORDER = ("gradient_norm", "girsanov", "released")


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softplus()).double()


@pytest.mark.parametrize("task", ["regression", "classes"])
@pytest.mark.parametrize("weighting", SECOND_ORDER)
def test_second_order_gradients_equal_finite_differences(weighting, task, generator):
    """Every parameter is moved both ways; the noise is fixed by the paths, so values are smooth in it."""
    model = network()
    x, y = normal(4, 3, generator=generator), normal(4, 2, generator=generator)
    if task == "classes":
        y = torch.tensor([0, 1, 1, 0])
    loss_fn = nn.MSELoss() if task == "regression" else nn.CrossEntropyLoss()
    objective = Elliptic(
        model,
        loss_fn,
        num_classes=2,
        sampling="path",
        n_times=4,
        sigma=0.8,
        weighting=weighting,
        xi=0.5,
    )
    paths = objective.sample(x, y, generator=generator)
    slopes = reference.gradients(objective(x, y, paths=paths), model)
    step = 1e-5
    for parameter, slope in zip(model.parameters(), slopes, strict=True):
        flat, numeric = parameter.data.view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
        for k in range(len(flat)):
            kept = flat[k].item()
            flat[k] = kept + step
            above = objective(x, y, paths=paths).item()
            flat[k] = kept - step
            numeric[k] = (above - objective(x, y, paths=paths).item()) / (2 * step)
            flat[k] = kept
        torch.testing.assert_close(slope.flatten(), numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("weighting", ["gradient_softmax", "multiplicative"])
def test_detached_weights_are_constants_of_the_gradient(weighting, generator):
    """The gradient is that of the losses with weights held fixed: their mean is one, and all positive."""
    model = network()
    x, y = normal(5, 3, generator=generator), normal(5, 2, generator=generator)
    settings = {"sampling": "path", "n_times": 4, "n_bridges": 3, "sigma": 0.8}
    objective = Elliptic(model, nn.MSELoss(), **settings, weighting=weighting, xi=2.0)
    paths = objective.sample(x, y, generator=generator)
    frozen = copy.deepcopy(model)
    plain = reference.weighted_losses(
        model, reference.squared_error, paths, weighting="none", xi=0, variance=0
    )
    weighted = reference.weighted_losses(
        frozen, reference.squared_error, paths, weighting=weighting, xi=2.0, variance=0.64
    )
    weight = {p: (weighted[p] / plain[p]).item() for p in plain}
    assert np.mean(list(weight.values())) == pytest.approx(1.0, abs=1e-12)
    assert min(weight.values()) > 0
    assert np.std(list(weight.values())) > 0.05
    expected = sum(weight[p] * plain[p] for p in plain) / len(plain)
    ours = reference.gradients(objective(x, y, paths=paths), model)
    for a, b in zip(ours, reference.gradients(expected, model), strict=True):
        torch.testing.assert_close(a, b)


def test_self_normalised_weights(generator):
    logs = 3 * normal(40, generator=generator)
    weights = self_normalised(logs.requires_grad_(), 5)
    assert not weights.requires_grad
    by_pair = logs.detach().exp().view(5, 8)  # bridge-major
    torch.testing.assert_close(weights.view(5, 8), by_pair / by_pair.mean(0))
    torch.testing.assert_close(weights.view(5, 8).mean(0), torch.ones(8, dtype=torch.float64))
    factor = torch.linspace(-1000, 1000, 8, dtype=torch.float64).repeat(5)  # unknown, one for each pair
    torch.testing.assert_close(self_normalised(logs + factor, 5), weights)  # and no overflow
    assert torch.equal(self_normalised(torch.zeros(8), 2), torch.ones(8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equal_gradients_give_equal_weights(dtype, generator):
    """The absolute error of a linear model has one slope everywhere: nothing to standardise."""
    model = nn.Linear(3, 1).to(dtype)
    model.weight.data.mul_(1000.0)
    x, y = torch.randn(9, 3, generator=generator).to(dtype), torch.randn(9, 1, generator=generator).to(dtype)
    settings = {"sampling": "path", "sigma": 0.1}
    plain = Elliptic(model, nn.L1Loss(), **settings)
    weighted = Elliptic(model, nn.L1Loss(), **settings, weighting="gradient_softmax", xi=5.0)
    paths = plain.sample(x, y, generator=generator)
    torch.testing.assert_close(weighted(x, y, paths=paths), plain(x, y, paths=paths))


@pytest.mark.parametrize("weighting", VARIANTS)
def test_one_row_can_be_weighted(weighting, generator):
    objective = Elliptic(network(), nn.MSELoss(), sampling="path", n_bridges=2, weighting=weighting)
    x, y = normal(1, 3, generator=generator), normal(1, 2, generator=generator)
    assert torch.isfinite(objective(x, y, generator=generator))


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
    paths = sample_paths(
        x, y, target_space="real", sampling="path", n_times=7, n_bridges=2, sigma=0.5, horizon=3.0
    )
    xi, variance = 0.3, 0.25 * 3.0
    step = paths.x[:, :, 1:] - paths.x[:, :, :-1]
    curvature = ((step @ model.hessian) * step).sum((2, 3))
    ends = [model(paths.x[:, :, k].flatten(0, 1)).view(6, 2) for k in (-1, 0)]
    linear = ends[0] - ends[1] - 0.5 * curvature
    slopes = paths.x[:, :, :-1] @ model.hessian + model.slope
    quadratic = variance * slopes.square().sum((2, 3)) / 6  # ds = 1/6
    expected = xi * linear - 0.5 * xi**2 * quadratic
    torch.testing.assert_close(
        log_weights(model, value_itself, paths, xi=xi), expected, rtol=1e-12, atol=1e-12
    )


def free_brownian_motion(n, n_times, variance, generator, dim=2):
    """Paths that are *not* pinned: the law under which exp of the log-weight has mean one."""
    s = torch.linspace(0, 1, n_times, dtype=torch.float64) ** 2  # an uneven grid
    ds = (s[1:] - s[:-1])[None, :, None]
    steps = (variance * ds).sqrt() * normal(n, n_times - 1, dim, generator=generator)
    x = torch.cat([torch.zeros(n, 1, dim, dtype=torch.float64), steps.cumsum(1)], 1)
    y = torch.zeros(n, 1, n_times, 1, dtype=torch.float64)
    return Paths(
        x=x.unsqueeze(1),
        y=y,
        s=s.expand(n, 1, n_times),
        variance={"x": variance},
        free_y=y,
        variance_y=0.0,
    )


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
        paths = dataclasses.replace(paths, s=2 * paths.s)
    if defect == "variance":
        paths = dataclasses.replace(paths, variance={"x": 1 / variance})
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
        paths = dataclasses.replace(paths, x=paths.x.flip(2), s=1 - paths.s.flip(2))
    if defect == "equal steps":
        paths = dataclasses.replace(paths, s=torch.linspace(0, 1, 4).double().expand(n, 1, 4))
    logs = log_weights(nn.Linear(2, 1).double(), nn.MSELoss(), paths, drift=lambda x, y: torch.tanh(2 * x))
    weights = logs.detach().exp().numpy()
    with contextlib.nullcontext() if defect is None else pytest.raises(AssertionError, match="errors"):
        assert_mean(weights, 1.0, weights.std(ddof=1))


@pytest.mark.statistical
def test_weights_of_a_linear_loss_have_mean_one_on_free_paths(generator):
    """The same through the loss gradient: l = c.x has g = c, so mu = V xi c and m = V xi**2 |c|**2."""
    n, variance, xi = 20_000, 0.5, 1.5
    model, c = nn.Linear(2, 1).double(), torch.tensor([0.5, -0.7], dtype=torch.float64)
    model.weight.data[0] = c
    m = variance * xi**2 * float(c @ c)
    paths = free_brownian_motion(n, 5, variance, generator)
    logs = log_weights(model, value_itself, paths, xi=xi).detach().numpy()
    assert_mean(np.exp(logs), 1.0, np.sqrt(np.expm1(m)))
    assert_variance(logs + m / 2, m)
    with pytest.raises(AssertionError, match="variance ratio"):  # without the quadratic term
        assert_variance(logs + m, m)


@pytest.mark.statistical
def test_bridges_do_not_have_mean_weight_one(generator):
    """Pinned paths: a constant drift weighs the ends alone, exp(mu.(b - a) / V - m / 2) without any noise."""
    mu = torch.tensor([0.4, -0.3], dtype=torch.float64)
    x, y = normal(50, 2, generator=generator), normal(50, 1, generator=generator)
    paths = sample_paths(x, y, target_space="real", sampling="path", n_times=6, sigma=0.8)
    logs = log_weights(nn.Linear(2, 1).double(), nn.MSELoss(), paths, drift=lambda x, y: mu.expand_as(x))
    ends = paths.x[:, :, -1] - paths.x[:, :, 0]
    torch.testing.assert_close(logs, (ends @ mu - 0.5 * mu @ mu) / 0.64)


def test_a_drift_network_is_trained_through_log_weights(generator):
    drift = nn.Bilinear(3, 1, 3).double()
    x, y = normal(5, 3, generator=generator), normal(5, 1, generator=generator)
    paths = sample_paths(x, y, target_space="real", sampling="path", n_times=5, sigma=0.7)
    logs = log_weights(nn.Linear(3, 1).double(), nn.MSELoss(), paths, drift=drift)
    slopes = reference.gradients(logs.sum(), drift)
    expected = reference.log_weights(None, None, paths, xi=1.0, variance=0.49, drift=drift)
    expected = reference.gradients(sum(sum(row) for row in expected), drift)
    for a, b in zip(slopes, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert slopes[0].abs().max() > 0
    objective = Elliptic(
        nn.Linear(3, 1).double(), nn.MSELoss(), sampling="path", weighting="girsanov", drift=drift
    )
    assert set(drift.parameters()) <= set(objective.parameters())


def test_an_additive_term_without_parameters_is_refused(generator):
    """Its gradient is zero, so it would change the number and not the training."""
    x, y = normal(5, 3, generator=generator), normal(5, 1, generator=generator)
    settings = {"sampling": "path", "n_times": 20, "n_bridges": 2, "drift": lambda x, y: torch.ones_like(x)}
    model = nn.Linear(3, 1).double()
    with pytest.raises(ValueError, match=r'no gradient.*weighting="multiplicative" with n_bridges=2'):
        Elliptic(model, nn.MSELoss(), **settings, weighting="girsanov")(x, y)
    Elliptic(model, nn.MSELoss(), **settings, weighting="multiplicative")(x, y)
    Elliptic(model, nn.MSELoss(), **settings, weighting="girsanov", xi=0.0)(x, y)


@pytest.mark.parametrize(
    ("drift", "settings", "message"),
    [
        (lambda x, y: x[:, :2], {}, "drift of x with shape"),
        (lambda x, y: (x, x), {}, "drift of y with shape"),
        (lambda x, y: (x, y), {"sigma_y": 0.0}, "sigma_y > 0"),
        (lambda x, y: x, {"sigma": 0.0}, "sigma > 0"),
        (lambda x, y: x, {"sigma": torch.tensor([1.0, 0.0, 1.0]).double()}, "in every feature"),
    ],
)
def test_drifts_that_make_no_sense_are_refused(drift, settings, message, generator):
    x, y = normal(5, 3, generator=generator), normal(5, 1, generator=generator)
    objective = Elliptic(
        nn.Linear(3, 1).double(),
        nn.MSELoss(),
        sampling="path",
        n_bridges=2,
        weighting="multiplicative",
        drift=drift,
        **settings,
    )
    with pytest.raises(ValueError, match=message):
        objective(x, y)


PAIRED = {"sampling": "path", "n_times": 6, "n_bridges": 4, "weighting": "multiplicative", "sigma_y": 0.4}


@pytest.mark.parametrize("settings", [{"sigma": 0.5}, {"sigma": "green"}, {"sigma": 0.5, "antithetic": True}])
@pytest.mark.parametrize("parts", ["x", "x and y"])
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_a_constant_drift_leaves_bridges_alone(settings, parts, chunk_size, generator):
    """It does not change the law of a bridge, so all weights are one: the objective is the unweighted one."""
    mu, mu_y = normal(3, generator=generator), normal(2, generator=generator)

    def drift(x, y):
        return mu.expand_as(x) if parts == "x" else (mu.expand_as(x), mu_y.expand_as(y))

    model, x, y = network(), normal(5, 3, generator=generator), normal(5, 2, generator=generator)
    settings = {**PAIRED, **settings, "chunk_size": chunk_size}
    objective = Elliptic(model, nn.MSELoss(), drift=drift, xi=3.0, **settings)
    paths = objective.sample(x, y, generator=generator)
    logs = log_weights(model, nn.MSELoss(), paths, drift=drift, xi=3.0)
    torch.testing.assert_close(logs, logs[:, :1].expand_as(logs), rtol=0, atol=1e-10)
    assert logs[:, 0].std() > 0.1  # it differs between pairs, which is why weights must not be compared there
    plain = Elliptic(model, nn.MSELoss(), **{**settings, "weighting": "none", "same_partner": True})
    ours, expected = objective(x, y, paths=paths), plain(x, y, paths=paths)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=0)
    for a, b in zip(reference.gradients(ours, model), reference.gradients(expected, model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("drift", ["input", "both"])
def test_the_weighted_objective_equals_numpys(drift, generator):
    """A linear model under the squared error, all by hand: losses, both gradients, log-weights, weights."""
    model, xi, variance, variance_y = nn.Linear(3, 1).double(), 0.8, 0.7**2 * 2, 0.4**2 * 2
    x, y = normal(5, 3, generator=generator), normal(5, 1, generator=generator)
    settings = {**PAIRED, "sigma": 0.7, "horizon": 2.0, "xi": xi}
    objective = Elliptic(model, nn.MSELoss(), drift=drift, **settings)
    paths = objective.sample(x, y, generator=generator)
    z, target, s = paths.x.numpy(), paths.y.numpy(), paths.s.numpy()  # (batch, bridge, time, ...)
    slope, offset = model.weight.detach().numpy()[0], model.bias.item()
    residual = z @ slope + offset - target[..., 0]
    g = 2 * residual[..., None] * slope
    ds = np.diff(s, axis=2)
    logs = xi * (g[:, :, :-1] * np.diff(z, axis=2)).sum((2, 3))
    logs -= 0.5 * xi**2 * variance * (np.square(g[:, :, :-1]).sum(3) * ds).sum(2)
    if drift == "both":
        g_y = -2 * residual
        logs += xi * (g_y[:, :, :-1] * np.diff(target[..., 0], axis=2)).sum(2)
        logs -= 0.5 * xi**2 * variance_y * (np.square(g_y[:, :, :-1]) * ds).sum(2)
    weights = np.exp(logs) / np.exp(logs).mean(1, keepdims=True)
    assert weights.std() > 0.1
    expected = (weights[:, :, None] * np.square(residual)).mean()
    assert objective(x, y, paths=paths).item() == pytest.approx(expected, rel=1e-10)
    found = log_weights(model, nn.MSELoss(), paths, xi=xi, drift=drift)
    np.testing.assert_allclose(found.detach().numpy(), logs, rtol=1e-10, atol=1e-12)


def over_the_batch(log_weights, n_bridges):
    """What was done before: bridges of different pairs are compared with each other."""
    return log_weights.detach().softmax(0) * len(log_weights)


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

    if defect == "over the batch":
        monkeypatch.setattr("elliptica.core.weighting.self_normalised", over_the_batch)
    strength = 0.0 if defect == "no drift" else k
    settings = {"sampling": "path", "n_times": n_times, "n_bridges": n_bridges, "target_space": "real"}
    settings |= {"sigma": variance**0.5, "sigma_y": 0.0, "weighting": "multiplicative"}
    settings |= {"drift": lambda x, y: -strength * x}
    zeros = torch.zeros(3, 1, dtype=torch.float64)
    objectives = [Elliptic(model, half_way, **settings) for model in (nn.Identity(), Square())]
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


class Square(nn.Module):
    def forward(self, x):
        return x.square()


def test_same_partner_shares_partner_and_random_variance(generator):
    x, y = normal(6, 3, generator=generator), normal(6, 1, generator=generator)
    settings = {"target_space": "real", "sampling": "path", "n_bridges": 4, "generator": generator}
    for more in ({"sigma": 0.3}, {"sigma": "green", "antithetic": True}, {"pairing": "inverse_distance"}):
        paths = sample_paths(x, y, same_partner=True, **settings, **more)
        ends = paths.x[:, :, -1]
        assert torch.equal(ends, ends[:, :1].expand_as(ends))
        assert not torch.equal(paths.x[:, 0, 1], paths.x[:, 1, 1])
        if more.get("sigma") == "green":
            variance = paths.variance["x"].view(4, 6)
            assert torch.equal(variance, variance[:1].expand_as(variance))
    own = sample_paths(x, y, **settings).x[:, :, -1]
    assert not torch.equal(own, own[:, :1].expand_as(own))
    mix = BridgeMix(target_space="real", sampling="path", n_times=2, n_bridges=3, same_partner=True)
    mixed = mix(x, y, generator=generator)[0].view(2, 3, 6, 3)
    assert torch.equal(mixed[1], mixed[1, :1].expand(3, -1, -1))


@pytest.mark.bad_input
def test_bridges_that_are_not_of_one_pair_are_refused(generator, own_checks):
    """Whether they come as partners, far ends, paths, or from random layers below a hidden one."""
    x, y = normal(5, 3, generator=generator), normal(5, 2, generator=generator)
    model, settings = network(), {**PAIRED, "sigma": 0.5, "n_bridges": 2}
    with pytest.raises(ValueError, match=r"needs several, but n_bridges=1\. Use n_bridges=2"):
        Elliptic(model, nn.MSELoss(), **{**settings, "n_bridges": 1})
    with pytest.raises(ValueError, match='Use sampling="path" with n_bridges=2'):
        Elliptic(model, nn.MSELoss(), weighting="multiplicative")
    objective = Elliptic(model, nn.MSELoss(), **settings)
    assert objective.same_partner
    partners = torch.stack([torch.arange(5).roll(1), torch.arange(5).roll(2)], 1)
    with pytest.raises(ValueError, match=r"those in partners differ\. Pass one per row"):
        objective(x, y, partners=partners)
    with pytest.raises(ValueError, match="those in end differ"):
        objective(x, y, end=(x[partners], y[partners]))
    objective(x, y, partners=partners[:, 0])
    objective(x, y, partners=partners[:, :1].repeat(1, 2))
    objective(x, y, end=(x[partners[:, 0]], y[partners[:, 0]]))
    drawn = {"target_space": "real", "sampling": "path", "sigma": 0.5}
    other = sample_paths(x, y, partners=partners, n_bridges=2, **drawn)
    for evaluate in (lambda p: objective(x, y, paths=p), objective.loss_on):
        with pytest.raises(ValueError, match=r"differ at their ends by up to .* in the input 'x'"):
            evaluate(other)
        with pytest.raises(ValueError, match=r"hold 1 for each row\. Draw them with n_bridges=2"):
            evaluate(sample_paths(x, y, **drawn))
    targets = objective.sample(x, y)
    targets.y[0, 1, -1] += 1
    with pytest.raises(ValueError, match="in the target"):
        objective(x, y, paths=targets)
    green = sample_paths(x, y, partners=partners[:, 0], n_bridges=2, **{**drawn, "sigma": "green"})
    with pytest.raises(ValueError, match="in the variance of the input 'x'"):
        objective(x, y, paths=green)
    random = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    with pytest.raises(ValueError, match=r"in the layer at='1'\. .*dropout"):
        Elliptic(random, nn.MSELoss(), at="1", **settings)(x, y)
    Elliptic(random, nn.MSELoss(), at="0", **settings)(x, y)


def paths_behind(encoder, x, y, weight, objective, generator):
    """Bridges between encoded points with fixed noise, as a function of targets and sample weights."""
    with torch.no_grad():
        drawn = objective.sample(x, y, sample_weight=weight, generator=generator)
    partner = (drawn.x[:, :, -1][:, :, None] == x).all(3).long().argmax(2)  # (batch, bridge)

    def between(value):
        start, end = value[:, None, None], value[partner][:, :, None]
        s = drawn.s.view(*drawn.s.shape, *[1] * (value.ndim - 1))
        return (1 - s) * start + s * end

    noise, noise_y = drawn.x - between(x), drawn.y - between(y).detach()

    def make(y, weight):
        target = between(y) + noise_y
        points = {"x": between(encoder(x)) + noise, "y": target, "free_y": target, "weight": between(weight)}
        return dataclasses.replace(drawn, **points)

    return make


@pytest.mark.parametrize("chunk_size", [None, 9])
@pytest.mark.parametrize(
    ("weighting", "drift"),
    [(weighting, None) for weighting in VARIANTS]
    + [
        ("girsanov", "both"),
        ("multiplicative", "both"),
        ("girsanov", "network"),
        ("multiplicative", "network"),
    ],
)
def test_gradients_reach_what_stands_in_front(weighting, drift, chunk_size, generator):
    """An encoder, soft targets and sample weights: by finite differences of the whole objective.

    Weights that are constants are held at their values.
    """
    encoder, model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), network()
    x, y = normal(3, 3, generator=generator), normal(3, 2, generator=generator)
    weight = torch.rand(3, dtype=torch.float64, generator=generator)
    if drift == "network":
        drift = nn.Bilinear(3, 2, 3).double()
    settings = {**PAIRED, "n_times": 4, "n_bridges": 2, "sigma": 0.8, "weighting": weighting, "drift": drift}
    objective = Elliptic(model, nn.MSELoss(), **settings, same_partner=True, xi=0.7, chunk_size=chunk_size)
    same = generator.clone_state()
    paths_of = paths_behind(encoder, x, y, weight, objective, generator)
    front = [*encoder.parameters(), y.requires_grad_(), weight.requires_grad_()]
    loss = objective.loss_on(paths_of(y, weight))
    ours = torch.autograd.grad(loss, front)
    drawn = objective(encoder(x), y, sample_weight=weight, generator=same)  # the same through the front door
    torch.testing.assert_close(torch.autograd.grad(drawn, front), ours)
    fixed = None
    if not VARIANTS[weighting].second_order:  # the weight of each point, as a ratio of losses
        with torch.no_grad():
            paths = paths_of(y, weight)
        plain = objective_losses(model, paths)
        fixed = (weights_of_points(objective, paths) / plain).detach()

    def value():
        paths = paths_of(y, weight)
        if fixed is not None:
            return (fixed * objective_losses(model, paths) * paths.weight).mean()
        return objective.loss_on(paths)

    torch.testing.assert_close(value(), loss)
    step = 1e-5
    for tensor, slope in zip(front, ours, strict=True):
        flat = tensor.data.view(-1)
        for k in range(len(flat)):
            kept, ends = flat[k].item(), []
            for sign in (1, -1):
                flat[k] = kept + sign * step
                ends.append(value().item())
            flat[k] = kept
            assert slope.flatten()[k].item() == pytest.approx(
                (ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8
            )
        assert slope.abs().max() > 1e-4


def objective_losses(model, paths):
    return (model(paths.x) - paths.y).square().mean(-1)


def weights_of_points(objective, paths):
    """Weighted losses of the points, without the sample weights."""
    found = []
    variant = VARIANTS[objective.weighting]

    def spy(losses, *args):
        found.append(variant.apply(losses, *args))
        return found[-1]

    objective._variant = dataclasses.replace(variant, apply=spy)
    objective.loss_on(paths)
    objective._variant = variant
    return view_rows(found[0].detach(), paths.s.shape[1])


@pytest.mark.parametrize("shared", [False, True])
def test_weights_of_many_points_are_summed_beyond_bfloat16(shared, generator):
    """Weights of 600 points in bfloat16 are those of float64, rounded once: sums of them are not in it."""
    norm = (torch.rand(2, 300, generator=generator) + 0.1).bfloat16()
    ds = torch.full((2, 300), 0.5)

    def weights(dtype):
        def across(own):  # a process with the same points
            return torch.stack([own, own])

        grid = Grid(ds.double(), None, across if shared else None)
        return VARIANTS["gradient_softmax"].apply(
            torch.ones_like(norm, dtype=dtype), (norm.to(dtype),), 1.0, grid
        )

    found, expected = weights(torch.bfloat16), weights(torch.float64)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=0)
    assert float(expected.mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("weighting", ["girsanov", "multiplicative"])
def test_both_halves_of_the_gradient_for_classes(weighting, generator):
    """As a drift of one's own: ``V g``, and ``V_y dl/dy`` at the label that the loss sees, the projected."""
    model, x, y = network(), normal(4, 3, generator=generator), torch.tensor([0, 1, 1, 0])
    settings = {**PAIRED, "sigma": 0.8, "weighting": weighting, "num_classes": 2, "xi": 0.6}
    objective = Elliptic(model, nn.CrossEntropyLoss(), **settings, same_partner=True, drift="both")
    chunked = Elliptic(
        model, nn.CrossEntropyLoss(), **settings, same_partner=True, drift="both", chunk_size=13
    )

    def by_hand(x, free):
        x = x.detach().requires_grad_()
        seen = (free.abs() / free.abs().sum(1, keepdim=True)).requires_grad_()
        loss = -(seen * model(x).log_softmax(1)).sum()
        g, g_y = torch.autograd.grad(loss, (x, seen), create_graph=True)
        return 0.8**2 * g, 0.4**2 * g_y

    paths = objective.sample(x, y, generator=generator)
    assert not torch.equal(paths.y, paths.free_y)
    logs = log_weights(model, nn.CrossEntropyLoss(), paths, xi=0.6, drift="both")
    torch.testing.assert_close(logs, log_weights(model, nn.CrossEntropyLoss(), paths, xi=0.6, drift=by_hand))
    own = Elliptic(model, nn.CrossEntropyLoss(), **settings, same_partner=True, drift=by_hand)
    expected = own(x, y, paths=paths)
    one_half = Elliptic(model, nn.CrossEntropyLoss(), **settings, same_partner=True, drift="input")
    assert abs(one_half(x, y, paths=paths) - expected) > 1e-6
    slopes = reference.gradients(expected, model)
    for loss in (objective(x, y, paths=paths), chunked(x, y, paths=paths)):
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        for a, b in zip(reference.gradients(loss, model), slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", ["girsanov", "multiplicative"])
def test_both_halves_in_a_hidden_layer(weighting, generator):
    """Behind a layer that does nothing, and with the same points, it is the same."""
    model = nn.Sequential(nn.Identity(), network())
    x, y = normal(4, 3, generator=generator), normal(4, 2, generator=generator)
    settings = {**PAIRED, "sigma": 0.8, "weighting": weighting, "drift": "both", "same_partner": True}
    paths = Elliptic(model, nn.MSELoss(), **settings).sample(x, y, generator=generator)
    rows = flatten_rows(paths.x)
    hidden = HiddenBridge("0", lambda _: (rows.flatten(0, 1).clone(), 0.64))
    inside = Elliptic(model, nn.MSELoss(), **settings, at="0")
    loss = inside.loss_on(dataclasses.replace(paths, hidden=hidden, variance={}))
    torch.testing.assert_close(loss, Elliptic(model, nn.MSELoss(), **settings).loss_on(paths))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"drift": "both", "sigma_y": 0.0}, ValueError, r"sigma_y=0\. Use sigma_y > 0, or drift=.input"),
        ({"drift": "bot"}, ValueError, "'input', 'both'.*mean 'both'"),
        ({"drift": 3.0}, TypeError, "but got float. Wrap a constant"),
        (
            {"drift": "both", "weighting": "gradient_norm"},
            ValueError,
            "n_bridges=2 or more .for a fixed",
        ),
    ],
)
def test_drifts_that_do_not_exist_are_refused(settings, error, message, own_checks):
    with pytest.raises(error, match=message):
        Elliptic(network(), nn.MSELoss(), **{**PAIRED, "sigma": 0.5, **settings})


@pytest.mark.bad_input
def test_log_weights_refuse_what_they_cannot_drift(generator, own_checks):
    x, y = normal(4, 3, generator=generator), normal(4, 2, generator=generator)
    paths = sample_paths(x, y, target_space="real", sampling="path", sigma_y=0.0, generator=generator)
    with pytest.raises(ValueError, match="can act on y only where it diffuses"):
        log_weights(network(), nn.MSELoss(), paths, drift="both")
    with pytest.raises(ValueError, match="drift must be one of 'input', 'both'"):
        log_weights(network(), nn.MSELoss(), paths, drift="output")
    bare = dataclasses.replace(paths, free_y=None, variance_y=1.0)
    with pytest.raises(ValueError, match=r"but paths\.free_y is None"):
        log_weights(network(), nn.MSELoss(), bare, drift="both")


def test_a_drift_network_is_trained_or_fixed(generator):
    """Behind detached weights nothing trains it, so an optimiser, DDP and the state must not see it."""
    x, y = normal(5, 3, generator=generator), normal(5, 2, generator=generator)
    settings = {"sampling": "path", "n_times": 20, "n_bridges": 2, "sigma": 0.5}
    for weighting in ("girsanov", "multiplicative"):
        drift, model = nn.Bilinear(3, 2, 3), network().float()
        objective = Elliptic(model, nn.MSELoss(), **settings, weighting=weighting, drift=drift)
        trains = weighting == "girsanov"
        assert objective.drift is drift
        assert (set(drift.parameters()) <= set(objective.parameters())) == trains
        assert any(name.startswith("drift.") for name in objective.state_dict()) == trains
        nn.Sequential(objective).double()  # also as a part of something
        assert drift.weight.dtype == torch.float64
        objective(x, y, generator=generator).backward()
        assert (drift.weight.grad is not None) == trains
        assert all(p.grad is not None for p in objective.parameters())
        again = copy.deepcopy(objective)
        assert again.drift is not drift
        assert torch.equal(again.drift.weight, drift.weight)
        assert again.float().drift.weight.dtype == torch.float32
        assert drift.weight.dtype == torch.float64


class Shaky(nn.Module):
    """A drift with layers whose output depends on the mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x, y):
        return self.layers(torch.cat([x, y], 1))


@pytest.mark.parametrize("chunk_size", [None, 40])
def test_a_fixed_drift_network_is_evaluated_in_eval_mode(chunk_size, generator):
    """Dropout is off, running statistics stay, and the network's own mode is as before."""
    x, y = torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)
    drift = Shaky()
    drift.layers[2].eval()  # modes need not be alike
    objective = Elliptic(
        network().float(), nn.MSELoss(), **PAIRED, sigma=0.5, drift=drift, chunk_size=chunk_size
    )
    paths = objective.sample(x, y, generator=generator)
    before = copy.deepcopy(drift.state_dict())
    modes = [module.training for module in drift.modules()]
    first, second = (objective(x, y, paths=paths) for _ in range(2))
    assert torch.equal(first, second)
    first.backward()
    assert [module.training for module in drift.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in drift.state_dict().items())
    logs = log_weights(objective.model, nn.MSELoss(), paths, drift=drift.eval())
    losses = path_losses(objective.model, nn.MSELoss(), paths).mean(2)
    torch.testing.assert_close(first, (losses * logs.softmax(1) * logs.shape[1]).mean())


@pytest.mark.bad_input
@pytest.mark.parametrize("weighting", ["multiplicative", "girsanov"])
def test_a_drift_that_does_not_take_two_arguments_is_named(weighting, generator):
    x, y = torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)
    settings = {**PAIRED, "n_times": 20, "sigma": 0.5, "weighting": weighting}
    with pytest.raises(TypeError, match=r"called as drift\(x, y\).*Linear does not take two.*lambda x, y"):
        Elliptic(network().float(), nn.MSELoss(), **settings, drift=nn.Linear(3, 3))(x, y)

    def broken(x, y):
        return x.square(1, 2)

    with pytest.raises(TypeError, match="square"):  # a fault of its own is shown as it is
        Elliptic(network().float(), nn.MSELoss(), **settings, drift=broken)(x, y)
