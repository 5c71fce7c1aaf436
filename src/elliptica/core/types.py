"""Types shared by the whole library: inputs, paths and the warning class."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

#: What a model is called with: ``model(x)``, ``model(*x)`` or ``model(**x)``.
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]

#: The user's loss: returns one value per row, or is a module whose ``reduction`` can be switched off.
LossFn = Callable[..., Tensor]

#: Drift of the diffusion: ``drift(x, y)`` returns the drift of ``x``, or of ``x`` and ``y``.
Drift = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]

#: From this process' numbers, ``(k,)``, to those of all processes that share a batch, ``(process, k)``.
Across = Callable[[Tensor], Tensor]


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


class WithOutputs(NamedTuple):
    """An objective with its outputs and targets, from ``objective(x, y, with_outputs=True)``.

    Rows of ``output`` and ``target`` match. They are ordered by time, then bridge, then sample. In eval mode
    they are the samples themselves.

    Attributes:
        loss: The objective; call ``backward()`` on it.
        output: The model's outputs at the points, without gradients.
        target: The mixed targets at the points, as the loss receives them: labels are one-hot.
    """

    loss: Tensor
    output: Any
    target: Tensor


@dataclass(frozen=True)
class Paths:
    """Points on bridges, as drawn by `sample_paths`. The order of axes is batch, bridge, time.

    Attributes:
        x: Inputs at each point, ``(batch, bridge, time, *feature)``; a tuple or dict of such
            tensors when the model takes several.
        y: Targets at each point, ``(batch, bridge, time, *target)``, in the target space.
        s: Relative time in [0, 1] of each point, ``(batch, bridge, time)``.
        variance: ``sigma**2 * horizon`` of each bridged input, broadcastable to its points.
        weight: Sample weight of each point, or None.
        free_y: Targets before projection (needed by a drift that acts on them).
        variance_y: The same as ``variance``, for targets.
        hidden: Bridges still to be drawn in a hidden layer, or None.
        labels: One-hot labels of the batch where the bridges start, ``(batch, *target)``; None if the
            targets are soft. A class-weighted mean is divided by their weights.
    """

    x: Inputs
    y: Tensor
    s: Tensor
    variance: dict[Any, float | Tensor]
    weight: Tensor | None = None
    free_y: Tensor | None = None
    variance_y: float | Tensor = 0.0
    hidden: Any = None
    labels: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of points, i.e. of rows that the model evaluates."""
        return self.s.numel()


def check_paths(paths: object) -> None:
    """Raise unless ``paths`` are points on bridges."""
    if not isinstance(paths, Paths):
        raise TypeError(
            f"paths must be points of sample_paths or Elliptic.sample, but got {type(paths).__name__}. Draw "
            "them first: paths = objective.sample(x, y)."
        )
