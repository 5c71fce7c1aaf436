"""ERM, mixup and C-Mixup: against each other in their limits, against loops, and against their laws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import replay, same, value_and_gradient
from elliptica.baselines import ERM, CMixup, Mixup, TargetKernel
from elliptica.baselines.mixup import draw_share, mixup_batch


def network(n_in=3, n_out=1):
    return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out)).double()


def regression(generator, n=12):
    return (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (3, 1))


def classification(generator, n=12, classes=4):
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


# ERM


@pytest.mark.parametrize(
    "loss_fn", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double())]
)
@pytest.mark.parametrize("kind", ["labels", "one-hot"])
def test_erm_is_the_ordinary_loss(loss_fn, kind, generator):
    model = network(n_out=4)
    x, y = classification(generator)
    if kind == "one-hot":
        y = F.one_hot(y, 4).double()
    expected = value_and_gradient(loss_fn(model(x), y), model)
    for objective in (ERM(model, loss_fn), ERM(model, loss_fn).eval(), ERM(model, loss_fn, num_classes=4)):
        same(value_and_gradient(objective(x, y), model), expected)


def test_erm_weights_samples(generator):
    model = network()
    x, y = regression(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    expected = (weight * (model(x) - y).square().flatten()).mean()
    same(ERM(model, nn.MSELoss())(x, y, sample_weight=weight), expected)


def test_erm_draws_nothing(generator):
    model = network()
    before = generator.get_state(), torch.get_rng_state()
    x, y = torch.ones(2, 3).double(), torch.ones(2, 1).double()
    ERM(model, nn.MSELoss())(x, y, end=(x, y), generator=generator)
    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


# limits


@pytest.mark.parametrize("mode", ["alpha=0", "eval"])
@pytest.mark.parametrize("at", [None, "0"])
@pytest.mark.parametrize("kind", ["mixup", "mixup classes", "cmixup"])
def test_share_one_is_erm(kind, at, mode, generator):
    alpha = 0.0 if mode == "alpha=0" else 1.0
    if kind == "mixup classes":
        model, loss_fn = network(n_out=4), nn.CrossEntropyLoss(label_smoothing=0.1)
        x, y = classification(generator)
    else:
        model, loss_fn = network(), nn.MSELoss()
        x, y = regression(generator)
    if kind == "cmixup":
        objective = CMixup(model, loss_fn, bandwidth=0.5, alpha=alpha, at=at)
    else:
        objective = Mixup(model, loss_fn, alpha=alpha, at=at)
    objective.train(mode != "eval")
    expected = value_and_gradient(ERM(model, loss_fn)(x, y), model)
    other = (x.flip(0) + 1, y.flip(0))
    for end in (None, other):
        same(value_and_gradient(objective(x, y, end=end, generator=generator), model), expected)


def test_mixing_with_oneself_is_erm(generator):
    model = network()
    x, y = regression(generator)
    expected = value_and_gradient(ERM(model, nn.MSELoss())(x, y), model)
    for objective in (Mixup(model, nn.MSELoss()), CMixup(model, nn.MSELoss(), bandwidth=1.0, at="1")):
        same(value_and_gradient(objective(x, y, end=(x, y), generator=generator), model), expected)
    # all targets differ, so a narrow kernel leaves nobody else
    narrow = CMixup(model, nn.MSELoss(), bandwidth=1e-9)
    same(value_and_gradient(narrow(x, y, generator=generator), model), expected)


# against loops


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2, 3, 4]).double()])
def test_mixup_equals_a_loop_and_the_mixed_label(weights, generator):
    model, loss_fn = network(n_out=4), nn.CrossEntropyLoss(weight=weights)
    x, y = classification(generator)
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


def test_mixup_is_mixup_batch(generator):
    """The same draws as the function that the demo trains with."""
    model = network(n_out=4)
    x, y = classification(generator)
    again = replay(generator)
    loss = Mixup(model, nn.CrossEntropyLoss())(x, y, generator=generator)
    mixed_x, mixed_y = mixup_batch(x, F.one_hot(y, 4).double(), generator=again)
    same(loss, F.cross_entropy(model(mixed_x), mixed_y))


def test_mixup_of_squared_errors_has_the_gradient_of_mixed_targets(generator):
    model = network()
    x, y = regression(generator)
    again = replay(generator)
    loss = Mixup(model, nn.MSELoss())(x, y, generator=generator)
    mixed_x, mixed_y = mixup_batch(x, y, generator=again)
    other = F.mse_loss(model(mixed_x), mixed_y)
    assert loss > other  # by the spread of the two targets, in which the model has no part
    same(value_and_gradient(loss, model)[1], value_and_gradient(other, model)[1])


@pytest.mark.parametrize("at", [None, "1"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cmixup_equals_a_loop(at, weighted, generator):
    model = network()
    x, y = regression(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64) if weighted else None
    again = replay(generator)
    objective = CMixup(model, nn.MSELoss(), bandwidth=0.6, at=at)
    loss = objective(x, y, sample_weight=weight, generator=generator)
    share = draw_share(2.0, again)
    uniform = torch.rand(12, 1, generator=again)
    below, above = (model[:2], model[2:]) if at else (nn.Identity(), model)
    total = 0.0
    for i in range(12):
        odds = [math.exp(-(float(y[i] - y[j]) ** 2) / (2 * 0.6**2)) for j in range(12)]
        position = float(uniform[i]) * sum(odds)
        j = next(j for j in range(12) if sum(odds[: j + 1]) > position)
        mixed = share * below(x[i][None]) + (1 - share) * below(x[j][None])
        error = above(mixed)[0] - share * y[i] - (1 - share) * y[j]
        w = share * weight[i] + (1 - share) * weight[j] if weighted else 1.0
        total = total + w * error.square().mean() / 12
    same(value_and_gradient(loss, model), value_and_gradient(total, model))


@pytest.mark.parametrize("at", [None, "1"])
@pytest.mark.parametrize("bridge_axis", [False, True])
def test_given_ends_equal_a_loop(at, bridge_axis, generator):
    """Ends with or without the axis that a PartnerTable gives them."""
    model = network()
    x, y = regression(generator)
    far_x, far_y = regression(generator)
    weight, far_weight = torch.rand(2, 12, generator=generator, dtype=torch.float64)
    end = tuple(v.unsqueeze(1) if bridge_axis else v for v in (far_x, far_y, far_weight))
    again = replay(generator)
    objective = CMixup(model, nn.MSELoss(), bandwidth=1.0, at=at)
    loss = objective(x, y, sample_weight=weight, end=end, generator=generator)
    share = draw_share(2.0, again)
    below, above = (model[:2], model[2:]) if at else (nn.Identity(), model)
    mixed = share * below(x) + (1 - share) * below(far_x)
    losses = (above(mixed) - share * y - (1 - share) * far_y).square().flatten()
    expected = ((share * weight + (1 - share) * far_weight) * losses).mean()
    same(value_and_gradient(loss, model), value_and_gradient(expected, model))


def test_several_inputs(generator):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1).double()

        def forward(self, a, b):
            return self.layer(a + b)

    model = Sum()
    x, y = regression(generator)
    again = replay(generator)
    loss = Mixup(model, nn.MSELoss())({"a": x, "b": 2 * x}, y, generator=generator)
    same(loss, Mixup(model.layer, nn.MSELoss())(3 * x, y, generator=again))


# draws


def test_generator_repeats_and_the_global_one_is_untouched(generator):
    model = network()
    x, y = regression(generator)
    kept = x.clone(), y.clone()
    state = torch.get_rng_state()
    for objective in (Mixup(model, nn.MSELoss()), CMixup(model, nn.MSELoss(), bandwidth=1.0)):
        again = replay(generator)
        first, second = (objective(x, y, generator=g) for g in (generator, again))
        assert torch.equal(first, second)
        assert not torch.equal(first, objective(x, y, generator=generator))
    kernel = TargetKernel(y, 1.0)
    again = replay(generator)
    index = torch.arange(12)
    assert torch.equal(kernel.sample(index, generator=generator), kernel.sample(index, generator=again))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


@pytest.mark.statistical
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_share_is_beta(alpha, generator):
    shares = [draw_share(alpha, generator) for _ in range(4000)]
    laws.assert_distribution(shares, stats.beta(alpha, alpha).cdf)
    with pytest.raises(AssertionError):
        laws.assert_distribution(shares, stats.beta(alpha + 1, alpha).cdf)


@pytest.mark.statistical
def test_share_is_at_the_ends_for_tiny_alpha(generator):
    """Gamma variables underflow there; half-way, where their quotient would be, is all but impossible."""
    shares = np.array([draw_share(0.003, generator) for _ in range(2000)])
    middle = stats.beta(0.003, 0.003).cdf(0.9) - stats.beta(0.003, 0.003).cdf(0.1)
    assert stats.binomtest(int(((shares > 0.1) & (shares < 0.9)).sum()), 2000, middle).pvalue > laws.ALPHA
    assert stats.binomtest(int((shares > 0.5).sum()), 2000, 0.5).pvalue > laws.ALPHA


Y = torch.tensor([[0.0], [0.5], [0.5], [2.0], [3.5]])


def kernel_law(y, bandwidth, power=2):
    odds = np.exp(-(np.abs(y - y.T) ** power) / (2 * bandwidth**power))
    return odds / odds.sum(1, keepdims=True)


def batch_partners(y, bandwidth, n, generator):
    """Who each row of a batch was mixed with, ``(n, batch)``."""
    objective = CMixup(nn.Linear(1, 1), nn.MSELoss(), bandwidth=bandwidth)
    return torch.stack([objective._partners(y, generator) for _ in range(n)])


def table_partners(y, bandwidth, n, generator):
    """The same from the table over a data set."""
    index = torch.arange(len(y)).repeat(n)
    return TargetKernel(y, bandwidth).sample(index, generator=generator).view(n, len(y))


@pytest.mark.statistical
@pytest.mark.parametrize("draw", [batch_partners, table_partners])
class TestPartnerLaw:
    def test_is_gaussian_in_the_target(self, draw, generator):
        """Self included; an exponential kernel and one without the factor 2 are rejected."""
        drawn = draw(Y, 0.8, 4000, generator)
        y = Y.double().numpy()
        law, exponential, wide = kernel_law(y, 0.8), kernel_law(y, 0.8, power=1), kernel_law(y, 0.8 * 2**0.5)
        for i in range(len(Y)):
            counts = np.bincount(drawn[:, i], minlength=len(Y))
            laws.assert_frequencies(counts, law[i])
            for wrong in (exponential[i], wide[i]):
                with pytest.raises(AssertionError):
                    laws.assert_frequencies(counts, wrong)

    def test_wide_kernel_is_uniform(self, draw, generator):
        drawn = draw(Y, 1e9, 2000, generator)
        for i in range(len(Y)):
            laws.assert_frequencies(np.bincount(drawn[:, i], minlength=len(Y)), np.full(len(Y), 0.2))

    @pytest.mark.parametrize("bandwidth", [1e-3, 1e-300])
    def test_narrow_kernel_keeps_to_equal_targets(self, draw, bandwidth, generator):
        y = Y + 1e4  # where rounding could take equal targets for different ones
        drawn = draw(y, bandwidth, 500, generator)
        for i, only in enumerate(([0], [1, 2], [1, 2], [3], [4])):
            assert set(drawn[:, i].tolist()) == set(only)

    def test_several_targets_count_by_euclidean_distance(self, draw, generator):
        y = torch.tensor([[0.0, 0.0], [0.3, 0.4], [1.0, 1.0]])
        drawn = draw(y, 0.5, 4000, generator)
        odds = np.exp(-np.array([0, 0.25, 2]) / 0.5)
        laws.assert_frequencies(np.bincount(drawn[:, 0], minlength=3), odds / odds.sum())


def test_table_in_chunks_is_the_table(monkeypatch, generator):
    y = torch.randn(37, 1, generator=generator)
    whole = TargetKernel(y, 0.3)
    monkeypatch.setattr("elliptica.baselines.cmixup._CHUNK_BYTES", 8 * 37 * 5)
    assert torch.equal(TargetKernel(y, 0.3)._table, whole._table)
    assert len(whole) == 37


def test_global_mode_is_the_formula(generator):
    """The reference's way: partners from the whole training set, given as ends."""
    model = network()
    x_all, y_all = regression(generator, n=40)
    index = torch.tensor([3, 30, 7])
    j = TargetKernel(y_all, 0.5).sample(index, generator=generator)
    assert j.shape == (3,)
    again = replay(generator)
    objective = CMixup(model, nn.MSELoss(), bandwidth=0.5)
    loss = objective(x_all[index], y_all[index], end=(x_all[j], y_all[j]), generator=generator)
    share = draw_share(2.0, again)
    x, y = (share * v[index] + (1 - share) * v[j] for v in (x_all, y_all))
    same(loss, F.mse_loss(model(x), y))


