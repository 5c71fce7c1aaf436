"""Reading a folder of runs without touching it: records, checkpoints, and the files of running processes."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from elliptica.experiments.progress import FOLDER, is_alive, read
from elliptica.watch.searches import search_lines

State = Literal["done", "running", "failed", "interrupted", "waiting"]
#: Table, data set, row, hash of the settings, seed.
Key = tuple[str, str, str, str, int]

_RECORD = re.compile(r"([0-9a-f]{12})-seed(\d+)\.json")
_CHECKPOINT = re.compile(r"([0-9a-f]{12})-seed(\d+)\.safetensors")
#: Where `elliptica tune` keeps its trials, below the folder of the records.
_TRIALS = "trials"
#: A checkpoint's description is never longer than this; a spoilt file may claim so.
_LONGEST = 2**26


@dataclass(frozen=True)
class RunState:
    """Where one run stands; scores are as training sees them, larger is better.

    Attributes:
        key: Which run.
        state: What is known of it.
        metric: What its scores measure.
        epoch: Epochs that are finished.
        epochs: Number of epochs, if known.
        loss: Last training loss.
        score: Last validation score; of a finished run that of its chosen epoch.
        best: Best validation score.
        scores: Points of the validation curve.
        seconds: Wall time of a finished run.
        seconds_left: Of a running one, if known.
        error: Why it failed.
        updated: When that was told, in seconds since 1970.
    """

    key: Key
    state: State
    metric: str = ""
    epoch: int = 0
    epochs: int | None = None
    loss: float | None = None
    score: float | None = None
    best: float | None = None
    scores: tuple[float, ...] = ()
    seconds: float | None = None
    seconds_left: float | None = None
    error: str = ""
    updated: float = 0.0


@dataclass
class Scan:
    """All runs of a folder at one moment.

    Attributes:
        runs: By key.
        unreadable: Files that cannot be used, with the reason.
        searches: What is known of searches and chosen settings, in lines.
    """

    runs: dict[Key, RunState] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    searches: list[str] = field(default_factory=list)

    def count(self, state: State) -> int:
        """Number of runs in a state."""
        return sum(run.state == state for run in self.runs.values())


class Reader:
    """Reads a folder again and again; records that have not changed are read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, tuple[tuple[int, int], RunState | str]] = {}

    def scan(self) -> Scan:
        """Read what is there now. Nothing is written, renamed or locked."""
        found = Scan(searches=search_lines(self.folder))
        checkpoints: list[tuple[Path, re.Match[str]]] = []
        for path in _files(self.folder):
            if _RECORD.fullmatch(path.name):
                self._add_record(path, found)
            elif match := _CHECKPOINT.fullmatch(path.name):
                checkpoints.append((path, match))
        for folder, prefix in ((self.folder, ""), (self.folder / _TRIALS, f"{_TRIALS} ")):
            _add_running(folder, prefix, found)
            _add_planned(folder, prefix, found)
        for path, match in checkpoints:
            _add_checkpoint(path, match, self._prefix(path), found)
        return found

    def _prefix(self, path: Path) -> str:
        return f"{_TRIALS} " if path.relative_to(self.folder).parts[0] == _TRIALS else ""

    def _add_record(self, path: Path, found: Scan) -> None:
        try:
            status = path.stat()
        except OSError:
            return  # gone since
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._seen.get(path)
        if known is None or known[0] != stamp:
            known = self._seen[path] = (stamp, _read_record(path, self._prefix(path)))
        if isinstance(known[1], str):
            found.unreadable[path] = known[1]
        else:
            found.runs[known[1].key] = known[1]


