"""Kill, stop and starve real commands; nothing may be lost (``python -m adversary kills``).

Commands are started as a user starts them. They are killed at random moments, stopped by signals, given a
full or read-only disk, or started twice in one folder. Afterwards the same command must end with the results
of a command that nothing happened to: every number, every prediction and every saved weight.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "adversary" / "kills.json"

#: Outcomes of a scenario: everything was kept, something was lost or unclear, or it cannot be tried here.
KEPT, LOST, SKIPPED = "kept", "lost", "skipped"
#: Seconds after which a command hangs.
PATIENCE = 600
#: Entries that clocks and checkouts decide.
UNSTABLE = ("seconds", "revision", "command")
#: Share of kills that hit a command before it writes anything.
EARLY = 0.15
#: Most kills in a row of one folder.
IN_A_ROW = 5

TABLE = """
title = "Moons"
paper = "nowhere"
metric = "accuracy"
seeds = 3
trials = 3
search = { lr = { low = 1e-4, high = 1e-1, log = true } }
[methods.erm]
[methods.elliptic]
[datasets.two_moons]
load = { n_boundary = 400, n_interior = 400 }
model = { name = "mlp", hidden = [32] }
training = { epochs = 40, batch_size = 20, lr = 1e-2 }
"""


@dataclass(frozen=True)
class Outcome:
    """What was done to a command, and what came of it."""

    name: str
    done: str
    outcome: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    text: str  # both streams
    seconds: float


# Results: what must be the same, and what must be whole.


def stable(content: Any) -> Any:
    """Return JSON content without the entries that clocks decide.

    Example:
        >>> stable({"rmse": 0.5, "cost": {"seconds": 1.2, "epochs": 3}})
        {'rmse': 0.5, 'cost': {'epochs': 3}}
    """
    if isinstance(content, dict):
        return {name: stable(value) for name, value in content.items() if name not in UNSTABLE}
    return [stable(value) for value in content] if isinstance(content, list) else content


def results(folder: Path) -> dict[str, Any]:
    """Read what a command left in a folder: JSON without times, arrays and archives by their members."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if not file.is_file() or name.startswith(".") or "unusable" in name:
            continue
        if file.suffix == ".json":
            found[name] = stable(json.loads(file.read_text(encoding="utf-8")))
        elif file.suffix in (".npz", ".elliptica"):
            with zipfile.ZipFile(file) as archive:
                found[name] = {member: _digest(archive.read(member)) for member in sorted(archive.namelist())}
        elif file.suffix == ".safetensors":
            found[name] = _digest(file.read_bytes())
    return found


def differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """List the places where results differ; numbers must be equal to the last bit.

    Example:
        >>> differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.5], "b": 0})
        ['a/1: 2.5 instead of 2.0', 'b: not expected']
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        told = []
        for name in sorted({*expected, *found}):
            inner = f"{place}/{name}".lstrip("/")
            if name not in found:
                told.append(f"{inner}: missing")
            elif name not in expected:
                told.append(f"{inner}: not expected")
            else:
                told += differences(expected[name], found[name], inner)
        return told
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [each for i, (a, b) in pairs for each in differences(a, b, f"{place}/{i}".lstrip("/"))]
    is_same = type(expected) is type(found) and (expected == found or _are_nan(expected, found))
    return [] if is_same else [f"{place}: {found!r:.60} instead of {expected!r:.60}"]


def _are_nan(*values: Any) -> bool:
    return all(isinstance(value, float) and math.isnan(value) for value in values)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def damaged(folder: Path) -> list[str]:
    """List the files that are cut short or cannot be read; temporary files (``.part``) do not count."""
    return [
        f"{file.relative_to(folder)} is damaged: {problem}"
        for file in sorted(folder.rglob("*"))
        if file.is_file() and (problem := _problem(file))
    ]


def _problem(file: Path) -> str:
    """Return why a file is not whole; empty if it is, or if its kind is unknown."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:  # a process that still lives has replaced it
        return ""
    try:
        if file.suffix == ".json":
            json.loads(content)
        elif file.suffix == ".safetensors":
            _check_tensors(content)
        elif file.suffix in (".npz", ".elliptica"):
            with zipfile.ZipFile(file) as archive:
                return f"its member {bad}" if (bad := archive.testzip()) else ""
        elif (end := _ENDS.get(file.suffix)) and not content.rstrip().endswith(end):
            return f"it does not end with {end!r}"
    except (ValueError, KeyError, struct.error, zipfile.BadZipFile) as error:
        return f"{type(error).__name__}: {error}"
    return ""


