"""Train an estimator: rows in a fixed order, weights as frequencies, one epoch at a time."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from torch import Tensor, nn

from elliptica._utils.random import stream, stream_seed
from elliptica.core.bridge import Bridges, Pairs, Paths
from elliptica.core.elliptic import Elliptic
from elliptica.core.partners import Permutation

#: An epoch draws at most this many times the number of rows, however large the sample weights.
LONGEST_EPOCH = 10

#: Up to this many multiply-adds per training step, one torch thread is faster than several.
SMALL_STEP = 2**25

#: Bytes of points drawn at once, about the size of a cache (a single batch may have more). Part of the
#: contract: it decides which numbers of a generator become which noise.
CHUNK_BYTES = 2**20

_inside = threading.local()
_lock = threading.Lock()
_outside: list[int] = []  # thread counts that blocks of `one_thread` will restore


@dataclass(frozen=True)
class Rows:
    """Training rows in the form that the network sees.

    Attributes:
        x: Inputs, scaled, float32.
        y: Class numbers, or float32 targets.
        weight: Weight of each row, all above zero, or None if all are equal.
        groups: Number of the group of each row, or None.
    """

    x: Tensor
    y: Tensor
    weight: np.ndarray | None
    groups: np.ndarray | None = None

    @classmethod
    def in_order(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None,
        groups: np.ndarray | None = None,
    ) -> Rows:
        """Sort rows by content, so that training does not depend on their order.

        With weights as frequencies (see `draw_epoch`), a row of weight two is then trained on exactly as two
        copies of it would be.
        """
        y = y if y.dtype == np.int64 else y.astype(np.float32)
        known = [] if groups is None else [groups.astype(np.float32)]
        x, y, weight, groups = take(content_order(x, y.astype(np.float32), *known), x, y, weight, groups)
        return cls(torch.from_numpy(x), torch.from_numpy(y), weight, groups)


class Held(NamedTuple):
    """Held-out rows for validation: inputs, targets, weights."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None


@dataclass(eq=False)
class Progress:
    """The training state of one network.

    Attributes:
        seed: Seed of its initial weights, the order of rows and the noise.
        n_iter: Number of epochs so far.
        best_iteration: Epoch whose network is kept.
        loss_curve: Mean training loss of each epoch.
        validation_scores: Score on the held-out rows after each epoch, or None.
        best_score: The largest of them, or None.
        optimizer: Its optimiser, or None before training and after loading.
    """

    seed: int
    n_iter: int = 0
    best_iteration: int = 0
    loss_curve: list[float] = field(default_factory=list)
    validation_scores: list[float] | None = None
    best_score: float | None = None
    optimizer: torch.optim.Optimizer | None = None


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


def content_order(*columns: np.ndarray) -> np.ndarray:
    """Return row numbers that sort rows by their bytes: a fixed order, but not that of the numbers.

    Args:
        *columns: Tables or columns with the same number of rows and one floating type.
    """
    content = np.column_stack(columns)
    content += 0  # turns negative zeros into zeros, whose bytes differ
    keys = np.ascontiguousarray(content).view(np.dtype((np.void, content.itemsize * content.shape[1])))
    return np.argsort(keys.ravel(), kind="stable")


def take(rows: np.ndarray, *columns: np.ndarray | None) -> list[Any]:
    """Select rows of each table or column; None stays None."""
    return [None if column is None else column[rows] for column in columns]


