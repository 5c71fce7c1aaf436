"""What a partner index consists of: plain arrays, in memory or in files, and a few facts about them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elliptica.pairing import Among

Array = NDArray[Any]


@dataclass(frozen=True)
class Arrays:
    """The arrays. Points are kept cell by cell; a *position* counts in that order, a *row* in the data's.

    Attributes:
        points: Points about their mean, ``(n, d)``.
        rows: Row of each position, ``(n,)``.
        positions: Position of each row, ``(n,)``.
        near: Positions of the stored neighbours, nearest first, ``(n, k)``; -1 where there are fewer.
        distances: Their distances, ``(n, k)``.
        reach: Points of searched cells that are not stored are at least so far, ``(n,)``.
        centres: Centre of each cell, ``(cells, d)``.
        radius: Largest distance of a member from its centre, ``(cells,)``.
        starts: First position of each cell, and n, ``(cells + 1,)``.
        classes: Class of each cell's members (zero without labels), ``(cells,)``.
        probes: Cells that were searched for the members of each cell, ``(cells, probes)``, -1 where there are
            fewer; ``(cells, 0)`` when all were.
        audit: Positions of some rows whose true neighbours were found by brute force, ``(audit,)``.
        missed_by: For points within reach that the search missed: which of the audited rows, ``(missed,)``.
        missed: Their distances, ``(missed,)``.
    """

    points: Array
    rows: Array
    positions: Array
    near: Array
    distances: Array
    reach: Array
    centres: Array
    radius: Array
    starts: Array
    classes: Array
    probes: Array
    audit: Array
    missed_by: Array
    missed: Array

    def cell_of(self, position: Array) -> Array:
        """Cell of each position."""
        return np.searchsorted(self.starts, position, side="right") - 1

    def named(self) -> dict[str, Array]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.named().values())


@dataclass(frozen=True)
class Facts:
    """What the arrays do not say.

    Attributes:
        power: Exponent of the inverse distance.
        floor: Distances below it count as it.
        among: Partners of any class, of the same or of another class.
        exact: Whether all cells were searched (or shown to be too far).
        recall: Share of the true neighbours of the audited rows that were found.
        backend: What found them.
    """

    power: float
    floor: float
    among: Among
    exact: bool
    recall: float
    backend: str


class Arena:
    """Where new arrays are made: in memory, or as files of a folder that are mapped into memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array to be filled."""
        if self.folder is None or 0 in shape:
            return np.empty(shape, dtype)
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def whole_numbers(n: int) -> type[np.signedinteger[Any]]:
    """The smallest usual dtype that counts to ``n``."""
    return np.int32 if n < 2**31 else np.int64
