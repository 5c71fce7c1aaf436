"""Over-sample rare rows with points on bridges between near rows of one class, or of similar target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from elliptica._utils import checks
from elliptica.core.bridge import Times, bridge_points, unit_spread
from elliptica.estimators.base import check_table

Task = Literal["auto", "classification", "regression"]
#: Numbers with at most this many values are classes.
_FEW_VALUES = 20


@dataclass(kw_only=True, eq=False, repr=False)
class BridgeOverSampler(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Add rows on Brownian bridges until rare classes, or rare targets, are as frequent as others.

    The bridge of a new row starts at a random row of the class and ends at one of its ``k_neighbors`` nearest
    rows in the class. At a uniform time ``u`` it is Gaussian around the straight line, with standard
    deviation ``sigma * sqrt(u (1 - u))`` times that of each column of ``X``. ``sigma=0`` is SMOTE. The class
    has imbalanced-learn's ``fit_resample`` and works in its pipelines, which resample only in training.

    For regression, the range of the target is divided into ``n_bins`` bins of equal width. A bin with fewer
    rows than the mean of the nonempty bins is filled up to that, with bridges that include the target.

    Distances are in the units of ``X``: scale the columns first. The only row of a class is both ends of its
    bridges. Do not use it on columns in which a value between two values has no meaning.

    Args:
        sampling_strategy: For classes, as in imbalanced-learn. ``"auto"`` brings every class to the size of
            the largest, ``"minority"`` only the smallest. A number, for two classes, is the wanted ratio of
            the smaller to the larger. A dict gives wanted sizes. Ignored for regression.
        sigma: Noise relative to the standard deviation of each column over all rows.
        k_neighbors: Number of neighbours at which bridges may end; fewer if the class has fewer.
        n_bins: Number of bins of a real target.
        task: ``"auto"`` treats strings, booleans and numbers with at most 20 values as classes, and other
            numbers as real targets.
        random_state: Seed of the random draws.

    Attributes:
        sampling_strategy_: Number of new rows for each class, or for each bin.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(30, 2))
        >>> y = np.array(["often"] * 25 + ["rare"] * 5)
        >>> X_more, y_more = BridgeOverSampler(random_state=0).fit_resample(X, y)
        >>> np.unique(y_more, return_counts=True)[1]
        array([25, 25])
    """

    sampling_strategy: str | float | Mapping[Any, int] = "auto"
    sigma: float = 0.1
    k_neighbors: int = 5
    n_bins: int = 10
    task: Task = "auto"
    random_state: int | np.random.RandomState | None = None

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return ``X`` and ``y`` followed by new rows; frames for frames, with floating columns."""
        checks.nonnegative("sigma", self.sigma)
        checks.choice("task", self.task, get_args(Task))
        x, target = check_table(self, X, y, reset=True)
        target = column_or_1d(target, warn=True)
        is_real = self.task == "regression" or (self.task == "auto" and _is_real(target))
        joint = x
        if is_real:
            joint = np.column_stack([x, target])
            bins = np.linspace(target.min(), target.max(), self.n_bins + 1)[1:-1]
            _, member, sizes = np.unique(np.digitize(target, bins), return_inverse=True, return_counts=True)
            missing = np.maximum(int(sizes.mean()) - sizes, 0)
            self.sampling_strategy_ = dict(enumerate(missing.tolist()))
        else:
            check_classification_targets(target)
            classes, member, sizes = np.unique(target, return_inverse=True, return_counts=True)
            self.sampling_strategy_ = self._missing(dict(zip(classes.tolist(), sizes.tolist(), strict=True)))
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31)))
        table = torch.from_numpy(joint.astype(np.float64))
        deviation = table.std(0, correction=0)
        new, starts = [], []
        for number, count in enumerate(self.sampling_strategy_.values()):
            if count:
                start, end = self._ends(x, np.flatnonzero(member == number), count, generator)
                u = torch.rand(count, generator=generator, dtype=torch.float64)
                noise, times = self.sigma * deviation, Times(u[:, None], unit_spread(u)[:, None])
                new.append(bridge_points(table[start], table[end], noise, times, generator).numpy())
                starts.append(start)
        if not new:
            return X, y
        rows, start = np.concatenate(new), np.concatenate(starts)
        more = rows[:, -1].clip(target.min(), target.max()) if is_real else target[start]
        more_x = np.concatenate([x, rows[:, : x.shape[1]].astype(x.dtype)])
        return _like(X, more_x), _like(y, np.concatenate([target, more]))

    def _ends(
        self, x: np.ndarray, rows: np.ndarray, count: int, generator: torch.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the row numbers of both ends of each bridge."""
        first = torch.randint(len(rows), (count,), generator=generator).numpy()
        if len(rows) == 1:
            return rows[first], rows[first]
        k = min(self.k_neighbors, len(rows) - 1)
        near = NearestNeighbors(n_neighbors=k).fit(x[rows]).kneighbors(return_distance=False)
        return rows[first], rows[near[first, torch.randint(k, (count,), generator=generator).numpy()]]

    def _missing(self, sizes: dict[Any, int]) -> dict[Any, int]:
        """Return how many rows each class lacks."""
        strategy, wanted = self.sampling_strategy, dict(sizes)
        largest, smallest = max(sizes.values()), min(sizes, key=sizes.__getitem__)
        if isinstance(strategy, Mapping):
            wanted |= strategy
        elif isinstance(strategy, str):
            checks.choice("sampling_strategy", strategy, ("auto", "minority"))
            wanted |= dict.fromkeys([smallest] if strategy == "minority" else sizes, largest)
        else:
            wanted[smallest] = int(strategy * largest)
        if set(wanted) != set(sizes) or any(wanted[label] < size for label, size in sizes.items()):
            raise ValueError(f"sampling_strategy asks for {wanted}, but y has {sizes}. Rows are only added.")
        return {label: wanted[label] - size for label, size in sizes.items()}


def _is_real(target: np.ndarray) -> bool:
    """Return whether targets are real numbers rather than classes."""
    is_continuous = type_of_target(target) == "continuous"
    return is_continuous or (target.dtype.kind in "iuf" and len(np.unique(target)) > _FEW_VALUES)


def _like(template: Any, values: np.ndarray) -> Any:
    """Return a frame or series of the kind of the template, or the array itself."""
    kind, is_2d = type(template), values.ndim == 2
    if kind.__module__.startswith("pandas"):
        return kind(values, columns=template.columns) if is_2d else kind(values, name=template.name)
    if kind.__module__.startswith("polars"):
        return kind(values, schema=template.columns) if is_2d else kind(template.name, values)
    return values
