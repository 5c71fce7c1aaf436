"""Metrics of a model on a part of the data: overall, per group, per class."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from elliptica.data.splits import Split

#: Rows per forward pass.
_CHUNK = 2000


def predictions(model: nn.Module, split: Split, device: torch.device) -> Tensor:
    """Outputs in evaluation mode, on the CPU."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part.to(device)).float().cpu() for part in split.x.split(_CHUNK)])


def measure(model: nn.Module, split: Split, metric: str, device: torch.device) -> dict[str, Any]:
    """All numbers of a part of the data.

    ``average`` is over all rows together, ``balanced`` the mean over classes, ``top5`` counts a row as
    right if its class is among the five most likely. ``worst`` is that of the worst group or, for
    classes without groups, of the worst class; empty ones are left out.
    """
    output = predictions(model, split, device)
    if metric == "rmse":
        errors = (output - split.y).square().reshape(len(output), -1).mean(1).double()
        by_group = _by(errors, split.group, lambda values: math.sqrt(float(values.mean())))
        found: dict[str, Any] = {"average": math.sqrt(float(errors.mean()))}
        found["mape"] = _mape(output, split.y)
    else:
        right = (output.argmax(1) == split.y) == (metric == "accuracy")  # or wrong, for errors
        by_group = _by(right.double(), split.group, lambda values: float(values.mean()))
        by_class = _by(right.double(), split.y, lambda values: float(values.mean()))
        found = {"average": float(right.double().mean()), "by_class": by_class}
        found["balanced"] = sum(by_class.values()) / len(by_class)
        by_group = by_group or by_class
        if output.shape[1] > 5:
            in_five = (output.topk(5, dim=1).indices == split.y[:, None]).any(1) == (metric == "accuracy")
            found["top5"] = float(in_five.double().mean())
    if by_group:
        found["by_group"] = by_group
        found["worst"] = min(by_group.values()) if metric == "accuracy" else max(by_group.values())
    return found


def score_of(metrics: dict[str, Any], metric: str, column: str) -> float:
    """What selection maximises."""
    value = float(metrics.get(column, metrics["average"]))
    return value if metric == "accuracy" else -value


def _by(values: Tensor, group: Tensor | None, reduce: Any) -> dict[str, float]:
    if group is None:
        return {}
    return {str(int(g)): reduce(values[group == g]) for g in group.unique()}


def _mape(output: Tensor, y: Tensor) -> float | None:
    """Mean absolute error in percent of the target, over targets other than zero."""
    kept = y != 0
    if not bool(kept.any()):
        return None
    return float(100 * ((output - y).abs()[kept] / y.abs()[kept]).double().mean())
