"""The draws of a step: their order, what one permutation serves, and that gradients pass through them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from torch import nn

from elliptica import BridgeMix, Elliptic, sample_bridge, sample_paths
from elliptica.core import bridge
from elliptica.core.bridge import draw_bridges, is_single
from elliptica.core.epoch import epoch_paths
from elliptica.core.inputs import read_batch
from elliptica.core.partners import choose_ends, random_cycles

CPU = torch.device("cpu")
SPACES = {
    "simplex": {"target_space": "simplex", "num_classes": 3},
    "unit": {"target_space": "unit"},
    "real": {"target_space": "real"},
}


def batch_of(space, generator, rows=7, dtype=torch.float32):
    """Inputs and targets of a space."""
    x = torch.randn(rows, 2, 3, generator=generator, dtype=dtype)
    if space == "simplex":
        return x, torch.randint(3, (rows,), generator=generator)
    return x, torch.rand(rows, 2, generator=generator, dtype=dtype)


# The short cut of a plain step


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("noise", [(0.3, 0.2), (0.3, 0.0), (0.0, 0.2), (0.0, 0.0)])
@pytest.mark.parametrize(("rows", "strength"), [(1, 1.0), (2, 1.0), (7, 1.0), (7, 0.25)])
def test_the_short_cut_draws_what_the_general_way_draws(space, noise, rows, strength, generator):
    """To the bit, so that which of them runs is not part of anybody's result."""
    x, y = batch_of(space, generator, rows)
    how = {"sigma": noise[0], "sigma_y": noise[1], "horizon": 0.7, "n_times": 4, **SPACES[space]}
    if strength != 1.0:
        how["schedule"] = lambda _epoch: strength
    objective = Elliptic(nn.Identity(), nn.L1Loss(), **how)
    objective.set_epoch(0)
    state = generator.get_state()
    batch = read_batch(x, y, None, objective.settings)
    assert is_single(batch, objective.settings)
    short = objective.sample(x, y, generator=generator)
    after = generator.get_state()
    generator.set_state(state)
    ends = choose_ends(batch, objective.settings, generator=generator)
    general = draw_bridges(batch, ends, objective.settings, strength=strength, generator=generator)
    assert torch.equal(after, generator.get_state())
    for name in ("x", "y", "s", "free_y"):
        assert torch.equal(getattr(short, name), getattr(general, name)), name
    assert (short.variance, short.variance_y) == (general.variance, general.variance_y)
    if space == "simplex":
        assert torch.equal(short.labels, nn.functional.one_hot(y, 3).float())
    else:
        assert short.labels is None


@pytest.mark.parametrize("epochs", [False, True])
def test_class_weights_divide_by_those_of_the_batchs_labels(epochs, generator):
    """By default, in float32: the short cut, and the points of an epoch, carry the labels along."""
    x, y = torch.randn(7, 4, generator=generator), torch.tensor([0, 0, 0, 0, 1, 2, 2])
    weight, model = torch.tensor([0.2, 1.0, 5.0]), nn.Linear(4, 3)
    objective = Elliptic(model, nn.CrossEntropyLoss(weight=weight), target_space="simplex")
    if epochs:
        (paths,) = epoch_paths(objective.settings, x, y, torch.randperm(7), 7, generator=generator)
    else:
        paths = objective.sample(x, y, generator=generator)
    at, target = paths.x[:, 0, 0], paths.y[:, 0, 0]
    total = -(target * weight * model(at).log_softmax(1)).sum()
    torch.testing.assert_close(objective.loss_on(paths), total / weight[y].sum())
    soft = objective.sample(x, nn.functional.one_hot(y, 3).float(), generator=generator)
    at, target = soft.x[:, 0, 0], soft.y[:, 0, 0]
    total = -(target * weight * model(at).log_softmax(1)).sum()
    torch.testing.assert_close(objective.loss_on(soft), total / 7)  # torch's rule for soft targets


