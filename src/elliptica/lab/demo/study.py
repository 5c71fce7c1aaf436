"""Run the demo: losses of trained networks, verdicts on them, and their record on disk."""

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
from elliptica.lab.data.moon_regions import Region, draw_region
from elliptica.lab.data.toy import TwoMoons
from elliptica.lab.demo.training import METHODS, DemoSettings, Method, build_network, stream, train
from elliptica.landscape import MaximumPrinciple, check_maximum_principle


@dataclass(frozen=True)
class Run:
    """One method trained once."""

    method: Method  # training method
    seed: int  # number of the repetition
    evaluation: Evaluation  # its results
    n_evaluations: int  # rows that went through the network in training
    seconds: float  # wall time of the training: an equal share of the time for all seeds

    @property
    def ratio(self) -> float:
        """Largest loss inside over largest loss on the boundary; the bound is kept up to 1."""
        return self.evaluation.inside.interior_max / self.evaluation.inside.boundary_max


@dataclass(frozen=True)
class Exhibit:
    """A trained network with its data and losses, for figures."""

    network: nn.Module
    moons: TwoMoons
    losses: Losses
    seed: int = 0


@dataclass
class Study:
    """Runs as they finish; finished ones can be reported at any time.

    Attributes:
        settings: Settings of all runs.
        runs: Finished runs, method by method.
        exhibits: The typical network of each method (see `typical_run`).
        untrained: Verdict inside the moons for the weights that all methods of a seed start from: what
            the test gives when nothing has been learnt.
        interrupted: Whether it was interrupted.
    """

    settings: DemoSettings
    runs: list[Run] = field(default_factory=list)
    exhibits: dict[Method, Exhibit] = field(default_factory=dict)
    untrained: list[MaximumPrinciple] = field(default_factory=list)
    interrupted: bool = False


def run_study(
    study: Study,
    on_method: Callable[[Method], None] = lambda _method: None,
    on_steps: Callable[[int], None] = lambda _: None,
    methods: Sequence[Method] = METHODS,
) -> None:
    """Train and evaluate every method for all seeds, adding to ``study`` as they finish.

    A keyboard interrupt ends it early, is recorded, and loses only the current method.

    Args:
        study: Receives the results.
        on_method: Called before each method.
        on_steps: Called with the number of steps made since the last call.
        methods: Which ones to train.
    """
    settings = study.settings
    try:
        moons = [
            draw_region(
                settings.region, settings.n_boundary, settings.n_interior, generator=stream(seed, "data")
            )
            for seed in range(settings.n_seeds)
        ]
        study.untrained = [_judge_untrained(m, settings, seed) for seed, m in enumerate(moons)]
        for method in methods:
            on_method(method)
            trained = train(method, moons, settings, on_steps)
            losses = [evaluate_losses(n, m) for n, m in zip(trained.networks, moons, strict=True)]
            share = trained.seconds / settings.n_seeds
            runs = [
                Run(method, seed, evaluate(network, moons[seed], losses[seed]), trained.n_evaluations, share)
                for seed, network in enumerate(trained.networks)
            ]
            study.runs += runs
            seed = typical_run(runs).seed
            study.exhibits[method] = Exhibit(trained.networks[seed], moons[seed], losses[seed], seed)
    except KeyboardInterrupt:
        study.interrupted = True


