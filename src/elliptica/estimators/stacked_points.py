"""Draw the training points of a stack of networks: jobs, random streams, and points.

Every method is a mixture of two rows of a batch, plus noise (`stacked` weights the rows). A network has its
own generators for initial weights, the order of its rows, and everything else. Its draws therefore do not
depend on its neighbours, and methods with the same seed see the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import stream
from elliptica.baselines.groups import draw_shares
from elliptica.core.bridge import unit_spread
from elliptica.estimators.fit import draw_epoch

StackedLoss = Literal["classes", "real"]
StackedSchedule = Literal["constant", "cosine"]

#: Settings of each method with defaults; ``sigma_y=None`` means ``sigma`` for real targets, 0 for classes.
SHARED: dict[str, float | None] = {
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "max_iter": 100,
    "stop_after": None,
}
METHODS: dict[str, dict[str, float | None]] = {
    "erm": {},
    "noise": {"sigma": 0.1},
    "smoothing": {"smoothing": 0.1},
    "mixup": {"alpha": 1.0},
    "c-mixup": {"alpha": 2.0, "bandwidth": 1.0},
    "elliptic": {"sigma": 0.1, "sigma_y": None, "n_times": 5},
    "elliptic-weighted": {"sigma": 0.1, "sigma_y": None, "n_times": 5, "xi": 1.0},
    "groupdro": {"eta": 0.01},
    "lisa": {"alpha": 2.0, "selection": 0.5},
    "balanced": {},
}
#: Methods that use the groups of the rows.
GROUP_METHODS = ("groupdro", "lisa", "balanced")
_OF_ONE_LOSS = {"smoothing": "classes", "lisa": "classes", "c-mixup": "real"}
_BRIDGES = ("elliptic", "elliptic-weighted")
_SHARES = ("mixup", "c-mixup", "lisa")  # methods that draw from a beta distribution
_MIXING = (*_BRIDGES, *_SHARES)

_TINY = float(np.finfo(np.float32).tiny)
_RANGES: dict[str, tuple[float, float]] = {  # of settings with other limits than 0 and infinity
    "learning_rate": (_TINY, math.inf),
    "bandwidth": (_TINY, math.inf),
    "max_iter": (1, math.inf),
    "stop_after": (1, math.inf),
    "n_times": (2, math.inf),
    "smoothing": (0, 1),
    "selection": (0, 1),
}
_COUNTS = ("max_iter", "stop_after", "n_times")

#: Rows that a network draws at once, unless a batch has more. Like `CANDIDATES`, it is part of the contract:
#: it decides which numbers of a generator become which noise.
ROWS_AT_ONCE = 256
#: Maximum number of rows of the batch among which C-Mixup and LISA choose a partner.
CANDIDATES = 64
#: Share of the steps in which ``schedule="cosine"`` warms up.
WARM_UP = 0.05


@dataclass(frozen=True)
class StackedJob:
    """One network to train.

    Attributes:
        rows: Row numbers of its table that it is trained on.
        data: Number of its table.
        seed: Seed of initial weights, order of rows and noise.
        method: One of `METHODS`.
        settings: Settings that differ from the defaults in `SHARED` and `METHODS`. The schedule of the
            learning rate covers ``max_iter`` epochs; ``stop_after`` ends training earlier.
        validation: Row numbers for the choice of the epoch; None keeps the last one.
        weight: Expected frequency of each of ``rows`` in an epoch (see `draw_epoch`); None means once.
    """

    rows: np.ndarray
    data: int
    seed: int
    method: str = "erm"
    settings: Mapping[str, float] = field(default_factory=dict)
    validation: np.ndarray | None = None
    weight: np.ndarray | None = None

    def setting(self, name: str) -> float:
        """Return the value of a setting, or its default."""
        default = SHARED[name] if name in SHARED else METHODS[self.method][name]
        value = self.settings.get(name, default)
        if value is None:  # sigma_y for real targets, or no early end
            return self.setting("sigma" if name == "sigma_y" else "max_iter")
        return float(value)


class Table(NamedTuple):
    """All tables, stacked and padded to one width."""

    x: Tensor
    y: Tensor  # one-hot labels, or real targets, ``(rows, output)``
    of_classes: bool
    label: Tensor  # class numbers, or zeros
    group: Tensor
    n_groups: int  # 0 if there are no groups
    sizes: list[int]
    widths: list[int]


def join_tables(
    x: Sequence[np.ndarray | Tensor],
    y: Sequence[np.ndarray | Tensor],
    groups: Sequence[np.ndarray | Tensor] | None,
    loss: StackedLoss,
    n_outputs: int,
) -> Table:
    """Check the tables and stack them."""
    inputs = [torch.as_tensor(part, dtype=torch.float32) for part in x]
    targets = [torch.as_tensor(part) for part in y]
    sizes = [len(part) for part in inputs]
    for name, parts in (("y", targets), ("groups", groups)):
        if parts is not None and [len(part) for part in parts] != sizes:
            raise ValueError(
                f"{name} must have as many rows as x, table by table: x has {sizes}, {name} has "
                f"{[len(part) for part in parts]}."
            )
    widths = [part.shape[1] for part in inputs]
    width = max(widths)
    joined = torch.cat([nn.functional.pad(part, (0, width - part.shape[1])) for part in inputs])
    target = torch.cat(targets)
    checks.finite("x", joined)
    if loss == "classes":
        if target.is_floating_point() or int(target.min()) < 0 or int(target.max()) >= n_outputs:
            raise ValueError(
                f"y must hold class numbers from 0 to {n_outputs - 1}, as integers, but has dtype "
                f"{target.dtype} and values from {target.min()} to {target.max()}."
            )
        label, encoded = target.long(), nn.functional.one_hot(target.long(), n_outputs).float()
    else:
        label, encoded = torch.zeros(len(joined), dtype=torch.long), target.float().reshape(len(joined), -1)
        checks.finite("y", encoded)
        if encoded.shape[1] != n_outputs:
            raise ValueError(
                f"y must hold n_outputs={n_outputs} targets per row, but has {encoded.shape[1]}."
            )
    group = label if groups is None else torch.cat([torch.as_tensor(part).long() for part in groups])
    if int(group.min()) < 0:
        raise ValueError(f"groups must be numbered from 0, but the smallest number is {int(group.min())}.")
    n_groups = 0 if groups is None else int(group.max()) + 1
    return Table(joined, encoded, loss == "classes", label, group, n_groups, sizes, widths)


def check_job(job: StackedJob, table: Table) -> None:
    """Raise if a job cannot be run."""
    loss = "classes" if table.of_classes else "real"
    checks.choice("method", job.method, tuple(METHODS))
    if unknown := sorted(set(job.settings) - set(SHARED) - set(METHODS[job.method])):
        known = ", ".join([*SHARED, *METHODS[job.method]])
        raise ValueError(f"Method {job.method!r} has no setting {unknown[0]!r}. It has {known}.")
    if _OF_ONE_LOSS.get(job.method, loss) != loss:
        raise ValueError(
            f"Method {job.method!r} is for loss={_OF_ONE_LOSS[job.method]!r}, but loss is {loss!r}."
        )
    if job.method in GROUP_METHODS and table.n_groups == 0:
        raise ValueError(f"Method {job.method!r} needs the group of each row. Pass groups=.")
    if job.settings.get("sigma_y") and table.of_classes:
        raise ValueError("sigma_y is the noise of real targets. Omit it for classes.")
    for name in (*SHARED, *METHODS[job.method]):
        low, high = _RANGES.get(name, (0.0, math.inf))
        if not low <= job.setting(name) <= high:
            raise ValueError(f"{name} must be between {low:g} and {high:g}, but got {job.setting(name):g}.")
        if name in _COUNTS and job.setting(name) % 1:
            raise ValueError(f"{name} must be an integer, but got {job.setting(name):g}.")
    _check_rows(job, table)


def _check_rows(job: StackedJob, table: Table) -> None:
    """Raise if rows are not in the table, or if weights do not fit them."""
    if not 0 <= job.data < len(table.sizes):
        raise ValueError(f"data must be the number of a table, below {len(table.sizes)}, but got {job.data}.")
    for name, rows in (("rows", job.rows), ("validation", job.validation)):
        if rows is None:
            continue
        if len(rows) == 0 or np.min(rows) < 0 or np.max(rows) >= table.sizes[job.data]:
            raise ValueError(
                f"{name} must hold at least one row number of table {job.data}, below "
                f"{table.sizes[job.data]}. Without validation rows, pass validation=None."
            )
    if job.weight is None:
        return
    if len(job.weight) != len(job.rows) or np.min(job.weight) < 0 or not np.any(job.weight):
        raise ValueError(
            f"weight must hold a number of at least zero for each of {len(job.rows)} rows, not all zero."
        )


class Network:
    """Random streams and progress of one network."""

    def __init__(self, number: int, job: StackedJob, table: Table, batch_size: int) -> None:
        begin = sum(table.sizes[: job.data])
        self.number, self.job, self.method = number, job, job.method
        self.width = table.widths[job.data]
        rows = torch.as_tensor(job.rows, dtype=torch.long) + begin
        self.rows, self.weight = _frequencies(job, table, rows)
        self.validation: Tensor | None = None
        if job.validation is not None:
            self.validation = torch.as_tensor(job.validation, dtype=torch.long) + begin
        self.noise = stream(job.seed, "noise")
        self.orders = 0
        self.queue = self._order()
        self.epoch_steps = math.ceil(len(self.queue) / batch_size)
        self.planned = int(job.setting("max_iter")) * self.epoch_steps
        self.length = min(self.planned, int(job.setting("stop_after")) * self.epoch_steps)
        self.rate, self.decay = job.setting("learning_rate"), job.setting("weight_decay")
        self.sigma = job.setting("sigma") if "sigma" in METHODS[job.method] else 0.0
        bridges_targets = job.method in _BRIDGES and not table.of_classes
        self.sigma_y = job.setting("sigma_y") if bridges_targets else 0.0
        # networks with equal keys are validated on the same rows
        self.validation_key = 0 if self.validation is None else hash(self.validation.numpy().tobytes())
        self.ended = ""
        self.epochs = self.best_epoch = 0
        self.least = math.inf
        self.losses: list[float] = []
        self.validation_losses: list[float] = []

    def _order(self) -> Tensor:
        """Draw all rows in a new order, from a stream that depends only on its number."""
        order = stream(self.job.seed, "order", self.orders)
        self.orders += 1
        return self.rows[draw_epoch(len(self.rows), self.weight, order)]

    def take(self, count: int) -> Tensor:
        """Return the next row numbers of its order."""
        while len(self.queue) < count:
            self.queue = torch.cat([self.queue, self._order()])
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def is_better(self, validation: float) -> bool:
        """Record a validation loss, if there is one, and return whether it is the least so far."""
        if self.validation is not None:
            self.validation_losses.append(validation)
        better = validation < self.least
        self.least = min(validation, self.least) if better else self.least
        return better

    def judge(self, step: int, patience: int | None) -> None:
        """Decide whether training ends after an epoch."""
        if not all(math.isfinite(losses[-1]) for losses in (self.losses, self.validation_losses) if losses):
            self.ended = "failed"
        elif step >= self.length:
            self.ended = "length"
        elif self.validation is not None and patience is not None:
            self.ended = "patience" if self.epochs - self.best_epoch >= patience else ""

    def factor(self, step: int, schedule: StackedSchedule) -> float:
        """Return the factor of the learning rate in a step, from 0."""
        if schedule == "constant":
            return 1.0
        warm = max(1.0, WARM_UP * self.planned)
        if step < warm:
            return (step + 1) / (warm + 1)
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, self.planned - warm)))


def _frequencies(job: StackedJob, table: Table, rows: Tensor) -> tuple[Tensor, np.ndarray | None]:
    """Return rows with their expected frequencies, balanced if the method requires it.

    Rows of a group become neighbours, because `draw_epoch` samples systematically along this order. Every
    epoch then has the same number of rows of each group, up to one.
    """
    weight = None if job.weight is None else np.asarray(job.weight, dtype=np.float64)
    if job.method not in GROUP_METHODS:
        return rows, weight
    part = table.group[rows]
    if job.method == "lisa":
        part = part + table.n_groups * table.label[rows]
    order = part.argsort(stable=True)
    ordered = part[order].numpy()
    weight = np.ones(len(rows)) if weight is None else weight[order.numpy()]
    weight = weight / np.bincount(ordered, weights=weight).clip(_TINY)[ordered]
    # each part has the same total weight; then weights are frequencies again, with mean one
    return rows[order], weight * (len(rows) / weight.sum())


class Points(NamedTuple):
    """Training points of a block of networks for a few steps; axes are network, step, row of the batch."""

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


def _draw_numbers(networks: Sequence[Network], numbers: _Numbers) -> None:
    """Draw what each network's method needs from its own generator.

    The order is: LISA's choices, shares, uniforms, noise of inputs, noise of targets.
    """
    steps, batch_size = numbers.u.shape[1:]
    for i, network in enumerate(networks):
        method, generator = network.method, network.noise
        if method == "lisa":
            choice = torch.rand(steps, 1, generator=generator)
            numbers.within_label[i] = choice < network.job.setting("selection")
        if method in _SHARES:
            count = steps * batch_size if method == "lisa" else steps
            shares = draw_shares(network.job.setting("alpha"), count, numbers.s.device, generator)
            numbers.s[i] = 1 - shares.view(steps, -1)
        if method in _BRIDGES:
            numbers.u[i, :, :1] = torch.rand(steps, 1, generator=generator)
        if method in ("c-mixup", "lisa"):
            numbers.u[i].uniform_(generator=generator)
        if network.sigma > 0:
            _fill_normal(numbers.noise[i], network.width, generator)
        if network.sigma_y > 0:
            numbers.noise_y[i].normal_(generator=generator)


def _fill_normal(memory: Tensor, width: int, generator: torch.Generator) -> None:
    """Fill the first columns with standard normals, and those that a narrower table lacks with zeros."""
    if width == memory.shape[-1]:
        memory.normal_(generator=generator)
    else:
        memory[..., :width] = torch.randn(*memory.shape[:-1], width, generator=generator)
        memory[..., width:] = 0


def draw_points(
    networks: Sequence[Network], table: Table, batch_size: int, steps: int, noise: Tensor
) -> Points:
    """Draw the points of the next steps.

    Args:
        networks: Networks of one block.
        table: All rows.
        batch_size: Rows per step.
        steps: Number of steps.
        noise: Buffer ``(network, step, row, feature)`` that is overwritten.
    """
    shape = (len(networks), steps, batch_size)
    rows = torch.stack([network.take(steps * batch_size) for network in networks]).view(shape)
    is_mixed = any(network.method in _MIXING for network in networks)
    partners = rows.roll(-1, 2) if is_mixed else rows  # rows are in random order, so the next one is random
    numbers = _Numbers(
        torch.zeros(shape),
        torch.zeros(shape),
        torch.zeros(len(networks), steps, 1, dtype=torch.bool),
        noise[: len(networks)],
        torch.zeros(*shape, table.y.shape[1]),
    )
    _draw_numbers(networks, numbers)
    s = numbers.s
    spread = torch.tensor([[n.sigma, n.sigma_y] for n in networks]).T[:, :, None, None].expand(2, *shape)
    if bridges := places_of(networks, *_BRIDGES):
        n_times = torch.tensor([networks[i].job.setting("n_times") for i in bridges]).view(-1, 1, 1)
        s[bridges] = tent_times(numbers.u[bridges, :, :1], n_times, batch_size)
        unit = torch.ones(shape)
        # a bridge has variance s (1 - s) at time s; the other methods add noise of constant size
        unit[bridges] = unit_spread(s[bridges])
        spread = spread * unit
    if kernels := places_of(networks, "c-mixup"):
        width = torch.tensor([networks[i].job.setting("bandwidth") for i in kernels]).view(-1, 1, 1)
        partners[kernels] = kernel_partners(rows[kernels], table.y, width, numbers.u[kernels])
    if lisa := places_of(networks, "lisa"):
        partners[lisa], is_alone = lisa_partners(
            rows[lisa], table.label, table.group, numbers.within_label[lisa], numbers.u[lisa]
        )
        s[lisa] = s[lisa].masked_fill_(is_alone, 0.0)  # a row without a partner stays as it is
    x, y = (_mix(z, rows, partners, s) if is_mixed else z[rows] for z in (table.x, table.y))
    if any(network.sigma > 0 for network in networks):
        x.addcmul_(numbers.noise, spread[0].unsqueeze(3))
    if any(network.sigma_y > 0 for network in networks):
        y.addcmul_(numbers.noise_y, spread[1].unsqueeze(3))
    for i in places_of(networks, "smoothing"):
        part = networks[i].job.setting("smoothing")
        y[i].mul_(1 - part).add_(part / y.shape[3])
    return Points(x, y, rows, partners, s)


def places_of(networks: Sequence[Network], *methods: str) -> list[int]:
    """Return the places of the networks with some methods."""
    return [i for i, network in enumerate(networks) if network.method in methods]


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
