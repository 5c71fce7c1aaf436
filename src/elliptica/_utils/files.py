"""Write files atomically."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that takes its place when the block ends.

    A reader sees the old content or the new, never a half of it, and so does whoever comes after a kill. If
    the block raises, the temporary file is removed and ``path`` stays as it was.

    Args:
        path: File to replace. Its folder is created if needed.
        durable: Wait until the disk has the content, so that it survives a power cut as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # one name for each process that writes
    try:
        yield part
        if durable:
            with part.open("rb+") as handle:
                os.fsync(handle.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace the content of a text file as a whole, see `replacing`."""
    with replacing(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")
