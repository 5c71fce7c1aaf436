"""Train small networks on the boundary of two moons, all seeds at once (paper: section 6.1)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils import random as streams
from elliptica._utils.perceptron import Activation, mlp
from elliptica.core.elliptic import Elliptic
from elliptica.core.partners import DISTANCE_FLOOR, draw_from, partner_weights
from elliptica.lab.data.moon_regions import REGIONS, Region, best_accuracy
from elliptica.lab.data.toy import TwoMoons
from elliptica.lab.models.side_by_side import stack, unstack

Method = Literal["erm", "mixup", "noise", "elliptic"]
Pairing = Literal["random", "inverse_distance"]

#: Order of all tables and figures.
METHODS: tuple[Method, ...] = get_args(Method)

#: Names of methods on screen.
NAMES: dict[Method, str] = {
    "erm": "ERM",
    "mixup": "mixup",
    "noise": "ERM + the same noise",
    "elliptic": "elliptic",
}


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the two-moons demo (paper: section 6.1, Figs. 1 and 3).

    From the paper: 10000 boundary points for ERM and mixup, 1000 for elliptic paths with ten times
    (both ends and 8 steps) on one bridge each, so that a pass over the data costs the same number of
    function evaluations.

    The paper's "2-layer, 4-hidden unit" network is taken as two weight layers,
    Linear(2, 4) - activation - Linear(4, 2). All else is our choice, because the paper does not say: the
    region, the activation, sigma, the optimiser, its length and batches. `VARIANTS` changes one at a time.
    """

    n_seeds: int = 24  # independent repetitions; seeds are 0, 1, ...
    n_steps: int = 1000  # steps of the optimiser
    region: Region = "half-disc"  # shape of a moon
    sigma: float = 0.2  # diffusion coefficient of the bridges, for inputs and labels
    pairing: Pairing = "random"  # law of the far ends of bridges, among the rows of a step
    hidden: tuple[int, ...] = (4,)  # units of the hidden layers
    activation: Activation = "tanh"  # non-linearity of the hidden layers
    n_boundary: int = 10_000  # boundary points, all of them for ERM and mixup
    n_interior: int = 10_000  # test points inside the moons
    n_times: int = 10  # points on each path; paths start from ``n_boundary / n_times`` points
    batch_evaluations: int = 500  # function evaluations of one step, for every method
    learning_rate: float = 0.1  # of Adam at the start; it falls to zero as a half cosine

    def __post_init__(self) -> None:
        checks.choice("region", self.region, get_args(Region))
        checks.choice("pairing", self.pairing, get_args(Pairing))
        checks.choice("activation", self.activation, get_args(Activation))
        checks.nonnegative("sigma", self.sigma)
        for name in ("n_seeds", "n_steps", "n_interior"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but got {getattr(self, name)}.")
        if self.batch_evaluations % self.n_times or self.n_boundary % self.n_times:
            raise ValueError(
                f"n_times ({self.n_times}) must divide batch_evaluations ({self.batch_evaluations}) and "
                f"n_boundary ({self.n_boundary}): otherwise methods differ in function evaluations."
            )

    @property
    def architecture(self) -> str:
        """The network in words."""
        sizes = (2, *self.hidden, 2)
        layers = [f"Linear({a}, {b})" for a, b in itertools.pairwise(sizes)]
        return f" - {self.activation} - ".join(layers)


Variant = Literal[
    "half-disc",
    "tube",
    "thin-tube",
    "band",
    "thin-band",
    "outer-arc",
    "hull",
    "curve",
    "shell",
    "wide-shell",
    "by-distance",
    "two-hidden",
    "relu",
    "short",
]

#: What each variant changes in `DemoSettings`.
VARIANTS: dict[Variant, dict[str, Any]] = {
    "half-disc": {},
    "tube": {"region": "tube"},
    "thin-tube": {"region": "thin-tube"},
    "band": {"region": "band"},
    "thin-band": {"region": "thin-band"},
    "outer-arc": {"region": "outer-arc"},
    "hull": {"region": "hull"},
    "curve": {"region": "curve"},
    "shell": {"region": "shell"},
    "wide-shell": {"region": "wide-shell"},
    "by-distance": {"pairing": "inverse_distance", "sigma": 0.05},
    "two-hidden": {"hidden": (4, 4)},
    "relu": {"activation": "relu"},
    "short": {"n_steps": 100},
}

#: Descriptions of the variants that are not regions.
_OTHER_VARIANTS: dict[Variant, str] = {
    "by-distance": "half discs; partners with probability 1 / distance, as in Algorithm 1, and sigma 0.05",
    "two-hidden": "half discs; two hidden layers of four units",
    "relu": "half discs; ReLU in the place of tanh",
    "short": "half discs; a tenth of the steps",
}


def describe_variant(variant: Variant) -> str:
    """Describe a variant: the boundary and interior of a region, or the change on half discs."""
    return _OTHER_VARIANTS[variant] if variant in _OTHER_VARIANTS else REGIONS[cast(Region, variant)]


def variant_settings(variant: Variant, base: DemoSettings | None = None) -> DemoSettings:
    """Apply a variant to the settings of the demo."""
    return replace(base or DemoSettings(), **VARIANTS[variant])


#: For tests and a first look: seconds, and not converged.
QUICK = DemoSettings(n_seeds=2, n_steps=60, n_boundary=2000, n_interior=1000)

_PAPER_POINTS = 10_000


def notes(settings: DemoSettings) -> list[str]:
    """Return notes on which settings are the paper's and which are our choice."""
    n_paths = settings.n_boundary // settings.n_times
    in_paper = "" if settings.n_boundary == _PAPER_POINTS else f" (the paper: {_PAPER_POINTS:,})"
    partners = {"random": "at random", "inverse_distance": "with probability inverse to their distance"}
    overlap = (
        f" Half discs overlap, so no network can be right on more than {100 * best_accuracy():.1f} % inside."
        if settings.region == "half-disc"
        else ""
    )
    return [
        f'The paper\'s "2-layer, 4-hidden unit" network is taken as {settings.architecture}.',
        f"As in the paper's section 6.1, ERM and mixup train on {settings.n_boundary:,} boundary points"
        f"{in_paper}, elliptic on {n_paths:,} with {settings.n_times} points on each bridge, so that "
        "all cost the same.",
        f"Our choice, as the paper does not say: boundary and interior ({REGIONS[settings.region]}); "
        f"partners {partners[settings.pairing]} among {settings.batch_evaluations // settings.n_times} "
        f"points; sigma {settings.sigma:g}; Adam for {settings.n_steps:,} steps of "
        f"{settings.batch_evaluations:,} evaluations, step size {settings.learning_rate:g} falling as a half "
        f"cosine; mixup with uniform shares.{overlap}",
        f'"{NAMES["noise"]}" is a control: bridges from each point to itself, so that inputs and labels get '
        "the noise of elliptic training and nothing is mixed.",
    ]


@dataclass(frozen=True)
class TrainedSeeds:
    """Networks of all seeds after training by one method."""

    networks: list[nn.Sequential] = field(repr=False)
    n_evaluations: int  # rows that went through each network
    seconds: float  # wall time, all seeds together


def train(
    method: Method,
    moons: Sequence[TwoMoons],
    settings: DemoSettings,
    on_steps: Callable[[int], None] = lambda _: None,
) -> TrainedSeeds:
    """Train one network per seed on boundary points, all in parallel.

    All methods start from the same weights and data, seed by seed. Each step costs
    ``settings.batch_evaluations`` function evaluations of each network, for every method: paths start
    from a tenth as many points and evaluate each ten times. Rows of a step are drawn with replacement.
    Order and noise of all seeds come from one stream of the method.

    Args:
        method: Training method.
        moons: Data of each seed; paths use the leading ``n_boundary / n_times`` boundary points.
        settings: Settings of the demo.
        on_steps: Callback with the number of steps since its last call.
    """
    per_point = settings.n_times if method in ("noise", "elliptic") else 1
    n_points, n_rows = settings.n_boundary // per_point, settings.batch_evaluations // per_point
    x = torch.stack([m.boundary_x[:n_points] for m in moons])
    y = torch.stack([m.boundary_y[:n_points] for m in moons])
    start = [build_network(settings, seed) for seed in range(len(moons))]
    networks = stack(start)
    objective = _OBJECTIVES[method](networks, settings)
    optimizer = torch.optim.Adam(networks.parameters(), lr=settings.learning_rate, fused=True)
    generator = stream(0, f"steps/{method}")
    seeds = torch.arange(len(moons))[:, None]
    begin = time.perf_counter()
    for step in range(settings.n_steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * step / settings.n_steps)) / 2
        rows = torch.randint(n_points, (len(moons), n_rows), generator=generator)
        optimizer.zero_grad()
        # the mean over all rows times the number of networks, so that each minimises its own mean
        loss = len(moons) * objective(x[seeds, rows], y[seeds, rows], generator)
        loss.backward()
        optimizer.step()
        if step % 50 == 49 or step == settings.n_steps - 1:
            on_steps(step % 50 + 1)
    seconds = time.perf_counter() - begin
    n_evaluations = settings.n_steps * n_rows * per_point
    return TrainedSeeds(unstack(networks, start), n_evaluations, seconds)


