"""Load a model from the user's code, and its rows from an .npz file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils.files import read_arrays
from elliptica.tables.fitted_model import FittedModel

_LOSSES = {
    "cross-entropy": nn.CrossEntropyLoss,
    "mse": nn.MSELoss,
    "l1": nn.L1Loss,
    "bce": nn.BCEWithLogitsLoss,
}


def fitted_from_code(data: Path, model: str, weights: Path | None, loss: str) -> FittedModel:
    """Combine the user's model with its rows.

    Args:
        data: An ``.npz`` file: ``x`` (rows, *feature) and ``y`` (rows,) or (rows, targets), whole numbers for
            classes; optional ``group``, ``x_test``, ``y_test``, ``group_test`` and ``x_unlabelled``.
        model: See `load_model`.
        weights: See `load_model`.
        loss: Name of the loss; ``"auto"`` follows from the targets.
    """
    arrays = read_arrays(data)
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(f"{data.name} holds only one of x_test and y_test. Save both or neither.")
    if loss == "auto":
        loss = "mse" if arrays["y"].dtype.kind == "f" else "cross-entropy"

    def inputs(name: str) -> Tensor | None:
        return torch.as_tensor(arrays[name]).float() if name in arrays else None

    def groups(name: str) -> list[Any] | None:
        return arrays[name].tolist() if name in arrays else None

    x, x_test = inputs("x"), inputs("x_test")
    if x is None:
        raise ValueError(f"{data.name} needs arrays x and y. Write numpy.savez(file, x=..., y=...).")
    return FittedModel(
        load_model(model, weights),
        _LOSSES[loss](),
        x,
        _targets(arrays["y"], loss),
        name=model,
        groups=groups("group"),
        test=None if x_test is None else (x_test, _targets(arrays["y_test"], loss)),
        test_groups=groups("group_test"),
        unlabelled=inputs("x_unlabelled"),
    )


def _targets(array: Any, loss: str) -> Tensor:
    """Convert targets to the dtype and shape that a loss takes."""
    y = torch.as_tensor(array)
    if loss == "cross-entropy":
        return y.float() if y.is_floating_point() else y.long().reshape(len(y))
    return y.float().reshape(len(y), -1)


def load_model(source: str, weights: Path | None = None) -> nn.Module:
    """Import a model from the user's code, ``package.module:name``: a module or a function that makes one.

    ``weights`` is a state dict, read with ``weights_only=True``. (Files of `torch.export` are not read:
    loading them runs pickle.)
    """
    module_name, _, name = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # where the command was started
    try:
        loaded = getattr(importlib.import_module(module_name), name)
    finally:
        sys.path.remove(str(Path.cwd()))
    model: nn.Module = loaded if isinstance(loaded, nn.Module) else loaded()
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model
