"""The loss of a model as a function, its least value, and the maximum principle on known functions."""

import math

import pytest
import torch
from torch import nn

from elliptica.landscape import LossField, MaximumPrinciple, check_maximum_principle
from elliptica.landscape.loss import join


class Counting(nn.Module):
    """Remembers how many rows each call had."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.rows = inner, []

    def forward(self, x):
        self.rows.append(len(x))
        return self.inner(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_loss_row_by_row(dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x, y = torch.randn(11, 4, dtype=dtype), torch.randint(3, (11,))
    losses = LossField(model, nn.CrossEntropyLoss())(x, y)
    expected = torch.stack([nn.CrossEntropyLoss()(model(x[i : i + 1]), y[i : i + 1]) for i in range(11)])
    torch.testing.assert_close(losses, expected)
    assert losses.dtype == dtype
    assert not losses.requires_grad


def test_one_hot_labels_give_the_same_cross_entropy_and_reach_other_losses():
    model, x, y = nn.Linear(4, 3).double(), torch.randn(7, 4).double(), torch.randint(3, (7,))
    plain = LossField(model, nn.CrossEntropyLoss())(x, y)
    torch.testing.assert_close(LossField(model, nn.CrossEntropyLoss(), num_classes=3)(x, y), plain)
    squared = LossField(model, nn.MSELoss(), num_classes=3)(x, y)
    expected = (model(x) - nn.functional.one_hot(y, 3)).square().mean(1)
    torch.testing.assert_close(squared, expected.detach())


def test_binary_labels_may_be_integers():
    model, x, y = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), torch.randn(7, 4), torch.randint(2, (7,))
    field = LossField(model, nn.BCEWithLogitsLoss())
    torch.testing.assert_close(field(x, y), field(x, y.float()))


def test_every_module_gets_its_mode_back_even_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model.train()
    model[1].eval()
    before, statistics = [m.training for m in model.modules()], model[1].running_mean.clone()
    field, x = LossField(model, nn.MSELoss()), torch.randn(5, 4)
    assert torch.equal(field(x, torch.zeros(5, 1)), field(x, torch.zeros(5, 1)))  # no dropout
    with pytest.raises(ValueError):
        field(x, torch.zeros(5))
    assert [m.training for m in model.modules()] == before
    assert torch.equal(model[1].running_mean, statistics)
    assert all(p.grad is None for p in model.parameters())


def test_chunks_are_even_and_change_nothing():
    model = Counting(nn.Linear(3, 1))
    x, y = torch.randn(10, 3), torch.randn(10, 1)
    whole = LossField(model, nn.MSELoss())(x, y)
    model.rows.clear()
    torch.testing.assert_close(LossField(model, nn.MSELoss(), chunk_size=4)(x, y), whole)
    assert model.rows == [4, 4, 2]


def test_several_inputs():
    class Two(nn.Module):
        def forward(self, a, b):
            return a + b

    field = LossField(Two(), nn.MSELoss())
    a, y = torch.randn(4, 2), torch.randn(4, 2)
    torch.testing.assert_close(field((a, a), y), (2 * a - y).square().mean(1))
    torch.testing.assert_close(field({"a": a, "b": a}, y), (2 * a - y).square().mean(1))


@pytest.mark.parametrize("target_shape", [(), (1,)])
def test_joint_points_are_the_same_loss(target_shape):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    if not target_shape:
        model.append(nn.Flatten(0))
    field = LossField(model, nn.MSELoss())
    x, y = torch.randn(6, 1, 2, 2), torch.randn(6, *target_shape)
    joint = field.joint(4, feature_shape=(1, 2, 2), target_shape=target_shape)
    torch.testing.assert_close(joint(join(x, y)), field(x, y))


def test_no_rows_no_call():
    model = Counting(nn.Linear(3, 1))
    assert LossField(model, nn.MSELoss())(torch.randn(0, 3), torch.randn(0, 1)).shape == (0,)
    assert model.rows == []


# The maximum principle.


def test_every_field_of_a_violation():
    result = check_maximum_principle(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 2.0, 3.0, 3.5]))
    assert result == MaximumPrinciple(
        boundary_min=1.0,
        boundary_max=3.0,
        interior_min=0.5,
        interior_max=3.5,
        share_above=0.25,
        excess=0.5,
        holds=False,
        minimum_holds=False,
    )


def disc(generator, n=4000):
    angle = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    edge = torch.stack([angle.cos(), angle.sin()], 1)
    return edge, edge * 0.9 * torch.rand(n, 1, generator=generator, dtype=torch.float64).sqrt()


@pytest.mark.parametrize(
    ("function", "maximum", "minimum"),
    [
        (lambda x, y: x**2 - y**2, True, True),  # harmonic: both
        (lambda x, y: x**2 + y**2, True, False),  # subharmonic: maximum only
        (lambda x, y: 1 - x**2 - y**2, False, True),  # superharmonic: minimum only
    ],
)
def test_functions_on_the_disc(function, maximum, minimum, generator):
    edge, inside = disc(generator)
    result = check_maximum_principle(function(*edge.T), function(*inside.T))
    assert (result.holds, result.minimum_holds) == (maximum, minimum)
