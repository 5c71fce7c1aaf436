"""Records of runs: one compressed JSON-lines file per table, which several processes may share."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elliptica._utils.files import replacing
from elliptica.lab.experiments.specification import Run
from elliptica.report.page import present_versions

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover - Windows has no such locks
    fcntl = None  # type: ignore[assignment]

#: Version of the random draws. Raise it with every change that gives a run other numbers: runs that were
#: recorded with other draws are then done anew, and marked in tables until they are.
DRAWS = 1

#: Ending of a file of records.
SUFFIX = ".jsonl.gz"

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Scores(_Part):
    """What `elliptica.lab.experiments.metrics.measure` says about a part of the data."""

    average: Number
    weighted: Number | None = None
    balanced: Number | None = None
    worst: Number | None = None
    top5: Number | None = None
    auroc: Number | None = None
    calibration: Number | None = None
    by_class: dict[str, Number] = {}
    by_group: dict[str, Number] = {}
    uncertainty: dict[str, Number] = {}
    reliability: dict[str, list[Number]] = {}  # rows, summed confidence and right answers of each bin


class Cost(BaseModel):
    """Cost of a run, in rows through the network, seconds and epochs; and on what (device, threads)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    evaluations: Number
    seconds: Number
    epochs: int = Field(gt=0)
    first_stage: dict[str, Number] = {}  # evaluations and seconds in it


class Record(_Part):
    """One finished run."""

    run: Run
    draws: int  # version of the draws it was made with, `DRAWS` at that time
    metrics: dict[str, Scores]  # by part of the data: test, validation
    epoch: int = Field(ge=0)  # the one that was chosen
    cost: Cost
    versions: dict[str, Any]
    rows: dict[str, dict[str, Any]] = {}  # by part of the data: how many, of each class and group
    method: dict[str, Any] = {}  # what the method says about itself
    curves: dict[str, list[float | None]] = {}  # validation score of each epoch
    #: Right answers after every epoch, by part and class (or group).
    right: dict[str, dict[str, list[int]]] = {}

    @property
    def hash(self) -> str:
        """What `Records.find` looks for."""
        return run_hash(self.run, self.draws)


def run_hash(run: Run, draws: int = DRAWS) -> str:
    """Hash everything that decides the result of a run."""
    text = json.dumps([draws, run.model_dump(mode="json")], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Records:
    """The records in one file, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, ...] = ()
        self._records: dict[str, Record] = {}

    def read(self) -> list[Record]:
        """All records; raises `ValueError` if one cannot be read."""
        stat = self.path.stat() if self.path.exists() else None
        stamp = () if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp != self._stamp:
            try:
                records = [Record.model_validate(line) for line in read_lines(self.path)]
            except ValidationError as error:
                raise ValueError(f"{self.path}: {error}") from error
            self._records, self._stamp = {record.hash: record for record in records}, stamp
        return list(self._records.values())

    def find(self, hash_: str) -> Record | None:
        """The record with this hash, if there is one: ``records.find(run_hash(run))``."""
        self.read()
        return self._records.get(hash_)

    def append(self, record: Record) -> None:
        """Add a record, in place of an earlier one of the same run; a kill leaves the old file or the new."""
        with locked(self.path):
            new = run_hash(record.run)
            records = [*(other for other in self.read() if run_hash(other.run) != new), record]
            write_lines(self.path, (r.model_dump(mode="json", exclude_defaults=True) for r in records))


@functools.cache
def records_of(out: Path, table: str) -> Records:
    """The records of a table in a folder."""
    return Records(out / f"{table}{SUFFIX}")


def read_records(out: Path, runs: Iterable[Run]) -> list[Record]:
    """Records of those runs that are finished, with whatever draws they were made."""
    wanted = list(runs)
    tables = [records_of(out, table).read() for table in {run.table for run in wanted}]
    by_run = {(record.run.key, record.run.seed): record for records in tables for record in records}
    return [by_run[place] for run in wanted if (place := (run.key, run.seed)) in by_run]


def is_recorded(out: Path, run: Run, *, with_epochs: bool = False) -> bool:
    """Whether a run is finished; ``with_epochs`` asks for its right answers after each epoch, too."""
    record = records_of(out, run.table).find(run_hash(run))
    return record is not None and (not with_epochs or bool(record.right))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file; a process that dies gives it free.

    The lock files stay: removing one while another process opens it would let both in.
    """
    folder = path.parent / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{path.name}.lock").open("w") as handle:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a compressed JSON-lines file; empty if there is none."""
    if not path.exists():
        return []
    content = path.read_bytes()
    try:
        if not content:  # a power cut left it; gzip would say that nothing is in it
            raise EOFError("it is empty")
        return [json.loads(line) for line in gzip.decompress(content).splitlines()]
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Restore it, or move it away.") from error


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a compressed JSON-lines file as a whole."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with replacing(path, durable=True) as part:
        part.write_bytes(gzip.compress(text.encode(), mtime=0))


@functools.cache
def versions() -> dict[str, str]:
    """What the numbers depend on; "+" marks a commit with local changes."""
    names = present_versions()
    root = Path(__file__).resolve().parents[4]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
            names["revision"] = done.stdout.strip()
    return names
