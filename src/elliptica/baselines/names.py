"""Names of the baselines in tables of experiments: each is given beside its class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=type[nn.Module])


@dataclass(frozen=True)
class Baseline:
    """A module that is made of a model, a loss and settings, and what its cost is."""

    module: type[nn.Module]
    rows_per_sample: int = 1  # rows that go through the network for each sample of a step


#: Baselines by name.
BASELINES: dict[str, Baseline] = {}


def named(name: str, *, rows_per_sample: int = 1) -> Callable[[Kind], Kind]:
    """Give a class its name in tables of experiments; nothing else is needed to run it in one."""

    def register(module: Kind) -> Kind:
        if name in BASELINES:
            raise ValueError(f"The baseline {name!r} exists already: {BASELINES[name].module.__name__}.")
        BASELINES[name] = Baseline(module, rows_per_sample)
        return module

    return register
