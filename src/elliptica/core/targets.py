"""Targets as points of a space in which they can be bridged: the simplex, the unit box, or the reals."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica._utils import checks
from elliptica.core.types import warn_user

TargetSpace = Literal["simplex", "unit", "real"]
SimplexMap = Literal["abs", "euclidean"]

TARGET_SPACES: tuple[TargetSpace, ...] = ("simplex", "unit", "real")
SIMPLEX_MAPS: tuple[SimplexMap, ...] = ("abs", "euclidean")

_SIMPLEX_LOSSES = (nn.CrossEntropyLoss, nn.KLDivLoss)
_UNIT_LOSSES = (nn.BCEWithLogitsLoss, nn.BCELoss, nn.MultiLabelSoftMarginLoss)
_REAL_LOSSES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss)
_SPACE_OF_FUNCTION: dict[object, TargetSpace] = {
    F.cross_entropy: "simplex",
    F.binary_cross_entropy_with_logits: "unit",
    F.binary_cross_entropy: "unit",
    F.mse_loss: "real",
    F.l1_loss: "real",
    F.smooth_l1_loss: "real",
    F.huber_loss: "real",
}


def space_of_loss(loss_fn: object) -> TargetSpace | None:
    """Return the target space of a loss from torch; None for other losses."""
    function = getattr(loss_fn, "func", loss_fn)
    space = next((name for known, name in _SPACE_OF_FUNCTION.items() if known is function), None)
    for losses, name in (
        (_SIMPLEX_LOSSES, "simplex"),
        (_UNIT_LOSSES, "unit"),
        (_REAL_LOSSES, "real"),
    ):
        if isinstance(loss_fn, losses):
            space = name  # type: ignore[assignment]  # the names are literals of TargetSpace
    return space


def infer_target_space(loss_fn: object, y: Tensor) -> TargetSpace:
    """Infer the target space from the loss and the dtype of the targets; raise if that is not possible."""
    if not isinstance(y, Tensor):
        raise TypeError(
            f"y must be a torch.Tensor, but got {type(y).__name__}. Convert it with torch.as_tensor(y)."
        )
    space = space_of_loss(loss_fn)
    is_label = not y.is_floating_point() and y.dtype != torch.bool
    if space is None and is_label:
        return "simplex"
    if space is None:
        raise ValueError(
            f"Cannot infer the kind of targets from the loss {_name(loss_fn)} and dtype {y.dtype}. "
            'Pass target_space="real" (regression), "simplex" (class probabilities) or '
            '"unit" (multilabel, each value in [0, 1]).'
        )
    if is_label and space != "simplex":
        raise TypeError(
            f"{_name(loss_fn)} needs floating targets, but y has dtype {y.dtype}. Convert it with "
            "y.float(), or use nn.CrossEntropyLoss() if these are class labels."
        )
    return space


def _name(loss_fn: object) -> str:
    return getattr(loss_fn, "__name__", type(loss_fn).__name__)


def encode_targets(
    y: Tensor,
    space: TargetSpace,
    *,
    num_classes: int | None = None,
    dtype: torch.dtype = torch.float32,
    validate: bool = True,
) -> Float[Tensor, " batch *target"]:
    """Turn targets into points of ``space``: labels become one-hot, booleans 0 and 1.

    Integer labels ``(batch, *place)`` become ``(batch, num_classes, *place)``, the layout that
    `torch.nn.CrossEntropyLoss` expects of probabilities.
    """
    if y.is_floating_point():
        if space == "simplex" and num_classes is not None and y.ndim > 1 and y.shape[1] != num_classes:
            raise ValueError(
                f"y holds probabilities of {y.shape[1]} classes, shape {tuple(y.shape)}, but num_classes="
                f"{num_classes}. Make num_classes and axis 1 of y agree."
            )
        if validate:
            _check_soft(y, space)
        return y
    if y.dtype == torch.bool and space == "unit":
        return y.to(dtype)
    if space != "simplex" or y.dtype == torch.bool or y.is_complex():
        raise TypeError(
            f'target_space="{space}" needs floating targets, but y has dtype {y.dtype}. '
            "Convert it with y.float()."
        )
    if num_classes is None:
        raise ValueError(
            f"y holds integer labels ({y.dtype}), so the number of classes is needed. Pass num_classes=..."
        )
    if validate and y.numel():
        low, high = (int(v) for v in y.aminmax())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"Labels must lie in 0..{num_classes - 1} (num_classes={num_classes}), but y has "
                f"values from {low} to {high}. Correct num_classes or the labels; drop rows that you want to "
                "ignore before the call."
            )
    if y.ndim == 1 and num_classes <= _FEW_CLASSES:
        known = _one_hot_rows.get((num_classes, dtype, y.device))
        rows = _make_one_hot_rows(num_classes, dtype, y.device) if known is None else known
        return rows.index_select(0, y.int())
    one_hot = torch.zeros(len(y), num_classes, *y.shape[1:], dtype=dtype, device=y.device)
    return one_hot.scatter_(1, y.long().unsqueeze(1), 1.0)


_FEW_CLASSES = 256


_one_hot_rows: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def _make_one_hot_rows(num_classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make and cache the one-hot row of each class, because small batches wait for every operation.

    Fake tensors (of `step_cost`) are not cached.
    """
    with torch.inference_mode(False), torch.no_grad():
        made = torch.eye(num_classes, dtype=dtype, device=device)
    if type(made) is Tensor:
        _one_hot_rows[num_classes, dtype, device] = made
    return made


