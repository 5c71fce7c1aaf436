"""Losses of a trained network on the boundary, inside the moons and between the data.

Three sets of points, the same for all methods of a seed:

- *boundary*: all boundary points with their moon, of which elliptic (path) trained on a tenth;
- *inside*: unseen points inside the moons with their moon, the paper's test (paper: Fig. 3);
- *between*: points on straight lines between pairs of boundary points, with labels mixed alike. The
  paper's PDE lives on inputs and labels together (paper: Eq. (1)), and there this is the interior.

Cross-entropy with a mixed label is at least the label's entropy, whatever the network. That part is
subtracted between the data, so that zero is reachable everywhere; for labels of one moon it is zero.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from elliptica.augment import BridgeMix
from elliptica.data.toy import TwoMoons
from elliptica.landscape import MaximumPrinciple, check_maximum_principle


@dataclass(frozen=True)
class Losses:
    """Loss at each point of the three sets, in float64."""

    boundary: Float[Tensor, " n_boundary"]
    inside: Float[Tensor, " n_interior"]
    between: Float[Tensor, " n_boundary"]


@dataclass(frozen=True)
class Evaluation:
    """One trained network in numbers.

    Attributes:
        boundary_mean: Mean loss on the boundary.
        inside_mean: Mean loss inside the moons.
        between_mean: Mean loss between the data, without the entropy of the mixed labels.
        inside: Verdict on the inside against the boundary.
        between: Verdict on the points between the data against the boundary.
        accuracy: Share of right predictions inside the moons.
    """

    boundary_mean: float
    inside_mean: float
    between_mean: float
    inside: MaximumPrinciple
    between: MaximumPrinciple
    accuracy: float


def point_losses(
    network: nn.Module, x: Float[Tensor, "n 2"], y: Float[Tensor, "n classes"]
) -> Float[Tensor, " n"]:
    """Cross-entropy at each point in float64, without the entropy of its label.

    Losses of a confident network are far below the rounding of float32, where their order is lost.
    """
    y = y.double()
    with torch.no_grad():
        logits = copy.deepcopy(network).double()(x.double())
    return F.cross_entropy(logits, y, reduction="none") + torch.special.xlogy(y, y).sum(dim=1)


def evaluate_losses(network: nn.Module, moons: TwoMoons, generator: torch.Generator) -> Losses:
    """Compute all losses of a network; pairs and places between the data come from the generator."""
    lines = BridgeMix(num_classes=2, sigma=0.0, quadrature="uniform")
    x, y = lines(moons.boundary_x, moons.boundary_y, generator=generator)
    assert isinstance(x, Tensor)  # what goes in as a tensor comes out as one
    return Losses(
        boundary=point_losses(network, moons.boundary_x, F.one_hot(moons.boundary_y, 2).float()),
        inside=point_losses(network, moons.interior_x, F.one_hot(moons.interior_y, 2).float()),
        between=point_losses(network, x, y),
    )


def evaluate(network: nn.Module, moons: TwoMoons, losses: Losses) -> Evaluation:
    """Condense losses to what is reported."""
    with torch.no_grad():
        right = network(moons.interior_x).argmax(dim=1) == moons.interior_y
    return Evaluation(
        boundary_mean=float(losses.boundary.mean()),
        inside_mean=float(losses.inside.mean()),
        between_mean=float(losses.between.mean()),
        inside=check_maximum_principle(losses.boundary, losses.inside),
        between=check_maximum_principle(losses.boundary, losses.between),
        accuracy=float(right.double().mean()),
    )
