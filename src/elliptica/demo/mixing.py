"""Who is mixed with whom: mixup for comparison, and partners within groups of a batch."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica import _checks
from elliptica._random import check_generator, draw_gamma, draw_permutation
from elliptica.pairing import DISTANCE_FLOOR, draw_from


def mixup_batch(
    x: Float[Tensor, " batch *feature"],
    y: Float[Tensor, "batch classes"],
    *,
    alpha: float = 1.0,
    share: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, " batch *feature"], Float[Tensor, "batch classes"]]:
    """Mix each row with a random other one, at the same share for the whole batch (mixup).

    Rows become ``share * row + (1 - share) * partner``, inputs and targets alike, with the share
    (mixup's lambda) from Beta(alpha, alpha) and the partners a random order of the batch. Every row is
    a partner once, so the mean of the batch stays. Draws, in this order: two gamma variables, the order.

    Args:
        x: Inputs.
        y: One-hot or soft labels.
        alpha: Above zero; 1 makes shares uniform, small values keep rows nearly as they are.
        share: The share itself, from 0 (partners) to 1 (rows unchanged), instead of a draw.
        generator: Source of randomness; torch's default one if None.

    Returns:
        New inputs and targets.

    Example:
        >>> x, y = torch.randn(4, 2), torch.eye(2)[[0, 1, 1, 0]]
        >>> mixed_x, mixed_y = mixup_batch(x, y)
        >>> torch.allclose(mixed_y.mean(0), y.mean(0))
        True
    """
    _checks.batch("x", x)
    _checks.same_rows("y", y, len(x))
    _checks.positive("alpha", alpha)
    check_generator(generator, x.device)
    if share is None:
        first, second = draw_gamma(alpha, 2, device=torch.device("cpu"), generator=generator).tolist()
        share = first / (first + second)
    elif not 0 <= share <= 1:
        raise ValueError(f"share must be between 0 and 1, but got {share}.")
    partners = draw_permutation(len(x), device=x.device, generator=generator)
    return share * x + (1 - share) * x[partners], share * y + (1 - share) * y[partners]


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
