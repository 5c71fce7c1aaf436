"""What a sceptic asks for: noise without mixing, smoothing without noise, relatives of mixup, SMOTE."""

import copy
import math
import sys
import types
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn
from torch.nn import functional as F

import elliptica
import laws
from baseline_cases import batch, network, replay, same, value_and_gradient
from elliptica.baselines import ERM, Mixup
from elliptica.baselines.input_noise import InputNoise
from elliptica.baselines.manifold_mixup import ManifoldMixup
from elliptica.baselines.mixup import draw_share
from elliptica.baselines.nfm import NFM
from elliptica.baselines.regmixup import RegMixup
from elliptica.baselines.smoothing import LabelSmoothing, matched_smoothing
from elliptica.baselines.smote import smote_rows

CE = nn.CrossEntropyLoss()
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double())


class Recorder(nn.Module):
    """Keeps what it is called with, and gives it back."""

    def forward(self, x):
        self.seen = x
        return x


OBJECTIVES = {
    "gaussian noise": lambda m: InputNoise(m, CE, sigma=0.1),
    "bridge noise": lambda m: InputNoise(m, CE, sigma=torch.tensor([0.1, 0.0, 0.5]), law="bridge"),
    "smoothing": lambda m: LabelSmoothing(m, CE, smoothing=0.2),
    "manifold": lambda m: ManifoldMixup(m, CE, layers=(None, "0", "1")),
    "nfm": lambda m: NFM(m, CE, layers=(None, "1")),
    "nfm fixed": lambda m: NFM(m, CE, layers=["1"], levels="fixed"),
    "regmixup": lambda m: RegMixup(m, CE),
}
every_objective = pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)


# all of them


@every_objective
def test_six_lines_of_a_plain_loop(make, generator):
    x = torch.randn(60, 3, generator=generator)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    model = network().float()
    objective = make(model)
    before = CE(model(x), y).item()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        loss = objective(x, y, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.shape == ()
    assert CE(model(x), y) < 0.7 * before


@every_objective
def test_eval_mode_is_the_ordinary_loss_and_draws_nothing(make, generator):
    model = network()
    x, y = batch(generator)
    objective = make(model).eval()
    state = generator.get_state(), torch.get_rng_state()
    same(
        value_and_gradient(objective(x, y, generator=generator), model),
        value_and_gradient(CE(model(x), y), model),
    )
    assert torch.equal(generator.get_state(), state[0])
    assert torch.equal(torch.get_rng_state(), state[1])


@every_objective
def test_generator_repeats_and_nothing_else_changes(make, generator):
    model = network()
    x, y = batch(generator)
    kept, state = (x.clone(), y.clone()), torch.get_rng_state()
    objective = make(model)
    first, second = (objective(x, y, generator=g) for g in (replay(generator), generator))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])
    copy.deepcopy(objective)  # nothing of the call is kept
    assert all(name.startswith("model.") for name in objective.state_dict())


@every_objective
def test_one_row_equal_losses_and_soft_labels(make, generator):
    """No NaN in a value or a gradient; one-hot labels are labels."""
    model = network()
    x, y = batch(generator)
    objective = make(model)
    for rows in (slice(0, 1), [0] * 5):  # one row, and rows that are all alike
        value, slopes = value_and_gradient(objective(x[rows], y[rows], generator=generator), model)
        assert all(t.isfinite().all() for t in (value, *slopes))
    hard, soft = (objective(x, t, generator=replay(generator)) for t in (y, F.one_hot(y, 4).double()))
    same(hard, soft)


