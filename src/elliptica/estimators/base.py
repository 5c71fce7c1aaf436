"""Code that the classifier and the regressor share: parameters, scaling, training, prediction."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.perceptron import mlp
from elliptica._utils.random import stream_seed
from elliptica.baselines import ERM, CMixup, InputNoise, LabelSmoothing, Mixup
from elliptica.core.bridge import Sampling
from elliptica.core.elliptic import Elliptic
from elliptica.core.noise import Sigma, auto_sigma
from elliptica.core.partners import Pairing, Permutation, make_pairing
from elliptica.core.weighting import GradientSoftmax, Weighting, make_weighting
from elliptica.estimators.fit import Fit, fit_together, network_seeds, private_stream
from elliptica.estimators.points import GROUP_METHODS, METHODS, Table
from elliptica.estimators.stacked import Loss, Progress, Trained, init_parameters, one_thread

#: A network, or a function that makes one from the numbers of features and outputs.
ModuleLike = nn.Module | Callable[[int, int], nn.Module]

_CHUNK = 8192  # rows that are predicted at once


class NetworkRows(NamedTuple):
    """A trained network, and rows in the form that it sees.

    Attributes:
        module: The network itself, not a copy.
        loss: The ordinary loss of its task.
        x: Inputs, scaled, on the device of the network.
        y: Class numbers, zeros and ones for multilabel targets, or scaled real targets ``(rows, targets)``.
    """

    module: nn.Module
    loss: nn.Module
    x: Tensor
    y: Tensor


@dataclass(kw_only=True, eq=False, repr=False)
class EllipticEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Shared parameters and training, explained at `EllipticClassifier` and `EllipticRegressor`."""

    hidden: Sequence[int] = (128, 128)
    module: ModuleLike | None = None
    method: str = "elliptic"
    sigma: Sigma | Literal["auto"] = 0.1
    sigma_y: float | None = None
    sampling: Sampling = "marginal"
    n_times: int = 5
    n_bridges: int = 1
    pairing: str | Pairing = "permutation"
    weighting: str | Weighting | None = None
    alpha: float | None = None
    standardize: bool = True
    max_iter: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    n_networks: int = 1
    eta: float = 0.01
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    device: str | torch.device = "cpu"

    #: Values of ``method``.
    _methods: ClassVar[tuple[str, ...]] = ("elliptic", "erm", "mixup", "noise")

    def network_rows(self, X: Any, y: Any) -> NetworkRows:
        """Return network, loss, inputs and targets as in training: the arguments of `elliptica.diagnose`.

        Real targets are standardised. The network itself is not bounded, and its logits are not calibrated.
        After a preprocessor, transform ``X`` first: ``pipeline[:-1].transform(X)``.
        """
        check_is_fitted(self, "module_")
        rows, target = self._check_rows(X, y, reset=False)
        x, y = torch.from_numpy(self._scale(rows)), torch.from_numpy(self._learn(self._encode(target)))
        return NetworkRows(self.module_, self._loss(), x.to(self._place()), y.to(self._place()))

    def _fit(self, X: Any, y: Any, sample_weight: Any, groups: Any = None, **options: Any) -> Any:
        """Train alone: the case of one of `fit_together`."""
        resumes = options.pop("resumes", self.warm_start) and hasattr(self, "module_")
        (diverged,) = fit_together([Fit(self, X, y, sample_weight, groups, resumes=resumes, **options)])
        if diverged:
            raise FloatingPointError(
                f"The training loss became {self.loss_curve_[-1]}. Lower learning_rate or sigma, or keep "
                "standardize=True."
            )
        return self

    def _table(self, x: np.ndarray, y: np.ndarray, groups: np.ndarray | None) -> Table:
        """Convert rows to what networks see; `y` are numbers as `_learn` returns them."""
        target = torch.from_numpy(y)
        none = torch.zeros(len(x), dtype=torch.long)
        group = none if groups is None else torch.from_numpy(groups)
        if self._loss_kind() == "classes":
            encoded = nn.functional.one_hot(target, self.n_outputs_).float()
            return Table(torch.from_numpy(x), encoded, target, group)
        return Table(torch.from_numpy(x), target, none, group)

    def _loss(self) -> nn.Module:
        """Return the ordinary loss of the task."""
        kinds = {"classes": nn.CrossEntropyLoss, "labels": nn.BCEWithLogitsLoss, "real": nn.MSELoss}
        return kinds[self._loss_kind()]()

    def _stacked_method(self) -> tuple[str, dict[str, float]] | None:
        """Return name and settings of the method for `train_stack`, or None if it needs the general loop.

        The stack writes out gradients of perceptrons at single points by hand. It cannot train your own
        modules, on other devices, on paths, or with other pairings, weightings and noise laws.
        """
        method, settings, sigma = self.method, dict[str, float](), self.sigma
        is_ours = self.module is None and torch.device(self.device).type == "cpu"
        if not is_ours or (method in ("noise", "elliptic") and not isinstance(sigma, float | int)):
            return None
        if method == "elliptic":
            assert isinstance(sigma, float | int)
            weighting, sigma_y = make_weighting(self.weighting), self.sigma_y
            if sigma_y is None:
                sigma_y = sigma if self._loss_kind() == "real" else 0.0
            if (
                type(weighting) not in (type(None), GradientSoftmax)
                or (self.sampling, self.n_bridges) != ("marginal", 1)
                or make_pairing(self.pairing) != Permutation()
                or (self._loss_kind() != "real" and sigma_y != 0)
            ):
                return None
            if isinstance(weighting, GradientSoftmax):
                method, settings["xi"] = "elliptic-weighted", weighting.xi
            settings["sigma_y"] = sigma_y
        known = {name: getattr(self, name, None) for name in METHODS[method]}
        return method, {name: value for name, value in known.items() if value is not None} | settings

    def _objective(self, network: nn.Module, x: Tensor) -> nn.Module:
        """Create the objective of ``method`` for the general loop."""
        loss, sigma = self._loss(), cast("Any", self.sigma)
        kind: dict[str, Any] = {"num_classes": self.n_outputs_ if self._loss_kind() == "classes" else None}
        if isinstance(sigma, str) and sigma == "auto":
            sigma = auto_sigma(x) if len(x) > 1 else 0.0
        alpha: dict[str, Any] = {} if self.alpha is None else {"alpha": self.alpha}
        if self.method == "erm":
            return ERM(network, loss, **kind)
        if self.method == "mixup":
            return Mixup(network, loss, **alpha, **kind)
        if self.method == "c-mixup":
            return CMixup(network, loss, **{"alpha": 2.0, **alpha}, bandwidth=self.bandwidth)
        if self.method == "smoothing":
            return LabelSmoothing(network, loss, smoothing=self.smoothing, **kind)
        if self.method == "noise":
            return InputNoise(network, loss, sigma=sigma, **kind)
        names = ("sigma_y", "sampling", "n_times", "n_bridges", "pairing", "weighting")
        passed: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Elliptic(network, loss, sigma=sigma, **kind, **passed)

    def _make_networks(self, n_features: int) -> list[nn.Module]:
        """Create the networks with their initial weights."""
        networks = []
        for seed in network_seeds(self._seed, self.n_networks):
            with private_stream(stream_seed(seed, "init"), torch.device("cpu")):
                network = make_network(self.module, self.hidden, n_features, self.n_outputs_)
            if self.module is None:
                sizes = [n_features, *self.hidden, self.n_outputs_]
                network.load_state_dict(Trained(init_parameters(sizes, seed), Progress()).state_dict())
            else:
                check_output(network, n_features, self.n_outputs_)
            networks.append(network)
        return networks

    def _set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Combine the networks into one module."""
        self.module_ = networks[0] if len(networks) == 1 else Ensemble(networks, self._loss_kind())
        self.module_.eval()

    def _networks(self) -> list[nn.Module]:
        """Return the networks, one or several."""
        return list(self.module_.networks) if isinstance(self.module_, Ensemble) else [self.module_]

    def _summarise(self) -> None:
        """Set attributes that describe the training; for several networks, means, medians and the longest."""
        self.n_iter_ = max(one.epochs for one in self._progress)
        self.best_iteration_ = int(np.median([one.best_epoch for one in self._progress]))
        self.loss_curve_ = mean_curve(one.losses for one in self._progress)
        self.validation_curve_ = mean_curve(one.validation_losses for one in self._progress)

    def _forward(self, scaled: np.ndarray) -> np.ndarray:
        """Compute outputs ``(networks, rows, outputs)`` for scaled rows.

        Default networks are evaluated in float64, so that the output of a row does not depend on the other
        rows of the call. Your own networks keep their number format.
        """
        device, dtype, networks = self._place(), torch.float32, self._networks()
        is_ours = self.module is None and device.type == "cpu"
        if is_ours:
            networks, dtype = [copy.deepcopy(network).double() for network in networks], torch.float64
        parts = torch.from_numpy(scaled).split(_CHUNK)
        with torch.no_grad(), one_thread() if is_ours else contextlib.nullcontext():
            outputs = [
                torch.cat([n(part.to(device, dtype)).double().cpu() for part in parts]) for n in networks
            ]
        return torch.stack(outputs).numpy()

    def _outputs(self, X: Any) -> np.ndarray:
        """Compute outputs ``(networks, rows, outputs)`` for the user's rows."""
        check_is_fitted(self, "module_")
        return self._forward(self._scale(check_table(self, X, reset=False)))

    def _place(self) -> torch.device:
        """Return the device of the network."""
        return next((p.device for p in self.module_.parameters()), torch.device("cpu"))

    def _scale(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.x_mean_) / self.x_scale_).astype(np.float32)

    def _check_parameters(self, groups: np.ndarray | None) -> None:
        checks.choice("method", self.method, self._methods)
        checks.positive("learning_rate", self.learning_rate)
        checks.nonnegative("weight_decay", self.weight_decay)
        if isinstance(self.sigma, float | int):
            checks.nonnegative("sigma", self.sigma)
        for name in ("max_iter", "batch_size", "n_networks"):
            checks.count(name, getattr(self, name))
        if self.method in GROUP_METHODS and (groups is None or self._stacked_method() is None):
            raise ValueError(
                f'method="{self.method}" needs the group of each row, fit(X, y, groups=...), and trains the '
                "default network on the CPU."
            )

    # ---- what the classifier and the regressor define, or may

    def _check_rows(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Check the user's inputs and targets."""
        raise NotImplementedError

    def _begin(self, target: np.ndarray) -> None:
        """Set the classes, or the number of targets, at the start of a training."""
        raise NotImplementedError

    def _encode(self, target: np.ndarray) -> np.ndarray:
        """Convert checked targets to numbers; raise if they are not of the kind that training began with."""
        raise NotImplementedError

    def _observe_targets(self, y: np.ndarray, resumes: bool) -> None:
        """Compute statistics of the encoded targets of the training rows."""
        raise NotImplementedError

    def _learn(self, y: np.ndarray) -> np.ndarray:
        """Convert encoded targets to what networks learn: class numbers, or scaled float32 numbers."""
        raise NotImplementedError

    def _loss_kind(self) -> Loss:
        """Return ``"classes"``, ``"labels"`` (several at once) or ``"real"``."""
        raise NotImplementedError

    def _combined_weight(self, weight: np.ndarray | None, codes: np.ndarray) -> np.ndarray | None:
        """Multiply sample weights by class weights."""
        return weight

    def _needs_held_out_rows(self) -> bool:
        return self.early_stopping

    def _calibrate(self, scaled: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Adjust trained networks to held-out rows if requested."""


class Ensemble(nn.Module):
    """Several networks as one; its probabilities, or values, are the means of theirs.

    Args:
        networks: Networks with the same inputs and outputs.
        kind: Kind of the outputs: ``"classes"``, ``"labels"`` or ``"real"``.
    """

    def __init__(self, networks: Iterable[nn.Module], kind: str) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the mean probabilities, or the mean output."""
        return pool(torch.stack([network(x) for network in self.networks]), self.kind)


def pool(outputs: Tensor, kind: str) -> Tensor:
    """Average outputs ``(networks, rows, outputs)`` over networks; logits are averaged as probabilities."""
    if len(outputs) == 1:
        return outputs[0]
    if kind == "classes":
        return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))
    if kind == "labels":
        log = nn.functional.logsigmoid
        return log(outputs).logsumexp(0) - log(-outputs).logsumexp(0)
    return outputs.mean(0)


