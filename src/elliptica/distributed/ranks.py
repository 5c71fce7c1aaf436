"""Which process this is, its part of a batch, and its own random stream."""

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
    """The processes that work together, as one of them sees it.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        group: The process group; None is the default one.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    def __deepcopy__(self, memo: Any) -> Ranks:
        """A copy of a model belongs to the same processes."""
        return self

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier(self.group)

    def all(self, value: T) -> list[T]:
        """What each process passes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, self.group)
        return found

    def from_first(self, value: T) -> T:
        """What the first process passes."""
        return self.all(value)[0]

    def counts(self, rows: int) -> list[int]:
        """Rows of each process when a batch is split: as equal as can be, the larger parts first."""
        each, more = divmod(rows, self.size)
        return [each + (rank < more) for rank in range(self.size)]

    def part(self, rows: int) -> slice:
        """This process' rows of a batch, which are next to each other."""
        counts = self.counts(rows)
        start = sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])


def current_ranks(group: Any = None) -> Ranks:
    """The processes of a group (of all that ``torchrun`` started); one alone without a group.

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
    """A random stream of this process' own, for ``objective(x, y, generator=...)``.

    Processes must not draw the same noise: two copies of it tell the gradient less than two draws do. Streams
    of different ranks and seeds are unrelated, and the same in every run.

    Args:
        seed: Of the run.
        rank: Number of the process; None is this one.
        device: Of the generator.

    Example:
        >>> first, second = rank_generator(0, rank=0), rank_generator(0, rank=1)
        >>> torch.equal(torch.randn(3, generator=first), torch.randn(3, generator=second))
        False
    """
    rank = current_ranks().rank if rank is None else rank
    return torch.Generator(device).manual_seed(stream_seed("rank", seed, rank))


def shard(value: T, ranks: Ranks | None = None) -> T:
    """This process' rows of something that all processes have: a batch, its far ends, or drawn paths.

    With it several processes do what one would: the same global batch, pairing and noise. Partners are rows
    of the *global* batch, so pass them as far ends, ``end=shard((x[partners], y[partners]))``; noise is
    part of ``paths=shard(objective.sample(x, y, generator=...))``, drawn from one stream by all.

    Wrappers average the gradients of processes, so that all should have as many rows: let the number of
    rows be a multiple of the number of processes (or use `over_global_batch`).

    Args:
        value: A tensor, a tuple, list or dict of tensors, or `Paths`; None stays.
        ranks: Which process; None asks torch.

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
        f"shard takes tensors, tuples, lists and dicts of them, and Paths, but got {type(value).__name__}."
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
        """A variance per path comes bridge-major, as (bridge * batch, *feature)."""
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
