"""Write files atomically, one process at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

if sys.platform == "win32":  # pragma: no cover - tests run elsewhere
    import msvcrt
else:
    import fcntl

#: Error codes for a file that another process has locked.
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
#: Error codes for a full disk, a quota or a limit on the size of files, and for a forbidden place.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary file next to ``path`` that replaces it when the block ends.

    A reader sees the old content or the new, never a part of it, even if the process is killed. If
    the block raises, the temporary file is removed and ``path`` does not change.

    Args:
        path: File to replace. Its folder is created if needed.
        durable: Wait until the content is on disk, so that it survives a power cut as well.

    Raises:
        OSError: If ``path`` is not a regular file, or cannot be written.
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


def not_written(error: OSError, place: str = "The output") -> str:
    """Say in a sentence or two what could not be written, why, and what to do.

    Args:
        error: The error of the system.
        place: What was to be written if the error names no file.

    Example:
        >>> not_written(OSError(errno.ENOSPC, "No space left on device", "page.html"))
        'page.html cannot be written (No space left on device). Free some space and rerun the same command.'
    """
    remedy = "Choose another place, or make it writable."
    if error.errno in _FULL:
        remedy = "Free some space and rerun the same command."
    elif error.errno not in _FORBIDDEN:
        remedy = "Rerun the same command, or choose another place."
    return f"{error.filename or place} cannot be written ({error.strerror or error}). {remedy}"


def is_not_written(error: OSError) -> bool:
    """Whether an error means a full disk or a read-only one."""
    return error.errno in (*_FULL, errno.EROFS)


def write_atomically(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace the content of a text file as a whole, see `replacing`."""
    with replacing(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")


class FileLock:
    """Lock a file, so that no other process holds it at the same time.

    The system releases it when the process ends, however it ends, so no lock is ever stale. The file stays:
    removing it while another process opens it would let both in. File systems without locks do not exclude
    anyone.

    Args:
        path: File to lock; created if needed. It contains the id of the process that holds it.

    Raises:
        BlockingIOError: If it is held already, in this process or in another one.
    """

    def __init__(self, path: Path) -> None:
        self._handle: IO[str] | None = path.open("a+", encoding="utf-8")
        try:
            _lock(self._handle)
        except OSError as error:
            if error.errno in _TAKEN:
                self._handle.seek(0)
                holder = self._holder()
                self.release()
                raise BlockingIOError(errno.EAGAIN, holder, str(path)) from error
        else:
            self._handle.seek(0)
            self._handle.truncate()
            self._handle.write(f"process {os.getpid()}")
            self._handle.flush()

    def _holder(self) -> str:
        """Return who holds the file, if that can be read."""
        assert self._handle is not None
        with contextlib.suppress(OSError, ValueError):  # Windows does not let others read a locked file
            return self._handle.read(100).strip() or "another process"
        return "another process"

    def release(self) -> None:
        """Release the file; does nothing the second time."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def _lock(handle: IO[str]) -> None:
    """Lock an open file or raise an OSError at once."""
    if sys.platform == "win32":  # pragma: no cover
        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
