"""Check arguments. Every message says what was expected, what was given, and what to do."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elliptica._utils.text import did_you_mean


def choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``allowed``; suggest similar values."""
    allowed = list(allowed)
    if value not in allowed:
        hint = did_you_mean(str(value), allowed)
        known = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} must be one of {known}, but got {value!r}. {hint}".rstrip())


def model(value: object, owner: str) -> None:
    """Raise unless ``value`` is a network, and not the loss, which comes second."""
    if not isinstance(value, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, but got {type(value).__name__}. "
            f"The order is {owner}(model, loss_fn)."
        )
    if isinstance(value, nn.modules.loss._Loss):
        raise TypeError(f"model is a loss ({type(value).__name__}). The order is {owner}(model, loss_fn).")


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def tensor(name: str, value: object) -> None:
    """Raise unless ``value`` is an ordinary tensor: with values, dense, in a dtype that can be summed."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, but got {type(value).__name__}. "
            "Convert it first, e.g. torch.as_tensor(...)."
        )
    if value.is_nested:
        got, remedy = "is a nested tensor", "Pad it first, torch.nested.to_padded_tensor(...)"
    elif value.layout != torch.strided:
        got, remedy = f"has layout {value.layout}", f"Convert it with {name}.to_dense()"
    elif value.device.type == "meta":
        got, remedy = "is on the device meta, which keeps shapes only", "Put data and model on a real device"
    elif value.is_quantized:
        got, remedy = f"is quantised, dtype {value.dtype}", f"Convert it with {name}.dequantize()"
    elif value.is_floating_point() and value.dtype not in _FLOATS:
        got, remedy = f"has dtype {value.dtype}", f"Convert it with {name}.float()"
    else:
        return
    raise TypeError(f"{name} must be an ordinary dense tensor, but it {got}. {remedy}.")


def floating(name: str, value: object) -> None:
    """Raise unless ``value`` is a tensor with a floating dtype."""
    tensor(name, value)
    assert isinstance(value, Tensor)
    if not value.is_floating_point():
        raise TypeError(
            f"{name} must be floating point, but has dtype {value.dtype}: nothing lies between "
            "two integers to bridge. Convert it with .float(), or bridge in a hidden layer with "
            'at="name of a layer" (for text and other discrete inputs).'
        )


def batch(name: str, value: Tensor) -> None:
    """Raise unless there is a batch axis with at least one row."""
    tensor(name, value)
    if value.ndim == 0:
        raise ValueError(
            f"{name} is a scalar, but its first axis must be the batch. Add one with {name}.unsqueeze(0)."
        )
    if value.shape[0] == 0:
        raise ValueError(
            f"{name} is empty: the batch has 0 rows. Skip such batches, or set drop_last=True in the loader."
        )


def same_shape(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless two tensors agree in shape and dtype."""
    if value.shape != other.shape:
        raise ValueError(
            f"{name} and {other_name} must have the same shape, but got {tuple(value.shape)} and "
            f"{tuple(other.shape)}. Pair the rows first, e.g. {other_name}={name}[partners]."
        )
    if value.dtype != other.dtype:
        raise TypeError(
            f"{name} and {other_name} must have the same dtype, but got {value.dtype} and {other.dtype}. "
            f"Convert one, e.g. {other_name}.to({name}.dtype)."
        )


def same_rows(name: str, value: Tensor, rows: int, reference: str = "x") -> None:
    """Raise unless the first axis has ``rows`` entries."""
    tensor(name, value)
    if value.ndim == 0 or value.shape[0] != rows:
        got = "a scalar" if value.ndim == 0 else f"{len(value)} rows"
        raise ValueError(
            f"{name} must have as many rows as {reference} ({rows}), but has {got}. "
            "Check that both come from the same batch and that the batch axis is the first."
        )


