"""Train many perceptrons of one shape at once, each with its own rows, seed, method and settings.

A step of a small network spends most of its time outside the arithmetic. Here, one product serves a block of
networks, points are drawn for several steps at once (`stacked_points`), and gradients are written out by
hand. That is possible because every method is a mixture of two rows, noise, and a weight per row. The result
of a network does not depend on the others of the stack: to the bit if hidden layers fill whole vectors (of 16
units) and all tables have as many columns, else up to rounding.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.perceptron import mlp
from elliptica._utils.random import stream
from elliptica.estimators.stacked_points import (
    GROUP_METHODS,
    METHODS,
    ROWS_AT_ONCE,
    SHARED,
    Network,
    StackedJob,
    StackedLoss,
    StackedSchedule,
    Table,
    check_job,
    draw_points,
    join_tables,
    places_of,
)

__all__ = ["GROUP_METHODS", "METHODS", "SHARED", "Stacked", "StackedJob", "predict_stacked", "train_stacked"]

_BLOCK_BYTES = 16 * 2**20  # size of networks that are trained together for a few steps: fits into a cache
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # usual values of Adam
_SLOPE = 0.1  # of the leaky ReLU of `mlp`
_VECTOR = 16  # numbers that torch's kernels process together, at most
_EVALUATED = 1024  # rows that are validated at once
_PREDICTED = 2**22  # numbers of a layer that are predicted at once


@dataclass(frozen=True)
class Stacked:
    """Trained networks, in the order of the jobs.

    Attributes:
        weights: Weights ``(network, inputs, outputs)`` of each layer; inputs beyond a network's own are zero.
        biases: Biases ``(network, 1, outputs)`` of each layer.
        n_features: Number of inputs of each network.
        best_epoch: Epoch whose weights were kept, from 1: that of the least validation loss, or the last.
        epochs: Number of epochs that were run.
        ended: Why each network stopped: ``"length"``, ``"patience"``, ``"deadline"``, or ``"failed"`` if its
            loss was not finite. The best weights before that are kept, or the initial ones.
        loss_curves: Mean loss of each epoch, at the drawn points and without row weights.
        validation_curves: Validation loss after each epoch, and at a deadline; empty without validation rows.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    n_features: list[int]
    best_epoch: list[int]
    epochs: list[int]
    ended: list[str]
    loss_curves: list[list[float]]
    validation_curves: list[list[float]]

    def __len__(self) -> int:
        return len(self.n_features)

    @property
    def failed(self) -> list[bool]:
        """Whether the loss of each network became infinite or NaN."""
        return [reason == "failed" for reason in self.ended]

    def state_dict(self, number: int) -> dict[str, Tensor]:
        """Return the weights of one network, for a perceptron of `elliptica._utils.perceptron.mlp`."""
        state: dict[str, Tensor] = {}
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            own = weight[number, : self.n_features[number]] if layer == 0 else weight[number]
            state[f"{2 * layer}.weight"] = own.T.contiguous()
            state[f"{2 * layer}.bias"] = bias[number, 0].clone()
        return state

    def network(self, number: int) -> nn.Sequential:
        """Return one network as a module."""
        hidden = [weight.shape[2] for weight in self.weights[:-1]]
        with torch.device("meta"):  # initial weights are not needed
            made = mlp(self.n_features[number], self.weights[-1].shape[2], hidden=hidden)
        made.load_state_dict(self.state_dict(number), assign=True)
        return made


