"""Tables that list image files, with their classes and groups: reading them, and data sets from them."""

from __future__ import annotations

import csv
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from elliptica.core.types import EllipticWarning
from elliptica.lab.data.image_files import ImageFiles
from elliptica.lab.data.location import ENVIRONMENT_VARIABLE, data_directories
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.data.transforms import ImageTransform


@dataclass(frozen=True)
class ImageTable:
    """Columns of a text file that lists images, as they are written.

    Attributes:
        path: The file.
        columns: Values by the name of the column.
        first_line: Number of the line that holds the first row.
        source: Where the original can be had from; quoted in error messages.
    """

    path: Path
    columns: Mapping[str, Sequence[str]]
    first_line: int
    source: str

    def __getitem__(self, column: str) -> Sequence[str]:
        return self.columns[column]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    def integers(self, column: str, allowed: Sequence[int]) -> NDArray[np.int64]:
        """A column of whole numbers, each of which must be one of ``allowed``."""
        known = {str(number): number for number in allowed}
        try:
            return np.array([known[value] for value in self.columns[column]], dtype=np.int64)
        except KeyError:
            row = next(i for i, value in enumerate(self.columns[column]) if value not in known)
            raise self.error(
                row, f"{column} to be one of {', '.join(known)}", repr(self.columns[column][row])
            ) from None

    def error(self, row: int, expected: str, got: str) -> ValueError:
        """What is wrong with a row, and where the original comes from."""
        return ValueError(
            f"Expected line {row + self.first_line} of {self.path} to have {expected}, but it has {got}. Put "
            f"the original there. It comes from: {self.source}."
        )


def read_table(path: Path, wanted: Sequence[str], *, source: str) -> ImageTable:
    """The wanted columns of a table with commas and a line of names.

    Raises:
        ValueError: If a column is missing, a row is too short or too long, or there is none.
    """
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        return table_of(path, header, reader, wanted, first_line=2, source=source)


def table_of(
    path: Path,
    header: Sequence[str],
    rows: Iterator[list[str]],
    wanted: Sequence[str],
    *,
    first_line: int,
    source: str,
) -> ImageTable:
    """The wanted columns of rows that have been taken apart."""
    header = [name.strip() for name in header]
    if missing := [name for name in wanted if name not in header]:
        raise ValueError(
            f"Expected {path} to have the columns {', '.join(wanted)}, but {', '.join(missing)} is missing: "
            f"it has {', '.join(header[:12]) or 'none'}. Put the original there. It comes from: {source}."
        )
    places = [header.index(name) for name in wanted]
    columns: dict[str, list[str]] = {name: [] for name in wanted}
    table = ImageTable(path, columns, first_line, source)
    for i, row in enumerate(rows):
        if not row and not any(rows):
            break  # empty lines at the end
        if len(row) != len(header):
            raise table.error(i, f"{len(header)} values", f"{len(row)} (is the file cut off?)")
        for values, place in zip(columns.values(), places, strict=True):
            values.append(row[place].strip())
    if not table.n_rows:
        raise ValueError(f"Expected {path} to list images, but it lists none. It comes from: {source}.")
    return table


def find_folder(
    names: Sequence[str], data_dir: str | os.PathLike[str] | None = None, *, source: str = ""
) -> Path:
    """The first of several folders that exists in a data directory.

    Raises:
        FileNotFoundError: If there is none. The message lists every place.
    """
    candidates = [place / name for place in data_directories(data_dir) for name in names]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    looked = "\n".join(f"  {candidate}" for candidate in candidates)
    raise FileNotFoundError(
        f"Expected the folder {names[0]!r}, but found none of\n{looked}\n"
        f"Set the environment variable {ENVIRONMENT_VARIABLE}, or pass data_dir (--data-dir on the command "
        f"line), to the directory that holds {names[0]!r}. The original comes from: {source}."
    )


def find_inside(folder: Path, names: Sequence[str], *, source: str) -> Path:
    """The first of several files or folders that exists in ``folder``."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(
        f"Expected {folder} to hold {' or '.join(names)}, but it does not. Unpack the original there again. "
        f"It comes from: {source}."
    )


def check_images(folder: Path, names: Sequence[str], table: ImageTable) -> None:
    """Refuse a table of images that are not there; folders are listed, no image is opened.

    Raises:
        ValueError: If a name leads out of the folder.
        FileNotFoundError: If images are missing. The message names the first and its line.
    """
    by_folder: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        by_folder[name.rpartition("/")[0]].append(row)
    missing = []
    for parent, rows in by_folder.items():
        inner = PurePosixPath(parent)
        if inner.is_absolute() or ".." in inner.parts:
            raise table.error(rows[0], f"a file below {folder}", repr(names[rows[0]]))
        present = _file_names(folder / inner)
        missing += [row for row in rows if names[row].rpartition("/")[2] not in present]
    if missing:
        first = min(missing)
        raise FileNotFoundError(
            f"Expected all {len(names)} images that {table.path} lists, but {len(missing)} are missing. The "
            f"first is {folder / names[first]} (line {first + table.first_line}). Unpack the original again. "
            f"It comes from: {table.source}."
        )


def _file_names(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def grouped_dataset(
    name: str,
    paths: Sequence[str],
    y: NDArray[np.int64],
    group: NDArray[np.int64],
    part: NDArray[np.int64],
    *,
    seed: int,
    transform: ImageTransform,
    augment: ImageTransform | None,
    workers: int,
    table: ImageTable,
) -> Dataset:
    """A classification data set of image files with groups.

    ``part`` is 0, 1 or 2 for training, validation and test; other rows are left out. ``seed`` orders the rows
    of each part.
    """
    rng = np.random.RandomState(seed)
    splits = []
    for number, which in enumerate(("training", "validation", "test")):
        index = rng.permutation(np.flatnonzero(part == number))
        if not len(index):
            raise ValueError(
                f"Expected {table.path} to list images for training, validation and test, but it lists none "
                f"for {which}. Put the original there. It comes from: {table.source}."
            )
        files = ImageFiles([paths[i] for i in index], transform, augment=augment, workers=workers)
        splits.append(Split(files, torch.from_numpy(y[index]), torch.from_numpy(group[index])))
    train, validation, test = splits
    return Dataset(name, train, validation, test, task="classification")


def check_published(
    table: ImageTable, n_published: int, counts: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> None:
    """Compare counts, each found and published, by what is counted.

    With another number of rows than was published, a warning says so and counts are left alone.
    """
    if table.n_rows != n_published:
        warnings.warn(
            f"{table.path} lists {table.n_rows} images, but {n_published} were published. Do not compare "
            f"results with published ones. The original comes from: {table.source}.",
            EllipticWarning,
            stacklevel=3,
        )
        return
    for what, (found, published) in counts.items():
        if list(found) != list(published):
            raise ValueError(
                f"Expected {table.path} to have {what} {' / '.join(map(str, published))}, but they are "
                f"{' / '.join(map(str, found))}. Put the original there. It comes from: {table.source}."
            )
