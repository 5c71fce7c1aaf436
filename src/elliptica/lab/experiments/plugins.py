"""Methods, data sets and networks of one's own: one file that registers them, imported by its path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from elliptica.lab.experiments.methods import METHODS, ROWS_PER_SAMPLE
from elliptica.lab.experiments.methods.context import from_module
from elliptica.lab.experiments.registry import DATASETS, MODELS, RESPLIT

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def register_method(name: str, *, rows_per_sample: int = 1) -> Callable[[Decorated], Decorated]:
    """Register a method of training under a new name for tables.

    Decorate a module class such as those of `elliptica.baselines`: made by ``Class(model, loss_fn,
    **settings)`` and called with inputs, targets and ``generator=``, it returns the loss. If it is made with
    ``num_classes``, it gets the number of classes (None for real targets); if ``forward`` takes ``group``, it
    gets the environment of each row. Or decorate a function of settings and a `Context` that returns a
    `Prepared`, for methods that need the whole training set or several stages. ``rows_per_sample`` is the
    number of rows that go through the network for each sample of a step, for the record.
    """
    ROWS_PER_SAMPLE.setdefault(name, rows_per_sample)
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
