"""Control the mode and the running statistics of a model during extra forward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

BatchNormMode = Literal["paths", "clean", "frozen"]
BATCH_NORM_MODES: tuple[BatchNormMode, ...] = ("paths", "clean", "frozen")


def tracking_layers(model: nn.Module) -> list[_NormBase]:
    """Return the normalisation layers that would update running statistics now."""
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.training and m.track_running_stats]


@contextlib.contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise with the running statistics and do not update them."""
    layers = tracking_layers(model)
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


@contextlib.contextmanager
def untracked_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise with the statistics of the batch, as in training, but do not record them."""
    layers = tracking_layers(model)
    # an instance norm ignores track_running_stats and updates any buffers it has, so remove them
    kept = [(layer, dict(layer._buffers)) for layer in layers if isinstance(layer, _InstanceNorm)]
    for layer in layers:
        layer.track_running_stats = False
    for layer, buffers in kept:
        layer._buffers.update(dict.fromkeys(buffers))
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
        for layer, buffers in kept:
            layer._buffers.update(buffers)


@contextlib.contextmanager
def shadow_statistics(model: nn.Module) -> Iterator[None]:
    """Record running statistics in temporary copies, so that a repeated forward pass does not count twice."""
    kept = [(layer, dict(layer._buffers)) for layer in tracking_layers(model)]
    for layer, buffers in kept:
        for name, value in buffers.items():
            layer._buffers[name] = None if value is None else value.clone()
    try:
        yield
    finally:
        for layer, buffers in kept:
            layer._buffers.update(buffers)


def path_statistics(mode: BatchNormMode, model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Return the context in which normalisation layers see path points."""
    if mode == "frozen":
        return frozen_statistics(model)
    return untracked_statistics(model) if mode == "clean" else contextlib.nullcontext()


def recompute_statistics(mode: BatchNormMode, model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Return that context for the second evaluation of a chunk, in the backward pass."""
    return shadow_statistics(model) if mode == "paths" else path_statistics(mode, model)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; restore the mode of every module afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
