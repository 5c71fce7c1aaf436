"""Evidence for a diagnosis: rows with the model's outputs, errors and neighbours, computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from elliptica._utils.statistics import student_quantile
from elliptica.core.layers import evaluation_mode
from elliptica.tables.findings import RowsOf
from elliptica.tables.fitted_model import FittedModel, Labelled, sample_by_part

#: Kind of targets: one class per row, one or several numbers, or something else that only has a loss.
Task = Literal["classes", "values", "other"]
#: Default number of neighbours.
NEIGHBOURS = 10
#: Largest number of distances to compute, times the number of features.
_DISTANCES = 2e10


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of one kind with the model's outputs and losses.

    Attributes:
        name: ``"training"`` or ``"held-out"``.
        raw: Inputs, one flat row each, in the units of the model.
        x: The same in units of the deviations of the training rows, without constant features.
        y: Class of each row, or its values ``(rows, values)``; None if targets are neither.
        outputs: Probabilities of classes, or predicted values; None if targets are neither.
        losses: The user's loss of each row.
        groups: Group of each row, or None.
    """

    name: RowsOf
    raw: Float[Tensor, "rows features"]
    x: Float[Tensor, "rows varying"]
    y: Tensor | None
    outputs: Tensor | None
    losses: Float[Tensor, " rows"]
    groups: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, rows: Tensor) -> Sample:
        """Return some of the rows."""
        return replace(
            self,
            raw=self.raw[rows],
            x=self.x[rows],
            y=None if self.y is None else self.y[rows],
            outputs=None if self.outputs is None else self.outputs[rows],
            losses=self.losses[rows],
            groups=None
            if self.groups is None
            else [self.groups[i] for i in torch.arange(len(self))[rows].tolist()],
        )


