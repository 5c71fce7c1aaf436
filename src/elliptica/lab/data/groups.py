"""Photographs with misleading groups or hospitals: Waterbirds, CelebA and Camelyon17 (paper: Table 4).

They are read on demand from the published folders (`ImageFiles`); crops and flips behave like those of the
same names in torchvision. Waterbirds also comes as features of a frozen network, for a linear or small head.
"""

from __future__ import annotations

import csv
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils import checks
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.data.catalogue import find_entry, find_files
from elliptica.lab.data.images import PixelStatistics, normalise, pillow
from elliptica.lab.data.splits import Dataset, Split, standardise

#: Means and deviations of ImageNet's channels, in units of pixels: 255 times 0.485, 0.456, 0.406 and 0.229,
#: 0.224, 0.225.
IMAGENET = PixelStatistics((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))

#: What is done to training images: a random rectangle and a flip, a flip, nothing.
Augmentation = Literal["crop", "flip", "none"]

_ATTEMPTS = 10
_THREADS = 4  # that decode images


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
    for `split`; it is no tensor for anything else. Files are decoded in threads.

    Indexing returns the images for evaluation, the same every time. ``x.training(generator)[rows]`` returns
    randomly transformed ones; the same generator state gives the same images.
    """

    dtype = torch.float32

    def __init__(
        self, paths: Sequence[str], pipeline: Pipeline, generator: torch.Generator | None = None
    ) -> None:
        self.paths, self.pipeline, self.generator = tuple(paths), pipeline, generator

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
        return ImageFiles(self.paths, self.pipeline, source)

    def __getitem__(self, index: Any) -> Tensor:
        # index the row numbers with torch, so that every kind of index behaves as usual
        rows = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        numbers = rows.flatten().tolist()
        seeds: list[int | None] = [None] * len(numbers)
        if self.generator is not None:
            seeds = torch.randint(2**62, (len(numbers),), generator=self.generator).tolist()
        with ThreadPoolExecutor(_THREADS) as pool:
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


#: Published training images of each group.
_TRAINING_GROUPS = {"waterbirds": [3498, 184, 56, 1057], "celeba": [71629, 66874, 22880, 1387]}
# An archive of Kaggle holds the folder within a folder of the same name.
_FACES = ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba")
_SHORTER_SIDE = 178  # of CelebA's photographs
_VALIDATION_CENTRE, _TEST_CENTRE = 1, 2


def load_waterbirds(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 224,
    augment: Augmentation = "crop",
) -> Dataset:
    """Load Waterbirds as photographs: land birds (0) against water birds (1) (paper: Table 4).

    Birds of Caltech-UCSD Birds pasted on backgrounds of Places (Sagawa et al., ICLR 2020). In training 95 %
    of the birds are seen against the background that suits them; in validation and test, half. Images are
    read on demand, see `ImageFiles`. Needs Pillow (extra ``lab``).

    For evaluation, as in the pipeline that the paper follows: 256 x 256 pixels, for any photograph's
    shape, the central 224 x 224 of them, and ImageNet's means and deviations.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``waterbirds/waterbird_complete95_forest2water2`` (or that folder
            itself, or ``waterbirds_v1.0``); see `data_directories` if None.
        size: Height and width of the inputs; the size before the central crop goes with it.
        augment: What ``train.x.training(generator)`` does: ``"crop"`` takes a random rectangle with 0.7 to 1
            of the area and a ratio of 3/4 to 4/3, and mirrors it at random; ``"flip"`` only mirrors;
            ``"none"``.

    Returns:
        Images of shape ``(n, 3, 224, 224)``, 4795 / 1199 / 5794 of them; classes, int64; ``group`` is twice
        the class plus the background (0 land, 1 water), so that groups 1 and 2 are the rare ones.
    """
    (path,) = find_files("waterbirds", data_dir)
    table = _read_csv(path)
    y, part, place = (np.array(table[key], dtype=np.int64) for key in ("y", "split", "place"))
    pipeline = Pipeline(size, centre=size, first=size * 256 // 224, augment=augment)
    names = [str(path.parent / name) for name in table["img_filename"]]
    return _dataset("waterbirds", names, y, 2 * y + place, part, pipeline, seed)


def load_celeba(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 224,
    augment: Augmentation = "crop",
) -> Dataset:
    """Load CelebA: predict blond hair, with sex as confounder (Liu et al., ICCV 2015; paper: Table 4).

    The folder ``celeba`` holds ``img_align_celeba``, ``list_attr_celeba`` and ``list_eval_partition``; the
    latter two as ``.txt``, as published, or as ``.csv``, as on Kaggle. The published folders ``Img``,
    ``Anno`` and ``Eval`` may be kept. Images are read on demand, see `ImageFiles`. Needs Pillow.

    For evaluation, as in the pipeline that the paper follows: the central 178 x 178 pixels, brought to
    224 x 224, and ImageNet's means and deviations. Arguments are as in `load_waterbirds`; random rectangles
    have a ratio of 1 to 4/3, and the paper's text mentions only ``"flip"``.

    Returns:
        Images of shape ``(n, 3, 224, 224)``, 162770 / 19867 / 19962 of them; classes, int64 (1 is blond);
        ``group`` is twice the class plus the confounder (1 is male).
    """
    attributes, partition = find_files("celeba", data_dir)
    rows = _read_rows(attributes)
    header, *rows = rows if attributes.suffix == ".csv" else [["image_id", *rows[1]], *rows[2:]]
    names = [row[0] for row in rows]
    blond, male = (
        np.array([row[header.index(key)] == "1" for row in rows]).astype(np.int64)
        for key in ("Blond_Hair", "Male")
    )
    part_of = {row[0]: row[1] for row in _read_rows(partition)}  # joined by name, not by line
    part = np.array([int(part_of[name]) for name in names])
    root = attributes.parent.parent if attributes.parent.name == "Anno" else attributes.parent
    folder = next((root / place for place in _FACES if (root / place).is_dir()), root / _FACES[1])
    pipeline = Pipeline(size, centre=_SHORTER_SIDE, augment=augment, ratio=(1.0, 4 / 3))
    paths = [str(folder / name) for name in names]
    return _dataset("celeba", paths, blond, 2 * blond + male, part, pipeline, seed)


def load_camelyon17(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 96,
    augment: Literal["flip", "none"] = "none",
) -> Dataset:
    """Load Camelyon17-WILDS: predict tumour in a patch of tissue (Koh et al., ICML 2021; paper: Table 4).

    Patches of 96 x 96 pixels of lymph nodes from five hospitals (centres 0 to 4). Training uses centres 0, 3
    and 4, validation centre 1 and the test centre 2, which is WILDS' official split. Images are read when
    needed, see `ImageFiles`. Needs Pillow (extra ``lab``).

    For evaluation, as in the pipeline that the paper follows: 96 x 96 pixels, ImageNet's means and
    deviations. Other arguments are as in `load_waterbirds`.

    Args:
        seed: As in `load_waterbirds`.
        data_dir: Holds ``camelyon17_v1.0`` (or ``camelyon17/camelyon17_v1.0``).
        size: Height and width of the inputs.
        augment: ``"flip"`` is what the paper's text says, ``"none"`` what the code of the pipeline does.

    Returns:
        Images of shape ``(n, 3, 96, 96)``, 302436 / 34904 / 85054 of them; classes, int64 (1 is tumour);
        ``group`` is the centre. Validation and test hold one group each, which is not among those trained on.
    """
    checks.choice("augment", augment, ("flip", "none"))
    (path,) = find_files("camelyon17", data_dir)
    table = _read_csv(path)
    y, centre, split = (np.array(table[key], dtype=np.int64) for key in ("tumor", "center", "split"))
    is_trained_on = (centre != _VALIDATION_CENTRE) & (centre != _TEST_CENTRE)
    held_out = centre == _VALIDATION_CENTRE, centre == _TEST_CENTRE
    part = np.select([is_trained_on & (split == 0), *held_out], [0, 1, 2], 3)
    names = []
    for patient, node, left, top in zip(
        *(table[key] for key in ("patient", "node", "x_coord", "y_coord")), strict=True
    ):
        slide = f"patient_{patient}_node_{node}"
        names.append(f"{path.parent}/patches/{slide}/patch_{slide}_x_{left}_y_{top}.png")
    pipeline = Pipeline(size, centre=size, first=size, augment=augment)
    return _dataset("camelyon17", names, y, centre, part, pipeline, seed)


def _read_csv(path: Path) -> dict[str, list[str]]:
    """Read the columns of a table as text, by name."""
    header, *rows = _read_rows(path)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def _read_rows(path: Path) -> list[list[str]]:
    """Read lines separated by commas, or by spaces in a text file."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return list(csv.reader(lines)) if path.suffix == ".csv" else [line.split() for line in lines]


