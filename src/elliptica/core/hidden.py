"""Bridging in a hidden layer, which is how text and other discrete inputs become usable.

The model runs on rows whose inputs are the two ends of each pair; a forward hook replaces the output
of one layer by bridges between the ends' outputs. Gradients flow through the bridges into the layers
below.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.text import did_you_mean
from elliptica.core.batchnorm import untracked_statistics
from elliptica.core.inputs import call_model
from elliptica.core.types import Inputs


class RowExchange(Protocol):
    """How a layer sees all rows of a batch while this process runs a part of them."""

    def gather(self, part: Tensor) -> Tensor:
        """All rows, from the part of each process."""

    def take(self, whole: Tensor) -> Tensor:
        """This process' part of all rows."""


#: Set while a model whose rows are shared out (`elliptica.distributed.split_rows`) runs on its part.
all_rows: ContextVar[RowExchange | None] = ContextVar("all_rows", default=None)


@dataclass(frozen=True)
class HiddenBridge:
    """What remains to be drawn once the layer's output is known.

    Attributes:
        at: Name of the layer.
        bridge: From the layer's rows ``(rows, *feature)`` to bridged rows and their variance.
    """

    at: str
    bridge: Callable[[Tensor], tuple[Tensor, float | Tensor]]


def find_layer(model: nn.Module, at: str) -> nn.Module:
    """The submodule called ``at``; near misses are suggested."""
    layers = {name: layer for name, layer in model.named_modules() if name}
    if at in layers:
        return layers[at]
    hint = did_you_mean(at, layers, n=3) or f"It has {', '.join(map(repr, list(layers)[:8]))}."
    raise ValueError(
        f"at={at!r} is not a layer of the model. {hint} "
        "`[name for name, _ in model.named_modules()]` lists all."
    )


@contextlib.contextmanager
def replaced_output(model: nn.Module, at: str, replace: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Within the context, the layer ``at`` returns ``replace(its output)``; yields what it returned."""
    replaced: list[Tensor] = []

    def hook(_module: nn.Module, _args: object, output: object) -> Tensor:
        if replaced:
            raise RuntimeError(
                f"The layer at={at!r} ran twice in one forward pass, so bridging there is ambiguous. "
                "Choose a layer that runs once."
            )
        checks.floating(f"the output of the layer at={at!r}", output)
        assert isinstance(output, Tensor)
        exchange = all_rows.get()
        replaced.append(replace(output if exchange is None else exchange.gather(output)))
        return replaced[0] if exchange is None else exchange.take(replaced[0])

    handle = find_layer(model, at).register_forward_hook(hook)
    try:
        yield replaced
    finally:
        handle.remove()
    if not replaced:
        raise RuntimeError(
            f"The layer at={at!r} did not run in the forward pass. Choose a layer that the model uses."
        )


def hidden_features(model: nn.Module, x: Inputs, at: str) -> Tensor:
    """Output of the layer ``at`` on clean inputs, without gradients and without side effects."""
    with (
        torch.no_grad(),
        untracked_statistics(model),
        replaced_output(model, at, lambda output: output) as outputs,
    ):
        call_model(model, x)
    return outputs[0]
