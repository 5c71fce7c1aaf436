"""Draw random numbers on the generator's device (this library sets no global seeds)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    """Raise if a generator cannot serve data on ``device``.

    A CPU generator serves data anywhere (drawn on the CPU, then moved, so that every machine
    sees the same numbers). A generator of an accelerator serves data on that accelerator only.
    """
    if generator is None:
        return
    if not hasattr(generator, "device"):
        raise TypeError(
            f"generator must be a torch.Generator, but got {type(generator).__name__}. "
            "Pass e.g. generator=torch.Generator().manual_seed(0)."
        )
    if generator.device.type not in ("cpu", device.type):
        raise ValueError(
            f"generator lives on {generator.device}, but the data are on {device}. "
            "Use a CPU generator (works for data on any device) or one made with "
            f"torch.Generator(device={str(device)!r})."
        )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for arithmetic: half precision is computed in float32 and rounded once."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def draw_normal(
    shape: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw standard normals; ``dtype`` must be float32 or float64."""
    source = device if generator is None else generator.device
    z = torch.randn(*shape, dtype=dtype, device=source, generator=generator)
    return z if source == device else z.to(device)


def draw_uniform(shape: Sequence[int], *, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw uniforms on [0, 1) in float32."""
    source = device if generator is None else generator.device
    u = torch.rand(*shape, dtype=torch.float32, device=source, generator=generator)
    return u if source == device else u.to(device)


def draw_permutation(
    n: int,
    *,
    device: torch.device,
    generator: torch.Generator | None,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """Draw a uniformly random permutation of ``range(n)``."""
    source = device if generator is None else generator.device
    order = torch.randperm(n, device=source, generator=generator, dtype=dtype)
    return order if source == device else order.to(device)


def draw_gamma(shape: float, n: int, *, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw ``n`` Gamma variables with the given shape and scale 1, in float32.

    Drawn in float64 and kept above the smallest normal float32, so that its inverse is finite.
    """
    source = device if generator is None else generator.device
    concentration = torch.full((n,), shape, dtype=torch.float64, device=source)
    gamma = torch._standard_gamma(concentration, generator=generator)  # the public API takes no generator
    return gamma.clamp_min(1e-30).float().to(device)


def draw_inverse_gaussian(
    p: float, omega: Tensor, *, generator: torch.Generator | None, max_rounds: int = 1000
) -> Tensor:
    """Draw from the generalised inverse Gaussian law of order ``p`` and concentration ``omega``.

    Its density is proportional to ``t**(p-1) * exp(-omega * (t + 1/t) / 2)``. One draw per entry of
    ``omega`` (above zero), in float64. Rejection on the logarithm, whose density is log-concave, from a
    hat of a constant between two exponentials (Devroye 2014): at least a third of the proposals are
    accepted, for any ``p`` and ``omega``.
    """
    omega = omega.double()
    order = abs(p)  # negative orders are reciprocals
    alpha = omega**2 / ((omega**2 + order**2).sqrt() + order)

    def log_density(x: Tensor, rows: Tensor) -> Tensor:
        return -alpha[rows] * (x.cosh() - 1) - order * (torch.expm1(x) - x)

    def slope(x: Tensor, rows: Tensor) -> Tensor:
        return -alpha[rows] * x.sinh() - order * torch.expm1(x)

    rows = torch.arange(len(omega), device=omega.device)
    right, left = _hat_points(alpha, order)
    eta, zeta = -log_density(right, rows), -slope(right, rows)
    theta, xi = -log_density(-left, rows), slope(-left, rows)
    right_edge, left_edge = right - eta / zeta, left - theta / xi
    middle = right_edge + left_edge
    total = 1 / xi + middle + 1 / zeta
    out = torch.empty_like(omega)
    for _ in range(max_rounds):
        source = omega.device if generator is None else generator.device
        u = torch.rand(3, len(rows), dtype=torch.float64, device=source, generator=generator).to(omega.device)
        q, r, part = middle[rows], 1 / zeta[rows], u[0] * total[rows]
        tail = torch.log1p(-u[1])  # never log(0)
        x = torch.where(
            part < q,
            q * u[1] - left_edge[rows],
            torch.where(part < q + r, right_edge[rows] - r * tail, tail / xi[rows] - left_edge[rows]),
        )
        hat = torch.where(
            x > right_edge[rows],
            -eta[rows] - zeta[rows] * (x - right[rows]),
            torch.where(
                x < -left_edge[rows], -theta[rows] + xi[rows] * (x + left[rows]), torch.zeros_like(x)
            ),
        )
        accepted = torch.log1p(-u[2]) + hat <= log_density(x, rows)
        out[rows[accepted]] = x[accepted]
        rows = rows[~accepted]
        if len(rows) == 0:
            break
    else:  # pragma: no cover - probability below (2/3)**1000
        raise RuntimeError("Sampling the inverse Gaussian law did not end. Please report p and omega.")
    log_mode = torch.asinh(order / omega)
    return (out + log_mode).exp() if p >= 0 else (-out - log_mode).exp()


def _hat_points(alpha: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """Return where the hat's exponentials touch the density: about one nat below its mode on each side."""
    one = torch.ones_like(alpha)
    drop_right = alpha * (math.cosh(1.0) - 1) + order * (math.e - 2)
    drop_left = alpha * (math.cosh(1.0) - 1) + order / math.e
    right = torch.where(drop_right > 2, (2 / (alpha + order)).sqrt(), one)
    right = torch.where(drop_right < 0.5, (4 / (alpha + 2 * order)).log(), right)
    left = torch.where(drop_left > 2, (4 / (alpha * math.cosh(1.0) + order)).sqrt(), one)
    inverse = 1 / alpha.clamp_min(1e-300)
    far = torch.log1p(inverse + (inverse**2 + 2 * inverse).sqrt())
    if order > 0:
        far = far.clamp_max(1 / order)
    return right, torch.where(drop_left < 0.5, far, left)


def stream_seed(*parts: object) -> int:
    """Derive the seed of a stream from the names of its purpose; a new stream does not change the others.

    A run of a table has four. ``stream_seed("TABLE/DATASET", seed, "weights")`` seeds torch's own generator
    while the network is made, so all rows start with the same one. ``"TABLE/DATASET/ROW"`` has ``"order"``
    (of the rows of an epoch), ``"noise"`` (the objective's draws) and ``"model"`` (dropout).

    Example:
        >>> stream_seed("airfoil", 0, "order") != stream_seed("airfoil", 0, "noise")
        True
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def stream(*parts: object) -> torch.Generator:
    """Make the generator of a stream, on the CPU; see `stream_seed`."""
    return torch.Generator().manual_seed(stream_seed(*parts))
