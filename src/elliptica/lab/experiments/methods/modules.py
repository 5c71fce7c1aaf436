"""Methods that are one module: made of a model, a loss and settings, and called with a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import Tensor, nn

from elliptica.lab.experiments.methods.context import (
    Context,
    Factory,
    ModuleObjective,
    Prepared,
    Settings,
    environment,
)
from elliptica.lab.training.batch import Batch


def from_module(module: Callable[..., nn.Module]) -> Factory:
    """The method of a module that is made by ``module(model, loss_fn, **settings)``.

    It gets ``num_classes`` if it takes that, and ``"input"`` in its ``layers`` is the input. It is called
    with inputs, targets and ``generator=``, and with the environment of each row (`environment`) if its
    ``forward`` has a parameter ``group``.
    """
    takes = _parameters(module)
    sees_groups = "group" in _parameters(getattr(module, "forward", module))

    def make(settings: Settings, context: Context) -> Prepared:
        if "layers" in settings:
            settings["layers"] = [None if layer == "input" else layer for layer in settings["layers"]]
        if "num_classes" in takes or "**" in takes:
            settings = {"num_classes": context.num_classes, **settings}
        numbers = environment(context.data) if sees_groups else None
        owner = module(context.model, context.loss_fn, **settings)
        return Prepared(ModuleObjective(owner) if numbers is None else Grouped(owner, numbers))

    return make


def _parameters(function: Callable[..., object]) -> set[str]:
    """Names of the parameters; ``"**"`` stands for those of any other name."""
    found = inspect.signature(function).parameters.values()
    return {"**" if each.kind is each.VAR_KEYWORD else each.name for each in found}


class Grouped(ModuleObjective):
    """A module that is called with a number for each row."""

    def __init__(self, module: nn.Module, numbers: Tensor) -> None:
        super().__init__(module)
        self.numbers = numbers

    def call(self, batch: Batch) -> Tensor:
        """The module on a batch."""
        number = self.numbers[batch.index].to(batch.x.device)
        loss: Tensor = self.module(batch.x, batch.y, number, generator=batch.generator)
        return loss
