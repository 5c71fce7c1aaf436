"""Data sets and networks by the name they have in a specification."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from elliptica._utils.random import stream, stream_seed
from elliptica.lab.data import (
    PerBatchShuffle,
    load_airfoil,
    load_camelyon17,
    load_celeba,
    load_cifar10,
    load_cifar100,
    load_crime,
    load_fashion_mnist,
    load_medmnist,
    load_no2,
    load_rcf_mnist,
    load_rcf_mnist_features,
    load_skillcraft,
    load_tiny_imagenet,
    load_waterbirds,
    load_waterbirds_features,
    shuffle_labels,
    two_moons,
)
from elliptica.lab.data.images import MEDMNIST
from elliptica.lab.data.splits import Dataset, Split, scale_targets
from elliptica.lab.experiments.specification import OWN
from elliptica.lab.models import load_backbone, mlp, preact_resnet, wide_resnet
from elliptica.lab.training.batch import Relabel


def load_two_moons(
    seed: int, *, data_dir: object = None, n_boundary: int = 400, n_interior: int = 400
) -> Dataset:
    """Two moons, which need no files: outlines to train and validate on, what is inside to test on."""
    moons = two_moons(2 * n_boundary, n_interior, generator=stream("two_moons", seed, "points"))
    train, validation = (
        Split(moons.boundary_x[rows], moons.boundary_y[rows])
        for rows in (slice(n_boundary), slice(n_boundary, None))
    )
    test = Split(moons.interior_x, moons.interior_y)
    return Dataset("two_moons", train, validation, test, task="classification")


#: Loaders by name; each takes a seed, ``data_dir`` and its own options.
DATASETS: dict[str, Callable[..., Dataset]] = {
    "airfoil": load_airfoil,
    "no2": load_no2,
    "skillcraft": load_skillcraft,
    "crime": load_crime,
    "waterbirds-features": load_waterbirds_features,
    "waterbirds": load_waterbirds,
    "celeba": load_celeba,
    "camelyon17": load_camelyon17,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "tiny_imagenet": load_tiny_imagenet,
    "tiny_imagenet_10": functools.partial(load_tiny_imagenet, n_classes=10),
    "fashion_mnist": load_fashion_mnist,
    "rcf_mnist": load_rcf_mnist,
    "rcf_mnist-features": load_rcf_mnist_features,
    "two_moons": load_two_moons,
    **{name: functools.partial(load_medmnist, name) for name in MEDMNIST},
}


#: Data whose test rows depend on the seed, with the number of test rows over that of all others.
RESPLIT = {"airfoil": 200 / 1303, "no2": 100 / 400}


class RegistryError(ValueError):
    """A data set or a network of a specification does not exist, or an option of it."""


def entry_name(name: str, load: Mapping[str, Any]) -> str:
    """Name in the catalogue of the files behind a data set of a table."""
    return "_".join(filter(None, [load.get("name", name), load.get("part")]))


def load_dataset(
    settings: dict[str, Any], seed: int, data_dir: str | os.PathLike[str] | None = None
) -> Dataset:
    """Load the data of a run.

    ``name`` in the settings names the loader; ``shuffled_labels`` is the share of the training labels that
    are dealt out anew, once and for all, from a stream of the data set and the seed. ``scaled_targets`` maps
    real targets to [0, 1] by the training rows (`scale_targets`). (``shuffled_per_batch`` is for
    `label_noise`, ``test_noise`` for the measurement.)
    """
    options = dict(settings)
    name = options.pop("name")
    share = options.pop("shuffled_labels", 0.0)
    is_scaled = options.pop("scaled_targets", False)
    for other in ("shuffled_per_batch", "test_noise"):
        options.pop(other, None)
    _check_name("data set", name, DATASETS)
    try:
        data = DATASETS[name](seed=seed, data_dir=data_dir, **options)
    except TypeError as error:
        raise RegistryError(f"Data set {name!r} with {options}: {error}") from error
    if is_scaled:
        data = scale_targets(data)
    if not share:
        return data
    noisy = shuffle_labels(data.train.y, share, generator=stream(name, seed, "label noise"))
    return dataclasses.replace(data, train=dataclasses.replace(data.train, y=noisy.y))


def label_noise(settings: dict[str, Any]) -> Relabel | None:
    """Shuffles a share of the labels of every batch anew; None if the settings do not ask for it."""
    share = settings.get("shuffled_per_batch", 0.0)
    return PerBatchShuffle(share).relabel if share else None


def make_model(settings: dict[str, Any], data: Dataset, name: str, seed: int) -> nn.Module:
    """The network of a run, its weights from a stream of their own."""
    options = dict(settings)
    kind = options.pop("name")
    _check_name("network", kind, MODELS)
    n_outputs = int(data.train.y.max()) + 1 if data.task == "classification" else data.train.y[0].numel()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(name, seed, "weights"))
        try:
            return MODELS[kind](data, n_outputs, options)
        except TypeError as error:
            raise RegistryError(f"Network {kind!r} with {options}: {error}") from error


def _preact_resnet(data: Dataset, n_outputs: int, options: dict[str, Any]) -> nn.Module:
    """``channels_last`` is a layout in memory: the same network, faster on processors."""
    layout = torch.channels_last if options.pop("channels_last", False) else torch.contiguous_format
    return preact_resnet(num_classes=n_outputs, **options).to(memory_format=layout)  # type: ignore[call-overload]


def _backbone(data: Dataset, n_outputs: int, options: dict[str, Any]) -> nn.Module:
    """A standard network as layers ``features``, which gives the features of its last layer, and ``head``."""
    network = load_backbone(options.pop("network"), num_classes=n_outputs, **options)
    return split_head(network)


def split_head(network: nn.Module) -> nn.Sequential:
    """The network and its last linear layer as two layers, so that methods can look at what lies between."""
    name, head = [(n, layer) for n, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    parent = network.get_submodule(name.rpartition(".")[0])
    setattr(parent, name.rpartition(".")[2], nn.Identity())
    return nn.Sequential(OrderedDict(features=network, head=head))


#: Networks by name.
MODELS: dict[str, Callable[[Dataset, int, dict[str, Any]], nn.Module]] = {
    "mlp": lambda data, n_outputs, options: mlp(data.n_features, n_outputs, **options),
    "linear": lambda data, n_outputs, options: mlp(data.n_features, n_outputs, hidden=(), **options),
    "preact_resnet": _preact_resnet,
    "wide_resnet": lambda _data, n_outputs, options: wide_resnet(num_classes=n_outputs, **options),
    "backbone": _backbone,
}


def _check_name(what: str, name: str, known: dict[str, Any]) -> None:
    if name not in known:
        raise RegistryError(f"There is no {what} {name!r}. There are {', '.join(known)}. {OWN}")
