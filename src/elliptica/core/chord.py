"""Measure, before training, whether the target half-way between two rows is right.

Bridges and mixup train on points between two rows, with a target between theirs. Where the target is a curved
function of the inputs, that target is wrong, and no network can remove the error: it is the part of the
objective that Lemma 1 bounds. The chord ratio compares it with the error of a smooth fit, noise included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.perceptron import one_thread

#: In how many cases with a ratio up to the first number mixup, and elliptic training, were more than 2 %
#: worse than ordinary training, all tuned alike, of how many (results/half_way), with so many rows or more.
_HARMED, _STUDIED_ROWS = {0.3: (5, 5, 27), 0.7: (4, 4, 6), math.inf: (9, 12, 14)}, 1_000
#: A surrogate with a larger share of the variance as its error knows nothing of the curve.
MOST_NOISE = 0.9
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
_SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)  # of the kernel, divided by the number of columns
_FOLDS, _ASSIGNMENTS, _SPLITS = 5, 4, 3


@dataclass(frozen=True)
class ChordRatio:
    """How wrong targets half-way between two rows are, relative to the error of a smooth fit."""

    ratio: float  # mean squared error of the target half-way, over the mean squared error of the surrogate
    low: float  # ends of an interval from halves of the rows, rough
    high: float
    bend: float  # its control: error of a line over that of the curve, less 1
    noise: float  # mean squared error of the surrogate over the variance of the targets
    n_rows: int  # rows that were used
    n_all: int  # rows that were given

    @property
    def is_known(self) -> bool:
        """Whether the surrogate predicts enough to say anything about the curve."""
        return self.noise <= MOST_NOISE

    def __str__(self) -> str:
        """State the ratio, and what followed from such a ratio where that was studied."""
        error = f"{self.ratio:.2g} times ({self.low:.2g} to {self.high:.2g}) that of a smooth fit"
        text = f"Half-way between two rows, the squared error of the target is {error} (chord ratio)."
        if not self.is_known:
            return f"{text} The fit predicts hardly anything, so that says nothing."
        if self.n_all < _STUDIED_ROWS:
            return text
        mixup, elliptic, n = next(counts for end, counts in _HARMED.items() if self.ratio <= end)
        text += f" In {n} cases like that, mixup was over 2 % worse than ordinary training {mixup} times, "
        return f"{text}elliptic training {elliptic} times."


def chord_ratio(
    x: Any,
    y: Any,
    *,
    max_rows: int = 1_000,
    generator: torch.Generator | None = None,
) -> ChordRatio:
    """Measure, before training, how wrong the target half-way between two rows is.

    The ratio is ``E[(g((a + b) / 2) - (g(a) + g(b)) / 2)^2]`` over pairs of rows, divided by the mean squared
    error of ``g``: a kernel ridge regression on standardised inputs, tuned by
    cross-validation, which also measures its error. Above 1, bridges and mixup train on targets that are
    wrong by more than a smooth fit is. What followed on 30 tables is in docs: settings. Not for classes.

    Args:
        x: Inputs ``(rows, ...)``: array, frame of numbers, or tensor.
        y: Real targets ``(rows,)`` or ``(rows, outputs)``.
        max_rows: Rows that are used at most, a random sample.
        generator: Source of the sample, folds and halves; by default a fixed one.

    Example:
        >>> x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
        >>> chord_ratio(x, x.sum(1) + 0.1 * torch.rand(300)).ratio < 0.1
        True
    """
    generator = generator or torch.Generator().manual_seed(0)
    inputs, targets = _numbers("x", x), _numbers("y", y)
    n_all, least = len(inputs), 4 * _FOLDS
    checks.same_rows("y", targets, n_all)
    checks.count("max_rows", max_rows, least)
    if n_all > max_rows:
        rows = torch.randperm(n_all, generator=generator)[:max_rows]
        inputs, targets = inputs[rows], targets[rows]
    if len(torch.unique(torch.cat([inputs.flatten(1), targets], 1), dim=0)) < least:
        raise ValueError(f"x and y need {least} distinct rows or more.")
    if not targets.numel() or not targets.std(0).gt(0).all() or not inputs.std(0).gt(0).any():
        raise ValueError("x or y is constant, so there is nothing to predict.")
    x, y = _scaled(inputs.flatten(1)), _scaled(targets)
    with one_thread():  # threads wait for each other longer than such products take
        pairs, errors, bend, noise = _kernel_chords(x, y, generator)
        ratio = _ratio(pairs, errors)
        orders = [torch.randperm(len(inputs), generator=generator) for _ in range(_SPLITS)]
        halves = [half.sort().values for order in orders for half in order.chunk(2)]
        ratios = [_ratio(*_kernel_chords(x[half], y[half], generator)[:2]) for half in halves]
        logs = torch.tensor([math.log(max(each, 1e-300)) for each in ratios])
    # the delete-half jackknife: estimates from half the rows vary twice as much, but share half of the rows
    reach = 2.57 * float((logs - logs.mean()).square().mean().sqrt())  # Student's, five degrees of freedom
    low, high = ratio * math.exp(-reach), ratio * math.exp(min(reach, 700.0))
    return ChordRatio(ratio, low, high, bend, noise, len(inputs), n_all)


def _numbers(name: str, values: Any) -> Float[Tensor, "rows ..."]:
    """Convert to numbers, rows first; classes and gaps raise."""
    array = values
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        try:
            kind = array.dtype if array.dtype.kind in "biu" else np.float64
            array = torch.from_numpy(np.array(array, dtype=kind, order="C"))
        except (TypeError, ValueError):
            hint = "Encode other columns first, e.g. by elliptica.estimators.TablePreprocessor."
            raise TypeError(f"{name} must hold numbers, but has the dtype {array.dtype}. {hint}") from None
    array = array.detach().cpu()
    if name == "y" and len(array.unique()) < (3 if array.is_floating_point() else 20):
        raise ValueError(
            "y looks like classes, for which the ratio does not work; pass real targets as floats."
        )
    checks.finite(name, array)
    return array.double().reshape(len(array), -1) if name == "y" or array.ndim == 1 else array.double()


def _scaled(values: Tensor) -> Tensor:
    """Standardise the columns, without those that are constant; outliers end at 5 deviations."""
    spread = values.std(0)
    return ((values - values.mean(0)) / spread)[:, spread > 0].clamp(-5, 5)


def _ratio(chords: Float[Tensor, "rows rows"], errors: Tensor) -> float:
    """Mean over pairs of different rows, over the mean error."""
    n = len(chords)
    return float(chords.sum() / (n * (n - 1)) / errors.mean().clamp_min(1e-12))  # less is rounding


def _kernel_chords(
    x: Float[Tensor, "rows columns"], y: Float[Tensor, "rows outputs"], generator: torch.Generator
) -> tuple[Tensor, Tensor, float, float]:
    """Fit a kernel ridge regression.

    Return the squared chords of all pairs, the squared errors, the lead over a line, and the share of noise.
    """
    n, distance = len(x), torch.cdist(x, x).square()
    # copies are in one fold: in another one they would look like knowledge
    copy_of = torch.unique(torch.cat([x, y], 1), dim=0, return_inverse=True)[1]
    first = torch.full((n,), n).scatter_reduce(0, copy_of, torch.arange(n), "amin")[copy_of]
    folds = [(torch.randperm(n, generator=generator) % _FOLDS)[first] for _ in range(_ASSIGNMENTS)]
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
    errors = torch.stack([_errors(kernel, y, penalty, fold) for fold in folds]).mean(0)
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
    return torch.as_tensor(chords), errors, bend, float(errors.mean() / y.var(0).sum())


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
