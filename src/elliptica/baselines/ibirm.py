"""IB-IRM: IRM with an information bottleneck, the variance of features (Ahuja et al., NeurIPS 2021)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines._groups import GroupBatch, read_layer
from elliptica.baselines.irm import IRM
from elliptica.baselines.names import named
from elliptica.core.hidden import find_layer
from elliptica.core.types import LossFn

IBIRMVariant = Literal["domainbed", "authors"]

#: Weight of the variance in DomainBed and in the authors' code.
_IB_PENALTIES: dict[str, float] = {"domainbed": 100.0, "authors": 1.0}


@named("ib-irm")
class IBIRM(IRM):
    """IB-IRM: `IRM` in its unbiased variant, plus the variance of the features in a layer.

    The loss is that of `IRM` plus ``w * V``, with ``w = 0`` for the first ``ib_anneal_steps`` calls in
    training mode and ``ib_penalty`` afterwards (Ahuja et al., NeurIPS 2021). ``V`` is a mean over features
    of unbiased variances:

    - ``variant="domainbed"``: within each group, then the mean over groups. A group with a single row in
      the batch has variance 0.
    - ``variant="authors"``: over the whole batch; and the weight of IRM's penalty is 0, not 1, before its
      own jump (the authors' code for CS-CMNIST, where ``rescale`` is an option).

    DomainBed makes a new optimiser at either jump, see `IRM`; the authors do so at the jump of IRM's penalty.
    The number of calls is saved with the objective. In ``eval()`` mode it is the ordinary loss. The module
    owns the model.

    Args:
        model: Any network that returns a tensor.
        loss_fn: Your ordinary loss, see `ERM`. It is differentiated twice.
        at: Name of the layer whose output holds the features: the input of the classifier.
        penalty: Weight of IRM's penalty after its jump.
        anneal_steps: Training calls before that jump.
        ib_penalty: Weight of the variance after its jump. None means 100 for ``"domainbed"`` and 1 for
            ``"authors"``.
        ib_anneal_steps: Training calls before that jump.
        rescale: Divide IRM's part, but not the variance, by one plus its weight where that is above 1.
        variant: ``"domainbed"`` or ``"authors"``, see above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        >>> objective = IBIRM(model, nn.CrossEntropyLoss(), at="1")
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> objective(x, y, group).backward()
    """

    settings = ("penalty", "anneal_steps", "variant", "at", "ib_penalty", "ib_anneal_steps", "rescale")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        at: str,
        penalty: float = 100.0,
        anneal_steps: int = 500,
        ib_penalty: float | None = None,
        ib_anneal_steps: int = 500,
        rescale: bool = False,
        variant: IBIRMVariant = "domainbed",
        num_classes: int | None = None,
    ) -> None:
        checks.choice("variant", variant, _IB_PENALTIES)
        super().__init__(model, loss_fn, penalty=penalty, anneal_steps=anneal_steps, num_classes=num_classes)
        find_layer(model, at)
        ib_penalty = _IB_PENALTIES[variant] if ib_penalty is None else ib_penalty
        checks.nonnegative("ib_penalty", ib_penalty)
        checks.count("ib_anneal_steps", ib_anneal_steps, 0)
        self.at = at
        self.ib_penalty = float(ib_penalty)
        self.ib_anneal_steps = int(ib_anneal_steps)
        self.rescale = bool(rescale)
        self.variant = variant

    @property
    def just_annealed(self) -> bool:
        """Whether a weight jumped in the last training call; if so, reset the optimiser."""
        return self._jumped(self.anneal_steps) or (
            self.variant == "domainbed" and self._jumped(self.ib_anneal_steps)
        )

    def _penalised(self, batch: GroupBatch) -> Tensor:
        output, features = read_layer(self.model, batch.x, self.at)
        risk, penalty = self._risk_and_penalty(output, batch)
        early = 1.0 if self.variant == "domainbed" else 0.0
        strength = self.penalty if self._is_past(self.anneal_steps) else early
        loss = risk + strength * penalty
        if self.rescale and strength > 1:
            loss = loss / (1 + strength)
        if not self._is_past(self.ib_anneal_steps):
            return loss
        if self.variant == "domainbed":
            variance = batch.groups.variance(features).mean()
        else:
            variance = features.var(0).mean() if len(features) > 1 else features.new_zeros(())
        return loss + self.ib_penalty * variance