def location_and_scale(
    values: np.ndarray, weight: np.ndarray | None, standardize: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column; a constant column has scale 1."""
    n = values.shape[1]
    if not standardize:
        return np.zeros(n), np.ones(n)
    scaled, exponent = in_squarable_units(values)
    scaler = StandardScaler().fit(scaled, sample_weight=weight)
    is_constant = (scaler.scale_ == 1) & (exponent != 0)  # other columns in these units have a scale below 1
    return np.ldexp(scaler.mean_, exponent), np.ldexp(scaler.scale_, np.where(is_constant, 0, exponent))


def in_squarable_units(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Divide columns by powers of two, so that their squares neither overflow nor vanish.

    Returns:
        The columns, and the exponent of each; 0 for columns of ordinary numbers, which stay as they are.
    """
    largest = np.abs(values).max(axis=0)
    is_ordinary = (largest == 0) | ((largest > 1e-100) & (largest < 1e100))
    exponent = np.where(is_ordinary, 0, np.frexp(largest)[1])
    return (values if is_ordinary.all() else np.ldexp(values, -exponent)), exponent


def hold_out(
    x: np.ndarray, y: np.ndarray, fraction: float, kind: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and validation, with classes in proportion if possible.

    Rows of equal content stay together, so that weights and copies of rows are equivalent.

    Args:
        x: Inputs, sorted by `content_order`.
        y: Targets; class numbers if ``kind`` is ``"classes"``.
        fraction: Share of the distinct rows that is held out.
        kind: ``"classes"``, ``"labels"`` or ``"real"``, which needs two rows for a score.
        seed: Seed of the split.
    """
    content = np.column_stack([x, y])
    is_new = np.append(True, (content[1:] != content[:-1]).any(axis=1))
    distinct, first = np.cumsum(is_new) - 1, np.flatnonzero(is_new)
    n_held = int(np.ceil(fraction * len(first)))
    if n_held < (2 if kind == "real" else 1) or len(first) - n_held < 1:
        raise ValueError(
            f"validation_fraction={fraction} holds out {n_held} of {len(first)} distinct rows "
            f"(n_samples={len(y)}), which leaves too few on one side. Change validation_fraction, pass more "
            "rows, or switch off early_stopping and calibrate, which need held-out rows."
        )
    stratify = None
    if kind == "classes":
        counts = np.bincount(y[first])
        counts = counts[counts > 0]
        if counts.min() > 1 and len(counts) <= min(n_held, len(first) - n_held):
            stratify = y[first]
    parts = train_test_split(np.arange(len(first)), test_size=n_held, stratify=stratify, random_state=seed)
    place = np.empty(len(first), dtype=np.int64)
    place[np.concatenate(parts)] = np.arange(len(first))
    place = place[distinct]
    rows = np.argsort(place, kind="stable")
    n_kept = int((place < len(first) - n_held).sum())
    return rows[:n_kept], rows[n_kept:]


def draw_seed(random_state: Any) -> int:
    """Draw the seed of a training from ``random_state``, as scikit-learn understands it."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def epoch_length(weight: np.ndarray) -> int:
    """Return the number of rows of an epoch: the sum of weights, or the number of rows, within limits."""
    total = np.cumsum(weight, dtype=np.float64)[-1]
    return round(min(max(total, len(weight)), LONGEST_EPOCH * len(weight)))


def draw_epoch(n_rows: int, weight: np.ndarray | None, generator: torch.Generator) -> Tensor:
    """Draw the row numbers of one epoch in random order: each once, or as often as its weight says.

    Weights are expected frequencies. The sum of weights is divided into pieces of equal length, all shifted
    by one random number, and the row at the start of each piece is taken. A weight of 2 thus gives exactly
    two copies, and a weight of 1.5 one or two. An epoch is as long as the sum of weights, but at least as
    long as the number of rows and at most ten times that.

    Args:
        n_rows: Number of rows.
        weight: Weight of each row, above zero; None takes each row once.
        generator: Source of randomness. It draws the order first, then the shift if there are weights.
    """
    if weight is None:
        return torch.randperm(n_rows, generator=generator)
    cumulative = np.cumsum(weight, dtype=np.float64)
    length = epoch_length(weight)
    order = torch.randperm(length, generator=generator)
    shift = float(torch.rand(1, generator=generator, dtype=torch.float64))
    # systematic sampling: one uniform shift for all pieces has less variance than independent draws
    places = (shift + np.arange(length)) * (cumulative[-1] / length)
    chosen = np.searchsorted(cumulative, places, side="right").clip(max=n_rows - 1)  # rounding
    return torch.from_numpy(chosen)[order]


def train_epoch(
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    device: torch.device,
) -> float:
    """Train for one pass over the rows; return the mean loss of its steps.

    Random streams depend only on the seed and the number of the epoch, so that training can be resumed.
    """
    chosen = draw_epoch(len(rows.x), rows.weight, stream(seed, "order", epoch))
    noise = stream(seed, "noise", epoch)
    objective.train()
    losses = []
    with private_stream(stream_seed(seed, "network", epoch), device):
        sizes = batch_sizes(len(chosen), batch_size)
        for loss in _losses(objective, rows, chosen, sizes, device, noise):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    objective.eval()
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise diverged(mean, epoch + 1)
    return mean


def diverged(loss: float, epoch: int) -> FloatingPointError:
    """Return the error for a training loss that is not finite."""
    return FloatingPointError(
        f"The training loss became {loss} in epoch {epoch}. Lower learning_rate or sigma, or keep "
        "standardize=True."
    )


def batch_sizes(n_rows: int, batch_size: int) -> list[int]:
    """Divide rows into batches that differ by at most one row.

    A single row has no partner, so a batch has at least two rows (if there are two), and up to three for
    ``batch_size=2``.
    """
    count = max(1, min(math.ceil(n_rows / batch_size), n_rows // 2))
    return [n_rows // count + (number < n_rows % count) for number in range(count)]


def _losses(
    objective: nn.Module,
    rows: Rows,
    chosen: Tensor,
    sizes: list[int],
    device: torch.device,
    noise: torch.Generator,
) -> Iterator[Tensor]:
    """Yield the objective on each batch; points with the same law are drawn for several batches at once."""
    if isinstance(objective, Elliptic) and can_draw_epochs(objective.bridges):
        for paths in epoch_paths(objective.bridges, rows, chosen, sizes, device, noise):
            yield objective.loss_on(paths)
    else:
        for part in chosen.split(sizes):
            yield objective(rows.x[part].to(device), rows.y[part].to(device), generator=noise)


def can_draw_epochs(bridges: Bridges) -> bool:
    """Return whether `epoch_paths` draws this law: single points of random pairs, plain noise."""
    return (
        bridges.sampling == "marginal"
        and bridges.n_bridges == 1
        and bridges.pairing == Permutation()
        and isinstance(bridges.sigma, float | Tensor)
    )


@torch.no_grad()
def epoch_paths(
    bridges: Bridges,
    rows: Rows,
    order: Tensor,
    sizes: list[int],
    device: torch.device,
    generator: torch.Generator,
) -> Iterator[Paths]:
    """Draw the points of one epoch, many batches at a time, which is faster than drawing each step.

    The partner of a row is the next row of its batch (the first follows the last). Because ``order`` is
    random, this is a uniformly random cycle, as `elliptica.Elliptic` draws it, and the points have its law.
    """
    at_once = max(1, CHUNK_BYTES // max(1, sizes[0] * rows.x[:1].nbytes))
    for first in range(0, len(sizes), at_once):
        own = sizes[first : first + at_once]
        part, order = order[: sum(own)], order[sum(own) :]
        batch = bridges.read(rows.x[part].to(device), rows.y[part].to(device))
        ends = torch.tensor(own).cumsum(0)
        partners = torch.arange(1, len(part) + 1)
        partners[ends - 1] = ends - torch.tensor(own)  # the last row of a batch ends at its first
        places = {size: torch.arange(size, device=device) for size in set(own)}
        pairs = Pairs(1, partners.to(device), [places[size] for size in own])
        paths = bridges.draw(batch, pairs, 1.0, generator)
        labels = [None] * len(own) if paths.labels is None else paths.labels.split(own)
        ((name, points),) = paths.points.items()
        columns = (column.split(own) for column in (points, paths.targets, paths.times, paths.free_targets))
        for x, y, s, free_y, label in zip(*columns, labels, strict=True):
            yield replace(paths, points={name: x}, targets=y, times=s, free_targets=free_y, labels=label)


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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread temporarily: sharing small products among threads costs more than it saves.

    The setting belongs to the calling thread; other threads of the program keep theirs.
    """
    if getattr(_inside, "value", False):
        yield
        return
    with _lock:
        before = torch.get_num_threads()
        if not _outside or before > 1:
            _outside.append(before)
        else:  # a new thread starts with the last setting, which may be ours
            before = _outside[-1]
            _outside.append(before)
        torch.set_num_threads(1)
    _inside.value = True
    try:
        yield
    finally:
        _inside.value = False
        with _lock:
            torch.set_num_threads(before)
            _outside.remove(before)
