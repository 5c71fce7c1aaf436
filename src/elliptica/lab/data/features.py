"""Images as features of a frozen network, for a linear or small head: Waterbirds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from elliptica.lab.data.location import find_file, verify_sha256
from elliptica.lab.data.splits import Dataset, Split

Scaling = Literal["train", "none"]


@dataclass(frozen=True)
class _FeatureFile:
    """What is known about a file of features."""

    name: str
    relative_path: str
    sha256: str
    n_features: int
    sizes: tuple[int, int, int]
    source: str


_WATERBIRDS = _FeatureFile(
    name="waterbirds",
    relative_path="waterbirds/waterbirds_effnetlite0.npz",
    sha256="f7970f4a0ca77fb69cef1b468234a8511c2dd2c5e435e7d299126b5f742693bb",
    n_features=1280,
    sizes=(4795, 1199, 5794),
    source="Waterbirds v1.0 (Sagawa et al., 2020), features of EfficientNet-Lite0 made from its photographs",
)


def load_waterbirds_features(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    scale: Scaling = "train",
) -> Dataset:
    """Load Waterbirds as 1280 features of a frozen network: land birds (0) against water birds (1).

    Features are the average of the last feature map of EfficientNet-Lite0 with ImageNet weights, one row
    per photograph; the parts are the official ones, 4795 / 1199 / 5794 rows. In training 95 % of the
    birds are seen against the background that suits them; in validation and test, half.

    Deviation: the paper fine-tunes a network on the photographs. Do not compare numbers with such work.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``waterbirds/waterbirds_effnetlite0.npz``; see
            `data_directories` if None.
        scale: ``"train"`` gives each feature mean 0 and deviation 1 in the training rows (a feature that
            is constant there becomes 0 in all rows); ``"none"`` leaves them alone.

    Returns:
        Inputs of shape ``(n, 1280)``, float32; classes of shape ``(n,)``, int64; ``group`` is twice the
        class plus the background (0 land, 1 water), so that groups 1 and 2 are the rare ones.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If the file is not the expected one.

    Example:
        >>> load_waterbirds_features().train.group.bincount()  # doctest: +SKIP
        tensor([3498,  184,   56, 1057])
    """
    if scale not in get_args(Scaling):
        raise ValueError(f"scale must be 'train' or 'none', but got {scale!r}. Pass one of the two.")
    known = _WATERBIRDS
    path = find_file(known.relative_path, data_dir, source=known.source)
    verify_sha256(path, known.sha256, source=known.source)
    with np.load(path, allow_pickle=False) as file:
        x, y, place, part = (torch.from_numpy(file[key]) for key in ("features", "y", "place", "split"))
    sizes = tuple(int((part == i).sum()) for i in range(3))
    if x.shape != (sum(known.sizes), known.n_features) or sizes != known.sizes:
        raise ValueError(
            f"Expected {path} to hold parts of {known.sizes} rows of {known.n_features} features, but it "
            f"holds {sizes} of shape {tuple(x.shape)}. Put the original there: {known.source}."
        )
    rng = np.random.RandomState(seed)
    rows = [torch.from_numpy(rng.permutation(np.flatnonzero(part.numpy() == i))) for i in range(3)]
    inputs = [x[index].double() for index in rows]
    if scale == "train":
        inputs = _standardise(inputs)
    y, place = y.long(), place.long()
    train, validation, test = (
        Split(features.float(), y[index], 2 * y[index] + place[index])
        for features, index in zip(inputs, rows, strict=True)
    )
    return Dataset(known.name, train, validation, test, task="classification")


def _standardise(parts: list[Tensor]) -> list[Tensor]:
    """Give each column mean 0 and deviation 1 in the first part."""
    mean, deviation = parts[0].mean(0), parts[0].std(0, correction=0)
    is_constant = deviation == 0
    safe = deviation.masked_fill(is_constant, 1)
    return [((part - mean) / safe).masked_fill(is_constant, 0) for part in parts]
