"""Store finished folds in a folder, so that an interrupted comparison can be resumed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from elliptica import __version__
from elliptica._utils.files import read_arrays, read_json, replacing, write_atomically
from elliptica.report.page import present_versions
from elliptica.tables.plan import Plan
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import NO_TIME, Record
from elliptica.tables.table import TableError

if sys.platform == "win32":  # pragma: no cover - tests run elsewhere
    import msvcrt
else:
    import fcntl

_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
RESULTS, PREDICTIONS = "results.json", "predictions.npz"
MODEL = "model.elliptica"
#: Lock file of the process that works in the folder.
LOCK = ".lock"
#: Other files that a comparison writes.
WRITTEN = ("report.md", "report.html", MODEL, PREDICTIONS)
#: Version of the format; since version 3, trials draw other settings.
FORMAT = 3


class Store:
    """The finished pieces of a comparison, in memory and (with a folder) on disk.

    A folder that holds the same comparison keeps its plan, because a plan made for a budget depends on how
    busy the machine was. Only methods may be added. A folder belongs to one store at a time, until `close`.

    Args:
        folder: Folder of the files; None keeps everything in memory.
        about: What must match for stored folds to be reused, see `describe`.
        plan: How methods are compared.
        head: Other contents of the file.

    Raises:
        TableError: If the folder cannot be written, if another process works in it, or if it holds another
            comparison: other data, columns, options or version.
    """

    def __init__(
        self, folder: Path | None, about: Mapping[str, Any], plan: Plan, head: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.resumed = False  # whether the folder held a plan
        self._about, self._head = dict(about), dict(head)
        self._records: dict[tuple[int, int, str], Record] = {}
        self._lock = threading.Lock()
        self._folder_lock: FileLock | None = None
        if folder is not None:
            check_writable(folder)  # fail now rather than after the first training
            self._folder_lock = _hold(folder)
            try:
                _check_own(folder)
                if (folder / RESULTS).exists():
                    self._read(folder)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Release the folder to other processes; do not write afterwards."""
        if self._folder_lock is not None:
            self._folder_lock.release()

    def has(self, repeat: int, fold: int, method: str) -> bool:
        """Return whether a piece is finished; one that ran out of time may be retried."""
        record = self._records.get((repeat, fold, method))
        return record is not None and NO_TIME not in record.error

    def add(self, records: Iterable[Record]) -> None:
        """Store finished pieces."""
        with self._lock:
            self._records |= {record.key: record for record in records}
            self._write_predictions()
            self.write()

    def records(self) -> tuple[Record, ...]:
        """Return the finished pieces of the plan's methods, fold by fold."""
        order = {method: number for number, method in enumerate(self.plan.methods)}
        records = [record for record in self._records.values() if record.method in order]
        return tuple(sorted(records, key=lambda r: (r.repeat, r.fold, order[r.method])))

    def write(self, extra: Mapping[str, Any] | None = None) -> None:
        """Write the file atomically."""
        if self.folder is None:
            return
        content = {
            "format": FORMAT,
            "about": self._about,
            **self._head,
            "plan": asdict(self.plan),
            **(extra or {}),
            "records": [self._records[key].to_json() for key in sorted(self._records)],
        }
        write_atomically(self.folder / RESULTS, json.dumps(content, indent=1), durable=True)

    def _write_predictions(self) -> None:
        """Write predictions first: records without predictions are redone, the reverse is harmless."""
        if self.folder is None:
            return
        arrays = {}
        for (repeat, fold, method), record in sorted(self._records.items(), key=lambda item: item[0]):
            arrays[f"{repeat}/{fold}/{method}"] = record.predicted
            if record.unbounded.size:
                arrays[f"{repeat}/{fold}/{method}/unbounded"] = record.unbounded
        with replacing(self.folder / PREDICTIONS, durable=True) as part, part.open("wb") as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]  # no array is named allow_pickle

    def _read(self, folder: Path) -> None:
        file = folder / RESULTS
        try:
            content = read_json(file)
            about = content["about"]
            if content.get("format") != FORMAT:
                raise TableError(
                    f"{folder} holds a comparison of an earlier version of elliptica "
                    f"({about.get('elliptica', 'unknown')}), which cannot be resumed. Choose another --out, "
                    "or delete the folder."
                )
            self._check_same(folder, about)
            records = list(_read_records(content["records"], folder / PREDICTIONS))
            self.plan = replace(_read_plan(content["plan"]), methods=self.plan.methods)
        except TableError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise TableError(
                f"{file} cannot be read ({type(error).__name__}: {error}). Move it away, or choose another "
                "--out."
            ) from error
        self.resumed = True
        self._records = {record.key: record for record in records}

    def _check_same(self, folder: Path, about: Mapping[str, Any]) -> None:
        ours = json.loads(json.dumps(self._about))
        for key in ours:
            if ours[key] != about.get(key):
                change = f"{key} was {about.get(key)!r} and is now {ours[key]!r}"
                if key == "contents":  # a fingerprint means nothing to a reader
                    change = "rows or cells of the table have changed"
                raise TableError(
                    f"{folder} holds another comparison: {change}. Choose another --out, or "
                    "delete the folder."
                )


