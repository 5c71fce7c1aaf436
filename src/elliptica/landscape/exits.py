"""Sample where Brownian motion leaves a ball, in one step and in any dimension.

A conformal map of the ball moves the start to the centre. In two dimensions it makes the exit angle uniform;
in any dimension the law becomes smooth and unimodal, even for starts next to the sphere, where the exit angle
``theta`` itself has a spike and a heavy tail. With ``rho`` the distance of the start from the centre over the
radius and ``tanh(w) = cos(theta)``, the density of ``y = w - artanh(rho)`` is proportional to

    ``(1 + (1 - rho^2) sinh(y)^2)^(1 - dim / 2) / cosh(y - artanh(rho))``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks, random

#: Nodes in the table of one query, which covers densities within `_NATS` (in logarithm) of the largest.
_NODES = 4096
_NATS = 45.0
#: Numbers held at once in tables.
_CHUNK = 2**21


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

    Args:
        start: Points inside the ball.
        centre: Its centre.
        radius: Its radius.
        n_walks: Exits per start.
        generator: Source of randomness; None is torch's global one.
    """
    checks.count("n_walks", n_walks)
    random.check_generator(generator, start.device)
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
    diffusion: float | Float[Tensor, " dim"] = 1.0,
) -> Float[Tensor, " q"]:
    """Return the mean time to leave a ball, ``(radius^2 - |start - centre|^2) / sum(a)``.

    Args:
        start: Points inside the ball.
        centre: Its centre.
        radius: Its radius.
        diffusion: ``a``, a number or one per coordinate (`elliptica.landscape.operator.Operator`).
    """
    length = _inside(start, centre, radius)[1]
    total = float(diffusion.sum()) if isinstance(diffusion, Tensor) else diffusion * start.shape[1]
    checks.positive("diffusion", total)
    return ((radius - length) * (radius + length) / total).to(start.dtype)


def control_variates(
    values: Float[Tensor, "q n_walks"],
    exits: Float[Tensor, "q n_walks dim"],
    start: Float[Tensor, "q dim"],
    direction: Float[Tensor, "q dim"],
    centre: Float[Tensor, " dim"],
    radius: float,
) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Average boundary values over exits from a ball, with control variates against variance.

    With ``s = direction . (exit - start)``, the means of ``s`` and ``s^2`` are known: 0 and
    ``|direction|^2 (radius^2 - |start - centre|^2) / dim``. Multiples of both are subtracted. They are
    fitted on one half of the walks and used on the other, and vice versa, so the mean stays unbiased.

    Args:
        values: Boundary value at each exit.
        exits: Independent exits, as `sample_ball_exit` returns them.
        start: Where they started.
        direction: Direction in which the values vary most, e.g. the gradient at the start of a function
            that extends them. Its length does not matter; zero switches the correction off.
        centre: Centre of the ball.
        radius: Its radius.

    Returns:
        Mean and its standard error, one per query.
    """
    rest, _ = control_residuals(values, exits, start, direction, centre, radius)
    mean, stderr = residual_mean(rest)
    return mean.to(values.dtype), stderr.to(values.dtype)


def residual_mean(
    rest: Float[Tensor, "q n_walks"],
) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Return the mean of `control_residuals` and its standard error; each half has its own mean."""
    n_walks = rest.shape[1]
    halves = n_walks // 2, n_walks - n_walks // 2
    first, second = (n * part.var(1) for n, part in zip(halves, rest.split(halves, 1), strict=True))
    return rest.mean(1), (first + second).sqrt() / n_walks


def control_residuals(
    values: Float[Tensor, "q n_walks"],
    exits: Float[Tensor, "q n_walks dim"],
    start: Float[Tensor, "q dim"],
    direction: Float[Tensor, "q dim"],
    centre: Float[Tensor, " dim"],
    radius: float,
) -> tuple[Float[Tensor, "q n_walks"], Callable[[Tensor, Tensor], Tensor]]:
    """Return the values that `control_variates` averages, and a function that corrects other values alike.

    That function takes points ``(s, dim)`` and values ``(q, s)`` and returns ``(q, 2 s)``: each value less
    the multiples of either half of the walks.
    """
    n_walks = values.shape[1]
    checks.count("n_walks", n_walks, 16, " for control variates (each half fits three coefficients)")
    unit = torch.nn.functional.normalize(direction.double(), dim=1)
    known = unit.square().sum(1) * ball_exit_time(start.double(), centre, radius)

    def terms(along: Tensor) -> Tensor:
        return torch.stack([along, along.square() - known[:, None]], dim=2)

    # the large product needs no more precision than the exits, whose rounding is as large
    with torch.autocast(exits.device.type, enabled=False):
        along = torch.einsum("qwd,qd->qw", exits - start[:, None], unit.to(exits.dtype))
    own = terms(along.double())
    halves = n_walks // 2, n_walks - n_walks // 2
    (y0, y1), (t0, t1) = values.double().split(halves, 1), own.split(halves, 1)
    slopes = _slopes(t1, y1), _slopes(t0, y0)
    rest = torch.cat([y0 - (t0 @ slopes[0]).squeeze(2), y1 - (t1 @ slopes[1]).squeeze(2)], 1)

    def elsewhere(points: Tensor, at_points: Tensor) -> Tensor:
        other = terms(unit @ points.double().T - (unit * start.double()).sum(1, keepdim=True))
        return torch.cat([at_points.double() - (other @ slope).squeeze(2) for slope in slopes], 1)

    return rest, elsewhere


def sample_drifted_direction(
    drift: Float[Tensor, "rows dim"], *, generator: torch.Generator | None
) -> Float[Tensor, "rows dim"]:
    """Draw the direction in which Brownian motion with a constant drift leaves a ball from its centre.

    The law is that of von Mises and Fisher, with density proportional to ``exp(drift . xi)`` on the unit
    sphere. It is drawn by rejection from the image of a uniform direction under a conformal map (Ulrich,
    Wood), exactly for every length of the drift, zero included.

    Args:
        drift: Drift times the radius of the ball, for diffusion coefficient one.
        generator: Source of randomness; None is torch's global one.
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
    checks.floating("start", start)
    checks.positive("radius", radius)
    if start.ndim != 2 or centre.shape != start.shape[1:]:
        raise ValueError(
            f"start must have shape (queries, dim) and centre (dim,), but got {tuple(start.shape)} and "
            f"{tuple(centre.shape)}."
        )
    offset = start.double() - centre.to(start.device).double()
    length = offset.norm(dim=1)
    if not bool((length < radius).all()):
        rows = (~(length < radius)).nonzero().flatten().tolist()
        raise ValueError(
            f"Every start must lie inside the ball, but {len(rows)} of {len(start)} do not, e.g. rows "
            f"{rows[:5]} (distance up to {float(length.max()):.6g}, radius {radius:.6g}). Enlarge the ball, "
            "e.g. by its margin, or drop those rows."
        )
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


def _slopes(terms: Tensor, values: Tensor) -> Tensor:
    """Fit the least-squares multiples of two terms, ``(q, 2, 1)``; zero where a term is constant."""
    centred = terms - terms.mean(1, keepdim=True)
    scale = centred.norm(dim=1, keepdim=True).clamp_min(1e-300)
    centred = centred / scale
    gram = centred.mT @ centred + 1e-12 * torch.eye(2, dtype=terms.dtype, device=terms.device)
    return torch.linalg.solve(gram, centred.mT @ values[..., None]) / scale.mT
