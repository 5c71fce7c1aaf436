"""CelebA: one attribute to predict and one that misleads, from the published files (paper: Table 4)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elliptica._utils import checks
from elliptica.lab.data.image_tables import (
    ImageTable,
    check_images,
    check_published,
    find_folder,
    find_inside,
    grouped_dataset,
    read_table,
    table_of,
)
from elliptica.lab.data.splits import Dataset
from elliptica.lab.data.transforms import Augmentation, CentreCrop, ImageTransform, Resize, augmented

#: Where the folder may be, first choice first; the last is that of the package wilds.
FOLDERS = ("celeba", "celebA_v1.0")
URL = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
SOURCE = f"Liu et al. (2015), {URL} (Img, Anno and Eval), or kaggle.com/datasets/jessicali9530/celeba-dataset"
ATTRIBUTES = ("list_attr_celeba.txt", "list_attr_celeba.csv", "Anno/list_attr_celeba.txt")
PARTITION = ("list_eval_partition.txt", "list_eval_partition.csv", "Eval/list_eval_partition.txt")

# An archive of Kaggle holds the folder within a folder of the same name.
_IMAGES = ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba")
_N_ROWS = 202599
_PART_SIZES = (162770, 19867, 19962)
_TRAINING_GROUPS = (71629, 66874, 22880, 1387)
_SHORTER_SIDE = 178


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
    """Load CelebA: is the hair blond, whoever the person is (Liu et al., ICCV 2015; paper: Table 4)?

    The aligned photographs of 178 x 218 pixels, in the official parts. Of the blond people in training, one
    in seventeen is a man (the groups of Sagawa et al., ICLR 2020). Images are read when they are asked for,
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

    Raises:
        FileNotFoundError: If the folder, a table or an image is missing.
        ValueError: If a table has unknown values, they disagree, or the counts are not the published ones.

    Example:
        >>> load_celeba().train.group.bincount()  # doctest: +SKIP
        tensor([71629, 66874, 22880,  1387])
    """
    folder = find_folder(FOLDERS, data_dir, source=SOURCE)
    table = _read_attributes(find_inside(folder, ATTRIBUTES, source=SOURCE), (target, confounder))
    names = table["image_id"]
    y, other = ((table.integers(name, (-1, 1)) + 1) // 2 for name in (target, confounder))
    part = _parts(_read_partition(find_inside(folder, PARTITION, source=SOURCE)), table)
    group = 2 * y + other
    images = find_inside(folder, _IMAGES, source=SOURCE)
    check_images(images, names, table)
    sizes, groups = np.bincount(part, minlength=3), np.bincount(group[part == 0], minlength=4)
    counts: dict[str, tuple[Sequence[int], Sequence[int]]] = {"parts of sizes": (sizes.tolist(), _PART_SIZES)}
    if (target, confounder) == ("Blond_Hair", "Male"):
        counts["training groups of sizes"] = (groups.tolist(), _TRAINING_GROUPS)
    check_published(table, _N_ROWS, counts)
    transform = ImageTransform((size, size), (CentreCrop(_SHORTER_SIDE), Resize((size, size))))
    return grouped_dataset(
        "celeba",
        [os.path.join(images, name) for name in names],  # noqa: PTH118 - pathlib is slow here
        y,
        group,
        part,
        seed=seed,
        transform=transform,
        augment=augmented(transform, augment, scale=(0.7, 1.0), ratio=(1.0, 4 / 3)),
        workers=workers,
        table=table,
    )


def _read_attributes(path: Path, names: Sequence[str]) -> ImageTable:
    """The text form says how many rows follow, then names the attributes, then pads values with spaces."""
    wanted = list(dict.fromkeys(("image_id", *names)))
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        if path.suffix == ".csv":
            header = next(file, "").strip().split(",")
        else:
            stated, header = next(file, "").strip(), ["image_id", *next(file, "").split()]
        for name in names:
            checks.choice("An attribute of CelebA", name, [a.strip() for a in header if a != "image_id"])
        if path.suffix == ".csv":
            return read_table(path, wanted, source=SOURCE)
        rows = (line.split() for line in file)
        table = table_of(path, header, rows, wanted, first_line=3, source=SOURCE)
    if stated != str(table.n_rows):
        raise ValueError(
            f"Expected {path} to have as many rows as its first line says, {stated!r}, but it has "
            f"{table.n_rows}. The file is cut off: put the original there. It comes from: {SOURCE}."
        )
    return table


def _read_partition(path: Path) -> ImageTable:
    wanted = ("image_id", "partition")
    if path.suffix == ".csv":
        return read_table(path, wanted, source=SOURCE)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        rows = (line.split() for line in file)
        return table_of(path, wanted, rows, wanted, first_line=1, source=SOURCE)


def _parts(partition: ImageTable, attributes: ImageTable) -> NDArray[np.int64]:
    """Part of each image in the order of the attributes; the tables are joined by name, not by line."""
    by_name = dict(zip(partition["image_id"], partition.integers("partition", (0, 1, 2)), strict=True))
    names = attributes["image_id"]
    try:
        return np.array([by_name[name] for name in names], dtype=np.int64)
    except KeyError as error:
        row = names.index(error.args[0])
        raise attributes.error(row, f"an image that {partition.path} lists, too", repr(names[row])) from None
