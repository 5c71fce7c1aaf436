"""Compute loss surfaces: the loss over planes through the data and along bridges, for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils.random import draw_permutation
from elliptica._utils.statistics import clopper_pearson
from elliptica.core.elliptic import sample_paths
from elliptica.core.noise import auto_sigma
from elliptica.core.partners import sample_partners
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.landscape.loss import check_maximum_principle
from elliptica.report.content import ReportError

#: Points along each side of a plane, rows to use, bridges to draw, points on each.
GRID, ROWS, BRIDGES, TIMES = 49, 400, 24, 41
_SHOWN_POINTS = 250
#: Triples to try before giving up, and how many to show.
_TRIES, _TRIPLES = 40, 3


@dataclass(frozen=True)
class Plane:
    """A plane in the space of the inputs, ``origin + u * first + v * second``.

    Attributes:
        title: Title in the selector.
        note: How targets are chosen on it.
        axes: Names of the two directions.
        origin: A point of it.
        first: Unit vector.
        second: Unit vector, at a right angle to the first.
        low: Least coordinates shown.
        high: Largest ones.
        corners: Rows of the three data points on it; empty for other planes.
    """

    title: str
    note: str
    axes: tuple[str, str]
    origin: Float[Tensor, " dim"]
    first: Float[Tensor, " dim"]
    second: Float[Tensor, " dim"]
    low: tuple[float, float]
    high: tuple[float, float]
    corners: tuple[int, ...] = ()

    def coordinates(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n 2"]:
        """Return the coordinates of the points of the plane that are nearest to some points."""
        gap = x.double() - self.origin
        return torch.stack([gap @ self.first, gap @ self.second], dim=1)

    def grid(self, n: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, "nn dim"]]:
        """Return both coordinates, and the ``n * n`` points, the first coordinate varying fastest."""
        u, v = (
            torch.linspace(a, b, n, dtype=torch.float64) for a, b in zip(self.low, self.high, strict=True)
        )
        at = torch.cartesian_prod(v, u)
        return u, v, self.origin + at[:, 1:] * self.first + at[:, :1] * self.second

    def targets(
        self,
        points: Float[Tensor, "n dim"],
        x: Float[Tensor, "rows dim"],
        y: Float[Tensor, "rows *target"],
        *,
        is_share: bool,
    ) -> Float[Tensor, "n *target"]:
        """Return targets of points of the plane: mixed as its corners are, or those of the nearest datum.

        Beyond the triangle, class shares are clipped to valid shares.
        """
        if not self.corners:
            return y[torch.cdist(points, x.double()).argmin(1)]
        corners = x[list(self.corners)].double()
        edges = torch.stack([corners[1] - corners[0], corners[2] - corners[0]], dim=1)
        inner = torch.linalg.lstsq(edges, (points - corners[0]).T).solution.T
        weights = torch.cat([1 - inner.sum(1, keepdim=True), inner], dim=1)
        if is_share:
            weights = weights.clamp_min(0)
            weights = weights / weights.sum(1, keepdim=True)
        ends = y[list(self.corners)].double()
        return (weights @ ends.flatten(1)).reshape(len(points), *y.shape[1:]).to(y)


NEAREST = "Each point has the target of its nearest datum."
MIXED = "Targets are mixed as the three points are; the unavoidable loss of that is subtracted."


def choose_planes(
    x: Float[Tensor, "rows dim"],
    classes: Int[Tensor, " rows"] | None,
    losses: Float[Tensor, " rows"],
    generator: torch.Generator,
) -> list[Plane]:
    """Choose the plane itself for data in it; else two principal directions, and some through three data.

    Args:
        x: The data.
        classes: Classes of the rows. The three points are then of different classes, if there are three.
        losses: Losses of the rows. One plane passes through the largest.
        generator: Source of randomness.

    Example:
        >>> x = torch.randn(20, 5)
        >>> planes = choose_planes(x, None, torch.rand(20), torch.Generator().manual_seed(0))
        >>> [len(plane.corners) for plane in planes]
        [0, 3, 3, 3]
    """
    x = x.double()
    if x.shape[1] == 1:
        raise ValueError(
            "The data have one feature, so there is no plane to draw. Pass at least two features."
        )
    if x.shape[1] == 2:
        low, high = _margins(x.amin(0), x.amax(0))
        a, b = torch.eye(2, dtype=torch.float64)
        origin = torch.zeros(2, dtype=torch.float64)
        return [Plane("The data's own plane", NEAREST, ("first", "second"), origin, a, b, low, high)]
    planes = [_principal(x)]
    worst = int(losses.argmax())
    seen: set[tuple[int, ...]] = set()
    for attempt in range(_TRIES):
        order = draw_permutation(len(x), device=x.device, generator=generator).tolist()
        rows = _three(order, classes, first=worst if len(planes) == _TRIPLES else None)
        plane = None if tuple(sorted(rows)) in seen else _through(x, rows, has_worst=worst in rows)
        if plane is not None:
            seen.add(tuple(sorted(rows)))
            planes.append(plane)
        if len(planes) == _TRIPLES + 1 or attempt == _TRIES - 1:
            break
    return planes


def _three(order: list[int], classes: Tensor | None, first: int | None) -> tuple[int, ...]:
    """Take three rows in random order, of different classes if possible."""
    rows = [first] if first is not None else []
    if classes is not None:
        for row in order:
            if len(rows) < 3 and int(classes[row]) not in {int(classes[r]) for r in rows}:
                rows.append(row)
    rows += [row for row in order if row not in rows][: 3 - len(rows)]
    return tuple(rows)


def _through(x: Float[Tensor, "rows dim"], rows: tuple[int, ...], *, has_worst: bool) -> Plane | None:
    """Return the plane through three rows; None if they lie on a line."""
    if len(rows) < 3:
        return None
    a, b, c = x[list(rows)]
    first = b - a
    if float(first.norm()) == 0:
        return None
    first = first / first.norm()
    second = (c - a) - ((c - a) @ first) * first
    if float(second.norm()) <= 1e-6 * float((c - a).norm() + 1e-300):
        return None
    second = second / second.norm()
    plane = Plane("", MIXED, ("", ""), a, first, second, (0.0, 0.0), (0.0, 0.0), rows)
    at = plane.coordinates(x[list(rows)])
    low, high = _margins(at.amin(0), at.amax(0), 0.2)
    names = ", ".join(str(row) for row in rows)
    title = f"Through rows {names}" + (" (with the largest loss)" if has_worst else "")
    axes = ("from the first towards the second", "towards the third")
    return Plane(title, MIXED, axes, a, first, second, low, high, rows)


def _principal(x: Float[Tensor, "rows dim"]) -> Plane:
    centre = x.mean(0)
    directions = torch.linalg.svd(x - centre, full_matrices=False).Vh
    if len(directions) < 2:
        raise ValueError("The data have fewer than two rows, so there is no plane to draw. Pass more rows.")
    at = (x - centre) @ directions[:2].T
    low, high = _margins(at.amin(0), at.amax(0))
    first, second = directions[:2]
    axes = ("first direction", "second direction")
    return Plane("Two principal directions", NEAREST, axes, centre, first, second, low, high)


def _margins(
    low: Float[Tensor, "2"], high: Float[Tensor, "2"], share: float = 0.08
) -> tuple[tuple[float, float], tuple[float, float]]:
    room = share * (high - low).clamp_min(float((high - low).max()) * 0.1 + 1e-12)
    (a, b), (c, d) = (low - room).tolist(), (high + room).tolist()
    return (a, b), (c, d)


def loss_surfaces(fitted: FittedModel, seed: int = 0) -> dict[str, Any]:
    """Evaluate the loss of a model over planes through its data and along bridges between them.

    Losses are those of `elliptica diagnose`: the unavoidable loss of a mixed target is subtracted.

    Raises:
        ReportError: If the model cannot be evaluated on its data.

    Example:
        >>> x = torch.randn(30, 2)
        >>> y = (x[:, 0] > 0).long()
        >>> result = loss_surfaces(FittedModel(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), x, y))
        >>> len(result["planes"]), len(result["bridges"]["loss"]) <= BRIDGES
        (1, True)
    """
    generator = torch.Generator().manual_seed(seed)
    try:
        drawn = fitted.sample(ROWS, generator=generator)
        planes = choose_planes(drawn.x.flatten(1), drawn.labels, drawn.losses, generator)
        result = {
            "name": fitted.name,
            "features": int(drawn.x[0].numel()),
            "rows": f"{len(drawn.x)} of {drawn.n_given} rows"
            if len(drawn.x) < drawn.n_given
            else f"{len(drawn.x)} rows",
            "planes": [_surface(drawn, plane) for plane in planes],
            "bridges": _bridges(drawn, generator),
            "band": [float(v) for v in drawn.losses.aminmax()],
        }
    except (ValueError, TypeError, RuntimeError) as error:
        raise ReportError(f"The loss of {fitted.name} cannot be evaluated: {error}") from error
    verdict = check_maximum_principle(drawn.losses, drawn.between)
    above = round(verdict.share_above * len(drawn.between))
    low, high = clopper_pearson(above, len(drawn.between))
    result["above"] = {"share": verdict.share_above, "low": low, "high": high, "n": len(drawn.between)}
    return result


def _label(fitted: FittedModel, row: int) -> str:
    return f"row {row}" if fitted.labels is None else fitted.class_name(int(fitted.labels[row]))


def _surface(fitted: FittedModel, plane: Plane) -> dict[str, Any]:
    """Evaluate the loss on a grid, with the data that can be shown on it."""
    u, v, points = plane.grid(GRID)
    targets = plane.targets(points, fitted.x.flatten(1), fitted.targets, is_share=fitted.space == "simplex")
    losses = fitted.field(
        points.reshape(len(points), *fitted.x.shape[1:]).to(fitted.x), targets.to(fitted.targets)
    )
    rows = list(plane.corners) or list(range(min(len(fitted.x), _SHOWN_POINTS)))
    at = plane.coordinates(fitted.x.flatten(1)[rows])
    in_plane = fitted.x[0].numel() == 2
    place = list(zip(fitted.location, fitted.scale, strict=True)) if in_plane else [(0.0, 1.0)] * 2
    (a, s), (b, t) = place[:2]
    titles = (
        list(fitted.feature_names[:2]) if in_plane and len(fitted.feature_names) >= 2 else list(plane.axes)
    )
    return {
        "title": plane.title,
        "note": plane.note,
        "axes": titles,
        "x": [a + s * each for each in u.tolist()],
        "y": [b + t * each for each in v.tolist()],
        "loss": losses.double().reshape(GRID, GRID).tolist(),
        "points": {
            "x": [a + s * each for each in at[:, 0].tolist()],
            "y": [b + t * each for each in at[:, 1].tolist()],
            "loss": fitted.losses[rows].tolist(),
            "label": [_label(fitted, row) for row in rows],
            "inPlane": in_plane or bool(plane.corners),
        },
    }


def _bridges(fitted: FittedModel, generator: torch.Generator) -> dict[str, Any]:
    """Evaluate the loss along whole bridges, with targets that move with the inputs."""
    rows = draw_permutation(len(fitted.x), device=fitted.x.device, generator=generator)[:BRIDGES]
    partners = sample_partners(fitted.x[rows], generator=generator)
    paths = sample_paths(
        fitted.x[rows],
        fitted.targets[rows],
        target_space=fitted.space,
        partners=partners,
        sampling="path",
        n_times=TIMES,
        sigma=auto_sigma(fitted.x),
        sigma_y=0.0,
        generator=generator,
    )
    assert isinstance(paths.x, Tensor)
    losses = fitted.field(paths.x.flatten(0, 2), paths.y.flatten(0, 2)).double().reshape(len(rows), TIMES)
    ends = rows[partners[:, 0]]
    return {
        "s": paths.s[0, 0].tolist(),
        "loss": losses.tolist(),
        "from": [_label(fitted, int(row)) for row in rows],
        "to": [_label(fitted, int(row)) for row in ends],
        "path": _in_plane(paths.x[:, 0], fitted) if fitted.x[0].numel() == 2 else None,
    }


def _in_plane(x: Float[Tensor, "bridges times *feature"], fitted: FittedModel) -> list[list[list[float]]]:
    flat = x.flatten(2).double()
    scale, location = (
        torch.tensor(list(each), dtype=torch.float64) for each in (fitted.scale, fitted.location)
    )
    return (flat * scale + location).tolist()
