"""Estimate the expected loss of a diffusion: at its exit (the landscape), and on its way there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica.diagnostics.neighbours import (
    NeighbourLoss,
    check_train,
    far_queries,
    nearest_rows,
    neighbour_loss,
    usual_distance,
)
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.diagnostics.subharmonicity import point_loss
from elliptica.landscape.data_domain import DataDomain, Whitened
from elliptica.landscape.domains import Domain
from elliptica.landscape.estimate import LandscapeEstimate
from elliptica.landscape.loss import LossField, join
from elliptica.landscape.operator import Operator
from elliptica.landscape.solve import estimate_landscape

Labels = Literal["carry", "nearest", "joint"]

#: Rows times training points whose distances are held at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class LossMap(LandscapeEstimate):
    """Result of `loss_map`: a `LandscapeEstimate`, with a simpler estimate of the loss for comparison.

    Attributes:
        neighbours: Loss against the labels of the nearest training rows; None if these are not known.
    """

    neighbours: NeighbourLoss | None = None

    def columns(self) -> dict[str, tuple[Tensor, str]]:
        """Return the printed columns: name, values and format of each."""
        first, *rest = super().columns().items()
        if self.neighbours is None:
            return dict([first, *rest])
        return dict([first, (f"{self.neighbours.k}-NN labels", (self.neighbours.loss, ".4g")), *rest])


def loss_map(
    field: LossField,
    domain: Domain | Whitened,
    at: Tensor,
    y: Tensor | None = None,
    *,
    labels: Labels = "carry",
    train: tuple[Tensor, Tensor] | None = None,
    **settings: Any,
) -> LossMap:
    """Estimate the expected loss where a diffusion from each query first hits the boundary.

    If training rows are known, the result also has the loss against the labels of the ten nearest of them
    (`neighbour_loss`), which costs no walks.

    Args:
        field: Loss of the model.
        domain: Domain on flattened inputs (for ``"joint"``: on inputs and targets).
        at: Queries, ``(queries, *feature)``.
        y: Target of each query; not needed with ``labels="nearest"``.
        labels: Which target a walk is judged by. ``"carry"``: the query's own. ``"nearest"``: that of the
            training point nearest to where it ended, for queries without a label. ``"joint"``: real targets
            that diffuse with the inputs, as in the paper.
        train: Training inputs and targets. Required by ``"nearest"``; otherwise only for the neighbours.
        **settings: Those of `estimate_landscape`, e.g. ``n_walks``, ``operator``, ``generator``.
    """
    checks.choice("labels", labels, ("carry", "nearest", "joint"))
    checks.floating("at", at)
    checks.batch("at", at)
    if train is not None:
        check_train(train, at)
    estimate = _solve(field, domain, at, y, labels, train, settings)
    neighbours = None if train is None else neighbour_loss(field, at, train)
    notes = estimate.notes
    if neighbours is not None:
        notes += (
            f"{neighbours.k}-NN labels: loss of the model at the query against the labels of its "
            f"{neighbours.k} nearest training rows.",
        )
    far = _far(domain, at, labels, neighbours)
    data_values = settings.get("data_values")
    if far is not None and bool(far.any()) and (labels == "nearest" or data_values is not None):
        if data_values is None:
            assert train is not None
            data_values = field(*train)
        notes += (_ceiling(far, float(data_values.max()), float(estimate.outer_share[far].mean())),)
    known = {column.name: getattr(estimate, column.name) for column in fields(estimate)}
    return LossMap(**known | {"notes": notes}, neighbours=neighbours)


def _solve(
    field: LossField,
    domain: Domain | Whitened,
    at: Tensor,
    y: Tensor | None,
    labels: Labels,
    train: tuple[Tensor, Tensor] | None,
    settings: dict[str, Any],
) -> LandscapeEstimate:
    """Estimate the landscape, with walks judged by the chosen labels."""
    flat, feature = at.reshape(len(at), -1), at.shape[1:]
    if labels == "nearest":
        return estimate_landscape(nearest_label(field, train, feature), domain, flat, **settings)
    if y is None:
        raise ValueError(
            f'labels="{labels}" needs the target y of each query. Pass y=..., or labels="nearest" with '
            "train=(x, y) for queries without labels."
        )
    checks.same_rows("y", y, len(at), "at")
    if labels == "carry":
        return estimate_landscape(field.at_label(feature), domain, flat, context=y, **settings)
    value = field.joint(flat.shape[1], feature_shape=feature, target_shape=y.shape[1:])
    return estimate_landscape(value, domain, join(at, y), **settings)


def _far(
    domain: Domain | Whitened, at: Tensor, labels: Labels, neighbours: NeighbourLoss | None
) -> Tensor | None:
    """Return which queries lie outside the training region; None if it is not known."""
    if neighbours is not None:
        return neighbours.far
    if labels == "joint":  # the points of the domain hold targets, too
        return None
    inner = domain.inner if isinstance(domain, Whitened) else domain
    if not isinstance(inner, DataDomain):
        return None
    points = domain.from_inner(inner.points) if isinstance(domain, Whitened) else inner.points
    return nearest_rows(at, points, 1)[0][:, 0] > usual_distance(points)


def _ceiling(far: Tensor, largest: float, outer: float) -> str:
    """Return a note on why ``u`` is no forecast outside the training region."""
    where = f"{far_queries(far)}. u cannot exceed the largest training loss ({largest:.3g}) there"
    if outer > 0:
        where += f", except for the {outer:.0%} of their walks that end on the outer boundary"
    return f"{where}: it is an average of losses on the boundary, however large the loss at the query is."


def nearest_label(
    field: LossField, train: tuple[Tensor, Tensor] | None, feature: torch.Size
) -> Callable[[Tensor], Tensor]:
    """Return the loss at flat points, with the target of the nearest training point."""
    if train is None:
        raise ValueError('labels="nearest" needs the labelled data. Pass train=(x, y).')
    train_x, train_y = train
    centres = train_x.reshape(len(train_x), -1)

    def value(z: Tensor) -> Tensor:
        with torch.no_grad():
            parts = z.split(max(_CHUNK // len(centres), 1))
            index = torch.cat([torch.cdist(part, centres.to(part)).argmin(1) for part in parts])
        return field(z.reshape(len(z), *feature), train_y[index])

    return value


@dataclass(frozen=True)
class OccupationReport(Result):
    """Result of `occupation_report`, one entry per query.

    Attributes:
        loss: Loss at the query.
        integral: ``v = E int_0^tau l ds``, which solves ``A v = -l`` with ``v = 0`` on the boundary.
        integral_stderr: Upper bound of its standard error.
        exit_time: ``E tau``.
        exit_time_stderr: Its standard error.
        mean_loss: ``v / E tau``: mean loss over the places the diffusion visits.
        mean_loss_stderr: Upper bound of its standard error.
        largest_loss: Largest loss met on the way, over all queries.
        within_bound: Whether ``0 <= v <= largest_loss * E tau``, within four standard errors.
        notes: Remarks and cautions.
    """

    loss: Float[Tensor, " queries"]
    integral: Float[Tensor, " queries"]
    integral_stderr: Float[Tensor, " queries"]
    exit_time: Float[Tensor, " queries"]
    exit_time_stderr: Float[Tensor, " queries"]
    mean_loss: Float[Tensor, " queries"]
    mean_loss_stderr: Float[Tensor, " queries"]
    largest_loss: float
    within_bound: bool
    notes: tuple[str, ...]

    def __str__(self) -> str:
        columns = (self.loss, self.mean_loss, self.mean_loss_stderr, self.integral, self.exit_time)
        rows = list(zip(*(c.tolist() for c in columns), strict=True))
        head = ("loss at query", "mean loss on the way", "s.e. <=", "v", "E tau")
        lost = any("ran out of steps" in note for note in self.notes)
        missed = (
            "UNKNOWN: walks ran out of steps" if lost else "MISSED: raise n_walks, or the loss is negative"
        )
        bound = "kept" if self.within_bound else missed
        return "\n".join(
            [
                f"occupation of the loss at {len(self.loss)} queries",
                *table(head, rows),
                f"  bound 0 <= v <= {self.largest_loss:.4g} E tau: {bound}",
                *notes_lines(self.notes),
            ]
        )


@dataclass
class _Solve:
    """Integrate the loss minus a constant for queries of one target; remember the largest loss.

    With a constant near the mean loss, the integral hardly depends on how long a walk lasts.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    row: Tensor
    domain: Domain | Whitened
    at: Tensor
    diffusion: float
    generator: torch.Generator | None
    settings: dict[str, Any]
    largest: float = -torch.inf

    def __call__(self, base: float, n_walks: int) -> LandscapeEstimate:
        def source(z: Tensor) -> Tensor:
            values = self.loss(z, self.row.expand(len(z)))
            if len(values):
                self.largest = max(self.largest, float(values.max()))
            return values.to(z.dtype) - base

        estimate = estimate_landscape(
            lambda p: torch.zeros_like(p[:, 0]),
            self.domain,
            self.at,
            operator=Operator(diffusion=self.diffusion, source=source),
            n_walks=n_walks,
            generator=self.generator,
            **self.settings,
        )
        if estimate.exit_time is None or estimate.exit_time_stderr is None:
            raise ValueError(
                f'solver="{estimate.solver}" does not compute exit times. Use solver="auto" or "spheres".'
            )
        return estimate


