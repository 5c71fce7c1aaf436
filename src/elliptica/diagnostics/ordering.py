"""Check whether rare points lie higher in the landscape than common ones (Proposition 3, corrected)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elliptica._utils import checks, random
from elliptica.diagnostics.expected_loss import loss_map
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.diagnostics.subharmonicity import mean_value_defect, point_loss
from elliptica.landscape.data_domain import DataDomain, Whitened
from elliptica.landscape.domains import Ball, Domain
from elliptica.landscape.estimate import LandscapeEstimate
from elliptica.landscape.exits import sample_ball_exit
from elliptica.landscape.loss import LossField
from elliptica.landscape.operator import Operator
from elliptica.landscape.solve import check_dims

#: Probes per query, between it and places where walks end.
_PER_QUERY = 8


@dataclass(frozen=True)
class Side:
    """Means over one set of points.

    Attributes:
        n: Number of points.
        loss: Mean loss there.
        exit_time: Mean of ``E tau``.
        value: Mean of the landscape ``u``.
        stderr: Its standard error.
        lower: ``loss + m * exit_time``.
        upper: ``loss + M * exit_time``.
    """

    n: int
    loss: float
    exit_time: float
    value: float
    stderr: float
    lower: float
    upper: float


@dataclass(frozen=True)
class OrderingReport(Result):
    """Result of `ordering_report`.

    Attributes:
        least: ``m``, least value of ``A l = (sigma^2 / 2) Lap l`` over the probes.
        largest: ``M``, the largest.
        radius: Scale at which they were taken.
        n_probes: Number of probes.
        rare: Means over the rare points.
        common: Means over the common points.
        sufficient: ``m E tau_rare >= M E tau_common``: with equal losses rare points must lie higher.
        sufficient_with_losses: The same with the losses as they are, ``rare.lower >= common.upper``.
        difference: ``u`` of the rare minus ``u`` of the common points, by Monte Carlo.
        difference_stderr: Its standard error.
        notes: Remarks and cautions.
    """

    least: float
    largest: float
    radius: float
    n_probes: int
    rare: Side
    common: Side
    sufficient: bool
    sufficient_with_losses: bool
    difference: float
    difference_stderr: float
    notes: tuple[str, ...]

    @property
    def found(self) -> str:
        """Ordering by Monte Carlo: ``"rare higher"``, ``"common higher"`` or ``"undecided"`` (4 s.e.)."""
        if abs(self.difference) <= 4 * self.difference_stderr:
            return "undecided"
        return "rare higher" if self.difference > 0 else "common higher"

    def __str__(self) -> str:
        head = ("points", "number", "loss", "E tau", "u", "s.e.", "l + m E tau", "l + M E tau")
        rows = [(name, *vars(side).values()) for name, side in (("rare", self.rare), ("common", self.common))]
        met = "met" if self.sufficient else "not met"
        met_losses = "met" if self.sufficient_with_losses else "not met"
        return "\n".join(
            [
                f"ordering of rare and common points: {self.found} (difference {self.difference:.4g} ± "
                f"{self.difference_stderr:.2g})",
                *table(head, rows),
                f"  A l from m = {self.least:.4g} to M = {self.largest:.4g} at {self.n_probes} probes, "
                f"radius {self.radius:.3g}",
                f"  m E tau_rare >= M E tau_common: {met}; with the losses as they are: {met_losses}",
                *notes_lines(self.notes),
            ]
        )


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
    """Compare the landscape at rare and common points (paper: Prop. 3, corrected).

    If ``m <= A l <= M`` on the domain then ``l + m E tau <= u <= l + M E tau`` (Dynkin). So where losses are
    equal and ``m E tau_rare >= M E tau_common``, rare points lie higher. For linear regression ``m = M``, and
    the order of ``u`` is that of ``E tau``.

    Args:
        field: Loss of the model.
        domain: Domain on inputs and targets (``joint``) or on inputs.
        rare: Inputs and targets of points where data are sparse.
        common: The same where data are dense.
        probes: Points at which ``m`` and ``M`` are searched. None takes points between the queries and places
            where walks leave the (outer) ball.
        radius: Radius of the spheres on which ``A l`` is averaged. None: a tenth of the median distance of
            the queries to the boundary.
        n_directions: Pairs of directions per probe.
        n_walks: Walks per point.
        joint: Whether real targets diffuse with the inputs, as in the paper.
        diffusion: ``sigma^2``.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    if isinstance(domain, Whitened):
        raise TypeError(
            "ordering_report works in the coordinates of the model. Use the ball itself on whitened inputs "
            "(domain.inner, domain.to_inner(x)) with a model that takes them."
        )
    checks.positive("diffusion", diffusion)
    z, loss = point_loss(field, *_together(rare, common), joint)
    check_dims(domain, z)
    if radius is None:
        radius = 0.1 * float(domain.distance(z).median())
    checks.positive("radius", radius)
    if probes is None:
        points, owner = _between(domain, z, generator)
        defect = mean_value_defect(
            lambda p, rows: loss(p, owner[rows]), points, [radius], n_directions, generator=generator
        )
    else:
        points, at_probes = point_loss(field, *probes, joint)
        defect = mean_value_defect(at_probes, points, [radius], n_directions, generator=generator)
    action = diffusion / 2 * defect.laplacian([radius])[0]
    least, largest = float(action.min()), float(action.max())
    sides = []
    settings.setdefault("operator", Operator(diffusion=diffusion))
    for x, y in (rare, common):
        estimate = loss_map(
            field,
            domain,
            x,
            y,
            labels="joint" if joint else "carry",
            n_walks=n_walks,
            generator=generator,
            **settings,
        )
        sides.append(_side(field(x, y), estimate, least, largest))
    one, other = sides
    return OrderingReport(
        least,
        largest,
        radius,
        len(points),
        one,
        other,
        least * one.exit_time >= largest * other.exit_time,
        one.lower >= other.upper,
        one.value - other.value,
        (one.stderr**2 + other.stderr**2) ** 0.5,
        (
            "m and M are extremes over the probes at one scale, not bounds over the domain. The condition is "
            "only an indication; the Monte-Carlo ordering is the observation. At the kinks of a ReLU network "
            "A l has no finite value and M grows as the radius shrinks.",
        ),
    )


