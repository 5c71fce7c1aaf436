"""Draw Brownian bridges with their exact law (paper: Algorithm 2), on a time grid or at single times.

`sample_bridge` draws between given points; `draw_bridges` draws the inputs and targets of a whole batch. The
order of draws is part of the contract: partners (chosen before), times, noise of each input, noise of the
targets.

Rows are time-major and bridge-major in memory, ``(time, bridge * batch, *feature)``, so that a batch of paths
flattens into rows for a model without a copy; they are shown as ``(batch, bridge, time, *feature)`` views.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import (
    check_generator,
    compute_dtype,
    draw_normal,
    draw_permutation,
    draw_uniform,
)
from elliptica.core.inputs import ONLY, Batch, rebuild_inputs
from elliptica.core.noise import PairLaw, Sigma, auto_sigma, check_sigma, noise_std
from elliptica.core.partners import Ends
from elliptica.core.targets import project_targets
from elliptica.core.types import Paths

if TYPE_CHECKING:
    from elliptica.core.settings import BridgeSettings

Quadrature = Literal["mean", "left", "trapezoid", "uniform"]
QUADRATURES: tuple[Quadrature, ...] = ("mean", "left", "trapezoid", "uniform")


def time_grid(n_times: int) -> list[float]:
    """Relative times of a path: ``n_times`` equally spaced points, both ends included."""
    return [i / (n_times - 1) for i in range(n_times)]


def time_weights(n_times: int, quadrature: Quadrature, like: Tensor) -> Tensor:
    """Weights of the points of a path, ``(time, 1)``, of mean one.

    ``"left"`` drops the end point (Euler's method, as Algorithm 1 says); ``"trapezoid"`` halves both
    ends; ``"mean"`` counts all points alike, so that two points are exactly ordinary training.
    """
    weights = torch.ones(n_times, 1, dtype=like.dtype, device=like.device)
    if quadrature == "left":
        weights[-1] = 0.0
    elif quadrature == "trapezoid":
        weights[0] = weights[-1] = 0.5
    return weights / weights.mean()


def quantile_times(u: Tensor, n_times: int, quadrature: Quadrature) -> Tensor:
    """Times whose law is that of `time_weights` on the grid, from uniforms ``u`` on [0, 1).

    One such time per point estimates the sum over the whole grid without bias. ``"uniform"`` leaves
    the grid: the integral over [0, 1] itself.
    """
    steps = n_times - 1
    if quadrature == "uniform":
        return u
    if quadrature == "mean":
        index = (u * n_times).floor_()
    else:  # trapezoid: half a cell at each end
        index = (u * steps).floor_() if quadrature == "left" else (u * steps + 0.5).floor_()
    return index.clamp_max_(steps).div_(steps)


def stratified_times(
    rows: int, n_draws: int, *, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """``n_draws`` random times for each of ``rows`` points, ``(1, draw * rows)``.

    Each time is uniform on [0, 1], but together they fall one each into equal parts of it, and the
    times of one point fall into different parts too: the integral over time has less variance.
    """
    s = draw_uniform((n_draws, rows), device=device, generator=generator)
    strata = [
        draw_permutation(rows, device=device, generator=generator, dtype=s.dtype) for _ in range(n_draws)
    ]
    s += strata[0] if n_draws == 1 else torch.stack([k + i * rows for i, k in enumerate(strata)])
    if n_draws > 1:  # which part of [0, 1] a draw gets must not depend on its number
        order = draw_uniform((n_draws, rows), device=device, generator=generator).argsort(0)
        s = s.gather(0, order)
    return s.reshape(1, -1).div_(n_draws * rows)


def _grid_tensors(
    n_times: int, std: float, ndim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Keep them from call to call, unless they are fake tensors (of `step_cost`), which must not stay."""
    found = _kept_grid_tensors(n_times, std, ndim, dtype, device)
    if type(found[0]) is not Tensor:
        _kept_grid_tensors.cache_clear()
    return found


@functools.lru_cache(maxsize=128)
def _kept_grid_tensors(
    n_times: int, std: float, ndim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Times ``(time, 1, ...)``, and ``std`` times the Cholesky factor of ``min(s, t) - s t`` inside."""
    with torch.inference_mode(False), torch.no_grad():
        s = torch.tensor(time_grid(n_times), dtype=torch.float64)
        inner = s[1:-1]
        covariance = torch.minimum(inner[:, None], inner[None]) - inner[:, None] * inner[None]
        factor = std * torch.linalg.cholesky(covariance) if n_times > 2 else covariance
        return s.view(-1, *[1] * ndim).to(device, dtype), factor.to(device, dtype)


def _noise(
    shape: tuple[int, ...], like: Tensor, antithetic: bool, generator: torch.Generator | None
) -> Tensor:
    """Standard normals of shape ``(time, rows, *feature)``.

    With ``antithetic`` the second half of the rows is the negative of the first half.
    """
    dtype = compute_dtype(like.dtype)
    if not antithetic:
        return draw_normal(shape, dtype=dtype, device=like.device, generator=generator)
    half = (shape[0], shape[1] // 2, *shape[2:])
    z = draw_normal(half, dtype=dtype, device=like.device, generator=generator)
    return torch.cat([z, -z], dim=1)


def bridge_rows(
    start: Tensor,
    end: Tensor,
    *,
    n_times: int,
    std: float | Tensor,
    antithetic: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one bridge per row (Algorithm 2): ``(rows, *feature)`` twice gives ``(time, rows, *feature)``.

    ``std`` is ``sigma * sqrt(horizon)``: a number, or a tensor that broadcasts to the rows.
    Normals are drawn for the inner points only; the first and last point are ``start`` and
    ``end`` bit for bit. If ``start`` or ``end`` require gradients, so does the result.
    """
    dtype = compute_dtype(start.dtype)
    scalar = not isinstance(std, Tensor)
    s, factor = _grid_tensors(n_times, float(std) if scalar else 1.0, start.ndim, dtype, start.device)
    a, b = (start, end) if start.dtype == dtype else (start.to(dtype), end.to(dtype))
    paths = torch.lerp(a.contiguous(), b.contiguous(), s)  # (time, rows, *feature)
    if not paths.requires_grad:  # copies: rounding, overflow and signed zeros cannot touch the ends
        paths[0], paths[-1] = a, b
    if n_times > 2 and not (scalar and std == 0.0):
        inner = (n_times - 2, start.numel())
        if scalar and not antithetic:  # in the shape that the product below wants
            z = draw_normal(inner, dtype=dtype, device=start.device, generator=generator)
        else:
            z = _noise((n_times - 2, *start.shape), start, antithetic, generator)
            z = (z if scalar else z.mul_(std)).view(inner)
        if paths.requires_grad:
            with torch.autocast(start.device.type, enabled=False):
                points = torch.addmm(paths[1:-1].reshape(inner), factor, z)
            paths = torch.cat([paths[:1], points.view_as(paths[1:-1]), paths[-1:]])
        else:
            paths[1:-1].view(inner).addmm_(factor, z)
    return paths if start.dtype == dtype else paths.to(start.dtype)


def unit_spread(s: Tensor) -> Tensor:
    """Standard deviation of a bridge of unit variance at time ``s``: ``sqrt(s (1 - s))``."""
    return torch.addcmul(s, s, s, value=-1.0).clamp_min_(0.0).sqrt_()


def marginal_rows(
    start: Tensor,
    end: Tensor,
    s: Tensor,
    *,
    std: float | Tensor,
    spread: Tensor | None = None,
    antithetic: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw each row's bridge at its own time ``s``: ``(rows, *feature)`` gives the same shape.

    A single time of a bridge is Gaussian around the chord, so no path has to be drawn. ``spread`` is
    ``unit_spread(s)``, where the caller has it already.
    """
    dtype = compute_dtype(start.dtype)
    column = (-1, *[1] * (start.ndim - 1))
    s = s.to(dtype).view(column)
    a, b = (start, end) if start.dtype == dtype else (start.to(dtype), end.to(dtype))
    points = torch.lerp(a, b, s)
    if isinstance(std, Tensor) or std != 0.0:
        if antithetic:
            z = _noise((1, *start.shape), start, antithetic, generator).squeeze(0)
        else:
            z = draw_normal(start.shape, dtype=dtype, device=start.device, generator=generator)
        spread = unit_spread(s) if spread is None else spread.to(dtype).view(column)
        if isinstance(std, Tensor):
            spread, std = spread * std, 1.0
        points.addcmul_(z, spread, value=std)  # in place: `points` is fresh
    return points if start.dtype == dtype else points.to(start.dtype)


def view_rows(z: Tensor, n_bridges: int) -> Tensor:
    """Show ``(time, bridge * batch, *feature)`` as ``(batch, bridge, time, *feature)``, without a copy."""
    if n_bridges == 1:
        return z.transpose(0, 1).unsqueeze(1)
    return z.reshape(len(z), n_bridges, -1, *z.shape[2:]).transpose(0, 2)


def flatten_rows(z: Tensor) -> Tensor:
    """Lay ``(batch, bridge, time, *feature)`` out as ``(time, bridge * batch, *feature)``."""
    return z.transpose(0, 2).flatten(1, 2)


def draw_times(
    rows: int, settings: BridgeSettings, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draw relative times ``(time, bridge * batch)``: the grid of a path, or one time per row."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    if settings.sampling == "path":
        grid = torch.tensor(time_grid(settings.n_times), dtype=dtype, device=like.device)
        return grid[:, None].expand(-1, settings.n_bridges * rows)
    draws = settings.n_bridges // 2 if settings.antithetic else settings.n_bridges
    u = stratified_times(rows, draws, device=like.device, generator=generator)
    s = quantile_times(u.to(dtype), settings.n_times, settings.quadrature)
    return s.repeat(1, 2) if settings.antithetic else s


def draw_bridges(
    batch: Batch,
    ends: Ends,
    settings: BridgeSettings,
    *,
    strength: float = 1.0,
    sigma: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Paths:
    """Draw bridges of inputs and targets from a batch to the chosen ends (paper: Algorithms 1 and 2).

    Args:
        batch: Where bridges start.
        ends: Where they end.
        settings: How they are drawn.
        strength: Factor on the noise.
        sigma: What ``sigma="auto"`` measured before; None measures this batch.
        generator: Source of randomness.
    """
    s = draw_times(len(batch.targets), settings, batch.targets, generator)
    spread = unit_spread(s[0]) if settings.sampling == "marginal" else None
    points: dict[Hashable, Tensor] = {}
    variance: dict[Hashable, float | Tensor] = {}
    for name, value in batch.inputs.items():
        start, end = ends.of(value, None if ends.x is None else ends.x[name])
        if name in batch.bridged:
            noise: Any = settings.sigma
            if isinstance(noise, str):  # "auto"
                noise = auto_sigma(value) if sigma is None else sigma
            rows, variance[name] = draw_rows(start, end, s, spread, noise, strength, settings, generator)
        else:
            rows = from_nearer_end(start, end, s)
        points[name] = view_rows(rows, settings.n_bridges)
    x = points[ONLY] if isinstance(batch.x, Tensor) else rebuild_inputs(batch.x, points)
    paths = Paths(x, batch.targets, view_rows(s, settings.n_bridges), variance)
    return add_targets(paths, batch, ends, s, spread, strength, settings, generator)


def add_targets(
    paths: Paths,
    batch: Batch,
    ends: Ends,
    s: Tensor,
    spread: Tensor | None,
    strength: float,
    settings: BridgeSettings,
    generator: torch.Generator | None,
) -> Paths:
    """Draw the bridges of the targets, and let sample weights change linearly along them."""
    assert settings.sigma_y is not None
    start, end = ends.of(batch.targets, ends.y)
    free, variance = draw_rows(start, end, s, spread, settings.sigma_y, strength, settings, generator)
    y = free
    assert settings.target_space is not None
    if settings.target_space != "real" and (isinstance(variance, Tensor) or variance != 0.0):
        # the ends of a path are in the target space already and stay bit-exact
        inner = slice(None) if settings.sampling == "marginal" else slice(1, -1)
        projected = project_targets(free[inner], settings.target_space, settings.simplex, class_axis=2)
        y = projected if inner == slice(None) else torch.cat([free[:1], projected, free[-1:]])
    shown = view_rows(y, settings.n_bridges)
    weight = None
    if batch.weight is not None:
        pair = ends.of(batch.weight, ends.weight)
        weight = view_rows(torch.lerp(*pair, s.to(batch.weight.dtype)), settings.n_bridges)
    return dataclasses.replace(
        paths,
        y=shown,
        weight=weight,
        free_y=shown if free is y else view_rows(free, settings.n_bridges),
        variance_y=variance,
        labels=None if batch.y.is_floating_point() else batch.targets,
    )


def draw_rows(
    start: Tensor,
    end: Tensor,
    s: Tensor,
    spread: Tensor | None,
    sigma: float | Tensor | PairLaw,
    strength: float,
    settings: BridgeSettings,
    generator: torch.Generator | None,
) -> tuple[Tensor, float | Tensor]:
    """Draw points ``(time, rows, *feature)``; return them with the variance ``sigma**2 * horizon`` behind."""
    if isinstance(sigma, PairLaw):
        sigma = dataclasses.replace(sigma, scale=sigma.scale * strength)
    elif strength != 1.0:
        sigma = sigma * strength
    if isinstance(sigma, float):
        std: float | Tensor = sigma * math.sqrt(settings.horizon)
    else:
        copies = settings.n_bridges if settings.same_partner else 2 if settings.antithetic else 1
        std = noise_std(sigma, start, end, settings.horizon, generator, copies)
    more: dict[str, Any] = {"std": std, "antithetic": settings.antithetic, "generator": generator}
    if settings.sampling == "path":
        return bridge_rows(start, end, n_times=settings.n_times, **more), std**2
    return marginal_rows(start, end, s[0], spread=spread, **more).unsqueeze(0), std**2


def from_nearer_end(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Take inputs that are not bridged from the nearer end (the start, half-way)."""
    near_start = (s <= 0.5).reshape(*s.shape, *[1] * (start.ndim - 1))
    return torch.where(near_start, start.unsqueeze(0), end.unsqueeze(0))


def sample_bridge(
    start: Float[Tensor, " batch *feature"],
    end: Float[Tensor, " batch *feature"],
    *,
    n_times: int = 5,
    n_bridges: int = 1,
    sigma: Sigma = 0.05,
    horizon: float = 1.0,
    antithetic: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch bridge time *feature"]:
    """Draw Brownian bridges from ``start`` to ``end`` (paper: Algorithm 2).

    At relative time ``s`` a bridge is Gaussian around the chord, with mean
    ``(1 - s) * start + s * end`` and variance ``sigma**2 * horizon * s * (1 - s)`` in each
    coordinate, independently; between times ``s < t`` the covariance is
    ``sigma**2 * horizon * s * (1 - t)``.

    Deviation: read literally, Algorithm 2 counts the first increment twice; this is the exact
    bridge (docs: deviations, "first increment").

    Args:
        start: Where each path begins.
        end: Where it ends.
        n_times: Points on each path, both ends included (the paper's n_t); at least 2.
        n_bridges: Paths drawn for each pair (n_b).
        sigma: Diffusion coefficient (sigma_b), a standard deviation: one number, a tensor that broadcasts
            to the features, ``"auto"`` (measured on ``start``) or a law of the pair, see `Green` and
            `Screened`. Zero gives the straight chord.
        horizon: Length of the time interval. Only ``sigma * sqrt(horizon)`` matters.
        antithetic: Draw the bridges in pairs of opposite noise (``n_bridges`` must be even).
        generator: Source of randomness; torch's default one if None.

    Returns:
        Paths whose first and last points equal ``start`` and ``end`` exactly.

    Example:
        >>> a, b = torch.zeros(4, 2), torch.ones(4, 2)
        >>> sample_bridge(a, b, n_times=5, sigma=0.0)[0, 0, :, 0]
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    checks.floating("start", start)
    checks.floating("end", end)
    checks.batch("start", start)
    checks.same_shape("start", start, "end", end)
    checks.finite("start", start)
    checks.finite("end", end)
    checks.path_counts(n_times, n_bridges, antithetic)
    known = check_sigma(sigma)
    checks.positive("horizon", horizon)
    check_generator(generator, start.device)
    with torch.no_grad():
        scale = auto_sigma(start) if known == "auto" else known
        shape = start.shape
        if n_bridges > 1:  # bridge-major rows, so that antithetic halves are whole bridges
            start, end = (z.repeat(n_bridges, *[1] * (z.ndim - 1)) for z in (start, end))
        std = noise_std(scale, start, end, horizon, generator, 2 if antithetic else 1)
        rows = bridge_rows(start, end, n_times=n_times, std=std, antithetic=antithetic, generator=generator)
        # (time, bridge * batch, *feature) -> (batch, bridge, time, *feature), as a view
        return rows.view(n_times, n_bridges, *shape).permute(2, 1, 0, *range(3, len(shape) + 2))
