"""Files of a checkpoint: complete or not there at all, and unchanged or refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elliptica.distributed.ranks import Ranks

_FORMAT = 1
_DESCRIPTION = "checkpoint.json"
_NEEDED = {"format", "step", "world_size", "files", "values", "extra"}


def next_name(root: Path) -> str:
    """Of a new checkpoint."""
    return f"checkpoint-{max([0, *(number for number, _ in complete(root))]) + 1:06d}"


def finish(writing: Path, target: Path, description: dict[str, Any]) -> None:
    """Describe a checkpoint that is written, put it on the disk, and give it its name."""
    with (writing / _DESCRIPTION).open("w") as handle:
        json.dump({"format": _FORMAT, **description}, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    writing.rename(target)


def complete(root: Path) -> list[tuple[int, Path]]:
    """Checkpoints that have their name, in the order of saving."""

    def each() -> Iterator[tuple[int, Path]]:
        for path in root.glob("checkpoint-*") if root.is_dir() else ():
            number = path.name.removeprefix("checkpoint-")
            if number.isdecimal() and path.is_dir():
                yield int(number), path

    return sorted(each())


def described(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; raises if it cannot be read, or has other files than it says."""
    try:
        found = json.loads((path / _DESCRIPTION).read_text())
        if not isinstance(found, dict) or not found.keys() >= _NEEDED:
            raise ValueError("entries are missing")
    except (OSError, ValueError) as error:
        raise ValueError(damaged(path, f"{_DESCRIPTION}: {error}")) from error
    if found["format"] != _FORMAT:
        raise ValueError(
            f"The checkpoint {path} has format {found['format']}, which this version cannot read."
        )
    there = {file.name for file in path.iterdir()} - {_DESCRIPTION}
    if there != set(found["files"]):
        odd = ", ".join(sorted(there ^ set(found["files"])))
        raise ValueError(damaged(path, f"missing or not of it: {odd}"))
    return found


def damaged(path: Path, why: str) -> str:
    """What to say of a checkpoint that must not be used."""
    return f"The checkpoint {path} is damaged ({why}). Move it away: the one before it will be used, if kept."


def digests(path: Path, names: list[str], ranks: Ranks) -> dict[str, str]:
    """Digest of each file; every process reads some of them."""
    own = {}
    for name in names[ranks.rank :: ranks.size]:
        digest = hashlib.sha256()
        with (path / name).open("rb") as handle:
            while block := handle.read(2**20):
                digest.update(block)
        own[name] = digest.hexdigest()
    return {name: digest for each in ranks.all(own) for name, digest in each.items()}
