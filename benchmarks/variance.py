"""How noisy the gradient is at equal numbers of network evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
FOLLOWING = "times that follow the cycle"
#: A stochastic gradient.
Gradient = Callable[[], Tensor]


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


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Gradient]:
    """Gradients at equal cost of a network on a batch, or on a batch drawn anew if it gets all the data."""

    def of(**settings: Any) -> Gradient:
        objective = Elliptic(model, nn.MSELoss(), sigma=SIGMA, sigma_y=0.0, **settings)

        def gradient() -> Tensor:
            rows = torch.randperm(len(x))[:BATCH]
            parts = torch.autograd.grad(objective(x[rows], y[rows]), list(model.parameters()))
            return torch.cat([part.flatten() for part in parts])

        return gradient

    def with_independent_times() -> Tensor:
        with mock.patch.object(bridge, "stratified", independent):
            return strata()

    strata = of(pairing=other_pairs)
    return {
        FOLLOWING: of(),
        "independent times": with_independent_times,
        "ten points of marginal bridges": of(n_bridges=10),
        "two paths of five points": of(sampling="path", n_bridges=2),
    }


def measure() -> Iterator[Measurement]:
    """Given the batch, and with batches drawn as in training, whose own variance is the same for all.

    Times that follow the cycle hold the weight of each row, so they help while gradients at the data are
    large. After 300 steps the network fits its data, and only points between them have a gradient.
    """
    for steps, most in ((0, 0.7), (30, 0.7), (300, math.inf)):
        model, x, y = problem(steps)
        cases = [(FOLLOWING, "independent times", most)]
        cases += [("ten points of marginal bridges", "two paths of five points", 0.9)] if steps == 300 else []
        for n_rows, note in ((BATCH, "given the batch"), (len(x), "in total")):
            of = gradients(model, x[:n_rows], y[:n_rows])
            for ours, theirs, budget in cases:
                values = [_variance(of[ours]) / _variance(of[theirs]) for _ in range(REPEATS)]
                what = f"gradient variance, {ours}, {note}, after {steps} steps of training"
                yield Measurement.of(what, theirs, values, budget if n_rows == BATCH else math.inf)


def _variance(gradient: Gradient) -> float:
    """Trace of the covariance of a stochastic gradient."""
    return float(torch.stack([gradient() for _ in range(DRAWS)]).var(0).sum())
