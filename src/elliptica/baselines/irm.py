"""IRM: features on which one classifier is optimal in every group (Arjovsky et al., arXiv 2019)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines._groups import AnnealedObjective, GroupBatch
from elliptica.baselines.names import named
from elliptica.core.inputs import call_model
from elliptica.core.types import LossFn

IRMVariant = Literal["unbiased", "original"]


@named("irm")
class IRM(AnnealedObjective):
    """IRM: the mean of group risks, plus the squared slope of each in the scale of the model's output.

    With the risk ``R_e`` of group ``e``, its mean loss, and the slope ``D_e`` of ``R_e(s * output)`` in
    ``s`` at 1, the loss is ``mean_e R_e + w * mean_e D_e**2`` (Arjovsky et al., arXiv 2019, IRMv1). The
    weight ``w`` is 1 for the first ``anneal_steps`` calls in training mode, and ``penalty`` afterwards.

    ``variant="unbiased"`` (DomainBed, WILDS) replaces the square by the product of the slopes of two halves
    of the group's rows, taken by turns: its mean over batches is the square of the mean slope. It may be
    negative. A group with a single row in the batch has one half only, and adds nothing to the penalty.
    ``variant="original"`` (the authors' code) squares, and divides the whole loss by ``w`` where ``w > 1``.
    The authors also add the squared norm of the weights; use your optimiser's weight decay.

    DomainBed makes a new optimiser when the weight jumps, because Adam reacts badly to sudden large
    gradients: do so after a call where ``objective.just_annealed`` is true, before the backward pass.

    The number of calls is saved with the objective. In ``eval()`` mode it is the ordinary loss. The module
    owns the model.

    Args:
        model: Any network that returns a tensor.
        loss_fn: Your ordinary loss, see `ERM`. It is differentiated twice.
        penalty: Weight after the jump. None means 100 for ``"unbiased"`` and 10000 for ``"original"``.
        anneal_steps: Training calls before the jump. None means 500 and 100, respectively.
        variant: ``"unbiased"`` or ``"original"``, see above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> from torch import nn
        >>> objective = IRM(nn.Linear(4, 3), nn.CrossEntropyLoss(), penalty=10.0, anneal_steps=1)
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> for _ in range(2):
        ...     loss = objective(x, y, group)
        >>> objective.just_annealed
        True
    """

    #: Defaults of DomainBed and of the authors' code.
    variants: ClassVar = {"unbiased": (100.0, 500), "original": (1e4, 100)}

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        penalty: float | None = None,
        anneal_steps: int | None = None,
        variant: IRMVariant = "unbiased",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(
            model,
            loss_fn,
            penalty=penalty,
            anneal_steps=anneal_steps,
            variant=variant,
            num_classes=num_classes,
        )

    def _penalised(self, batch: GroupBatch) -> Tensor:
        risk, penalty = self._risk_and_penalty(call_model(self.model, batch.x), batch)
        strength = self.penalty if self._is_past(self.anneal_steps) else 1.0
        loss = risk + strength * penalty
        return loss / strength if self.variant == "original" and strength > 1 else loss

    def _risk_and_penalty(self, output: Any, batch: GroupBatch) -> tuple[Tensor, Tensor]:
        """Return the means over groups of the risk and of the squared slope."""
        target, weight, groups = self._encode(batch.y, output), batch.weight, batch.groups
        losses, slopes = self._losses_and_slopes(output, target)
        risk = self._risks(losses, target, weight, groups).mean()
        if self.variant == "original":
            return risk, self._risks(slopes, target, weight, groups).square().mean()
        even, odd = self._risks(slopes, target, weight, groups.halves()).view(-1, 2).unbind(1)
        return risk, (even * odd).mean()

    def _losses_and_slopes(self, output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, and its derivative with respect to a factor on the row's output."""
        if not isinstance(output, Tensor):
            raise TypeError(
                f"{type(self).__name__} scales the model's output, which must be a tensor, but the model "
                f"returned a {type(output).__name__}. Wrap the model so that it returns its logits only."
            )
        checks.floating("the model's output", output)
        checks.same_rows("the model's output", output, len(target), "y")
        output = output.to(compute_dtype(output.dtype))
        with torch.enable_grad():
            scale = output.new_ones(len(output), *[1] * (output.ndim - 1)).requires_grad_()
            losses = self.loss(output * scale, target)
            (slopes,) = torch.autograd.grad(losses.sum(), scale, create_graph=True)
        return losses, slopes.flatten()
