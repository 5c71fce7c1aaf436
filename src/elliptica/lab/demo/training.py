"""Training on the boundary of two moons by four methods at equal cost (paper: section 6.1)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import random as streams
from elliptica._utils.perceptron import mlp
from elliptica.baselines.mixup import mixup_batch
from elliptica.core.elliptic import Elliptic
from elliptica.core.partners import DISTANCE_FLOOR, draw_from
from elliptica.lab.data.toy import TwoMoons
from elliptica.lab.demo.settings import DemoSettings, Method

#: Loss of a batch, with randomness from the generator.
BatchLoss = Callable[[Tensor, Tensor, torch.Generator], Tensor]

_REPORT_EVERY = 25


@dataclass(frozen=True)
class TrainedRun:
    """A network after training.

    Attributes:
        network: The network, in evaluation mode.
        n_evaluations: Rows that went through the network in training, counted there.
        seconds: Wall time of the training.
    """

    network: nn.Sequential
    n_evaluations: int
    seconds: float


def train(
    method: Method,
    moons: TwoMoons,
    settings: DemoSettings,
    seed: int,
    on_steps: Callable[[int], None] = lambda _: None,
) -> TrainedRun:
    """Train one network on boundary points.

    For a given seed all methods start from the same weights and data. Each step costs
    ``settings.batch_evaluations`` function evaluations, whatever the method: paths start from a tenth
    as many points and evaluate each ten times. Streams: "init", "order" and "noise" of the method.

    Args:
        method: What to minimise.
        moons: Data; elliptic (path) uses the leading ``n_boundary / n_times`` boundary points.
        settings: Everything else.
        seed: Number of the repetition.
        on_steps: Called now and then with the number of steps made since the last call.
    """
    begin = time.perf_counter()
    network = build_network(settings, seed)
    counter = _Counter(network)
    batch_loss = _LOSSES[method](network, settings)
    per_point = settings.n_times if method == "path" else 1
    n_points, batch_size = settings.n_boundary // per_point, settings.batch_evaluations // per_point
    batches = _batches(n_points, batch_size, stream(seed, f"order/{method}"))
    noise = stream(seed, f"noise/{method}")
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    for step in range(settings.n_steps):
        rows = next(batches)
        loss = batch_loss(moons.boundary_x[rows], moons.boundary_y[rows], noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = _half_cosine(step, settings)
        optimizer.step()
        if (step + 1) % _REPORT_EVERY == 0:
            on_steps(_REPORT_EVERY)
    on_steps(settings.n_steps % _REPORT_EVERY)
    counter.stop()
    return TrainedRun(network.eval(), counter.rows, time.perf_counter() - begin)


def build_network(settings: DemoSettings, seed: int) -> nn.Sequential:
    """The network with weights from the stream "init"; torch's default stream is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "init"))
        return mlp(2, 2, hidden=settings.hidden, activation=settings.activation)


def _half_cosine(step: int, settings: DemoSettings) -> float:
    return settings.learning_rate * (1 + math.cos(math.pi * step / settings.n_steps)) / 2


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers, batch after batch, in a new order in each pass over the data."""
    while True:
        yield from torch.randperm(n, generator=generator).split(size)


class _Counter:
    """Counts the rows that go through a network."""

    def __init__(self, network: nn.Module) -> None:
        self.rows = 0
        self._handle = network.register_forward_hook(self._count)

    def _count(self, _network: nn.Module, _inputs: object, output: Tensor) -> None:
        self.rows += len(output)

    def stop(self) -> None:
        self._handle.remove()


def _erm_loss(network: nn.Module, _settings: DemoSettings) -> BatchLoss:
    return lambda x, y, _generator: F.cross_entropy(network(x), y)


def _mixup_loss(network: nn.Module, settings: DemoSettings) -> BatchLoss:
    def loss(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        labels = F.one_hot(y, 2).to(x.dtype)
        mixed_x, mixed_y = mixup_batch(x, labels, alpha=settings.alpha, generator=generator)
        return F.cross_entropy(network(mixed_x), mixed_y)

    return loss


def _path_loss(network: nn.Module, settings: DemoSettings) -> BatchLoss:
    objective = Elliptic(
        network,
        nn.CrossEntropyLoss(),
        num_classes=2,
        sampling="path",
        n_times=settings.n_times,
        sigma=settings.sigma,
        pairing="inverse_distance",
        validate=False,
    )
    return lambda x, y, generator: objective(x, y, generator=generator)


def _marginal_loss(network: nn.Module, settings: DemoSettings) -> BatchLoss:
    objective = Elliptic(
        network,
        nn.CrossEntropyLoss(),
        num_classes=2,
        sampling="marginal",
        n_times=settings.n_times,
        sigma=settings.sigma,
        validate=False,
    )

    def loss(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        partners = partners_in_groups(x, settings.paths_per_batch, generator=generator)
        return objective(x, y, partners=partners, generator=generator)

    return loss


_LOSSES: dict[Method, Callable[[nn.Module, DemoSettings], BatchLoss]] = {
    "erm": _erm_loss,
    "mixup": _mixup_loss,
    "path": _path_loss,
    "marginal": _marginal_loss,
}


# Partners within groups of a batch, so that large batches are paired as small ones are.


def partners_in_groups(
    x: Float[Tensor, "batch feature"],
    group: int,
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch 1"]:
    """Draw partners with probability ``1 / distance`` within consecutive groups of a batch.

    The law of `elliptica.sample_partners` with ``pairing="inverse_distance"`` in batches of ``group``
    rows, but for many of them at once: its cost grows with the square of the group. It gives the large
    batches of marginal sampling the same partners, in law, as the small batches of path sampling.

    Args:
        x: Inputs whose distances are of the order of one.
        group: Rows of a group, at least two; it divides the batch.
        generator: Source of randomness; torch's default one if None.

    Returns:
        Row numbers in the batch, never a row's own.

    Example:
        >>> partners_in_groups(torch.randn(6, 2), 2).flatten()
        tensor([1, 0, 3, 2, 5, 4])
    """
    if group < 2 or len(x) % group:
        raise ValueError(f"group must be at least 2 and divide the batch of {len(x)} rows, but got {group}.")
    rows = x.unflatten(0, (-1, group))
    distances = torch.cdist(rows, rows).clamp_min(DISTANCE_FLOOR)
    distances.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    within = draw_from(distances.reciprocal().cumsum(2).flatten(0, 1), 1, generator)
    first = torch.arange(len(x), device=x.device) // group * group
    return within + first[:, None]


# The demo's random streams, one for each purpose.


def stream_seed(seed: int, purpose: str) -> int:
    """Derive the seed of a stream from the seed of the run and the purpose of the stream.

    Example:
        >>> stream_seed(0, "data") != stream_seed(0, "order") != stream_seed(1, "order")
        True
    """
    return streams.stream_seed("two moons", seed, purpose)


def stream(seed: int, purpose: str) -> torch.Generator:
    """Make the generator of a stream, on the CPU."""
    return streams.stream("two moons", seed, purpose)
