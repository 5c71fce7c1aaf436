"""The demo's random streams, one for each purpose."""

from __future__ import annotations

import torch

from elliptica import _streams as streams


def stream_seed(seed: int, purpose: str) -> int:
    """Derive the seed of a stream from the seed of the run and the purpose of the stream.

    Example:
        >>> stream_seed(0, "data") != stream_seed(0, "order") != stream_seed(1, "order")
        True
    """
    return streams.stream_seed("two moons", seed, purpose)


def stream(seed: int, purpose: str) -> torch.Generator:
    """Make the generator of a stream, on the CPU."""
    return streams.stream("two moons", seed, purpose)