def train_stacked(
    x: Sequence[np.ndarray | Tensor],
    y: Sequence[np.ndarray | Tensor],
    jobs: Sequence[StackedJob],
    *,
    loss: StackedLoss,
    n_outputs: int,
    hidden: Sequence[int] = (128, 128),
    batch_size: int = 32,
    groups: Sequence[np.ndarray | Tensor] | None = None,
    patience: int | None = 10,
    schedule: StackedSchedule = "constant",
    callback: Callable[[float], None] | None = None,
    deadline: float | None = None,
) -> Stacked:
    """Train one perceptron for each job, all of them side by side.

    A network passes through its rows in one random order after another. Every step takes the next
    ``batch_size`` rows, so a batch may hold the end of one order and the start of the next. An epoch has as
    many steps as batches are needed for the rows. The optimiser is AdamW.

    Differences from the objectives of `elliptica.baselines`: the partner of mixup and of elliptic training is
    the next row of the batch; C-Mixup and LISA choose among `CANDIDATES` rows of it. ``"groupdro"`` and
    ``"balanced"`` draw every group equally often, ``"lisa"`` every combination of class and group.

    torch uses one thread during the call; the number of threads is restored afterwards. Two Python threads
    can train two stacks at once.

    Args:
        x: Tables of scaled inputs, ``(rows, features)``; narrower ones are padded with zero columns.
        y: Their class numbers, or scaled real targets ``(rows,)`` or ``(rows, n_outputs)``.
        jobs: Networks to train.
        loss: ``"classes"`` (cross-entropy) or ``"real"`` (squared error).
        n_outputs: Number of classes, or of real targets.
        hidden: Units of the hidden layers.
        batch_size: Rows per step, for all networks. A network with fewer rows sees some of them twice.
        groups: Group of each row, from 0, for group methods.
        patience: Epochs without a better validation loss after which a network stops; None means no limit.
        schedule: ``"cosine"`` warms the learning rate up, then lowers it to zero at ``max_iter`` epochs.
        callback: Called from time to time with the finished share of the work.
        deadline: Value of ``time.monotonic()`` at which all networks stop.

    Returns:
        The networks, aligned with ``jobs``.

    Example:
        >>> x, y = torch.randn(60, 3), torch.randint(2, (60,))
        >>> rows = np.arange(60)
        >>> jobs = [StackedJob(rows, 0, seed, "elliptic", {"max_iter": 2}) for seed in range(4)]
        >>> stacked = train_stacked([x], [y], jobs, loss="classes", n_outputs=2, hidden=(8,))
        >>> predict_stacked(stacked, x[:5]).shape
        torch.Size([4, 5, 2])
    """
    checks.choice("loss", loss, ("classes", "real"))
    checks.choice("schedule", schedule, ("constant", "cosine"))
    table = join_tables(x, y, groups, loss, n_outputs)
    for job in jobs:
        check_job(job, table)
    with _one_thread(), torch.no_grad():
        networks = [Network(number, job, table, batch_size) for number, job in enumerate(jobs)]
        stack = _Stack(networks, table, (table.x.shape[1], *hidden, n_outputs), batch_size, loss, schedule)
        return stack.train(patience, callback, math.inf if deadline is None else deadline)


