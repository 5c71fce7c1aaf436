"""Other averages of the losses of a batch: focal, tilted, distributionally robust, without outliers."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines.erm import ERM, Batch, between
from elliptica.core.inputs import LossFn, check_weight, warn_user
from elliptica.core.targets import infer_target_space

Divergence = Literal["cvar", "chi2"]

_LEAST = 1e-30  # a smaller rho changes no digit
_MOST = 1e30  # beyond it, a tilt would not fit into float32


class Reweighted(ERM):
    """Plain training with another average of the losses.

    A sample of weight 2 counts as two equal samples, and one of weight 0 as absent. The result is then
    multiplied by the mean weight, as the mean of weight times loss would be.
    """

    def _training_loss(self, batch: Batch) -> Tensor:
        losses, target = self._losses_at(batch.x, batch.y)
        return self._average(losses, target, batch.weight)

    def _average(self, losses: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        """Return the average; class weights and the scale of sample weights act as in plain training."""
        value = self._combine(losses, weight)
        return self._mean(value.expand(len(losses)), target, weight)

    def _combine(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        """Return the average of the losses, which must not depend on the scale of the weights."""
        raise NotImplementedError


class Focal(Reweighted):
    """Focal loss: ``(1 - p)**gamma * CE`` with ``p = exp(-CE)`` (Lin et al., ICCV 2017).

    For a label, ``p`` is the probability that the model gives to it, so samples that are already right
    hardly count. The gradient flows through the factor, too. For soft or smoothed labels ``p`` is the
    geometric mean of the classes' probabilities, weighted by the label, and with several outputs under
    ``BCEWithLogitsLoss`` the geometric mean over them: the focal loss of a sample is always an increasing
    function of its cross-entropy, so that its minimum stays where the prediction equals the label.

    Class weights of ``loss_fn``, which must be a cross-entropy, multiply the result and do not enter ``p``.

    Args:
        gamma: At least 0; 0 is the cross-entropy. The authors use 2.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> objective = Focal(model, nn.CrossEntropyLoss(), gamma=2.0)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> p = model(x).softmax(1)[torch.arange(8), y]
        >>> torch.allclose(objective(x, y), -((1 - p) ** 2 * p.log()).mean())
        True
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, gamma: float = 2.0, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        if _is_for_real_targets(loss_fn):
            raise ValueError("loss_fn must be a cross-entropy, whose exp(-loss) is a probability.")
        self.gamma = between("gamma", gamma)

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


