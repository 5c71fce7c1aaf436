"""Waterbirds as photographs, in the published folder (Sagawa et al., ICLR 2020; paper: Table 4)."""

from __future__ import annotations

import os

import numpy as np

from elliptica.lab.data.image_tables import (
    check_images,
    check_published,
    find_folder,
    find_inside,
    grouped_dataset,
    read_table,
)
from elliptica.lab.data.splits import Dataset
from elliptica.lab.data.transforms import Augmentation, CentreCrop, ImageTransform, Resize, augmented

#: Where the folder may be, first choice first; the last is that of the package wilds.
FOLDERS = (
    "waterbirds/waterbird_complete95_forest2water2",
    "waterbird_complete95_forest2water2",
    "waterbirds_v1.0",
)
URL = "https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz"
SOURCE = f"Sagawa et al. (2020), {URL}"

_N_ROWS = 11788
_PART_SIZES = (4795, 1199, 5794)
_TRAINING_GROUPS = (3498, 184, 56, 1057)


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
    read when they are asked for, see `ImageFiles`; loading opens none, but each must be there. Needs Pillow
    (extra ``lab``).

    For evaluation, as in the pipeline that the paper follows: 256 x 256 pixels, whatever the photograph's
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

    Raises:
        FileNotFoundError: If the folder, ``metadata.csv`` or an image is missing.
        ValueError: If the table has unknown labels, backgrounds or parts, or not the published counts.

    Example:
        >>> load_waterbirds().train.group.bincount()  # doctest: +SKIP
        tensor([3498,  184,   56, 1057])
    """
    folder = find_folder(FOLDERS, data_dir, source=SOURCE)
    table = read_table(
        find_inside(folder, ("metadata.csv",), source=SOURCE),
        ("img_filename", "y", "split", "place"),
        source=SOURCE,
    )
    y, place = table.integers("y", (0, 1)), table.integers("place", (0, 1))
    part = table.integers("split", (0, 1, 2))
    group = 2 * y + place
    check_images(folder, table["img_filename"], table)
    sizes, groups = np.bincount(part, minlength=3), np.bincount(group[part == 0], minlength=4)
    check_published(
        table,
        _N_ROWS,
        {
            "parts of sizes": (sizes.tolist(), _PART_SIZES),
            "training groups of sizes": (groups.tolist(), _TRAINING_GROUPS),
        },
    )
    before = size * 256 // 224
    transform = ImageTransform((size, size), (Resize((before, before)), CentreCrop(size)))
    return grouped_dataset(
        "waterbirds",
        [os.path.join(folder, name) for name in table["img_filename"]],  # noqa: PTH118 - pathlib is slow here
        y,
        group,
        part,
        seed=seed,
        transform=transform,
        augment=augmented(transform, augment, scale=(0.7, 1.0), ratio=(3 / 4, 4 / 3)),
        workers=workers,
        table=table,
    )
