"""Data sets with misleading groups or hospitals: Waterbirds, CelebA and Camelyon17 (paper: Table 4).

They are photographs in the published folders, read on demand (`ImageFiles`). Waterbirds also
comes as features of a frozen network, for a linear or small head.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from elliptica._utils import checks
from elliptica.lab.data.catalogue import DataFile, find_entry
from elliptica.lab.data.files import find_file, find_folder, verify_checksum
from elliptica.lab.data.image_files import (
    ImageTable,
    Published,
    find_inside,
    grouped_dataset,
    read_table,
    table_of,
)
from elliptica.lab.data.splits import Dataset, Scaling, Split, standardise
from elliptica.lab.data.transforms import Augmentation, CentreCrop, ImageTransform, Resize, augmented

Validation = Literal["ood", "id"]


def _published(
    name: str, n_rows: int, folders: tuple[str, ...], training_groups: tuple[int, ...] | None = None
) -> Published:
    entry = find_entry(name)
    return Published(name, n_rows, folders, entry.rows, training_groups, entry.source)


# Folders are listed first choice first; names with a version are those of the package wilds.
_WATERBIRDS = _published(
    "waterbirds",
    11788,
    (
        "waterbirds/waterbird_complete95_forest2water2",
        "waterbird_complete95_forest2water2",
        "waterbirds_v1.0",
    ),
    (3498, 184, 56, 1057),
)
_CELEBA = _published("celeba", 202599, ("celeba", "celebA_v1.0"), (71629, 66874, 22880, 1387))
_CAMELYON17 = _published("camelyon17", 455954, ("camelyon17/camelyon17_v1.0", "camelyon17_v1.0"))

ATTRIBUTES = ("list_attr_celeba.txt", "list_attr_celeba.csv", "Anno/list_attr_celeba.txt")
PARTITION = ("list_eval_partition.txt", "list_eval_partition.csv", "Eval/list_eval_partition.txt")
# An archive of Kaggle holds the folder within a folder of the same name.
_IMAGES = ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba")
_SHORTER_SIDE = 178

_VALIDATION_CENTRE, _TEST_CENTRE = 1, 2
_N_ASIDE = 33560  # held-out patches of the training hospitals


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
    read on demand, see `ImageFiles`; loading opens none, but each must exist. Needs Pillow
    (extra ``lab``).

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
    known = _WATERBIRDS
    folder = find_folder(known.folders, data_dir, source=known.source)
    path = find_inside(folder, ("metadata.csv",), source=known.source)
    table = read_table(path, ("img_filename", "y", "split", "place"), source=known.source)
    y, place = table.integers("y", (0, 1)), table.integers("place", (0, 1))
    before = size * 256 // 224
    transform = ImageTransform((size, size), (Resize((before, before)), CentreCrop(size)))
    return grouped_dataset(
        known,
        table,
        folder,
        table["img_filename"],
        y,
        2 * y + place,
        table.integers("split", (0, 1, 2)),
        seed=seed,
        transform=transform,
        augment=augmented(transform, augment, scale=(0.7, 1.0), ratio=(3 / 4, 4 / 3)),
        workers=workers,
    )


@dataclass(frozen=True)
class _FeatureFile:
    """Facts about a file of features."""

    file: DataFile
    n_features: int
    sizes: tuple[int, ...]
    source: str


_FEATURES_ENTRY = find_entry("waterbirds-features")
_WATERBIRDS_FEATURES = _FeatureFile(
    _FEATURES_ENTRY.forms[0][0], 1280, _FEATURES_ENTRY.rows, _FEATURES_ENTRY.source
)


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
    if scale not in get_args(Scaling):
        raise ValueError(f"scale must be 'train' or 'none', but got {scale!r}. Pass one of the two.")
    known = _WATERBIRDS_FEATURES
    path = find_file(known.file.path, data_dir, source=known.source)
    verify_checksum(path, known.file.checksum, source=known.source)
    with np.load(path, allow_pickle=False) as file:
        x, y, place, part = (torch.from_numpy(file[key]) for key in ("features", "y", "place", "split"))
    sizes = tuple(int((part == i).sum()) for i in range(3))
    if x.shape != (sum(known.sizes), known.n_features) or sizes != known.sizes:
        raise ValueError(
            f"Expected {path} to hold parts of {known.sizes} rows of {known.n_features} features, but it "
            f"holds {sizes} of shape {tuple(x.shape)}. Put the original there: {known.source}."
        )
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


def load_celeba(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    target: str = "Blond_Hair",
    confounder: str = "Male",
    size: int = 224,
    augment: Augmentation = "crop",
    workers: int = 4,
) -> Dataset:
    """Load CelebA: predict blond hair, with sex as confounder (Liu et al., ICCV 2015; paper: Table 4).

    The aligned photographs of 178 x 218 pixels, in the official parts. Of the blond people in training, one
    in seventeen is a man (the groups of Sagawa et al., ICLR 2020). Images are read on demand,
    see `ImageFiles`; loading opens none, but each must be there. Needs Pillow (extra ``lab``).

    The folder ``celeba`` holds ``img_align_celeba``, ``list_attr_celeba`` and ``list_eval_partition``; the
    latter two as ``.txt``, as published, or as ``.csv``, as on Kaggle. The published folders ``Img``,
    ``Anno`` and ``Eval`` may be kept.

    For evaluation, as in the pipeline that the paper follows: the central 178 x 178 pixels, brought to
    224 x 224, and ImageNet's means and deviations.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``celeba`` (or ``celebA_v1.0``); see `data_directories` if None.
        target: Attribute to predict, one of the 40.
        confounder: Attribute that makes the groups.
        size: Height and width of the inputs.
        augment: What ``train.x.training(generator)`` does: ``"crop"`` takes a random rectangle with 0.7 to 1
            of the area and a ratio of 1 to 4/3, and mirrors it at random; ``"flip"`` only mirrors, which is
            what the paper's text mentions; ``"none"``.
        workers: Threads that decode images.

    Returns:
        Images of shape ``(n, 3, 224, 224)``, 162770 / 19867 / 19962 of them; classes, int64 (1 if the target
        is there); ``group`` is twice the class plus the confounder (1 if it is there).
    """
    known = _CELEBA
    folder = find_folder(known.folders, data_dir, source=known.source)
    table = _read_attributes(find_inside(folder, ATTRIBUTES, source=known.source), (target, confounder))
    y, other = ((table.integers(name, (-1, 1)) + 1) // 2 for name in (target, confounder))
    part = _parts(_read_partition(find_inside(folder, PARTITION, source=known.source)), table)
    if (target, confounder) != ("Blond_Hair", "Male"):  # the published groups are of these
        known = dataclasses.replace(known, training_groups=None)
    transform = ImageTransform((size, size), (CentreCrop(_SHORTER_SIDE), Resize((size, size))))
    return grouped_dataset(
        known,
        table,
        find_inside(folder, _IMAGES, source=known.source),
        table["image_id"],
        y,
        2 * y + other,
        part,
        seed=seed,
        transform=transform,
        augment=augmented(transform, augment, scale=(0.7, 1.0), ratio=(1.0, 4 / 3)),
        workers=workers,
    )


def _read_attributes(path: Path, names: Sequence[str]) -> ImageTable:
    """Read the attributes; the text form has the number of rows, the names, and space-padded values."""
    wanted = list(dict.fromkeys(("image_id", *names)))
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        if path.suffix == ".csv":
            header = next(file, "").strip().split(",")
        else:
            stated, header = next(file, "").strip(), ["image_id", *next(file, "").split()]
        for name in names:
            checks.choice("An attribute of CelebA", name, [a.strip() for a in header if a != "image_id"])
        if path.suffix == ".csv":
            return read_table(path, wanted, source=_CELEBA.source)
        rows = (line.split() for line in file)
        table = table_of(path, header, rows, wanted, first_line=3, source=_CELEBA.source)
    if stated != str(table.n_rows):
        raise ValueError(
            f"Expected {path} to have as many rows as its first line says, {stated!r}, but it has "
            f"{table.n_rows}. The file is cut off: put the original there. It comes from: {_CELEBA.source}."
        )
    return table


def _read_partition(path: Path) -> ImageTable:
    wanted = ("image_id", "partition")
    if path.suffix == ".csv":
        return read_table(path, wanted, source=_CELEBA.source)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        rows = (line.split() for line in file)
        return table_of(path, wanted, rows, wanted, first_line=1, source=_CELEBA.source)


def _parts(partition: ImageTable, attributes: ImageTable) -> NDArray[np.int64]:
    """Return the part of each image in the order of the attributes; tables are joined by name, not line."""
    by_name = dict(zip(partition["image_id"], partition.integers("partition", (0, 1, 2)), strict=True))
    names = attributes["image_id"]
    try:
        return np.array([by_name[name] for name in names], dtype=np.int64)
    except KeyError as error:
        row = names.index(error.args[0])
        raise attributes.error(row, f"an image that {partition.path} lists, too", repr(names[row])) from None


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
    needed, see `ImageFiles`; loading opens none, but each must exist. Needs Pillow (extra
    ``lab``).

    For evaluation, as in the pipeline that the paper follows: 96 x 96 pixels, ImageNet's means and
    deviations.

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
    known = _CAMELYON17
    if validation == "id":
        known = dataclasses.replace(known, sizes=(known.sizes[0], _N_ASIDE, known.sizes[2]))
    folder = find_folder(known.folders, data_dir, source=known.source)
    path = find_inside(folder, ("metadata.csv",), source=known.source)
    wanted = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
    table = read_table(path, wanted, source=known.source)
    y, centre = table.integers("tumor", (0, 1)), table.integers("center", range(5))
    is_aside = table.integers("split", (0, 1)) == 1
    is_validation, is_test = centre == _VALIDATION_CENTRE, centre == _TEST_CENTRE
    is_trained_on = ~is_validation & ~is_test
    part = np.full(len(y), 3)
    part[is_trained_on & ~is_aside] = 0
    part[is_validation if validation == "ood" else is_trained_on & is_aside] = 1
    part[is_test] = 2
    columns = (table[name] for name in wanted[:4])
    names = [
        f"patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}_x_{left}_y_{top}.png"
        for patient, node, left, top in zip(*columns, strict=True)
    ]
    transform = ImageTransform((size, size), (Resize((size, size)),))
    return grouped_dataset(
        known,
        table,
        folder,
        names,
        y,
        centre,
        part,
        seed=seed,
        transform=transform,
        augment=augmented(transform, augment),
        workers=workers,
    )
