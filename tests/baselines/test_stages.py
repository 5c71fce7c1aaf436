"""JTT and UMIX, each stage against loops and in its limits; and all objectives in a plain loop."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import batch, network, replay, same, value_and_gradient
from elliptica.baselines import ERM, Mixup
from elliptica.baselines.doro import DORO
from elliptica.baselines.dro import DRO
from elliptica.baselines.focal import Focal
from elliptica.baselines.jtt import ErrorRecorder, error_weights, find_errors, upsampled_rows
from elliptica.baselines.mixup import draw_share
from elliptica.baselines.tilted import Tilted
from elliptica.baselines.umix import UMIX, CorrectnessTable, umix_weights

# JTT: errors


@pytest.mark.parametrize("batch_size", [1, 5, 256])
def test_errors_equal_a_loop(batch_size, generator):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 8), nn.Dropout(0.9), nn.Linear(8, 4)).double()
    model[0].running_mean.fill_(0.4)
    model[0].eval()  # a layer that the user has frozen
    modes = [module.training for module in model.modules()]
    x, y = batch(generator, n=23)
    errors = find_errors(model, x, y, batch_size=batch_size)
    assert [module.training for module in model.modules()] == modes
    assert model[0].num_batches_tracked == 0
    assert not errors.requires_grad
    model.eval()
    for i in range(23):
        scores = model(x[i : i + 1])[0].tolist()
        assert errors[i].item() == (scores.index(max(scores)) != y[i].item())
    assert 0 < errors.sum() < 23


def test_modes_come_back_after_an_error(generator):
    model = nn.Sequential(nn.Linear(5, 2), nn.Dropout())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        find_errors(model, torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
    assert all(module.training for module in model.modules())


def test_errors_of_soft_labels_one_logit_and_several_inputs(generator):
    model = network()
    x, y = batch(generator)
    errors = find_errors(model, x, y)
    soft = 0.9 * F.one_hot(y, 4).double() + 0.025
    assert torch.equal(find_errors(model, x, soft), errors)

    class Sum(nn.Module):
        def forward(self, a, b):
            return model(a + b)

    assert torch.equal(find_errors(Sum(), {"a": 0.5 * x, "b": 0.5 * x}, y), errors)
    assert torch.equal(find_errors(Sum(), (0.5 * x, 0.5 * x), y, batch_size=5), errors)
    logit = network(n_out=1)
    expected = (logit(x)[:, 0] > 0) != (y > 1)
    for labels in ((y > 1), (y > 1).long(), (y > 1).double()[:, None]):
        assert torch.equal(find_errors(logit, x, labels), expected)
        assert torch.equal(find_errors(nn.Sequential(logit, nn.Flatten(0)), x, labels), expected)


def test_recorder_of_a_model_that_stands_still_finds_the_errors(generator):
    model = network()
    x, y = batch(generator, n=30)
    recorder = ErrorRecorder(30)
    for index in torch.randperm(30, generator=generator).split(7):
        recorder.update(index, model(x[index]), y[index])
    assert torch.equal(recorder.errors, find_errors(model, x, y))
    assert torch.equal(recorder.n_seen, torch.ones(30, dtype=torch.int32))
    recorder.reset()
    with pytest.raises(ValueError, match="Nothing has been recorded yet"):
        _ = recorder.errors


def test_recorder_notes_predictions_of_the_moment():
    """Not those of the trained model; wrong once is wrong, and not seen is right."""
    recorder = ErrorRecorder(4)
    right, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    label = torch.tensor([0])
    for row, output in ((0, wrong), (1, right), (0, right), (2, right), (2, wrong)):
        recorder.update(torch.tensor([row]), output, label)
    assert recorder.errors.tolist() == [True, False, True, False]
    recorder.update(torch.tensor([1, 1]), torch.cat([wrong, right]), label.expand(2))
    assert recorder.errors.tolist() == [True, True, True, False]


# JTT: second stage


@pytest.mark.parametrize("factor", [0, 1, 5])
def test_errors_come_one_time_more_than_the_factor(factor, generator):
    errors = torch.rand(20, generator=generator) < 0.3
    rows = upsampled_rows(errors, factor)
    counts = Counter(rows.tolist())
    assert counts == {i: 1 + factor * bool(errors[i]) for i in range(20)}
    assert upsampled_rows(errors).numel() == 20 + 100 * int(errors.sum())


def test_upsampling_is_a_weight_of_factor_plus_one(generator):
    model = network()
    x, y = batch(generator, n=20)
    errors = find_errors(model, x, y)
    rows = upsampled_rows(errors, 4)
    repeated = ERM(model, nn.CrossEntropyLoss())(x[rows], y[rows])
    weighted = ERM(model, nn.CrossEntropyLoss())(x, y, sample_weight=error_weights(errors, 5.0).double())
    same(repeated, weighted * 20 / len(rows))
    own = F.cross_entropy(model(x), y, reduction="none")
    assert weighted.item() == pytest.approx((own.sum() + 4 * own[errors].sum()).item() / 20)


def test_without_errors_it_is_plain_training(generator):
    model = network()
    x, _ = batch(generator)
    y = model(x).argmax(1)
    errors = find_errors(model, x, y)
    assert not errors.any()
    assert torch.equal(upsampled_rows(errors, 100), torch.arange(12))
    assert torch.equal(error_weights(errors), torch.ones(12))
    assert torch.equal(error_weights(~errors, 10.0), torch.full((12,), 10.0))


# UMIX: the table


def fill(table, right, generator):
    """Note epochs of which the rows of ``right`` say who was right."""
    outputs = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # of label 0: wrong, right
    for row in right:
        for index in torch.randperm(len(row), generator=generator).split(4):
            table.update(index, outputs[row[index].long()], torch.zeros(len(index), dtype=torch.long))
        table.end_epoch()


@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 6), (2, 3), (5, 1), (1, 5)])
def test_weights_are_one_plus_eta_times_uncertainty(start, length, generator):
    """The last epoch counts, unlike in the authors' code."""
    right = torch.rand(6, 10, generator=generator) < 0.6
    table = CorrectnessTable(10)
    fill(table, right, generator)
    assert table.n_epochs == 6
    weights = umix_weights(table, start=start, length=length, eta=7.0)
    window = right.numpy()[start : start + length]
    assert weights.numpy() == pytest.approx(1 + 7.0 * (1 - window.mean(0)))
    if start + length == 6:
        lost = window.copy()
        lost[-1] = False
        assert weights.numpy() != pytest.approx(1 + 7.0 * (1 - lost.mean(0)))
    assert torch.equal(umix_weights(table, start=start, length=length, eta=0.0), torch.ones(10))


