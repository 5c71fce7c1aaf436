"""Manifold mixup: mixup in the output of a random layer (Verma et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from elliptica._utils.random import draw_uniform
from elliptica.baselines.erm import Batch
from elliptica.baselines.mixup import Mixup
from elliptica.baselines.names import named
from elliptica.core.hidden import find_layer
from elliptica.core.types import LossFn

_CPU = torch.device("cpu")


@named("manifold-mixup")
class ManifoldMixup(Mixup):
    """Manifold mixup: as `Mixup`, in one of several layers, chosen at random for each batch.

    All layers are equally likely. With a single layer it is ``Mixup(at=...)``, with the inputs only `Mixup`,
    with the same draws. Draws, in this order: the layer (if there are several), two gamma variables, the
    partners.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        layers: Names of layers in whose output to mix; None is the input. The authors choose among the input
            and the first two residual blocks: ``(None, "layer1", "layer2")`` in the usual names. Inputs of
            the model must enter below these layers, and each must run once in a forward pass.
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 2. At 0 nothing is mixed.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Attributes:
        at: Layer of the latest batch.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> objective = ManifoldMixup(model, nn.CrossEntropyLoss(), layers=(None, "1"))
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    settings: ClassVar[tuple[str, ...]] = ("alpha", "layers")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        layers: Sequence[str | None],
        alpha: float = 2.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        is_sequence = isinstance(layers, Sequence) and not isinstance(layers, str)
        if not is_sequence or not all(name is None or isinstance(name, str) for name in layers):
            raise TypeError(
                f"layers must be a tuple of names, but got {layers!r}. Write e.g. layers=(None, 'layer1'), "
                "where None is the input."
            )
        names = tuple(layers)
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"layers must name at least one layer, each only once, but got {names!r}. None is the input."
            )
        for name in names:
            if name is not None:
                find_layer(model, name)
        self.layers = names
        self.mixes_inputs = None in names

    def _training_loss(self, batch: Batch) -> Tensor:
        self.at = self._draw_layer(batch.generator)
        return super()._training_loss(batch)

    def _draw_layer(self, generator: torch.Generator | None) -> str | None:
        if len(self.layers) == 1:
            return self.layers[0]
        u = draw_uniform((1,), device=_CPU, generator=generator).item()
        return self.layers[min(int(u * len(self.layers)), len(self.layers) - 1)]
