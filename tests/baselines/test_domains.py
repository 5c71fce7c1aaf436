"""DomainMix, LISA and Fish: against loops, laws and closed forms; and every group method in a plain loop."""

import copy
import inspect

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import batch, network, replay, same, value_and_gradient
from elliptica.baselines import lisa
from elliptica.baselines._groups import find_groups
from elliptica.baselines.coral import CORAL
from elliptica.baselines.domainmix import DomainMix, pair_groups
from elliptica.baselines.erm import ERM
from elliptica.baselines.fish import fish_step, split_by_group
from elliptica.baselines.groupdro import GroupDRO
from elliptica.baselines.ibirm import IBIRM
from elliptica.baselines.irm import IRM
from elliptica.baselines.lisa import LISA, cutmix, draw_partners, draw_shares, eligible
from elliptica.baselines.mixup import draw_share
from elliptica.baselines.vrex import VREx

UNEVEN = torch.tensor([3, 0, 7, 0, 3, 0, 0, 7, 3, 0, 7, 3])  # with gaps, and of sizes 5, 4, 3
CE = nn.CrossEntropyLoss()


# DomainMix


@pytest.mark.parametrize("weighted", [False, True])
def test_domainmix_equals_a_loop(weighted, generator):
    model = network()
    x, y = batch(generator)
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
    model = network()
    x, y = batch(generator)
    expected = value_and_gradient(CE(model(x), y), model)
    one = DomainMix(model, CE)(x, y, torch.full((12,), 5), generator=generator)
    same(value_and_gradient(one, model), expected)
    unmixed = DomainMix(model, CE, alpha=0.0)(x, y, torch.arange(12) % 3, generator=generator)
    same(value_and_gradient(unmixed, model), expected)  # groups of one size: nothing is cut


@pytest.mark.statistical
def test_domainmix_orders_groups_at_random(generator):
    groups = find_groups(UNEVEN, 12)
    counts = np.zeros(3)
    for _ in range(600):
        near, far, pairs = pair_groups(groups, generator)
        assert pairs.counts.sum() == len(near) == len(far)
        following = {int(a): int(b) for a, b in zip(UNEVEN[near], UNEVEN[far], strict=True)}
        assert sorted(following) == sorted(following.values()) == [0, 3, 7]  # a cycle through all
        counts[[0, 3, 7].index(following[0])] += 1
    laws.assert_frequencies(counts, [0, 0.5, 0.5])
    with pytest.raises(AssertionError):
        laws.assert_frequencies(counts, [0, 0.7, 0.3])
    with pytest.raises(AssertionError):  # a fixed order of groups
        laws.assert_frequencies([0, 600, 0], [0, 0.5, 0.5])


# LISA

LABEL = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 2])
DOMAIN = torch.tensor([0, 1, 1, 0, 0, 1, 2, 2, 0])


def candidates(i, within_label):
    return [
        j
        for j in range(len(LABEL))
        if (LABEL[j] == LABEL[i]) == within_label and (DOMAIN[j] == DOMAIN[i]) == (not within_label)
    ]


@pytest.mark.parametrize("targets", ["labels", "soft"])
@pytest.mark.parametrize("within_label", [True, False])
def test_eligible_partners(within_label, targets):
    y = LABEL if targets == "labels" else F.one_hot(LABEL).float()
    allowed = eligible(y, DOMAIN, within_label=within_label)
    for i in range(9):
        assert allowed[i].nonzero().flatten().tolist() == candidates(i, within_label)


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