def _check_soft(y: Tensor, space: TargetSpace) -> None:
    """Raise if floating targets are outside their space."""
    y = y.detach()
    if space == "simplex":
        if y.ndim < 2:
            raise ValueError(
                f"Class probabilities need shape (batch, classes), but y has shape {tuple(y.shape)}. "
                'Pass integer labels (y.long()) with num_classes, or target_space="real".'
            )
        sums = y.sum(1)
        if y.numel() and (float((sums - 1).abs().max()) > 1e-2 or bool((y < 0).any())):
            raise ValueError(
                "Class probabilities must be at least 0 and sum to 1 along axis 1, but y has sums from "
                f"{float(sums.min()):.3g} to {float(sums.max()):.3g} and a smallest value of "
                f"{float(y.min()):.3g}. "
                'Normalise y, or use target_space="unit" for independent labels.'
            )
    elif space == "unit" and y.numel():
        low, high = (float(v) for v in y.aminmax())
        if low < 0 or high > 1:
            raise ValueError(
                f'target_space="unit" needs values in [0, 1], but y ranges from {low:.3g} to {high:.3g}. '
                'Use target_space="real" for regression.'
            )


def project_to_simplex(
    y: Float[Tensor, "*batch classes"], how: SimplexMap = "abs"
) -> Float[Tensor, "*batch classes"]:
    """Map points to the probability simplex along the last axis (paper: appendix A).

    ``"abs"`` is the paper's map: absolute value, then division by the sum. It is not a projection. With many
    classes it moves most of the mass away from the true class, which is strong label smoothing: with 100
    classes and ``sigma_y=0.05`` a third is left. ``"euclidean"`` is the nearest point of the simplex, which
    hardly smooths.

    Example:
        >>> project_to_simplex(torch.tensor([0.9, -0.1, 0.0]))
        tensor([0.9000, 0.1000, 0.0000])
        >>> project_to_simplex(torch.tensor([1.2, 0.4, 0.0]), how="euclidean")
        tensor([0.9000, 0.1000, 0.0000])
    """
    checks.choice("how", how, SIMPLEX_MAPS)
    checks.floating("y", y)
    if y.ndim == 0 or y.shape[-1] == 0:
        raise ValueError(f"y must have classes along its last axis, but has shape {tuple(y.shape)}.")
    checks.finite("y", y)
    if how == "euclidean":
        return _nearest_on_simplex(y)
    size = y.abs()
    total = size.sum(-1, keepdim=True)
    if not bool(torch.isfinite(total).all()):  # finite numbers, whose sum is not
        size = size / size.amax(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
        total = size.sum(-1, keepdim=True)
    return torch.where(total > 0, size / total, 1 / y.shape[-1])  # zeros have no direction: uniform


def _nearest_on_simplex(y: Tensor) -> Tensor:
    """Project onto the simplex along the last axis."""
    if y.dtype in (torch.bfloat16, torch.float16):  # the arithmetic below needs more digits
        return _nearest_on_simplex(y.float()).to(y.dtype)
    ordered = y.sort(dim=-1, descending=True).values
    largest = ordered[..., :1]
    # a common shift does not change the projection, but improves the rounding; entries more than 1 below the
    # largest become 0
    ordered = (ordered - largest).clamp_min(-2)
    count = torch.arange(1, y.shape[-1] + 1, device=y.device, dtype=y.dtype)
    excess = (ordered.cumsum(-1) - 1) / count
    last = (ordered > excess).sum(-1, keepdim=True) - 1  # the largest support whose entries stay positive
    return (y - largest - excess.gather(-1, last)).clamp_min(0)


def project_targets(y: Tensor, space: TargetSpace, simplex: SimplexMap, class_axis: int) -> Tensor:
    """Map noisy targets back into their space; real targets are returned unchanged."""
    if space != "simplex":
        return y.clamp(0, 1) if space == "unit" else y
    if simplex == "abs":  # noisy targets are never all zero, so the public function's guard is not needed
        size = y.abs()
        return size / size.sum(class_axis, keepdim=True)
    return _nearest_on_simplex(y.movedim(class_axis, -1)).movedim(-1, class_axis)


def warn_of_smoothing(num_classes: int, sigma_y: float, horizon: float) -> None:
    """Warn if the paper's map to the simplex leaves little mass on the true classes."""
    # mean absolute noise of one class at mid-bridge, times the number of classes
    spilt = 0.4 * sigma_y * math.sqrt(horizon) * num_classes
    if spilt > 1:
        warn_user(
            f"With {num_classes} classes and sigma_y={sigma_y} about {spilt / (1 + spilt):.0%} of the "
            "label's mass leaves the true classes at the middle of a bridge, which is strong label "
            'smoothing. Use sigma_y=0 (linear labels) or simplex="euclidean" to avoid it.'
        )