@pytest.mark.parametrize("loss_fn", [CE, WEIGHTED])
@pytest.mark.parametrize(
    "make",
    [
        lambda m, f: InputNoise(m, f, sigma=0.0),
        lambda m, f: InputNoise(m, f, sigma=torch.zeros(3), law="bridge"),
        lambda m, f: LabelSmoothing(m, f, smoothing=0.0),
        lambda m, f: ManifoldMixup(m, f, layers=(None, "0"), alpha=0.0),
        lambda m, f: NFM(m, f, layers=(None, "0"), alpha=0.0, additive=0.0, multiplicative=0.0),
        lambda m, f: RegMixup(m, f, weight=0.0),
    ],
    ids=["noise", "bridge noise", "smoothing", "manifold", "nfm", "regmixup"],
)
def test_switched_off_is_erm(make, loss_fn, generator):
    model = network()
    x, y = batch(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    for w in (None, weight):
        expected = ERM(model, loss_fn)(x, y, sample_weight=w)
        ours = make(model, loss_fn)(x, y, sample_weight=w, generator=generator)
        same(value_and_gradient(ours, model), value_and_gradient(expected, model))


@pytest.mark.parametrize(
    "make",
    [
        lambda m: InputNoise(m, nn.MSELoss(), sigma=0.3),
        lambda m: ManifoldMixup(m, nn.MSELoss(), layers=(None, "1")),
        lambda m: NFM(m, nn.MSELoss(), layers=("1",)),
        lambda m: RegMixup(m, nn.MSELoss()),
    ],
)
def test_regression_and_given_ends(make, generator):
    model = network(n_out=1)
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    for end in (None, (x.flip(0), y.flip(0))):
        value, slopes = value_and_gradient(make(model)(x, y, end=end, generator=generator), model)
        assert all(t.isfinite().all() for t in (value, *slopes))


# noise


@pytest.mark.parametrize("sigma", [0.3, torch.tensor([0.1, 0.0, 2.0])])
@pytest.mark.parametrize("law", ["gaussian", "bridge"])
def test_noise_is_its_formula(law, sigma, generator):
    """A time for each row, a normal for each entry."""
    model = network()
    x, y = batch(generator)
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


@pytest.mark.statistical
def test_noise_adds_its_closed_form_to_a_squared_error(generator):
    """A linear model: the mean loss grows by ``sigma**2 |w|**2``, for a bridge by a sixth of it."""
    model = nn.Linear(3, 1).double()
    x, _ = batch(generator, n=40)
    y = x[:, :1].clone()
    clean = F.mse_loss(model(x), y).item()
    growth = 0.5**2 * model.weight.square().sum().item()
    for law, share in (("gaussian", 1.0), ("bridge", 1 / 6)):
        objective = InputNoise(model, nn.MSELoss(), sigma=0.5, law=law)
        with torch.no_grad():
            losses = np.array([objective(x, y, generator=generator).item() for _ in range(1200)])
        laws.assert_mean(losses, clean + share * growth, losses.std())
        with pytest.raises(AssertionError):
            laws.assert_mean(losses, clean + (1.0 if law == "bridge" else 1 / 6) * growth, losses.std())


def test_noise_on_every_input_and_in_half_precision(generator):
    class Sum(nn.Module):
        def forward(self, a, b):
            self.seen = a, b
            return a + b

    model = Sum()
    zeros = torch.zeros(4, 2)
    InputNoise(model, nn.MSELoss(), sigma=1.0)({"a": zeros, "b": zeros}, zeros, generator=generator)
    assert all((value != 0).all() for value in model.seen)
    assert not torch.equal(*model.seen)
    half = Recorder()
    low = torch.zeros(4, 2, dtype=torch.bfloat16)
    InputNoise(half, nn.MSELoss(), sigma=1.0)(low, low, generator=generator)
    assert half.seen.dtype == torch.bfloat16


def test_green_noise_leaves_out_the_way_to_the_partner(generator):
    """At distance zero it is the ordinary loss; partners' targets never matter, their places do."""
    x, y = batch(generator)
    x, model = x.repeat(1, 2), nn.Linear(6, 4).double()
    objective = InputNoise(model, CE, sigma="green", law="bridge")
    torch.testing.assert_close(objective(x, y, end=(x, y), generator=generator), CE(model(x), y))
    losses = []
    for end in ((x.flip(0), y), (x.flip(0), (y + 1) % 4), (2 * x.flip(0), y)):
        losses.append(objective(x, y, end=end, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


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


# smoothing


@pytest.mark.parametrize("smoothing", [0.1, 0.7, 1.0])
def test_smoothing_is_that_of_torch(smoothing, generator):
    model = network()
    x, y = batch(generator)
    ours = LabelSmoothing(model, CE, smoothing=smoothing)(x, y)
    theirs = nn.CrossEntropyLoss(label_smoothing=smoothing)(model(x), y)
    same(value_and_gradient(ours, model), value_and_gradient(theirs, model))


def test_smoothing_with_class_and_sample_weights_is_a_loop(generator):
    model = network()
    x, y = batch(generator)
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


@pytest.mark.parametrize(
    ("num_classes", "sigma_y", "left"),
    [
        (2, 0.1, {"abs": 0.96, "euclidean": 0.99}),
        (10, 0.05, {"abs": 0.85, "euclidean": 0.98}),
        (9, 0.1, {"abs": 0.76, "euclidean": 0.96}),
        (11, 0.1, {"abs": 0.72, "euclidean": 0.95}),
        (100, 0.05, {"abs": 0.34, "euclidean": 0.96}),
        (200, 0.05, {"abs": 0.20, "euclidean": 0.95}),
    ],
)
def test_matched_smoothing_at_mid_bridge_is_the_known_table(num_classes, sigma_y, left):
    """Three times, of which only the middle one smooths, give a third of what it does."""
    for simplex, mass in left.items():
        third = matched_smoothing(num_classes, sigma_y, simplex=simplex, n_times=3, quadrature="mean")
        assert abs(1 - 3 * third * (num_classes - 1) / num_classes - mass) < 0.0055


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


def test_matched_smoothing_in_its_limits(monkeypatch):
    for simplex in ("abs", "euclidean"):
        assert matched_smoothing(10, 0.0, simplex=simplex) == 0.0
        values = [matched_smoothing(10, sigma, simplex=simplex) for sigma in (0.01, 0.1, 1.0, 1000.0)]
        assert values == sorted(values)
        assert values[-1] > 0.99  # nothing is left of the label
        assert matched_smoothing(10, 1.0, simplex=simplex, n_times=2, quadrature="mean") == 0.0  # ends only
    whole = matched_smoothing(7, 0.3)
    monkeypatch.setattr("elliptica.baselines.smoothing._CHUNK_NUMBERS", 7 * 1000)
    assert abs(matched_smoothing(7, 0.3) - whole) < 1e-12


# manifold mixup


@pytest.mark.parametrize("at", [None, "0", "1"])
def test_one_layer_is_mixup_there(at, generator):
    model = network()
    x, y = batch(generator)
    again = replay(generator)
    ours = ManifoldMixup(model, CE, layers=(at,))(x, y, generator=generator)
    theirs = Mixup(model, CE, alpha=2.0, at=at)(x, y, generator=again)
    same(value_and_gradient(ours, model), value_and_gradient(theirs, model))
    assert torch.equal(generator.get_state(), again.get_state())


def test_the_layer_drawn_is_the_layer_mixed(generator):
    model = network()
    x, y = batch(generator)
    objective = ManifoldMixup(model, CE, layers=(None, "0", "1"))
    seen = set()
    for _ in range(12):
        again = replay(generator)
        loss = objective(x, y, generator=generator)
        depth = int(torch.rand(1, generator=again) * 3)
        share, partners = draw_share(2.0, again), torch.randperm(12, generator=again)
        hidden = model[:depth](x)
        output = model[depth:](share * hidden + (1 - share) * hidden[partners])
        expected = share * CE(output, y) + (1 - share) * CE(output, y[partners])
        same(value_and_gradient(loss, model), value_and_gradient(expected, model))
        assert objective.at == (None, "0", "1")[depth]
        seen.add(depth)
    assert len(seen) > 1


@pytest.mark.statistical
def test_layers_are_equally_likely(generator):
    objective = ManifoldMixup(network(), CE, layers=(None, "0", "1"))
    drawn = [objective._draw_layer(generator) for _ in range(6000)]
    counts = [drawn.count(layer) for layer in (None, "0", "1")]
    laws.assert_frequencies(counts, [1 / 3] * 3)
    with pytest.raises(AssertionError):
        laws.assert_frequencies(counts, [1 / 2, 1 / 4, 1 / 4])


# noisy feature mixup


def level_by(generator):
    first, second = (
        torch._standard_gamma(torch.tensor([k], dtype=torch.float64), generator=generator) for k in (2.0, 5.0)
    )
    return (first.float() / (first.float() + second.float())).item()


@pytest.mark.parametrize("levels", ["random", "fixed"])
@pytest.mark.parametrize("depth", [0, 2])
def test_nfm_is_its_formula(depth, levels, generator):
    """Mixed first, then both noises, in the input and in a hidden layer; gradients flow through."""
    model = network()
    x, y = batch(generator)
    again = replay(generator)
    objective = NFM(
        model, CE, layers=(["1"] if depth else [None]), additive=0.4, multiplicative=0.7, levels=levels
    )
    loss = objective(x, y, generator=generator)
    share, partners = draw_share(1.0, again), torch.randperm(12, generator=again)
    hidden = model[:depth](x)
    mixed = share * hidden + (1 - share) * hidden[partners]
    a = 0.4 * (level_by(again) if levels == "random" else 1)
    z = torch.randn(mixed.shape, generator=again, dtype=torch.float64)
    b = 0.7 * (level_by(again) if levels == "random" else 1)
    v = 2 * torch.rand(mixed.shape, generator=again).double() - 1
    output = model[depth:](mixed + b * v * mixed + a * z)
    expected = share * CE(output, y) + (1 - share) * CE(output, y[partners])
    torch.testing.assert_close(
        value_and_gradient(loss, model), value_and_gradient(expected, model), rtol=1e-6, atol=1e-8
    )
    assert torch.equal(generator.get_state(), again.get_state())


@pytest.mark.parametrize("layers", [(None,), ("1",), (None, "0", "1")])
def test_nfm_without_noise_is_manifold_mixup(layers, generator):
    model = network()
    x, y = batch(generator)
    again = replay(generator)
    ours = NFM(model, CE, layers=layers, additive=0.0, multiplicative=0.0)(x, y, generator=generator)
    theirs = ManifoldMixup(model, CE, layers=layers, alpha=1.0)(x, y, generator=again)
    same(value_and_gradient(ours, model), value_and_gradient(theirs, model))
    assert torch.equal(generator.get_state(), again.get_state())


def perturbed(generator, **settings):
    """Ones, not mixed but with the noise of `NFM`."""
    model = Recorder()
    ones = torch.ones(20_000, 1)
    NFM(model, nn.MSELoss(), layers=[None], alpha=0.0, **settings)(ones, ones, generator=generator)
    return model.seen.numpy().ravel()


@pytest.mark.statistical
def test_nfm_noise_has_its_law(generator):
    """Additive normal, multiplicative uniform: with the laws exchanged the test fails."""
    added = perturbed(generator, additive=0.4, multiplicative=0.0, levels="fixed")
    scaled = perturbed(generator, additive=0.0, multiplicative=0.2, levels="fixed")
    normal, uniform = stats.norm(1, 0.4), stats.uniform(0.8, 0.4)
    laws.assert_distribution(added, normal.cdf)
    laws.assert_distribution(scaled, uniform.cdf)
    for sample, wrong in (
        (added, stats.uniform(1 - 0.4 * 3**0.5, 0.8 * 3**0.5)),
        (scaled, stats.norm(1, 0.2 / 3**0.5)),
        (scaled, stats.uniform(1.0, 0.2)),
    ):
        with pytest.raises(AssertionError):
            laws.assert_distribution(sample, wrong.cdf)


@pytest.mark.statistical
def test_nfm_levels_are_beta_and_shared_by_the_batch(generator):
    objective = NFM(network(), CE, layers=[None])
    levels = [objective._draw_level(generator) for _ in range(4000)]
    laws.assert_distribution(levels, stats.beta(2, 5).cdf)
    with pytest.raises(AssertionError):
        laws.assert_distribution(levels, stats.beta(5, 2).cdf)
    batches = [perturbed(generator, additive=1.0, multiplicative=0.0) - 1 for _ in range(6)]
    spreads = [b.std() for b in batches]
    assert max(spreads) > 1.02 * min(spreads)  # one level each, and not the same
    for noise, spread in zip(batches, spreads, strict=True):
        laws.assert_distribution(noise, stats.norm(0, spread).cdf)


def test_nfm_leaves_no_hooks_even_after_an_error(generator):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(3, 3), nn.Linear(3, 4)

        def forward(self, x):
            return self.last(self.layer(self.layer(x)))

    x, y = batch(generator)
    model = Twice().double()
    with pytest.raises(RuntimeError, match="ran twice"):
        NFM(model, CE, layers=["layer"])(x, y, generator=generator)
    NFM(model, CE, layers=["last"])(x, y, generator=generator)
    for module in (model, model.layer, model.last):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


# RegMixup


@pytest.mark.parametrize("loss_fn", [CE, WEIGHTED])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_regmixup_is_the_sum_of_two_losses(given, weighted, loss_fn, generator):
    model = network()
    x, y = batch(generator)
    sample_weight = torch.rand(12, generator=generator, dtype=torch.float64) if weighted else None
    end = batch(generator) if given else None
    again = replay(generator)
    ours = RegMixup(model, loss_fn, weight=0.6)(
        x, y, sample_weight=sample_weight, end=end, generator=generator
    )
    mixed = Mixup(model, loss_fn, alpha=20.0)(x, y, sample_weight=sample_weight, end=end, generator=again)
    expected = ERM(model, loss_fn)(x, y, sample_weight=sample_weight) + 0.6 * mixed
    same(value_and_gradient(ours, model), value_and_gradient(expected, model))
    assert torch.equal(generator.get_state(), again.get_state())


def test_regmixup_is_twice_the_mean_over_all_rows(generator):
    """The authors' code: one mean over clean and mixed rows."""
    model = network()
    x, y = batch(generator)
    again = replay(generator)
    loss = RegMixup(model, CE)(x, y, generator=generator)
    share, partners = draw_share(20.0, again), torch.randperm(12, generator=again)
    output = model(torch.cat([x, share * x + (1 - share) * x[partners]]))
    near, far = torch.cat([y, y]), torch.cat([y, y[partners]])
    same(loss, 2 * (share * CE(output, near) + (1 - share) * CE(output, far)))


def test_regmixup_shows_batch_norm_both_halves_at_once(generator):
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 4))
    x, y = torch.randn(8, 3, generator=generator), torch.randint(4, (8,), generator=generator)
    again = replay(generator)
    RegMixup(model, CE)(x, y, generator=generator)
    share, partners = draw_share(20.0, again), torch.randperm(8, generator=again)
    both = torch.cat([x, share * x + (1 - share) * x[partners]])
    assert model[0].num_batches_tracked == 1
    torch.testing.assert_close(model[0].running_var, both.var(0))


# straight lines: bridges without noise


def mean_over_pairs_and_shares(model, x, y, law, itself=True):
    """The exact mean of the mixup loss over pairs of the batch; ``law`` is that of the share."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    pairs = np.ones((len(x), len(x))) - (0 if itself else np.eye(len(x)))
    total = 0.0
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        mixed = node * x[:, None] + (1 - node) * x[None]
        log_p = model(mixed).log_softmax(-1).numpy()
        near = np.take_along_axis(log_p, y.numpy()[:, None, None], -1)[..., 0]
        far = np.take_along_axis(log_p, y.numpy()[None, :, None], -1)[..., 0]
        total -= weight * law.pdf(node) * np.average(node * near + (1 - node) * far, weights=pairs)
    return total


@pytest.mark.statistical
@torch.no_grad()
def test_bridges_without_noise_are_mixup_with_uniform_shares(generator):
    """Both have the mean that quadrature over all pairs gives, if their partners have one law: those of
    mixup are any permutation, those of a bridge a cycle, hence never the sample itself. Rejected: shares
    of Beta(4, 4), times on the default grid (which counts the data themselves), the other partners."""
    model = nn.Linear(3, 4).double()
    model.weight.copy_(4 * torch.cat([torch.eye(3), -torch.ones(1, 3)]))
    x, _ = batch(generator, n=8)
    y = model(x).argmax(1)  # small losses at the data and large ones between them, so that shares matter
    lines = elliptica.Elliptic(model, CE, num_classes=4, sigma=0.0, sampling="marginal", quadrature="uniform")
    grid = elliptica.Elliptic(model, CE, num_classes=4, sigma=0.0, sampling="marginal")

    def draw(objective, permuted=False, n=1000):
        losses = []
        for _ in range(n):
            given = {"partners": torch.randperm(8, generator=generator)} if permuted else {}
            losses.append(objective(x, y, generator=generator, **given).item())
        return np.array(losses)

    def expected(law, itself=True):
        return mean_over_pairs_and_shares(model, x, y, law, itself)

    uniform, middle = stats.uniform(), stats.beta(4, 4)
    for losses, right, wrong in (
        (draw(lines, permuted=True), expected(uniform), expected(middle)),
        (draw(Mixup(model, CE, alpha=1.0)), expected(uniform), expected(middle)),
        (draw(Mixup(model, CE, alpha=4.0)), expected(middle), expected(uniform)),
        (draw(lines), expected(uniform, itself=False), expected(uniform)),
    ):
        laws.assert_mean(losses, right, losses.std())
        with pytest.raises(AssertionError):
            laws.assert_mean(losses, wrong, losses.std())
    on_grid = draw(grid, permuted=True)
    with pytest.raises(AssertionError):
        laws.assert_mean(on_grid, expected(uniform), on_grid.std())


# SMOTE


def table(generator, counts=(9, 4, 2)):
    y = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    x = torch.randn(len(y), 3, generator=generator, dtype=torch.float64) + 5 * y[:, None]
    return x, y


def neighbours(rows, k):
    """For each row, the ``k`` nearest others, by brute force."""
    out = []
    for i, row in enumerate(rows):
        order = sorted((j for j in range(len(rows)) if j != i), key=lambda j: float((rows[j] - row).norm()))
        out.append(order[:k])
    return out


def share_on_a_segment(point, rows, k):
    """Where the point lies between a row and one of its neighbours; None if it lies nowhere."""
    for i, near in enumerate(neighbours(rows, k)):
        for j in near:
            line = rows[j] - rows[i]
            u = float((point - rows[i]) @ line / (line @ line))
            if -1e-6 <= u <= 1 + 1e-6 and torch.allclose(rows[i] + u * line, point, atol=1e-5):
                return u
    return None


class PlainSMOTE:
    """The same call as imbalanced-learn's class, in a few lines of NumPy."""

    calls: ClassVar[list] = []

    def __init__(self, *, sampling_strategy, k_neighbors, random_state):
        self.calls.append((sampling_strategy, k_neighbors, random_state))
        self.settings = sampling_strategy, k_neighbors, random_state

    def fit_resample(self, x, y):
        (strategy, k, seed) = self.settings
        rng = np.random.default_rng(seed)
        ((label, size),) = strategy.items()
        rows = x[y == label]
        near = neighbours(torch.as_tensor(rows), k)
        assert all(len(n) == k for n in near), "more neighbours than rows"
        new = []
        for _ in range(size - len(rows)):
            i = rng.integers(len(rows))
            new.append(rows[i] + rng.random() * (rows[rng.choice(near[i])] - rows[i]))
        return np.concatenate([x, new]), np.concatenate([y, np.full(len(new), label)])


@pytest.fixture
def plain_smote(monkeypatch):
    package, module = types.ModuleType("imblearn"), types.ModuleType("imblearn.over_sampling")
    module.SMOTE = PlainSMOTE
    monkeypatch.setattr(PlainSMOTE, "calls", [])
    monkeypatch.setitem(sys.modules, "imblearn", package)
    monkeypatch.setitem(sys.modules, "imblearn.over_sampling", module)


def check_balanced(generator, k):
    x, y = table(generator)
    more_x, more_y = smote_rows(x, y, k_neighbors=k, generator=generator)
    assert more_y.bincount().tolist() == [9, 9, 9]
    assert (more_x.dtype, more_y.dtype) == (x.dtype, y.dtype)
    assert torch.equal(more_x[:15], x)
    assert torch.equal(more_y[:15], y)
    for point, label in zip(more_x[15:], more_y[15:].tolist(), strict=True):
        rows = x[y == label]
        assert share_on_a_segment(point, rows, min(k, len(rows) - 1)) is not None


@pytest.mark.parametrize("k", [1, 2, 5])
def test_smote_asks_for_the_right_thing(k, plain_smote, generator):
    """Neighbours are clipped class by class, and every class has a seed of its own."""
    check_balanced(generator, k)
    strategies, clipped, seeds = zip(*PlainSMOTE.calls, strict=True)
    assert strategies == ({1: 9}, {2: 9})
    assert clipped == (min(k, 3), 1)
    assert len(set(seeds)) == 2


def test_smote_repeats_and_keeps_balanced_tables(plain_smote, generator):
    x, y = table(generator)
    again = replay(generator)
    first, second = (smote_rows(x, y, generator=g)[0] for g in (generator, again))
    assert torch.equal(first, second)
    assert not torch.equal(first, smote_rows(x, y, generator=generator)[0])
    x, y = table(generator, counts=(1, 1))  # nothing to do, even with one row each
    assert torch.equal(smote_rows(x, y)[0], x)
    assert torch.equal(smote_rows(x, y)[1], y)


@pytest.mark.parametrize("k", [1, 5])
def test_smote_of_imbalanced_learn(k, generator):
    pytest.importorskip("imblearn")
    check_balanced(generator, k)


@pytest.mark.bad_input
def test_smote_needs_features():
    with pytest.raises(ValueError, match="x has no features"):
        smote_rows(torch.zeros(4, 0), torch.tensor([0, 0, 0, 1]))


def test_smote_names_the_extra(monkeypatch, generator):
    monkeypatch.setitem(sys.modules, "imblearn", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "imblearn.over_sampling", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"imbalanced-learn.*pip install \"elliptica\[lab\]\""):
        smote_rows(*table(generator))


# bad input


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "error", "match"),
        [
            (
                lambda m: InputNoise(m, CE, sigma=-0.1),
                ValueError,
                "sigma must be finite and at least 0, but got -0.1",
            ),
            (lambda m: InputNoise(m, CE, sigma="much"), TypeError, "sigma must be a number, but got 'much'"),
            (lambda m: InputNoise(m, CE, sigma=1.0, law="bridges"), ValueError, "Did you mean 'bridge'"),
            (lambda m: LabelSmoothing(m, CE, smoothing=1.5), ValueError, "between 0 and 1, but got 1.5"),
            (lambda m: LabelSmoothing(m, CE, smoothing=float("nan")), ValueError, "but got nan"),
            (
                lambda m: LabelSmoothing(m, nn.CrossEntropyLoss(label_smoothing=0.1)),
                ValueError,
                r"label_smoothing=0.1\), so they would be smoothed twice",
            ),
            (lambda m: ManifoldMixup(m, CE, layers="layer1"), TypeError, "tuple of names, but got 'layer1'"),
            (lambda m: ManifoldMixup(m, CE, layers=(1,)), TypeError, r"tuple of names, but got \(1,\)"),
            (lambda m: ManifoldMixup(m, CE, layers=()), ValueError, "at least one layer"),
            (lambda m: ManifoldMixup(m, CE, layers=("0", "0")), ValueError, "each only once"),
            (lambda m: ManifoldMixup(m, CE, layers=("9",)), ValueError, "at='9' is not a layer"),
            (lambda m: NFM(m, CE, layers=[None], additive=-1.0), ValueError, "additive must be finite"),
            (
                lambda m: NFM(m, CE, layers=[None], multiplicative=float("inf")),
                ValueError,
                "multiplicative must",
            ),
            (lambda m: NFM(m, CE, layers=[None], levels="fix"), ValueError, "Did you mean 'fixed'"),
            (
                lambda m: NFM(m, CE, layers=[None], alpha=-1.0),
                ValueError,
                "alpha must be finite and at least 0",
            ),
            (
                lambda m: RegMixup(m, CE, weight=-1.0),
                ValueError,
                "weight must be finite and at least 0, but got -1",
            ),
            (lambda m: matched_smoothing(1, 0.1), ValueError, "num_classes must be at least 2"),
            (lambda m: matched_smoothing(4, -0.1), ValueError, "sigma_y must be finite and at least 0"),
            (lambda m: matched_smoothing(4, 0.1, simplex="clip"), ValueError, "simplex must be one of"),
        ],
    )
    def test_settings(self, make, error, match):
        with pytest.raises(error, match=match):
            make(network())

    @every_objective
    def test_batches(self, make, generator):
        objective = make(network())
        x, y = batch(generator)
        bad = x.clone()
        bad[3, 1] = float("nan")
        with pytest.raises(
            ValueError, match=r"x must be finite, but 1 values are NaN or infinite, in rows 3"
        ):
            objective(bad, y)
        with pytest.raises(ValueError, match=r"y must have as many rows as x \(12\), but has 11 rows"):
            objective(x, y[1:])
        with pytest.raises(ValueError, match="x is empty"):
            objective(x[:0], y[:0])
        with pytest.raises(ValueError, match="sample_weight must have as many rows"):
            objective(x, y, sample_weight=torch.ones(3))
        with pytest.raises(ValueError, match=r"Labels must lie in 0..3"):
            objective(x, y + 3)

    @pytest.mark.parametrize("name", sorted(OBJECTIVES.keys() - {"smoothing"}))  # which draws nothing
    def test_generators(self, name, generator):
        with pytest.raises(TypeError, match=r"generator must be a torch.Generator, but got int"):
            OBJECTIVES[name](network())(*batch(generator), generator=3)

    def test_inputs(self, generator):
        x, y = batch(generator)
        with pytest.raises(
            ValueError, match=r"broadcasts to the shape \(3,\) of one sample, but has shape \(4,\)"
        ):
            InputNoise(network(), CE, sigma=torch.ones(4))(x, y)
        with pytest.raises(TypeError, match="x must be floating point"):
            InputNoise(network(), CE, sigma=1.0)(x.long(), y)
        objective = ManifoldMixup(network(), CE, layers=(None, "0", "1"))
        for _ in range(5):  # whichever layer is drawn
            with pytest.raises(TypeError, match="x must be floating point"):
                objective(x.long(), y)
        for real in (x[:, 0], 3 * x, torch.rand(12, 4).double()):
            with pytest.raises(ValueError, match="LabelSmoothing is for classification"):
                LabelSmoothing(network(), CE)(x, real)

        class Pair(nn.Module):
            def forward(self, x):
                return x, x

        with pytest.raises(
            TypeError, match=r"the output of the model must be a torch\.Tensor, but got tuple"
        ):
            RegMixup(Pair(), CE)(x, y)

    def test_tables(self, generator):
        x, y = table(generator, counts=(5, 1))
        with pytest.raises(ValueError, match=r"Class 1 has one row and .* grow to 5 rows\. Drop it"):
            smote_rows(x, y)
        with pytest.raises(ValueError, match="k_neighbors must be at least 1, but got 0"):
            smote_rows(x, y, k_neighbors=0)
        with pytest.raises(
            ValueError, match=r"must be a table \(rows, features\), but has shape \(6, 3, 1\)"
        ):
            smote_rows(x[..., None], y)
        with pytest.raises(TypeError, match=r"one integer label per row, but has dtype torch\.float32"):
            smote_rows(x, y.float())
        with pytest.raises(ValueError, match="x must be finite"):
            smote_rows(x * float("nan"), y)
        with pytest.raises(ValueError, match="y must have as many rows"):
            smote_rows(x, y[1:])
        with pytest.raises(ValueError, match="x is empty"):
            smote_rows(x[:0], y[:0])
