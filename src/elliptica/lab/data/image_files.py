"""Read photographs on demand: decode, crop, flip and normalise them with only Pillow and torch.

Crops and flips behave like those of the same names in torchvision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elliptica.lab.data.images import PixelStatistics, normalise, pillow

#: Means and deviations of ImageNet's channels, in units of pixels: 255 times 0.485, 0.456, 0.406 and 0.229,
#: 0.224, 0.225.
IMAGENET = PixelStatistics((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))

#: What is done to training images: a random rectangle and a flip, a flip, nothing.
Augmentation = Literal["crop", "flip", "none"]

_ATTEMPTS = 10


class Box(NamedTuple):
    """A rectangle of an image, in pixels from its upper left corner."""

    left: int
    top: int
    width: int
    height: int


def draw_box(
    width: int,
    height: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator | None = None,
) -> Box:
    """Draw the rectangle of a random resized crop.

    Its share of the image's area is uniform on ``scale`` and the logarithm of its width over its height is
    uniform on that of ``ratio``, given that it fits; its place is uniform. If ten draws do not fit, it is the
    largest central rectangle whose ratio is in the range.

    Example:
        >>> draw_box(60, 40, scale=(1.0, 1.0), ratio=(1.5, 1.5))
        Box(left=0, top=0, width=60, height=40)
    """
    low, high = (math.log(bound) for bound in ratio)
    u = torch.rand(2 * _ATTEMPTS + 2, dtype=torch.float64, generator=generator).tolist()
    for share, tilt in zip(u[:_ATTEMPTS], u[_ATTEMPTS:-2], strict=True):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * share)
        side = math.exp((low + (high - low) * tilt) / 2)
        w, h = round(math.sqrt(area) * side), round(math.sqrt(area) / side)
        if 0 < w <= width and 0 < h <= height:
            return Box(int(u[-2] * (width - w + 1)), int(u[-1] * (height - h + 1)), w, h)
    w = min(width, max(round(height * ratio[1]), 1))
    h = min(height, max(round(width / ratio[0]), 1))
    return Box((width - w) // 2, (height - h) // 2, w, h)


@dataclass(frozen=True)
class Pipeline:
    """Turn a photograph into a network input of ``size`` x ``size`` pixels.

    For evaluation: resize to ``first`` x ``first``, if given; crop the central square of ``centre`` pixels;
    resize. For training (``augment``): ``"crop"`` takes a random rectangle instead, then mirrors at random;
    ``"flip"`` mirrors at random.

    Example:
        >>> Pipeline(size=8, centre=20)(pillow().new("RGB", (30, 24))).shape
        torch.Size([3, 8, 8])
    """

    size: int
    centre: int
    first: int | None = None
    augment: Augmentation = "none"
    scale: tuple[float, float] = (0.7, 1.0)  # share of the rectangle's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # its width over its height

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Tensor:
        """Return the input for training with the draws of ``generator``, or for evaluation if it is None."""
        image = image.convert("RGB")
        if generator is not None and self.augment == "crop":
            box = draw_box(*image.size, scale=self.scale, ratio=self.ratio, generator=generator)
        else:
            if self.first is not None:
                image = _resized(image, self.first)
            left, top = (round((side - self.centre) / 2) for side in image.size)
            box = Box(left, top, self.centre, self.centre)
        image = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
        image = _resized(image, self.size)
        flips = generator is not None and self.augment != "none"
        if flips and float(torch.rand((), dtype=torch.float64, generator=generator)) < 0.5:
            image = image.transpose(pillow().Transpose.FLIP_LEFT_RIGHT)
        return normalise(np.array(image).transpose(2, 0, 1)[None], IMAGENET)[0]


def _resized(image: Any, size: int) -> Any:
    return image.resize((size, size), pillow().Resampling.BILINEAR)


class ImageFiles:
    """Stand in for a tensor of images: decode files row by row instead of holding all of them.

    It has the shape, dtype and length of the decoded images, and returns an ordinary tensor for an index and
    for `split`; it is no tensor for anything else. Files are decoded in threads; the result does not depend
    on their number.

    Indexing returns the images for evaluation, the same every time. ``x.training(generator)[rows]`` returns
    randomly transformed ones; the same generator state gives the same images.
    """

    dtype = torch.float32

    def __init__(
        self,
        paths: Sequence[str],
        pipeline: Pipeline,
        *,
        workers: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self.pipeline = pipeline
        self.workers = workers
        self.generator = generator

    @property
    def shape(self) -> torch.Size:
        """Shape of all images together."""
        return torch.Size([len(self.paths), 3, self.pipeline.size, self.pipeline.size])

    def __len__(self) -> int:
        return len(self.paths)

    def training(self, generator: torch.Generator) -> ImageFiles:
        """Return the same rows, randomly transformed each time they are read.

        Reading draws one number for each image, in the order of the rows, from ``generator``; each image's
        transform then draws from its own stream. Without steps for training nothing is drawn.
        """
        source = None if self.pipeline.augment == "none" else generator
        return ImageFiles(self.paths, self.pipeline, workers=self.workers, generator=source)

    def __getitem__(self, index: Any) -> Tensor:
        # index the row numbers with torch, so that every kind of index behaves as usual
        rows = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        numbers = rows.flatten().tolist()
        seeds: list[int | None] = [None] * len(numbers)
        if self.generator is not None:
            seeds = torch.randint(2**62, (len(numbers),), generator=self.generator).tolist()
        with ThreadPoolExecutor(self.workers) as pool:
            images = list(pool.map(self._decode, (self.paths[i] for i in numbers), seeds))
        empty = torch.empty(0, *self.shape[1:])
        return (torch.stack(images) if images else empty).reshape(*rows.shape, *self.shape[1:])

    def split(self, size: int) -> Iterator[Tensor]:
        """Iterate over parts of ``size`` rows, each decoded on demand."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def _decode(self, path: str, seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        with pillow().open(path, formats=("PNG", "JPEG")) as image:
            return self.pipeline(image, generator)
