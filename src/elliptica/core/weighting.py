"""Importance weighting: the variants of Eq. (4), Algorithm 1 and appendix C, by name.

The paper's line ``l = l + xi * grad l`` adds a vector to a number, so it needs an interpretation. Each
variant below consists of a term per point (from the input gradient ``g`` of the point's loss, or from the
user's drift) and a rule that turns terms into new losses. ``docs/weighting.md`` compares them.

With drift ``mu`` per unit of relative time, the logarithm of ``dp/dq`` of a path is
``sum mu . dZ / V - 1/2 sum |mu|**2 ds / V`` with ``V = sigma**2 * horizon``. The paper's drift, the loss
gradient, enters as ``mu = V * xi * g``, which keeps weights finite as ``sigma`` goes to zero.

On a bridge that logarithm is known only up to a constant for each pair of ends, because the drifted process
reaches the far end with a different density. Weights are therefore compared between bridges of one pair,
never between pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.compiler import run_uncompiled
from elliptica.core.batchnorm import evaluation_mode
from elliptica.core.types import Across, Drift, Paths

Weighting = Literal["none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released"]

#: Which part of ``z = (x, y)`` the loss gradient moves: the input, or input and target.
GradientDrift = Literal["input", "both"]
GRADIENT_DRIFTS: tuple[GradientDrift, ...] = ("input", "both")

#: Per-point quantities, each ``(time, rows)``.
Terms = tuple[Tensor, ...]


@dataclass(frozen=True)
class Points:
    """One bridged input or target along paths, ``(time, rows, *feature)``, with its gradient or drift."""

    z: Tensor
    slope: Tensor
    variance: float | Tensor


@dataclass(frozen=True)
class Grid:
    """Times of the points: steps ``(time, rows)``, and quadrature weights ``(time, 1)`` (None if equal).

    Rows are bridge-major, with ``n_bridges`` for each pair of ends. With ``across``, a batch is the rows of
    all processes.
    """

    ds: Tensor
    weights: Tensor | None = None
    across: Across | None = None
    n_bridges: int = 1

    def total(self, value: Tensor) -> Tensor:
        """Sum a number over the processes, in a dtype that can hold the sum."""
        return value if self.across is None else self.across(_wide(value.detach()).reshape(1)).sum()

    def largest(self, value: Tensor) -> Tensor:
        """Return the largest value of a number over the processes."""
        return value if self.across is None else self.across(value.detach().reshape(1)).max()

    def count(self, like: Tensor, number: int) -> Tensor | int:
        """Sum a count over the processes."""
        return number if self.across is None else self.total(_wide(like.new_empty(())).fill_(number))


@dataclass(frozen=True)
class Variant:
    """One variant of importance weighting.

    Attributes:
        terms: Function from points to per-point terms.
        apply: Function from losses, terms (both ``(time, rows)``), ``xi`` and the time grid to new losses.
        second_order: Whether the result must be differentiated through the gradient.
        needs_path: Whether it needs increments along a path.
        within_pairs: Whether a path is compared with the other bridges between the same ends.
    """

    terms: Callable[[Sequence[Points]], Terms]
    apply: Callable[[Tensor, Terms, float, Grid], Tensor]
    second_order: bool
    needs_path: bool
    within_pairs: bool = False


def _wide(value: Tensor) -> Tensor:
    """Convert to float32 at least before summing or comparing: bfloat16 cannot represent 257."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _features(z: Tensor) -> Tensor:
    """Flatten the features of ``(time, rows, *feature)`` into one axis."""
    return z.flatten(2) if z.ndim > 2 else z.unsqueeze(2)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product over the features: ``(time, rows, *feature)`` twice gives ``(time, rows)``."""
    return _features(a * b).sum(2)


def increments(z: Tensor) -> Tensor:
    """Return forward increments along time, zero at the last point: the left-point (Ito) rule."""
    return torch.cat([z[1:] - z[:-1], torch.zeros_like(z[:1])])


def _norm_terms(points: Sequence[Points]) -> Terms:
    norms = [torch.linalg.vector_norm(_features(p.slope), dim=2) for p in points]
    return (norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0),)


def _girsanov_terms(points: Sequence[Points]) -> Terms:
    """Return ``g . dZ`` and ``V |g|**2``: linear and quadratic part of the log-weight for ``mu = V xi g``."""
    linear = sum(_dot(p.slope, increments(p.z)) for p in points)
    quadratic = sum(_dot(p.slope * p.variance, p.slope) for p in points)
    return torch.as_tensor(linear), torch.as_tensor(quadratic)


def drift_terms(points: Sequence[Points]) -> Terms:
    """Return ``mu . dZ / V`` and ``|mu|**2 / V``: the same parts for the user's drift."""
    linear = sum(_dot(p.slope / p.variance, increments(p.z)) for p in points)
    quadratic = sum(_dot(p.slope / p.variance, p.slope) for p in points)
    return torch.as_tensor(linear), torch.as_tensor(quadratic)