class Tilted(Reweighted):
    """Tilted training: ``log(mean(exp(t * loss))) / t`` (Li et al., ICLR 2021).

    With ``t`` from minus to plus infinity it changes from the smallest loss of the batch over the mean
    (``t = 0``) to the largest. Its gradient is that of the losses weighted by ``softmax(t * loss)``: positive
    ``t`` emphasises hard samples, and negative ``t`` easy ones, which reduces the effect of wrong labels.

    Args:
        t: The tilt, in units of one over the loss, of either sign; 0 is plain training.

    Example:
        >>> objective = Tilted(nn.Linear(4, 3), nn.CrossEntropyLoss(), t=2.0)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> bool(objective(x, y) > objective.clean_loss(x, y))
        True
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, t: float = 1.0, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        self.t = between("t", t, -_MOST, _MOST)

    def _combine(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        return tilted_mean(losses, self.t, sample_weight=weight)


def tilted_mean(
    losses: Float[Tensor, " batch"], t: float, *, sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, ""]:
    """Return the average ``log(mean(exp(t * loss))) / t`` of losses; accurate for large and tiny ``t``."""
    losses = losses.to(compute_dtype(losses.dtype))
    base = base_measure(losses, sample_weight)
    if abs(t) < 1 / _MOST:
        return (base * losses).sum()
    present = losses.detach()[base > 0]
    largest = present.max() if t > 0 else present.min()
    # all exponents are at most 0, so nothing overflows; expm1 and log1p keep the digits of small ones
    excess = t * (torch.where(base > 0, losses, largest) - largest)
    return largest + (base * excess.expm1()).sum().log1p() / t


class DRO(Reweighted):
    """Robust training: ``sum p_i * loss_i`` for the worst allowed weights ``p`` of the batch.

    The weights have sum 1, are computed exactly for each batch, and are constants for the gradient (Levy et
    al., NeurIPS 2020). With ``m`` samples they may be

    - ``"cvar"``: at most ``1 / (alpha * m)`` each, so that the result is the mean of the ``alpha * m``
      largest losses, the last of them in part, see `cvar_weights`;
    - ``"chi2"`` with ``rho``: at most ``rho`` away from equal weights, see `chi2_weights`;
    - ``"chi2"`` with ``alpha``: the same with ``rho = (1 / alpha - 1)**2 / 2``, which allows all that
      ``"cvar"`` of this ``alpha`` does.

    A batch of at most ``1 / alpha`` (``"cvar"``) or ``1 + 2 * rho`` samples trains only on its largest loss.
    Losses are compared as ``loss_fn`` returns them, class weights included.

    Args:
        divergence: ``"cvar"`` or ``"chi2"``.
        alpha: Above 0 and at most 1, where 1 is plain training. 0.1 for ``"cvar"`` if None.
        rho: For ``"chi2"``, at least 0, where 0 is plain training; 1 if no size is given.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        divergence: Divergence = "cvar",
        alpha: float | None = None,
        rho: float | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.choice("divergence", divergence, ("cvar", "chi2"))
        if rho is not None and (alpha is not None or divergence == "cvar"):
            raise ValueError(f'divergence={divergence!r} takes alpha, or "chi2" rho instead, not rho={rho}.')
        if alpha is None and rho is None:
            alpha, rho = (0.1, None) if divergence == "cvar" else (None, 1.0)
        self.divergence = divergence
        self.alpha = None if alpha is None else between("alpha", alpha, math.ulp(0.0), 1)
        self.rho = None if rho is None else between("rho", rho)

    def _combine(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        losses = losses.to(compute_dtype(losses.dtype))
        return (self._weights(losses, weight) * losses).sum()

    def _weights(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        if self.divergence == "cvar":
            assert self.alpha is not None
            return cvar_weights(losses, self.alpha, sample_weight=weight)
        rho = (min(1 / self.alpha, 1e100) - 1) ** 2 / 2 if self.alpha is not None else self.rho
        assert rho is not None
        return chi2_weights(losses, rho, sample_weight=weight)


class DORO(DRO):
    """Robust training without outliers: `DRO` of all but the ``epsilon * m`` largest of ``m`` losses.

    The largest losses may come from wrong labels, on which DRO would concentrate (Zhai et al., ICML 2021).
    ``floor(epsilon * m)`` samples are dropped, and at least one stays. The worst weights are computed exactly
    on the others (the authors' code omits the fraction of a sample for ``"cvar"``). Samples of weight 0 are
    not counted; other weights do not influence which samples are dropped.

    Args:
        epsilon: Share of outliers, from 0 (`DRO`) to below 1. The authors use 0.005, in batches of 400.
        divergence: ``"cvar"`` or ``"chi2"``, with ``rho = (1 / alpha - 1)**2 / 2``.
        alpha: Above 0 and at most 1, where 1 is the mean of the remaining losses.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        epsilon: float,
        divergence: Divergence = "cvar",
        alpha: float = 0.2,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, divergence=divergence, alpha=alpha, num_classes=num_classes)
        self.epsilon = between("epsilon", epsilon, 0, math.nextafter(1, 0))

    def _weights(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        _check_losses(losses)  # a NaN must not be dropped as an outlier
        base = base_measure(losses.detach(), weight)
        present = (base > 0).nonzero().squeeze(1)
        order = present[losses.detach()[present].argsort(descending=True)]
        rows = len(order)
        # rounding errors must not cost a sample: 0.29 * 100 is 29
        n_out = min(math.floor(self.epsilon * rows + 1e-9), rows - 1)
        if not n_out and self.epsilon:
            warn_user(f"epsilon={self.epsilon} of {rows} rows is less than one, so nothing is dropped.")
        weights = torch.zeros_like(base)
        kept = order[n_out:]
        weights[kept] = super()._weights(losses[kept], None if weight is None else base[kept])
        return weights


def cvar_weights(
    losses: Float[Tensor, " batch"], alpha: float, *, sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """Return the worst weights of sum 1 with at most ``1 / (alpha * m)`` on each of ``m`` losses.

    The ``floor(alpha * m)`` largest losses get ``1 / (alpha * m)``, and the next one gets the rest. Equal
    losses share their weight equally. ``alpha`` is above 0 and at most 1: 1 gives equal weights, up to ``1 /
    m`` the maximum. No gradient of ``losses`` is followed; a sample of ``sample_weight`` 2 counts as two.

    Example:
        >>> cvar_weights(torch.tensor([1.0, 4.0, 2.0, 3.0]), alpha=0.375)
        tensor([0.0000, 0.6667, 0.0000, 0.3333])
    """
    between("alpha", alpha, math.ulp(0.0), 1)
    v, base = _prepare(losses, sample_weight)
    levels, level = (-v).unique(return_inverse=True)  # the largest loss first
    mass = torch.zeros_like(levels).index_add(0, level, base)
    above = mass.cumsum(0).roll(1)
    above[0] = 0
    taken = torch.minimum(mass, (alpha - above).clamp_min(0))
    return _finish((taken / mass)[level] * base, losses)


def chi2_weights(
    losses: Float[Tensor, " batch"], rho: float, *, sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """Return the worst weights of sum 1 with ``sum((m * p_i - 1)**2) / (2 * m) <= rho`` for ``m`` losses.

    They are proportional to ``max(loss - eta, 0)``. ``eta`` is computed from the sorted losses, without
    iterations. If there are at most ``1 + 2 * rho`` losses, all weight is on the largest; ``rho=0`` gives
    equal weights. ``losses`` and ``sample_weight`` are those of `cvar_weights`.

    Example:
        >>> chi2_weights(torch.tensor([1.0, 4.0, 2.0, 3.0]), rho=0.1)
        tensor([0.1000, 0.4000, 0.2000, 0.3000])
    """
    between("rho", rho)
    v, base = _prepare(losses, sample_weight)
    depth, order = (v.max() - v).sort()
    if rho < _LEAST or depth[-1] == 0:
        return _finish(base, losses)
    depth, base = depth / depth[-1], base[order]
    mass, first, second = _integrals(depth, base)
    # the ratio of moments falls as more losses take part; add losses until rho allows it
    more = (depth[1:] == 0) | (second > (1 + 2 * rho) * first**2)
    n = 1 + int(more.long().cumprod(0).sum())
    top, share = depth[:n], base[:n] / mass[n - 1]
    mean = (share * top).sum()
    spread = (share * (top - mean) ** 2).sum().sqrt()
    gap = torch.zeros_like(depth)
    gap[:n] = 1.0
    if spread > 0:
        # the threshold at which the n largest losses use up rho
        spare = 2 * rho if n == len(depth) else (mass[n - 1] * (1 + 2 * rho) - 1).clamp_min(0)
        threshold = mean + spread / spare**0.5
        if n < len(depth):
            threshold = threshold.clamp_max(depth[n])
        gap[:n] = (threshold - top).clamp_min(0)
    return _finish(torch.zeros_like(v).index_copy(0, order, gap * base), losses)


def base_measure(losses: Tensor, sample_weight: Tensor | None) -> Tensor:
    """Normalise sample weights to sum 1, in the dtype of the losses; equal if there are none, or all 0."""
    equal = torch.full_like(losses, 1 / len(losses), requires_grad=False)
    if sample_weight is None:
        return equal
    check_weight(sample_weight, len(losses))
    weight = sample_weight.detach().to(losses.dtype)
    largest = weight.max()
    weight = weight / torch.where(largest > 0, largest, 1)  # otherwise a sum of large weights overflows
    total = weight.sum()
    return torch.where(total > 0, weight / total.clamp_min(0.5), equal)


def _check_losses(losses: Tensor) -> None:
    if not losses.is_floating_point() or losses.ndim != 1 or not bool(losses.isfinite().all()):
        raise ValueError(f"losses must be finite, one per sample, but have shape {tuple(losses.shape)}.")


def _prepare(losses: Tensor, sample_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return losses without gradient and sample weights of sum 1, in double precision if available."""
    _check_losses(losses)
    v = losses.detach().to(torch.float32 if losses.device.type == "mps" else torch.float64)
    base = base_measure(v, sample_weight)
    return torch.where(base > 0, v, v[base > 0].min()), base  # an absent sample is never the largest


def _finish(p: Tensor, losses: Tensor) -> Tensor:
    return (p / p.sum()).to(compute_dtype(losses.dtype))


def _integrals(depth: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mass of the first rows, and two moments of ``max(h - depth, 0)``.

    These are its mean and that of its square, with the next depth as ``h``. They are sums of positive terms,
    so that nothing cancels.
    """
    mass = base.cumsum(0)
    step = depth.diff()
    first = (mass[:-1] * step).cumsum(0)
    earlier = F.pad(first, (1, 0))[:-1]
    return mass, first, (2 * earlier * step + mass[:-1] * step**2).cumsum(0)
