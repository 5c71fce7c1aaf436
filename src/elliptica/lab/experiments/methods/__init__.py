"""Methods by the name they have in a specification."""

from __future__ import annotations

from torch import nn

from elliptica.baselines.names import BASELINES
from elliptica.lab.experiments.methods.context import Context, Factory, Prepared, Settings, from_module
from elliptica.lab.experiments.methods.objectives import OBJECTIVES
from elliptica.lab.experiments.methods.stages import STAGES

#: Methods by name.
METHODS: dict[str, Factory] = {
    **{name: from_module(module) for name, module in BASELINES.items()},
    **OBJECTIVES,
    **STAGES,
}
#: Rows that go through the network for each sample of a step, of methods of which their settings do not say.
ROWS_PER_SAMPLE: dict[str, int] = {name: module.rows_per_sample for name, module in BASELINES.items()}


def prepare(name: str, settings: Settings, context: Context) -> Prepared:
    """Return a method, ready to train."""
    return METHODS[name](dict(settings), context)


def make_loss(task: str) -> nn.Module:
    """Return the loss of a task."""
    return nn.CrossEntropyLoss() if task == "classification" else nn.MSELoss()


def rows_per_sample(name: str, settings: Settings) -> int:
    """Return the rows that go through the network for each sample of a step."""
    if name == "c-mixup" and "at" in settings:
        return 2  # both ends
    if name != "elliptic":
        return ROWS_PER_SAMPLE.get(name, 1)
    n_times = settings.get("n_times", 5) if settings.get("sampling", "marginal") == "path" else 1
    return int(settings.get("n_bridges", 1)) * int(n_times)
