"""Compute batch-wise parts of an objective over the rows of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elliptica.core.elliptic import Elliptic
from elliptica.distributed.ranks import Ranks, current_ranks


class _Gathered:
    """Gather numbers of all processes, without gradients because weights are constants."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __deepcopy__(self, memo: Any) -> _Gathered:
        return self

    def __call__(self, own: Tensor) -> Tensor:
        own = own.detach().contiguous()
        gathered = [torch.empty_like(own) for _ in range(self.ranks.size)]
        dist.all_gather(gathered, own, self.ranks.group)
        return torch.stack(gathered)


def over_global_batch(objective: Elliptic, group: Any = None) -> Elliptic:
    """Apply batch-wise weightings to the rows of all processes.

    ``gradient_softmax`` and ``released`` weight points relative to the others of their batch, and a
    class-weighted loss is divided by the mean weight of a batch. (``multiplicative`` weights bridges of one
    pair of ends and needs no exchange.) Under DDP or FSDP2 the batch is that of each process. The mean over
    processes is then a well-defined objective, but not that of one process with the joined batch. This
    function makes them equal up to rounding, even if processes have different numbers of rows. It costs the
    exchange of a few numbers per step. All processes must call the objective equally often in training mode.

    Partners are still drawn within each process, unless ``paths=`` or ``end=`` are passed (see `shard`). For
    other batch-wise objectives (GroupDRO, CORAL, ...) use `split_rows`.

    Args:
        objective: The objective, before it is wrapped; it is changed in place.
        group: Process group; None is the default one.

    Returns:
        The same objective. It returns the loss of the process; the mean over processes is the loss of the
        joined batch.

    Example:
        >>> from torch import nn
        >>> objective = Elliptic(nn.Linear(4, 1), nn.MSELoss(), weighting="gradient_softmax")
        >>> objective = over_global_batch(objective)  # then DistributedDataParallel(objective)
    """
    if not isinstance(objective, Elliptic):
        raise TypeError(
            f"over_global_batch expects an Elliptic objective, but got {type(objective).__name__}. Call it "
            "before wrapping the objective; for other objectives use split_rows(model)."
        )
    ranks = current_ranks(group)
    objective.across = _Gathered(ranks) if ranks.size > 1 else None
    return objective
