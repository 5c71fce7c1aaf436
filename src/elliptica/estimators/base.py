"""What the classifier and the regressor share: parameters, scaling, training, prediction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.optimizer import make_adam
from elliptica._utils.perceptron import mlp
from elliptica._utils.random import stream_seed
from elliptica.baselines import ERM, CMixup, Mixup
from elliptica.core.elliptic import Elliptic
from elliptica.core.noise import Sigma, auto_sigma
from elliptica.core.partners import Pairing
from elliptica.core.settings import Sampling, Settings
from elliptica.core.targets import infer_target_space
from elliptica.core.weighting import Weighting
from elliptica.estimators.columns import check_table
from elliptica.estimators.fit import (
    NetworkRows,
    Rows,
    content_order,
    hold_out,
    location_and_scale,
    private_stream,
    take,
    train_epoch,
)

#: A network, or what makes one from the numbers of features and outputs.
ModuleLike = nn.Module | Callable[[int, int], nn.Module]

_CHUNK = 8192  # rows that go through the network at once in prediction


@dataclass(kw_only=True, eq=False, repr=False)
class EllipticEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Parameters and training; explained at `EllipticClassifier` and `EllipticRegressor`."""

    hidden: Sequence[int] = (128, 128)
    module: ModuleLike | None = None
    method: str = "elliptic"
    sigma: Sigma = 0.1
    sigma_y: float | None = None
    sampling: Sampling = Settings.sampling
    n_times: int = Settings.n_times
    n_bridges: int = Settings.n_bridges
    horizon: float = Settings.horizon
    pairing: Pairing = Settings.pairing
    weighting: Weighting = Settings.weighting
    xi: float = Settings.xi
    alpha: float | None = None
    standardize: bool = True
    max_iter: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-4
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    device: str | torch.device = "cpu"
    verbose: bool = False

    #: Values of ``method``.
    _methods: ClassVar[tuple[str, ...]] = ("elliptic", "erm", "mixup")

    def network_rows(self, X: Any, y: Any) -> NetworkRows:
        """Network, loss, inputs and targets as training saw them: what `elliptica.diagnose` takes.

        Real targets are standardised, so that a squared error of 1 is their variance in training.

        Args:
            X: Table of numbers with the columns of training. Before a preprocessor, transform it first:
                ``pipeline[-1].network_rows(pipeline[:-1].transform(X), y)``.
            y: Targets, as in `fit`; classes must be among ``classes_``.

        Returns:
            ``(module, loss, x, y)``.
        """
        check_is_fitted(self, "module_")
        rows, target = self._check_rows(X, y, reset=False)
        target = self._scale_target(self._encode(target))
        place = self._place()
        return NetworkRows(
            self.module_,
            self._loss(),
            torch.from_numpy(self._scale(rows)).to(place),
            torch.from_numpy(target if target.dtype == np.int64 else target.astype(np.float32)).to(place),
        )

    def _train(
        self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, *, epochs: int, goes_on: bool
    ) -> None:
        """Train on checked rows, from the beginning or from where the last training ended."""
        self._check_parameters()
        device = torch.device(self.device)
        if weight is not None:
            kept = weight > 0
            x, y, weight = x[kept], y[kept], weight[kept]
        if not goes_on:
            self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        # the order in which rows came decides neither which are held out, nor the rounding of the means
        order = content_order(*(part.astype(np.float64) for part in (x, y, weight) if part is not None))
        rest: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None
        if self.early_stopping:
            chosen, held = hold_out(
                y[order],
                self.validation_fraction,
                self._loss_kind(),
                stream_seed(self._seed, "split") % 2**32,
            )
            rest = take(order[held], x, y, weight)
            order = order[np.sort(chosen)]
        x, y, weight = take(order, x, y, weight)
        if not goes_on:
            self._begin(x, y, weight)
        rows = Rows.in_order(self._scale(x), self._scale_target(y), weight)
        held_out = None if rest is None else (self._scale(rest[0]), *rest[1:])
        self._run(rows, held_out, epochs, device)

    def _begin(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Statistics of the training rows, and a network with initial weights."""
        self.x_mean_, self.x_scale_ = location_and_scale(x, weight, self.standardize)
        self._measure_target(y, weight)
        device = torch.device(self.device)
        sample = torch.from_numpy(self._scale(x[:2]))
        with private_stream(stream_seed(self._seed, "init"), torch.device("cpu")):
            network = make_network(self.module, self.hidden, x.shape[1], self.n_outputs_)
            if self.module is not None:
                check_output(network, sample, self.n_outputs_, self._meaning())
        self.module_ = network.to(device)
        self._optimizer: torch.optim.Optimizer | None = None
        self.loss_curve_: list[float] = []
        self.validation_scores_: list[float] | None = [] if self.early_stopping else None
        self.best_validation_score_: float | None = None
        self.n_iter_ = self.best_iteration_ = 0

    def _run(
        self,
        rows: Rows,
        held_out: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None,
        epochs: int,
        device: torch.device,
    ) -> None:
        """Epochs, and the choice among them if there is a validation part."""
        self.module_.to(device)
        num_classes = self.n_outputs_ if self._loss_kind() == "classes" else None
        objective = make_objective(self.get_params(deep=False), self.module_, self._loss(), num_classes, rows)
        optimizer = self._resume_optimizer()
        best: dict[str, Tensor] | None = None
        waited = 0
        if held_out is not None and self.n_iter_ > 0:  # the network as it is may remain the best
            self.best_validation_score_ = self._validation_score(self._forward(held_out[0]), *held_out[1:])
            best = copy.deepcopy(self.module_.state_dict())
            self.validation_scores_ = self.validation_scores_ or []  # early stopping may have been off
        for _ in range(epochs):
            mean = train_epoch(
                objective,
                optimizer,
                rows,
                batch_size=self.batch_size,
                seed=self._seed,
                epoch=self.n_iter_,
                device=device,
            )
            self.loss_curve_.append(mean)
            self.n_iter_ += 1
            if held_out is None:
                self.best_iteration_ = self.n_iter_
                self._tell(mean, None)
                continue
            score = self._validation_score(self._forward(held_out[0]), *held_out[1:])
            assert self.validation_scores_ is not None
            self.validation_scores_.append(score)
            self._tell(mean, score)
            before = self.best_validation_score_
            waited = 0 if before is None or score > before + self.tol else waited + 1
            if before is None or score > before:
                self.best_validation_score_, self.best_iteration_ = score, self.n_iter_
                best = copy.deepcopy(self.module_.state_dict())
            if waited >= self.n_iter_no_change:
                break
        if best is not None:
            self.module_.load_state_dict(best)
        self.module_.eval()

    def _resume_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the last training, with the present settings, or a new one."""
        settings = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self._optimizer is None:
            self._optimizer = make_adam(self.module_.parameters(), decoupled=True)
        for group in self._optimizer.param_groups:
            group.update(settings)
        return self._optimizer

    def _tell(self, loss: float, score: float | None) -> None:
        if self.verbose:
            shown = "" if score is None else f", validation score {score:.4f}"
            print(f"Epoch {self.n_iter_}: loss {loss:.4f}{shown}")  # noqa: T201 - asked for by verbose

    def _forward(self, scaled: np.ndarray) -> np.ndarray:
        """Outputs of the network for scaled rows, in float64.

        Our own network is evaluated in float64, so that a row's output does not depend on the rows that it
        is asked with. A network of the user's stays as it is.
        """
        network, device = self.module_, self._place()
        dtype = torch.float32
        if self.module is None and device.type != "mps":
            network, dtype = copy.deepcopy(network).double(), torch.float64
        network.eval()
        with torch.no_grad():
            parts = [
                network(part.to(device, dtype)).double().cpu()
                for part in torch.from_numpy(scaled).split(_CHUNK)
            ]
        return torch.cat(parts).numpy()

    def _outputs(self, X: Any) -> np.ndarray:
        """Outputs of the network for the user's rows."""
        check_is_fitted(self, "module_")
        return self._forward(self._scale(check_table(self, X, reset=False)))

    def _place(self) -> torch.device:
        """Where the network is."""
        return next((p.device for p in self.module_.parameters()), torch.device("cpu"))

    def _scale(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.x_mean_) / self.x_scale_).astype(np.float32)

    def _scale_target(self, y: np.ndarray) -> np.ndarray:
        return y

    def _measure_target(self, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Statistics of the targets, where they are scaled."""

    def _check_weight(self, sample_weight: Any, x: np.ndarray) -> np.ndarray | None:
        if sample_weight is None:
            return None
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64)
        if (weight < 0).any() or not weight.any():
            raise ValueError(
                "sample_weight must be at least zero, and not zero for all rows. Drop rows that are not to "
                "count, or give them weight 0."
            )
        return np.asarray(weight)

    def _check_parameters(self) -> None:
        checks.choice("method", self.method, self._methods)
        checks.count("max_iter", self.max_iter)
        checks.count("batch_size", self.batch_size)
        checks.count("n_iter_no_change", self.n_iter_no_change)
        checks.positive("learning_rate", self.learning_rate)
        checks.nonnegative("weight_decay", self.weight_decay)
        checks.nonnegative("tol", self.tol)
        checks.number("validation_fraction", self.validation_fraction)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be above 0 and below 1, but got {self.validation_fraction}. "
                "A tenth (0.1) is usual."
            )

    def _loss(self) -> nn.Module:
        """The ordinary loss of the task."""
        kinds = {"classes": nn.CrossEntropyLoss, "labels": nn.BCEWithLogitsLoss, "real": nn.MSELoss}
        return kinds[self._loss_kind()]()

    def _check_rows(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of the user, checked."""
        raise NotImplementedError

    def _encode(self, target: np.ndarray) -> np.ndarray:
        """Checked targets as numbers, refused if they are not of the kind that training began with."""
        raise NotImplementedError

    def _loss_kind(self) -> str:
        """``"classes"``, ``"labels"`` (several at once) or ``"real"``."""
        raise NotImplementedError

    def _meaning(self) -> str:
        """What the outputs are, for messages."""
        raise NotImplementedError

    def _validation_score(self, outputs: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
        """Larger is better."""
        raise NotImplementedError


def make_network(
    module: ModuleLike | None, hidden: Sequence[int], n_features: int, n_outputs: int
) -> nn.Module:
    """The network of an estimator, with initial weights from torch's default stream."""
    if module is None:
        for width in hidden:
            checks.count("hidden", width)
        return mlp(n_features, n_outputs, hidden=tuple(hidden))
    made = copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)
    if not isinstance(made, nn.Module):
        raise TypeError(
            "module must be a torch.nn.Module, or a function of (n_features, n_outputs) that returns one, "
            f"but it returned {type(made).__name__}."
        )
    return made


def check_output(network: nn.Module, x: Tensor, n_outputs: int, meaning: str) -> None:
    """Refuse a network whose output does not fit the targets, before any training."""
    network.eval()
    with torch.no_grad():
        output = network(x)
    got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if got != (len(x), n_outputs):
        raise ValueError(
            f"module must map {len(x)} rows to shape {(len(x), n_outputs)} ({meaning}), but gave {got}. "
            f"Change its last layer, or pass a function (n_features, n_outputs) -> module."
        )


def make_objective(
    parameters: dict[str, Any], network: nn.Module, loss: nn.Module, num_classes: int | None, rows: Rows
) -> nn.Module:
    """The objective named by ``method``, with the parameters that it takes.

    Args:
        parameters: Parameters of the estimator, by name.
        network: What is trained.
        loss: The ordinary loss.
        num_classes: Number of classes of integer labels, or None.
        rows: The training rows, on which ``sigma="auto"`` is measured.
    """
    method, alpha = parameters["method"], parameters["alpha"]
    if method == "erm":
        return ERM(network, loss, num_classes=num_classes)
    if method == "mixup":
        return Mixup(network, loss, alpha=1.0 if alpha is None else alpha, num_classes=num_classes)
    if method == "c-mixup":
        return CMixup(network, loss, alpha=2.0 if alpha is None else alpha, bandwidth=parameters["bandwidth"])
    sigma = parameters["sigma"]
    if isinstance(sigma, str) and sigma == "auto":
        sigma = auto_sigma(rows.x) if len(rows.x) > 1 else 0.0
    passed = {field.name: parameters[field.name] for field in fields(Settings) if field.name in parameters}
    if parameters["pairing"] != "label_kernel":
        passed.pop("bandwidth", None)  # of C-Mixup
    passed |= {"sigma": sigma, "target_space": infer_target_space(loss, rows.y)}
    return Elliptic(network, loss, num_classes=num_classes, **passed)
