"""Draw rows and training points of small networks: every method is a mixture of two rows, plus noise.

A network has generators of its own for the order of its rows and for everything else, so its draws do not
depend on the networks that are trained beside it, and methods with one seed see the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elliptica._utils.random import stream
from elliptica.baselines.groups import draw_shares
from elliptica.core.bridge import unit_spread

#: Settings of each method with their defaults.
METHODS: dict[str, dict[str, float]] = {
    "erm": {},
    "noise": {"sigma": 0.1},
    "smoothing": {"smoothing": 0.1},
    "mixup": {"alpha": 1.0},
    "c-mixup": {"alpha": 2.0, "bandwidth": 1.0},
    "elliptic": {"sigma": 0.1, "sigma_y": 0.0, "n_times": 5},
    "elliptic-weighted": {"sigma": 0.1, "sigma_y": 0.0, "n_times": 5, "xi": 1.0},
    "groupdro": {"eta": 0.01},
    "lisa": {"alpha": 2.0, "selection": 0.5},
    "balanced": {},
}
#: Methods that use the groups of the rows.
GROUP_METHODS = ("groupdro", "lisa", "balanced")
_BRIDGES = ("elliptic", "elliptic-weighted")
_SHARES = ("mixup", "c-mixup", "lisa")  # methods that draw from a beta distribution
_MIXING = (*_BRIDGES, *_SHARES)
_TINY = float(np.finfo(np.float32).tiny)

#: An epoch draws at most this many times the number of rows, however large the sample weights.
LONGEST_EPOCH = 10
#: Rows that a network draws at once, unless a batch has more.
ROWS_AT_ONCE = 256
#: Maximum number of rows of the batch among which C-Mixup and LISA choose a partner.
CANDIDATES = 64


class Table(NamedTuple):
    """Rows in the form that networks see: scaled inputs, and targets as numbers."""

    x: Tensor  # float32 ``(rows, features)``
    y: Tensor  # one-hot labels, zeros and ones, or scaled real targets, float32 ``(rows, outputs)``
    label: Tensor  # class numbers; zeros if targets are not classes
    group: Tensor  # numbers of the groups; zeros if there are none


@dataclass(frozen=True, eq=False)
class Job:
    """One network to train.

    Attributes:
        table: Its rows; jobs of one call may share tables.
        rows: Row numbers that it is trained on.
        seed: Seed of initial weights, order of rows and noise.
        epochs: Number of epochs.
        method: One of `METHODS`.
        settings: Settings that differ from the defaults in `METHODS`.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        validation: Row numbers whose loss chooses the epoch; None keeps the last one.
        weight: Expected frequency of each of ``rows`` in an epoch (see `draw_epoch`); None means once.
    """

    table: Table
    rows: np.ndarray
    seed: int
    epochs: int
    method: str = "erm"
    settings: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    validation: np.ndarray | None = None
    weight: np.ndarray | None = None

    def setting(self, name: str) -> float:
        """Return the value of a setting, its default, or 0 if the method has none of this name."""
        return float(self.settings.get(name, METHODS[self.method].get(name, 0.0)))


def epoch_length(n_rows: int, weight: np.ndarray | None) -> int:
    """Return the number of rows of an epoch: the sum of weights, or the number of rows, within limits."""
    total = n_rows if weight is None else float(weight.sum())
    return round(min(max(total, n_rows), LONGEST_EPOCH * n_rows))


def draw_epoch(n_rows: int, weight: np.ndarray | None, generator: torch.Generator) -> Tensor:
    """Draw the row numbers of one epoch in random order: each once, or as often as its weight says.

    Weights are expected frequencies. The sum of weights is divided into pieces of equal length, all shifted
    by one random number, and the row at the start of each piece is taken. A weight of 2 thus gives exactly
    two copies, and a weight of 1.5 one or two. An epoch is as long as the sum of weights, but at least as
    long as the number of rows and at most ten times that.
    """
    length = epoch_length(n_rows, weight)
    order = torch.randperm(length, generator=generator)
    if weight is None:
        return order
    cumulative = np.cumsum(weight, dtype=np.float64)
    shift = float(torch.rand(1, generator=generator, dtype=torch.float64))
    # systematic sampling: one uniform shift for all pieces has less variance than independent draws
    places = (shift + np.arange(length)) * (cumulative[-1] / length)
    chosen = np.searchsorted(cumulative, places, side="right").clip(max=n_rows - 1)  # rounding
    return torch.from_numpy(chosen)[order]


class RowStream:
    """The rows of a network in one random order after another, balanced if its method requires it."""

    def __init__(self, job: Job, first_epoch: int = 0, offset: int = 0) -> None:
        self.seed, self.number = job.seed, first_epoch
        self.rows = torch.as_tensor(job.rows, dtype=torch.long)
        self.weight = None if job.weight is None else np.asarray(job.weight, dtype=np.float64)
        if job.method in GROUP_METHODS:
            self._balance(job)
        self.rows = self.rows + offset  # not in place: the array is the job's
        self.length = epoch_length(len(self.rows), self.weight)
        self.queue = self.rows[:0]

    def _balance(self, job: Job) -> None:
        """Give each group, or each class within a group, the same total weight.

        Rows of a group become neighbours, because `draw_epoch` samples systematically along this order.
        Every epoch then has the same number of rows of each group, up to one.
        """
        part = job.table.group[self.rows]
        if job.method == "lisa":
            part = part + (int(part.max()) + 1) * job.table.label[self.rows]
        order = part.argsort(stable=True)
        ordered = part[order].numpy()
        weight = np.ones(len(order)) if self.weight is None else self.weight[order.numpy()]
        weight = weight / np.bincount(ordered, weights=weight).clip(_TINY)[ordered]
        self.rows, self.weight = self.rows[order], weight * (len(order) / weight.sum())

    def take(self, count: int) -> Tensor:
        """Return the next row numbers; a batch may hold the end of one order and the start of the next."""
        while len(self.queue) < count:
            order = draw_epoch(len(self.rows), self.weight, stream(self.seed, "order", self.number))
            self.queue = torch.cat([self.queue, self.rows[order]])
            self.number += 1
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken


class Drawer(NamedTuple):
    """What draws the points of one network."""

    job: Job
    rows: RowStream
    noise: torch.Generator


class Points(NamedTuple):
    """Training points of some networks for a few steps; axes are network, step, row of the batch."""

    x: Tensor
    y: Tensor
    rows: Tensor
    partners: Tensor
    s: Tensor  # share of the partner


class _Numbers(NamedTuple):
    """Random numbers of the points, with the same axes."""

    s: Tensor  # share of the partner
    u: Tensor  # uniforms: the first of a batch for times, or each for its partner
    within_label: Tensor  # LISA's choice, ``(network, step, 1)``
    noise: Tensor
    noise_y: Tensor


def _draw_numbers(drawers: Sequence[Drawer], numbers: _Numbers) -> None:
    """Draw what each network's method needs from its own generator."""
    steps, batch_size = numbers.u.shape[1:]
    for i, (job, _, generator) in enumerate(drawers):
        if job.method == "lisa":
            choice = torch.rand(steps, 1, generator=generator)
            numbers.within_label[i] = choice < job.setting("selection")
        if job.method in _SHARES:
            count = steps * batch_size if job.method == "lisa" else steps
            shares = draw_shares(job.setting("alpha"), count, numbers.s.device, generator)
            numbers.s[i] = 1 - shares.view(steps, -1)
        if job.method in _BRIDGES:
            numbers.u[i, :, :1] = torch.rand(steps, 1, generator=generator)
        if job.method in ("c-mixup", "lisa"):
            numbers.u[i].uniform_(generator=generator)
        if job.setting("sigma") > 0:
            numbers.noise[i].normal_(generator=generator)
        if job.setting("sigma_y") > 0:
            numbers.noise_y[i].normal_(generator=generator)


