"""Plain training, the mean loss on the data: base class of all objectives, and what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from elliptica._utils.random import compute_dtype
from elliptica.core.bridge import FarEnd
from elliptica.core.inputs import (
    Inputs,
    LossFn,
    call_model,
    check_batch,
    named_inputs,
)
from elliptica.core.losses import PerSampleLoss, weighted_mean
from elliptica.core.targets import Targets, infer_target_space


@dataclass(frozen=True)
class Batch:
    """The checked arguments of a training call."""

    x: Inputs  # inputs
    y: Tensor  # targets
    weight: Tensor | None  # sample weights, or None
    end: FarEnd | None  # partners from elsewhere, or None
    generator: torch.Generator | None  # source of randomness


class ERM(nn.Module):
    """Return the ordinary mean loss (empirical risk minimisation), with the call of `elliptica.Elliptic`.

    Use it as the reference for other methods: ``objective(x, y)`` is ``criterion(model(x), y)``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss. Its ``reduction`` is switched off in a copy. Any other callable must
            return one value per sample.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> objective = ERM(model, nn.CrossEntropyLoss())
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> torch.allclose(objective(x, y), nn.functional.cross_entropy(model(x), y))
        True
    """

    #: Whether targets must be real numbers.
    is_regression: ClassVar[bool] = False
    #: Whether inputs are mixed or get noise, so that they must be floating point.
    mixes_inputs = False

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, num_classes: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        self._user_loss = (loss_fn,)  # a tuple, so that nn.Module does not register it a second time
        self.num_classes = self.loss.num_classes() if num_classes is None else num_classes

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        end: FarEnd | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar; in ``eval()`` mode the ordinary loss.

        Args:
            x: Inputs: a tensor, or the tuple or dict of tensors that your model takes.
            y: Targets: integer labels, soft labels, or real values.
            sample_weight: Weight of each sample, not normalised. The result is the mean of weight times
                loss. Between two samples the weight changes linearly.
            end: Partners that need not be in the batch, for methods that mix: ``(x, y)`` or ``(x, y,
                sample_weight)``. Without their own weights they get those of the samples.
            generator: Source of randomness of methods that draw. None means torch's default generator.
        """
        if not self.training:
            return self.clean_loss(x, y, sample_weight=sample_weight)
        self._check(x, y, sample_weight)
        return self._training_loss(Batch(x, y, sample_weight, end, generator))

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the ordinary mean loss on the data themselves."""
        self._check(x, y, sample_weight, clean=True)
        return self._mean(*self._losses_at(x, y), sample_weight, soft=y.is_floating_point())

    def _training_loss(self, batch: Batch) -> Tensor:
        """Return the training loss of a checked batch."""
        return self._mean(*self._losses_at(batch.x, batch.y), batch.weight, soft=batch.y.is_floating_point())

    def _check(self, x: Inputs, y: Tensor, weight: Tensor | None, *, clean: bool = False) -> None:
        """Check a batch before anything is drawn."""
        inputs = named_inputs(x)
        check_batch(inputs, list(inputs) if self.mixes_inputs and not clean else [], y, weight)
        if self.is_regression:
            check_real(y)

    def _losses_at(self, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample, and its target as compared with the output."""
        output = call_model(self.model, x)
        target = self._encode(y, output)
        return self.loss(output, target), target

    def _encode(self, y: Tensor, output: Any) -> Tensor:
        """Return targets that can be mixed: labels become one-hot, with as many classes as the output."""
        if y.is_floating_point():
            return y
        num_classes, dtype = self.num_classes, torch.float32
        if isinstance(output, Tensor):
            dtype = compute_dtype(output.dtype)
            if num_classes is None and output.ndim > 1:
                num_classes = output.shape[1]
        space = infer_target_space(self._user_loss[0], y)
        return Targets(space, num_classes).encode(y, dtype)

    def _mean(self, losses: Tensor, target: Tensor, weight: Tensor | None, *, soft: bool = False) -> Tensor:
        """Average over the batch; class weights act as in torch (for soft targets, by rows)."""
        by_class = self.loss.weights_classes and not soft
        class_weight = self.loss.class_weight(target) if by_class else None
        return weighted_mean(losses, weight, class_weight)


# what would be silently wrong otherwise: negative strengths, misspelt choices, a layer without a batch axis


def between(name: str, value: float | int, low: float | int = 0.0, high: float | int = math.inf) -> float:
    """Return a setting as a float; raise unless it is finite and from ``low`` to ``high``."""
    if not low <= value <= high or math.isinf(value):
        raise ValueError(f"{name} must be finite and from {low:g} to {high:g}, but got {value}.")
    return float(value)


def check_real(y: Tensor) -> None:
    """Raise unless targets are finite real numbers."""
    if not y.is_floating_point() or not bool(y.isfinite().all()):
        raise ValueError(f"y must hold finite real targets, but has dtype {y.dtype}. Use y.float().")


def check_classes(y: Tensor) -> None:
    """Raise if floating targets are not class probabilities along axis 1."""
    if not y.is_floating_point():
        return
    total = y.detach().float().sum(1) if y.ndim > 1 else torch.zeros(1)
    if bool((y < -1e-3).any()) or float((total - 1).abs().max()) > 1e-2:
        raise ValueError(f"y must hold labels or class probabilities, but is real, shape {tuple(y.shape)}.")
