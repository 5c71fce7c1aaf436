"""Read files that may be damaged or hostile: within limits, and without waiting for a writer."""

from __future__ import annotations

import json
import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Larger JSON files are none of ours; what is read takes several times the room of its text.
MOST_JSON = 2**28
#: Larger arrays do not fit into the memory of an ordinary machine, beside what is computed from them.
MOST_ARRAYS = 2**33
#: What NumPy raises for damaged headers of arrays, besides ValueError.
BROKEN_HEADER = (SyntaxError, tokenize.TokenError, RecursionError, MemoryError, OverflowError, TypeError)


def read_json(path: Path, most_bytes: int = MOST_JSON) -> Any:
    """Read a JSON file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not a regular file (reading a pipe would wait for ever), too large, not UTF-8,
            not JSON, or nested too deeply.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is not a regular file")
    if (size := path.stat().st_size) > most_bytes:
        raise ValueError(f"{path.name} has {size / 1e6:.0f} MB, but at most {most_bytes / 1e6:.0f} are read")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def read_arrays(path: Path, most_bytes: int = MOST_ARRAYS) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file, after a look at the sizes that it claims.

    A few bytes can claim, or unpack to, more than any memory holds, so nothing is unpacked before.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no zip of plain arrays, or if sizes are too large or contradict each other.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is not a regular file")
    import numpy as np  # the command line does not wait for it

    try:
        with zipfile.ZipFile(path) as file:
            _check_members(file, most_bytes)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error, *BROKEN_HEADER) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error


def _check_members(file: zipfile.ZipFile, most_bytes: int) -> None:
    """Raise where members are too large together, or an array claims another size than its member has."""
    from numpy.lib import format as npy

    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    total = sum(info.file_size for info in file.infolist())
    if total > most_bytes:
        raise ValueError(f"it unpacks to {total / 1e9:.3g} GB, but at most {most_bytes / 1e9:.3g} are read")
    for info in file.infolist():
        if not info.filename.endswith(".npy"):
            continue
        with file.open(info) as member:
            version = npy.read_magic(member)
            if version not in headers:
                raise ValueError(f"{info.filename} has version {version} of the format, which is not read")
            shape, _, dtype = headers[version](member)
            rest = info.file_size - member.tell()
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize != rest:
            raise ValueError(
                f"{info.filename} claims shape {shape!s:.60} of dtype {dtype}, which does not fit its "
                f"{rest} bytes"
            )
