"""The objective against slow loops, degenerate cases with known answers, a closed form, and its own rules."""

import contextlib
import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference
from elliptica import (
    Covariance,
    Elliptic,
    EllipticWarning,
    Girsanov,
    GradientNorm,
    GradientSoftmax,
    Green,
    InverseDistance,
    LabelKernel,
    Multiplicative,
    Permutation,
    elliptic_loss,
    path_losses,
    sample_partners,
    sample_paths,
)
from elliptica.lab.experiments.methods import Released
from laws import assert_mean

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.inputs.EllipticWarning")

N, FEATURES = 5, 3
CLASS_WEIGHT = torch.tensor([1.0, 5.0, 0.25], dtype=torch.float64)
WEIGHTINGS = {
    None: None,
    "gradient_norm": GradientNorm(0.7),
    "gradient_softmax": GradientSoftmax(0.7),
    "girsanov": Girsanov(0.7),
    "multiplicative": Multiplicative(0.7),
}
PATH_ONLY = ("girsanov", "multiplicative")


def weighted_cross_entropy(output, target):
    return reference.cross_entropy(output, CLASS_WEIGHT * target)


LOSSES = {
    "classes": (nn.CrossEntropyLoss(CLASS_WEIGHT), weighted_cross_entropy),
    "regression": (nn.MSELoss(), reference.squared_error),
    "multilabel": (nn.BCEWithLogitsLoss(), reference.binary_cross_entropy),
}


def network(outputs=3, features=FEATURES):
    """A smooth network, so that second derivatives are those of a smooth function."""
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def batch(task, generator, n=N):
    x = normal(n, FEATURES, generator=generator)
    if task == "classes":
        return x, torch.arange(n) % 3
    if task == "multilabel":
        return x, torch.randint(2, (n, 3), generator=generator).double()
    return x, normal(n, 3, generator=generator)


def own_pairing(x, y, n_bridges, generator):
    """Partners with the next larger first coordinate."""
    order = x[:, 0].argsort()
    return torch.empty_like(order).scatter_(0, order, order.roll(-1))[:, None].expand(-1, n_bridges)