def draw_points(
    drawers: Sequence[Drawer], table: Table, batch_size: int, steps: int, noise: Tensor
) -> Points:
    """Draw the points of the next steps.

    Args:
        drawers: Networks whose row numbers refer to ``table``.
        table: All rows.
        batch_size: Rows per step.
        steps: Number of steps.
        noise: Memory ``(network, step, row, feature)`` for the noise of the inputs, which is overwritten.
    """
    jobs = [drawer.job for drawer in drawers]
    shape = (len(jobs), steps, batch_size)
    rows = torch.stack([drawer.rows.take(steps * batch_size) for drawer in drawers]).view(shape)
    is_mixed = bool(places_of(jobs, *_MIXING))
    partners = rows.roll(-1, 2) if is_mixed else rows  # rows are in random order, so the next one is random
    numbers = _Numbers(
        torch.zeros(shape),
        torch.zeros(shape),
        torch.zeros(len(jobs), steps, 1, dtype=torch.bool),
        noise,
        torch.empty(*shape, table.y.shape[1]),
    )
    _draw_numbers(drawers, numbers)
    s, unit = numbers.s, torch.ones(shape)
    if bridges := places_of(jobs, *_BRIDGES):
        n_times = torch.tensor([jobs[i].setting("n_times") for i in bridges]).view(-1, 1, 1)
        s[bridges] = tent_times(numbers.u[bridges, :, :1], n_times, batch_size)
        # a bridge has variance s (1 - s) at time s; the other methods add noise of constant size
        unit[bridges] = unit_spread(s[bridges])
    if kernels := places_of(jobs, "c-mixup"):
        width = torch.tensor([jobs[i].setting("bandwidth") for i in kernels]).view(-1, 1, 1)
        partners[kernels] = kernel_partners(rows[kernels], table.y, width, numbers.u[kernels])
    if lisa := places_of(jobs, "lisa"):
        partners[lisa], is_alone = lisa_partners(
            rows[lisa], table.label, table.group, numbers.within_label[lisa], numbers.u[lisa]
        )
        s[lisa] = s[lisa].masked_fill_(is_alone, 0.0)  # a row without a partner stays as it is
    x, y = (_mix(z, rows, partners, s) if is_mixed else z[rows] for z in (table.x, table.y))
    noises = (numbers.noise, numbers.noise_y)
    for points, name, numbers_of in zip((x, y), ("sigma", "sigma_y"), noises, strict=True):
        for i, job in enumerate(jobs):
            if (sigma := job.setting(name)) > 0:
                points[i].addcmul_(numbers_of[i], (sigma * unit[i]).unsqueeze(2))
    for i in places_of(jobs, "smoothing"):
        part = jobs[i].setting("smoothing")
        y[i].mul_(1 - part).add_(part / y.shape[3])
    return Points(x, y, rows, partners, s)