def mean_curve(curves: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean of each epoch over the curves that reach it."""
    rows = ([value for value in column if value is not None] for column in itertools.zip_longest(*curves))
    return [sum(values) / len(values) for values in rows]


def make_network(
    module: ModuleLike | None, hidden: Sequence[int], n_features: int, n_outputs: int
) -> nn.Module:
    """Create the network of an estimator, with initial weights from torch's default stream."""
    if module is None:
        return mlp(n_features, n_outputs, hidden=tuple(hidden))
    return copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)


def check_output(network: nn.Module, n_features: int, n_outputs: int) -> None:
    """Raise before training if the output of a network does not fit the targets: it would be broadcast."""
    network.eval()
    with torch.no_grad():
        shape = tuple(network(torch.zeros(2, n_features)).shape)
    if shape != (2, n_outputs):
        raise ValueError(
            f"module must map 2 rows to shape {(2, n_outputs)}, but returned {shape}. Change its last layer, "
            "or pass a function (n_features, n_outputs) -> module."
        )


def check_table(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, **options: Any) -> Any:
    """Check inputs and targets as scikit-learn does; times would silently become numbers of some unit."""
    dtypes = getattr(X, "dtypes", None)
    kinds = [X.dtype] if isinstance(X, np.ndarray) else [] if dtypes is None else list(dtypes)
    if any(str(kind).lower().startswith(("date", "time", "duration")) for kind in kinds):
        raise TypeError(
            "X holds times. Put TablePreprocessor before the estimator, or convert them to numbers."
        )
    return validate_data(estimator, X, y, dtype=[np.float64, np.float32], reset=reset, **options)


def supports_partial_fit(estimator: EllipticEstimator) -> bool:
    """Check that `partial_fit` is available, as in scikit-learn; it cannot hold rows out."""
    if estimator._needs_held_out_rows():
        raise AttributeError(
            "partial_fit cannot hold rows out, so it does not support early_stopping and calibrate."
        )
    return True
