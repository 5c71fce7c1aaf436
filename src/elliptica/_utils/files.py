"""Read files within limits; write them atomically."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Larger JSON files are none of ours, and larger arrays do not fit into the memory of an ordinary machine.
MOST_JSON, MOST_ARRAYS = 2**28, 2**33
#: What NumPy raises for damaged headers of arrays, besides ValueError.
BROKEN_HEADER = (SyntaxError, tokenize.TokenError, RecursionError, MemoryError, OverflowError, TypeError)
_DAMAGED = (EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)

#: Error codes for a full disk, a quota or a limit on the size of files, and for a forbidden place.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def read_json(path: Path, most_bytes: int = MOST_JSON) -> Any:
    """Read a JSON file; raise ValueError for one that is too large, damaged or not a regular file."""
    _check_regular(path)
    if path.stat().st_size > most_bytes:
        raise ValueError(f"{path.name} is larger than {most_bytes / 1e6:.0f} MB")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def read_arrays(path: Path, most_bytes: int = MOST_ARRAYS) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file; raise ValueError as `read_json` does, and for pickled objects."""
    _check_regular(path)
    import numpy as np  # the command line does not wait for it

    try:
        with zipfile.ZipFile(path) as file:  # a few bytes can unpack to more than any memory holds
            if sum(info.file_size for info in file.infolist()) > most_bytes:
                raise ValueError(f"{path.name} unpacks to more than {most_bytes / 1e9:.3g} GB")
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        if any(isinstance(value, bytes) for value in found.values()):  # NumPy's answer to other members
            raise ValueError(f"{path.name} holds members that are not arrays")
        return found
    except (*_DAMAGED, *BROKEN_HEADER) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{path.name} is not a regular file")


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary file next to ``path`` that replaces it when the block ends.

    A reader sees the old content or the new, never a part of it, even if the process is killed. If
    the block raises, the temporary file is removed and ``path`` does not change.

    Its folder is created if needed. ``durable`` waits until the content is on disk, so that it survives a
    power cut as well.
    """
    if path.exists() and not path.is_file():  # to replace a device would remove it from the machine
        raise OSError(errno.EINVAL, "it is a device, a pipe or a folder, not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # one name for each process that writes
    try:
        yield part
        if durable:
            with part.open("rb+") as handle:
                os.fsync(handle.fileno())
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(part)):
            error.filename = str(path)  # the file that the caller knows; a failed write names none
        raise


def write_atomically(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace the content of a text file as a whole, see `replacing`."""
    with replacing(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")


def not_written(error: OSError, place: str = "The output") -> str:
    """Say what could not be written (``place`` if the error names no file), why, and what to do."""
    remedy = "Choose another place, or make it writable."
    if error.errno in _FULL:
        remedy = "Free some space and rerun the same command."
    elif error.errno not in _FORBIDDEN:
        remedy = "Rerun the same command, or choose another place."
    return f"{error.filename or place} cannot be written ({error.strerror or error}). {remedy}"


def is_not_written(error: OSError) -> bool:
    """Return whether an error means a full disk or a read-only one."""
    return error.errno in (*_FULL, errno.EROFS)
