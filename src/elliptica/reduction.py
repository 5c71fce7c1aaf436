"""From losses at points to one number: the integral over time, and the average over the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from elliptica._ends import flatten_rows
from elliptica.losses import PerSampleLoss
from elliptica.types import Across, Paths


def weighted_mean(
    losses: Tensor,
    weight: Tensor | None,
    class_weight: Tensor | None,
    over_time: Tensor | None = None,
    across: Across | None = None,
) -> Tensor:
    """Mean of weight times loss over rows.

    A loss that weights classes is divided by the mean weight of the classes at hand, as torch does for
    labels, so that the scale of the loss does not depend on the scale of the weights. Like torch's, that
    is a ratio of two means over the batch, hence biased by a term of order one over the batch size.

    With ``across``, the mean over processes of the results is the mean over the rows of all of them.
    """
    total = losses if weight is None else losses * weight
    if over_time is not None:
        total = total * over_time
        class_weight = None if class_weight is None else class_weight * over_time
    if across is not None:
        wide = torch.promote_types(total.dtype, torch.float32)  # bfloat16 cannot count to 257
        sums = [total.numel(), 0.0 if class_weight is None else class_weight.sum(dtype=wide)]
        found = across(torch.stack([torch.as_tensor(s, dtype=wide, device=total.device) for s in sums]))
        rows, weights = found.sum(0)
        share = total.numel() * len(found) / (rows if class_weight is None else weights)
        return total.mean() * share.to(total.dtype)
    return total.mean() if class_weight is None else total.mean() / class_weight.mean()


def path_mean(
    losses: Tensor,
    paths: Paths,
    loss: PerSampleLoss,
    over_time: Tensor | None,
    across: Across | None = None,
) -> Tensor:
    """Integrate losses ``(time, rows)`` over time and average them over the batch."""
    weight = None if paths.weight is None else flatten_rows(paths.weight)
    class_weight = None
    if loss.weights_classes:
        class_weight = loss.class_weight(flatten_rows(paths.y).flatten(0, 1)).view(losses.shape)
    return weighted_mean(losses, weight, class_weight, over_time, across)
