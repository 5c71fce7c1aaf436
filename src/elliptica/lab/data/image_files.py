"""Image files with classes and groups: a tensor that reads them on demand, and tables that list them."""

from __future__ import annotations

import csv
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica.core.inputs import EllipticWarning
from elliptica.lab.data.images import pillow, read_rgb
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.data.transforms import ImageTransform

#: Steps for evaluation and for training, and the number of threads.
_Settings = tuple[ImageTransform, ImageTransform | None, int]


class ImageFiles(Tensor):
    """A lazy tensor of images that decodes files row by row instead of holding all of them.

    It has no memory: only the shape ``(n, 3, height, width)``, dtype and length of the
    decoded images. It returns an ordinary tensor for an index (a number, a slice, a list, a tensor of numbers
    or of booleans), for `split` and for a loop over its rows. Any other operation raises an error, because it
    would read all files. Files are decoded in threads; the result does not depend on their number.

    Indexing returns the images for evaluation, the same every time. ``x.training(generator)[rows]`` returns
    randomly transformed ones; the same generator state gives the same images.

    Args:
        paths: Image files, one for each row; they are not opened at once.
        transform: Steps for evaluation.
        augment: Steps for training. None means those of evaluation.
        workers: Threads that decode.

    Example:
        >>> import tempfile
        >>> from elliptica.lab.data.transforms import Resize
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "a.png"
        ...     pillow().new("RGB", (60, 40)).save(file)
        ...     x = ImageFiles([file, file], ImageTransform((8, 8), (Resize((8, 8)),)))
        ...     x.shape, x[torch.tensor([1])].shape
        (torch.Size([2, 3, 8, 8]), torch.Size([1, 3, 8, 8]))
    """

    _paths: tuple[str, ...]
    _settings: _Settings
    _generator: torch.Generator | None

    @staticmethod
    def __new__(
        cls: type[ImageFiles],
        paths: Sequence[str | os.PathLike[str]],
        transform: ImageTransform,
        *,
        augment: ImageTransform | None = None,
        workers: int = 4,
    ) -> ImageFiles:
        """Make a tensor of the right shape, without memory."""
        if augment is not None and augment.size != transform.size:
            raise ValueError(
                "Both transforms must make images of one size (height, width), but training makes "
                f"{augment.size} and evaluation {transform.size}. Change the last step of one."
            )
        pillow()
        return _make(tuple(os.fspath(path) for path in paths), (transform, augment, workers), None)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, row by row."""
        return self._paths

    def training(self, generator: torch.Generator) -> ImageFiles:
        """Return the same rows, randomly transformed each time they are read.

        Reading draws one number for each image, in the order of the rows, from ``generator``; each image's
        transform then draws from its own stream. Without steps for training nothing is drawn.
        """
        return _make(self._paths, self._settings, generator)

    def __getitem__(self, index: Any) -> Tensor:
        # index the row numbers with torch, so that every kind of index behaves as usual
        rows = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        images = self._read(rows.flatten().tolist())
        return images.reshape(*rows.shape, *self.shape[1:])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def split(self, split_size: Any, dim: int = 0) -> Iterator[Tensor]:  # type: ignore[override]
        """Iterate over parts of ``split_size`` rows, each decoded on demand."""
        if dim != 0:
            raise ValueError(f"Image files can only be split by rows, but got dim={dim}. Use dim=0.")
        return (self[start : start + split_size] for start in range(0, len(self), split_size))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        transform, augment, workers = self._settings
        return f"ImageFiles({len(self)} files, {transform}, augment={augment}, workers={workers})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _make, (self._paths, self._settings, self._generator)

    def __deepcopy__(self, memo: Any) -> ImageFiles:
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raise for operations that would need all images at once."""
        # not a TypeError, which torch's operators would replace by their own
        raise ValueError(
            f"Image files are read row by row, but {func} would need all of them in memory. Take rows first, "
            "e.g. x[:100], or loop over x.split(100)."
        )

    def _read(self, rows: list[int]) -> Tensor:
        transform, augment, workers = self._settings
        paths = [self._paths[row] for row in rows]
        seeds: list[int | None] = [None] * len(rows)
        if self._generator is not None and augment is not None:
            transform = augment
            seeds = torch.randint(2**62, (len(rows),), generator=self._generator).tolist()
        if not rows:
            return torch.empty(0, *self.shape[1:])
        if workers == 1 or len(rows) == 1:
            return torch.stack([_decode(path, transform, s) for path, s in zip(paths, seeds, strict=True)])
        with ThreadPoolExecutor(min(workers, len(rows))) as pool:
            return torch.stack(list(pool.map(_decode, paths, [transform] * len(rows), seeds)))


