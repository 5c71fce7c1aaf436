"""Partners within groups of a batch, so that large batches are paired as small ones are."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica.pairing import DISTANCE_FLOOR, draw_from


def partners_in_groups(
    x: Float[Tensor, "batch feature"],
    group: int,
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch 1"]:
    """Draw partners with probability ``1 / distance`` within consecutive groups of a batch.

    The law of `elliptica.sample_partners` with ``pairing="inverse_distance"`` in batches of ``group``
    rows, but for many of them at once: its cost grows with the square of the group. It gives the large
    batches of marginal sampling the same partners, in law, as the small batches of path sampling.

    Args:
        x: Inputs whose distances are of the order of one.
        group: Rows of a group, at least two; it divides the batch.
        generator: Source of randomness; torch's default one if None.

    Returns:
        Row numbers in the batch, never a row's own.

    Example:
        >>> partners_in_groups(torch.randn(6, 2), 2).flatten()
        tensor([1, 0, 3, 2, 5, 4])
    """
    if group < 2 or len(x) % group:
        raise ValueError(f"group must be at least 2 and divide the batch of {len(x)} rows, but got {group}.")
    rows = x.unflatten(0, (-1, group))
    distances = torch.cdist(rows, rows).clamp_min(DISTANCE_FLOOR)
    distances.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    within = draw_from(distances.reciprocal().cumsum(2).flatten(0, 1), 1, generator)
    first = torch.arange(len(x), device=x.device) // group * group
    return within + first[:, None]
