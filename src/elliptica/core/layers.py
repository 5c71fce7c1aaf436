"""Reach into a model: split it at a hidden layer, control running statistics, recognise wrappers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from elliptica.core.inputs import Inputs, call_model, copy_inputs

_P = ParamSpec("_P")
_R = TypeVar("_R")


def run_uncompiled(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function as ordinary Python from inside a compiled one."""
    # not as a decorator: that would import the compiler, which takes as long as importing torch
    return torch.compiler.disable(function)(*args, **kwargs)


@contextlib.contextmanager
def replaced_output(model: nn.Module, at: str, replace: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Make the layer ``at`` return ``replace(its output)`` within the context; yield what it returned.

    Activation checkpointing around the layer raises: it would run the layer again without the replacement.
    """
    replaced: list[Tensor] = []
    outside = _recomputation()

    def hook(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        if replaced:
            raise RuntimeError(f"The layer at={at!r} ran twice in one pass. Choose one that runs once.")
        if _recomputation() != outside:
            raise RuntimeError(
                f"The layer at={at!r} runs under activation checkpointing, which would run it again without "
                "the bridges. Choose a layer outside the checkpointed part, such as the embedding."
            )
        replaced.append(replace(output))
        return replaced[0]

    handle = model.get_submodule(at).register_forward_hook(hook)
    try:
        yield replaced
    finally:
        handle.remove()
    if not replaced:
        raise RuntimeError(f"The layer at={at!r} did not run. Choose one that the model uses.")


def _recomputation() -> tuple[bool, object]:
    """Return what activation checkpointing changes while it runs a part of a model."""
    # a reentrant checkpoint switches gradients off, another one packs the tensors that are saved
    return torch.is_grad_enabled(), torch._C._autograd._top_saved_tensors_default_hooks(True)


class _Stop(Exception):
    """End a forward pass at a layer whose output is all that is needed."""


class Split:
    """A model in two parts: up to the layer ``at``, and from its output on.

    The last axes of the layer's output are features, its first axis the rows of the batch.
    """

    def __init__(self, model: nn.Module, at: str) -> None:
        model.get_submodule(at)  # raise now if there is none
        self.at = at

    def cuts(self, model: nn.Module) -> bool:
        """Return whether the model can be cut in two; otherwise its lower part runs again below the layer."""
        has_hooks = model._forward_hooks or model._forward_pre_hooks  # they see the whole
        return type(model) is nn.Sequential and self.at in model._modules and not has_hooks

    def features(self, model: nn.Module, x: Inputs) -> Tensor:
        """Return the output of the layer at the data."""
        if self.cuts(model):
            return self._run(model, x, upper=False)
        grabbed: list[Tensor] = []

        def grab(output: Tensor) -> Tensor:
            grabbed.append(output)
            raise _Stop

        # the second pass updates running statistics, so this one must not
        with untracked_statistics(model), contextlib.suppress(_Stop), replaced_output(model, self.at, grab):
            call_model(model, copy_inputs(x))  # a model may overwrite its input
        return grabbed[0]

    def resume(self, model: nn.Module, x: Inputs, hidden: Tensor) -> Any:
        """Return the output of the model if the layer returns ``hidden``; ``x`` feeds other layers."""
        if self.cuts(model):
            return self._run(model, hidden, upper=True)
        with replaced_output(model, self.at, lambda _: hidden):
            return call_model(model, x)

    def _run(self, model: nn.Module, x: Any, *, upper: bool) -> Any:
        """Run the layers of a sequence up to the cut, or those above it; a layer may appear twice."""
        cut = list(model._modules).index(self.at) + 1
        for layer in list(model._modules.values())[cut:] if upper else list(model._modules.values())[:cut]:
            assert layer is not None
            x = layer(x)
        return x


@torch.no_grad()
def hidden_features(model: nn.Module, x: Inputs, at: str) -> Tensor:
    """Return the output of the layer ``at`` at the data, without gradients or side effects."""
    with untracked_statistics(model):
        return Split(model, at).features(model, x)


@contextlib.contextmanager
def untracked_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise with the statistics of the batch, as in training, but do not record them."""
    norms = (module for module in model.modules() if isinstance(module, _NormBase))
    layers = [norm for norm in norms if norm.training and norm.track_running_stats]
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
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; restore the mode of every module afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def check_unwrapped(model: nn.Module, second_order: bool) -> None:
    """Raise if a wrapped *model* (instead of a wrapped objective) would give silently wrong gradients.

    Weightings that differentiate twice bypass the synchronisation of the wrapper. A static graph takes any
    backward pass to the inputs for the one that it synchronises.
    """
    ddp = nn.parallel.DistributedDataParallel
    is_static = any(isinstance(module, ddp) and module.static_graph for module in model.modules())
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nothing is sharded before it is imported
    wrappers = (ddp, *([] if fsdp is None else [fsdp.FSDPModule]))
    if is_static or (second_order and any(isinstance(module, wrappers) for module in model.modules())):
        raise ValueError(
            "The wrapper of the model does not synchronise the gradients of this weighting. Wrap the "
            "objective instead: DistributedDataParallel(Elliptic(model, loss_fn, ...))."
        )
