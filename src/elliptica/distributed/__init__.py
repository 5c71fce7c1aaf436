"""Training in several processes: parts of a batch, random streams, weightings over all rows, checkpoints."""

import importlib
from typing import TYPE_CHECKING, Any

from elliptica.distributed.ranks import Ranks as Ranks
from elliptica.distributed.ranks import current_ranks as current_ranks
from elliptica.distributed.ranks import over_global_batch as over_global_batch
from elliptica.distributed.ranks import rank_generator as rank_generator
from elliptica.distributed.ranks import shard as shard

if TYPE_CHECKING:
    from elliptica.distributed.checkpoint import Checkpoint as Checkpoint
    from elliptica.distributed.checkpoint import load_checkpoint as load_checkpoint
    from elliptica.distributed.checkpoint import save_checkpoint as save_checkpoint

#: Names that are imported on first use, because their module loads much of torch.distributed.
_LAZY = ("Checkpoint", "load_checkpoint", "save_checkpoint")

__all__ = [*_LAZY, "Ranks", "current_ranks", "over_global_batch", "rank_generator", "shard"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("elliptica.distributed.checkpoint"), name)
