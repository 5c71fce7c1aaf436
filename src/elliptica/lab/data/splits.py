"""A data set in three parts, scaling that does not use the test rows, and label noise (paper: Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import draw_permutation

Task = Literal["regression", "classification"]
Statistics = Literal["train", "all"]


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets of one part of a data set, row by row."""

    x: Tensor  # inputs, float32, shape ``(n, *feature)``; or `ImageFiles`, which reads its rows on demand
    y: Tensor  # targets, one row for each of ``x``: float32 values or int64 class numbers
    #: Domain or subpopulation of each row, int64, shape ``(n,)``; None where there is none.
    group: Tensor | None = None

    def __post_init__(self) -> None:
        rows = {len(part) for part in (self.x, self.y, self.group) if part is not None}
        if len(rows) != 1 or rows == {0}:
            raise ValueError(f"x, y and group must have the same number of rows, but have {sorted(rows)}.")

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.x)


@dataclass(frozen=True)
class Units:
    """Units of scaled targets: ``offset + unit * y`` is the original value.

    Example:
        >>> Units(10.0, 2.0).restore(torch.tensor([0.0, 0.5]))
        tensor([10., 11.])
    """

    offset: float = 0.0
    unit: float = 1.0

    def restore(self, y: Tensor) -> Tensor:
        """Return targets, or predictions of them, in the original units."""
        return y if self == Units() else self.offset + self.unit * y


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in three parts.

    Example:
        >>> part = Split(torch.zeros(3, 2), torch.zeros(3, 1))
        >>> Dataset("zeros", part, part, part, "regression").n_features
        2
    """

    name: str  # short name, e.g. "airfoil".
    train: Split  # rows to fit on
    validation: Split  # rows to choose the epoch or the settings with
    test: Split  # rows to report on
    task: Task  # "regression" (float32 targets) or "classification" (int64 targets)
    units: Units = Units()  # of the targets; errors are reported in the original ones

    def __post_init__(self) -> None:
        checks.choice("task", self.task, get_args(Task))

    @property
    def n_features(self) -> int:
        """Values per row of ``x``, all feature axes together."""
        return self.train.x[0].numel()


def scale_targets(data: Dataset) -> Dataset:
    """Map targets to [0, 1] by the minimum and maximum of the training rows; `Dataset.units` undoes it.

    Targets of other rows may fall outside. All columns of a target have the same units.
    """
    low, high = float(data.train.y.min()), float(data.train.y.max())
    if data.task != "regression" or low == high:
        raise ValueError(f"y of {data.name} cannot be scaled: it holds classes, or all of it is {low}.")
    train, validation, test = (
        replace(part, y=((part.y.double() - low) / (high - low)).float())
        for part in (data.train, data.validation, data.test)
    )
    units = Units(low, high - low)
    return replace(data, train=train, validation=validation, test=test, units=units)


def min_max_scale(
    train: Float[Tensor, "rows columns"],
    others: Sequence[Tensor] = (),
    *,
    statistics: Statistics = "train",
) -> tuple[Tensor, ...]:
    """Map each column to [0, 1] by its minimum and maximum.

    A column that is constant in the rows used for the statistics becomes 0 in all rows. With
    statistics from the training rows, other rows may fall outside [0, 1]; they are not clipped. Statistics
    from "all" rows let test inputs leak into training, as in the C-Mixup reference, which the paper follows.

    Example:
        >>> a, b = min_max_scale(torch.tensor([[1.0], [3.0]]), [torch.tensor([[4.0]])])
        >>> a.tolist(), b.tolist()
        ([[0.0], [1.0]], [[1.5]])
    """
    checks.choice("statistics", statistics, get_args(Statistics))
    parts = (train, *others)
    seen = train if statistics == "train" else torch.cat(parts)
    low, high = seen.amin(dim=0), seen.amax(dim=0)
    is_constant = high == low
    safe = (high - low).masked_fill(is_constant, 1)
    return tuple(((part - low) / safe).masked_fill(is_constant, 0) for part in parts)


def standardise(parts: Sequence[Tensor]) -> list[Tensor]:
    """Give each column mean 0 and deviation 1 in the first part; a column that is constant there becomes 0.

    Example:
        >>> [part.tolist() for part in standardise([torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0]])])]
        [[[-1.0], [1.0]], [[2.0]]]
    """
    mean, deviation = parts[0].mean(0), parts[0].std(0, correction=0)
    is_constant = deviation == 0
    safe = deviation.masked_fill(is_constant, 1)
    return [((part - mean) / safe).masked_fill(is_constant, 0) for part in parts]


def shuffle_labels(
    y: Shaped[Tensor, " n *target"], share: float = 0.5, *, generator: torch.Generator | None = None
) -> Shaped[Tensor, " n *target"]:
    """Shuffle the labels of a random share of the rows among these rows.

    Call it once, on the training labels, for noise that stays the same throughout training. The class
    counts do not change. With ``c`` equally large classes a shuffled label is wrong with probability
    ``1 - 1/c``. The paper shuffles half of the labels and does not say how; a table's
    ``shuffled_per_batch`` is the other variant (docs: deviations).

    Draws, in this order: the order of all rows (its first ones are chosen), the order of the chosen ones.

    Example:
        >>> y = shuffle_labels(torch.arange(6), generator=torch.Generator().manual_seed(0))
        >>> int((y != torch.arange(6)).sum()) <= 3, sorted(y.tolist())
        (True, [0, 1, 2, 3, 4, 5])
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be between 0 and 1, but got {share}.")
    rows = draw_permutation(len(y), device=y.device, generator=generator)[: round(share * len(y))]
    order = draw_permutation(len(rows), device=y.device, generator=generator)
    noisy = y.clone()
    noisy[rows] = y[rows[order]]
    return noisy
