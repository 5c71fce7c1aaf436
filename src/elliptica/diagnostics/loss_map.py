"""Expected loss at unlabelled or shifted points: the landscape of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica.landscape.data_domain import Whitened
from elliptica.landscape.domains import Domain
from elliptica.landscape.estimate import LandscapeEstimate
from elliptica.landscape.loss import LossField, join
from elliptica.landscape.solve import estimate_landscape

Labels = Literal["carry", "nearest", "joint"]

#: Rows times training points whose distances are held at once.
_CHUNK = 2**22


def loss_map(
    field: LossField,
    domain: Domain | Whitened,
    at: Tensor,
    y: Tensor | None = None,
    *,
    labels: Labels = "carry",
    train: tuple[Tensor, Tensor] | None = None,
    **settings: Any,
) -> LandscapeEstimate:
    """Expected loss where a diffusion from each query first meets the boundary.

    Args:
        field: Loss of the model.
        domain: Where walks live: a domain on flattened inputs (for ``"joint"``: inputs and targets).
        at: Queries, ``(queries, *feature)``.
        y: Target of each query; not needed with ``labels="nearest"``.
        labels: Which target a walk is judged by. ``"carry"``: the query's own. ``"nearest"``: that of the
            training point nearest to where it ended, for queries without a label. ``"joint"``: real targets
            that diffuse with the inputs, as in the paper.
        train: Training inputs and targets, for ``"nearest"``.
        **settings: Those of `estimate_landscape`, e.g. ``n_walks``, ``operator``, ``generator``.
    """
    checks.choice("labels", labels, ("carry", "nearest", "joint"))
    checks.floating("at", at)
    checks.batch("at", at)
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


def nearest_label(
    field: LossField, train: tuple[Tensor, Tensor] | None, feature: torch.Size
) -> Callable[[Tensor], Tensor]:
    """Loss at flat points, with the target of the nearest training point."""
    if train is None:
        raise ValueError('labels="nearest" needs the labelled data: pass train=(x, y).')
    train_x, train_y = train
    checks.floating("train x", train_x)
    checks.batch("train x", train_x)
    checks.same_rows("train y", train_y, len(train_x), "train x")
    if train_x.shape[1:] != feature:
        raise ValueError(
            f"Training inputs have shape {tuple(train_x.shape[1:])} per row, but the queries "
            f"{tuple(feature)}. Both must be what the model takes."
        )
    centres = train_x.reshape(len(train_x), -1)

    def value(z: Tensor) -> Tensor:
        with torch.no_grad():
            parts = z.split(max(_CHUNK // len(centres), 1))
            index = torch.cat([torch.cdist(part, centres.to(part)).argmin(1) for part in parts])
        return field(z.reshape(len(z), *feature), train_y[index])

    return value
