"""How noisy the gradient is at equal numbers of network evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement
from elliptica import Elliptic, Permutation
from elliptica.core import bridge
from elliptica.lab.models import mlp

SIGMA, BATCH, FEATURES, DRAWS, REPEATS = 0.05, 64, 20, 400, 5


#: A stochastic gradient.
Gradient = Callable[[], Tensor]


def problem(steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A perceptron trained for some steps on a smooth target in 20 dimensions, and its data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, FEATURES, generator=generator)
    y = torch.sin(x @ torch.randn(FEATURES, 1, generator=generator) / FEATURES**0.5)
    torch.manual_seed(0)
    model = mlp(FEATURES, 1, hidden=(64, 64), activation="relu")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, x, y


def gradient_variance(gradient: Gradient) -> float:
    """Trace of the covariance of a stochastic gradient."""
    return float(torch.stack([gradient() for _ in range(DRAWS)]).var(0).sum())


def other_pairs(x: Tensor, y: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
    """Pair by a permutation whose cycle times cannot follow, because this function hides it."""
    return Permutation()(x, y, n_bridges, generator)


def independent(n: int, device: torch.device, generator: torch.Generator | None, scale: int) -> Tensor:
    """Return a uniform on [0, scale] for each row."""
    return torch.rand(n, device=device, generator=generator).mul_(scale)


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Gradient]:
    """Gradients at equal cost of a network on a batch, or on a batch drawn anew if it gets all the data."""
    parameters = list(model.parameters())

    def of(**settings: object) -> Gradient:
        objective = Elliptic(model, nn.MSELoss(), sigma=SIGMA, sigma_y=0.0, **settings)  # type: ignore[arg-type]

        def gradient() -> Tensor:
            rows = torch.randperm(len(x))[:BATCH]
            found = torch.autograd.grad(objective(x[rows], y[rows]), parameters)
            return torch.cat([g.flatten() for g in found])

        return gradient

    def with_independent_times() -> Tensor:
        with mock.patch.object(bridge, "stratified", independent):
            return strata()

    strata = of(pairing=other_pairs)
    return {
        "times that follow the cycle": of(),
        "independent times": with_independent_times,
        "one time in each stratum": strata,
        "ten points of marginal bridges": of(n_bridges=10),
        "two paths of five points": of(sampling="path", n_bridges=2),
    }


def measure() -> Iterator[Measurement]:
    """Given the batch, and with batches drawn as in training, whose own variance is the same for all.

    Times that follow the cycle hold the weight of each row, so they help while gradients at the data are
    large. After 300 steps the network fits its data, and only points between them have a gradient.
    """
    fast, paths, unlimited = "times that follow the cycle", "two paths of five points", float("inf")
    for steps, most in ((0, 0.7), (30, 0.7), (300, unlimited)):
        model, x, y = problem(steps)
        cases = [(fast, "independent times", most), (fast, "one time in each stratum", most)]
        cases += [("ten points of marginal bridges", paths, 0.9)] if steps == 300 else []
        for n_rows, note in ((BATCH, "given the batch"), (len(x), "in total")):
            of = gradients(model, x[:n_rows], y[:n_rows])
            names = {name for case in cases for name in case[:2]}
            found = {name: [gradient_variance(of[name]) for _ in range(REPEATS)] for name in sorted(names)}
            for ours, theirs, budget in cases:
                values = [a / b for a, b in zip(found[ours], found[theirs], strict=True)]
                what = f"gradient variance, {ours}, {note}, after {steps} steps of training"
                allowed = budget if n_rows == BATCH else unlimited
                yield Measurement.of(what, theirs, values, allowed)