def test_samples_that_did_not_come_are_not_held_against():
    table = CorrectnessTable(3)
    wrong = torch.tensor([[0.0, 1.0]])
    label = torch.tensor([0])
    for rows in ([0], [0, 1], [1]):
        for row in rows:
            table.update(torch.tensor([row]), wrong, label)
        table.end_epoch()
    table.update(torch.tensor([1]), 1 - wrong, label)
    table.end_epoch()
    assert table.correctness(0, 3).tolist() == [0.0, 0.0, 1.0]
    assert table.correctness(0, 4).tolist() == pytest.approx([0.0, 1 / 3, 1.0])
    assert umix_weights(table, start=3, length=1).tolist() == [1.0, 1.0, 1.0]


# UMIX: the objective


def test_without_weights_it_is_plain_training_or_mixup(generator):
    model, loss_fn = network(), nn.CrossEntropyLoss(label_smoothing=0.1)
    x, y = batch(generator)
    ones = torch.ones(12).double()
    plain = value_and_gradient(ERM(model, loss_fn)(x, y), model)
    for weight in (None, ones):
        never = UMIX(model, loss_fn, probability=0.0)(x, y, sample_weight=weight, generator=generator)
        same(value_and_gradient(never, model), plain)
        again = replay(generator)
        always = UMIX(model, loss_fn, alpha=0.7, probability=1.0)
        always = always(x, y, sample_weight=weight, generator=generator)
        torch.rand(1, generator=again)  # whether to mix
        mixed = Mixup(model, loss_fn, alpha=0.7)(x, y, generator=again)
        same(value_and_gradient(always, model), value_and_gradient(mixed, model))
        assert torch.equal(generator.get_state(), again.get_state())
    same(value_and_gradient(UMIX(model, loss_fn).eval()(x, y), model), plain)


