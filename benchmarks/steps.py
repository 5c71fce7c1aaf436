"""Training steps: forward, backward and optimiser, against ordinary training and beside mixup."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import Measurement, compare
from elliptica import Elliptic, LabelKernel
from elliptica.estimators import EllipticClassifier
from elliptica.lab.models import mlp, preact_resnet

N_TIMES = 5
#: Largest ratio to an ordinary step of the perceptron at batch 32, 256 and 1024.
BATCHES = (32, 256, 1024)
BUDGETS = {
    "marginal": (1.35, 1.35, 1.2),
    "hidden": (1.6, 1.5, 1.3),
    "inverse distance": (1.8, 2.0, 2.5),
    "label kernel": (1.6, 1.6, 1.6),
}


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


def mixup_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of mixup as timm does it: one share per batch, partners from its reversed order, soft labels."""
    random = np.random.default_rng(0)

    def soft(labels: Tensor) -> Tensor:
        return torch.full((len(labels), 10), 0.0).scatter_(1, labels.view(-1, 1), 1.0)

    def loss() -> Tensor:
        share = float(random.beta(0.8, 0.8))
        mixed = x.mul(share).add_(x.flip(0).mul_(1.0 - share))
        target = soft(y) * share + soft(y.flip(0)) * (1.0 - share)
        return torch.sum(-target * nn.functional.log_softmax(model(mixed), dim=-1), dim=-1).mean()

    return step(model, loss)


def beside_mixup(
    what: str, model: nn.Module, x: Tensor, y: Tensor, budget: float, *timing: int
) -> Iterator[Measurement]:
    """A marginal step and a mixup step, each against the same ordinary step."""
    against, reference = "ERM step on the same batch", erm_step(model, x, y)
    yield compare(f"marginal step, {what}", elliptic_step(model, x, y), against, reference, budget, *timing)
    mixup = mixup_step(model, x, y)
    yield compare(f"mixup as timm does it, {what}", mixup, against, reference, math.inf, *timing)


def fit(method: str, x: np.ndarray, y: np.ndarray, batch_size: int) -> Callable[[], object]:
    """One epoch of a classifier for tables, with the network that is its default."""
    model = EllipticClassifier(method=method, batch_size=batch_size, max_iter=1, random_state=0)
    return lambda: model.fit(x, y)


def measure() -> Iterator[Measurement]:
    """Convolutional net, transformer and perceptron."""
    net, path = preact_resnet(18, 10), {"sampling": "path", "n_times": N_TIMES}
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    ours, rows = elliptic_step(net, x, y, **path), (x.repeat(N_TIMES, 1, 1, 1), y.repeat(N_TIMES))
    what = "PreActResNet-18, 32x32, batch 32"
    yield compare(f"path step, {what}", ours, "ERM step on as many rows (160)", erm_step(net, *rows), 1.05, 9)
    yield from beside_mixup(what, net, x, y, 1.05, 15)
    half, pairs = (x[:16], y[:16]), {**path, "n_bridges": 2}
    ours, plain = (elliptic_step(net, *half, weighting=w, **pairs) for w in ("multiplicative", None))
    what = "multiplicative weighting, PreActResNet-18, batch 16, two bridges"
    yield compare(what, ours, "unweighted path step on the same rows", plain, 2.0, 9)
    torch.set_num_threads(1)  # small steps gain nothing from more
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    tokens = nn.Sequential(nn.Linear(32, 64), encoder, nn.Flatten(), nn.Linear(16 * 64, 10))
    what = "two-layer transformer, 16 tokens, batch 32"
    yield from beside_mixup(what, tokens, torch.randn(32, 16, 32), y, 1.1, 31, 10)
    for number, batch in enumerate(BATCHES):
        yield from measure_perceptron(batch, {name: each[number] for name, each in BUDGETS.items()})
    table = np.random.default_rng(0).normal(size=(4096, 122)), np.arange(4096) % 10
    for batch in BATCHES[:2]:
        what = f"an epoch of an estimator, 128-128 MLP, 122 features, batch {batch}, 4096 rows"
        ours, plain = (fit(method, *table, batch) for method in ("elliptic", "erm"))
        yield compare(what, ours, 'the same with method="erm"', plain, 1.15, 21)


def measure_perceptron(batch: int, budgets: dict[str, float]) -> Iterator[Measurement]:
    """Compare marginal steps of a small perceptron, where our own overhead counts most."""
    what, against = f"128-128 MLP, 122 features, batch {batch}", "ERM step on the same batch"
    timing = 41, max(5, 1600 // batch)
    small, x, y = mlp(122, 10), torch.randn(batch, 122), torch.randint(10, (batch,))
    yield from beside_mixup(what, small, x, y, budgets["marginal"], *timing)
    erm = erm_step(small, x, y)
    for name, budget, settings in (
        ('hidden layer at="1"', budgets["hidden"], {"at": "1"}),
        ("partners by inverse distance", budgets["inverse distance"], {"pairing": "inverse_distance"}),
    ):
        ours = elliptic_step(small, x, y, **settings)
        yield compare(f"marginal step, {name}, {what}", ours, against, erm, budget, *timing)
    model, target, loss_fn = mlp(122, 1), torch.randn(batch, 1), nn.MSELoss()
    objective = Elliptic(model, loss_fn, pairing=LabelKernel(bandwidth=0.1))
    ours, plain = step(model, lambda: objective(x, target)), step(model, lambda: loss_fn(model(x), target))
    what = f"marginal step, partners by label kernel, one target, {what}"
    yield compare(what, ours, against, plain, budgets["label kernel"], *timing)
