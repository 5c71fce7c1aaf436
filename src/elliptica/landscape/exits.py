"""Brownian motion in a ball, exactly, in any dimension: where and when it leaves, and Bessel functions.

A conformal map of the ball moves the start to the centre. In two dimensions it makes the exit angle uniform;
in any dimension the law becomes smooth and unimodal, even for starts next to the sphere, where the exit angle
``theta`` itself has a spike and a heavy tail. With ``rho`` the distance of the start from the centre over the
radius and ``tanh(w) = cos(theta)``, the density of ``y = w - artanh(rho)`` is proportional to

    ``(1 + (1 - rho^2) sinh(y)^2)^(1 - dim / 2) / cosh(y - artanh(rho))``.

With ``nu = dim / 2 - 1``, two solutions of ``Lap w = w`` depend on the radius alone and are 1 at zero:

* ``Phi(x) = Gamma(nu + 1) (2 / x)^nu I_nu(x)``, regular: ``cosh``, ``I_0``, ``sinh(x) / x`` in 1, 2, 3
  dimensions. ``1 / Phi(r sqrt(2 c))`` is the chance to leave a ball of radius ``r`` from its centre alive;
* ``x^(2 - dim) alpha(x)``, singular, ``alpha(x) = 2 (x / 2)^nu K_nu(x) / Gamma(nu)`` from 3 dimensions on.

They are computed as logarithms that neither overflow nor cancel: orders from `_LEAST_ORDER` on by the uniform
(Debye) expansions, lower ones by the stable recurrence, downwards for ``Phi``, upwards for ``alpha``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import random

#: Nodes in the table of one query, which covers densities within `_NATS` (in logarithm) of the largest.
_NODES = 4096
_NATS = 45.0
#: Numbers held at once in tables.
_CHUNK = 2**21
#: From this order on, ten terms of the expansions are exact to about 1e-13.
_LEAST_ORDER = 16.0
_TERMS = 10
#: Stands for zero where a function is singular there.
_TINY = 1e-150


def sample_ball_exit(
    start: Float[Tensor, "q dim"],
    centre: Float[Tensor, " dim"],
    radius: float,
    n_walks: int,
    *,
    generator: torch.Generator | None,
) -> Float[Tensor, "q n_walks dim"]:
    """Draw independent, exact exit points from a ball for Brownian motions from each start.

    The angle is computed in float64, from a table with a relative error below 5e-5 in every probability.
    """
    offset, length, share = _inside(start, centre, radius)
    rows, dim = start.shape
    draw = partial(random.draw_normal, dtype=torch.float64, device=start.device, generator=generator)
    # float64 uniforms; at most 1 - 2^-53, at least 0
    uniform = torch.special.ndtr(draw((rows, n_walks)))
    if dim == 1:
        sign = torch.where(2 * uniform < 1 + offset / radius, 1.0, -1.0)
        return (centre.to(offset) + radius * sign[..., None]).to(start.dtype)
    place = torch.atanh(share)[:, None]
    if dim == 2:
        w = torch.tan(torch.pi / 2 * uniform).log() + 2 * place
    else:
        w = _tabulated(place, uniform, dim) + place
    cos, sin = w.tanh().to(start), (1 / w.cosh()).to(start)
    normal = random.draw_normal(
        (rows, n_walks, dim), dtype=start.dtype, device=start.device, generator=generator
    )
    direction = _tilt(_axis(offset, length)[:, None].to(start), cos, sin, normal)
    return direction.mul_(radius).add_(centre.to(start))


def ball_exit_time(
    start: Float[Tensor, "q dim"],
    centre: Float[Tensor, " dim"],
    radius: float,
    diffusion: float = 1.0,
) -> Float[Tensor, " q"]:
    """Return the mean time to leave a ball, ``(radius^2 - |start - centre|^2) / (a dim)``."""
    length = _inside(start, centre, radius)[1]
    return ((radius - length) * (radius + length) / (diffusion * start.shape[1])).to(start.dtype)


def sample_drifted_direction(
    drift: Float[Tensor, "rows dim"], *, generator: torch.Generator | None
) -> Float[Tensor, "rows dim"]:
    """Draw the direction in which Brownian motion with a constant drift leaves a ball from its centre.

    The law is that of von Mises and Fisher, with density proportional to ``exp(drift . xi)`` on the unit
    sphere; ``drift`` is the drift times the radius, for diffusion coefficient one. It is drawn by rejection
    from the image of a uniform direction under a conformal map (Ulrich, Wood), exactly for every length.
    """
    rows, dim = drift.shape
    draw = partial(random.draw_normal, dtype=torch.float64, device=drift.device, generator=generator)
    mean = drift.double()
    kappa = mean.norm(dim=1)
    if dim == 1:
        uniform = torch.special.ndtr(draw((rows, 1)))
        return torch.where(uniform < torch.sigmoid(2 * mean), 1.0, -1.0).to(drift.dtype)
    b = (dim - 1) / (2 * kappa + torch.sqrt(4 * kappa.square() + (dim - 1) ** 2))
    shift, flat = (1 - b) / (1 + b), 4 * b / (1 + b).square()  # flat = 1 - shift^2
    cos, sin = torch.empty_like(kappa), torch.empty_like(kappa)
    waiting = torch.arange(rows, device=drift.device)
    while len(waiting):
        normal, spare = draw((2, len(waiting)))
        rest = 2 * random.draw_gamma((dim - 1) / 2, len(waiting), device=drift.device, generator=generator)
        t = normal / torch.sqrt(normal.square() + rest)  # one coordinate of a uniform direction
        stretch = 1 + shift[waiting] * t
        gain = kappa[waiting] * flat[waiting] * t / stretch - (dim - 1) * stretch.log()
        cos[waiting] = (shift[waiting] + t) / stretch
        sin[waiting] = torch.sqrt(flat[waiting] * rest / (normal.square() + rest)) / stretch
        waiting = waiting[torch.special.log_ndtr(spare) > gain]
    normal = random.draw_normal((rows, dim), dtype=drift.dtype, device=drift.device, generator=generator)
    axis = _axis(mean, kappa).to(drift.dtype)
    return _tilt(axis, cos.to(drift.dtype), sin.to(drift.dtype), normal)


def _inside(start: Tensor, centre: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the offset from the centre, its length, and its share of the radius, in float64."""
    offset = start.double() - centre.to(start.device).double()
    length = offset.norm(dim=1)
    if not bool((length < radius).all()):
        raise ValueError("start must lie inside the ball. Enlarge it, or drop the rows outside.")
    return offset, length, length / radius


