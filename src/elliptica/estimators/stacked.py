"""Train many perceptrons of one shape at once, each with its own rows, seed, method and settings.

A step of a small network spends most of its time outside the arithmetic. Here, one product serves a block of
networks, points are drawn for several steps at once (`points`), and gradients are written out by hand. That
is possible because every method is a mixture of two rows, noise, and a weight per row.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from elliptica._utils.random import stream
from elliptica.estimators.points import ROWS_AT_ONCE, Drawer, Job, RowStream, Table, draw_points, places_of

Loss = Literal["classes", "labels", "real"]

_BLOCK_BYTES = 16 * 2**20  # size of networks that are trained together for a few steps: fits into a cache
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # usual values of Adam
_SLOPE = 0.1  # of the leaky ReLU of `mlp`
_EVALUATED = 1024  # rows that are validated at once
#: Up to this many multiply-adds per training step, one torch thread is faster than several.
SMALL_STEP = 2**25


@dataclass(eq=False)
class Progress:
    """The training of one network, so far.

    Attributes:
        epochs: Number of epochs.
        best_epoch: Epoch whose weights are kept, from 1: that of the least validation loss, or the last.
        losses: Mean loss of each epoch, at the drawn points and without row weights.
        validation_losses: Validation loss after each epoch; empty without validation rows.
        ended: Why training stopped: ``"length"``, ``"patience"``, or ``"failed"`` if the loss was not finite.
            The best weights before that are kept, or the initial ones.
        steps: Number of steps of the optimiser.
        moments: Its state, for resuming.
    """

    epochs: int = 0
    best_epoch: int = 0
    losses: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    ended: str = ""
    steps: int = 0
    moments: list[Tensor] = field(default_factory=list)

    def end_epoch(self, loss: float, validation: float | None) -> bool:
        """Record an epoch; return whether its weights are the best so far."""
        self.epochs += 1
        self.losses.append(loss)
        least = min(self.validation_losses, default=math.inf)
        if validation is not None:
            self.validation_losses.append(validation)
        if not math.isfinite(loss) or not math.isfinite(validation or 0.0):
            self.ended = "failed"
        elif validation is None or validation < least:
            self.best_epoch = self.epochs
            return True
        return False

    def check_end(self, last_epoch: int, patience: int | None) -> None:
        """Decide whether training ends after an epoch; without validation rows only its length counts."""
        if self.ended:
            return
        if self.epochs >= last_epoch:
            self.ended = "length"
        elif patience is not None and self.validation_losses:
            self.ended = "patience" if self.epochs - self.best_epoch >= patience else ""


@dataclass(eq=False)
class Trained:
    """A trained perceptron: weights ``(inputs, outputs)`` of each layer, then biases, and its progress."""

    parameters: list[Tensor]
    progress: Progress

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights, for a perceptron of `elliptica._utils.perceptron.mlp`."""
        n = len(self.parameters) // 2
        state = {f"{2 * i}.weight": weight.T.contiguous() for i, weight in enumerate(self.parameters[:n])}
        return state | {f"{2 * i}.bias": bias for i, bias in enumerate(self.parameters[n:])}

    @staticmethod
    def parameters_of(module: nn.Module) -> list[Tensor]:
        """Invert `state_dict` for a perceptron."""
        linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        return [layer.weight.detach().T for layer in linear] + [layer.bias.detach() for layer in linear]


