"""One random stream for each purpose, so that adding one leaves the others alone."""

from __future__ import annotations

import hashlib

import torch


def stream_seed(*parts: object) -> int:
    """Derive the seed of a stream from the names of what it is for.

    Example:
        >>> stream_seed("airfoil", 0, "order") != stream_seed("airfoil", 0, "noise")
        True
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def stream(*parts: object) -> torch.Generator:
    """Make the generator of a stream, on the CPU."""
    return torch.Generator().manual_seed(stream_seed(*parts))