def typical_run(runs: Sequence[Run]) -> Run:
    """Choose the run in the middle when they are sorted by `Run.ratio`; of two, the lower one.

    It represents its method in figures: half of the seeds break the bound as much or more.
    """
    return sorted(runs, key=lambda run: run.ratio)[(len(runs) - 1) // 2]


def _judge_untrained(moons: TwoMoons, settings: DemoSettings, seed: int) -> MaximumPrinciple:
    losses = evaluate_losses(build_network(settings, seed), moons)
    return check_maximum_principle(losses.boundary, losses.inside)


def train_exhibits(methods: Sequence[Method], settings: DemoSettings | None = None) -> dict[Method, Exhibit]:
    """Train the demo's networks by some methods; return the typical one of each."""
    study = Study(settings or DemoSettings())
    run_study(study, methods=methods)
    if study.interrupted:
        raise KeyboardInterrupt
    return study.exhibits


def record(study: Study) -> dict[str, Any]:
    """Return everything needed to reproduce the tables, as plain JSON values."""
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
    """Write the record atomically."""
    write_atomically(path, json.dumps(record(study), indent=1, allow_nan=False) + "\n")


def read_runs(content: dict[str, Any]) -> tuple[list[Run], list[MaximumPrinciple]]:
    """Read the runs of a `record`, and the verdicts on untrained networks."""
    runs = []
    for row in content["runs"]:
        scores = dict(row["evaluation"])
        inside = MaximumPrinciple(**scores.pop("inside"))
        runs.append(Run(**{**row, "evaluation": Evaluation(inside=inside, **scores)}))
    return runs, [MaximumPrinciple(**verdict) for verdict in content["untrained"]]


@dataclass(frozen=True)
class Losses:
    """Loss at each point of both sets, in float64."""

    boundary: Float[Tensor, " n_boundary"]
    inside: Float[Tensor, " n_interior"]


@dataclass(frozen=True)
class Evaluation:
    """Numbers of one trained network."""

    boundary_mean: float  # mean loss on the boundary
    inside_mean: float  # mean loss inside the moons
    inside: MaximumPrinciple  # verdict on the inside against the boundary
    accuracy: float  # share of right predictions inside the moons


def point_losses(
    network: nn.Module, x: Float[Tensor, "n 2"], y: Float[Tensor, "n classes"]
) -> Float[Tensor, " n"]:
    """Return the cross-entropy at each point in float64.

    Losses of a confident network are far below the rounding of float32, where their order is lost.
    """
    with torch.no_grad():
        logits = copy.deepcopy(network).double()(x.double())
    return F.cross_entropy(logits, y.double(), reduction="none")


def evaluate_losses(network: nn.Module, moons: TwoMoons) -> Losses:
    """Compute the losses of a network on the boundary and inside."""
    return Losses(
        boundary=point_losses(network, moons.boundary_x, F.one_hot(moons.boundary_y, 2).float()),
        inside=point_losses(network, moons.interior_x, F.one_hot(moons.interior_y, 2).float()),
    )


def evaluate(network: nn.Module, moons: TwoMoons, losses: Losses) -> Evaluation:
    """Summarise losses as reported numbers."""
    with torch.no_grad():
        right = network(moons.interior_x).argmax(dim=1) == moons.interior_y
    return Evaluation(
        boundary_mean=float(losses.boundary.mean()),
        inside_mean=float(losses.inside.mean()),
        inside=check_maximum_principle(losses.boundary, losses.inside),
        accuracy=float(right.double().mean()),
    )


Array = NDArray[np.float64]


class Surface(NamedTuple):
    """Loss over one moon, on a grid that follows it: rows along the moon, columns across.

    The outline of the moon is the border of the grid.
    """

    x: Array
    y: Array
    loss: Array


def moon_surfaces(
    network: nn.Module, *, region: Region = "half-disc", n_along: int = 160, n_across: int = 25
) -> tuple[Surface, Surface]:
    """Evaluate the loss over both moons, upper and lower, each at its own label.

    Grids of half discs and tubes end exactly on the boundary, so surfaces have smooth edges. Other regions
    are drawn as bands.

    Example:
        >>> upper, lower = moon_surfaces(nn.Linear(2, 2))
        >>> upper.loss.shape
        (160, 25)
    """
    upper = _upper_grid(region, n_along, n_across)
    lower = torch.tensor([1.0, 0.5], dtype=torch.float64) - upper
    return _surface(network, upper, 0), _surface(network, lower, 1)


def _surface(network: nn.Module, grid: Tensor, moon: int) -> Surface:
    points = grid.flatten(0, 1)
    labels = F.one_hot(torch.full((len(points),), moon), 2).double()
    loss = point_losses(network, points, labels).reshape(grid.shape[:2])
    x, y = grid.numpy().transpose(2, 0, 1)
    return Surface(x, y, loss.numpy())


#: Half widths of regions along the half circle; points around it are drawn up to two deviations.
_HALF_WIDTHS: dict[Region, float] = {"thin-tube": 0.1, "thin-band": 0.1, "wide-shell": 0.4}


def _upper_grid(region: Region, n_along: int, n_across: int) -> Tensor:
    if region == "half-disc":
        # From the chord straight up to the half circle; evenly in angle, so that its ends stay round.
        angle = torch.linspace(math.pi, 0, n_along, dtype=torch.float64)
        height = torch.linspace(0, 1, n_across, dtype=torch.float64)
        x, top = angle.cos()[:, None].expand(-1, n_across), angle.sin()[:, None]
        return torch.stack([x, top * height], dim=2)
    half_width = _HALF_WIDTHS.get(region, 0.2)
    return (
        _tube_grid(half_width, n_along, n_across)
        if "tube" in region
        else _band_grid(half_width, n_along, n_across)
    )


def _band_grid(half_width: float, n_along: int, n_across: int) -> Tensor:
    angle = torch.linspace(0, math.pi, n_along, dtype=torch.float64)[:, None]
    distance = 1 + half_width * torch.linspace(-1, 1, n_across, dtype=torch.float64)
    return torch.stack([distance * angle.cos(), distance * angle.sin()], dim=2)


def _tube_grid(radius: float, n_along: int, n_across: int) -> Tensor:
    """Make a grid over the upper tube: the band, narrowing to a half disc beyond each end of the arc."""
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