def train_stack(
    jobs: Sequence[Job],
    *,
    loss: Loss,
    hidden: Sequence[int] = (128, 128),
    batch_size: int = 32,
    patience: int | None = 10,
    starts: Sequence[Trained] | None = None,
    callback: Callable[[float], None] | None = None,
) -> list[Trained]:
    """Train one perceptron for each job, all of them side by side.

    Every step takes the next ``batch_size`` rows of a network's order. An epoch has as many steps as batches
    are needed for its rows. The optimiser is AdamW. Differences from the objectives of
    `elliptica.baselines`: the partner of mixup and of elliptic training is the next row of the batch; C-Mixup
    and LISA choose among `elliptica.estimators.points.CANDIDATES` rows of it. ``"groupdro"`` and
    ``"balanced"`` draw every group equally often, ``"lisa"`` every combination of class and group.

    Args:
        jobs: Networks to train; their tables have the same numbers of features and outputs.
        loss: Cross-entropy for ``"classes"``, binary for ``"labels"``, squared error for ``"real"``.
        hidden: Units of the hidden layers.
        batch_size: Rows per step, for all networks. A network with fewer rows sees some of them twice.
        patience: Epochs without a better validation loss after which a network stops; None means no limit.
        starts: Earlier results to resume from, one for each job.
        callback: Called from time to time with the finished share of the work.

    Returns:
        The networks, aligned with ``jobs``.

    Example:
        >>> table = Table(torch.randn(60, 3), torch.randn(60, 1), *torch.zeros(2, 60, dtype=torch.long))
        >>> jobs = [Job(table, torch.arange(60).numpy(), seed, 2, "elliptic") for seed in range(4)]
        >>> [network.progress.epochs for network in train_stack(jobs, loss="real", hidden=(8,))]
        [2, 2, 2, 2]
    """
    first = jobs[0].table
    sizes = [first.x.shape[1], *hidden, first.y.shape[1]]
    is_small = batch_size * sum(a * b for a, b in pairwise(sizes)) <= SMALL_STEP
    with one_thread() if is_small else contextlib.nullcontext(), torch.no_grad():
        tables = list({id(job.table): job.table for job in jobs}.values())
        table = first if len(tables) == 1 else Table(*map(torch.cat, zip(*tables, strict=True)))
        ends = torch.tensor([0, *(len(part.x) for part in tables)]).cumsum(0).tolist()
        offsets = {id(part): end for part, end in zip(tables, ends, strict=False)}
        networks = [
            _Network(job, offsets[id(job.table)], sizes, batch_size, None if starts is None else starts[i])
            for i, job in enumerate(jobs)
        ]
        stack = _Stack(networks, table, sizes, batch_size, loss, patience)
        stack.train(callback)
    return [Trained(network.best, network.progress) for network in networks]


