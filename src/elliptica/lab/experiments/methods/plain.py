"""Methods that need a model, a loss and a batch, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from elliptica.baselines import (
    DORO,
    DRO,
    ERM,
    NFM,
    CMixup,
    Focal,
    InputNoise,
    LabelSmoothing,
    ManifoldMixup,
    Mixup,
    MixupE,
    RegMixup,
    TargetKernel,
    Tilted,
    matched_smoothing,
)
from elliptica.lab.experiments.methods.problem import Factory, Owned, Prepared, Problem, Settings
from elliptica.lab.training.batch import Batch


def plain(module: Callable[..., nn.Module]) -> Factory:
    """The method of a module made of a model, a loss and settings."""

    def make(settings: Settings, problem: Problem) -> Prepared:
        owner = module(problem.model, problem.loss_fn, num_classes=problem.num_classes, **settings)
        return Prepared(Owned(owner))

    return make


class _CMixupObjective(Owned):
    """C-Mixup with partners from the whole training set, as in the reference."""

    def __init__(self, module: CMixup, kernel: TargetKernel, problem: Problem) -> None:
        super().__init__(module)
        self.kernel, self.train = kernel, problem.data.train

    def call(self, batch: Batch) -> Tensor:
        j = self.kernel.sample(batch.index, generator=batch.generator)
        end = (self.train.x[j].to(batch.x), self.train.y[j].to(batch.y))
        loss: Tensor = self.module(batch.x, batch.y, end=end, generator=batch.generator)
        return loss


def c_mixup(settings: Settings, problem: Problem) -> Prepared:
    """Partners from the whole training set; ``partners="batch"`` for the reference's other mode."""
    mode = settings.pop("partners", "data")
    module = CMixup(problem.model, problem.loss_fn, **settings)
    if mode == "batch":
        return Prepared(Owned(module))
    kernel = TargetKernel(problem.data.train.y, settings["bandwidth"])
    return Prepared(_CMixupObjective(module, kernel, problem))


def label_smoothing(settings: Settings, problem: Problem) -> Prepared:
    """``matched_to`` takes the smoothing that elliptic training with such settings causes on its paths."""
    matched = settings.pop("matched_to", None)
    if matched is not None:
        settings["smoothing"] = matched_smoothing(
            problem.num_classes or 0,
            float(matched["sigma"]),
            horizon=float(matched.get("horizon", 1.0)),
            n_times=int(matched.get("n_times", 5)),
            quadrature="mean",
        )
    return plain(LabelSmoothing)(settings, problem)


def layered(module: Callable[..., nn.Module]) -> Factory:
    """Methods that mix in layers; ``"input"`` in ``layers`` is the input."""

    def make(settings: Settings, problem: Problem) -> Prepared:
        layers = settings.pop("layers")
        settings["layers"] = [None if layer == "input" else layer for layer in layers]
        return plain(module)(settings, problem)

    return make


#: Methods by name.
PLAIN: dict[str, Factory] = {
    "erm": plain(ERM),
    "mixup": plain(Mixup),
    "mixupe": plain(MixupE),
    "c-mixup": c_mixup,
    "focal": plain(Focal),
    "dro": plain(DRO),
    "doro": plain(DORO),
    "tilted": plain(Tilted),
    "input-noise": plain(InputNoise),
    "label-smoothing": label_smoothing,
    "manifold-mixup": layered(ManifoldMixup),
    "nfm": layered(NFM),
    "regmixup": plain(RegMixup),
}
