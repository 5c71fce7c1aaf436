"""All runs of the demo: losses of trained networks, verdicts on them, and their record on disk."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from elliptica import __version__
from elliptica._utils.files import write_atomically
from elliptica.core.bridgemix import BridgeMix
from elliptica.lab.data.toy import TwoMoons, two_moons
from elliptica.lab.demo.training import METHODS, DemoSettings, Method, build_network, stream, train
from elliptica.landscape import MaximumPrinciple, check_maximum_principle


@dataclass(frozen=True)
class Run:
    """One method trained once."""

    method: Method  # what was minimised
    seed: int  # number of the repetition
    evaluation: Evaluation  # what came out
    n_evaluations: int  # rows that went through the network in training
    seconds: float  # wall time of the training


@dataclass(frozen=True)
class Exhibit:
    """A trained network with its data and losses: what figures are drawn from."""

    network: nn.Module
    moons: TwoMoons
    losses: Losses


@dataclass
class Study:
    """Runs as they finish; whatever is there can be reported at any time.

    Attributes:
        settings: Of all runs.
        runs: Finished runs, seed by seed.
        exhibits: Networks of the first seed.
        untrained: Verdict inside the moons for the weights that all methods of a seed start from: what
            the test says when nothing has been learnt.
        interrupted: Somebody stopped it.
    """

    settings: DemoSettings
    runs: list[Run] = field(default_factory=list)
    exhibits: dict[Method, Exhibit] = field(default_factory=dict)
    untrained: list[MaximumPrinciple] = field(default_factory=list)
    interrupted: bool = False


def run_study(
    study: Study,
    on_run: Callable[[int, Method], None] = lambda _seed, _method: None,
    on_steps: Callable[[int], None] = lambda _: None,
) -> None:
    """Train and evaluate every method for every seed, adding to ``study`` as they finish.

    An interrupt from the keyboard ends it early, is noted, and loses the current run only.

    Args:
        study: Where results go.
        on_run: Called before each run with its seed and method.
        on_steps: Called with the number of steps made since the last call.
    """
    settings = study.settings
    try:
        for seed in range(settings.n_seeds):
            moons = two_moons(settings.n_boundary, settings.n_interior, generator=stream(seed, "data"))
            study.untrained.append(_judge_untrained(moons, settings, seed))
            for method in METHODS:
                on_run(seed, method)
                trained = train(method, moons, settings, seed, on_steps)
                losses = evaluate_losses(trained.network, moons, stream(seed, "between"))
                evaluation = evaluate(trained.network, moons, losses)
                study.runs.append(Run(method, seed, evaluation, trained.n_evaluations, trained.seconds))
                if seed == 0:
                    study.exhibits[method] = Exhibit(trained.network, moons, losses)
    except KeyboardInterrupt:
        study.interrupted = True


def _judge_untrained(moons: TwoMoons, settings: DemoSettings, seed: int) -> MaximumPrinciple:
    network = build_network(settings, seed)
    losses = evaluate_losses(network, moons, stream(seed, "between"))
    return check_maximum_principle(losses.boundary, losses.inside)


def train_exhibits(
    methods: Sequence[Method], settings: DemoSettings | None = None, seed: int = 0
) -> dict[Method, Exhibit]:
    """Train the demo's network by each method, with the demo's data and streams of one seed."""
    settings = settings or DemoSettings()
    moons = two_moons(settings.n_boundary, settings.n_interior, generator=stream(seed, "data"))
    found: dict[Method, Exhibit] = {}
    for method in methods:
        network = train(method, moons, settings, seed).network
        found[method] = Exhibit(network, moons, evaluate_losses(network, moons, stream(seed, "between")))
    return found


def record(study: Study) -> dict[str, Any]:
    """Everything needed to make the tables again, as plain JSON values."""
    return {
        "experiment": "two moons (paper: section 6.1, Figs. 1 and 3)",
        "interrupted": study.interrupted,
        "settings": dataclasses.asdict(study.settings) | {"architecture": study.settings.architecture},
        "versions": {
            "elliptica": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        "untrained": [dataclasses.asdict(verdict) for verdict in study.untrained],
        "runs": [dataclasses.asdict(run) for run in study.runs],
    }


def write_record(study: Study, path: Path) -> None:
    """Write the record, complete or not at all."""
    write_atomically(path, json.dumps(record(study), indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True)
class Losses:
    """Loss at each point of the three sets, in float64."""

    boundary: Float[Tensor, " n_boundary"]
    inside: Float[Tensor, " n_interior"]
    between: Float[Tensor, " n_boundary"]


@dataclass(frozen=True)
class Evaluation:
    """One trained network in numbers."""

    boundary_mean: float  # mean loss on the boundary
    inside_mean: float  # mean loss inside the moons
    between_mean: float  # mean loss between the data, without the entropy of the mixed labels
    inside: MaximumPrinciple  # verdict on the inside against the boundary
    between: MaximumPrinciple  # verdict on the points between the data against the boundary
    accuracy: float  # share of right predictions inside the moons


def point_losses(
    network: nn.Module, x: Float[Tensor, "n 2"], y: Float[Tensor, "n classes"]
) -> Float[Tensor, " n"]:
    """Cross-entropy at each point in float64, without the entropy of its label.

    Losses of a confident network are far below the rounding of float32, where their order is lost.
    """
    y = y.double()
    with torch.no_grad():
        logits = copy.deepcopy(network).double()(x.double())
    return F.cross_entropy(logits, y, reduction="none") + torch.special.xlogy(y, y).sum(dim=1)


def evaluate_losses(network: nn.Module, moons: TwoMoons, generator: torch.Generator) -> Losses:
    """Compute all losses of a network; pairs and places between the data come from the generator."""
    lines = BridgeMix(num_classes=2, sigma=0.0, quadrature="uniform")
    x, y = lines(moons.boundary_x, moons.boundary_y, generator=generator)
    assert isinstance(x, Tensor)  # what goes in as a tensor comes out as one
    return Losses(
        boundary=point_losses(network, moons.boundary_x, F.one_hot(moons.boundary_y, 2).float()),
        inside=point_losses(network, moons.interior_x, F.one_hot(moons.interior_y, 2).float()),
        between=point_losses(network, x, y),
    )


def evaluate(network: nn.Module, moons: TwoMoons, losses: Losses) -> Evaluation:
    """Condense losses to what is reported."""
    with torch.no_grad():
        right = network(moons.interior_x).argmax(dim=1) == moons.interior_y
    return Evaluation(
        boundary_mean=float(losses.boundary.mean()),
        inside_mean=float(losses.inside.mean()),
        between_mean=float(losses.between.mean()),
        inside=check_maximum_principle(losses.boundary, losses.inside),
        between=check_maximum_principle(losses.boundary, losses.between),
        accuracy=float(right.double().mean()),
    )


Array = NDArray[np.float64]


class Surface(NamedTuple):
    """Loss over one moon, on a grid that follows it: rows along the moon, columns across."""

    x: Array
    y: Array
    loss: Array


def moon_surfaces(
    network: nn.Module, *, radius: float = 0.2, n_along: int = 160, n_across: int = 25
) -> tuple[Surface, Surface]:
    """Evaluate the loss over both moons, upper and lower, each at its own label.

    Grids end exactly on the boundary, so surfaces have smooth edges.

    Example:
        >>> upper, lower = moon_surfaces(nn.Linear(2, 2))
        >>> upper.loss.shape
        (160, 25)
    """
    upper = _upper_grid(radius, n_along, n_across)
    lower = torch.tensor([1.0, 0.5], dtype=torch.float64) - upper
    return _surface(network, upper, 0), _surface(network, lower, 1)


def _surface(network: nn.Module, grid: Tensor, moon: int) -> Surface:
    points = grid.flatten(0, 1)
    labels = F.one_hot(torch.full((len(points),), moon), 2).double()
    loss = point_losses(network, points, labels).reshape(grid.shape[:2])
    x, y = grid.numpy().transpose(2, 0, 1)
    return Surface(x, y, loss.numpy())


def _upper_grid(radius: float, n_along: int, n_across: int) -> Tensor:
    """Grid over the upper tube: the band, narrowing to a half disc beyond each end of the arc."""
    n_cap = max(3, n_along // 8)
    # Evenly in angle around the ends, so that the outline stays round.
    beyond = radius * torch.sin(torch.linspace(math.pi / 2, 0, n_cap + 1, dtype=torch.float64))[:-1]
    along = torch.linspace(0, math.pi, n_along - 2 * n_cap, dtype=torch.float64)
    angle = torch.cat([torch.zeros_like(beyond), along, torch.full_like(beyond, math.pi)])
    past_end = torch.cat([beyond, torch.zeros_like(along), beyond.flip(0)])
    half_width = (radius**2 - past_end**2).clamp_min(0).sqrt()
    across = torch.linspace(-1, 1, n_across, dtype=torch.float64)
    distance = 1 + half_width[:, None] * across  # from the centre of the arc
    # Both ends of the arc point down.
    x = distance * angle.cos()[:, None]
    y = distance * angle.sin()[:, None] - past_end[:, None]
    return torch.stack([x, y], dim=2)
