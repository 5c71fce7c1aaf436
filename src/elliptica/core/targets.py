"""Targets as points of a space in which they can be bridged: the simplex, the unit box, or the reals."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

TargetSpace = Literal["simplex", "unit", "real"]
SimplexMap = Literal["abs", "euclidean"]

#: The space of the targets of torch's losses; subclasses of a module have that of their base.
_SPACES: dict[object, TargetSpace] = {
    nn.CrossEntropyLoss: "simplex",
    nn.KLDivLoss: "simplex",
    F.cross_entropy: "simplex",
    nn.BCEWithLogitsLoss: "unit",
    nn.BCELoss: "unit",
    nn.MultiLabelSoftMarginLoss: "unit",
    F.binary_cross_entropy_with_logits: "unit",
    F.binary_cross_entropy: "unit",
    nn.MSELoss: "real",
    nn.L1Loss: "real",
    nn.SmoothL1Loss: "real",
    nn.HuberLoss: "real",
    nn.PoissonNLLLoss: "real",
    F.mse_loss: "real",
    F.l1_loss: "real",
    F.smooth_l1_loss: "real",
    F.huber_loss: "real",
}


def space_of_loss(loss_fn: object) -> TargetSpace | None:
    """Return the target space of a loss from torch; None for other losses."""
    function = getattr(loss_fn, "func", loss_fn)  # of a functools.partial
    kinds = type(loss_fn).__mro__ if isinstance(loss_fn, nn.Module) else (function,)
    return next((_SPACES[kind] for kind in kinds if kind in _SPACES), None)


def infer_target_space(
    loss_fn: object, y: Tensor | None = None, num_classes: int | None = None
) -> TargetSpace:
    """Infer the kind of targets from the loss, or from labels; raise if neither tells."""
    is_label = y is not None and not y.is_floating_point() and y.dtype != torch.bool
    space = space_of_loss(loss_fn) or ("simplex" if is_label or num_classes is not None else None)
    if space is None:
        name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        raise ValueError(
            f"The kind of targets cannot be inferred from the loss {name}. Pass num_classes= (labels), or "
            'target_space="real" (regression), "simplex" (class probabilities) or "unit" (multilabel).'
        )
    return space


@dataclass(frozen=True)
class Targets:
    """Encode targets as points of their space, and map noisy points back into it (paper: appendix A)."""

    space: TargetSpace
    num_classes: int | None = None
    simplex: SimplexMap = "abs"
    validate: bool = True

    def encode(self, y: Tensor, dtype: torch.dtype = torch.float32) -> Float[Tensor, " batch *target"]:
        """Turn targets into points: labels become one-hot, booleans 0 and 1.

        Integer labels ``(batch, *place)`` become ``(batch, num_classes, *place)``, the layout that
        `torch.nn.CrossEntropyLoss` expects of probabilities.
        """
        if y.is_floating_point():
            if self.validate:
                _check_soft(y.detach(), self.space, self.num_classes)
            return y
        if y.dtype == torch.bool and self.space == "unit":
            return y.to(dtype)
        if self.space != "simplex" or y.dtype == torch.bool or y.is_complex():
            raise TypeError(f'target_space="{self.space}" needs floating targets, but y has dtype {y.dtype}.')
        if self.num_classes is None:
            raise ValueError(f"y holds labels ({y.dtype}), so num_classes= is needed.")
        try:
            if self.validate and y.device.type != "cpu":  # an accelerator would end the program instead
                _check_labels(y, self.num_classes)
            labels = y if y.dtype == torch.long and y.ndim == 1 else y.long().flatten()
            rows = _one_hot(self.num_classes, dtype, y.device).index_select(0, labels)
        except IndexError:
            _check_labels(y, self.num_classes)
            raise
        return rows if y.ndim == 1 else rows.unflatten(0, y.shape).movedim(-1, 1)

    def project(self, y: Tensor, class_axis: int) -> Tensor:
        """Map noisy targets back into their space; real targets are returned unchanged."""
        if self.space == "real":
            return y
        if self.space == "unit":
            return y.clamp(0, 1)
        if self.simplex == "euclidean":
            return _nearest_on_simplex(y.movedim(class_axis, -1)).movedim(-1, class_axis)
        size = y.abs()  # with noise never all zero
        return size / size.sum(class_axis, keepdim=True)


def _check_labels(y: Tensor, num_classes: int) -> None:
    low, high = (int(v) for v in y.aminmax())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"y must hold labels from 0 to {num_classes - 1} (num_classes={num_classes}), but spans "
            f"{low} to {high}. Drop rows that you want to ignore before the call."
        )


@functools.lru_cache(maxsize=32)
def _one_hot(num_classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the one-hot row of each class."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.eye(num_classes, dtype=dtype, device=device)


def _check_soft(y: Tensor, space: TargetSpace, num_classes: int | None) -> None:
    """Raise if floating targets are outside their space, so that a label was probably meant."""
    if space == "simplex":
        if y.ndim < 2 or num_classes not in (None, y.shape[1]):
            raise ValueError(
                f"y must hold probabilities of shape (batch, {num_classes or 'classes'}), but has shape "
                f"{tuple(y.shape)}. Pass labels as integers, y.long()."
            )
        off = (y.sum(1) - 1).abs()
        if y.numel() and (float(off.max()) > 1e-2 or float(y.min()) < 0):
            raise ValueError("y must hold class probabilities, at least 0 with sum 1 along axis 1.")
    elif space == "unit" and y.numel():
        low, high = (float(v) for v in y.aminmax())
        if low < 0 or high > 1:
            raise ValueError(f'y must be in [0, 1] (target_space="unit"), but spans {low:.3g} to {high:.3g}.')


def project_to_simplex(
    y: Float[Tensor, "*batch classes"], how: SimplexMap = "abs"
) -> Float[Tensor, "*batch classes"]:
    """Map points to the probability simplex along the last axis (paper: appendix A).

    ``"abs"`` is the paper's map: absolute value, then division by the sum. With many classes it is strong
    label smoothing: with 100 classes and ``sigma_y=0.05`` a third of the mass is left on the true class.
    ``"euclidean"`` is the nearest point of the simplex, which hardly smooths.

    Example:
        >>> project_to_simplex(torch.tensor([0.9, -0.1, 0.0]))
        tensor([0.9000, 0.1000, 0.0000])
        >>> project_to_simplex(torch.tensor([1.2, 0.4, 0.0]), how="euclidean")
        tensor([0.9000, 0.1000, 0.0000])
    """
    if how == "euclidean":
        return _nearest_on_simplex(y)
    size = y.abs()
    total = size.sum(-1, keepdim=True)
    return torch.where(total > 0, size / total, 1 / y.shape[-1])  # zeros have no direction: uniform


def _nearest_on_simplex(y: Tensor) -> Tensor:
    """Project onto the simplex along the last axis."""
    if y.dtype in (torch.bfloat16, torch.float16):  # the arithmetic below needs more digits
        return _nearest_on_simplex(y.float()).to(y.dtype)
    ordered = y.sort(dim=-1, descending=True).values
    largest = ordered[..., :1]
    # a common shift improves the rounding only; entries more than 1 below the largest become 0
    ordered = (ordered - largest).clamp_min(-2)
    count = torch.arange(1, y.shape[-1] + 1, device=y.device, dtype=y.dtype)
    excess = (ordered.cumsum(-1) - 1) / count
    last = (ordered > excess).sum(-1, keepdim=True) - 1  # the largest support whose entries stay positive
    return (y - largest - excess.gather(-1, last)).clamp_min(0)
