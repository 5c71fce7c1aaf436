"""RegMixup: mixup in addition to the ordinary loss, not instead of it (Pinto et al., NeurIPS 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines.erm import Batch
from elliptica.baselines.mixup import Mixup, mix
from elliptica.baselines.names import named
from elliptica.core.inputs import call_model, named_inputs, rebuild_inputs
from elliptica.core.partners import Ends
from elliptica.core.types import Inputs, LossFn


@named("regmixup", rows_per_sample=2)
class RegMixup(Mixup):
    """RegMixup: the ordinary loss plus ``weight`` times the loss of mixup.

    Clean and mixed rows go through the model together, as in the authors' code. That is twice the rows of
    ordinary training, and batch norm takes one set of statistics from both. (The authors' code averages over
    all rows, which at weight 1 is half of the sum in their paper; this is the sum, so halve the learning rate
    of plain gradient descent to do as that code does.)

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network whose output is one tensor.
        loss_fn: Your ordinary loss, see `ERM`.
        alpha: Parameter of mixup's Beta(alpha, alpha); large, so that mixed rows are about halfway. The
            authors use 20 for CIFAR-10 and 10 for CIFAR-100.
        weight: Weight of the mixup term; the authors use 1. At 0 it is plain training (but batch norm sees
            the mixed rows, too).
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = RegMixup(nn.Linear(4, 3), nn.CrossEntropyLoss())
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    settings = ("alpha", "at", "weight")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 20.0,
        weight: float = 1.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        checks.nonnegative("weight", weight)
        self.weight = float(weight)
        self._clean: list[Tensor] = []  # the model at the clean rows, during a call only

    def _training_loss(self, batch: Batch) -> Tensor:
        try:
            mixed = super()._training_loss(batch)
            (output,) = self._clean
        finally:
            self._clean.clear()
        target = self._encode(batch.y, output)
        return self._mean(self.loss(output, target), target, batch.weight) + self.weight * mixed

    def _output(self, x: Inputs, ends: Ends, share: float, generator: torch.Generator | None) -> Tensor:
        """Return the model's output at the mixed points; keep that at the clean ones."""
        inputs = named_inputs(x)
        both = {
            name: torch.cat([value, mix(*ends.of_input(name, value), share)])
            for name, value in inputs.items()
        }
        output = call_model(self.model, rebuild_inputs(x, both))
        rows = 2 * len(next(iter(inputs.values())))
        checks.same_rows("the output of the model", output, rows, "the clean and mixed inputs")
        clean, mixed = output.chunk(2)
        self._clean.append(clean)
        return mixed
