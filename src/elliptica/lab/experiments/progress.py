"""Small files that say what is running: written by runs, read by `elliptica watch`.

In the folder ``.progress`` of the records there is one file for each run that is under way, has failed or was
interrupted, and one for each command, with the runs that it means to do. Files are replaced as a whole, so
that a reader never meets half of one; a process that dies leaves its files, and its number in them tells.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # this module does not need torch, so that watching starts at once
    from elliptica.lab.experiments.specification import Run
    from elliptica.lab.training.progress import EpochEnd
from collections.abc import Callable
from contextlib import contextmanager

from elliptica.lab.experiments.records import record_file
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.progress import EpochEnd, TensorBoard

#: Folder below that of the records.
FOLDER = ".progress"
#: Seconds between two writings of a file.
PAUSE = 1.0
#: Points of a curve that are kept at most.
_POINTS = 128
#: Without a process number to look at (another machine): a file so old, and so many epochs, is given up.
_SILENT, _SILENT_EPOCHS = 1800.0, 5


class ProgressFile:
    """The file of one run, from its start to its end.

    Args:
        out: Folder of the records.
        run: What is run.
        stem: Name of the file: that of the run's claim.
    """

    def __init__(self, out: Path, run: Run, stem: str) -> None:
        self.file = out / FOLDER / f"{stem}.run"
        self._written = -PAUSE
        self._losses, self._scores = _Curve(), _Curve()
        self._first: tuple[int, float] | None = None
        self._content: dict[str, Any] = {
            **identity(run),
            **process(),
            "state": "running",
            "started": time.time(),
            "epoch": 0,
            "epochs": run.training.get("epochs"),
        }
        self._write()

    def __call__(self, end: EpochEnd) -> None:
        """Take the end of an epoch; the file is written at most once in a second."""
        self._losses.add(end.loss)
        self._scores.add(end.score)
        now = time.time()
        if self._first is None:
            self._first = (end.epoch, now)
        epochs, seconds = end.epoch - self._first[0], now - self._first[1]
        if not epochs:  # so far only the first epoch of this sitting, with all that came before it
            epochs, seconds = 1, now - self._content["started"]
        self._content |= {
            "epoch": end.epoch,
            "epochs": end.epochs,
            "loss": end.loss,
            "score": end.score,
            "best": end.best,
            "seconds_per_epoch": seconds / epochs,
        }
        if time.monotonic() - self._written >= PAUSE:
            self._write()

    def end(self, state: str, error: str = "") -> None:
        """The run stops without a record: it ``"failed"`` or was ``"interrupted"``."""
        self._content |= {"state": state, "error": error}
        self._write()

    def remove(self) -> None:
        """The run has a record now."""
        self.file.unlink(missing_ok=True)

    def _write(self) -> None:
        self._written = time.monotonic()
        curves = {"losses": self._losses.points, "scores": self._scores.points}
        replace(self.file, {**self._content, **curves, "updated": time.time()})


class _Curve:
    """A curve that drops every other point when it has too many."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._every, self._seen = 1, 0

    def add(self, value: float) -> None:
        if self._seen % self._every == 0:
            self.points.append(float(f"{value:.5g}"))
        self._seen += 1
        if len(self.points) > _POINTS:
            self.points, self._every = self.points[::2], 2 * self._every


@contextlib.contextmanager
def planned(out: Path, runs: Sequence[Run]) -> Iterator[None]:
    """While it lasts, a file says which runs this process means to do; those of dead processes go."""
    folder = out / FOLDER
    for old in folder.glob("*.plan"):
        content = read(old)
        if content is not None and not is_alive(content):
            old.unlink(missing_ok=True)
    mine = process()
    file = folder / f"{mine['host']}-{mine['pid']}-{time.time_ns()}.plan"
    replace(
        file,
        {**mine, "started": time.time(), "updated": time.time(), "runs": [identity(run) for run in runs]},
    )
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def identity(run: Run) -> dict[str, Any]:
    """What names a run."""
    return {
        "table": run.table,
        "dataset": run.dataset,
        "row": run.row,
        "key": run.key,
        "seed": run.seed,
        "metric": run.metric,
    }


