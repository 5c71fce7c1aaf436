"""C-Mixup on data of Airfoil's size: one table and one look-up per batch against the reference's design."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.neighbors import KernelDensity
from torch import nn

from benchmarks.timing import Measurement, compare
from elliptica.baselines import CMixup, TargetKernel
from elliptica.models import mlp

N_ROWS, N_FEATURES, BATCH, EPOCHS, BANDWIDTH = 1003, 5, 16, 5, 1.75


def measure() -> Iterator[Measurement]:
    """Set-up and five epochs of both, on the same network."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N_ROWS, N_FEATURES, generator=generator)
    y = 125 + 7 * torch.randn(N_ROWS, 1, generator=generator)

    def train(partners: Callable[[torch.Tensor], torch.Tensor]) -> None:
        model = mlp(N_FEATURES, 1)
        objective = CMixup(model, nn.MSELoss(), bandwidth=BANDWIDTH, at="1")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(EPOCHS):
            for rows in torch.randperm(N_ROWS).split(BATCH)[: N_ROWS // BATCH]:
                j = partners(rows)
                optimizer.zero_grad()
                objective(x[rows], y[rows], end=(x[j], y[j])).backward()
                optimizer.step()

    def ours() -> None:
        kernel = TargetKernel(y, BANDWIDTH)
        train(kernel.sample)

    def reference() -> None:
        """One kernel density per sample, and one draw per row in a Python loop."""
        targets = y.numpy()
        table = np.empty((N_ROWS, N_ROWS))
        for i in range(N_ROWS):
            density = KernelDensity(kernel="gaussian", bandwidth=BANDWIDTH).fit(targets[i : i + 1])
            weight = np.exp(density.score_samples(targets))
            table[i] = weight / weight.sum()
        train(lambda rows: torch.tensor([np.random.choice(N_ROWS, p=table[i]) for i in rows.tolist()]))  # noqa: NPY002

    yield compare(
        f"C-Mixup, {N_ROWS} rows, {EPOCHS} epochs of batches of {BATCH}, partners prepared",
        ours,
        "one kernel density per sample, partners drawn in a Python loop",
        reference,
        budget=1.0,
        rounds=3,
    )
    batch = torch.arange(BATCH)
    kernel = TargetKernel(y, BANDWIDTH)
    probabilities = np.full((N_ROWS, N_ROWS), 1 / N_ROWS)
    yield compare(
        f"drawing the partners of a batch of {BATCH}",
        lambda: kernel.sample(batch),
        "the Python loop",
        lambda: [np.random.choice(N_ROWS, p=probabilities[i]) for i in range(BATCH)],  # noqa: NPY002
        budget=0.2,
        repeats=100,
    )
    yield compare(
        "preparing the partners",
        lambda: TargetKernel(y, BANDWIDTH),
        "one kernel density per sample",
        lambda: [
            KernelDensity(bandwidth=BANDWIDTH).fit(y[i : i + 1].numpy()).score_samples(y.numpy())
            for i in range(N_ROWS)
        ],
        budget=0.2,
        rounds=3,
    )
