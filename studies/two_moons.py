"""Study: on which regions, networks and partners does elliptic training keep the loss within its boundary's?

The paper says neither what a moon is nor what its boundary is. Ten regions, and four changes on half discs:
partners by distance with sigma 0.05, two hidden layers, ReLU, fewer steps. Each as in `elliptica demo`, 24
seeds, with a control: bridges from each point to itself, so that inputs and labels get the noise of elliptic
training and nothing is mixed. Five minutes::

    python studies/two_moons.py run        # what is not recorded yet, then the table
    python studies/two_moons.py table      # the table from the records
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from common import Record, Study, table
from elliptica import sample_partners
from elliptica._utils.random import stream
from elliptica.lab.data import toy
from elliptica.lab.demo.moons import Settings, build_network, evaluate, random_partners, train

NAMES = {"erm": "ERM", "mixup": "mixup", "noise": "ERM + the same noise", "elliptic": "elliptic"}


def arcs(n: int, half_width: float, generator: torch.Generator) -> Tensor:
    """Draw points of the inner and outer arc of a band."""
    which, angle = toy.uniforms(2, n, generator)
    is_outer = which < (1 + half_width) / 2
    return toy.polar(1 + half_width * (2 * is_outer.double() - 1), math.pi * angle)


def band(n: int, half_width: float, generator: torch.Generator) -> Tensor:
    """Draw points of a band."""
    angle, area = toy.uniforms(2, n, generator)
    return toy.polar(((1 - half_width) ** 2 + 4 * half_width * area).sqrt(), math.pi * angle)


def outer_arc(n: int, first: float, generator: torch.Generator) -> Tensor:
    """Draw points of the outer arc of the band of half width 0.2, from an angle in half turns on."""
    (u,) = toy.uniforms(1, n, generator)
    return toy.polar(torch.full_like(u, 1.2), math.pi * (first + (1 - first) * u))


def around(n: int, law: tuple[float, float, float], generator: torch.Generator) -> Tensor:
    """Draw normal points around the half circle: deviation, least and largest quantile of their distance."""
    angle, u, turn = toy.uniforms(3, n, generator)
    deviation, least, most = law
    distance = deviation * (-2 * torch.log1p(-(least + (most - least) * u))).sqrt()
    return toy.polar(torch.ones_like(angle), math.pi * angle) + toy.polar(distance, 2 * math.pi * turn)


#: Where the line from the right end of the lower moon, (2.2, 0.5), touches the outer arc, in half turns.
HULL_BEGINS = (math.atan2(0.5, 2.2) + math.acos(1.2 / math.hypot(2.2, 0.5))) / math.pi

#: Functions that draw boundary and interior of a moon, each with its second argument.
REGIONS: dict[str, tuple[Callable[..., Tensor], Any, Callable[..., Tensor], Any]] = {
    "tube": (toy.sample_outline, 0.2, toy.sample_tube, 0.2),
    "thin-tube": (toy.sample_outline, 0.1, toy.sample_tube, 0.1),
    "band": (arcs, 0.2, band, 0.2),
    "thin-band": (arcs, 0.1, band, 0.1),
    "outer-arc": (outer_arc, 0.0, band, 0.2),
    "hull": (outer_arc, HULL_BEGINS, band, 0.2),
    "curve": (around, (0.0, 0.0, 0.0), around, (0.1, 0.0, 1.0)),
    "shell": (around, (0.1, 0.9, 1.0), around, (0.1, 0.0, 0.9)),
    "wide-shell": (around, (0.2, 0.9, 1.0), around, (0.2, 0.0, 0.9)),
}
#: Changes on half discs; the first one also draws partners by distance.
CHANGES: dict[str, dict[str, Any]] = {
    **{"by-distance": {"sigma": 0.05}, "two-hidden": {"hidden": (4, 4)}},
    **{"relu": {"activation": "relu"}, "short": {"n_steps": 100}},
}
#: Boundary and interior, or what is changed.
VARIANTS = {
    "half-disc": "half circle and its chord; the half disc",
    "tube": "outline of a tube of radius 0.2 around the half circle; the tube",
    "thin-tube": "the same with radius 0.1",
    "band": "inner and outer arc of a band of half width 0.2, ends open; the band",
    "thin-band": "the same with half width 0.1",
    "outer-arc": "outer arc of that band alone; the band of half width 0.2",
    "hull": "the part of that arc on the convex hull of both moons; the band",
    "curve": "the half circle itself; points around it, deviation 0.1",
    "shell": "outermost tenth of points around the half circle, deviation 0.1; the other nine tenths",
    "wide-shell": "the same with deviation 0.2",
    "by-distance": "half discs; partners with probability 1 / distance, as in Algorithm 1, and sigma 0.05",
    "two-hidden": "half discs; two hidden layers of four units",
    "relu": "half discs; ReLU in the place of tanh",
    "short": "half discs; a tenth of the steps",
}


def draw(variant: str, seed: int, n: int) -> toy.TwoMoons:
    """Draw the points of a variant and a seed, as the demo does."""
    generator = stream("two moons", seed, "data")
    if variant not in REGIONS:
        return toy.half_discs(n, n, generator=generator)
    boundary, on, interior, inside = REGIONS[variant]
    points = (boundary(n, on, generator), interior(n, inside, generator))
    return toy.TwoMoons(*(part for each in points for part in toy.alternate(each)))


def near_partners(x: Tensor, group: int, generator: torch.Generator) -> Tensor:
    """Draw partners with probability ``1 / distance`` among the rows of the same network."""
    draw_one = partial(sample_partners, pairing="inverse_distance", generator=generator)
    return torch.cat([draw_one(rows)[:, 0] + i * group for i, rows in enumerate(x.split(group))])


def run_variant(variant: str) -> Record:
    """Train all methods on a variant; return what the table needs, seed by seed."""
    settings = replace(Settings(), **CHANGES.get(variant, {}))
    moons = [draw(variant, seed, settings.n_points) for seed in range(settings.n_seeds)]
    others = near_partners if variant == "by-distance" else random_partners
    ends = {"noise": lambda x, _group, _generator: torch.arange(len(x)), "elliptic": others}

    def tested(method: str, networks: Any) -> Iterator[Record]:
        for seed, (network, points) in enumerate(zip(networks, moons, strict=True)):
            run = evaluate(method, seed, network, points)
            parts = ("boundary_max", "interior_max", "share_above")
            yield {**{part: getattr(run.losses, part) for part in parts}, "accuracy": run.accuracy}

    methods = {m: [*tested(m, train(m, moons, settings, ends.get(m)))] for m in NAMES}
    untrained = tested("untrained", (build_network(settings, seed) for seed in range(settings.n_seeds)))
    return {"variant": variant, "untrained": [*map(keeps, untrained)], "methods": methods}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Run the variants that are missing."""
    yield from ([run_variant(*cell)] for cell in STUDY.missing(records, ([name] for name in VARIANTS)))


def keeps(run: Record) -> bool:
    """Whether no loss inside is above the boundary's largest."""
    return run["interior_max"] <= run["boundary_max"]


def blocks(records: list[Record]) -> dict[str, str]:
    """The table of all recorded variants."""
    rows = []
    for record in records:
        cells = []
        for runs in (record["methods"][method] for method in NAMES):
            above, right = (100 * sum(r[k] for r in runs) / len(runs) for k in ("share_above", "accuracy"))
            cells.append(f"{sum(map(keeps, runs))} ({above:.1f} %, {right:.0f} %)")
        variant = record["variant"]
        rows.append([f"`{variant}`", VARIANTS[variant], *cells, str(sum(record["untrained"]))])
    head = ["variant", "boundary; interior, or what is changed", *NAMES.values(), "untrained"]
    return {"tables": "\n".join(table(head, rows, "l" * len(head)))}


STUDY = Study("two_moons", blocks, ("variant",))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
