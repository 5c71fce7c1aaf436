"""Study: on which regions, networks and partners does elliptic training keep the loss within its boundary's?

The paper says neither what a moon is nor what its boundary is. Ten regions, and four changes on half discs:
partners by distance with sigma 0.05, two hidden layers, ReLU, fewer steps. Each as in `elliptica demo`, 24
seeds, with a control: bridges from each point to itself, so that inputs and labels get the noise of elliptic
training and nothing is mixed. Five minutes::

    python studies/two_moons.py run        # what is not recorded yet, then the table
    python studies/two_moons.py table      # the table from the records
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elliptica import __version__, sample_partners
from elliptica._utils.random import stream
from elliptica.lab.data.toy import (
    TwoMoons,
    alternate,
    half_discs,
    polar,
    sample_outline,
    sample_tube,
    uniforms,
)
from elliptica.lab.demo.moons import Settings, build_network, evaluate, random_partners, train
from elliptica.lab.experiments.records import append_lines, read_lines

HERE = Path(__file__).resolve().parent.parent / "results" / "two_moons"
RECORDS = HERE / "variants.jsonl.gz"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
NAMES = {"erm": "ERM", "mixup": "mixup", "noise": "ERM + the same noise", "elliptic": "elliptic"}

_Sampler = Callable[[int, torch.Generator], Tensor]


def arcs(half_width: float) -> _Sampler:
    """Make a sampler of the inner and outer arc of a band."""

    def sample(n: int, generator: torch.Generator) -> Tensor:
        which, angle = uniforms(2, n, generator)
        is_outer = which < (1 + half_width) / 2
        return polar(1 + half_width * (2 * is_outer.double() - 1), math.pi * angle)

    return sample


def band(half_width: float) -> _Sampler:
    """Make a sampler of a band."""

    def sample(n: int, generator: torch.Generator) -> Tensor:
        angle, area = uniforms(2, n, generator)
        return polar(((1 - half_width) ** 2 + 4 * half_width * area).sqrt(), math.pi * angle)

    return sample


def outer_arc(first: float) -> _Sampler:
    """Make a sampler of the outer arc of the band of half width 0.2, from an angle in half turns on."""

    def sample(n: int, generator: torch.Generator) -> Tensor:
        (u,) = uniforms(1, n, generator)
        return polar(torch.full_like(u, 1.2), math.pi * (first + (1 - first) * u))

    return sample


def around(deviation: float, least: float, most: float) -> _Sampler:
    """Make a sampler of normal points around the half circle, between two quantiles of their distance."""

    def sample(n: int, generator: torch.Generator) -> Tensor:
        angle, u, turn = uniforms(3, n, generator)
        distance = deviation * (-2 * torch.log1p(-(least + (most - least) * u))).sqrt()
        return polar(torch.ones_like(angle), math.pi * angle) + polar(distance, 2 * math.pi * turn)

    return sample


#: Where the line from the right end of the lower moon, (2.2, 0.5), touches the outer arc, in half turns.
HULL_BEGINS = (math.atan2(0.5, 2.2) + math.acos(1.2 / math.hypot(2.2, 0.5))) / math.pi

#: Boundary and interior of a moon, and how to draw them.
REGIONS: dict[str, tuple[str, _Sampler, _Sampler]] = {
    "tube": (
        "outline of a tube of radius 0.2 around the half circle; the tube",
        lambda n, g: sample_outline(n, 0.2, g),
        lambda n, g: sample_tube(n, 0.2, g),
    ),
    "thin-tube": (
        "the same with radius 0.1",
        lambda n, g: sample_outline(n, 0.1, g),
        lambda n, g: sample_tube(n, 0.1, g),
    ),
    "band": ("inner and outer arc of a band of half width 0.2, ends open; the band", arcs(0.2), band(0.2)),
    "thin-band": ("the same with half width 0.1", arcs(0.1), band(0.1)),
    "outer-arc": ("outer arc of that band alone; the band of half width 0.2", outer_arc(0.0), band(0.2)),
    "hull": (
        "the part of that arc on the convex hull of both moons; the band",
        outer_arc(HULL_BEGINS),
        band(0.2),
    ),
    "curve": (
        "the half circle itself; points around it, deviation 0.1",
        around(0.0, 0.0, 0.0),
        around(0.1, 0.0, 1.0),
    ),
    "shell": (
        "outermost tenth of points around the half circle, deviation 0.1; the other nine tenths",
        around(0.1, 0.9, 1.0),
        around(0.1, 0.0, 0.9),
    ),
    "wide-shell": ("the same with deviation 0.2", around(0.2, 0.9, 1.0), around(0.2, 0.0, 0.9)),
}
#: Changes on half discs.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "by-distance": (
        "half discs; partners with probability 1 / distance, as in Algorithm 1, and sigma 0.05",
        {"sigma": 0.05},
    ),
    "two-hidden": ("half discs; two hidden layers of four units", {"hidden": (4, 4)}),
    "relu": ("half discs; ReLU in the place of tanh", {"activation": "relu"}),
    "short": ("half discs; a tenth of the steps", {"n_steps": 100}),
}
VARIANTS = {
    "half-disc": "half circle and its chord; the half disc",
    **{name: region[0] for name, region in REGIONS.items()},
    **{name: change[0] for name, change in CHANGES.items()},
}


def draw(variant: str, seed: int, n: int) -> TwoMoons:
    """Draw the points of a variant and a seed, as the demo does."""
    generator = stream("two moons", seed, "data")
    if variant not in REGIONS:
        return half_discs(n, n, generator=generator)
    _, boundary, interior = REGIONS[variant]
    return TwoMoons(*alternate(boundary(n, generator)), *alternate(interior(n, generator)))


def near_partners(x: Tensor, group: int, generator: torch.Generator) -> Tensor:
    """Draw partners with probability ``1 / distance`` among the rows of the same network."""
    drawn = [
        sample_partners(rows, pairing="inverse_distance", generator=generator)[:, 0] + i * group
        for i, rows in enumerate(x.split(group))
    ]
    return torch.cat(drawn)


def run_variant(variant: str) -> dict[str, Any]:
    """Train all methods on a variant; return what the table needs, seed by seed."""
    settings = replace(Settings(), **CHANGES.get(variant, ("", {}))[1])
    moons = [draw(variant, seed, settings.n_points) for seed in range(settings.n_seeds)]
    others = near_partners if variant == "by-distance" else random_partners
    ends = {"noise": lambda x, _group, _generator: torch.arange(len(x)), "elliptic": others}
    methods = {}
    for method in NAMES:
        networks = train(method, moons, settings, ends.get(method))
        runs = [
            evaluate(method, seed, net, m) for seed, (net, m) in enumerate(zip(networks, moons, strict=True))
        ]
        methods[method] = [
            {
                "boundary_max": run.losses.boundary_max,
                "interior_max": run.losses.interior_max,
                "share_above": run.losses.share_above,
                "accuracy": run.accuracy,
            }
            for run in runs
        ]
    untrained = [
        evaluate("untrained", seed, build_network(settings, seed), m).losses.holds
        for seed, m in enumerate(moons)
    ]
    versions = {"elliptica": __version__, "torch": torch.__version__}
    return {"variant": variant, "versions": versions, "untrained": untrained, "methods": methods}


def read() -> dict[str, dict[str, Any]]:
    """Read the records by variant."""
    return {row["variant"]: row for row in read_lines(RECORDS)}


def kept(runs: list[dict[str, float]]) -> int:
    """Count the seeds in which no loss inside is above the boundary's largest."""
    return sum(run["interior_max"] <= run["boundary_max"] for run in runs)


def table(records: dict[str, dict[str, Any]]) -> str:
    """Make the table of all recorded variants."""
    lines = [
        f"| variant | boundary; interior, or what is changed | {' | '.join(NAMES.values())} | untrained |",
        "|---|---|" + "---|" * (len(NAMES) + 1),
    ]
    for variant, row in records.items():
        cells = []
        for method in NAMES:
            runs = row["methods"][method]
            above = 100 * sum(run["share_above"] for run in runs) / len(runs)
            right = 100 * sum(run["accuracy"] for run in runs) / len(runs)
            cells.append(f"{kept(runs)} ({above:.1f} %, {right:.0f} %)")
        lines.append(f"| `{variant}` | {VARIANTS[variant]} | {' | '.join(cells)} | {sum(row['untrained'])} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    if parser.parse_args().what == "run":
        torch.set_num_threads(1)
        done = read()
        for variant in VARIANTS:
            if variant not in done:
                row = run_variant(variant)
                append_lines(RECORDS, [row])
                print(variant, {method: kept(runs) for method, runs in row["methods"].items()}, flush=True)
    page = HERE / "README.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table(read())}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