# bad input


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
class TestBadInput:
    def test_settings(self):
        model, loss_fn = network(), nn.MSELoss()
        with pytest.raises(ValueError, match="alpha must be finite and at least 0, but got -1"):
            Mixup(model, loss_fn, alpha=-1.0)
        with pytest.raises(ValueError, match="alpha must be finite"):
            CMixup(model, loss_fn, bandwidth=1.0, alpha=float("nan"))
        for bandwidth in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="bandwidth must be finite and above 0"):
                CMixup(model, loss_fn, bandwidth=bandwidth)
            with pytest.raises(ValueError, match="bandwidth must be finite and above 0"):
                TargetKernel(Y, bandwidth)
        with pytest.raises(ValueError, match="at='5' is not a layer of the model"):
            Mixup(model, loss_fn, at="5")
        with pytest.raises(TypeError, match=r"The order is CMixup\(model, loss_fn\)"):
            CMixup(loss_fn, model, bandwidth=1.0)
        with pytest.raises(TypeError, match=r"must be a torch.nn.Module, but got function"):
            ERM(F.mse_loss, model)

    @pytest.mark.parametrize(
        "make",
        [lambda m: ERM(m, nn.MSELoss()), lambda m: Mixup(m, nn.MSELoss())]
        + [lambda m, at=at: CMixup(m, nn.MSELoss(), bandwidth=1.0, at=at) for at in (None, "0")],
    )
    def test_batches(self, make, generator):
        objective = make(network())
        x, y = regression(generator)
        bad = x.clone()
        bad[3, 1] = float("nan")
        with pytest.raises(ValueError, match="x must be finite, but 1 values are NaN or infinite, in rows 3"):
            objective(bad, y)
        with pytest.raises(ValueError, match="y must be finite"):
            objective(x, y * float("nan"))
        with pytest.raises(ValueError, match=r"y must have as many rows as x \(12\), but has 11 rows"):
            objective(x, y[1:])
        with pytest.raises(ValueError, match="x is empty"):
            objective(x[:0], y[:0])
        with pytest.raises(ValueError, match="sample_weight must have as many rows"):
            objective(x, y, sample_weight=torch.ones(3))

    def test_targets(self, generator):
        x, y = regression(generator)
        with pytest.raises(TypeError, match=r"real targets, but got dtype torch.int64.*use Mixup"):
            CMixup(network(), nn.MSELoss(), bandwidth=1.0)(x, y.long())
        classifier = CMixup(network(), nn.CrossEntropyLoss(), bandwidth=1.0)
        for objective in (classifier, classifier.eval()):  # alike, and before a wrong comparison is trained
            with pytest.raises(TypeError, match=r"real targets, but got dtype torch.int64.*use Mixup"):
                objective(x, torch.zeros(len(x), dtype=torch.long))
        with pytest.raises(TypeError, match="MSELoss needs floating targets"):
            Mixup(network(), nn.MSELoss())(x, y.long())
        with pytest.raises(ValueError, match=r"Labels must lie in 0..3 .* from 0 to 4"):
            Mixup(network(n_out=4), nn.CrossEntropyLoss())(x, torch.arange(12) % 5)
        with pytest.raises(TypeError, match="real targets, but got list"):
            TargetKernel([1.0, 2.0], 1.0)
        with pytest.raises(ValueError, match="y must be finite"):
            TargetKernel(torch.tensor([0.0, float("inf")]), 1.0)
        with pytest.raises(ValueError, match="y is empty"):
            TargetKernel(torch.zeros(0, 1), 1.0)
        with pytest.raises(ValueError, match=r"A table over 5 rows takes .* more than max_bytes"):
            TargetKernel(Y, 1.0, max_bytes=99)

    def test_ends(self, generator):
        objective = Mixup(network(), nn.MSELoss())
        x, y = regression(generator)
        with pytest.raises(ValueError, match=r"end's x\['x'\] must have shape .* but has \(11, 3\)"):
            objective(x, y, end=(x[1:], y[1:]))
        with pytest.raises(TypeError, match=r"end must be a tuple \(x, y\)"):
            objective(x, y, end=x)
        with pytest.raises(ValueError, match="end has sample weights, but the batch has none"):
            objective(x, y, end=(x, y, torch.ones(12)))
        with pytest.raises(TypeError, match="x must be floating point"):
            objective(x.long(), y)
        with pytest.raises(TypeError, match=r"generator must be a torch.Generator, but got int"):
            objective(x, y, generator=3)

    def test_layer_without_a_batch_axis(self, generator):
        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.turn = nn.Flatten(0)

            def forward(self, x):
                return self.turn(x).view(len(x), -1)[:, :1]

        x, y = regression(generator)
        with pytest.raises(ValueError, match=r"output of the layer at='turn' must have as many rows as x"):
            Mixup(Turned(), nn.MSELoss(), at="turn")(x, y)


@pytest.mark.parametrize("index", [torch.tensor(1), torch.tensor([True]), [0, 1], torch.tensor([[0]])])
def test_the_kernel_draws_for_row_numbers_only(index, own_checks):
    with pytest.raises(TypeError, match="index must be an integer tensor"):
        TargetKernel(torch.randn(3, 1), 1.0).sample(index)


@pytest.mark.bad_input
@pytest.mark.parametrize(("limit", "error"), [("big", TypeError), (math.nan, ValueError)])
def test_a_limit_of_memory_is_a_number(limit, error):
    with pytest.raises(error, match="max_bytes"):
        TargetKernel(torch.randn(3, 1), 1.0, max_bytes=limit)


@pytest.mark.bad_input
def test_a_share_is_no_flag():
    with pytest.raises(TypeError, match="share must be a number, but got True"):
        mixup_batch(torch.randn(4, 2), torch.eye(4), share=True)
