"""Load Tiny-ImageNet from the published folder or zip, or a zip of ten classes (paper: Tables 1 and 2)."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elliptica.lab.data.catalogue import DataFile, find_entry
from elliptica.lab.data.files import data_directories, find_file, verify_checksum
from elliptica.lab.data.images import UNIT_RANGE, Pixels, check_pixels, check_share, image_dataset, read_rgb
from elliptica.lab.data.splits import Dataset

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]

_SIDE = 64


@dataclass(frozen=True)
class TinyImageNet:
    """Facts about an edition: its place, and its numbers of classes and images."""

    name: str
    archive: DataFile
    folder: str | None
    prefix: str  # of the paths inside the archive
    n_classes: int
    per_class: tuple[int, int]  # training, validation
    source: str


_ZIP = "http://cs231n.stanford.edu/tiny-imagenet-200.zip (derived from ImageNet: non-commercial research)"
_FULL = TinyImageNet(
    name="tiny_imagenet",
    archive=find_entry("tiny_imagenet").forms[0][0],
    folder="tiny_imagenet/tiny-imagenet-200",
    prefix="tiny-imagenet-200/",
    n_classes=200,
    per_class=(500, 50),
    source=_ZIP,
)
_TEN = TinyImageNet(
    name="tiny_imagenet_10",
    archive=find_entry("tiny_imagenet_10").forms[0][0],
    folder=None,
    prefix="",
    n_classes=10,
    per_class=(500, 50),
    source=f"every 20th class of {_ZIP}",
)
_EDITIONS = {200: _FULL, 10: _TEN}


def load_tiny_imagenet(
    seed: int = 0,
    *,
    n_classes: Literal[200, 10] = 200,
    data_dir: str | os.PathLike[str] | None = None,
    validation_share: float = 0.1,
    pixels: Pixels = "float32",
) -> Dataset:
    """Load Tiny-ImageNet: 64x64 colour images of 200 classes, or of 10 (paper: Tables 1 and 2).

    The 200 classes are searched in the folder ``tiny_imagenet/tiny-imagenet-200`` (files are counted, not
    hashed), then in the published ``tiny_imagenet/tiny-imagenet-200.zip``; the 10 classes, every 20th, in
    ``tiny_imagenet_10/tiny_imagenet_10.zip``. Classes are numbered in the order of their WordNet ids. The
    official validation images are the test part, since labels of the official test images are not public.

    Pixels are scaled to [-1, 1], as in the pipeline that the paper follows. The 110000 images of 200
    classes take 5.4 GB as float32 and 1.4 GB as uint8; decoding them takes about a minute. Needs Pillow
    (extra ``lab``).

    Args:
        seed: Seed of the order of training images, and of which of them are held out.
        n_classes: 200, or 10.
        data_dir: Directory that holds ``tiny_imagenet``; see `data_directories` if None.
        validation_share: Share of the official training images held out for validation. With 0 all are
            used for training, as in the paper, and the test part is also the validation part: do not select
            by it.
        pixels: ``"uint8"`` does not normalise; pass batches through `normalise` then.

    Returns:
        Images of shape ``(n, 3, 64, 64)``; classes of shape ``(n,)``, int64.
    """
    if n_classes not in _EDITIONS:
        raise ValueError(f"n_classes must be 200 or 10, but got {n_classes!r}. Pass one of the two.")
    check_share(validation_share)
    check_pixels(pixels)
    edition = _EDITIONS[n_classes]
    with _open(edition, data_dir) as files:
        paths = _training_files(files, edition), _validation_files(files, edition)
        classes = [sorted({wnid for _, wnid in part}) for part in paths]
        if classes[0] != classes[1]:
            raise ValueError(
                f"Expected 'train' and 'val' of {files.origin} to hold the same classes, but they differ. "
                f"Unpack the original again. The original comes from: {edition.source}."
            )
        train, test = (_decode(files, part, edition) for part in paths)
    return image_dataset(
        edition.name,
        train,
        test,
        seed=seed,
        validation_share=validation_share,
        statistics=UNIT_RANGE,
        pixels=pixels,
    )


class _Folder:
    """The unpacked data set; paths use "/" and start below its own folder."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        self._path = path

    def names(self) -> list[str]:
        return sorted(p.relative_to(self._path).as_posix() for p in self._path.rglob("*") if p.is_file())

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()


