"""Store finished folds in a folder, so that an interrupted comparison can be resumed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from elliptica import __version__
from elliptica._utils.files import read_arrays, read_json, replacing, write_atomically
from elliptica.report.page import present_versions
from elliptica.tables.methods import Plan
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import Record
from elliptica.tables.table import TableError

RESULTS, PREDICTIONS, MODEL = "results.json", "predictions.npz", "model.elliptica"
#: Lock file of the process that works in the folder.
LOCK = ".lock"
#: Other files that a comparison writes.
WRITTEN = ("report.md", "report.html", MODEL, PREDICTIONS)
#: Version of the records: of rows, draws and training. Others cannot be mixed with these.
FORMAT = 4


class Store:
    """The finished pieces of a comparison, in memory and (with a folder) on disk.

    Methods and repeats may be added to a folder that holds the same comparison. A folder belongs to one store
    at a time, until `close`.

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
        self.folder, self.plan = folder, plan
        self._about, self._head = json.loads(json.dumps({"format": FORMAT, **about})), dict(head)
        self._records: dict[tuple[int, int, str], Record] = {}
        self._lock: FileLock | None = None
        if folder is None:
            return
        check_writable(folder)  # fail now rather than after the first training
        self._lock = _hold(folder)
        try:
            self._read(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder to other processes; do not write afterwards."""
        if self._lock is not None:
            self._lock.release()

    def has(self, repeat: int, fold: int, method: str) -> bool:
        """Return whether a piece is finished."""
        return (repeat, fold, method) in self._records

    def add(self, records: Iterable[Record]) -> None:
        """Store finished pieces; what is stored already stays."""
        self._records = {record.key: record for record in records} | self._records
        if self.folder is None:
            return
        # predictions are written first: records without them are redone, the reverse is harmless
        arrays: dict[str, Any] = {}
        for key, record in self._records.items():
            name = "/".join(map(str, key))
            arrays |= {name: record.predicted, f"{name}/unbounded": record.unbounded}
        with replacing(self.folder / PREDICTIONS, durable=True) as part, part.open("wb") as handle:
            np.savez(handle, **dict(sorted(arrays.items())))
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
            "about": self._about,
            **self._head,
            "plan": asdict(self.plan),
            **(extra or {}),
            "records": [self._records[key].to_json() for key in sorted(self._records)],
        }
        write_atomically(self.folder / RESULTS, json.dumps(content, indent=1), durable=True)

    def _read(self, folder: Path) -> None:
        """Read the records of the same comparison; other files are not overwritten."""
        file = folder / RESULTS
        if not file.exists():
            if foreign := [name for name in WRITTEN if (folder / name).exists()]:
                raise TableError(f"{folder} holds {foreign[0]} of something else. Choose another --out.")
            return
        try:
            content = read_json(file)
            about, records = content["about"], list(_read_records(content["records"], folder / PREDICTIONS))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise TableError(
                f"{file} cannot be read ({type(error).__name__}: {error}). Move it away, or choose another "
                "--out."
            ) from error
        changed = [key for key in self._about if self._about[key] != about.get(key)]
        if changed:
            was, now = about.get(changed[0]), self._about[changed[0]]
            raise TableError(
                f"{folder} holds another comparison: {changed[0]} was {was!r} and is now {now!r}. Choose "
                "another --out, or delete the folder."
            )
        self._records = {record.key: record for record in records}


def _read_records(contents: Iterable[Mapping[str, Any]], file: Path) -> Iterator[Record]:
    """Yield records with their predictions; records without predictions are redone."""
    arrays = read_arrays(file) if file.exists() else {}
    for content in contents:
        name = f"{content['repeat']}/{content['fold']}/{content['method']}"
        if f"{name}/unbounded" in arrays:
            yield Record.from_json(content, arrays[name], arrays[f"{name}/unbounded"])


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


def _hold(folder: Path) -> FileLock:
    """Lock a folder, because concurrent comparisons would overwrite each other's results.

    The system releases the lock when the process ends, however it ends, so no lock is ever stale.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise TableError(
            f"Another comparison is writing to {folder}. Wait until it ends, or choose another --out."
        ) from error
    return lock


def describe(problem: TableProblem, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must match for stored folds to be reused: table, columns and options."""
    return {
        "elliptica": __version__,
        "table": name,
        "target": problem.target_name,
        "task": problem.task,
        "group": problem.group_name,
        "time": problem.time_name,
        "split_by": problem.split_name,
        "rows": len(problem.target),
        "inputs": problem.features.columns,
        **options,
        "contents": problem.digest(),
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