def _released_terms(points: Sequence[Points]) -> Terms:
    linear = sum(_dot(p.slope, p.z) for p in points)
    quadratic = sum(_dot(p.slope, p.slope) for p in points)
    return torch.as_tensor(linear), torch.as_tensor(quadratic)


def path_log_weights(terms: Terms, xi: float, ds: Tensor) -> Tensor:
    """Return the logarithm of dp/dq of each path, ``(rows,)``: ``sum xi l_i - 1/2 xi**2 q_i ds_i``."""
    linear, quadratic = terms
    return (xi * linear - 0.5 * xi**2 * quadratic * ds).sum(0)


def self_normalised(log_weights: Tensor, n_bridges: int) -> Tensor:
    """Return weights ``(bridge * batch,)`` with mean one over the bridges of each pair, without gradient."""
    # the softmax cancels the constant of each pair, which is unknown
    pairs = log_weights.detach().unflatten(0, (n_bridges, -1))
    return (pairs.softmax(0) * n_bridges).flatten()


def _add_norm(losses: Tensor, terms: Terms, xi: float, grid: Grid) -> Tensor:
    return losses + xi * terms[0]


def _weigh_by_norm(losses: Tensor, terms: Terms, xi: float, grid: Grid) -> Tensor:
    """Weight losses by the softmax of standardised norms.

    Points that the quadrature skips do not count. The weights have a (quadrature-weighted) mean of one.
    """
    norm = _wide(terms[0].detach())
    share = torch.ones_like(norm) if grid.weights is None else grid.weights.expand_as(norm)
    share = share / grid.total(share.sum())
    mean = grid.total((share * norm).sum())
    count = grid.count(norm, norm.numel())
    variance = grid.total((share * (norm - mean).square()).sum()) * count / max(count - 1, 1)
    score = xi * (norm - mean) / variance.sqrt().clamp_min(torch.finfo(norm.dtype).tiny)
    weights = (score - grid.largest(score.max())).exp()  # minus the largest: a softmax that cannot overflow
    return losses * (weights / grid.total((share * weights).sum())).to(losses.dtype)


def _subtract_log_weight(losses: Tensor, terms: Terms, xi: float, grid: Grid) -> Tensor:
    """Subtract the log-weight of each path from its losses (the Jensen form of Eq. (4))."""
    return losses - path_log_weights(terms, xi, grid.ds)


def _weigh_paths(losses: Tensor, terms: Terms, xi: float, grid: Grid) -> Tensor:
    """Multiply losses by the self-normalised weight of their path (Eq. (4))."""
    weights = self_normalised(path_log_weights(terms, xi, grid.ds), grid.n_bridges)
    return losses * weights.to(losses.dtype)


def _subtract_released(losses: Tensor, terms: Terms, xi: float, grid: Grid) -> Tensor:
    # The authors' code differentiates the *batch mean*, whose gradient is 1/rows of that of a point's own
    # loss. It sums both loss and term over time; here both are averaged.
    rows = grid.count(losses, losses.shape[1])
    return losses - xi * (terms[0] / rows - 0.5 * terms[1] / rows**2).mean(0)


