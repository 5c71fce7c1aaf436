"""Bessel functions of a ball in any dimension, as logarithms that neither overflow nor cancel.

With ``nu = dim / 2 - 1``, two solutions of ``Lap w = w`` that depend on the radius alone, both 1 at zero:

* ``Phi(x) = Gamma(nu + 1) (2 / x)^nu I_nu(x)``, regular: ``cosh``, ``I_0``, ``sinh(x) / x`` in 1, 2, 3
  dimensions. ``1 / Phi(r sqrt(2 c))`` is the chance to leave a ball of radius ``r`` from its centre alive;
* ``x^(2 - dim) alpha(x)``, singular, ``alpha(x) = 2 (x / 2)^nu K_nu(x) / Gamma(nu)`` from 3 dimensions on.

Orders from `_LEAST_ORDER` on come from the uniform (Debye) expansions, lower ones from the recurrence that
is stable for each function: downwards for ``Phi``, upwards for ``alpha``, all terms positive.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks

#: From this order on, ten terms of the expansions are exact to about 1e-13.
_LEAST_ORDER = 16.0
_TERMS = 10
#: Stands for zero where a function is singular there.
_TINY = 1e-150


def log_phi(kappa: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Return the logarithm of ``Phi``, the mean of ``exp(kappa . xi)`` over the unit sphere, from float64.

    Args:
        kappa: At least 0.
        dim: Dimension of the space, at least 1.
    """
    checks.count("dim", dim)
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
    checks.count("dim", dim, 3)
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

    Args:
        rho: Distance from the centre, from 0 to ``radius``.
        radius: Radius of the ball.
        k: ``sqrt(2 c / a)`` for a rate of killing ``c``.
        dim: Dimension of the space.

    Returns:
        Values from 0 to 1; ``1 / Phi(k radius)`` at the sphere.
    """
    checks.count("dim", dim)
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
