"""Networks trained side by side against the same networks one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica import Elliptic
from elliptica._utils.perceptron import make_adam, mlp
from elliptica.baselines import ERM
from elliptica.estimators.stacked import Job, Table, train_stack

N_CLASSES, SIGMA = 10, 0.1
#: Steps of every network in one call.
STEPS = 32


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


def job(method: str, seed: int, x: Tensor, y: Tensor) -> Job:
    """Two epochs of a network, with one of three learning rates as trials have."""
    table = Table(x, nn.functional.one_hot(y, N_CLASSES).float(), y, torch.zeros_like(y))
    return Job(table, np.arange(len(x)), seed, 2, method, learning_rate=(1e-3, 3e-3, 1e-2)[seed % 3])


def stacked(method: str, n_networks: int, x: Tensor, y: Tensor, batch: int) -> None:
    """All networks at once."""
    first = job(method, 0, x, y)
    jobs = [replace(job(method, seed, x, y), table=first.table) for seed in range(n_networks)]
    train_stack(jobs, loss="classes", batch_size=batch)


def steps(method: str, n_networks: int, x: Tensor, y: Tensor, batch: int) -> None:
    """One network after the other, step by step as in a training loop of one's own."""
    objective = {"elliptic": elliptic, "erm": erm}[method]
    for _ in range(n_networks):
        model = mlp(x.shape[1], N_CLASSES)
        criterion, optimizer = objective(model), make_adam(model.parameters(), decoupled=True)
        for _ in range(2):
            for part in torch.randperm(len(x)).split(batch):
                loss = criterion(x[part], y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def alone(method: str, n_networks: int, x: Tensor, y: Tensor, batch: int) -> None:
    """One network after the other by the engine of the estimators, as `EllipticClassifier.fit` trains one."""
    for seed in range(n_networks):
        train_stack([job(method, seed, x, y)], loss="classes", batch_size=batch)


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
        (50, 32, 122, "elliptic", steps, 0.12),
        (50, 32, 122, "elliptic", alone, 0.25),
        (50, 32, 122, "erm", alone, math.inf),
        (50, 32, 10, "elliptic", steps, 0.12),
        (200, 32, 122, "elliptic", alone, math.inf),
        (50, 256, 122, "elliptic", alone, 1.0),
    ]
    for n, batch, n_features, method, loop, budget in cases:
        x, y = rows_of(n_features, batch)
        by = "objective(x, y)" if loop is steps else "the engine of the estimators"
        arguments = (method, n, x, y, batch)
        yield compare(
            f"{n} stacked networks 128-128, {method}, {n_features} features, batch {batch}",
            partial(stacked, *arguments),
            f"the same {n} one after the other by {by}",
            partial(loop, *arguments),
            budget=budget,
            rounds=5,
        )
