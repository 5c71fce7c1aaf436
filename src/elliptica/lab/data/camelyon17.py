"""Camelyon17-WILDS: tissue from five hospitals, in the folder of the package wilds (paper: Table 4)."""

from __future__ import annotations

import os
from typing import Literal, get_args

import numpy as np

from elliptica._utils import checks
from elliptica.lab.data.image_tables import (
    check_images,
    check_published,
    find_folder,
    find_inside,
    grouped_dataset,
    read_table,
)
from elliptica.lab.data.splits import Dataset
from elliptica.lab.data.transforms import ImageTransform, Resize, augmented

Validation = Literal["ood", "id"]

#: Where the folder may be, first choice first.
FOLDERS = ("camelyon17/camelyon17_v1.0", "camelyon17_v1.0")
URL = "https://worksheets.codalab.org/rest/bundles/0xe45e15f39fb54e9d9e919556af67aabe/contents/blob/"
SOURCE = f"Koh et al. (2021), WILDS, after Bandi et al. (2018), {URL}"

_VALIDATION_CENTRE, _TEST_CENTRE = 1, 2
_N_ROWS = 455954
# Training, the two kinds of validation, test.
_PART_SIZES = {"ood": (302436, 34904, 85054), "id": (302436, 33560, 85054)}


def load_camelyon17(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    validation: Validation = "ood",
    size: int = 96,
    augment: Literal["flip", "none"] = "none",
    workers: int = 4,
) -> Dataset:
    """Load Camelyon17-WILDS: is there tumour in a patch of tissue (Koh et al., ICML 2021; paper: Table 4)?

    Patches of 96 x 96 pixels of lymph nodes from five hospitals (centres 0 to 4). Training uses centres 0, 3
    and 4, validation centre 1 and the test centre 2, which is WILDS' official split. Images are read when
    they are asked for, see `ImageFiles`; loading opens none, but each must be there. Needs Pillow (extra
    ``images``).

    For evaluation, as in the pipeline that the paper follows: 96 x 96 pixels, ImageNet's means and
    deviations.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``camelyon17_v1.0`` (or ``camelyon17/camelyon17_v1.0``); see
            `data_directories` if None.
        validation: ``"ood"`` takes the hospital that is kept for it; ``"id"`` the patches of the training
            hospitals that are kept aside (33560 of them).
        size: Height and width of the inputs.
        augment: What ``train.x.training(generator)`` does: ``"flip"`` mirrors at random, as the paper's text
            says; ``"none"`` is what the code of the pipeline does.
        workers: Threads that decode images.

    Returns:
        Images of shape ``(n, 3, 96, 96)``, 302436 / 34904 / 85054 of them; classes, int64 (1 is tumour);
        ``group`` is the centre. Validation and test hold one group each, which is not among those trained on.

    Raises:
        FileNotFoundError: If the folder, ``metadata.csv`` or an image is missing.
        ValueError: If the table has unknown labels, centres or parts, or not the published counts.

    Example:
        >>> load_camelyon17().train.group.unique()  # doctest: +SKIP
        tensor([0, 3, 4])
    """
    checks.choice("augment", augment, ("flip", "none"))
    checks.choice("validation", validation, get_args(Validation))
    folder = find_folder(FOLDERS, data_dir, source=SOURCE)
    table = read_table(
        find_inside(folder, ("metadata.csv",), source=SOURCE),
        ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split"),
        source=SOURCE,
    )
    y, centre = table.integers("tumor", (0, 1)), table.integers("center", range(5))
    is_aside = table.integers("split", (0, 1)) == 1
    is_validation, is_test = centre == _VALIDATION_CENTRE, centre == _TEST_CENTRE
    is_trained_on = ~is_validation & ~is_test
    part = np.full(len(y), 3)
    part[is_trained_on & ~is_aside] = 0
    part[is_validation if validation == "ood" else is_trained_on & is_aside] = 1
    part[is_test] = 2
    columns = (table[name] for name in ("patient", "node", "x_coord", "y_coord"))
    names = [
        f"patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}_x_{left}_y_{top}.png"
        for patient, node, left, top in zip(*columns, strict=True)
    ]
    check_images(folder, names, table)
    sizes = np.bincount(part, minlength=4)[:3].tolist()
    check_published(table, _N_ROWS, {"parts of sizes": (sizes, _PART_SIZES[validation])})
    transform = ImageTransform((size, size), (Resize((size, size)),))
    return grouped_dataset(
        "camelyon17",
        [os.path.join(folder, name) for name in names],  # noqa: PTH118 - pathlib is slow here
        y,
        centre,
        part,
        seed=seed,
        transform=transform,
        augment=augmented(transform, augment),
        workers=workers,
        table=table,
    )