class Evidence:
    """A model, its training rows and other rows: predictions, bounded errors and neighbours.

    Errors are bounded, so that a few extreme rows do not dominate: for classes half the Brier
    score, for values the squared error, capped at the largest one of a constant prediction. Both are in
    units of the mean error of the best constant prediction (of the training rows): 0 is perfect, 1 is a
    constant.

    Args:
        fitted: The model with its rows, checked.
    """

    def __init__(self, fitted: FittedModel) -> None:
        self.fitted = fitted
        self.confidence = fitted.confidence
        raw = fitted.x.flatten(1).cpu().double()
        self.deviation = raw.std(0) if len(raw) > 1 else torch.zeros_like(raw[0])
        size = raw.abs().amax(0).clamp_min(1e-300)
        self.varies = self.deviation > 1e-9 * size
        self.centre = raw.mean(0)
        self.task: Task = _task(fitted)
        self.train = self._sample("training", fitted.rows)
        self.held = None if fitted.held_out is None else self._sample("held-out", fitted.held_out)
        self.unlabelled = None if fitted.unlabelled is None else fitted.unlabelled.flatten(1).cpu().double()

    # ---- rows

    def feature(self, j: int) -> str:
        """Return the name of a feature, or its number if it has none."""
        names = self.fitted.feature_names
        return str(names[j]) if len(names) == len(self.varies) else str(j)

    def scaled(self, raw: Float[Tensor, "rows features"]) -> Float[Tensor, "rows varying"]:
        """Scale inputs to units of the deviations of the training rows, without constant features."""
        return ((raw - self.centre) / self.deviation)[:, self.varies]

    @property
    def judged(self) -> Sample:
        """Held-out rows, or training rows if there are no others."""
        return self.train if self.held is None else self.held

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        assert self.train.outputs is not None
        return self.train.outputs.shape[1]

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs of the model as probabilities or values."""
        return _read(self.fitted.loss_fn, self.task, self._raw_outputs(x))

    def predict_flat(self, raw: Float[Tensor, "rows features"]) -> Tensor:
        """Return the same for flat rows."""
        return self.predict(raw.reshape(len(raw), *self.fitted.x.shape[1:]).to(self.fitted.x))

    def _raw_outputs(self, x: Tensor) -> Tensor:
        model, size = self.fitted.model, self.fitted.batch_size
        with evaluation_mode(model), torch.no_grad():
            return torch.cat([model(part) for part in x.split(size)])

    def _sample(self, name: RowsOf, rows: Labelled) -> Sample:
        raw = rows.x.flatten(1).cpu().double()
        y, outputs = None, None
        if self.task != "other":
            outputs = self.predict(rows.x)
            y = (
                _targets(self.fitted, rows.y)
                if self.task == "classes"
                else rows.y.cpu().double().flatten(1)
                if rows.y.ndim > 1
                else rows.y.cpu().double()[:, None]
            )
            if self.task == "values" and outputs.shape != y.shape:
                outputs, y, self.task = None, None, "other"
        groups = None if rows.groups is None else [str(group) for group in rows.groups]
        losses = self.fitted.losses_of(rows).cpu().double()
        return Sample(name, raw, self.scaled(raw), y, outputs, losses, groups)

    # ---- errors

    @cached_property
    def _usual(self) -> tuple[Tensor, Tensor]:
        """Limits of the target values, four deviations (by the median) around their median.

        A single extreme target must not define what a large error is.
        """
        assert self.train.y is not None
        y = self.train.y
        middle = y.median(0).values
        spread = 1.4826 * (y - middle).abs().median(0).values
        width = torch.where(spread > 0, 4 * spread, math.inf)
        return middle - width, middle + width

    @cached_property
    def constant(self) -> Float[Tensor, " outputs"]:
        """The best constant prediction: shares of classes, or the mean of the usual values, in training."""
        assert self.train.y is not None
        if self.task == "classes":
            return torch.bincount(self.train.y, minlength=self.n_classes).double() / len(self.train)
        return self.train.y.clamp(*self._usual).mean(0)

    @cached_property
    def _variance(self) -> Float[Tensor, " outputs"]:
        """Variance of each target value, so that outputs in different units count alike."""
        assert self.train.y is not None
        variance = (self.train.y.clamp(*self._usual) - self.constant).square().mean(0)
        return torch.where(variance > 0, variance, 1.0)

    @cached_property
    def _cap(self) -> float:
        """Largest error of the constant prediction at a usual value."""
        assert self.train.y is not None
        usual = self.train.y.clamp(*self._usual)
        return float(((usual - self.constant).square() / self._variance).mean(1).max()) or 1.0

    @property
    def is_constant(self) -> bool:
        """Whether all training targets are equal."""
        assert self.train.y is not None
        return bool((self.train.y == self.train.y[:1]).all())

    @cached_property
    def unit(self) -> float:
        """Mean bounded error of the constant prediction at the training rows."""
        assert self.train.y is not None
        mean = float(self._bounded(self.constant.expand(len(self.train), -1), self.train.y).mean())
        return mean or 1.0

    def _bounded(self, outputs: Tensor, y: Tensor) -> Float[Tensor, " rows"]:
        if self.task == "classes":
            hit = nn.functional.one_hot(y, outputs.shape[1])
            return (outputs - hit).square().sum(1) / 2
        return ((outputs - y).square() / self._variance).mean(1).clamp_max(self._cap)

    def errors(self, sample: Sample, outputs: Tensor | None = None) -> Float[Tensor, " rows"]:
        """Return the bounded error of each row; a constant prediction has a mean of 1."""
        outputs = sample.outputs if outputs is None else outputs
        assert outputs is not None
        assert sample.y is not None
        return self._bounded(outputs, sample.y) / self.unit

    def constant_errors(self, sample: Sample) -> Float[Tensor, " rows"]:
        """Return the bounded error of the constant prediction at each row."""
        return self.errors(sample, self.constant.expand(len(sample), -1))

    def is_wrong(self, sample: Sample) -> Bool[Tensor, " rows"]:
        """Return whether the likeliest class differs from the label."""
        assert sample.outputs is not None
        assert sample.y is not None
        return sample.outputs.argmax(1) != sample.y

    # ---- neighbours

    @cached_property
    def base(self) -> Int[Tensor, " base"]:
        """Training rows in which to search neighbours: all distinct ones, or a sample by class and group.

        A copy of a row says nothing about the row's label, so copies do not count.
        """
        number, counts = number_rows(self.train.raw)
        first = torch.full((len(counts),), len(number)).scatter_reduce(
            0, number, torch.arange(len(number)), "amin"
        )
        rows = first.sort().values
        most = int(math.sqrt(_DISTANCES / max(self.train.x.shape[1], 1)))
        if len(rows) <= most:
            return rows
        strata = self._strata(self.train)
        some = sample_by_part([strata[i] for i in rows.tolist()], most, self.fitted.stream("neighbours"))
        return rows[some]

    def _strata(self, sample: Sample) -> list[str]:
        labels = [""] * len(sample) if self.task != "classes" or sample.y is None else sample.y.tolist()
        groups = sample.groups or [""] * len(sample)
        return [f"{label}/{group}" for label, group in zip(labels, groups, strict=True)]

    @cached_property
    def near(self) -> tuple[Float[Tensor, "base k"], Int[Tensor, "base k"]]:
        """Distances and numbers of the nearest other rows of `base`, for each row of it."""
        return self.nearest(self.train.x[self.base], len_k(len(self.base) - 1), own=True)

    def nearest(
        self, x: Float[Tensor, "rows varying"], k: int, *, own: bool = False
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        """Return distances to the nearest rows of `base`, and their numbers among the training rows.

        Args:
            x: Scaled inputs.
            k: How many.
            own: Whether ``x`` are the rows of `base` themselves, which must not be their own neighbours.
        """
        base = self.train.x[self.base]
        size = max(1, int(4e6 / len(base)))
        distances, numbers = [], []
        for begin in range(0, len(x), size):
            part = torch.cdist(x[begin : begin + size], base)
            if own:
                rows = torch.arange(len(part))
                part[rows, rows + begin] = math.inf
            nearest = part.topk(min(k, len(base)), largest=False)
            distances.append(nearest.values)
            numbers.append(self.base[nearest.indices])
        return torch.cat(distances), torch.cat(numbers)

    def average(self, numbers: Int[Tensor, "rows k"]) -> Tensor:
        """Return class shares or mean values among training rows: the prediction of nearest neighbours."""
        assert self.train.y is not None
        if self.task == "classes":
            return nn.functional.one_hot(self.train.y[numbers], self.n_classes).double().mean(1)
        return self.train.y[numbers].mean(1)

    def gain_of_neighbours(self, sample: Sample, numbers: Tensor) -> Difference:
        """Return how much smaller the error of nearest neighbours is than the model's.

        For classes wrong rows are counted, so that confidence does not matter; in units of a
        constant prediction.
        """
        theirs = self.average(numbers[:, :NEIGHBOURS])
        if self.task == "values":
            return Difference.paired(self.errors(sample) - self.errors(sample, theirs), self.confidence)
        assert sample.y is not None
        wrong = self.is_wrong(sample).double() - (theirs.argmax(1) != sample.y).double()
        return Difference.paired(wrong / max(1e-12, 1 - float(self.constant.max())), self.confidence)

    def neighbours_gain(self) -> Difference:
        """Return how much smaller the error of nearest neighbours is than the model's, at training rows.

        Neighbours are other rows, so they do not know the target of the row itself. If held-out rows
        are given, the smaller gain counts, because rows of one patient or day are close for other reasons.
        """
        if self.task == "other" or len(self.base) < 40 or self.is_constant:
            return Difference(math.nan, -math.inf, math.inf)
        gain = self.gain_of_neighbours(self.train.take(self.base), self.near[1])
        if self.held is None or len(self.held) < 10:
            return gain
        return min(gain, self.gain_of_neighbours(self.held, self.near_held[1]), key=lambda each: each.lower)

    @cached_property
    def near_held(self) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        """The nearest training rows of each held-out row, as many as in `near`."""
        assert self.held is not None
        return self.nearest(self.held.x, self.near[1].shape[1])

    @cached_property
    def held_distance(self) -> Float[Tensor, " rows"]:
        """Distance of each held-out row to the nearest row of `base`."""
        assert self.held is not None
        return self.near_held[0][:, 0]


def number_rows(
    rows: Float[Tensor, "rows features"],
) -> tuple[Int[Tensor, " rows"], Int[Tensor, " distinct"]]:
    """Number the distinct rows; return the number of each row, and how often each occurs."""
    seen: dict[bytes, int] = {}
    numbers = [seen.setdefault(row.tobytes(), len(seen)) for row in (rows + 0.0).numpy()]  # -0.0 is 0.0
    number = torch.tensor(numbers)
    return number, torch.bincount(number, minlength=len(seen))


def len_k(n: int) -> int:
    """Return the number of neighbours to search among ``n`` rows: a tenth, between 10 and 30."""
    return max(1, min(n, max(NEIGHBOURS, min(30, n // 10))))


@dataclass(frozen=True)
class Difference:
    """Mean difference with limits, and the number of rows behind it."""

    value: float
    lower: float
    upper: float

    @classmethod
    def paired(cls, values: Tensor, confidence: float) -> Difference:
        """Average the differences of paired rows (Student)."""
        n, mean = len(values), float(values.mean())
        if n < 2:
            return cls(mean, -math.inf, math.inf)
        half = student_quantile((1 + confidence) / 2, n - 1) * float(values.std()) / math.sqrt(n)
        return cls(mean, mean - half, mean + half)

    @classmethod
    def between(cls, a: Tensor, b: Tensor, confidence: float) -> Difference:
        """Return the mean of ``a`` minus the mean of ``b`` for independent rows (Welch)."""
        mean = float(a.mean() - b.mean())
        if min(len(a), len(b)) < 2:
            return cls(mean, -math.inf, math.inf)
        first, second = float(a.var()) / len(a), float(b.var()) / len(b)
        total = first + second
        if total == 0:
            return cls(mean, mean, mean)
        degrees = total**2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
        half = student_quantile((1 + confidence) / 2, max(1.0, round(degrees, 1))) * math.sqrt(total)
        return cls(mean, mean - half, mean + half)


def _task(fitted: FittedModel) -> Task:
    if isinstance(fitted.loss_fn, nn.PoissonNLLLoss | nn.GaussianNLLLoss):
        return "other"  # outputs are not predicted values
    if fitted.space == "simplex":
        return "classes" if fitted.labels is not None else "other"
    if fitted.space == "unit":
        return "classes" if fitted.targets[0].numel() == 1 else "other"
    return "values"


def _targets(fitted: FittedModel, y: Tensor) -> Int[Tensor, " rows"]:
    """Return the class of each row."""
    y = y.cpu()
    if fitted.space == "unit":
        return (y.flatten() > 0.5).long()
    return y.argmax(1) if y.is_floating_point() else y.long()


def _read(loss_fn: object, task: Task, outputs: Tensor) -> Tensor:
    """Convert outputs to probabilities of classes, or rows of values."""
    outputs = outputs.cpu().double()
    if task != "classes":
        return outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]
    if outputs[0].numel() == 1:  # one logit (or probability) of the second class
        p = outputs.flatten()
        p = p if isinstance(loss_fn, nn.BCELoss) else p.sigmoid()
        return torch.stack([1 - p, p], 1)
    return outputs.softmax(1)