def _read_plan(content: Mapping[str, Any]) -> Plan:
    """Restore a plan; a setting that cannot be is a damage of the file."""
    try:
        return Plan(**{**content, "hidden": tuple(content["hidden"])})
    except TableError as error:
        raise ValueError(str(error)) from error


def _read_records(contents: Iterable[Mapping[str, Any]], file: Path) -> Iterable[Record]:
    """Yield records with their predictions; records without predictions are redone."""
    if not file.exists():
        return
    arrays = read_arrays(file)
    for content in contents:
        name = f"{content['repeat']}/{content['fold']}/{content['method']}"
        if name in arrays:
            yield Record.from_json(content, arrays[name], arrays.get(f"{name}/unbounded", np.empty(0)))


def _hold(folder: Path) -> FileLock:
    """Lock a folder, because concurrent comparisons would overwrite each other's results.

    Raises:
        TableError: If another comparison is running there.
    """
    try:
        return FileLock(folder / LOCK)
    except BlockingIOError as error:
        raise TableError(
            f"Another comparison is writing to {folder} ({error.strerror}). Wait until it ends and run the "
            "same command again, or choose another --out."
        ) from error
    except OSError as error:
        raise TableError(
            f"The folder {folder} cannot be written ({error.strerror or error}). Choose another --out, or "
            "make the folder writable."
        ) from error


def _check_own(folder: Path) -> None:
    """Raise instead of overwriting files that no comparison wrote."""
    foreign = [name for name in WRITTEN if (folder / name).exists()]
    if foreign and not (folder / RESULTS).exists():
        raise TableError(
            f"{folder} holds {' and '.join(foreign)}, but no {RESULTS} of a comparison, so they would be "
            "overwritten. Choose another --out, or move them away."
        )


def check_writable(folder: Path) -> None:
    """Create a folder if necessary, and try to write a file there.

    Raises:
        TableError: If that fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TableError(
            f"The folder {folder} cannot be written ({error.strerror or error}). Choose another --out, or "
            "make the folder writable."
        ) from error


def describe(problem: TableProblem, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must match for stored folds to be reused: table, columns and options."""
    return {
        "table": name,
        "target": problem.target_name,
        "task": problem.task,
        "group": problem.group_name,
        "time": problem.time_name,
        "split_by": problem.split_name,
        "rows": len(problem.target),
        "inputs": problem.features.columns,
        "contents": problem.digest(),
        "elliptica": __version__,
        **({} if problem.copies is None else {"copies": "kept together"}),
        **options,
    }


def file_head(problem: TableProblem, shift: str, command: str) -> dict[str, Any]:
    """Return the other contents of the file: the command, versions and decisions."""
    return {
        "command": command,
        "shift": shift,
        "notices": list(problem.notices),
        "columns": [asdict(column) for column in problem.columns],
        "versions": present_versions("polars", "scikit-learn"),
    }


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
        self._handle = path.open("a+", encoding="utf-8")
        try:
            _lock(self._handle)
        except OSError as error:
            if error.errno in _TAKEN:
                holder = "another process"
                with contextlib.suppress(OSError, ValueError):  # Windows does not let others read it
                    self._handle.seek(0)
                    holder = self._handle.read(100).strip() or holder
                self.release()
                raise BlockingIOError(errno.EAGAIN, holder, str(path)) from error
        else:
            self._handle.truncate(0)
            self._handle.write(f"process {os.getpid()}")
            self._handle.flush()

    def release(self) -> None:
        """Release the file; does nothing the second time."""
        self._handle.close()


def _lock(handle: IO[str]) -> None:
    """Lock an open file or raise an OSError at once."""
    if sys.platform == "win32":  # pragma: no cover
        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
