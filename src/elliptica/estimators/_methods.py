"""From an estimator's parameters to a network and to the objective that it is trained with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elliptica import _checks
from elliptica.baselines import ERM, CMixup, Mixup
from elliptica.diffusion import auto_sigma
from elliptica.models import mlp
from elliptica.objective import Elliptic

ClassifierMethod = Literal["elliptic", "erm", "mixup"]
RegressorMethod = Literal["elliptic", "erm", "mixup", "c-mixup"]

#: A network, or what makes one from the numbers of features and outputs.
ModuleLike = nn.Module | Callable[[int, int], nn.Module]


def make_network(
    module: ModuleLike | None, hidden: Sequence[int], n_features: int, n_outputs: int
) -> nn.Module:
    """The network of an estimator, with initial weights from torch's default stream."""
    if module is None:
        for width in hidden:
            _checks.count("hidden", width)
        return mlp(n_features, n_outputs, hidden=tuple(hidden))
    made = copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)
    if not isinstance(made, nn.Module):
        raise TypeError(
            "module must be a torch.nn.Module, or a function of (n_features, n_outputs) that returns one, "
            f"but it returned {type(made).__name__}."
        )
    return made


def check_output(network: nn.Module, x: Tensor, n_outputs: int, meaning: str) -> None:
    """Refuse a network whose output does not fit the targets, before any training."""
    network.eval()
    with torch.no_grad():
        output = network(x)
    got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if got != (len(x), n_outputs):
        raise ValueError(
            f"module must map {len(x)} rows to shape {(len(x), n_outputs)} ({meaning}), but gave {got}. "
            f"Change its last layer, or pass a function (n_features, n_outputs) -> module."
        )


def make_objective(
    parameters: dict[str, Any], network: nn.Module, loss: nn.Module, num_classes: int | None, x: Tensor
) -> nn.Module:
    """The objective named by ``method``, with the parameters that it takes.

    Args:
        parameters: Parameters of the estimator, by name.
        network: What is trained.
        loss: The ordinary loss.
        num_classes: Number of classes of integer labels, or None.
        x: The training rows, on which ``sigma="auto"`` is measured.
    """
    method, alpha = parameters["method"], parameters["alpha"]
    if method == "erm":
        return ERM(network, loss, num_classes=num_classes)
    if method == "mixup":
        return Mixup(network, loss, alpha=1.0 if alpha is None else alpha, num_classes=num_classes)
    if method == "c-mixup":
        return CMixup(network, loss, alpha=2.0 if alpha is None else alpha, bandwidth=parameters["bandwidth"])
    sigma = parameters["sigma"]
    if isinstance(sigma, str) and sigma == "auto":
        sigma = auto_sigma(x) if len(x) > 1 else 0.0
    passed = ("sigma_y", "sampling", "n_times", "n_bridges", "horizon", "pairing", "weighting", "xi")
    return Elliptic(
        network, loss, num_classes=num_classes, sigma=sigma, **{name: parameters[name] for name in passed}
    )
