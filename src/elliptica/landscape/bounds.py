"""Bound the loss under a shift (Prop. 2), order rare and common points (Prop. 3); both corrected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import random
from elliptica._utils.statistics import Result
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball, Domain
from elliptica.landscape.expected_loss import exit_times, loss_map
from elliptica.landscape.loss import LossField, join
from elliptica.landscape.operator import Operator
from elliptica.landscape.probes import shifted_probes
from elliptica.landscape.subharmonicity import mean_value_defect, point_loss

#: Probes per query, between it and another one.
_PER_QUERY = 8

_SHIFT_NOTES = (
    "The bound of the loss assumes that targets do not change when the inputs move.",
    "The bound of u is of the expected loss on the boundary, not of the loss at the shifted input.",
)
_ORDER_NOTES = (
    "m and M are extremes over the probes at one scale, not bounds over the domain. The condition is only "
    "an indication; the Monte-Carlo ordering is the observation. At the kinks of a ReLU network A l has no "
    "finite value and M grows as the radius shrinks.",
)


@dataclass(frozen=True)
class ShiftBound(Result):
    """Result of `shift_bound`, one entry per row."""

    error: Float[Tensor, " rows"]  # ``|f(x) - y|`` before the shift
    shift: Float[Tensor, " rows"]  # ``|T x - x|``
    loss: Float[Tensor, " rows"]  # loss at the shifted input, with the original target
    loss_bound: Float[Tensor, " rows"]  # upper bound of ``loss``: ``(error + C shift)^2``
    exit_time: Float[Tensor, " rows"]  # expected exit time from the ball
    bound: Float[Tensor, " rows"]  # upper bound of ``u(T x, y)``
    value: Float[Tensor, " rows"]  # Monte-Carlo estimate of ``u(T x, y)``
    stderr: Float[Tensor, " rows"]  # its standard error
    lipschitz: float  # constant ``C`` of the network
    notes: tuple[str, ...]  # remarks and cautions

    @property
    def loss_violations(self) -> int:
        """Number of rows whose loss exceeds its bound; zero if the constant holds."""
        return int((self.loss > self.loss_bound * (1 + 1e-4)).sum())  # single precision rounds

    @property
    def violations(self) -> int:
        """Number of rows whose estimate exceeds the bound by more than four standard errors."""
        return int((self.value.double() > self.bound * (1 + 1e-6) + 4 * self.stderr.double()).sum())


def shift_bound(
    field: LossField,
    x: Tensor,
    y: Tensor,
    transform: tuple[Tensor | None, Tensor | None],
    domain: Domain,
    *,
    lipschitz: float | None = None,
    joint: bool = True,
    n_walks: int = 1000,
    diffusion: float = 1.0,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> ShiftBound:
    """Bound the loss of a regression at shifted inputs, and its landscape (paper: Prop. 2, corrected).

    For targets that do not change, the loss itself satisfies ``l(Tx, y)^(1/2) <= |f(x) - y| + C |Tx - x|``.
    Use this bound first: it is far tighter. The landscape satisfies ``u(Tx, y)^(1/2) <= |f(x) - y| + C |Tx -
    x| + ((C^2 + 1) (R^2 - |z - c|^2))^(1/2)`` for the squared loss and a ball of centre ``c`` and radius
    ``R``, ``z = (Tx, y)``; without the ``+ 1`` if targets are fixed. Both hold for every Lipschitz network,
    kinks included; the second for domains inside the ball.

    Args:
        field: Loss of the model; must be `torch.nn.MSELoss` (several outputs are averaged).
        x: Inputs before the shift.
        y: Real targets.
        transform: ``(matrix, offset)`` of the shift on flattened inputs; None omits a part.
        domain: `Ball`, or `DataDomain` in one, on inputs and targets (``joint``) or on inputs.
        lipschitz: Constant of the network, for which both bounds are proved. None: `certified_lipschitz`.
        joint: Whether targets diffuse with the inputs, as in the paper.
        n_walks: Walks per row for the estimate.
        diffusion: ``sigma^2``; enters exit times only.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    ball = domain.domain if isinstance(domain, DataDomain) else domain
    if not field.is_squared or not isinstance(ball, Ball):
        raise ValueError("The bound is for MSELoss in a Ball, or in a DataDomain with a ball around it.")
    moved, _ = shifted_probes(x, y, *transform)
    z = join(moved, y) if joint else moved.reshape(len(moved), -1)
    settings.setdefault("operator", Operator(diffusion=diffusion))
    settings |= {"labels": "joint" if joint else "carry", "n_walks": n_walks, "generator": generator}
    estimate = loss_map(field, domain, moved, y, **settings)
    value, stderr, n_outputs = estimate.value, estimate.stderr, y[0].numel()
    error, loss = (field(x, y).double() * n_outputs).sqrt(), field(moved, y).double()
    shift = (moved - x).reshape(len(x), -1).double().norm(dim=1)
    constant = certified_lipschitz(field.model) if lipschitz is None else float(lipschitz)
    spread = ball.radius**2 - (z - ball.centre.to(z)).double().square().sum(1)  # E |Z_tau - z|^2
    time = spread / (z.shape[1] * diffusion)
    root = error + constant * shift
    loss_bound = root.square() / n_outputs
    # Minkowski: the root of E (a + b)^2 is at most the sum of the roots
    bound = (root + ((constant**2 + float(joint)) * spread).sqrt()).square() / n_outputs
    notes = (*estimate.notes, *_SHIFT_NOTES)
    return ShiftBound(error, shift, loss, loss_bound, time, bound, value, stderr, constant, notes)


