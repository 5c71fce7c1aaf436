"""Methods that are an objective and need more than a module: elliptic training and some baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from elliptica import baselines
from elliptica.baselines import TargetKernel
from elliptica.core.bridge import Paths
from elliptica.core.elliptic import Elliptic
from elliptica.core.losses import Slope
from elliptica.core.partners import InverseDistance, LabelKernel, Nearest, PartnerTable, Permutation
from elliptica.core.weighting import Girsanov, GradientNorm, GradientSoftmax, Multiplicative, Weighting
from elliptica.lab.experiments.methods.context import (
    Context,
    Factory,
    Grouped,
    ModuleObjective,
    Prepared,
    Settings,
    environment,
    from_module,
)
from elliptica.lab.training.batch import Batch


def c_mixup(settings: Settings, context: Context) -> Prepared:
    """Partners from the whole training set; ``partners="batch"`` for the reference's other mode."""
    mode = settings.pop("partners", "data")
    module = baselines.CMixup(context.model, context.loss_fn, **settings)
    if mode == "batch":
        return Prepared(ModuleObjective(module))
    kernel = TargetKernel(context.data.train.y, settings["bandwidth"])
    return Prepared(_DataPartners(module, kernel, context))


def label_smoothing(settings: Settings, context: Context) -> Prepared:
    """``matched_to`` takes the smoothing that elliptic training with such settings causes on its paths."""
    matched = settings.pop("matched_to", None)
    if matched is not None:
        settings["smoothing"] = baselines.matched_smoothing(
            context.num_classes or 0,
            float(matched["sigma"]),
            horizon=float(matched.get("horizon", 1.0)),
            n_times=int(matched.get("n_times", 5)),
            quadrature="mean",
        )
    return from_module(baselines.LabelSmoothing)(settings, context)


class _DataPartners(ModuleObjective):
    """Partners from the whole training set."""

    def __init__(
        self, module: nn.Module, table: PartnerTable | TargetKernel, context: Context, n_partners: int = 1
    ) -> None:
        super().__init__(module)
        self.table, self.train, self.n_partners = table, context.data.train, n_partners

    def call(self, batch: Batch) -> Tensor:
        if isinstance(self.table, PartnerTable):
            j = self.table.sample(batch.index, n_bridges=self.n_partners, generator=batch.generator)
        else:
            index = batch.index.repeat_interleave(self.n_partners)
            j = self.table.sample(index, generator=batch.generator).unflatten(0, (-1, self.n_partners))
        j = j[:, 0] if self.n_partners == 1 else j
        return self.loss(batch, end=(self.train.x[j].to(batch.x), self.train.y[j].to(batch.y)))


class _SelfPartners(ModuleObjective):
    """Each sample is its own partner: bridges from a sample to itself."""

    def call(self, batch: Batch) -> Tensor:
        return self.loss(batch, end=(batch.x, batch.y))


class Released(Weighting):
    """The weighting in the authors' later code: subtract ``xi (g . z / n - |g|**2 / (2 n**2))`` of a path.

    That code differentiates the mean over ``n`` rows, whose gradient is ``1 / n`` of that of a point's own
    loss. It sums loss and term over time; here both are averaged.
    """

    second_order = True

    def __call__(self, losses: Tensor, slopes: Sequence[Slope], paths: Paths) -> Tensor:
        """Return the losses minus the term."""
        n, term = losses.shape[1], torch.zeros_like(losses)
        for slope in slopes:
            term = term + (slope.g * slope.z / n - 0.5 * (slope.g / n).square()).flatten(2).sum(2)
        return losses - self.xi * term.mean(0)


#: Pairings and weightings by the name they have in a table, and the settings of a table that are theirs.
_PAIRINGS: dict[str, Callable[..., object]] = {
    "permutation": Permutation,
    "inverse_distance": InverseDistance,
    "nearest": Nearest,
    "label_kernel": LabelKernel,
}
_WEIGHTINGS: dict[str, Callable[..., object]] = {
    "none": lambda **_: None,
    "gradient_norm": GradientNorm,
    "gradient_softmax": GradientSoftmax,
    "girsanov": Girsanov,
    "multiplicative": Multiplicative,
    "released": Released,
}
_OF_PAIRINGS, _OF_WEIGHTINGS = ("power", "bandwidth", "among"), ("xi", "drift")


def elliptic_settings(flat: Settings) -> Settings:
    """Turn the settings of a table, which are flat, into those of `Elliptic`.

    The noise on targets is that on inputs, as in the paper, unless ``sigma_y`` is given. On a time interval
    of length ``horizon`` both are ``sqrt(horizon)`` as strong.
    """
    found = dict(flat)
    of_pairing = {name: found.pop(name) for name in _OF_PAIRINGS if name in found}
    of_weighting = {name: found.pop(name) for name in _OF_WEIGHTINGS if name in found}
    root, sigma = math.sqrt(found.pop("horizon", 1.0)), found.get("sigma", 0.05)
    has_number = not isinstance(sigma, str)  # the PDE's own noise has neither a length nor one for targets
    return {
        **found,
        "sigma": sigma * root if has_number else sigma,
        "sigma_y": found.get("sigma_y", sigma if has_number else 0.0) * root,
        "pairing": _PAIRINGS[found.get("pairing", "permutation")](**of_pairing),
        "weighting": _WEIGHTINGS[found.get("weighting", "none")](**of_weighting),
    }


