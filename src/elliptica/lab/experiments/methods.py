"""What a method sees of a run and gives back, and methods by the name they have in a specification.

A first stage is trained anew when a killed run goes on: it is deterministic, and shorter than the second.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elliptica import baselines
from elliptica._utils import checks
from elliptica.baselines import TargetKernel
from elliptica.core.bridge import Paths
from elliptica.core.elliptic import Elliptic
from elliptica.core.losses import Slope
from elliptica.core.partners import InverseDistance, LabelKernel, Nearest, PartnerTable, Permutation
from elliptica.core.weighting import Girsanov, GradientNorm, GradientSoftmax, Multiplicative, Weighting
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.training.batch import Arrange, Batch, Objective, TrainingSettings
from elliptica.lab.training.loop import EpochEnd, FitResult, Progress

Settings = dict[str, Any]
#: Train another network on the same data, before the run itself; it is left with the weights of its last
#: epoch.
FirstStage = Callable[[nn.Module, Objective, TrainingSettings, Progress], FitResult]


@dataclass(frozen=True)
class Context:
    """What a method may look at."""

    data: Dataset  # the data set, with its label noise
    loss_fn: nn.Module  # the ordinary loss
    model: nn.Module  # the network that will be trained
    training: TrainingSettings  # how it will be trained
    make_model: Callable[[], nn.Module]  # makes another network, with weights of its own
    first_stage: FirstStage  # trains such a network
    generator: torch.Generator  # source of randomness of what is prepared before training
    has_budget: bool = False  # whether both stages together may cost what ordinary training does, no more

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None for real targets."""
        return int(self.data.train.y.max()) + 1 if self.data.task == "classification" else None


@dataclass(frozen=True)
class Prepared:
    """A method ready to train."""

    objective: Objective  # from the model and a batch to a loss
    data: Dataset | None = None  # the data to train on, if they are not those of the context
    rows: Tensor | None = None  # numbers of the training rows of an epoch; None is each row once
    arrange: Arrange | None = None  # orders the rows of an epoch; None shuffles them
    evaluations: int = 0  # rows that went through a network in a first stage
    seconds: float = 0.0  # wall time of that stage
    details: dict[str, Any] = field(default_factory=dict)  # what the record should tell about it


#: Settings and a context to a method that is ready.
Factory = Callable[[Settings, Context], Prepared]


#: From a batch to what a module is called with beside inputs, targets and generator, by name.
More = Callable[[Batch], dict[str, Any]]


class ModuleObjective:
    """An objective made of a module that owns the model; checkpoints keep the buffers of the module."""

    def __init__(self, module: nn.Module, more: More = lambda _: {}) -> None:
        self.module, self.more = module, more

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of the module, in the mode of the model."""
        self.module.train(model.training)
        loss: Tensor = self.module(batch.x, batch.y, generator=batch.generator, **self.more(batch))
        return loss

    @property
    def is_warming_up(self) -> bool:
        """Whether a penalty has not set in yet."""
        steps = getattr(self.module, "steps", None)
        last = max(getattr(self.module, name, 0) for name in ("anneal_steps", "ib_anneal_steps"))
        return steps is not None and int(steps) <= last

    @property
    def restarts_optimizer(self) -> bool:
        """Whether a penalty sets in with this step, where DomainBed begins with a fresh optimiser."""
        return bool(getattr(self.module, "just_annealed", False))

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the buffers of the module, without the model's."""
        state = self.module.state_dict()
        return {k: v.detach().cpu().clone() for k, v in state.items() if not k.startswith("model.")}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore them."""
        self.module.load_state_dict(tensors, strict=False)


def by_row(name: str, values: Tensor) -> More:
    """Call a module with the value of each row, such as its group."""
    return lambda batch: {name: values[batch.index].to(batch.x.device)}


def from_module(module: Callable[..., nn.Module]) -> Factory:
    """Return the method of a module that is made by ``module(model, loss_fn, **settings)``.

    It gets ``num_classes`` if it takes that, and ``"input"`` in its ``layers`` is the input. It is called
    with inputs, targets and ``generator=``, and with the environment of each row (`environment`) if its
    ``forward`` has a parameter ``group``.
    """
    parameters = inspect.signature(module).parameters
    takes_classes = "num_classes" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    sees_groups = "group" in inspect.signature(getattr(module, "forward", module)).parameters

    def make(settings: Settings, context: Context) -> Prepared:
        if "layers" in settings:
            settings["layers"] = [None if layer == "input" else layer for layer in settings["layers"]]
        if takes_classes:
            settings = {"num_classes": context.num_classes, **settings}
        owner = module(context.model, context.loss_fn, **settings)
        groups = [by_row("group", environment(context.data))] if sees_groups else []
        return Prepared(ModuleObjective(owner, *groups))

    return make


def environment(data: Dataset) -> Tensor:
    """Environment of each training row: its group or, for groups of class times attribute, its attribute.

    Groups are read as ``class * n_attributes + attribute`` if that is what they are for every row of the
    validation part (whose labels are never noisy), as in Waterbirds and CelebA; otherwise (hospitals,
    leagues) they are environments themselves.
    """
    train, known = data.train, data.validation
    if train.group is None or known.group is None:
        raise ValueError("The method needs a group for each training row, but the data have none.")
    if data.task != "classification":
        return train.group
    n_attributes, rest = divmod(int(known.group.max()) + 1, int(known.y.max()) + 1)
    if rest or n_attributes < 2 or not torch.equal(known.group // n_attributes, known.y):
        return train.group
    return train.group % n_attributes


def c_mixup(settings: Settings, context: Context) -> Prepared:
    """Partners from the whole training set; ``partners="batch"`` for the reference's other mode."""
    mode = settings.pop("partners", "data")
    checks.choice("partners", mode, ("data", "batch"))
    module = baselines.CMixup(context.model, context.loss_fn, **settings)
    if mode == "batch":
        return Prepared(ModuleObjective(module))
    kernel = TargetKernel(context.data.train.y, settings["bandwidth"])
    return Prepared(ModuleObjective(module, _data_partners(kernel, context.data.train)))


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


