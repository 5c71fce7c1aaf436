"""The least loss that a target allows, against optimisation of the output."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica.landscape.loss import excess_loss, least_loss


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]), label_smoothing=0.1),
        functools.partial(F.cross_entropy, label_smoothing=0.2, reduction="none"),
        F.cross_entropy,
        nn.BCEWithLogitsLoss(),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0, 0.3]), weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.MSELoss(),
    ],
    ids=["ce", "ce weighted", "ce partial", "ce function", "bce", "bce weighted", "mse"],
)
def test_least_loss_is_what_optimisation_reaches(loss_fn, generator):
    target = torch.rand(4, 3, generator=generator).double()
    target = target / target.sum(1, keepdim=True)
    loss_fn = copy.deepcopy(loss_fn).double() if isinstance(loss_fn, nn.Module) else loss_fn
    least = least_loss(loss_fn, target)
    output = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([output], max_iter=200, line_search_fn="strong_wolfe")
    excess = excess_loss(loss_fn)

    def step():
        optimizer.zero_grad()
        total = excess(output, target).sum()
        total.backward()
        return total

    optimizer.step(step)
    assert float(excess(output, target).detach().abs().max()) < 1e-5
    assert bool((excess(torch.randn(4, 3, generator=generator).double(), target) >= -1e-12).all())
    assert least.shape == (4,)


def test_losses_that_are_not_known_have_no_floor():
    class Own(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return super().forward(output, target) ** 2

    target = torch.tensor([[0.5, 0.5]])
    assert least_loss(Own(), target) is None
    assert least_loss(functools.partial(F.cross_entropy, torch.zeros(1, 2)), target) is None
