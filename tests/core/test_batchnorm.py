"""Running statistics under each context, against a computation by hand; state is always restored."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from elliptica.core.batchnorm import (
    BATCH_NORM_MODES,
    frozen_statistics,
    path_statistics,
    recompute_statistics,
    shadow_statistics,
    tracking_layers,
    untracked_statistics,
)

CONTEXTS = [frozen_statistics, untracked_statistics, shadow_statistics]


def network():
    return nn.Sequential(
        nn.Linear(3, 4),
        nn.BatchNorm1d(4, momentum=0.3),
        nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4, momentum=None)),
        nn.Unflatten(1, (2, 2)),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Flatten(),
        nn.LayerNorm(4),
    ).double()


@pytest.fixture
def model(generator):
    """A network whose statistics are not the initial ones."""
    model = network()
    for _ in range(3):
        model(torch.randn(8, 3, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture
def x(generator):
    return 3 + 2 * torch.randn(16, 3, generator=generator, dtype=torch.float64)


def state(model):
    flags = [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]
    buffers = {name: (id(value), value.clone()) for name, value in model.named_buffers()}
    return flags, buffers


def assert_same_state(before, after):
    assert before[0] == after[0]
    assert before[1].keys() == after[1].keys()
    for name, (identity, value) in before[1].items():
        assert after[1][name][0] == identity, f"{name} is another tensor"
        assert torch.equal(after[1][name][1], value), f"{name} changed"


@pytest.mark.parametrize("context", CONTEXTS)
def test_nothing_is_recorded_and_all_is_restored(context, model, x):
    before = state(model)
    with context(model):
        model(x)
        model(x)
    assert_same_state(before, state(model))


@pytest.mark.parametrize("context", CONTEXTS)
def test_state_is_restored_after_an_exception(context, model, x):
    before = state(model)

    def use():
        with context(model):
            model(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert_same_state(before, state(model))


@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts_nest(context, model, x):
    before = state(model)
    for outer in CONTEXTS:
        with outer(model), context(model):
            model(x)
        assert_same_state(before, state(model))


def test_the_test_has_teeth(model, x):
    """Without a context statistics do move, of every layer."""
    before = state(model)
    model(x)
    after = state(model)
    for name, (_, value) in before[1].items():
        if "4.num_batches" not in name:  # an instance norm does not count batches
            assert not torch.equal(after[1][name][1], value), name


def by_hand(layer, x, mean, variance):
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


def test_frozen_uses_running_statistics(generator):
    layer = nn.BatchNorm1d(3).double()
    layer(torch.randn(8, 3, generator=generator, dtype=torch.float64))
    x = 5 + torch.randn(8, 3, generator=generator, dtype=torch.float64)
    expected = by_hand(layer, x, layer.running_mean, layer.running_var)
    with frozen_statistics(layer):
        assert torch.allclose(layer(x), expected)
    assert layer.training


@pytest.mark.parametrize("context", [untracked_statistics, shadow_statistics])
def test_untracked_uses_the_batch(context, generator):
    layer = nn.BatchNorm1d(3).double()
    x = 5 + torch.randn(8, 3, generator=generator, dtype=torch.float64)
    expected = by_hand(layer, x, x.mean(0), x.var(0, unbiased=False))
    with context(layer):
        assert torch.allclose(layer(x), expected)


def test_tracked_statistics_by_hand(x):
    """The ordinary update, momentum 0.3, for reference."""
    layer = nn.BatchNorm1d(3, momentum=0.3).double()
    with path_statistics("paths", layer):
        layer(x)
    assert torch.allclose(layer.running_mean, 0.3 * x.mean(0))
    assert torch.allclose(layer.running_var, 0.7 + 0.3 * x.var(0))


@pytest.mark.parametrize("context", [untracked_statistics, shadow_statistics])
def test_training_output_is_the_same(context, model, x):
    expected = copy.deepcopy(model)(x)
    with context(model):
        assert torch.allclose(model(x), expected)


def test_layers_in_evaluation_stay_there(model, x):
    """A user who froze one layer keeps it frozen, inside and after."""
    frozen = model[1].eval()
    expected = copy.deepcopy(model)(x)
    assert frozen not in tracking_layers(model)
    assert len(tracking_layers(model)) == 2
    for context in (untracked_statistics, shadow_statistics):
        with context(model):
            assert torch.allclose(model(x), expected)
        assert not frozen.training
    with frozen_statistics(model):
        pass
    assert not frozen.training
    assert tracking_layers(model.eval()) == []


def test_layers_without_statistics_are_left_alone(x):
    layer = nn.BatchNorm1d(3, track_running_stats=False).double()
    expected = layer(x)
    for context in CONTEXTS:
        with context(layer):
            assert torch.equal(layer(x), expected)
        assert layer.running_mean is None
        assert layer.track_running_stats is False


def test_modes(model, x):
    """What each mode records of path points, in the first pass and when a chunk is recomputed."""
    assert BATCH_NORM_MODES == ("paths", "clean", "frozen")
    for mode in BATCH_NORM_MODES:
        once = copy.deepcopy(model)
        before = state(once)
        with path_statistics(mode, once):
            first = once(x)
        if mode == "paths":
            assert not torch.equal(once[1].running_mean, before[1]["1.running_mean"][1])
        else:
            assert_same_state(before, state(once))
        recorded = state(once)
        with recompute_statistics(mode, once):
            second = once(x)
        assert_same_state(recorded, state(once))
        assert torch.allclose(first, second)  # the gradient of a chunk needs the same activations
    assert isinstance(path_statistics("paths", model), contextlib.nullcontext)


def test_gradients_flow(model, x):
    for context in CONTEXTS:
        model.zero_grad()
        with context(model):
            model(x).square().sum().backward()
        assert torch.isfinite(model[0].weight.grad).all()
        assert model[0].weight.grad.abs().max() > 0