def _dataset(
    name: str,
    paths: Sequence[str],
    y: NDArray[np.int64],
    group: NDArray[np.int64],
    part: NDArray[np.int64],
    pipeline: Pipeline,
    seed: int,
) -> Dataset:
    """Make a data set of image files; ``part`` is 0, 1, 2 for training, validation, test, or 3 for none.

    No image is opened, but each must exist. Other counts than the published ones give a warning.
    """
    checks.choice("augment", pipeline.augment, get_args(Augmentation))
    if missing := [path for path in paths if not os.path.exists(path)]:  # noqa: PTH110 - pathlib is slow here
        raise FileNotFoundError(f"{len(missing)} of {len(paths)} images are missing, such as {missing[0]}.")
    counts = np.bincount(part, minlength=4)[:3].tolist()
    groups = np.bincount(group[part == 0]).tolist()
    entry = find_entry(name)
    if counts != list(entry.rows) or groups != _TRAINING_GROUPS.get(name, groups):
        warnings.warn(
            f"{name} has parts of {counts} images and training groups of {groups}, not those published. Do "
            f"not compare results with published ones. The original comes from: {entry.source}.",
            EllipticWarning,
            stacklevel=3,
        )
    rng = np.random.RandomState(seed)
    splits = []
    for number in range(3):
        rows = rng.permutation(np.flatnonzero(part == number))
        files = ImageFiles([paths[i] for i in rows], pipeline)
        splits.append(Split(cast(Tensor, files), torch.from_numpy(y[rows]), torch.from_numpy(group[rows])))
    return Dataset(name, splits[0], splits[1], splits[2], task="classification")


