"""Networks trained side by side against the same networks one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica import Elliptic
from elliptica._utils.perceptron import make_adam, mlp
from elliptica.estimators.stacked import Job, Table, train_stack

N_CLASSES, SIGMA = 10, 0.1
#: Steps of every network in one call: two epochs.
STEPS = 32


def make_jobs(method: str, n_networks: int, x: Tensor, y: Tensor) -> list[Job]:
    """Two epochs of each network, with one of three learning rates as trials have."""
    table = Table(x, nn.functional.one_hot(y, N_CLASSES).float(), y, torch.zeros_like(y))
    rates = (1e-3, 3e-3, 1e-2)
    return [
        Job(table, np.arange(len(x)), seed, 2, method, learning_rate=rates[seed % 3])
        for seed in range(n_networks)
    ]


def stacked(jobs: list[Job], batch: int) -> None:
    """All networks at once."""
    train_stack(jobs, loss="classes", batch_size=batch)


def alone(jobs: list[Job], batch: int) -> None:
    """One network after the other by the engine of the estimators, as `EllipticClassifier.fit` trains one."""
    for job in jobs:
        train_stack([job], loss="classes", batch_size=batch)


def steps(jobs: list[Job], batch: int) -> None:
    """One network after the other, step by step as in an elliptic training loop of one's own."""
    x, y = jobs[0].table.x, jobs[0].table.label
    for _ in jobs:
        model = mlp(x.shape[1], N_CLASSES)
        loss_fn, optimizer = nn.CrossEntropyLoss(), make_adam(model.parameters(), decoupled=True)
        criterion = Elliptic(model, loss_fn, num_classes=N_CLASSES, target_space="simplex", sigma=SIGMA)
        for part in (part for _ in range(2) for part in torch.randperm(len(x)).split(batch)):
            loss = criterion(x[part], y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def measure() -> Iterator[Measurement]:
    """A step of S networks as a part of S steps of one, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for n, batch, n_features, method, loop, budget in (
        (50, 32, 122, "elliptic", steps, 0.12),
        (50, 32, 122, "elliptic", alone, 0.25),
        (50, 32, 122, "erm", alone, math.inf),
        (50, 32, 10, "elliptic", steps, 0.12),
        (200, 32, 122, "elliptic", alone, math.inf),
        (50, 256, 122, "elliptic", alone, 1.0),
    ):
        generator, n_rows = torch.Generator().manual_seed(0), batch * STEPS // 2
        x = torch.randn(n_rows, n_features, generator=generator)
        jobs = make_jobs(method, n, x, torch.randint(N_CLASSES, (n_rows,), generator=generator))
        what = f"{n} stacked networks 128-128, {method}, {n_features} features, batch {batch}"
        by = "objective(x, y)" if loop is steps else "the engine of the estimators"
        against = f"the same {n} one after the other by {by}"
        yield compare(what, partial(stacked, jobs, batch), against, partial(loop, jobs, batch), budget, 5)
    torch.set_num_threads(before)