#: Layers that never move two points further apart.
_CONTRACTIONS = (
    *(nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.LogSigmoid),
    *(nn.Identity, nn.Dropout, nn.Flatten),
)


def certified_lipschitz(model: nn.Module) -> float:
    """Return the product of the layers' spectral norms: an upper bound, often loose.

    For `torch.nn.Sequential` (nested if you like) of linear layers, common activations, dropout and
    normalisation in evaluation mode. Computed in float64; proved up to its rounding.
    """
    return math.prod((_layer_constant(layer) for layer in _layers(model)), start=1.0)


def _layers(model: nn.Module) -> Iterator[Any]:
    """Iterate over the layers of a sequential model in order of use."""
    if model._forward_hooks or model._forward_pre_hooks:  # they may change what it computes
        raise TypeError(f"{type(model).__name__} has hooks. Remove them, or pass lipschitz= a number.")
    if type(model).forward is nn.Sequential.forward:
        for child in cast(nn.Sequential, model):  # a layer may appear twice
            yield from _layers(child)
    else:
        yield model


def _layer_constant(layer: Any) -> float:
    kind = type(layer)  # not isinstance: a subclass may compute anything
    if kind is nn.Linear:
        weight = layer.weight.detach().double()
        return float(torch.linalg.svdvals(weight)[0]) if weight.numel() else 0.0
    if kind in _CONTRACTIONS:
        return 1.0
    if kind in (nn.LeakyReLU, nn.ELU):
        return max(1.0, abs(float(layer.negative_slope if kind is nn.LeakyReLU else layer.alpha)))
    if kind is nn.Sigmoid:
        return 0.25
    if kind is nn.BatchNorm1d and layer.running_var is not None:
        scale = (layer.running_var.double() + layer.eps).rsqrt()
        return float((scale if layer.weight is None else scale * layer.weight.detach().double().abs()).max())
    raise TypeError(f"The Lipschitz constant of {kind.__name__} is not known: pass lipschitz= a number.")


@dataclass(frozen=True)
class Side:
    """Means over one set of points."""

    n: int
    loss: float
    exit_time: float  # mean of ``E tau``
    value: float  # mean of the landscape ``u``
    stderr: float  # its standard error
    lower: float  # ``loss + m * exit_time``
    upper: float  # ``loss + M * exit_time``


