"""Fashion-MNIST, from its published idx files or from Debian's package of them."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elliptica.data.images import UNIT_RANGE, Pixels, check_pixels, check_share, image_dataset
from elliptica.data.location import checksum, find_file
from elliptica.data.splits import Dataset

#: Where Debian's package dataset-fashion-mnist puts the files.
SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FOLDER = "fashion_mnist"
SOURCE = (
    "https://github.com/zalandoresearch/fashion-mnist (data/fashion), or Debian's package "
    "dataset-fashion-mnist"
)


@dataclass(frozen=True)
class IdxFile:
    """A published idx file. The hash is that of the *unpacked* content: packed files differ by packer."""

    name: str
    shape: tuple[int, ...]
    sha256: str


TRAIN = (
    IdxFile(
        "train-images-idx3-ubyte",
        (60000, 28, 28),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    IdxFile(
        "train-labels-idx1-ubyte",
        (60000,),
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
)
TEST = (
    IdxFile(
        "t10k-images-idx3-ubyte",
        (10000, 28, 28),
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte",
        (10000,),
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


def load_fashion_mnist(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    validation_share: float = 0.1,
    pixels: Pixels = "float32",
) -> Dataset:
    """Load Fashion-MNIST: 28x28 grey images of 10 kinds of clothing.

    Looked for as ``fashion_mnist/train-images-idx3-ubyte.gz`` and so on, packed or not, in the data
    directories, then where Debian's package ``dataset-fashion-mnist`` puts them.

    Args:
        seed: Seed of the order of training images, and of which of them are held out.
        data_dir: Directory that holds ``fashion_mnist``; see `data_directories` if None.
        validation_share: Share of the official training images held out for validation. With 0 all are
            trained on and the test part is also the validation part: do not select by it.
        pixels: Scaled to [-1, 1] (``"float32"``), or as they are (``"uint8"``); pass batches through
            `normalise` then.

    Returns:
        Images of shape ``(n, 1, 28, 28)``; classes of shape ``(n,)``, int64.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is not the published one.

    Example:
        >>> load_fashion_mnist().test.x.shape  # doctest: +SKIP
        torch.Size([10000, 1, 28, 28])
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
    """The first of: packed or plain file in the data directories, then in the system's folder."""
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
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _refusal(path, known, f"unpacking it failed: {error}") from error
    header = bytes([0, 0, 8, len(known.shape)]) + b"".join(n.to_bytes(4, "big") for n in known.shape)
    if content[: len(header)] != header:
        raise _refusal(path, known, f"its header is {content[: len(header)].hex()}")
    expected = int(np.prod(known.shape))
    if len(content) - len(header) != expected:
        raise _refusal(path, known, f"it holds {len(content) - len(header)} of {expected} bytes")
    if (got := checksum([content], "sha256")) != known.sha256:
        raise _refusal(path, known, f"its unpacked content has SHA-256 {got}, not {known.sha256}")
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(known.shape)


def _refusal(path: Path, known: IdxFile, problem: str) -> ValueError:
    shape = " x ".join(map(str, known.shape))
    return ValueError(
        f"Expected {path} to be the idx file of {shape} bytes of Fashion-MNIST, but {problem}. Delete it and "
        f"put the original there. The original comes from: {SOURCE}."
    )
