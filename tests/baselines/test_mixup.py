"""ERM, mixup and its relatives: in their limits, against loops, and against their laws."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import Recorder, batch, network, problem, real_problem, replay, same, value_and_gradient
from elliptica.baselines import ERM, NFM, ManifoldMixup, Mixup, MixupE, RegMixup
from elliptica.baselines.groups import draw_shares
from elliptica.baselines.mixup import draw_share

CE = nn.CrossEntropyLoss()
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double())


# ERM


@pytest.mark.parametrize(
    "loss_fn", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double())]
)
@pytest.mark.parametrize("kind", ["labels", "one-hot"])
def test_erm_is_the_ordinary_loss(loss_fn, kind, generator):
    model, x, y = problem(generator)
    if kind == "one-hot":
        y = F.one_hot(y, 4).double()
    expected = value_and_gradient(loss_fn(model(x), y), model)
    for objective in (ERM(model, loss_fn), ERM(model, loss_fn).eval(), ERM(model, loss_fn, num_classes=4)):
        same(value_and_gradient(objective(x, y), model), expected)


# mixup


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2, 3, 4]).double()])
def test_mixup_equals_a_loop_and_the_mixed_label(weights, generator):
    model, loss_fn = network(), nn.CrossEntropyLoss(weight=weights)
    x, y = batch(generator)
    again = replay(generator)
    loss = Mixup(model, loss_fn, alpha=0.7)(x, y, generator=generator)
    share = draw_share(0.7, again)
    partners = torch.randperm(12, generator=again)
    total, total_weight = 0.0, 0.0
    for i, j in enumerate(partners.tolist()):
        output = model((share * x[i] + (1 - share) * x[j])[None])[0]
        log_p = output - output.logsumexp(0)
        for label, part in ((y[i], share), (y[j], 1 - share)):
            w = 1.0 if weights is None else weights[label]
            total, total_weight = total - part * w * log_p[label], total_weight + part * w
    same(value_and_gradient(loss, model), value_and_gradient(total / total_weight, model))
    if weights is None:
        soft = share * F.one_hot(y, 4).double() + (1 - share) * F.one_hot(y, 4).double()[partners]
        mixed = share * x + (1 - share) * x[partners]
        same(loss, F.cross_entropy(model(mixed), soft))


def test_mixup_of_squared_errors_has_the_gradient_of_mixed_targets(generator):
    model, x, y = real_problem(generator)
    again = replay(generator)
    loss = Mixup(model, nn.MSELoss())(x, y, generator=generator)
    share, partners = draw_share(1.0, again), torch.randperm(len(x), generator=again)
    mixed_x, mixed_y = (share * z + (1 - share) * z[partners] for z in (x, y))
    other = F.mse_loss(model(mixed_x), mixed_y)
    assert loss > other  # by the spread of the two targets, in which the model has no part
    same(value_and_gradient(loss, model)[1], value_and_gradient(other, model)[1])


def one_by_one(alpha, n, generator):
    return np.array([draw_share(alpha, generator) for _ in range(n)])


def by_rows(alpha, n, generator):
    return draw_shares(alpha, n, torch.device("cpu"), generator).numpy()


@pytest.mark.statistical
@pytest.mark.parametrize("draw", [one_by_one, by_rows])
def test_shares_are_beta(draw, generator):
    """For tiny alpha gamma variables underflow, and shares must not be half-way."""
    for alpha in (0.5, 2.0):
        shares = draw(alpha, 4000, generator)
        laws.assert_distribution(shares, stats.beta(alpha, alpha).cdf)
        with pytest.raises(AssertionError):
            laws.assert_distribution(shares, stats.beta(alpha + 1, alpha).cdf)
    shares = draw(0.003, 2000, generator)
    assert ((shares > 0.1) & (shares < 0.9)).mean() < 0.02
    assert stats.binomtest(int((shares > 0.5).sum()), 2000, 0.5).pvalue > laws.ALPHA


# manifold mixup


def test_the_layer_drawn_is_the_layer_mixed(generator):
    model, x, y = problem(generator)
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


# noisy feature mixup


def level_by(generator):
    first, second = (
        torch._standard_gamma(torch.tensor([k], dtype=torch.float64), generator=generator) for k in (2.0, 5.0)
    )
    return (first.float() / (first.float() + second.float())).item()


@pytest.mark.parametrize("depth", [0, 2])
def test_nfm_is_its_formula(depth, generator):
    """Mixed first, then both noises, in the input and in a hidden layer; gradients flow through."""
    model, x, y = problem(generator)
    again = replay(generator)
    objective = NFM(model, CE, layers=(["1"] if depth else [None]), additive=0.4, multiplicative=0.7)
    loss = objective(x, y, generator=generator)
    share, partners = draw_share(1.0, again), torch.randperm(12, generator=again)
    hidden = model[:depth](x)
    mixed = share * hidden + (1 - share) * hidden[partners]
    a = 0.4 * level_by(again)
    z = torch.randn(mixed.shape, generator=again, dtype=torch.float64)
    b = 0.7 * level_by(again)
    v = 2 * torch.rand(mixed.shape, generator=again).double() - 1
    output = model[depth:](mixed + b * v * mixed + a * z)
    expected = share * CE(output, y) + (1 - share) * CE(output, y[partners])
    torch.testing.assert_close(
        value_and_gradient(loss, model), value_and_gradient(expected, model), rtol=1e-6, atol=1e-8
    )
    assert torch.equal(generator.get_state(), again.get_state())


def perturbed(generator, **settings):
    """Ones, not mixed but with the noise of `NFM`."""
    model = Recorder()
    ones = torch.ones(20_000, 1)
    NFM(model, nn.MSELoss(), layers=[None], alpha=0.0, **settings)(ones, ones, generator=generator)
    return model.seen.numpy().ravel()


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


# RegMixup


@pytest.mark.parametrize("loss_fn", [CE, WEIGHTED])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_regmixup_is_the_sum_of_two_losses(given, weighted, loss_fn, generator):
    model, x, y = problem(generator)
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


def test_regmixup_shows_batch_norm_both_halves_at_once(generator):
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 4))
    x, y = torch.randn(8, 3, generator=generator), torch.randint(4, (8,), generator=generator)
    again = replay(generator)
    RegMixup(model, CE)(x, y, generator=generator)
    share, partners = draw_share(20.0, again), torch.randperm(8, generator=again)
    both = torch.cat([x, share * x + (1 - share) * x[partners]])
    assert model[0].num_batches_tracked == 1
    torch.testing.assert_close(model[0].running_var, both.var(0))


# mixupE


def mixupe(model, **settings):
    return MixupE(model, CE, **{"alpha": 2.0, "eta": 0.3, "threshold": 0.4, **settings})


def gradient(loss, model):
    slopes = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([g.flatten() for g in slopes])


def penalty_by_loop(model, x, y, threshold):
    """The term, sample by sample, in the words of the authors' code (their version 3)."""
    total = torch.zeros((), dtype=torch.float64)
    for xi, yi in zip(x, y, strict=True):
        f = model(xi[None])[0]
        p = f.exp() / f.exp().sum()
        s = (f * (torch.eye(4, dtype=torch.float64)[yi] - p)).sum()
        if s < threshold:
            total = total - s
    return total / len(x)


