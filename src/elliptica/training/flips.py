"""Flips and crops of a batch of images, each image on its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad


def flip_and_crop(
    x: Float[Tensor, "batch channel height width"], padding: int, generator: torch.Generator
) -> Float[Tensor, "batch channel height width"]:
    """Mirror each image with probability one half, then shift it by up to ``padding`` pixels.

    A shift is a crop of the image with ``padding`` zeros around it, as usual for CIFAR. Draws from the
    generator on the CPU, so that every device sees the same images: flips, then rows, then columns.
    """
    if x.ndim != 4:
        raise ValueError(
            "Flips and crops need images of shape (batch, channel, height, width), but the inputs have "
            f'shape {tuple(x.shape)}. Set augment = "none" for other data.'
        )
    rows, _, height, width = x.shape
    flips = torch.rand(rows, generator=generator) < 0.5
    down, right = (torch.randint(2 * padding + 1, (rows,), generator=generator) for _ in range(2))
    padded = pad(x, [padding] * 4)
    # Columns of the padded, flipped image: a flip of the padded image is the padded flipped image.
    columns = torch.arange(width) + right[:, None]
    columns = torch.where(flips[:, None], width + 2 * padding - 1 - columns, columns)
    lines = torch.arange(height) + down[:, None]
    sample = torch.arange(rows)[:, None, None, None]
    channel = torch.arange(x.shape[1])[None, :, None, None]
    place = (sample, channel, lines[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(part.to(x.device) for part in place)]
