"""How noisy the gradient is at equal numbers of network evaluations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement
from elliptica import Elliptic
from elliptica.lab.models import mlp

SIGMA, BATCH, FEATURES, DRAWS, REPEATS = 0.05, 64, 20, 400, 5


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """A perceptron trained for 300 steps on a smooth target in 20 dimensions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, FEATURES, generator=generator)
    y = torch.sin(x @ torch.randn(FEATURES, 1, generator=generator) / FEATURES**0.5)
    torch.manual_seed(0)
    model = mlp(FEATURES, 1, hidden=(64, 64), activation="relu")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(300):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, x[:BATCH], y[:BATCH]


def gradient_variance(gradient: Callable[[], Tensor]) -> float:
    """Trace of the covariance of a stochastic gradient."""
    return float(torch.stack([gradient() for _ in range(DRAWS)]).var(0).sum())


def measure() -> Iterator[Measurement]:
    """Given the pairs, and with the pairs drawn as in training."""
    model, x, y = problem()
    parameters = list(model.parameters())

    def gradient(objective: Elliptic, partners: Tensor | None) -> Tensor:
        loss = objective(x, y, partners=partners)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def ratio(ours: dict[str, Any], theirs: dict[str, Any], fixed: bool) -> list[float]:
        values = []
        for repeat in range(REPEATS):
            pairs = torch.arange(BATCH).roll(repeat + 1) if fixed else None
            variances = []
            for settings in (ours, theirs):
                objective = Elliptic(model, nn.MSELoss(), sigma=SIGMA, sigma_y=0.0, **settings)
                variances.append(gradient_variance(lambda o=objective, p=pairs: gradient(o, p)))
            values.append(variances[0] / variances[1])
        return values

    paths = {"sampling": "path", "n_times": 5, "n_bridges": 2}
    cases = {
        "marginal": ({"sampling": "marginal", "n_bridges": 10}, 0.9),
        "antithetic paths": ({**paths, "antithetic": True}, 0.3),
    }
    for name, (settings, budget) in cases.items():
        for fixed, note in ((True, "pairs given"), (False, "pairs drawn")):
            values = ratio(settings, paths, fixed)
            low, _, high = statistics.quantiles(values, n=4)
            yield Measurement(
                f"gradient variance, {name}, {note}, sigma {SIGMA}",
                "two independent paths, 10 evaluations per sample",
                statistics.median(values),
                low,
                high,
                budget,
            )
