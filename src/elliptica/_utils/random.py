"""Draw random numbers on the generator's device (this library sets no global seeds)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for arithmetic: half precision is computed in float32 and rounded once."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def draw(
    sampler: Callable[..., Tensor],
    shape: int | Sequence[int],
    *,
    device: torch.device,
    generator: torch.Generator | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draw on the generator's device and move the result to ``device``."""
    source = device if generator is None else generator.device
    z = sampler(shape, dtype=dtype, device=source, generator=generator)
    return z if source == device else z.to(device)


#: Standard normals of a shape, in float32 or float64.
draw_normal = functools.partial(draw, torch.randn)
#: Uniforms on [0, 1) of a shape, in float32.
draw_uniform = functools.partial(draw, torch.rand, dtype=torch.float32)
#: A uniformly random permutation of ``range(n)``.
draw_permutation = functools.partial(draw, torch.randperm, dtype=torch.long)


def draw_gamma(shape: float, n: int, *, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw ``n`` Gamma variables with the given shape and scale 1, in float32.

    Drawn in float64 and kept above the smallest normal float32, so that its inverse is finite.
    """
    source = device if generator is None else generator.device
    concentration = torch.full((n,), shape, dtype=torch.float64, device=source)
    gamma = torch._standard_gamma(concentration, generator=generator)  # the public API takes no generator
    return gamma.clamp_min(1e-30).float().to(device)


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
