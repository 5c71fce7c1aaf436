"""Evaluate the loss, and its input gradients, at every point of a set of paths, in bounded memory.

Rows are whole paths, ``(time, rows, *feature)``; results have shape ``(time, rows)``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from elliptica._utils import checks
from elliptica.core.alerts import reject_other_ends
from elliptica.core.batchnorm import BatchNormMode, recompute_statistics
from elliptica.core.bridge import flatten_rows, view_rows
from elliptica.core.hidden import replaced_output
from elliptica.core.inputs import named_inputs, rebuild_inputs
from elliptica.core.losses import PerSampleLoss, losses_at
from elliptica.core.types import Drift, Inputs, LossFn, Paths, check_paths
from elliptica.core.weighting import (
    VARIANTS,
    GradientDrift,
    Points,
    Variant,
    check_diffuses,
    check_drift,
    drift_points,
    drift_terms,
    increments,
    path_log_weights,
)


@dataclass(frozen=True)
class Evaluator:
    """Compute losses, and the terms of a weighting, at points of paths.

    Attributes:
        model: Called on flattened rows.
        loss: Loss with one value per row.
        variant: Weighting whose terms to compute, or None.
        drift: Drift in those terms. ``"input"`` or None is the loss gradient with respect to the input,
            ``"both"`` that with respect to input and target; a callable replaces the gradient.
        chunk_size: Rows to evaluate at a time; None for all. Activations are recomputed per chunk in
            the backward pass, so memory is that of one chunk and the gradient is unchanged.
        bn: How normalisation layers treat path points. The recomputation does not count twice.
        validate: Whether to check that bridges in a hidden layer share their ends where they must.
    """

    model: nn.Module
    loss: PerSampleLoss
    variant: Variant | None = None
    drift: Drift | GradientDrift | None = None
    chunk_size: int | None = None
    bn: BatchNormMode = "paths"
    validate: bool = True

    def __call__(self, paths: Paths) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return losses ``(time, rows)`` and the weighting's terms, each of the same shape."""
        items = {name: flatten_rows(value) for name, value in named_inputs(paths.x).items()}
        y = flatten_rows(paths.y)
        n_times, rows = y.shape[:2]
        step = rows if self.chunk_size is None else max(1, self.chunk_size // n_times)
        if step >= rows:
            return self._rows(paths, items, y, slice(0, rows))
        # chunks of equal size, so that none has a single row left over (batch norm fails on one row)
        step = -(-rows // -(-rows // step))
        chunks = [self._chunk(paths, items, y, slice(i, i + step)) for i in range(0, rows, step)]
        losses, terms = zip(*chunks, strict=True)
        return torch.cat(losses, 1), tuple(torch.cat(t, 1) for t in zip(*terms, strict=True))

    def _chunk(
        self, paths: Paths, items: dict[Hashable, Tensor], y: Tensor, rows: slice
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluate some rows and keep only the points for the backward pass."""
        if not torch.is_grad_enabled():
            return self._rows(paths, items, y, rows)

        def contexts() -> tuple[
            contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]
        ]:
            return contextlib.nullcontext(), _Reusable(lambda: recompute_statistics(self.bn, self.model))

        result: tuple[Tensor, tuple[Tensor, ...]] = checkpoint(
            self._rows, paths, items, y, rows, use_reentrant=False, context_fn=contexts
        )
        return result

    def _rows(
        self, paths: Paths, items: dict[Hashable, Tensor], y: Tensor, rows: slice
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return losses and terms of some rows."""
        x = items
        if rows.stop - rows.start < y.shape[1]:
            x, y = {name: value[:, rows] for name, value in items.items()}, y[:, rows]
        variant = self.variant
        if variant is None:
            return self._losses(paths, x, y), ()
        own = _slice(paths, rows)
        if self.drift is not None and not isinstance(self.drift, str):
            losses = self._losses(paths, x, y)
            (z,) = x.values()
            fixed = not variant.second_order  # the weights are constants, so a drift network gets no gradient
            terms = drift_terms(drift_points(self.drift, z, _free_targets(own), own, fixed=fixed))
            return losses, tuple(term.detach() for term in terms) if fixed else terms
        # Fused attention has no second derivative; the plain implementation has one.
        plain_attention = sdpa_kernel(SDPBackend.MATH) if variant.second_order else contextlib.nullcontext()
        with plain_attention:
            losses, points = self._losses_and_slopes(own, x, y)
        return losses, variant.terms(points)

    def _losses(self, paths: Paths, x: dict[Hashable, Tensor], y: Tensor) -> Tensor:
        """Return the losses of rows; bridge in a hidden layer if the paths ask for it."""
        if paths.hidden is None:
            return self._call(paths.x, x, y)
        with replaced_output(self.model, paths.hidden.at, lambda h: paths.hidden.bridge(h)[0]):
            return self._call(paths.x, x, y)

    def _call(self, template: Inputs, x: dict[Hashable, Tensor], y: Tensor) -> Tensor:
        """Run one forward pass over flattened rows and return losses ``(time, rows)``."""
        flat = {name: value.flatten(0, 1) for name, value in x.items()}
        return losses_at(self.model, self.loss, rebuild_inputs(template, flat), y)

    def _losses_and_slopes(
        self, paths: Paths, x: dict[Hashable, Tensor], y: Tensor
    ) -> tuple[Tensor, list[Points]]:
        """Return losses, and the gradient of each point's loss with respect to the point (and its target)."""
        if paths.hidden is not None:
            return self._hidden_slopes(paths, x, y)
        names = list(paths.variance)

        def losses_at(points: tuple[Tensor, ...]) -> Tensor:
            *inputs, target = points if len(points) > len(names) else (*points, y)
            return self._call(paths.x, {**x, **dict(zip(names, inputs, strict=True))}, target)

        points = tuple(x[name] for name in names)
        moving = [(z, paths.variance[name]) for name, z in zip(names, points, strict=True)]
        if self.drift == "both":
            check_diffuses("y", paths.variance_y)
            points, moving = (*points, y), [*moving, (_free_targets(paths), paths.variance_y)]
        if torch.compiler.is_compiling():  # autograd.grad cannot be compiled, torch.func can

            def total(points: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
                losses = losses_at(points)
                return losses.sum(), losses

            slopes, (_, losses) = torch.func.grad_and_value(total, has_aux=True)(points)
        else:
            with torch.enable_grad():
                points = tuple(map(_as_leaf, points))
                losses = losses_at(points)
                slopes = self._gradient(losses, points)
        return losses, [
            Points(z, slope, variance) for (z, variance), slope in zip(moving, slopes, strict=True)
        ]

    def _hidden_slopes(
        self, paths: Paths, x: dict[Hashable, Tensor], y: Tensor
    ) -> tuple[Tensor, list[Points]]:
        """Return the same for points in a hidden layer."""
        variances: list[float | Tensor] = []

        def replace(rows: Tensor) -> Tensor:
            points, variance = paths.hidden.bridge(rows)
            variances.append(variance)
            return points if points.requires_grad else points.requires_grad_()

        if self.drift == "both":
            check_diffuses("y", paths.variance_y)
        with torch.enable_grad():
            target = _as_leaf(y) if self.drift == "both" else y
            with replaced_output(self.model, paths.hidden.at, replace) as layer:
                losses = self._call(paths.x, x, target)
            slope, *slope_y = self._gradient(losses, (layer[0], *([target] if self.drift == "both" else [])))
        points = [
            Points(layer[0].unflatten(0, y.shape[:2]), slope.unflatten(0, y.shape[:2]), variances[0]),
            *(Points(_free_targets(paths), each, paths.variance_y) for each in slope_y),
        ]
        assert self.variant is not None
        if self.variant.within_pairs and self.validate:
            slack = torch.finfo(slope.dtype).eps ** 0.5  # a layer may round equal rows of a batch differently
            reject_other_ends(points[0].z, paths.y.shape[1], f"the layer at={paths.hidden.at!r}", slack)
        return losses, points

    def _gradient(self, losses: Tensor, points: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the gradient of each loss at its own point (exact unless the model couples rows)."""
        assert self.variant is not None
        if not losses.requires_grad:
            raise ValueError(
                "The weighting needs the gradient of the loss at each point, but there is none: the model "
                "detaches its output, or all runs under torch.inference_mode(). Use torch.no_grad() instead "
                'of it, keep the graph in the model, or use weighting="none".'
            )
        # the gradient of the sum holds every row's own gradient, in one backward pass
        return torch.autograd.grad(
            losses.sum(), points, create_graph=self.variant.second_order, retain_graph=True
        )


class _Reusable(contextlib.AbstractContextManager[None]):
    """A context manager that can be entered again, because a chunk may be recomputed more than once."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._open: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._open.append(self._make())
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)


def _as_leaf(z: Tensor) -> Tensor:
    """Return points that require a gradient; those that do already are returned as they are."""
    return z if z.requires_grad else z.detach().requires_grad_()


def _free_targets(paths: Paths) -> Tensor:
    """Return the targets before projection, ``(time, rows, *target)``."""
    if paths.free_y is None:
        raise ValueError(
            "A drift of the targets needs the targets before projection, but paths.free_y is None. Draw the "
            "paths with Elliptic.sample or sample_paths, or set free_y."
        )
    return flatten_rows(paths.free_y)


def _slice(paths: Paths, rows: slice) -> Paths:
    """Select the free targets and variances of some rows; values common to all rows stay as they are."""
    n_rows = paths.s.shape[0] * paths.s.shape[1]
    if rows.stop - rows.start >= n_rows:
        return paths

    def cut(variance: float | Tensor, feature_axes: int) -> float | Tensor:
        if isinstance(variance, Tensor) and variance.ndim == feature_axes + 1:
            assert len(variance) == n_rows
            return variance[rows]
        return variance

    inputs = named_inputs(paths.x)
    variance = {k: cut(v, inputs[k].ndim - 3) for k, v in paths.variance.items()}
    variance_y = cut(paths.variance_y, paths.y.ndim - 3)
    free_y = None if paths.free_y is None else _free_targets(paths)[:, rows].transpose(0, 1).unsqueeze(1)
    return dataclasses.replace(paths, variance=variance, variance_y=variance_y, free_y=free_y)


def path_losses(
    model: nn.Module, loss_fn: LossFn, paths: Paths, *, chunk_size: int | None = None
) -> Float[Tensor, "batch bridge time"]:
    """Evaluate the loss at every point of every path (paper: the integrand of Eq. (6)).

    Example:
        >>> from elliptica import sample_paths
        >>> x, y = torch.randn(6, 3), torch.randn(6, 1)
        >>> paths = sample_paths(x, y, target_space="real", sampling="path", n_times=4)
        >>> path_losses(nn.Linear(3, 1), nn.MSELoss(), paths).shape
        torch.Size([6, 1, 4])
    """
    checks.model(model, "path_losses")
    check_paths(paths)
    if chunk_size is not None:
        checks.count("chunk_size", chunk_size)
    losses, _ = Evaluator(model, PerSampleLoss(loss_fn), chunk_size=chunk_size)(paths)
    return view_rows(losses, paths.y.shape[1])


def log_weights(
    model: nn.Module,
    loss_fn: LossFn,
    paths: Paths,
    *,
    xi: float = 1.0,
    drift: Drift | GradientDrift | None = None,
) -> Float[Tensor, "batch bridge"]:
    """Return the logarithm of dp/dq of each path: the exponential martingale (paper: Eq. (4), appendix C.1).

    By default the drift is ``xi`` times the gradient of the loss (appendix C.2), scaled by ``sigma**2``: with
    respect to the input (None or ``"input"``), or to input and target (``"both"``, needs ``sigma_y > 0``). A
    callable gives the drift ``xi * drift(x, y)`` per unit of relative time. The result is differentiable, so
    you can train a drift network on it.

    The paths must come from ``sampling="path"``. On a coarse grid the sum only roughly approximates the
    integral (see docs). On bridges the values are known up to a constant for each pair of ends. Draw several
    bridges to each partner with ``same_partner=True`` and compare only those.
    """
    checks.model(model, "log_weights")
    check_paths(paths)
    check_drift(drift)
    checks.number("xi", xi)
    if not math.isfinite(xi):
        raise ValueError(f"xi must be finite, but got {xi}.")
    if paths.s.shape[2] < 2:
        raise ValueError(
            'log_weights needs whole paths, but these hold single points. Draw them with sampling="path".'
        )
    variant = VARIANTS["girsanov"]
    _, terms = Evaluator(model, PerSampleLoss(loss_fn), variant, drift)(paths)
    weights = path_log_weights(terms, xi, time_steps(paths))
    return weights.unflatten(0, (paths.y.shape[1], -1)).t()


def time_steps(paths: Paths) -> Tensor:
    """Return the time steps between the points of each path, ``(time, rows)``, zero at the last."""
    return increments(flatten_rows(paths.s))