def _data_partners(table: PartnerTable | TargetKernel, train: Split, n_partners: int = 1) -> More:
    """Draw partners from the whole training set."""

    def ends(batch: Batch) -> dict[str, Any]:
        if isinstance(table, PartnerTable):
            j = table.sample(batch.index, n_bridges=n_partners, generator=batch.generator)
        else:
            index = batch.index.repeat_interleave(n_partners)
            j = table.sample(index, generator=batch.generator).unflatten(0, (-1, n_partners))
        j = j[:, 0] if n_partners == 1 else j
        return {"end": (train.x[j].to(batch.x), train.y[j].to(batch.y))}

    return ends


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
    checks.choice("partners", mode, ("batch", "data", "self"))
    table: PartnerTable | TargetKernel | None = None
    if mode == "data" and settings.pop("pairing", None) == "label_kernel":
        table = TargetKernel(context.data.train.y, settings.pop("bandwidth"))
    elif mode == "data":
        table = PartnerTable(context.data.train.x, power=settings.pop("power", 1.0))
    given = {"num_classes": context.num_classes, "validate": False, **elliptic_settings(settings)}
    module = Elliptic(context.model, context.loss_fn, **given)
    if mode == "self":
        return Prepared(ModuleObjective(module, lambda batch: {"end": (batch.x, batch.y)}))
    if table is None:
        return Prepared(ModuleObjective(module))
    n_partners = 1 if module.bridges.same_partner else module.bridges.n_bridges
    return Prepared(ModuleObjective(module, _data_partners(table, context.data.train, n_partners)))


def input_noise(settings: Settings, context: Context) -> Prepared:
    """Noise alone; ``partners="data"`` draws those of ``sigma="green"`` from the whole training set."""
    mode = settings.pop("partners", "batch")
    checks.choice("partners", mode, ("batch", "data"))
    module = baselines.InputNoise(context.model, context.loss_fn, num_classes=context.num_classes, **settings)
    if mode == "batch":
        return Prepared(ModuleObjective(module))
    partners = _data_partners(PartnerTable(context.data.train.x), context.data.train)
    return Prepared(ModuleObjective(module, partners))


def group_dro(settings: Settings, context: Context) -> Prepared:
    """GroupDRO over the groups themselves."""
    environment(context.data)  # the error if there are no groups
    group = context.data.train.group
    assert group is not None
    sizes = torch.bincount(group)
    settings = {"group_sizes": sizes, "num_classes": context.num_classes, **settings}
    module = baselines.GroupDRO(context.model, context.loss_fn, len(sizes), **settings)
    return Prepared(ModuleObjective(module, by_row("group", group)))


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
    checks.choice("cluster_on", on, ("rows", "targets"))
    module = baselines.ADA(context.model, context.loss_fn, **settings)
    train = context.data.train
    x = train.x if on == "rows" else None
    clusters = baselines.anchor_clusters(x, train.y, n, generator=context.generator)
    return Prepared(ModuleObjective(module, by_row("group", clusters)))


