"""Methods by the name they have in a specification: each makes an objective for a run."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from elliptica.baselines import ERM, CMixup, Mixup, MixupE, TargetKernel
from elliptica.data.splits import Dataset
from elliptica.objective import Elliptic
from elliptica.partner_table import PartnerTable
from elliptica.training.batch import Batch, Objective

Settings = dict[str, Any]
#: Settings, data and loss to an objective.
Factory = Callable[[Settings, Dataset, nn.Module], Objective]


class MethodError(ValueError):
    """A method or one of its settings does not exist."""


def make_objective(name: str, settings: Settings, data: Dataset, loss_fn: nn.Module) -> Objective:
    """The objective of a method.

    Raises:
        MethodError: If the method, or a setting, is not known; near misses are named.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MethodError(f"There is no method {name!r}.{hint} There are {', '.join(METHODS)}.")
    try:
        return METHODS[name](dict(settings), data, loss_fn)
    except TypeError as error:
        raise MethodError(f"Method {name!r} with {settings}: {error}") from error


def owned(make: Callable[[nn.Module], nn.Module]) -> Objective:
    """An objective from a module that owns its model; made when the model is first seen."""
    made: dict[int, nn.Module] = {}

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        if id(model) not in made:
            made[id(model)] = make(model)
        module = made[id(model)].train(model.training)
        result: Tensor = module(batch.x, batch.y, generator=batch.generator)
        return result

    return objective


def _classes(data: Dataset) -> int | None:
    return int(data.train.y.max()) + 1 if data.task == "classification" else None


def _erm(settings: Settings, data: Dataset, loss_fn: nn.Module) -> Objective:
    return owned(lambda model: ERM(model, loss_fn, num_classes=_classes(data), **settings))


def _mixup(settings: Settings, data: Dataset, loss_fn: nn.Module) -> Objective:
    return owned(lambda model: Mixup(model, loss_fn, num_classes=_classes(data), **settings))


def _mixupe(settings: Settings, data: Dataset, loss_fn: nn.Module) -> Objective:
    return owned(lambda model: MixupE(model, loss_fn, num_classes=_classes(data), **settings))


def _c_mixup(settings: Settings, data: Dataset, loss_fn: nn.Module) -> Objective:
    """Partners from the whole training set, as in the reference; ``partners="batch"`` for the other mode."""
    mode = settings.pop("partners", "data")
    kernel = TargetKernel(data.train.y, settings["bandwidth"]) if mode == "data" else None
    made: dict[int, CMixup] = {}

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        module = made.setdefault(id(model), CMixup(model, loss_fn, **settings)).train(model.training)
        end = None
        if kernel is not None:
            j = kernel.sample(batch.index, generator=batch.generator)
            end = (data.train.x[j].to(batch.x), data.train.y[j].to(batch.y))
        result: Tensor = module(batch.x, batch.y, end=end, generator=batch.generator)
        return result

    return objective


def _elliptic(settings: Settings, data: Dataset, loss_fn: nn.Module) -> Objective:
    """Elliptic training; ``partners="data"`` draws partners from the whole training set by distance."""
    mode = settings.pop("partners", "batch")
    power = settings.pop("power", 1.0) if mode == "data" else None
    sigma = settings.get("sigma")
    if isinstance(sigma, list):  # TOML has no tuples
        settings["sigma"] = tuple(sigma)
    n_bridges = settings.get("n_bridges", 1)
    table = None if power is None else PartnerTable(data.train.x, power=power)
    made: dict[int, Elliptic] = {}

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        if id(model) not in made:
            made[id(model)] = Elliptic(model, loss_fn, num_classes=_classes(data), validate=False, **settings)
        module = made[id(model)].train(model.training)
        end = None
        if table is not None:
            j = table.sample(batch.index, n_bridges=n_bridges, generator=batch.generator)
            j = j[:, 0] if n_bridges == 1 else j
            end = (data.train.x[j].to(batch.x), data.train.y[j].to(batch.y))
        result: Tensor = module(batch.x, batch.y, end=end, generator=batch.generator)
        return result

    return objective


#: Methods by name.
METHODS: dict[str, Factory] = {
    "erm": _erm,
    "mixup": _mixup,
    "mixupe": _mixupe,
    "c-mixup": _c_mixup,
    "elliptic": _elliptic,
}


def make_loss(task: str) -> nn.Module:
    """The loss of a task."""
    return nn.CrossEntropyLoss() if task == "classification" else nn.MSELoss()


def rows_per_sample(name: str, settings: Settings) -> int:
    """Rows that go through the network for each sample of a step."""
    if name != "elliptic":
        return 1
    n_times = settings.get("n_times", 5) if settings.get("sampling", "marginal") == "path" else 1
    return int(settings.get("n_bridges", 1)) * int(n_times)
