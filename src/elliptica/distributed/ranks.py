"""Identify this process, its part of a batch, and its own random stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from elliptica._utils.random import stream_seed
from elliptica.core.types import Paths

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that work together, from the view of one of them.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        group: The process group; None is the default one.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    def __deepcopy__(self, memo: Any) -> Ranks:
        """Keep the same processes in a copy of a model."""
        return self

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
    """Return the processes of a group (by default all of ``torchrun``), or a single one without a group.

    Example:
        >>> current_ranks()
        Ranks(rank=0, size=1, group=None)
    """
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
        value: A tensor, a tuple, list or dict of tensors, or `Paths`; None stays None.
        ranks: The process; None uses the current one.

    Example:
        >>> x, y = torch.arange(10.0), torch.arange(10)
        >>> shard((x, y), Ranks(rank=1, size=2))
        (tensor([5., 6., 7., 8., 9.]), tensor([5, 6, 7, 8, 9]))
    """
    ranks = current_ranks() if ranks is None else ranks
    return _shard(value, ranks)


def _shard(value: Any, ranks: Ranks) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.ndim == 0 or len(value) < ranks.size:
            raise ValueError(
                f"A tensor of shape {tuple(value.shape)} cannot be split among {ranks.size} processes. Pass "
                "a batch with at least one row for each."
            )
        return value[ranks.part(len(value))]
    if isinstance(value, Paths):
        return _shard_paths(value, ranks)
    if isinstance(value, Mapping):
        return {name: _shard(item, ranks) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_shard(item, ranks) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # named tuples
    raise TypeError(
        f"shard accepts tensors, tuples, lists and dicts of them, and Paths, but got {type(value).__name__}."
    )


_PER_ROW = ("x", "y", "s", "weight", "free_y", "labels")


def _shard_paths(paths: Paths, ranks: Ranks) -> Paths:
    if paths.hidden is not None:
        raise ValueError(
            "Noise of a hidden layer (at=) is drawn when the layer runs, so these paths cannot be split. "
            "Use split_rows(model), which draws it for all processes together."
        )
    n_batch, n_bridges = paths.s.shape[:2]

    def rows_of(variance: float | Tensor, feature_axes: int) -> float | Tensor:
        """Select rows of a variance per path, which is bridge-major, (bridge * batch, *feature)."""
        if isinstance(variance, Tensor) and variance.ndim == feature_axes + 1:
            parts = variance.unflatten(0, (n_bridges, n_batch))
            return parts[:, ranks.part(n_batch)].flatten(0, 1)
        return variance

    inputs = paths.x if isinstance(paths.x, Mapping) else dict(enumerate(_listed(paths.x)))
    axes = {name: value.ndim - 3 for name, value in inputs.items()}
    only = next(iter(axes.values()))
    return dataclasses.replace(
        paths,
        **{name: _shard(getattr(paths, name), ranks) for name in _PER_ROW},
        variance={name: rows_of(v, axes.get(name, only)) for name, v in paths.variance.items()},
        variance_y=rows_of(paths.variance_y, paths.y.ndim - 3),
    )


def _listed(x: Any) -> Any:
    return [x] if isinstance(x, Tensor) else x