def occupation_report(
    field: LossField,
    domain: Domain | Whitened,
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
    own = loss(z, torch.arange(len(z), device=z.device))
    columns = torch.zeros(4, len(z), dtype=z.dtype, device=z.device)
    largest = float(own.max())
    notes: list[str] = []
    base = torch.zeros_like(z[:, 0])  # a constant near the mean loss of each group of queries
    for rows in _same_target(y, joint):
        solve = _Solve(loss, rows[:1].to(z.device), domain, z[rows], diffusion, generator, settings)
        pilot = solve(0.0, max(n_walks // 10, 2))
        total = float(pilot.exit_time.sum())  # type: ignore[union-attr]
        base[rows] = float(pilot.value.sum()) / total if total > 0 else 0.0
        estimate = solve(float(base[rows[0]]), n_walks)
        columns[:, rows] = torch.stack(
            [estimate.value, estimate.stderr, estimate.exit_time, estimate.exit_time_stderr]  # type: ignore[list-item]
        ).to(columns)
        largest = max(largest, solve.largest)
        notes += [note for note in estimate.notes if "ran out of steps" in note and note not in notes]
    rest, rest_error, time, time_error = columns
    v, v_error = rest + base * time, rest_error + base.abs() * time_error
    mean = v / time
    reach = 4 * (v_error + max(largest, 0.0) * time_error) + 1e-9 * abs(largest) * time
    lost = any("ran out of steps" in note for note in notes)
    within = not lost and bool(((v >= -reach) & (v <= largest * time + reach)).all())
    started = int((time <= 0).sum())
    if started:
        notes.append(f"{started} queries lie inside a ball around a data point, so their walks end at once.")
    return OccupationReport(
        own,
        v,
        v_error,
        time,
        time_error,
        mean,
        (rest_error + (mean - base).abs() * time_error) / time,
        largest,
        within,
        tuple(notes),
    )


def _same_target(y: Tensor, joint: bool) -> list[Tensor]:
    """Return row numbers grouped by target."""
    if joint:
        return [torch.arange(len(y), device=y.device)]
    checks.batch("y", y)
    groups, index = y.reshape(len(y), -1).unique(dim=0, return_inverse=True)
    return [(index == i).nonzero().flatten() for i in range(len(groups))]
