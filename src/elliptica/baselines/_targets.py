"""Check targets of methods for regression."""

from __future__ import annotations

from torch import Tensor


def check_real_targets(y: object, why: str, instead: str = "Mixup") -> None:
    """Raise unless ``y`` is a tensor of real targets; ``why`` goes into the message."""
    if not isinstance(y, Tensor) or not y.is_floating_point():
        got = f"dtype {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(
            f"y must be a tensor of real targets, but got {got}: {why}. "
            f"Convert it with .float(), or use {instead} for class labels."
        )
