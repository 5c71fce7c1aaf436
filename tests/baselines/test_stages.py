"""JTT, UMIX and SMOTE: each stage against loops and in its limits."""

from collections import Counter

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import batch, network, problem, replay, same, value_and_gradient
from elliptica.baselines import (
    UMIX,
    CorrectnessTable,
    ErrorRecorder,
    Mixup,
    smote_rows,
    umix_weights,
    upsampled_rows,
)
from elliptica.baselines.mixup import draw_share
from elliptica.baselines.stages import is_correct

CE = nn.CrossEntropyLoss()

# JTT


def test_errors_equal_a_loop_also_of_soft_labels_and_of_one_logit(generator):
    model, x, y = problem(generator)
    right = is_correct(model(x), y)
    for i in range(len(x)):
        scores = model(x[i : i + 1])[0].tolist()
        assert right[i].item() == (scores.index(max(scores)) == y[i].item())
    assert 0 < right.sum() < len(x)
    assert not is_correct(model(x), y).requires_grad
    assert torch.equal(is_correct(model(x), 0.9 * F.one_hot(y, 4).double() + 0.025), right)
    logit = network(n_out=1)
    expected = (logit(x)[:, 0] > 0) == (y > 1)
    for labels in ((y > 1), (y > 1).long(), (y > 1).double()[:, None]):
        assert torch.equal(is_correct(logit(x), labels), expected)
        assert torch.equal(is_correct(logit(x).flatten(), labels), expected)


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


@pytest.mark.parametrize("factor", [0, 1, 5])
def test_errors_come_one_time_more_than_the_factor(factor, generator):
    errors = torch.rand(20, generator=generator) < 0.3
    rows = upsampled_rows(errors, factor)
    counts = Counter(rows.tolist())
    assert counts == {i: 1 + factor * bool(errors[i]) for i in range(20)}
    assert upsampled_rows(errors).numel() == 20 + 100 * int(errors.sum())


# UMIX


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


def test_without_weights_it_is_mixup(generator):
    model, x, y = problem(generator)
    again = replay(generator)
    always = UMIX(model, CE, alpha=0.7, probability=1.0)(x, y, generator=generator)
    torch.rand(1, generator=again)  # whether to mix
    mixed = Mixup(model, CE, alpha=0.7)(x, y, generator=again)
    same(value_and_gradient(always, model), value_and_gradient(mixed, model))


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


# SMOTE


def table(generator, counts=(9, 4, 2)):
    y = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    x = torch.randn(len(y), 3, generator=generator, dtype=torch.float64) + 5 * y[:, None]
    return x, y


@pytest.mark.parametrize("k", [1, 5])
def test_smote_balances_with_rows_between_neighbours(k, generator):
    pytest.importorskip("imblearn")
    x, y = table(generator)
    first, again = (smote_rows(x, y, k_neighbors=k, generator=g) for g in (replay(generator), generator))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], smote_rows(x, y, k_neighbors=k, generator=generator)[0])
    more_x, more_y = first
    assert more_y.bincount().tolist() == [9, 9, 9]
    assert (more_x.dtype, more_y.dtype) == (x.dtype, y.dtype)
    assert torch.equal(more_x[:15], x)
    rows = x[y == 1]
    order = torch.cdist(rows, rows).argsort(1)[:, 1 : k + 1]  # neighbours of each
    near, far = rows.repeat_interleave(order.shape[1], 0), rows[order.flatten()]
    for point in more_x[15:][more_y[15:] == 1]:  # on one of the segments
        detour = (point - near).norm(dim=1) + (point - far).norm(dim=1) - (near - far).norm(dim=1)
        assert detour.min() < 1e-6


def test_smote_keeps_balanced_tables(generator):
    x, y = table(generator, counts=(1, 1))  # nothing to do, even with one row each
    assert torch.equal(smote_rows(x, y)[0], x)
    assert torch.equal(smote_rows(x, y)[1], y)
