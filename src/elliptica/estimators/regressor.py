"""A regressor for tables with scikit-learn's interface, trained on bridges between the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d

from elliptica.estimators.base import EllipticEstimator
from elliptica.estimators.columns import check_table
from elliptica.estimators.fit import location_and_scale


@dataclass(kw_only=True, eq=False, repr=False)
class EllipticRegressor(MultiOutputMixin, RegressorMixin, EllipticEstimator):  # type: ignore[misc]
    """A neural network for real targets, trained by elliptic loss regularisation (paper: Algorithm 1).

    A perceptron with scikit-learn's interface and the squared error: instead of on the rows alone it is
    trained on points of Brownian bridges between them, targets included. ``method`` switches to ordinary
    training, mixup or C-Mixup, so that one grid compares them. ``y`` may have several columns.

    What is said of weights, of the order of rows and of random streams at `EllipticClassifier` holds here.

    Args:
        hidden: Units of the hidden layers of the default network (leaky ReLU); ``()`` is linear.
        module: Another network, ``(rows, features)`` to ``(rows, targets)``: a module, of which a copy is
            trained from the weights it has, or a function of ``(n_features, n_outputs)``.
        method: ``"elliptic"``, ``"erm"`` (ordinary training), ``"mixup"`` or ``"c-mixup"``.
        sigma: Diffusion coefficient in units of the scaled inputs, see `elliptica.Elliptic`; 0 is straight
            lines.
        sigma_y: The same for the scaled targets; None means ``sigma`` if that is a number, otherwise 0.
        sampling: ``"marginal"`` (one point per bridge) or ``"path"`` (``n_times`` points on each).
        n_times: Times on a bridge, both ends included; 2 is ordinary training.
        n_bridges: Bridges per row.
        horizon: Length of the time interval; only ``sigma * sqrt(horizon)`` matters.
        pairing: Where bridges end, see `elliptica.sample_partners`; partners come from the batch.
        weighting: Importance weighting, see `elliptica.Elliptic`.
        xi: Its strength.
        alpha: Of mixup and C-Mixup; None is 1 and 2.
        bandwidth: Of C-Mixup and of ``pairing="label_kernel"``, in units of the scaled targets; partners come
            from the batch.
        standardize: Scale columns and targets to mean 0 and deviation 1, with statistics of the training rows
            that the estimator keeps, because ``sigma`` is in units of the inputs. Predictions are in the
            units of ``y``. A constant column becomes 0.
        max_iter: Epochs.
        batch_size: Rows of a step; batches of an epoch are of equal size, up to one row.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        early_stopping: Hold a part of the rows out, stop when its score no longer grows, and keep the best
            network; statistics are those of the other rows. Otherwise ``max_iter`` epochs are run.
        validation_fraction: Share of that part.
        n_iter_no_change: Epochs without a better score before it stops.
        tol: How much better counts.
        warm_start: Let `fit` go on from the last one, on data of the same columns and targets.
        random_state: Seed of the initial weights, of the order and of the noise.
        device: Where to train, for instance ``"cuda"``.
        verbose: Print a line after each epoch.

    Attributes:
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if ``X`` was a frame.
        module_: The trained network; from scaled rows to scaled targets.
        x_mean_: What is taken from each column,
        x_scale_: and by what it is divided.
        y_mean_: The same for each target,
        y_scale_: and its divisor.
        n_iter_: Epochs that the network was trained for, over all calls.
        loss_curve_: Mean training loss of each epoch, in scaled units.
        validation_scores_: R2 on the held-out rows after each epoch, or None.
        best_validation_score_: The largest of them, or None.
        best_iteration_: Epochs after which the network was as it is kept.
        n_outputs_: Number of targets.

    Example:
        >>> from sklearn.datasets import make_regression
        >>> X, y = make_regression(n_samples=200, n_features=3, random_state=0)
        >>> model = EllipticRegressor(max_iter=30, random_state=0).fit(X, y)
        >>> model.predict(X[:2]).shape
        (2,)
        >>> model.score(X, y) > 0.9
        True
    """

    bandwidth: float = 1.0

    _methods: ClassVar[tuple[str, ...]] = ("elliptic", "erm", "mixup", "c-mixup")

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EllipticRegressor:
        """Train the network.

        Args:
            X: Table of numbers ``(rows, features)``: array or frame, dense and finite.
            y: Targets, one or several columns.
            sample_weight: Weight of each row, at least 0.
        """
        goes_on = self.warm_start and hasattr(self, "module_")
        return self._fit(X, y, sample_weight, epochs=self.max_iter, goes_on=goes_on)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> EllipticRegressor:
        """Train for one epoch on these rows, from where the last call ended.

        Scaling is that of the first call. So many calls with the same rows equal one `fit` with so many
        epochs.

        Args:
            X: Table of numbers.
            y: Targets.
            sample_weight: Weight of each row, at least 0.
        """
        if self.early_stopping:
            raise ValueError(
                "partial_fit knows one batch at a time, so early_stopping=True does not go with it. Use fit."
            )
        return self._fit(X, y, sample_weight, epochs=1, goes_on=hasattr(self, "module_"))

    def predict(self, X: Any) -> np.ndarray:
        """Targets of each row, in the units and the shape of the ``y`` of training."""
        values = self._outputs(X) * self.y_scale_ + self.y_mean_
        return values[:, 0] if self._is_flat else values

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, epochs: int, goes_on: bool) -> EllipticRegressor:
        x, target = self._check_rows(X, y, reset=not goes_on)
        if not goes_on:
            self._is_flat, self.n_outputs_ = target.ndim == 1, target[0].size
        weight = self._check_weight(sample_weight, x)
        self._train(x, self._encode(target), weight, epochs=epochs, goes_on=goes_on)
        return self

    def _check_rows(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        x, target = check_table(self, X, y, y_numeric=True, reset=reset)
        if target.ndim == 2 and target.shape[1] == 1:
            target = column_or_1d(target, warn=True)
        return x, np.asarray(target, dtype=np.float64)

    def _encode(self, target: np.ndarray) -> np.ndarray:
        """Targets as a table of numbers."""
        table = target.reshape(len(target), -1)
        if (target.ndim == 1, table.shape[1]) != (self._is_flat, self.n_outputs_):
            raise ValueError(
                f"y must have {self.n_outputs_} columns as before, but has shape {target.shape}. Train anew "
                "(warm_start=False)."
            )
        return table

    def _measure_target(self, y: np.ndarray, weight: np.ndarray | None) -> None:
        self.y_mean_, self.y_scale_ = location_and_scale(y, weight, self.standardize)

    def _scale_target(self, y: np.ndarray) -> np.ndarray:
        return (y - self.y_mean_) / self.y_scale_

    def _loss_kind(self) -> str:
        return "real"

    def _meaning(self) -> str:
        return "one output per target"

    def _validation_score(self, outputs: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
        return float(r2_score(y, outputs * self.y_scale_ + self.y_mean_, sample_weight=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags
