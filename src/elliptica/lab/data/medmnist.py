"""Load MedMNIST: small medical images from their published files (paper: Table 6)."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from elliptica._utils.files import read_arrays
from elliptica.lab.data.catalogue import DataFile, find_entry
from elliptica.lab.data.files import find_file, verify_checksum
from elliptica.lab.data.images import UNIT_RANGE, Pixels, as_pixels, check_pixels
from elliptica.lab.data.splits import Dataset, Split

Evaluation = Literal["test", "validation"]

_SIZE = 28


@dataclass(frozen=True)
class MedMNIST:
    """Facts about a published file of 28x28 images."""

    name: str  # name in MedMNIST, in small letters
    n_channels: int  # 1 for grey, 3 for colour
    n_classes: int  # number of classes
    file: DataFile  # its path and published hash
    sizes: tuple[int, ...]  # images for training, validation and test
    source: str  # where the file comes from

    @classmethod
    def listed(cls, name: str, n_channels: int, n_classes: int) -> MedMNIST:
        """Make it from the catalogue."""
        entry = find_entry(name)
        return cls(name, n_channels, n_classes, entry.forms[0][0], entry.rows, entry.source)


#: The data sets by name.
MEDMNIST = {
    known.name: known
    for known in (
        MedMNIST.listed("breastmnist", 1, 2),
        MedMNIST.listed("bloodmnist", 3, 8),
        MedMNIST.listed("pathmnist", 3, 9),
        MedMNIST.listed("pathmnist_subset", 3, 9),
        MedMNIST.listed("organamnist", 1, 11),
        MedMNIST.listed("organcmnist", 1, 11),
        MedMNIST.listed("organsmnist", 1, 11),
        MedMNIST.listed("retinamnist", 3, 5),
        MedMNIST.listed("dermamnist", 3, 7),
        MedMNIST.listed("pneumoniamnist", 1, 2),
        MedMNIST.listed("tissuemnist", 1, 8),
        MedMNIST.listed("octmnist", 1, 4),
    )
}


def load_medmnist(
    name: str,
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    evaluate_on: Evaluation = "test",
    pixels: Pixels = "float32",
) -> Dataset:
    """Load one of the 28x28 MedMNIST data sets in its official parts (paper: Table 6).

    Pixels are scaled to [0, 1] and normalised with mean 0.5 and deviation 0.5, so they lie in [-1, 1].

    The paper trains PathMNIST on the official training part and *tests on the official validation part*
    (the official test part comes from another clinical centre): ``evaluate_on="validation"``. There is
    then no third part, so a tenth of the training images, drawn by the seed, becomes the validation part;
    that is our choice.

    Args:
        name: ``"breastmnist"``, ``"bloodmnist"``, ``"pathmnist"``, ``"pathmnist_subset"`` (a tenth of its
            training and validation images), ``"organamnist"``, ``"organcmnist"``, ``"organsmnist"``,
            ``"retinamnist"`` (grades as classes), ``"dermamnist"``, ``"pneumoniamnist"``,
            ``"tissuemnist"`` or ``"octmnist"``, with or without "mnist".
        seed: Seed of the order of the training images, and of the split if there is one.
        data_dir: Directory that holds e.g. ``breastmnist/breastmnist.npz``; see `data_directories` if None.
        evaluate_on: Official part that becomes ``Dataset.test``.
        pixels: ``"uint8"`` takes a quarter of the memory; normalise batches with `normalise` then.

    Returns:
        Images of shape ``(n, channels, 28, 28)``; classes of shape ``(n,)``, int64.
    """
    known = _find(name)
    if evaluate_on not in get_args(Evaluation):
        raise ValueError(
            f"evaluate_on must be 'test' or 'validation', but got {evaluate_on!r}. Pass one of the two."
        )
    check_pixels(pixels)
    path = find_file(known.file.path, data_dir, source=known.source)
    parts = _read(path, known)  # before the hash, because its message says what is wrong with a bad file
    verify_checksum(path, known.file.checksum, source=known.source)
    rng = np.random.RandomState(seed)
    images, labels = parts[0]
    order = rng.permutation(len(images))
    if evaluate_on == "validation":
        cut = max(1, len(order) // 10)
        held_out, order = np.sort(order[:cut]), order[cut:]
        parts = [(images[order], labels[order]), (images[held_out], labels[held_out]), parts[1]]
    else:
        parts[0] = (images[order], labels[order])
    train, validation, test = (
        Split(as_pixels(x, UNIT_RANGE, pixels), torch.from_numpy(y.astype(np.int64))) for x, y in parts
    )
    return Dataset(known.name, train, validation, test, task="classification")


def _find(name: str) -> MedMNIST:
    plain = name.lower()
    if plain in ("chest", "chestmnist"):
        raise ValueError(
            f"name={name!r} has 14 labels per image, but load_medmnist gives one class per image. Read "
            "chestmnist.npz by numpy.load and use torch.nn.BCEWithLogitsLoss on its labels."
        )
    for candidate in (plain, f"{plain}mnist"):
        if candidate in MEDMNIST:
            return MEDMNIST[candidate]
    raise ValueError(f"name must be one of {', '.join(MEDMNIST)}, but got {name!r}.")


def _read(path: Path, known: MedMNIST) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Return images ``(n, channels, 28, 28)`` and labels ``(n,)`` of the official parts."""
    keys = [f"{part}_{what}" for part in ("train", "val", "test") for what in ("images", "labels")]
    try:
        arrays = read_arrays(path)  # a look at the sizes first: a few bytes can claim any
        arrays = {key: arrays[key] for key in keys}
    except (OSError, ValueError, KeyError, zlib.error) as error:
        raise _refusal(path, known, f"reading it failed: {error}") from error
    shape = (_SIZE, _SIZE) if known.n_channels == 1 else (_SIZE, _SIZE, known.n_channels)
    parts = []
    for n, image_key, label_key in zip(known.sizes, keys[::2], keys[1::2], strict=True):
        images, labels = arrays[image_key], arrays[label_key]
        if images.shape != (n, *shape) or images.dtype != np.uint8:
            raise _refusal(path, known, f"{image_key} is {images.dtype} of shape {images.shape}")
        if labels.shape != (n, 1) or labels.dtype.kind not in "ui":
            raise _refusal(path, known, f"{label_key} is {labels.dtype} of shape {labels.shape}")
        if labels.min() < 0 or labels.max() >= known.n_classes:
            raise _refusal(path, known, f"{label_key} runs from {labels.min()} to {labels.max()}")
        channels_last = images.reshape(n, _SIZE, _SIZE, known.n_channels)
        parts.append((np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)), labels[:, 0]))
    return parts


def _refusal(path: Path, known: MedMNIST, problem: str) -> ValueError:
    return ValueError(
        f"Expected {path} to hold {' / '.join(map(str, known.sizes))} images (train / val / test) of "
        f"{_SIZE}x{_SIZE} pixels, {known.n_channels} channels and {known.n_classes} classes, but {problem}. "
        "The file is damaged or another edition (another resolution, an older release): delete it and put "
        f"the original there. The original comes from: {known.source}."
    )
