"""Training steps: forward, backward and optimiser, against ordinary training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica import Elliptic
from elliptica.lab.models import mlp, preact_resnet

N_TIMES = 5


def step(model: nn.Module, loss: Callable[[], Tensor], lr: float = 1e-4) -> Callable[[], None]:
    """One training step as a function without arguments."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return run


def elliptic_step(model: nn.Module, x: Tensor, y: Tensor, **settings: Any) -> Callable[[], None]:
    """A step of elliptic training on one batch."""
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=10, **settings)
    return step(model, lambda: objective(x, y))


def erm_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of ordinary training."""
    return step(model, lambda: nn.functional.cross_entropy(model(x), y))


def measure() -> Iterator[Measurement]:
    """Convolutional net and perceptron."""
    net = preact_resnet(18, 10)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    rows_x, rows_y = x.repeat(N_TIMES, 1, 1, 1), y.repeat(N_TIMES)
    path = {"sampling": "path", "n_times": N_TIMES}
    yield compare(
        "path step, PreActResNet-18, 32x32, batch 32",
        elliptic_step(net, x, y, **path),
        "ERM step on as many rows (160)",
        erm_step(net, rows_x, rows_y),
        budget=1.05,
        rounds=9,
    )
    yield compare(
        "marginal step, PreActResNet-18, 32x32, batch 32",
        elliptic_step(net, x, y),
        "ERM step on the same batch",
        erm_step(net, x, y),
        budget=1.05,
        rounds=15,
    )
    half, pairs = (x[:16], y[:16]), {**path, "n_bridges": 2, "same_partner": True}
    yield compare(
        "multiplicative weighting, PreActResNet-18, batch 16, two bridges",
        elliptic_step(net, *half, weighting="multiplicative", **pairs),
        "unweighted path step on the same rows",
        elliptic_step(net, *half, **pairs),
        budget=2.0,
        rounds=9,
    )
    small = mlp(122, 10)
    x, y = torch.randn(32, 122), torch.randint(10, (32,))
    yield compare(
        "marginal step, 128-128 MLP, 122 features, batch 32",
        elliptic_step(small, x, y),
        "ERM step on the same batch",
        erm_step(small, x, y),
        budget=1.5,
        repeats=50,
        rounds=41,
    )
