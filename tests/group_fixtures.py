"""Tiny data of our own making in the published layouts of Waterbirds, CelebA and Camelyon17."""

import csv
from itertools import product

import numpy as np
from PIL import Image

ATTRIBUTES = ("Bald", "Blond_Hair", "Hat", "Male")


def photograph(path, number, width=30, height=24):
    """A picture that tells its number: red is five times that; green varies with x, blue with y."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    pixels[..., 0] = 5 * number
    pixels[..., 1] = np.linspace(40, 200, width)
    pixels[..., 2] = np.linspace(40, 200, height)[:, None]
    options = {"quality": 98, "subsampling": 0} if path.suffix == ".jpg" else {"compress_level": 1}
    Image.fromarray(pixels).save(path, **options)
    return path


def write_csv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def make_waterbirds(folder, copies=(3, 1, 2)):
    """All labels and backgrounds in each part; ``copies`` of each for training, validation and test.

    Returns the rows as (name, y, split, place).
    """
    root = folder / "waterbirds" / "waterbird_complete95_forest2water2"
    rows = []
    for split, y, place in product(range(3), range(2), range(2)):
        for copy in range(copies[split]):
            number = len(rows) + 1
            name = f"{number % 3 + 1:03d}.Some_bird/Bird_{copy}_{number}.jpg"
            photograph(root / name, number)
            rows.append((name, y, split, place))
    write_csv(
        root / "metadata.csv",
        ("img_id", "img_filename", "y", "split", "place", "place_filename"),
        [(i + 1, *row, f"/f/forest/{i:08d}.jpg") for i, row in enumerate(rows)],
    )
    return root, rows


def make_celeba(folder, form="txt", images="img_align_celeba"):
    """Two people of each group in each part. Returns the rows as (name, blond, male, part)."""
    root = folder / "celeba"
    cases = product(range(3), range(2), range(2), range(2))
    rows = [(f"{i:06d}.jpg", blond, male, part) for i, (part, blond, male, _) in enumerate(cases, 1)]
    for number, row in enumerate(rows, 1):
        photograph(root / images / row[0], number, width=178, height=218)
    values = [(name, -1, 2 * blond - 1, 1, 2 * male - 1) for name, blond, male, _ in rows]
    parts = [(name, part) for name, _, _, part in rows][::-1]  # joined by name, not by line
    if form == "csv":
        write_csv(root / "list_attr_celeba.csv", ("image_id", *ATTRIBUTES), values)
        write_csv(root / "list_eval_partition.csv", ("image_id", "partition"), parts)
    else:
        anno, evaluation = ("Anno", "Eval") if form == "published" else ("", "")
        lines = [f"{name} {' '.join(f'{v:2d}' for v in rest)}" for name, *rest in values]
        text = "\n".join([str(len(rows)), " ".join(ATTRIBUTES) + " ", *lines]) + "\n"
        for place, name, content in (
            (anno, "list_attr_celeba.txt", text),
            (evaluation, "list_eval_partition.txt", "".join(f"{name} {part}\n" for name, part in parts)),
        ):
            (root / place).mkdir(exist_ok=True)
            (root / place / name).write_text(content)
    return root, rows


def make_camelyon17(folder):
    """Each centre, label and value of the column split twice.

    Returns the rows as (name, tumour, centre, split).
    """
    root = folder / "camelyon17_v1.0"
    rows, table = [], []
    for i, (centre, tumour, split, copy) in enumerate(product(range(5), range(2), range(2), range(2))):
        patient, node, x, y = f"{20 * centre + 4:03d}", copy, 3328 + i, 21792
        name = f"patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png"
        photograph(root / name, i, width=96, height=96)
        rows.append((name, tumour, centre, split))
        table.append((i, patient, node, x, y, tumour, 10 * centre + copy, centre, split))
    header = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
    write_csv(root / "metadata.csv", header, table)
    return root, rows
