"""Measure how often the nominal 95 % interval of the landscape covers the truth.

``python -m benchmarks.coverage``; not one of the timed suites. Each repetition is a query of its own, with
its own walks.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elliptica.core.inputs import EllipticWarning
from elliptica.landscape import Ball, Box, DataDomain, Operator, estimate_landscape


@dataclass(frozen=True)
class Situation:
    """A problem whose solution is known.

    Attributes:
        name: What is measured.
        value: Boundary values.
        domain: Where.
        at: One query.
        truth: The solution there.
        options: Those of `estimate_landscape`.
    """

    name: str
    value: Callable[[Tensor], Tensor] | float
    domain: Any
    at: Tensor
    truth: float
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Coverage:
    """One line of the table.

    Attributes:
        what: The situation.
        n_walks: Walks per repetition.
        coverage: Share of intervals that cover the truth.
        spread: Standard deviation of the values.
        stderr: Median standard error.
        warns: Whether the result warns that a few walks determine the value.
    """

    what: str
    n_walks: int
    coverage: float
    spread: float
    stderr: float
    warns: bool


def vector(*values: float) -> Tensor:
    """Make a vector in float64."""
    return torch.tensor(values, dtype=torch.float64)


def harmonic(z: Tensor) -> Tensor:
    """Evaluate a harmonic polynomial of degree three."""
    return z[:, 0] ** 3 - 3 * z[:, 0] * z[:, 1] ** 2 + z[:, 0] * z[:, 2]


def without_drift() -> Iterator[Situation]:
    """Exact exits from a ball, and walk on spheres in a box."""
    for dim in (3, 12):
        at = torch.zeros(dim, dtype=torch.float64)
        at[:3] = vector(0.5, -0.2, 0.4)
        truth = float(harmonic(at[None]))
        ball = Ball(torch.zeros(dim, dtype=torch.float64), 1.0)
        yield Situation(f"exact exits, ball, {dim} dimensions", harmonic, ball, at, truth, {"n_walks": 200})
        box = Box(-torch.ones(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64))
        yield Situation(f"walk on spheres, box, {dim} dimensions", harmonic, box, at, truth, {"n_walks": 200})


def with_drift() -> Iterator[Situation]:
    """A ball of radius 1.7, diffusion 1.3: ``u = exp(-2 mu x / a)`` is large where the drift comes from."""
    for dim, strength, options in (
        (3, 0.4, {}),
        (3, 3.0, {}),
        (12, 3.0, {}),
        (3, 3.0, {"solver": "euler", "n_walks": 200}),
        (3, 0.4, {"drift": "weight"}),
        (3, 3.0, {"drift": "weight"}),
        (3, 6.0, {"drift": "weight"}),
        (12, 3.0, {"drift": "weight"}),
        (3, 24.0, {"drift": "weight"}),
        (3, 3.0, {"drift": "weight", "place": 0.8}),
        (3, 3.0, {"drift": "weight", "place": 0.9}),
        (3, 3.0, {"drift": "weight", "place": 0.9, "n_walks": 300}),
        (3, 1.5, {"drift": "weight", "place": 0.8, "n_walks": 100}),
        (3, 1.5, {"drift": "weight", "place": 0.9, "n_walks": 200}),
    ):
        extra: dict[str, Any] = dict(options)
        place = extra.pop("place", None)
        mu, at = torch.zeros(2, dim, dtype=torch.float64)
        mu[0] = strength
        at[1 if place is None else 0] = 1.7 * (place or 0.6)
        yield Situation(
            f"drift {strength:g}, {dim} dimensions"
            + (f", {place:g} of the radius downstream" if place else "")
            + "".join(f", {value}" for value in extra.values() if isinstance(value, str)),
            lambda z, mu=mu: torch.exp(-2 * (z @ mu) / 1.3),
            Ball(torch.zeros(dim, dtype=torch.float64), 1.7),
            at,
            math.exp(-2 * float(mu @ at) / 1.3),
            {"n_walks": 1000, "operator": Operator(diffusion=1.3, drift=mu), **extra},
        )


def rare_hits() -> Iterator[Situation]:
    """A small ball of value 1 in a sphere of value 0, met with a known probability."""
    eps, centre = 0.05, vector(0.0, 0.0, 0.0)
    for share in (0.0075, 0.03, 0.2, 0.99):
        domain = DataDomain(  # the second ball is never met; a domain needs two points
            torch.stack([centre, vector(0.0, 0.0, 0.95)]), epsilon=vector(eps, 1e-12), outer=Ball(centre, 1.0)
        )
        yield Situation(
            f"ball met with probability {share:g}",
            0.0,
            domain,
            vector(1 / (1 + share * (1 / eps - 1)), 0.0, 0.0),
            share,
            {"n_walks": 100, "solver": "spheres", "data_values": vector(1.0, 1.0)},
        )


def rare_exits() -> Iterator[Situation]:
    """A cap of value 1 on a sphere of value 0, met from the centre with a known probability."""
    for share, n_walks in ((0.05, 100), (0.03, 100), (0.005, 100), (0.1, 50), (0.005, 1000)):
        yield Situation(
            f"cap met with probability {share:g}",
            lambda z, share=share: (z[:, 0] > 1 - 2 * share).double(),
            Ball(vector(0.0, 0.0, 0.0), 1.0),
            vector(0.0, 0.0, 0.0),
            share,
            {"n_walks": n_walks, "solver": "exact"},
        )


def measure(situation: Situation, repeats: int, seed: int) -> Coverage:
    """Repeat one query."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EllipticWarning)
        found = estimate_landscape(
            situation.value,
            situation.domain,
            situation.at.repeat(repeats, 1),
            generator=torch.Generator().manual_seed(seed),
            **situation.options,
        )
    low, high = found.interval()
    return Coverage(
        situation.name,
        int(situation.options["n_walks"]),
        float(((low <= situation.truth) & (situation.truth <= high)).double().mean()),
        float(found.value.std()),
        float(found.stderr.median()),
        any("against the drift" in note for note in found.notes),
    )


def main() -> None:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000, help="repetitions per situation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="only situations whose name contains this")
    parser.add_argument("--out", type=Path, help="write the table to this JSON file")
    options = parser.parse_args()
    begin, lines = time.perf_counter(), []
    noise = math.sqrt(0.95 * 0.05 / options.repeats)
    print("| situation | walks | coverage | spread of values | median s.e. | warns |")
    print("|---|--:|--:|--:|--:|---|")
    for situation in (*without_drift(), *with_drift(), *rare_hits(), *rare_exits()):
        if options.match not in situation.name:
            continue
        line = measure(situation, options.repeats, options.seed)
        lines.append(line)
        numbers = f"{line.n_walks} | {line.coverage:.3f} | {line.spread:.2g} | {line.stderr:.2g}"
        print(f"| {line.what} | {numbers} | {'yes' if line.warns else ''} |", flush=True)
    print(f"{options.repeats} repetitions (noise {noise:.3f}), {time.perf_counter() - begin:.0f} s")
    if options.out is not None:
        options.out.write_text(
            json.dumps([asdict(line) for line in lines], indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