@pytest.mark.parametrize("eta", [1e-3, 0.3])
def test_the_value_of_mixupe_is_mixups_and_gradient_is_that_of_the_sum(eta, generator):
    model, x, y = problem(generator)
    again = replay(generator)
    objective = mixupe(model, eta=eta)
    ours = objective(x, y, generator=generator)
    mixed = Mixup(model, nn.CrossEntropyLoss(), alpha=2.0)(x, y, generator=again)
    total = mixed + eta * (2 / 5) * penalty_by_loop(model, x, y, 0.4)
    assert total > 0
    same(ours, mixed)  # the value is mixup's for any eta
    same(gradient(ours, model), gradient(total, model) * (mixed / total).item())
    assert not torch.allclose(gradient(ours, model), gradient(mixed, model), rtol=1e-6)


@pytest.mark.parametrize(("threshold", "is_mixup"), [(-100.0, True), (-0.2, False), (50.0, False)])
def test_mixupe_skips_samples_above_the_threshold(threshold, is_mixup, generator):
    """The sum is divided by the batch size; a threshold that no sample passes leaves mixup."""
    model, x, y = problem(generator)
    ours, mixed = (
        gradient(objective(x, y, generator=replay(generator)), model)
        for objective in (mixupe(model, threshold=threshold), Mixup(model, CE, alpha=2.0))
    )
    assert torch.allclose(ours, mixed, rtol=1e-9) == is_mixup


def test_weight_zero_drops_a_sample_of_mixupe(generator):
    model, x, y = problem(generator)
    objective = mixupe(model, alpha=0.0)  # nothing is mixed
    weight = torch.ones(12).double()
    weight[3] = 0
    dropped = torch.arange(12) != 3
    weighted = gradient(objective(x, y, sample_weight=weight), model)
    same(weighted, gradient(objective(x[dropped], y[dropped]), model) * 11 / 12)
