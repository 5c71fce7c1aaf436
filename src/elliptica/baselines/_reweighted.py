"""Base class of methods that average the losses of a batch differently."""

from __future__ import annotations

import torch
from torch import Tensor

from elliptica.baselines.erm import ERM, Batch
from elliptica.core.inputs import check_weight


class Reweighted(ERM):
    """Plain training with another average of the losses, the base class of focal, tilted and DRO.

    A sample of weight 2 counts as two equal samples, and one of weight 0 as absent. The result is then
    multiplied by the mean weight, as the mean of weight times loss would be.
    """

    def _training_loss(self, batch: Batch) -> Tensor:
        losses, target = self._losses_at(batch.x, batch.y)
        return self._average(losses, target, batch.weight)

    def _average(self, losses: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        """Return the average; class weights and the scale of sample weights act as in plain training."""
        value = self._combine(losses, weight)
        return self._mean(value.expand(len(losses)), target, weight)

    def _combine(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        """Return the average of the losses, which must not depend on the scale of the weights."""
        raise NotImplementedError


def base_measure(losses: Tensor, sample_weight: Tensor | None) -> Tensor:
    """Normalise sample weights to sum 1, in the dtype of the losses; equal if there are none, or all 0."""
    equal = torch.full_like(losses, 1 / len(losses), requires_grad=False)
    if sample_weight is None:
        return equal
    check_weight(sample_weight, len(losses))
    weight = sample_weight.detach().to(losses.dtype)
    largest = weight.max()
    weight = weight / torch.where(largest > 0, largest, 1)  # otherwise a sum of large weights overflows
    total = weight.sum()
    return torch.where(total > 0, weight / total.clamp_min(0.5), equal)
