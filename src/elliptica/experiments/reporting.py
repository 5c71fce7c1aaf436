"""Who is told how a run stands: a listener, the file that `elliptica watch` reads, and TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elliptica.experiments.progress import ProgressFile
from elliptica.experiments.records import record_file
from elliptica.experiments.specification import Run
from elliptica.training.progress import EpochEnd
from elliptica.training.tensorboard import TensorBoard

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