def _together(rare: tuple[Tensor, Tensor], common: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    for name, (x, y) in (("rare", rare), ("common", common)):
        checks.floating(f"x of {name}", x)
        checks.batch(f"x of {name}", x)
        checks.same_rows(f"y of {name}", y, len(x), f"x of {name}")
    if rare[0].shape[1:] != common[0].shape[1:]:
        raise ValueError(
            f"Rare and common inputs differ in shape: {tuple(rare[0].shape[1:])} and "
            f"{tuple(common[0].shape[1:])}."
        )
    return torch.cat([rare[0], common[0]]), torch.cat([rare[1], common[1]])


def _between(domain: Domain, z: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return queries and points between them and exits from the ball, with the number of their query."""
    ball = domain.domain if isinstance(domain, DataDomain) else domain
    if not isinstance(ball, Ball):
        raise ValueError(f"A {type(ball).__name__} has no default probes for m and M. Pass probes=(x, y).")
    end = sample_ball_exit(z, ball.centre.to(z), ball.radius, _PER_QUERY, generator=generator)
    share = random.draw_uniform(end.shape[:2], device=z.device, generator=generator).to(z)
    inner = torch.lerp(z[:, None].expand_as(end), end, share[..., None])
    owner = torch.arange(len(z), device=z.device)
    return torch.cat([z, inner.flatten(0, 1)]), torch.cat([owner, owner.repeat_interleave(_PER_QUERY)])


def _side(losses: Tensor, estimate: LandscapeEstimate, least: float, largest: float) -> Side:
    if estimate.exit_time is None:
        raise ValueError(f'solver="{estimate.solver}" does not compute exit times. Use solver="spheres".')
    n = len(losses)
    loss, time = float(losses.double().mean()), float(estimate.exit_time.double().mean())
    return Side(
        n,
        loss,
        time,
        float(estimate.value.double().mean()),
        float(estimate.stderr.double().norm()) / n,
        loss + least * time,
        loss + largest * time,
    )
