"""Convert photographs to network inputs: crops, flips and sizes, with only Pillow and torch.

The steps behave like those of the same names in torchvision for Pillow images, and images are resized
with Pillow's bilinear filter there and here, so that published pipelines can be used unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica.lab.data.images import PixelStatistics, normalise, pillow

#: Means and deviations of ImageNet's channels, in units of pixels: 255 times 0.485, 0.456, 0.406 and 0.229,
#: 0.224, 0.225.
IMAGENET = PixelStatistics((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))

#: A step: a Pillow image and a source of randomness to a Pillow image.
Step = Callable[[Any, torch.Generator | None], Any]

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
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    generator: torch.Generator | None = None,
) -> Box:
    """Draw the rectangle of a random resized crop.

    Its share of the image's area is uniform on ``scale`` and the logarithm of its width over its height is
    uniform on that of ``ratio``, given that it fits; its place is uniform. If ten draws do not fit, it is the
    largest central rectangle whose ratio is in the range. Draws twenty uniforms for area and ratio, then two
    for the place, whether or not they are needed.

    Args:
        width: Width of the image.
        height: Height of the image.
        scale: Least and largest share of the area, above 0 and up to 1.
        ratio: Least and largest width over height, above 0.
        generator: Source of randomness. None means torch's default generator.

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
class RandomResizedCrop:
    """Crop a random rectangle, see `draw_box`, and resize it to ``size`` x ``size`` pixels.

    Example:
        >>> image = pillow().new("RGB", (60, 40))
        >>> RandomResizedCrop(8)(image, torch.Generator()).size
        (8, 8)
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"scale must be two shares of the area, 0 < least <= largest <= 1, but got {self.scale}."
            )
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(
                f"ratio must be two ratios of width to height, 0 < least <= largest, but got {self.ratio}."
            )

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """The crop."""
        box = draw_box(image.width, image.height, scale=self.scale, ratio=self.ratio, generator=generator)
        part = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
        return _resized(part, self.size, self.size)


@dataclass(frozen=True)
class RandomFlip:
    """Mirror left and right with probability ``p``; always takes one draw.

    Example:
        >>> image = pillow().new("RGB", (60, 40))
        >>> RandomFlip()(image, torch.Generator()).size
        (60, 40)
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p must be a probability, 0 to 1, but got {self.p}. Pass e.g. 0.5.")

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """Return the image or its mirror image."""
        is_flipped = float(torch.rand((), dtype=torch.float64, generator=generator)) < self.p
        return image.transpose(pillow().Transpose.FLIP_LEFT_RIGHT) if is_flipped else image


@dataclass(frozen=True)
class Resize:
    """Resize an image.

    Attributes:
        size: Height and width, for any aspect ratio; or the length of the shorter side, and the longer
            one follows, rounded down.

    Example:
        >>> image = pillow().new("RGB", (60, 40))
        >>> Resize(8)(image).size, Resize((8, 8))(image).size
        ((12, 8), (8, 8))
    """

    size: int | tuple[int, int]

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """Return the resized image."""
        if isinstance(self.size, tuple):
            height, width = self.size
        else:
            shorter = min(image.size)
            width, height = (self.size * side // shorter for side in image.size)
        return _resized(image, width, height)


@dataclass(frozen=True)
class CentreCrop:
    """Crop the central ``size`` x ``size`` pixels; pad a smaller image with black.

    Example:
        >>> image = pillow().new("RGB", (60, 40))
        >>> CentreCrop(50)(image).size
        (50, 50)
    """

    size: int

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """The crop."""
        left, top = (
            round((side - self.size) / 2) if side >= self.size else -((self.size - side) // 2)
            for side in image.size
        )
        return image.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True)
class ImageTransform:
    """Apply steps in order, then normalise pixels to float32 with given means and deviations.

    Example:
        >>> transform = ImageTransform((8, 8), (Resize((8, 8)),))
        >>> transform(pillow().new("RGB", (60, 40))).shape
        torch.Size([3, 8, 8])
    """

    size: tuple[int, int]  # height and width after the last step; another size is an error
    steps: tuple[Step, ...]  # steps on the Pillow image, in this order
    #: Means and deviations of the channels, see `PixelStatistics`; ImageNet's unless said.
    statistics: PixelStatistics = IMAGENET

    def __post_init__(self) -> None:
        if not all(deviation > 0 for deviation in self.statistics.deviation):
            raise ValueError(
                "statistics must have deviations above 0, in units of pixels (0 to 255), but they are "
                f"{self.statistics.deviation}."
            )

    def __call__(
        self, image: Any, generator: torch.Generator | None = None
    ) -> Float[Tensor, "3 height width"]:
        """Convert a Pillow image to a network input."""
        for step in self.steps:
            image = step(image, generator)
        if (image.height, image.width) != self.size:
            raise ValueError(
                f"The steps must end with {self.size[0]} x {self.size[1]} pixels (height x width), but made "
                f"{image.height} x {image.width}. Put a step of that size last, e.g. Resize({self.size})."
            )
        pixels = torch.from_numpy(np.array(image.convert("RGB")))
        return normalise(pixels.permute(2, 0, 1).contiguous(), self.statistics)


def augmented(
    transform: ImageTransform,
    augment: Augmentation,
    *,
    scale: tuple[float, float] = (0.7, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> ImageTransform | None:
    """Return the training transform for an evaluation transform; None if it is the same.

    Args:
        transform: Transform for evaluation, which makes square images.
        augment: ``"crop"`` takes a random rectangle instead of its steps, then mirrors at random; ``"flip"``
            mirrors at random after its steps; ``"none"``.
        scale: Range of the rectangle's area, see `draw_box`.
        ratio: Range of the rectangle's ratio.

    Example:
        >>> augmented(ImageTransform((8, 8), (Resize((8, 8)),)), "flip").steps
        (Resize(size=(8, 8)), RandomFlip(p=0.5))
    """
    checks.choice("augment", augment, get_args(Augmentation))
    if augment == "none":
        return None
    crop = RandomResizedCrop(transform.size[0], scale=scale, ratio=ratio)
    steps = transform.steps if augment == "flip" else (crop,)
    return ImageTransform(transform.size, (*steps, RandomFlip()), transform.statistics)


def _resized(image: Any, width: int, height: int) -> Any:
    if image.size == (width, height):
        return image
    return image.resize((width, height), pillow().Resampling.BILINEAR)
