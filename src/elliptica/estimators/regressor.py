"""A regressor for tables with scikit-learn's interface, trained ordinarily or on bridges between the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import column_or_1d
from torch import Tensor

from elliptica._utils import checks
from elliptica.estimators.base import EllipticEstimator, check_table, location_and_scale
from elliptica.estimators.stacked import Loss

_LARGEST_EXPONENT = 700.0  # exp overflows above this


@dataclass(kw_only=True, eq=False, repr=False)
class EllipticRegressor(MultiOutputMixin, RegressorMixin, EllipticEstimator):  # type: ignore[misc]
    """A neural network for real targets, trained ordinarily or by elliptic loss regularisation.

    A perceptron with scikit-learn's interface and the squared error. With ``method="elliptic"`` it is trained
    on points of Brownian bridges between the rows, targets included, instead of the rows alone (paper:
    Algorithm 1). That is not the default, because it cost accuracy on too many of 30 tables
    (docs: settings). One grid compares the methods. ``y`` may have several columns.

    Predictions are clipped to the range of the training targets (``bounded=True``): a solution of the
    elliptic equation obeys this maximum principle, but a network grows without limit far from the rows.
    Switch it off if targets of new rows can leave that range, for instance a quantity that grows with time.

    Weights, row order, random streams and threads behave as in `EllipticClassifier`.

    Args:
        method: ``"erm"`` (ordinary training), ``"elliptic"``, ``"mixup"``, ``"c-mixup"`` or ``"noise"``. With
            ``groups`` in `fit` also ``"groupdro"`` and ``"balanced"`` (every group equally often), which
            train the default network.
        module: Your own network, ``(rows, features)`` to ``(rows, targets)``: a module, of which a copy is
            trained from its present weights, or a function of ``(n_features, n_outputs)``.
        sigma_y: Diffusion coefficient of the scaled targets; None means ``sigma`` if that is a number,
            otherwise 0.
        alpha: Beta parameter of mixup and C-Mixup; None means 1 and 2.
        bandwidth: Bandwidth of C-Mixup, in units of the scaled targets; partners come from the batch.
        bounded: Clip predictions of each target to its range among the training rows. No margin is added.
        target_transform: ``"log"`` trains on the logarithm of the targets, which must be positive;
            predictions are in the units of ``y``. None trains on ``y``.
        n_networks: Number of networks with different seeds; their predictions are averaged.
        standardize: Scale columns and targets to mean 0 and standard deviation 1 with statistics of the
            training rows, because ``sigma`` is in units of the inputs. A constant column becomes 0.
        **others: As in `EllipticClassifier`: ``hidden``, ``sigma``, ``sampling``, ``n_times``, ``n_bridges``,
            ``pairing``, ``weighting``, ``eta``, ``bins``, ``max_iter``, ``batch_size``,
            ``learning_rate``, ``weight_decay``, ``early_stopping``, ``validation_fraction``,
            ``n_iter_no_change``, ``random_state`` and ``device``.

    Attributes:
        y_mean_, y_scale_: Numbers that each target (or its logarithm) is reduced and divided by.
        y_min_, y_max_: Smallest and largest target among the training rows.
        n_outputs_: Number of targets. Other attributes are those of `EllipticClassifier`.

    Example:
        >>> from sklearn.datasets import make_regression
        >>> X, y = make_regression(n_samples=200, n_features=3, random_state=0)
        >>> model = EllipticRegressor(max_iter=30, random_state=0).fit(X, y)
        >>> model.predict(X[:2]).shape
        (2,)
        >>> model.score(X, y) > 0.9
        True
    """

    method: str = "erm"
    bandwidth: float = 1.0
    bounded: bool = True
    target_transform: str | None = None

    _methods: ClassVar = ("elliptic", "erm", "mixup", "c-mixup", "noise", "balanced", "groupdro")

    def predict(self, X: Any) -> np.ndarray:
        """Predict the targets of each row, in the units and shape of the ``y`` of training."""
        return self._answers(torch.from_numpy(self._outputs(X))).numpy()

    def _answers(self, outputs: Tensor) -> Tensor:
        scale, mean, low, high = map(
            torch.from_numpy, (self.y_scale_, self.y_mean_, self.y_min_, self.y_max_)
        )
        values = outputs * scale + mean
        if self.target_transform == "log":
            values = values.clamp(max=_LARGEST_EXPONENT).exp()
        values = (values.clamp(low, high) if self.bounded else values).mean(0)
        return values[:, 0] if self._single_target else values

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        x, target = check_table(self, X, y, reset=reset, multi_output=True, y_numeric=True)
        if target.ndim == 2 and target.shape[1] == 1:
            target = column_or_1d(target, warn=True)
        if target.dtype.kind not in "biuf":  # dates would silently become numbers of some unit
            raise TypeError(f"y must hold numbers, but holds {target.dtype.name}. Convert them first.")
        table = np.asarray(target, dtype=np.float64).reshape(len(target), -1)
        if reset:
            self._single_target, self.n_outputs_ = target.ndim == 1, table.shape[1]
        if table.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {table.shape[1]} columns, but training had {self.n_outputs_}.")
        return x, table

    def _check_parameters(self, groups: np.ndarray | None) -> None:
        super()._check_parameters(groups)
        if self.target_transform is not None:
            checks.choice("target_transform", self.target_transform, ["log"])

    def _observe_targets(self, y: np.ndarray) -> None:
        self.y_min_, self.y_max_ = y.min(axis=0), y.max(axis=0)
        self.y_mean_, self.y_scale_ = location_and_scale(self._transform(y), self.standardize)

    def _learn(self, y: np.ndarray) -> np.ndarray:
        return ((self._transform(y) - self.y_mean_) / self.y_scale_).astype(np.float32)

    def _transform(self, y: np.ndarray) -> np.ndarray:
        if self.target_transform is None:
            return y
        if (y <= 0).any():
            raise ValueError(f'target_transform="log" needs y above zero, but the smallest is {y.min():g}.')
        return np.log(y)

    def _loss_kind(self) -> Loss:
        return "real"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.positive_only = self.target_transform == "log"
        return tags
