"""Draw the points of many batches at once, for data in memory. This is faster than drawing each step.

The partner of a row is the next row of its batch (the first follows the last), and its stratum of time is its
place in the batch. Because the rows are in random order, this is a uniformly random cycle, as
`elliptica.Elliptic` draws it for a batch. Each point has the same law as there, so means agree. Only the
dependence between the points of a batch differs: in `Elliptic` the stratum of a row is unrelated to its place
in the cycle. Here neighbours in the cycle have neighbouring times, so the batch mean of a function that is
linear in the point varies less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import check_generator, draw_uniform
from elliptica.core.bridge import marginal_rows, quantile_times, unit_spread
from elliptica.core.inputs import ONLY, check_batch, target_encoder
from elliptica.core.noise import noise_std
from elliptica.core.partners import check_rows_of_data
from elliptica.core.settings import Settings
from elliptica.core.targets import TargetSpace, project_targets
from elliptica.core.types import Paths

#: Bytes of points drawn at once, about the size of a cache (a single batch may have more). Part of the
#: contract: it decides which numbers of a generator become which noise.
CHUNK_BYTES = 2**20


def can_draw_epochs(settings: Settings) -> bool:
    """Return whether `epoch_paths` supports these settings: single points of random pairs, plain noise."""
    return (
        settings.sampling == "marginal"
        and settings.n_bridges == 1
        and settings.pairing == "permutation"
        and settings.among == "all"
        and isinstance(settings.sigma, float | Tensor)
        and settings.bridged is None
        and settings.at is None
        and settings.bn != "clean"
        and settings.schedule is None
        and settings.target_space is not None
    )


@torch.no_grad()
def epoch_paths(
    settings: Settings,
    x: Float[Tensor, " row *feature"],
    y: Shaped[Tensor, " row *target"],
    order: Int[Tensor, " drawn"],
    batch_size: int,
    *,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Paths]:
    """Draw the points of one epoch, many batches at a time (paper: Algorithms 1 and 2).

    Pass each result to ``objective.loss_on``. No gradient passes through the points, so data that require
    a gradient raise an error.

    Args:
        settings: Settings of `elliptica.Elliptic`; see `can_draw_epochs` for which are supported.
        x: Inputs of all rows.
        y: Their targets.
        order: Row numbers in random order. A row may appear several times, or not at all.
        batch_size: Largest number of rows in a batch. Batch sizes differ by at most one row.
        device: Device of the points. None means that of ``x``.
        generator: Source of randomness. None means torch's default generator. For each chunk of batches it
            draws the times, the noise of the inputs, and the noise of the targets.

    Example:
        >>> settings = Settings(target_space="real", sigma=0.1)
        >>> x, y = torch.randn(10, 3), torch.randn(10, 1)
        >>> [tuple(paths.x.shape) for paths in epoch_paths(settings, x, y, torch.randperm(10), 4)]
        [(4, 1, 1, 3), (3, 1, 1, 3), (3, 1, 1, 3)]
    """
    checks.count("batch_size", batch_size)
    if not can_draw_epochs(settings):
        raise ValueError(
            "epoch_paths draws single points between random pairs of a batch, but these settings ask for "
            "something else. Draw batch by batch with Elliptic.sample."
        )
    checks.batch("x", x)
    checks.tensor("y", y)
    check_rows_of_data(order, len(x), "order")
    check_generator(generator, x.device if device is None else device)
    for name, given in (("x", x), ("y", y)):
        if given.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, but epoch_paths draws points without gradients. Pass "
                f"{name}.detach(), or draw batch by batch, objective(encoder(x[rows]), y[rows]), so that "
                "gradients reach the encoder."
            )
    check_batch({ONLY: x}, [ONLY], y, len(x), settings.validate)
    sizes = [len(part) for part in order.tensor_split(math.ceil(len(order) / batch_size))]
    at_once = max(1, CHUNK_BYTES // max(1, sizes[0] * x[:1].nbytes))
    begin = 0
    for first in range(0, len(sizes), at_once):
        own = sizes[first : first + at_once]
        rows = order[begin : begin + sum(own)]
        begin += sum(own)
        place = device or x.device
        yield from _draw_batches(settings, x[rows].to(place), y[rows].to(place), own, generator)


def _draw_batches(
    settings: Settings, x: Tensor, y: Tensor, sizes: list[int], generator: torch.Generator | None
) -> Iterator[Paths]:
    """Draw points for batches of these sizes, whose rows follow each other in ``x`` and ``y``."""
    targets = target_encoder(x, settings)(y)
    begins = accumulate(sizes[:-1], initial=0)
    place = torch.cat([torch.arange(n) for n in sizes]).to(x.device)
    partner = torch.cat(
        [torch.arange(n).roll(-1) + begin for n, begin in zip(sizes, begins, strict=True)]
    ).to(x.device)
    size = torch.cat([torch.full((n,), float(n)) for n in sizes]).to(x.device)
    # one time in each of `size` equal parts of [0, 1]
    u = draw_uniform((len(x),), device=x.device, generator=generator).add_(place).div_(size)
    dtype = torch.float64 if targets.dtype == torch.float64 else torch.float32
    s = quantile_times(u.to(dtype), settings.n_times, settings.quadrature)
    spread = unit_spread(s)
    drawn = []
    for start, sigma in ((x, settings.sigma), (targets, settings.sigma_y)):
        end = start.index_select(0, partner)
        std = noise_std(cast("float | Tensor", sigma), start, end, settings.horizon, generator)
        drawn.append((marginal_rows(start, end, s, std=std, spread=spread, generator=generator), std**2))
    (points, variance), (free_y, variance_y) = drawn
    y_points = free_y
    if isinstance(variance_y, Tensor) or variance_y != 0.0:
        y_points = project_targets(free_y, cast(TargetSpace, settings.target_space), settings.simplex, 1)
    columns = [z[:, None, None].split(sizes) for z in (points, y_points, s, free_y)]
    labels = [None] * len(sizes) if y.is_floating_point() else targets.split(sizes)
    for at_x, at_y, at_s, at_free, label in zip(*columns, labels, strict=True):
        yield Paths(at_x, at_y, at_s, {ONLY: variance}, free_y=at_free, variance_y=variance_y, labels=label)