def _log_density(y: Tensor, place: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the density of ``y``, up to a constant; it is concave."""
    x = (y - place).abs()
    swell = torch.log1p((y.sinh() / place.cosh()).square())
    return -x - torch.log1p(torch.exp(-2 * x)) - (dim / 2 - 1) * swell


def _tabulated(place: Tensor, uniform: Tensor, dim: int) -> Tensor:
    """Draw ``y`` by inverting its distribution function, with the density linear between nodes."""
    drawn = []
    unit = torch.linspace(0, 1, _NODES, dtype=torch.float64, device=place.device)
    per_chunk = max(_CHUNK // max(_NODES, uniform.shape[1]), 1)
    for at, u in zip(place.split(per_chunk), uniform.split(per_chunk), strict=True):
        # coarse search for the window: one node beyond those with a noticeable density
        coarse = torch.linspace(-1, 1, _NODES // 8, dtype=torch.float64, device=at.device) * (at + _NATS)
        height = _log_density(coarse, at, dim)
        far = height < height.amax(1, keepdim=True) - _NATS
        gap = coarse[:, 1:2] - coarse[:, :1]
        low = coarse.masked_fill(far, torch.inf).amin(1, keepdim=True) - gap
        cell = (coarse.masked_fill(far, -torch.inf).amax(1, keepdim=True) + gap - low) / (_NODES - 1)
        height = _log_density(low + (_NODES - 1) * cell * unit, at, dim)
        density = torch.exp(height - height.amax(1, keepdim=True))
        cdf = torch.zeros_like(density)
        cdf[:, 1:] = torch.cumsum((density[:, 1:] + density[:, :-1]) / 2, dim=1)
        target = u * cdf[:, -1:]
        left = (torch.searchsorted(cdf, target, right=True) - 1).clamp(0, _NODES - 2)
        rest = target - cdf.gather(1, left)
        first, second = density.gather(1, left), density.gather(1, left + 1)
        root = torch.sqrt((first.square() + 2 * (second - first) * rest).clamp_min(0))
        part = (2 * rest / (first + root).clamp_min(1e-300)).clamp(0, 1)
        drawn.append(low + cell * (left + part))
    return torch.cat(drawn)


def _axis(vector: Tensor, length: Tensor) -> Tensor:
    """Return unit vectors along rows; the first axis for rows that are zero."""
    first = torch.zeros_like(vector[:1])
    first[0, 0] = 1
    divisor = length.clamp_min(torch.finfo(vector.dtype).tiny)[:, None]
    return torch.where(length[:, None] > 0, vector / divisor, first)


def _tilt(axis: Tensor, cos: Tensor, sin: Tensor, normal: Tensor) -> Tensor:
    """Return directions at a given angle to an axis, uniform around it; overwrites the normals."""
    if axis.shape[-1] == 2:  # exactly perpendicular, on either side
        side = torch.where(normal[..., :1] < 0, -1.0, 1.0)
        across = torch.stack([-axis[..., 1], axis[..., 0]], -1) * side
    else:
        along = torch.einsum("...d,...d->...", normal, axis)
        across = normal.addcmul_(along[..., None], axis, value=-1)
        sin = sin / across.norm(dim=-1)
    return across.mul_(sin[..., None]).addcmul_(cos[..., None], axis)


def log_phi(kappa: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Return the logarithm of ``Phi``, the mean of ``exp(kappa . xi)`` over the unit sphere, from float64."""
    x = kappa.double()
    if dim == 1:
        value = x + torch.log1p(torch.exp(-2 * x)) - math.log(2)
    elif dim == 2:
        value = x + torch.special.i0e(x).log()
    else:
        nu = dim / 2 - 1
        down = max(math.ceil(_LEAST_ORDER - nu), 0)
        value = _debye(x, nu + down, 1)
        if down:
            # Phi_(m-1) / Phi_m = 1 + x^2 / (4 m (m+1)) Phi_(m+1) / Phi_m
            ratio = torch.exp(_debye(x, nu + down + 1, 1) - value)
            square, product = x.square(), torch.ones_like(x)
            for m in (nu + down - i for i in range(down)):
                growth = (square * ratio).mul_(1 / (4 * m * (m + 1))).add_(1)
                product *= growth
                ratio = growth.reciprocal()
            value = value + product.log()
    return value.to(kappa.dtype)


def log_alpha(x: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Return the logarithm of ``alpha``, from three dimensions on; computed in float64."""
    nu, point = dim / 2 - 1, x.double().clamp_min(_TINY)
    if nu >= _LEAST_ORDER:
        return _debye(point, nu, -1).to(x.dtype)
    quarter = point.square() / 4
    if dim % 2:  # both times e^x
        low, high, order = torch.ones_like(point), 1 + point, 1.5
    else:
        low = point * torch.special.scaled_modified_bessel_k1(point)
        high, order = low + 2 * quarter * torch.special.scaled_modified_bessel_k0(point), 2.0
    if nu < order:
        return (low.log() - point).to(x.dtype)
    while order < nu:
        low, high = high, high + quarter / (order * (order - 1)) * low
        order += 1
    return (high.log() - point).to(x.dtype)


def screened_green_ratio(
    rho: Float[Tensor, " rows"], radius: Float[Tensor, " rows"], k: Float[Tensor, " rows"] | float, dim: int
) -> Float[Tensor, " rows"]:
    """Return Green's function of a ball with killing over that without, both with the pole at the centre.

    At distance ``rho`` from the centre, with ``k = sqrt(2 c / a)`` for a rate of killing ``c``; from 0 to 1,
    ``1 / Phi(k radius)`` at the sphere.
    """
    outer = radius.double().clamp_min(_TINY)
    share = (rho.double() / outer).clamp(1e-100, 1.0)
    rate = torch.as_tensor(k, dtype=torch.float64, device=rho.device)
    x_outer = (rate * outer).clamp_min(_TINY)
    x = x_outer * share
    if dim == 1:
        y = (x_outer - x).clamp_min(_TINY)
        value = (-torch.expm1(-2 * y) / (1 + torch.exp(-2 * x_outer)) / y).log() + y - x_outer
        return value.exp().to(rho.dtype)
    # the singular solution minus the multiple of the regular one that makes it vanish at the sphere
    if dim == 2:
        log_pole, log_pole_outer = (
            torch.special.scaled_modified_bessel_k0(v).log() - v for v in (x, x_outer)
        )
        fall, free = log_pole_outer - log_pole, -share.log()
    else:
        log_power = (dim - 2) * share.log()
        log_pole = log_alpha(x, dim)
        fall, free = log_power + log_alpha(x_outer, dim) - log_pole, -torch.expm1(log_power)
    inner = log_phi(x, dim)
    fall = fall + inner - log_phi(x_outer, dim)
    value = log_pole.exp() * -torch.expm1(fall) / free.clamp_min(_TINY)
    near = fall > -1e-5
    if bool(near.any()):
        # There this is 0 / 0. The ratio is also Phi(x) times the mean of Phi^-2 over the radii from rho to
        # the sphere with weight s^(1 - dim), so near the sphere the midpoint will do.
        middle = (inner - 2 * log_phi((x + x_outer) / 2, dim)).exp()
        value = torch.where(near, middle, value)
    return value.to(rho.dtype)


def _debye(x: Tensor, nu: float, sign: int) -> Tensor:
    """Logarithm of ``Phi`` (sign 1) or ``alpha`` (sign -1) of a large order, zero at zero."""
    square = (x / nu).square()
    root = torch.sqrt(1 + square)
    excess = square / (1 + root)  # root - 1
    exponent = nu * (excess - torch.log1p(excess / 2))
    coefficients = _series(nu, sign)
    series, p = torch.zeros_like(x), root.reciprocal()
    for c in reversed(coefficients):
        series.mul_(p).add_(c)
    at_zero = 0.0
    for c in reversed(coefficients):  # the same sum at p = 1, rounded alike
        at_zero += c
    return sign * exponent + (series / (at_zero * root.sqrt())).log()


@cache
def _series(nu: float, sign: int) -> tuple[float, ...]:
    """``sum_k U_k(p) (sign / nu)^k`` as one polynomial in ``p``, lowest power first."""
    total = [0.0] * (3 * _TERMS + 1)
    for k in range(_TERMS + 1):
        for power, c in enumerate(_polynomial(k)):
            total[power] += float(c) * (sign / nu) ** k
    return tuple(total)


@cache
def _polynomial(k: int) -> tuple[Fraction, ...]:
    """Debye's ``U_(k+1) = p^2 (1 - p^2) U_k' / 2 + int_0^p (1 - 5 t^2) U_k dt / 8``, ``U_0 = 1``."""
    if k == 0:
        return (Fraction(1),)
    before = _polynomial(k - 1)
    after = [Fraction(0)] * (len(before) + 3)
    for power, c in enumerate(before):
        after[power + 1] += c * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
        after[power + 3] -= c * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
    return tuple(after)
