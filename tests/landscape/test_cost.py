"""The cost of a step: rows and flops counted by hand."""

import pytest
import torch
from torch import nn

from elliptica import Elliptic
from elliptica.landscape import step_cost


def perceptron():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))


@pytest.mark.parametrize(
    ("settings", "rows", "back_to_inputs"),
    [
        ({"sampling": "marginal"}, 10, False),
        ({"sampling": "path", "n_times": 3}, 30, False),
        ({"sampling": "path", "n_times": 3, "n_bridges": 2, "weighting": "multiplicative"}, 60, True),
    ],
    ids=["marginal", "path", "weighted"],
)
def test_operations_of_a_perceptron_by_hand(settings, rows, back_to_inputs):
    """Two for each product; without a weighting the first layer needs no gradient of its inputs."""
    x, y = torch.randn(10, 20), torch.randint(5, (10,))
    cost = step_cost(Elliptic(perceptron(), nn.CrossEntropyLoss(), num_classes=5, **settings), x, y)
    first, last = 2 * 20 * 64, 2 * 64 * 5
    each = 2 * first + 3 * last + back_to_inputs * (2 * first + last)
    assert cost.rows == rows
    assert cost.flops == pytest.approx(rows * each, rel=0.002)  # and the noise of a path
    assert cost.ordinary_flops == 10 * (2 * first + 3 * last)
    assert cost.ratio == cost.flops / cost.ordinary_flops


def test_nothing_of_the_callers_is_changed():
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=5).eval()
    state = torch.get_rng_state()
    text = str(step_cost(objective, torch.randn(6, 20), torch.arange(6) % 5))
    assert "flops" in text
    torch.set_rng_state(state)
    torch.randn(6, 20)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
