"""Focal loss: cross-entropy with less weight on confident, correct samples (Lin et al., ICCV 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines._reweighted import Reweighted
from elliptica.baselines.names import named
from elliptica.core.targets import infer_target_space
from elliptica.core.types import LossFn


@named("focal")
class Focal(Reweighted):
    """Focal loss: ``(1 - p)**gamma * CE`` with ``p = exp(-CE)`` (Lin et al., ICCV 2017).

    For a label, ``p`` is the probability that the model gives to it, so samples that are already right
    hardly count. The gradient flows through the factor, too. For soft or smoothed labels ``p`` is the
    geometric mean of the classes' probabilities, weighted by the label, and with several outputs under
    ``BCEWithLogitsLoss`` the geometric mean over them: the focal loss of a sample is always an increasing
    function of its cross-entropy, so that its minimum stays where the prediction equals the label.

    Class weights of ``loss_fn`` multiply the result and do not enter ``p``.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your cross-entropy, see `ERM`. A loss for real targets raises an error.
        gamma: At least 0; 0 is the cross-entropy. The authors use 2.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> objective = Focal(model, nn.CrossEntropyLoss(), gamma=2.0)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> p = model(x).softmax(1)[torch.arange(8), y]
        >>> torch.allclose(objective(x, y), -((1 - p) ** 2 * p.log()).mean())
        True
    """

    settings = ("gamma",)

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, gamma: float = 2.0, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.nonnegative("gamma", gamma)
        if _is_for_real_targets(loss_fn):
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            raise TypeError(
                f"loss_fn={name} is a loss for real targets, but the focal loss needs a cross-entropy, whose "
                "exp(-loss) is a probability. Use nn.CrossEntropyLoss() or nn.BCEWithLogitsLoss(); for "
                "regression use another objective, e.g. Tilted."
            )
        self.gamma = float(gamma)

    def _average(self, losses: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        entropy = losses
        if self.loss.weights_classes:
            class_weight = self.loss.class_weight(target)
            entropy = losses / torch.where(class_weight > 0, class_weight, 1)
        # clamped above 0, where the derivative of a power below 1 is infinite
        miss = (-torch.expm1(-entropy)).clamp_min(torch.finfo(losses.dtype).tiny)
        return self._mean(miss**self.gamma * losses, target, weight)


def _is_for_real_targets(loss_fn: LossFn) -> bool:
    try:
        return infer_target_space(loss_fn, torch.zeros(1)) == "real"
    except ValueError:  # a user's own loss, which we trust
        return False