VARIANTS: dict[str, Variant] = {
    "gradient_norm": Variant(_norm_terms, _add_norm, second_order=True, needs_path=False),
    "gradient_softmax": Variant(_norm_terms, _weigh_by_norm, second_order=False, needs_path=False),
    "girsanov": Variant(_girsanov_terms, _subtract_log_weight, second_order=True, needs_path=True),
    "multiplicative": Variant(
        _girsanov_terms, _weigh_paths, second_order=False, needs_path=True, within_pairs=True
    ),
    "released": Variant(_released_terms, _subtract_released, second_order=True, needs_path=False),
}

WEIGHTINGS: tuple[str, ...] = ("none", *VARIANTS)


def check_drift(drift: object) -> None:
    """Raise unless a drift is a loss gradient by name, a function or network, or None."""
    if isinstance(drift, str):
        checks.choice("drift", drift, GRADIENT_DRIFTS)
    elif drift is not None and not callable(drift):
        raise TypeError(
            'drift must be "input", "both", or a function drift(x, y), but got '
            f"{type(drift).__name__}. Wrap a constant: lambda x, y: mu.expand_as(x)."
        )


def check_diffuses(name: str, variance: float | Tensor) -> None:
    """Raise if a drift would act on something that does not diffuse."""
    if not (bool((variance > 0).all()) if isinstance(variance, Tensor) else variance > 0):
        raise ValueError(
            f"A drift can act on {name} only where it diffuses, but its variance is zero. "
            f"Use {'sigma' if name == 'x' else 'sigma_y'} > 0 in every feature."
        )


def _call_drift(drift: Drift, x: Tensor, y: Tensor) -> Any:
    """Call ``drift(x, y)``; explain the call if its signature does not fit."""
    if torch.compiler.is_compiling():
        return drift(x, y)
    try:
        return drift(x, y)
    except TypeError as error:
        try:
            inspect.signature(drift.forward if isinstance(drift, nn.Module) else drift).bind(x, y)
        except TypeError:
            raise TypeError(
                "drift is called as drift(x, y), with inputs and targets, but "
                f"{getattr(drift, '__name__', type(drift).__name__)} does not take two arguments. If it "
                "needs the inputs only, wrap it: lambda x, y: drift(x). To train a network, use a module "
                "with forward(self, x, y)."
            ) from error
        except ValueError:  # some callables have no signature
            pass
        raise


def _call_fixed(drift: Drift, x: Tensor, y: Tensor) -> Any:
    """Call a drift that is not trained; a network runs in evaluation mode.

    Gradients stay enabled, because a drift may be the gradient of an energy. Its result is detached later.
    """
    if not isinstance(drift, nn.Module) or not any(module.training for module in drift.modules()):
        return _call_drift(drift, x, y)
    if torch.compiler.is_compiling():  # a mode cannot change inside a graph
        return run_uncompiled(_call_fixed, drift, x, y)
    with evaluation_mode(drift):
        return _call_drift(drift, x, y)


def drift_points(drift: Drift, x: Tensor, y: Tensor, paths: Paths, *, fixed: bool) -> list[Points]:
    """Evaluate a drift along paths ``(time, rows, *feature)`` of the only bridged input."""
    slope = (_call_fixed if fixed else _call_drift)(drift, x.flatten(0, 1), y.flatten(0, 1))
    slopes = slope if isinstance(slope, tuple) else (slope,)
    if len(slopes) > 2 or not all(isinstance(mu, Tensor) for mu in slopes):
        got = f"({', '.join(type(mu).__name__ for mu in slopes)})"
        raise TypeError(
            f"drift must return a tensor mu_x, or a tuple of tensors (mu_x, mu_y), but returned "
            f"{got if isinstance(slope, tuple) else type(slope).__name__}."
        )
    (variance,) = paths.variance.values()
    points = []
    for name, z, mu, v in zip(("x", "y"), (x, y), slopes, (variance, paths.variance_y), strict=False):
        if mu.shape != z.flatten(0, 1).shape:
            raise ValueError(
                f"drift must return the drift of {name} with shape {tuple(z.flatten(0, 1).shape)}, but "
                f"returned shape {tuple(mu.shape)}. Return mu_x, or a tuple (mu_x, mu_y)."
            )
        check_diffuses(name, v)
        points.append(Points(z, mu.unflatten(0, z.shape[:2]), v))
    return points
