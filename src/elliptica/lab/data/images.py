"""Shared code of the image data sets: pixels to network inputs, image files, held-out parts."""

from __future__ import annotations

import io
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils.extras import import_extra
from elliptica.lab.data.splits import Dataset, Split

Pixels = Literal["float32", "uint8"]


class PixelStatistics(NamedTuple):
    """Means and deviations of the channels for normalising pixels, in units of 0 to 255."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


#: To [-1, 1]: MedMNIST, Tiny-ImageNet, Fashion-MNIST and RCF-MNIST.
UNIT_RANGE = PixelStatistics((127.5,), (127.5,))
#: Of the pipeline that the paper follows for CIFAR.
CIFAR10 = PixelStatistics((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
CIFAR100 = PixelStatistics((129.3, 124.1, 112.4), (68.2, 65.4, 70.4))


def normalise(x: Tensor, statistics: PixelStatistics = UNIT_RANGE) -> Tensor:
    """Convert uint8 pixels to float32 network inputs; float32 inputs pass unchanged.

    Use it on each batch of a data set that was loaded with ``pixels="uint8"``.

    Args:
        x: Images of shape ``(n, channels, height, width)``.
        statistics: Means and deviations: `UNIT_RANGE`, `CIFAR10`, `CIFAR100`, or your own.

    Example:
        >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """
    if x.dtype == torch.float32:
        return x
    if x.dtype != torch.uint8:
        raise TypeError(f"x must be uint8 pixels (or float32 inputs), but is {x.dtype}. Convert it first.")
    mean, deviation = (torch.tensor(t, device=x.device).view(-1, 1, 1) for t in statistics)
    return x.float().sub_(mean).div_(deviation)


def check_pixels(pixels: str) -> None:
    """Raise unless ``pixels`` is one of the two forms."""
    if pixels not in get_args(Pixels):
        raise ValueError(f"pixels must be 'float32' or 'uint8', but got {pixels!r}. Pass one of the two.")


def as_pixels(images: NDArray[np.uint8], statistics: PixelStatistics, pixels: Pixels) -> Tensor:
    """Return images in the requested form; the normalised form is filled in chunks to save memory."""
    x = torch.from_numpy(np.require(images, requirements=("C", "W")))
    if pixels == "uint8":
        return x
    out = torch.empty(x.shape, dtype=torch.float32)
    for rows in torch.arange(len(x)).split(4096):
        out[rows[0] : rows[-1] + 1] = normalise(x[rows[0] : rows[-1] + 1], statistics)
    return out


def image_dataset(
    name: str,
    seen: tuple[NDArray[np.uint8], NDArray[np.int64]],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    *,
    seed: int,
    validation_share: float,
    statistics: PixelStatistics,
    pixels: Pixels,
) -> Dataset:
    """Make a classification data set whose validation part is drawn from the official training part.

    With a share of 0 all images are for training, and the test part is also the validation part.
    """
    images, labels = seen
    order = np.random.RandomState(seed).permutation(len(images))
    cut = round(validation_share * len(images))
    if validation_share > 0 and not 0 < cut < len(images):
        raise ValueError(
            f"validation_share={validation_share} of {len(images)} images leaves {cut} for validation. "
            "Pass a share between 0 and 1 that leaves images on both sides."
        )
    rows = order[cut:]
    train = Split(as_pixels(images[rows], statistics, pixels), torch.from_numpy(labels[rows]))
    last = Split(as_pixels(test[0], statistics, pixels), torch.from_numpy(test[1]))
    validation = last
    if cut:
        held = np.sort(order[:cut])
        validation = Split(as_pixels(images[held], statistics, pixels), torch.from_numpy(labels[held]))
    return Dataset(name, train, validation, last, task="classification")


def check_share(validation_share: float) -> None:
    """Refuse shares outside [0, 1)."""
    if not 0 <= validation_share < 1:
        raise ValueError(
            f"validation_share must be at least 0 and below 1, but got {validation_share}. Pass e.g. 0.1."
        )


def pillow() -> Any:
    """Import Pillow's ``Image`` module; raise an error that names the extra if it is missing."""
    return import_extra("Reading image files", "lab", "PIL.Image")


def read_rgb(content: bytes, origin: str, *, max_pixels: int = 1 << 25) -> NDArray[np.uint8]:
    """Decode one PNG or JPEG file into ``(height, width, 3)``; grey images get three equal channels."""
    image_module = pillow()
    try:
        # opening reads only the header, so our limit comes before Pillow's warning about large images
        with image_module.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > max_pixels:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {max_pixels}")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise ValueError(
            f"Expected {origin} to be a PNG or JPEG image, but decoding failed: {error}. The file is "
            "truncated or damaged: delete it and put the original there."
        ) from error