def build_network(settings: DemoSettings, seed: int) -> nn.Sequential:
    """Build the network with weights from the stream "init"; restore torch's default stream."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "init"))
        return mlp(2, 2, hidden=settings.hidden, activation=settings.activation)


#: Mean loss of rows ``(seed, row, 2)`` and labels ``(seed, row)``, with the noise of a generator.
_Loss = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def _erm(networks: nn.Module, _settings: DemoSettings) -> _Loss:
    return lambda x, y, _generator: F.cross_entropy(networks(x.flatten(0, 1)), y.flatten())


def _mixup(networks: nn.Module, _settings: DemoSettings) -> _Loss:
    def loss(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        share = torch.rand(len(x), 1, 1, generator=generator)  # one for each network, Beta(1, 1)
        order = torch.rand(x.shape[:2], generator=generator).argsort(dim=1)[..., None].expand(-1, -1, 2)
        labels = F.one_hot(y, 2).to(x.dtype)
        mixed_x, mixed_y = (share * z + (1 - share) * z.gather(1, order) for z in (x, labels))
        return F.cross_entropy(networks(mixed_x.flatten(0, 1)), mixed_y.flatten(0, 1))

    return loss


def _elliptic(networks: nn.Module, settings: DemoSettings) -> _Loss:
    along_paths = _along_paths(networks, settings)

    def loss(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        n_rows, flat = x.shape[1], x.flatten(0, 1)
        if settings.pairing == "random":
            partners = others_in_groups(len(flat), n_rows, generator=generator)
        else:
            partners = partners_in_groups(flat, n_rows, generator=generator)
        return along_paths(flat, y.flatten(), partners, generator)

    return loss


def _noise(networks: nn.Module, settings: DemoSettings) -> _Loss:
    along_paths = _along_paths(networks, settings)

    def loss(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        flat = x.flatten(0, 1)
        return along_paths(flat, y.flatten(), torch.arange(len(flat))[:, None], generator)

    return loss


def _along_paths(
    networks: nn.Module, settings: DemoSettings
) -> Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]:
    """Make `Elliptic`'s mean loss along bridges to given partners, with the rows of a network together."""
    objective = Elliptic.paper(
        networks,
        nn.CrossEntropyLoss(),
        num_classes=2,
        n_times=settings.n_times,
        sigma=settings.sigma,
        validate=False,
    )

    def loss(x: Tensor, y: Tensor, partners: Tensor, generator: torch.Generator) -> Tensor:
        paths = objective.sample(x, y, partners=partners, generator=generator)
        assert isinstance(paths.x, Tensor)
        return F.cross_entropy(networks(paths.x.flatten(0, 2)), paths.y.flatten(0, 2))

    return loss


_OBJECTIVES: dict[Method, Callable[[nn.Module, DemoSettings], _Loss]] = {
    "erm": _erm,
    "mixup": _mixup,
    "noise": _noise,
    "elliptic": _elliptic,
}


def others_in_groups(
    n: int, group: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "batch 1"]:
    """Draw partners uniformly among the other rows of consecutive groups of a batch.

    Example:
        >>> others_in_groups(6, 2).flatten()
        tensor([1, 0, 3, 2, 5, 4])
    """
    if group < 2 or n % group:
        raise ValueError(f"group must be at least 2 and divide the batch of {n} rows, but got {group}.")
    row = torch.arange(n)
    step = torch.randint(1, group, (n,), generator=generator)
    return (row // group * group + (row + step) % group)[:, None]


def partners_in_groups(
    x: Float[Tensor, "batch feature"],
    group: int,
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch 1"]:
    """Draw partners with probability ``1 / distance`` within consecutive groups of a batch.

    The law of `elliptica.sample_partners` with ``pairing="inverse_distance"`` in batches of ``group``
    rows, but for many of them at once: the networks of all seeds have partners among their own rows.

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
    weights = partner_weights(distances.reciprocal_(), 1.0, DISTANCE_FLOOR)
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
