"""Methods in two stages, and those that change the training rows.

A first stage is trained anew when a killed run goes on: it is deterministic, and shorter than the second.
"""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor, nn

from elliptica.baselines import (
    ERM,
    UMIX,
    CorrectnessTable,
    ErrorRecorder,
    find_errors,
    smote_rows,
    umix_weights,
    upsampled_rows,
)
from elliptica.data.splits import Split
from elliptica.experiments.methods.problem import Factory, Owned, Prepared, Problem, Settings
from elliptica.training.batch import Batch
from elliptica.training.settings import TrainingSettings


class _Recorded:
    """Ordinary training that shows its predictions to a recorder, as they are before each step."""

    def __init__(
        self, module: nn.Module, loss_fn: nn.Module, recorder: ErrorRecorder | CorrectnessTable
    ) -> None:
        self.module, self.loss_fn, self.recorder = module, loss_fn, recorder

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        output = model(batch.x)
        self.recorder.update(batch.index, output, batch.y)
        loss: Tensor = self.loss_fn(output, batch.y)
        return loss


def _first(training: TrainingSettings, share: float) -> TrainingSettings:
    """The training of a first stage: a share of the epochs, and the last one is kept."""
    if not 0 < share <= 1:
        raise ValueError(
            f"first must be a share of the epochs between 0 and 1, but got {share}. E.g. first = 0.2."
        )
    return dataclasses.replace(
        training,
        epochs=max(math.ceil(share * training.epochs), 1),
        select="last",
        patience=None,
        balance="none",
    )


def jtt(settings: Settings, problem: Problem) -> Prepared:
    """JTT: the rows that a short ordinary training gets wrong come ``factor`` times more often.

    ``first`` is the share of the epochs of the first stage. ``errors="training"`` reads errors off the
    predictions during its last epoch, as the reference does, ``"end"`` off the network at its end.
    """
    first, factor = float(settings.pop("first", 0.2)), int(settings.pop("factor", 100))
    how = settings.pop("errors", "training")
    train = problem.data.train
    model, recorder = problem.make_model(), ErrorRecorder(train.n_rows)
    objective = _Recorded(model, problem.loss_fn, recorder)

    def only_the_last_epoch(epoch: int, epochs: int, _loss: float, _score: float) -> None:
        if epoch < epochs:
            recorder.reset()

    found = problem.first_stage(model, objective, _first(problem.training, first), only_the_last_epoch)
    errors = recorder.errors if how == "training" else find_errors(model, train.x, train.y)
    module = ERM(problem.model, problem.loss_fn, num_classes=problem.num_classes, **settings)
    rows = upsampled_rows(errors, factor)
    return Prepared(Owned(module), rows=rows, evaluations=found.evaluations, seconds=found.seconds)


class _Weighted(Owned):
    """A module that is called with the weight of each row."""

    def __init__(self, module: nn.Module, weights: Tensor) -> None:
        super().__init__(module)
        self.weights = weights

    def call(self, batch: Batch) -> Tensor:
        weight = self.weights[batch.index].to(batch.x)
        loss: Tensor = self.module(batch.x, batch.y, sample_weight=weight, generator=batch.generator)
        return loss


def umix(settings: Settings, problem: Problem) -> Prepared:
    """UMIX: weights from how often a first training was right, over its last ``length`` share of epochs."""
    first, length = float(settings.pop("first", 1.0)), float(settings.pop("length", 0.5))
    eta = float(settings.pop("eta", 80.0))
    train = problem.data.train
    model, table = problem.make_model(), CorrectnessTable(train.n_rows)
    training = _first(problem.training, first)
    objective = _Recorded(model, problem.loss_fn, table)
    found = problem.first_stage(model, objective, training, lambda *_: table.end_epoch())
    n_epochs = max(math.ceil(length * training.epochs), 1)
    weights = umix_weights(table, start=training.epochs - n_epochs, length=n_epochs, eta=eta)
    module = UMIX(problem.model, problem.loss_fn, num_classes=problem.num_classes, **settings)
    return Prepared(_Weighted(module, weights), evaluations=found.evaluations, seconds=found.seconds)


def smote(settings: Settings, problem: Problem) -> Prepared:
    """Ordinary training on rows that SMOTE has added until all classes are equally large."""
    train = problem.data.train
    x, y = smote_rows(train.x, train.y, generator=problem.generator, **settings)
    module = ERM(problem.model, problem.loss_fn, num_classes=problem.num_classes)
    return Prepared(Owned(module), data=dataclasses.replace(problem.data, train=Split(x, y)))


#: Methods by name.
STAGES: dict[str, Factory] = {"jtt": jtt, "umix": umix, "smote": smote}
