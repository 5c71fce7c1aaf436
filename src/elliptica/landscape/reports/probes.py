"""Points at which to look at a loss: between the data, or shifted."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica import _checks
from elliptica.functional import sample_paths
from elliptica.targets import TargetSpace


def bridge_probes(
    x: Tensor,
    y: Tensor,
    *,
    target_space: TargetSpace,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """Points on bridges between rows, as training sees them: inputs and (mixed) targets, one row each.

    Args:
        x: Inputs.
        y: Targets.
        target_space: ``"real"``, ``"simplex"`` (labels; pass ``num_classes``) or ``"unit"``.
        generator: Source of randomness.
        **settings: Those of `elliptica.Elliptic`, e.g. ``sigma``, ``n_times``, ``n_bridges``.
    """
    settings.setdefault("sampling", "path")  # every inner time of the grid
    paths = sample_paths(x, y, target_space=target_space, generator=generator, **settings)
    assert isinstance(paths.x, Tensor)
    inner = (paths.s > 0) & (paths.s < 1)  # the ends are the data themselves
    return paths.x[inner], paths.y[inner]


def shifted_probes(
    x: Tensor,
    y: Tensor,
    matrix: Float[Tensor, "dim dim"] | None = None,
    offset: Float[Tensor, " dim"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Inputs after the map ``T x = matrix x + offset`` (on flattened features), with their own targets.

    Args:
        x: Inputs.
        y: Targets, unchanged.
        matrix: None for the identity.
        offset: None for zero.
    """
    _checks.floating("x", x)
    _checks.batch("x", x)
    _checks.same_rows("y", y, len(x))
    flat = x.reshape(len(x), -1)
    dim = flat.shape[1]
    for name, value, shape in (("matrix", matrix, (dim, dim)), ("offset", offset, (dim,))):
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(
                f"The {name} of the shift must have shape {shape} for inputs of {dim} features, but has "
                f"{tuple(value.shape)}."
            )
    moved = flat if matrix is None else flat @ matrix.to(flat).T
    if offset is not None:
        moved = moved + offset.to(flat)
    return moved.reshape(x.shape), y
