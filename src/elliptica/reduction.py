"""From losses at points to one number: the integral over time, and the average over the batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from elliptica._ends import flatten_rows
from elliptica.losses import PerSampleLoss
from elliptica.types import Paths

Quadrature = Literal["mean", "left", "trapezoid"]
QUADRATURES: tuple[Quadrature, ...] = ("mean", "left", "trapezoid")


def time_weights(n_times: int, quadrature: Quadrature, like: Tensor) -> Tensor:
    """Weights of the points of a path, ``(time, 1)``, of mean one.

    ``"left"`` drops the end point (Euler's method, as Algorithm 1 says); ``"trapezoid"`` halves both
    ends; ``"mean"`` counts all points alike, so that two points are exactly ordinary training.
    """
    weights = torch.ones(n_times, 1, dtype=like.dtype, device=like.device)
    if quadrature == "left":
        weights[-1] = 0.0
    elif quadrature == "trapezoid":
        weights[0] = weights[-1] = 0.5
    return weights / weights.mean()


def weighted_mean(losses: Tensor, target: Tensor, loss: PerSampleLoss, weight: Tensor | None) -> Tensor:
    """Mean of weight times loss over rows.

    A loss that weights classes is divided by the mean weight of the classes at hand, as torch does for
    labels, so that the scale of the loss does not depend on the scale of the weights.
    """
    total = losses.mean() if weight is None else (losses * weight).mean()
    class_weight = loss.class_weight(target)
    return total if class_weight is None else total / class_weight.mean()


def path_mean(losses: Tensor, paths: Paths, loss: PerSampleLoss, quadrature: Quadrature) -> Tensor:
    """Integrate losses ``(time, rows)`` over time and average them over the batch."""
    weight = None if paths.weight is None else flatten_rows(paths.weight)
    if len(losses) > 1 and quadrature != "mean":
        over_time = time_weights(len(losses), quadrature, losses)
        weight = over_time if weight is None else weight * over_time
    return weighted_mean(losses, flatten_rows(paths.y).flatten(0, 1), loss, weight)
