"""Methods that look at the groups of the training rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from elliptica.baselines import (
    CORAL,
    ERM,
    IBIRM,
    IRM,
    LISA,
    DomainMix,
    GroupDRO,
    VREx,
    fish_step,
    split_by_group,
)
from elliptica.lab.experiments.methods.problem import Factory, Owned, Prepared, Problem, Settings, environment
from elliptica.lab.training.batch import Batch


class _Grouped(Owned):
    """A module that is called with a number for each row."""

    def __init__(self, module: nn.Module, numbers: Tensor) -> None:
        super().__init__(module)
        self.numbers = numbers

    def call(self, batch: Batch) -> Tensor:
        number = self.numbers[batch.index].to(batch.x.device)
        loss: Tensor = self.module(batch.x, batch.y, number, generator=batch.generator)
        return loss


def by_environment(module: Callable[..., nn.Module]) -> Factory:
    """The method of a module that sees each row's environment: its attribute or domain."""

    def make(settings: Settings, problem: Problem) -> Prepared:
        numbers = environment(problem.data)
        owner = module(problem.model, problem.loss_fn, num_classes=problem.num_classes, **settings)
        return Prepared(_Grouped(owner, numbers))

    return make


def group_dro(settings: Settings, problem: Problem) -> Prepared:
    """GroupDRO over the groups themselves."""
    environment(problem.data)  # the error if there are no groups
    group = problem.data.train.group
    assert group is not None
    sizes = torch.bincount(group)
    module = GroupDRO(
        problem.model,
        problem.loss_fn,
        len(sizes),
        group_sizes=sizes,
        num_classes=problem.num_classes,
        **settings,
    )
    return Prepared(_Grouped(module, group))


class _Fish:
    """One inner step for each environment of the batch, then a part of the way."""

    def __init__(self, module: ERM, numbers: Tensor, rate: float) -> None:
        self.module, self.numbers, self.rate = module, numbers, rate

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The ordinary loss, for those who want to look at it."""
        loss: Tensor = self.module(batch.x, batch.y)
        return loss

    def step(self, model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        self.module.train(model.training)
        numbers = self.numbers[batch.index].to(batch.x.device)
        parts = split_by_group(batch.x, batch.y, numbers)
        return fish_step(model, optimizer, self.module, parts, rate=self.rate)


def fish(settings: Settings, problem: Problem) -> Prepared:
    """Fish; ``rate`` is the part of the way."""
    rate = float(settings.pop("rate", 0.5))
    module = ERM(problem.model, problem.loss_fn, num_classes=problem.num_classes, **settings)
    return Prepared(_Fish(module, environment(problem.data), rate))


#: Methods by name.
GROUPS: dict[str, Factory] = {
    "groupdro": group_dro,
    "irm": by_environment(IRM),
    "ib-irm": by_environment(IBIRM),
    "v-rex": by_environment(VREx),
    "coral": by_environment(CORAL),
    "domainmix": by_environment(DomainMix),
    "lisa": by_environment(LISA),
    "fish": fish,
}
