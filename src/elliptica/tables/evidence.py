"""Evidence for a diagnosis: a model with its rows, their outputs, errors and neighbours, computed once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import ks_2samp  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica._utils import checks
from elliptica._utils.random import draw_permutation, stream
from elliptica.core.inputs import LossFn
from elliptica.core.layers import evaluation_mode
from elliptica.core.losses import PerSampleLoss
from elliptica.core.targets import Targets, TargetSpace, infer_target_space
from elliptica.tables.findings import NO_HELD_OUT, Quantity, RowsOf

#: Kind of targets: one class per row, one or several numbers, or something else that only has a loss.
Task = Literal["classes", "values", "other"]
#: Default number of neighbours.
NEIGHBOURS = 10
#: Two samples of a feature differ if their distribution functions differ by this much, significantly.
MOVED = 0.2
#: Rows lie elsewhere if they are farther from training rows than these are, with this probability.
FARTHER = 0.6
#: What it takes to compare the errors of held-out and training rows.
COMPARABLE = ("targets", "held-out", "ten held-out", "varying targets", "fresh held-out")
#: Largest number of features to compare, evenly chosen among more (pixels).
_FEATURES = 512
#: Largest number of distances to compute, times the number of features.
_DISTANCES = 2e10


class Rows(NamedTuple):
    """Rows of one kind."""

    x: Tensor
    y: Tensor | None = None  # None for unlabelled rows
    groups: Tensor | Sequence[Hashable] | None = None
    numbers: Sequence[int] | None = None  # in the user's data; None: from 0; empty: unknown

    @property
    def targets(self) -> Tensor:
        """Targets of labelled rows."""
        assert self.y is not None
        return self.y


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained model, its loss, and the rows at which it is judged: the arguments of `elliptica.diagnose`.

    ``scales_inputs`` says that the model scales its inputs itself, so that their units do not matter;
    ``first_row`` is the number of the user's first row.
    """

    model: nn.Module
    loss_fn: LossFn
    rows: Mapping[RowsOf, Rows]
    class_names: Sequence[Hashable] = ()
    feature_names: Sequence[str] = ()
    target_space: TargetSpace | None = None
    batch_size: int = 1024
    scales_inputs: bool = False
    first_row: int = 0

    @property
    def space(self) -> TargetSpace:
        """Space of the targets."""
        return self.target_space or infer_target_space(self.loss_fn, self.rows["training"].targets)

    def class_name(self, label: int) -> str:
        """Return the name of a class, or its number if it has none."""
        return str(self.class_names[label] if len(self.class_names) else label)

    def call(self, x: Tensor) -> Tensor:
        """Evaluate the model in batches, in evaluation mode."""
        with evaluation_mode(self.model), torch.no_grad():
            return torch.cat([self.model(part) for part in x.split(self.batch_size)])

    def sampled(self, max_rows: int, generator: torch.Generator) -> FittedModel:
        """Check the rows, sample them by class and group if there are many, and move them to the model."""
        shape = self.rows["training"].x.shape
        place = next((p.device for p in self.model.parameters()), self.rows["training"].x.device)
        rows: dict[RowsOf, Rows] = {}
        for kind, (x, y, groups, numbers) in self.rows.items():
            checks.finite(f"x ({kind} rows)", x)
            if x.shape[1:] != shape[1:] or len(x) < 1 + (kind == "training"):
                raise ValueError(f"x ({kind} rows) has shape {tuple(x.shape)}; x has {tuple(shape)}.")
            for name, column in (("y", y), ("groups", groups)):
                if column is not None and len(column) != len(x):
                    raise ValueError(f"{name} ({kind} rows) has {len(column)} entries for {len(x)} rows.")
            is_label = y is not None and y.ndim == 1 and not y.is_floating_point()
            labels = y.tolist() if y is not None and is_label else [""] * len(x)
            names = groups.tolist() if isinstance(groups, Tensor) else groups
            names = labels if names is None else [str(name) for name in names]
            kept = torch.arange(len(x))
            if len(x) > max_rows:
                kept = sample_by_part(list(zip(labels, names, strict=True)), max_rows, generator, floor=1)
            rows[kind] = Rows(
                x.detach()[kept.to(x.device)].to(place),
                None if y is None else y.detach()[kept.to(y.device)].to(place),
                None if groups is None else [names[i] for i in kept.tolist()],
                kept.tolist() if numbers is None else [numbers[i] for i in kept.tolist() if numbers],
            )
        return replace(self, rows=rows)