def nonnegative(name: str, value: float | Tensor) -> None:
    """Raise unless a number or tensor is finite and at least zero."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{name} must be floating point, but has dtype {value.dtype}.")
        bad = not bool((value >= 0).all() and torch.isfinite(value).all())
        got = f"values from {value.min():.3g} to {value.max():.3g}" if value.numel() else "nothing"
    else:
        number(name, value)
        bad, got = not 0 <= value < float("inf"), str(value)
    if bad:
        raise ValueError(f"{name} must be finite and at least 0, but got {got}.")


def nonnegative_number(name: str, value: object) -> None:
    """Raise unless ``value`` is a plain number, not a tensor, finite and at least zero."""
    number(name, value)
    nonnegative(name, value)  # type: ignore[arg-type]  # a number


def per_feature(name: str, value: Tensor, feature: Sequence[int]) -> None:
    """Raise unless a tensor broadcasts to the shape of one sample (without a batch axis)."""
    shape = tuple(value.shape)
    aligned = tuple(feature)[len(feature) - len(shape) :] if len(shape) <= len(feature) else None
    if aligned is None or any(have not in (1, want) for have, want in zip(shape, aligned, strict=True)):
        raise ValueError(
            f"{name} must be a number, or a tensor that broadcasts to the shape {tuple(feature)} of one "
            f"sample, but has shape {shape}."
        )


def positive(name: str, value: float) -> None:
    """Raise unless a number is finite and above zero."""
    number(name, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be finite and above 0, but got {value}.")


def number(name: str, value: object) -> None:
    """Raise unless ``value`` is a plain int or float (not a bool, not a string)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        hint = " For one value per feature write torch.tensor([...])." if isinstance(value, list) else ""
        raise TypeError(f"{name} must be a number, but got {value!r} ({type(value).__name__}).{hint}")


def flag(name: str, value: object) -> None:
    """Raise unless ``value`` is True or False: the text "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, but got {value!r:.60} ({type(value).__name__}).")


def count(name: str, value: Any, least: int = 1, why: str = "") -> None:
    """Raise unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, but got {value!r}.")
    if int(value) < least:
        raise ValueError(f"{name} must be at least {least}{why}, but got {value}.")


def path_counts(n_times: int, n_bridges: int, antithetic: bool = False) -> None:
    """Check the numbers of times and bridges; ``n_times`` counts both ends, antithetic bridges are pairs."""
    count("n_times", n_times, 2, " (it counts both end points of a path)")
    count("n_bridges", n_bridges)
    if antithetic and n_bridges % 2:
        raise ValueError(
            f"antithetic=True draws bridges in pairs, so n_bridges must be even, but got {n_bridges}. "
            f"Use n_bridges={n_bridges + 1} or antithetic=False."
        )


def device(value: object, remedy: str = 'Use "cpu".') -> torch.device:
    """Return a device; raise unless tensors with values can be made there."""
    try:
        place = torch.device(value)  # type: ignore[call-overload]  # anything may come
        torch.zeros(1, device=place)
    except (AssertionError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        first, *_ = str(error).splitlines() or [""]
        raise ValueError(
            f"device={value!r:.60} cannot be used on this machine ({first:.120}). {remedy}"
        ) from error
    if place.type == "meta":
        raise ValueError(f"device={value!r} keeps shapes only, so nothing can be computed there. {remedy}")
    return place


def finite(name: str, value: Tensor) -> None:
    """Raise for NaN or infinity (one pass over the data; a synchronisation on an accelerator)."""
    # the sum of values with a NaN or infinity is never finite; check all only if the sum is not
    if value.is_floating_point() and not math.isfinite(value.detach().sum()):
        bad = ~torch.isfinite(value)
        if not bool(bad.any()):
            return
        rows = bad.reshape(len(value), -1).any(1).nonzero().flatten().tolist()
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise ValueError(
            f"{name} must be finite, but {int(bad.sum())} values are NaN or infinite, in rows {shown}. "
            "Impute or drop them (elliptica never does so silently)."
        )