def test_within_a_label_labels_stay_hard(generator):
    model = network()
    x, _ = batch(generator, n=9)
    objective = LISA(model, CE, selection=1.0)
    mixed, loss = seen_by(model, lambda: objective(x, LABEL, DOMAIN, generator=generator))
    assert not torch.allclose(mixed, x)
    same(loss, CE(model(mixed), LABEL))
    assert torch.equal(mixed[8], x[8])  # the only row of its label
    across, loss = seen_by(
        model, lambda: LISA(model, CE, selection=0.0)(x, LABEL, DOMAIN, generator=generator)
    )
    assert abs(loss - CE(model(across), LABEL)) > 1e-3


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
def test_partners_are_uniform_among_those_allowed(generator):
    for within_label in (True, False):
        allowed = eligible(LABEL, DOMAIN, within_label=within_label)
        drawn = torch.stack([draw_partners(allowed, generator)[0] for _ in range(2000)])
        for i in range(9):
            others = candidates(i, within_label)
            counts = np.bincount(drawn[:, i].numpy(), minlength=9)
            if len(others) < 2:  # nothing to choose
                assert counts[others or [i]] == 2000
                continue
            laws.assert_frequencies(counts, np.isin(np.arange(9), others) / len(others))
            with pytest.raises(AssertionError):  # anyone but oneself
                laws.assert_frequencies(counts, np.where(np.arange(9) == i, 0, 1 / 8))


@pytest.mark.statistical
def test_selection_is_a_probability_of_batches(generator, monkeypatch):
    chosen = []

    def spy(y, group, *, within_label):
        chosen.append(within_label)
        return eligible(y, group, within_label=within_label)

    monkeypatch.setattr(lisa, "eligible", spy)
    objective = LISA(nn.Linear(3, 3), CE, selection=0.3)
    for _ in range(600):
        objective(torch.ones(9, 3), LABEL, DOMAIN, generator=generator)
    laws.assert_frequencies(np.bincount(chosen, minlength=2), [0.7, 0.3])
    with pytest.raises(AssertionError):
        laws.assert_frequencies(np.bincount(chosen, minlength=2), [0.5, 0.5])


@pytest.mark.statistical
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_shares_are_beta(alpha, generator):
    shares = draw_shares(alpha, 4000, torch.device("cpu"), generator)
    laws.assert_distribution(shares, stats.beta(alpha, alpha).cdf)
    with pytest.raises(AssertionError):
        laws.assert_distribution(shares, stats.beta(alpha + 1, alpha).cdf)


@pytest.mark.statistical
def test_shares_are_at_the_ends_for_tiny_alpha(generator):
    shares = draw_shares(0.003, 2000, torch.device("cpu"), generator).numpy()
    assert ((shares > 0.1) & (shares < 0.9)).mean() < 0.02
    assert stats.binomtest(int((shares > 0.5).sum()), 2000, 0.5).pvalue > laws.ALPHA


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


@pytest.mark.statistical
def test_cutmix_boxes_are_uniform_over_the_image(generator):
    """A corner is covered less often than the middle, by as much as counting centres says."""
    n, size, share = 4000, 8, 0.75  # boxes of 4 by 4
    x = torch.zeros(n + 1, 1, size, size)
    x[n] = 1
    cut, _ = cutmix(x, torch.full((n + 1,), n), torch.full((n + 1,), share), generator)
    for row, column in ((0, 0), (3, 4), (7, 3)):
        covering = [sum(c - 2 <= place < c + 2 for c in range(size)) / size for place in (row, column)]
        covered = int(cut[:n, 0, row, column].sum())
        law = np.array([1 - covering[0] * covering[1], covering[0] * covering[1]])
        laws.assert_frequencies([n - covered, covered], law)
        if (row, column) == (0, 0):
            with pytest.raises(AssertionError):  # as if nothing were lost at the border
                laws.assert_frequencies([n - covered, covered], [share, 1 - share])


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


def test_draws_repeat_and_leave_the_global_stream(generator):
    model = network()
    x, _ = batch(generator, n=9)
    state = torch.get_rng_state()
    for objective in (LISA(model, CE), DomainMix(model, CE)):
        again = replay(generator)
        first, second = (objective(x, LABEL, DOMAIN, generator=g) for g in (generator, again))
        assert torch.equal(first, second)
        assert not torch.equal(first, objective(x, LABEL, DOMAIN, generator=generator))
    assert torch.equal(torch.get_rng_state(), state)


# Fish


