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

    def __str__(self) -> str:
        """List single values (properties, too), tables of what there is one of per row, and the notes."""
        names = [field.name for field in dataclasses.fields(self)]
        names += [name for name, value in vars(type(self)).items() if isinstance(value, property)]
        values = {name: getattr(self, name) for name in names}
        notes = values.pop("notes", ())
        columns = {name: v.tolist() for name, v in values.items() if isinstance(v, Tensor) and v.ndim == 1}
        tables = {name: rows for name, v in values.items() if (rows := _rows(v))}
        rest = [name for name, v in values.items() if not isinstance(v, Tensor) and name not in tables]
        lines = [f"{type(self).__name__}", *(f"  {name}: {_cell(values[name])}" for name in rest)]
        for name, rows in tables.items():
            lines += [f"  {name}:", *table([*vars(rows[0])], [[*vars(row).values()] for row in rows], 20)]
        lines += table([*columns], list(zip(*columns.values(), strict=True))) if columns else []
        return "\n".join([*lines, *notes_lines(notes)])


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


def _rows(value: object) -> tuple[Any, ...]:
    """Return a dataclass, or some of one class, as rows of a table; nothing for other values."""
    rows = value if isinstance(value, tuple) else (value,)
    return tuple(row for row in rows if dataclasses.is_dataclass(row))


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_cell, value[:10])) + (", ..." if len(value) > 10 else "") if value else "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def notes_lines(notes: Sequence[str]) -> list[str]:
    """Format one line per note."""
    return [f"note: {note}" for note in notes]