def _make(paths: tuple[str, ...], settings: _Settings, generator: torch.Generator | None) -> ImageFiles:
    shape = (len(paths), 3, *settings[0].size)
    files: ImageFiles = Tensor._make_wrapper_subclass(ImageFiles, shape, dtype=torch.float32)
    files._paths, files._settings, files._generator = paths, settings, generator
    return files


def _decode(path: str, transform: ImageTransform, seed: int | None) -> Tensor:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise type(error)(
            f"Expected an image in the file {path}, but it cannot be read ({error.strerror or error}). It "
            "was there when the data were loaded: put it back, or load the data again."
        ) from error
    image = pillow().fromarray(read_rgb(content, path))
    return transform(image, None if seed is None else torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class ImageTable:
    """Columns of a text file that lists images, as they are written."""

    path: Path  # the file
    columns: Mapping[str, Sequence[str]]  # values by the name of the column
    first_line: int  # number of the line that holds the first row
    source: str  # where the original can be had from; quoted in error messages

    def __getitem__(self, column: str) -> Sequence[str]:
        return self.columns[column]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    def integers(self, column: str, allowed: Sequence[int]) -> NDArray[np.int64]:
        """Return a column of integers, each of which must be one of ``allowed``."""
        known = {str(number): number for number in allowed}
        try:
            return np.array([known[value] for value in self.columns[column]], dtype=np.int64)
        except KeyError:
            row = next(i for i, value in enumerate(self.columns[column]) if value not in known)
            raise self.error(
                row, f"{column} to be one of {', '.join(known)}", repr(self.columns[column][row])
            ) from None

    def error(self, row: int, expected: str, got: str) -> ValueError:
        """Make an error about a row, with the source of the original."""
        return ValueError(
            f"Expected line {row + self.first_line} of {self.path} to have {expected}, but it has {got}. Put "
            f"the original there. It comes from: {self.source}."
        )


def read_table(path: Path, wanted: Sequence[str], *, source: str) -> ImageTable:
    """Read the wanted columns of a CSV file with a header.

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
    """Return the wanted columns of parsed rows."""
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


def find_inside(folder: Path, names: Sequence[str], *, source: str) -> Path:
    """Return the first of several files or folders that exists in ``folder``."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(
        f"Expected {folder} to hold {' or '.join(names)}, but it does not. Unpack the original there again. "
        f"It comes from: {source}."
    )


def check_images(folder: Path, names: Sequence[str], table: ImageTable) -> None:
    """Raise an error if images of a table are missing; folders are listed, no image is opened.

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


@dataclass(frozen=True)
class Published:
    """Published facts about a data set of photographs with groups."""

    name: str  # short name
    n_rows: int  # images in the table; the counts below are compared if there are as many
    folders: tuple[str, ...]  # where it may be, first choice first
    sizes: tuple[int, ...]  # images for training, validation and test
    training_groups: tuple[int, ...] | None  # training images of each group; None if it is not to be compared
    source: str  # where the original can be had from


def grouped_dataset(
    known: Published,
    table: ImageTable,
    folder: Path,
    names: Sequence[str],
    y: NDArray[np.int64],
    group: NDArray[np.int64],
    part: NDArray[np.int64],
    *,
    seed: int,
    transform: ImageTransform,
    augment: ImageTransform | None,
    workers: int,
) -> Dataset:
    """Check a table of images, and make a classification data set of image files with groups.

    ``part`` is 0, 1 or 2 for training, validation and test; other rows are skipped. ``seed`` orders the rows
    of each part.
    """
    check_images(folder, names, table)
    _check_counts(known, table, group, part)
    paths = [os.path.join(folder, name) for name in names]  # noqa: PTH118 - pathlib is slow here
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
    return Dataset(known.name, train, validation, test, task="classification")


def _check_counts(
    known: Published, table: ImageTable, group: NDArray[np.int64], part: NDArray[np.int64]
) -> None:
    """Compare counts with the published ones; with another number of rows, only warn."""
    if table.n_rows != known.n_rows:
        warnings.warn(
            f"{table.path} lists {table.n_rows} images, but {known.n_rows} were published. Do not compare "
            f"results with published ones. The original comes from: {table.source}.",
            EllipticWarning,
            stacklevel=4,
        )
        return
    counts = {"parts of sizes": (np.bincount(part, minlength=3)[:3].tolist(), known.sizes)}
    if known.training_groups is not None:
        actual = np.bincount(group[part == 0], minlength=len(known.training_groups)).tolist()
        counts["training groups of sizes"] = (actual, known.training_groups)
    for what, (actual, published) in counts.items():
        if actual != list(published):
            raise ValueError(
                f"Expected {table.path} to have {what} {' / '.join(map(str, published))}, but they are "
                f"{' / '.join(map(str, actual))}. Put the original there. It comes from: {table.source}."
            )
