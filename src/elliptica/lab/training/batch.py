"""Settings of a training (the columns of the paper's Table 12), its batches, and what objectives are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import ConfigDict, Field
from pydantic import dataclasses as checked
from torch import Tensor, nn
from torch.nn.functional import pad

from elliptica._utils.perceptron import make_adam
from elliptica.lab.data.groups import ImageFiles
from elliptica.lab.data.splits import Split

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@checked.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TrainingSettings:
    """Settings of `fit` (paper: Table 12)."""

    epochs: Count  # passes over the training data
    batch_size: Count  # rows of a step
    lr: Positive  # learning rate
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: NonNegative = 0.0  # momentum of SGD
    weight_decay: NonNegative = 0.0  # weight decay of either, as in torch's optimisers
    milestones: tuple[Count, ...] = ()  # epochs before which the rate is multiplied by ``gamma``
    gamma: Positive = 0.1  # factor at each milestone
    drop_last: bool = False  # skip an incomplete last batch (as the C-Mixup reference does)
    #: ``"validation"``: the epoch with the best validation metric (the last of equals), ``"last"``.
    select: Literal["validation", "last"] = "validation"
    #: ``"bfloat16"`` runs the forward pass under autocast.
    precision: Literal["float32", "bfloat16"] = "float32"
    #: ``"flip_crop"`` mirrors images at random and shifts them by up to ``padding`` pixels.
    augment: Literal["none", "flip_crop"] = "none"
    padding: Annotated[int, Field(ge=0)] = 2  # pixels by which crops may be shifted
    #: ``"group"`` or ``"class"`` draws rows with replacement so that all groups, or classes, are equally
    #: likely.
    balance: Literal["none", "group", "class"] = "none"
    #: Draw a new order of rows for every epoch. False keeps the order of the data, as the C-Mixup reference
    #: does on SkillCraft, Crime and RCF-MNIST.
    shuffle: bool = True
    average: bool = False  # validate and keep an average of weights that prefers the last steps

    def __post_init__(self) -> None:
        if self.optimizer == "adam" and self.momentum:
            raise ValueError('momentum needs optimizer="sgd".')
        if not self.shuffle and self.balance != "none":
            raise ValueError("balance draws rows at random: it needs shuffle = true.")

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over all parameters that train."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            return make_adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, self.lr, self.momentum, weight_decay=self.weight_decay)

    def row_weights(self, train: Split) -> Tensor | None:
        """Weight of each training row in a balanced draw; None without balance."""
        if self.balance == "none":
            return None
        number = train.group if self.balance == "group" else train.y
        if number is None or number.dtype != torch.int64:
            raise ValueError(f"balance needs a {self.balance} for each training row.")
        return 1 / torch.bincount(number)[number].double()

    def augmentation(self) -> Callable[[Tensor, torch.Generator], Tensor] | None:
        """Return the augmentation of the images of a batch, or None."""
        if self.augment == "none":
            return None
        return lambda x, generator: flip_and_crop(x, self.padding, generator)

    def rate(self, epoch: int | float) -> float:
        """Return the learning rate in an epoch (0, 1, ...), or at a place within one."""
        return self.lr * self.gamma ** sum(epoch >= milestone for milestone in self.milestones)


def flip_and_crop(
    x: Float[Tensor, "batch channel height width"], padding: int, generator: torch.Generator
) -> Float[Tensor, "batch channel height width"]:
    """Mirror each image with probability one half, then shift it by up to ``padding`` pixels.

    A shift is a crop of the image with ``padding`` zeros around it, as usual for CIFAR. Draws from the
    generator on the CPU, so that every device sees the same images: flips, then rows, then columns.
    """
    rows, _, height, width = x.shape
    flips = torch.rand(rows, generator=generator) < 0.5
    down, right = (torch.randint(2 * padding + 1, (rows,), generator=generator) for _ in range(2))
    padded = pad(x, [padding] * 4)
    # a flip of the padded image is the padded flipped image, so flipping only reverses the columns
    columns = torch.arange(width) + right[:, None]
    columns = torch.where(flips[:, None], width + 2 * padding - 1 - columns, columns)
    lines = torch.arange(height) + down[:, None]
    sample = torch.arange(rows)[:, None, None, None]
    channel = torch.arange(x.shape[1])[None, :, None, None]
    place = (sample, channel, lines[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(part.to(x.device) for part in place)]


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
