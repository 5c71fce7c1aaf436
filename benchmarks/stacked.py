"""Networks trained side by side against the same networks one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica import Elliptic
from elliptica._utils.perceptron import make_adam, mlp
from elliptica.baselines import ERM
from elliptica.estimators.fit import Rows, train_epoch
from elliptica.estimators.stacked import StackedJob, train_stacked

N_CLASSES, SIGMA = 10, 0.1
#: Steps of every network in one call.
STEPS = 32
_CPU = torch.device("cpu")

Objective = Callable[[nn.Module], nn.Module]


def elliptic(model: nn.Module) -> nn.Module:
    """The objective as a user writes it."""
    return Elliptic(model, nn.CrossEntropyLoss(), num_classes=N_CLASSES, target_space="simplex", sigma=SIGMA)


def erm(model: nn.Module) -> nn.Module:
    """Ordinary training."""
    return ERM(model, nn.CrossEntropyLoss(), num_classes=N_CLASSES)


def rows_of(n_features: int, batch: int) -> tuple[Tensor, Tensor]:
    """Rows for half of the steps: two epochs."""
    generator = torch.Generator().manual_seed(0)
    n = batch * STEPS // 2
    x = torch.randn(n, n_features, generator=generator)
    return x, torch.randint(N_CLASSES, (n,), generator=generator)


def stacked(method: str, n_networks: int, x: Tensor, y: Tensor, batch: int) -> None:
    """All networks at once, with three learning rates as trials have."""
    rates = (1e-3, 3e-3, 1e-2)
    rows = np.arange(len(x))
    jobs = [
        StackedJob(rows, 0, seed, method, {"max_iter": 2, "learning_rate": rates[seed % 3]})
        for seed in range(n_networks)
    ]
    train_stacked([x], [y], jobs, loss="classes", n_outputs=N_CLASSES, batch_size=batch)


def steps(objective: Objective, n_networks: int, x: Tensor, y: Tensor, batch: int) -> None:
    """One network after the other, step by step as in a training loop of one's own."""
    for _ in range(n_networks):
        model = mlp(x.shape[1], N_CLASSES)
        criterion, optimizer = objective(model), make_adam(model.parameters(), decoupled=True)
        for _ in range(2):
            for part in torch.randperm(len(x)).split(batch):
                loss = criterion(x[part], y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def epochs(objective: Objective, n_networks: int, x: Tensor, y: Tensor, batch: int) -> None:
    """One network after the other by the loop of the estimators, which draws many steps at once."""
    rows = Rows(x, y, None)
    for seed in range(n_networks):
        model = mlp(x.shape[1], N_CLASSES)
        criterion, optimizer = objective(model), make_adam(model.parameters(), decoupled=True)
        for epoch in range(2):
            train_epoch(criterion, optimizer, rows, batch_size=batch, seed=seed, epoch=epoch, device=_CPU)


def measure() -> Iterator[Measurement]:
    """A step of S networks as a part of S steps of one, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _measure()
    finally:
        torch.set_num_threads(before)


def _measure() -> Iterator[Measurement]:
    cases = [
        (50, 32, 122, "elliptic", elliptic, steps, 0.12),
        (50, 32, 122, "elliptic", elliptic, epochs, math.inf),
        (50, 32, 122, "erm", erm, epochs, math.inf),
        (50, 32, 10, "elliptic", elliptic, steps, 0.12),
        (50, 32, 10, "elliptic", elliptic, epochs, math.inf),
        (10, 32, 122, "elliptic", elliptic, epochs, math.inf),
        (200, 32, 122, "elliptic", elliptic, epochs, math.inf),
        (50, 256, 122, "elliptic", elliptic, epochs, 1.0),
        (50, 512, 122, "elliptic", elliptic, epochs, 1.0),
    ]
    for n, batch, n_features, method, objective, loop, budget in cases:
        x, y = rows_of(n_features, batch)
        by = "objective(x, y)" if loop is steps else "the estimators' loop"

        def ours(n: int = n, m: str = method, x: Tensor = x, y: Tensor = y, batch: int = batch) -> None:
            stacked(m, n, x, y, batch)

        def theirs(
            n: int = n,
            objective: Objective = objective,
            loop: Callable[..., None] = loop,
            x: Tensor = x,
            y: Tensor = y,
            batch: int = batch,
        ) -> None:
            loop(objective, n, x, y, batch)

        yield compare(
            f"{n} stacked networks 128-128, {method}, {n_features} features, batch {batch}",
            ours,
            f"the same {n} one after the other by {by}",
            theirs,
            budget=budget,
            rounds=5,
        )