class _Zip:
    """The same, in an archive."""

    def __init__(self, archive: zipfile.ZipFile, origin: str, prefix: str) -> None:
        self.origin = origin
        self._archive = archive
        self._prefix = prefix

    def names(self) -> list[str]:
        names = (n for n in self._archive.namelist() if n.startswith(self._prefix) and not n.endswith("/"))
        return sorted(name.removeprefix(self._prefix) for name in names)

    def read(self, name: str) -> bytes:
        return self._archive.read(self._prefix + name)


_Files = _Folder | _Zip


@contextmanager
def _open(edition: TinyImageNet, data_dir: str | os.PathLike[str] | None) -> Iterator[_Files]:
    """Open the folder if there is one, else the archive, read in place."""
    if edition.folder is not None:
        for place in data_directories(data_dir):
            if (place / edition.folder).is_dir():
                yield _Folder(place / edition.folder)
                return
    path = find_file(edition.archive.path, data_dir, source=edition.source)
    verify_checksum(path, edition.archive.checksum, source=edition.source)
    with zipfile.ZipFile(path) as archive:
        yield _Zip(archive, str(path), edition.prefix)


def _training_files(files: _Files, edition: TinyImageNet) -> list[tuple[str, str]]:
    """Return path and class of each training image: ``train/<class>/[images/]<name>.JPEG``."""
    paths = [n for n in files.names() if n.startswith("train/") and n.endswith(".JPEG")]
    return _counted([(path, path.split("/")[1]) for path in paths], files, edition, 0)


def _validation_files(files: _Files, edition: TinyImageNet) -> list[tuple[str, str]]:
    """Return the same for ``val``: in folders by class, or listed in ``val/val_annotations.txt``."""
    names = files.names()
    annotations = "val/val_annotations.txt"
    if annotations in names:
        lines = files.read(annotations).decode("ascii", errors="replace").splitlines()
        rows = [line.split("\t") for line in lines if line.strip()]
        known = {f"val/images/{row[0]}": row[1] for row in rows if len(row) > 1}
        images = [(path, known[path]) for path in names if path in known]
    else:
        paths = [n for n in names if n.startswith("val/") and n.endswith(".JPEG")]
        images = [(path, path.split("/")[1]) for path in paths]
    return _counted(images, files, edition, 1)


def _counted(
    found: list[tuple[str, str]], files: _Files, edition: TinyImageNet, part: int
) -> list[tuple[str, str]]:
    """Raise for another number of classes or of images per class."""
    wanted = edition.per_class[part]
    counts = Counter(wnid for _, wnid in found)
    odd = next((f"class {wnid} has {n}" for wnid, n in counts.items() if n != wanted), None)
    if len(counts) != edition.n_classes or odd is not None:
        raise ValueError(
            f"Expected {files.origin} to hold {edition.n_classes} classes of {wanted} images in "
            f"{('train', 'val')[part]!r}, but {odd or f'it holds {len(counts)} classes'}. Unpack the "
            f"original again. The original comes from: {edition.source}."
        )
    return found


def _decode(files: _Files, paths: list[tuple[str, str]], edition: TinyImageNet) -> Labelled:
    """Return images ``(n, 3, 64, 64)`` and the numbers of their classes."""
    numbers = {wnid: i for i, wnid in enumerate(sorted({wnid for _, wnid in paths}))}
    pixels = np.empty((len(paths), 3, _SIDE, _SIDE), dtype=np.uint8)
    for i, (path, _) in enumerate(paths):
        image = read_rgb(files.read(path), f"{files.origin}: {path}")
        if image.shape != (_SIDE, _SIDE, 3):
            raise ValueError(
                f"Expected {path} of {files.origin} to be {_SIDE}x{_SIDE} pixels, but it is "
                f"{image.shape[1]}x{image.shape[0]}. Put the original there: {edition.source}."
            )
        pixels[i] = image.transpose(2, 0, 1)
    return pixels, np.array([numbers[wnid] for _, wnid in paths], dtype=np.int64)
