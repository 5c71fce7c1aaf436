"""Code that the classifier and the regressor share: parameters, scaling, training, prediction."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.perceptron import make_adam, mlp
from elliptica._utils.random import stream_seed
from elliptica.baselines import ERM, CMixup, InputNoise, LabelSmoothing, Mixup
from elliptica.core.bridge import Sampling
from elliptica.core.elliptic import Elliptic
from elliptica.core.noise import Sigma, auto_sigma
from elliptica.core.partners import Pairing, Permutation, make_pairing
from elliptica.core.weighting import GradientSoftmax, Weighting, make_weighting
from elliptica.estimators.columns import check_table
from elliptica.estimators.fit import (
    SMALL_STEP,
    Held,
    NetworkRows,
    Progress,
    Rows,
    batch_sizes,
    content_order,
    diverged,
    draw_seed,
    epoch_length,
    hold_out,
    location_and_scale,
    one_thread,
    private_stream,
    take,
    train_epoch,
)
from elliptica.estimators.stacked import GROUP_METHODS, StackedJob, train_stacked

#: A network, or a function that makes one from the numbers of features and outputs.
ModuleLike = nn.Module | Callable[[int, int], nn.Module]

_CHUNK = 8192  # rows that are predicted at once

#: Weights from here on are refused.
LARGE_WEIGHT = 1e100


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
    tol: float = 1e-4
    n_networks: int = 1
    eta: float = 0.01
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    device: str | torch.device = "cpu"
    verbose: bool = False

    #: Values of ``method``.
    _methods: ClassVar[tuple[str, ...]] = ("elliptic", "erm", "mixup", "noise")

    def network_rows(self, X: Any, y: Any) -> NetworkRows:
        """Return network, loss, inputs and targets as in training: the arguments of `elliptica.diagnose`.

        Real targets are standardised, so a squared error of 1 is their variance in training. The network
        itself is not bounded, and its logits are not calibrated.

        Args:
            X: Table of numbers with the columns of training. After a preprocessor, transform it first:
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
        self,
        x: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None,
        *,
        goes_on: bool,
        groups: np.ndarray | None = None,
        epochs: int | None = None,
    ) -> None:
        """Train on checked rows, from scratch or from the end of the last training.

        Args:
            x: Inputs.
            y: Targets as numbers.
            weight: Weights of rows, or None.
            goes_on: Whether to resume the last training.
            groups: Numbers of groups, or None.
            epochs: Epochs of a `partial_fit`; None means ``max_iter``.
        """
        self._check_parameters()
        if goes_on:
            self.check_networks()
        self._check_stack(groups, goes_on or epochs is not None)
        if weight is not None:
            x, y, weight, groups = take(weight > 0, x, y, weight, groups)
        self._observe_targets(y, goes_on)
        if not goes_on:
            self._seed = draw_seed(self.random_state)
        # the order of the rows must not decide which are held out, nor how means are rounded
        order = content_order(*(p.astype(np.float64) for p in (x, y, weight, groups) if p is not None))
        held_out: Held | None = None
        if self._needs_held_out_rows():
            chosen, held = hold_out(
                x[order],
                y[order],
                self.validation_fraction,
                self._loss_kind(),
                stream_seed(self._seed, "split") % 2**32,
            )
            held_out = Held(*take(order[held], x, y, weight))
            order = order[np.sort(chosen)]
        x, y, weight, groups = take(order, x, y, weight, groups)
        with self._threads(x.shape[1], self.batch_size):
            if not goes_on:
                self._begin(x, y, weight)
            rows = Rows.in_order(self._scale(x), self._scale_target(y), weight, groups)
            if held_out is not None:
                held_out = held_out._replace(x=self._scale(held_out.x))
            try:
                if not goes_on and epochs is None and self._is_stacked(x.shape[1]):
                    self._run_stack(rows)
                else:
                    self._run_loops(rows, held_out if self.early_stopping else None, epochs or self.max_iter)
            finally:
                self._summarise()
            if held_out is not None:
                self._calibrate(held_out)

    def _begin(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Compute statistics of the training rows, and initialise the networks."""
        self.x_mean_, self.x_scale_ = location_and_scale(x, weight, self.standardize)
        self._measure_target(y, weight)
        sample = torch.from_numpy(self._scale(x[:2]))
        seeds = network_seeds(self._seed, self.n_networks)
        networks = []
        for seed in seeds:
            with private_stream(stream_seed(seed, "init"), torch.device("cpu")):
                networks.append(make_network(self.module, self.hidden, x.shape[1], self.n_outputs_))
                if self.module is not None:
                    check_output(networks[-1], sample, self.n_outputs_, self._meaning())
        self._set_networks(networks)
        self._progress = [Progress(seed) for seed in seeds]

    def _run_loops(self, rows: Rows, held_out: Held | None, epochs: int) -> None:
        """Train the networks one after the other."""
        self.module_.to(torch.device(self.device))
        for network, progress in zip(self._networks(), self._progress, strict=True):
            self._run(network, progress, rows, held_out, epochs)
        self.module_.eval()

    def _run_stack(self, rows: Rows) -> None:
        """Train all networks side by side."""
        parameters = self.get_params(deep=False)
        method, settings = stacked_method(parameters, self._loss_kind()) or (self.method, {})
        # with weights of one, rows are drawn the same way as copies of them
        weight = np.ones(len(rows.x)) if rows.weight is None else rows.weight
        trained = train_stacked(
            [rows.x],
            [rows.y],
            [
                StackedJob(np.arange(len(rows.x)), 0, progress.seed, method, settings, weight=weight)
                for progress in self._progress
            ],
            loss="classes" if self._loss_kind() == "classes" else "real",
            n_outputs=self.n_outputs_,
            hidden=self.hidden,
            batch_size=batch_sizes(epoch_length(weight), self.batch_size)[0],
            groups=None if rows.groups is None else [rows.groups],
        )
        for number, (network, progress) in enumerate(zip(self._networks(), self._progress, strict=True)):
            progress.loss_curve = trained.loss_curves[number]
            progress.n_iter = progress.best_iteration = trained.epochs[number]
            if trained.failed[number]:
                raise diverged(progress.loss_curve[-1], progress.n_iter)
            network.load_state_dict(trained.state_dict(number))
            self._tell(progress, None)
        self.module_.eval()

    def _is_stacked(self, n_features: int) -> bool:
        """Return whether networks are trained side by side: several small default ones, or group methods."""
        if self.method in GROUP_METHODS:
            return True
        return (
            self.n_networks > 1
            and not self.early_stopping
            and not self.warm_start  # warm starts need the optimisers
            and self.module is None
            and torch.device(self.device).type == "cpu"
            and self._is_small(n_features, self.batch_size)
            and stacked_method(self.get_params(deep=False), self._loss_kind()) is not None
        )

    def _check_stack(self, groups: np.ndarray | None, goes_on: bool) -> None:
        """Raise if a group method is combined with options that it does not support."""
        if self.method not in GROUP_METHODS:
            return
        if groups is None:
            raise ValueError(
                f'method="{self.method}" needs the group of each row: fit(X, y, groups=...). Without groups, '
                'use method="erm".'
            )
        odd = {
            "module": self.module is not None,
            "device": torch.device(self.device).type != "cpu",
            "early_stopping": self.early_stopping,
            "warm_start and partial_fit": goes_on,
        }
        if wrong := [name for name, is_so in odd.items() if is_so]:
            raise ValueError(
                f'method="{self.method}" trains the default network on the CPU in one go, so it does not '
                f"support {', '.join(wrong)}. Omit these options, or use another method."
            )

    def _run(
        self,
        network: nn.Module,
        progress: Progress,
        rows: Rows,
        held_out: Held | None,
        epochs: int,
    ) -> None:
        """Run the epochs, and choose among them if there is a validation part."""
        num_classes = self.n_outputs_ if self._loss_kind() == "classes" else None
        objective = make_objective(self.get_params(deep=False), network, self._loss(), num_classes, rows)
        optimizer = self._resume_optimizer(network, progress)
        best: dict[str, Tensor] | None = None
        waited = 0
        if held_out is not None:
            progress.validation_scores = (
                progress.validation_scores or []
            )  # early stopping may have been off before
            if progress.n_iter > 0:  # the present network may remain the best
                progress.best_score = self._score_network(network, *held_out)
                best = copy.deepcopy(network.state_dict())
        for _ in range(epochs):
            mean = train_epoch(
                objective,
                optimizer,
                rows,
                batch_size=self.batch_size,
                seed=progress.seed,
                epoch=progress.n_iter,
                device=torch.device(self.device),
            )
            progress.loss_curve.append(mean)
            progress.n_iter += 1
            if held_out is None:
                progress.best_iteration = progress.n_iter
                self._tell(progress, None)
                continue
            score = self._score_network(network, *held_out)
            assert progress.validation_scores is not None
            progress.validation_scores.append(score)
            self._tell(progress, score)
            before = progress.best_score
            waited = 0 if before is None or score > before + self.tol else waited + 1
            if before is None or score > before:
                progress.best_score, progress.best_iteration = score, progress.n_iter
                best = copy.deepcopy(network.state_dict())
            if waited >= self.n_iter_no_change:
                break
        if best is not None:
            network.load_state_dict(best)
        network.eval()

    def _resume_optimizer(self, network: nn.Module, progress: Progress) -> torch.optim.Optimizer:
        """Return the optimiser of the last training with the present settings, or a new one."""
        settings = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if progress.optimizer is None:
            progress.optimizer = make_adam(network.parameters(), decoupled=True)
        for group in progress.optimizer.param_groups:
            group.update(settings)
        return progress.optimizer

    def _tell(self, progress: Progress, score: float | None) -> None:
        if self.verbose:
            number, n = self._progress.index(progress) + 1, len(self._progress)
            which = f"Network {number} of {n}, epoch" if n > 1 else "Epoch"
            shown = "" if score is None else f", validation score {score:.4f}"
            print(f"{which} {progress.n_iter}: loss {progress.loss_curve[-1]:.4f}{shown}")  # noqa: T201

    def _summarise(self) -> None:
        """Set attributes that describe the training; for several networks, means and the longest."""
        networks = self._progress
        self.n_iter_ = max(one.n_iter for one in networks)
        self.best_iteration_ = max(one.best_iteration for one in networks)
        self.loss_curve_ = mean_curve(one.loss_curve for one in networks)
        scores = [one.validation_scores for one in networks if one.validation_scores is not None]
        self.validation_scores_ = mean_curve(scores) if scores else None
        best = [one.best_score for one in networks if one.best_score is not None]
        self.best_validation_score_ = sum(best) / len(best) if best else None

    def _set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Combine the networks into one module."""
        self.module_ = networks[0] if len(networks) == 1 else Ensemble(networks, self._loss_kind())

    def _networks(self) -> list[nn.Module]:
        """Return the networks, one or several."""
        return list(self.module_.networks) if isinstance(self.module_, Ensemble) else [self.module_]

    def check_networks(self) -> None:
        """Raise if parameters no longer describe the trained networks, which set_params does not change."""
        networks = self._networks()
        linear = [layer for layer in networks[0].modules() if isinstance(layer, nn.Linear)]
        pairs: dict[str, tuple[Any, Any]] = {"n_networks": (self.n_networks, len(networks))}
        if self.module is None:
            pairs["hidden"] = (tuple(self.hidden), tuple(layer.out_features for layer in linear[:-1]))
        for name, (now, trained) in pairs.items():
            if now != trained:
                raise ValueError(
                    f"{name}={now!r:.60} was changed after training, but the networks have {name}="
                    f"{trained!r:.60}. Change it back, set_params({name}={trained!r:.60}), or train from "
                    "scratch (warm_start=False)."
                )

    def _threads(self, n_features: int, n_rows: int) -> contextlib.AbstractContextManager[None]:
        """Use one thread for small default networks on the CPU, otherwise the user's setting."""
        is_ours = self.module is None and torch.device(self.device).type == "cpu"
        return one_thread() if is_ours and self._is_small(n_features, n_rows) else contextlib.nullcontext()

    def _is_small(self, n_features: int, n_rows: int) -> bool:
        """Return whether a step of the default network on this many rows is little work."""
        sizes = [n_features, *self.hidden, self.n_outputs_]
        return n_rows * sum(a * b for a, b in itertools.pairwise(sizes)) <= SMALL_STEP

    def _score_network(
        self, network: nn.Module, scaled: np.ndarray, y: np.ndarray, weight: np.ndarray | None
    ) -> float:
        """Return the validation score of one network."""
        return self._validation_score(self._forward(scaled, [network])[0], y, weight)

    def _forward(self, scaled: np.ndarray, networks: Sequence[nn.Module]) -> np.ndarray:
        """Compute outputs ``(networks, rows, outputs)`` for scaled rows, in float64.

        Default networks are evaluated in float64, so that the output of a row does not depend on the other
        rows of the call. The user's own networks keep their number format.
        """
        device, dtype = self._place(), torch.float32
        if self.module is None and device.type != "mps":
            networks, dtype = [copy.deepcopy(network).double() for network in networks], torch.float64
        parts = torch.from_numpy(scaled).split(_CHUNK)
        outputs = []
        with torch.no_grad(), self._threads(scaled.shape[1], min(len(scaled), _CHUNK)):
            for network in networks:
                network.eval()
                outputs.append(torch.cat([network(part.to(device, dtype)).double().cpu() for part in parts]))
        return torch.stack(outputs).numpy()

    def _outputs(self, X: Any) -> np.ndarray:
        """Compute outputs ``(networks, rows, outputs)`` for the user's rows."""
        check_is_fitted(self, "module_")
        outputs = self._forward(self._scale(check_table(self, X, reset=False)), self._networks())
        if not np.isfinite(outputs).all():
            self._explain_outputs(outputs)
        return outputs

    def _explain_outputs(self, outputs: np.ndarray) -> None:
        """Say why a network has no answer: its weights, or rows out of all proportion."""
        for name, value in self.module_.state_dict().items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ValueError(
                    f"The network cannot predict: its weights are NaN or infinite ({name}). Training has "
                    "diverged, or the file was damaged. Train again, with a smaller learning_rate."
                )
        rows = np.flatnonzero(~np.isfinite(outputs).all(axis=(0, 2)))
        raise ValueError(
            f"The network's output is NaN or infinite for {len(rows)} of {outputs.shape[1]} rows, the first "
            f"of them row {rows[0]} (counted from 0). Check these rows: their numbers are out of all "
            "proportion to those of training."
        )

    def _place(self) -> torch.device:
        """Return the device of the network."""
        return next((p.device for p in self.module_.parameters()), torch.device("cpu"))

    def _scale(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.x_mean_) / self.x_scale_).astype(np.float32)

    def _scale_target(self, y: np.ndarray) -> np.ndarray:
        return y

    def _observe_targets(self, y: np.ndarray, goes_on: bool) -> None:
        """Inspect the targets of all rows with a weight, held-out ones included, before training."""

    def _needs_held_out_rows(self) -> bool:
        return self.early_stopping

    def _calibrate(self, held_out: Held) -> None:
        """Adjust trained networks to held-out rows if requested."""

    def _measure_target(self, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Compute statistics of the targets if they are scaled."""

    def _check_groups(self, groups: Any, x: np.ndarray) -> np.ndarray | None:
        """Return the numbers of the groups."""
        if groups is None:
            return None
        labels = column_or_1d(groups)
        check_consistent_length(x, labels)
        return np.unique(labels, return_inverse=True)[1]

    def _check_weight(self, sample_weight: Any, x: np.ndarray) -> np.ndarray | None:
        if sample_weight is None:
            return None
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64)
        if (weight < 0).any() or not weight.any():
            raise ValueError(
                "sample_weight must be at least zero, and above zero for some row. Drop rows that should not "
                "count, or give them weight 0."
            )
        check_total("sample_weight", weight)
        return np.asarray(weight)

    def _check_parameters(self) -> None:
        checks.choice("method", self.method, self._methods)
        checks.positive("learning_rate", self.learning_rate)
        checks.nonnegative("weight_decay", self.weight_decay)
        for name in ("max_iter", "batch_size", "n_networks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but got {getattr(self, name)}.")

    def _loss(self) -> nn.Module:
        """Return the ordinary loss of the task."""
        kinds = {"classes": nn.CrossEntropyLoss, "labels": nn.BCEWithLogitsLoss, "real": nn.MSELoss}
        return kinds[self._loss_kind()]()

    def _check_rows(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Check the user's inputs and targets."""
        raise NotImplementedError

    def _encode(self, target: np.ndarray) -> np.ndarray:
        """Convert checked targets to numbers; raise if they are not of the kind that training began with."""
        raise NotImplementedError

    def _loss_kind(self) -> str:
        """Return ``"classes"``, ``"labels"`` (several at once) or ``"real"``."""
        raise NotImplementedError

    def _meaning(self) -> str:
        """Describe the outputs, for messages."""
        raise NotImplementedError

    def _validation_score(self, outputs: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
        """Return the validation score; larger is better."""
        raise NotImplementedError


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


def network_seeds(seed: int, n_networks: int) -> list[int]:
    """Return the seeds of the networks of an ensemble; the first is that of a single network."""
    return [seed, *(stream_seed(seed, "ensemble", i) for i in range(1, n_networks))]


def mean_curve(curves: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean of each epoch over the curves that reach it."""
    columns = itertools.zip_longest(*curves)
    rows = ([value for value in column if value is not None] for column in columns)
    return [values[0] if len(values) == 1 else sum(values) / len(values) for values in rows]


def stacked_method(parameters: dict[str, Any], kind: str) -> tuple[str, dict[str, float]] | None:
    """Return name and settings of a method for `train_stacked`, or None if it does not support the method.

    Args:
        parameters: Parameters of the estimator, by name.
        kind: Kind of the outputs: ``"classes"``, ``"labels"`` or ``"real"``.
    """
    method, sigma, alpha = parameters["method"], parameters["sigma"], parameters["alpha"]
    settings: dict[str, Any] = {
        name: parameters[name] for name in ("max_iter", "learning_rate", "weight_decay")
    }
    if method in ("noise", "elliptic") and not isinstance(sigma, numbers.Real):
        return None
    if method == "elliptic":
        weighting, sigma_y = make_weighting(parameters["weighting"]), parameters["sigma_y"]
        if (
            type(weighting) not in (type(None), GradientSoftmax)
            or (parameters["sampling"], parameters["n_bridges"]) != ("marginal", 1)
            or make_pairing(parameters["pairing"]) != Permutation()
            or (kind == "classes" and sigma_y not in (None, 0))
        ):
            return None
        settings |= {"sigma": sigma, "sigma_y": sigma_y, "n_times": parameters["n_times"]}
        if weighting is not None:
            method, settings["xi"] = "elliptic-weighted", weighting.xi
    else:
        own = {"noise": "sigma", "smoothing": "smoothing", "c-mixup": "bandwidth", "groupdro": "eta"}
        if name := own.get(method):
            settings[name] = parameters[name]
        if method in ("mixup", "c-mixup", "lisa") and alpha is not None:
            settings["alpha"] = alpha
    return (method, settings) if kind != "labels" else None


def check_total(name: str, weight: np.ndarray) -> None:
    """Raise if weights are too large for weighted sums of squares."""
    if not weight.max() < LARGE_WEIGHT:
        raise ValueError(
            f"{name} is as large as {weight.max():.3g}, so weighted sums overflow. Divide it by its mean: "
            "weights are frequencies, and an epoch has at most ten times as many rows as X."
        )


def takes_batches(estimator: EllipticEstimator) -> bool:
    """Check that `partial_fit` is available, as in scikit-learn; it cannot hold rows out."""
    if estimator._needs_held_out_rows():
        raise AttributeError(
            "partial_fit sees one batch at a time and cannot hold rows out, so it does not support "
            "early_stopping and calibrate. Use fit."
        )
    return True


def make_network(
    module: ModuleLike | None, hidden: Sequence[int], n_features: int, n_outputs: int
) -> nn.Module:
    """Create the network of an estimator, with initial weights from torch's default stream."""
    if module is None:
        if min(hidden, default=1) < 1:
            raise ValueError(f"hidden must hold widths of at least 1, but got {hidden!r:.60}.")
        return mlp(n_features, n_outputs, hidden=tuple(hidden))
    return copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)


def check_output(network: nn.Module, x: Tensor, n_outputs: int, meaning: str) -> None:
    """Raise before training if the output of a network does not fit the targets."""
    network.eval()
    with torch.no_grad():
        got = tuple(network(x).shape)
    if got != (len(x), n_outputs):
        raise ValueError(
            f"module must map {len(x)} rows to shape {(len(x), n_outputs)} ({meaning}), but returned {got}. "
            f"Change its last layer, or pass a function (n_features, n_outputs) -> module."
        )


def make_objective(
    parameters: dict[str, Any], network: nn.Module, loss: nn.Module, num_classes: int | None, rows: Rows
) -> nn.Module:
    """Create the objective of ``method`` with the parameters that it takes.

    Args:
        parameters: Parameters of the estimator, by name.
        network: Network to train.
        loss: Ordinary loss.
        num_classes: Number of classes of integer labels, or None.
        rows: Training rows, on which ``sigma="auto"`` is measured.
    """
    method, alpha = parameters["method"], parameters["alpha"]
    if method == "erm":
        return ERM(network, loss, num_classes=num_classes)
    if method == "mixup":
        return Mixup(network, loss, alpha=1.0 if alpha is None else alpha, num_classes=num_classes)
    if method == "c-mixup":
        return CMixup(network, loss, alpha=2.0 if alpha is None else alpha, bandwidth=parameters["bandwidth"])
    if method == "smoothing":
        return LabelSmoothing(network, loss, smoothing=parameters["smoothing"], num_classes=num_classes)
    sigma = parameters["sigma"]
    if isinstance(sigma, str) and sigma == "auto":
        sigma = auto_sigma(rows.x) if len(rows.x) > 1 else 0.0
    if method == "noise":
        return InputNoise(network, loss, sigma=sigma, num_classes=num_classes)
    names = ("sigma_y", "sampling", "n_times", "n_bridges", "pairing", "weighting")
    passed = {name: parameters[name] for name in names}
    return Elliptic(network, loss, num_classes=num_classes, sigma=sigma, **passed)
