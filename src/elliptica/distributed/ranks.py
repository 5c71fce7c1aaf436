"""Identify this process, its part of a batch, its random stream, and numbers of all processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from elliptica._utils.random import stream_seed
from elliptica.core.bridge import Paths
from elliptica.core.elliptic import Elliptic
from elliptica.core.noise import Factor

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that work together, from the view of one of them."""

    rank: int = 0  # number of this process, from 0
    size: int = 1  # number of processes
    group: Any = None  # the process group; None is the default one

    def __deepcopy__(self, memo: Any) -> Ranks:
        return self  # process groups cannot be copied, and a copy of a model has the same

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier(self.group)

    def all(self, value: T) -> list[T]:
        """Gather a value from each process, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def gather(self, own: Tensor) -> Tensor:
        """Stack a tensor of each process, without gradients; shapes must be equal."""
        own = own.detach().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, self.group)
        return torch.stack(parts)

    def from_first(self, value: T) -> T:
        """Return the value of the first process."""
        return self.all(value)[0]

    def counts(self, rows: int) -> list[int]:
        """Return the number of rows per process, as equal as possible, the larger parts first."""
        each, more = divmod(rows, self.size)
        return [each + (rank < more) for rank in range(self.size)]

    def part(self, rows: int) -> slice:
        """Return the rows of this process in a batch, which are contiguous."""
        counts = self.counts(rows)
        start = sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])


def current_ranks(group: Any = None) -> Ranks:
    """Return the processes of a group (by default all of ``torchrun``), or a single one without a group."""
    if not dist.is_available() or not dist.is_initialized():
        return Ranks()
    return Ranks(dist.get_rank(group), dist.get_world_size(group), group)


def rank_generator(
    seed: int, rank: int | None = None, *, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Create the random stream of this process, for ``objective(x, y, generator=...)``.

    Processes must not draw the same noise: two copies carry less information about the gradient than two
    draws. Streams of different ranks and seeds are independent, and the same in every run.

    Args:
        seed: Seed of the run.
        rank: Number of the process; None means this one.
        device: Device of the generator.

    Example:
        >>> first, second = rank_generator(0, rank=0), rank_generator(0, rank=1)
        >>> torch.equal(torch.randn(3, generator=first), torch.randn(3, generator=second))
        False
    """
    rank = current_ranks().rank if rank is None else rank
    return torch.Generator(device).manual_seed(stream_seed("rank", seed, rank))


def shard(value: T, ranks: Ranks | None = None) -> T:
    """Return this process' rows of a value that all processes have: a batch, its far ends, or drawn paths.

    With it, several processes compute what one would: the same global batch, pairing and noise. Partners are
    rows of the *global* batch, so pass them as far ends, ``end=shard((x[partners], y[partners]))``. Noise is
    part of ``paths=shard(objective.sample(x, y, generator=...))``, drawn from the same stream by all.

    Wrappers average the gradients of processes, so all should have the same number of rows: make the number
    of rows a multiple of the number of processes (or use `over_global_batch`).

    Args:
        value: A tensor, a tuple, list or dict of tensors, or `Paths`; None stays None. Rows come first.
        ranks: The process; None uses the current one.

    Example:
        >>> x, y = torch.arange(10.0), torch.arange(10)
        >>> shard((x, y), Ranks(rank=1, size=2))
        (tensor([5., 6., 7., 8., 9.]), tensor([5, 6, 7, 8, 9]))
    """
    ranks = current_ranks() if ranks is None else ranks

    def part(leaf: Any) -> Any:
        if isinstance(leaf, Paths):
            return _shard_paths(leaf, ranks)
        if leaf is None:
            return None
        if len(leaf) < ranks.size:
            raise ValueError(f"value has {len(leaf)} rows, fewer than the {ranks.size} processes.")
        return leaf[ranks.part(len(leaf))]

    return tree_map(part, value)


def _shard_paths(paths: Paths, ranks: Ranks) -> Paths:
    if any(rows.requires_grad for rows in paths.points.values()):
        raise ValueError("paths carry gradients to layers below (at=), which one process would not share.")
    n_batch, n_bridges = paths.y.shape[:2]

    def part(rows: Tensor | None) -> Any:
        """Select rows of this process' samples at all times, on all of their bridges."""
        return None if rows is None else shard(paths.view(rows), ranks).transpose(0, 2).flatten(0, 2)

    def rows_of(std: Any, feature_axes: int) -> Any:
        """Select rows of a deviation per path, which is bridge-major, (bridge * batch, ...)."""
        if isinstance(std, Factor):
            return dataclasses.replace(std, root=rows_of(std.root, 2))
        if isinstance(std, Tensor) and std.ndim == feature_axes + 1:
            return std.unflatten(0, (n_bridges, n_batch))[:, ranks.part(n_batch)].flatten(0, 1)
        return std

    points = paths.points
    return dataclasses.replace(
        paths,
        points={name: part(rows) for name, rows in points.items()},
        **{name: part(getattr(paths, name)) for name in ("targets", "times", "free_targets", "weights")},
        inputs=tree_map(part, paths.inputs),
        labels=shard(paths.labels, ranks),
        deviation={name: rows_of(std, points[name].ndim - 1) for name, std in paths.deviation.items()},
        deviation_y=rows_of(paths.deviation_y, paths.targets.ndim - 1),
    )


def over_global_batch(objective: Elliptic, group: Any = None) -> Elliptic:
    """Apply batch-wise weightings to the rows of all processes.

    A softmax over the batch weights points relative to the others of their batch, and a class-weighted loss
    is divided by the mean weight of a batch. Under DDP or FSDP2 the batch is that of each process. The mean
    over processes is then a well-defined objective, but not that of one process with the joined batch. This
    function makes them equal up to rounding, even if processes have different numbers of rows. It costs the
    exchange of a few numbers per step. All processes must call the objective equally often in training mode.

    Partners are still drawn within each process, unless ``paths=`` or ``end=`` are passed (see `shard`).

    Args:
        objective: The objective, before it is wrapped; it is changed in place.
        group: Process group; None is the default one.

    Returns:
        The same objective. The mean of its losses over processes is the loss of the joined batch.
    """
    if not isinstance(objective, Elliptic):  # another module would ignore it
        raise TypeError(f"objective must be Elliptic and not wrapped yet, but is {type(objective).__name__}.")
    ranks = current_ranks(group)
    objective.gather_ranks = ranks.gather if ranks.size > 1 else None
    if objective.weighting is not None:
        objective.weighting.gather_ranks = objective.gather_ranks
    return objective
