"""Over-sample rare rows with points on bridges between near rows of one class, or of similar target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from elliptica._utils import checks
from elliptica.core.bridge import Times, bridge_points, unit_spread
from elliptica.estimators.columns import check_table
from elliptica.estimators.fit import draw_seed, in_squarable_units

Task = Literal["auto", "classification", "regression"]

#: Whole numbers with at most this many values are classes.
_FEW_VALUES = 20


class BridgeOverSampler(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Add rows on Brownian bridges until rare classes, or rare targets, are as frequent as others.

    The bridge of a new row starts at a random row of the class and ends at one of its ``k_neighbors`` nearest
    rows in the class. At a uniform time ``u`` it is Gaussian around the straight line, with standard
    deviation ``sigma * sqrt(u (1 - u))`` times that of each column of ``X``. ``sigma=0`` is SMOTE. The class
    has imbalanced-learn's ``fit_resample`` and works in its pipelines, which resample only in training;
    otherwise, that package is not needed.

    For regression, the range of the target is divided into ``n_bins`` bins of equal width. A nonempty bin
    with fewer rows than the mean of the nonempty bins is filled up to that mean, with bridges within the bin
    that include the target. Only the noise moves new targets outside the range of the bin's rows, and they
    stay within the range of all targets.

    Distances are Euclidean in the units of ``X``: scale the columns first. The only row of a class or bin is
    both ends of its bridges, so new rows are noise around it, or copies if ``sigma=0``. Do not use it on
    validation data, nor on columns in which a value between two values has no meaning.

    Args:
        sampling_strategy: For classes, as in imbalanced-learn. ``"auto"`` (or ``"not majority"``) brings
            every class to the size of the largest, ``"minority"`` only the smallest. A number, for two
            classes, is the wanted ratio of the smaller to the larger. A dict gives wanted sizes. Ignored for
            regression.
        sigma: Noise relative to the standard deviation of each column over all rows.
        sigma_y: Relative noise of real targets; None means ``sigma``.
        k_neighbors: Number of neighbours at which bridges may end; fewer if the class has fewer.
        n_bins: Number of bins of a real target.
        bounded: Clip new real targets to the range of the observed ones, so that a positive quantity stays
            positive. False lets the noise carry them beyond it.
        task: ``"auto"`` treats strings, booleans and whole numbers with at most 20 values as classes, and
            other floating-point numbers as real targets. Integers with more values are ambiguous: pass
            ``"classification"`` or ``"regression"``.
        random_state: Seed of the random draws.

    Attributes:
        sampling_strategy_: Number of new rows for each class, or for each bin.
        bins_: Edges of the bins, for regression.
        n_features_in_: Number of columns.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(30, 2))
        >>> y = np.array(["often"] * 25 + ["rare"] * 5)
        >>> X_more, y_more = BridgeOverSampler(random_state=0).fit_resample(X, y)
        >>> np.unique(y_more, return_counts=True)[1]
        array([25, 25])
        >>> bool((X_more[:30] == X).all())
        True
    """

    def __init__(
        self,
        *,
        sampling_strategy: str | float | Mapping[Any, int] = "auto",
        sigma: float = 0.1,
        sigma_y: float | None = None,
        k_neighbors: int = 5,
        n_bins: int = 10,
        bounded: bool = True,
        task: Task = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.sampling_strategy = sampling_strategy
        self.sigma = sigma
        self.sigma_y = sigma_y
        self.k_neighbors = k_neighbors
        self.n_bins = n_bins
        self.bounded = bounded
        self.task = task
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> BridgeOverSampler:
        """Count the rows that `fit_resample` would add."""
        self._plan(X, y)
        return self

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return the rows unchanged, followed by new ones, class by class or bin by bin.

        Args:
            X: Table of finite numbers: array or frame of pandas or polars.
            y: Labels or real targets, one per row.

        Returns:
            ``X`` and ``y`` with more rows; frames for frames and series for series, with floating columns.
        """
        x, target, member, is_real = self._plan(X, y)
        generator = torch.Generator().manual_seed(draw_seed(self.random_state))
        deviation = torch.from_numpy(_deviation(x))
        sigma_y = self.sigma if self.sigma_y is None else self.sigma_y
        more_x, more_y = [x], [target]
        for number, n_new in enumerate(self.sampling_strategy_.values()):
            if n_new == 0:
                continue
            own = np.flatnonzero(member == number)
            start, end = self._ends(x, own, n_new, generator)
            u = torch.rand(n_new, generator=generator, dtype=torch.float64)
            more_x.append(_bridged(x, start, end, u, self.sigma * deviation, generator).astype(x.dtype))
            if is_real:
                spread = sigma_y * torch.from_numpy(_deviation(target[:, None]))
                new = _bridged(target[:, None], start, end, u, spread, generator)[:, 0]
                more_y.append(new.clip(target.min(), target.max()) if self.bounded else new)
            else:
                more_y.append(target[start])
        return _like(X, np.concatenate(more_x)), _like(y, np.concatenate(more_y))

    def _plan(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
        """Set ``sampling_strategy_``; return rows, targets, class or bin of each, and whether y is real."""
        checks.nonnegative("sigma", self.sigma)
        if self.sigma_y is not None:
            checks.nonnegative("sigma_y", self.sigma_y)
        checks.choice("task", self.task, get_args(Task))
        if y is None:  # a table of two rows could be unpacked
            raise ValueError("y is None, but over-sampling needs a label or a target for every row.")
        x, target = check_table(self, X, y, reset=True)
        target = column_or_1d(target, warn=True)
        if target.dtype.kind in "Mm":
            raise TypeError("y holds times. Convert them to days, or to strings if they are classes.")
        is_real = self.task == "regression" or (self.task == "auto" and _is_real(target))
        if is_real:
            values = np.asarray(target, dtype=np.float64)
            self.bins_ = np.linspace(values.min(), values.max(), self.n_bins + 1)
            member = np.searchsorted(self.bins_[1:-1], values, side="right")
            sizes = np.bincount(member, minlength=self.n_bins)
            wanted = int(sizes.sum() / np.count_nonzero(sizes))
            missing = np.where(sizes > 0, np.maximum(wanted - sizes, 0), 0)
            self.sampling_strategy_ = dict(enumerate(missing.tolist()))
            return x, values, member, True
        check_classification_targets(target)
        classes, member = np.unique(target, return_inverse=True)
        self.sampling_strategy_ = _missing_rows(
            self.sampling_strategy, classes.tolist(), np.bincount(member).tolist()
        )
        return x, target, member, False

    def _ends(
        self, x: np.ndarray, own: np.ndarray, n_new: int, generator: torch.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the row numbers of both ends of each bridge among the rows ``own``."""
        first = torch.randint(len(own), (n_new,), generator=generator).numpy()
        if len(own) == 1:
            return own[first], own[first]
        k = min(self.k_neighbors, len(own) - 1)
        unit = int(in_squarable_units(x)[1].max())  # one for all columns, so that distances keep their order
        points = np.ldexp(x[own], -unit) if unit else x[own]
        near = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False)
        which = torch.randint(k, (n_new,), generator=generator).numpy()
        return own[first], own[near[first, which]]


