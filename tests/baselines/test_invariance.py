"""IRM, IB-IRM, V-REx, CORAL and Fish: against loops in NumPy, finite differences and known answers."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from baseline_cases import GROUPINGS, UNEVEN, batch, network, problem, same, value_and_gradient
from elliptica.baselines import CORAL, ERM, IBIRM, IRM, GroupDRO, VREx, fish_step, split_by_group

groupings = pytest.mark.parametrize("group", GROUPINGS.values(), ids=GROUPINGS)
CE = nn.CrossEntropyLoss()


def assert_value_and_gradient(call, reference, model, generator):
    """``call`` gives what ``reference`` (NumPy) does, and has its slope in a random direction."""
    value, slopes = value_and_gradient(call(), model)
    gradient = torch.cat([g.flatten() for g in slopes])
    np.testing.assert_allclose(float(value), reference(), rtol=1e-10, atol=1e-13)
    assert gradient.isfinite().all()
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = torch.randn(len(parameters), generator=generator, dtype=torch.float64)
    ends = []
    for step in (1e-5, -1e-5):
        nn.utils.vector_to_parameters(parameters + step * direction, model.parameters())
        ends.append(reference())
    nn.utils.vector_to_parameters(parameters, model.parameters())
    np.testing.assert_allclose(float(gradient @ direction), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-7)


def arrays(model, x):
    """Features and logits."""
    with torch.no_grad():
        hidden = model[:2](x)
        return hidden.numpy(), model[2](hidden).numpy()


def row_losses(logits, y):
    return np.array([np.log(np.exp(f).sum()) - f[label] for f, label in zip(logits, y, strict=True)])


def row_slopes(logits, y):
    """Derivative of the cross-entropy of ``s * f`` in ``s``: the mean logit less that of the label."""
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.array([(p * f).sum() - f[label] for p, f, label in zip(probabilities, logits, y, strict=True)])


def by_group(values, group):
    return [values[group.numpy() == g] for g in sorted(set(group.tolist()))]


def irm_penalty(slopes, group):
    parts = by_group(slopes, group)
    return np.mean([p[::2].mean() * p[1::2].mean() if len(p) > 1 else 0.0 for p in parts])


def coral_gap(features, group):
    total, pairs = 0.0, 0
    for a, b in itertools.combinations(by_group(features, group), 2):
        pairs += 1
        total += np.mean((a.mean(0) - b.mean(0)) ** 2)
        if len(a) > 1 and len(b) > 1:
            total += np.mean((np.cov(a.T) - np.cov(b.T)) ** 2)
    return total / max(pairs, 1)


# risks


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("class_weights", [None, torch.tensor([1.0, 2, 3, 4]).double()])
def test_risk_of_a_group_is_erm_on_its_rows(weighted, class_weights, generator):
    model, loss_fn = network(), nn.CrossEntropyLoss(weight=class_weights)
    x, y = batch(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64) if weighted else None
    expected = torch.stack(
        [
            ERM(model, loss_fn)(x[own], y[own], sample_weight=None if weight is None else weight[own])
            for own in (g == UNEVEN for g in (0, 3, 7))
        ]
    ).mean()
    expected = value_and_gradient(expected, model)
    for objective in (
        VREx(model, loss_fn, penalty=0.0, anneal_steps=0),
        IRM(model, loss_fn, penalty=0.0, anneal_steps=0),
        CORAL(model, loss_fn, at="1", penalty=0.0),
        GroupDRO(model, loss_fn, 3, step_size=0.0).double(),
    ):
        group = UNEVEN.clone()
        if isinstance(objective, GroupDRO):
            group[UNEVEN == 3], group[UNEVEN == 7] = 1, 2
        rtol = 1e-6 if isinstance(objective, GroupDRO) else 1e-10  # q was made in float32
        same(value_and_gradient(objective(x, y, group, sample_weight=weight), model), expected, rtol)


def test_a_group_whose_classes_weigh_nothing_has_risk_zero(generator):
    """Torch would divide zero by zero there."""
    model, loss_fn = network(), nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1, 1, 1]).double())
    x, _ = batch(generator)
    y = torch.where(UNEVEN == 7, 0, 1)
    loss, gradient = value_and_gradient(
        VREx(model, loss_fn, penalty=0.0, anneal_steps=0)(x, y, UNEVEN), model
    )
    expected = sum(CE(model(x[g == UNEVEN]), y[g == UNEVEN]) for g in (0, 3)) / 3
    same((loss, gradient), value_and_gradient(expected, model))


# IRM


SETTINGS = {
    IRM: {"penalty": 7.0, "anneal_steps": 0},
    IBIRM: {"at": "1", "penalty": 7.0, "ib_penalty": 3.0, "anneal_steps": 0, "ib_anneal_steps": 0},
    VREx: {"penalty": 7.0, "anneal_steps": 0},
    CORAL: {"penalty": 7.0, "at": "1"},
}


@groupings
@pytest.mark.parametrize("kind", SETTINGS)
def test_penalties_equal_loops_and_finite_differences(kind, group, generator):
    model, x, y = problem(generator)

    def reference():
        features, logits = arrays(model, x)
        risks = [part.mean() for part in by_group(row_losses(logits, y), group)]
        if kind is VREx:
            return np.mean(risks) + 7 * np.var(risks)
        if kind is CORAL:
            return np.mean(risks) + 7 * coral_gap(features, group)
        penalty = 7 * irm_penalty(row_slopes(logits, y), group)
        if kind is IBIRM:
            parts = by_group(features, group)
            penalty += 3 * np.mean([p.var(0, ddof=1).mean() if len(p) > 1 else 0.0 for p in parts])
        return np.mean(risks) + penalty

    def call():
        return kind(model, CE, **SETTINGS[kind])(x, y, group)

    assert_value_and_gradient(call, reference, model, generator)


def test_irm_halves_are_unbiased(generator):
    """Over all orders of a group, the product averages to that of two different rows; the square does not."""
    model = network()
    x, y = batch(generator, n=4)
    group = torch.zeros(4, dtype=torch.long)
    slopes = row_slopes(arrays(model, x)[1], y)
    expected = np.mean([slopes[i] * slopes[j] for i, j in itertools.permutations(range(4), 2)])
    penalties = []
    for order in itertools.permutations(range(4)):
        order = list(order)
        none, one = (IRM(model, CE, penalty=w, anneal_steps=0)(x[order], y[order], group) for w in (0.0, 1.0))
        penalties.append((one - none).item())
    np.testing.assert_allclose(np.mean(penalties), expected, rtol=1e-9)
    assert not np.isclose(slopes.mean() ** 2, expected, rtol=1e-3)


def test_irm_weights_samples_in_risk_and_slope(generator):
    model, x, y = problem(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    loss = IRM(model, CE, penalty=3.0, anneal_steps=0)(x, y, UNEVEN, sample_weight=weight)
    _, logits = arrays(model, x)
    risk = np.mean([v.mean() for v in by_group(row_losses(logits, y) * weight.numpy(), UNEVEN)])
    penalty = irm_penalty(row_slopes(logits, y) * weight.numpy(), UNEVEN)
    np.testing.assert_allclose(float(loss.detach()), risk + 3 * penalty)


def test_irm_works_without_a_graph_and_counts_calls(generator):
    model, x, y = problem(generator)
    objective = IRM(model, CE)
    with torch.no_grad():
        without = objective(x, y, UNEVEN)
    assert not without.requires_grad
    same(without, objective(x, y, UNEVEN).detach())
    assert objective.steps == 2
    copy = IRM(network(), CE)
    copy.load_state_dict(objective.state_dict())
    assert copy.steps == 2


@pytest.mark.parametrize("kind", [IRM, VREx])
def test_the_weight_is_one_before_the_jump(kind, generator):
    model, x, y = problem(generator)
    objective = kind(model, CE, penalty=5.0, anneal_steps=2)
    losses, jumps = [], []
    for _ in range(4):
        losses.append(objective(x, y, UNEVEN).detach())
        jumps.append(objective.just_annealed)
    assert jumps == [False, False, True, False]
    for loss, weight in zip(losses, (1.0, 1.0, 5.0, 5.0), strict=True):
        same(loss, kind(model, CE, penalty=weight, anneal_steps=0)(x, y, UNEVEN).detach())


def test_ibirm_weights_jump_at_their_own_steps(generator):
    model, x, y = problem(generator)
    objective = IBIRM(model, CE, at="1", penalty=7.0, ib_penalty=3.0, anneal_steps=1, ib_anneal_steps=3)
    losses, jumps = [], []
    for _ in range(5):
        losses.append(objective(x, y, UNEVEN).item())
        jumps.append(objective.just_annealed)
    before, middle = (IRM(model, CE, penalty=w, anneal_steps=0)(x, y, UNEVEN).item() for w in (1.0, 7.0))
    np.testing.assert_allclose(losses[:3], [before, middle, middle])
    assert losses[3] == losses[4] > middle
    assert jumps == [False, True, False, True, False]


# Fish


def train_in_turn(model, optimizer, minibatches):
    for x, y in minibatches:
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("settings", [{"rate": 1.0}, {"rate": 0.0}, {}, {"rate": 0.3}])
def test_fish_goes_a_part_of_the_way(settings, optimizer, generator):
    """Twice, so that the optimiser's state is carried on."""
    rate = settings.get("rate", 0.5)
    model = network()
    other = copy.deepcopy(model)
    ours, theirs = (optimizer(m.parameters(), lr=0.1) for m in (model, other))
    for _ in range(2):
        minibatches = split_by_group(*batch(generator), UNEVEN)
        before = nn.utils.parameters_to_vector(other.parameters()).detach().clone()
        fish_step(model, ours, ERM(model, CE), minibatches, **settings)
        train_in_turn(other, theirs, minibatches)
        after = nn.utils.parameters_to_vector(other.parameters()).detach()
        expected = before + rate * (after - before)
        same(nn.utils.parameters_to_vector(model.parameters()).detach(), expected)
        nn.utils.vector_to_parameters(expected, other.parameters())


def test_fish_interpolates_floating_buffers_and_keeps_counters(generator):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)).double()
    before = copy.deepcopy(model)
    minibatches = split_by_group(*batch(generator), UNEVEN)
    far = copy.deepcopy(model)
    train_in_turn(far, torch.optim.SGD(far.parameters(), lr=0.1), minibatches)
    fish_step(model, torch.optim.SGD(model.parameters(), lr=0.1), ERM(model, CE), minibatches, rate=0.25)
    for name in ("running_mean", "running_var"):
        start, end = (m[0].get_buffer(name) for m in (before, far))
        same(model[0].get_buffer(name), start + 0.25 * (end - start))
    assert model[0].num_batches_tracked == 3