@pytest.mark.parametrize("class_weight", [None, torch.tensor([1.0, 2, 3, 4]).double()])
@pytest.mark.parametrize("given", [False, True])
def test_umix_equals_a_loop(given, class_weight, generator):
    """Each label has the weight of its own sample, which is not mixup with mixed weights."""
    model, loss_fn = network(), nn.CrossEntropyLoss(weight=class_weight)
    x, y = batch(generator)
    far_x, far_y = batch(generator)
    weight, far_weight = 1 + 80 * torch.rand(2, 12, generator=generator, dtype=torch.float64)
    end = (far_x, far_y, far_weight) if given else None
    again = replay(generator)
    objective = UMIX(model, loss_fn, alpha=0.7, probability=1.0)
    loss = objective(x, y, sample_weight=weight, end=end, generator=generator)
    torch.rand(1, generator=again)
    share = draw_share(0.7, again)
    if not given:
        partners = torch.randperm(12, generator=again)
        far_x, far_y, far_weight = x[partners], y[partners], weight[partners]
    total, total_class = 0.0, 0.0
    for i in range(12):
        log_p = model((share * x[i] + (1 - share) * far_x[i])[None])[0].log_softmax(0)
        for label, w, part in ((y[i], weight[i], share), (far_y[i], far_weight[i], 1 - share)):
            c = 1.0 if class_weight is None else class_weight[label]
            total, total_class = total - part * w * c * log_p[label], total_class + part * c
    same(value_and_gradient(loss, model), value_and_gradient(total / total_class, model))
    wrong = Mixup(model, loss_fn, alpha=0.7)
    torch.rand(1, generator=(replayed := replay(again)))
    assert not torch.isclose(loss, wrong(x, y, sample_weight=weight, end=end, generator=replayed), rtol=1e-4)


def test_the_other_batches_have_the_weighted_loss(generator):
    """Not normalised: twice the weights, twice the loss."""
    model = network()
    x, y = batch(generator)
    weight = 1 + 80 * torch.rand(12, generator=generator, dtype=torch.float64)
    losses = F.cross_entropy(model(x), y, reduction="none")
    objective = UMIX(model, nn.CrossEntropyLoss(), probability=0.0)
    same(objective(x, y, sample_weight=weight, generator=generator), (weight * losses).mean())
    objective = UMIX(model, nn.CrossEntropyLoss(), probability=1.0)
    once, twice = (objective(x, y, sample_weight=k * weight, generator=replay(generator)) for k in (1, 2))
    same(twice, 2 * once)


def test_mixing_in_a_layer_and_given_ends_without_weights(generator):
    model = network()
    x, y = batch(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    objective = UMIX(model, nn.CrossEntropyLoss(), probability=1.0, at="1")
    loss = objective(x, y, sample_weight=weight, end=(x, y), generator=generator)
    same(loss, ERM(model, nn.CrossEntropyLoss())(x, y, sample_weight=weight))


@pytest.mark.statistical
def test_batches_are_mixed_with_the_probability(generator):
    """One batch of two with different losses: mixed or not is seen in the value."""
    model = nn.Linear(1, 1)
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [5.0]])
    objective = UMIX(model, nn.MSELoss(), alpha=2.0, probability=0.3)
    end = (x + 10, y)
    plain = objective.clean_loss(x, y)
    n = 1000
    mixed = sum(not torch.equal(objective(x, y, end=end, generator=generator), plain) for _ in range(n))
    assert stats.binomtest(mixed, n, 0.3).pvalue > laws.ALPHA
    assert stats.binomtest(mixed, n, 0.7).pvalue < laws.ALPHA  # the other way round
    assert stats.binomtest(mixed, n, 0.5).pvalue < laws.ALPHA