def _is_real(target: np.ndarray) -> bool:
    """Return whether targets are real numbers rather than classes."""
    if type_of_target(target) == "continuous":
        return True
    n_values = len(np.unique(target))
    if target.dtype.kind not in "iuf" or n_values <= _FEW_VALUES:
        return False
    if target.dtype.kind != "f":
        raise ValueError(
            f"y holds whole numbers with {n_values} distinct values, which may be classes or a real target. "
            'Pass task="classification" or task="regression".'
        )
    return True


def _deviation(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each column."""
    scaled, exponent = in_squarable_units(values)
    return np.ldexp(scaled.std(axis=0, dtype=np.float64), exponent)


def _bridged(
    values: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    u: torch.Tensor,
    std: torch.Tensor,
    generator: torch.Generator,
) -> np.ndarray:
    """Sample points at the times ``u`` of bridges between rows, in float64."""
    table = torch.from_numpy(values.astype(np.float64))
    # do not draw noise if its standard deviation is zero
    noise = std if bool(std.any()) else 0.0
    times = Times(u[:, None], unit_spread(u)[:, None])
    return bridge_points(table[start], table[end], noise, times, generator).numpy()


def _missing_rows(
    strategy: str | float | Mapping[Any, int], classes: list[Any], sizes: list[int]
) -> dict[Any, int]:
    """Return how many rows each class lacks."""
    largest, smallest = max(sizes), min(sizes)
    if isinstance(strategy, Mapping):
        unknown = [label for label in strategy if label not in classes]
        if unknown:
            raise ValueError(f"sampling_strategy names classes {unknown}, but y has only {classes}.")
        wanted = {label: strategy.get(label, size) for label, size in zip(classes, sizes, strict=True)}
    elif isinstance(strategy, str):
        checks.choice("sampling_strategy", strategy, ("auto", "not majority", "minority"))
        is_grown = [strategy != "minority" or i == sizes.index(smallest) for i in range(len(sizes))]
        wanted = {
            label: largest if grown else size
            for label, size, grown in zip(classes, sizes, is_grown, strict=True)
        }
    else:
        ratio = float(strategy)
        if len(classes) != 2 or not 0 < ratio <= 1:
            raise ValueError(
                f"sampling_strategy={ratio} must be a ratio above 0 and up to 1 for two classes, but y has "
                f"{len(classes)} classes. Pass wanted sizes in a dict."
            )
        wanted = dict(zip(classes, sizes, strict=True))
        wanted[classes[sizes.index(smallest)]] = int(ratio * largest)
    for label, size in zip(classes, sizes, strict=True):
        if wanted[label] < size:
            raise ValueError(
                f"sampling_strategy asks for {wanted[label]} rows of class {label!r}, which already has "
                f"{size}. Rows are only added, never removed."
            )
    return {label: int(wanted[label]) - size for label, size in zip(classes, sizes, strict=True)}


def _like(template: Any, values: np.ndarray) -> Any:
    """Return a frame or series of the kind of the template, or the array itself."""
    package = type(template).__module__.partition(".")[0]
    if values.ndim == 1 and hasattr(template, "columns"):  # a frame of one column
        values = values[:, None]
    if package == "pandas":
        if values.ndim == 2:
            return type(template)(values, columns=template.columns)
        dtype = None if values.dtype.kind == "f" else template.dtype
        return type(template)(values, name=template.name, dtype=dtype)
    if package == "polars":
        if values.ndim == 2:
            return type(template)(values, schema=template.columns)
        return type(template)(template.name, values)
    return values
