"""Keep finished runs in one JSON file, so that an interrupted comparison can be resumed."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elliptica import __version__
from elliptica._utils.files import write_atomically
from elliptica.compare.plan import Plan
from elliptica.compare.problem import TableProblem
from elliptica.compare.protocol import Record
from elliptica.compare.table import TableError
from elliptica.report.content import present_versions

RESULTS = "results.json"
MODEL = "model.elliptica"
#: What is written beside it.
WRITTEN = ("report.md", "report.html", MODEL)


class Store:
    """The runs of a comparison, in memory and (with a folder) on disk.

    Args:
        folder: Where `RESULTS` is; None: nowhere.
        problem: What is learnt.
        plan: How.
        name: Of the table.
        command: Where the call came from.

    Raises:
        TableError: If nothing can be written to the folder, or if it holds another comparison: other data,
            columns, settings or version.
    """

    def __init__(
        self, folder: Path | None, problem: TableProblem, plan: Plan, name: str, command: str
    ) -> None:
        self.folder = folder
        self.file = None if folder is None else folder / RESULTS
        self.plan = plan
        self._records: dict[tuple[int, str], Record] = {}
        self._head = {
            "about": _about(problem, plan, name),
            "command": command,
            "notices": list(problem.notices),
            "versions": present_versions("polars", "scikit-learn"),
        }
        if folder is not None:
            check_writable(folder)  # now, not after the first training
            self._check_own(folder)
        if self.file is not None and self.file.exists():
            self._read(self.file)

    @staticmethod
    def _check_own(folder: Path) -> None:
        """Refuse to overwrite files that no comparison has left there."""
        foreign = [name for name in WRITTEN if (folder / name).exists()]
        if foreign and not (folder / RESULTS).exists():
            raise TableError(
                f"{folder} holds {' and '.join(foreign)}, but no {RESULTS} of a comparison: they would be "
                "overwritten. Choose another --out, or move them away."
            )

    def has(self, repeat: int, method: str) -> bool:
        """Whether a run is finished."""
        return (repeat, method) in self._records

    def add(self, record: Record) -> None:
        """Keep a finished run."""
        self._records[record.repeat, record.method] = record
        self.write()

    def records(self) -> tuple[Record, ...]:
        """Finished runs of the plan, repeat by repeat."""
        keys = ((repeat, method) for repeat in range(self.plan.repeats) for method in self.plan.methods)
        return tuple(self._records[key] for key in keys if key in self._records)

    def write(self, extra: dict[str, Any] | None = None) -> None:
        """Write the file atomically."""
        if self.file is None:
            return
        records = [self._records[key].to_json() for key in sorted(self._records, key=lambda key: key[0])]
        plan = {"methods": list(self.plan.methods), "repeats": self.plan.repeats}
        content = {**self._head, **plan, "finished": len(self.records()), "runs": self.plan.n_runs}
        text = json.dumps({**content, **(extra or {}), "records": records}, indent=1)
        write_atomically(self.file, text, durable=True)

    def _read(self, file: Path) -> None:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            about, records = content["about"], [Record.from_json(each) for each in content["records"]]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise TableError(
                f"{file} cannot be read ({type(error).__name__}: {error}). Move it away, or choose another "
                "--out."
            ) from error
        ours = json.loads(json.dumps(self._head["about"]))
        different = [key for key in ours if ours[key] != about.get(key)]
        if different:
            key = different[0]
            change = f"{key} was {about.get(key)!r} and is now {ours[key]!r}"
            if key == "contents":  # a fingerprint says nothing to a reader
                change = "rows or cells of the table have changed"
            raise TableError(
                f"{file.parent} holds another comparison: {change}. Choose another --out, or remove the "
                "folder."
            )
        self._records = {(record.repeat, record.method): record for record in records}


def check_writable(folder: Path) -> None:
    """Make a folder if need be, and try to write a file there.

    Raises:
        TableError: If that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TableError(
            f"Nothing can be written to the folder {folder} ({error.strerror or error}). Choose another "
            "--out, or make the folder writable."
        ) from error


def _about(problem: TableProblem, plan: Plan, name: str) -> dict[str, Any]:
    """What must be equal for runs to belong together; methods and repeats may be added."""
    settings = asdict(plan)
    del settings["methods"], settings["repeats"]
    return {
        "table": name,
        "target": problem.target_name,
        "task": problem.task,
        "group": problem.group_name,
        "rows": len(problem.target),
        "inputs": problem.features.columns,
        "contents": problem.digest(),
        "elliptica": __version__,
        **settings,
    }
