"""Data sets with misleading groups or hospitals: Waterbirds, CelebA and Camelyon17 (paper: Table 4).

They are photographs in the published folders, read on demand (`ImageFiles`). Waterbirds also
comes as features of a frozen network, for a linear or small head.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica._utils import checks
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.data.catalogue import find_entry, find_files
from elliptica.lab.data.image_files import Augmentation, ImageFiles, Pipeline
from elliptica.lab.data.splits import Dataset, Scaling, Split, standardise

Validation = Literal["ood", "id"]

#: Published training images of each group.
_TRAINING_GROUPS = {"waterbirds": [3498, 184, 56, 1057], "celeba": [71629, 66874, 22880, 1387]}
# An archive of Kaggle holds the folder within a folder of the same name.
_FACES = ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba")
_SHORTER_SIDE = 178  # of CelebA's photographs
_VALIDATION_CENTRE, _TEST_CENTRE = 1, 2
_N_HELD_OUT = 33560  # patches of the training hospitals


def load_waterbirds(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 224,
    augment: Augmentation = "crop",
    workers: int = 4,
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
        workers: Threads that decode images.

    Returns:
        Images of shape ``(n, 3, 224, 224)``, 4795 / 1199 / 5794 of them; classes, int64; ``group`` is twice
        the class plus the background (0 land, 1 water), so that groups 1 and 2 are the rare ones.
    """
    (path,) = find_files("waterbirds", data_dir)
    table = _read_csv(path)
    y, part, place = (np.array(table[key], dtype=np.int64) for key in ("y", "split", "place"))
    pipeline = Pipeline(size, centre=size, first=size * 256 // 224, augment=augment)
    names = [str(path.parent / name) for name in table["img_filename"]]
    return _dataset("waterbirds", names, y, 2 * y + place, part, pipeline, seed, workers)


def load_celeba(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 224,
    augment: Augmentation = "crop",
    workers: int = 4,
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
    return _dataset("celeba", paths, blond, 2 * blond + male, part, pipeline, seed, workers)


def load_camelyon17(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    validation: Validation = "ood",
    size: int = 96,
    augment: Literal["flip", "none"] = "none",
    workers: int = 4,
) -> Dataset:
    """Load Camelyon17-WILDS: predict tumour in a patch of tissue (Koh et al., ICML 2021; paper: Table 4).

    Patches of 96 x 96 pixels of lymph nodes from five hospitals (centres 0 to 4). Training uses centres 0, 3
    and 4, validation centre 1 and the test centre 2, which is WILDS' official split. Images are read when
    needed, see `ImageFiles`. Needs Pillow (extra ``lab``).

    For evaluation, as in the pipeline that the paper follows: 96 x 96 pixels, ImageNet's means and
    deviations. Other arguments are as in `load_waterbirds`.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``camelyon17_v1.0`` (or ``camelyon17/camelyon17_v1.0``); see
            `data_directories` if None.
        validation: ``"ood"`` takes the hospital reserved for it; ``"id"`` the held-out patches of the
            training hospitals (33560 of them).
        size: Height and width of the inputs.
        augment: What ``train.x.training(generator)`` does: ``"flip"`` mirrors at random, as the paper's text
            says; ``"none"`` is what the code of the pipeline does.
        workers: Threads that decode images.

    Returns:
        Images of shape ``(n, 3, 96, 96)``, 302436 / 34904 / 85054 of them; classes, int64 (1 is tumour);
        ``group`` is the centre. Validation and test hold one group each, which is not among those trained on.
    """
    checks.choice("augment", augment, ("flip", "none"))
    checks.choice("validation", validation, get_args(Validation))
    (path,) = find_files("camelyon17", data_dir)
    table = _read_csv(path)
    y, centre, split = (np.array(table[key], dtype=np.int64) for key in ("tumor", "center", "split"))
    is_trained_on = (centre != _VALIDATION_CENTRE) & (centre != _TEST_CENTRE)
    is_validation = centre == _VALIDATION_CENTRE if validation == "ood" else is_trained_on & (split == 1)
    part = np.select([is_trained_on & (split == 0), is_validation, centre == _TEST_CENTRE], [0, 1, 2], 3)
    names = []
    for patient, node, left, top in zip(
        *(table[key] for key in ("patient", "node", "x_coord", "y_coord")), strict=True
    ):
        slide = f"patient_{patient}_node_{node}"
        names.append(f"{path.parent}/patches/{slide}/patch_{slide}_x_{left}_y_{top}.png")
    pipeline = Pipeline(size, centre=size, first=size, augment=augment)
    sizes = None if validation == "ood" else (302436, _N_HELD_OUT, 85054)
    return _dataset("camelyon17", names, y, centre, part, pipeline, seed, workers, sizes)


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
    workers: int,
    sizes: Sequence[int] | None = None,
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
    if counts != list(sizes or entry.rows) or groups != _TRAINING_GROUPS.get(name, groups):
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
        files = ImageFiles([paths[i] for i in rows], pipeline, workers=workers)
        splits.append(Split(cast(Tensor, files), torch.from_numpy(y[rows]), torch.from_numpy(group[rows])))
    return Dataset(name, splits[0], splits[1], splits[2], task="classification")


def load_waterbirds_features(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    scale: Scaling = "train",
) -> Dataset:
    """Load Waterbirds as 1280 features of a frozen network: land birds (0) against water birds (1).

    Features are the average of the last feature map of EfficientNet-Lite0 with ImageNet weights, one row
    per photograph; the parts are the official ones, 4795 / 1199 / 5794 rows. In training 95 % of the
    birds are seen against the background that suits them; in validation and test, half.

    Deviation: the paper fine-tunes a network on the photographs. Do not compare numbers with such work.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``waterbirds/waterbirds_effnetlite0.npz``; see
            `data_directories` if None.
        scale: ``"train"`` gives each feature mean 0 and deviation 1 in the training rows (a feature that
            is constant there becomes 0 in all rows); ``"none"`` leaves them alone.

    Returns:
        Inputs of shape ``(n, 1280)``, float32; classes of shape ``(n,)``, int64; ``group`` is twice the
        class plus the background (0 land, 1 water), so that groups 1 and 2 are the rare ones.
    """
    checks.choice("scale", scale, get_args(Scaling))
    (path,) = find_files("waterbirds-features", data_dir)
    with np.load(path, allow_pickle=False) as file:
        x, y, place, part = (torch.from_numpy(file[key]) for key in ("features", "y", "place", "split"))
    rng = np.random.RandomState(seed)
    rows = [torch.from_numpy(rng.permutation(np.flatnonzero(part.numpy() == i))) for i in range(3)]
    inputs = [x[index].double() for index in rows]
    if scale == "train":
        inputs = standardise(inputs)
    y, place = y.long(), place.long()
    train, validation, test = (
        Split(features.float(), y[index], 2 * y[index] + place[index])
        for features, index in zip(inputs, rows, strict=True)
    )
    return Dataset("waterbirds", train, validation, test, task="classification")
