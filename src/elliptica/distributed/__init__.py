"""Several processes: their parts of a batch, their random streams, shared networks and checkpoints."""

from elliptica.distributed.ranks import Ranks as Ranks
from elliptica.distributed.ranks import current_ranks as current_ranks
from elliptica.distributed.ranks import rank_generator as rank_generator
from elliptica.distributed.ranks import shard as shard
from elliptica.distributed.rows import split_rows as split_rows