def init_parameters(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Draw weights, then biases, as `torch.nn.Linear` does."""
    generator, shapes = stream(seed, "init"), list(pairwise(sizes))
    weights = [torch.rand(a, b, generator=generator).mul_(2).sub_(1) / math.sqrt(a) for a, b in shapes]
    return weights + [torch.rand(b, generator=generator).mul_(2).sub_(1) / math.sqrt(a) for a, b in shapes]


class _Network:
    """Draws, tensors and progress of one network in training."""

    def __init__(
        self, job: Job, offset: int, sizes: Sequence[int], batch_size: int, start: Trained | None
    ) -> None:
        self.job, self.progress = job, Progress() if start is None else start.progress
        self.progress.ended = ""
        rows = RowStream(job, self.progress.epochs, offset)
        self.drawer = Drawer(job, rows, stream(job.seed, "noise", self.progress.epochs))
        self.epoch_steps = math.ceil(rows.length / batch_size)
        self.first_step, self.last_epoch = self.progress.steps, self.progress.epochs + job.epochs
        self.parameters = init_parameters(sizes, job.seed) if start is None else start.parameters
        self.best = [part.clone() for part in self.parameters]
        zeros = [torch.zeros_like(part) for part in (*self.parameters, *self.parameters)]
        self.moments = self.progress.moments or zeros
        groups = torch.bincount(job.table.group[job.rows])
        self.log_q = (groups > 0).float().log()  # weights of Group DRO: equal for groups with rows
        self.totals = torch.zeros(batch_size)  # losses since the last epoch, by place in the batch
        self.validation: Tensor | None = None
        if job.validation is not None:
            self.validation = torch.as_tensor(job.validation, dtype=torch.long) + offset
        self.rate_key = (job.learning_rate, job.weight_decay, self.first_step)

    def keep(self) -> None:
        """Copy the present weights to the result."""
        self.best = [part.clone() for part in self.parameters]


class _Block:
    """Networks that are trained together for a few steps; theirs are views of its tensors."""

    def __init__(self, networks: list[_Network], n_groups: int) -> None:
        self.networks = sorted(networks, key=lambda network: network.rate_key)
        self.jobs = [network.job for network in self.networks]
        self.parameters = [
            torch.stack(part) for part in zip(*(n.parameters for n in self.networks), strict=True)
        ]
        self.moments = [torch.stack(part) for part in zip(*(n.moments for n in self.networks), strict=True)]
        self.gradients = [torch.empty_like(part) for part in self.parameters]
        self.log_q = torch.full((len(networks), n_groups), -math.inf)
        for i, network in enumerate(self.networks):
            network.parameters = [part[i] for part in self.parameters]
            network.moments = [part[i] for part in self.moments]
            self.log_q[i, : len(network.log_q)] = network.log_q
            network.log_q = self.log_q[i]
        self.totals = torch.stack([network.totals for network in self.networks])
        for network, totals in zip(self.networks, self.totals, strict=True):
            network.totals = totals
        self.weighted = places_of(self.jobs, "elliptic-weighted")
        self.xi = torch.tensor([self.jobs[i].setting("xi") for i in self.weighted]).view(-1, 1)
        self.worst = places_of(self.jobs, "groupdro")
        self.eta = torch.tensor([self.jobs[i].setting("eta") for i in self.worst]).view(-1, 1)
        #: Neighbours with the same learning rate and decay, for one call of AdamW.
        self.runs: list[tuple[_Network, list[Tensor], list[Tensor], list[Tensor], list[Tensor]]] = []
        begin = 0
        for _, same in groupby(self.networks, key=lambda network: network.rate_key):
            end = begin + len(list(same))
            n, views = len(self.parameters), [part[begin:end] for part in self.moments]
            weights, slopes = ([p[begin:end] for p in part] for part in (self.parameters, self.gradients))
            self.runs.append((self.networks[begin], weights, slopes, views[:n], views[n:]))
            begin = end

    def layers(self, places: Sequence[int] | slice = slice(None)) -> list[tuple[Tensor, Tensor]]:
        """Return weights ``(network, inputs, outputs)`` and biases ``(network, 1, outputs)``."""
        n = len(self.parameters) // 2
        return [(self.parameters[i][places], self.parameters[n + i][places].unsqueeze(1)) for i in range(n)]


class _Stack:
    """All networks of one call, in blocks that fit into a cache."""

    def __init__(
        self,
        networks: list[_Network],
        table: Table,
        sizes: Sequence[int],
        batch_size: int,
        loss: Loss,
        patience: int | None,
    ) -> None:
        self.table, self.batch_size, self.loss, self.patience = table, batch_size, loss, patience
        self.networks, self.n_groups = networks, int(table.group.max()) + 1
        self.steps_at_once = max(1, ROWS_AT_ONCE // batch_size)
        numbers = 4 * sum(a * b + b for a, b in pairwise(sizes))
        numbers += batch_size * (2 * sum(sizes) + 2 * self.steps_at_once * sizes[0])
        self.block_size = max(1, _BLOCK_BYTES // (4 * numbers))
        self.step, most = 0, min(self.block_size, len(networks))
        # memory that blocks share: reusing it is faster than allocating it
        self.outputs, self.slopes = ([torch.empty(most, batch_size, b) for b in sizes[1:]] for _ in range(2))
        self.noise = torch.empty(most, self.steps_at_once, batch_size, sizes[0])

    def train(self, callback: Callable[[float], None] | None) -> None:
        """Train until all networks have stopped."""
        work = sum(network.job.epochs * network.epoch_steps for network in self.networks)
        blocks = self._blocks(self.networks)
        while blocks:
            for block in blocks:
                self._train_block(block)
            self.step += self.steps_at_once
            blocks = self._without_ended(blocks)
            if callback is not None:
                networks = (network for block in blocks for network in block.networks)
                callback(1 - sum(n.job.epochs * n.epoch_steps - self.step for n in networks) / work)

    def _blocks(self, networks: list[_Network]) -> list[_Block]:
        """Divide networks into blocks of about equal size."""
        count = math.ceil(len(networks) / self.block_size)
        networks = sorted(networks, key=lambda network: network.rate_key)
        bounds = [len(networks) * number // max(1, count) for number in range(count + 1)]
        return [_Block(networks[a:b], self.n_groups) for a, b in pairwise(bounds)]

    def _without_ended(self, blocks: list[_Block]) -> list[_Block]:
        """Remove the networks that have stopped; merge blocks when half of their places are empty."""
        alive = [[n for n in block.networks if not n.progress.ended] for block in blocks]
        total = sum(map(len, alive))
        if total < sum(len(block.networks) for block in blocks) and len(blocks) * self.block_size > 2 * total:
            return self._blocks([network for part in alive for network in part])
        return [
            block if len(part) == len(block.networks) else self._blocks(part)[0]
            for block, part in zip(blocks, alive, strict=True)
            if part
        ]

    def _train_block(self, block: _Block) -> None:
        """Train one block for a few steps."""
        drawers = [network.drawer for network in block.networks]
        points = draw_points(drawers, self.table, self.batch_size, self.steps_at_once, self.noise)
        groups = self.table.group[points.rows[block.worst]]
        for k in range(self.steps_at_once):
            self._train_step(block, points.x[:, k], points.y[:, k], groups[:, k], self.step + k)
            done = self.step + k + 1
            if any(done % network.epoch_steps == 0 for network in block.networks):
                self._end_epochs(block, done)

    def _train_step(self, block: _Block, x: Tensor, y: Tensor, groups: Tensor, step: int) -> None:
        """Take one AdamW step on the mean loss of a batch for each network; the method weights rows."""
        layers, count = block.layers(), len(block.networks)
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
            factor = _by_gradient(gradient, block.xi)
            for slope in slopes:
                slope[block.weighted] *= factor.unsqueeze(2)
        for layer, slope in enumerate(slopes):
            inputs = x if layer == 0 else outputs[layer - 1]
            torch.bmm(inputs.transpose(1, 2), slope, out=block.gradients[layer])
            torch.sum(slope, 1, out=block.gradients[len(slopes) + layer])
        for network, parameters, gradients, means, squares in block.runs:
            torch._fused_adamw_(
                parameters,
                gradients,
                means,
                squares,
                [],
                [torch.tensor(network.first_step + step + 1.0)] * len(parameters),
                lr=network.job.learning_rate,
                beta1=_BETA1,
                beta2=_BETA2,
                weight_decay=network.job.weight_decay,
                eps=_EPS,
                amsgrad=False,
                maximize=False,
            )

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
            losses = nn.functional.binary_cross_entropy_with_logits(
                outputs, y.expand_as(outputs), reduction="none"
            )
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
            is_best = network.progress.end_epoch(loss, validation)
            network.progress.check_end(network.last_epoch, self.patience)
            if is_best and (validation is not None or network.progress.ended):
                network.keep()
            if network.progress.ended:
                network.progress.steps = network.first_step + step
                network.progress.moments = [part.clone() for part in network.moments]

    def _validate(self, block: _Block, places: Sequence[int]) -> list[float | None]:
        """Compute validation losses of some networks, those with the same rows at once."""
        losses: dict[int, float | None] = dict.fromkeys(places, None)
        alike: dict[tuple[int, int], list[int]] = {}
        for i in places:
            if block.networks[i].validation is not None:
                key = id(block.jobs[i].validation), id(block.jobs[i].table)
                alike.setdefault(key, []).append(i)
        for same in alike.values():
            rows = block.networks[same[0]].validation
            assert rows is not None
            layers, total = block.layers(same), torch.zeros(len(same))
            for part in rows.split(_EVALUATED):
                outputs = _forward(layers, self.table.x[part].expand(len(same), -1, -1))[-1]
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
    """Return factors of mean one: the softmax of the standardised norm of each row's input gradient.

    These are the factors of ``weighting="gradient_softmax"``, see `elliptica.core.weighting`. They do not
    depend on the scale of the gradients.
    """
    norm = torch.linalg.vector_norm(gradient, dim=2)
    deviation = norm.std(1, keepdim=True) if norm.shape[1] > 1 else torch.zeros_like(norm)
    # a deviation of zero (equal norms, or one row) gives equal factors
    score = xi * (norm - norm.mean(1, keepdim=True)) / deviation.clamp_min(torch.finfo(norm.dtype).tiny)
    return score.softmax(1) * norm.shape[1]


_threads = threading.Lock()
_before: list[int] = []  # torch's number of threads before, once for each block of `one_thread`


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread temporarily: sharing small products among threads costs more than it saves."""
    with _threads:
        _before.append(_before[0] if _before else torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _threads:
            torch.set_num_threads(_before.pop())
