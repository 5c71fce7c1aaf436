"""Batches for objectives, and the order of the rows of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from elliptica.lab.data.image_files import ImageFiles
from elliptica.lab.data.splits import Split


@dataclass(frozen=True)
class Batch:
    """Rows of the training data, and the stream from which an objective draws."""

    x: Tensor  # inputs
    y: Tensor  # targets
    group: Tensor | None  # group of each row, or None
    index: Tensor  # number of each row in the training data
    generator: torch.Generator  # source of randomness of the objective; the loop saves its state


#: The only interface among methods: a model and a batch to a loss. An objective that has them may also say
#: ``is_warming_up`` (epochs before its penalty sets in are not chosen) and ``restarts_optimizer`` (this step
#: begins with a fresh optimiser).
Objective = Callable[[nn.Module, Batch], Tensor]
#: From a stream to the numbers of the training rows of an epoch, in the order in which batches take them.
Arrange = Callable[[torch.Generator], Tensor]
#: From the targets of a batch and a stream to other targets.
Relabel = Callable[[Tensor, torch.Generator], Tensor]


@runtime_checkable
class HasState(Protocol):
    """An objective with state between batches, which a checkpoint must contain."""

    def state_tensors(self) -> dict[str, Tensor]:
        """Return its state, on the CPU."""

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state."""


@runtime_checkable
class Steps(Protocol):
    """An objective that updates the weights itself, such as Fish with its several inner steps."""

    def step(self, model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        """Take a step and return the loss."""


def batches(
    split: Split,
    size: int,
    *,
    order: torch.Generator,
    noise: torch.Generator,
    drop_last: bool,
    device: torch.device,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    rows: Tensor | None = None,
    weights: Tensor | None = None,
    relabel: Relabel | None = None,
    arrange: Arrange | None = None,
    shuffle: bool = True,
) -> Iterator[Batch]:
    """Iterate over the training data once, in a new order unless ``shuffle`` is False.

    ``noise`` is the stream that batches carry, from which ``augment`` and ``relabel`` draw, too. ``rows`` are
    the rows of the pass, with repetitions (None: each once); ``weights`` draws as many with replacement,
    ``arrange`` orders all of them itself. ``drop_last`` skips an incomplete last batch that is not the only
    one.
    """
    if arrange is not None and (rows is not None or weights is not None or not shuffle):
        raise ValueError("The method orders the rows itself: it needs balance = none and shuffle = true.")
    rows = torch.arange(split.n_rows) if rows is None else rows
    if weights is not None:
        chosen = rows[torch.multinomial(weights[rows], len(rows), replacement=True, generator=order)]
    elif arrange is not None:
        chosen = arrange(order)
    else:
        chosen = rows[torch.randperm(len(rows), generator=order)] if shuffle else rows
    inputs = split.x.training(noise) if isinstance(split.x, ImageFiles) else split.x
    for part in chosen.split(size):
        if drop_last and len(part) < size and len(chosen) >= size:
            return
        x, y = inputs[part], split.y[part]
        yield Batch(
            (x if augment is None else augment(x, noise)).to(device),
            (y if relabel is None else relabel(y, noise)).to(device),
            None if split.group is None else split.group[part].to(device),
            part,
            noise,
        )
