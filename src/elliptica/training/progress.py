"""What a training tells after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochEnd:
    """Where a training stands at the end of an epoch.

    Attributes:
        epoch: Epochs that are finished: 1 after the first.
        epochs: Number of epochs, as far as it is known.
        loss: Mean training loss of this epoch.
        score: Validation score after it, larger is better.
        best: Score of the epoch that is chosen so far.
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


#: Told after each epoch.
Progress = Callable[[EpochEnd], object]
