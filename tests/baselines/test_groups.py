"""Group DRO, DomainMix and LISA: against loops and laws."""

import numpy as np
import pytest
import torch
from torch import nn

import laws
from baseline_cases import UNEVEN, batch, network, problem, replay, same, value_and_gradient
from elliptica.baselines import LISA, DomainMix, GroupDRO, group_balanced_weights, groups
from elliptica.baselines.groups import cutmix, draw_shares, eligible
from elliptica.baselines.mixup import draw_share

EVEN = torch.arange(12) % 3
CE = nn.CrossEntropyLoss()


class TestGroupDRO:
    def test_equals_a_loop_over_batches_with_missing_groups(self, generator):
        model = network()
        objective = GroupDRO(model, CE, 4, step_size=0.7).double()
        q = np.full(4, 0.25)
        for present in ((0, 1, 2, 3), (0, 2), (3,), (1, 2, 3)):
            x, y = batch(generator)
            group = torch.tensor(present)[torch.arange(12) % len(present)]
            loss, gradient = value_and_gradient(objective(x, y, group), model)
            parts = [CE(model(x[group == g]), y[group == g]) for g in present]
            for g, part in zip(present, parts, strict=True):
                q[g] *= np.exp(0.7 * part.item())
            q /= q.sum()
            expected = sum(q[g] * part for g, part in zip(present, parts, strict=True))
            same((loss, gradient), value_and_gradient(expected, model), rtol=1e-6)
            np.testing.assert_allclose(objective.q.numpy(), q, rtol=1e-6)

    def test_groups_without_training_rows_have_no_weight(self, generator):
        objective = GroupDRO(network(), CE, 4, group_sizes=torch.tensor([5, 0, 9, 1]))
        same(objective.q, torch.tensor([1, 0, 1, 1]) / 3)
        x, y = batch(generator)
        objective(x, y, 2 * (EVEN % 2))
        assert objective.q[1] == 0

    def test_huge_losses_do_not_overflow_and_infinite_ones_do_not_spoil_q(self, generator):
        model = nn.Linear(3, 1)
        objective = GroupDRO(model, nn.MSELoss(), 3)
        x, _ = batch(generator)
        y = 1e6 * EVEN[:, None].float()
        loss = objective(x.float(), y, EVEN)
        assert loss.isfinite()
        same(objective.q, torch.tensor([0.0, 0, 1]))
        before = objective.q.clone()
        assert not objective(x.float(), 1e30 * y, EVEN).isfinite()
        assert torch.equal(objective.q, before)


def test_balanced_weights_are_inverse_sizes():
    group = torch.tensor([0] * 90 + [4] * 9 + [1])
    expected = [100 / group.tolist().count(g) for g in group.tolist()]
    np.testing.assert_allclose(group_balanced_weights(group).numpy(), expected)


# DomainMix


@pytest.mark.parametrize("weighted", [False, True])
def test_domainmix_equals_a_loop(weighted, generator):
    model, x, y = problem(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64) if weighted else None
    again = replay(generator)
    objective = DomainMix(model, CE, alpha=0.6)
    loss = objective(x, y, UNEVEN, sample_weight=weight, generator=generator)
    members = [[i for i in range(12) if UNEVEN[i] == g] for g in (0, 3, 7)]
    members = [members[k] for k in torch.randperm(3, generator=again).tolist()]
    shares = [float(np.float32(draw_share(0.6, again))) for _ in range(3)]
    assert len(set(shares)) == 3  # each pair has its own
    total = 0.0
    for k, share in enumerate(shares):
        pairs = list(zip(members[k], members[(k + 1) % 3], strict=False))  # as long as the shorter
        for i, j in pairs:
            output = model((share * x[i] + (1 - share) * x[j])[None])
            part = share * CE(output, y[i : i + 1]) + (1 - share) * CE(output, y[j : j + 1])
            w = share * weight[i] + (1 - share) * weight[j] if weighted else 1.0
            total = total + w * part / len(pairs) / 3
    same(value_and_gradient(loss, model), value_and_gradient(total, model))
    assert torch.equal(generator.get_state(), again.get_state())


def test_domainmix_of_one_group_or_without_mixing_is_erm(generator):
    model, x, y = problem(generator)
    expected = value_and_gradient(CE(model(x), y), model)
    one = DomainMix(model, CE)(x, y, torch.full((12,), 5), generator=generator)
    same(value_and_gradient(one, model), expected)
    unmixed = DomainMix(model, CE, alpha=0.0)(x, y, torch.arange(12) % 3, generator=generator)
    same(value_and_gradient(unmixed, model), expected)  # groups of one size: nothing is cut


# LISA


LABEL = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 2])
DOMAIN = torch.tensor([0, 1, 1, 0, 0, 1, 2, 2, 0])


def candidates(i, within_label):
    return [
        j
        for j in range(len(LABEL))
        if (LABEL[j] == LABEL[i]) == within_label and (DOMAIN[j] == DOMAIN[i]) == (not within_label)
    ]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("selection", [0.0, 1.0])
