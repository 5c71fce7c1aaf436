"""The loss over planes through the data and along bridges between them, as numbers for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils.random import draw_permutation
from elliptica._utils.statistics import clopper_pearson
from elliptica.core.elliptic import sample_paths
from elliptica.core.noise import auto_sigma
from elliptica.core.partners import sample_partners
from elliptica.core.types import LossFn
from elliptica.diagnostics.case import Case, make_case
from elliptica.diagnostics.planes import Plane, choose_planes
from elliptica.landscape.maximum import check_maximum_principle
from elliptica.report.content import ReportError

#: Points along each side of a plane, rows that are looked at, bridges that are drawn, points on each.
GRID, ROWS, BRIDGES, TIMES = 49, 400, 24, 41
_SHOWN_POINTS = 250


@dataclass(frozen=True)
class Subject:
    """A model on its data.

    Attributes:
        name: In the selector.
        model: Called as ``model(x)``.
        loss_fn: Its loss.
        x: Inputs as the model takes them.
        y: Targets.
        groups: Group of each row, if any.
        class_names: Of the labels 0, 1, ...
        feature_names: Of inputs in the plane.
        location: What to add, and
        scale: what to multiply inputs in the plane by, to have the units of the data.
    """

    name: str
    model: nn.Module
    loss_fn: LossFn
    x: Tensor
    y: Tensor
    groups: Sequence[str] | None = None
    class_names: Sequence[str] = ()
    feature_names: Sequence[str] = ()
    location: Sequence[float] = (0.0, 0.0)
    scale: Sequence[float] = (1.0, 1.0)


def look_at(subject: Subject, seed: int = 0) -> dict[str, Any]:
    """Evaluate a model's loss on planes and bridges.

    Losses are those of `elliptica diagnose`: what a mixed target costs any network is taken off.

    Raises:
        ReportError: If the model cannot be evaluated on its data.

    Example:
        >>> x = torch.randn(30, 2)
        >>> found = look_at(Subject("a", nn.Linear(2, 2), nn.CrossEntropyLoss(), x, (x[:, 0] > 0).long()))
        >>> len(found["planes"]), len(found["bridges"]["loss"]) <= BRIDGES
        (1, True)
    """
    generator = torch.Generator().manual_seed(seed)
    try:
        case = make_case(
            subject.model,
            subject.loss_fn,
            subject.x,
            subject.y,
            groups=None,
            n=ROWS,
            sigma="auto",
            num_classes=None,
            target_space=None,
            confidence=0.95,
            generator=generator,
            device=None,
            batch_size=1024,
        )
        planes = choose_planes(case.x.flatten(1), _classes(case), case.losses, generator)
        found = {
            "name": subject.name,
            "features": int(case.x[0].numel()),
            "rows": f"{len(case.x)} of {case.n_given} rows"
            if len(case.x) < case.n_given
            else f"{len(case.x)} rows",
            "planes": [_surface(case, plane, subject) for plane in planes],
            "bridges": _bridges(case, subject, generator),
            "band": [float(v) for v in case.losses.aminmax()],
        }
    except (ValueError, TypeError, RuntimeError) as error:
        raise ReportError(f"The loss of {subject.name} cannot be looked at: {error}") from error
    verdict = check_maximum_principle(case.losses, case.between)
    above = round(verdict.share_above * len(case.between))
    low, high = clopper_pearson(above, len(case.between))
    found["above"] = {"share": verdict.share_above, "low": low, "high": high, "n": len(case.between)}
    return found


def _classes(case: Case) -> Tensor | None:
    return case.y.argmax(1) if case.space == "simplex" and case.y.ndim == 2 else None


def _label(case: Case, subject: Subject, row: int) -> str:
    classes = _classes(case)
    if classes is None:
        return f"row {row}"
    number = int(classes[row])
    return subject.class_names[number] if number < len(subject.class_names) else str(number)


def _surface(case: Case, plane: Plane, subject: Subject) -> dict[str, Any]:
    """Loss on a grid, and the data that can be shown with it."""
    u, v, points = plane.grid(GRID)
    targets = plane.targets(points, case.x.flatten(1), case.y, is_share=case.space == "simplex")
    losses = case.field(points.reshape(len(points), *case.x.shape[1:]).to(case.x), targets.to(case.y))
    rows = list(plane.corners) or list(range(min(len(case.x), _SHOWN_POINTS)))
    at = plane.coordinates(case.x.flatten(1)[rows])
    in_plane = case.x[0].numel() == 2
    place = list(zip(subject.location, subject.scale, strict=True)) if in_plane else [(0.0, 1.0)] * 2
    (a, s), (b, t) = place[:2]
    titles = (
        list(subject.feature_names[:2]) if in_plane and len(subject.feature_names) >= 2 else list(plane.axes)
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
            "loss": case.losses[rows].tolist(),
            "label": [_label(case, subject, row) for row in rows],
            "inPlane": in_plane or bool(plane.corners),
        },
    }


def _bridges(case: Case, subject: Subject, generator: torch.Generator) -> dict[str, Any]:
    """Loss along whole bridges, targets moving with the inputs."""
    rows = draw_permutation(len(case.x), device=case.x.device, generator=generator)[:BRIDGES]
    partners = sample_partners(case.x[rows], generator=generator)
    paths = sample_paths(
        case.x[rows],
        case.y[rows],
        target_space=case.space,
        partners=partners,
        sampling="path",
        n_times=TIMES,
        sigma=auto_sigma(case.x),
        sigma_y=0.0,
        generator=generator,
    )
    assert isinstance(paths.x, Tensor)
    losses = case.field(paths.x.flatten(0, 2), paths.y.flatten(0, 2)).double().reshape(len(rows), TIMES)
    ends = rows[partners[:, 0]]
    return {
        "s": paths.s[0, 0].tolist(),
        "loss": losses.tolist(),
        "from": [_label(case, subject, int(row)) for row in rows],
        "to": [_label(case, subject, int(row)) for row in ends],
        "path": _in_plane(paths.x[:, 0], subject) if case.x[0].numel() == 2 else None,
    }


def _in_plane(x: Float[Tensor, "bridges times *feature"], subject: Subject) -> list[list[list[float]]]:
    flat = x.flatten(2).double()
    scale, location = (
        torch.tensor(list(each), dtype=torch.float64) for each in (subject.scale, subject.location)
    )
    return (flat * scale + location).tolist()