def train_in_turn(model, optimizer, minibatches):
    for x, y in minibatches:
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("settings", [{"rate": 1.0}, {"rate": 0.0}, {}, {"rate": 0.3}, {"meta_lr": 0.6}])
def test_fish_goes_a_part_of_the_way(settings, optimizer, generator):
    """Twice, so that the optimiser's state is carried on."""
    rate = settings.get("rate", 0.6 / 3 if "meta_lr" in settings else 0.5)
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


def test_fish_of_a_linear_model_is_known(generator):
    """Least squares by gradient steps, written out."""
    model = nn.Linear(3, 1, bias=False).double()
    w = start = model.weight.detach().numpy()[0].copy()
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 1, generator=generator, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = fish_step(model, optimizer, ERM(model, nn.MSELoss()), split_by_group(x, y, UNEVEN), rate=0.25)
    losses = []
    for g in (0, 3, 7):
        a, b = x[g == UNEVEN].numpy(), y[g == UNEVEN, 0].numpy()
        losses.append(np.mean((a @ w - b) ** 2))
        w = w - 0.05 * 2 / len(a) * a.T @ (a @ w - b)
    np.testing.assert_allclose(model.weight.detach().numpy()[0], start + 0.25 * (w - start))
    np.testing.assert_allclose(float(loss), np.mean(losses))


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


def test_split_by_group_gives_every_row_once(generator):
    x, y = batch(generator)
    parts = split_by_group({"a": x, "b": 2 * x}, y, UNEVEN)
    assert [len(labels) for _, labels in parts] == [5, 4, 3]
    for g, (inputs, labels) in zip((0, 3, 7), parts, strict=True):
        assert torch.equal(inputs["a"], x[g == UNEVEN])
        assert torch.equal(inputs["b"], 2 * x[g == UNEVEN])
        assert torch.equal(labels, y[g == UNEVEN])


# in a loop


def problem(generator):
    """Three classes that can be told apart; four groups, of which the last has one row in most batches."""
    y = torch.randint(3, (120,), generator=generator)
    group = torch.randint(3, (120,), generator=generator)
    x = torch.randn(120, 3, generator=generator) + 3 * F.one_hot(y, 3) + 0.3 * group[:, None]
    group[::20] = 3
    return x, y, group


@pytest.mark.parametrize(
    "make",
    [
        lambda m: GroupDRO(m, CE, 4),
        lambda m: IRM(m, CE, penalty=1.0, anneal_steps=10),
        lambda m: IRM(m, CE, penalty=5.0, anneal_steps=10, variant="original"),
        lambda m: IBIRM(m, CE, at="1", penalty=1.0, anneal_steps=10, ib_penalty=0.1, ib_anneal_steps=10),
        lambda m: IBIRM(m, CE, at="1", variant="authors", penalty=1.0, ib_penalty=0.1, ib_anneal_steps=5),
        lambda m: VREx(m, CE, anneal_steps=10),
        lambda m: VREx(m, CE, variant="authors", penalty=5.0, anneal_steps=10),
        lambda m: CORAL(m, CE, at="1"),
        lambda m: CORAL(m, CE, at="1", variant="deep"),
        lambda m: DomainMix(m, CE),
        lambda m: LISA(m, CE),
    ],
)
def test_six_lines_of_a_loop(make, generator):
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    data = problem(generator)
    loader = [tuple(v[i : i + 20] for v in data) for i in range(0, 120, 20)]
    assert all((group == 3).sum() == 1 for _, _, group in loader)
    loader.append(tuple(v[data[2] == 1][:9] for v in data))  # one group only
    objective = make(model)
    first = objective.eval()(*data).item()
    objective.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for x, y, group in loader * 6:
        loss = objective(x, y, group, generator=generator)
        if getattr(objective, "just_annealed", False):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    assert objective.eval()(*data) < 0.6 * first


