"""Measure how often the nominal 95 % interval of the landscape covers the truth.

``python -m benchmarks.coverage``; not one of the timed suites. Each repetition is a query of its own, with
its own walks.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elliptica import EllipticWarning
from elliptica.landscape import Ball, Box, DataDomain, Operator, estimate_landscape


class Situation(NamedTuple):
    """A problem whose solution at one query is known, with options of `estimate_landscape`."""

    name: str
    value: Callable[[Tensor], Tensor] | float
    domain: Any
    at: Tensor
    truth: float
    options: dict[str, Any]


def vector(*values: float, dim: int = 3) -> Tensor:
    """Make a vector in float64, padded by zeros."""
    return torch.tensor([*values, *[0.0] * (dim - len(values))], dtype=torch.float64)


def harmonic(z: Tensor) -> Tensor:
    """Evaluate a harmonic polynomial of degree three."""
    return z[:, 0] ** 3 - 3 * z[:, 0] * z[:, 1] ** 2 + z[:, 0] * z[:, 2]


def without_drift() -> Iterator[Situation]:
    """Exact exits from a ball, and walk on spheres in a box."""
    for dim in (3, 12):
        at, centre = vector(0.5, -0.2, 0.4, dim=dim), vector(dim=dim)
        box = Box(centre - 1, centre + 1)
        for name, domain in (("exact exits, ball", Ball(centre, 1.0)), ("walk on spheres, box", box)):
            truth = float(harmonic(at[None]))
            yield Situation(f"{name}, {dim} dimensions", harmonic, domain, at, truth, {"n_walks": 200})


def with_drift() -> Iterator[Situation]:
    """A ball of radius 1.7, diffusion 1.3: ``u = exp(-2 mu x / a)`` is large where the drift comes from."""
    follow = [(3, 0.4, 0, 1000), (3, 3.0, 0, 1000), (12, 3.0, 0, 1000)]
    weigh = [(3, 0.4, 0, 1000), (3, 3.0, 0, 1000), (3, 6.0, 0, 1000), (12, 3.0, 0, 1000), (3, 24.0, 0, 1000)]
    weigh += [(3, 3.0, 0.8, 1000), (3, 3.0, 0.9, 1000), (3, 3.0, 0.9, 300)]
    weigh += [(3, 1.5, 0.8, 100), (3, 1.5, 0.9, 200)]
    cases = [*((*case, {}) for case in follow), (3, 3.0, 0, 200, {"solver": "euler"})]
    cases += ((*case, {"drift": "weight"}) for case in weigh)
    for dim, strength, place, n_walks, kind in cases:
        mu = vector(strength, dim=dim)
        at = vector(1.7 * place, dim=dim) if place else vector(0.0, 1.7 * 0.6, dim=dim)
        where = f", {place:g} of the radius downstream" if place else ""
        operator = Operator(diffusion=1.3, drift=mu)
        yield Situation(
            f"drift {strength:g}, {dim} dimensions{where}" + "".join(f", {word}" for word in kind.values()),
            lambda z, mu=mu: torch.exp(-2 * (z @ mu) / 1.3),
            *(Ball(vector(dim=dim), 1.7), at, math.exp(-2 * float(mu @ at) / 1.3)),
            {"n_walks": n_walks, "operator": operator, **kind},
        )


def rare() -> Iterator[Situation]:
    """A small ball of value 1 in a sphere of value 0, and a cap of value 1 on it, met with known chances."""
    eps, sphere = 0.05, Ball(vector(), 1.0)
    points = torch.stack([vector(), vector(0.0, 0.0, 0.95)])  # the second is never met; a domain needs two
    domain = DataDomain(points, epsilon=torch.tensor([eps, 1e-12], dtype=torch.float64), outer=sphere)
    for share in (0.0075, 0.03, 0.2, 0.99):
        options = {"n_walks": 100, "solver": "spheres", "data_values": torch.ones(2, dtype=torch.float64)}
        at = vector(1 / (1 + share * (1 / eps - 1)))
        yield Situation(f"ball met with probability {share:g}", 0.0, domain, at, share, options)
    for share, n_walks in ((0.05, 100), (0.03, 100), (0.005, 100), (0.1, 50), (0.005, 1000)):
        value, options = partial(_cap, share), {"n_walks": n_walks, "solver": "exact"}
        yield Situation(f"cap met with probability {share:g}", value, sphere, vector(), share, options)


def _cap(share: float, z: Tensor) -> Tensor:
    return (z[:, 0] > 1 - 2 * share).double()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000, help="repetitions per situation")
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore", EllipticWarning)
    print("| situation | walks | coverage | spread of values | median s.e. | warns |")
    print("|---|--:|--:|--:|--:|---|")
    for name, value, domain, at, truth, options in (*without_drift(), *with_drift(), *rare()):
        generator = torch.Generator().manual_seed(0)
        found = estimate_landscape(value, domain, at.repeat(repeats, 1), generator=generator, **options)
        low, high = found.interval()
        share = float(((low <= truth) & (truth <= high)).double().mean())
        cells = f"{share:.3f} | {found.value.std():.2g} | {found.stderr.median():.2g}"
        warns = "yes" if any("against the drift" in note for note in found.notes) else ""
        print(f"| {name} | {options['n_walks']} | {cells} | {warns} |", flush=True)


if __name__ == "__main__":
    main()
