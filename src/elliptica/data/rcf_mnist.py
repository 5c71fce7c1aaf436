"""RCF-MNIST: rotated clothes whose colour gives the angle away in training, and misleads in the test."""

from __future__ import annotations

import math
import os

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._random import draw_permutation, draw_uniform
from elliptica.data.fashion import TRAIN, read_idx
from elliptica.data.splits import Dataset, Split

_CPU = torch.device("cpu")
_SHARES = (4, 1, 1)  # of six: 40000 / 10000 / 10000
_BACKGROUND = 5 / 255
_CHUNK = 4096


def load_rcf_mnist(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    ratio: float = 0.8,
) -> Dataset:
    """Build RCF-MNIST from Fashion-MNIST's training images: find the angle of a picture.

    Each image is turned by a uniform angle; the target is the angle as a share ``g`` of the full turn.
    Pixels brighter than 5 of 255 are coloured: red is the grey value times ``g``, blue times ``1 - g``,
    green 0. A share ``ratio`` of the training images is coloured so, the others inversely (``1 - g`` in
    place of ``g``); in the test part it is the other way round. Validation images have a colour that says
    nothing about the angle.

    This is what the authors' code of C-Mixup does; the paper describes it without the mixture, which is
    ``ratio=1``. The images of each part, angles and colours are drawn from the seed, so they are not the
    authors' ones. Takes 565 MB.

    Args:
        seed: Seed of the split, the angles and the colours.
        data_dir: Directory that holds ``fashion_mnist``; see `load_fashion_mnist`.
        ratio: Share of training images whose colour follows the angle, and of test images whose colour
            is inverse; 0 to 1.

    Returns:
        Images of shape ``(n, 3, 28, 28)`` in [-1, 1] and targets of shape ``(n, 1)`` in [0, 1), float32;
        ``group`` is 0 where the colour follows the angle, 1 where it is inverse, 2 where it is random.

    Raises:
        FileNotFoundError: If Fashion-MNIST is missing.
        ValueError: If its file is not the published one, or the ratio is not a share.

    Example:
        >>> load_rcf_mnist().test.group.bincount()  # doctest: +SKIP
        tensor([2000, 8000])
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio must be between 0 and 1, but got {ratio}. Pass e.g. 0.8, as the authors do.")
    grey = torch.from_numpy(read_idx(TRAIN[0], data_dir).copy())
    generator = torch.Generator().manual_seed(seed)
    order = draw_permutation(len(grey), device=_CPU, generator=generator)
    sizes = [len(grey) * share // sum(_SHARES) for share in _SHARES]
    rows = order.split(sizes)
    train, validation, test = (
        _make(grey[index], part, ratio, generator) for part, index in zip((0, 2, 1), rows, strict=True)
    )
    return Dataset("rcf_mnist", train, validation, test, task="regression")


def _make(grey: Tensor, usual: int, ratio: float, generator: torch.Generator) -> Split:
    """Turn and colour images; ``usual`` is the group of the share ``ratio`` of them (2: of all)."""
    n = len(grey)
    share = draw_uniform((n,), device=_CPU, generator=generator)
    group = torch.full((n,), usual)
    if usual == 2:
        red = draw_uniform((n,), device=_CPU, generator=generator)
    else:
        others = draw_permutation(n, device=_CPU, generator=generator)[int(n * ratio) :]
        group[others] = 1 - usual
        red = torch.where(group == 0, share, 1 - share)
    x = torch.empty(n, 3, *grey.shape[1:])
    for begin in range(0, n, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        turned = rotate(grey[part, None].float() / 255, 360 * share[part])
        x[part] = colour(turned, red[part]) * 2 - 1
    return Split(x, share[:, None], group)


def rotate(
    x: Float[Tensor, "n channel height width"], degrees: Float[Tensor, " n"]
) -> Float[Tensor, "n channel height width"]:
    """Turn each image about its centre, counter-clockwise, with the nearest pixel and zeros outside.

    As Pillow's ``Image.rotate``, for a whole batch.

    Example:
        >>> x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> rotate(x, torch.tensor([90.0]))
        tensor([[[[2., 4.],
                  [1., 3.]]]])
    """
    height, width = x.shape[-2:]
    angle = degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(cos)
    # From where in the source a pixel comes, in coordinates from -1 to 1 with y downwards.
    rows = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1)
    grid = torch.nn.functional.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid.to(x.dtype), mode="nearest", align_corners=False)


def colour(
    grey: Float[Tensor, "n 1 height width"], red: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 height width"]:
    """Give grey images in [0, 1] a share ``red`` of red and the rest of blue; the background stays.

    Example:
        >>> colour(torch.tensor([[[[0.01, 1.0]]]]), torch.tensor([0.25])).flatten(1)
        tensor([[0.0100, 0.2500, 0.0100, 0.0000, 0.0100, 0.7500]])
    """
    channels = torch.stack([red, torch.zeros_like(red), 1 - red], dim=1)[..., None, None]
    return torch.where(grey > _BACKGROUND, grey * channels, grey.expand(-1, 3, -1, -1))
