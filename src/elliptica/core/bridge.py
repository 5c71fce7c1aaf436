"""Draw Brownian bridges with their exact law (paper: Algorithm 2), as whole paths or as single points.

`sample_bridge` draws between given points, `Bridges` the inputs and targets of a batch. The order of draws is
partners, times, random variances and normals of each input, then those of the targets.

Points are kept as the rows that the model evaluates, ``(time * bridge * batch, *feature)``, with the batch as
the fastest axis. Users see them as ``(batch, bridge, time, *feature)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_normal, draw_permutation, draw_uniform
from elliptica.core.inputs import (
    ONLY,
    Inputs,
    check_batch,
    named_inputs,
    rebuild_inputs,
    repeat_rows,
)
from elliptica.core.noise import Covariance, Deviation, Factor, Law, Sigma, check_sigma, deviation
from elliptica.core.partners import Permutation, make_pairing, next_in_cycle
from elliptica.core.targets import Targets

Sampling = Literal["path", "marginal"]
Quadrature = Literal["mean", "left", "uniform"]

#: Key of the targets among the parts of a point that are bridged.
TARGET = object()

#: The far end of each pair when it is not in the batch: inputs, targets and, optionally, weights.
FarEnd = tuple[Inputs, Tensor] | tuple[Inputs, Tensor, Tensor]


@dataclass(frozen=True)
class Paths:
    """Points on bridges, one row each: all rows at the first time, then at the next one.

    ``x``, ``y``, ``s``, ``free_y`` and ``weight`` show them with the axes batch, bridge, time.
    """

    template: Inputs  # the inputs of the batch, whose structure (a tensor, a tuple, a dict) ``x`` has
    #: Each input of the model at the points, by name; features if bridges are in a layer ``at``.
    points: dict[Any, Tensor]
    targets: Tensor  # targets at the points, in the target space
    times: Tensor  # relative time in [0, 1] of each point
    n_bridges: int  # bridges of each row of the batch
    deviation: dict[Any, Deviation]  # standard deviation of a bridge of unit length, for each bridged input
    free_targets: Tensor  # targets before projection (a drift on targets acts on these)
    deviation_y: Deviation = 0.0  # standard deviation of the targets
    weights: Tensor | None = None  # sample weight of each point, or None
    n_times: int = 1  # points of each bridge
    #: Quadrature weight of each time, ``(time, 1)`` with mean one; None if equal.
    time_weights: Tensor | None = None
    #: One-hot labels of the batch where the bridges start, ``(batch, *target)``; None if the targets are
    #: soft. A class-weighted mean is divided by their weights.
    labels: Tensor | None = None
    #: Inputs of the nearer end, if the points are features of a hidden layer and the model needs them.
    inputs: Inputs | None = None
    hidden: bool = False  # whether the points are features of a hidden layer

    @property
    def x(self) -> Inputs:
        """Inputs at each point, ``(batch, bridge, time, *feature)``, as a tensor, tuple or dict."""
        return rebuild_inputs(self.template, {name: self.view(rows) for name, rows in self.points.items()})

    @property
    def y(self) -> Tensor:
        """Targets at each point, ``(batch, bridge, time, *target)``."""
        return self.view(self.targets)

    @property
    def s(self) -> Tensor:
        """Relative time of each point, ``(batch, bridge, time)``."""
        return self.view(self.times)

    @property
    def free_y(self) -> Tensor:
        """Targets before projection, ``(batch, bridge, time, *target)``."""
        return self.view(self.free_targets)

    @property
    def weight(self) -> Tensor | None:
        """Sample weight of each point, ``(batch, bridge, time)``, or None."""
        return None if self.weights is None else self.view(self.weights)

    def view(self, rows: Tensor) -> Tensor:
        """View rows as ``(batch, bridge, time, *feature)``, without a copy."""
        return view_rows(rows, self.n_times, self.n_bridges)

    def by_time(self, rows: Tensor) -> Tensor:
        """View rows as ``(time, bridge * batch, *feature)``."""
        return rows.unflatten(0, (self.n_times, -1))


def view_rows(rows: Tensor, n_times: int, n_bridges: int) -> Tensor:
    """View rows ``(time * bridge * batch, *feature)`` as ``(batch, bridge, time, *feature)``."""
    return rows.unflatten(0, (n_times, n_bridges, -1)).transpose(0, 2)


# ------------------------------------------------------------------------------------------------- times


class Times(NamedTuple):
    """Relative times of points: one for each row, or a grid for all rows."""

    s: Tensor  # ``(rows, 1)``, or ``(time, 1)`` of a grid
    spread: Tensor | None  # deviation ``sqrt(s (1 - s))`` of a unit bridge at each time; None for a grid
    factor: Tensor | None = None  # Cholesky factor of a unit bridge's covariance at a grid's inner times


@functools.lru_cache(maxsize=128)
def time_grid(n_times: int, last: float, dtype: torch.dtype, device: torch.device) -> Times:
    """Return the times of a path: ``n_times`` equally spaced points of [0, last], both ends included."""
    with torch.inference_mode(False), torch.no_grad():
        s = torch.linspace(0, last, n_times, dtype=torch.float64)
        inner = s[1:-1] if last == 1 else s[1:]
        covariance = torch.minimum(inner[:, None], inner[None]) - inner[:, None] * inner[None]
        factor = torch.linalg.cholesky(covariance) if len(inner) else covariance
        return Times(s[:, None].to(device, dtype), None, factor.to(device, dtype))


def time_weights(n_times: int, quadrature: Quadrature, like: Tensor) -> Tensor | None:
    """Return the quadrature weights of the points of a path, ``(time, 1)``, with mean one; None if equal.

    ``"left"`` drops the last point (Euler's sum, as in Algorithm 1); the others count all points alike.
    """
    if quadrature != "left":
        return None
    weights = torch.ones(n_times, 1, dtype=like.dtype, device=like.device)
    weights[-1] = 0.0
    return weights / weights.mean()


@functools.lru_cache(maxsize=128)
def _time_table(n_times: int, cells: int, last: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tabulate the first ``cells`` grid times and the deviation of a unit bridge there, ``(cells + 1, 2)``.

    The last time appears twice, for uniforms that are rounded up to one.
    """
    with torch.inference_mode(False), torch.no_grad():
        s = torch.linspace(0, last, n_times, dtype=torch.float64)[:cells]
        s = torch.cat([s, s[-1:]])
        return torch.stack([s, unit_spread(s)], 1).to(device, dtype)


def unit_spread(s: Tensor) -> Tensor:
    """Return the standard deviation ``sqrt(s (1 - s))`` of a unit bridge at time ``s``."""
    return (s * (1 - s)).clamp_min_(0).sqrt_()


def stratified(n: int, device: torch.device, generator: torch.Generator | None, scale: int = 1) -> Tensor:
    """Return uniforms for ``n`` rows, one in each of ``n`` equal parts of [0, scale], in random order."""
    u = draw_uniform((n,), device=device, generator=generator)
    return u.add_(draw_permutation(n, device=device, generator=generator)).mul_(scale / n)


def tent(order: Tensor, generator: torch.Generator | None, scale: int = 1) -> Tensor:
    """Return uniforms on [0, scale] for the rows of a cycle that follow their place: falling, then rising.

    ``order`` holds the rows in the order of the cycle. Neighbours in the cycle get similar times. A row is
    the start of one bridge, with weight ``1 - s``, and the end of the bridge before it, with weight ``s'``,
    so its total weight stays close to one. Over random cycles each uniform is independent of the pair.
    """
    n = order.shape[0]
    offset = draw_uniform((1,), device=order.device, generator=generator)
    u = torch.add(_places(n, scale, order.device), offset, alpha=2 * scale / n).abs_()
    return torch.empty_like(u).scatter_(0, order, u)


@functools.lru_cache(maxsize=128)
def _places(n: int, scale: int, device: torch.device) -> Tensor:
    """Return the places of a cycle, equally spaced on [-scale, scale)."""
    with torch.inference_mode(False), torch.no_grad():
        return (torch.arange(n, dtype=torch.float64) * (2 * scale / n) - scale).to(device, torch.float32)


# ------------------------------------------------------------------------------------------------ points


def bridge_points(
    start: Tensor, end: Tensor, std: Deviation, times: Times, generator: torch.Generator | None
) -> Tensor:
    """Draw the points of bridges between rows of both ends, as rows (paper: Algorithm 2).

    Normals are drawn for the inner points only; the ends are exact copies.
    """
    if start.dtype in (torch.bfloat16, torch.float16):  # compute in float32, round once
        return bridge_points(start.float(), end.float(), std, times, generator).to(start.dtype)
    s, spread, ones = times.s, times.spread, start.ndim - (times.factor is None)
    if s.ndim != ones + 1 or s.dtype != start.dtype:  # times are the first axis, or that of the rows
        s = s.to(start.dtype).reshape(-1, *[1] * ones)
        spread = None if spread is None else spread.to(start.dtype).reshape(-1, *[1] * ones)
    points = torch.lerp(start, end, s)
    inner = 1 if times.factor is None else times.factor.shape[0]
    if inner and not (isinstance(std, float) and std == 0.0):
        width = start.shape[1:] if not isinstance(std, Factor) else std.root.shape[-1:]
        shape = (*([] if times.factor is None else [inner]), len(start), *width)
        noise = draw_normal(shape, dtype=start.dtype, device=start.device, generator=generator)
        if times.factor is not None:  # correlate the inner times
            noise = (times.factor.to(start.dtype) @ noise.flatten(1)).view(shape)
        if isinstance(std, Factor):
            noise, std = std.colour(noise, start), 1.0
        elif isinstance(std, Tensor):
            noise, std = noise * std, 1.0
        if spread is not None:  # in place: the points are fresh
            points.addcmul_(noise, spread, value=std)
        else:
            points[1 : inner + 1].add_(noise, alpha=std)
    return points if times.factor is None else points.flatten(0, 1)


def nearer_end(start: Tensor, end: Tensor, times: Times) -> Tensor:
    """Take inputs that are not bridged from the nearer end (from the start at the midpoint), as rows."""
    is_near = (times.s <= 0.5).reshape(-1, *[1] * (start.ndim - (times.factor is None)))
    values = torch.where(is_near, start, end)
    return values if times.factor is None else values.flatten(0, 1)


# ---------------------------------------------------------------------------------------------- a batch


class Batch(NamedTuple):
    """A checked batch."""

    x: Inputs  # as the user passed them, or features of a hidden layer
    inputs: dict[Hashable, Tensor]  # the same by name
    bridged: list[Hashable]  # names of the inputs to bridge; the others come from the nearer end
    y: Tensor  # as the user passed them
    targets: Tensor  # as points of their space, ``(batch, *target)``
    weight: Tensor | None
    below: Inputs | None = None  # the user's inputs, if ``x`` are features of a hidden layer
    features: Callable[..., Tensor] | None = None  # from the user's inputs to ``x``
    keeps_inputs: bool = True  # whether the lower part of the model runs again, so that points need them


class Pairs(NamedTuple):
    """Far ends of the bridges: rows of the batch, or points from the caller."""

    n_bridges: int
    partners: Tensor | None  # partner of each row, ``(bridge * batch,)``
    orders: Sequence[Tensor] | None = None  # rows in the order of their cycle, if partners follow one
    far: tuple[dict[Hashable, Tensor], Tensor, Tensor | None] | None = None  # inputs, targets, weights
    below: dict[Hashable, Tensor] | None = None  # inputs below a hidden layer

    def both(self, value: Tensor, far: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return both ends of ``value``, ``(bridge * batch, *feature)``; ``far`` is the caller's far end."""
        start = value if self.n_bridges == 1 else repeat_rows(value, self.n_bridges)
        if self.partners is not None:
            return start, value.index_select(0, self.partners)
        return start, start if far is None else far


@dataclass(frozen=True)
class Bridges:
    """How points on bridges are drawn; see `elliptica.Elliptic` for the settings."""

    targets: Targets
    sigma: Any = 0.05
    sigma_y: Any = None
    sampling: Sampling = "marginal"
    n_times: int = 5
    n_bridges: int = 1
    pairing: Any = "permutation"
    quadrature: Quadrature = "mean"
    end_time: float = 1.0
    bridged: Sequence[Hashable] | None = None
    same_partner: bool = False

    def __post_init__(self) -> None:
        # these decide between branches, so an unknown value would silently mean another one
        checks.choice("target_space", self.targets.space, ("simplex", "unit", "real"))
        checks.choice("simplex", self.targets.simplex, ("abs", "euclidean"))
        checks.choice("sampling", self.sampling, ("path", "marginal"))
        checks.choice("quadrature", self.quadrature, ("mean", "left", "uniform"))
        if self.sampling == "path" and self.quadrature == "uniform":
            raise ValueError('quadrature="uniform" draws random times, so it needs sampling="marginal".')
        if self.n_times < 2 or self.n_bridges < 1 or not 0 < self.end_time <= 1:
            raise ValueError(
                "n_times must be at least 2, n_bridges at least 1, and end_time in (0, 1], but got "
                f"n_times={self.n_times}, n_bridges={self.n_bridges}, end_time={self.end_time}."
            )
        sigma = check_sigma("sigma", self.sigma)
        sigma_y = self.sigma_y
        if isinstance(sigma, Covariance) and sigma.joint:
            if sigma_y is not None:
                raise ValueError("sigma is a joint covariance of inputs and targets, so omit sigma_y.")
        elif sigma_y is None:  # noise on labels is label smoothing; a number may serve real targets, too
            sigma_y = sigma if self.targets.space == "real" and isinstance(sigma, float) else 0.0
        object.__setattr__(self, "sigma", sigma)
        object.__setattr__(self, "sigma_y", None if sigma_y is None else check_sigma("sigma_y", sigma_y))
        object.__setattr__(self, "pairing", make_pairing(self.pairing))
        if getattr(self.pairing, "among", "all") == "same_class" and self.targets.space != "simplex":
            raise ValueError(f"pairing={self.pairing!r} needs classes, not {self.targets.space} targets.")

    def read(
        self,
        x: Inputs,
        y: Tensor,
        sample_weight: Tensor | None = None,
        features: Callable[..., Tensor] | None = None,
        keep_inputs: bool = True,
    ) -> Batch:
        """Check a batch and encode its targets; ``features`` maps inputs to the hidden layer to bridge."""
        below = None
        if features is not None:
            below, x = x, features(x)
        inputs = named_inputs(x)
        names = list(inputs) if self.bridged is None or below is not None else list(self.bridged)
        if len(inputs) > 1 and self.bridged is None:
            raise ValueError(f"x has several tensors, {list(inputs)}. Choose some: bridged=(name, ...).")
        check_batch(inputs, names, y, sample_weight, self.targets.validate)
        targets = self.targets.encode(y, inputs[names[0]].dtype)
        return Batch(
            x, inputs, names, y, targets, sample_weight, below, features, keep_inputs and below is not None
        )

    def pair(
        self,
        batch: Batch,
        partners: Tensor | None = None,
        end: FarEnd | None = None,
        generator: torch.Generator | None = None,
    ) -> Pairs:
        """Choose the far end of every bridge: the caller's, or drawn from P(Pi) (paper: section 5.1)."""
        n, k = len(batch.targets), self.n_bridges
        if end is not None:
            if partners is not None:
                raise ValueError("Pass partners= or end=, not both: one would be ignored.")
            return self._far(batch, end)
        if partners is None:
            count = 1 if self.same_partner else k
            if type(self.pairing) is Permutation and self.pairing.among == "all":
                device = batch.targets.device
                # keep the cycles: times follow them
                orders = [draw_permutation(n, device=device, generator=generator) for _ in range(count)]
                each = [next_in_cycle(order) for order in orders]
                index = each[0] if k == 1 else torch.cat(each * (k // count))
                return Pairs(k, index, orders * (k // count))
            partners = self.pairing(batch.inputs[batch.bridged[0]], batch.targets, count, generator)
        if partners.ndim == 1 or partners.shape[1] == 1:
            partners = partners.reshape(n, 1).expand(-1, k)
        if partners.is_floating_point() or partners.dtype == torch.bool:
            raise TypeError(f"partners must hold rows of the batch, but have dtype {partners.dtype}.")
        if partners.shape != (n, k) or int(partners.min()) < 0 or int(partners.max()) >= n:
            raise ValueError(
                f"partners must hold rows of the batch, 0..{n - 1}, in shape ({n}, {k}), but have shape "
                f"{tuple(partners.shape)} and span {int(partners.min())} to {int(partners.max())}."
            )
        if self.same_partner and not bool((partners == partners[:, :1]).all()):
            raise ValueError("partners must be the same for all bridges of a row, whose paths are compared.")
        return Pairs(k, partners.t().reshape(-1).long())

    def draw(
        self,
        batch: Batch,
        pairs: Pairs,
        strength: float | int = 1.0,
        generator: torch.Generator | None = None,
    ) -> Paths:
        """Draw bridges of inputs and targets from a batch to their far ends (paper: Algorithm 2)."""
        far_x, far_y, far_weight = pairs.far or ({}, None, None)
        y = pairs.both(batch.targets, far_y)
        ends = {name: pairs.both(value, far_x.get(name)) for name, value in batch.inputs.items()}
        times = self._times(batch.targets, pairs, generator)  # a point and its target share their time
        if self.sigma_y is None:
            if len(batch.bridged) > 1:
                raise ValueError("sigma is a joint covariance of one input and the targets, not of several.")
            points, stds = self._draw_joint(batch.bridged[0], ends, y, times, strength, generator)
        else:
            points, stds = {}, {}
            copies = self.n_bridges if self.same_partner else 1
            for name in (*batch.bridged, TARGET):
                law, both = (self.sigma_y, y) if name is TARGET else (self.sigma, ends[name])
                is_number = isinstance(law, float)
                std = law * strength if is_number else deviation(law, *both, y, strength, copies, generator)
                points[name] = bridge_points(*both, std, times, generator)
                stds[name] = std
        free_y, std_y = points.pop(TARGET), stds.pop(TARGET)
        is_noisy = not isinstance(std_y, float) or std_y != 0.0
        is_path = times.factor is not None
        for name in batch.inputs:
            if name not in points:
                points[name] = nearer_end(*ends[name], times)
        weight = None
        if batch.weight is not None:  # it changes linearly, like a target without noise
            weight = bridge_points(*pairs.both(batch.weight, far_weight), 0.0, times, None)
        return Paths(
            batch.x,
            {name: points[name] for name in batch.inputs} if len(points) > 1 else points,
            self._project(free_y, times) if is_noisy else free_y,
            times.s.repeat(1, len(y[0])).flatten() if is_path else times.s.flatten(),
            self.n_bridges,
            stds,
            free_y,
            std_y,
            weight,
            self.n_times if is_path else 1,
            time_weights(self.n_times, self.quadrature, times.s) if is_path else None,
            None if batch.y.is_floating_point() else batch.targets,
            self._below(batch.below, pairs, times) if batch.keeps_inputs else None,
            batch.below is not None,
        )

    def _times(self, like: Tensor, pairs: Pairs, generator: torch.Generator | None) -> Times:
        """Return the grid of a path, or one random time for each row."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        n, device = like.shape[0], like.device
        if self.sampling == "path":
            return time_grid(self.n_times, self.end_time, dtype, device)
        # one time of the grid is an unbiased estimate of the sum over all; "left" never draws the last
        cells = 1 if self.quadrature == "uniform" else self.n_times - (self.quadrature == "left")
        if pairs.orders is None:
            uniforms = [stratified(n, device, generator, cells) for _ in range(self.n_bridges)]
        else:
            uniforms = [tent(order, generator, cells) for order in pairs.orders]
        u = uniforms[0] if len(uniforms) == 1 else torch.cat(uniforms)
        if self.quadrature == "uniform":
            s = (u * self.end_time).to(dtype).unsqueeze(1)
            return Times(s, unit_spread(s))
        table = _time_table(self.n_times, cells, self.end_time, dtype, device)
        return Times(*table.index_select(0, u.long()).chunk(2, 1))

    def _draw_joint(
        self,
        name: Hashable,
        ends: dict[Hashable, tuple[Tensor, Tensor]],
        y: tuple[Tensor, Tensor],
        times: Times,
        strength: float | int,
        generator: torch.Generator | None,
    ) -> tuple[dict[Hashable, Tensor], dict[Hashable, Deviation]]:
        """Draw points z = (x, y) whose noise has a joint covariance."""
        x, rows = ends[name], len(y[0])
        wide = torch.promote_types(x[0].dtype, y[0].dtype)
        z = [
            torch.cat([part.reshape(rows, -1).to(wide) for part in pair], 1)
            for pair in zip(x, y, strict=True)
        ]
        std = deviation(self.sigma, z[0], z[1], y, strength, 1, generator)
        assert isinstance(std, Factor)
        points = bridge_points(z[0], z[1], std, times, generator)
        width = x[0][0].numel()
        drawn = {
            name: points[:, :width].reshape(-1, *x[0].shape[1:]).to(x[0].dtype),
            TARGET: points[:, width:].reshape(-1, *y[0].shape[1:]).to(y[0].dtype),
        }
        roots = {name: std.root[:width], TARGET: std.root[width:]}
        return drawn, {part: Factor(root, joint=True) for part, root in roots.items()}

    def _project(self, free_y: Tensor, times: Times) -> Tensor:
        """Map noisy targets back into their space; the ends of a path are in it already."""
        if times.factor is None or self.targets.space == "real":
            return self.targets.project(free_y, class_axis=1)
        by_time = free_y.unflatten(0, (self.n_times, -1))
        last = len(times.factor) + 1
        inner = self.targets.project(by_time[1:last].flatten(0, 1), class_axis=1)
        return torch.cat([by_time[0], inner, by_time[last:].flatten(0, 1)])

    def _below(self, below: Inputs | None, pairs: Pairs, times: Times) -> Inputs:
        """Return the inputs below a hidden layer at the nearer end of each point, as rows."""
        assert below is not None
        far = pairs.below or {}
        inputs = named_inputs(below).items()
        rows = {name: nearer_end(*pairs.both(value, far.get(name)), times) for name, value in inputs}
        return rebuild_inputs(below, rows)

    def _far(self, batch: Batch, end: FarEnd) -> Pairs:
        """Arrange the far ends of the caller as rows ``(bridge * batch, ...)``."""
        given, labels, *weights = end
        user = batch.x if batch.below is None else batch.below
        likes, far = named_inputs(user), named_inputs(given)
        rows = {name: self._far_rows(f"end's x {name!r}", far[name], like) for name, like in likes.items()}
        targets = self.targets.encode(self._far_rows("end's y", labels, batch.y), batch.targets.dtype)
        weight = None
        if weights:
            if batch.weight is None:
                raise ValueError("end has sample weights, but the batch has none. Pass sample_weight= too.")
            weight = self._far_rows("end's sample_weight", weights[0], batch.weight)
            checks.nonnegative("end's sample_weight", weight)
        is_several = labels.ndim > batch.y.ndim or any(far[name].ndim > likes[name].ndim for name in likes)
        if self.same_partner and is_several:
            raise ValueError("end must be the same for all bridges of a row, whose paths are compared.")
        if batch.features is None:
            return Pairs(self.n_bridges, None, far=(rows, targets, weight))
        hidden: dict[Hashable, Tensor] = {ONLY: batch.features(rebuild_inputs(user, rows), tracked=False)}
        return Pairs(self.n_bridges, None, far=(hidden, targets, weight), below=rows)

    def _far_rows(self, name: str, far: Tensor, like: Tensor) -> Tensor:
        """Arrange far ends, one for each row or for each bridge of a row, as rows."""
        each = (len(like), self.n_bridges, *like.shape[1:])
        if tuple(far.shape) not in (each, tuple(like.shape)) or far.dtype != like.dtype:
            raise ValueError(
                f"{name} must be {like.dtype}, {tuple(like.shape)} or {each}, not {far.dtype}, {far.shape}."
            )
        if self.targets.validate:
            checks.finite(name, far)
        return far.transpose(0, 1).flatten(0, 1) if far.ndim > like.ndim else repeat_rows(far, self.n_bridges)


def sample_bridge(
    start: Float[Tensor, " batch *feature"],
    end: Float[Tensor, " batch *feature"],
    *,
    n_times: int = 5,
    n_bridges: int = 1,
    sigma: Sigma = 0.05,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch bridge time *feature"]:
    """Draw Brownian bridges from ``start`` to ``end`` (paper: Algorithm 2).

    At relative time ``s`` a bridge is Gaussian around the chord ``(1 - s) * start + s * end``, independently
    in each coordinate. The covariance between times ``s <= t`` is ``sigma**2 * s * (1 - t)``.

    Deviation from the paper: taken literally, Algorithm 2 counts the first increment twice. This function
    draws the exact bridge (docs: deviations, "first increment").

    Args:
        start: First point of each path.
        end: Last point of each path.
        n_times: Points on each path, both ends included (the paper's n_t); at least 2.
        n_bridges: Paths drawn for each pair (n_b).
        sigma: Diffusion coefficient (sigma_b), a standard deviation: a number, a tensor that broadcasts
            to the features, `Covariance`, `Green`, or your own law. Zero gives the straight chord. On a time
            interval of length T multiply it by ``sqrt(T)``.
        generator: Source of randomness. None means torch's default generator.

    Returns:
        Paths whose first and last points equal ``start`` and ``end`` exactly. Gradients pass through them.

    Example:
        >>> a, b = torch.zeros(4, 2), torch.ones(4, 2)
        >>> sample_bridge(a, b, n_times=5, sigma=0.0)[0, 0, :, 0]
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    if start.shape != end.shape:
        raise ValueError(f"start and end must have one shape: {tuple(start.shape)}, {tuple(end.shape)}.")
    law: float | Tensor | Law = check_sigma("sigma", sigma)
    start, end = repeat_rows(start, n_bridges), repeat_rows(end, n_bridges)
    std = deviation(law, start, end, (start, end), generator=generator)
    times = time_grid(n_times, 1.0, compute_dtype(start.dtype), start.device)
    return view_rows(bridge_points(start, end, std, times, generator), n_times, n_bridges)
