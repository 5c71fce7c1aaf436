"""DORO: robust training without the largest losses of a batch (Zhai et al., ICML 2021)."""

from __future__ import annotations

import math
import warnings
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines._reweighted import base_measure
from elliptica.baselines.dro import DRO, Divergence, check_share
from elliptica.baselines.names import named
from elliptica.core.types import EllipticWarning, LossFn

Variant = Literal["exact", "doro"]


@named("doro")
class DORO(DRO):
    """Robust training without outliers: `DRO` of all but the ``epsilon * m`` largest of ``m`` losses.

    The largest losses may come from wrong labels, on which DRO would concentrate (Zhai et al., ICML 2021).
    Samples are dropped in whole numbers, ``floor(epsilon * m)`` of them, and at least one stays. A batch of
    fewer than ``1 / epsilon`` is not trimmed at all. Variants:

    - ``"exact"``: the worst weights of `DRO`, computed exactly on the remaining samples;
    - ``"doro"``: the authors' ``"cvar"``, ``sum(loss) / (alpha * (m - n))`` over the ranks ``n`` to
      ``floor((epsilon + alpha * (1 - epsilon)) * m) - 1`` from the largest loss (rank 0), with
      ``n = floor(epsilon * m)``: without the part of a sample that completes the share ``alpha``. If that
      leaves no sample, it is the largest remaining loss. Their ``"chi2"`` equals
      ``"exact"``, which is used for it.

    Samples of weight 0 are not counted. Other weights do not influence which samples are dropped.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        epsilon: Share of outliers, from 0 (`DRO`) to below 1. The authors give no default; they evaluate
            with 0.005, in batches of 400.
        divergence: ``"cvar"`` or ``"chi2"``, with ``rho = (1 / alpha - 1)**2 / 2``.
        alpha: Above 0 and at most 1, where 1 is the mean of the remaining losses.
        variant: See above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = DORO(nn.Linear(4, 3), nn.CrossEntropyLoss(), epsilon=0.1, alpha=0.2)
        >>> x, y = torch.randn(20, 4), torch.randint(3, (20,))
        >>> objective(x, y).backward()
    """

    settings = ("divergence", "alpha", "rho", "penalty", "epsilon", "variant")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        epsilon: float,
        divergence: Divergence = "cvar",
        alpha: float = 0.2,
        variant: Variant = "exact",
        num_classes: int | None = None,
    ) -> None:
        check_share("alpha", alpha)
        super().__init__(model, loss_fn, divergence=divergence, alpha=alpha, num_classes=num_classes)
        checks.number("epsilon", epsilon)
        if not 0 <= epsilon < 1:
            raise ValueError(
                f"epsilon must be at least 0 and below 1, but got {epsilon}. It is the share of the batch to "
                "drop; use epsilon=0.0 for DRO."
            )
        checks.choice("variant", variant, get_args(Variant))
        self.epsilon = float(epsilon)
        self.variant = variant

    def _weights(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        checks.finite("losses", losses)
        base = base_measure(losses.detach(), weight)
        present = (base > 0).nonzero().squeeze(1)
        order = present[losses.detach()[present].argsort(descending=True)]
        rows = len(order)
        n_out = min(_floor(self.epsilon * rows), rows - 1)
        if not n_out and self.epsilon:
            warnings.warn(
                f"epsilon={self.epsilon} of {rows} rows is less than one, so nothing is dropped and DORO is "
                f"DRO. Use epsilon >= {1 / rows:.2g} or larger batches.",
                EllipticWarning,
                stacklevel=2,
            )
        weights = torch.zeros_like(base)
        if self.variant == "exact" or self.divergence == "chi2":
            kept = order[n_out:]
            kept_weight = None if weight is None else base[kept]
            weights[kept] = super()._weights(losses[kept], kept_weight)
            return weights
        assert self.alpha is not None
        n_last = _floor((self.epsilon + self.alpha * (1 - self.epsilon)) * rows)
        if n_last <= n_out:
            weights[order[n_out]] = 1.0
            return weights
        chosen = order[n_out:n_last]
        weights[chosen] = base[chosen] * rows / (self.alpha * (rows - n_out))
        return weights


def _floor(count: float) -> int:
    """Round a number of samples down, where rounding errors must not cost one: 0.29 * 100 is 29."""
    return math.floor(count + 1e-9)