def test_the_short_cut_is_taken_by_default_and_left_where_it_does_not_hold(monkeypatch, generator):
    x, y = batch_of("simplex", generator)
    taken = []
    draw = bridge.draw_single_points
    monkeypatch.setattr("elliptica.core.elliptic.draw_single_points", lambda *a: taken.append(1) or draw(*a))
    loss = nn.CrossEntropyLoss()
    Elliptic(nn.Identity(), loss, num_classes=3).sample(x, y)
    assert taken == [1]
    for settings in (
        {"n_bridges": 2},
        {"sampling": "path"},
        {"pairing": "inverse_distance"},
        {"among": "same_class"},
        {"quadrature": "left"},
        {"quadrature": "uniform"},
        {"sigma": torch.ones(3)},
        {"sigma": "auto"},
        {"sigma_y": torch.ones(3)},
    ):
        Elliptic(nn.Identity(), loss, num_classes=3, **settings).sample(x, y)
    objective = Elliptic(nn.Identity(), loss, num_classes=3)
    objective.sample(x, y, partners=torch.zeros(7, dtype=torch.long))
    objective.sample(x, y, end=(x, y))
    objective.sample(x, y, sample_weight=torch.ones(7))
    objective.sample(x.double(), y)
    assert taken == [1]


# One permutation serves partners and strata


def joint_law(n, monkeypatch, cycles):
    """Count (partner, stratum) of the first row over every order of ``n`` rows, as the library draws them."""
    orders = iter(itertools.permutations(range(n)))
    monkeypatch.setattr(
        "elliptica.core.partners.draw_permutation", lambda *_, **__: torch.tensor(next(orders))
    )
    count = Counter()
    for _ in range(len(list(itertools.permutations(range(n))))):
        places, partners = cycles(n, 1, device=CPU, generator=None)
        assert sorted(places[0].tolist()) == list(range(n))
        count[int(partners[0, 0]), int(places[0, 0])] += 1
    return count


@pytest.mark.parametrize("n", [2, 3, 5])
def test_partner_and_stratum_of_a_row_are_independent_and_uniform(n, monkeypatch):
    """By enumeration of all orders: exact, not statistical."""
    count = joint_law(n, monkeypatch, random_cycles)
    assert len(count) == (n - 1) * n
    assert len(set(count.values())) == 1


def test_the_enumeration_rejects_a_stratum_that_follows_the_partner(monkeypatch):
    def wrong(*args, **more):
        _, partners = random_cycles(*args, **more)
        return partners, partners

    assert len(joint_law(4, monkeypatch, wrong)) != 3 * 4


def test_one_call_draws_the_normals_of_inputs_and_targets(monkeypatch, generator):
    calls = []
    draw = bridge.draw_normal
    monkeypatch.setattr(
        bridge, "draw_normal", lambda shape, **more: calls.append(shape) or draw(shape, **more)
    )
    x, y = batch_of("real", generator)
    for sampling in ("marginal", "path"):
        Elliptic(nn.Identity(), nn.MSELoss(), sampling=sampling, n_times=4, n_bridges=2).sample(x, y)
    assert len(calls) == 2


# Gradients reach what stands in front


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("sigma", [0.0, 0.3, "auto", torch.tensor([0.1, 0.2, 0.3])])
def test_gradients_pass_through_sample_bridge(sigma, antithetic, generator):
    """At time s the gradient is 1 - s of the start and s of the end; points do not change."""
    start, end = (torch.randn(4, 3, generator=generator) for _ in range(2))
    how = {"sigma": sigma, "n_times": 5, "n_bridges": 2, "antithetic": antithetic}
    state = generator.get_state()
    plain = sample_bridge(start, end, **how, generator=generator)
    generator.set_state(state)
    ends = start.requires_grad_(), end.requires_grad_()
    paths = sample_bridge(*ends, **how, generator=generator)
    assert not plain.requires_grad
    torch.testing.assert_close(paths.detach(), plain)
    slopes = torch.autograd.grad(paths[:, :, 1].sum(), ends)
    torch.testing.assert_close(slopes[0], torch.full((4, 3), 1.5))  # two bridges, a quarter of the way
    torch.testing.assert_close(slopes[1], torch.full((4, 3), 0.5))
    with torch.no_grad():
        assert not sample_bridge(*ends, **how).requires_grad


