"""Choose points at which to probe a loss, between the data or shifted, and the region around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import draw_permutation
from elliptica.core.elliptic import sample_paths
from elliptica.core.noise import Sigma
from elliptica.core.partners import sample_partners
from elliptica.core.targets import TargetSpace
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball, Box, Domain, Polytope

RegionName = Literal["auto", "ball", "box", "reflecting_box", "hull"]

#: Largest number of features for reflecting walls; the steps double with each feature.
REFLECTING = 3


@dataclass(frozen=True)
class Bridges:
    """One point on each of many bridges.

    Attributes:
        x: Inputs of the points.
        y: Targets of the points, in the space of targets.
        s: Time of each point, between 0 and 1.
        start: Row of the data at which the bridge starts.
        end: Row at which it ends.
    """

    x: Float[Tensor, " probes *feature"]
    y: Float[Tensor, " probes *target"]
    s: Float[Tensor, " probes"]
    start: Int[Tensor, " probes"]
    end: Int[Tensor, " probes"]


def draw_bridges(
    x: Tensor,
    y: Tensor,
    n: int,
    *,
    target_space: TargetSpace,
    num_classes: int | None = None,
    sigma: Sigma,
    generator: torch.Generator,
) -> Bridges:
    """Draw one point, at a random time, on each of ``n`` bridges; a datum starts two only if needed.

    Bridges from a datum to itself (possible only where data are used more than once) are skipped.
    """
    rounds = [draw_permutation(len(x), device=x.device, generator=generator) for _ in range(-(-n // len(x)))]
    rows = torch.cat(rounds)[:n]
    partners = sample_partners(x[rows], generator=generator)
    paths = sample_paths(
        x[rows],
        y[rows],
        target_space=target_space,
        num_classes=num_classes,
        partners=partners,
        sampling="marginal",
        quadrature="uniform",
        sigma=sigma,
        sigma_y=0.0,
        generator=generator,
    )
    assert isinstance(paths.x, Tensor)
    end = rows[partners[:, 0]]
    s = paths.s[:, 0, 0]
    inner = (s > 0) & (rows != end)
    return Bridges(paths.x[:, 0, 0][inner], paths.y[:, 0, 0][inner], s[inner], rows[inner], end[inner])


def region(
    points: Float[Tensor, "n dim"],
    name: RegionName = "auto",
    fraction: float = 0.3,
    around: Float[Tensor, "m dim"] | None = None,
) -> tuple[DataDomain, str]:
    """Put balls around the data into an outer region; return it with the name of that region.

    Args:
        points: The data.
        name: Outer region; ``"auto"``: a reflecting box up to 3 features, a ball beyond.
        fraction: Radius of each ball as a share of the distance to the nearest neighbour.
        around: Points that the outer region must contain; None for the data alone.
    """
    if name == "auto":
        name = "reflecting_box" if points.shape[1] <= REFLECTING else "ball"
    everything = points if around is None else around
    outer: Domain
    if name == "ball":
        outer = Ball.around(everything)
    elif name == "hull":
        outer = Polytope.hull(everything)
    else:
        outer = Box.around(everything, wall="reflect" if name == "reflecting_box" else "absorb")
    return DataDomain(points, fraction=fraction, outer=outer), name.replace("_", " ")


def bridge_probes(
    x: Tensor,
    y: Tensor,
    *,
    target_space: TargetSpace,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """Draw points on bridges between rows, as in training: inputs and (mixed) targets, one row each.

    Args:
        x: Inputs.
        y: Targets.
        target_space: ``"real"``, ``"simplex"`` (labels; pass ``num_classes``) or ``"unit"``.
        generator: Source of randomness.
        **settings: Those of `elliptica.Elliptic`, e.g. ``sigma``, ``n_times``, ``n_bridges``.
    """
    settings.setdefault("sampling", "path")  # every inner time of the grid
    paths = sample_paths(x, y, target_space=target_space, generator=generator, **settings)
    assert isinstance(paths.x, Tensor)
    inner = (paths.s > 0) & (paths.s < 1)  # the ends are the data themselves
    return paths.x[inner], paths.y[inner]


def shifted_probes(
    x: Tensor,
    y: Tensor,
    matrix: Float[Tensor, "dim dim"] | None = None,
    offset: Float[Tensor, " dim"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply the map ``T x = matrix x + offset`` to inputs (flattened features); targets do not change.

    Args:
        x: Inputs.
        y: Targets, unchanged.
        matrix: None for the identity.
        offset: None for zero.
    """
    checks.floating("x", x)
    checks.batch("x", x)
    checks.same_rows("y", y, len(x))
    flat = x.reshape(len(x), -1)
    dim = flat.shape[1]
    for name, value, shape in (("matrix", matrix, (dim, dim)), ("offset", offset, (dim,))):
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(
                f"The {name} of the shift must have shape {shape} for inputs of {dim} features, but has "
                f"{tuple(value.shape)}."
            )
    moved = flat if matrix is None else flat @ matrix.to(flat).T
    if offset is not None:
        moved = moved + offset.to(flat)
    return moved.reshape(x.shape), y
