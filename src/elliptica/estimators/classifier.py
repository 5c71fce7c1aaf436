"""A classifier for tables with scikit-learn's interface, trained on bridges between the rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.statistics import fit_temperature
from elliptica.estimators.base import EllipticEstimator, check_table, pool
from elliptica.estimators.stacked import GROUP_METHODS, Loss

#: Methods for one label per row.
_ONE_LABEL = ("smoothing", *GROUP_METHODS)


@dataclass(kw_only=True, eq=False, repr=False)
class EllipticClassifier(ClassifierMixin, EllipticEstimator):  # type: ignore[misc]
    """A neural network for class labels, trained by elliptic loss regularisation (paper: Algorithm 1).

    A perceptron with scikit-learn's interface, for pipelines, grid search and cross-validation. It is trained
    on points of Brownian bridges between the rows instead of the rows alone. ``method`` switches to ordinary
    training or mixup, so that one grid compares them. Labels may be numbers, strings or booleans; a 2-D ``y``
    of zeros and ones is multilabel. Do not use it if a row between two rows has no meaning.

    Weights are frequencies: a row of weight 2 is drawn twice in an epoch, as itself and as a partner. Rows of
    zero weight are ignored. torch's global random stream is not changed. Small networks are trained with one
    torch thread, because sharing their products among threads costs more than it saves.

    Args:
        hidden: Units of the hidden layers of the default network (leaky ReLU); ``()`` is linear.
        module: Your own network, ``(rows, features)`` to ``(rows, classes)`` logits: a module, of which a
            copy is trained from its present weights, or a function of ``(n_features, n_outputs)``.
        method: ``"elliptic"``, ``"erm"`` (ordinary training), ``"mixup"``, ``"noise"`` (Gaussian noise with
            standard deviation ``sigma`` on the scaled inputs, no bridge) or ``"smoothing"`` (of labels). With
            ``groups`` in `fit` also ``"groupdro"``, ``"lisa"`` and ``"balanced"`` (every group equally
            often), which train the default network.
        sigma: Diffusion coefficient in units of the scaled inputs, see `elliptica.Elliptic`; 0 gives straight
            lines, ``"auto"`` measures it with `elliptica.auto_sigma` on the training rows.
        sigma_y: Diffusion coefficient of the labels. None means 0: labels change linearly along a bridge. The
            paper uses ``sigma``, which smooths the labels.
        sampling: ``"marginal"`` (one point per bridge) or ``"path"`` (``n_times`` points on each).
        n_times: Number of times on a bridge, both ends included; 2 is ordinary training.
        n_bridges: Bridges per row.
        pairing: How the ends of bridges are chosen, a name or an object such as ``InverseDistance(power=2)``,
            see `elliptica.Elliptic`; partners come from the batch.
        weighting: Importance weighting, a name or an object such as ``GradientSoftmax(xi=0.5)``, see
            `elliptica.Elliptic`.
        alpha: Beta parameter of mixup and LISA; None means 1 and 2.
        smoothing: Share of a label that ``method="smoothing"`` spreads over all classes.
        eta: Step size of the group weights of Group DRO.
        standardize: Scale columns to mean 0 and standard deviation 1 with statistics of the training rows,
            because ``sigma`` is in units of the inputs. A constant column becomes 0.
        bins: The default network sees each number also by its place in so many quantile bins, which helps
            where targets change in steps or numbers are skewed, and harms where they are smooth. Points are
            drawn before. 0 shows it the number only.
        max_iter: Number of epochs. An average of the weights is kept, which prefers those of the last steps.
        batch_size: Rows per step; a batch may hold the end of one epoch and the start of the next.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        early_stopping: Hold out part of the rows, stop when their loss stops falling, keep the best network.
        validation_fraction: Share of rows to hold out (stratified if possible).
        n_iter_no_change: Epochs without a lower loss before training stops.
        calibrate: ``"temperature"`` divides logits by one number, `temperature_`, fitted to held-out rows
            (``validation_fraction`` of all, which are then not trained on; with ``early_stopping`` the same
            rows choose the epoch). Predicted labels do not change. A temperature fitted on the training
            distribution may not hold for shifted data.
        n_networks: Number of networks with different seeds; their probabilities are averaged. They are
            trained side by side if the method allows it: all except your own modules, path sampling, several
            bridges, other pairings, weightings and noise laws.
        class_weight: ``"balanced"`` or a dict from class to weight; multiplies ``sample_weight``. Not for
            multilabel targets.
        random_state: Seed of the initial weights, the order of rows and the noise.
        device: Device to train on, for instance ``"cuda"``.

    Attributes:
        classes_: Sorted labels; column numbers for multilabel targets.
        module_: The trained network; it expects scaled rows. Several networks are one module that returns the
            logits of their mean probabilities.
        temperature_: Divisor of the logits; 1 without ``calibrate``.
        x_mean_, x_scale_: Numbers that each column is reduced and divided by.
        n_iter_: Number of epochs.
        ended_: ``"patience"``, or ``"length"`` after ``max_iter`` epochs: with ``early_stopping``, the loss
            was still falling, and more epochs may help.
        knots_: Ends of the bins of each scaled column, NaN for one of two values; None without ``bins``.
        loss_curve_: Mean training loss of each epoch.
        validation_curve_: Loss on the held-out rows after each epoch; empty without ``early_stopping``.
        best_iteration_: Epoch whose network was kept. For several networks, this is the median, ``n_iter_``
            the largest, and curves are means.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = EllipticClassifier(max_iter=20, random_state=0).fit(X, y)
        >>> model.predict(X[:2])
        array([0, 0])
        >>> model.score(X, y) > 0.9
        True
    """

    class_weight: str | Mapping[Any, float] | None = None
    smoothing: float = 0.1
    calibrate: str | None = None

    _methods: ClassVar = ("elliptic", "erm", "mixup", "noise", "smoothing", *GROUP_METHODS)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable label of each row; for multilabel targets, all labels above 0.5."""
        outputs = self._pooled(X)
        if self._is_multilabel:
            return (outputs > 0).astype(int)
        return np.asarray(self.classes_[outputs.argmax(axis=1)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict probabilities of the classes, in the order of ``classes_``, averaged over networks.

        Training between rows makes them less confident than ordinary training does, see ``calibrate``.
        """
        return self._answers(torch.from_numpy(self._outputs(X))).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Return logits before calibration; for two classes, second minus first."""
        outputs = self._pooled(X)
        if self._is_multilabel or outputs.shape[1] > 2:
            return outputs
        return np.asarray(outputs[:, -1] - outputs[:, 0])

    def _pooled(self, X: Any) -> np.ndarray:
        """Return the logits of the mean probabilities of the networks."""
        return pool(torch.from_numpy(self._outputs(X)), self._loss_kind()).numpy()

    def _answers(self, outputs: Tensor) -> Tensor:
        logits = pool(outputs, self._loss_kind()) / self.temperature_
        return logits.sigmoid() if self._is_multilabel else logits.softmax(1)

    def _check_parameters(self, groups: np.ndarray | None) -> None:
        super()._check_parameters(groups)
        if self.calibrate is not None:
            checks.choice("calibrate", self.calibrate, ["temperature"])
        is_one_label = self.calibrate or self.method in _ONE_LABEL or self.class_weight is not None
        if is_one_label and self._is_multilabel:
            raise ValueError(f'calibrate, class_weight, method="{self.method}" need one label per row.')

    def _observe_targets(self, y: np.ndarray) -> None:
        self.temperature_ = 1.0

    def _calibrate(self, scaled: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        if self.calibrate is not None:
            logits = pool(torch.from_numpy(self._forward(scaled)), "classes").numpy()
            self.temperature_ = fit_temperature(logits, y, weight)
            if self.temperature_ == 1.0 and logits.shape[1] > 1:
                warnings.warn(
                    f"All {len(y)} held-out rows are classified correctly, so they determine no temperature. "
                    "Hold out more rows with validation_fraction.",
                    stacklevel=2,
                )

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Convert labels to class numbers, or to zeros and ones for multilabel targets."""
        x, labels = check_table(self, X, y, reset=reset, multi_output=True)
        if hasattr(labels, "toarray"):  # a sparse indicator of several labels
            labels = labels.toarray()
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        if labels.ndim == 2 and type_of_target(labels) != "multilabel-indicator":
            raise ValueError("A 2-D y must be an indicator of several labels (zeros and ones).")
        if reset:
            self._is_multilabel = labels.ndim == 2
            self.classes_ = np.arange(labels.shape[1]) if self._is_multilabel else np.unique(labels)
            self.n_outputs_ = len(self.classes_)
        if self._is_multilabel and labels.ndim == 2 and labels.shape[1] == self.n_outputs_:
            return x, np.asarray(labels, dtype=np.float32)
        if self._is_multilabel or labels.ndim != 1 or not np.isin(labels, self.classes_).all():
            raise ValueError(f"y must hold classes of the training, {self.classes_}, in the same shape.")
        return x, np.searchsorted(self.classes_, labels).astype(np.int64)

    def _learn(self, y: np.ndarray) -> np.ndarray:
        return y

    def _combined_weight(self, weight: np.ndarray | None, codes: np.ndarray) -> np.ndarray | None:
        if self.class_weight is None or self._is_multilabel:
            return weight
        if self.class_weight == "balanced":  # by the weights of the classes, not only by their rows
            sizes = np.bincount(codes, weights=weight, minlength=self.n_outputs_)
            of_class = sizes.sum() / (np.count_nonzero(sizes) * np.where(sizes > 0, sizes, 1.0))
        else:
            of_class = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[codes])
        combined = of_class[codes] * (1.0 if weight is None else weight)
        if (combined < 0).any() or not combined.any():
            raise ValueError("class_weight must be at least zero, and above zero for some row.")
        return np.asarray(combined)

    def _loss_kind(self) -> Loss:
        return "labels" if self._is_multilabel else "classes"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.calibrate is None and self.method not in _ONE_LABEL
        return tags