@pytest.mark.parametrize("sampling", ["marginal", "path"])
@pytest.mark.parametrize("n_bridges", [1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_gradients_reach_inputs_soft_targets_and_weights(space, sampling, n_bridges):
    """Against finite differences, in float64, with the draws held fixed; float32 takes the short cut."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3 if space == "simplex" else 2), nn.Tanh()).double()
    loss = nn.CrossEntropyLoss() if space == "simplex" else nn.MSELoss()
    settings = {"sampling": sampling, "n_bridges": n_bridges, "n_times": 4, "sigma": 0.3, "sigma_y": 0.05}
    objective = Elliptic(model, loss, target_space=space, **settings)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(4, 3 if space == "simplex" else 2, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    weight = torch.rand(4, generator=generator, dtype=torch.float64).add_(0.5).requires_grad_()

    def loss_of(x, logits, weight):
        y = logits.softmax(1) if space == "simplex" else logits.sigmoid()
        seed = torch.Generator().manual_seed(5)
        return objective(x, y, sample_weight=weight, generator=seed)

    assert torch.autograd.gradcheck(loss_of, (x, logits, weight))


def test_an_encoder_in_front_is_trained_as_one_behind_would_be(generator):
    """With straight lines and equal ends a linear encoder commutes with the bridge."""
    encoder, head = nn.Linear(3, 3, bias=False), nn.Linear(3, 2)
    x, y = torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator)
    state = generator.get_state()
    Elliptic(head, nn.MSELoss(), sigma=0.0)(encoder(x), y, generator=generator).backward()
    front = encoder.weight.grad.clone()
    encoder.zero_grad()
    generator.set_state(state)
    Elliptic(nn.Sequential(encoder, head), nn.MSELoss(), sigma=0.0)(x, y, generator=generator).backward()
    torch.testing.assert_close(front, encoder.weight.grad)
    assert front.abs().max() > 0


def test_bridgemix_and_sample_paths_carry_gradients(generator):
    x = torch.randn(5, 2, generator=generator, requires_grad=True)
    y = torch.randn(5, 1, generator=generator, requires_grad=True)
    mixed_x, mixed_y = BridgeMix(target_space="real")(x, y, generator=generator)
    assert mixed_x.requires_grad
    assert mixed_y.requires_grad
    paths = sample_paths(x, y, target_space="real", generator=generator)
    assert paths.x.requires_grad
    assert paths.y.requires_grad
    with torch.no_grad():
        assert not BridgeMix(target_space="real")(x, y)[0].requires_grad
    assert not BridgeMix(target_space="real")(x.detach(), y.detach())[0].requires_grad


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["sigma", "sigma_y"])
def test_noise_is_not_learnt(name):
    learnable = torch.full((2,), 0.1, requires_grad=True)
    with pytest.raises(ValueError, match=rf"{name} requires a gradient.*Pass {name}.detach\(\)"):
        Elliptic(nn.Linear(2, 2), nn.MSELoss(), **{name: learnable})


# Noise on targets


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(nn.CrossEntropyLoss(), 0.0), (nn.BCEWithLogitsLoss(), 0.0), (nn.MSELoss(), 0.2), (nn.L1Loss(), 0.2)],
)
def test_classes_get_no_noise_and_real_targets_that_of_the_inputs(loss, expected):
    assert Elliptic(nn.Linear(2, 2), loss, sigma=0.2).sigma_y == expected
    assert Elliptic(nn.Linear(2, 2), loss, sigma=0.2, sigma_y=0.1).sigma_y == 0.1
    assert Elliptic(nn.Linear(2, 2), loss, sigma=torch.ones(2)).sigma_y == 0.0


def test_an_unknown_loss_settles_the_noise_with_the_first_targets(generator):
    def loss(output, target):
        return (output - target).square().sum(1)

    x, labels = torch.randn(4, 3, generator=generator), torch.tensor([0, 1, 2, 0])
    classes = Elliptic(nn.Identity(), loss, num_classes=3, sigma=0.2)
    assert classes.sigma_y is None
    classes(x, labels)
    assert classes.sigma_y == 0.0
    real = Elliptic(nn.Identity(), loss, target_space="real", sigma=0.2)
    assert real.sigma_y == 0.2


def test_the_paper_has_whole_paths_and_noise_on_labels():
    paper = Elliptic.paper(nn.Linear(2, 3), nn.CrossEntropyLoss(), num_classes=3, sigma=0.1, n_times=10)
    assert (paper.sampling, paper.sigma_y, paper.n_times, paper.simplex) == ("path", 0.1, 10, "abs")
    assert Elliptic.paper(nn.Linear(2, 3), nn.CrossEntropyLoss(), num_classes=3).sigma_y == 0.05
    given = Elliptic.paper(nn.Linear(2, 2), nn.MSELoss(), sampling="marginal", sigma_y=0.0)
    assert (given.sampling, given.sigma_y) == ("marginal", 0.0)
    assert Elliptic.paper(nn.Linear(3, 2), nn.MSELoss(), sigma="green", sigma_y=0.2).sigma_y == 0.2
    for sigma in ("green", "auto", torch.ones(3)):  # as strong on targets as what?
        with pytest.raises(ValueError, match="Pass sigma_y= as well"):
            Elliptic.paper(nn.Linear(3, 2), nn.MSELoss(), sigma=sigma)
