"""What all reports share: plain numbers for JSON, and tables for reading."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica.core.elliptic import sample_paths
from elliptica.core.targets import TargetSpace


@dataclasses.dataclass(frozen=True)
class Report:
    """Base of the report dataclasses."""

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain numbers, lists and strings; what is not finite becomes None."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def plain(value: Any) -> Any:
    """A value that `json.dumps` takes."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(head: Sequence[str], rows: Sequence[Sequence[object]], limit: int = 10) -> list[str]:
    """Lines of a table with right-aligned columns, the first ``limit`` rows of it."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows[:limit])]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells
    ]
    if len(rows) > limit:
        lines.append(f"  ... and {len(rows) - limit} more")
    return lines


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def notes_lines(notes: Sequence[str]) -> list[str]:
    """One line per note."""
    return [f"note: {note}" for note in notes]


# Points at which to look at a loss: between the data, or shifted.


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
    checks.floating("x", x)
    checks.batch("x", x)
    checks.same_rows("y", y, len(x))
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