def _files(folder: Path) -> Iterator[Path]:
    """Files at any depth, folders whose name begins with a dot left out; one that vanishes is no error."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(names))


def _read_record(path: Path, prefix: str) -> RunState | str:
    """A finished run, or why its record cannot be used."""
    try:
        record = json.loads(path.read_text())
        run, metric = record["run"], str(record["run"]["metric"])
        scores = tuple(float(s) for s in record.get("curves", {}).get("validation", ()))
        losses = record.get("curves", {}).get("loss") or [math.nan]
        epoch = int(record["epoch"])
        chosen = scores[epoch] if epoch < len(scores) else None
        return RunState(
            _key(run, path.name.partition("-")[0], prefix),
            "done",
            metric,
            int(record["cost"]["epochs"]),
            int(record["cost"]["epochs"]),
            float(losses[-1]),
            chosen,
            max(scores, default=None),
            scores,
            float(record["cost"]["seconds"]),
        )
    except OSError as error:
        return error.strerror or "cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"not a record ({type(error).__name__})"


def _key(content: dict[str, Any], key: str, prefix: str) -> Key:
    return (
        f"{prefix}{content['table']}",
        str(content["dataset"]),
        str(content["row"]),
        key,
        int(content["seed"]),
    )


def _add_running(folder: Path, prefix: str, found: Scan) -> None:
    for path in sorted((folder / FOLDER).glob("*.run")):
        content = read(path)
        if content is None:
            if path.exists():
                found.unreadable[path] = "not a progress file"
            continue
        try:
            run = _running(content, prefix)
        except (KeyError, TypeError, ValueError):
            found.unreadable[path] = "not a progress file"
            continue
        if run.key not in found.runs:  # a record wins
            found.runs[run.key] = run


def _running(content: dict[str, Any], prefix: str) -> RunState:
    state = content["state"]
    if state not in ("running", "failed", "interrupted"):
        raise ValueError(state)
    if state == "running" and not is_alive(content):
        state = "interrupted"
    epoch, epochs, pace = int(content["epoch"]), content.get("epochs"), content.get("seconds_per_epoch")
    left = None
    if state == "running" and isinstance(epochs, int) and isinstance(pace, int | float):
        left = max(epochs - epoch, 0) * float(pace)
    return RunState(
        _key(content, str(content["key"]), prefix),
        state,
        str(content.get("metric", "")),
        epoch,
        epochs if isinstance(epochs, int) else None,
        _number(content.get("loss")),
        _number(content.get("score")),
        _number(content.get("best")),
        tuple(float(s) for s in content.get("scores", ())),
        seconds_left=left,
        error=str(content.get("error", "")),
        updated=float(content.get("updated", 0.0)),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _add_planned(folder: Path, prefix: str, found: Scan) -> None:
    """Runs that a command means to do: waiting while it lives, interrupted when it is dead."""
    for path in sorted((folder / FOLDER).glob("*.plan")):
        content = read(path) or {}
        # a command on another machine lives as long as a run does
        state: State = "waiting" if is_alive(content) or _any_running(found) else "interrupted"
        for each in content.get("runs", ()):
            try:
                key = _key(each, str(each["key"]), prefix)
            except (KeyError, TypeError, ValueError):
                found.unreadable[path] = "not a plan"
                break
            earlier = found.runs.get(key)
            if earlier is None:
                found.runs[key] = RunState(key, state, str(each.get("metric", "")))
            elif (
                state == "waiting"
                and earlier.state in ("failed", "interrupted")
                and earlier.updated < float(content.get("started", 0.0))
            ):  # it will be done again
                found.runs[key] = replace(earlier, state="waiting", error="")


def _any_running(found: Scan) -> bool:
    return any(run.state == "running" for run in found.runs.values())


def _add_checkpoint(path: Path, match: re.Match[str], prefix: str, found: Scan) -> None:
    """A checkpoint without a record is a run that was interrupted, unless somebody says otherwise."""
    names = path.parts[-4:-1]
    key = (f"{prefix}{names[0]}", names[1], names[2], match[1], int(match[2]))
    if any(k[:2] == key[:2] and k[3:] == key[3:] for k in found.runs):  # the row's name may have lost slashes
        return
    try:
        state = _checkpoint_state(path)
        scores = tuple(float(s) for s in state["scores"])
        losses = state["losses"]
        found.runs[key] = RunState(
            key,
            "interrupted",
            "",
            int(state["epoch"]),
            int(state["settings"]["epochs"]),
            float(losses[-1]) if losses else None,
            scores[-1] if scores else None,
            max(scores, default=None),
            scores,
        )
    except OSError:
        return  # gone since: the run has ended
    except (ValueError, KeyError, TypeError, struct.error):
        found.unreadable[path] = "not a checkpoint"


def _checkpoint_state(path: Path) -> dict[str, Any]:
    """The plain values in a safetensors file: a length, then a description as JSON."""
    with path.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        if length > _LONGEST:
            raise ValueError("the description is too long")
        state = json.loads(json.loads(handle.read(length))["__metadata__"]["state"])
    if not isinstance(state, dict):
        raise ValueError("no state")
    return state
