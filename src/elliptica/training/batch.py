"""What an objective receives, and in which order the rows of a data set come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elliptica.data.splits import Split


@dataclass(frozen=True)
class Batch:
    """Rows of the training data, and the stream from which an objective draws.

    Attributes:
        x: Inputs.
        y: Targets.
        group: Group of each row, or None.
        index: Number of each row in the training data.
        generator: Source of randomness of the objective; the loop saves its state.
    """

    x: Tensor
    y: Tensor
    group: Tensor | None
    index: Tensor
    generator: torch.Generator


#: The only interface among methods: a model and a batch to a loss.
Objective = Callable[[nn.Module, Batch], Tensor]


def batches(
    split: Split,
    size: int,
    *,
    order: torch.Generator,
    noise: torch.Generator,
    drop_last: bool,
    device: torch.device,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> Iterator[Batch]:
    """One pass over the training data in a new order.

    ``drop_last`` leaves out an incomplete last batch, unless it is the only one. ``augment`` draws from
    the stream of the noise.
    """
    permutation = torch.randperm(split.n_rows, generator=order)
    for rows in permutation.split(size):
        if drop_last and len(rows) < size and split.n_rows >= size:
            return
        x = split.x[rows]
        yield Batch(
            (x if augment is None else augment(x, noise)).to(device),
            split.y[rows].to(device),
            None if split.group is None else split.group[rows].to(device),
            rows,
            noise,
        )
