"""The loss as a surface over the two moons, ready to be drawn (paper: Fig. 1)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from elliptica.demo.evaluation import point_losses

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

    Args:
        network: Classifier of points of the plane into two moons.
        radius: Radius of the tubes, see `elliptica.data.toy.two_moons`.
        n_along: Points along each moon.
        n_across: Points across it.

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
