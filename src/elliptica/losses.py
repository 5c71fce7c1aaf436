"""The user's ordinary loss, made to give one value per row."""

from __future__ import annotations

import copy
import functools
import inspect

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica.types import LossFn

_REMEDY = (
    "Pass an unreduced loss, e.g. torch.nn.CrossEntropyLoss() (its reduction is switched off for "
    'you) or functools.partial(torch.nn.functional.cross_entropy, reduction="none").'
)


_LABEL_LOSSES = (nn.NLLLoss, nn.MultiMarginLoss)


class PerSampleLoss(nn.Module):
    """Calls ``loss_fn`` without its reduction and averages whatever is not the batch axis.

    A module with a ``reduction`` is used through a copy, a function with a ``reduction`` argument
    through a partial; the original is never changed. Anything else must keep the batch axis
    itself: a callable that returns a scalar is refused.

    Args:
        loss_fn: Called as ``loss_fn(output, target)``.
    """

    def __init__(self, loss_fn: LossFn) -> None:
        super().__init__()
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, but got {type(loss_fn).__name__}. {_REMEDY}")
        if isinstance(loss_fn, _LABEL_LOSSES) or loss_fn in (F.nll_loss, F.multi_margin_loss):
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            raise TypeError(
                f"loss_fn={name} takes labels only, but along a bridge labels become probabilities. Use "
                "torch.nn.CrossEntropyLoss(), which equals NLLLoss on outputs of log_softmax, too."
            )
        reduction = getattr(loss_fn, "reduction", "mean")
        if reduction not in ("mean", "none", "batchmean"):
            raise ValueError(
                f'loss_fn has reduction={reduction!r}, but elliptica averages over points; use "mean" '
                "and multiply the result yourself if you need another scale."
            )
        self._sums_features = reduction == "batchmean"
        #: torch divides a class-weighted mean over labels by the sum of the labels' weights
        self._class_weighted = isinstance(loss_fn, nn.CrossEntropyLoss) and reduction == "mean"
        if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
            loss_fn = copy.copy(loss_fn)
            loss_fn._buffers = dict(loss_fn._buffers)  # or moving the copy would move the original
            loss_fn.reduction = "none"  # type: ignore[assignment]  # nn.Module attributes are untyped
        elif "reduction" in _parameters(loss_fn) and not isinstance(loss_fn, functools.partial):
            loss_fn = functools.partial(loss_fn, reduction="none")
        self.loss_fn = loss_fn

    def forward(self, output: object, target: Tensor) -> Tensor:
        """One loss per row of ``target``."""
        if isinstance(output, Tensor) and output.ndim == 2 and target.ndim == 3 and target.shape[2] == 1:
            raise ValueError(
                f"The model returns one row of {output.shape[1]} classes per sample, but y has one axis more "
                "than labels need, shape (n, 1). Pass y.squeeze(1)."
            )
        losses = self.loss_fn(output, target)
        rows = len(target)
        if not isinstance(losses, Tensor) or losses.ndim == 0 or len(losses) != rows:
            got = (
                type(losses).__name__
                if not isinstance(losses, Tensor)
                else "a scalar"
                if losses.ndim == 0
                else f"shape {tuple(losses.shape)}"
            )
            raise ValueError(
                f"loss_fn must return one value per sample, shape ({rows},), but returned {got}. " + _REMEDY
            )
        if losses.ndim == 1:
            return losses
        _refuse_broadcast(output, target, losses)
        losses = losses.flatten(1)
        return losses.sum(1) if self._sums_features else losses.mean(1)

    @property
    def weights_classes(self) -> bool:
        """Whether the loss weights classes and averages by those weights."""
        return self._class_weighted and getattr(self.loss_fn, "weight", None) is not None

    def class_weight(self, target: Tensor) -> Tensor:
        """Mean weight of each row's classes."""
        weight = self.loss_fn.weight.to(target.dtype)  # type: ignore[union-attr]
        return torch.tensordot(target, weight, dims=([1], [0])).reshape(len(target), -1).mean(1)

    def num_classes(self) -> int | None:
        """Number of classes, when class weights give it away."""
        return len(self.loss_fn.weight) if self.weights_classes else None  # type: ignore[union-attr, arg-type]


def _parameters(function: object) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []


def _refuse_broadcast(output: object, target: Tensor, losses: Tensor) -> None:
    """Catch (rows, 1) against (rows,), which broadcasts to every pair of rows."""
    if isinstance(output, Tensor) and output.ndim != target.ndim and losses.shape == (len(target),) * 2:
        raise ValueError(
            f"The model returns shape {tuple(output.shape)} but the targets have shape "
            f"{tuple(target.shape)}, so the loss would compare every row with every other. "
            "Give both the same shape, e.g. y.unsqueeze(1) or model output .squeeze(1)."
        )
