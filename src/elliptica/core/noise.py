"""Strength of the noise: a number, one per feature, measured on the data, or prescribed by the PDE.

`noise_std` turns any of these into the standard deviation ``sigma * sqrt(horizon)`` of each row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_gamma, draw_inverse_gaussian
from elliptica.core.partners import in_squarable_units, pairwise_distances

#: Fraction of a feature's standard deviation that ``sigma="auto"`` takes. The paper's settings,
#: in these units, lie between 0.05 (normalised images) and about 0.25 (min-max scaled tables).
AUTO_FACTOR = 0.1


@dataclass(frozen=True)
class Green:
    """The random variance that the PDE itself prescribes (docs: the exact bridge law).

    Brownian motion conditioned to hit a vanishing ball at distance ``r`` in ``n`` dimensions is a
    Brownian bridge whose variance ``sigma**2 * horizon`` is random:
    ``V = r**2 / (2 * Gamma(n/2 - 1))``, about ``r**2 / n`` for large ``n``. Each path draws its own ``V``;
    there is no free parameter. The PDE prescribes this law; we do not recommend it in general, because
    it can hurt in distribution (docs: settings). In 3 or 4 dimensions its mean is infinite, so expect far
    excursions. Gradients to earlier layers pass through ``r`` as well.

    Attributes:
        scale: Factor on the standard deviation; 1 is the law itself, 0 the straight chord.
        dim: Dimension ``n`` of the law, at least 3. None means the number of features. A smaller, intrinsic
            dimension gives more noise. In one or two dimensions the law does not exist, because Brownian
            motion hits every ball.
    """

    scale: float = 1.0
    dim: float | None = None

    def __post_init__(self) -> None:
        checks.nonnegative_number("Green.scale", self.scale)
        if self.dim is not None:
            checks.positive("Green.dim", self.dim)
        if self.dim is not None and self.dim < 3:
            raise ValueError(
                f"Green.dim must be at least 3, but got {self.dim}. "
                "The conditioned law does not exist in fewer dimensions; use a number for sigma instead."
            )


@dataclass(frozen=True)
class Screened:
    """The random variance of the screened operator: as `Green`, but walks are killed at a constant rate.

    Killing removes long excursions. The variance of a bridge of length ``r`` has a density proportional
    to ``V**(-n/2) * exp(-r**2 / (2 V) - rate * V)`` (generalised inverse Gaussian). The rate interpolates
    between `Green` (0) and almost straight lines. It damps long pairs more than short ones, and the law
    exists in one and two dimensions too. At ``rate = n**2 / (2 r**2)`` the typical variance of a pair
    at distance ``r`` is 0.62 of Green's, at ten times that rate 0.27. Gradients to earlier layers treat
    the variance as a constant, because its draw has no derivative with respect to ``r``.

    Attributes:
        rate: Rate of killing, above zero, in units of one over the square of the inputs' unit.
        scale: Factor on the standard deviation.
        dim: Dimension ``n`` of the law, at least 1; None means the number of features.
    """

    rate: float
    scale: float = 1.0
    dim: float | None = None

    def __post_init__(self) -> None:
        checks.positive("Screened.rate", self.rate)
        checks.nonnegative_number("Screened.scale", self.scale)
        if self.dim is not None:
            checks.positive("Screened.dim", self.dim)
        if self.dim is not None and self.dim < 1:
            raise ValueError(
                f"Screened.dim must be at least 1, but got {self.dim}. "
                "Use dim=None for the number of features."
            )


#: Laws of the variance that depend on the pair.
PairLaw = Green | Screened

#: What ``sigma=`` accepts.
Sigma = float | Tensor | Green | Screened | Literal["auto", "green"] | tuple[str, float]


def check_sigma(sigma: Sigma) -> float | Tensor | PairLaw | Literal["auto"]:
    """Check ``sigma`` once, at the public interface, and expand short forms."""
    if isinstance(sigma, tuple):
        if len(sigma) != 2 or sigma[0] not in ("green", "screened"):
            raise ValueError(f'sigma={sigma!r} is not known. Pass ("green", scale) or ("screened", rate).')
        return Green(sigma[1]) if sigma[0] == "green" else Screened(sigma[1])
    if isinstance(sigma, str):
        if sigma == "green":
            return Green()
        if sigma == "auto":
            return "auto"
        raise ValueError(
            f"sigma={sigma!r} is not known. Pass a number, a tensor with one value per feature, "
            '"auto", "green", ("green", scale), ("screened", rate), or elliptica.Green / elliptica.Screened.'
        )
    if isinstance(sigma, Green | Screened):
        return sigma
    checks.nonnegative("sigma", sigma)
    refuse_learnable("sigma", sigma)
    return sigma if isinstance(sigma, Tensor) else float(sigma)


def refuse_learnable(name: str, sigma: float | Tensor) -> None:
    """Raise if a diffusion coefficient requires a gradient, because the loss always prefers less noise."""
    if isinstance(sigma, Tensor) and sigma.requires_grad:
        raise ValueError(
            f"{name} requires a gradient, but the noise cannot be learnt: less noise always lowers the loss. "
            f"Pass {name}.detach(), and choose it on validation data."
        )


def auto_sigma(x: Float[Tensor, " batch *feature"], factor: float = AUTO_FACTOR) -> Float[Tensor, "*feature"]:
    """Measure a diffusion coefficient per feature: ``factor`` times its standard deviation.

    Training then does not depend on the units of the columns. Features that do not vary get no noise. Needs
    at least two rows; pass as many as you have.

    Example:
        >>> auto_sigma(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), factor=0.5)
        tensor([0.7071, 0.0000])
    """
    checks.floating("x", x)
    checks.batch("x", x)
    checks.nonnegative_number("factor", factor)
    if len(x) < 2:
        raise ValueError(
            f'sigma="auto" needs at least two rows to measure a deviation, but got {len(x)}. '
            "Pass a number for sigma, or call auto_sigma on more data."
        )
    checks.finite("x", x)
    values = x.detach().to(compute_dtype(x.dtype))
    spread = values.std(dim=0)
    extreme = (spread < 1e-15) | ~(spread < 1e15)  # squares may vanish, or overflow
    if bool(extreme.any()):
        size = values.abs().amax(dim=0).clamp_min(torch.finfo(values.dtype).tiny)
        spread = torch.where(extreme, (values / size).std(dim=0) * size, spread)
    return factor * spread.to(x.dtype)


#: Standard deviations above this may leave the range of a dtype.
LARGE_STD = 1e30


def check_range(std: float, dtype: torch.dtype) -> None:
    """Raise if a standard deviation is more than numbers of ``dtype`` can hold."""
    if std > 1e-8 * torch.finfo(compute_dtype(dtype)).max:
        raise ValueError(
            f"sigma (or sigma_y) times sqrt(horizon) is {std:.3g}, more than {dtype} can hold. Use smaller "
            "ones; a tenth of the deviation of the data is a start."
        )


def noise_std(
    sigma: float | Tensor | PairLaw,
    start: Tensor,
    end: Tensor,
    horizon: float,
    generator: torch.Generator | None,
    copies: int = 1,
) -> float | Tensor:
    """Return the standard deviation ``sigma * sqrt(horizon)``, which broadcasts to the rows of ``start``.

    `Green` and `Screened` ignore ``horizon``, because their laws fix the variance itself. If the rows hold
    the same pairs ``copies`` times, the copies share the random variance of their pair.
    """
    if not isinstance(sigma, Green | Screened):
        if isinstance(sigma, Tensor):
            checks.per_feature("sigma (or sigma_y)", sigma, start.shape[1:])
            return sigma.to(start.device, compute_dtype(start.dtype)) * math.sqrt(horizon)
        number = sigma * math.sqrt(horizon)
        if number > LARGE_STD:
            check_range(number, start.dtype)
        return number
    rows, n = len(start), max(start[0].numel(), 1)
    dim = float(n) if sigma.dim is None else sigma.dim
    r = _distances(start, end)
    shared = r[: rows // copies]
    std = (
        _green_std(shared, dim, n, generator)
        if isinstance(sigma, Green)
        else _screened_std(shared, dim, sigma.rate, generator)
    )
    std = sigma.scale * (std if copies == 1 else std.repeat(copies))
    return std.to(compute_dtype(start.dtype)).reshape(-1, *[1] * (start.ndim - 1))


def _distances(start: Tensor, end: Tensor) -> Tensor:
    """Return the distance of each pair, ``(rows,)``, in float32; its gradient at equal points is zero."""
    apart = (end.float() - start.float()).reshape(len(start), -1)
    if apart.numel() == 0:
        return apart.new_zeros(len(start))
    # float32 cannot hold the squares of large and small numbers: measure those in units of the largest
    size = apart.detach().abs().amax(1)
    unit = torch.where((size > 1e15) | ((size > 0) & (size < 1e-15)), size, torch.ones_like(size))
    apart = apart / unit[:, None]
    if not apart.requires_grad:
        return apart.norm(dim=1) * unit
    squares = apart.square().sum(1)
    equal = squares == 0  # mask before the root, whose derivatives are infinite at zero
    return squares.masked_fill(equal, 1.0).sqrt().masked_fill(equal, 0.0) * unit


def _green_std(r: Tensor, dim: float, n: int, generator: torch.Generator | None) -> Tensor:
    if dim < 3:
        raise ValueError(
            f'sigma="green" needs at least 3 features, but got {n}: the conditioned law does not exist in '
            "fewer dimensions. Use a number for sigma, Green(dim=...), or Screened(rate), which exists in "
            "any dimension."
        )
    gamma = draw_gamma(dim / 2 - 1, len(r), device=r.device, generator=generator)
    return r / (2 * gamma).sqrt()


_SMALLEST = 1e-70  # distance over the screening length, below which the screening does not matter


def _screened_std(r: Tensor, dim: float, rate: float, generator: torch.Generator | None) -> Tensor:
    r = r.detach()  # rejection sampling depends on r without a derivative
    k = math.sqrt(2 * rate)
    far, order = r.double(), 1 - dim / 2
    # pairs at distance zero have a bridge of length zero; draw with any positive distance, mask it below
    omega = (far * k).clamp_min(_SMALLEST)
    ratio = draw_inverse_gaussian(order, omega, generator=generator)
    # where omega is clamped, the variance has reached its limit: that of Green, or one without the distance
    limit = far * (far / omega) if order < 0 else omega / k / k
    variance = ratio * torch.where(omega > _SMALLEST, far / k, limit)
    std = variance.sqrt().float().masked_fill(r == 0, 0.0)
    if not bool(torch.isfinite(std).all()):
        raise ValueError(
            f"Screened(rate={rate:g}) in {dim:g} dimensions gives a variance of {float(variance.max()):.3g}, "
            "more than float32 can hold. Use a larger rate, e.g. 1 over the squared deviation of the data."
        )
    return std


_CHUNK_BYTES = 64 * 2**20


def intrinsic_dimension(x: Float[Tensor, " n *feature"], *, discard: float = 0.1) -> float:
    """Estimate the intrinsic dimension of data from nearest neighbours (TwoNN).

    On a smooth surface of dimension ``m`` the ratio of the distances to the second and to the first
    neighbour has a Pareto law with exponent ``m`` wherever the density varies slowly (Facco et al. 2017).
    This function fits that exponent by maximum likelihood. Use it where a law depends on the dimension and
    the number of columns would overstate it: ``Green(dim=max(3, intrinsic_dimension(x)))``.

    Args:
        x: At least ten distinct points; repeated ones are ignored.
        discard: Share of the largest ratios to censor, against outliers.

    Returns:
        The dimension, a real number. It is too low for few points in many dimensions.

    Example:
        >>> x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
        >>> flat = torch.cat([x, x @ torch.ones(2, 8)], dim=1)        # a plane in ten dimensions
        >>> round(intrinsic_dimension(flat))
        2
    """
    checks.floating("x", x)
    checks.batch("x", x)
    checks.finite("x", x)
    checks.number("discard", discard)
    if x[0].numel() == 0:
        raise ValueError(f"x has no features, shape {tuple(x.shape)}, so its points have no distances.")
    if not 0 <= discard < 1:
        raise ValueError(f"discard must be at least 0 and below 1, but got {discard}. Try the default, 0.1.")
    points = in_squarable_units(x.detach())
    points = torch.unique(points.flatten(1) if x.ndim > 1 else points[:, None], dim=0)
    n = len(points)
    if n < 10:
        raise ValueError(
            f"intrinsic_dimension needs at least 10 distinct points, but x has {n}. Pass more data."
        )
    log_ratios = []
    for part in points.split(max(1, _CHUNK_BYTES // (8 * n))):
        # the nearest point is the point itself
        near = pairwise_distances(part, points).topk(3, dim=1, largest=False).values
        log_ratios.append((near[:, 2] / near[:, 1]).log())
    ordered = torch.cat(log_ratios).sort().values
    kept = max(int(n * (1 - discard)), 1)
    # censoring: the discarded ratios are known only to exceed the last one kept
    exposure = ordered[:kept].sum() + (n - kept) * ordered[kept - 1]
    return kept / float(exposure)
