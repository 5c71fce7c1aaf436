"""Measure, before training, whether the target half-way between two rows is right.

Bridges and mixup train on points between two rows, with a target between theirs. Where the target is a curved
function of the inputs, that target is wrong, and no network can remove the error: it is the part of the
objective that Lemma 1 bounds. The chord ratio compares it with the noise that is there anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils.perceptron import one_thread

#: In how many cases with a ratio up to the first number mixup, and elliptic training, were more than 2 %
#: worse than ordinary training, all tuned alike with 1,000 rows or more, and of how many (results/half_way).
_HARMED = {0.3: (5, 5, 27), 0.7: (4, 4, 6), math.inf: (9, 12, 14)}
#: A surrogate with a larger share of the variance as its error knows nothing of the curve.
MOST_NOISE = 0.9
#: With fewer rows, the ratio says little.
FEW_ROWS = 200
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
_SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)  # of the kernel, divided by the number of columns
_FOLDS, _ASSIGNMENTS, _RESAMPLES = 5, 4, 200


@dataclass(frozen=True)
class ChordRatio:
    """How wrong targets half-way between two rows are, relative to the noise."""

    ratio: float  # mean squared error of the target half-way, over the mean squared error of the surrogate
    low: float  # ends of a 95 % interval: rows resampled, several assignments to folds
    high: float
    bend: float  # its control: error of a line over that of the curve, less 1; NaN for a given model
    noise: float  # mean squared error of the surrogate over the variance of the targets
    n_rows: int  # rows that were used
    n_all: int  # rows that were given

    @property
    def is_known(self) -> bool:
        """Whether the surrogate predicts enough to say anything about the curve."""
        return self.noise <= MOST_NOISE

    def __str__(self) -> str:
        """State the ratio, and what limits it."""
        error = f"{self.ratio:.2g} times ({self.low:.2g} to {self.high:.2g}) the noise"
        text = f"Half-way between two rows, the squared error of the target is {error} (chord ratio)."
        if not self.is_known:
            text += " What it was measured with predicts hardly anything, so that says nothing."
        else:
            mixup, elliptic, n = next(counts for end, counts in _HARMED.items() if self.ratio <= end)
            text += f" In {n} cases like that, mixup hurt {mixup} times, elliptic training {elliptic} times."
        if self.n_rows < FEW_ROWS:
            text += f" With {self.n_rows} rows, that says little."
        if self.n_rows < self.n_all:
            text += f" Measured on {self.n_rows:,} of {self.n_all:,} rows."
        return text


def chord_ratio(
    x: Any,
    y: Any,
    *,
    model: Callable[[Tensor], Tensor] | None = None,
    max_rows: int | None = None,
    generator: torch.Generator | None = None,
) -> ChordRatio:
    """Measure, before training, how wrong the target half-way between two rows is.

    The ratio is ``E[(g((a + b) / 2) - (g(a) + g(b)) / 2)^2]`` over pairs of rows, divided by the mean squared
    error of ``g``. By default ``g`` is a kernel ridge regression on standardised inputs, tuned by
    cross-validation, which also measures its error. Above 1, bridges and mixup train on targets that are
    wrong by more than the noise. What followed on 30 tables is in docs: settings. Not for classes.

    Args:
        x: Inputs ``(rows, ...)``: array, frame of numbers, or tensor.
        y: Real targets ``(rows,)`` or ``(rows, outputs)``.
        model: Fitted model to use as ``g``; pass rows that it was not trained on. To ask about a hidden
            layer, pass its activations as ``x`` and the rest of the network as the model.
        max_rows: Rows that are used at most, a random sample; by default 1,000, or 200 for a model.
        generator: Source of the sample, folds and resamples; by default a fixed one.

    Example:
        >>> x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
        >>> chord_ratio(x, x.sum(1) + 0.1 * torch.rand(300)).ratio < 0.1
        True
    """
    generator = generator or torch.Generator().manual_seed(0)
    inputs, targets = _numbers("x", x), _numbers("y", y)
    n_all, least = len(inputs), 4 * _FOLDS
    if len(targets) != n_all or n_all < least:
        raise ValueError(f"x and y need as many rows, {least} or more, but have {n_all} and {len(targets)}.")
    targets = targets.reshape(n_all, -1)
    limit = max_rows or (1_000 if model is None else 200)
    if n_all > limit:
        rows = torch.randperm(n_all, generator=generator)[:limit]
        inputs, targets = inputs[rows], targets[rows]
    both = torch.cat([inputs.flatten(1), targets], 1)
    once = torch.from_numpy(np.sort(np.unique(both, axis=0, return_index=True)[1]))
    inputs, targets = inputs[once], targets[once]  # a copy in another fold would look like knowledge
    if len(once) < least:
        raise ValueError(f"x and y have {len(once)} distinct rows, but {least} are needed.")
    if not targets.std(0).gt(0).all() or not inputs.std(0).gt(0).any():
        raise ValueError("x or y is constant, so there is nothing to predict.")
    if model is None:
        with one_thread():  # threads wait for each other longer than such products take
            chords, errors, bend = _kernel_chords(_scaled(inputs.flatten(1)), _scaled(targets), generator)
    else:
        chords, errors, bend = *_model_chords(model, inputs, targets), float("nan")
    one = torch.ones(1, len(inputs), dtype=torch.float64)
    drawn = torch.randint(len(inputs), (_RESAMPLES, len(inputs)), generator=generator)
    often = one.new_zeros(drawn.shape).scatter_add_(1, drawn, one.expand(drawn.shape))
    resampled = (often * errors[torch.arange(_RESAMPLES) % len(errors)]).mean(1)
    low, high = (_pair_mean(chords, often) / resampled).quantile(one.new_tensor([0.025, 0.975])).tolist()
    ratio, spread = float(_pair_mean(chords, one) / errors.mean()), targets.var(0).sum()
    noise = float(errors.mean() / (targets.shape[1] if model is None else spread))
    return ChordRatio(ratio, low, high, bend, noise, len(inputs), n_all)


def _numbers(name: str, values: Any) -> Tensor:
    """Convert to numbers; classes and gaps raise."""
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if isinstance(array, np.ndarray):
        if array.dtype.kind in "OUS":
            try:
                array = array.astype(np.float64)
            except ValueError:
                raise TypeError(
                    f"{name} holds text. Encode it first, e.g. by elliptica.estimators.TablePreprocessor."
                ) from None
        array = torch.from_numpy(array.copy())
    array = array.detach().cpu()
    if name == "y" and not array.is_floating_point() and len(array.unique()) < 20:
        raise ValueError(
            "y looks like classes, for which the ratio does not work; pass real targets as floats."
        )
    if not array.isfinite().all():
        raise ValueError(f"{name} has missing or infinite values; fill or drop them first.")
    return array.double()


def _scaled(values: Tensor) -> Tensor:
    """Standardise the columns, without those that are constant; outliers end at 5 deviations."""
    spread = values.std(0)
    return ((values - values.mean(0)) / spread)[:, spread > 0].clamp(-5, 5)


def _pair_mean(chords: Tensor, often: Float[Tensor, "draws rows"]) -> Float[Tensor, " draws"]:
    """Mean over pairs of different rows, each row taken as often as a draw says."""
    return ((often @ chords) * often).sum(1) / (often.sum(1).square() - often.square().sum(1))


def _kernel_chords(
    x: Float[Tensor, "rows columns"], y: Float[Tensor, "rows outputs"], generator: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """Fit a kernel ridge regression; return squared chords of all pairs, errors, and the lead over a line."""
    n, distance = len(x), torch.cdist(x, x).square()
    folds = [torch.randperm(n, generator=generator) % _FOLDS for _ in range(_ASSIGNMENTS)]
    scores = {
        (scale, penalty): float(
            _errors(torch.exp(-scale / x.shape[1] * distance), y, penalty, folds[0]).mean()
        )
        for scale in _SCALES
        for penalty in _PENALTIES
    }
    scale, penalty = min(scores, key=lambda pair: scores[pair])
    gamma = scale / x.shape[1]
    kernel = torch.exp(-gamma * distance)
    errors = torch.stack([_errors(kernel, y, penalty, fold) for fold in folds])
    line = min(
        float(_errors(x @ x.T, y, n * share, folds[0]).mean()) for share in (1e-4, 1e-3, 1e-2, 0.1, 1.0)
    )
    bend = line / scores[scale, penalty] - 1
    weights = torch.linalg.solve(kernel + penalty * torch.eye(n, dtype=x.dtype), y - y.mean(0))
    ends = kernel @ weights
    # |m - c|^2 = (|a - c|^2 + |b - c|^2) / 2 - |a - b|^2 / 4, so all middles m cost one product per output
    half, rest = torch.exp(-gamma / 2 * distance), torch.exp(gamma / 4 * distance)
    chords = sum(
        ((half * weight) @ half * rest - (end[:, None] + end) / 2).square()
        for weight, end in zip(weights.T, ends.T, strict=True)
    )
    return torch.as_tensor(chords), errors, bend


def _errors(kernel: Tensor, y: Tensor, penalty: float, fold: Tensor) -> Float[Tensor, " rows"]:
    """Squared error of each row, predicted from the other folds."""
    errors = torch.empty(len(y), dtype=y.dtype)
    for number in range(_FOLDS):
        test, train = fold == number, fold != number
        mean = y[train].mean(0)
        known = kernel[train][:, train] + penalty * torch.eye(int(train.sum()), dtype=y.dtype)
        weights = torch.cholesky_solve(y[train] - mean, torch.linalg.cholesky(known))
        errors[test] = (mean + kernel[test][:, train] @ weights - y[test]).square().sum(1)
    return errors


@torch.no_grad()
def _model_chords(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Squared chords of all pairs, and the squared errors, of a fitted model."""
    kind = next(iter(getattr(model, "parameters", list)()), torch.empty(0)).dtype
    ends = model(x.to(kind)).double().reshape(len(x), -1)
    if ends.shape != y.shape:
        raise ValueError(f"model gives {ends.shape[1]} numbers per row, but y has {y.shape[1]}.")
    chords = torch.zeros(len(x), len(x), dtype=torch.float64)
    for row in range(1, len(x)):
        middles = model(((x[:row] + x[row]) / 2).to(kind)).double().reshape(row, -1)
        chords[row, :row] = (middles - (ends[:row] + ends[row]) / 2).square().sum(1)
    return chords + chords.T, (ends - y).square().sum(1)[None]