PAIRINGS = {
    "permutation": ("permutation", "multilabel"),
    "same class": (Permutation(among="same_class"), "classes"),
    "inverse distance": (InverseDistance(power=2.0), "classes"),
    "nearest": ("nearest", "multilabel"),
    "label kernel": (LabelKernel(bandwidth=1.0), "regression"),
    "own": (own_pairing, "regression"),
}
WAYS = [
    (sampling, quadrature, weighting)
    for sampling, quadratures in (("path", ("mean", "left")), ("marginal", ("mean", "left", "uniform")))
    for quadrature in quadratures
    for weighting in WEIGHTINGS
    if sampling == "path" or weighting not in PATH_ONLY
]


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("sampling", "quadrature", "weighting"), WAYS)
def test_value_and_gradients_equal_the_slow_loop(sampling, quadrature, weighting, pairing, generator):
    """Classes with class weights, real and multilabel targets; sample weights; two bridges; noisy targets."""
    pairing, task = PAIRINGS[pairing]
    (loss_fn, row_loss), model, (x, y) = LOSSES[task], network(), batch(task, generator)
    settings = {"num_classes": 3 if task == "classes" else None, "n_times": 4, "n_bridges": 2}
    objective = Elliptic(
        model,
        loss_fn,
        **settings,
        sampling=sampling,
        quadrature=quadrature,
        pairing=pairing,
        sigma=0.4,
        sigma_y=0.1,
        weighting=WEIGHTINGS[weighting],
    )
    partners = sample_partners(x, y, n_bridges=2, pairing=pairing, generator=generator)
    if weighting == "multiplicative":
        partners = partners[:, :1].repeat(1, 2)
    weight = torch.tensor([0.5, 2.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    paths = objective.sample(x, y, sample_weight=weight, partners=partners, generator=generator)
    expected = reference.objective(
        model,
        row_loss,
        paths,
        weighting=weighting,
        xi=0.7,
        variance=0.4**2,
        sample_weight=weight,
        partners=partners,
        divisor=CLASS_WEIGHT[y].mean() if task == "classes" else 1.0,
        quadrature=quadrature if sampling == "path" else "mean",  # single points are drawn by it already
    )
    reference.assert_same(objective.loss_on(paths), expected, model)
    drawn = objective(x, y, sample_weight=weight, generator=generator.clone_state())  # with its own partners
    again = objective.sample(x, y, sample_weight=weight, generator=generator)
    reference.assert_same(drawn, objective.loss_on(again), model)


@pytest.mark.parametrize("weighting", PATH_ONLY)
@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("sigma", ["number", "features", "covariance", "green"])
@pytest.mark.parametrize("drift", ["input", "both"])
def test_path_weights_under_every_noise(drift, sigma, task, weighting, generator):
    """The variance of each kind of noise enters the weights; ``"both"`` has the slope of the target too."""
    (loss_fn, row_loss), model, (x, y) = LOSSES[task], network(), batch(task, generator)
    features = torch.tensor([0.3, 0.5, 0.8], dtype=torch.float64)
    covariance = Covariance(normal(9, 3, generator=generator))
    laws = {"number": (0.4, 0.16), "features": (features, features**2)}
    laws["covariance"] = (covariance, 2 * covariance.roots[0] @ covariance.roots[0].T)
    laws["green"] = (Green(), None)
    law, variance = laws[sigma]
    kind = Girsanov if weighting == "girsanov" else Multiplicative
    settings = {"sampling": "path", "n_times": 4, "n_bridges": 2, "sigma": law, "sigma_y": 0.6}
    objective = Elliptic(model, loss_fn, **settings, weighting=kind(0.5, drift))
    paths = objective.sample(x, y, generator=generator)
    if sigma == "green":  # one variance for each path, or for each pair
        stds = paths.deviation["x"].view(2, N).double()
        assert torch.equal(stds[0], stds[1]) == (weighting == "multiplicative")

        def variance(i, j):
            return stds[j, i] ** 2

    expected = reference.objective(
        model, row_loss, paths, weighting=weighting, xi=0.5, variance=variance, variance_y=0.36, drift=drift
    )
    reference.assert_same(objective.loss_on(paths), expected, model, 1e-6 if sigma == "green" else 1e-9)


class TwoInputs(nn.Module):
    """Concatenates what it gets; ``flag`` is discrete and switches a bias."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.bias = nn.Embedding(3, 2).double()

    def forward(self, a, b, flag=None):
        out = self.body(torch.cat([a, b], 1))
        return out if flag is None else out + self.bias(flag)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_two_bridged_inputs_are_one_wide_input(weighting, generator):
    """Norms, inner products and path weights run over both inputs together."""
    model = TwoInputs()
    x, y = normal(4, 5, generator=generator), normal(4, 2, generator=generator)
    settings = {"sampling": "path", "n_times": 4, "n_bridges": 2, "sigma": 0.4, "weighting": weighting}
    one = Elliptic(model.body, nn.MSELoss(), **settings)
    two = Elliptic(model, nn.MSELoss(), **settings, bridged=(0, 1))
    paths = one.sample(x, y, generator=generator)
    halves = (paths.x[..., :2], paths.x[..., 2:])
    split = reference.with_points(paths, x=halves, deviation={0: 0.4, 1: 0.4})
    reference.assert_same(two.loss_on(split), one.loss_on(paths), model.body)
    drawn = two.sample((x[:, :2], x[:, 2:]), y, generator=generator)
    assert [v.shape for v in drawn.x] == [v.shape for v in halves]
    assert list(drawn.deviation.values()) == [0.4, 0.4]


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_carried_inputs_come_from_the_nearer_end(sampling, as_dict, generator):
    model, partner = TwoInputs(), torch.tensor([1, 2, 3, 0])
    a, b = normal(4, 2, generator=generator), normal(4, 3, generator=generator)
    flag, y = torch.tensor([0, 1, 2, 1]), normal(4, 2, generator=generator)
    x = {"b": b, "a": a, "flag": flag} if as_dict else (a, b, flag)
    names = {"a": "a", "b": "b", "flag": "flag"} if as_dict else {"a": 0, "b": 1, "flag": 2}
    settings = {"sampling": sampling, "bridged": (names["a"],), "weighting": "gradient_softmax"}
    objective = Elliptic(model, nn.MSELoss(), **settings, sigma=0.3)
    paths = objective.sample(x, y, partners=partner, generator=generator)
    for i in range(4):
        for t in range(paths.s.shape[2]):
            source = i if paths.s[i, 0, t] <= 0.5 else int(partner[i])
            assert torch.equal(paths.x[names["b"]][i, 0, t], b[source])
            assert paths.x[names["flag"]][i, 0, t] == flag[source]
    rows = [paths.x[names[k]].flatten(0, 2) for k in ("a", "b", "flag")]
    direct = F.mse_loss(model(*rows), paths.y.flatten(0, 2), reduction="none").mean(1)
    torch.testing.assert_close(path_losses(model, nn.MSELoss(), paths).flatten(), direct)
    objective.loss_on(paths).backward()
    assert model.body[0].weight.grad.abs().max() > 0


ERM_LOSSES = {
    "cross entropy": nn.CrossEntropyLoss(),
    "class weights, smoothing": nn.CrossEntropyLoss(weight=CLASS_WEIGHT, label_smoothing=0.1),
    "function": F.cross_entropy,
    "squared": nn.MSELoss(),
    "huber": nn.HuberLoss(),
    "multilabel": nn.BCEWithLogitsLoss(),
}


@pytest.mark.parametrize("name", ERM_LOSSES)
def test_ordinary_training_where_it_must_be(name, generator):
    """Two points of a permutation, whatever sigma is; evaluation; and strength None."""
    loss_fn, model = ERM_LOSSES[name], network()
    task = {"squared": "regression", "huber": "regression", "multilabel": "multilabel"}.get(name, "classes")
    x, y = batch(task, generator, n=7)
    settings = {"num_classes": 3} if task == "classes" else {}
    two = Elliptic(model, loss_fn, sampling="path", n_times=2, n_bridges=3, sigma=9.0, **settings)
    reference.assert_same(two(x, y, generator=generator), loss_fn(model(x), y), model)
    off = Elliptic(model, loss_fn, sigma=9.0, **settings)
    before = torch.get_rng_state()
    reference.assert_same(off.eval()(x, y), loss_fn(model(x), y), model)
    off.train().strength = None
    reference.assert_same(off(x, y), loss_fn(model(x), y), model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize(
    "sigma", [0.4, "green", torch.tensor([0.1, 0.0, 2.0]), Covariance(torch.eye(3)), "joint"]
)
def test_strength_scales_the_noise(sigma, sampling, generator):
    """Strength 0 is sigma 0: straight lines; strength 2 moves points twice as far from them."""
    x, y = torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)
    sigma = Covariance(x, y) if sigma == "joint" else sigma
    noise = {} if isinstance(sigma, Covariance) and sigma.joint else {"sigma_y": torch.tensor([0.3, 0.2])}
    objective = Elliptic(nn.Linear(3, 2), nn.MSELoss(), sampling=sampling, sigma=sigma, **noise)
    paths = {}
    for strength in (0, 1, 2.0):
        objective.strength = strength
        paths[strength] = objective.sample(x, y, generator=generator.clone_state())
    for name in ("x", "y"):
        line, one, two = (getattr(p, name) for p in paths.values())
        torch.testing.assert_close(two - line, 2 * (one - line), rtol=1e-4, atol=1e-5)
        assert (one - line).abs().max() > 0.01
    straight = sample_paths(x, y, target_space="real", sampling=sampling, sigma=0.0, generator=generator)
    torch.testing.assert_close(paths[0].x, straight.x)  # partners and times are drawn first
    torch.testing.assert_close(paths[0].y, straight.y)


@pytest.mark.parametrize("task", LOSSES)
def test_zero_sigma_is_mixup_on_the_grid(task, generator):
    """Two losses against the original targets, mixed (equal for losses linear in the target)."""
    loss_fn = nn.CrossEntropyLoss() if task == "classes" else LOSSES[task][0]
    model, (x, y) = network(), batch(task, generator, 4)
    partner, n_times = torch.tensor([2, 3, 1, 0]), 6
    classes = 3 if task == "classes" else None
    objective = Elliptic(model, loss_fn, num_classes=classes, sampling="path", n_times=n_times, sigma=0.0)
    expected = 0.0
    for k in range(n_times):
        keep = 1 - k / (n_times - 1)
        mixed = model(keep * x + (1 - keep) * x[partner])
        if task == "regression":  # not linear in the target: mix the targets instead
            expected = expected + loss_fn(mixed, keep * y + (1 - keep) * y[partner])
        else:
            expected = expected + keep * loss_fn(mixed, y) + (1 - keep) * loss_fn(mixed, y[partner])
    reference.assert_same(objective(x, y, partners=partner), expected / n_times, model)


def closed_form(p, q, spread, quadrature, n_times, end_time):
    """Mean of E(w.X_s - Y_s)**2 = ((1-s) p + s q)**2 + s(1-s) V over s, for residuals p, q at the ends."""
    if quadrature == "uniform":
        times = (np.arange(10_000) + 0.5) / 10_000
        weights = np.full(10_000, 1e-4)
    else:
        times = np.arange(n_times) / (n_times - 1)
        weights = np.array(reference.quadrature_weights(quadrature, n_times))
    times = times * end_time
    line = [((1 - s) ** 2 * (p * p) + 2 * s * (1 - s) * p * q + s**2 * q * q).mean() for s in times]
    return float(np.array(line) @ weights + spread * (times * (1 - times)) @ weights)


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [None, "variance", "times"])
@pytest.mark.parametrize("end_time", [1.0, 0.6])
@pytest.mark.parametrize(
    ("sampling", "quadrature"),
    [("path", "mean"), ("path", "left"), ("marginal", "mean"), ("marginal", "left"), ("marginal", "uniform")],
)
def test_linear_model_matches_the_closed_form(sampling, quadrature, end_time, wrong, generator):
    """Single points and paths have the mean of the exact bridge under the law of the quadrature.

    Calls are independent, so their own deviation gives the standard error. Teeth: noise with 40 % too
    much variance, or the times of another rule or range, are more than 8 standard errors away.
    """
    n, n_times, sigma, sigma_y = 512, 6, 0.8, 1.1
    x, far_x = normal(2, n, 3, generator=generator)
    y, far_y = normal(2, n, 1, generator=generator)
    far_y += 3  # so that both ends differ, and a rule that is not symmetric is seen
    model, w = nn.Linear(3, 1, bias=False).double(), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    model.weight.data[0] = w
    inflate = 1.4**0.5 if wrong == "variance" else 1.0
    objective = Elliptic(
        model,
        nn.MSELoss(),
        sampling=sampling,
        quadrature=quadrature,
        n_times=n_times,
        end_time=end_time,
        sigma=sigma * inflate,
        sigma_y=sigma_y * inflate,
    )
    losses = np.array([objective(x, y, end=(far_x, far_y), generator=generator).item() for _ in range(200)])
    spread = sigma**2 * float(w @ w) + sigma_y**2
    if wrong == "times":
        quadrature, end_time = ("left", 1.0) if quadrature != "left" else ("mean", 0.9)
    p, q = x @ w - y[:, 0], far_x @ w - far_y[:, 0]
    expected = closed_form(p, q, spread, quadrature, n_times, end_time)
    with contextlib.nullcontext() if wrong is None else pytest.raises(AssertionError, match="errors"):
        assert_mean(losses, expected, losses.std(ddof=1))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("n_bridges", [1, 3])
@pytest.mark.parametrize("classes", [False, True])
def test_given_ends_equal_partners(sampling, n_bridges, classes, generator):
    """Far ends from rows of the batch are those that partners name, weights and all."""
    x, n = normal(6, 3, generator=generator), 6
    y = torch.randint(4, (n,), generator=generator) if classes else normal(n, 4, generator=generator)
    w = torch.rand(n, dtype=torch.float64, generator=generator)
    loss_fn = nn.CrossEntropyLoss() if classes else nn.MSELoss()
    settings = {"sampling": sampling, "n_bridges": n_bridges, "sigma": 0.3}
    objective = Elliptic(nn.Linear(3, 4).double(), loss_fn, num_classes=4 if classes else None, **settings)
    own = torch.stack([torch.randperm(n, generator=generator) for _ in range(n_bridges)], 1)
    twin = generator.clone_state()
    given = objective.sample(x, y, sample_weight=w, end=(x[own], y[own], w[own]), generator=generator)
    paired = objective.sample(x, y, sample_weight=w, partners=own, generator=twin)
    for name in ("x", "y", "s", "weight"):
        assert torch.equal(getattr(given, name), getattr(paired, name))
    one = own[:, 0]  # without a bridge axis, for all bridges
    for bridge in objective.sample(x, y, end=(x[one], y[one]), generator=twin).x.unbind(1):
        assert sampling == "marginal" or torch.equal(bridge[:, -1], x[one])
    kept = objective.sample(x, y, sample_weight=w, end=(x[own], y[own]), generator=twin)
    torch.testing.assert_close(kept.weight, w[:, None, None].expand_as(kept.weight))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_a_batch_of_one_is_noise_around_the_point(sampling, weighting, generator):
    if sampling == "marginal" and weighting in PATH_ONLY:
        return
    settings = {"n_bridges": 2, "weighting": weighting, "sigma": 0.5, "sigma_y": 0.0, "n_times": 3}
    objective = Elliptic(network(), nn.MSELoss(), sampling=sampling, **settings)
    x, y = batch("regression", generator, 1)
    paths = objective.sample(x, y, generator=generator)
    assert torch.equal(paths.y, y.expand_as(paths.y))
    assert sampling == "marginal" or torch.equal(paths.x[:, :, 0], paths.x[:, :, -1])
    loss = objective(x, y, generator=generator)
    assert torch.isfinite(loss)
    loss.backward()


def test_the_function_equals_the_module(generator):
    model, (x, y) = network(), batch("classes", generator)
    settings = {"num_classes": 3, "sampling": "path", "weighting": "multiplicative", "n_bridges": 2}
    twin = generator.clone_state()
    loss = elliptic_loss(model, nn.CrossEntropyLoss(), x, y, generator=generator, **settings)
    other = Elliptic(model, nn.CrossEntropyLoss(), **settings)(x, y, generator=twin)
    reference.assert_same(loss, other, model, 0.0)


class InPlace(nn.Module):
    """A model that overwrites its input, as normalisation in place does; ``safe`` copies it first."""

    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.body = network()

    def forward(self, x):
        x = x.clone() if self.safe else x
        return self.body(x.mul_(0.5).add_(x[:, :1].detach()))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("learnt", [False, True])
def test_a_model_that_overwrites_its_input(learnt, weighting, generator):
    """Values, gradients and slopes are those of the same model on a copy."""
    safe, bold = InPlace(True), InPlace(False)
    bold.load_state_dict(safe.state_dict())
    x, y = batch("regression", generator)
    scale = torch.ones(3, dtype=torch.float64, requires_grad=learnt)
    settings = {"sampling": "path", "n_bridges": 2, "sigma": 0.4, "weighting": weighting}
    found = []
    for model in (safe, bold):
        objective = Elliptic(model, nn.MSELoss(), **settings)
        loss = objective(x * scale, y, generator=generator.clone_state())
        front = (scale,) if learnt else ()
        found.append([loss, *torch.autograd.grad(loss, (*model.parameters(), *front))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    paths = objective.sample(x, y, generator=generator)
    assert torch.equal(objective.loss_on(paths), objective.loss_on(paths))  # the points are not overwritten


@pytest.mark.parametrize("sampling", ["marginal", "path"])
@pytest.mark.parametrize("task", ["simplex", "unit", "real", "joint"])
def test_gradients_reach_inputs_soft_targets_and_weights(task, sampling, generator):
    """Against finite differences with the draws held fixed, through noise and projection."""
    width = 3 if task == "simplex" else 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.Tanh()).double()
    loss = nn.CrossEntropyLoss() if task == "simplex" else nn.MSELoss()
    noise = {"sigma": 0.3, "sigma_y": 0.05}
    if task == "joint":
        noise = {"sigma": Covariance(normal(9, 2, 3, generator=generator), normal(9, 2, generator=generator))}
    space = "real" if task == "joint" else task
    objective = Elliptic(model, loss, target_space=space, sampling=sampling, n_bridges=2, n_times=4, **noise)
    x = normal(4, 2, 3, generator=generator).requires_grad_()
    logits = normal(4, width, generator=generator).requires_grad_()
    weight = torch.rand(4, generator=generator, dtype=torch.float64).add_(0.5).requires_grad_()

    def loss_of(x, logits, weight):
        y = logits.softmax(1) if task == "simplex" else logits.sigmoid()
        return objective(x, y, sample_weight=weight, generator=torch.Generator().manual_seed(5))

    assert torch.autograd.gradcheck(loss_of, (x, logits, weight))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize(
    "settings",
    [
        {"sigma": Covariance(torch.eye(3)), "pairing": "inverse_distance"},
        {"sampling": "path", "n_bridges": 2, "weighting": "multiplicative", "sigma": "green"},
        {"at": "0", "weighting": "gradient_norm", "sigma": torch.ones(5)},
    ],
)
def test_copies_behave_alike_and_share_nothing(copied, settings, generator):
    x, y = batch("classes", generator)
    objective = Elliptic(network(), nn.CrossEntropyLoss(CLASS_WEIGHT), **settings)
    objective(x, y, generator=generator).backward()  # a state from training must not be in the way
    again = copied(objective)
    twin = generator.clone_state()
    assert torch.equal(objective(x, y, generator=generator), again(x, y, generator=twin))
    assert not {p.data_ptr() for p in objective.parameters()} & {p.data_ptr() for p in again.parameters()}


@pytest.mark.filterwarnings("default::elliptica.core.inputs.EllipticWarning")
@pytest.mark.parametrize(("scale", "warns"), [(1.0, False), (1e4, True), (1e-4, True)])
def test_noise_that_does_not_suit_the_inputs_is_announced_once(scale, warns, generator, recwarn):
    objective = Elliptic(nn.Linear(3, 1), nn.MSELoss(), sigma=0.05)
    x, y = scale * torch.randn(9, 3, generator=generator), torch.randn(9, 1, generator=generator)
    objective(torch.ones(9, 3), y)  # nothing varies: no judgement yet
    for _ in range(3):
        objective(x, y)
    ours = [w for w in recwarn if w.category is EllipticWarning]
    assert len(ours) == warns
    assert all(w.filename == __file__ for w in ours)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_a_weighting_of_ones_own(sampling, generator):
    """That of the authors' later code, whose slope is the gradient of the mean over the rows."""
    model, (x, y) = network(), batch("regression", generator)
    objective = Elliptic(model, nn.MSELoss(), sampling=sampling, n_bridges=2, weighting=Released(0.7))
    assert "Released(xi=0.7)" in repr(objective)
    paths = objective.sample(x, y, generator=generator)
    losses, slopes = reference.evaluate(model, reference.squared_error, paths)
    n_times = paths.s.shape[2]
    total = 0.0
    for p, loss in losses.items():
        extra = 0.0
        for t in range(n_times):
            q = (*p[:2], t)
            g = slopes[q][0] / (2 * N)
            extra = extra + ((g * paths.x[q]).sum() - 0.5 * g.square().sum()) / n_times
        total = total + (loss - 0.7 * extra) / len(losses)
    reference.assert_same(objective.loss_on(paths), total, model)


def test_a_law_of_ones_own(generator):
    """More noise for longer bridges, from both ends and their targets."""
    seen = []

    def law(start, end, targets, generator):
        seen.append([v.shape for v in (start, end, *targets)])
        return 0.1 * (end - start).norm(dim=1, keepdim=True) * (1 + (targets[0] == targets[1]).float())

    x, y = torch.randn(50, 3, generator=generator), torch.zeros(50, 1)
    objective = Elliptic(nn.Linear(3, 1), nn.MSELoss(), sigma=law, sigma_y=0.1, sampling="path", n_times=3)
    paths = objective.sample(x, y, generator=generator)
    assert seen == [[(50, 3), (50, 3), (50, 1), (50, 1)]]
    length = (paths.x[:, 0, -1] - paths.x[:, 0, 0]).norm(dim=1)
    torch.testing.assert_close(paths.deviation["x"][:, 0], 0.2 * length)
    middle = paths.x[:, 0, 1] - (paths.x[:, 0, 0] + paths.x[:, 0, 2]) / 2
    assert (middle.norm(dim=1) / length / 0.1 / math.sqrt(3)).mean() == pytest.approx(1.0, abs=0.25)
    objective(x, y, generator=generator).backward()
