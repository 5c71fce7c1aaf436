"""What a method gets to see of a run, what it gives back, and methods that are one module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elliptica.lab.data.splits import Dataset
from elliptica.lab.training.batch import Arrange, Batch, Objective, TrainingSettings
from elliptica.lab.training.loop import FitResult, Progress

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
