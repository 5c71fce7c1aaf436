"""Estimate the expected loss of a diffusion where it exits, the loss on its way, and its way to the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.statistics import Result
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Domain
from elliptica.landscape.estimate import FEW_HITS, LandscapeEstimate
from elliptica.landscape.loss import LossField, join
from elliptica.landscape.operator import Operator
from elliptica.landscape.solve import estimate_landscape, union_bound
from elliptica.landscape.subharmonicity import point_loss

Labels = Literal["carry", "nearest", "joint"]

#: Default number of neighbours.
NEIGHBOURS = 10
#: A row is far if this share of the training rows is nearer to another training row.
_USUAL = 0.99
#: Largest number of training rows for that distance; more are sampled evenly.
_SAMPLE = 1000
#: Rows times training rows (or features) that are held at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class NeighbourLoss(Result):
    """Result of `neighbour_loss`, one entry per query."""

    #: Mean loss of the model at the query against the labels of its nearest training rows.
    loss: Float[Tensor, " queries"]
    distance: Float[Tensor, " queries"]  # distance to the nearest training row, in standardised features
    #: Whether that distance exceeds the one of 99 % of the training rows to their nearest other row.
    far: Bool[Tensor, " queries"]
    rows: Int[Tensor, "queries k"]  # numbers of the training rows, nearest first


def neighbour_loss(
    field: LossField, at: Tensor, train: tuple[Tensor, Tensor], k: int = NEIGHBOURS
) -> NeighbourLoss:
    """Estimate the loss at rows without labels from the labels of their nearest training rows.

    Averages the loss of the model *at the query* against the label of each of the ``k`` nearest training
    rows. Distances are Euclidean in features divided by their deviation over the training rows. Pass held-out
    or unlabelled rows, because a training row is its own nearest neighbour.

    Args:
        field: Loss of the model.
        at: Queries, ``(queries, *feature)``, as the model takes them.
        train: Training inputs and targets.
        k: Number of neighbours; all training rows if there are fewer.

    Example:
        >>> field = LossField(torch.nn.Identity(), torch.nn.MSELoss())
        >>> x = torch.tensor([[0.0], [1.0], [5.0]])
        >>> neighbour_loss(field, torch.tensor([[0.5]]), (x, x), k=2).loss
        tensor([0.2500])
    """
    x, y = train
    checks.finite("at", at)
    checks.finite("train", x)
    checks.same_rows("train y", y, len(x))
    if x.shape[1:] != at.shape[1:]:
        raise ValueError(f"train has rows of shape {tuple(x.shape[1:])}, at {tuple(at.shape[1:])}.")
    k = min(k, len(x))
    distance, rows = _nearest_rows(at, x, k)
    step = max(field.chunk_size // k, 1)
    with torch.no_grad():
        parts = [
            field(part.repeat_interleave(k, 0), y[near.flatten().to(y.device)]).reshape(-1, k).mean(1)
            for part, near in zip(at.split(step), rows.split(step), strict=True)
        ]
    far = distance[:, 0] > _usual_distance(x)
    return NeighbourLoss(torch.cat(parts), distance[:, 0].to(at), far, rows)


def _nearest_rows(at: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the ``k`` nearest rows of ``x``: distances in standardised features, and row numbers."""
    points = x.reshape(len(x), -1).double()
    queries = at.reshape(len(at), -1).to(points)
    deviation, centre = points.std(0, correction=0), points.mean(0)
    scale = torch.where(deviation > 0, deviation, 1.0)
    points, queries = (points - centre) / scale, (queries - centre) / scale
    pieces = []
    for part in queries.split(max(_CHUNK // max(len(points), k * points.shape[1]), 1)):
        near = torch.cdist(part, points).topk(k, dim=1, largest=False).indices
        length = (part[:, None] - points[near]).norm(dim=2)  # the product inside cdist loses digits
        length, order = length.sort(dim=1, stable=True)
        pieces.append((length, near.gather(1, order)))
    distance, rows = (torch.cat(column) for column in zip(*pieces, strict=True))
    return distance, rows


def _usual_distance(x: Tensor) -> float:
    """Return the distance within which 99 % of the training rows have another, different one."""
    some = x[:: -(-len(x) // _SAMPLE)]
    distance = _nearest_rows(some, x, min(NEIGHBOURS + 1, len(x)))[0]
    other = torch.where(distance > 0, distance, torch.inf).amin(1)  # the row itself and copies do not count
    other = other[other.isfinite()]
    return float(other.quantile(_USUAL)) if len(other) else 0.0


def loss_map(
    field: LossField,
    domain: Domain,
    at: Tensor,
    y: Tensor | None = None,
    *,
    labels: Labels = "carry",
    train: tuple[Tensor, Tensor] | None = None,
    **settings: Any,
) -> LandscapeEstimate:
    """Estimate the expected loss where a diffusion from each query first hits the boundary (Eq. (3)).

    To order rows without labels by the loss that they will have, `neighbour_loss` is better and costs no
    walks; see docs: landscape.

    Args:
        field: Loss of the model.
        domain: Domain on flattened inputs (for ``"joint"``: on inputs and targets).
        at: Queries, ``(queries, *feature)``.
        y: Target of each query; not needed with ``labels="nearest"``.
        labels: Which target a walk is judged by. ``"carry"``: the query's own. ``"nearest"``: that of the
            training point nearest to where it ended, for queries without a label. ``"joint"``: real targets
            that diffuse with the inputs, as in the paper.
        train: Training inputs and targets, for ``"nearest"``.
        **settings: Those of `estimate_landscape`, e.g. ``n_walks``, ``operator``, ``generator``.
    """
    flat, feature = at.reshape(len(at), -1), at.shape[1:]
    if labels == "nearest" and train is not None:
        estimate = estimate_landscape(_nearest_label(field, train, feature), domain, flat, **settings)
    elif labels == "carry" and y is not None:
        checks.same_rows("y", y, len(at), "at")
        estimate = estimate_landscape(field.at_label(feature), domain, flat, context=y, **settings)
    elif labels == "joint" and y is not None:
        value = field.joint(flat.shape[1], feature_shape=feature, target_shape=y.shape[1:])
        estimate = estimate_landscape(value, domain, join(at, y), **settings)
    else:
        raise ValueError(f'labels={labels!r}: "carry" and "joint" need y, "nearest" needs train=(x, y).')
    values = settings.get("data_values")
    if values is None and labels == "nearest" and train is not None:
        values = field(*train)
    own = domain.points if isinstance(domain, DataDomain) else None
    points = own if train is None else train[0]
    if values is None or points is None or labels == "joint":  # points of a joint domain hold targets, too
        return estimate
    far = _nearest_rows(at, points, 1)[0][:, 0] > _usual_distance(points)
    if not bool(far.any()):
        return estimate
    note = (
        f"{int(far.sum())} of {len(far)} queries lie outside the training region, where u cannot exceed the "
        f"largest training loss ({float(values.max()):.3g}), except for the "
        f"{float(estimate.outer_share[far].mean()):.0%} of their walks that end on the outer boundary."
    )
    return replace(estimate, notes=(*estimate.notes, note))


def _nearest_label(
    field: LossField, train: tuple[Tensor, Tensor], feature: torch.Size
) -> Callable[[Tensor], Tensor]:
    """Return the loss at flat points, with the target of the nearest training point."""
    centres = train[0].reshape(len(train[0]), -1)

    def value(z: Tensor) -> Tensor:
        with torch.no_grad():
            parts = z.split(max(_CHUNK // len(centres), 1))
            index = torch.cat([torch.cdist(part, centres.to(part)).argmin(1) for part in parts])
        return field(z.reshape(len(z), *feature), train[1][index])

    return value


@dataclass(frozen=True)
class OccupationReport(Result):
    """Result of `occupation_report`, one entry per query."""

    loss: Float[Tensor, " queries"]  # loss at the query
    #: ``v = E int_0^tau l ds``, which solves ``A v = -l`` with ``v = 0`` on the boundary.
    integral: Float[Tensor, " queries"]
    integral_stderr: Float[Tensor, " queries"]  # upper bound of its standard error
    exit_time: Float[Tensor, " queries"]  # ``E tau``
    exit_time_stderr: Float[Tensor, " queries"]  # its standard error
    mean_loss: Float[Tensor, " queries"]  # ``v / E tau``: mean loss over the places the diffusion visits
    mean_loss_stderr: Float[Tensor, " queries"]  # upper bound of its standard error
    notes: tuple[str, ...]  # remarks and cautions


def occupation_report(
    field: LossField,
    domain: Domain,
    at: Tensor,
    y: Tensor,
    n_walks: int = 1000,
    *,
    joint: bool = False,
    diffusion: float = 1.0,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> OccupationReport:
    """Estimate the mean loss of Brownian motion from each query to its exit (Lemma 1, corrected).

    Args:
        field: Loss of the model.
        domain: Domain on flattened inputs, or with ``joint`` on inputs and targets.
        at: Queries.
        y: Their targets, fixed along a walk unless ``joint``. Queries with the same target are solved
            together; many different real targets take one solve each (use ``joint`` there).
        n_walks: Walks per query.
        joint: Let real targets diffuse, too.
        diffusion: ``sigma^2``, which only scales time.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    z, loss = point_loss(field, at, y, joint)
    at_query = loss(z, torch.arange(len(z), device=z.device))
    columns = torch.zeros(4, len(z), dtype=z.dtype, device=z.device)
    base = torch.zeros_like(z[:, 0])
    notes: list[str] = []

    def solve(rows: Tensor, constant: float, n: int) -> LandscapeEstimate:
        def source(p: Tensor) -> Tensor:
            return loss(p, rows[:1].expand(len(p))).to(p.dtype) - constant

        operator = Operator(diffusion=diffusion, source=source)
        return estimate_landscape(
            0.0, domain, z[rows], operator=operator, n_walks=n, generator=generator, **settings
        )

    targets = y.new_zeros(len(y), 1) if joint else y.reshape(len(y), -1)
    groups, index = targets.unique(dim=0, return_inverse=True)
    for group in range(len(groups)):
        rows = (index == group).nonzero().flatten().to(z.device)
        # minus a constant near the mean loss, the integral hardly depends on how long a walk lasts
        pilot = solve(rows, 0.0, max(n_walks // 10, 2))
        total = float(exit_times(pilot)[0].sum())
        base[rows] = float(pilot.value.sum()) / total if total > 0 else 0.0
        estimate = solve(rows, float(base[rows[0]]), n_walks)
        columns[:, rows] = torch.stack([estimate.value, estimate.stderr, *exit_times(estimate)]).to(columns)
        notes += [note for note in estimate.notes if "ran out of steps" in note and note not in notes]
    rest, rest_error, time, time_error = columns
    v, v_error = rest + base * time, rest_error + base.abs() * time_error
    mean = v / time
    started = int((time <= 0).sum())
    if started:
        notes.append(f"{started} queries lie inside a ball around a data point, so their walks end at once.")
    mean_error = (rest_error + (mean - base).abs() * time_error) / time
    return OccupationReport(at_query, v, v_error, time, time_error, mean, mean_error, tuple(notes))


@dataclass(frozen=True)
class HittingReport(Result):
    """Result of `hitting_report`, one entry per query."""

    #: Share of the finished walks that hit a ball around a data point before the outer boundary.
    hit: Float[Tensor, " queries"]
    #: Its standard error (binomial, with one success and one failure added).
    hit_stderr: Float[Tensor, " queries"]
    #: ``sum (eps / r)^(n-2)``, an upper bound of the share; 1, and void, for n < 3.
    hit_bound: Float[Tensor, " queries"]
    exit_time: Float[Tensor, " queries"]  # expected time to a ball or to the outer boundary
    exit_time_stderr: Float[Tensor, " queries"]  # its standard error
    notes: tuple[str, ...]  # cases in which these numbers mean nothing


def hitting_report(
    domain: Domain,
    at: Tensor,
    *,
    n_walks: int = 1000,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> HittingReport:
    """Estimate probability and time to hit the balls around the data (paper: Lemma 2).

    This is a density diagnostic, not a better outlier detector than the nearest neighbour (docs: landscape).

    Args:
        domain: Usually a `DataDomain`; others have no balls to hit.
        at: Queries.
        n_walks: Walks per query.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    flat = at.reshape(len(at), -1)
    settings.setdefault("solver", "spheres")  # counts hits and measures times
    estimate = estimate_landscape(0.0, domain, flat, n_walks=n_walks, generator=generator, **settings)
    finished = 1 - estimate.unfinished_share
    hit = estimate.hit_share / finished  # NaN where no walk finished
    count = n_walks * finished
    smoothed = (hit * count + 1) / (count + 2)  # so that zero hits do not have a standard error of zero
    bound = torch.zeros_like(hit)
    if isinstance(domain, DataDomain):
        bound = union_bound(domain, flat)
    stderr = (smoothed * (1 - smoothed) / count).sqrt()
    few = int(((hit < FEW_HITS) | (bound < FEW_HITS)).sum())
    notes = tuple(_hitting_notes(domain, estimate, few))
    return HittingReport(hit, stderr, bound, *exit_times(estimate), notes)


def _hitting_notes(domain: Domain, estimate: LandscapeEstimate, few: int) -> Iterator[str]:
    """Say where hits mean nothing."""
    if not isinstance(domain, DataDomain):
        yield "The domain has no balls around data, so p_hit is 0 by construction."
    elif getattr(domain.domain, "wall", "absorb") == "reflect":
        yield "Between reflecting walls every walk hits a ball: p_hit is 1 by construction. Use E tau."
    else:
        yield "E tau also falls towards the outer boundary: a short time can mean near to its edge."
        if few:
            yield (
                f"At {few} of {len(estimate)} queries fewer than {FEW_HITS:.0%} of the walks hit the data: "
                "p_hit is noise there and at best repeats the nearest-neighbour distance."
            )
    if bool((estimate.unfinished_share > 0.01).any()):
        yield "Some walks ran out of steps. p_hit and E tau skip them and are biased. Raise max_steps."


def exit_times(estimate: LandscapeEstimate) -> tuple[Tensor, Tensor]:
    """Return the exit times of an estimate and their standard errors."""
    if estimate.exit_time is None or estimate.exit_time_stderr is None:
        raise ValueError(f'solver={estimate.solver!r} does not compute exit times here. Use "spheres".')
    return estimate.exit_time, estimate.exit_time_stderr
