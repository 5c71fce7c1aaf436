"""Image files that are read when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import check_generator
from elliptica.lab.data.images import pillow, read_rgb
from elliptica.lab.data.transforms import ImageTransform

#: Steps for evaluation and for training, and the number of threads.
_Settings = tuple[ImageTransform, ImageTransform | None, int]


class ImageFiles(Tensor):
    """Images that are decoded row by row, where a data set would hold a tensor of all of them.

    A tensor without memory of its own: it has the shape ``(n, 3, height, width)``, dtype and length of the
    decoded images, and gives an ordinary tensor for an index (a number, a slice, a list, a tensor of numbers
    or of booleans), for `split` and for a loop over its rows. Any other operation is refused, since it would
    read all files. Files are decoded in threads; the result does not depend on their number.

    Indexing gives what evaluation needs, the same images every time. ``x.training(generator)[rows]`` gives
    randomly transformed ones: the same generator, the same images.

    Args:
        paths: Image files, one for each row; they are not opened yet.
        transform: Steps for evaluation.
        augment: Steps for training; those of evaluation if None.
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
        """A tensor of the right shape, without memory."""
        checks.count("workers", workers)
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
        """The same rows, randomly transformed anew each time they are read.

        Reading draws one number for each image, in the order of the rows, from ``generator``; each image's
        transform then draws from a stream of its own. Without steps for training nothing is drawn.
        """
        check_generator(generator, torch.device("cpu"))
        return _make(self._paths, self._settings, generator)

    def __getitem__(self, index: Any) -> Tensor:
        # Torch's own indexing of the row numbers, so that every kind of index means what it means there.
        rows = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        images = self._read(rows.flatten().tolist())
        return images.reshape(*rows.shape, *self.shape[1:])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def split(self, split_size: Any, dim: int = 0) -> Iterator[Tensor]:  # type: ignore[override]
        """Parts of ``split_size`` rows, each decoded when the loop comes to it."""
        checks.count("split_size", split_size)
        if dim != 0:
            raise ValueError(f"Image files can be split into rows only, dim=0, but got dim={dim}.")
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
        """Refuse what would need all images at once."""
        # Not a TypeError: torch's operators would replace it by their own.
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
