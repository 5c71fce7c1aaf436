"""C-Mixup: mixup for regression, between samples of similar target (Yao et al., NeurIPS 2022)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator
from elliptica.baselines._targets import check_real_targets
from elliptica.baselines.jtt import check_index
from elliptica.baselines.mixup import Mixup, mix
from elliptica.core.partners import draw_from, kernel_weights, target_distances
from elliptica.core.types import Inputs, LossFn

_CHUNK_BYTES = 64 * 2**20


class CMixup(Mixup):
    """C-Mixup: mixup of inputs and targets with a partner whose target is close.

    Partner ``j`` of sample ``i`` has probability proportional to ``exp(-|y_i - y_j|**2 / (2 h**2))`` with
    the bandwidth ``h``; the sample itself is eligible. Both are mixed at one share per batch from
    Beta(alpha, alpha), and the loss is that of the mixed target.

    Partners come from the batch. The authors draw them from the whole training set: make a `TargetKernel`
    once and pass its draws as ``end``.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss on real targets, see `ERM`.
        bandwidth: Standard deviation of the kernel, in the units of the targets. The authors use 1.75 for
            Airfoil, 1.2 for NO2, 4 for Crime and 1 for SkillCraft.
        alpha: 2 in the authors' settings; 0 means no mixing.
        at: Name of a layer in whose output to mix, instead of in the inputs (manifold mixup). Inputs of
            the model must enter below that layer.

    Example:
        >>> x, y = torch.randn(100, 4), torch.randn(100, 1)
        >>> objective = CMixup(nn.Linear(4, 1), nn.MSELoss(), bandwidth=0.5)
        >>> loss = objective(x[:8], y[:8])                       # partners from the batch
        >>> kernel = TargetKernel(y, bandwidth=0.5)
        >>> index = torch.arange(8)
        >>> j = kernel.sample(index)                             # partners from the whole data set
        >>> loss = objective(x[index], y[index], end=(x[j], y[j]))
    """

    settings = ("bandwidth", "alpha", "at")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        bandwidth: float,
        alpha: float = 2.0,
        at: str | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, at=at)
        checks.positive("bandwidth", bandwidth)
        self.bandwidth = float(bandwidth)

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the ordinary mean loss on the data themselves; class labels raise as in training."""
        _check_targets(y)
        return super().clean_loss(x, y, sample_weight=sample_weight)

    def _check(self, x: Inputs, y: Tensor, weight: Tensor | None, generator: torch.Generator | None) -> None:
        _check_targets(y)
        super()._check(x, y, weight, generator)

    def _partners(self, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return draw_from(_cumulative(y, y, self.bandwidth), 1, generator).squeeze(1)

    def _losses(self, output: Any, near: Tensor, far: Tensor, share: float) -> Tensor:
        return self.loss(output, mix(near, far, share))


class TargetKernel:
    """Draw partners with similar targets from a whole data set, for `CMixup`, with one look-up per row.

    Row ``j`` is drawn for row ``i`` with probability proportional to ``exp(-|y_i - y_j|**2 / (2 h**2))``,
    ``i`` itself included. It stores one cumulative probability per pair, so memory is ``4 * n**2`` bytes
    (1.6 GB for 20 000 rows).

    Args:
        y: Real targets of the data set.
        bandwidth: Standard deviation ``h`` of the kernel, in the units of the targets.
        max_bytes: Largest table to build; a larger one raises an error.

    Example:
        >>> kernel = TargetKernel(torch.tensor([[0.0], [9.0], [0.0]]), bandwidth=0.1)
        >>> kernel.sample(torch.tensor([1]))
        tensor([1])
    """

    def __init__(
        self, y: Float[Tensor, " n *target"], bandwidth: float, *, max_bytes: int = 4 * 2**30
    ) -> None:
        _check_targets(y)
        checks.batch("y", y)
        checks.finite("y", y)
        checks.positive("bandwidth", bandwidth)
        checks.number("max_bytes", max_bytes)
        n = len(y)
        if not 4 * n * n <= max_bytes:  # nor if it is NaN
            raise ValueError(
                f"A table over {n} rows takes {4 * n * n / 2**30:.1f} GiB, more than max_bytes "
                f"({max_bytes / 2**30:.1f} GiB). Draw partners from the batch (call CMixup without end), "
                "build the table on a subset, or raise max_bytes."
            )
        step = max(1, _CHUNK_BYTES // (8 * n))
        self._table = torch.empty(n, n, dtype=torch.float32, device=y.device)
        for begin in range(0, n, step):
            rows = slice(begin, begin + step)
            self._table[rows] = _cumulative(y[rows], y, bandwidth)

    def __len__(self) -> int:
        return len(self._table)

    def sample(
        self, index: Int[Tensor, " batch"], *, generator: torch.Generator | None = None
    ) -> Int[Tensor, " batch"]:
        """Draw a partner for each of the rows ``index`` of the data set, as row numbers of the data set."""
        check_index(index, len(self._table))
        check_generator(generator, self._table.device)
        return draw_from(self._table[index.to(self._table.device)], 1, generator).squeeze(1)


def _check_targets(y: object) -> None:
    check_real_targets(y, "C-Mixup measures distances between targets")


def _cumulative(y: Tensor, others: Tensor, bandwidth: float) -> Tensor:
    """Return the cumulative probabilities of partners, one row for each of ``y``."""
    sums = kernel_weights(target_distances(y, others), bandwidth).cumsum(1)
    return (sums / sums[:, -1:]).float()
