"""C-Mixup on data of Airfoil's size: one table and one look-up per batch against the reference's design."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.neighbors import KernelDensity
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica.baselines import CMixup, TargetKernel
from elliptica.lab.models import mlp

N_ROWS, N_FEATURES, BATCH, EPOCHS, BANDWIDTH = 1003, 5, 16, 100, 1.75
#: From rows of a batch to their partners.
Draw = Callable[[Tensor], Tensor]


def ours(y: Tensor) -> Draw:
    """One table of cumulated weights; a batch is one look-up."""
    return TargetKernel(y, BANDWIDTH).sample


def reference(y: Tensor) -> Draw:
    """One kernel density per sample, and one draw per row in a Python loop."""
    targets = y.numpy()
    table = np.empty((N_ROWS, N_ROWS))
    for i in range(N_ROWS):
        density = KernelDensity(kernel="gaussian", bandwidth=BANDWIDTH).fit(targets[i : i + 1])
        weight = np.exp(density.score_samples(targets))
        table[i] = weight / weight.sum()
    return lambda rows: torch.tensor([np.random.choice(N_ROWS, p=table[i]) for i in rows.tolist()])  # noqa: NPY002


def batches() -> Iterator[Tensor]:
    """The rows of every step of a training."""
    for _ in range(EPOCHS):
        yield from torch.randperm(N_ROWS).split(BATCH)[: N_ROWS // BATCH]


def measure() -> Iterator[Measurement]:
    """What C-Mixup adds to a training of Airfoil, and the whole training, with the same number of steps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N_ROWS, N_FEATURES, generator=generator)
    y = 125 + 7 * torch.randn(N_ROWS, 1, generator=generator)

    def partners(prepare: Callable[[Tensor], Draw]) -> None:
        draw = prepare(y)
        for rows in batches():
            draw(rows)

    def train(prepare: Callable[[Tensor], Draw]) -> None:
        draw = prepare(y)
        model = mlp(N_FEATURES, 1)
        objective = CMixup(model, nn.MSELoss(), bandwidth=BANDWIDTH, at="1")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for rows in batches():
            j = draw(rows)
            optimizer.zero_grad()
            objective(x[rows], y[rows], end=(x[j], y[j])).backward()
            optimizer.step()

    steps = EPOCHS * (N_ROWS // BATCH)
    yield compare(
        f"C-Mixup's partners, {N_ROWS} rows: prepared, then drawn for {steps} batches of {BATCH}",
        lambda: partners(ours),
        "one kernel density per sample, partners drawn in a Python loop",
        lambda: partners(reference),
        budget=0.2,
        rounds=3,
    )
    yield compare(
        f"the whole training by C-Mixup, {steps} steps of a small perceptron",
        lambda: train(ours),
        "the same with the partners of the reference's design",
        lambda: train(reference),
        budget=0.2,
        rounds=3,
    )
