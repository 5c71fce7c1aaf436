"""Candidate regions for the paper's two moons: ten boundaries to train on, each with an interior to test on.

The paper says neither what a moon is nor what its boundary is (paper: Figs. 1 and 3). These are the regions
that we tried. The upper moon is drawn; the lower one is its point reflection ``p -> (1, 0.5) - p``, as in
`elliptica.lab.data.toy.two_moons`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica.lab.data.toy import TwoMoons, alternate, polar, sample_outline, sample_tube, uniforms

Region = Literal[
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
]

#: What each region is: its boundary; its interior.
REGIONS: dict[Region, str] = {
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
}

_Generator = torch.Generator | None
_Sampler = Callable[[int, _Generator], Tensor]


def draw_region(
    region: Region, n_boundary: int, n_interior: int, *, generator: torch.Generator | None = None
) -> TwoMoons:
    """Draw points on the boundary and inside two moons.

    Points on a boundary are uniform by arc length (on a shell: by the law of the points around the half
    circle), points inside a disc, tube or band uniform by area. The moons alternate, 0, 1, 0, ...

    Deviation: the paper does not define the two regions (docs: deviations, "two-moons regions"). Half discs
    overlap, so that no network can be right everywhere inside them: at best on `best_accuracy` of it.

    Args:
        region: A name of `REGIONS`.
        n_boundary: Points on the boundaries, both moons together.
        n_interior: Points inside, both moons together.
        generator: Source of randomness, on the CPU. None means torch's default generator.

    Example:
        >>> moons = draw_region("half-disc", 6, 2, generator=torch.Generator().manual_seed(0))
        >>> moons.boundary_x.shape, moons.interior_y.tolist()
        (torch.Size([6, 2]), [0, 1])
    """
    checks.choice("region", region, get_args(Region))
    boundary, interior = _SAMPLERS[region]
    return TwoMoons(*alternate(boundary(n_boundary, generator)), *alternate(interior(n_interior, generator)))


def best_accuracy() -> float:
    """Return the largest share of right labels inside the half discs: half of the overlap must be wrong.

    Example:
        >>> round(best_accuracy(), 3)
        0.855
    """
    y = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 200_000  # heights that both discs reach
    half_chord = (1 - y**2).sqrt()
    width = half_chord - (1 - half_chord.flip(0))  # from the lower disc's left end to the upper one's right
    both = float(width.clamp_min(0).mean()) / 2
    return 1 - both / math.pi


def _sample_half_circle_and_chord(n: int, generator: _Generator) -> Tensor:
    position = uniforms(1, n, generator)[0] * (math.pi + 2)
    arc = polar(torch.ones_like(position), position)
    chord = torch.stack([position - math.pi - 1, torch.zeros_like(position)], dim=1)
    return torch.where((position < math.pi)[:, None], arc, chord)


def _sample_half_disc(n: int, generator: _Generator) -> Tensor:
    angle, area = uniforms(2, n, generator)
    return polar(area.sqrt(), math.pi * angle)


def _arcs(half_width: float) -> _Sampler:
    """Make a sampler of the inner and outer arc of a band."""

    def sample(n: int, generator: _Generator) -> Tensor:
        which, angle = uniforms(2, n, generator)
        is_outer = which < (1 + half_width) / 2
        return polar(1 + half_width * (2 * is_outer.double() - 1), math.pi * angle)

    return sample


def _band(half_width: float) -> _Sampler:
    def sample(n: int, generator: _Generator) -> Tensor:
        angle, area = uniforms(2, n, generator)
        return polar(((1 - half_width) ** 2 + 4 * half_width * area).sqrt(), math.pi * angle)

    return sample


def _outer_arc(first: float) -> _Sampler:
    """Make a sampler of the outer arc of the band of half width 0.2, from an angle in half turns on."""

    def sample(n: int, generator: _Generator) -> Tensor:
        (u,) = uniforms(1, n, generator)
        return polar(torch.full_like(u, 1.2), math.pi * (first + (1 - first) * u))

    return sample


def _around(deviation: float, least: float, most: float) -> _Sampler:
    """Make a sampler of normal points around the half circle, between two quantiles of their distance."""

    def sample(n: int, generator: _Generator) -> Tensor:
        angle, u, turn = uniforms(3, n, generator)
        distance = deviation * (-2 * torch.log1p(-(least + (most - least) * u))).sqrt()
        return polar(torch.ones_like(angle), math.pi * angle) + polar(distance, 2 * math.pi * turn)

    return sample


#: Where the line from the right end of the lower moon, (2.2, 0.5), touches the outer arc, in half turns.
_HULL_BEGINS = (math.atan2(0.5, 2.2) + math.acos(1.2 / math.hypot(2.2, 0.5))) / math.pi

_SAMPLERS: dict[Region, tuple[_Sampler, _Sampler]] = {
    "half-disc": (_sample_half_circle_and_chord, _sample_half_disc),
    "tube": (lambda n, g: sample_outline(n, 0.2, g), lambda n, g: sample_tube(n, 0.2, g)),
    "thin-tube": (lambda n, g: sample_outline(n, 0.1, g), lambda n, g: sample_tube(n, 0.1, g)),
    "band": (_arcs(0.2), _band(0.2)),
    "thin-band": (_arcs(0.1), _band(0.1)),
    "outer-arc": (_outer_arc(0.0), _band(0.2)),
    "hull": (_outer_arc(_HULL_BEGINS), _band(0.2)),
    "curve": (_around(0.0, 0.0, 0.0), _around(0.1, 0.0, 1.0)),
    "shell": (_around(0.1, 0.9, 1.0), _around(0.1, 0.0, 0.9)),
    "wide-shell": (_around(0.2, 0.9, 1.0), _around(0.2, 0.0, 0.9)),
}
