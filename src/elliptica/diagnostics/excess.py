"""Yardsticks for a loss: what a mixed label costs any network, and what a constant prediction costs."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica.core.losses import PerSampleLoss
from elliptica.core.types import LossFn

_FUNCTIONS: dict[object, str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    F.cross_entropy: "cross_entropy",
    nn.BCEWithLogitsLoss: "binary",
    nn.BCELoss: "binary",
    F.binary_cross_entropy_with_logits: "binary",
    F.binary_cross_entropy: "binary",
    nn.MSELoss: "squared",
    F.mse_loss: "squared",
    nn.L1Loss: "absolute",
    F.l1_loss: "absolute",
    nn.SmoothL1Loss: "distance",
    F.smooth_l1_loss: "distance",
    nn.HuberLoss: "distance",
    F.huber_loss: "distance",
    nn.KLDivLoss: "distance",
}


def loss_kind(loss_fn: LossFn) -> str | None:
    """Which known loss this is; None for any other (a subclass may compute anything)."""
    if isinstance(loss_fn, nn.Module):
        return _FUNCTIONS.get(type(loss_fn))
    if isinstance(loss_fn, functools.partial):
        return None if loss_fn.args else _FUNCTIONS.get(loss_fn.func)
    return _FUNCTIONS.get(loss_fn)


def least_loss(loss_fn: LossFn, target: Tensor) -> Tensor | None:
    """Least loss of each row that any output could have with this target; None if that is not known.

    A cross-entropy is at least the entropy of its target: log 2 half-way between two classes. With class
    weights or label smoothing the same holds for the weighted and smoothed target.

    Args:
        loss_fn: Any loss that `elliptica.Elliptic` takes.
        target: Targets as points of their space: class probabilities, values in [0, 1], or real numbers.

    Example:
        >>> least_loss(nn.CrossEntropyLoss(), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    kind = loss_kind(loss_fn)
    if kind is None:
        return None
    if kind == "cross_entropy":
        smoothing = float(_option(loss_fn, "label_smoothing") or 0.0)
        mass = target * (1 - smoothing) + smoothing / target.shape[1]
        weight = _option(loss_fn, "weight")
        if weight is not None:
            mass = mass * weight.to(mass).reshape(1, -1, *[1] * (target.ndim - 2))
        return _rows(_entropy(mass, 1))
    if kind == "binary":
        positive, weight = _option(loss_fn, "pos_weight"), _option(loss_fn, "weight")
        mass = torch.stack([target if positive is None else target * positive.to(target), 1 - target])
        return _rows(_entropy(mass if weight is None else mass * weight.to(mass), 0))
    return target.new_zeros(len(target))


def excess_loss(loss_fn: LossFn) -> LossFn:
    """The loss of each row without the least loss that its target allows.

    Equal to the loss itself for targets that are not mixed, and for losses whose least value is zero (or
    not known).
    """
    per_sample = PerSampleLoss(loss_fn)

    def excess(output: object, target: Tensor) -> Tensor:
        losses: Tensor = per_sample(output, target)
        least = least_loss(loss_fn, target)
        return losses if least is None else losses - least.to(losses)

    return excess


def constant_loss(loss_fn: LossFn, target: Tensor) -> float | None:
    """Mean excess loss of the best output that ignores the inputs; None if that is not known.

    Example:
        >>> constant_loss(nn.MSELoss(), torch.tensor([[0.0], [2.0]]))
        1.0
    """
    kind, target = loss_kind(loss_fn), target.detach().double()
    if kind in ("cross_entropy", "binary"):  # linear in the target, so the mean target decides
        together, alone = least_loss(loss_fn, target.mean(0, keepdim=True)), least_loss(loss_fn, target)
        assert together is not None
        assert alone is not None
        return max(float(together.mean() - alone.mean()), 0.0)
    if kind == "squared":
        return float((target - target.mean(0)).square().mean())
    if kind == "absolute":
        return float((target - target.median(0).values).abs().mean())
    return None


def _option(loss_fn: LossFn, name: str) -> Any:
    if isinstance(loss_fn, functools.partial):
        return loss_fn.keywords.get(name)
    return getattr(loss_fn, name, None)


def _entropy(mass: Tensor, axis: int) -> Tensor:
    """Least value of ``-sum mass * log p`` over probabilities ``p`` along ``axis``."""
    total = mass.sum(axis)
    return torch.special.xlogy(total, total) - torch.special.xlogy(mass, mass).sum(axis)


def _rows(values: Tensor) -> Tensor:
    """Mean over whatever is not the batch."""
    return values if values.ndim == 1 else values.flatten(1).mean(1)