@torch.no_grad()
def predict_stacked(stacked: Stacked, x: np.ndarray | Tensor, numbers: Sequence[int] | None = None) -> Tensor:
    """Compute outputs (logits, or scaled targets) of some of the networks for the same rows.

    Args:
        stacked: Result of `train_stacked`.
        x: Scaled inputs ``(rows, features)``; float64 inputs are computed in float64.
        numbers: Numbers of the networks; None means all. They must have as many inputs as ``x``.

    Returns:
        Outputs ``(network, row, output)``.
    """
    chosen = list(range(len(stacked)) if numbers is None else numbers)
    rows = torch.as_tensor(x)
    widths = sorted({stacked.n_features[number] for number in chosen})
    if widths and (rows.ndim != 2 or widths != [rows.shape[1]]):
        raise ValueError(
            f"x must have shape (rows, {widths[0]}) for these networks, but has {tuple(rows.shape)}. The "
            f"networks have {', '.join(map(str, widths))} inputs; select those of one table at a time."
        )
    layers = [
        (weight[chosen, : rows.shape[1] if layer == 0 else None].to(rows.dtype), bias[chosen].to(rows.dtype))
        for layer, (weight, bias) in enumerate(zip(stacked.weights, stacked.biases, strict=True))
    ]
    widest = max(weight.shape[2] for weight in stacked.weights)
    at_once = max(1, _PREDICTED // (max(1, len(chosen)) * widest))
    parts = [_forward(layers, part.expand(len(chosen), -1, -1), _multiply) for part in rows.split(at_once)]
    return torch.cat(parts, 1)


class _Memory(NamedTuple):
    """Buffers of a block; reusing memory is faster than allocating it."""

    outputs: list[Tensor]  # outputs of each layer, after its activation
    slopes: list[Tensor]  # derivatives of the loss by the inputs of each activation
    gradients: list[Tensor]  # gradients of weights, then of biases
    noise: Tensor


class _Block:
    """Neighbouring networks that are trained together for a few steps, as views of the stack."""

    def __init__(self, stack: _Stack, low: int, high: int) -> None:
        self.networks = stack.networks[low:high]
        self.weights = [weight[low:high] for weight in stack.weights]
        self.biases = [bias[low:high] for bias in stack.biases]
        self.totals = stack.totals[low:high]
        count, memory = high - low, stack.memory
        self.outputs = [part[:count] for part in memory.outputs]
        self.slopes = [part[:count] for part in memory.slopes]
        self.gradients = [part[:count] for part in memory.gradients]
        self.noise = memory.noise
        self.weighted = places_of(self.networks, "elliptic-weighted")
        self.xi = torch.tensor([self.networks[i].job.setting("xi") for i in self.weighted]).view(-1, 1)
        self.worst = places_of(self.networks, "groupdro")
        self.eta = torch.tensor([self.networks[i].job.setting("eta") for i in self.worst]).view(-1, 1)
        self.log_q = stack.log_q[low:high]
        parts = list(zip((*stack.weights, *stack.biases), stack.means, stack.squares, strict=True))
        # the fused kernel rounds numbers that do not fill a vector differently, whichever networks have them
        is_odd = [part[0][0].numel() % _VECTOR > 0 for part in parts]
        self.odd = [
            (own[low:high], gradient, mean[low:high], square[low:high])
            for (own, mean, square), gradient, odd in zip(parts, self.gradients, is_odd, strict=True)
            if odd
        ]
        self.runs = []
        begin = 0
        for _, same in groupby(self.networks, key=lambda network: stack.rate_key(network)):
            end = begin + len(list(same))
            even = [number for number, odd in enumerate(is_odd) if not odd]
            own, means, squares = (
                [parts[number][which][low + begin : low + end] for number in even] for which in range(3)
            )
            gradients = [self.gradients[number][begin:end] for number in even]
            self.runs.append((self.networks[begin], end - begin, own, gradients, means, squares))
            begin = end

    def next_end(self, step: int) -> int:
        """Return the next step after which an epoch of one of the networks ends."""
        return min((step // n.epoch_steps + 1) * n.epoch_steps for n in self.networks)


class _Stack:
    """Weights and moments of all networks that are still in training, and their steps."""

    def __init__(
        self,
        networks: list[Network],
        table: Table,
        sizes: Sequence[int],
        batch_size: int,
        loss: StackedLoss,
        schedule: StackedSchedule,
    ) -> None:
        self.table, self.sizes, self.batch_size = table, sizes, batch_size
        self.loss, self.schedule = loss, schedule
        self.steps_at_once = max(1, ROWS_AT_ONCE // batch_size)
        self.jobs = networks
        self.networks = sorted(networks, key=lambda n: (self.rate_key(n), n.job.data, n.epoch_steps))
        pairs = list(pairwise(sizes))
        self.weights = [torch.zeros(len(networks), a, b) for a, b in pairs]
        self.biases = [torch.zeros(len(networks), 1, b) for _, b in pairs]
        for i, network in enumerate(self.networks):
            self._initialise(i, network)
        places = np.argsort([network.number for network in self.networks])
        self.kept = [part[places] for part in (*self.weights, *self.biases)]  # in the order of the jobs
        self.means = [torch.zeros_like(part) for part in self.kept]
        self.squares = [torch.zeros_like(part) for part in self.kept]
        self.totals = torch.zeros(len(networks), batch_size)  # losses since the last epoch, by place
        self.log_q = torch.stack([self._first_q(network) for network in self.networks])
        self.count = torch.zeros(())
        self.step = 0
        numbers = 4 * sum(a * b + b for a, b in pairs)
        numbers += batch_size * (2 * sum(sizes) + 2 * self.steps_at_once * sizes[0])
        self.block_size = max(1, _BLOCK_BYTES // (4 * numbers))
        self._make_blocks()

    def rate_key(self, network: Network) -> tuple[float, ...]:
        """Return a key; networks with equal keys have equal learning rates in every step."""
        planned = 0 if self.schedule == "constant" else network.planned
        return network.rate, network.decay, planned

    def _initialise(self, i: int, network: Network) -> None:
        """Draw weights as `torch.nn.Linear` does; inputs that a network lacks stay zero."""
        generator = stream(network.job.seed, "init")
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            own = weight[i, : network.width] if layer == 0 else weight[i]
            bound = 1 / math.sqrt(len(own))
            own.uniform_(-bound, bound, generator=generator)
            bias[i].uniform_(-bound, bound, generator=generator)

    def _first_q(self, network: Network) -> Tensor:
        """Return the logarithms of Group DRO's weights, equal for all groups with rows of the network."""
        if network.method != "groupdro":
            return torch.zeros(self.table.n_groups)
        sizes = torch.bincount(self.table.group[network.rows], minlength=self.table.n_groups)
        return (sizes > 0).float().log()

    def _make_blocks(self) -> None:
        """Divide the stack into blocks of about equal size, with memory for the largest."""
        count = math.ceil(len(self.networks) / self.block_size)
        bounds = [len(self.networks) * number // count for number in range(count + 1)]
        most = max(b - a for a, b in pairwise(bounds))
        rows, pairs = self.batch_size, list(pairwise(self.sizes))
        self.memory = _Memory(
            [torch.empty(most, rows, b) for b in self.sizes[1:]],
            [torch.empty(most, rows, b) for b in self.sizes[1:]],
            [torch.empty(most, a, b) for a, b in pairs] + [torch.empty(most, 1, b) for _, b in pairs],
            torch.zeros(most, self.steps_at_once, rows, self.sizes[0]),
        )
        self.blocks = [_Block(self, a, b) for a, b in pairwise(bounds)]

    def train(
        self, patience: int | None, callback: Callable[[float], None] | None, deadline: float
    ) -> Stacked:
        """Train until all networks have stopped."""
        work = sum(network.length for network in self.jobs)
        while self.networks:
            if time.monotonic() > deadline:
                self._stop()
                break
            for block in self.blocks:
                self._train_block(block, patience)
            self.step += self.steps_at_once
            if any(network.ended for network in self.networks):
                self._leave([i for i, network in enumerate(self.networks) if not network.ended])
            if callback is not None:
                left = sum(network.length - self.step for network in self.networks)
                callback(1 - left / work)
        return self._result()

    def _train_block(self, block: _Block, patience: int | None) -> None:
        """Train one block for a few steps."""
        points = draw_points(block.networks, self.table, self.batch_size, self.steps_at_once, block.noise)
        groups = self.table.group[points.rows[block.worst]]
        end = block.next_end(self.step)
        for k in range(self.steps_at_once):
            self._train_step(block, points.x[:, k], points.y[:, k], groups[:, k], self.step + k)
            if self.step + k + 1 == end:
                self._end_epochs(block, end, patience)
                end = block.next_end(end)

    def _train_step(self, block: _Block, x: Tensor, y: Tensor, groups: Tensor, step: int) -> None:
        """Take one AdamW step on the mean loss of a batch for each network; the method weights rows."""
        weights, outputs, slopes = block.weights, block.outputs, block.slopes
        inputs = x
        for weight, bias, output in zip(weights, block.biases, outputs, strict=True):
            self._multiply(inputs, weight, bias, out=output)
            inputs = output if output is outputs[-1] else nn.functional.leaky_relu_(output, _SLOPE)
        losses = self._losses(outputs[-1], y, slopes[-1])
        block.totals += losses
        slopes[-1] /= self.batch_size  # the gradient of the mean over the batch
        if block.worst:
            slopes[-1][block.worst] *= self._worst_groups(block, losses[block.worst], groups).unsqueeze(2)
        for layer in range(len(weights) - 1, 0, -1):
            slope, output = slopes[layer - 1], outputs[layer - 1]
            self._multiply(slopes[layer], weights[layer].transpose(1, 2), out=slope)
            # a leaky ReLU keeps the sign of its input, so its output is enough for the derivative
            torch.ops.aten.leaky_relu_backward.grad_input(slope, output, _SLOPE, True, grad_input=slope)
        if block.weighted:  # importance weights depend on the input gradient, so they come last
            gradient = self._multiply(slopes[0][block.weighted], weights[0][block.weighted].transpose(1, 2))
            factor = _by_gradient(gradient, block.xi)
            for slope in slopes:
                slope[block.weighted] *= factor.unsqueeze(2)
        for layer, slope in enumerate(slopes):
            inputs = x if layer == 0 else outputs[layer - 1]
            self._multiply(inputs.transpose(1, 2), slope, out=block.gradients[layer])
            torch.sum(slope, 1, keepdim=True, out=block.gradients[len(slopes) + layer])
        self._update(block, step)

    def _multiply(
        self, a: Tensor, b: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        """Multiply matrices of some networks, and add a bias.

        A product alone takes another kernel than several, which rounds differently; so it is computed twice,
        and a network does not depend on its neighbours. Large networks never have any.
        """
        if len(a) > 1 or self.block_size == 1:
            return torch.bmm(a, b, out=out) if bias is None else torch.baddbmm(bias, a, b, out=out)
        twice = [a.expand(2, -1, -1), b.expand(2, -1, -1)]
        found = torch.bmm(*twice) if bias is None else torch.baddbmm(bias.expand(2, -1, -1), *twice)
        return found[:1] if out is None else out.copy_(found[:1])

    def _losses(self, outputs: Tensor, y: Tensor, slope: Tensor | None = None) -> Tensor:
        """Compute the loss of each row, and write its derivative by the outputs to ``slope``."""
        if self.loss == "classes":
            # a softmax by hand, shifted against overflow, is three times as fast as torch's for a few classes
            shifted = outputs - outputs.amax(-1, keepdim=True)
            powers = shifted.exp()
            total = powers.sum(-1, keepdim=True)
            if slope is not None:
                torch.div(powers, total, out=slope).sub_(y)
            return total.log_().squeeze(-1) - shifted.mul_(y).sum(-1)
        difference = outputs - y
        if slope is not None:
            torch.mul(difference, 2 / y.shape[-1], out=slope)
        return difference.square_().mean(-1)

    def _worst_groups(self, block: _Block, losses: Tensor, groups: Tensor) -> Tensor:
        """Update Group DRO's group weights, and return the factor of each row."""
        log_q = block.log_q[block.worst]
        counts = torch.zeros_like(log_q).scatter_add_(1, groups, torch.ones_like(losses)).clamp_min_(1)
        risks = torch.zeros_like(log_q).scatter_add_(1, groups, losses) / counts
        # exponentiated gradient ascent on the group weights; the softmax keeps them a distribution
        log_q = (log_q + block.eta * risks).log_softmax(1)
        block.log_q[block.worst] = log_q
        return (log_q.exp() / counts).gather(1, groups) * self.batch_size

    def _update(self, block: _Block, step: int) -> None:
        """Apply AdamW, with one call for all neighbours with the same learning rate and decay."""
        self.count.fill_(step + 1)
        rates: list[float] = []
        decays: list[float] = []
        for network, count, parameters, gradients, means, squares in block.runs:
            rate = network.rate * network.factor(step, self.schedule)
            rates += [rate] * count
            decays += [rate * network.decay] * count
            if not parameters:
                continue
            torch._fused_adamw_(
                parameters,
                gradients,
                means,
                squares,
                [],
                [self.count] * len(parameters),
                lr=rate,
                beta1=_BETA1,
                beta2=_BETA2,
                weight_decay=network.decay,
                eps=_EPS,
                amsgrad=False,
                maximize=False,
            )
        if block.odd:
            self._update_odd(block, step, torch.tensor(rates), torch.tensor(decays))

    def _update_odd(self, block: _Block, step: int, rates: Tensor, decays: Tensor) -> None:
        """Apply AdamW to parts that do not fill whole vectors, with one rounding per operation."""
        first, second = 1 - _BETA1 ** (step + 1), math.sqrt(1 - _BETA2 ** (step + 1))
        rates, kept = (rates / first).view(-1, 1, 1), (1 - decays).view(-1, 1, 1)
        for part, gradient, mean, square in block.odd:
            mean.mul_(_BETA1).add_(gradient * (1 - _BETA1))
            square.mul_(_BETA2).add_(gradient.square() * (1 - _BETA2))
            part.mul_(kept).sub_(mean.div(square.sqrt().div_(second).add_(_EPS)).mul_(rates))

    def _end_epochs(self, block: _Block, step: int, patience: int | None) -> None:
        """Record losses of networks whose epoch ends here, keep the best weights, and check for the end."""
        places = [i for i, n in enumerate(block.networks) if step % n.epoch_steps == 0 and not n.ended]
        for i in places:
            network = block.networks[i]
            network.epochs += 1
            network.losses.append(float(block.totals[i].mean()) / network.epoch_steps)
            block.totals[i] = 0.0
        for i, validation in zip(places, self._validate(block, places), strict=True):
            network = block.networks[i]
            if network.is_better(validation):
                self._keep(block, i, network.epochs)
            network.judge(step, patience)
            if network.ended == "length" and network.validation is None:
                self._keep(block, i, network.epochs)

    def _validate(self, block: _Block, places: Sequence[int]) -> list[float]:
        """Compute validation losses of some networks, all with the same rows at once; else NaN."""
        losses = dict.fromkeys(places, math.nan)
        alike: dict[object, list[int]] = {}
        for i in places:
            alike.setdefault(block.networks[i].validation_key, []).append(i)
        for own in alike.values():
            rows = block.networks[own[0]].validation
            if rows is None:
                continue
            layers = [
                (weight[own], bias[own]) for weight, bias in zip(block.weights, block.biases, strict=True)
            ]
            total = torch.zeros(len(own))
            for part in rows.split(_EVALUATED):
                outputs = _forward(layers, self.table.x[part].expand(len(own), -1, -1), self._multiply)
                total += self._losses(outputs, self.table.y[part]).sum(1)
            losses.update(zip(own, (total / len(rows)).tolist(), strict=True))
        return [losses[i] for i in places]

    def _keep(self, block: _Block, i: int, epoch: int) -> None:
        """Copy the weights of a network to the result."""
        network = block.networks[i]
        network.best_epoch = epoch
        for kept, part in zip(self.kept, (*block.weights, *block.biases), strict=True):
            kept[network.number] = part[i]

    def _stop(self) -> None:
        """Stop all networks now; weights between two epochs may be the best ones."""
        for block in self.blocks:
            places = range(len(block.networks))
            for i, validation in zip(places, self._validate(block, places), strict=True):
                network = block.networks[i]
                if network.validation is None or network.is_better(validation):
                    self._keep(block, i, math.ceil(self.step / network.epoch_steps))
                network.ended = "deadline"

    def _leave(self, keep: list[int]) -> None:
        """Remove the networks that have stopped from the stack."""
        self.networks = [self.networks[i] for i in keep]
        for parts in (self.weights, self.biases, self.means, self.squares):
            parts[:] = [part[keep] for part in parts]
        self.totals, self.log_q = self.totals[keep], self.log_q[keep]
        if keep:
            self._make_blocks()

    def _result(self) -> Stacked:
        layers = len(self.weights)
        return Stacked(
            self.kept[:layers],
            self.kept[layers:],
            [network.width for network in self.jobs],
            [network.best_epoch for network in self.jobs],
            [network.epochs for network in self.jobs],
            [network.ended for network in self.jobs],
            [network.losses for network in self.jobs],
            [network.validation_losses for network in self.jobs],
        )


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


def _multiply(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Multiply matrices of some networks, and add a bias."""
    return torch.baddbmm(bias, a, b)


def _forward(
    layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, multiply: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Compute outputs of networks ``(network, row, output)``."""
    for weight, bias in layers[:-1]:
        x = nn.functional.leaky_relu_(multiply(x, weight, bias), _SLOPE)
    return multiply(x, layers[-1][0], layers[-1][1])


_threads = threading.Lock()
_before: list[int] = []  # torch's number of threads before, once for each stack in training


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one torch thread, and restore the number afterwards, also with several stacks in training."""
    with _threads:
        _before.append(_before[0] if _before else torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _threads:
            torch.set_num_threads(_before.pop())
