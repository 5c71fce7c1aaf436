"""RCF-MNIST as features of a frozen network, for a small head on a processor.

The features are computed once, from the images, and kept in the data directory.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.files import replacing
from elliptica.lab.data.fashion import load_rcf_mnist
from elliptica.lab.data.files import data_directories, find_file
from elliptica.lab.data.splits import Dataset, Scaling, Split, standardise
from elliptica.lab.models.backbones import load_backbone

#: Seed of the one draw of angles and colours that the features are made of.
DRAW = 0
_PARTS = ("train", "validation", "test")
_CHUNK = 32  # larger ones cost more, in allocating memory


def load_rcf_mnist_features(
    seed: int = 0,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 64,
    scale: Scaling = "train",
) -> Dataset:
    """Load RCF-MNIST as 1280 features of a frozen network: find the angle of a picture.

    Features are the average of the last feature map of EfficientNet-Lite0 with ImageNet weights, at images of
    `load_rcf_mnist` enlarged to ``size`` pixels. They are of one draw of angles and colours, all 40000 /
    10000 / 10000 images. The first call computes them (two minutes of one core at 64 pixels; see
    `load_backbone` for the packages it needs) and keeps them as ``rcf_mnist/effnetlite0-64px.npz`` (155 MB)
    in ``data_dir``, or in the cache folder.

    Deviation: the paper trains ResNet-18 on the images. Do not compare numbers with such work.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``fashion_mnist`` and gets the features; see `data_directories` if
            None.
        size: Height and width to which images are enlarged.
        scale: ``"train"`` gives each feature mean 0 and deviation 1 in the training rows (a feature that
            is constant there becomes 0 in all rows); ``"none"`` leaves them alone.

    Returns:
        Inputs of shape ``(n, 1280)`` and targets of shape ``(n, 1)``, float32; ``group`` as in
        `load_rcf_mnist`.
    """
    checks.choice("scale", scale, get_args(Scaling))
    checks.count("size", size, 32)
    name = f"rcf_mnist/effnetlite0-{size}px.npz"
    try:
        path = find_file(name, data_dir)
    except FileNotFoundError:
        path = data_directories(data_dir)[-1] / name
        _write(path, size, data_dir)
    rng = np.random.RandomState(seed)
    orders = [(part, torch.from_numpy(rng.permutation(part.n_rows))) for part in _read(path, scale)]
    train, validation, test = (
        Split(part.x[rows], part.y[rows], None if part.group is None else part.group[rows])
        for part, rows in orders
    )
    return Dataset("rcf_mnist", train, validation, test, task="regression")


@functools.lru_cache(maxsize=1)  # scaling costs as much as an epoch of a small head
def _read(path: Path, scale: Scaling) -> tuple[Split, ...]:
    """Read and scale the parts; the order of their rows is that of the images."""
    with np.load(path, allow_pickle=False) as file:
        found = {key: torch.from_numpy(file[key]) for key in file.files}
    inputs = [found[f"{part}.x"].double() for part in _PARTS]
    if scale == "train":
        inputs = standardise(inputs)
    return tuple(
        Split(x.float(), found[f"{part}.y"], found[f"{part}.group"])
        for x, part in zip(inputs, _PARTS, strict=True)
    )


def _write(path: Path, size: int, data_dir: str | os.PathLike[str] | None) -> None:
    """Compute the features of all parts, in half precision, and write them as a whole."""
    network = load_backbone("efficientnet_lite0", num_classes=0).eval()
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = load_rcf_mnist(DRAW, data_dir=data_dir)
    found: dict[str, Any] = {}
    for name in _PARTS:
        part: Split = getattr(data, name)
        assert part.group is not None
        found[f"{name}.x"] = features(network, part.x, size).half().numpy()
        found[f"{name}.y"], found[f"{name}.group"] = part.y.numpy(), part.group.numpy()
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **found)


def features(network: nn.Module, x: Tensor, size: int) -> Tensor:
    """Outputs of a network at images in [-1, 1], enlarged and scaled as EfficientNet-Lite0 expects."""
    found = []
    with torch.inference_mode():
        for part in x.split(_CHUNK):
            pixels = nn.functional.interpolate(
                (part + 1) * 127.5, size=(size, size), mode="bilinear", align_corners=False
            )
            images = ((pixels - 127) / 128).to(memory_format=torch.channels_last)
            found.append(network(images).flatten(1))
    return torch.cat(found)
