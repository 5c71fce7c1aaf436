"""One random stream for each purpose, so that adding one leaves the others alone."""

from __future__ import annotations

import hashlib

import torch


def stream_seed(seed: int, purpose: str) -> int:
    """Derive the seed of a stream from the seed of the run and the purpose of the stream.

    Example:
        >>> stream_seed(0, "data") != stream_seed(0, "order") != stream_seed(1, "order")
        True
    """
    digest = hashlib.blake2b(f"two moons/{seed}/{purpose}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def stream(seed: int, purpose: str) -> torch.Generator:
    """Make the generator of a stream, on the CPU."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose))
