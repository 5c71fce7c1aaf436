"""Two moons with a boundary to train on and an interior to test on (paper: Figs. 1 and 3).

The paper draws training points on the boundary of two moon-shaped regions and test points inside,
without defining the regions. Here they are tubes (`two_moons`: all points closer than ``radius`` to a half
circle), or half discs (`half_discs`, which the demo draws). ``studies/two_moons.py`` has others.

The half circles are those of scikit-learn's ``make_moons``: the upper one has radius 1 around the
origin, the lower one is its point reflection ``p -> (1, 0.5) - p``. Their least distance, 0.5, is
reached from the end ``(1, 0)`` of the upper to ``(1, -0.5)`` on the lower, and by symmetry from
``(0, 0.5)`` to ``(0, 1)``. Tubes of radius below 0.25 therefore do not touch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils.random import draw_uniform

_LARGEST_RADIUS = 0.25
_CPU = torch.device("cpu")


class TwoMoons(NamedTuple):
    """Points of the two tubes with the number of their moon, 0 (upper) or 1 (lower)."""

    #: Points at distance ``radius`` from the centre line of their moon, float32.
    boundary_x: Float[Tensor, "n_boundary 2"]
    boundary_y: Int[Tensor, " n_boundary"]  # their moons, int64
    #: Points at less than ``radius`` from the centre line of their moon, float32.
    interior_x: Float[Tensor, "n_interior 2"]
    interior_y: Int[Tensor, " n_interior"]  # their moons, int64


def two_moons(
    n_boundary: int,
    n_interior: int,
    *,
    radius: float = 0.2,
    generator: torch.Generator | None = None,
) -> TwoMoons:
    """Draw points on and inside tubes around two interleaved half circles (paper: Figs. 1, 3).

    Boundary points are uniform by arc length on the tube's outline: two concentric arcs and a half
    circle around each end. Interior points are uniform by area. The moons alternate, 0, 1, 0, ...,
    so any even number of leading rows is balanced, and an odd number has one more of moon 0.

    Deviation: the paper does not define the two regions (docs: deviations, "two-moons regions").

    Draws, in this order: one uniform for each boundary point, then three for each interior point.

    Numbers of points are those of both moons together; the paper trains on 10000, or on 1000 for the elliptic
    loss. Distances are exact up to the rounding of float32.

    Example:
        >>> moons = two_moons(5, 2, generator=torch.Generator().manual_seed(0))
        >>> moons.boundary_x.shape, moons.boundary_y.tolist()
        (torch.Size([5, 2]), [0, 1, 0, 1, 0])
    """
    if not 0 < radius < _LARGEST_RADIUS:
        raise ValueError(f"radius must be above 0 and below {_LARGEST_RADIUS}, but got {radius}.")
    boundary = sample_outline(n_boundary, radius, generator)
    interior = sample_tube(n_interior, radius, generator)
    return TwoMoons(*alternate(boundary), *alternate(interior))


def half_discs(n_boundary: int, n_interior: int, *, generator: torch.Generator | None = None) -> TwoMoons:
    """Draw points on and inside two half discs: the half circles of `two_moons`, each with its chord.

    Boundary points are uniform by arc length, interior points by area; the moons alternate. Half discs
    overlap, so that no network can be right on more than 85.5 % inside.

    Example:
        >>> moons = half_discs(6, 2, generator=torch.Generator().manual_seed(0))
        >>> moons.boundary_x.shape, moons.interior_y.tolist()
        (torch.Size([6, 2]), [0, 1])
    """
    position = uniforms(1, n_boundary, generator)[0] * (math.pi + 2)
    arc = polar(torch.ones_like(position), position)
    chord = torch.stack([position - math.pi - 1, torch.zeros_like(position)], dim=1)
    boundary = torch.where((position < math.pi)[:, None], arc, chord)
    angle, area = uniforms(2, n_interior, generator)
    return TwoMoons(*alternate(boundary), *alternate(polar(area.sqrt(), math.pi * angle)))


def _reflect(points: Tensor) -> Tensor:
    """Reflect the upper moon to the lower one, and back."""
    return points.new_tensor([1.0, 0.5]) - points


def alternate(upper: Tensor) -> tuple[Tensor, Tensor]:
    """Move every second point of the upper tube to the lower one, and label all."""
    label = torch.arange(len(upper), device=_CPU) % 2
    return torch.where(label[:, None] == 0, upper, _reflect(upper)).float(), label


def _sign(is_positive: Tensor) -> Tensor:
    return 2 * is_positive.double() - 1


def polar(r: Tensor, angle: Tensor) -> Tensor:
    """Return points at distances and angles from the origin."""
    return torch.stack([r * angle.cos(), r * angle.sin()], dim=1)


def _around_ends(r: Tensor, turn: Tensor) -> Tensor:
    """Return points around the ends of the arc, on the side away from it.

    ``turn`` in [0, 2 pi) runs along the half circle below (1, 0), then along that below (-1, 0).
    """
    is_right = turn < math.pi
    offset = polar(r, -torch.where(is_right, turn, turn - math.pi))
    end = _sign(is_right)
    return offset + torch.stack([end, torch.zeros_like(end)], dim=1)


def sample_outline(n: int, radius: float, generator: torch.Generator | None) -> Tensor:
    """Draw points uniform by arc length on the outline of the upper tube, in float64.

    The outer arc, the inner arc and both caps have lengths ``pi (1 + R)``, ``pi (1 - R)`` and
    ``2 pi R``. One position along the outline laid out straight gives piece and angle.
    """
    (u,) = uniforms(1, n, generator)
    position = u * 2 * math.pi * (1 + radius)
    outer, inner = math.pi * (1 + radius), math.pi * (1 - radius)
    is_outer, is_inner = position < outer, position < outer + inner
    arc_radius = 1 + radius * _sign(is_outer)
    along = torch.where(is_outer, position, position - outer)
    on_arc = polar(arc_radius, along / arc_radius)
    turn = (position - outer - inner) / radius
    on_cap = _around_ends(torch.full_like(turn, radius), turn)
    return torch.where(is_inner[:, None], on_arc, on_cap)


def sample_tube(n: int, radius: float, generator: torch.Generator | None) -> Tensor:
    """Draw points uniform by area inside the upper tube, in float64.

    The band has area ``2 pi R``, the two half discs at the ends ``pi R**2`` together. Area grows
    with the square of the distance from a centre, hence the square roots.
    """
    piece, u_angle, u_area = uniforms(3, n, generator)
    squared = (1 - radius) ** 2 + 4 * radius * u_area  # 4 R = (1 + R)**2 - (1 - R)**2
    in_band = polar(squared.sqrt(), math.pi * u_angle)
    in_cap = _around_ends(radius * u_area.sqrt(), 2 * math.pi * u_angle)
    return torch.where((piece < 2 / (2 + radius))[:, None], in_band, in_cap)


def uniforms(n_each: int, n: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
    """Draw columns of uniforms in float64, so that the geometry is rounded only once, at the end."""
    u = draw_uniform((n, n_each), device=_CPU, generator=generator)
    return u.double().unbind(dim=1)
