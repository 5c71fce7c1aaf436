"""Batch-wise parts of an objective over the rows of all processes instead of each process' own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elliptica.core.elliptic import Elliptic
from elliptica.distributed.ranks import Ranks, current_ranks


class _Gathered:
    """Numbers of all processes, without gradients: weights are constants."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __deepcopy__(self, memo: Any) -> _Gathered:
        return self

    def __call__(self, own: Tensor) -> Tensor:
        own = own.detach().contiguous()
        found = [torch.empty_like(own) for _ in range(self.ranks.size)]
        dist.all_gather(found, own, self.ranks.group)
        return torch.stack(found)


def over_global_batch(objective: Elliptic, group: Any = None) -> Elliptic:
    """Let the weightings that look at a batch look at the rows of all processes.

    ``gradient_softmax`` and ``released`` weigh points against the others of their batch, and a class-weighted
    loss is divided by the mean weight of a batch (``multiplicative`` weighs bridges of one pair of ends and
    needs no exchange). Under DDP or FSDP2 that is each process' own batch: the mean over processes is a
    well-defined objective, but not that of one process with the joined batch. This makes it so, to rounding,
    also if processes have different numbers of rows, for the price of exchanging a few numbers per step. All
    processes must call the objective equally often in training mode.

    Partners are still drawn within each process, unless ``paths=`` or ``end=`` are given (see `shard`). For
    other objectives that look at a batch (GroupDRO, CORAL, ...) use `split_rows`.

    Args:
        objective: Before it is wrapped; it is changed.
        group: Process group; None is the default one.

    Returns:
        The same objective. The loss that it returns is that of the process; its mean over processes is the
        loss of the joined batch.

    Example:
        >>> from torch import nn
        >>> objective = Elliptic(nn.Linear(4, 1), nn.MSELoss(), weighting="gradient_softmax")
        >>> objective = over_global_batch(objective)  # then DistributedDataParallel(objective)
    """
    if not isinstance(objective, Elliptic):
        raise TypeError(
            f"over_global_batch takes an Elliptic objective, but got {type(objective).__name__}. Call it "
            "before wrapping the objective; for others use split_rows(model)."
        )
    ranks = current_ranks(group)
    objective.across = _Gathered(ranks) if ranks.size > 1 else None
    return objective
