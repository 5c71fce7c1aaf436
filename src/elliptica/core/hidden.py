"""Bridge in a hidden layer, so that text and other discrete inputs can be used.

The model runs on rows whose inputs are the two ends of each pair. A forward hook replaces the output of one
layer by bridges between the outputs at the ends. Gradients flow through the bridges into the layers below.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.text import did_you_mean
from elliptica.core.batchnorm import untracked_statistics
from elliptica.core.bridge import (
    deviation,
    draw_points,
    draw_times,
    finish_paths,
    from_nearer_end,
    view_rows,
)
from elliptica.core.inputs import Batch, call_model
from elliptica.core.noise import auto_sigma
from elliptica.core.partners import Ends
from elliptica.core.types import Inputs, Paths

if TYPE_CHECKING:
    from elliptica.core.settings import Settings


class RowExchange(Protocol):
    """Give a layer all rows of a batch while this process runs only a part of them."""

    def gather(self, part: Tensor) -> Tensor:
        """Collect all rows from the part of each process."""

    def take(self, whole: Tensor) -> Tensor:
        """Select this process' part of all rows."""


#: Set while a model whose rows are split between processes (`elliptica.lab.training.split_rows`) runs.
all_rows: ContextVar[RowExchange | None] = ContextVar("all_rows", default=None)


@dataclass(frozen=True)
class HiddenBridge:
    """Bridges that are drawn once the output of a layer is known.

    Attributes:
        at: Name of the layer.
        bridge: Function from the layer's rows ``(rows, *feature)`` to bridged rows and their variance.
    """

    at: str
    bridge: Callable[[Tensor], tuple[Tensor, float | Tensor]]


def find_layer(model: nn.Module, at: str) -> nn.Module:
    """Return the submodule named ``at``; suggest similar names if there is none."""
    layers = {name: layer for name, layer in model.named_modules() if name}
    given: object = at
    if not isinstance(given, str):
        example = next(iter(layers), "0")
        raise TypeError(
            f"at must be the name of a layer, e.g. at={example!r}, but got {at!r} ({type(at).__name__}). "
            "`[name for name, _ in model.named_modules()]` lists all."
        )
    if at in layers:
        return layers[at]
    if not layers:
        raise ValueError(
            f"at={at!r} is not a layer of the model, which is a single {type(model).__name__} without named "
            "layers. Omit at=, or wrap the model: nn.Sequential(...), at='0'."
        )
    hint = did_you_mean(str(at), layers, n=3) or f"It has {', '.join(map(repr, list(layers)[:8]))}."
    raise ValueError(
        f"at={at!r} is not a layer of the model. {hint} "
        "`[name for name, _ in model.named_modules()]` lists all."
    )


@contextlib.contextmanager
def replaced_output(model: nn.Module, at: str, replace: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Make the layer ``at`` return ``replace(its output)`` within the context; yield what it returned."""
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
    """Return the output of the layer ``at`` on clean inputs, without gradients or side effects."""
    with (
        torch.no_grad(),
        untracked_statistics(model),
        replaced_output(model, at, lambda output: output) as outputs,
    ):
        call_model(model, x)
    return outputs[0]


def check_hidden_ends(settings: Settings, end: object) -> None:
    """Raise if far ends were given for single points, whose forward pass does not contain them."""
    if end is not None and settings.sampling == "marginal":
        raise ValueError(
            'end= with at= needs the far ends in the forward pass, but sampling="marginal" runs only the '
            'batch. Use sampling="path", or put both ends into the batch and pass partners=.'
        )


def draw_hidden_bridges(
    batch: Batch,
    ends: Ends,
    settings: Settings,
    *,
    strength: float = 1.0,
    generator: torch.Generator | None = None,
) -> Paths:
    """Prepare bridges in the layer ``settings.at``; their noise is drawn when that layer runs.

    The model's rows are the two ends of each pair. With one point per bridge they are the starts only,
    because each end is another row of the batch.
    """
    assert settings.at is not None
    s, spread = draw_times(len(batch.targets), settings, batch.targets, ends.places, generator)
    points: dict[Hashable, Tensor] = {}
    for name, value in batch.inputs.items():
        start, end = ends.of_input(name, value)
        rows = _ends_only(start, end, s) if name in batch.bridged else from_nearer_end(start, end, s)
        points[name] = view_rows(rows, settings.n_bridges)

    def bridge(rows: Tensor) -> tuple[Tensor, float | Tensor]:
        layer = rows.unflatten(0, (len(s), -1))
        start, far = layer[0], layer[-1]
        if ends.index is not None and len(s) == 1:
            far = start.index_select(0, ends.index)
        sigma: Any = settings.sigma
        if isinstance(sigma, str):  # "auto": measured at every step, because training moves the features
            sigma = auto_sigma(start.detach())
        std = deviation(sigma, strength, start, far, settings, generator)
        (drawn,) = draw_points([(start, far, std)], s, spread, settings, generator)
        return drawn.flatten(0, 1), std**2

    hidden = HiddenBridge(settings.at, bridge)
    start, end = ends.of(batch.targets, ends.y)
    assert settings.sigma_y is not None
    std_y = deviation(settings.sigma_y, strength, start, end, settings, generator)
    (free_y,) = draw_points([(start, end, std_y)], s, spread, settings, generator)
    return finish_paths(batch, ends, points, s, free_y, {}, std_y, settings, hidden)


def _ends_only(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Arrange rows as the start at every time but the last, and the end at the last."""
    if len(s) == 1:
        return start.unsqueeze(0)
    return torch.cat([start.unsqueeze(0).expand(len(s) - 1, *start.shape), end.unsqueeze(0)])
