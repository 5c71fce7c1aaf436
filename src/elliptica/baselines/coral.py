"""CORAL: features with the same mean and covariance in all groups (Sun and Saenko, ECCV workshops 2016)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines._groups import (
    GroupBatch,
    GroupObjective,
    Groups,
    count_pairs,
    read_layer,
    sum_over_pairs,
)
from elliptica.baselines.names import named
from elliptica.core.hidden import find_layer
from elliptica.core.types import LossFn

CORALVariant = Literal["domainbed", "deep"]
CORAL_VARIANTS: tuple[CORALVariant, ...] = ("domainbed", "deep")


@named("coral")
class CORAL(GroupObjective):
    """CORAL: the mean of group risks, plus the difference between the features of groups.

    With means ``m`` and unbiased covariances ``C`` of the ``d`` features of a layer, the loss is
    ``mean_e R_e + penalty * P``, and ``P`` is the mean over pairs of groups in the batch of

    - ``variant="domainbed"`` (and WILDS): ``|m_a - m_b|**2 / d + |C_a - C_b|**2 / d**2``;
    - ``variant="deep"``: ``|C_a - C_b|**2 / (4 d**2)`` (Sun and Saenko, ECCV workshops 2016).

    A group with a single row in the batch has a mean but no covariance, so its pairs have only the first
    term, and with ``variant="deep"`` none. With one group in the batch there is no penalty. Covariances take
    ``d**2`` numbers per group, so choose a layer of at most a few thousand features.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        at: Name of the layer whose output holds the features: the input of the classifier.
        penalty: Weight of ``P``; 1 in DomainBed, 0.1 in WILDS for Camelyon17.
        variant: ``"domainbed"`` or ``"deep"``, see above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        >>> objective = CORAL(model, nn.CrossEntropyLoss(), at="1")
        >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
        >>> objective(x, y, group).backward()
    """

    settings = ("at", "penalty", "variant")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        at: str,
        penalty: float = 1.0,
        variant: CORALVariant = "domainbed",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        find_layer(model, at)
        checks.nonnegative("penalty", penalty)
        checks.choice("variant", variant, CORAL_VARIANTS)
        self.at = at
        self.penalty = float(penalty)
        self.variant = variant

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        groups = batch.groups
        output, features = read_layer(self.model, batch.x, self.at)
        risk = self._risks_at(output, batch).mean()
        covariances = sum_over_pairs(_covariances(features, groups))
        if self.variant == "domainbed":
            gap = sum_over_pairs(groups.mean(features)) + covariances
        else:
            gap = covariances / 4
        return risk + self.penalty * gap / count_pairs(len(groups.labels))


def _covariances(features: Tensor, groups: Groups) -> Tensor:
    """Return the covariance of the features in each group of two rows or more; one zero if there is none."""
    rows = groups.deviations(features)
    covariances = []
    with torch.autocast(rows.device.type, enabled=False):  # sums of products overflow half precision
        for number, count in enumerate(groups.counts.tolist()):
            if count > 1:
                own = rows[groups.index == number]
                covariances.append(own.T @ own / (count - 1))
    return torch.stack(covariances) if covariances else rows.new_zeros(1, 1)
