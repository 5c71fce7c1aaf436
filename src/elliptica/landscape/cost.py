"""Count the rows and flops of a training step, beside those of ordinary training."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from elliptica._utils.statistics import Result
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import Inputs


@dataclass(frozen=True)
class StepCost(Result):
    """Result of `step_cost`.

    Attributes:
        batch_size: Samples of the step.
        rows: Points at which the loss is evaluated.
        flops: Multiplications and additions of matrix products and convolutions, as torch counts them.
        ordinary_flops: Those of ordinary training on the same batch.
    """

    batch_size: int
    rows: int
    flops: int
    ordinary_flops: int

    @property
    def ratio(self) -> float:
        """Flops in units of ordinary training; NaN for a model without matrix products."""
        return self.flops / self.ordinary_flops if self.ordinary_flops else float("nan")


def step_cost(objective: Elliptic, x: Inputs, y: Tensor) -> StepCost:
    """Run one step on a copy of the objective and count it (paper: appendix A.1).

    The flops of a network grow with its rows: for a batch that your machine cannot hold, count a small one.

    Example:
        >>> objective = Elliptic(torch.nn.Linear(20, 1), torch.nn.MSELoss(), sampling="path", n_times=5)
        >>> cost = step_cost(objective, torch.randn(4, 20), torch.randn(4, 1))
        >>> cost.rows
        20
    """
    own = copy.deepcopy(objective).train()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # warnings about settings were shown when the objective was made
        rows = len(own.sample(x, y).targets)
        flops, ordinary = (_flops(loss) for loss in (lambda: own(x, y), lambda: own.clean_loss(x, y)))
    return StepCost(len(y), rows, flops, ordinary)


def _flops(loss: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        loss().backward()
    return counter.get_total_flops()