def sample_by_part(
    parts: Sequence[Hashable], n: int, generator: torch.Generator, floor: int = 50
) -> Int[Tensor, " sample"]:
    """Draw about ``n`` rows in proportion, but at least ``floor`` of each part if it has them."""
    rows: dict[Hashable, list[int]] = {}
    for i, part in enumerate(parts):
        rows.setdefault(part, []).append(i)
    least = min(floor, n // len(rows) or 1)
    chosen = []
    for members in rows.values():
        count = min(len(members), max(round(n * len(members) / len(parts)), least))
        order = draw_permutation(len(members), device=generator.device, generator=generator)
        chosen += [members[i] for i in order[:count].tolist()]
    return torch.tensor(sorted(chosen))


class Predictor(nn.Module):
    """A fitted scikit-learn model as a module: log probabilities of classes, or a column of values.

    It has no gradient. ``gaps`` are the numbers that stand for NaN in each column.
    """

    def __init__(self, estimator: Any, gaps: np.ndarray | None = None) -> None:
        super().__init__()
        self.estimator, self.gaps = estimator, gaps

    def forward(self, x: Float[Tensor, "rows features"]) -> Float[Tensor, "rows outputs"]:
        """Predict."""
        inputs = x.detach().cpu().double().numpy()
        inputs = inputs if self.gaps is None else np.where(inputs == self.gaps, np.nan, inputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            if hasattr(self.estimator, "classes_"):
                outputs = np.log(np.clip(self.estimator.predict_proba(inputs), 1e-30, None))
            else:
                outputs = np.asarray(self.estimator.predict(inputs), float).reshape(len(inputs), -1)
        return torch.from_numpy(outputs).to(x)


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of one kind with the model's outputs and losses."""

    name: RowsOf
    raw: Float[Tensor, "rows features"]  # inputs, one flat row each, in the units of the model
    x: Float[Tensor, "rows varying"]  # in units of the deviations of training, without constant features
    y: Tensor  # class of each row, or its values (rows, values); no columns if targets are neither
    outputs: Tensor  # probabilities of classes, or predicted values
    losses: Float[Tensor, " rows"]  # the user's loss of each row
    groups: list[str] | None = None

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, rows: Int[Tensor, " some"]) -> Sample:
        """Return some of the rows."""
        groups = None if self.groups is None else [self.groups[i] for i in rows.tolist()]
        tensors = {name: getattr(self, name)[rows] for name in ("raw", "x", "y", "outputs", "losses")}
        return replace(self, groups=groups, **tensors)

    def in_group(self, name: str) -> Bool[Tensor, " rows"]:
        """Return whether each row belongs to a group."""
        return torch.tensor([group == name for group in self.groups or ()])


class Evidence:
    """A model, its training rows and other rows: predictions, bounded errors and neighbours.

    Errors are bounded, so that a few extreme rows do not dominate: for classes half the Brier score, for
    values the squared error, capped at the largest one of a constant prediction. Both are in units of the
    mean error of the best constant prediction (of the training rows): 0 is perfect, 1 is a constant.

    The rows are those that `FittedModel.sampled` returns, without those whose numbers are in ``drop``.
    """

    def __init__(
        self, fitted: FittedModel, confidence: float, drop: Mapping[RowsOf, Tensor] | None = None
    ) -> None:
        self.fitted, self.rows, self.confidence, self.dropped = fitted, fitted.rows, confidence, drop or {}
        rows = self.rows
        self.task: Task = "other"
        raw = _flat(rows["training"].x)
        self.deviation, self.centre = raw.std(0), raw.mean(0)
        self.varies = self.deviation > 1e-9 * raw.abs().amax(0).clamp_min(1e-300)
        self.train = self._sample("training")
        none = replace(self.train.take(torch.arange(0)), name="held-out")
        self.held = self._sample("held-out") if "held-out" in rows else none
        self.unlabelled = _flat(rows["unlabelled"].x) if "unlabelled" in rows else raw[:0]

    def lacks(self, *needs: str) -> str:
        """Return which of some `REQUIREMENTS` is missing; empty if none."""
        missing = [REQUIREMENTS[need][1] for need in needs if not REQUIREMENTS[need][0](self)]
        return missing[0] if missing else ""

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
        return self.held if len(self.held) else self.train

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.train.outputs.shape[1]

    def predict(self, raw: Float[Tensor, "rows features"]) -> Tensor:
        """Return probabilities or values at flat rows."""
        like = self.rows["training"].x
        return self._read(self.fitted.call(raw.reshape(len(raw), *like.shape[1:]).to(like)))

    def _sample(self, kind: Literal["training", "held-out"]) -> Sample:
        rows, space = self.rows[kind], self.fitted.space
        outputs, raw = self.fitted.call(rows.x), _flat(rows.x)
        n_classes = outputs.shape[1] if space == "simplex" else None
        target = Targets(space, n_classes).encode(rows.targets, outputs.dtype)
        losses = PerSampleLoss(self.fitted.loss_fn)(outputs, target).detach().cpu().double()
        bad = (~losses.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise ValueError(f"The loss is NaN or infinite at {len(bad)} {kind} rows, e.g. {bad[:5]}.")
        if kind == "training":
            self.task = _task(self.fitted, target, outputs)
            n_names = len(self.fitted.class_names)
            if self.task == "classes" and n_names not in (0, outputs.shape[1]):
                raise ValueError(f"class_names has {n_names} names for {outputs.shape[1]} classes.")
        y = target.cpu().double()
        if self.task == "classes":
            y = (y.flatten() > 0.5).long() if space == "unit" else y.argmax(1)
        else:
            y = y.reshape(len(y), -1) if self.task == "values" else y.new_zeros(len(y), 0)
        groups = None if rows.groups is None else [str(group) for group in rows.groups]
        sample = Sample(kind, raw, self.scaled(raw), y, self._read(outputs), losses, groups)
        keep = ~torch.isin(torch.arange(len(raw)), self.dropped.get(kind, torch.arange(0)))
        return sample.take(keep.nonzero().flatten())

    def _read(self, outputs: Tensor) -> Tensor:
        """Convert outputs to probabilities of classes, or rows of values."""
        outputs = outputs.cpu().double().reshape(len(outputs), -1)
        if self.task != "classes":
            return outputs
        if outputs.shape[1] == 1:  # one logit (or probability) of the second class
            p = outputs if isinstance(self.fitted.loss_fn, nn.BCELoss) else outputs.sigmoid()
            return torch.cat([1 - p, p], 1)
        return outputs.softmax(1)

    # ---- errors

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor, float]:
        """The best constant value, the variance of each target value, and the largest usual error.

        A single extreme target must not define what a large error is: usual values lie within four deviations
        (by the median) of their median. The variance makes outputs in different units count alike.
        """
        middle = self.train.y.median(0).values
        spread = 1.4826 * (self.train.y - middle).abs().median(0).values
        width = torch.where(spread > 0, 4 * spread, math.inf)
        usual = self.train.y.clamp(middle - width, middle + width)
        variance = usual.var(0, correction=0)
        variance = torch.where(variance > 0, variance, 1.0)
        cap = float(((usual - usual.mean(0)).square() / variance).mean(1).max())
        return usual.mean(0), variance, cap or 1.0

    @cached_property
    def constant(self) -> Float[Tensor, " outputs"]:
        """The best constant prediction: shares of classes, or the mean of the usual values, in training."""
        return self.shares(self.train) if self.task == "classes" else self._scale[0]

    def shares(self, sample: Sample) -> Float[Tensor, " classes"]:
        """Return the shares of the classes."""
        return torch.bincount(sample.y, minlength=self.n_classes).double() / len(sample)

    @property
    def is_constant(self) -> bool:
        """Whether all training targets are equal."""
        return bool((self.train.y == self.train.y[:1]).all())

    @cached_property
    def _unit(self) -> float:
        """Mean bounded error of the constant prediction at the training rows."""
        return float(self._bounded(self.constant.expand(len(self.train), -1), self.train.y).mean()) or 1.0

    def _bounded(self, outputs: Tensor, y: Tensor) -> Float[Tensor, " rows"]:
        if self.task == "classes":
            return (outputs - F.one_hot(y, outputs.shape[1])).square().sum(1) / 2
        _, variance, cap = self._scale
        return ((outputs - y).square() / variance).mean(1).clamp_max(cap)

    def errors(self, sample: Sample, outputs: Tensor | None = None) -> Float[Tensor, " rows"]:
        """Return the bounded error of each row; a constant prediction has a mean of 1."""
        return self._bounded(sample.outputs if outputs is None else outputs, sample.y) / self._unit

    def error(self, sample: Sample) -> float:
        """Return the mean bounded error."""
        return float(self.errors(sample).mean())

    def is_wrong(self, sample: Sample) -> Bool[Tensor, " rows"]:
        """Return whether the likeliest class differs from the label."""
        return sample.outputs.argmax(1) != sample.y

    # ---- neighbours

    @cached_property
    def copies(self) -> tuple[Int[Tensor, " distinct"], Int[Tensor, " distinct"], Int[Tensor, " rows"]]:
        """Kinds of equal training rows: the first row of each, in order; sizes; the kind of each row."""
        _, kind, sizes = (self.train.raw + 0.0).unique(dim=0, return_inverse=True, return_counts=True)
        first = torch.full_like(sizes, len(kind)).scatter_reduce(0, kind, torch.arange(len(kind)), "amin")
        return first.sort().values, sizes, kind

    @cached_property
    def base(self) -> Int[Tensor, " base"]:
        """Training rows in which to search neighbours: all distinct ones, or a sample by class and group.

        A copy of a row says nothing about the row's label, so copies do not count.
        """
        rows = self.copies[0]
        most = int(math.sqrt(_DISTANCES / max(self.train.x.shape[1], 1)))
        if len(rows) <= most:
            return rows
        labels = self.train.y.tolist() if self.task == "classes" else [""] * len(self.train)
        strata = list(zip(labels, self.train.groups or labels, strict=True))
        generator = stream("diagnose", 0, "neighbours")
        return rows[sample_by_part([strata[i] for i in rows.tolist()], most, generator)]

    @cached_property
    def near(self) -> tuple[Float[Tensor, "base k"], Int[Tensor, "base k"]]:
        """Distances and numbers of the nearest other rows of `base`, for each row of it."""
        n = len(self.base) - 1
        k = max(1, min(n, max(NEIGHBOURS, min(30, n // 10))))
        return self.nearest(self.train.x[self.base], k, skip_itself=True)

    @cached_property
    def near_held(self) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        """The nearest training rows of each held-out row, as many as in `near`."""
        return self.nearest(self.held.x, self.near[1].shape[1])

    @property
    def held_distance(self) -> Float[Tensor, " rows"]:
        """Distance of each held-out row to the nearest row of `base`."""
        return self.near_held[0][:, 0]

    def nearest(
        self, x: Float[Tensor, "rows varying"], k: int, *, skip_itself: bool = False
    ) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
        """Return distances to the ``k`` nearest rows of `base`, and their numbers among the training rows.

        With ``skip_itself``, ``x`` are the rows of `base`, which are not their own neighbours.
        """
        base = self.train.x[self.base]
        k, size = min(k, len(base)), max(1, int(4e6 / len(base)))
        distances, numbers = [x.new_zeros(0, k)], [self.base.new_zeros(0, k)]
        for begin in range(0, len(x), size):
            part = torch.cdist(x[begin : begin + size], base)
            if skip_itself:
                rows = torch.arange(len(part))
                part[rows, rows + begin] = math.inf
            nearest = part.topk(k, largest=False)
            distances.append(nearest.values)
            numbers.append(self.base[nearest.indices])
        return torch.cat(distances), torch.cat(numbers)

    def average(self, numbers: Int[Tensor, "rows k"]) -> Tensor:
        """Return class shares or mean values among training rows: the prediction of nearest neighbours."""
        if self.task == "classes":
            return F.one_hot(self.train.y[numbers], self.n_classes).double().mean(1)
        return self.train.y[numbers].mean(1)

    def gain_of_neighbours(self, sample: Sample, numbers: Tensor) -> Quantity:
        """Return how much smaller the error of nearest neighbours is than the model's.

        For classes wrong rows are counted, so that confidence does not matter; in units of a constant
        prediction.
        """
        theirs = self.average(numbers[:, :NEIGHBOURS])
        if self.task == "values":
            return Quantity.mean(self.errors(sample) - self.errors(sample, theirs), self.confidence)
        wrong = self.is_wrong(sample).double() - (theirs.argmax(1) != sample.y).double()
        return Quantity.mean(wrong / max(1e-12, 1 - float(self.constant.max())), self.confidence)

    @cached_property
    def neighbours_gain(self) -> Quantity:
        """How much smaller the error of nearest neighbours is than the model's, at training rows.

        Neighbours are other rows, so they do not know the target of the row itself. If held-out rows are
        given, the smaller gain counts, because rows of one patient or day are close for other reasons.
        """
        if self.task == "other" or len(self.base) < 40 or self.is_constant:
            return Quantity(0.0, -math.inf, math.inf, 0, "mean")
        gain = self.gain_of_neighbours(self.train.take(self.base), self.near[1])
        if len(self.held) < 10:
            return gain
        return min(gain, self.gain_of_neighbours(self.held, self.near_held[1]), key=lambda q: q.lower)

    # ---- what moved

    def moved_features(self, other: Float[Tensor, "rows features"]) -> dict[str, Quantity]:
        """Return the features whose distribution differs significantly from training; the largest first.

        The number is the distance of the two distribution functions (Kolmogorov-Smirnov), between 0 and 1.
        """
        train = self.train.raw
        n, m, d = len(train), len(other), train.shape[1]
        if min(n, m) < 10:
            return {}
        level = (1 - self.confidence) / 100 / d
        limit = max(MOVED, math.sqrt(-math.log(level / 2) / 2 * (n + m) / (n * m)))
        columns = range(0, d, max(1, d // _FEATURES))
        distances = {j: ks_2samp(train[:, j], other[:, j], method="asymp").statistic for j in columns}
        moved = {self.feature(j): Quantity.number(float(v), n + m) for j, v in distances.items() if v > limit}
        return dict(sorted(moved.items(), key=lambda item: -item[1].value))

    @cached_property
    def moved(self) -> dict[str, Quantity]:
        """Features that moved in the held-out rows."""
        return self.moved_features(self.held.raw)

    @property
    def is_shifted(self) -> bool:
        """Whether held-out rows lie elsewhere than the training rows."""
        return bool(self.moved) or self.is_farther(self.held_distance).lower > FARTHER

    def is_farther(self, distance: Float[Tensor, " rows"]) -> Quantity:
        """Return the probability that a row is farther from its nearest training row than those are."""
        own, distance = self.near[0][:, 0].sort().values, distance.contiguous()
        below = torch.searchsorted(own, distance) + torch.searchsorted(own, distance, right=True)
        rank = Quantity.mean(below.double() / (2 * len(own)), 0.9999)
        reach = 3.9 * math.sqrt(1 / 12 / len(own))  # the training rows are a sample, too
        return replace(rank, lower=rank.lower - reach, upper=rank.upper + reach)

    def beyond(self, distance: Float[Tensor, " rows"]) -> Bool[Tensor, " rows"]:
        """Return whether rows are farther from the training rows than 99 % of these are from each other."""
        return distance > self.near[0][:, 0].quantile(0.99)


def listed(rows: Bool[Tensor, " rows"]) -> list[int]:
    """Return the numbers of the rows that are marked."""
    return rows.nonzero().flatten().tolist()


def _flat(x: Tensor) -> Float[Tensor, "rows features"]:
    return x.reshape(len(x), -1).cpu().double()


def _task(fitted: FittedModel, target: Tensor, outputs: Tensor) -> Task:
    if isinstance(fitted.loss_fn, nn.PoissonNLLLoss | nn.GaussianNLLLoss):
        return "other"  # outputs are not predicted values
    if fitted.space == "simplex":
        return "classes" if target.ndim == 2 else "other"
    if fitted.space == "unit":
        return "classes" if target[0].numel() == 1 else "other"
    return "values" if target[0].numel() == outputs[0].numel() else "other"


#: Requirements of the checks: when they are met, and what is missing otherwise.
REQUIREMENTS: dict[str, tuple[Callable[[Evidence], bool], str]] = {
    "targets": (lambda e: e.task != "other", "targets are neither classes nor values"),
    "classes": (lambda e: e.task == "classes", "for classes only"),
    "values": (lambda e: e.task == "values", "for values only"),
    "labels": (
        lambda e: not (e.fitted.space == "simplex" and e.rows["training"].targets.is_floating_point()),
        "for labels only, not for class probabilities",
    ),
    "one target": (lambda e: e.train.y.ndim == 1 or e.train.y.shape[1] == 1, "for single target values only"),
    "varying targets": (lambda e: not e.is_constant, "all training targets are equal"),
    "some rows": (lambda e: len(e.base) >= 20 and e.train.x.shape[1] > 0, "fewer than 20 distinct rows"),
    "neighbours": (lambda e: len(e.base) >= 40, "fewer than 40 distinct rows"),
    "held-out": (lambda e: len(e.held) > 0, NO_HELD_OUT),
    "ten held-out": (lambda e: len(e.held) >= 10, "fewer than ten held-out rows"),
    "fresh held-out": (
        lambda e: float((e.held_distance == 0).double().mean()) <= 0.5,
        "most held-out rows are training rows",
    ),
}
