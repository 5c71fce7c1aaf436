"""Perceptrons, their optimiser, an average of weights, and one thread for small products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from elliptica._utils import checks

Activation = Literal["leaky_relu", "relu", "tanh"]
_RECENT = 8.0  # how much an average of weights prefers the last steps


def mlp(
    n_features: int,
    n_outputs: int,
    *,
    hidden: Sequence[int] = (128, 128),
    activation: Activation = "leaky_relu",
    batch_norm: bool = False,
    flatten: bool = False,
) -> nn.Sequential:
    """Build a perceptron that maps ``(batch, n_features)`` to ``(batch, n_outputs)``.

    Each hidden layer is Linear, BatchNorm (optional), activation; the last layer is a plain Linear, so
    classifiers give logits. The paper's networks are

    - regression tables (paper: Tables 3 and 5): ``mlp(n_features, 1)``;
    - MedMNIST (paper: Table 6): ``mlp(784 or 2352, n_classes, hidden=(512,), activation="relu",
      batch_norm=True, flatten=True)``, where the paper does not state the activation;
    - two moons (paper: Figs. 1 and 3): ``mlp(2, 2, hidden=(4,), ...)``.

    Without ``hidden`` layers the model is linear; ``flatten`` accepts images, ``(batch, *feature)``.
    """
    for size in (n_features, n_outputs, *hidden):  # torch builds layers of none
        checks.count("n_features, n_outputs and hidden", size)
    make: dict[str, Callable[[], nn.Module]] = {
        "leaky_relu": lambda: nn.LeakyReLU(0.1),
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
    }
    checks.choice("activation", activation, make)
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    n_in = n_features
    for width in hidden:
        layers.append(nn.Linear(n_in, width))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(make[activation]())
        n_in = width
    return nn.Sequential(*layers, nn.Linear(n_in, n_outputs))


def make_adam(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> torch.optim.Optimizer:
    """Make Adam, or AdamW if weight decay is ``decoupled``, fused where torch supports it.

    Fused steps are faster for small networks, and differ from ordinary ones by rounding only.
    """
    params = list(parameters)
    fused = all(p.device.type in ("cpu", "cuda") and p.dtype == torch.float32 for p in params)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    return kind(params, lr=lr, weight_decay=weight_decay, fused=fused or None)


def average_share(step: int) -> float:
    """Return the share of the weights after ``step`` steps, from 1, in their average.

    The average of polynomial decay (Shamir and Zhang 2013): the first steps are forgotten, about a ninth of
    all steps counts, and no length has to be known in advance.
    """
    return (_RECENT + 1) / (_RECENT + step)


def average_weights(model: nn.Module) -> AveragedModel:
    """Return a copy of a model for the average of its weights; call ``update_parameters`` after each step."""
    share = average_share
    average = AveragedModel(
        model, avg_fn=lambda mean, new, n: mean + (new - mean) * share(int(n) + 1), use_buffers=True
    )
    return average.eval()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread temporarily: sharing small products among threads costs more than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
