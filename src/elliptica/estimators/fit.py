"""Train estimators: many at once by the stacked engine, or one of any kind by a general loop."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight
from torch import nn

from elliptica._utils.perceptron import make_adam
from elliptica._utils.random import stream, stream_seed
from elliptica.estimators.points import Job, RowStream, Table, epoch_length
from elliptica.estimators.stacked import Progress, Trained, train_stack

if TYPE_CHECKING:
    from elliptica.estimators.base import EllipticEstimator

_CHUNK = 8192  # rows that are validated at once
#: Memory limit of a stack in bytes, and number of copies of the weights (moments, gradients, best).
_STACK_BYTES, _COPIES = 2**29, 5


@dataclass(eq=False)
class Fit:
    """An estimator and the rows to train it on.

    Attributes:
        estimator: Estimator to train.
        X: Table of numbers. Fits that pass the same object, and the same ``rows``, share its memory.
        y: Targets of all its rows.
        sample_weight: Weight of each row, or None.
        groups: Group of each row, for group methods.
        rows: Row numbers to train on; None means all. Only these decide scales and bounds.
        validation: Row numbers whose loss chooses the epoch; None lets ``early_stopping`` decide.
        epochs: Number of epochs; None means ``max_iter``.
        resumes: Whether to resume the last training.
        classes: All classes, if ``y`` may lack some.
    """

    estimator: EllipticEstimator
    X: Any
    y: Any
    sample_weight: Any = None
    groups: Any = None
    rows: np.ndarray | None = None
    validation: np.ndarray | None = None
    epochs: int | None = None
    resumes: bool = False
    classes: Any = None


def fit_together(fits: Sequence[Fit], callback: Callable[[float], None] | None = None) -> list[bool]:
    """Train estimators side by side, which is much faster than one after the other for small networks.

    Each is trained as its own ``fit`` would: ``estimator.fit`` is the case of one. Estimators of different
    shapes, batch sizes or losses form stacks of their own.

    Args:
        fits: Estimators with their rows.
        callback: Called from time to time with the finished share of the work.

    Returns:
        Whether the training of each diverged.

    Example:
        >>> from elliptica.estimators import EllipticRegressor
        >>> X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
        >>> models = [EllipticRegressor(max_iter=2, method=name) for name in ("erm", "mixup")]
        >>> fit_together([Fit(model, X, y, rows=np.arange(20)) for model in models])
        [False, False]
    """
    shared: dict[Any, Any] = {}  # tables of this call, by the objects that `fits` keep alive
    prepared = [_Prepared(fit, shared) for fit in fits]
    stacks: dict[Any, list[_Prepared]] = {}
    for part in prepared:
        stacks.setdefault(part.key, []).append(part)
    parts = [part for stack in stacks.values() for part in _within_memory(stack)]
    for number, stack in enumerate(parts):

        def tell(done: float, number: int = number) -> None:
            if callback is not None:
                callback((number + done) / len(parts))

        _train(stack, tell)
    return [part.finish() for part in prepared]


class _Prepared:
    """Checked and scaled rows of a fit, and its jobs."""

    def __init__(self, fit: Fit, shared: dict[Any, Any]) -> None:
        self.fit, self.estimator = fit, fit.estimator
        model = self.estimator
        x, target = model._check_rows(fit.X, fit.y, reset=not fit.resumes)
        if not fit.resumes:
            model._begin(target if fit.classes is None else np.asarray(fit.classes))
            model._seed = int(check_random_state(model.random_state).randint(np.iinfo(np.int32).max))
        self.y = model._encode(target)
        weight = model._combined_weight(_check_weight(fit.sample_weight, x), self.y)
        groups = _check_groups(fit.groups, x)
        model._check_parameters(groups)
        rows = np.arange(len(x)) if fit.rows is None else fit.rows
        if weight is not None and (weight[rows] == 0).any():
            rows = rows[weight[rows] > 0]
        self.validation, self.held = fit.validation, None
        if fit.validation is None and model._needs_held_out_rows():
            rows, self.held = _hold_out(rows, self.y, model)
            self.validation = self.held if model.early_stopping else None
        self.rows, self.weight = rows, None if weight is None else weight[rows]
        self.all_weight = weight
        model._observe_targets(self.y[rows], fit.resumes)
        if not fit.resumes:
            key: tuple[Any, ...] = ("scales", id(fit.X), id(rows), model.standardize)
            if key not in shared:
                shared[key] = location_and_scale(x[rows], model.standardize)
            model.x_mean_, model.x_scale_ = shared[key]
            model._set_networks(model._make_networks(x.shape[1]))
            model._progress = [Progress() for _ in range(model.n_networks)]
        key = ("inputs", id(fit.X), id(model.x_mean_))
        if key not in shared:
            shared[key] = model._scale(x)
        scaled, learnt = shared[key], model._learn(self.y)
        key = ("table", *key[1:], id(fit.groups), hash(learnt.tobytes()))
        if key not in shared:
            shared[key] = model._table(scaled, learnt, groups)
        self.table: Table = shared[key]
        length = epoch_length(len(rows), self.weight)
        self.batch_size = min(model.batch_size, length)
        shape = (x.shape[1], tuple(model.hidden), model.n_outputs_)
        self.stacked = model._stacked_method()
        stacked_key = (model._loss_kind(), shape, self.batch_size, model.n_iter_no_change, fit.resumes)
        self.key = id(self) if self.stacked is None else stacked_key

    def jobs(self) -> list[Job]:
        """Describe the networks of the estimator."""
        model = self.estimator
        method, settings = self.stacked or ("erm", {})
        return [
            Job(
                self.table,
                self.rows,
                seed,
                self.fit.epochs or model.max_iter,
                method,
                settings,
                model.learning_rate,
                model.weight_decay,
                self.validation,
                self.weight,
            )
            for seed in network_seeds(model._seed, len(model._progress))
        ]

    def finish(self) -> bool:
        """Set the attributes of a trained estimator, and return whether its training diverged."""
        model = self.estimator
        model._summarise()
        diverged = any(one.ended == "failed" for one in model._progress)
        if self.held is not None and not diverged:
            weight = None if self.all_weight is None else self.all_weight[self.held]
            model._calibrate(self.table.x[self.held].numpy(), self.y[self.held], weight)
        return diverged


def _within_memory(stack: list[_Prepared]) -> Iterator[list[_Prepared]]:
    """Divide estimators of one shape into stacks that fit into memory."""
    model, table = stack[0].estimator, stack[0].table
    sizes = [table.x.shape[1], *model.hidden, model.n_outputs_]
    n_networks = max(len(part.estimator._progress) for part in stack)
    bytes_each = _COPIES * 4 * n_networks * sum(a * b for a, b in itertools.pairwise(sizes))
    size = max(1, _STACK_BYTES // bytes_each)
    for first in range(0, len(stack), size):
        yield stack[first : first + size]


def _train(stack: list[_Prepared], callback: Callable[[float], None]) -> None:
    """Train the networks of some estimators, as one stack or by the general loop."""
    first = stack[0]
    model = first.estimator
    if first.stacked is None:
        for network, progress, job in zip(model._networks(), model._progress, first.jobs(), strict=True):
            train_module(model, network, progress, job, first.batch_size)
        model.module_.eval()
        return
    networks = [network for part in stack for network in part.estimator._networks()]
    starts = [
        Trained(Trained.parameters_of(network), progress)
        for network, progress in zip(networks, (p for s in stack for p in s.estimator._progress), strict=True)
    ]
    trained = train_stack(
        [job for part in stack for job in part.jobs()],
        loss=model._loss_kind(),
        hidden=model.hidden,
        batch_size=first.batch_size,
        patience=model.n_iter_no_change,
        starts=starts,
        callback=callback,
    )
    for network, one in zip(networks, trained, strict=True):
        network.load_state_dict(one.state_dict())


def train_module(
    model: EllipticEstimator, network: nn.Module, progress: Progress, job: Job, batch_size: int
) -> None:
    """Train one network of any kind, step by step, by the objective of the estimator."""
    device, table = torch.device(model.device), job.table
    y = table.label if model._loss_kind() == "classes" else table.y
    network.to(device)
    objective = model._objective(network, table.x[job.rows])
    optimizer = make_adam(
        network.parameters(), lr=job.learning_rate, weight_decay=job.weight_decay, decoupled=True
    )
    if progress.moments:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": progress.moments[0]})
    rows, noise = RowStream(job, progress.epochs), stream(job.seed, "noise", progress.epochs)
    best, last = copy.deepcopy(network.state_dict()), progress.epochs + job.epochs
    progress.ended = ""
    while not progress.ended:
        losses = []
        objective.train()
        with private_stream(stream_seed(job.seed, "network", progress.epochs), device):
            for _ in range(math.ceil(rows.length / batch_size)):
                part = rows.take(batch_size)
                loss = objective(table.x[part].to(device), y[part].to(device), generator=noise)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        objective.eval()
        validation = None
        if job.validation is not None:
            with torch.no_grad():
                parts = torch.from_numpy(job.validation).split(_CHUNK)
                total = sum(objective(table.x[p].to(device), y[p].to(device)).item() * len(p) for p in parts)
                validation = total / len(job.validation)
        if progress.end_epoch(float(torch.stack(losses).mean()), validation):
            best = copy.deepcopy(network.state_dict())
        progress.check_end(last, model.n_iter_no_change)
    network.load_state_dict(best)
    progress.moments = [optimizer.state_dict()["state"]]


def network_seeds(seed: int, n_networks: int) -> list[int]:
    """Return the seeds of the networks of an ensemble; the first is that of a single network."""
    return [seed, *(stream_seed(seed, "ensemble", i) for i in range(1, n_networks))]


def _check_weight(sample_weight: Any, x: np.ndarray) -> np.ndarray | None:
    if sample_weight is None:
        return None
    weight = np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64))
    if (weight < 0).any() or not weight.any():
        raise ValueError("sample_weight must be at least zero, and above zero for some row.")
    return weight


def _check_groups(groups: Any, x: np.ndarray) -> np.ndarray | None:
    """Return the numbers of the groups."""
    if groups is None:
        return None
    check_consistent_length(x, labels := column_or_1d(groups))
    return np.unique(labels, return_inverse=True)[1]


def location_and_scale(values: np.ndarray, standardize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column; a constant column has scale 1."""
    if not standardize:
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    scaler = StandardScaler().fit(values)
    return scaler.mean_, scaler.scale_


def _hold_out(rows: np.ndarray, y: np.ndarray, model: EllipticEstimator) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into training and validation, with classes in proportion if possible."""
    stratify = None
    if model._loss_kind() == "classes":
        counts = np.bincount(y[rows])
        n_held = math.ceil(model.validation_fraction * len(rows))
        if counts[counts > 0].min() > 1 and np.count_nonzero(counts) <= min(n_held, len(rows) - n_held):
            stratify = y[rows]
    kept, held = train_test_split(
        rows,
        test_size=model.validation_fraction,
        stratify=stratify,
        random_state=stream_seed(model._seed, "split") % 2**32,
    )
    return kept, held


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
