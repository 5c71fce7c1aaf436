"""Base class of results: plain numbers for JSON, and tables to print."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Result:
    """Base class of the dataclasses that reports return."""

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain numbers, lists and strings; values that are not finite become None."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def plain(value: Any) -> Any:
    """Convert a value to one that `json.dumps` accepts."""
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
    """Format the first ``limit`` rows of a table with right-aligned columns."""
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
    """Format one line per note."""
    return [f"note: {note}" for note in notes]
