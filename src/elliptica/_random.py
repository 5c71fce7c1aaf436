"""Drawing on the generator's device, and nothing else (no global seeds in this library)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    """Refuse a generator that cannot serve data on ``device``.

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
    """Where to do the arithmetic: half precisions are computed in float32 and rounded once."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _source(generator: torch.Generator | None, device: torch.device) -> torch.device:
    """Device on which to draw."""
    return device if generator is None else generator.device


def draw_normal(
    shape: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    """Standard normals; ``dtype`` is expected to be float32 or float64."""
    source = _source(generator, device)
    z = torch.randn(*shape, dtype=dtype, device=source, generator=generator)
    return z if source == device else z.to(device)


def draw_uniform(shape: Sequence[int], *, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Uniforms on [0, 1) in float32."""
    source = _source(generator, device)
    u = torch.rand(*shape, dtype=torch.float32, device=source, generator=generator)
    return u if source == device else u.to(device)


def draw_permutation(
    n: int,
    *,
    device: torch.device,
    generator: torch.Generator | None,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """A uniformly random order of ``range(n)``."""
    source = _source(generator, device)
    order = torch.randperm(n, device=source, generator=generator, dtype=dtype)
    return order if source == device else order.to(device)


def draw_gamma(shape: float, n: int, *, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """``n`` draws of a Gamma variable with the given shape and scale 1, in float32.

    Drawn in float64 and kept above the smallest normal float32, so that its inverse is finite.
    """
    source = _source(generator, device)
    concentration = torch.full((n,), shape, dtype=torch.float64, device=source)
    gamma = torch._standard_gamma(concentration, generator=generator)  # the public one takes none
    return gamma.clamp_min(1e-30).float().to(device)
