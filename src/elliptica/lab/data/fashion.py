"""Fashion-MNIST and RCF-MNIST, from the published idx files or from Debian's package of them.

RCF-MNIST consists of rotated clothes whose colour reveals the angle in training, and misleads in the test.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils.random import draw_permutation, draw_uniform
from elliptica.lab.data.catalogue import find_entry
from elliptica.lab.data.files import checksum, find_file
from elliptica.lab.data.images import UNIT_RANGE, Pixels, check_pixels, check_share, image_dataset
from elliptica.lab.data.splits import Dataset, Split

#: Where Debian's package dataset-fashion-mnist puts the files.
SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FOLDER = "fashion_mnist"
SOURCE = find_entry("fashion_mnist").source


_CPU = torch.device("cpu")
_SHARES = (4, 1, 1)  # of six: 40000 / 10000 / 10000
_BACKGROUND = 5 / 255
_CHUNK = 4096


@dataclass(frozen=True)
class IdxFile:
    """A published idx file. The hash is that of the *unpacked* content: packed files differ by packer."""

    name: str
    shape: tuple[int, ...]
    checksum: str


_SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
_FILES = tuple(
    IdxFile(Path(file.path).stem, shape, file.checksum)
    for file, shape in zip(find_entry("fashion_mnist").forms[0], _SHAPES, strict=True)
)
#: Images and labels.
TRAIN, TEST = _FILES[:2], _FILES[2:]


def load_fashion_mnist(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    validation_share: float = 0.1,
    pixels: Pixels = "float32",
) -> Dataset:
    """Load Fashion-MNIST: 28x28 grey images of 10 kinds of clothing.

    Files are searched as ``fashion_mnist/train-images-idx3-ubyte.gz`` and so on, packed or not, in the data
    directories, then where Debian's package ``dataset-fashion-mnist`` puts them.

    Args:
        seed: Seed of the order of training images, and of which of them are held out.
        data_dir: Directory that holds ``fashion_mnist``; see `data_directories` if None.
        validation_share: Share of the official training images held out for validation. With 0 all are
            used for training, and the test part is also the validation part: do not select by it.
        pixels: Scaled to [-1, 1] (``"float32"``), or as they are (``"uint8"``); pass batches through
            `normalise` then.

    Returns:
        Images of shape ``(n, 1, 28, 28)``; classes of shape ``(n,)``, int64.
    """
    check_share(validation_share)
    check_pixels(pixels)
    (x, y), (test_x, test_y) = (tuple(read_idx(known, data_dir) for known in part) for part in (TRAIN, TEST))
    return image_dataset(
        "fashion_mnist",
        (x[:, None], y.astype(np.int64)),
        (test_x[:, None], test_y.astype(np.int64)),
        seed=seed,
        validation_share=validation_share,
        statistics=UNIT_RANGE,
        pixels=pixels,
    )


def find_idx(known: IdxFile, data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the packed or plain file in the data directories, else in the system's folder."""
    for name in (f"{known.name}.gz", known.name):
        try:
            return find_file(f"{FOLDER}/{name}", data_dir)
        except FileNotFoundError:
            continue
    packaged = SYSTEM_FOLDER / f"{known.name}.gz"
    if packaged.is_file():
        return packaged
    return find_file(f"{FOLDER}/{known.name}.gz", data_dir, source=SOURCE)  # its error lists the places


def read_idx(known: IdxFile, data_dir: str | os.PathLike[str] | None = None) -> NDArray[np.uint8]:
    """Read and check one file of unsigned bytes.

    Its header is two zero bytes, the code 8 for unsigned bytes, the number of axes, and their lengths as
    big-endian integers.
    """
    path = find_idx(known, data_dir)
    most = 4 + 4 * len(known.shape) + math.prod(known.shape) + 1  # a small file can unpack to any size
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most)
    except (OSError, EOFError, zlib.error) as error:
        raise _refusal(path, known, f"unpacking it failed: {error}") from error
    header = bytes([0, 0, 8, len(known.shape)]) + b"".join(n.to_bytes(4, "big") for n in known.shape)
    if content[: len(header)] != header:
        raise _refusal(path, known, f"its header is {content[: len(header)].hex()}")
    expected = int(np.prod(known.shape))
    if len(content) - len(header) != expected:
        got = (
            f"more than {expected}" if len(content) == most else f"{len(content) - len(header)} of {expected}"
        )
        raise _refusal(path, known, f"it holds {got} bytes")
    kind, wanted = known.checksum.split(":")
    if (got := checksum([content], kind)) != wanted:
        raise _refusal(path, known, f"its unpacked content has SHA-256 {got}, not {wanted}")
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(known.shape)


def _refusal(path: Path, known: IdxFile, problem: str) -> ValueError:
    shape = " x ".join(map(str, known.shape))
    return ValueError(
        f"Expected {path} to be the idx file of {shape} bytes of Fashion-MNIST, but {problem}. Delete it and "
        f"put the original there. The original comes from: {SOURCE}."
    )


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
    grid = torch.nn.functional.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid.to(x.dtype), mode="nearest", align_corners=False)


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
