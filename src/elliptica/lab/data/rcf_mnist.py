"""RCF-MNIST: rotated clothes whose colour reveals the angle in training, and misleads in the test.

As images, and as features of a frozen network, for a small head on a processor.
"""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.files import replacing
from elliptica._utils.random import draw_permutation, draw_uniform
from elliptica.lab.data.catalogue import data_directories, find_files
from elliptica.lab.data.images import read_idx
from elliptica.lab.data.splits import Dataset, Scaling, Split, standardise
from elliptica.lab.models.backbones import load_backbone

_CPU = torch.device("cpu")
_SHARES = (4, 1, 1)  # of six: 40000 / 10000 / 10000
_BACKGROUND = 5 / 255
_PARTS = ("train", "validation", "test")
_CHUNK = 4096
_IMAGES_AT_ONCE = 32  # of the frozen network; more cost more, in allocating memory


def load_rcf_mnist(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    ratio: float = 0.8,
) -> Dataset:
    """Build RCF-MNIST from Fashion-MNIST's training images: predict the angle of an image.

    Each image is rotated by a uniform angle; the target is the angle as a share ``g`` of the full turn.
    Pixels brighter than 5 of 255 are coloured: red is the grey value times ``g``, blue times ``1 - g``,
    green 0. A share ``ratio`` of the training images is coloured like this, the others inversely (``1 - g``
    in place of ``g``); in the test part it is the other way round. Validation images have a colour that says
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
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"ratio must be between 0 and 1, but got {ratio}.")
    grey = torch.from_numpy(read_idx(find_files("rcf_mnist", data_dir)[0]).copy())
    generator = torch.Generator().manual_seed(seed)
    order = draw_permutation(len(grey), device=_CPU, generator=generator)
    sizes = [len(grey) * share // sum(_SHARES) for share in _SHARES]
    train, validation, test = (
        _make(grey[rows], usual, ratio, generator)
        for usual, rows in zip((0, 2, 1), order.split(sizes), strict=True)
    )
    return Dataset("rcf_mnist", train, validation, test, task="regression")


def _make(grey: Tensor, usual: int, ratio: float, generator: torch.Generator) -> Split:
    """Rotate and colour images; ``usual`` is the group of the share ``ratio`` of them (2: of all)."""
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
    """Rotate each image about its centre, counter-clockwise, with the nearest pixel and zeros outside.

    This is Pillow's ``Image.rotate`` for a whole batch.

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
    # source of each pixel, in coordinates from -1 to 1 with y downwards
    rows = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1)
    grid = nn.functional.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
    return nn.functional.grid_sample(x, grid.to(x.dtype), mode="nearest", align_corners=False)


def colour(
    grey: Float[Tensor, "n 1 height width"], red: Float[Tensor, " n"]
) -> Float[Tensor, "n 3 height width"]:
    """Colour grey images in [0, 1] with a share ``red`` of red and the rest of blue, but not the background.

    Example:
        >>> colour(torch.tensor([[[[0.01, 1.0]]]]), torch.tensor([0.25])).flatten(1)
        tensor([[0.0100, 0.2500, 0.0100, 0.0000, 0.0100, 0.7500]])
    """
    channels = torch.stack([red, torch.zeros_like(red), 1 - red], dim=1)[..., None, None]
    return torch.where(grey > _BACKGROUND, grey * channels, grey.expand(-1, 3, -1, -1))


def load_rcf_mnist_features(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    scale: Scaling = "train",
) -> Dataset:
    """Load RCF-MNIST as 1280 features of a frozen network: find the angle of a picture.

    Features are the average of the last feature map of EfficientNet-Lite0 with ImageNet weights, at images of
    `load_rcf_mnist` (seed 0) enlarged to 64 pixels. The first call computes them (two minutes of one core;
    see `load_backbone` for the packages it needs) and keeps them as ``rcf_mnist/effnetlite0-64px.npz``
    (155 MB) in ``data_dir``, or in the cache folder.

    Deviation: the paper trains ResNet-18 on the images. Do not compare numbers with such work.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``fashion_mnist`` and gets the features; see `data_directories` if
            None.
        scale: ``"train"`` gives each feature mean 0 and deviation 1 in the training rows (a feature that
            is constant there becomes 0 in all rows); ``"none"`` leaves them alone.

    Returns:
        Inputs of shape ``(n, 1280)`` and targets of shape ``(n, 1)``, float32; ``group`` as in
        `load_rcf_mnist`.
    """
    checks.choice("scale", scale, get_args(Scaling))
    places = [place / "rcf_mnist" / "effnetlite0-64px.npz" for place in data_directories(data_dir)]
    path = next((place for place in places if place.is_file()), places[-1])
    if not path.is_file():
        _write(path, data_dir)
    rng = np.random.RandomState(seed)
    train, validation, test = (
        Split(x[rows], y[rows], group[rows])
        for x, y, group in _read(path, scale)
        for rows in (torch.from_numpy(rng.permutation(len(x))),)
    )
    return Dataset("rcf_mnist", train, validation, test, task="regression")


@functools.lru_cache(maxsize=1)  # scaling costs as much as an epoch of a small head
def _read(path: Path, scale: Scaling) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """Read and scale the parts; the order of their rows is that of the images."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    inputs = [arrays[f"{part}.x"].double() for part in _PARTS]
    if scale == "train":
        inputs = standardise(inputs)
    return tuple(
        (x.float(), arrays[f"{part}.y"], arrays[f"{part}.group"])
        for x, part in zip(inputs, _PARTS, strict=True)
    )


def _write(path: Path, data_dir: str | os.PathLike[str] | None) -> None:
    """Compute the features of all parts, in half precision, and write them as a whole."""
    network = load_backbone("efficientnet_lite0", num_classes=0).eval()
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = load_rcf_mnist(0, data_dir=data_dir)
    arrays: dict[str, Any] = {}
    for name, part in zip(_PARTS, (data.train, data.validation, data.test), strict=True):
        assert part.group is not None
        arrays[f"{name}.x"] = features(network, part.x, 64).half().numpy()
        arrays[f"{name}.y"], arrays[f"{name}.group"] = part.y.numpy(), part.group.numpy()
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def features(network: nn.Module, x: Tensor, size: int) -> Tensor:
    """Outputs of a network at images in [-1, 1], enlarged and scaled as EfficientNet-Lite0 expects."""
    outputs = []
    with torch.inference_mode():
        for part in x.split(_IMAGES_AT_ONCE):
            pixels = nn.functional.interpolate(
                (part + 1) * 127.5, size=(size, size), mode="bilinear", align_corners=False
            )
            images = ((pixels - 127) / 128).to(memory_format=torch.channels_last)
            outputs.append(network(images).flatten(1))
    return torch.cat(outputs)
