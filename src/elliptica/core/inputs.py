"""What a model is called with: one tensor or several, by position or by name."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from elliptica._utils import checks

#: What a model is called with: ``model(x)``, ``model(*x)`` or ``model(**x)``.
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

#: The user's loss: returns one value per row, or is a module whose ``reduction`` can be switched off.
LossFn = Callable[..., Tensor]

#: Key of the only input of a model that takes one tensor.
ONLY = "x"


class EllipticWarning(UserWarning):
    """Something works, but probably not as you intended."""


def warn_user(message: str) -> None:
    """Warn at the line of the user's code, from any depth inside the library."""
    frame, level = sys._getframe(1), 2
    # torch calls modules; jaxtyping and beartype check shapes at run time
    inside = {"elliptica", "torch", "jaxtyping", "beartype"}
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, EllipticWarning, stacklevel=level)


def named_inputs(x: Inputs) -> dict[Hashable, Tensor]:
    """Return the tensors by name: their key in a dict, their position in a tuple."""
    if isinstance(x, Tensor):
        return {ONLY: x}
    return dict(x.items()) if isinstance(x, Mapping) else dict(enumerate(x))


def rebuild_inputs(template: Inputs, items: Mapping[Any, Tensor]) -> Inputs:
    """Invert `named_inputs`: return the tensors in the caller's structure."""
    if isinstance(template, Tensor):
        return items[ONLY]
    return dict(items) if isinstance(template, Mapping) else tuple(items.values())


def call_model(model: nn.Module, x: Inputs, items: Mapping[Any, Tensor] | None = None) -> Any:
    """Call ``model(x)``, ``model(*x)`` or ``model(**x)``; ``items`` replaces the tensors, by name."""
    if isinstance(x, Tensor):
        return model(x if items is None else items[ONLY])
    items = named_inputs(x) if items is None else items
    return model(**dict(items)) if isinstance(x, Mapping) else model(*items.values())


def copy_inputs(x: Inputs) -> Inputs:
    """Return copies of the tensors, for a model that may overwrite them."""
    return rebuild_inputs(x, {name: value.clone() for name, value in named_inputs(x).items()})


def count_rows(items: Mapping[Hashable, Tensor]) -> int:
    """Return the number of rows of the first input."""
    return len(next(iter(items.values())))


def check_batch(
    items: Mapping[Hashable, Tensor],
    mixed: Sequence[Hashable],
    y: Tensor,
    sample_weight: Tensor | None = None,
    validate: bool = True,
) -> None:
    """Raise for a batch that would be mixed wrongly: other rows, integers, NaN, other weights.

    ``mixed`` names the inputs that are mixed; ``validate`` checks the values, too.
    """
    if y.shape[:1] == (0,):
        raise ValueError("x and y have no rows. Skip empty batches.")
    for name, value in (*items.items(), ("y", y)):
        if value.ndim == 0 or value.shape[0] != y.shape[0]:
            raise ValueError(
                f"x and y must have the same number of rows, but x[{name!r}] has shape {tuple(value.shape)} "
                f"and y has {tuple(y.shape)}."
            )
        if value is not y and name in mixed and not value.is_floating_point():
            raise TypeError(
                f"x must be floating point to be mixed, but has dtype {value.dtype}. For text and categories "
                'bridge in a hidden layer, at="name of the embedding".'
            )
        # the sum of values with a NaN or infinity is never finite
        if validate and value.is_floating_point() and not math.isfinite(value.detach().sum()):
            checks.finite("y" if value is y else "x", value)
    if sample_weight is not None:
        check_weight(sample_weight, y.shape[0])


def check_weight(sample_weight: Tensor, rows: int) -> None:
    """Raise unless there is one sample weight per row, at least zero."""
    if tuple(sample_weight.shape) != (rows,):
        raise ValueError(f"sample_weight must have shape ({rows},), but has {tuple(sample_weight.shape)}.")
    checks.nonnegative("sample_weight", sample_weight)


def repeat_rows(z: Tensor, n_bridges: int) -> Tensor:
    """Repeat a batch for each of its bridges: ``(bridge * batch, *feature)``."""
    return z if n_bridges == 1 else z.repeat(n_bridges, *[1] * (z.ndim - 1))
