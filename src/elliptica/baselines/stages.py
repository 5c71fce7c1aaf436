"""Methods with a stage before training: JTT and UMIX, which train twice, and SMOTE, which adds rows.

JTT (Liu et al., ICML 2021): train a first model plainly, with `ERM`, for a few epochs. Train the second from
scratch, also with `ERM`, on `upsampled_rows`. Without errors this is plain training.

UMIX (Han et al., NeurIPS 2022): train the first model plainly and record its predictions in a
`CorrectnessTable`. `umix_weights` turns the table into sample weights for the second training, with `UMIX`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from elliptica._utils.extras import import_extra
from elliptica._utils.random import compute_dtype, draw_uniform
from elliptica.baselines.erm import Batch, between
from elliptica.baselines.mixup import Mixup, Pairs, mix
from elliptica.core.inputs import LossFn
from elliptica.core.targets import Targets


class ErrorRecorder:
    """Record which samples are predicted wrongly *during* training: JTT's error set.

    As in the authors' code, predictions are those of the training passes, with weights that change from batch
    to batch, and with dropout. Record one epoch; the authors use epoch 60 for Waterbirds and epoch 1 for
    CelebA, counted from 0. A sample that occurs several times is an error if it was wrong once. One that
    never occurs is not an error.

    Example:
        >>> recorder = ErrorRecorder(4)  # rows of the training set
        >>> output = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> recorder.update(torch.tensor([3, 0]), output, torch.tensor([0, 0]))
        >>> recorder.errors
        tensor([ True, False, False, False])
    """

    def __init__(self, n_rows: int) -> None:
        self.n_right = torch.zeros(n_rows, dtype=torch.int32)
        self.n_seen = torch.zeros(n_rows, dtype=torch.int32)

    def update(self, index: Int[Tensor, " batch"], output: Tensor, y: Tensor) -> None:
        """Record a batch: rows ``index`` of the training set, the model's output, and their labels."""
        right = is_correct(output, y).to(self.n_right)
        index = index.to(self.n_seen.device)
        self.n_right.index_add_(0, index, right)
        self.n_seen.index_add_(0, index, torch.ones_like(right))

    @property
    def errors(self) -> Bool[Tensor, " n"]:
        """Samples that were wrong at least once."""
        if not bool(self.n_seen.any()):
            raise RuntimeError("Nothing was recorded. Call update(index, output, y) for each batch.")
        return self.n_right < self.n_seen

    def reset(self) -> None:
        """Clear the record before another epoch."""
        self.n_right.zero_()
        self.n_seen.zero_()


def is_correct(output: Tensor, y: Tensor) -> Bool[Tensor, " batch"]:
    """Return whether each prediction is right: the largest logit of ``(batch, classes)``, or the sign of one.

    Labels are integers, or soft labels, of which the largest class counts.
    """
    if not bool(output.isfinite().all()) or not bool(y.isfinite().all()):
        raise ValueError("output and y must be finite, but hold NaN or infinity.")
    output, y = output.detach(), y.detach().to(output.device)
    if output.ndim == 1 or output.shape[1] == 1:
        right = (output.flatten() > 0) == (Targets("unit").encode(y.float().flatten()) > 0.5)
    else:
        label = Targets("simplex", output.shape[1]).encode(y)
        right = output.argmax(1) == label.argmax(1)
    if right.shape != output.shape[:1]:
        raise ValueError(
            f"y must hold a label per row of output {tuple(output.shape)}, not {tuple(y.shape)}."
        )
    return right


def upsampled_rows(errors: Bool[Tensor, " n"], factor: int = 100) -> Int[Tensor, " rows"]:
    """Return the rows of JTT's second training set: every row, then ``factor`` copies of the errors.

    An error thus occurs ``factor + 1`` times, as in the authors' code, who use 100 for Waterbirds and 50 for
    CelebA. Use the result as ``torch.utils.data.Subset(data, rows)``, or as ``x[rows], y[rows]``.

    Example:
        >>> upsampled_rows(torch.tensor([False, True, False]), factor=2)
        tensor([0, 1, 2, 1, 1])
    """
    if errors.dtype != torch.bool:
        raise ValueError(f"errors must say for each row whether it is one, but has dtype {errors.dtype}.")
    rows = torch.arange(len(errors), device=errors.device)
    return torch.cat([rows, rows[errors].repeat(factor)])