def foma(settings: Settings, context: Context) -> Prepared:
    """FOMA; ``batches`` is ``"nearest"`` or ``"sampled"`` neighbours in the target, or ``"random"`` rows."""
    kind = settings.pop("batches", "nearest")
    checks.choice("batches", kind, ("nearest", "sampled", "random"))
    layers = [None if layer == "input" else layer for layer in settings.pop("layers", ["input"])]
    objective = ModuleObjective(baselines.FOMA(context.model, context.loss_fn, layers=layers, **settings))
    y, size = context.data.train.y, context.training.batch_size

    def arrange(order: torch.Generator) -> Tensor:
        return baselines.neighbour_order(y, size, sampled=kind == "sampled", generator=order)

    return Prepared(objective, arrange=None if kind == "random" else arrange)


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
        ModuleObjective(module, by_row("sample_weight", weights.to(train.x.dtype))),
        evaluations=found.evaluations,
        seconds=found.seconds,
        details={"weighted_share": share, "window": [start, length]},
    )


def dropout(settings: Settings, context: Context) -> Prepared:
    """Ordinary training with dropout at ``rate`` after every activation, as a plain regulariser."""
    rate = float(settings.pop("rate", 0.1))
    layers = [layer for layer in context.model.modules() if isinstance(layer, nn.ReLU | nn.LeakyReLU)]
    if not layers:
        raise ValueError("dropout needs a network with (leaky) ReLUs: it drops what they return.")
    for layer in layers:
        layer.register_forward_hook(lambda own, _, out: nn.functional.dropout(out, rate, own.training))
    return from_module(baselines.ERM)(settings, context)


def last_layer(settings: Settings, context: Context) -> Prepared:
    """Retrain after ordinary training, on half of the validation rows (Kirichenko et al., ICLR 2023).

    Both stages have the same number of steps; the other half chooses the epoch. Batches of the second stage
    are balanced with ``training = { balance = "group" }``. All layers train: give it a linear model of
    frozen features, which is the last layer.
    """
    first = context.make_model()
    objective = ModuleObjective(baselines.ERM(first, context.loss_fn, num_classes=context.num_classes))
    found = context.first_stage(first, objective, _first(context, 1.0), lambda *_: None)
    context.model.load_state_dict(first.state_dict())
    known = context.data.validation
    half, rest = (
        Split(known.x[rows], known.y[rows], None if known.group is None else known.group[rows])
        for rows in torch.randperm(known.n_rows, generator=context.generator).chunk(2)
    )
    times = math.ceil(context.data.train.n_rows / half.n_rows)
    retrained = from_module(baselines.ERM)(settings, context)
    return dataclasses.replace(
        retrained,
        data=dataclasses.replace(context.data, train=half, validation=rest),
        rows=torch.arange(half.n_rows).repeat(times),
        evaluations=found.evaluations,
        seconds=found.seconds,
    )


def smote(settings: Settings, context: Context) -> Prepared:
    """Ordinary training on rows that SMOTE has added until all classes are equally large."""
    train = context.data.train
    x, y = baselines.smote_rows(train.x, train.y, generator=context.generator, **settings)
    module = baselines.ERM(context.model, context.loss_fn, num_classes=context.num_classes)
    return Prepared(ModuleObjective(module), data=dataclasses.replace(context.data, train=Split(x, y)))


#: Methods that need nothing but a model, a loss and settings.
MODULES: dict[str, type[baselines.ERM]] = {
    "erm": baselines.ERM,
    "mixup": baselines.Mixup,
    "mixupe": baselines.MixupE,
    "manifold-mixup": baselines.ManifoldMixup,
    "nfm": baselines.NFM,
    "regmixup": baselines.RegMixup,
    "focal": baselines.Focal,
    "tilted": baselines.Tilted,
    "dro": baselines.DRO,
    "doro": baselines.DORO,
    "irm": baselines.IRM,
    "ib-irm": baselines.IBIRM,
    "v-rex": baselines.VREx,
    "coral": baselines.CORAL,
    "domainmix": baselines.DomainMix,
    "lisa": baselines.LISA,
}
#: Methods by name.
METHODS: dict[str, Factory] = {
    **{name: from_module(module) for name, module in MODULES.items()},
    "c-mixup": c_mixup,
    "ada": ada,
    "foma": foma,
    "input-noise": input_noise,
    "label-smoothing": label_smoothing,
    "elliptic": elliptic,
    "groupdro": group_dro,
    "fish": fish,
    "jtt": jtt,
    "umix": umix,
    "smote": smote,
    "dropout": dropout,
    "last-layer": last_layer,
}


def prepare(name: str, settings: Settings, context: Context) -> Prepared:
    """Return a method, ready to train."""
    return METHODS[name](dict(settings), context)


def make_loss(task: str) -> nn.Module:
    """Return the loss of a task."""
    return nn.CrossEntropyLoss() if task == "classification" else nn.MSELoss()
