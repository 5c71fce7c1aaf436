"""The objective against slow loops, degenerate cases with known answers, and a closed form."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference
from elliptica import Elliptic
from laws import assert_mean

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")

N, FEATURES = 4, 3
WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released")
PATH_ONLY = ("girsanov", "multiplicative")
LOSSES = {
    "classes": (nn.CrossEntropyLoss(), reference.cross_entropy),
    "regression": (nn.MSELoss(), reference.squared_error),
    "multilabel": (nn.BCEWithLogitsLoss(), reference.binary_cross_entropy),
}


def network(outputs=3, features=FEATURES):
    """A smooth network, so that second derivatives are those of a smooth function."""
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def batch(task, generator, n=N):
    x = torch.randn(n, FEATURES, dtype=torch.float64, generator=generator)
    if task == "classes":
        return x, torch.randint(3, (n,), generator=generator)
    if task == "multilabel":
        return x, torch.randint(2, (n, 3), generator=generator).double()
    return x, torch.randn(n, 3, dtype=torch.float64, generator=generator)


def assert_same_objective(loss, expected, module):
    """Value and all parameter gradients agree to rounding."""
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    ours, theirs = reference.gradients(loss, module), reference.gradients(expected, module)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert any(g.abs().max() > 0 for g in ours)


CASES = [
    (sampling, weighting, n_bridges)
    for sampling in ("path", "marginal")
    for weighting in WEIGHTINGS
    for n_bridges in ((2, 3) if weighting == "multiplicative" else (1, 2))
    if sampling == "path" or weighting not in PATH_ONLY
]


@pytest.mark.parametrize("task", LOSSES)
@pytest.mark.parametrize(("sampling", "weighting", "n_bridges"), CASES)
def test_value_and_gradients_equal_the_slow_loop(sampling, weighting, n_bridges, task, generator):
    (loss_fn, row_loss), model = LOSSES[task], network()
    x, y = batch(task, generator)
    objective = Elliptic(
        model,
        loss_fn,
        num_classes=3,
        sampling=sampling,
        n_times=4,
        n_bridges=n_bridges,
        sigma=0.4,
        horizon=0.5,
        weighting=weighting,
        xi=0.7,
    )
    paths = objective.sample(x, y, generator=generator)
    expected = reference.objective(model, row_loss, paths, weighting=weighting, xi=0.7, variance=0.4**2 * 0.5)
    assert_same_objective(objective(x, y, paths=paths), expected, model)


@pytest.mark.parametrize("weighting", PATH_ONLY)
def test_two_times_are_a_path(weighting, generator):
    """The fewest that have an increment."""
    (loss_fn, row_loss), model = LOSSES["regression"], network()
    x, y = batch("regression", generator)
    settings = {"sampling": "path", "n_times": 2, "n_bridges": 2, "sigma": 0.4}
    objective = Elliptic(model, loss_fn, **settings, weighting=weighting, xi=0.7)
    paths = objective.sample(x, y, generator=generator)
    expected = reference.objective(model, row_loss, paths, weighting=weighting, xi=0.7, variance=0.4**2)
    assert_same_objective(objective(x, y, paths=paths), expected, model)


@pytest.mark.parametrize("weighting", PATH_ONLY)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("task", ["regression", "classes"])
def test_drift_equals_the_slow_loop(weighting, outputs, task, generator):
    """A drift of x, and of x and the targets (before projection); per-feature sigma, two bridges."""
    loss_fn, row_loss = LOSSES[task]
    sigma = torch.tensor([0.3, 0.5, 0.8], dtype=torch.float64)
    model, pull = network(), nn.Linear(FEATURES, FEATURES).double()

    def drift(x, y):
        mu = torch.tanh(pull(x)) + y
        return mu if outputs == 1 else (mu, x * y - pull(y))

    objective = Elliptic(
        model,
        loss_fn,
        num_classes=3,
        sampling="path",
        n_times=5,
        n_bridges=2,
        sigma=sigma,
        sigma_y=0.6,
        horizon=2.0,
        weighting=weighting,
        xi=0.5,
        drift=drift,
    )
    x, y = batch(task, generator)
    paths = objective.sample(x, y, generator=generator)
    expected = reference.objective(
        model,
        row_loss,
        paths,
        weighting=weighting,
        xi=0.5,
        variance=2 * sigma**2,
        variance_y=2 * 0.6**2,
        drift=drift,
    )
    both = nn.ModuleList([model, pull])
    assert_same_objective(objective(x, y, paths=paths), expected, both)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("quadrature", ["mean", "left", "trapezoid"])
def test_quadrature_and_sample_weight_equal_the_slow_loop(quadrature, weighting, generator):
    model, partners = network(), torch.tensor([[1, 2], [3, 0], [0, 1], [2, 1]])
    if weighting == "multiplicative":
        partners = partners[:, :1].repeat(1, 2)
    x, y = batch("classes", generator)
    weight = torch.tensor([0.5, 2.0, 0.0, 3.0], dtype=torch.float64)
    objective = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=3,
        sampling="path",
        n_times=4,
        n_bridges=2,
        sigma=0.5,
        quadrature=quadrature,
        weighting=weighting,
    )
    paths = objective.sample(x, y, sample_weight=weight, partners=partners, generator=generator)
    expected = reference.objective(
        model,
        reference.cross_entropy,
        paths,
        weighting=weighting,
        variance=0.25,
        quadrature=quadrature,
        sample_weight=weight,
        partners=partners,
    )
    assert_same_objective(objective(x, y, paths=paths), expected, model)


ERM_LOSSES = {
    "cross entropy": nn.CrossEntropyLoss(),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.2),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.25]).double()),
    "class weights, smoothing": nn.CrossEntropyLoss(
        weight=torch.tensor([1.0, 5.0, 0.25]).double(), label_smoothing=0.1
    ),
    "function": F.cross_entropy,
    "squared": nn.MSELoss(),
    "absolute": nn.L1Loss(),
    "huber": nn.HuberLoss(),
    "multilabel": nn.BCEWithLogitsLoss(),
}


@pytest.mark.parametrize("name", ERM_LOSSES)
@pytest.mark.parametrize("n_bridges", [1, 3])
def test_two_points_and_a_permutation_are_ordinary_training(name, n_bridges, generator):
    """Whatever sigma is: the ends of a path carry no noise."""
    loss_fn, model = ERM_LOSSES[name], network()
    task = {"squared": "regression", "absolute": "regression", "huber": "regression"}.get(name, "classes")
    x, y = batch("multilabel" if name == "multilabel" else task, generator, n=7)
    objective = Elliptic(
        model, loss_fn, num_classes=3, sampling="path", n_times=2, n_bridges=n_bridges, sigma=9.0
    )
    loss = objective(x, y, generator=generator)
    assert_same_objective(loss, loss_fn(model(x), y), model)
    assert_same_objective(objective.eval()(x, y), loss_fn(model(x), y), model)


@pytest.mark.parametrize("task", LOSSES)
def test_zero_sigma_is_mixup_on_the_grid(task, generator):
    """Independent mixup: two losses against the original targets, mixed (equal for losses linear in y)."""
    loss_fn, model = LOSSES[task][0], network()
    x, y = batch(task, generator)
    partner, n_times = torch.tensor([2, 3, 1, 0]), 6
    objective = Elliptic(model, loss_fn, num_classes=3, sampling="path", n_times=n_times, sigma=0.0)
    expected = 0.0
    for k in range(n_times):
        keep = 1 - k / (n_times - 1)
        mixed = model(keep * x + (1 - keep) * x[partner])
        if task == "regression":  # not linear in the target: mix the targets instead
            expected = expected + loss_fn(mixed, keep * y + (1 - keep) * y[partner])
        else:
            expected = expected + keep * loss_fn(mixed, y) + (1 - keep) * loss_fn(mixed, y[partner])
    assert_same_objective(objective(x, y, partners=partner), expected / n_times, model)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_zero_xi_is_no_weighting(weighting, generator):
    model, (x, y) = network(), batch("classes", generator)
    settings = {"num_classes": 3, "sampling": "path", "sigma": 0.5, "n_bridges": 2}
    plain = Elliptic(model, nn.CrossEntropyLoss(), **settings)
    weighted = Elliptic(model, nn.CrossEntropyLoss(), **settings, weighting=weighting, xi=0.0)
    paths = plain.sample(x, y, generator=generator)
    assert_same_objective(weighted(x, y, paths=paths), plain(x, y, paths=paths), model)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_integer_sample_weights_are_repeated_rows(sampling, generator):
    """In the ERM limit (loops of zero noise) a weight of 3 is the row three times."""
    model, (x, y) = network(), batch("classes", generator)
    weight = torch.tensor([1, 0, 3, 2])
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sampling=sampling, sigma=0.0)
    own = torch.arange(N)
    loss = objective(x, y, sample_weight=weight.double(), partners=own)
    rows = own.repeat_interleave(weight)

    def expected():
        return F.cross_entropy(model(x[rows]), y[rows], reduction="sum") / N

    assert_same_objective(loss, expected(), model)
    assert_same_objective(objective.eval()(x, y, sample_weight=weight.double()), expected(), model)


def test_integer_sample_weights_on_permutation(generator):
    """With n_times=2 every row is a start once and an end once, so weights act as in ERM too."""
    model, (x, y) = network(), batch("regression", generator)
    weight = torch.tensor([1.0, 0.0, 3.0, 2.0], dtype=torch.float64)
    objective = Elliptic(model, nn.MSELoss(), sampling="path", n_times=2)
    expected = (weight * F.mse_loss(model(x), y, reduction="none").mean(1)).mean()
    assert_same_objective(objective(x, y, sample_weight=weight, generator=generator), expected, model)


def closed_form(p, q, spread, quadrature, n_times):
    """Integral over s of E(w.X_s - Y_s)**2 = ((1-s) p + s q)**2 + s(1-s) V, for residuals p, q at the ends.

    Over all of [0, 1] the first part gives (p**2 + pq + q**2) / 3 and s(1-s) gives 1/6.
    """
    if quadrature == "uniform":
        return float((p * p + p * q + q * q).mean() / 3 + spread / 6)
    weights = reference.quadrature_weights(quadrature, n_times)
    times = [k / (n_times - 1) for k in range(n_times)]
    line = [(((1 - s) * p + s * q) ** 2).mean() + s * (1 - s) * spread for s in times]
    return float(sum(v * w for v, w in zip(line, weights, strict=True)))


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [None, "variance", "times"])
@pytest.mark.parametrize(
    ("sampling", "quadrature"),
    [
        ("path", "mean"),
        ("marginal", "mean"),
        ("marginal", "left"),
        ("marginal", "trapezoid"),
        ("marginal", "uniform"),
    ],
)
def test_linear_model_matches_the_closed_form(sampling, quadrature, wrong, generator):
    """Both samplers have the mean of the exact bridge under the law of the quadrature.

    Calls are independent, so their own deviation gives the standard error. Teeth: noise with 40 % too
    much variance, or the times of another quadrature, are more than 8 standard errors away.
    """
    n, n_times, sigma, sigma_y, horizon = 512, 6, 0.8, 1.1, 1.5
    x, far_x = torch.randn(2, n, 3, dtype=torch.float64, generator=generator)
    y, far_y = torch.randn(2, n, 1, dtype=torch.float64, generator=generator)
    far_y += 3  # so that both ends differ, and a rule that is not symmetric is seen
    model = nn.Linear(3, 1, bias=False).double()
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    model.weight.data[0] = w
    inflate = 1.4**0.5 if wrong == "variance" else 1.0
    objective = Elliptic(
        model,
        nn.MSELoss(),
        sampling=sampling,
        quadrature=quadrature,
        n_times=n_times,
        sigma=sigma * inflate,
        sigma_y=sigma_y * inflate,
        horizon=horizon,
    )
    losses = np.array([objective(x, y, end=(far_x, far_y), generator=generator).item() for _ in range(300)])
    spread = horizon * (sigma**2 * float(w @ w) + sigma_y**2)
    if wrong == "times":
        quadrature = "trapezoid" if quadrature == "mean" else "mean"
    expected = closed_form(x @ w - y[:, 0], far_x @ w - far_y[:, 0], spread, quadrature, n_times)
    with (
        contextlib.nullcontext() if wrong is None else pytest.raises(AssertionError, match="standard errors")
    ):
        assert_mean(losses, expected, losses.std(ddof=1))
