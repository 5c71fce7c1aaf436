"""All runs of the demo, and their record on disk."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from elliptica._version import __version__
from elliptica.data.toy import TwoMoons, two_moons
from elliptica.demo.evaluation import Evaluation, Losses, evaluate, evaluate_losses
from elliptica.demo.settings import METHODS, DemoSettings, Method
from elliptica.demo.streams import stream
from elliptica.demo.training import build_network, train
from elliptica.landscape import MaximumPrinciple, check_maximum_principle


@dataclass(frozen=True)
class Run:
    """One method trained once.

    Attributes:
        method: What was minimised.
        seed: Number of the repetition.
        evaluation: What came out.
        n_evaluations: Rows that went through the network in training.
        seconds: Wall time of the training.
    """

    method: Method
    seed: int
    evaluation: Evaluation
    n_evaluations: int
    seconds: float


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
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record(study), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