def elliptic(settings: Settings, context: Context) -> Prepared:
    """Elliptic training, with the paper's noise on labels unless ``sigma_y`` is given.

    ``partners="data"`` draws partners from the whole training set: by distance or, with
    ``pairing="label_kernel"``, as C-Mixup does, itself included. With ``"self"`` each sample is its own.
    """
    mode = settings.pop("partners", "batch")
    table: PartnerTable | TargetKernel | None = None
    if mode == "data" and settings.pop("pairing", None) == "label_kernel":
        table = TargetKernel(context.data.train.y, settings.pop("bandwidth"))
    elif mode == "data":
        table = PartnerTable(context.data.train.x, power=settings.pop("power", 1.0))
    given = {"num_classes": context.num_classes, "validate": False, **elliptic_settings(settings)}
    module = Elliptic(context.model, context.loss_fn, **given)
    if table is None:
        return Prepared(_SelfPartners(module) if mode == "self" else ModuleObjective(module))
    n_partners = 1 if module.bridges.same_partner else module.bridges.n_bridges
    return Prepared(_DataPartners(module, table, context, n_partners))


def input_noise(settings: Settings, context: Context) -> Prepared:
    """Noise alone; ``partners="data"`` draws those of ``sigma="green"`` from the whole training set."""
    mode = settings.pop("partners", "batch")
    found = from_module(baselines.InputNoise)(settings, context)
    if mode == "batch":
        return found
    assert isinstance(found.objective, ModuleObjective)
    table = PartnerTable(context.data.train.x)
    return Prepared(_DataPartners(found.objective.module, table, context, 1))


def group_dro(settings: Settings, context: Context) -> Prepared:
    """GroupDRO over the groups themselves."""
    environment(context.data)  # the error if there are no groups
    group = context.data.train.group
    assert group is not None
    sizes = torch.bincount(group)
    settings = {"group_sizes": sizes, "num_classes": context.num_classes, **settings}
    module = baselines.GroupDRO(context.model, context.loss_fn, len(sizes), **settings)
    return Prepared(Grouped(module, group))


class _Fish:
    """One inner step for each environment of the batch, then a part of the way."""

    def __init__(self, module: baselines.ERM, numbers: Tensor, rate: float) -> None:
        self.module, self.numbers, self.rate = module, numbers, rate

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError("Fish takes steps.")

    def step(self, model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        self.module.train(model.training)
        numbers = self.numbers[batch.index].to(batch.x.device)
        parts = baselines.split_by_group(batch.x, batch.y, numbers)
        return baselines.fish_step(model, optimizer, self.module, parts, rate=self.rate)


def fish(settings: Settings, context: Context) -> Prepared:
    """Fish; ``rate`` is the part of the way."""
    rate = float(settings.pop("rate", 0.5))
    module = baselines.ERM(context.model, context.loss_fn, num_classes=context.num_classes, **settings)
    return Prepared(_Fish(module, environment(context.data), rate))


def ada(settings: Settings, context: Context) -> Prepared:
    """ADA with ``n_clusters`` of the training rows; ``cluster_on="targets"`` clusters their targets alone."""
    n, on = settings.pop("n_clusters"), settings.pop("cluster_on", "rows")
    if on not in ("rows", "targets"):
        raise TypeError(f"cluster_on must be 'rows' or 'targets', but got {on!r}")
    module = baselines.ADA(context.model, context.loss_fn, **settings)
    train = context.data.train
    x = train.x if on == "rows" else None
    clusters = baselines.anchor_clusters(x, train.y, n, generator=context.generator)
    return Prepared(Grouped(module, clusters))


def foma(settings: Settings, context: Context) -> Prepared:
    """FOMA; ``batches`` is ``"nearest"`` or ``"sampled"`` neighbours in the target, or ``"random"`` rows."""
    kind = settings.pop("batches", "nearest")
    if kind not in ("nearest", "sampled", "random"):
        raise TypeError(f"batches must be 'nearest', 'sampled' or 'random', but got {kind!r}")
    layers = [None if layer == "input" else layer for layer in settings.pop("layers", ["input"])]
    objective = ModuleObjective(baselines.FOMA(context.model, context.loss_fn, layers=layers, **settings))
    y, size = context.data.train.y, context.training.batch_size

    def arrange(order: torch.Generator) -> Tensor:
        return baselines.neighbour_order(y, size, sampled=kind == "sampled", generator=order)

    return Prepared(objective, arrange=None if kind == "random" else arrange)


#: Methods by name; those that are nothing but a module have theirs in `elliptica.baselines.names`.
OBJECTIVES: dict[str, Factory] = {
    "c-mixup": c_mixup,
    "ada": ada,
    "foma": foma,
    "input-noise": input_noise,
    "label-smoothing": label_smoothing,
    "elliptic": elliptic,
    "groupdro": group_dro,
    "fish": fish,
}
