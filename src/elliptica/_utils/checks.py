"""Check what would otherwise give a silently wrong result. Each message names the argument and what came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise unless ``value`` is one of ``allowed``: another word would silently mean the default branch."""
    if value not in (known := list(allowed)):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, but got {value!r}.")


def same_rows(name: str, value: Tensor, rows: int, reference: str = "x") -> None:
    """Raise unless the first axis has ``rows`` entries."""
    if value.ndim == 0 or value.shape[0] != rows:
        raise ValueError(
            f"{name} must have as many rows as {reference} ({rows}), but has shape {tuple(value.shape)}."
        )


def nonnegative(name: str, value: float | Tensor) -> None:
    """Raise unless a number, or all numbers of a tensor, are finite and at least zero."""
    low, high = (value, value) if not isinstance(value, Tensor) else (value.min(), value.max())
    if not (low >= 0 and high < math.inf):
        raise ValueError(f"{name} must be finite and at least 0, but got values from {low} to {high}.")


def positive(name: str, value: float) -> None:
    """Raise unless a number is finite and above zero."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and above 0, but got {value}.")


def count(name: str, value: Any, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but got {value}.")


def finite(name: str, value: Tensor) -> None:
    """Raise for NaN or infinity (one pass over the data; a synchronisation on an accelerator)."""
    # the sum of values with a NaN or infinity is never finite; check all only if the sum is not
    if value.is_floating_point() and not math.isfinite(value.detach().sum()):
        bad = ~torch.isfinite(value)
        if bool(bad.any()):
            rows = bad.reshape(len(value), -1).any(1).nonzero().flatten().tolist()
            raise ValueError(f"{name} must be finite, but has NaN or infinity in rows {str(rows[:5])[1:-1]}.")
