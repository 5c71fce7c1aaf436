"""UMIX: mixup with more weight on samples that a first model often got wrong (Han et al., NeurIPS 2022).

Train the first model plainly and record its predictions in a `CorrectnessTable`. `umix_weights` turns the
table into sample weights for the second training, with `UMIX`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import draw_uniform
from elliptica.baselines.erm import Batch
from elliptica.baselines.jtt import ErrorRecorder
from elliptica.baselines.mixup import Mixup, mix
from elliptica.core.types import LossFn


class CorrectnessTable:
    """Count how often each training sample is predicted correctly in each epoch of a training.

    Predictions are those of the training passes, before the step. Call `end_epoch` after every epoch,
    including the last one (which the authors' code loses).

    Args:
        n_rows: Size of the training set.

    Example:
        >>> table = CorrectnessTable(2)
        >>> for output in (torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([[2.0, 1.0], [3.0, 1.0]])):
        ...     table.update(torch.tensor([0, 1]), output, torch.tensor([0, 0]))
        ...     table.end_epoch()
        >>> table.correctness(0, 2)
        tensor([1.0000, 0.5000])
    """

    def __init__(self, n_rows: int) -> None:
        self._epoch = ErrorRecorder(n_rows)
        self._right: list[Tensor] = []
        self._seen: list[Tensor] = []

    @property
    def n_epochs(self) -> int:
        """Epochs that have ended."""
        return len(self._seen)

    def update(self, index: Int[Tensor, " batch"], output: Tensor, y: Tensor) -> None:
        """Record a batch: rows ``index`` of the training set, the model's output, and their labels."""
        self._epoch.update(index, output, y)

    def end_epoch(self) -> None:
        """Close an epoch."""
        if not bool(self._epoch.n_seen.any()):
            raise RuntimeError(
                "No batch was recorded in this epoch. Call update(index, output, y) after each batch."
            )
        self._right.append(self._epoch.n_right.clone())
        self._seen.append(self._epoch.n_seen.clone())
        self._epoch.reset()

    def correctness(self, start: int, length: int) -> Float[Tensor, " n"]:
        """Return the share of right predictions in the epochs ``start`` to ``start + length - 1``, from 0.

        A sample that did not occur in these epochs (incomplete batches may be dropped) has 1.
        """
        checks.count("start", start, 0)
        checks.count("length", length)
        if start + length > self.n_epochs:
            raise ValueError(
                f"Epochs {start} to {start + length - 1} (counted from 0) are needed, but {self.n_epochs} "
                "have ended. Train longer, use earlier epochs, and call end_epoch() after every epoch."
            )
        right, seen = (torch.stack(t[start : start + length]).sum(0) for t in (self._right, self._seen))
        return torch.where(seen > 0, right / seen.clamp_min(1), 1.0)


def umix_weights(
    table: CorrectnessTable, *, start: int = 50, length: int = 50, eta: float = 80.0
) -> Float[Tensor, " n"]:
    """Return the sample weights of UMIX: ``1 + eta * (1 - correctness)``, not normalised.

    The defaults are the authors' for Waterbirds; they use 0, 5, 50 for CelebA and 0, 5, 5 for Camelyon17.

    Args:
        table: Table recorded in the first training.
        start: First epoch that counts, from 0.
        length: Number of epochs that count.
        eta: At least 0, where 0 gives equal weights.

    Example:
        >>> table = CorrectnessTable(2)
        >>> table.update(torch.tensor([0, 1]), torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([0, 0]))
        >>> table.end_epoch()
        >>> umix_weights(table, start=0, length=1)
        tensor([ 1., 81.])
    """
    checks.nonnegative("eta", eta)
    return 1 + eta * (1 - table.correctness(start, length))


class UMIX(Mixup):
    """UMIX: with a certain probability mixup, otherwise the plain loss, both weighted per sample.

    At ``share * x + (1 - share) * x_partner`` the loss is ``share * w * loss(y) + (1 - share) * w_partner *
    loss(y_partner)``, so that each label keeps its own weight; on the data it is ``w * loss`` (Han et al.,
    NeurIPS 2022). Weights are not normalised, so the learning rate must allow for them. Pass
    ``sample_weight=weights[index]`` with weights from `umix_weights`; without it all are 1. Draws, in this
    order: whether to mix, then the draws of `Mixup`.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 0.5, and 1.5 (with CutMix) for CelebA.
        probability: Probability of mixing a batch. The authors use 0.5, and 1 for Camelyon17.
        num_classes: Number of classes of integer labels; None infers it from the model's output.
        at: Name of a layer in whose output to mix, see `Mixup`.

    Example:
        >>> objective = UMIX(nn.Linear(4, 3), nn.CrossEntropyLoss())
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> weights, index = torch.ones(100), torch.arange(8)
        >>> objective(x, y, sample_weight=weights[index]).backward()
    """

    settings = ("alpha", "at", "probability")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 0.5,
        probability: float = 0.5,
        num_classes: int | None = None,
        at: str | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes, at=at)
        checks.number("probability", probability)
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must be from 0 to 1, but got {probability}. The authors use 0.5.")
        self.probability = float(probability)

    def _training_loss(self, batch: Batch) -> Tensor:
        coin = draw_uniform((1,), device=torch.device("cpu"), generator=batch.generator)
        if float(coin) >= self.probability:
            return self._mean(*self._losses_at(batch.x, batch.y), batch.weight)
        return super()._training_loss(batch)

    def _average(
        self, output: Any, near: Tensor, far: Tensor, share: float, weights: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Average over the batch; each of the two losses has the weight of its own sample."""
        if weights is None:
            return super()._average(output, near, far, share, None)
        losses = mix(weights[0] * self.loss(output, near), weights[1] * self.loss(output, far), share)
        return self._mean(losses, mix(near, far, share), None)
