"""Group DRO, IRM, IB-IRM, V-REx and CORAL: against loops in NumPy, finite differences and known answers."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import WeightedRandomSampler

import laws
from baseline_cases import batch, network, same
from elliptica.baselines.coral import CORAL
from elliptica.baselines.domainmix import DomainMix
from elliptica.baselines.erm import ERM
from elliptica.baselines.groupdro import GroupDRO, group_balanced_weights
from elliptica.baselines.ibirm import IBIRM
from elliptica.baselines.irm import IRM
from elliptica.baselines.lisa import LISA
from elliptica.baselines.vrex import VREx

EVEN = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
UNEVEN = torch.tensor([3, 0, 7, 0, 3, 0, 0, 7, 3, 0, 7, 3])  # with gaps, and of sizes 5, 4, 3
LONELY = torch.tensor([3, 0, 0, 0, 3, 0, 0, 7, 3, 0, 0, 3])  # one row of group 7
ALONE = torch.arange(12)  # one row of every group
GROUPINGS = [EVEN, UNEVEN, LONELY, ALONE, torch.zeros(12, dtype=torch.long)]
CE = nn.CrossEntropyLoss()


def value_and_gradient(loss, model):
    return loss.detach(), torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
    )


def assert_value_and_gradient(call, reference, model, generator):
    """``call`` gives what ``reference`` (NumPy) does, and has its slope in a random direction."""
    value, gradient = value_and_gradient(call(), model)
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


# references: NumPy, group by group and row by row


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


def irm_parts(model, x, y, group, variant):
    _, logits = arrays(model, x)
    risk = np.mean([part.mean() for part in by_group(row_losses(logits, y), group)])
    penalties = []
    for part in by_group(row_slopes(logits, y), group):
        if variant == "original":
            penalties.append(part.mean() ** 2)
        else:
            penalties.append(part[::2].mean() * part[1::2].mean() if len(part) > 1 else 0.0)
    return risk, np.mean(penalties)


def coral_gap(features, group, variant):
    total, pairs = 0.0, 0
    for a, b in itertools.combinations(by_group(features, group), 2):
        pairs += 1
        if variant == "domainbed":
            total += np.mean((a.mean(0) - b.mean(0)) ** 2)
        if len(a) > 1 and len(b) > 1:
            term = np.mean((np.cov(a.T) - np.cov(b.T)) ** 2)
            total += term if variant == "domainbed" else term / 4
    return total / max(pairs, 1)


# what all share


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


MAKERS = {
    "groupdro": lambda m, f=CE: GroupDRO(m, f, 12),
    "irm": lambda m, f=CE: IRM(m, f, anneal_steps=0),
    "irm original": lambda m, f=CE: IRM(m, f, anneal_steps=0, variant="original"),
    "ibirm": lambda m, f=CE: IBIRM(m, f, at="1", anneal_steps=0, ib_anneal_steps=0),
    "ibirm authors": lambda m, f=CE: IBIRM(
        m, f, at="1", anneal_steps=0, ib_anneal_steps=0, variant="authors"
    ),
    "vrex": lambda m, f=CE: VREx(m, f, anneal_steps=0),
    "vrex authors": lambda m, f=CE: VREx(m, f, anneal_steps=0, variant="authors"),
    "coral": lambda m, f=CE: CORAL(m, f, at="1"),
    "coral deep": lambda m, f=CE: CORAL(m, f, at="1", variant="deep"),
    "domainmix": lambda m, f=CE: DomainMix(m, f),
    "lisa": lambda m, f=CE: LISA(m, f),
}
every_objective = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_objective
def test_eval_mode_is_the_ordinary_loss_and_changes_nothing(make, generator):
    model = network()
    x, y = batch(generator)
    objective = make(model).eval()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    for arguments in ((x, y), (x, y, UNEVEN)):
        same(objective(*arguments), CE(model(x), y))
    for name, value in objective.state_dict().items():
        assert torch.equal(value, before[name])


@every_objective
@pytest.mark.parametrize("group", GROUPINGS, ids=["even", "uneven", "lonely", "alone", "one"])
def test_no_nan_for_any_grouping(make, group, generator):
    model = network()
    x, y = batch(generator)
    for n in (12, 3, 1):
        value, gradient = value_and_gradient(make(model)(x[:n], y[:n], group[:n], generator=generator), model)
        assert value.isfinite()
        assert gradient.isfinite().all()


@every_objective
def test_equal_rows_are_no_trouble(make, generator):
    """All losses, slopes and features equal: variances vanish, square roots would have no derivative."""
    model = network()
    x, y = torch.ones(12, 3).double(), torch.ones(12, dtype=torch.long)
    value, gradient = value_and_gradient(make(model)(x, y, UNEVEN, generator=generator), model)
    assert value.isfinite()
    assert gradient.isfinite().all()


class TwoInputs(nn.Module):
    """With a layer of the name that the objectives ask for."""

    def __init__(self):
        super().__init__()
        self.add_module("1", nn.Linear(3, 2))
        self.head = nn.Linear(2, 1)

    def forward(self, a, b):
        return self.head(self.get_submodule("1")(a + b))


@every_objective
def test_int32_groups_several_inputs_and_regression(make, generator):
    """And nothing that was given is changed."""
    x = {"a": torch.randn(12, 3, generator=generator), "b": torch.randn(12, 3, generator=generator)}
    y, group = torch.randn(12, 1, generator=generator), UNEVEN.int()
    before = {name: value.clone() for name, value in x.items()}, y.clone(), group.clone()
    model = TwoInputs()
    make(model, nn.MSELoss())(x, y, group, generator=generator).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert all(torch.equal(x[name], value) for name, value in before[0].items())
    assert torch.equal(y, before[1])
    assert torch.equal(group, before[2])


@every_objective
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(make, dtype, generator):
    model = network().to(dtype)
    x, y = batch(generator)
    loss = make(model)(x.to(dtype), y, UNEVEN, generator=generator)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# Group DRO


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

    def test_absent_groups_keep_their_ratio(self, generator):
        objective = GroupDRO(network(), CE, 3, step_size=1.0).double()
        objective.q.copy_(torch.tensor([0.6, 0.3, 0.1]))
        x, y = batch(generator)
        objective(x, y, torch.full((12,), 2))
        assert objective.q[2] > 0.1
        same(objective.q[0] / objective.q[1], torch.tensor(2.0).double())

    def test_q_is_updated_before_it_is_used(self, generator):
        """The other order would give the plain mean of group means at the first call."""
        model = network()
        x, y = batch(generator)
        loss = GroupDRO(model, CE, 3, step_size=5.0).double()(x, y, EVEN)
        parts = torch.stack([CE(model(x[g == EVEN]), y[g == EVEN]) for g in range(3)])
        same(loss, (torch.softmax(5 * parts, 0) * parts).sum(), rtol=1e-6)
        assert loss > parts.mean() + 1e-3

    def test_adjustment_favours_small_groups_and_has_no_gradient(self, generator):
        model = network()
        x, y = batch(generator)
        sizes = [100, 25, 4]
        objective = GroupDRO(model, CE, 3, step_size=0.5, adjustment=3.0, group_sizes=sizes).double()
        loss, gradient = value_and_gradient(objective(x, y, EVEN), model)
        parts = torch.stack([CE(model(x[g == EVEN]), y[g == EVEN]) for g in range(3)])
        adjusted = parts + 3 / torch.tensor(sizes).double().sqrt()
        q = torch.softmax(0.5 * adjusted.detach(), 0)
        same(loss, (q * adjusted).sum().detach(), rtol=1e-6)
        same(gradient, value_and_gradient((q * parts).sum(), model)[1], rtol=1e-6)

    def test_groups_without_training_rows_have_no_weight(self, generator):
        objective = GroupDRO(network(), CE, 4, group_sizes=torch.tensor([5, 0, 9, 1]))
        same(objective.q, torch.tensor([1, 0, 1, 1]) / 3)
        x, y = batch(generator)
        objective(x, y, 2 * (EVEN % 2))
        assert objective.q[1] == 0
        with pytest.raises(ValueError, match=r"group 1 is in the batch, but according to.* none of it"):
            objective(x, y, EVEN)

    def test_equal_losses_leave_q(self):
        objective = GroupDRO(network(), CE, 3, step_size=2.0)
        objective(torch.ones(12, 3).double(), torch.ones(12, dtype=torch.long), EVEN)
        same(objective.q, torch.full((3,), 1 / 3), rtol=1e-6)

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

    def test_q_is_saved(self, generator):
        first, second = (GroupDRO(network(), CE, 3) for _ in range(2))
        first(*batch(generator), EVEN)
        second.load_state_dict(first.state_dict())
        assert torch.equal(first.q, second.q)
        assert {name for name in first.state_dict() if not name.startswith("model.")} == {"q"}

    @pytest.mark.statistical
    def test_balanced_weights_draw_groups_equally_often(self, generator):
        group = torch.tensor([0] * 90 + [4] * 9 + [1])
        weights = group_balanced_weights(group)
        expected = [100 / group.tolist().count(g) for g in group.tolist()]
        np.testing.assert_allclose(weights.numpy(), expected)
        counts = []
        for each in (weights, torch.ones(100)):
            drawn = list(WeightedRandomSampler(each, 3000, generator=generator))
            counts.append(np.bincount(group[drawn].numpy(), minlength=5)[[0, 1, 4]])
        laws.assert_frequencies(counts[0], np.full(3, 1 / 3))
        with pytest.raises(AssertionError):
            laws.assert_frequencies(counts[1], np.full(3, 1 / 3))


# IRM


@pytest.mark.parametrize("group", GROUPINGS, ids=["even", "uneven", "lonely", "alone", "one"])
@pytest.mark.parametrize("variant", ["unbiased", "original"])
class TestIRM:
    def test_equals_a_loop_and_finite_differences(self, variant, group, generator):
        model = network()
        x, y = batch(generator)

        def reference():
            risk, penalty = irm_parts(model, x, y, group, variant)
            return (risk + 7 * penalty) / (7 if variant == "original" else 1)

        def call():
            return IRM(model, CE, penalty=7.0, anneal_steps=0, variant=variant)(x, y, group)

        assert_value_and_gradient(call, reference, model, generator)

    def test_weight_is_one_before_the_jump(self, variant, group, generator):
        model = network()
        x, y = batch(generator)
        objective = IRM(model, CE, penalty=7.0, anneal_steps=2, variant=variant)
        losses, jumps = [], []
        for _ in range(4):
            losses.append(objective(x, y, group).item())
            jumps.append(objective.just_annealed)
        risk, penalty = irm_parts(model, x, y, group, variant)
        late = (risk + 7 * penalty) / (7 if variant == "original" else 1)
        np.testing.assert_allclose(losses, [risk + penalty] * 2 + [late] * 2)
        assert jumps == [False, False, True, False]


def test_irm_halves_are_unbiased(generator):
    """Over all orders of a group, the product averages to that of two different rows; the square does not."""
    model = network()
    x, y = batch(generator, n=4)
    group = torch.zeros(4, dtype=torch.long)
    slopes = row_slopes(arrays(model, x)[1], y)
    expected = np.mean([slopes[i] * slopes[j] for i, j in itertools.permutations(range(4), 2)])
    for variant, is_unbiased in (("unbiased", True), ("original", False)):
        penalties = []
        for order in itertools.permutations(range(4)):
            order = list(order)
            loss = [
                IRM(model, CE, penalty=w, anneal_steps=0, variant=variant)(x[order], y[order], group)
                for w in (0.0, 1.0)
            ]
            penalties.append((loss[1] - loss[0]).item())
        assert np.isclose(np.mean(penalties), expected, rtol=1e-9) == is_unbiased


@pytest.mark.parametrize("variant", ["unbiased", "original"])
def test_irm_of_zero_logits_is_the_risk(variant, generator):
    model = network()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    x, y = batch(generator)
    loss = IRM(model, CE, penalty=1.0, anneal_steps=0, variant=variant)(x, y, UNEVEN)
    same(loss.detach(), torch.tensor(4.0).double().log())


def test_irm_weights_samples_in_risk_and_slope(generator):
    model = network()
    x, y = batch(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    loss = IRM(model, CE, penalty=3.0, anneal_steps=0, variant="original")(x, y, UNEVEN, sample_weight=weight)
    _, logits = arrays(model, x)
    risk = np.mean([v.mean() for v in by_group(row_losses(logits, y) * weight.numpy(), UNEVEN)])
    penalty = np.mean([v.mean() ** 2 for v in by_group(row_slopes(logits, y) * weight.numpy(), UNEVEN)])
    np.testing.assert_allclose(float(loss.detach()), (risk + 3 * penalty) / 3)


def test_irm_works_without_a_graph_and_counts_calls(generator):
    model = network()
    x, y = batch(generator)
    objective = IRM(model, CE)
    with torch.no_grad():
        without = objective(x, y, UNEVEN)
    assert not without.requires_grad
    same(without, objective(x, y, UNEVEN).detach())
    assert objective.steps == 2
    copy = IRM(network(), CE)
    copy.load_state_dict(objective.state_dict())
    assert copy.steps == 2


@pytest.mark.parametrize(
    ("make", "penalty", "steps"),
    [
        (lambda m: IRM(m, CE), 100, 500),
        (lambda m: IRM(m, CE, variant="original"), 1e4, 100),
        (lambda m: VREx(m, CE), 10, 500),
        (lambda m: VREx(m, CE, variant="authors"), 1e4, 100),
        (lambda m: IBIRM(m, CE, at="1"), 100, 500),
    ],
)
def test_defaults_are_those_of_the_reference(make, penalty, steps):
    objective = make(network())
    assert (objective.penalty, objective.anneal_steps) == (penalty, steps)
    assert not objective.just_annealed
    assert f"penalty={float(penalty)}, anneal_steps={steps}" in repr(objective)


# IB-IRM


@pytest.mark.parametrize("group", [EVEN, UNEVEN, LONELY, ALONE], ids=["even", "uneven", "lonely", "alone"])
@pytest.mark.parametrize("variant", ["domainbed", "authors"])
@pytest.mark.parametrize("rescale", [False, True])
def test_ibirm_equals_a_loop_and_finite_differences(variant, rescale, group, generator):
    model = network()
    x, y = batch(generator)

    def variance():
        features, _ = arrays(model, x)
        if variant == "authors":
            return np.mean([features[:, j].var(ddof=1) for j in range(8)])
        parts = by_group(features, group)
        return np.mean([p.var(0, ddof=1).mean() if len(p) > 1 else 0.0 for p in parts])

    def reference():
        risk, penalty = irm_parts(model, x, y, group, "unbiased")
        return (risk + 7 * penalty) / (8 if rescale else 1) + 3 * variance()

    settings = {"at": "1", "penalty": 7.0, "ib_penalty": 3.0, "variant": variant, "rescale": rescale}

    def call():
        return IBIRM(model, CE, anneal_steps=0, ib_anneal_steps=0, **settings)(x, y, group)

    assert_value_and_gradient(call, reference, model, generator)


@pytest.mark.parametrize(("variant", "early"), [("domainbed", 1), ("authors", 0)])
def test_ibirm_weights_jump_at_their_own_steps(variant, early, generator):
    model = network()
    x, y = batch(generator)
    settings = {"at": "1", "penalty": 7.0, "ib_penalty": 3.0, "variant": variant}
    objective = IBIRM(model, CE, anneal_steps=1, ib_anneal_steps=3, **settings)
    losses, jumps = [], []
    for _ in range(5):
        losses.append(objective(x, y, UNEVEN).item())
        jumps.append(objective.just_annealed)
    risk, penalty = irm_parts(model, x, y, UNEVEN, "unbiased")
    variance = (losses[-1] - losses[1]) / 3
    assert variance > 0
    middle = risk + 7 * penalty
    np.testing.assert_allclose(losses[:3], [risk + early * penalty, middle, middle])
    assert losses[3] == losses[4]
    assert jumps == [False, True, False, variant == "domainbed", False]


def test_ibirm_defaults():
    for variant, penalty in (("domainbed", 100.0), ("authors", 1.0)):
        objective = IBIRM(network(), CE, at="1", variant=variant)
        assert (objective.ib_penalty, objective.ib_anneal_steps) == (penalty, 500)
        assert f"at='1', ib_penalty={penalty}" in repr(objective)


# V-REx


@pytest.mark.parametrize("group", GROUPINGS, ids=["even", "uneven", "lonely", "alone", "one"])
@pytest.mark.parametrize("variant", ["domainbed", "authors"])
def test_vrex_equals_a_loop_and_finite_differences(variant, group, generator):
    model = network()
    x, y = batch(generator)

    def reference():
        risks = [part.mean() for part in by_group(row_losses(arrays(model, x)[1], y), group)]
        if variant == "domainbed":
            return np.mean(risks) + 7 * np.var(risks)
        squares = [(a - b) ** 2 for a, b in itertools.combinations(risks, 2)]
        return (np.sum(risks) + 7 * (np.mean(squares) if squares else 0)) / 7

    def call():
        return VREx(model, CE, penalty=7.0, anneal_steps=0, variant=variant)(x, y, group)

    assert_value_and_gradient(call, reference, model, generator)


def penalty_of(make, x, y, group):
    """Difference that a penalty of 1 makes, against none (the loss is not divided by a weight of 1)."""
    return (make(1.0)(x, y, group) - make(0.0)(x, y, group)).detach()


def test_authors_vrex_of_two_groups_is_four_times_the_variance(generator):
    model = network()
    x, y = batch(generator)
    own, theirs = (
        penalty_of(lambda w, v=v: VREx(model, CE, penalty=w, anneal_steps=0, variant=v), x, y, EVEN % 2)
        for v in ("domainbed", "authors")
    )
    assert own > 0
    same(theirs, 4 * own)


@pytest.mark.parametrize("variant", ["domainbed", "authors"])
def test_vrex_of_equal_risks_is_zero(variant, generator):
    model = network()
    x, y = batch(generator)
    x, y, group = x.repeat(2, 1), y.repeat(2), torch.arange(24) // 12
    penalty = penalty_of(lambda w: VREx(model, CE, penalty=w, anneal_steps=0, variant=variant), x, y, group)
    same(penalty, torch.zeros(()).double())


def test_vrex_weight_is_one_before_the_jump(generator):
    model = network()
    x, y = batch(generator)
    objective = VREx(model, CE, penalty=5.0, anneal_steps=1)
    losses = [objective(x, y, UNEVEN).detach() for _ in range(2)]
    assert objective.just_annealed
    for loss, weight in zip(losses, (1.0, 5.0), strict=True):
        same(loss, VREx(model, CE, penalty=weight, anneal_steps=0)(x, y, UNEVEN).detach())


# CORAL


@pytest.mark.parametrize("group", GROUPINGS, ids=["even", "uneven", "lonely", "alone", "one"])
@pytest.mark.parametrize("variant", ["domainbed", "deep"])
def test_coral_equals_a_loop_and_finite_differences(variant, group, generator):
    model = network()
    x, y = batch(generator)

    def reference():
        features, logits = arrays(model, x)
        risk = np.mean([part.mean() for part in by_group(row_losses(logits, y), group)])
        return risk + 5 * coral_gap(features, group, variant)

    def call():
        return CORAL(model, CE, at="1", penalty=5.0, variant=variant)(x, y, group)

    assert_value_and_gradient(call, reference, model, generator)


@pytest.mark.parametrize("variant", ["domainbed", "deep"])
def test_coral_of_identical_features_is_zero_and_a_shift_is_seen_by_means_only(variant, generator):
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 4)).double()
    x, y = batch(generator)
    group = torch.arange(24) // 12

    def gap(far):
        both = torch.cat([x, far]), y.repeat(2)
        return penalty_of(lambda w: CORAL(model, CE, at="0", penalty=w, variant=variant), *both, group)

    zero = torch.zeros(()).double()
    same(gap(x), zero)
    same(gap(x.flip(0)), zero)
    same(gap(x + 2), zero + (4 if variant == "domainbed" else 0), rtol=1e-9)
    assert gap(2 * x) > 0.01


def test_coral_flattens_feature_maps(generator):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)).double()
    x = torch.randn(12, 1, 4, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (12,), generator=generator)
    maps, flat = (CORAL(model, CE, at=at)(x, y, UNEVEN) for at in ("0", "1"))
    same(maps, flat)


# bad input


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
class TestBadInput:
    @every_objective
    def test_groups(self, make, generator):
        objective = make(network())
        x, y = batch(generator)
        with pytest.raises(
            TypeError, match=r"group is missing.*Call objective\(x, y, group\) with .*\(12,\)"
        ):
            objective(x, y)
        with pytest.raises(TypeError, match=r"the integer number.*torch.float32. Convert it with group.long"):
            objective(x, y, EVEN.float())
        with pytest.raises(TypeError, match=r"must hold the integer number.*torch.bool"):
            objective(x, y, EVEN > 0)
        with pytest.raises(TypeError, match=r"group must be a torch.Tensor, but got list"):
            objective(x, y, EVEN.tolist())
        with pytest.raises(ValueError, match=r"group must be at least 0, but its smallest value is -1"):
            objective(x, y, EVEN - 1)
        with pytest.raises(ValueError, match=r"group must have as many rows as x \(12\), but has 11 rows"):
            objective(x, y, EVEN[1:])
        with pytest.raises(ValueError, match=r"one number per row, shape \(12,\), but has shape \(12, 1\)"):
            objective(x, y, EVEN[:, None])

    @every_objective
    def test_batches(self, make, generator):
        objective = make(network())
        x, y = batch(generator)
        bad = x.clone()
        bad[3, 1] = float("nan")
        with pytest.raises(ValueError, match="x must be finite, but 1 values are NaN or infinite, in rows 3"):
            objective(bad, y, EVEN)
        with pytest.raises(ValueError, match="x is empty"):
            objective(x[:0], y[:0], EVEN[:0])
        with pytest.raises(ValueError, match="y must have as many rows as x"):
            objective(x, y[1:], EVEN)
        with pytest.raises(ValueError, match="sample_weight must have as many rows"):
            objective(x, y, EVEN, sample_weight=torch.ones(3))
        with pytest.raises(TypeError, match=r"generator must be a torch.Generator, but got int"):
            objective(x, y, EVEN, generator=3)

    def test_group_dro(self, generator):
        model = network()
        with pytest.raises(
            ValueError, match=r"group must lie in 0..1 \(n_groups=2\), but has values up to 2"
        ):
            GroupDRO(model, CE, 2)(*batch(generator), EVEN)
        with pytest.raises(ValueError, match="n_groups must be at least 1, but got 0"):
            GroupDRO(model, CE, 0)
        with pytest.raises(ValueError, match="step_size must be finite and at least 0"):
            GroupDRO(model, CE, 2, step_size=-0.1)
        with pytest.raises(ValueError, match=r"adjustment=1.0 is divided .* group_sizes is None"):
            GroupDRO(model, CE, 2, adjustment=1.0)
        with pytest.raises(ValueError, match=r"must hold n_groups=2 numbers, but has shape \(3,\)"):
            GroupDRO(model, CE, 2, group_sizes=[1, 2, 3])
        with pytest.raises(TypeError, match=r"group_sizes must hold integer numbers of rows.*float"):
            GroupDRO(model, CE, 2, group_sizes=torch.ones(2))
        for sizes in ([0, 0], [3, -1]):
            with pytest.raises(ValueError, match="at least one above 0, but got"):
                GroupDRO(model, CE, 2, group_sizes=sizes)
        with pytest.raises(ValueError, match="group is empty"):
            group_balanced_weights(EVEN[:0])
        with pytest.raises(TypeError, match="group must hold the integer number"):
            group_balanced_weights(EVEN.float())

    @pytest.mark.parametrize("make", [IRM, VREx, lambda *a, **k: IBIRM(*a, at="1", **k)])
    def test_annealed(self, make):
        with pytest.raises(ValueError, match="penalty must be finite and at least 0, but got -1"):
            make(network(), CE, penalty=-1.0)
        with pytest.raises(TypeError, match=r"anneal_steps must be an integer, but got 0.5"):
            make(network(), CE, anneal_steps=0.5)
        with pytest.raises(ValueError, match=r"variant must be one of .*, but got 'no'"):
            make(network(), CE, variant="no")

    @pytest.mark.parametrize("make", [CORAL, IBIRM])
    def test_layers(self, make):
        with pytest.raises(ValueError, match="at='5' is not a layer of the model"):
            make(network(), CE, at="5")
        with pytest.raises(ValueError, match="variant must be one of 'domainbed'"):
            make(network(), CE, at="1", variant="origin")

    def test_irm_needs_a_tensor(self, generator):
        class Pair(nn.Module):
            def forward(self, x):
                return x, x

        x, y = batch(generator)
        objective = IRM(
            Pair(), lambda output, y: F.cross_entropy(output[0], y, reduction="none"), num_classes=3
        )
        with pytest.raises(TypeError, match=r"IRM scales the model's output.*the model returned a tuple"):
            objective(x, y % 3, EVEN)

        class Mean(nn.Module):
            def forward(self, x):
                return x.mean()

        with pytest.raises(ValueError, match="the model's output must have as many rows as y"):
            IRM(Mean(), nn.MSELoss())(x, x[:, :1], EVEN)


@pytest.mark.bad_input
@pytest.mark.parametrize("sizes", ["many", [1j, 2j], [[1], [2, 3]]])
def test_sizes_of_groups_that_are_no_numbers(sizes):
    with pytest.raises(TypeError, match="group_sizes must hold integer numbers of rows"):
        GroupDRO(network(), CE, 2, group_sizes=sizes)


def test_irm_needs_a_dense_output(generator, own_checks):
    class Sparse(nn.Linear):
        def forward(self, x):
            return super().forward(x).to_sparse()

    x, y = batch(generator)
    with pytest.raises(TypeError, match="model's output must be an ordinary dense tensor"):
        IRM(Sparse(3, 4).double(), CE)(x, y, EVEN)


def test_complex_targets_are_refused(generator, own_checks):
    x, y = batch(generator)
    with pytest.raises(TypeError, match="y must be real or hold labels"):
        LISA(network(), CE)(x, y.to(torch.complex64), EVEN)
