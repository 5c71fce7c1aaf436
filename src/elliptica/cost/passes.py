"""How many rows go through the model in a step, forwards and backwards: arithmetic on settings."""

from __future__ import annotations

from dataclasses import dataclass

from elliptica._utils import checks
from elliptica.core.elliptic import Elliptic
from elliptica.core.weighting import READINGS


@dataclass(frozen=True)
class Passes:
    """Rows of one step, by what is done with them.

    Attributes:
        rows: Points on bridges at which the loss is evaluated.
        forward: Rows of all forward passes: those points (with chunks twice, as they are recomputed, and
            three times with a weighting), and the clean batch where batch norm or pairing asks for it.
        input_gradient: Rows of passes back to the inputs, for a weighting.
        backward: Rows of the pass back to the parameters.
        double_backward: Rows of which the input gradient is differentiated, too.
        chunks: Parts in which the rows are evaluated.
        chunk_rows: Rows of the largest of them.
    """

    rows: int
    forward: int
    input_gradient: int
    backward: int
    double_backward: int
    chunks: int
    chunk_rows: int


def count_passes(objective: Elliptic, batch: int) -> Passes:
    """Count the passes of one step in training mode.

    Args:
        objective: The objective; its model is not called.
        batch: Samples of a step.

    Example:
        >>> from torch import nn
        >>> objective = Elliptic(nn.Linear(2, 1), nn.MSELoss(), sampling="path", n_times=5, n_bridges=2)
        >>> count_passes(objective, 32).rows
        320
    """
    checks.count("batch", batch)
    sampler = objective.sampler
    n_times = sampler.n_times if sampler.sampling == "path" else 1
    paths = batch * sampler.n_bridges
    rows = paths * n_times
    size = paths if objective.chunk_size is None else max(1, objective.chunk_size // n_times)
    chunks = 1 if size >= paths else -(-paths // size)
    size = -(-paths // chunks)
    chunks = -(-paths // size)  # chunks of equal size can be fewer
    reading = None if objective.xi == 0.0 else READINGS.get(objective.weighting)
    slopes = reading is not None and objective.drift is None
    second_order = reading is not None and reading.second_order and slopes
    clean = batch if objective.bn == "clean" else 0
    if sampler.at is not None and sampler.pairing != "permutation":
        clean += batch  # distances between hidden features
    return Passes(
        rows=rows,
        # a chunk is computed again for the backward pass, and for the gradient of its inputs
        forward=rows * (1 if chunks == 1 else 3 if slopes else 2) + clean,
        # the second time it stops at the last tensor that the backward pass needs
        input_gradient=(rows * 2 if second_order and chunks > 1 else rows) if slopes else 0,
        backward=rows,
        double_backward=rows if second_order else 0,
        chunks=chunks,
        chunk_rows=size * n_times,
    )