def test_defaults_are_those_of_waterbirds_and_draws_repeat(generator):
    objective = UMIX(network(), nn.CrossEntropyLoss())
    assert "alpha=0.5, probability=0.5" in repr(objective)
    x, y = batch(generator)
    kept, state = x.clone(), torch.get_rng_state()
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    for _ in range(5):
        again = replay(generator)
        first, second = (objective(x, y, sample_weight=weight, generator=g) for g in (generator, again))
        assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)


# all of them in a plain loop


CE = nn.CrossEntropyLoss()
OBJECTIVES = {
    "focal": lambda model: Focal(model, CE),
    "cvar": lambda model: DRO(model, CE, alpha=0.3),
    "chi2": lambda model: DRO(model, CE, divergence="chi2"),
    "chi2 penalty": lambda model: DRO(model, CE, divergence="chi2", penalty=0.4),
    "cvar-doro": lambda model: DORO(model, CE, alpha=0.3, epsilon=0.1),
    "truncated": lambda model: DORO(model, CE, alpha=0.3, epsilon=0.1, variant="doro"),
    "chi2-doro": lambda model: DORO(model, CE, alpha=0.3, epsilon=0.1, divergence="chi2"),
    "tilted up": lambda model: Tilted(model, CE, t=2.0),
    "tilted down": lambda model: Tilted(model, CE, t=-2.0),
    "umix": lambda model: UMIX(model, CE),
}


