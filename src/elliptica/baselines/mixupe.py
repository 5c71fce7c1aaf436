"""mixupE: mixup with a directional derivative towards the mean image added (Zou et al., UAI 2023)."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines.erm import Batch
from elliptica.baselines.mixup import Mixup
from elliptica.baselines.names import named
from elliptica.core.inputs import call_model
from elliptica.core.types import Inputs, LossFn

Version = Literal[1, 2, 3, 4]


@named("mixupe", rows_per_sample=2)
class MixupE(Mixup):
    """mixupE: the loss of mixup plus a first-order term that mixup lacks, for classification.

    With the logits ``f`` and probabilities ``p`` of the *unmixed* batch, ``L = L_mixup + eta * alpha /
    (2 alpha + 1) * R``, and the result is ``L`` times the number ``|L_mixup| / |L|``: its value is that of
    mixup (while ``L`` is positive), its gradient is parallel to that of ``L``. Versions of ``R``, as in
    the authors' code, where sums are divided by the batch size even if samples are skipped:

    1. ``sum r_i`` over samples with ``r_i < threshold``, with ``r = grad_x[f . b] . (mean - x)`` and
       ``b = p - onehot`` held constant: the derivative towards the mean image. Differentiates twice.
    2. ``sum |r_i|``.
    3. ``-sum s_i`` over samples with ``s_i < threshold``, with ``s = f . (onehot - p)``: the version of the
       authors' published command, and the default.
    4. ``-sum s_i`` over all samples, with ``onehot - p`` held constant.

    It needs a second, clean forward pass, in which batch norm records statistics a second time, as in
    the authors' code. In ``eval()`` mode it is the ordinary loss. The module owns the model; save
    ``objective.model``.

    Args:
        model: Any network that returns one logit per class.
        loss_fn: Your ordinary classification loss, see `ERM`.
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 2.
        eta: Strength of the term; the authors use 0.001. At 0 it is mixup, without the second pass.
        version: 1 to 4, see above.
        threshold: Threshold of versions 1 and 3; the authors use 1.
        mean: Mean training image, which versions 1 and 2 need: the shape of one sample. The authors take it
            over the *augmented* training data.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = MixupE(nn.Linear(4, 3), nn.CrossEntropyLoss(), eta=0.1)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    mean: Tensor | None

    settings = ("alpha", "at", "eta", "version", "threshold")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 2.0,
        eta: float = 0.001,
        version: Version = 3,
        threshold: float = 1.0,
        mean: Tensor | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        checks.nonnegative("eta", eta)
        checks.number("threshold", threshold)
        if math.isnan(threshold):
            raise ValueError(
                "threshold must be a number, but got nan. The authors use 1; inf skips no sample."
            )
        if version not in get_args(Version):
            raise ValueError(f"version must be 1, 2, 3 or 4, but got {version!r}. The authors use 3.")
        if version in (1, 2) and mean is None:
            raise ValueError(
                f"version={version} needs the mean training image, but mean is None. Pass "
                "mean=x_train.mean(0), or use version 3."
            )
        if mean is not None:
            checks.floating("mean", mean)
            checks.finite("mean", mean)
        self.eta = float(eta)
        self.version = version
        self.threshold = float(threshold)
        self.register_buffer("mean", None if mean is None else mean.detach().clone(), persistent=False)

    def _training_loss(self, batch: Batch) -> Tensor:
        mixed = super()._training_loss(batch)
        if self.eta == 0:
            return mixed
        terms = (self._derivatives if self.version in (1, 2) else self._alignments)(batch.x, batch.y)
        if self.version in (1, 3):
            terms = terms * (terms.detach() < self.threshold)
        if self.version == 2:
            terms = terms.abs()
        if self.version in (3, 4):
            terms = -terms
        if batch.weight is not None:
            terms = terms * batch.weight
        share = self.alpha / (2 * self.alpha + 1)  # one minus the mean of Beta(alpha + 1, alpha)
        total = mixed + self.eta * share * terms.mean()
        size = total.detach().abs().clamp_min(torch.finfo(total.dtype).tiny)
        return total * (mixed.detach().abs() / size)

    def _derivatives(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the derivative of ``f . (p - onehot)`` towards the mean image (versions 1 and 2)."""
        if not isinstance(x, Tensor):
            raise TypeError(
                f"version={self.version} differentiates one input tensor, but x is a {type(x).__name__}. "
                "Use version 3 for models with several inputs."
            )
        assert self.mean is not None
        if self.mean.shape != x.shape[1:]:
            raise ValueError(
                f"mean must have the shape {tuple(x.shape[1:])} of one sample, but has shape "
                f"{tuple(self.mean.shape)}. Pass mean=x_train.mean(0)."
            )
        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            logits, gap = self._logits_and_gap(leaf, y)
            (slope,) = torch.autograd.grad(-(logits * gap.detach()).sum(), leaf, create_graph=True)
        return (slope * (self.mean.to(x.dtype) - x.detach())).flatten(1).sum(1)

    def _alignments(self, x: Inputs, y: Tensor) -> Tensor:
        """Return each sample's ``f . (onehot - p)`` (versions 3 and 4)."""
        logits, gap = self._logits_and_gap(x, y)
        return (logits * (gap.detach() if self.version == 4 else gap)).sum(1)

    def _logits_and_gap(self, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the unmixed batch, and ``onehot - p``."""
        output: Any = call_model(self.model, x)
        target = self._encode(y, output)
        is_logits = isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1
        if not is_logits or target.shape != output.shape or (y.is_floating_point() and not _on_simplex(y)):
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                "mixupE is for classification: the model must return logits (batch, classes) and y hold "
                f"labels, but the output is {got} and the targets are {y.dtype} of shape {tuple(y.shape)}. "
                "Use Mixup or CMixup instead."
            )
        logits = output.to(compute_dtype(output.dtype))
        return logits, target.to(logits.dtype) - logits.softmax(1)


def _on_simplex(y: Tensor) -> bool:
    """Return whether rows are probabilities, up to rounding."""
    total = y.detach().float().sum(1)
    return bool((y.detach() >= -1e-3).all() and (total - 1).abs().max() < 1e-2)
