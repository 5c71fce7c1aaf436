"""Train a small network on the boundary of two moons by four methods at equal cost (paper: section 6.1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils import random as streams
from elliptica._utils.perceptron import Activation, mlp
from elliptica.baselines.mixup import mixup_batch
from elliptica.core.elliptic import Elliptic
from elliptica.core.partners import DISTANCE_FLOOR, draw_from, partner_weights
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.data.toy import TwoMoons
from elliptica.lab.training import Batch, EpochEnd, Objective, TrainingSettings, fit

Method = Literal["erm", "mixup", "path", "marginal"]
Reading = Literal["one-hidden", "two-hidden"]

#: Order of all tables and figures.
METHODS: tuple[Method, ...] = get_args(Method)

#: How methods are called on screen.
NAMES: dict[Method, str] = {
    "erm": "ERM",
    "mixup": "mixup",
    "path": "elliptic (path)",
    "marginal": "elliptic (marginal)",
}

#: Units of the hidden layers in each reading of "2-layer, 4-hidden unit".
HIDDEN: dict[Reading, tuple[int, ...]] = {"one-hidden": (4,), "two-hidden": (4, 4)}


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the two-moons demo (paper: section 6.1, Figs. 1 and 3).

    From the paper: 10000 boundary points for ERM and mixup, 1000 for elliptic paths with ten times
    (both ends and 8 steps) on one bridge each, so that a pass over the data costs the same number of
    function evaluations; partners with probability inverse to their distance, within the batch.

    The paper's "2-layer, 4-hidden unit" network is read as two weight layers,
    Linear(2, 4) - activation - Linear(4, 2); ``reading="two-hidden"`` is the other reading, with two
    hidden layers of 4 units. All else is our choice, because the paper does not say: the regions
    (`elliptica.lab.data.toy.two_moons`), the activation, sigma, the optimiser, its length and batches.
    """

    n_seeds: int = 10  # independent repetitions; seeds are 0, 1, ...
    n_steps: int = 1000  # steps of the optimiser in each run
    sigma: float = 0.05  # diffusion coefficient of the bridges, for inputs and labels
    reading: Reading = "one-hidden"  # reading of the network
    activation: Activation = "tanh"  # non-linearity of the hidden layers
    n_boundary: int = 10_000  # boundary points, all of them for ERM, mixup and elliptic (marginal)
    n_interior: int = 10_000  # test points inside the moons, and as many between the data
    n_times: int = 10  # points on each path; elliptic (path) trains on ``n_boundary / n_times`` points
    batch_evaluations: int = 1000  # function evaluations of one step, for every method
    learning_rate: float = 0.1  # of Adam at the start; it falls to zero as a half cosine
    alpha: float = 1.0  # of mixup's Beta(alpha, alpha)

    def __post_init__(self) -> None:
        checks.choice("reading", self.reading, get_args(Reading))
        checks.choice("activation", self.activation, get_args(Activation))
        checks.nonnegative("sigma", self.sigma)
        for name in ("n_seeds", "n_steps", "n_interior"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but got {getattr(self, name)}.")
        if self.batch_evaluations % self.n_times or self.n_boundary % self.batch_evaluations:
            raise ValueError(
                f"n_times ({self.n_times}) must divide batch_evaluations ({self.batch_evaluations}), and "
                f"that n_boundary ({self.n_boundary}): otherwise methods differ in function evaluations."
            )

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the hidden layers."""
        return HIDDEN[self.reading]

    @property
    def architecture(self) -> str:
        """The network in words."""
        sizes = (2, *self.hidden, 2)
        layers = [f"Linear({a}, {b})" for a, b in itertools.pairwise(sizes)]
        return f" - {self.activation} - ".join(layers)

    @property
    def paths_per_batch(self) -> int:
        """Points that elliptic (path) starts from in a step; the group in which partners are drawn."""
        return self.batch_evaluations // self.n_times


#: For tests and a first look: seconds, and not converged.
QUICK = DemoSettings(n_seeds=2, n_steps=60, n_boundary=2000, n_interior=1000, batch_evaluations=500)


_PAPER_POINTS = 10_000


def notes(settings: DemoSettings) -> list[str]:
    """Say which settings are the paper's and which are our choice."""
    n_paths = settings.n_boundary // settings.n_times
    other = "two-hidden" if settings.reading == "one-hidden" else "one-hidden"
    in_paper = "" if settings.n_boundary == _PAPER_POINTS else f" (the paper: {_PAPER_POINTS:,})"
    return [
        f'The paper\'s "2-layer, 4-hidden unit" network is read as {settings.architecture} '
        f"(--reading {other} is the other reading).",
        f"As in the paper's section 6.1, ERM and mixup train on {settings.n_boundary:,} boundary points"
        f"{in_paper}, elliptic (path) on {n_paths:,} with {settings.n_times} points on each bridge, so that "
        f"all cost the same. Elliptic (marginal) takes {settings.n_boundary:,} and one point of each "
        "bridge. Partners are drawn with probability inverse to their distance (Algorithm 1), among "
        f"{settings.paths_per_batch} points.",
        "Our choice, as the paper does not say: the moons are tubes of radius 0.2 around two half circles; "
        f"activation {settings.activation}; sigma {settings.sigma:g}; Adam for {settings.n_steps:,} steps "
        f"of {settings.batch_evaluations:,} evaluations, step size {settings.learning_rate:g} falling as a "
        f"half cosine; mixup with Beta({settings.alpha:g}, {settings.alpha:g}). With so small a network, "
        "drawing bridges takes longer than evaluating them: seconds say nothing about larger ones.",
        "Inside means unseen points of the moons with their labels, as in the paper's Figure 3. Between "
        "means points on straight lines between boundary points with labels mixed alike: the interior of "
        "the space of inputs and labels on which the paper's equation is posed. The loss is cross-entropy "
        "without the entropy of the label, which is zero for pure labels and unavoidable for mixed ones.",
    ]


@dataclass(frozen=True)
class TrainedRun:
    """A network after training."""

    network: nn.Sequential  # the network, in evaluation mode
    n_evaluations: int  # rows that went through the network in training, counted there
    seconds: float  # wall time of the training


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
        on_steps: Called after each pass over the data with the number of steps made in it.
    """
    network = build_network(settings, seed)
    per_point = settings.n_times if method == "path" else 1
    n_points = settings.n_boundary // per_point
    seen = Split(moons.boundary_x[:n_points], moons.boundary_y[:n_points])
    n_done = 0

    def progress(end: EpochEnd) -> None:
        nonlocal n_done
        n_before, n_done = n_done, end.evaluations // settings.batch_evaluations
        on_steps(n_done - n_before)

    found = fit(
        network,
        _OBJECTIVES[method](network, settings),
        Dataset("two moons", seen, seen, seen, "classification"),
        _HalfCosine(
            epochs=settings.n_steps,
            batch_size=settings.batch_evaluations // per_point,
            lr=settings.learning_rate,
            select="last",
        ),
        lambda _network, _split: 0.0,  # nothing is selected
        name="two moons",
        seed=seed,
        streams=(stream(seed, f"order/{method}"), stream(seed, f"noise/{method}")),
        budget=settings.n_steps * settings.batch_evaluations,
        progress=progress,
    )
    return TrainedRun(network, found.evaluations, found.seconds)


class _HalfCosine(TrainingSettings):
    """Adam in its fused form, with a rate that falls to zero as a half cosine; ``epochs`` are steps."""

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.lr, fused=True)

    def rate(self, epoch: int | float) -> float:
        return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


def build_network(settings: DemoSettings, seed: int) -> nn.Sequential:
    """The network with weights from the stream "init"; torch's default stream is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "init"))
        return mlp(2, 2, hidden=settings.hidden, activation=settings.activation)


def _erm(_network: nn.Module, _settings: DemoSettings) -> Objective:
    return lambda network, batch: F.cross_entropy(network(batch.x), batch.y)


def _mixup(_network: nn.Module, settings: DemoSettings) -> Objective:
    def loss(network: nn.Module, batch: Batch) -> Tensor:
        labels = F.one_hot(batch.y, 2).to(batch.x.dtype)
        x, y = mixup_batch(batch.x, labels, alpha=settings.alpha, generator=batch.generator)
        return F.cross_entropy(network(x), y)

    return loss


def _path(network: nn.Module, settings: DemoSettings) -> Objective:
    objective = _elliptic(network, settings, "path")
    return lambda _network, batch: objective(batch.x, batch.y, generator=batch.generator)


def _marginal(network: nn.Module, settings: DemoSettings) -> Objective:
    objective = _elliptic(network, settings, "marginal")

    def loss(_network: nn.Module, batch: Batch) -> Tensor:
        partners = partners_in_groups(batch.x, settings.paths_per_batch, generator=batch.generator)
        return objective(batch.x, batch.y, partners=partners, generator=batch.generator)

    return loss


def _elliptic(network: nn.Module, settings: DemoSettings, sampling: Literal["path", "marginal"]) -> Elliptic:
    return Elliptic.paper(
        network,
        nn.CrossEntropyLoss(),
        num_classes=2,
        sampling=sampling,
        n_times=settings.n_times,
        sigma=settings.sigma,
        pairing="inverse_distance" if sampling == "path" else "permutation",
        validate=False,
    )


_OBJECTIVES: dict[Method, Callable[[nn.Module, DemoSettings], Objective]] = {
    "erm": _erm,
    "mixup": _mixup,
    "path": _path,
    "marginal": _marginal,
}


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
    distances = torch.cdist(rows, rows)
    distances.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    weights = partner_weights(distances, 1.0, DISTANCE_FLOOR)
    within = draw_from(weights.cumsum(2).flatten(0, 1), 1, generator)
    first = torch.arange(len(x), device=x.device) // group * group
    return within + first[:, None]


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