def points(generator, n=200):
    """Two classes that a line divides."""
    x = torch.randn(n, 2, generator=generator)
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).long()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_six_lines_of_a_plain_loop_lower_the_loss(name, generator):
    x, y = points(generator)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    objective = OBJECTIVES[name](model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    before = objective.clean_loss(x, y).item()
    for _ in range(8):
        for rows in torch.randperm(200, generator=generator).split(32):
            loss = objective(x[rows], y[rows], generator=generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert F.cross_entropy(model(x), y).item() < 0.6 * before
    assert find_errors(model, x, y).float().mean() < 0.1


def spurious(generator, n=400):
    """The first feature says the label loudly, but wrongly for one sample in twenty; the second is right."""
    y = torch.randint(2, (n,), generator=generator)
    rare = torch.arange(n) % 20 == 0
    sign = 2.0 * y - 1
    x = torch.stack([torch.where(rare, -1.5, 1.5) * sign, 0.7 * sign], 1)
    return x + 0.3 * torch.randn(n, 2, generator=generator), y, rare


def linear():
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def second_stage(objective, x, y, rows, weight, generator):
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    for _ in range(10):
        for index in rows[torch.randperm(len(rows), generator=generator)].split(32):
            w = None if weight is None else weight[index]
            loss = objective(x[index], y[index], sample_weight=w, generator=generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return find_errors(objective.model, x, y)


@pytest.mark.parametrize("method", ["jtt", "jtt recorded", "jtt weights", "umix"])
def test_two_stages_help_a_rare_group(method, generator):
    """A real first stage, looked at while it trains; the second makes half the errors of plain training."""
    x, y, rare = spurious(generator)
    recorder, table = ErrorRecorder(400), CorrectnessTable(400)
    first = linear()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.05)
    for _ in range(3):
        recorder.reset()  # the last epoch stays
        for index in torch.randperm(400, generator=generator).split(32):
            output = first(x[index])
            optimizer.zero_grad()
            F.cross_entropy(output, y[index]).backward()
            optimizer.step()
            recorder.update(index, output, y[index])
            table.update(index, output, y[index])
        table.end_epoch()
    errors = find_errors(first, x, y) if method == "jtt" else recorder.errors
    assert errors[rare].float().mean() > 0.8
    assert errors[~rare].float().mean() < 0.1

    weight, rows = None, torch.arange(400)
    if method in ("jtt", "jtt recorded"):
        rows = upsampled_rows(errors, 20)
    elif method == "jtt weights":
        weight = error_weights(errors, 20.0)
    else:
        weight = umix_weights(table, start=1, length=2, eta=20.0)
    objective = UMIX(linear(), CE) if method == "umix" else ERM(linear(), CE)
    errors = second_stage(objective, x, y, rows, weight, generator)
    plain = second_stage(ERM(linear(), CE), x, y, torch.arange(400), None, generator)
    assert errors[rare].float().mean() < 0.5 * plain[rare].float().mean()


# bad input


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"probability": 1.5}, "probability must be from 0 to 1, but got 1.5"),
            ({"probability": float("nan")}, "probability must be from 0 to 1, but got nan"),
            ({"probability": "half"}, "probability must be a number"),
            ({"alpha": -1.0}, "alpha must be finite and at least 0"),
        ],
    )
    def test_settings(self, settings, match):
        with pytest.raises((ValueError, TypeError), match=match):
            UMIX(network(), CE, **settings)

    @pytest.mark.parametrize("probability", [0.0, 1.0])
    def test_batches(self, probability, generator):
        objective = UMIX(network(), CE, probability=probability)
        x, y = batch(generator)
        bad = x.clone()
        bad[3, 1] = float("nan")
        with pytest.raises(ValueError, match="x must be finite, but 1 values are NaN or infinite, in rows 3"):
            objective(bad, y)
        with pytest.raises(ValueError, match="x is empty"):
            objective(x[:0], y[:0])
        with pytest.raises(ValueError, match="sample_weight must be finite and at least 0"):
            objective(x, y, sample_weight=torch.full((12,), float("nan")))
        with pytest.raises(TypeError, match=r"generator must be a torch.Generator, but got int"):
            objective(x, y, generator=3)
        assert objective(x[:1], y[:1], sample_weight=torch.ones(1)).isfinite()

    def test_an_end_with_weights_needs_those_of_the_batch(self, generator):
        x, y = batch(generator)
        with pytest.raises(ValueError, match="end has sample weights, but the batch has none"):
            UMIX(network(), CE, probability=1.0)(x, y, end=(x, y, torch.ones(12).double()))

    def test_errors(self):
        for wrong in (torch.tensor([0, 1]), torch.zeros(2, 2, dtype=torch.bool), [True]):
            with pytest.raises(TypeError, match=r"errors must be a boolean tensor of shape \(n,\), but got"):
                upsampled_rows(wrong)
            with pytest.raises(TypeError, match="Use find_errors, or an ErrorRecorder"):
                error_weights(wrong)
        errors = torch.tensor([True, False])
        with pytest.raises(ValueError, match="factor must be at least 0, but got -1"):
            upsampled_rows(errors, -1)
        with pytest.raises(TypeError, match=r"factor must be an integer, but got 2.5"):
            upsampled_rows(errors, 2.5)
        with pytest.raises(ValueError, match="weight must be finite and at least 0"):
            error_weights(errors, float("nan"))

    def test_predictions(self, generator):
        model = network()
        x, y = batch(generator)
        with pytest.raises(ValueError, match=r"Labels must lie in 0..3"):
            find_errors(model, x, y + 4)
        with pytest.raises(ValueError, match="y must have as many rows as x"):
            find_errors(model, x, y[1:])
        with pytest.raises(ValueError, match="x is empty"):
            find_errors(model, x[:0], y[:0])
        with pytest.raises(ValueError, match=r"Pass y.squeeze\(1\)"):
            find_errors(model, x, y[:, None])
        with pytest.raises(ValueError, match="x must be finite"):
            find_errors(model, x * float("nan"), y)
        broken = network()
        next(broken.parameters()).data.fill_(float("nan"))
        with pytest.raises(ValueError, match="output must be finite"):
            find_errors(broken, x, y)
        with pytest.raises(
            ValueError, match=r"logits of shape \(batch, classes\) or \(batch,\), but returned shape"
        ):
            find_errors(nn.Unflatten(1, (3, 1)), x, y)
        with pytest.raises(ValueError, match="One logit per sample needs one label per sample"):
            find_errors(network(n_out=1), x, torch.zeros(12, 2))
        with pytest.raises(ValueError, match="batch_size must be at least 1"):
            find_errors(model, x, y, batch_size=0)

    @pytest.mark.parametrize("kind", [ErrorRecorder, CorrectnessTable])
    def test_rows(self, kind):
        recorder = kind(3)
        output, y = torch.eye(2), torch.tensor([0, 1])
        with pytest.raises(ValueError, match=r"index must lie in 0..2, .* but ranges from 1 to 3"):
            recorder.update(torch.tensor([1, 3]), output, y)
        with pytest.raises(ValueError, match="ranges from -1 to 0"):
            recorder.update(torch.tensor([0, -1]), output, y)
        with pytest.raises(TypeError, match=r"index must be an integer tensor .* torch.float32"):
            recorder.update(torch.tensor([0.0, 1.0]), output, y)
        with pytest.raises(TypeError, match="but got list"):
            recorder.update([0, 1], output, y)
        with pytest.raises(ValueError, match="index must have as many rows as output"):
            recorder.update(torch.tensor([0]), output, y)
        with pytest.raises(ValueError, match="n_rows must be at least 1"):
            kind(0)

    def test_epochs(self):
        table = CorrectnessTable(2)
        with pytest.raises(RuntimeError, match="No batch was recorded in this epoch"):
            table.end_epoch()
        table.update(torch.tensor([0, 1]), torch.eye(2), torch.tensor([0, 1]))
        with pytest.raises(ValueError, match=r"Epochs 0 to 0 .* but 0 have ended.*call end_epoch"):
            umix_weights(table, start=0, length=1)
        table.end_epoch()
        with pytest.raises(ValueError, match=r"Epochs 50 to 99 .* are needed, but 1 have ended"):
            umix_weights(table)
        with pytest.raises(ValueError, match="eta must be finite and at least 0"):
            umix_weights(table, start=0, length=1, eta=-1.0)
        with pytest.raises(ValueError, match="length must be at least 1"):
            umix_weights(table, start=0, length=0)
        assert np.isfinite(umix_weights(table, start=0, length=1).numpy()).all()


def test_first_stages_refuse_what_they_cannot_judge(own_checks):
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, but got function"):
        find_errors(lambda value: value, x, y)
    with pytest.raises(TypeError, match="Return scores, not labels"):
        ErrorRecorder(3).update(torch.arange(3), y, y)
    for width, wrong in ((2, torch.full((3, 2), torch.nan)), (1, torch.full((3,), torch.nan))):
        with pytest.raises(ValueError, match="y must be finite"):
            ErrorRecorder(3).update(torch.arange(3), torch.zeros(3, width), wrong)
    with pytest.raises(TypeError, match=r"y must hold labels, but has dtype torch\.complex64"):
        ErrorRecorder(3).update(torch.arange(3), torch.zeros(3, 1), y.to(torch.complex64))
    with pytest.raises(ValueError, match="x must be finite"):
        find_errors(nn.Tanh(), x / 0, y)
    for function in (upsampled_rows, error_weights):
        with pytest.raises(TypeError, match="errors must be an ordinary dense tensor"):
            function(torch.ones(3, dtype=torch.bool).to_sparse())
