"""Both ends of every bridge of a batch, as rows laid out ``(bridge * batch, *feature)``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elliptica import _checks
from elliptica._inputs import named_inputs
from elliptica.types import Inputs

#: The far end of each pair when it is not in the batch: inputs, targets and, optionally, weights.
End = tuple[Inputs, Tensor] | tuple[Inputs, Tensor, Tensor]


def view_rows(z: Tensor, n_bridges: int) -> Tensor:
    """``(time, bridge * batch, *feature)`` as ``(batch, bridge, time, *feature)``, without a copy."""
    if n_bridges == 1:
        return z.transpose(0, 1).unsqueeze(1)
    return z.reshape(len(z), n_bridges, -1, *z.shape[2:]).transpose(0, 2)


def flatten_rows(z: Tensor) -> Tensor:
    """``(batch, bridge, time, *feature)`` as ``(time, bridge * batch, *feature)``."""
    return z.transpose(0, 2).flatten(1, 2)


@dataclass(frozen=True)
class Ends:
    """Where bridges end: at rows ``index`` of the batch, or at points that were given.

    Attributes:
        n_bridges: Bridges per point.
        index: Partner of each row, ``(bridge * batch,)``; None when the far ends were given.
        x: Far ends of the inputs by name, when given.
        y: Far ends of the encoded targets, when given.
        weight: Sample weights of the far ends, when given.
    """

    n_bridges: int
    index: Tensor | None
    x: Mapping[Hashable, Tensor] | None = None
    y: Tensor | None = None
    weight: Tensor | None = None

    def of(self, value: Tensor, far: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both ends of ``value``; ``far`` is its given end, if there is one."""
        start = value
        if self.n_bridges > 1:
            start = value.repeat(self.n_bridges, *[1] * (value.ndim - 1))
        if self.index is not None:
            return start, value.index_select(0, self.index)
        return start, start if far is None else far

    def of_input(self, name: Hashable, value: Tensor) -> tuple[Tensor, Tensor]:
        """Both ends of the input ``name``."""
        return self.of(value, None if self.x is None else self.x[name])


def ends_in_batch(partners: Tensor, rows: int, n_bridges: int) -> Ends:
    """Ends at other rows of the batch; ``partners`` is ``(batch, bridge)`` or ``(batch,)``."""
    if not isinstance(partners, Tensor):
        raise TypeError(
            f"partners must be a torch.Tensor of row numbers, but got {type(partners).__name__}. "
            "Convert it with torch.as_tensor(partners)."
        )
    if partners.is_floating_point() or partners.dtype == torch.bool:
        raise TypeError(f"partners must hold row numbers, but has dtype {partners.dtype}.")
    if partners.ndim == 1:
        partners = partners[:, None].expand(-1, n_bridges)
    if tuple(partners.shape) != (rows, n_bridges):
        raise ValueError(
            f"partners must have shape (batch, n_bridges) = ({rows}, {n_bridges}), but has "
            f"{tuple(partners.shape)}."
        )
    low, high = (int(v) for v in partners.aminmax())
    if low < 0 or high >= rows:
        raise ValueError(
            f"partners must be rows of this batch, 0..{rows - 1}, but span {low} to {high}. Rows of a "
            "data set (as a PartnerTable gives) go in as end=(x[partner], y[partner])."
        )
    return Ends(n_bridges, partners.t().reshape(-1))


def ends_given(
    end: End,
    inputs: Mapping[Hashable, Tensor],
    targets: Tensor,
    n_bridges: int,
    encode: Callable[[Tensor], Tensor],
    label_axes: int,
) -> Ends:
    """Ends that need not be in the batch.

    ``encode`` turns their targets into points, which adds ``label_axes`` axes to integer labels.
    """
    if not isinstance(end, tuple) or len(end) not in (2, 3):
        raise TypeError(
            "end must be a tuple (x, y) or (x, y, sample_weight) of the far ends, but got "
            f"{type(end).__name__}."
        )
    if not isinstance(end[1], Tensor):
        raise TypeError(f"end's y must be a torch.Tensor, but got {type(end[1]).__name__}.")
    far_inputs = named_inputs(end[0])
    if list(far_inputs) != list(inputs):
        raise ValueError(
            f"end must hold the same inputs as x ({', '.join(map(repr, inputs))}), but holds "
            f"{', '.join(map(repr, far_inputs))}."
        )
    rows = len(targets)
    x = {
        name: _far_rows(f"end's x[{name!r}]", far, inputs[name].shape, n_bridges, inputs[name].dtype)
        for name, far in far_inputs.items()
    }
    labels = end[1]
    axes = targets.ndim - (0 if labels.is_floating_point() or labels.dtype == torch.bool else label_axes)
    if labels.ndim == axes + 1 and labels.shape[:2] == (rows, n_bridges):  # a target for each bridge
        y = encode(labels.flatten(0, 1)).unflatten(0, (rows, n_bridges))
    else:
        y = encode(labels)
    weight = None
    if len(end) == 3:
        weight = _far_rows("end's sample_weight", end[2], targets.shape[:1], n_bridges)
    return Ends(n_bridges, None, x, _far_rows("end's y", y, targets.shape, n_bridges), weight)


def _far_rows(
    name: str, far: Tensor, shape: torch.Size, n_bridges: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Lay far ends out as ``(bridge * batch, *feature)``."""
    _checks.finite(name, far)
    if dtype is not None and far.dtype != dtype:
        raise TypeError(f"{name} has dtype {far.dtype}, but x has {dtype}. Convert it with .to({dtype}).")
    with_bridges = (shape[0], n_bridges, *shape[1:])
    if tuple(far.shape) == with_bridges:
        return far.transpose(0, 1).flatten(0, 1)
    if far.shape == shape:
        return far.repeat(n_bridges, *[1] * (far.ndim - 1))
    raise ValueError(f"{name} must have shape {with_bridges} or {tuple(shape)}, but has {tuple(far.shape)}.")


def carried(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Inputs that are not bridged come from the nearer end (the start, half-way)."""
    near_start = (s <= 0.5).reshape(*s.shape, *[1] * (start.ndim - 1))
    return torch.where(near_start, start.unsqueeze(0), end.unsqueeze(0))


def ends_only(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Rows for bridging in a hidden layer: the start at every time, the end at the last."""
    if len(s) == 1:
        return start.unsqueeze(0)
    return torch.cat([start.unsqueeze(0).expand(len(s) - 1, *start.shape), end.unsqueeze(0)])
