"""Batches that hold both ends of every pair, for `torch.utils.data.DataLoader`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch.utils.data import Sampler

from elliptica._utils.random import stream
from elliptica.core.bridge import FarEnd
from elliptica.core.inputs import Inputs


@runtime_checkable
class Partners(Protocol):
    """Interface for drawing partners: `PartnerIndex`, `PartnerTable`, or a class of yours."""

    def __len__(self) -> int: ...

    def sample(
        self, index: Tensor, *, n_bridges: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw partners for the rows ``index``, ``(batch, bridge)``."""


class PairBatchSampler(Sampler[list[int]]):
    """Row numbers of batches in which starts come first and their partners after them.

    Pass it to a loader as ``batch_sampler=``, and split the batch with `split_pairs`. In an epoch every row
    is a start exactly once, over all processes together. Batches differ in size by at most one start, and
    each process gets the same number. Partners are drawn in the process that owns the loader, from a separate
    stream for each batch, so that runs repeat exactly with any number of workers.

    Args:
        index: A `PartnerIndex` or `PartnerTable` over the rows of the data set. You may replace the attribute
            between epochs, e.g. by an index over newer features.
        batch_size: Largest number of starts in a batch, which has ``batch_size * (1 + n_bridges)`` rows.
        n_bridges: Partners for each start.
        shuffle: Whether starts are in random order.
        seed: Seed of the order and of the partners.
        rank: Number of this process; None asks torch.distributed.
        world_size: Number of processes; None asks torch.distributed.

    Example:
        >>> from elliptica import PartnerTable
        >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
        >>> sampler = PairBatchSampler(PartnerTable(x, power=float("inf")), batch_size=2, shuffle=False)
        >>> list(sampler)                                      # rows 0 and 1, then their partners; 2 and 3
        [[0, 1, 1, 0], [2, 3, 3, 2]]
    """

    def __init__(
        self,
        index: Partners,
        batch_size: int,
        *,
        n_bridges: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.index, self.batch_size, self.n_bridges = index, batch_size, n_bridges
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = rank if rank is not None else torch.distributed.get_rank() if several else 0
        self.world_size = (
            world_size if world_size is not None else torch.distributed.get_world_size() if several else 1
        )
        if not 0 <= self.rank < self.world_size:  # other ranks would see no rows, or those of another
            raise ValueError(f"rank must be in 0..{self.world_size - 1}, but is {self.rank}.")
        self._n_batches = math.ceil(len(index) / (batch_size * self.world_size))
        if self._n_batches * self.world_size > len(index):
            raise ValueError(
                f"batch_size {batch_size} leaves some of {self.world_size} processes an empty batch of "
                f"{len(index)} rows. Use larger batches or fewer processes."
            )

    def __len__(self) -> int:
        return self._n_batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch (0, 1, ...); each has its own order and partners."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        n = len(self.index)
        order = np.arange(n)
        if self.shuffle:
            order = torch.randperm(n, generator=stream("pairs", self.seed, self.epoch, "order")).numpy()
        batches = np.array_split(order, self._n_batches * self.world_size)[self.rank :: self.world_size]
        for number, starts in enumerate(batches):
            generator = stream("pairs", self.seed, self.epoch, "partners", self.rank, number)
            rows = torch.from_numpy(starts)
            partners = self.index.sample(rows, n_bridges=self.n_bridges, generator=generator)
            yield [*starts.tolist(), *partners.flatten().tolist()]


def split_pairs(x: Inputs, y: Tensor, n_bridges: int = 1) -> tuple[Inputs, Tensor, FarEnd]:
    """Split a batch of `PairBatchSampler` into starts, their targets, and the ``end`` of `Elliptic`.

    Args:
        x: Inputs of the batch: a tensor, or a tuple or dict of tensors.
        y: Its targets.
        n_bridges: Number of bridges of the sampler.

    Example:
        >>> x, y, end = split_pairs(torch.arange(6.0)[:, None], torch.arange(6))
        >>> y.tolist(), end[1].flatten().tolist()              # objective(x, y, end=end)
        ([0, 1, 2], [3, 4, 5])
    """
    starts = len(y) // (1 + n_bridges)

    def tail(tensor: Tensor) -> Tensor:
        return tensor[starts:].unflatten(0, (starts, n_bridges))  # raises if this is no batch of pairs

    return map_tensors(lambda tensor: tensor[:starts], x), y[:starts], (map_tensors(tail, x), tail(y))


def map_tensors(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply a function to each tensor of a network's inputs."""
    if isinstance(x, dict):
        return {name: function(tensor) for name, tensor in x.items()}
    return tuple(map(function, x)) if isinstance(x, tuple | list) else function(x)
