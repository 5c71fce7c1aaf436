"""What a page was made with: versions, and fingerprints of files."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from elliptica import __version__


def digest(file: Path) -> str:
    """First sixteen digits of a file's SHA-256."""
    found = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            found.update(block)
    return found.hexdigest()[:16]


def present_versions() -> dict[str, str]:
    """Of what runs now."""
    import numpy
    import torch

    return {
        "elliptica": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": str(numpy.__version__),
    }
