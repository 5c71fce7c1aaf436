"""Measure how far queries are from the data, by a diffusion and by nearest neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.statistics import spearman
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.landscape.data_domain import DataDomain, Whitened
from elliptica.landscape.domains import Domain
from elliptica.landscape.estimate import FEW_HITS
from elliptica.landscape.solve import estimate_landscape, union_bound


@dataclass(frozen=True)
class HittingReport(Result):
    """Result of `hitting_report`, one entry per query.

    Attributes:
        hit: Share of the finished walks that hit a ball around a data point before the outer boundary.
        hit_stderr: Its standard error (binomial, with one success and one failure added).
        hit_bound: ``sum (eps / r)^(n-2)``, at most 1: an upper bound of the share (n >= 3).
        exit_time: Expected time to a ball or to the outer boundary.
        exit_time_stderr: Its standard error.
        neighbour: Mean distance to the ``k`` nearest data points.
        k: Number of neighbours.
        rank_correlation_hit: Spearman correlation of ``hit`` with the neighbour distance.
        rank_correlation_time: Spearman correlation of ``exit_time`` with the neighbour distance.
        notes: Cases in which these numbers mean nothing.
    """

    hit: Float[Tensor, " queries"]
    hit_stderr: Float[Tensor, " queries"]
    hit_bound: Float[Tensor, " queries"]
    exit_time: Float[Tensor, " queries"]
    exit_time_stderr: Float[Tensor, " queries"]
    neighbour: Float[Tensor, " queries"]
    k: int
    rank_correlation_hit: float
    rank_correlation_time: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        columns = (self.hit, self.hit_stderr, self.hit_bound, self.exit_time, self.neighbour)
        rows = list(zip(*(c.tolist() for c in columns), strict=True))
        return "\n".join(
            [
                f"hitting the data from {len(self.hit)} queries",
                *table(("p_hit", "s.e.", "at most", "E tau", f"{self.k}-NN distance"), rows),
                f"  rank correlation with the {self.k}-NN distance: p_hit "
                f"{_signed(self.rank_correlation_hit)}, E tau {_signed(self.rank_correlation_time)}",
                *notes_lines(self.notes),
            ]
        )


def hitting_report(
    domain: Domain | Whitened,
    at: Tensor,
    train_x: Tensor | None = None,
    k: int = 5,
    *,
    n_walks: int = 1000,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> HittingReport:
    """Estimate probability and time to hit the data, with the distance to the nearest neighbours.

    This is a density diagnostic, not a better outlier detector. From about ten dimensions on, these scores
    order points as the nearest neighbour does, and in fewer dimensions they are worse (docs: landscape).

    Args:
        domain: Usually a `DataDomain`; others have no balls to hit.
        at: Queries.
        train_x: Data for the neighbour column; None takes the centres of the balls.
        k: Number of neighbours.
        n_walks: Walks per query.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    checks.floating("at", at)
    checks.batch("at", at)
    checks.count("k", k)
    flat = at.reshape(len(at), -1)
    region = domain.inner if isinstance(domain, Whitened) else domain
    balls = region if isinstance(region, DataDomain) else None
    inner = domain.to_inner(flat) if isinstance(domain, Whitened) else flat
    settings.setdefault("solver", "spheres")  # the only solver that counts hits and measures times
    estimate = estimate_landscape(
        lambda z: torch.zeros_like(z[:, 0]), domain, flat, n_walks=n_walks, generator=generator, **settings
    )
    if estimate.exit_time is None or estimate.exit_time_stderr is None:
        raise ValueError(f'solver="{estimate.solver}" does not compute exit times. Use solver="spheres".')
    data = _data(domain, balls, train_x, flat)
    if k > len(data):
        raise ValueError(f"k must be at most the number of data points ({len(data)}), but got {k}. Lower k.")
    neighbour = torch.cdist(flat, data.to(flat)).topk(k, dim=1, largest=False).values.mean(1)
    finished = 1 - estimate.unfinished_share
    hit = estimate.hit_share / finished  # NaN where no walk finished
    count = n_walks * finished
    smoothed = (hit * count + 1) / (count + 2)  # so that zero hits do not have a standard error of zero
    bound = union_bound(balls, inner) if balls is not None else torch.zeros_like(hit)
    return HittingReport(
        hit,
        (smoothed * (1 - smoothed) / count).sqrt(),
        bound,
        estimate.exit_time,
        estimate.exit_time_stderr,
        neighbour,
        k,
        spearman(hit, neighbour),
        spearman(estimate.exit_time, neighbour),
        _notes(balls, hit, bound, flat.shape[1], estimate.unfinished_share),
    )


def _signed(correlation: float) -> str:
    return "undefined" if math.isnan(correlation) else f"{correlation:+.2f}"


def _data(domain: object, balls: DataDomain | None, train_x: Tensor | None, flat: Tensor) -> Tensor:
    if train_x is not None:
        checks.floating("train_x", train_x)
        checks.batch("train_x", train_x)
        data = train_x.reshape(len(train_x), -1)
        if data.shape[1] != flat.shape[1]:
            raise ValueError(
                f"train_x has {data.shape[1]} features, but the queries have {flat.shape[1]}. "
                "Make them agree."
            )
        return data
    if balls is None:
        raise ValueError("The domain has no data points for the neighbour distances. Pass train_x.")
    return domain.from_inner(balls.points) if isinstance(domain, Whitened) else balls.points


def _notes(
    balls: DataDomain | None, hit: Tensor, bound: Tensor, dim: int, unfinished: Tensor
) -> tuple[str, ...]:
    notes = []
    if balls is None:
        notes.append("The domain has no balls around data, so p_hit is 0 by construction and means nothing.")
    elif getattr(balls.domain, "wall", "absorb") == "reflect":
        notes.append(
            "Between reflecting walls every walk hits a ball, so p_hit is 1 by construction. Use E tau."
        )
    else:
        few = int(((hit < FEW_HITS) | (bound < FEW_HITS)).sum())
        if few:
            notes.append(
                f"At {few} of {len(hit)} queries fewer than {FEW_HITS:.0%} of the walks hit the data "
                f"(dimension {dim}): the outer boundary dominates there. p_hit is noise and at best repeats "
                "the nearest-neighbour distance."
            )
        notes.append(
            "E tau also falls towards the outer boundary, so a short time can mean near to the data or near "
            "to the edge of the domain."
        )
    if dim < 3:
        notes.append("In fewer than 3 dimensions the bound sum (eps/r)^(n-2) says nothing (it is 1).")
    if bool((unfinished > 0.01).any()):
        notes.append(
            "More than 1 % of the walks ran out of steps at some query. p_hit and E tau skip them and "
            "are biased. Raise max_steps."
        )
    if len(hit) < 3 or math.isnan(spearman(hit, torch.arange(len(hit)).to(hit))):
        notes.append("Too few different values for a rank correlation.")
    return tuple(notes)
