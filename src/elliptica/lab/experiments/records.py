"""One JSON file per run: written once, atomically, by one process at a time."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elliptica import __version__
from elliptica._utils.files import write_atomically
from elliptica._utils.untrusted import read_json
from elliptica.core.types import EllipticWarning
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.checkpoint import set_aside

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover - Windows has no such locks
    fcntl = None  # type: ignore[assignment]

#: Whether a process can know that another one lives.
HAS_LOCKS: bool = fcntl is not None

_NEEDED = {"run", "metrics", "cost", "versions"}


def record_file(out: Path, run: Run) -> Path:
    """Where the record of a run is."""
    folder = out / run.table / run.dataset / run.row.replace("/", "-")
    return folder / f"{run.key}-seed{run.seed}.json"


def checkpoint_file(out: Path, run: Run) -> Path:
    """Where its checkpoint is while it runs."""
    return record_file(out, run).with_suffix(".safetensors")


def model_file(out: Path, run: Run) -> Path:
    """Where its selected weights are, if they are kept."""
    return record_file(out, run).with_suffix(".model.safetensors")


def read_record(file: Path) -> dict[str, Any] | None:
    """A finished record; one that cannot be read is set aside with a warning."""
    if not file.exists():
        return None
    try:
        record = read_json(file)
        if not isinstance(record, dict) or not set(record) >= _NEEDED:
            raise ValueError("entries are missing")
    except (ValueError, OSError) as error:
        set_aside(file, f"The record {file.name} cannot be used ({error})")
        return None
    return record


def is_recorded(out: Path, run: Run, *, with_epochs: bool = False) -> bool:
    """Whether a run is finished; ``with_epochs`` asks for its right answers after each epoch, too."""
    record = read_record(record_file(out, run))
    return record is not None and (not with_epochs or "right" in record)


def write_record(file: Path, record: dict[str, Any]) -> None:
    """Write a record atomically."""
    try:
        write_atomically(file, as_text(record), durable=True)
    except OSError as error:
        raise OSError(f"The record {file.name} cannot be written ({error}). Is the disk full?") from error


def as_text(record: dict[str, Any]) -> str:
    """A record as JSON: an entry per line, lists of numbers on one."""
    text = json.dumps(record, indent=1, sort_keys=True)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", " ", found.group()), text) + "\n"


def read_records(out: Path, runs: list[Run]) -> list[dict[str, Any]]:
    """The records of those runs that are finished; damaged ones are left out with a warning."""
    from elliptica.lab.experiments.record_folder import problem_of

    found = []
    for file in (record_file(out, run) for run in runs):
        if (record := read_record(file)) is None:
            continue
        if problem := problem_of(record):
            warnings.warn(
                f"The record {file} is left out: it {problem}. Delete it, and elliptica run does it anew.",
                EllipticWarning,
                stacklevel=2,
            )
        else:
            found.append(record)
    return found


@contextlib.contextmanager
def claimed(out: Path, file: Path) -> Iterator[bool]:
    """Whether this process may do the run; one that dies gives its claim free.

    The lock files stay: removing one while another process opens it would let both in.
    """
    folder = out / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{file.stem}-{file.parent.name}.lock").open("w") as handle:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
        yield True


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    import numpy as np
    import torch

    found = {
        "elliptica": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    revision = _revision()
    return {**found, "revision": revision} if revision else found


def _revision() -> str | None:
    """Commit of the source, if it is a checkout; "+" marks local changes."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return None
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip()
