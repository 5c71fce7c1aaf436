"""V-REx: equal risks in all groups, by a penalty on their variance (Krueger et al., ICML 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from elliptica.baselines._groups import AnnealedObjective, GroupBatch, count_pairs, sum_over_pairs
from elliptica.baselines.names import named
from elliptica.core.inputs import call_model
from elliptica.core.types import LossFn

VRExVariant = Literal["domainbed", "authors"]


@named("v-rex")
class VREx(AnnealedObjective):
    """V-REx: the risks of groups, plus their variance.

    The risk ``R_e`` of a group is its mean loss in the batch (Krueger et al., ICML 2021). The weight ``w``
    is 1 for the first ``anneal_steps`` calls in training mode, and ``penalty`` afterwards.

    - ``variant="domainbed"``: ``mean_e R_e + w * mean_e (R_e - mean)**2``.
    - ``variant="authors"``: ``sum_e R_e + w * (R_1 - R_2)**2``, divided by ``w`` where ``w > 1``, as in the
      authors' code for two groups; that square is four times the variance. For more groups it is the mean
      over pairs.

    With one group in the batch there is no penalty. DomainBed makes a new optimiser when the weight jumps:
    do so after a call where ``objective.just_annealed`` is true, before the backward pass.

    The number of calls is saved with the objective. In ``eval()`` mode it is the ordinary loss. The module
    owns the model.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        penalty: Weight after the jump. None means 10 for ``"domainbed"`` and 10000 for ``"authors"``.
        anneal_steps: Training calls before the jump. None means 500 and 100, respectively.
        variant: ``"domainbed"`` or ``"authors"``, see above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> objective = VREx(nn.Linear(4, 3), nn.CrossEntropyLoss())
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> objective(x, y, group).backward()
    """

    #: Defaults of DomainBed and of the authors' code.
    variants: ClassVar = {"domainbed": (10.0, 500), "authors": (1e4, 100)}

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        penalty: float | None = None,
        anneal_steps: int | None = None,
        variant: VRExVariant = "domainbed",
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
        risks = self._risks_at(call_model(self.model, batch.x), batch)
        strength = self.penalty if self._is_past(self.anneal_steps) else 1.0
        if self.variant == "domainbed":
            return risks.mean() + strength * (risks - risks.mean()).square().mean()
        loss = risks.sum() + strength * sum_over_pairs(risks) / count_pairs(len(risks))
        return loss / strength if strength > 1 else loss
