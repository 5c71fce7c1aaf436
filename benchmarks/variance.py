"""How noisy the gradient is at equal numbers of network evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.steps import step
from benchmarks.timing import Measurement
from elliptica import Elliptic, Permutation
from elliptica.core import bridge
from elliptica.lab.models import mlp

SIGMA, BATCH, FEATURES, DRAWS, REPEATS = 0.05, 64, 20, 400, 5


def problem(steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A perceptron trained for some steps on a smooth target in 20 dimensions, and its data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, FEATURES, generator=generator)
    y = torch.sin(x @ torch.randn(FEATURES, 1, generator=generator) / FEATURES**0.5)
    torch.manual_seed(0)
    model = mlp(FEATURES, 1, hidden=(64, 64), activation="relu")
    ordinary = step(model, lambda: nn.functional.mse_loss(model(x), y), 1e-3)
    for _ in range(steps):
        ordinary()
    return model, x, y


def other_pairs(x: Tensor, y: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
    """Pair by a permutation whose cycle times cannot follow, because this function hides it."""
    return Permutation()(x, y, n_bridges, generator)


def independent(n: int, device: torch.device, generator: torch.Generator | None, scale: int) -> Tensor:
    """Return a uniform on [0, scale] for each row."""
    return torch.rand(n, device=device, generator=generator).mul_(scale)


def variance_ratio(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Times that follow the cycle against independent ones, on a batch, drawn anew if there are more rows."""

    def variance(**settings: Any) -> float:
        """Trace of the covariance of the stochastic gradient."""
        objective = Elliptic(model, nn.MSELoss(), sigma=SIGMA, sigma_y=0.0, **settings)
        draws = []
        for _ in range(DRAWS):
            rows = torch.randperm(len(x))[:BATCH]
            parts = torch.autograd.grad(objective(x[rows], y[rows]), list(model.parameters()))
            draws.append(torch.cat([part.flatten() for part in parts]))
        return float(torch.stack(draws).var(0).sum())

    with mock.patch.object(bridge, "stratified", independent):
        others = variance(pairing=other_pairs)
    return variance() / others


def measure() -> Iterator[Measurement]:
    """Given the batch, and with batches drawn as in training, whose own variance is the same for both.

    Times that follow the cycle hold the weight of each row, so they help while gradients at the data are
    large. After 300 steps the network fits its data, and only points between them have a gradient.
    """
    for steps, budget in ((0, 0.7), (30, 0.7), (300, math.inf)):
        model, x, y = problem(steps)
        for n_rows, note, most in ((BATCH, "given the batch", budget), (len(x), "in total", math.inf)):
            ratios = [variance_ratio(model, x[:n_rows], y[:n_rows]) for _ in range(REPEATS)]
            what = f"gradient variance, times that follow the cycle, {note}, after {steps} steps of training"
            yield Measurement.of(what, "independent times", ratios, most)
