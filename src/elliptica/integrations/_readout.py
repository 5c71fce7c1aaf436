"""A transformers model as a network from inputs to logits, with a place where token ids can be bridged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from elliptica._random import compute_dtype

#: Name of the layer of a `Readout` in whose output bridges are drawn.
POINT = "point"

#: Ids of the start of each bridge; all other inputs are those of the nearer end.
START = "start_ids"


class Readout(nn.Module):
    """From named inputs to logits, ``(rows, labels)``.

    There is nothing between two token ids, so texts are bridged in the output of the embedding layer. The
    model itself is called with the ids, the mask and whatever else belongs to the *nearer* end of each
    bridge: models read positions and the last token off their ids. Only the vectors are exchanged for those
    of the bridge. At either end that is the model's ordinary forward pass, whatever the lengths of the two
    texts.

    Args:
        net: The model, possibly wrapped.
        layer: Layer whose output is bridged; None to bridge the inputs themselves.
    """

    def __init__(self, net: nn.Module, layer: nn.Module | None) -> None:
        super().__init__()
        self.point = nn.Identity()
        self.attach(net, layer)

    def attach(self, net: nn.Module, layer: nn.Module | None) -> None:
        """Exchange the model: trainers wrap it late."""
        self.net = net
        self._layer = (layer,)  # in a tuple: it belongs to the model already

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits of every row, in at least single precision."""
        start = inputs.pop(START, None)
        (layer,) = self._layer
        if layer is None:
            return logits_of(self.net(**inputs))
        handle = layer.register_forward_hook(self._exchange(start))
        try:
            return logits_of(self.net(**inputs))
        finally:
            handle.remove()

    def _exchange(self, start: Tensor | None) -> Callable[[nn.Module, Any, Any], Any]:
        ran = False

        def hook(layer: nn.Module, _args: Any, output: Any) -> Any:
            nonlocal ran
            if ran:
                raise RuntimeError(
                    "The embedding layer ran twice in one forward pass (an encoder-decoder model?), so "
                    'bridging there is ambiguous. Name a layer that runs once: elliptic={"at": "..."}.'
                )
            ran = True
            return self.point(output if start is None else layer.forward(start))

        return hook


def logits_of(outputs: Any) -> Tensor:
    """Logits of what a model returned: an output object, a tuple that begins with them, or a tensor."""
    if isinstance(outputs, dict):  # as transformers' output objects are
        if "logits" not in outputs:
            raise ValueError(
                f"The model returned no logits, only {', '.join(map(repr, outputs))}. Use a model for "
                "classification or regression."
            )
        outputs = outputs["logits"]
    elif isinstance(outputs, tuple):
        outputs = outputs[0]
    return outputs.to(compute_dtype(outputs.dtype))
