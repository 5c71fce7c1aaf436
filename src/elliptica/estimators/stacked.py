"""Train many perceptrons of one shape at once, each with its own rows, seed, method and settings.

A step of a small network spends most of its time outside the arithmetic. Here, one product serves a block of
networks, points are drawn for several steps at once, and gradients are written out by hand: autograd needs
1.3 to 3.8 times as long. That is possible because every method is a mixture of two rows, noise, and a weight
per row. A network has generators of its own for the order of its rows and for everything else, so its draws
do not depend on its neighbours, and methods with one seed see the same rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elliptica._utils.perceptron import average_share, one_thread
from elliptica._utils.random import stream
from elliptica.baselines.groups import draw_shares
from elliptica.core.bridge import unit_spread

Loss = Literal["classes", "labels", "real"]

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
_MIXING = (*_BRIDGES, "mixup", "c-mixup", "lisa")

#: An epoch draws at most this many times the number of rows, however large the sample weights.
LONGEST_EPOCH = 10
#: Numbers and rows that a network draws at once: many, because every draw has a price, but few enough for a
#: cache. More than ``MOST_ROWS`` would cost memory for nothing, and a batch is always drawn as a whole.
NUMBERS_AT_ONCE, MOST_ROWS = 2**14, 2**10
#: Maximum number of rows of the batch among which C-Mixup and LISA choose a partner.
CANDIDATES = 64
#: Maximum number of inputs that `Encoding` appends, unless there are more columns.
MOST_PLACES = 128
#: Up to this many multiply-adds per training step, one torch thread is faster than several.
SMALL_STEP = 2**25
_BLOCK_BYTES = 16 * 2**20  # size of networks that are trained together for a few steps: fits into a cache
_SLOPE = 0.1  # of the leaky ReLU of `mlp`
_EVALUATED = 1024  # rows that are validated at once


class Table(NamedTuple):
    """Rows in the form that networks see: scaled inputs, and targets as numbers."""

    x: Tensor  # float32 ``(rows, features)``
    y: Tensor  # one-hot labels, zeros and ones, or scaled real targets, float32 ``(rows, outputs)``
    label: Tensor  # class numbers; zeros if targets are not classes
    group: Tensor  # numbers of the groups; zeros if there are none


@dataclass(frozen=True, eq=False)
class Job:
    """One network to train."""

    table: Table  # jobs of one call may share tables
    rows: np.ndarray  # row numbers that it is trained on
    seed: int  # of initial weights, order of rows and noise
    epochs: int
    method: str = "erm"  # one of `METHODS`
    settings: Mapping[str, float] = field(default_factory=dict)  # those that differ from `METHODS`
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    validation: np.ndarray | None = None  # rows whose loss chooses the epoch; None keeps the last one
    weight: np.ndarray | None = None  # expected frequency of each row in an epoch; None means once
    encoding: Encoding | None = None  # of points, after they are drawn

    def setting(self, name: str) -> float:
        """Return the value of a setting, its default, or 0 if the method has none of this name."""
        return float(self.settings.get(name, METHODS[self.method].get(name, 0.0)))


@dataclass(eq=False)
class Progress:
    """The training of one network, so far."""

    epochs: int = 0
    best_epoch: int = 0  # whose weights are kept, from 1: that of the least validation loss, or the last
    losses: list[float] = field(default_factory=list)  # mean of each epoch at the points, without row weights
    validation_losses: list[float] = field(default_factory=list)
    ended: str = ""  # "length", "patience", or "failed" if the loss was not finite

    def end_epoch(self, loss: float, validation: float | None, length: int, patience: int | None) -> bool:
        """Record an epoch, decide whether training ends, and return whether its weights are the best."""
        self.epochs += 1
        self.losses.append(loss)
        least = min(self.validation_losses, default=math.inf)
        if validation is not None:
            self.validation_losses.append(validation)
        if not math.isfinite(loss) or not math.isfinite(validation or 0.0):
            self.ended = "failed"
            return False
        if validation is None or validation < least:
            self.best_epoch = self.epochs
        if self.epochs >= length:
            self.ended = "length"
        elif patience is not None and self.epochs - self.best_epoch >= patience:
            self.ended = "patience"
        return self.best_epoch == self.epochs


class Trained(NamedTuple):
    """A trained perceptron: weights ``(inputs, outputs)`` of each layer, then biases, and its progress."""

    parameters: list[Tensor]
    progress: Progress


def train_stack(
    jobs: Sequence[Job],
    *,
    loss: Loss,
    hidden: Sequence[int] = (128, 128),
    batch_size: int = 32,
    patience: int | None = 10,
    callback: Callable[[float], None] | None = None,
) -> list[Trained]:
    """Train one perceptron for each job, all of them side by side, by AdamW.

    Every step takes the next ``batch_size`` rows of a network's order; an epoch has as many steps as batches
    are needed for its rows. Differences from the objectives of `elliptica.baselines`: the partner of mixup
    and of elliptic training is the next row of the batch; C-Mixup and LISA choose among `CANDIDATES` rows of
    it. ``"groupdro"`` and ``"balanced"`` draw every group equally often, ``"lisa"`` every combination of
    class and group. A network that fails keeps the best weights before that, or the initial ones.

    Args:
        jobs: Networks to train; their tables have the same numbers of features and outputs.
        loss: Cross-entropy for ``"classes"``, binary for ``"labels"``, squared error for ``"real"``.
        hidden: Units of the hidden layers.
        batch_size: Rows per step, for all networks. A network with fewer rows sees some of them twice.
        patience: Epochs without a better validation loss after which a network stops; None means no limit.
        callback: Called from time to time with the finished share of the work.

    Example:
        >>> table = Table(torch.randn(60, 3), torch.randn(60, 1), *torch.zeros(2, 60, dtype=torch.long))
        >>> jobs = [Job(table, torch.arange(60).numpy(), seed, 2, "elliptic") for seed in range(4)]
        >>> [network.progress.epochs for network in train_stack(jobs, loss="real", hidden=(8,))]
        [2, 2, 2, 2]
    """
    first = jobs[0].table
    width = first.x.shape[1] if jobs[0].encoding is None else jobs[0].encoding.width
    sizes = [width, *hidden, first.y.shape[1]]
    is_small = batch_size * sum(a * b for a, b in pairwise(sizes)) <= SMALL_STEP
    with one_thread() if is_small else contextlib.nullcontext(), torch.no_grad():
        tables = list({id(job.table): job.table for job in jobs}.values())
        table = first if len(tables) == 1 else Table(*map(torch.cat, zip(*tables, strict=True)))
        ends = torch.tensor([0, *(len(part.x) for part in tables)]).cumsum(0).tolist()
        offsets = {id(part): end for part, end in zip(tables, ends, strict=False)}
        networks = [_Network(job, offsets[id(job.table)], sizes, batch_size) for job in jobs]
        _Stack(networks, table, sizes, loss, patience).train(callback)
    return [Trained(network.best, network.progress) for network in networks]


def init_parameters(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Draw weights, then biases, as `torch.nn.Linear` does."""
    generator, shapes = stream(seed, "init"), list(pairwise(sizes))
    weights = [torch.rand(a, b, generator=generator).mul_(2).sub_(1) / math.sqrt(a) for a, b in shapes]
    return weights + [torch.rand(b, generator=generator).mul_(2).sub_(1) / math.sqrt(a) for a, b in shapes]


