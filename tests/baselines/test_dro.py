"""Focal, DRO, DORO and tilted training: against convex programs, loops, and each other in their limits."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import nn
from torch.nn import functional as F

from baseline_cases import batch, network, same
from elliptica.baselines import DORO, DRO, Focal, Tilted, chi2_weights, cvar_weights
from elliptica.baselines.dro import tilted_mean


class Given(nn.Module):
    """A model whose losses are its parameters."""

    def __init__(self, losses):
        super().__init__()
        self.losses = nn.Parameter(torch.as_tensor(losses, dtype=torch.float64).clone())

    def forward(self, x):
        return self.losses * 1


def as_loss(output, target):
    return output


def outcome(kind, losses, sample_weight=None, **settings):
    """Value and gradient of an objective as a function of the losses."""
    model = Given(losses)
    x = torch.zeros(len(model.losses), 1).double()
    value = kind(model, as_loss, **settings)(x, x[:, 0], sample_weight=sample_weight)
    return value.item(), torch.autograd.grad(value, model.losses)[0].numpy()


def slopes(loss, model):
    gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([g.flatten() for g in gradient])


def draws(generator, n):
    return torch.randn(n, generator=generator, dtype=torch.float64).exp()


LOSSES = {
    "random": [0.3, 2.1, 0.9, 4.0, 1.2, 0.1, 3.3, 0.8, 1.9, 0.5],
    "ties": [1.0, 3.0, 3.0, 0.0, 1.0, 3.0, 2.0, 2.0, 0.0, 0.0],
    "two": [0.5, 2.0],
    "outlier": [1.0, 1.1, 0.9, 50.0, 1.05, 0.95],
    "negative": [-3.0, -1.0, -2.5, 0.5, -0.2],
    "nearly equal": [1.0, 1.0 + 1e-9, 1.0 - 1e-9, 1.0],
}
LOSSES = {name: torch.tensor(losses, dtype=torch.float64) for name, losses in LOSSES.items()}


each = pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES.keys())


# the worst weights, by other means


def worst_cvar(v, alpha):
    """A linear program."""
    m = len(v)
    result = optimize.linprog(-v, A_eq=np.ones((1, m)), b_eq=[1.0], bounds=[(0, 1 / (alpha * m))] * m)
    assert result.success
    return -result.fun


def worst_chi2(v, rho):
    """The dual: a convex function of one number, scanned and refined."""
    if rho == 0:
        return v.mean()
    c = math.sqrt(1 + 2 * rho)
    low, high = v.min() - 2 * np.ptp(v) / math.sqrt(rho), v.max()

    def dual(eta):
        return c * np.sqrt(np.square(np.maximum(v - eta[:, None], 0)).mean(1)) + eta

    return scan(dual, low, high)


def scan(function, low, high):
    for _ in range(8):  # each pass narrows the interval a hundredfold
        grid = np.linspace(low, high, 401)
        values = function(grid)
        best = int(np.argmin(values))
        low, high = grid[max(best - 2, 0)], grid[min(best + 2, 400)]
    return values.min()


def chi2_of(p):
    return ((len(p) * p - 1) ** 2).sum() / (2 * len(p))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.37, 0.5, 0.99, 1.0])
@each
def test_cvar_weights_are_the_worst(losses, alpha):
    v = losses.numpy()
    p = cvar_weights(losses, alpha).numpy()
    assert p.sum() == pytest.approx(1, abs=1e-14)
    assert p.min() >= 0
    assert p.max() <= 1 / (alpha * len(v)) + 1e-12 or alpha * len(v) < 1
    v = (v - v.min()) / np.ptp(v)  # changes nothing but the tolerance
    assert p @ v == pytest.approx(worst_cvar(v, max(alpha, 1 / len(v))), abs=1e-9)


@pytest.mark.parametrize("rho", [1e-6, 0.05, 0.3, 1.0, 2.0, 40.0])
@each
def test_chi2_weights_are_the_worst(losses, rho):
    """Allowed, and of the value of the dual: no weights do better."""
    v = losses.numpy()
    p = chi2_weights(losses, rho).numpy()
    assert p.sum() == pytest.approx(1, abs=1e-14)
    assert p.min() >= 0
    assert chi2_of(p) <= rho * (1 + 1e-7) + 1e-12
    v = (v - v.min()) / np.ptp(v)  # changes nothing but the tolerance
    assert p @ v == pytest.approx(worst_chi2(v, rho), rel=1e-7, abs=1e-9)
    if rho == 0.3:
        assert chi2_of(p) == pytest.approx(rho)  # all that is allowed is used


def test_limits_with_known_answers(generator):
    v = draws(generator, 10)
    one_hot = F.one_hot(v.argmax(), 10).double()
    equal = torch.full((10,), 0.1, dtype=torch.float64)
    same(cvar_weights(v, 1.0), equal)
    same(cvar_weights(v, 0.1), one_hot)
    same(cvar_weights(v, 1e-320), one_hot)
    same(chi2_weights(v, 0.0), equal)
    same(chi2_weights(v, 1e-320), equal)
    for rho in (4.5, 4.6, 1e300):  # at most 1 + 2 rho samples
        same(chi2_weights(v, rho), one_hot)
    assert chi2_weights(v, 4.4).max() < 1
    top = v.sort(descending=True).values
    value = outcome(DRO, v, alpha=0.25)[0]  # two and a half samples
    assert value == pytest.approx(((top[0] + top[1] + top[2] / 2) / 2.5).item())
    assert value != pytest.approx(top[:2].mean().item(), rel=1e-3)
    for function, size in ((cvar_weights, 0.13), (chi2_weights, 0.7)):
        torch.testing.assert_close(function(v.half(), size), function(v.half().double(), size).float())
        assert function(torch.tensor([1e38, -1e38, 3e38]), size).isfinite().all()


def test_ties_share_and_order_does_not_matter(generator):
    v = LOSSES["ties"]
    order = torch.randperm(10, generator=generator)
    for weights in (
        lambda v: cvar_weights(v, 0.45),
        lambda v: chi2_weights(v, 0.4),
    ):
        p = weights(v)
        same(weights(v[order]), p[order])
        for level in v.unique():
            assert p[v == level].std() < 1e-15
    same(chi2_weights(v, 5.0)[v == 3.0], torch.full((3,), 1 / 3, dtype=torch.float64))


# objectives


SETTINGS = [
    (DRO, {"divergence": "cvar", "alpha": 0.35}),
    (DRO, {"divergence": "chi2", "rho": 0.5}),
    (DRO, {"divergence": "chi2", "alpha": 0.4}),
    (DORO, {"divergence": "cvar", "alpha": 0.35, "epsilon": 0.15}),
    (DORO, {"divergence": "chi2", "alpha": 0.4, "epsilon": 0.15}),
    (Tilted, {"t": 1.7}),
    (Tilted, {"t": -1.7}),
    (Focal, {"gamma": 2.0}),
    (Focal, {"gamma": 0.5}),
]
every = pytest.mark.parametrize(("kind", "settings"), SETTINGS)


@every
def test_gradient_is_that_of_the_value(kind, settings, generator):
    """By finite differences: weights may be held constant because they are the worst ones."""
    v = draws(generator, 11)
    value, gradient = outcome(kind, v, **settings)
    for i in range(11):
        step = 1e-6 * F.one_hot(torch.tensor(i), 11)
        up, down = (outcome(kind, v + sign * step, **settings)[0] for sign in (1, -1))
        assert gradient[i] == pytest.approx((up - down) / 2e-6, abs=1e-7)
    assert math.isfinite(value)


@every
def test_weights_of_samples_are_repetitions(kind, settings, generator):
    """All but DORO, which counts samples; the scale is that of the mean of weight times loss."""
    if kind is DORO:
        settings = settings | {"epsilon": 0.0}
    v = draws(generator, 6)
    v[1] = 50.0
    counts = torch.tensor([2, 0, 1, 3, 1, 1])
    repeated = outcome(kind, v.repeat_interleave(counts), **settings)[0]
    for scale in (1.0, 0.1):
        weighted, gradient = outcome(kind, v, sample_weight=counts.double() * scale, **settings)
        assert weighted == pytest.approx(scale * repeated * 8 / 6)
        assert gradient[1] == 0
    nothing = outcome(kind, v, sample_weight=torch.zeros(6).double(), **settings)
    assert nothing[0] == 0
    assert (nothing[1] == 0).all()


def test_chi2_by_alpha_and_defaults(generator):
    v = draws(generator, 200)
    by_alpha = outcome(DRO, v, divergence="chi2", alpha=0.25)[0]
    assert by_alpha == outcome(DRO, v, divergence="chi2", rho=4.5)[0]
    assert by_alpha > outcome(DRO, v, alpha=0.25)[0]  # the larger set
    assert outcome(DRO, v)[0] == outcome(DRO, v, divergence="cvar", alpha=0.1)[0]
    assert outcome(DRO, v, divergence="chi2")[0] == outcome(DRO, v, divergence="chi2", rho=1.0)[0]
    same(outcome(DRO, v, divergence="chi2", alpha=1e-320)[0], v.max().item())


# DORO


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.1, 0.29, 0.9])
@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.33, 1.0])
@pytest.mark.parametrize("n", [100, 32])
def test_doro_equals_loops(n, alpha, epsilon, generator):
    v = draws(generator, n)
    ordered = sorted(v.tolist(), reverse=True)
    kept = np.array(ordered[int(Fraction(str(epsilon)) * n) :])
    settings = {"alpha": alpha, "epsilon": epsilon}
    exact = outcome(DORO, v, **settings)[0]
    assert exact == pytest.approx(worst_cvar(kept, max(alpha, 1 / len(kept))), rel=1e-8)
    c = math.sqrt(1 + (1 / alpha - 1) ** 2)
    rho = (c**2 - 1) / 2
    value = outcome(DORO, v, divergence="chi2", **settings)[0]
    assert value == pytest.approx(worst_chi2(kept, rho), rel=1e-6)


@pytest.mark.parametrize("divergence", ["cvar", "chi2"])
def test_outliers_have_no_part(divergence, generator):
    v = draws(generator, 20)
    v[4], v[11] = 1e12, 1e9
    settings = {"divergence": divergence, "alpha": 0.2}
    value, gradient = outcome(DORO, v, epsilon=0.1, **settings)
    assert value < 100
    assert gradient[4] == gradient[11] == 0
    assert outcome(DRO, v, **settings)[0] > 1e9
    weight = torch.ones(20).double()
    weight[4] = 0  # is not counted: two of the others go
    gradient = outcome(DORO, v, sample_weight=weight, epsilon=0.1, **settings)[1]
    assert gradient[11] == 0
    assert (gradient > 0).sum() == (gradient != 0).sum() >= 1


@pytest.mark.parametrize("n", [1, 2, 81, 83])
def test_small_batches_have_finite_gradients_under_chi2(n, generator):
    """Below 82 samples the worst weights of alpha 0.1 are the maximum, where the dual has no slope."""
    gradient = outcome(DORO, draws(generator, n), divergence="chi2", alpha=0.1, epsilon=0.0)[1]
    assert np.isfinite(gradient).all()
    assert gradient.sum() == pytest.approx(1)
    assert (gradient > 0).sum() == 1 or n == 83


def test_an_infinite_loss_is_no_outlier_to_drop():
    with pytest.raises(ValueError, match="losses"):
        outcome(DORO, [1.0, 2.0, math.inf], epsilon=0.4)


# tilted


@pytest.mark.parametrize("t", [-300.0, -2.0, -1e-3, 1e-3, 0.5, 20.0, 1e4])
def test_tilted_is_the_formula(t, generator):
    v = draws(generator, 15)
    weight = torch.rand(15, generator=generator, dtype=torch.float64)
    for w in (None, weight):
        expected = special.logsumexp(t * v.numpy(), b=1 if w is None else w.numpy())
        expected = (expected - math.log(15 if w is None else w.sum())) / t
        assert tilted_mean(v, t, sample_weight=w).item() == pytest.approx(expected, rel=1e-11)
    gradient = outcome(Tilted, v, t=t)[1]
    assert gradient == pytest.approx(special.softmax(t * v.numpy()), abs=1e-12)


@pytest.mark.parametrize("t", [1e-38, 1e-30, 1e-12, 1e-6, 1e-5, -1e-6])
def test_tiny_tilts_keep_their_digits_in_single_precision(t, generator):
    """To first order the mean plus t/2 times the variance; log(mean(exp)) / t would be rounding noise."""
    v = draws(generator, 50).float()
    expected = v.mean() + t / 2 * v.var(unbiased=False)
    torch.testing.assert_close(tilted_mean(v, t), expected, rtol=2e-6, atol=0.0)
    leaf = v.clone().requires_grad_()
    tilted_mean(leaf, t).backward()
    torch.testing.assert_close(leaf.grad, (t * v).softmax(0))
    if abs(t) < 1e-6:
        assert not torch.isclose((t * v).exp().mean().log() / t, expected, rtol=1e-3)


def test_tilted_has_second_derivatives(generator):
    v = draws(generator, 6).requires_grad_()
    for t in (2.0, -0.3, 0.0):
        assert torch.autograd.gradcheck(lambda v, t=t: tilted_mean(v, t), v)
        assert torch.autograd.gradgradcheck(lambda v, t=t: tilted_mean(v, t), v)


# focal


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_focal_is_the_formula(gamma, weighted, generator):
    model = network()
    class_weight = torch.tensor([1.0, 0.0, 3.0, 4.0]).double() if weighted else None
    x, y = batch(generator)
    loss = Focal(model, nn.CrossEntropyLoss(weight=class_weight), gamma=gamma)(x, y)
    p = special.softmax(model(x).detach().numpy(), axis=1)[np.arange(12), y.numpy()]
    w = class_weight[y].numpy() if weighted else np.ones(12)
    assert loss.item() == pytest.approx(-(w * (1 - p) ** gamma * np.log(p)).sum() / w.sum())
    p = model(x).softmax(1).gather(1, y[:, None])[:, 0]
    expected = -(torch.as_tensor(w) * (1 - p) ** gamma * p.log()).sum() / w.sum()
    same(slopes(loss, model), slopes(expected, model))
    if gamma:  # the factor is not held constant
        held = -(torch.as_tensor(w) * (1 - p.detach()) ** gamma * p.log()).sum() / w.sum()
        assert not torch.allclose(slopes(loss, model), slopes(held, model), rtol=1e-3)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_of_a_soft_label_is_least_at_the_label(gamma):
    label = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    logits = nn.Linear(1, 3, bias=False).double()
    objective = Focal(logits, nn.CrossEntropyLoss(), gamma=gamma)
    x = torch.ones(1, 1).double()
    with torch.no_grad():
        logits.weight.copy_(label.log().T)
    loss = objective(x, label)
    entropy = -(label * label.log()).sum()
    same(loss, (1 - (-entropy).exp()) ** gamma * entropy)
    assert slopes(loss, logits).abs().max() < 1e-12
    for class_, sign in ((0, 1), (1, 1), (2, -1)):
        with torch.no_grad():
            logits.weight.copy_(label.log().T)
            logits.weight[class_] += sign * 0.1
        assert objective(x, label) > loss


@pytest.mark.parametrize("gamma", [1e-3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_focal_of_a_sure_model_is_finite(gamma, dtype):
    """Where p is 1, a power below 1 has an infinite slope."""
    model = nn.Linear(1, 2, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[200.0], [-200.0]]))
    objective = Focal(model, nn.CrossEntropyLoss(), gamma=gamma)
    right, wrong = torch.tensor([0]), torch.tensor([1])
    x = torch.ones(1, 1, dtype=dtype)
    loss = objective(x, right)
    assert loss.item() == 0
    assert slopes(loss, model).abs().max() == 0
    loss = objective(x, wrong)
    assert loss.item() == pytest.approx(400)
    assert slopes(loss, model).isfinite().all()
