"""Draw Brownian bridges with their exact law (paper: Algorithm 2), on a time grid or at single times.

`sample_bridge` draws between given points; `draw_bridges` draws the inputs and targets of a whole batch. The
order of draws is part of the contract, because a seed must give the same points in every version: first
partners and strata (one permutation per bridge serves both), then times, then random variances (`Green`,
`Screened`), then the normals of all inputs and targets in one call.

Memory layout is time-major and bridge-major, ``(time, bridge * batch, *feature)``, so that a batch of paths
flattens into rows for the model without a copy. Users see ``(batch, bridge, time, *feature)`` views.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Sequence
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
from elliptica.core.inputs import ONLY, Batch, carries_gradient, rebuild_inputs
from elliptica.core.noise import LARGE_STD, PairLaw, Sigma, auto_sigma, check_range, check_sigma, noise_std
from elliptica.core.partners import Ends
from elliptica.core.targets import project_targets
from elliptica.core.types import Paths

if TYPE_CHECKING:
    from elliptica.core.settings import BridgeSettings

Quadrature = Literal["mean", "left", "trapezoid", "uniform"]
QUADRATURES: tuple[Quadrature, ...] = ("mean", "left", "trapezoid", "uniform")


def time_grid(n_times: int) -> list[float]:
    """Return the relative times of a path: ``n_times`` equally spaced points, both ends included."""
    return [i / (n_times - 1) for i in range(n_times)]


def time_weights(n_times: int, quadrature: Quadrature, like: Tensor) -> Tensor:
    """Return the quadrature weights of the points of a path, ``(time, 1)``, with mean one.

    ``"left"`` drops the end point (Euler's method, as in Algorithm 1). ``"trapezoid"`` halves both ends.
    ``"mean"`` counts all points alike, so that two points are exactly ordinary training.
    """
    weights = torch.ones(n_times, 1, dtype=like.dtype, device=like.device)
    if quadrature == "left":
        weights[-1] = 0.0
    elif quadrature == "trapezoid":
        weights[0] = weights[-1] = 0.5
    return weights / weights.mean()


def quantile_index(u: Tensor, n_times: int, quadrature: Quadrature) -> Tensor:
    """Map uniforms ``u`` on [0, 1) to indices of grid times, distributed as `time_weights`.

    If ``u`` was rounded up to one, the index is one past the end.
    """
    if quadrature == "mean":
        return (u * n_times).long()
    # trapezoid: half a cell at each end
    return (u * (n_times - 1) + (0.5 if quadrature == "trapezoid" else 0.0)).long()


def quantile_times(u: Tensor, n_times: int, quadrature: Quadrature) -> Tensor:
    """Map uniforms ``u`` on [0, 1) to times distributed as `time_weights` on the grid.

    One such time per point is an unbiased estimate of the sum over the whole grid. ``"uniform"`` does not
    use the grid and estimates the integral over [0, 1] itself.
    """
    if quadrature == "uniform":
        return u
    return quantile_index(u, n_times, quadrature).clamp_max_(n_times - 1).to(u.dtype).div_(n_times - 1)


def stratified_times(
    rows: int,
    n_draws: int,
    *,
    device: torch.device,
    places: Tensor | None = None,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw ``n_draws`` random times for each of ``rows`` points, ``(1, draw * rows)``.

    Each time is uniform on [0, 1]. Together they are stratified: one time falls into each of equal parts of
    [0, 1], and those of one point into different parts. This lowers the variance of the integral over time.

    Args:
        rows: Number of points.
        n_draws: Times per point.
        device: Device of the result.
        places: Random orders ``(draw, rows)`` that assign a part to each point. Missing orders are drawn.
        generator: Source of randomness.
    """
    if places is None or places.shape[0] < n_draws:
        known = [] if places is None else [*places]
        missing = range(n_draws - len(known))
        drawn = [draw_permutation(rows, device=device, generator=generator) for _ in missing]
        places = torch.stack([*known, *drawn])
    s = draw_uniform((n_draws, rows), device=device, generator=generator)
    s += places
    if n_draws > 1:
        s += torch.arange(n_draws, device=device)[:, None] * rows
        # shuffle the draws of each row: a draw's part of [0, 1] must not depend on its number
        order = draw_uniform((n_draws, rows), device=device, generator=generator).argsort(0)
        s = s.gather(0, order)
    return s.view(1, -1).div_(n_draws * rows)


def _grid_tensors(
    n_times: int, std: float, ndim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return `_kept_grid_tensors`, but do not cache fake tensors (of `step_cost`)."""
    tensors = _kept_grid_tensors(n_times, std, ndim, dtype, device)
    if type(tensors[0]) is not Tensor:
        _kept_grid_tensors.cache_clear()
    return tensors


@functools.lru_cache(maxsize=128)
def _kept_grid_tensors(
    n_times: int, std: float, ndim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return times ``(time, 1, ...)`` and ``std`` times the Cholesky factor of the bridge's covariance.

    The covariance of a unit bridge between two inner times is ``min(s, t) - s t``.
    """
    with torch.inference_mode(False), torch.no_grad():
        s = torch.tensor(time_grid(n_times), dtype=torch.float64)
        inner = s[1:-1]
        covariance = torch.minimum(inner[:, None], inner[None]) - inner[:, None] * inner[None]
        factor = std * torch.linalg.cholesky(covariance) if n_times > 2 else covariance
        return s.view(-1, *[1] * ndim).to(device, dtype), factor.to(device, dtype)


_time_tables: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def _make_time_table(n_times: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tabulate grid times and the standard deviation of a unit bridge there, ``(2, time + 1)``.

    The last time appears twice, for uniforms that are rounded up to one. The table is cached, unless it is a
    fake tensor (of `step_cost`).
    """
    with torch.inference_mode(False), torch.no_grad():
        s = torch.tensor([*time_grid(n_times), 1.0], dtype=torch.float64)
        made = torch.stack([s, unit_spread(s)]).to(device, dtype)
    if type(made) is Tensor:
        _time_tables[n_times, dtype, device] = made
    return made


def draw_noise(
    starts: Sequence[Tensor],
    n_times: int,
    *,
    antithetic: bool = False,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Draw standard normals ``(time, rows, *feature)`` for each of ``starts``, all in one call.

    With ``antithetic`` the second half of the rows is the negative of the first half.
    """
    kinds = [(compute_dtype(start.dtype), start.device) for start in starts]
    if len(set(kinds)) > 1:  # one call cannot serve float32 and float64
        return [
            draw_noise([start], n_times, antithetic=antithetic, generator=generator)[0] for start in starts
        ]
    dtype, device = kinds[0]
    shapes = [(n_times, len(z) // 2 if antithetic else len(z), *z.shape[1:]) for z in starts]
    if len(shapes) == 1:
        noise = [draw_normal(shapes[0], dtype=dtype, device=device, generator=generator)]
    else:
        sizes = [math.prod(shape) for shape in shapes]
        flat = draw_normal((sum(sizes),), dtype=dtype, device=device, generator=generator)
        noise = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
    return [torch.cat([z, -z], dim=1) for z in noise] if antithetic else noise


def bridge_rows(
    start: Tensor,
    end: Tensor,
    *,
    n_times: int,
    std: float | Tensor,
    antithetic: bool = False,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one bridge per row (Algorithm 2): ``(rows, *feature)`` twice gives ``(time, rows, *feature)``.

    ``std`` is ``sigma * sqrt(horizon)``: a number, or a tensor that broadcasts to the rows. Normals are drawn
    for the inner points only. Pass them as ``noise`` to supply them (the tensor is overwritten). The first
    and last points equal ``start`` and ``end`` bit for bit. The result requires gradients if they do.
    """
    dtype = compute_dtype(start.dtype)
    scalar = not isinstance(std, Tensor)
    s, factor = _grid_tensors(n_times, float(std) if scalar else 1.0, start.ndim, dtype, start.device)
    a, b = (start, end) if start.dtype == dtype else (start.to(dtype), end.to(dtype))
    paths = torch.lerp(a.contiguous(), b.contiguous(), s)  # the chord, (time, rows, *feature)
    if not paths.requires_grad:  # copy the ends: lerp may round, overflow, or lose the sign of zero there
        paths[0], paths[-1] = a, b
    if n_times > 2 and not (scalar and std == 0.0):
        inner = (n_times - 2, start.numel())
        if noise is None:
            (noise,) = draw_noise([start], n_times - 2, antithetic=antithetic, generator=generator)
        if isinstance(std, Tensor):
            noise = noise * std if std.requires_grad else noise.mul_(std)
        z = noise.view(inner)
        # chord + factor @ z: a Gaussian with the bridge's covariance between all inner times at once
        if paths.requires_grad:
            with torch.autocast(start.device.type, enabled=False):
                points = torch.addmm(paths[1:-1].reshape(inner), factor, z)
            paths = torch.cat([paths[:1], points.view_as(paths[1:-1]), paths[-1:]])
        else:
            paths[1:-1].view(inner).addmm_(factor, z)
    return paths if start.dtype == dtype else paths.to(start.dtype)


def unit_spread(s: Tensor) -> Tensor:
    """Return the standard deviation of a unit bridge at time ``s``: ``sqrt(s (1 - s))``."""
    return torch.addcmul(s, s, s, value=-1.0).clamp_min_(0.0).sqrt_()


def marginal_rows(
    start: Tensor,
    end: Tensor,
    s: Tensor,
    *,
    std: float | Tensor,
    spread: Tensor | None = None,
    antithetic: bool = False,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw each row's bridge at its own time ``s``: ``(rows, *feature)`` gives the same shape.

    A bridge at one time is Gaussian around the chord, so no path has to be drawn. Pass ``spread``,
    ``unit_spread(s)``, and ``noise``, standard normals, if you have them already.
    """
    dtype = compute_dtype(start.dtype)
    column = (-1, *[1] * (start.ndim - 1))
    s = s.to(dtype).view(column)
    a, b = (start, end) if start.dtype == dtype else (start.to(dtype), end.to(dtype))
    points = torch.lerp(a, b, s)
    if isinstance(std, Tensor) or std != 0.0:
        if noise is None:
            (noise,) = draw_noise([start], 1, antithetic=antithetic, generator=generator)
        spread = unit_spread(s) if spread is None else spread.to(dtype).view(column)
        if isinstance(std, Tensor):
            spread, std = spread * std, 1.0
        points.addcmul_(noise.view(start.shape), spread, value=std)  # in place: `points` is fresh
    return points if start.dtype == dtype else points.to(start.dtype)


def view_rows(z: Tensor, n_bridges: int) -> Tensor:
    """View ``(time, bridge * batch, *feature)`` as ``(batch, bridge, time, *feature)``, without a copy."""
    if n_bridges == 1:
        if z.shape[0] == 1:
            return z.view(z.shape[1], 1, 1, *z.shape[2:])
        return z.transpose(0, 1).unsqueeze(1)
    return z.reshape(len(z), n_bridges, -1, *z.shape[2:]).transpose(0, 2)


def flatten_rows(z: Tensor) -> Tensor:
    """Arrange ``(batch, bridge, time, *feature)`` as ``(time, bridge * batch, *feature)``."""
    if z.shape[1] == z.shape[2] == 1:
        return z.reshape(1, z.shape[0], *z.shape[3:])
    return z.transpose(0, 2).flatten(1, 2)


def draw_times(
    rows: int,
    settings: BridgeSettings,
    like: Tensor,
    places: Tensor | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor | None]:
    """Return relative times ``(time, bridge * batch)``: the grid of a path, or one random time per row.

    Single times are stratified: ``places`` assigns a part of [0, 1] to each row, see `stratified_times`. They
    are returned with the standard deviation of a unit bridge there, ``(rows,)``.
    """
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    if settings.sampling == "path":
        grid = torch.tensor(time_grid(settings.n_times), dtype=dtype, device=like.device)
        return grid[:, None].expand(-1, settings.n_bridges * rows), None
    draws = settings.n_bridges // 2 if settings.antithetic else settings.n_bridges
    u = stratified_times(rows, draws, device=like.device, places=places, generator=generator)
    if settings.antithetic:
        u = u.repeat(1, 2)  # opposite noise cancels only at the same time
    if settings.quadrature == "uniform":
        s = u.to(dtype)
        return s, unit_spread(s[0])
    index = quantile_index(u[0], settings.n_times, settings.quadrature)
    key = (settings.n_times, dtype, like.device)
    known = _time_tables.get(key)
    s, spread = (_make_time_table(*key) if known is None else known).index_select(1, index).unbind()
    return s.unsqueeze(0), spread


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
        batch: Rows where the bridges start.
        ends: Points where they end.
        settings: How to draw them.
        strength: Factor on the noise.
        sigma: Values of ``sigma="auto"`` from an earlier batch. None measures this one.
        generator: Source of randomness.
    """
    s, spread = draw_times(batch.targets.shape[0], settings, batch.targets, ends.places, generator)
    pairs: list[Pair] = []
    for name in batch.bridged:
        noise: Any = settings.sigma
        if isinstance(noise, str):  # "auto"
            noise = auto_sigma(batch.inputs[name]) if sigma is None else sigma
        start, end = ends.of_input(name, batch.inputs[name])
        pairs.append((start, end, deviation(noise, strength, start, end, settings, generator)))
    start, end = ends.of(batch.targets, ends.y)
    assert settings.sigma_y is not None
    pairs.append((start, end, deviation(settings.sigma_y, strength, start, end, settings, generator)))
    # Algorithm 2, at the same times for inputs and targets: a point and its target belong together
    *rows, free_y = draw_points(pairs, s, spread, settings, generator)
    points: dict[Hashable, Tensor] = dict(zip(batch.bridged, rows, strict=True))
    for name, value in batch.inputs.items():
        if name not in points:
            points[name] = from_nearer_end(*ends.of_input(name, value), s)
    shown = {name: view_rows(points[name], settings.n_bridges) for name in batch.inputs}
    variance = {name: std**2 for name, (_, _, std) in zip(batch.bridged, pairs, strict=False)}
    return finish_paths(batch, ends, shown, s, free_y, variance, pairs[-1][2], settings)


def is_single(batch: Batch, settings: BridgeSettings) -> bool:
    """Return whether `draw_single_points` supports the settings: defaults, with a number for the noise."""
    return (
        settings.sampling == "marginal"
        and settings.n_bridges == 1
        and settings.pairing == "permutation"
        and settings.among == "all"
        and settings.quadrature == "mean"
        and isinstance(settings.sigma, float)
        and not isinstance(settings.sigma_y, Tensor)
        and isinstance(batch.x, Tensor)
        and batch.weight is None
        and batch.reference.dtype == batch.targets.dtype == torch.float32
    )


def draw_single_points(
    batch: Batch, settings: BridgeSettings, strength: float, generator: torch.Generator | None
) -> Paths:
    """Draw one point per row, between the row and a random other one (paper: Algorithms 1 and 2).

    The draws equal those of `choose_ends` and `draw_bridges` bit for bit, in the fewest operations. On a
    small network the number of operations decides what a step costs.
    """
    x, y, n = batch.reference, batch.targets, batch.reference.shape[0]
    assert isinstance(settings.sigma, float)
    assert isinstance(settings.sigma_y, float | int)
    root = math.sqrt(settings.horizon)
    std, std_y = settings.sigma * strength * root, settings.sigma_y * strength * root
    if max(std, std_y) > LARGE_STD:
        check_range(max(std, std_y), x.dtype)
    # partners: the next row of a random order; its entries are also the strata of time, one draw for both
    order = draw_permutation(n, device=x.device, generator=generator)
    partner = torch.empty_like(order).scatter_(0, order, order.roll(-1))
    u = draw_uniform((n,), device=x.device, generator=generator).add_(order).div_(n)
    index = u.mul_(settings.n_times).long()
    key = (settings.n_times, x.dtype, x.device)
    known = _time_tables.get(key)
    s, spread = (_make_time_table(*key) if known is None else known).index_select(1, index).unbind()
    # bridges: Gaussian around the chord, with variance sigma**2 * horizon * s (1 - s)
    column = (n, *[1] * (x.ndim - 1))
    column_y = (n, *[1] * (y.ndim - 1))
    points = torch.lerp(x, x.index_select(0, partner), s.view(column))
    free_y = torch.lerp(y, y.index_select(0, partner), s.view(column_y))
    noisy = [z for z, deviates in ((x, std), (y, std_y)) if deviates]  # without noise nothing is drawn
    noise = draw_noise(noisy, 1, generator=generator) if noisy else []
    targets = free_y
    if std_y:
        free_y.addcmul_(noise.pop()[0], spread.view(column_y), value=std_y)
        assert settings.target_space is not None
        targets = project_targets(free_y, settings.target_space, settings.simplex, class_axis=1)
    if std:
        points.addcmul_(noise.pop()[0], spread.view(column), value=std)
    shown = targets.view(n, 1, 1, *y.shape[1:])
    return Paths(
        x=points.view(n, 1, 1, *x.shape[1:]),
        y=shown,
        s=s.view(n, 1, 1),
        variance={ONLY: std**2},
        free_y=shown if targets is free_y else free_y.view_as(shown),
        variance_y=std_y**2,
        labels=None if batch.y.is_floating_point() else y,
    )


#: Both ends of bridges, ``(rows, *feature)`` each, and the standard deviation ``sigma * sqrt(horizon)``.
Pair = tuple[Tensor, Tensor, float | Tensor]


def deviation(
    sigma: float | Tensor | PairLaw,
    strength: float,
    start: Tensor,
    end: Tensor,
    settings: BridgeSettings,
    generator: torch.Generator | None,
) -> float | Tensor:
    """Return the standard deviation ``sigma * sqrt(horizon)``, scaled by ``strength``."""
    if isinstance(sigma, PairLaw):
        sigma = dataclasses.replace(sigma, scale=sigma.scale * strength)
    elif strength != 1.0:
        sigma = sigma * strength
    if isinstance(sigma, float):
        std = sigma * math.sqrt(settings.horizon)
        if std > LARGE_STD:
            check_range(std, start.dtype)
        return std
    # bridges of one pair share its random variance, or their noise would not be opposite, or comparable
    copies = settings.n_bridges if settings.same_partner else 2 if settings.antithetic else 1
    return noise_std(sigma, start, end, settings.horizon, generator, copies)


def draw_points(
    pairs: Sequence[Pair],
    s: Tensor,
    spread: Tensor | None,
    settings: BridgeSettings,
    generator: torch.Generator | None,
) -> list[Tensor]:
    """Draw points ``(time, rows, *feature)`` on the bridge of each pair, with one draw of normals for all."""
    is_path = settings.sampling == "path"
    inner = settings.n_times - 2 if is_path else 1  # the ends of a path need no noise
    noisy = [inner > 0 and (isinstance(std, Tensor) or std != 0.0) for _, _, std in pairs]
    starts = [start for (start, _, _), is_noisy in zip(pairs, noisy, strict=True) if is_noisy]
    noise = iter(
        draw_noise(starts, inner, antithetic=settings.antithetic, generator=generator) if starts else ()
    )
    drawn = []
    for (start, end, std), is_noisy in zip(pairs, noisy, strict=True):
        z = next(noise) if is_noisy else None
        if is_path:
            drawn.append(bridge_rows(start, end, n_times=settings.n_times, std=std, noise=z))
        else:
            points = marginal_rows(start, end, s[0], std=std, spread=spread, noise=z)
            drawn.append(points.unsqueeze(0))
    return drawn


def finish_paths(
    batch: Batch,
    ends: Ends,
    points: Mapping[Hashable, Tensor],
    s: Tensor,
    free_y: Tensor,
    variance: dict[Any, float | Tensor],
    std_y: float | Tensor,
    settings: BridgeSettings,
    hidden: Any = None,
) -> Paths:
    """Project targets to their space, interpolate sample weights, and return everything as `Paths`."""
    y, n_bridges = free_y, settings.n_bridges
    assert settings.target_space is not None
    if settings.target_space != "real" and (isinstance(std_y, Tensor) or std_y != 0.0):
        # the ends of a path are in the target space already; projecting them would round them
        inner = slice(None) if settings.sampling == "marginal" else slice(1, -1)
        projected = project_targets(free_y[inner], settings.target_space, settings.simplex, class_axis=2)
        y = projected if inner == slice(None) else torch.cat([free_y[:1], projected, free_y[-1:]])
    shown = view_rows(y, n_bridges)
    weight = None
    if batch.weight is not None:
        pair = ends.of(batch.weight, ends.weight)
        weight = view_rows(torch.lerp(*pair, s.to(batch.weight.dtype)), n_bridges)
    return Paths(
        x=points[ONLY] if isinstance(batch.x, Tensor) else rebuild_inputs(batch.x, points),
        y=shown,
        s=view_rows(s, n_bridges),
        variance=variance,
        weight=weight,
        free_y=shown if free_y is y else view_rows(free_y, n_bridges),
        variance_y=std_y**2,
        hidden=hidden,
        labels=None if batch.y.is_floating_point() else batch.targets,
    )


def from_nearer_end(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Take inputs that are not bridged from the nearer end (from the start at the midpoint)."""
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

    At relative time ``s`` a bridge is Gaussian around the chord, independently in each coordinate. Its mean
    is ``(1 - s) * start + s * end`` and its variance ``sigma**2 * horizon * s * (1 - s)``. The covariance
    between times ``s < t`` is ``sigma**2 * horizon * s * (1 - t)``.

    Deviation from the paper: taken literally, Algorithm 2 counts the first increment twice. This function
    draws the exact bridge (docs: deviations, "first increment").

    Args:
        start: First point of each path.
        end: Last point of each path.
        n_times: Points on each path, both ends included (the paper's n_t); at least 2.
        n_bridges: Paths drawn for each pair (n_b).
        sigma: Diffusion coefficient (sigma_b), a standard deviation: a number, a tensor that broadcasts
            to the features, ``"auto"`` (measured on ``start``), or a law that depends on the pair, see
            `Green` and `Screened`. Zero gives the straight chord.
        horizon: Length of the time interval. Only ``sigma * sqrt(horizon)`` matters.
        antithetic: Draw the bridges in pairs of opposite noise (``n_bridges`` must be even).
        generator: Source of randomness. None means torch's default generator.

    Returns:
        Paths whose first and last points equal ``start`` and ``end`` exactly. Gradients pass through them.

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
    checks.flag("antithetic", antithetic)
    checks.path_counts(n_times, n_bridges, antithetic)
    known = check_sigma(sigma)
    checks.positive("horizon", horizon)
    check_generator(generator, start.device)
    with torch.set_grad_enabled(carries_gradient(start, end)):
        scale = auto_sigma(start) if known == "auto" else known
        shape = start.shape
        if n_bridges > 1:  # bridge-major rows, so that antithetic halves are whole bridges
            start, end = (z.repeat(n_bridges, *[1] * (z.ndim - 1)) for z in (start, end))
        std = noise_std(scale, start, end, horizon, generator, 2 if antithetic else 1)
        rows = bridge_rows(start, end, n_times=n_times, std=std, antithetic=antithetic, generator=generator)
        # (time, bridge * batch, *feature) -> (batch, bridge, time, *feature), as a view
        return rows.view(n_times, n_bridges, *shape).permute(2, 1, 0, *range(3, len(shape) + 2))