def test_fish_in_a_loop(generator):
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y, group = problem(generator)
    objective, optimizer = ERM(model, CE), torch.optim.Adam(model.parameters(), lr=0.02)
    first = objective(x, y).item()
    for _ in range(6):
        for rows in torch.arange(120).split(20):
            fish_step(model, optimizer, objective, split_by_group(x[rows], y[rows], group[rows]))
    assert objective(x, y) < 0.6 * first


# bad input


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
class TestBadInput:
    @pytest.mark.parametrize(("method", "variant"), [(IRM, "unbiased"), (VREx, "domainbed")])
    def test_unknown_settings_name_the_method(self, method, variant):
        with pytest.raises(TypeError, match=rf"{method.__name__}.__init__\(\) got an unexpected .*'penalti'"):
            method(network(), CE, penalti=1.0)
        assert (
            inspect.signature(method).parameters["variant"].default
            == variant
            == method(network(), CE).variant
        )

    def test_settings(self):
        model = network()
        with pytest.raises(ValueError, match="alpha must be finite and at least 0, but got -1"):
            DomainMix(model, CE, alpha=-1.0)
        with pytest.raises(ValueError, match="alpha must be finite"):
            LISA(model, CE, alpha=float("nan"))
        for selection in (-0.1, 1.1, float("nan")):
            with pytest.raises(ValueError, match="selection must be between 0 and 1, but got"):
                LISA(model, CE, selection=selection)
        with pytest.raises(
            ValueError, match=r"mix must be one of 'input', 'cutmix', but got 'cutmi'. Did you"
        ):
            LISA(model, CE, mix="cutmi")
        with pytest.raises(TypeError, match=r"The order is LISA\(model, loss_fn\)"):
            LISA(CE, model)

    @pytest.mark.parametrize("make", [DomainMix, LISA])
    def test_integers_cannot_be_mixed(self, make, generator):
        x, y = batch(generator)
        with pytest.raises(TypeError, match="x must be floating point"):
            make(network(), CE)(x.long(), y, UNEVEN)

    def test_cutmix_needs_images(self, generator):
        x, y = batch(generator)
        objective = LISA(network(), CE, mix="cutmix")
        with pytest.raises(ValueError, match=r"needs images .*but x is shape \(12, 3\). Use mix=\"input\""):
            objective(x, y, UNEVEN)
        with pytest.raises(ValueError, match=r"needs images .*but x is tuple"):
            objective((x, x), y, UNEVEN)

    def test_fish(self, generator):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        objective = ERM(model, CE)
        minibatches = split_by_group(*batch(generator), UNEVEN)
        with pytest.raises(TypeError, match=r"The order is fish_step\(model, optimizer, objective"):
            fish_step(optimizer, model, objective, minibatches)
        with pytest.raises(ValueError, match=r"a tuple \(x, y\) for each domain, but got none"):
            fish_step(model, optimizer, objective, [])
        with pytest.raises(ValueError, match=r"a tuple \(x, y\) for each domain, but got Tensor"):
            fish_step(model, optimizer, objective, minibatches[0])
        for rate in (-0.1, 1.5, float("nan")):
            with pytest.raises(ValueError, match="rate must be between 0 and 1"):
                fish_step(model, optimizer, objective, minibatches, rate=rate)
        with pytest.raises(ValueError, match="rate must be between 0 and 1, but got 2"):
            fish_step(model, optimizer, objective, minibatches, meta_lr=6.0)
        with pytest.raises(ValueError, match=r"Got both rate=0.5 and meta_lr=0.1"):
            fish_step(model, optimizer, objective, minibatches, rate=0.5, meta_lr=0.1)

    def test_split(self, generator):
        x, y = batch(generator)
        with pytest.raises(ValueError, match=r"group must have as many rows as x \(12\), but has 11 rows"):
            split_by_group(x, y, UNEVEN[1:])
        with pytest.raises(TypeError, match="group must hold the integer number"):
            split_by_group(x, y, UNEVEN.float())
        with pytest.raises(ValueError, match="y must have as many rows"):
            split_by_group(x, y[1:], UNEVEN)
