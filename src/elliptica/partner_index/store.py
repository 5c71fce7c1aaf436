"""The arrays of a partner index, and its folder: one plain ``.npy`` file per array and a JSON header."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elliptica._utils.untrusted import BROKEN_HEADER, read_json
from elliptica.core.partners import AMONG, Among

Array = NDArray[Any]

FORMAT, VERSION = "elliptica partner index", 2
_HEADER = "header.json"
_BLOCK = 2**24


@dataclass(frozen=True)
class Arrays:
    """The arrays. Points are kept cell by cell; a *position* counts in that order, a *row* in the data's."""

    points: Array  # points about their mean, ``(n, d)``
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
    classes: Array  # class of each cell's members (zero without labels), ``(cells,)``
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

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.named().values())


@dataclass(frozen=True)
class Facts:
    """Facts that the arrays do not contain."""

    power: float  # exponent of the inverse distance
    floor: float  # points nearer than this are duplicates
    among: Among  # partners of any class, of the same or of another class
    exact: bool  # whether all cells were searched (or shown to be too far)
    recall: float  # share of the true neighbours of the audited rows that were found
    backend: str  # what found them


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


@contextmanager
def new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside ``folder`` that takes its name when all went well, and goes away otherwise."""
    refuse_taken(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    part.chmod(0o755)
    try:
        yield part
        if folder.exists():  # those who have it open keep reading the old files
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
            folder.replace(old)
            part.replace(folder)
            shutil.rmtree(old)
        else:
            part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_taken(folder: Path, overwrite: bool) -> None:
    """Before any work: the name must be free, or that of an index which may be replaced."""
    if not folder.exists():
        return
    if not (folder / _HEADER).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not a partner index. Choose another folder.")
    if not overwrite and (folder / _HEADER).is_file():
        raise FileExistsError(
            f"{folder} already holds a partner index. Pass overwrite=True to replace it, or read it with "
            "PartnerIndex.load."
        )


def write_arrays(part: Path, arrays: Arrays, facts: Facts) -> None:
    """Write what is not there yet, and the header last."""
    described = {}
    for name, array in arrays.named().items():
        file = part / f"{name}.npy"
        if isinstance(array, np.memmap) and file.is_file():
            array.flush()
        else:
            np.save(file, array, allow_pickle=False)
        described[name] = {"shape": list(array.shape), "dtype": array.dtype.str, "crc32": _crc(array)}
    header = {"format": FORMAT, "version": VERSION, **asdict(facts)}
    header["power"] = str(facts.power)  # JSON has no infinity
    header |= {"n": len(arrays.points), "d": arrays.points.shape[1], "k": arrays.near.shape[1]}
    header |= {"arrays": described, "digest": _digest(described)}
    (part / _HEADER).write_text(json.dumps(header, indent=1) + "\n")


def read_arrays(folder: Path, verify: bool) -> tuple[Arrays, Facts]:
    """Map the files of an index into memory."""
    header = _read_header(folder)
    described = header["arrays"]
    arrays = {name: _map(folder, name, described[name]) for name in _names(header["version"])}
    if verify:
        for name, array in arrays.items():
            if _crc(array) != described[name]["crc32"]:
                raise _broken(folder, f"the contents of {name}.npy are not what was written")
    if header["version"] == 1:  # duplicates were as near as the floor, in every row
        arrays["distinct"] = np.full(header["n"], header["floor"])
    found = Arrays(**arrays)
    _check_sizes(folder, found, header)
    facts = {field.name: header[field.name] for field in fields(Facts)}
    return found, Facts(**{**facts, "power": float(facts["power"])})


def _names(version: int) -> list[str]:
    """Names of the arrays in a version of the format."""
    return [field.name for field in fields(Arrays) if version > 1 or field.name != "distinct"]


def _read_header(folder: Path) -> dict[str, Any]:
    file = folder / _HEADER
    if not file.is_file():
        what = "is not a folder" if not folder.is_dir() else f"has no {_HEADER}"
        raise FileNotFoundError(
            f"{folder} {what}, so it is no partner index. PartnerIndex.build(...).save(folder) makes one."
        )
    try:
        header = read_json(file)
        if header["format"] != FORMAT:
            raise KeyError("format")
    except (ValueError, KeyError, TypeError) as error:
        raise _broken(folder, f"{_HEADER} is not that of a partner index ({error})") from error
    if header.get("version") not in (1, VERSION):
        raise ValueError(
            f"{folder} has version {header.get('version')!r} of the format; this elliptica reads 1 and "
            f"{VERSION}. Build it again."
        )
    try:
        described = {name: header["arrays"][name] for name in _names(header["version"])}
        sound = header["digest"] == _digest(described) and header["among"] in AMONG
        sound &= all(field.name in header for field in fields(Facts))
        float(header["power"])
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise _broken(folder, f"{_HEADER} does not agree with itself")
    return header


def _map(folder: Path, name: str, described: dict[str, Any]) -> Array:
    file = folder / f"{name}.npy"
    if file.exists() and not file.is_file():  # reading a pipe would wait for ever
        raise _broken(folder, f"{name}.npy is not a regular file")
    shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
    try:
        # an empty file cannot be mapped
        array = np.load(file, mmap_mode=None if 0 in shape else "r", allow_pickle=False)
    except (OSError, ValueError, EOFError, *BROKEN_HEADER) as error:
        raise _broken(folder, f"{name}.npy cannot be read ({error})") from error
    if array.shape != shape or array.dtype != dtype:
        raise _broken(
            folder, f"{name}.npy holds {array.dtype} {array.shape}, the header says {dtype} {shape}"
        )
    return array


def _check_sizes(folder: Path, arrays: Arrays, header: dict[str, Any]) -> None:
    n, d, k, cells = header["n"], header["d"], header["k"], len(arrays.centres)
    expected = {
        "points": (n, d),
        "rows": (n,),
        "positions": (n,),
        "near": (n, k),
        "distances": (n, k),
        "reach": (n,),
        "distinct": (n,),
        "centres": (cells, d),
        "radius": (cells,),
        "starts": (cells + 1,),
        "classes": (cells,),
    }
    for name, shape in expected.items():
        if getattr(arrays, name).shape != shape:
            raise _broken(folder, f"{name}.npy has shape {getattr(arrays, name).shape}, expected {shape}")
    starts = arrays.starts
    if starts[0] != 0 or starts[-1] != n or (np.diff(starts) <= 0).any():
        raise _broken(folder, "starts.npy does not divide the points into cells")


def _crc(array: Array) -> int:
    """Checksum, a piece at a time."""
    crc = 0
    step = max(1, _BLOCK // max(1, array[:1].nbytes))
    for begin in range(0, len(array), step):
        crc = zlib.crc32(np.ascontiguousarray(array[begin : begin + step]).view(np.uint8).data, crc)
    return crc


def _digest(described: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()


def _broken(folder: Path, why: str) -> ValueError:
    return ValueError(f"The partner index in {os.fspath(folder)} is broken: {why}. Build it again.")
