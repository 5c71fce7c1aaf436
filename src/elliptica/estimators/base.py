"""Code that the classifier and the regressor share: parameters, scaling, training, prediction.

Small networks are trained side by side by the stacked engine, all others one by one by a general loop.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.perceptron import average_weights, make_adam, mlp, one_thread
from elliptica._utils.random import stream, stream_seed
from elliptica.baselines import ERM, CMixup, InputNoise, LabelSmoothing, Mixup
from elliptica.core.bridge import Sampling
from elliptica.core.elliptic import Elliptic
from elliptica.core.noise import Sigma, auto_sigma
from elliptica.core.partners import Pairing, Permutation, make_pairing
from elliptica.core.weighting import GradientSoftmax, Weighting, make_weighting
from elliptica.estimators.stacked import (
    GROUP_METHODS,
    METHODS,
    Encoding,
    Job,
    Loss,
    Progress,
    RowStream,
    Table,
    epoch_length,
    init_parameters,
    quantile_knots,
    state_dict,
    train_stack,
)

#: A network, or a function that makes one from the numbers of features and outputs.
ModuleLike = nn.Module | Callable[[int, int], nn.Module]

_CHUNK = 8192  # rows that are predicted at once
_STACK_NUMBERS = 2**25  # weights of a stack, of which there are six copies (moments, average, best ...)


class NetworkRows(NamedTuple):
    """A trained network, and rows in the form that it sees."""

    module: nn.Module  # itself, not a copy
    loss: nn.Module  # the ordinary loss of its task
    x: Tensor  # scaled inputs, on the device of the network
    y: Tensor  # class numbers, zeros and ones for multilabel targets, or scaled targets ``(rows, targets)``


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
    bins: int = 0
    max_iter: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    n_networks: int = 1
    eta: float = 0.01
    random_state: int | np.random.RandomState | None = None
    device: str | torch.device = "cpu"

    #: Values of ``method``.
    _methods: ClassVar[tuple[str, ...]] = ("elliptic", "erm", "mixup", "noise")

    def network_rows(self, X: Any, y: Any) -> NetworkRows:
        """Return network, loss, inputs and targets as in training: the arguments of `elliptica.diagnose`.

        The network is neither bounded nor calibrated. In a pipeline, pass ``pipeline[:-1].transform(X)``.
        """
        check_is_fitted(self, "module_")
        rows, target = self._read(X, y, reset=False)
        arrays = self._scale(rows), self._learn(target)
        x, y = (torch.from_numpy(array).to(self._place()) for array in arrays)
        return NetworkRows(self.module_, self._loss(), x, y)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train the network.

        Args:
            X: Table of numbers ``(rows, features)``: array or frame, dense and finite.
            y: Labels, or a 2-D indicator of several labels per row; for regression real targets, one or
                several columns.
            sample_weight: Weight of each row, at least 0.
            groups: Group of each row, for group methods; others ignore it.
        """
        lost = fit_together([Fit(self, X, y, sample_weight, groups)])[0]
        words = f"Training of {lost} of {self.n_networks} networks diverged. Lower learning_rate or sigma."
        if lost == self.n_networks:
            raise FloatingPointError(words)
        if lost:
            warnings.warn(f"{words} They are left out.", stacklevel=2)
        if self.early_stopping and self.ended_ == "length":
            words = f"The validation loss was still improving after max_iter={self.max_iter} epochs."
            warnings.warn(f"{words} Raise max_iter.", ConvergenceWarning, stacklevel=2)
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
        """Return name and settings of the method for `train_stack`, or None if it needs the general loop."""
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

    def _new_network(self, parameters: Sequence[Tensor] = ()) -> nn.Module:
        """Create a network from torch's default stream; the default one may get given weights."""
        n_features, n_outputs = self.n_features_in_, self.n_outputs_
        if self.module is None:
            encoding = None if self.knots_ is None else Encoding(self.knots_)
            width = n_features if encoding is None else encoding.width
            perceptron = mlp(width, n_outputs, hidden=tuple(self.hidden))
            if parameters:
                perceptron.load_state_dict(state_dict(parameters))
            return perceptron if encoding is None else nn.Sequential(encoding, *perceptron)
        module = self.module
        network = copy.deepcopy(module) if isinstance(module, nn.Module) else module(n_features, n_outputs)
        with torch.no_grad():
            shape = tuple(network.eval()(torch.zeros(2, n_features)).shape)
        if shape != (2, n_outputs):  # it would be broadcast in the loss
            raise ValueError(f"module must map 2 rows to shape {(2, n_outputs)}, but returned {shape}.")
        return network

    def _set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Combine the networks into one module."""
        self.module_ = networks[0] if len(networks) == 1 else Ensemble(networks, self._loss_kind())
        self.module_.eval()

    def _networks(self) -> list[nn.Module]:
        """Return the networks, one or several."""
        return list(self.module_.networks) if isinstance(self.module_, Ensemble) else [self.module_]

    def _forward(self, scaled: np.ndarray) -> np.ndarray:
        """Compute outputs ``(networks, rows, outputs)`` for scaled rows.

        Default networks use float64, so that the output of a row does not depend on the others of the call.
        """
        device = self._place()
        is_ours = self.module is None and device.type == "cpu"
        networks, rows = self._networks(), torch.from_numpy(scaled)
        if is_ours:
            networks, rows = [copy.deepcopy(network).double() for network in networks], rows.double()
        with torch.no_grad(), one_thread() if is_ours else contextlib.nullcontext():
            outputs = [torch.cat([n(p.to(device)).cpu() for p in rows.split(_CHUNK)]) for n in networks]
        return torch.stack(outputs).double().numpy()

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
        for name in ("weight_decay", "sigma", "sigma_y", "alpha", "smoothing", "eta", "xi", "bandwidth"):
            if isinstance(value := getattr(self, name, None), float | int):
                checks.nonnegative(name, value)
        for name, least in {"max_iter": 1, "batch_size": 1, "n_networks": 1, "n_times": 2, "bins": 0}.items():
            checks.count(name, getattr(self, name), least)
        if self.method in GROUP_METHODS and (groups is None or self._stacked_method() is None):
            raise ValueError(f'method="{self.method}" needs groups in fit, and the default network.')

    # ---- what the classifier and the regressor define, or may

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Check the user's rows, and encode targets; ``reset`` sets the classes, or the number of targets."""
        raise NotImplementedError

    def _observe_targets(self, y: np.ndarray) -> None:
        """Compute statistics of the encoded targets of the training rows."""
        raise NotImplementedError

    def _learn(self, y: np.ndarray) -> np.ndarray:
        """Convert encoded targets to what networks learn: class numbers, or scaled float32 numbers."""
        raise NotImplementedError

    def _answers(self, outputs: Tensor) -> Tensor:
        """Convert outputs ``(networks, rows, outputs)`` to probabilities, or to the user's targets."""
        raise NotImplementedError

    def _loss_kind(self) -> Loss:
        """Return ``"classes"``, ``"labels"`` (several at once) or ``"real"``."""
        raise NotImplementedError

    def _combined_weight(self, weight: np.ndarray | None, codes: np.ndarray) -> np.ndarray | None:
        """Multiply sample weights by class weights."""
        return weight

    def _calibrate(self, scaled: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Adjust trained networks to held-out rows if requested."""


class Ensemble(nn.Module):
    """Several networks as one; its probabilities, or values, are the means of theirs."""

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


def check_table(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, **options: Any) -> Any:
    """Check inputs and targets as scikit-learn does; times would silently become numbers of some unit."""
    dtypes = getattr(X, "dtypes", None)
    kinds = [X.dtype] if isinstance(X, np.ndarray) else [] if dtypes is None else list(dtypes)
    if any(str(kind).lower().startswith(("date", "time", "duration")) for kind in kinds):
        raise TypeError("X holds times. Put TablePreprocessor before the estimator, or convert them.")
    return validate_data(estimator, X, y, dtype=[np.float64, np.float32], reset=reset, **options)


@dataclass(eq=False)
class Fit:
    """An estimator and the rows to train it on."""

    estimator: EllipticEstimator
    X: Any  # fits that pass the same object, and the same ``rows``, share its memory
    y: Any  # targets of all its rows
    sample_weight: Any = None
    groups: Any = None
    rows: np.ndarray | None = None  # to train on; None means all. Only these decide scales and bounds.
    validation: np.ndarray | None = None  # rows that choose the epoch; None: as ``early_stopping`` says


def fit_together(fits: Sequence[Fit], callback: Callable[[float], None] | None = None) -> list[int]:
    """Train estimators side by side, which is much faster than one after the other for small networks.

    Each is trained as its own ``fit`` would, which is the case of one. Estimators of different shapes, batch
    sizes or losses form stacks of their own. ``callback`` is called from time to time with the finished share
    of the work. Returns how many networks of each diverged; they are left out, unless all of them did.

    Example:
        >>> from elliptica.estimators import EllipticRegressor
        >>> X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
        >>> models = [EllipticRegressor(max_iter=2, method=name) for name in ("erm", "mixup")]
        >>> fit_together([Fit(model, X, y, rows=np.arange(20)) for model in models])
        [0, 0]
    """
    shared: dict[Any, Any] = {}  # tables of this call, by the objects that `fits` keep alive
    prepared = [_Prepared(fit, shared) for fit in fits]
    stacks: dict[Any, list[_Prepared]] = {}
    for part in prepared:
        stacks.setdefault(part.key, []).append(part)
    parts = []
    for stack in stacks.values():
        numbers = sum((a + 1) * b for a, b in itertools.pairwise(stack[0].shape))
        size = max(1, _STACK_NUMBERS // numbers)
        parts += [stack[i : i + size] for i in range(0, len(stack), size)]
    lost: dict[_Prepared, int] = {}
    for number, stack in enumerate(parts):

        def tell(done: float, number: int = number) -> None:
            if callback is not None:
                callback((number + done) / len(parts))

        progress = iter(_train(stack, tell))
        for part in stack:
            lost[part] = part.finish(list(itertools.islice(progress, len(part.jobs))))
    return [lost[part] for part in prepared]


class _Prepared:
    """Checked and scaled rows of a fit, its jobs, and its networks."""

    def __init__(self, fit: Fit, shared: dict[Any, Any]) -> None:
        self.model = model = fit.estimator
        x, self.y = model._read(fit.X, fit.y, reset=True)
        model._seed = int(check_random_state(model.random_state).randint(np.iinfo(np.int32).max))
        weight = fit.sample_weight
        if weight is not None:
            weight = _check_sample_weight(weight, x, dtype=np.float64, ensure_non_negative=True)
        weight = self.weight = model._combined_weight(weight, self.y)
        check_consistent_length(x, fit.groups)
        groups = None if fit.groups is None else np.unique(column_or_1d(fit.groups), return_inverse=True)[1]
        model._check_parameters(groups)
        rows = np.arange(len(x)) if fit.rows is None else fit.rows
        if weight is not None and (weight[rows] == 0).any():
            rows = rows[weight[rows] > 0]
        validation, self.held = fit.validation, None
        if fit.validation is None and (model.early_stopping or getattr(model, "calibrate", None)):
            rows, self.held = _hold_out(rows, self.y, model)
            validation = self.held if model.early_stopping else None
        model._observe_targets(self.y[rows])

        def once(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
            if key not in shared:
                shared[key] = make()
            return shared[key]

        place = (id(fit.X), id(rows), model.standardize)
        scales = once(("scales", *place), lambda: location_and_scale(x[rows], model.standardize))
        model.x_mean_, model.x_scale_ = scales
        scaled, learnt = once(("inputs", *place), lambda: model._scale(x)), model._learn(self.y)
        same = ("table", *place, id(fit.groups), hash(learnt.tobytes()))
        self.table: Table = once(same, lambda: model._table(scaled, learnt, groups))
        model.knots_, encoding = None, None
        if model.bins and model.module is None:
            knots = ("knots", *place, model.bins)
            model.knots_ = once(knots, lambda: quantile_knots(scaled[rows], model.bins))
            encoding = Encoding(model.knots_)
        width = x.shape[1] if encoding is None else encoding.width
        self.shape = (width, *model.hidden, model.n_outputs_)
        self.stacked = model._stacked_method()
        method, settings = self.stacked or ("erm", {})
        row_weight = None if weight is None else weight[rows]
        rates, last = (model.learning_rate, model.weight_decay), (row_weight, encoding)
        self.jobs = [
            Job(self.table, rows, seed, model.max_iter, method, settings, *rates, validation, *last)
            for seed in network_seeds(model._seed, model.n_networks)
        ]
        self.batch_size = min(model.batch_size, epoch_length(len(rows), row_weight))
        key = (model._loss_kind(), self.shape, self.batch_size, model.n_iter_no_change)
        self.key: Any = id(self) if self.stacked is None else key

    def finish(self, progress: Sequence[Progress]) -> int:
        """Set the attributes of a trained estimator, and return how many of its networks diverged."""
        pairs = list(zip(self.model._networks(), progress, strict=True))
        kept = [pair for pair in pairs if pair[1].ended != "failed"]
        networks, progress = zip(*(kept or pairs), strict=True)
        self.model._set_networks(networks)
        self.model.n_iter_ = max(one.epochs for one in progress)
        self.model.ended_ = min(one.ended for one in progress)  # "length" before "patience"
        self.model.best_iteration_ = int(np.median([one.best_epoch for one in progress]))
        self.model.loss_curve_ = mean_curve(one.losses for one in progress)
        self.model.validation_curve_ = mean_curve(one.validation_losses for one in progress)
        if self.held is not None and kept:
            weight = None if self.weight is None else self.weight[self.held]
            self.model._calibrate(self.table.x[self.held].numpy(), self.y[self.held], weight)
        return len(pairs) - len(kept)


def _train(stack: list[_Prepared], callback: Callable[[float], None]) -> list[Progress]:
    """Train the networks of some estimators, as one stack or by the general loop."""
    model, batch_size = stack[0].model, stack[0].batch_size
    jobs = [job for part in stack for job in part.jobs]
    if stack[0].stacked is None:
        trained_alone = []
        for job in jobs:
            with private_stream(stream_seed(job.seed, "init"), torch.device("cpu")):
                network = model._new_network(init_parameters(stack[0].shape, job.seed))
            trained_alone.append((network, train_module(model, network, job, batch_size)))
        model._set_networks([network for network, _ in trained_alone])
        return [progress for _, progress in trained_alone]
    trained = train_stack(
        jobs,
        loss=model._loss_kind(),
        hidden=model.hidden,
        batch_size=batch_size,
        patience=model.n_iter_no_change,
        callback=callback,
    )
    networks = iter(trained)
    with private_stream(0, torch.device("cpu")):  # layers draw weights, which are replaced
        for part in stack:
            own = itertools.islice(networks, len(part.jobs))
            part.model._set_networks([part.model._new_network(one.parameters) for one in own])
    return [one.progress for one in trained]


def train_module(model: EllipticEstimator, network: nn.Module, job: Job, batch_size: int) -> Progress:
    """Train one network of any kind, step by step, by the objective of the estimator."""
    device, table, progress = torch.device(model.device), job.table, Progress()
    y = table.label if model._loss_kind() == "classes" else table.y
    network.to(device)
    objective = model._objective(network, table.x[job.rows])
    optimizer = make_adam(
        network.parameters(), lr=job.learning_rate, weight_decay=job.weight_decay, decoupled=True
    )
    rows, noise, best = RowStream(job), stream(job.seed, "noise", 0), copy.deepcopy(network.state_dict())
    average = average_weights(network)
    loss_of = model._loss()
    objective.train()
    while not progress.ended:
        losses = []
        with private_stream(stream_seed(job.seed, "network", progress.epochs), device):
            for _ in range(math.ceil(rows.length / batch_size)):
                part = rows.take(batch_size)
                loss = objective(table.x[part].to(device), y[part].to(device), generator=noise)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                average.update_parameters(network)
                losses.append(loss.detach())
        validation = None
        if job.validation is not None:
            with torch.no_grad():
                parts = torch.from_numpy(job.validation).split(_CHUNK)
                total = sum(
                    loss_of(average(table.x[p].to(device)), y[p].to(device)).item() * len(p) for p in parts
                )
                validation = total / len(job.validation)
        mean = float(torch.stack(losses).mean())
        if progress.end_epoch(mean, validation, job.epochs, model.n_iter_no_change):
            best = copy.deepcopy(average.module.state_dict())
    network.load_state_dict(best)
    network.eval()
    return progress


def network_seeds(seed: int, n_networks: int) -> list[int]:
    """Return the seeds of the networks of an ensemble; the first is that of a single network."""
    return [seed, *(stream_seed(seed, "ensemble", i) for i in range(1, n_networks))]


def location_and_scale(values: np.ndarray, standardize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column; a constant column has scale 1."""
    if not standardize:
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    scaler = StandardScaler().fit(values)
    return scaler.mean_, scaler.scale_


def _hold_out(rows: np.ndarray, y: np.ndarray, model: EllipticEstimator) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into training and validation, with classes in proportion if possible."""
    seed = stream_seed(model._seed, "split") % 2**32
    split = partial(train_test_split, rows, test_size=model.validation_fraction, random_state=seed)
    if model._loss_kind() == "classes":
        with contextlib.suppress(ValueError):  # too few rows of a class
            return tuple(split(stratify=y[rows]))
    return tuple(split())


@contextlib.contextmanager
def private_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's default stream (initial weights, dropout) temporarily, and restore it afterwards."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every accelerator
        if cuda:  # pragma: no cover - needs a GPU
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