def state_dict(parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return weights and biases in the form of a perceptron of `elliptica._utils.perceptron.mlp`."""
    n = len(parameters) // 2
    state = {f"{2 * i}.weight": weight.T.contiguous() for i, weight in enumerate(parameters[:n])}
    return state | {f"{2 * i}.bias": bias for i, bias in enumerate(parameters[n:])}


def epoch_length(n_rows: int, weight: np.ndarray | None) -> int:
    """Return the number of rows of an epoch: the sum of weights, or the number of rows, within limits."""
    total = n_rows if weight is None else float(weight.sum())
    return round(min(max(total, n_rows), LONGEST_EPOCH * n_rows))


def draw_epoch(n_rows: int, weight: np.ndarray | None, generator: torch.Generator) -> Tensor:
    """Draw the row numbers of one epoch in random order: each once, or as often as its weight says.

    The sum of weights is divided into pieces of equal length, all shifted by one random number, and the row
    at the start of each piece is taken: a weight of 2 gives two copies, and one of 1.5 one or two.
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

    def __init__(self, job: Job, offset: int = 0) -> None:
        self.seed, self.number = job.seed, 0
        self.rows = torch.as_tensor(job.rows, dtype=torch.long)
        self.weight = None if job.weight is None else np.asarray(job.weight, dtype=np.float64)
        if job.method in GROUP_METHODS:
            self._balance(job)
        self.rows = self.rows + offset  # not in place: the array is the job's
        self.length = epoch_length(len(self.rows), self.weight)
        self.queue = self.rows[:0]

    def _balance(self, job: Job) -> None:
        """Give each group, or each class within a group, the same total weight.

        Rows of a group become neighbours, so `draw_epoch` draws each group equally often up to one.
        """
        part = job.table.group[self.rows]
        if job.method == "lisa":
            part = part + (int(part.max()) + 1) * job.table.label[self.rows]
        order = part.argsort(stable=True)
        ordered = part[order].numpy()
        weight = np.ones(len(order)) if self.weight is None else self.weight[order.numpy()]
        weight = weight / np.bincount(ordered, weights=weight).clip(1e-38)[ordered]
        self.rows, self.weight = self.rows[order], weight * (len(order) / weight.sum())

    def take(self, count: int) -> Tensor:
        """Return the next row numbers; a batch may hold the end of one order and the start of the next."""
        while len(self.queue) < count:
            order = draw_epoch(len(self.rows), self.weight, stream(self.seed, "order", self.number))
            self.queue = torch.cat([self.queue, self.rows[order]])
            self.number += 1
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken


class Encoding(nn.Module):
    """Append to numbers their places in bins: how far each is on its way through a bin, from 0 to 1.

    A piecewise linear function of a column is linear in these (Gorishniy et al. 2022). ``knots`` are those of
    `quantile_knots`.
    """

    columns: Tensor
    left: Tensor
    width_of: Tensor

    def __init__(self, knots: np.ndarray) -> None:
        super().__init__()
        columns = torch.from_numpy(np.flatnonzero(np.isfinite(knots[:, 0])))
        ends = torch.tensor(knots, dtype=torch.float32)[columns]
        parts = {"columns": columns, "left": ends[:, :-1], "width_of": ends.diff(dim=1).clamp_min(1e-6)}
        for name, value in parts.items():
            self.register_buffer(name, value, persistent=False)
        self.width = len(knots) + self.left.numel()

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows ``(..., column)``."""
        places = (x[..., self.columns, None] - self.left) / self.width_of
        return torch.cat([x, nn.functional.hardtanh(places, 0.0, 1.0).flatten(-2)], -1)

    def pull_back(self, encoded: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient by the numbers from that by the encoded ones."""
        n = self.width - self.left.numel()
        inner = gradient[..., n:] * ((encoded[..., n:] > 0) & (encoded[..., n:] < 1))
        slope = inner.unflatten(-1, self.left.shape).div(self.width_of).sum(-1)
        return gradient[..., :n].index_add(-1, self.columns, slope)


def quantile_knots(x: np.ndarray, bins: int) -> np.ndarray:
    """Return the ends of bins of each column, quantiles of its different values; NaN if it has two or one.

    Many columns get fewer bins, `MOST_PLACES` in all, but at least one each.
    """
    values = [np.unique(column) for column in x.T]
    bins = min(bins, max(1, MOST_PLACES // max(1, sum(len(v) > 2 for v in values))))
    grid, none = np.linspace(0, 1, bins + 1), np.full(bins + 1, np.nan)
    return np.array([np.quantile(v, grid) if len(v) > 2 else none for v in values])


class Points(NamedTuple):
    """Training points of one network, or of several, for a few steps: (network,) step, row of the batch."""

    x: Tensor
    y: Tensor
    rows: Tensor
    partners: Tensor
    s: Tensor  # share of the partner


class Drawer:
    """Draw the points of one network; ``offset`` is the place of its table among all rows."""

    def __init__(self, job: Job, offset: int = 0) -> None:
        self.job, self.rows, self.generator = job, RowStream(job, offset), stream(job.seed, "noise", 0)

    def draw(self, table: Table, batch_size: int, steps: int) -> Points:
        """Draw the points of the next steps."""
        rows = self.rows.take(steps * batch_size).view(steps, batch_size)
        partners, s, spread = rows, torch.zeros(rows.shape), torch.ones(rows.shape)
        if self.job.method in _MIXING:
            partners, s = self._partners(table, rows)
            x, y = (_mix(values, rows, partners, s) for values in (table.x, table.y))
        else:
            x, y = table.x[rows], table.y[rows]
        if self.job.method in _BRIDGES:
            # a bridge has variance s (1 - s) at time s; the other methods add noise of constant size
            spread = unit_spread(s)
        for points, sigma in ((x, self.job.setting("sigma")), (y, self.job.setting("sigma_y"))):
            if sigma > 0:
                noise = torch.empty_like(points).normal_(generator=self.generator)
                points.addcmul_(noise, (sigma * spread).unsqueeze(-1))
        if part := self.job.setting("smoothing"):
            y.mul_(1 - part).add_(part / y.shape[-1])
        if self.job.encoding is not None:
            x = self.job.encoding(x)
        return Points(x, y, rows, partners, s)

    def _partners(self, table: Table, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the partner of each row, and its share."""
        job, generator, (steps, batch_size) = self.job, self.generator, rows.shape
        after = rows.roll(-1, 1)  # rows are in random order, so the next one is random
        if job.method in _BRIDGES:
            u = torch.rand(steps, 1, generator=generator)
            return after, tent_times(u, job.setting("n_times"), batch_size)
        is_lisa = job.method == "lisa"
        if is_lisa:
            within_label = torch.rand(steps, 1, generator=generator) < job.setting("selection")
        count = steps * batch_size if is_lisa else steps
        shares = draw_shares(job.setting("alpha"), count, rows.device, generator)
        s = (1 - shares).view(steps, -1).expand(rows.shape)
        if job.method == "mixup":
            return after, s
        u = torch.rand(rows.shape, generator=generator)
        if not is_lisa:
            return kernel_partners(rows, table.y, job.setting("bandwidth"), u), s
        partners, is_alone = lisa_partners(rows, table.label, table.group, within_label, u)
        return partners, s.masked_fill(is_alone, 0.0)  # a row without a partner stays as it is


def _mix(values: Tensor, rows: Tensor, partners: Tensor, s: Tensor) -> Tensor:
    """Mix rows with their partners to points ``(*rows, column)``, in one pass over the table."""
    pairs = torch.stack([rows, partners], -1).view(-1, 2)
    shares = torch.stack([1 - s, s], -1).view(-1, 2)
    mixed = nn.functional.embedding_bag(pairs, values, per_sample_weights=shares, mode="sum")
    return mixed.view(*rows.shape, values.shape[1])


def tent_times(offset: Tensor, n_times: float, batch_size: int) -> Tensor:
    """Draw times of a batch on a grid of ``n_times`` points, both ends included.

    They follow the place of a row: from the last time to the first and back, as `elliptica.core.bridge.tent`
    does for a cycle of partners. ``offset`` are uniform numbers on [0, 1), one per batch, ``(..., 1)``.
    """
    u = offset.add(torch.arange(batch_size)).mul_(2 / batch_size).sub_(1).abs_()
    return u.mul(n_times).floor_().clamp_max_(n_times - 1).div_(n_times - 1)  # u may be 1


def kernel_partners(rows: Tensor, targets: Tensor, bandwidth: float, u: Tensor) -> Tensor:
    """Choose partners by C-Mixup's Gaussian kernel of targets, among a row and those after it."""
    places = _candidates(rows.shape[-1], 0)
    values = targets[rows]
    apart = (values.unsqueeze(-2) - values[..., places, :]).square_().sum(-1)
    weights = apart.mul_(-0.5 / bandwidth**2).exp_()
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


class _Network:
    """Draws, tensors and progress of one network in training."""

    def __init__(self, job: Job, offset: int, sizes: Sequence[int], batch_size: int) -> None:
        self.job, self.progress, self.drawer = job, Progress(), Drawer(job, offset)
        self.epoch_steps = math.ceil(self.drawer.rows.length / batch_size)
        self.parameters = init_parameters(sizes, job.seed)
        self.best = self.parameters
        self.moments = [torch.zeros_like(part) for part in self.parameters * 2]
        self.averages = [part.clone() for part in self.parameters]  # of weights, over steps
        groups = torch.bincount(job.table.group[job.rows])
        self.log_q = (groups > 0).float().log()  # weights of Group DRO: equal for groups with rows
        self.totals = torch.zeros(batch_size)  # losses since the last epoch, by place in the batch
        self.validation: Tensor | None = None
        if job.validation is not None:
            self.validation = torch.as_tensor(job.validation, dtype=torch.long) + offset
        self.rate = (job.learning_rate, job.weight_decay)


class _Block:
    """Networks that are trained together for a few steps; theirs are views of its tensors."""

    def __init__(self, networks: list[_Network], n_groups: int) -> None:
        self.networks, self.jobs = networks, [network.job for network in networks]
        self.parameters, self.moments, self.averages = (
            [torch.stack(part) for part in zip(*(getattr(n, name) for n in networks), strict=True)]
            for name in ("parameters", "moments", "averages")
        )
        self.gradients = [torch.empty_like(part) for part in self.parameters]
        self.totals = torch.stack([network.totals for network in networks])
        self.log_q = torch.full((len(networks), n_groups), -math.inf)
        for i, network in enumerate(networks):
            for name in ("parameters", "moments", "averages"):
                setattr(network, name, [part[i] for part in getattr(self, name)])
            self.log_q[i, : len(network.log_q)] = network.log_q
            network.log_q, network.totals = self.log_q[i], self.totals[i]
        self.weighted, self.xi = self._with("elliptic-weighted", "xi")
        self.worst, self.eta = self._with("groupdro", "eta")
        #: Neighbours with the same learning rate and decay, for one call of AdamW.
        self.runs: list[tuple[tuple[float, float], list[list[Tensor]]]] = []
        begin, n = 0, len(self.parameters)
        for rate, same in groupby(networks, key=lambda network: network.rate):
            end = begin + len(list(same))
            kinds = (self.parameters, self.gradients, self.moments[:n], self.moments[n:])
            self.runs.append((rate, [[part[begin:end] for part in kind] for kind in kinds]))
            begin = end

    def _with(self, method: str, setting: str) -> tuple[list[int], Tensor]:
        """Return the places of the networks with a method, and a setting of theirs."""
        places = [i for i, job in enumerate(self.jobs) if job.method == method]
        return places, torch.tensor([self.jobs[i].setting(setting) for i in places]).view(-1, 1)


def _layers(parameters: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return weights ``(network, inputs, outputs)`` and biases ``(network, 1, outputs)``."""
    n = len(parameters) // 2
    return [(parameters[i], parameters[n + i].unsqueeze(1)) for i in range(n)]


class _Stack:
    """All networks of one call, in blocks that fit into a cache."""

    def __init__(
        self, networks: list[_Network], table: Table, sizes: Sequence[int], loss: Loss, patience: int | None
    ) -> None:
        self.table, self.loss, self.patience = table, loss, patience
        batch_size = self.batch_size = len(networks[0].totals)
        self.networks, self.n_groups = networks, int(table.group.max()) + 1
        self.steps_at_once = max(1, min(MOST_ROWS, NUMBERS_AT_ONCE // sizes[0]) // batch_size)
        numbers = 5 * sum(a * b + b for a, b in pairwise(sizes))
        numbers += batch_size * (2 * sum(sizes) + self.steps_at_once * sizes[0])
        self.block_size = max(1, _BLOCK_BYTES // (4 * numbers))
        self.step, most = 0, min(self.block_size, len(networks))
        # memory that blocks share: reusing it is faster than allocating it
        self.outputs, self.slopes = ([torch.empty(most, batch_size, b) for b in sizes[1:]] for _ in range(2))

    def train(self, callback: Callable[[float], None] | None) -> None:
        """Train until all networks have stopped."""
        work = sum(network.job.epochs * network.epoch_steps for network in self.networks)
        alive = self.networks
        blocks = self._blocks(alive)
        while alive:
            for block in blocks:
                self._train_block(block)
            self.step += self.steps_at_once
            alive = [network for network in alive if not network.progress.ended]
            if len(alive) <= 0.9 * sum(len(block.networks) for block in blocks):  # some train on for nothing
                blocks = self._blocks(alive)
            if callback is not None:
                callback(1 - sum(n.job.epochs * n.epoch_steps - self.step for n in alive) / work)

    def _blocks(self, networks: list[_Network]) -> list[_Block]:
        """Divide networks into blocks of about equal size."""
        count = math.ceil(len(networks) / self.block_size)
        networks = sorted(networks, key=lambda network: network.rate)
        bounds = [len(networks) * number // max(1, count) for number in range(count + 1)]
        return [_Block(networks[a:b], self.n_groups) for a, b in pairwise(bounds)]

    def _train_block(self, block: _Block) -> None:
        """Train one block for a few steps."""
        sizes = (self.table, self.batch_size, self.steps_at_once)
        drawn = [network.drawer.draw(*sizes) for network in block.networks]
        points = Points(*map(torch.stack, zip(*drawn, strict=True)))
        groups = self.table.group[points.rows[block.worst]]
        for k in range(self.steps_at_once):
            self._train_step(block, points.x[:, k], points.y[:, k], groups[:, k], self.step + k)
            done = self.step + k + 1
            if any(done % network.epoch_steps == 0 for network in block.networks):
                self._end_epochs(block, done)

    def _train_step(self, block: _Block, x: Tensor, y: Tensor, groups: Tensor, step: int) -> None:
        """Take one AdamW step on the mean loss of a batch for each network; the method weights rows."""
        layers, count = _layers(block.parameters), len(block.networks)
        outputs = _forward(layers, x, [part[:count] for part in self.outputs])
        slopes = [part[:count] for part in self.slopes]
        losses, slopes[-1] = self._losses(outputs[-1], y)
        block.totals += losses
        slopes[-1] /= self.batch_size  # the gradient of the mean over the batch
        if block.worst:
            slopes[-1][block.worst] *= self._worst_groups(block, losses[block.worst], groups).unsqueeze(2)
        for layer in range(len(layers) - 1, 0, -1):
            slope, output = slopes[layer - 1], outputs[layer - 1]
            torch.bmm(slopes[layer], layers[layer][0].transpose(1, 2), out=slope)
            # a leaky ReLU keeps the sign of its input, so its output is enough for the derivative
            torch.ops.aten.leaky_relu_backward.grad_input(slope, output, _SLOPE, True, grad_input=slope)
        if block.weighted:  # importance weights depend on the input gradient, so they come last
            gradient = torch.bmm(slopes[0][block.weighted], layers[0][0][block.weighted].transpose(1, 2))
            encodings = [block.jobs[i].encoding for i in block.weighted]
            parts = zip(encodings, x[block.weighted], gradient, strict=True)
            gradients = [g if e is None else e.pull_back(points, g) for e, points, g in parts]
            factor = _by_gradient(torch.stack(gradients), block.xi)
            for slope in slopes:
                slope[block.weighted] *= factor.unsqueeze(2)
        for layer, slope in enumerate(slopes):
            inputs = x if layer == 0 else outputs[layer - 1]
            torch.bmm(inputs.transpose(1, 2), slope, out=block.gradients[layer])
            torch.sum(slope, 1, out=block.gradients[len(slopes) + layer])
        adamw: Any = torch._fused_adamw_
        how = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
        count_of_steps = [torch.tensor(step + 1.0)] * len(block.parameters)
        for (rate, decay), tensors in block.runs:
            adamw(*tensors, [], count_of_steps, lr=rate, weight_decay=decay, **how)
        torch._foreach_lerp_(block.averages, block.parameters, average_share(step + 1))

    def _losses(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of each row, and its derivative by the outputs."""
        if self.loss == "classes":
            # a softmax by hand, shifted against overflow, is three times as fast as torch's for a few classes
            shifted = outputs - outputs.amax(-1, keepdim=True)
            powers = shifted.exp()
            total = powers.sum(-1, keepdim=True)
            slope = torch.div(powers, total).sub_(y)
            return total.log_().squeeze(-1) - shifted.mul_(y).sum(-1), slope
        if self.loss == "labels":
            entropy = nn.functional.binary_cross_entropy_with_logits
            losses = entropy(outputs, y.expand_as(outputs), reduction="none")
            return losses.mean(-1), outputs.sigmoid().sub_(y).div_(y.shape[-1])
        difference = outputs - y
        return difference.square().mean(-1), difference.mul_(2 / y.shape[-1])

    def _worst_groups(self, block: _Block, losses: Tensor, groups: Tensor) -> Tensor:
        """Update Group DRO's group weights, and return the factor of each row."""
        log_q = block.log_q[block.worst]
        counts = torch.zeros_like(log_q).scatter_add_(1, groups, torch.ones_like(losses)).clamp_min_(1)
        risks = torch.zeros_like(log_q).scatter_add_(1, groups, losses) / counts
        # exponentiated gradient ascent on the group weights; the softmax keeps them a distribution
        log_q = (log_q + block.eta * risks).log_softmax(1)
        block.log_q[block.worst] = log_q
        return (log_q.exp() / counts).gather(1, groups) * self.batch_size

    def _end_epochs(self, block: _Block, step: int) -> None:
        """Record losses of networks whose epoch ends here, keep the best weights, and check for the end."""
        networks = block.networks
        places = [i for i, n in enumerate(networks) if step % n.epoch_steps == 0 and not n.progress.ended]
        for i, validation in zip(places, self._validate(block, places), strict=True):
            network = networks[i]
            loss = float(block.totals[i].mean()) / network.epoch_steps
            block.totals[i] = 0.0
            progress, length = network.progress, network.job.epochs
            is_best = progress.end_epoch(loss, validation, length, self.patience)
            if is_best and (validation is not None or progress.ended):
                network.best = [part.clone() for part in network.averages]

    def _validate(self, block: _Block, places: Sequence[int]) -> list[float | None]:
        """Compute validation losses of some networks, those with the same rows at once."""
        losses: dict[int, float | None] = dict.fromkeys(places)
        alike: dict[tuple[int, int], list[int]] = {}
        for i in places:
            alike.setdefault((id(block.jobs[i].validation), id(block.jobs[i].table)), []).append(i)
        for same in alike.values():
            if (rows := block.networks[same[0]].validation) is None:
                continue
            layers, total = _layers([part[same] for part in block.averages]), torch.zeros(len(same))
            encoding = block.jobs[same[0]].encoding
            for part in rows.split(_EVALUATED):
                x = self.table.x[part] if encoding is None else encoding(self.table.x[part])
                outputs = _forward(layers, x.expand(len(same), -1, -1))[-1]
                total += self._losses(outputs, self.table.y[part])[0].sum(1)
            losses.update(zip(same, (total / len(rows)).tolist(), strict=True))
        return [losses[i] for i in places]


def _forward(
    layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, memory: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Compute the outputs ``(network, row, unit)`` of each layer, after its activation."""
    outputs = []
    for number, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight, out=None if memory is None else memory[number])
        if number < len(layers) - 1:
            nn.functional.leaky_relu_(x, _SLOPE)
        outputs.append(x)
    return outputs


def _by_gradient(gradient: Tensor, xi: Tensor) -> Tensor:
    """Return the factors of `elliptica.core.weighting.GradientSoftmax`, of mean one."""
    norm = torch.linalg.vector_norm(gradient, dim=2)
    deviation = norm.std(1, keepdim=True) if norm.shape[1] > 1 else torch.zeros_like(norm)
    # a deviation of zero (equal norms, or one row) gives equal factors
    score = xi * (norm - norm.mean(1, keepdim=True)) / deviation.clamp_min(torch.finfo(norm.dtype).tiny)
    return score.softmax(1) * norm.shape[1]