def process() -> dict[str, Any]:
    """What names this process, also after its number has been given to another."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_alive(content: dict[str, Any]) -> bool:
    """Whether the process that wrote a file still runs; on other machines, whether it wrote lately."""
    pid, host = content.get("pid"), content.get("host")
    if host == socket.gethostname() and isinstance(pid, int) and pid > 0 and os.name == "posix":
        try:
            os.kill(pid, 0)  # signal 0 only asks
        except ProcessLookupError:
            return False
        except OSError:
            return True  # somebody else's
        return content.get("born") in (None, _born(pid))
    pace = content.get("seconds_per_epoch")
    patience = max(_SILENT, _SILENT_EPOCHS * pace) if isinstance(pace, int | float) else 2 * _SILENT
    updated = content.get("updated")
    return isinstance(updated, int | float) and time.time() - updated < patience


def _born(pid: int) -> int | None:
    """Start of a process in ticks since the machine's, where the system tells (Linux)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])  # a zombie is dead
    return None


def read(file: Path) -> dict[str, Any] | None:
    """The content of a file of this folder; None if it is gone or spoilt."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def replace(file: Path, content: dict[str, Any]) -> None:
    """Replace a file as a whole; a full disk must not stop a training."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content))
        part.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


# Who is told how a run stands: a listener, the file that `elliptica watch` reads, and TensorBoard.


#: Told about events: the run's label, a kind ("start", "epoch", "again", "done", "skipped", "failed",
#: "lost"), and details.
Listener = Callable[[str, str, dict[str, Any]], object]


class Report:
    """Takes the ends of a run's epochs, and at last its record.

    Args:
        run: What is run.
        listen: Told of every epoch.
        file: For `elliptica watch`, if there is one.
        board: For TensorBoard, if it is wanted.
    """

    def __init__(
        self,
        run: Run,
        listen: Listener,
        file: ProgressFile | None = None,
        board: TensorBoard | None = None,
    ) -> None:
        self.run, self.listen, self.file, self.board = run, listen, file, board
        self.last = 0

    def __call__(self, end: EpochEnd) -> None:
        """Take the end of an epoch; one that is done again is the same again, and for listeners only."""
        if end.epoch > self.last:
            for hook in (self.file, self.board):
                if hook is not None:
                    hook(end)
            self.last = end.epoch
        details = {"epoch": end.epoch, "epochs": end.epochs, "loss": end.loss, "score": end.score}
        self.listen(self.run.label, "epoch", details)

    def finish(self, record: dict[str, Any]) -> dict[str, Any]:
        """Take the record, and give it back."""
        if self.board is not None:
            self.board.finish(_finals(record))
        return record


@contextmanager
def reported(run: Run, out: Path, tensorboard: Path | None, listen: Listener) -> Iterator[Report]:
    """A report of a run while it is done; its end, good or bad, is noted.

    Args:
        run: What is run.
        out: Folder of the records.
        tensorboard: Folder for event files, if they are wanted.
        listen: Told of every epoch.
    """
    record = record_file(out, run)
    file = ProgressFile(out, run, f"{record.stem}-{record.parent.name}")
    board = None
    try:
        if tensorboard is not None:
            board = TensorBoard(
                tensorboard / record.relative_to(out).with_suffix(""), settings=_settings(run)
            )
        yield Report(run, listen, file, board)
    except Exception as error:
        file.end("failed", f"{type(error).__name__}: {error}")
        raise
    except BaseException:  # Ctrl-C: the run goes on when it is asked for again
        file.end("interrupted")
        raise
    else:
        file.remove()
    finally:
        if board is not None:
            board.close()


def _settings(run: Run) -> dict[str, Any]:
    """Settings of a run by one name each."""
    names = {name: getattr(run, name) for name in ("table", "dataset", "row", "method", "seed", "select")}
    groups = {"training": run.training, "method": run.settings, "model": run.model}
    return names | {
        f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()
    }


def _finals(record: dict[str, Any]) -> dict[str, float]:
    """The single numbers among the metrics of a record."""
    return {
        f"{part}_{name}": value
        for part, metrics in record["metrics"].items()
        for name, value in metrics.items()
        if isinstance(value, float)
    }