def test_lisa_equals_a_loop(selection, weighted, generator):
    model = network()
    x, _ = batch(generator, n=9)
    weight = torch.rand(9, generator=generator, dtype=torch.float64) if weighted else None
    again = replay(generator)
    objective = LISA(model, CE, selection=selection)
    loss = objective(x, LABEL, DOMAIN, sample_weight=weight, generator=generator)
    torch.rand(1, generator=again)
    uniform = torch.rand(9, generator=again)
    shares = draw_shares(2.0, 9, torch.device("cpu"), again).double()
    assert len(set(shares.tolist())) == 9  # each row has its own
    total, n_alone = 0.0, 0
    for i in range(9):
        others = candidates(i, selection == 1)
        share, j = float(shares[i]), i
        if others:
            j = others[int(float(uniform[i]) * len(others))]
        else:
            share, n_alone = 1.0, n_alone + 1
        output = model((share * x[i] + (1 - share) * x[j])[None])
        part = share * CE(output, LABEL[i : i + 1]) + (1 - share) * CE(output, LABEL[j : j + 1])
        w = share * weight[i] + (1 - share) * weight[j] if weighted else 1.0
        total = total + w * part / 9
    assert n_alone == selection  # row 8 is the only one of its label
    same(value_and_gradient(loss, model), value_and_gradient(total, model), rtol=1e-6)


def seen_by(model, call):
    """What the model is called with."""
    inputs = []
    handle = model.register_forward_hook(lambda _m, args, _o: inputs.append(args[0]))
    loss = call()
    handle.remove()
    return inputs[0], loss


@pytest.mark.parametrize("mix", ["input", "cutmix"])
@pytest.mark.parametrize("case", ["no partner", "alpha=0"])
def test_lisa_without_partners_is_erm(case, mix, generator):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 9))
    x = torch.randn(9, 1, 4, 4, generator=generator)
    alpha, y, group = (0.0, LABEL, DOMAIN) if case == "alpha=0" else (2.0, torch.arange(9), torch.arange(9))
    for selection in (0.0, 1.0):
        objective = LISA(model, CE, selection=selection, alpha=alpha, mix=mix)
        mixed, loss = seen_by(model, lambda o=objective: o(x, y, group, generator=generator))
        assert torch.equal(mixed, x)
        same(value_and_gradient(loss, model), value_and_gradient(CE(model(x), y), model), rtol=1e-5)


@pytest.mark.statistical
def test_selection_is_a_probability_of_batches(generator, monkeypatch):
    chosen = []

    def spy(y, group, *, within_label):
        chosen.append(within_label)
        return eligible(y, group, within_label=within_label)

    monkeypatch.setattr(groups, "eligible", spy)
    objective = LISA(nn.Linear(3, 3), CE, selection=0.3)
    for _ in range(600):
        objective(torch.ones(9, 3), LABEL, DOMAIN, generator=generator)
    laws.assert_frequencies(np.bincount(chosen, minlength=2), [0.7, 0.3])
    with pytest.raises(AssertionError):
        laws.assert_frequencies(np.bincount(chosen, minlength=2), [0.5, 0.5])


def test_cutmix_equals_a_loop(generator):
    x = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 2, 7, 10)
    partners = torch.tensor([1, 2, 3, 4, 5, 0])
    share = torch.tensor([0.0, 0.3, 0.5, 0.8, 0.9, 1.0])
    again = replay(generator)
    cut, kept = cutmix(x, partners, share, generator)
    places = torch.rand(2, 6, generator=again).numpy()
    for i in range(6):
        expected = np.full((7, 10), float(i))
        half_height, half_width = (int(n * np.sqrt(1 - float(share[i]))) // 2 for n in (7, 10))
        row, column = int(7 * places[0, i]), int(10 * places[1, i])
        top, left = max(row - half_height, 0), max(column - half_width, 0)
        expected[top : row + half_height, left : column + half_width] = float(partners[i])
        assert np.array_equal(cut[i, 0].numpy(), expected)
        assert torch.equal(cut[i, 0], cut[i, 1])
        np.testing.assert_allclose(float(kept[i]), (expected == i).mean(), rtol=1e-6)
    assert kept[5] == 1
    assert x[0].max() == 0  # the images given are not changed


def test_lisa_with_cutmix_weighs_by_area(generator):
    model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 8 * 8, 3)).double()
    x = torch.arange(9.0, dtype=torch.float64).view(9, 1, 1, 1).expand(9, 2, 8, 8).contiguous()
    objective = LISA(model, CE, selection=0.0, mix="cutmix")
    mixed, loss = seen_by(model, lambda: objective(x, LABEL, DOMAIN, generator=generator))
    total = 0.0
    for i, image in enumerate(mixed):
        for value, count in zip(*image.unique(return_counts=True), strict=True):
            total = total + count / image.numel() * CE(model(image[None]), LABEL[int(value)][None]) / 9
        assert len(image.unique()) <= 2
        assert i in image.unique()
    same(value_and_gradient(loss, model), value_and_gradient(total, model), rtol=1e-6)
