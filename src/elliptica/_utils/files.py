"""Read arrays without pickle; write files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Error codes for a full disk, a quota or a limit on the size of files, and for a forbidden place.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file, never a pickled object; raise ValueError if it is damaged."""
    import numpy as np  # the command line does not wait for it

    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


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
