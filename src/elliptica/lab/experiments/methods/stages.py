"""Methods in two stages, and those that change the training rows.

A first stage is trained anew when a killed run goes on: it is deterministic, and shorter than the second.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from torch import Tensor, nn

from elliptica import baselines
from elliptica.lab.data.splits import Split
from elliptica.lab.experiments.methods.context import Context, Factory, ModuleObjective, Prepared, Settings
from elliptica.lab.training.batch import Batch, Objective
from elliptica.lab.training.loop import EpochEnd
from elliptica.lab.training.settings import TrainingSettings


def _recorded(loss_fn: nn.Module, recorder: Any) -> Objective:
    """Return ordinary training that shows its predictions to a recorder, as they are before each step."""

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        output = model(batch.x)
        recorder.update(batch.index, output, batch.y)
        loss: Tensor = loss_fn(output, batch.y)
        return loss

    return objective


def _first(context: Context, share: float, **changes: Any) -> TrainingSettings:
    """The training of a first stage: a share of the epochs, and the last one is kept.

    With a budget the second stage is shorter, too: both together have the epochs of one.
    """
    if not 0 < share <= 1:
        raise ValueError(f"first must be a share of the epochs between 0 and 1, but got {share}.")
    if context.has_budget:
        share = share / (1 + share)
    first = {
        "epochs": max(math.ceil(share * context.training.epochs), 1),
        "select": "last",
        "patience": None,
        "balance": "none",
        **changes,
    }
    return dataclasses.replace(context.training, **first)


def jtt(settings: Settings, context: Context) -> Prepared:
    """JTT: the rows that a short ordinary training gets wrong come ``factor`` times more often.

    ``first`` is the share of the epochs of the first stage; errors are those of the predictions during its
    last epoch, as in the reference.
    """
    first, factor = float(settings.pop("first", 0.2)), int(settings.pop("factor", 100))
    train = context.data.train
    model, recorder = context.make_model(), baselines.ErrorRecorder(train.n_rows)
    objective = _recorded(context.loss_fn, recorder)

    def only_the_last_epoch(end: EpochEnd) -> None:
        if end.epoch < end.epochs:
            recorder.reset()

    found = context.first_stage(model, objective, _first(context, first), only_the_last_epoch)
    errors = recorder.errors
    module = baselines.ERM(context.model, context.loss_fn, num_classes=context.num_classes, **settings)
    return Prepared(
        ModuleObjective(module),
        rows=baselines.upsampled_rows(errors, factor),
        evaluations=found.evaluations,
        seconds=found.seconds,
        details={"errors": int(errors.sum())},
    )


class _Weighted(ModuleObjective):
    """A module that is called with the weight of each row."""

    def __init__(self, module: nn.Module, weights: Tensor) -> None:
        super().__init__(module)
        self.weights = weights

    def call(self, batch: Batch) -> Tensor:
        return self.loss(batch, sample_weight=self.weights[batch.index].to(batch.x))


def umix(settings: Settings, context: Context) -> Prepared:
    """UMIX: weights from how often a first training was right.

    ``first`` is the length of the first stage, as a share of the epochs; ``start`` and ``length`` are the
    window in which its predictions count, as shares of its own epochs (the reference's Waterbirds: a sixth
    and a sixth); ``first_training`` holds training settings of its own.
    """
    shares = [float(settings.pop(name, value)) for name, value in (("start", 1 / 6), ("length", 1 / 6))]
    first, eta = float(settings.pop("first", 1.0)), float(settings.pop("eta", 80.0))
    training = _first(context, first, **settings.pop("first_training", {}))
    train = context.data.train
    model, table = context.make_model(), baselines.CorrectnessTable(train.n_rows)
    objective = _recorded(context.loss_fn, table)
    found = context.first_stage(model, objective, training, lambda *_: table.end_epoch())
    start = min(round(shares[0] * training.epochs), training.epochs - 1)
    length = min(max(round(shares[1] * training.epochs), 1), training.epochs - start)
    weights = baselines.umix_weights(table, start=start, length=length, eta=eta)
    share = float((weights > 1).double().mean())
    module = baselines.UMIX(context.model, context.loss_fn, num_classes=context.num_classes, **settings)
    return Prepared(
        _Weighted(module, weights),
        evaluations=found.evaluations,
        seconds=found.seconds,
        details={"weighted_share": share, "window": [start, length]},
    )


def smote(settings: Settings, context: Context) -> Prepared:
    """Ordinary training on rows that SMOTE has added until all classes are equally large."""
    train = context.data.train
    x, y = baselines.smote_rows(train.x, train.y, generator=context.generator, **settings)
    module = baselines.ERM(context.model, context.loss_fn, num_classes=context.num_classes)
    return Prepared(ModuleObjective(module), data=dataclasses.replace(context.data, train=Split(x, y)))


#: Methods by name.
STAGES: dict[str, Factory] = {"jtt": jtt, "umix": umix, "smote": smote}
