"""Elliptic training."""

from __future__ import annotations

from torch import Tensor

from elliptica.core.elliptic import Elliptic
from elliptica.core.partner_table import PartnerTable
from elliptica.lab.experiments.methods.problem import Owned, Prepared, Problem, Settings
from elliptica.lab.training.batch import Batch


class _FarPartners(Owned):
    """Partners from the whole training set."""

    def __init__(self, module: Elliptic, table: PartnerTable, problem: Problem, n_bridges: int) -> None:
        super().__init__(module)
        self.table, self.train, self.n_bridges = table, problem.data.train, n_bridges

    def call(self, batch: Batch) -> Tensor:
        j = self.table.sample(batch.index, n_bridges=self.n_bridges, generator=batch.generator)
        j = j[:, 0] if self.n_bridges == 1 else j
        end = (self.train.x[j].to(batch.x), self.train.y[j].to(batch.y))
        loss: Tensor = self.module(batch.x, batch.y, end=end, generator=batch.generator)
        return loss


class _SelfPartners(Owned):
    """Each sample is its own partner: bridges from a sample to itself."""

    def call(self, batch: Batch) -> Tensor:
        loss: Tensor = self.module(batch.x, batch.y, end=(batch.x, batch.y), generator=batch.generator)
        return loss


def elliptic(settings: Settings, problem: Problem) -> Prepared:
    """Elliptic training.

    ``partners="data"`` draws partners from the whole training set by distance; with ``"self"`` each sample is
    its own.
    """
    mode = settings.pop("partners", "batch")
    power = settings.pop("power", 1.0) if mode == "data" else None
    if isinstance(settings.get("sigma"), list):  # TOML has no tuples
        settings["sigma"] = tuple(settings["sigma"])
    module = Elliptic(
        problem.model, problem.loss_fn, num_classes=problem.num_classes, validate=False, **settings
    )
    if power is None:
        return Prepared(_SelfPartners(module) if mode == "self" else Owned(module))
    table = PartnerTable(problem.data.train.x, power=power)
    return Prepared(_FarPartners(module, table, problem, settings.get("n_bridges", 1)))
