"""One JSON file per run: written once, atomically, by one process at a time."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elliptica import __version__
from elliptica._utils.files import read_json, write_atomically
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.checkpoint import set_aside

#: Longest reason that is quoted: a damaged file could make it of any length.
_LONGEST = 200

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


def read_record(file: Path, *, set_aside_damaged: bool = True) -> dict[str, Any] | None:
    """A finished record; one that cannot be read is set aside with a warning, or only passed over."""
    if not file.exists():
        return None
    try:
        return _read(file)
    except (ValueError, OSError) as error:
        if set_aside_damaged:
            set_aside(file, f"The record {file.name} cannot be used ({error})")
        return None


def _read(file: Path) -> dict[str, Any]:
    record = read_json(file)
    if not isinstance(record, dict) or not set(record) >= _NEEDED:
        raise ValueError("lacks entries of a record")
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
        raise OSError(
            f"The record {file.name} cannot be written ({error}). Is the disk full? Free some space and "
            "rerun the same command."
        ) from error


def as_text(record: dict[str, Any]) -> str:
    """A record as JSON: an entry per line, lists of numbers on one."""
    text = json.dumps(record, indent=1, sort_keys=True)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", " ", found.group()), text) + "\n"


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Sizes = dict[str, Annotated[int, Field(strict=True, ge=0)]]


class Bins(BaseModel):
    """Reliability: rows, summed confidence and right answers of each bin."""

    rows: list[Number]
    confidence: list[Number]
    right: list[Number]

    @model_validator(mode="after")
    def _check(self) -> Bins:
        if not len(self.rows) == len(self.confidence) == len(self.right):
            raise ValueError("the three lists must be of one length")
        return self


class Scores(BaseModel):
    """Metrics of the test rows; others than these are single numbers, or lists of names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | list[Any] | None] = Field(init=False)
    by_class: dict[str, Number] | None = None
    by_group: dict[str, Number] | None = None
    uncertainty: dict[str, Number] | None = None
    reliability: Bins | None = None


class Metrics(BaseModel):
    """Of the parts of the data; the page shows the test part."""

    test: Scores
    validation: Scores | None = None


class Spent(BaseModel):
    """What a first stage has cost."""

    evaluations: Number = 0
    seconds: Number = 0


class Cost(BaseModel):
    """What a run has cost."""

    evaluations: Number
    seconds: Number
    epochs: Annotated[int, Field(strict=True, gt=0)]
    first_stage: Spent = Spent()


class Counts(BaseModel):
    """Training rows of each class and group."""

    of_class: Sizes = Field({}, alias="class")
    of_group: Sizes = Field({}, alias="group")


class Rows(BaseModel):
    """Rows of the parts of the data."""

    train: Counts | None = None


class Shape(BaseModel):
    """A record, apart from its run."""

    metrics: Metrics
    cost: Cost
    epoch: Annotated[int, Field(strict=True, ge=0)]
    versions: dict[str, Any]
    curves: dict[str, list[Annotated[float, Field(strict=True)] | None]] = {}  # a loss may be infinite
    rows: Rows = Rows()


def reason(error: Exception) -> str:
    """Say in a few words why a file is no record."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "float")  # a tag of pydantic's
        return f"has a wrong entry: {place} is {first['input']!r:.40}. {first['msg']}"[:_LONGEST]
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
        return f"is no JSON ({error})"[:_LONGEST]
    return str(error)[:_LONGEST]


def problem_of(content: Mapping[str, Any]) -> str:
    """Say what is wrong with the entries of a record; empty if nothing is."""
    try:
        Run.model_validate(content["run"])
        Shape.model_validate(content)
    except (ValueError, RecursionError) as error:
        return reason(error)
    return ""


def read_records(out: Path, runs: list[Run]) -> list[dict[str, Any]]:
    """The records of those runs that are finished; damaged ones are skipped with a warning, not moved."""
    found = []
    for file in (record_file(out, run) for run in runs):
        if not file.exists():
            continue
        try:
            record = _read(file)
            problem = problem_of(record)
        except (ValueError, OSError) as error:
            problem = reason(error)
        if problem:
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
