"""Data sets, networks and methods by the name they have in a specification, and files that add some."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from elliptica._utils.random import stream, stream_seed
from elliptica.lab import data as lab_data
from elliptica.lab.data.images import MEDMNIST
from elliptica.lab.data.splits import Dataset, Split, scale_targets, shuffle_labels
from elliptica.lab.data.toy import two_moons
from elliptica.lab.experiments.methods import METHODS, from_module
from elliptica.lab.models import load_backbone, mlp, preact_resnet, wide_resnet
from elliptica.lab.training.batch import Relabel


def load_two_moons(seed: int, n_boundary: int = 400, n_interior: int = 400) -> Dataset:
    """Two moons, which need no files: outlines to train and validate on, what is inside to test on."""
    moons = two_moons(2 * n_boundary, n_interior, generator=stream("two_moons", seed, "points"))
    train, validation = (
        Split(moons.boundary_x[rows], moons.boundary_y[rows])
        for rows in (slice(n_boundary), slice(n_boundary, None))
    )
    test = Split(moons.interior_x, moons.interior_y)
    return Dataset("two_moons", train, validation, test, task="classification")


_NAMES = "airfoil no2 skillcraft crime waterbirds-features waterbirds celeba camelyon17 cifar10 cifar100"
_NAMES += " tiny_imagenet fashion_mnist rcf_mnist rcf_mnist-features"
#: Loaders by name; each takes its options, and ``seed`` and ``data_dir`` if it has such parameters.
DATASETS: dict[str, Callable[..., Dataset]] = {
    **{name: getattr(lab_data, f"load_{name.replace('-', '_')}") for name in _NAMES.split()},
    "tiny_imagenet_10": functools.partial(lab_data.load_tiny_imagenet, n_classes=10),
    "two_moons": load_two_moons,
    **{name: functools.partial(lab_data.load_medmnist, name) for name in MEDMNIST},
}
#: Data whose test rows depend on the seed, with the number of test rows over that of all others.
RESPLIT = {"airfoil": 200 / 1303, "no2": 100 / 400}


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
    ours = ("name", "shuffled_labels", "scaled_targets", "shuffled_per_batch", "test_noise")
    name, options = settings["name"], {key: settings[key] for key in settings if key not in ours}
    takes = inspect.signature(DATASETS[name]).parameters
    given = {key: value for key, value in (("seed", seed), ("data_dir", data_dir)) if key in takes}
    data = DATASETS[name](**given, **options)
    if settings.get("scaled_targets", False):
        data = scale_targets(data)
    share = settings.get("shuffled_labels", 0.0)
    if not share:
        return data
    noisy = shuffle_labels(data.train.y, share, generator=stream(name, seed, "label noise"))
    return dataclasses.replace(data, train=dataclasses.replace(data.train, y=noisy))


def label_noise(settings: dict[str, Any]) -> Relabel | None:
    """Shuffles a share of the labels of every batch anew; None if the settings do not ask for it."""
    share = settings.get("shuffled_per_batch", 0.0)
    return (lambda y, generator: shuffle_labels(y, share, generator=generator)) if share else None


def make_model(settings: dict[str, Any], data: Dataset, name: str, seed: int) -> nn.Module:
    """The network of a run, its weights from a stream of their own."""
    options = dict(settings)
    kind = options.pop("name")
    n_outputs = int(data.train.y.max()) + 1 if data.task == "classification" else data.train.y[0].numel()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(name, seed, "weights"))
        return MODELS[kind](data, n_outputs, **options)


def _preact_resnet(_: Dataset, n_outputs: int, channels_last: bool = False, **options: Any) -> nn.Module:
    """``channels_last`` is a layout in memory: the same network, faster on processors."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return preact_resnet(num_classes=n_outputs, **options).to(memory_format=layout)  # type: ignore[call-overload]


def _backbone(_: Dataset, n_outputs: int, network: Any, **options: Any) -> nn.Module:
    """Return a standard network as layers ``features``, up to its last linear layer, and ``head``."""
    return split_head(load_backbone(network, num_classes=n_outputs, **options))


def split_head(network: nn.Module) -> nn.Sequential:
    """The network and its last linear layer as two layers, so that methods can look at what lies between."""
    name, head = [(n, layer) for n, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    parent = network.get_submodule(name.rpartition(".")[0])
    setattr(parent, name.rpartition(".")[2], nn.Identity())
    return nn.Sequential(OrderedDict(features=network, head=head))


#: Networks by name; each takes the data, the number of outputs and its options.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": lambda data, n_outputs, **options: mlp(data.n_features, n_outputs, **options),
    "linear": lambda data, n_outputs, **options: mlp(data.n_features, n_outputs, hidden=(), **options),
    "preact_resnet": _preact_resnet,
    "wide_resnet": lambda _data, n_outputs, **options: wide_resnet(num_classes=n_outputs, **options),
    "backbone": _backbone,
}


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def register_method(name: str) -> Callable[[Decorated], Decorated]:
    """Register a method of training under a new name for tables.

    Decorate a module class such as those of `elliptica.baselines`: made by ``Class(model, loss_fn,
    **settings)`` and called with inputs, targets and ``generator=``, it returns the loss. If it is made with
    ``num_classes``, it gets the number of classes (None for real targets); if ``forward`` takes ``group``, it
    gets the environment of each row. Or decorate a function of settings and a `Context` that returns a
    `Prepared`, for methods that need the whole training set or several stages.
    """
    return _register(
        name, METHODS, lambda method: from_module(method) if isinstance(method, type) else method
    )


def register_dataset(name: str, *, resplit: float | None = None) -> Callable[[Decorated], Decorated]:
    """Register a data set under a new name for tables.

    Decorate a function that returns a `elliptica.lab.data.Dataset`. It gets ``seed``, the number of the
    repetition, and ``data_dir`` if it has parameters of these names, and what a table says in ``load``. If
    the seed also decides which rows are tested, ``resplit`` is the number of test rows over that of all
    others: such data are not tuned, and intervals of reports allow for it.
    """
    if resplit is not None:
        RESPLIT.setdefault(name, resplit)
    return _register(name, DATASETS)


def register_model(name: str) -> Callable[[Decorated], Decorated]:
    """Register a network under a new name for tables.

    Decorate a function that returns it, not trained: it gets the `elliptica.lab.data.Dataset`, the number of
    outputs, and what a table says in ``model`` by name.
    """
    return _register(name, MODELS)


def _register(
    name: str, known: dict[str, Any], convert: Callable[[Any], Any] = lambda value: value
) -> Callable[[Decorated], Decorated]:
    if name in known:
        raise ValueError(f"{name!r} is registered already. Choose another name.")

    def register(decorated: Decorated) -> Decorated:
        known[name] = convert(decorated)
        return decorated

    return register


def load_plugins(files: Iterable[str]) -> tuple[str, ...]:
    """Run files that register something, once in this process; return their whole paths for others."""
    paths = tuple(Path(file).resolve() for file in files)
    for path in paths:
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            continue
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if loaded is not None or spec is None or spec.loader is None:
            raise ValueError(f"--plugin {path}: name a Python file that is not called like another module.")
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        sys.path.append(str(path.parent))  # its other files are found
        try:
            spec.loader.exec_module(sys.modules[path.stem])
        except BaseException as error:
            del sys.modules[path.stem]
            raise ValueError(f"{path} cannot be run ({type(error).__name__}: {error}).") from error
    return tuple(map(str, paths))
