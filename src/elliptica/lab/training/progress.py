"""Progress callbacks after each epoch, and training curves as TensorBoard event files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from elliptica._utils.extras import import_extra


@dataclass(frozen=True)
class EpochEnd:
    """State of a training at the end of an epoch.

    Attributes:
        epoch: Number of finished epochs: 1 after the first.
        epochs: Number of epochs, as far as it is known.
        loss: Mean training loss of this epoch.
        score: Validation score after it, larger is better.
        best: Best score so far.
        lr: Learning rate of its last step.
        seconds: Wall time of training and validation so far, over all sittings.
        evaluations: Rows that went through the model in training so far.
    """

    epoch: int
    epochs: int
    loss: float
    score: float
    best: float
    lr: float
    seconds: float
    evaluations: int


#: Callback after each epoch.
Progress = Callable[[EpochEnd], object]


Plain = bool | int | float | str


class TensorBoard:
    """Write the scalars of every epoch, and the settings of the run, for `tensorboard --logdir`.

    An object of this class is a ``progress`` callback of `elliptica.lab.training.fit`. In your own loop,
    call `write` after each epoch. A run that resumes after a kill replaces the steps that it repeats
    (``purge_step``), so that curves have no duplicate points. Give every run its own folder; then any
    number of processes may write at the same time.

    Args:
        folder: Folder of the event files; its name is the name of the run.
        settings: Shown in the HParams tab with the final metrics; nested values and others than numbers
            and text are written as text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TensorBoard(folder, settings={"lr": 0.1}) as board:
        ...         board.write(1, {"loss": 0.7, "validation": 0.5})
        ...         board.finish({"accuracy": 0.9})
    """

    def __init__(self, folder: str | os.PathLike[str], *, settings: Mapping[str, Any] | None = None) -> None:
        import_extra("An event file", "lab", "tensorboard")
        self.folder = Path(folder)
        self.settings = {name: _plain(value) for name, value in (settings or {}).items() if value is not None}
        self._writer: Any = None

    def __call__(self, end: EpochEnd) -> None:
        """Write the end of an epoch; the callback of `elliptica.lab.training.fit`."""
        self.write(
            end.epoch,
            {
                "train/loss": end.loss,
                "validation/score": end.score,
                "validation/best": end.best,
                "train/lr": end.lr,
                "cost/seconds": end.seconds,
                "cost/evaluations": end.evaluations,
            },
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars of a step; the first call of a session replaces earlier events from that step on.

        Args:
            step: Number of the epoch.
            scalars: Values by name; those that are not finite are skipped.
        """
        writer = self._open(step)
        for name, value in scalars.items():
            if math.isfinite(value):
                writer.add_scalar(name, value, step)
        writer.flush()  # so that a kill loses nothing

    def finish(self, metrics: Mapping[str, float | None] | None = None) -> None:
        """Write the final metrics with the settings, and close the files.

        Args:
            metrics: Values by name; missing ones are skipped.
        """
        values = {
            f"final/{name}": float(value) for name, value in (metrics or {}).items() if value is not None
        }
        writer = self._open(0)
        for part in _summaries(self.settings, values):
            writer.file_writer.add_summary(part)
        for name, value in values.items():
            writer.add_scalar(name, value, 0)
        self.close()

    def close(self) -> None:
        """Close the files; a later `write` opens new ones."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, step: int) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=step or None)
            if self.settings:  # the HParams tab is filled at the end, runs under way have them as text
                rows = [f"| {name} | {value} |" for name, value in self.settings.items()]
                self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
        return self._writer

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _summaries(settings: dict[str, Plain], metrics: dict[str, float]) -> tuple[Any, ...]:
    """Return the summaries of the HParams tab: the columns, the values of this run, and its end."""
    from torch.utils.tensorboard.summary import hparams

    parts: tuple[Any, ...] = hparams(settings, metrics)
    return parts


def _plain(value: Any) -> Plain:
    return value if isinstance(value, bool | int | float | str) else str(value)
