"""A small network for data that come without one, so that the reports can be seen at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.perceptron import mlp
from elliptica.baselines import ERM, Mixup
from elliptica.core.elliptic import Elliptic
from elliptica.diagnostics.source import Samples

Method = Literal["erm", "mixup", "elliptic"]


def train_network(
    samples: Samples,
    method: Method,
    *,
    n_steps: int = 2000,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> nn.Module:
    """Train a perceptron of two layers of 64 units; inputs and real targets are standardised for it.

    Args:
        samples: Training data.
        method: What to minimise.
        n_steps: Steps of Adam, whose rate falls from 0.01 to zero as a half cosine.
        batch_size: Rows of a step.
        seed: Of weights, order and noise.
        progress: Called with the number of finished steps.
    """
    checks.choice("method", method, get_args(Method))
    checks.count("n_steps", n_steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        core = mlp(samples.x[0].numel(), samples.n_outputs, hidden=(64, 64), activation="tanh")
    mean, std = samples.x.mean(0), samples.x.std(0).clamp_min(1e-6)
    x = (samples.x - mean) / std
    y, model = samples.y, nn.Sequential(nn.Flatten(), *core)
    if not samples.is_classification:
        centre, spread = y.mean(0), y.std(0).clamp_min(1e-6)
        y = (y - centre) / spread
    loss_fn = nn.CrossEntropyLoss() if samples.is_classification else nn.MSELoss()
    num_classes = samples.n_outputs if samples.is_classification else None
    objectives: dict[str, Callable[[], nn.Module]] = {
        "erm": lambda: ERM(model, loss_fn),
        "mixup": lambda: Mixup(model, loss_fn, alpha=1.0),
        "elliptic": lambda: Elliptic(model, loss_fn, num_classes=num_classes, sigma=0.05, sigma_y=0.0),
    }
    objective = objectives[method]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    generator = torch.Generator().manual_seed(seed)
    for step in range(n_steps):
        rows = torch.randint(len(x), (min(batch_size, len(x)),), generator=generator)
        optimizer.zero_grad()
        objective(x[rows], y[rows], generator=generator).backward()
        optimizer.step()
        schedule.step()
        progress(step + 1)
    first, last = core[0], core[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    _fold(first, 1 / std.flatten(), -(mean / std).flatten())
    if not samples.is_classification:
        with torch.no_grad():
            last.weight.mul_(spread.flatten()[:, None])
            last.bias.mul_(spread.flatten()).add_(centre.flatten())
    return model.eval()


def _fold(layer: nn.Linear, scale: Tensor, shift: Tensor) -> None:
    """Make ``layer`` take the inputs as they are instead of ``scale * x + shift``."""
    with torch.no_grad():
        layer.bias.add_(layer.weight @ shift)
        layer.weight.mul_(scale)