def load_waterbirds_features(seed: int = 0, *, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load Waterbirds as 1280 features of a frozen network: land birds (0) against water birds (1).

    Features are the average of the last feature map of EfficientNet-Lite0 with ImageNet weights, one row
    per photograph; the parts are the official ones, 4795 / 1199 / 5794 rows. In training 95 % of the
    birds are seen against the background that suits them; in validation and test, half. Each feature has mean
    0 and deviation 1 in the training rows (one that is constant there becomes 0 in all rows).

    Deviation: the paper fine-tunes a network on the photographs. Do not compare numbers with such work.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Holds ``waterbirds/waterbirds_effnetlite0.npz``; see `data_directories` if None.

    Returns:
        Inputs of shape ``(n, 1280)``, float32; classes of shape ``(n,)``, int64; ``group`` is twice the
        class plus the background (0 land, 1 water), so that groups 1 and 2 are the rare ones.
    """
    (path,) = find_files("waterbirds-features", data_dir)
    with np.load(path, allow_pickle=False) as file:
        x, y, place, part = (torch.from_numpy(file[key]) for key in ("features", "y", "place", "split"))
    rng = np.random.RandomState(seed)
    rows = [torch.from_numpy(rng.permutation(np.flatnonzero(part.numpy() == i))) for i in range(3)]
    inputs = standardise([x[index].double() for index in rows])
    y, place = y.long(), place.long()
    train, validation, test = (
        Split(features.float(), y[index], 2 * y[index] + place[index])
        for features, index in zip(inputs, rows, strict=True)
    )
    return Dataset("waterbirds", train, validation, test, task="classification")
