"""Score predicted class probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Bins of the calibration error.
_BINS = 15


def score_classes(p: Float[Tensor, "rows classes"], y: Int[Tensor, " rows"]) -> dict[str, Any]:
    """Score class probabilities beyond the accuracy of the likeliest class.

    ``auroc`` is the area under the receiver operating curve, one class against the rest, mean over classes
    (None if only one class has rows), ``calibration`` the expected calibration error, ``uncertainty`` the
    mean entropy of the rows of each class, as a share of the largest, and ``reliability`` rows, summed
    confidence and right answers of each bin; bins of several seeds can be added.
    """
    from sklearn.metrics import roc_auc_score

    present = y.unique()
    auroc = None
    if len(present) > 1:
        auroc = sum(float(roc_auc_score(y == c, p[:, c])) for c in present) / len(present)
    entropy = -torch.special.xlogy(p, p).sum(1) / math.log(p.shape[1])
    confidence, guess = p.max(1)
    rows, sure, hits = _binned(confidence, guess == y)
    return {
        "auroc": auroc,
        "calibration": calibration_error(p, y),
        "uncertainty": reduce_by(entropy, y),
        "reliability": {
            "rows": rows.long().tolist(),
            "confidence": [float(f"{value:.6g}") for value in sure.tolist()],
            "right": hits.long().tolist(),
        },
    }


def calibration_error(p: Float[Tensor, "rows classes"], y: Int[Tensor, " rows"]) -> float:
    """Expected calibration error of the favoured class, 15 bins of equal width, as in `score_classes`."""
    confidence, guess = p.max(1)
    _, sure, hits = _binned(confidence, guess == y)
    return float((sure - hits).abs().sum()) / len(confidence)


def _binned(confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum rows, confidence and right answers in each of 15 bins of equal width."""
    bins = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1
    rows, sure, hits = (
        torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, each.double())
        for each in (torch.ones_like(confidence), confidence, right)
    )
    return rows, sure, hits


def reduce_by(
    values: Float[Tensor, " rows"],
    number: Int[Tensor, " rows"] | None,
    reduce: Callable[[Tensor], float | Tensor] = torch.mean,
) -> dict[str, float]:
    """Reduce the values of each class or group; keys are their numbers as text. Empty without numbers."""
    if number is None:
        return {}
    return {str(int(g)): float(reduce(values[number == g])) for g in number.unique()}