@dataclass(frozen=True)
class OrderingReport(Result):
    """Result of `ordering_report`."""

    least: float  # ``m``, least value of ``A l = (sigma^2 / 2) Lap l`` over the probes
    largest: float  # ``M``, the largest
    radius: float  # scale at which they were taken
    n_probes: int
    rare: Side  # means over the rare points
    common: Side  # means over the common points
    notes: tuple[str, ...] = _ORDER_NOTES  # remarks and cautions

    @property
    def sufficient(self) -> bool:
        """Whether ``m E tau_rare >= M E tau_common``: with equal losses rare points must lie higher."""
        return self.least * self.rare.exit_time >= self.largest * self.common.exit_time

    @property
    def order(self) -> str:
        """Ordering by Monte Carlo: ``"rare higher"``, ``"common higher"`` or ``"undecided"`` (4 s.e.)."""
        difference = self.rare.value - self.common.value
        if abs(difference) <= 4 * math.hypot(self.rare.stderr, self.common.stderr):
            return "undecided"
        return "rare higher" if difference > 0 else "common higher"


def ordering_report(
    field: LossField,
    domain: Domain,
    rare: tuple[Tensor, Tensor],
    common: tuple[Tensor, Tensor],
    *,
    probes: tuple[Tensor, Tensor] | None = None,
    radius: float | None = None,
    n_directions: int = 128,
    n_walks: int = 1000,
    joint: bool = True,
    diffusion: float = 1.0,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> OrderingReport:
    """Compare the landscape at rare and common points (paper: Prop. 3, Eqs. (8) and (9), corrected).

    If ``m <= A l <= M`` on the domain then ``l + m E tau <= u <= l + M E tau`` (Dynkin). So where losses are
    equal and ``m E tau_rare >= M E tau_common``, rare points lie higher.

    Args:
        field: Loss of the model.
        domain: Domain on inputs and targets (``joint``) or on inputs, in the coordinates of the model.
        rare: Inputs and targets of points where data are sparse.
        common: The same where data are dense.
        probes: Points at which ``m`` and ``M`` are searched; None takes points between the queries.
        radius: Radius of the spheres on which ``A l`` is averaged. None: a tenth of the median distance of
            the queries to the boundary.
        n_directions: Pairs of directions per probe.
        n_walks: Walks per point.
        joint: Whether real targets diffuse with the inputs, as in the paper.
        diffusion: ``sigma^2``.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    x, y = torch.cat([rare[0], common[0]]), torch.cat([rare[1], common[1]])
    z, loss = point_loss(field, x, y, joint)
    radius = 0.1 * float(domain.distance(z).median()) if radius is None else radius
    if probes is not None:
        z, loss = point_loss(field, *probes, joint)
    owner = torch.arange(len(z), device=z.device)
    if probes is None:  # each probe keeps the label of the query from which it starts
        owner = owner.repeat(_PER_QUERY)
        end = owner[random.draw_permutation(len(owner), device=z.device, generator=generator)]
        share = random.draw_uniform((len(owner), 1), device=z.device, generator=generator).to(z)
        z = torch.lerp(z[owner], z[end], share)
    defect = mean_value_defect(
        lambda points, rows: loss(points, owner[rows]), z, [radius], n_directions, generator=generator
    )
    action = diffusion / 2 * defect.laplacian([radius])[0]
    least, largest = float(action.min()), float(action.max())
    settings.setdefault("operator", Operator(diffusion=diffusion))
    settings |= {"labels": "joint" if joint else "carry", "n_walks": n_walks, "generator": generator}
    sides = []
    for points, target in (rare, common):
        estimate = loss_map(field, domain, points, target, **settings)
        n, at_points = len(points), float(field(points, target).double().mean())
        time = float(exit_times(estimate)[0].double().mean())
        value, error = float(estimate.value.double().mean()), float(estimate.stderr.double().norm()) / n
        low, high = at_points + least * time, at_points + largest * time
        sides.append(Side(n, at_points, time, value, error, low, high))
    return OrderingReport(least, largest, radius, len(z), sides[0], sides[1])