def places_of(jobs: Sequence[Job], *methods: str) -> list[int]:
    """Return the places of the networks with some methods."""
    return [i for i, job in enumerate(jobs) if job.method in methods]


def _mix(values: Tensor, rows: Tensor, partners: Tensor, s: Tensor) -> Tensor:
    """Mix rows with their partners to points ``(*rows, column)``, in one pass over the table."""
    pairs = torch.stack([rows, partners], -1).view(-1, 2)
    shares = torch.stack([1 - s, s], -1).view(-1, 2)
    mixed = nn.functional.embedding_bag(pairs, values, per_sample_weights=shares, mode="sum")
    return mixed.view(*rows.shape, values.shape[1])


def tent_times(offset: Tensor, n_times: Tensor, batch_size: int) -> Tensor:
    """Draw times of a batch on grids of ``n_times`` points, both ends included, one grid per network.

    They follow the place of a row: from the last time to the first and back, as `elliptica.core.bridge.tent`
    does for a cycle of partners.

    Args:
        offset: Uniform numbers on [0, 1), one per batch, ``(..., 1)``.
        n_times: Number of grid points, broadcastable.
        batch_size: Rows of a batch.
    """
    u = offset.add(torch.arange(batch_size)).mul_(2 / batch_size).sub_(1).abs_()
    return u.mul(n_times).floor_().minimum(n_times - 1).div_(n_times - 1)  # u may be 1


def kernel_partners(rows: Tensor, targets: Tensor, bandwidth: Tensor, u: Tensor) -> Tensor:
    """Choose partners by C-Mixup's Gaussian kernel of targets, among a row and those after it."""
    places = _candidates(rows.shape[-1], 0)
    values = targets[rows]
    apart = (values.unsqueeze(-2) - values[..., places, :]).square_().sum(-1)
    weights = apart.mul_(-0.5 / bandwidth.square().unsqueeze(-1)).exp_()
    return rows.gather(-1, _pick(places, weights, u))


def lisa_partners(
    rows: Tensor, label: Tensor, group: Tensor, within_label: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose partners of the same class and another group, or the reverse; also tell rows without any."""
    places = _candidates(rows.shape[-1], 1)
    same_label, same_group = (part.unsqueeze(-1) == part[..., places] for part in (label[rows], group[rows]))
    within = within_label.unsqueeze(-1)
    allowed = torch.where(within, same_label & ~same_group, same_group & ~same_label)
    return rows.gather(-1, _pick(places, allowed.float(), u)), ~allowed.any(-1)


def _candidates(batch_size: int, first: int) -> Tensor:
    """Return the places ``(row, candidate)`` in the batch after each row, at most `CANDIDATES`."""
    count = max(1, min(CANDIDATES, batch_size - first))
    return (torch.arange(batch_size)[:, None] + torch.arange(first, first + count)) % batch_size


def _pick(places: Tensor, weights: Tensor, u: Tensor) -> Tensor:
    """Pick one place for each row with probabilities proportional to the weights, from uniform numbers."""
    sums = weights.cumsum(-1)
    # inverse transform sampling; without any weight, or by rounding, the last place is taken
    chosen = (sums <= (u * sums[..., -1]).unsqueeze(-1)).sum(-1).clamp_max_(weights.shape[-1] - 1)
    return places.expand(*u.shape[:-1], *places.shape).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