#: How files of a kind end.
_ENDS = {".html": b"</html>", ".png": b"IEND\xaeB`\x82"}


def _check_tensors(content: bytes) -> dict[str, Any]:
    """Return the header of a safetensors file; raise a ValueError if the file is cut short."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    end = max((each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"), default=0)
    if len(content) != 8 + length + end:
        raise ValueError(f"{len(content)} bytes instead of {8 + length + end}")
    return header


def epochs_done(folder: Path) -> dict[str, int]:
    """Return the epochs that checkpoints in a folder hold."""
    found = {}
    for file in folder.rglob("*.safetensors"):
        with contextlib.suppress(OSError, KeyError, ValueError, struct.error):
            state = json.loads(_check_tensors(file.read_bytes())["__metadata__"]["state"])
            if "losses" in state:  # not a kept model
                found[file.relative_to(folder).as_posix()] = int(state["epoch"])
    return found


# Commands: started, watched, killed.


class Ground:
    """A folder with a table and a specification, the commands on them, and their undisturbed results.

    Args:
        folder: An empty folder.
        seed: Seed of the random moments.
        kills: Kills of each command that is killed often.
        is_small: Do less work in each command.
    """

    def __init__(self, folder: Path, seed: int = 0, kills: int = 20, *, is_small: bool = False) -> None:
        self.folder, self.seed, self.kills, self.is_small = folder, seed, kills, is_small
        self.number = 0
        self.started: list[Started] = []
        (folder / "moons.toml").write_text(TABLE)
        rows = random.Random(1)
        lines = ["a,b,c,k,y"]
        for _ in range(500):
            a, b, c = (rows.gauss(0, 1) for _ in range(3))
            k = rows.choice("uvw")
            lines.append(
                f"{a:.4f},{b:.4f},{c:.4f},{k},{2 * a + b * abs(c) + (k == 'u') + rows.gauss(0, 0.3):.4f}"
            )
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")

    def end(self) -> None:
        """Kill what is left of the commands, and unmount what is left of the disks."""
        for each in self.started:
            if each.is_alive():
                each.kill(group=True)
        for disk in self.folder.glob("disk-*"):
            if disk.is_mount():
                subprocess.run(["umount", "-l", str(disk)], check=True)

    def fresh(self, name: str) -> Path:
        """Return the name of a folder that does not exist."""
        self.number += 1
        return self.folder / f"{name}-{self.number}"

    def run(self, out: Path, *more: str) -> list[str]:
        """Return the words of a `run`: six runs of forty epochs; if small, two."""
        seeds = ["--seeds", "1"] if self.is_small else []
        return ["run", "moons.toml", *seeds, "--jobs", "2", "--keep-models", "--out", str(out), *more]

    def compare(self, out: Path, *more: str) -> list[str]:
        """Return the words of a `compare`: four methods in fifteen folds; if small, three in five."""
        methods = "erm,elliptic,linear" if self.is_small else "erm,elliptic,trees,linear"
        words = ["compare", "rows.csv", "--target", "y", "--methods", methods, "--trials", "3"]
        words += ["--epochs", "80", "--repeats", "1" if self.is_small else "3", "--jobs", "2"]
        return [*words, "--out", str(out), *more]

    @staticmethod
    def tune(out: Path) -> list[str]:
        """Return the words of a `tune`: six trials."""
        return ["tune", "moons.toml", "--jobs", "2", "--epochs", "60", "--out", str(out)]

    @functools.cached_property
    def whole_run(self) -> Reference:
        """The results of a `run` that nothing happens to."""
        return self._undisturbed("run", self.run)

    @functools.cached_property
    def whole_compare(self) -> Reference:
        """The results of a `compare` that nothing happens to."""
        return self._undisturbed("compare", self.compare)

    @functools.cached_property
    def whole_tune(self) -> Reference:
        """The results of a `tune` that nothing happens to."""
        return self._undisturbed("tune", self.tune)

    def _undisturbed(self, name: str, words: Callable[[Path], list[str]]) -> Reference:
        out = self.fresh(name)
        process = Started(self, words(out))
        until_work = None
        while process.is_alive():
            if until_work is None and changed(out, {}):
                until_work = process.age
            time.sleep(0.02)
        ended = process.wait()
        if ended.status or until_work is None:
            raise RuntimeError(f"{words(out)} ended with {ended.status}:\n{ended.text}")
        return Reference(out, results(out), until_work, ended.seconds)


@dataclass(frozen=True)
class Reference:
    """An undisturbed command: its folder and results, and the seconds until its first file and its end."""

    folder: Path
    results: dict[str, Any]
    until_work: float
    until_end: float


class Started:
    """A command in a session of its own."""

    def __init__(self, ground: Ground, words: Sequence[str], stdout: Path | None = None, **more: Any) -> None:
        self.began = time.monotonic()
        ground.number += 1
        self.log = ground.folder / f"log-{ground.number}.txt"
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}
        before = more.pop("preexec_fn", lambda: None)

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs may ignore it
            before()

        with self.log.open("w") as log:
            out = log if stdout is None else stdout.open("w")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elliptica", *words],
                stdout=out,
                stderr=log,
                cwd=ground.folder,
                env=self.environment,
                start_new_session=True,
                preexec_fn=prepare,
                **more,
            )
            if stdout is not None:
                out.close()
        ground.started.append(self)

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def is_alive(self) -> bool:
        """Whether the command still runs."""
        return self.process.poll() is None

    def wait(self, timeout: float = PATIENCE) -> Ended:
        """Wait for the end; a command that hangs is killed, and its status is that of the kill."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill(group=True)
        return Ended(self.process.returncode, self.log.read_text(errors="replace"), self.age)

    def kill(self, *, group: bool, by: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the command alone, or to all its processes; after SIGKILL, wait for the end."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, by)
        if by is signal.SIGKILL:
            self.process.wait()

    def left(self) -> list[int]:
        """Return its processes that are alive, itself included."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found


def changed(folder: Path, before: dict[Path, int]) -> bool:
    """Whether a command has written a result or a checkpoint since ``before``, see `times`."""
    return any(before.get(file) != time for file, time in times(folder).items())


def times(folder: Path) -> dict[Path, int]:
    """Return when results and checkpoints were written."""
    found = {}
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and file.suffix != ".part" and not any(p.startswith(".") for p in file.parts):
                found[file] = file.stat().st_mtime_ns
    return found


class Watch(contextlib.AbstractContextManager["Watch"]):
    """Follow the epochs of checkpoints: a run that resumes never goes back.

    Args:
        folder: Folder of the records.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, epochs_done(folder)
        self.saved = dict(self.most)
        self.back: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._end.wait(0.01):
            for name, epoch in epochs_done(self.folder).items():
                if epoch < self.most.get(name, 0):
                    self.back.add(f"{name} went back from epoch {self.most[name]} to {epoch}")
                self.most[name] = max(epoch, self.most.get(name, 0))


def unclear(ended: Ended, statuses: Sequence[int] = (1, 2), words: Sequence[str] = ()) -> list[str]:
    """List what is wrong with the way in which a command said that it could not do its work."""
    told = []
    if ended.status not in statuses:
        told.append(f"exit status {ended.status}")
    for bad in ("Traceback", "Usage:", "This is not a message of elliptica", "Exception ignored"):
        if bad in ended.text:
            told.append(f"it printed {bad!r}: {ended.text[-400:]}")
    for word in words:
        if word.lower() not in ended.text.lower():
            told.append(f"it did not print {word!r}: {ended.text[-400:]}")
    return told


def judged(name: str, done: str, problems: Sequence[str], **details: Any) -> Outcome:
    """Make the outcome of a scenario: kept without problems."""
    told = {"problems": list(dict.fromkeys(problems))[:20]} if problems else {}
    return Outcome(name, done, LOST if problems else KEPT, {**details, **told})


def resumed(ground: Ground, words: Sequence[str], out: Path, whole: Reference) -> list[str]:
    """Run a command to its end; list what differs from the undisturbed one."""
    ended = Started(ground, words).wait()
    problems = [f"it ended with {ended.status}: {ended.text[-400:]}"] if ended.status else []
    return problems + unclear(ended, (0,)) + differences(whole.results, results(out)) + damaged(out)


# Kills at random moments.


def killed_often(
    ground: Ground, name: str, words: Callable[[Path, random.Random], list[str]], whole: Reference
) -> Outcome:
    """Kill a command at random moments, time and again, until it has ended by itself in every folder."""
    moments = random.Random(f"{ground.seed} {name}")
    count = dict.fromkeys(("kills", "starting", "working", "folders", "ended_before", "only_parent"), 0)
    kept = {"pieces_kept": 0, "epochs_kept": 0, "pieces_done_twice": 0}
    problems: list[str] = []
    parts, speed = 0, 1.0
    while count["kills"] < ground.kills:
        out, in_a_row, orphans = ground.fresh(name), 0, list[Started]()
        count["folders"] += 1
        ended = None
        while ended is None:
            pieces, before, in_checkpoints = finished(out), times(out), epochs_done(out)
            with Watch(out) as watch:
                process = Started(ground, words(out, moments))
                orphans.append(process)
                if count["kills"] < ground.kills and in_a_row < IN_A_ROW:
                    _wait_for_moment(process, moments, whole, speed, out)
                    group = moments.random() < 0.5
                    if process.is_alive():
                        process.kill(group=group)
                        in_a_row += 1
                        count["kills"] += 1
                        count["only_parent"] += not group
                        count["working" if changed(out, before) else "starting"] += 1
                    else:
                        count["ended_before"] += 1
                        speed *= 1.4  # the machine is less busy than when the reference was made
                        ended = process.wait()
                else:
                    ended = process.wait()
            problems += watch.back
            problems += damaged(out)
            after = finished(out)
            redone = [piece for piece, mark in pieces.items() if after.get(piece) != mark]
            kept["pieces_done_twice"] += len(redone)
            problems += [f"{piece} was finished and is done again" for piece in redone]
            kept["pieces_kept"] += len(pieces)
            kept["epochs_kept"] += sum(in_checkpoints.values())
        if ended.status:
            problems.append(f"it ended with {ended.status}: {ended.text[-400:]}")
        problems += unclear(ended, (0,)) + _left_behind(orphans)
        problems += differences(whole.results, results(out))
        parts += len(list(out.rglob("*.part")))
    return judged(
        name,
        f"SIGKILL at {count['kills']} random moments",
        problems,
        **count,
        **kept,
        temporary_files_left=parts,
    )


def _wait_for_moment(
    process: Started, moments: random.Random, whole: Reference, speed: float, out: Path
) -> None:
    """Wait for the moment of a kill: mostly while the command works, sometimes while it starts."""
    seconds, before = moments.uniform(0, whole.until_work) / speed, times(out)
    if moments.random() > EARLY:
        left = 1 - len(finished(out)) / max(len(finished(whole.folder)), 1)
        seconds = moments.uniform(0, left * (whole.until_end - whole.until_work)) / speed
        while process.is_alive() and not changed(out, before):
            time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.process.wait(seconds)


def finished(out: Path) -> dict[str, float]:
    """Return the pieces that are finished, with the seconds that each took: another training takes others."""
    found = {}
    for file in out.rglob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            content = json.loads(file.read_text(encoding="utf-8"))
            if "records" in content:
                for each in content["records"]:
                    found[f"{each['repeat']}/{each['fold']}/{each['method']}"] = each["seconds"]
            elif "cost" in content:
                found[file.relative_to(out).as_posix()] = content["cost"]["seconds"]
    return found


def _left_behind(started: Sequence[Started], patience: float = 15) -> list[str]:
    """List processes that outlive their killed parents by far, and end them."""
    deadline = time.monotonic() + patience
    while (left := [pid for each in started for pid in each.left()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
    return [f"{len(left)} processes live {patience} s after their parent was killed"] if left else []


def run_killed(ground: Ground) -> Outcome:
    """Kill `run`."""
    return killed_often(ground, "run killed", lambda out, _: ground.run(out), ground.whole_run)


def compare_killed(ground: Ground) -> Outcome:
    """Kill `compare`, mostly with threads, sometimes with processes."""

    def words(out: Path, moments: random.Random) -> list[str]:
        return ground.compare(out, *(("--engine", "processes") if moments.random() < 0.25 else ()))

    return killed_often(ground, "compare killed", words, ground.whole_compare)


def killed_once(ground: Ground, name: str, words: list[str], first: str) -> Outcome:
    """Kill a command while it writes its files, and run it again; compare with one that was left alone."""
    out, whole = ground.fresh("killed"), ground.fresh("whole")
    problems = unclear(Started(ground, [*words, str(whole)]).wait(), (0,))
    process, moments = Started(ground, [*words, str(out)]), random.Random(f"{ground.seed} {name}")
    while process.is_alive() and not (out / first).exists():
        time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.process.wait(moments.uniform(0, 0.5))
    is_hit = process.is_alive()
    process.kill(group=True)
    problems += [] if is_hit else ["it ended before it was killed"]
    files = sorted(file.name for file in out.rglob("*") if file.suffix != ".part")
    problems += damaged(out) + unclear(Started(ground, [*words, str(out)]).wait(), (0,))
    problems += damaged(out) + differences(results(whole), results(out))
    return judged(
        name, "SIGKILL after its first file, then again", problems, hit_in_the_middle=is_hit, files_then=files
    )


def tune_killed(ground: Ground) -> Outcome:
    """Kill `tune` between its second trial and its last."""
    whole, out = ground.whole_tune, ground.fresh("tune")
    process = Started(ground, ground.tune(out))
    while process.is_alive() and len(finished(out)) < 2:
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.process.wait(random.Random(f"{ground.seed} tune").uniform(0, 0.5))
    is_hit = process.is_alive()
    process.kill(group=True)
    problems, trials = damaged(out), finished(out)
    problems += [] if is_hit else ["it ended before it was killed"]
    problems += resumed(ground, ground.tune(out), out, whole)
    problems += [f"{each} is done again" for each, mark in trials.items() if finished(out).get(each) != mark]
    return judged(
        "tune killed", "SIGKILL after its second trial, then again", problems, trials_kept=len(trials)
    )


# Signals.


def stopped(ground: Ground, name: str, sent: signal.Signals) -> Outcome:
    """Stop a command in the middle with Ctrl-C (all its processes) or SIGTERM (itself); run it again."""
    whole, words = (ground.whole_run, ground.run) if name == "run" else (ground.whole_compare, ground.compare)
    out = ground.fresh(f"{name}-{sent.name}")
    process = Started(ground, words(out))
    while process.is_alive() and not changed(out, {}):
        time.sleep(0.02)
    time.sleep(0.4 * (whole.until_end - whole.until_work))
    is_hit, at = process.is_alive(), time.monotonic()
    process.kill(group=sent is signal.SIGINT, by=sent)
    ended = process.wait()
    seconds = round(time.monotonic() - at, 1)
    problems = (
        unclear(ended, (128 + sent,), words=["nterrupted"]) if is_hit else ["it ended before the signal"]
    )
    problems += damaged(out) + _left_behind([process])
    pieces, epochs = finished(out), epochs_done(out)
    with Watch(out) as watch:
        problems += resumed(ground, words(out), out, whole)
    problems += watch.back
    problems += [f"{p} is done again" for p, mark in pieces.items() if finished(out).get(p) != mark]
    return judged(
        f"{name} {sent.name}",
        f"{sent.name} in the middle, then again",
        problems,
        status=ended.status,
        message=_last_line(ended.text),
        seconds_to_stop=seconds,
        pieces_kept=len(pieces),
        epochs_kept=sum(epochs.values()),
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


# Disks.


class Disk(contextlib.AbstractContextManager["Disk"]):
    """A small disk that can be filled, emptied and made read-only.

    It is a tmpfs where mounting is allowed. Elsewhere, a limit on the size of files takes the place of a full
    disk, and permissions that of a read-only one.

    Args:
        folder: An empty folder to mount it at.
        size: Size in bytes.
    """

    def __init__(self, folder: Path, size: int = 2**24) -> None:
        self.path = folder
        folder.mkdir()
        self.is_mounted = not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "elliptica-kills", str(folder)],
            capture_output=True,
        ).returncode
        self.more: dict[str, Any] = {}  # how commands are started

    def __exit__(self, *_: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)

    @property
    def kind(self) -> str:
        """What is used."""
        return "tmpfs" if self.is_mounted else "limits of the process"

    def fill(self, leave: int) -> None:
        """Leave so many bytes free."""
        if not self.is_mounted:
            limit = max(leave // 8, 1)
            self.more = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}
            return
        with (self.path / "filler").open("wb", buffering=0) as handle, contextlib.suppress(OSError):
            while handle.write(bytes(4096)):
                pass
        os.truncate(self.path / "filler", (self.path / "filler").stat().st_size - leave)

    def free(self) -> None:
        """Make room."""
        (self.path / "filler").unlink(missing_ok=True)
        self.more = {}

    def set_read_only(self, value: bool) -> None:
        """Forbid or allow writing."""
        if self.is_mounted:
            mode = "ro" if value else "rw"
            subprocess.run(["mount", "-o", f"remount,{mode}", str(self.path)], check=True)
            return
        for place in (self.path, *self.path.rglob("*")):
            place.chmod(0o555 if value else 0o755)
        self.more = {"user": "nobody"} if value and os.geteuid() == 0 else {}


#: Bytes that are left on a full disk, by command: enough to begin.
LEAVE = {"run": 65536, "compare": 32768, "report": 65536, "predict": 0, "table": 0}


def _writing(ground: Ground, name: str, place: Path) -> tuple[list[str], Path, Path | None]:
    """Return the words of a command that writes to a folder, what it writes, and a file for its output."""
    if name in ("run", "compare", "tune"):
        out = place / f"{name}-out"
        return {"run": ground.run, "compare": ground.compare, "tune": ground.tune}[name](out), out, None
    if name == "report":
        return (
            ["report", str(ground.whole_run.folder), "-o", str(place / "page.html")],
            place / "page.html",
            None,
        )
    if name == "table":
        out = place / "table.txt"
        return ["table", "moons.toml", "--out", str(ground.whole_run.folder)], out, out
    if name == "predict":
        model, out = ground.whole_compare.folder / "model.elliptica", place / "predicted.csv"
        return ["predict", str(model), "rows.csv", "--out", str(out)], out, None
    words, out = {
        "diagnose": (["diagnose", "two-moons", "--steps", "50", "--out"], place / "diagnosis.json"),
        "demo": (["demo", "--quick", "--steps", "20", "--seeds", "2", "--out"], place / "demo"),
        "figure": (["demo", "--figure", "2", "-o"], place / "figure.png"),
    }[name]
    return [*words, str(out)], out, None


def full_disk(ground: Ground, name: str) -> Outcome:
    """Let a command meet a full disk; make room, and run it again."""
    with Disk(ground.fresh("disk")) as disk:
        words, written, stdout = _writing(ground, name, disk.path)
        if stdout is not None and not disk.is_mounted:
            return Outcome(f"full disk: {name}", "nothing: no disk can be mounted", SKIPPED)
        disk.fill(LEAVE[name])
        ended = Started(ground, words, stdout, **disk.more).wait()
        problems = unclear(ended, words=["error" if name != "run" else "failed"])
        if not any(word in ended.text for word in ("No space left", "File too large")):
            problems.append(f"it does not name the reason: {ended.text[-400:]}")
        problems += damaged(disk.path)
        if written.is_file() and stdout is None:
            problems.append(f"{written.name} is there, although it cannot be whole")
        pieces = len(finished(disk.path))
        disk.free()
        problems += _again(ground, name, words, written, stdout)
        return judged(
            f"full disk: {name}",
            f"a full disk ({disk.kind}), then room",
            problems,
            status=ended.status,
            message=_error_line(ended.text),
            pieces_kept=pieces,
        )


def read_only(ground: Ground, name: str) -> Outcome:
    """Let a command meet a read-only disk; make it writable, and run it again."""
    with Disk(ground.fresh("disk")) as disk:
        words, written, stdout = _writing(ground, name, disk.path)
        disk.set_read_only(True)
        ended = Started(ground, words, **disk.more).wait()
        problems = unclear(ended, words=["error"])
        disk.set_read_only(False)
        if written.exists():
            problems.append(f"{written.name} is there")
        if name in ("run", "compare", "report", "predict"):
            disk.more = {}
            problems += _again(ground, name, words, written, stdout)
        return judged(
            f"read-only: {name}",
            f"a read-only folder ({disk.kind})",
            problems,
            status=ended.status,
            message=_error_line(ended.text),
            seconds=round(ended.seconds, 1),
        )


def _again(ground: Ground, name: str, words: list[str], written: Path, stdout: Path | None) -> list[str]:
    """Run a command again where there is room; list what is not as it should be."""
    if name in ("run", "compare"):
        whole = ground.whole_run if name == "run" else ground.whole_compare
        return resumed(ground, words, written, whole)
    ended = Started(ground, words, stdout).wait()
    problems = unclear(ended, (0,)) + damaged(written.parent)
    elsewhere = ground.fresh("elsewhere")
    elsewhere.mkdir()
    other = [word.replace(str(written.parent), str(elsewhere)) for word in words]
    Started(ground, other, None if stdout is None else elsewhere / stdout.name).wait()
    if not written.exists() or written.read_bytes() != (elsewhere / written.name).read_bytes():
        problems.append(f"{written.name} is not what it is elsewhere")
    return problems


def _error_line(text: str) -> str:
    """Return the first line that speaks of an error."""
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower() or "failed" in line]
    return lines[0][:300] if lines else _last_line(text)


# Two writers.


def two_writers(ground: Ground, name: str) -> Outcome:
    """Start a command twice in one folder."""
    whole, words = (ground.whole_run, ground.run) if name == "run" else (ground.whole_compare, ground.compare)
    out = ground.fresh(f"two-{name}")
    both = [Started(ground, words(out)) for _ in range(2)]
    ends = [each.wait() for each in both]
    problems = damaged(out)
    for ended in ends:
        problems += unclear(ended, (0, 1, 2) if name == "run" else (0, 2))
    if all(ended.status for ended in ends):
        problems.append("neither ended well")
    told = [_error_line(ended.text) for ended in ends if ended.status]
    pieces = finished(out)
    problems += differences(whole.results, results(out))
    problems += resumed(ground, words(out), out, whole)
    problems += [f"{p} is done again" for p, mark in pieces.items() if finished(out).get(p) != mark]
    return judged(
        f"two writers: {name}",
        "the same command twice at once",
        problems,
        statuses=[ended.status for ended in ends],
        messages=told,
    )


# Ray.


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """Start a cluster of one node with one processor, which can do runs of this code; yields it."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="r")  # paths of sockets must be short
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # where Ray notes addresses in any case
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    values = {"PYTHONPATH": path, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    cluster = Cluster()
    try:
        add_node(cluster, temp_dir=folder, include_dashboard=False)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def add_node(cluster: Any, **options: Any) -> Any:
    """Add a node of one processor; Ray gives it half a minute to start, which is little on a busy machine."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return cluster.add_node(num_cpus=1, **options)
    return cluster.add_node(num_cpus=1, **options)


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _workers_of(raylet: int) -> list[int]:
    """Return the workers of a node that do a run at this moment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError):
            is_busy = file.read_bytes().startswith(b"ray::moons")
            if is_busy and parent(int(file.parent.name)) == raylet:
                found.append(int(file.parent.name))
    return found


def ray_lost(ground: Ground, what: str) -> Outcome:
    """Kill a worker, or a node, of a cluster of two nodes in the middle of `run --engine ray`."""
    try:
        import ray
    except ImportError:
        return Outcome(f"ray {what} lost", "nothing: Ray is not installed", SKIPPED)
    whole, out = ground.whole_run, ground.fresh(f"ray-{what}")
    with ray_cluster() as cluster:
        second = add_node(cluster)
        cluster.wait_for_nodes()
        raylet = second.all_processes["raylet"][0].process.pid
        words = [*ground.run(out, "--engine", "ray", "--address", cluster.address)]
        process = Started(ground, words)
        victims: list[int] = []
        while process.is_alive() and not (victims := _workers_of(raylet) if epochs_done(out) else []):
            time.sleep(0.05)
        time.sleep(random.Random(f"{ground.seed} {what}").uniform(0, 1))
        is_hit = process.is_alive() and bool(victims)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victims[0] if what == "worker" and victims else raylet, signal.SIGKILL)
        ended = process.wait()
        problems = [] if is_hit else ["nothing was killed in the middle"]
        problems += unclear(ended, (0,)) + differences(whole.results, results(out)) + damaged(out)
        is_told = "its worker was lost" in ended.text
        problems += [] if is_told else [f"no run was told to be lost: {ended.text[-600:]}"]
        if what == "node":
            cluster.remove_node(second, allow_graceful=False)
    return judged(
        f"ray {what} lost",
        f"SIGKILL of a {what} of two nodes (Ray {ray.__version__})",
        problems,
        status=ended.status,
        message=next((line.strip() for line in ended.text.splitlines() if "was lost" in line), ""),
    )


# The script.


def scenarios(ground: Ground) -> dict[str, Callable[[], Outcome]]:
    """Return all scenarios by name."""
    made: dict[str, Callable[[], Outcome]] = {
        "run killed": functools.partial(run_killed, ground),
        "compare killed": functools.partial(compare_killed, ground),
    }
    for name in ("run", "compare"):
        for sent in (signal.SIGTERM, signal.SIGINT):
            made[f"{name} {sent.name}"] = functools.partial(stopped, ground, name, sent)
    for name in LEAVE:
        made[f"full disk: {name}"] = functools.partial(full_disk, ground, name)
    for name in ("run", "compare", "report", "predict", "tune", "diagnose", "demo", "figure"):
        made[f"read-only: {name}"] = functools.partial(read_only, ground, name)
    for name in ("run", "compare"):
        made[f"two writers: {name}"] = functools.partial(two_writers, ground, name)
    for name in ("worker", "node"):
        made[f"ray {name} lost"] = functools.partial(ray_lost, ground, name)
    made["tune killed"] = functools.partial(tune_killed, ground)
    words = ["demo", "--quick", "--out"]
    made["demo killed"] = functools.partial(killed_once, ground, "demo killed", words, "results.json")
    return made


def main(seed: int = 0, kills: int = 20, only: str | None = None, out: Path = RESULTS) -> list[Outcome]:
    """Run all scenarios, print a table and write the record; exit with 1 if anything was lost.

    Args:
        seed: Seed of the random moments.
        kills: Kills of `run`, and of `compare`.
        only: Only scenarios whose name contains this; then nothing is written.
        out: File of the record.
    """
    began, found = time.monotonic(), list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        ground = Ground(Path(name), seed, kills)
        known = scenarios(ground)
        chosen = {title: each for title, each in known.items() if only is None or only in title}
        if not chosen:
            raise ValueError(f"no scenario contains {only!r}. Known: {', '.join(known)}.")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unmount also then
        try:
            for scenario in chosen.values():
                start = time.monotonic()
                outcome = _without(str(ground.folder), scenario())
                found.append(outcome)
                print(f"{outcome.outcome:8}{outcome.name} ({time.monotonic() - start:.0f} s)", flush=True)
                for problem in outcome.details.get("problems", ()):
                    print(f"        {problem}", flush=True)
        finally:
            ground.end()
    minutes = (time.monotonic() - began) / 60
    record = {"seed": seed, "minutes": round(minutes, 1), "scenarios": [asdict(each) for each in found]}
    print(as_table(record["scenarios"]))
    print(f"seed {seed}, {minutes:.1f} minutes")
    if not only:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if any(each.outcome == LOST for each in found):
        raise SystemExit(1)
    return found


def _without(folder: str, outcome: Outcome) -> Outcome:
    """Shorten paths, which are of no interest to others."""
    return Outcome(**json.loads(json.dumps(asdict(outcome)).replace(f"{folder}/", "")))


def as_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Format outcomes as Markdown."""
    lines = ["| scenario | what was done | outcome | details |", "|---|---|---|---|"]
    for each in found:
        told = {name.replace("_", " "): value for name, value in each["details"].items() if value != []}
        details = "; ".join(f"{name}: {value}" for name, value in told.items() if name != "problems")
        row = (each["name"], each["done"], each["outcome"], details)
        cells = (" ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
