"""The training of an estimator: rows in a fixed order, weights as frequencies, one epoch at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from elliptica._utils.random import stream, stream_seed
from elliptica.core.elliptic import Elliptic
from elliptica.core.epoch import can_draw_epochs, epoch_paths

#: An epoch is at most so many times as long as there are rows, however large the sample weights.
LONGEST_EPOCH = 10


@dataclass(frozen=True)
class Rows:
    """Training rows as the network sees them.

    Attributes:
        x: Inputs, scaled, float32.
        y: Class numbers, or float32 targets.
        weight: Weight of each row, all above zero, or None for equal ones.
    """

    x: Tensor
    y: Tensor
    weight: np.ndarray | None

    @classmethod
    def in_order(cls, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> Rows:
        """Sort rows by content, so that training does not depend on the order in which they came.

        With weights as frequencies (see `draw_epoch`) a row of weight two is then trained on exactly as
        two copies of it are.
        """
        y = y if y.dtype == np.int64 else y.astype(np.float32)
        order = content_order(x, y.astype(np.float32))
        return cls(
            torch.from_numpy(x[order]),
            torch.from_numpy(y[order]),
            None if weight is None else weight[order],
        )


class NetworkRows(NamedTuple):
    """A trained network, and rows as it sees them.

    Attributes:
        module: The network itself, not a copy.
        loss: The ordinary loss of its task.
        x: Inputs, scaled, on the device of the network.
        y: Class numbers, zeros and ones for several labels, or scaled real targets ``(rows, targets)``.
    """

    module: nn.Module
    loss: nn.Module
    x: Tensor
    y: Tensor


def content_order(*columns: np.ndarray) -> np.ndarray:
    """Row numbers that sort rows by the bytes of their numbers: a fixed order, not that of the numbers.

    Args:
        *columns: Tables or columns of as many rows, of one floating type.
    """
    content = np.column_stack(columns)
    content += 0  # no negative zeros
    keys = np.ascontiguousarray(content).view(np.dtype((np.void, content.itemsize * content.shape[1])))
    return np.argsort(keys.ravel(), kind="stable")


def take(
    rows: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Some of the rows."""
    return x[rows], y[rows], None if weight is None else weight[rows]


def location_and_scale(
    values: np.ndarray, weight: np.ndarray | None, standardize: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each column; a column that does not vary has scale 1."""
    n = values.shape[1]
    if not standardize:
        return np.zeros(n), np.ones(n)
    scaler = StandardScaler().fit(values, sample_weight=weight)
    return scaler.mean_, scaler.scale_


def hold_out(y: np.ndarray, fraction: float, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for validation; classes are kept in proportion where they can be.

    Args:
        y: Targets; class numbers where ``kind`` is ``"classes"``.
        fraction: Share of the rows that is held out.
        kind: ``"classes"``, ``"labels"`` or ``"real"``, which needs two rows for a score.
        seed: Of the split.
    """
    n_held = int(np.ceil(fraction * len(y)))
    if n_held < (2 if kind == "real" else 1) or len(y) - n_held < 1:
        raise ValueError(
            f"early_stopping holds {n_held} of {len(y)} rows out for validation: too few rows on one "
            "side. Change validation_fraction, or use early_stopping=False."
        )
    stratify = None
    if kind == "classes":
        counts = np.bincount(y)
        counts = counts[counts > 0]
        if counts.min() > 1 and len(counts) <= min(n_held, len(y) - n_held):
            stratify = y
    kept, held = train_test_split(np.arange(len(y)), test_size=n_held, stratify=stratify, random_state=seed)
    return kept, held


def draw_epoch(n_rows: int, weight: np.ndarray | None, generator: torch.Generator) -> Tensor:
    """Row numbers of one epoch in random order: each once, or as often as its weight says.

    Weights are expected frequencies: the sum of weights is cut into pieces of equal length, and the row is
    taken in which each piece, shifted by one random number, begins. A whole-number weight thus gives so many
    copies, and a weight of 1.5 one or two. An epoch is as long as the sum of weights, but not shorter than
    the number of rows and not longer than ten times that.

    Args:
        n_rows: Number of rows.
        weight: Weight of each row, above zero, or None for each row once.
        generator: Source of randomness. Draws, in this order: the order, the shift if there are weights.
    """
    if weight is None:
        return torch.randperm(n_rows, generator=generator)
    cumulative = np.cumsum(weight, dtype=np.float64)
    length = round(min(max(cumulative[-1], n_rows), LONGEST_EPOCH * n_rows))
    order = torch.randperm(length, generator=generator)
    shift = float(torch.rand(1, generator=generator, dtype=torch.float64))
    places = (shift + np.arange(length)) * (cumulative[-1] / length)
    chosen = np.searchsorted(cumulative, places, side="right").clip(max=n_rows - 1)
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
    """One pass over the rows; returns the mean loss of its steps.

    Streams are derived from the seed and the number of the epoch alone, so that training can stop and go on.
    Batches are of equal size, up to one row: a last batch of one row would have no partner.
    """
    chosen = draw_epoch(len(rows.x), rows.weight, stream(seed, "order", epoch))
    noise = stream(seed, "noise", epoch)
    objective.train()
    losses = []
    with private_stream(stream_seed(seed, "network", epoch), device):
        for loss in _losses(objective, rows, chosen, batch_size, device, noise):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    objective.eval()
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"The training loss became {mean} in epoch {epoch + 1}. Lower learning_rate, or sigma, or keep "
            "standardize=True."
        )
    return mean


def _losses(
    objective: nn.Module,
    rows: Rows,
    chosen: Tensor,
    batch_size: int,
    device: torch.device,
    noise: torch.Generator,
) -> Iterator[Tensor]:
    """The objective on each batch, with points drawn many batches at a time where that has the same law."""
    if isinstance(objective, Elliptic) and can_draw_epochs(objective.settings):
        drawn = epoch_paths(
            objective.settings, rows.x, rows.y, chosen, batch_size, device=device, generator=noise
        )
        for paths in drawn:
            yield objective.loss_on(paths)
    else:
        for part in chosen.tensor_split(math.ceil(len(chosen) / batch_size)):
            yield objective(rows.x[part].to(device), rows.y[part].to(device), generator=noise)


@contextlib.contextmanager
def private_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's default stream (initial weights, dropout) for a while, and put it back afterwards."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds every accelerator
        if cuda:  # pragma: no cover - needs a GPU
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
