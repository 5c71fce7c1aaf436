"""Classes for a data set in three parts, and scaling that does not use the test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

Task = Literal["regression", "classification"]
Statistics = Literal["train", "all"]
Scaling = Literal["train", "none"]


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets of one part of a data set, row by row.

    Raises:
        ValueError: If there are no rows, their numbers differ, or a dtype is another one.

    Example:
        >>> Split(torch.zeros(3, 2), torch.zeros(3, 1)).n_rows
        3
    """

    #: Inputs, float32, shape ``(n, *feature)``; or uint8 pixels, which save memory and are normalised
    #: batch by batch (`elliptica.lab.data.normalise`).
    x: Tensor
    y: Tensor  # targets, one row for each of ``x``: float32 values or int64 class numbers
    #: Domain or subpopulation of each row, int64, shape ``(n,)``; None where there is none.
    group: Tensor | None = None

    def __post_init__(self) -> None:
        if self.x.ndim < 1 or self.y.ndim < 1 or not len(self.x) == len(self.y) > 0:
            raise ValueError(
                "x and y must have the same number of rows, at least one, but have shapes "
                f"{tuple(self.x.shape)} and {tuple(self.y.shape)}. "
                "Give one row of y for each row of x."
            )
        is_known = self.x.dtype in (torch.float32, torch.uint8)
        if not is_known or self.y.dtype not in (torch.float32, torch.int64):
            raise ValueError(
                "x must be float32 (or uint8 pixels) and y float32 (values) or int64 (classes), but they are "
                f"{self.x.dtype} and {self.y.dtype}. Convert with .float() or .long()."
            )
        if self.group is not None and (
            self.group.dtype != torch.int64 or self.group.shape != self.x.shape[:1]
        ):
            raise ValueError(
                f"group must be int64 of shape ({len(self.x)},), one number per row, but is "
                f"{self.group.dtype} of shape {tuple(self.group.shape)}. Convert with .long().flatten()."
            )

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

    Raises:
        ValueError: If the parts differ in feature shape, or the targets do not suit the task.

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
        if self.task not in get_args(Task):
            raise ValueError(
                f"task must be 'regression' or 'classification', but got {self.task!r}. Pass one of the two."
            )
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        shapes = {part: tuple(split.x.shape[1:]) for part, split in parts.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(
                f"The parts of {self.name!r} must have the same feature shape, but have {shapes}. "
                "Split one table into three rather than loading three tables."
            )
        wanted = torch.float32 if self.task == "regression" else torch.int64
        for part, split in parts.items():
            if split.y.dtype != wanted:
                raise ValueError(
                    f"Targets of a {self.task} must be {wanted}, but {part}.y of {self.name!r} is "
                    f"{split.y.dtype}. Convert them, or pass the other task."
                )

    @property
    def n_features(self) -> int:
        """Values per row of ``x``, all feature axes together."""
        return self.train.x[0].numel()


def scale_targets(data: Dataset) -> Dataset:
    """Map targets to [0, 1] by the minimum and maximum of the training rows; `Dataset.units` undoes it.

    Targets of other rows may fall outside. All columns of a target have the same units.
    """
    if data.task != "regression":
        raise ValueError(
            f"Targets of a {data.task} are class numbers, which cannot be scaled. Skip this call."
        )
    low, high = float(data.train.y.min()), float(data.train.y.max())
    if low == high:
        raise ValueError(
            f"All training targets of {data.name!r} are {low}, so they cannot be scaled. Check the data."
        )
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
    statistics from the training rows, other rows may fall outside [0, 1]; they are not clipped.

    Args:
        train: Training rows.
        others: Further parts with the same columns, e.g. validation and test.
        statistics: Take minimum and maximum from the training rows ("train"), or from all rows
            together ("all"). The latter lets test inputs leak into training; it exists because
            the C-Mixup reference, which the paper follows, does it.

    Raises:
        ValueError: If the columns differ, a part is empty, or a value is not finite.

    Example:
        >>> a, b = min_max_scale(torch.tensor([[1.0], [3.0]]), [torch.tensor([[4.0]])])
        >>> a.tolist(), b.tolist()
        ([[0.0], [1.0]], [[1.5]])
    """
    if statistics not in get_args(Statistics):
        raise ValueError(f"statistics must be 'train' or 'all', but got {statistics!r}. Pass one of the two.")
    parts = (train, *others)
    for i, part in enumerate(parts):
        if part.ndim != 2 or len(part) == 0 or part.shape[1] != train.shape[1]:
            raise ValueError(
                f"Every part must have shape (rows, {train.shape[-1]}) with at least one row, but "
                f"part {i} has shape {tuple(part.shape)}. Split one table into its parts."
            )
        if not torch.isfinite(part).all():
            raise ValueError(
                f"All values must be finite, but part {i} holds NaN or infinity. "
                "Fill in or drop missing values before scaling."
            )
    seen = train if statistics == "train" else torch.cat(parts)
    low, high = seen.amin(dim=0), seen.amax(dim=0)
    extent = high - low
    is_constant = extent == 0
    safe = extent.masked_fill(is_constant, 1)
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
