"""The user's ordinary loss, made to give one value per row."""

from __future__ import annotations

import copy
import functools
import inspect

import torch
from torch import Tensor, nn

from elliptica.types import LossFn

_REMEDY = (
    "Pass an unreduced loss, e.g. torch.nn.CrossEntropyLoss() (its reduction is switched off for "
    'you) or functools.partial(torch.nn.functional.cross_entropy, reduction="none").'
)


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
            loss_fn.reduction = "none"  # type: ignore[assignment]  # nn.Module attributes are untyped
        elif "reduction" in _parameters(loss_fn) and not isinstance(loss_fn, functools.partial):
            loss_fn = functools.partial(loss_fn, reduction="none")
        self.loss_fn = loss_fn

    def forward(self, output: object, target: Tensor) -> Tensor:
        """One loss per row of ``target``."""
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

    def class_weight(self, target: Tensor) -> Tensor | None:
        """Weight of each row's classes, if the loss weights classes and averages by them."""
        weight = getattr(self.loss_fn, "weight", None)
        if not self._class_weighted or weight is None:
            return None
        return (
            torch.tensordot(target, weight.to(target.dtype), dims=([1], [0])).reshape(len(target), -1).mean(1)
        )

    def num_classes(self) -> int | None:
        """Number of classes, when class weights give it away."""
        weight = getattr(self.loss_fn, "weight", None)
        return len(weight) if self._class_weighted and weight is not None else None


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
