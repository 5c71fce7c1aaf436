"""Read data in chunks; keep the arrays of an index in memory, or in a folder of plain ``.npy`` files."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils.random import compute_dtype
from elliptica.core.partners import DISTANCE_FLOOR, ROWS_FOR_MEDIAN, distance_floor, pairwise_distances

Array = NDArray[Any]
Among = Literal["all", "same_class"]

VERSION = 3
_HEADER = "header.json"
#: Numbers read at a time.
CHUNK = 2**23


class Rows:
    """Read rows of ``x`` as flat float32 vectors about their mean, divided by a power of two near their size.

    The law depends on ratios of distances alone, so the unit does not matter; in this one squares neither
    overflow nor vanish.
    """

    def __init__(self, x: Tensor | Array) -> None:
        if isinstance(x, Tensor):
            x = x.detach().cpu().to(compute_dtype(x.dtype)).numpy()
        self._x = x
        self.n, self.d = len(x), int(np.prod(x.shape[1:]))
        if self.n < 2 or self.d == 0:
            raise ValueError(f"x must have at least two rows and one feature, but has shape {x.shape}.")
        total, low, high = np.zeros(self.d), np.full(self.d, np.inf), np.full(self.d, -np.inf)
        for span in self.spans():
            rows = self._raw(span)
            low, high, total = (
                np.minimum(low, rows.min(0)),
                np.maximum(high, rows.max(0)),
                total + rows.sum(0),
            )
            if not np.isfinite(high - low).all():
                row = span.start + int(np.argmin(np.isfinite(rows).all(1)))
                raise ValueError(f"x must be finite, but row {row} is not. Impute or drop such rows.")
        self._mean = total / self.n
        largest = float(np.maximum(high - self._mean, self._mean - low).max())
        self._unit = 2.0 ** math.frexp(largest)[1]

    def _raw(self, which: slice | NDArray[np.integer]) -> NDArray[np.float64]:
        rows = np.asarray(self._x[which], np.float64)
        return rows.reshape(len(rows), -1)

    def _centred(self, which: slice | NDArray[np.integer]) -> NDArray[np.float64]:
        return np.asarray((self._raw(which) - self._mean) / self._unit)

    def __getitem__(self, which: slice | NDArray[np.integer]) -> NDArray[np.float32]:
        return self._centred(which).astype(np.float32)

    def spans(self) -> Iterator[slice]:
        """Divide the numbers of all rows into chunks."""
        step = max(1, CHUNK // self.d)
        for begin in range(0, self.n, step):
            yield slice(begin, min(begin + step, self.n))

    def floor(self) -> float:
        """Return the distance below which two points are duplicates, as in `PartnerTable`."""
        some = self._centred(slice(None, None, max(1, self.n // ROWS_FOR_MEDIAN)))
        kept = some.astype(np.float32)
        # a huge outlier makes copies of ordinary rows, which no bound would show
        rounding = np.median(np.linalg.norm(some - kept, axis=1))
        spread = np.median(np.linalg.norm(some - np.median(some, axis=0), axis=1))
        if rounding > DISTANCE_FLOOR * spread > 0:
            raise ValueError(
                "x holds values so far apart that float32 cannot tell ordinary rows apart: it moves them by "
                f"{rounding / spread:.2g} of their typical distance. Clip or drop outliers, or scale columns."
            )
        return distance_floor(pairwise_distances(torch.from_numpy(kept)))


@dataclass(frozen=True)
class Arrays:
    """The arrays. Points are kept cell by cell; a *position* counts in that order, a *row* in the data's."""

    points: Array  # points as `Rows` reads them, ``(n, d)``
    rows: Array  # row of each position, ``(n,)``
    positions: Array  # position of each row, ``(n,)``
    near: Array  # positions of the stored neighbours, nearest first, ``(n, k)``; -1 where there are fewer
    distances: Array  # their distances, ``(n, k)``
    reach: Array  # points of searched cells that are not stored are at least so far, ``(n,)``
    #: For a row with duplicates the distance of its nearest distinct neighbour, ``(n,)``; the floor for other
    #: rows. Nearer points count as so far.
    distinct: Array
    centres: Array  # centre of each cell, ``(cells, d)``
    radius: Array  # largest distance of a member from its centre, ``(cells,)``
    starts: Array  # first position of each cell, and n, ``(cells + 1,)``
    classes: Array  # class of each cell's members (zero if classes do not matter), ``(cells,)``
    #: Cells that were searched for the members of each cell, ``(cells, probes)``, -1 where there are fewer;
    #: ``(cells, 0)`` when all were.
    probes: Array
    audit: Array  # positions of some rows whose true neighbours were found by brute force, ``(audit,)``
    #: For points within reach that the search missed: which of the audited rows, ``(missed,)``.
    missed_by: Array
    missed: Array  # their distances, ``(missed,)``

    def cell_of(self, position: Array) -> Array:
        """Return the cell of each position."""
        return np.searchsorted(self.starts, position, side="right") - 1

    def named(self) -> dict[str, Array]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Facts:
    """Facts that the arrays do not contain."""

    power: float  # exponent of the inverse distance
    floor: float  # points nearer than this are duplicates
    among: Among  # partners of any class, or of the same class
    exact: bool  # whether all cells were searched (or shown to be too far)
    recall: float  # share of the true neighbours of the audited rows that were found
    backend: str  # what found them


class Arena:
    """Make new arrays: in memory, or as files of a folder that are mapped into memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array to be filled."""
        if self.folder is None or 0 in shape:
            return np.empty(shape, dtype)
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


@contextmanager
def new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder that takes the name ``folder`` if all goes well, and is removed otherwise."""
    if folder.exists() and any(folder.iterdir()) and not (overwrite and (folder / _HEADER).is_file()):
        raise FileExistsError(f"folder {folder} is not empty; overwrite=True replaces an index only.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent) as scratch:
        part = Path(scratch) / "new"
        part.mkdir()
        yield part
        if folder.exists():  # processes that have it open keep reading the old files
            folder.replace(Path(scratch) / "old")
        part.replace(folder)


def write_arrays(part: Path, arrays: Arrays, facts: Facts) -> None:
    """Write the arrays that are not files of the folder yet, and the header last."""
    for name, array in arrays.named().items():
        file = part / f"{name}.npy"
        if isinstance(array, np.memmap) and file.is_file():
            array.flush()
        else:
            np.save(file, array, allow_pickle=False)
    (part / _HEADER).write_text(json.dumps({"version": VERSION, **asdict(facts)}, indent=1) + "\n")


def read_arrays(folder: Path) -> tuple[Arrays, Facts]:
    """Map the files of an index into memory."""
    header = json.loads((folder / _HEADER).read_text())
    if header.pop("version") != VERSION:
        raise ValueError(f"folder {folder} holds an index of another version. Build it again.")

    def read(name: str) -> Array:
        file = folder / f"{name}.npy"
        try:
            array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
        except ValueError:  # an empty array cannot be mapped
            array = np.load(file, allow_pickle=False)
        return array

    return Arrays(**{field.name: read(field.name) for field in fields(Arrays)}), Facts(**header)