class CorrectnessTable(ErrorRecorder):
    """Count how often each training sample is predicted correctly in each epoch of a training.

    Predictions are those of the training passes, before the step. Call `end_epoch` after every epoch,
    including the last one (which the authors' code loses).

    Example:
        >>> table = CorrectnessTable(2)  # rows of the training set
        >>> for output in (torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([[2.0, 1.0], [3.0, 1.0]])):
        ...     table.update(torch.tensor([0, 1]), output, torch.tensor([0, 0]))
        ...     table.end_epoch()
        >>> table.correctness(0, 2)
        tensor([1.0000, 0.5000])
    """

    def __init__(self, n_rows: int) -> None:
        super().__init__(n_rows)
        self._right: list[Tensor] = []
        self._seen: list[Tensor] = []

    @property
    def n_epochs(self) -> int:
        """Epochs that have ended."""
        return len(self._seen)

    def end_epoch(self) -> None:
        """Close an epoch; raise if no batch was recorded in it."""
        _ = self.errors
        self._right.append(self.n_right.clone())
        self._seen.append(self.n_seen.clone())
        self.reset()

    def correctness(self, start: int, length: int) -> Float[Tensor, " n"]:
        """Return the share of right predictions in the epochs ``start`` to ``start + length - 1``, from 0.

        A sample that did not occur in these epochs (incomplete batches may be dropped) has 1.
        """
        if not 0 <= start < start + length <= self.n_epochs:
            raise ValueError(
                f"start={start} and length={length} exceed the {self.n_epochs} epochs that ended."
            )
        right, seen = (torch.stack(t[start : start + length]).sum(0) for t in (self._right, self._seen))
        return torch.where(seen > 0, right / seen.clamp_min(1), 1.0)


def umix_weights(
    table: CorrectnessTable, *, start: int = 50, length: int = 50, eta: float = 80.0
) -> Float[Tensor, " n"]:
    """Return the sample weights of UMIX: ``1 + eta * (1 - correctness)``, not normalised.

    The ``length`` epochs from ``start`` count. The defaults are the authors' for Waterbirds; they use 0, 5,
    50 for CelebA and 0, 5, 5 for Camelyon17.
    """
    return 1 + between("eta", eta) * (1 - table.correctness(start, length))


class UMIX(Mixup):
    """Mix a batch with a certain probability, otherwise take the plain loss, both weighted per sample.

    At ``share * x + (1 - share) * x_partner`` the loss is ``share * w * loss(y) + (1 - share) * w_partner *
    loss(y_partner)``, so that each label keeps its own weight; on the data it is ``w * loss``. Weights are
    not normalised, so the learning rate must allow for them. Pass ``sample_weight=weights[index]`` with
    weights from `umix_weights`. Draws, in this order: whether to mix, then the draws of `Mixup`.

    Args:
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 0.5, and 1.5 (with CutMix) for CelebA.
        probability: Probability of mixing a batch. The authors use 0.5, and 1 for Camelyon17.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 0.5,
        probability: float = 0.5,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        self.probability = between("probability", probability, 0, 1)

    def _training_loss(self, batch: Batch) -> Tensor:
        coin = draw_uniform((1,), device=torch.device("cpu"), generator=batch.generator)
        if float(coin) >= self.probability:
            return self._mean(*self._losses_at(batch.x, batch.y), batch.weight)
        return super()._training_loss(batch)

    def _average(self, output: Any, pairs: Pairs, share: float) -> Tensor:
        """Average over the batch; each of the two losses has the weight of its own sample."""
        if pairs.weight is None:
            return super()._average(output, pairs, share)
        near, far = (self._encode(labels, output) for labels in pairs.y)
        first, second = pairs.weight
        losses = mix(first * self.loss(output, near), second * self.loss(output, far), share)
        return self._mean(losses, mix(near, far, share), None)


def smote_rows(
    x: Float[Tensor, "rows features"],
    y: Int[Tensor, " rows"],
    *,
    k_neighbors: int = 5,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "more features"], Int[Tensor, " more"]]:
    """Add rows to every class until each is as large as the largest (SMOTE, Chawla et al., JAIR 2002).

    A new row is ``x_i + u * (x_j - x_i)`` with ``x_i`` a random row of the class, ``x_j`` a random one of its
    ``k_neighbors`` nearest neighbours within the class (or of all others, if they are fewer), and ``u``
    uniform on [0, 1]. Call it once, before training; it uses imbalanced-learn. Distances are Euclidean, so
    scale the columns first. Do not use it for images or on validation data. New rows follow the original
    ones, class by class. A class of one row that has to grow raises an error.
    """
    classes, counts = (v.tolist() for v in y.unique(return_counts=True))
    largest = max(counts)
    if min(counts) == largest:
        return x.clone(), y.clone()
    make_sampler = import_extra("SMOTE", "lab", "imblearn.over_sampling").SMOTE
    rows, labels = x.detach().to(compute_dtype(x.dtype)).cpu().numpy(), y.cpu().numpy()
    more_x, more_y = [x], [y]
    for label, count in zip(classes, counts, strict=True):
        if count == largest:
            continue
        smote = make_sampler(
            sampling_strategy={label: largest},
            k_neighbors=min(k_neighbors, count - 1),
            random_state=_draw_seed(generator),
        )
        new = smote.fit_resample(rows, labels)[0][len(rows) :]  # new rows come last
        more_x.append(torch.as_tensor(new, dtype=x.dtype, device=x.device))
        more_y.append(y.new_full((len(new),), label))
    return torch.cat(more_x), torch.cat(more_y)


def _draw_seed(generator: torch.Generator | None) -> int:
    """Draw a seed for imbalanced-learn, which takes no torch generator."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**31 - 1, (1,), device=device, generator=generator))
