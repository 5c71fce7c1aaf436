"""Distributionally robust training: the mean loss under the worst reweighting of the batch."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype
from elliptica.baselines._reweighted import Reweighted, base_measure
from elliptica.baselines.names import named
from elliptica.core.types import LossFn

Divergence = Literal["cvar", "chi2"]

_LEAST = 1e-30  # a smaller rho changes no digit


@named("dro")
class DRO(Reweighted):
    """Robust training: ``sum p_i * loss_i`` for the worst allowed weights ``p`` of the batch.

    The weights have sum 1, are computed exactly for each batch, and are constants for the gradient (Levy et
    al., NeurIPS 2020). With ``m`` samples they may be

    - ``"cvar"``: at most ``1 / (alpha * m)`` each, so that the result is the mean of the ``alpha * m``
      largest losses, the last of them in part, see `cvar_weights`;
    - ``"chi2"`` with ``rho``: at most ``rho`` away from equal weights, see `chi2_weights`;
    - ``"chi2"`` with ``alpha``: the same with ``rho = (1 / alpha - 1)**2 / 2``, which allows all that
      ``"cvar"`` of this ``alpha`` does;
    - ``"chi2"`` with ``penalty``: any, with ``penalty`` times their distance subtracted, see
      `chi2_penalty_weights`.

    Weights depend on the batch: a batch of at most ``1 / alpha`` (``"cvar"``) or ``1 + 2 * rho``
    samples trains only on its largest loss. Losses are compared as ``loss_fn`` returns them, class weights
    included.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        divergence: ``"cvar"`` or ``"chi2"``.
        alpha: Above 0 and at most 1, where 1 is plain training. 0.1 for ``"cvar"`` if None.
        rho: At least 0, where 0 is plain training. For ``"chi2"``; 1 if no size is given.
        penalty: Above 0; the larger, the closer to plain training. For ``"chi2"``; the authors use 0.05
            for digits and 0.4 for ImageNet.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = DRO(nn.Linear(4, 3), nn.CrossEntropyLoss(), divergence="chi2", rho=0.5)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> bool(objective(x, y) > objective.clean_loss(x, y))
        True
    """

    settings: ClassVar[tuple[str, ...]] = ("divergence", "alpha", "rho", "penalty")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        divergence: Divergence = "cvar",
        alpha: float | None = None,
        rho: float | None = None,
        penalty: float | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.choice("divergence", divergence, get_args(Divergence))
        sizes = {"alpha": alpha, "rho": rho, "penalty": penalty}
        given = [name for name, size in sizes.items() if size is not None]
        if len(given) > 1 or (divergence == "cvar" and given not in ([], ["alpha"])):
            takes = "alpha" if divergence == "cvar" else "one of alpha, rho and penalty"
            raise ValueError(
                f'divergence="{divergence}" takes {takes}, but got {" and ".join(given)}. Omit the rest.'
            )
        if not given:
            alpha, rho = (0.1, None) if divergence == "cvar" else (None, 1.0)
        if alpha is not None:
            check_share("alpha", alpha)
        if rho is not None:
            checks.nonnegative("rho", rho)
        if penalty is not None:
            checks.positive("penalty", penalty)
        self.divergence = divergence
        self.alpha, self.rho, self.penalty = alpha, rho, penalty

    def _combine(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        losses = losses.to(compute_dtype(losses.dtype))
        p = self._weights(losses, weight)
        value = (p * losses).sum()
        if self.penalty is None:
            return value
        base = base_measure(losses, weight)
        ratio = p / torch.where(base > 0, base, 1)
        return value - self.penalty / 2 * (base * (ratio - 1) ** 2).sum()

    def _weights(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        if self.penalty is not None:
            return chi2_penalty_weights(losses, self.penalty, sample_weight=weight)
        if self.divergence == "cvar":
            assert self.alpha is not None
            return cvar_weights(losses, self.alpha, sample_weight=weight)
        rho = (min(1 / self.alpha, 1e100) - 1) ** 2 / 2 if self.alpha is not None else self.rho
        assert rho is not None
        return chi2_weights(losses, rho, sample_weight=weight)


def cvar_weights(
    losses: Float[Tensor, " batch"], alpha: float, *, sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """Return the worst weights of sum 1 with at most ``1 / (alpha * m)`` on each of ``m`` losses.

    The ``floor(alpha * m)`` largest losses get ``1 / (alpha * m)``, and the next one gets the rest. Equal
    losses share their weight equally.

    Args:
        losses: One loss per sample; a gradient is not followed.
        alpha: Above 0 and at most 1: 1 gives equal weights, up to ``1 / m`` the maximum.
        sample_weight: Makes the bound proportional to the weights; a sample of weight 2 counts as two.

    Example:
        >>> cvar_weights(torch.tensor([1.0, 4.0, 2.0, 3.0]), alpha=0.375)
        tensor([0.0000, 0.6667, 0.0000, 0.3333])
    """
    check_share("alpha", alpha)
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
    iterations. If there are at most ``1 + 2 * rho`` losses, all weight is on the largest.

    Args:
        losses: One loss per sample; a gradient is not followed.
        rho: At least 0, where 0 gives equal weights.
        sample_weight: Takes the place of equal weights; a sample of weight 2 counts as two.

    Example:
        >>> chi2_weights(torch.tensor([1.0, 4.0, 2.0, 3.0]), rho=0.1)
        tensor([0.1000, 0.4000, 0.2000, 0.3000])
    """
    checks.nonnegative("rho", rho)
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
        spare = 2 * rho if n == len(depth) else (mass[n - 1] * (1 + 2 * rho) - 1).clamp_min(0)
        threshold = mean + spread / spare**0.5
        if n < len(depth):
            threshold = threshold.clamp_max(depth[n])
        gap[:n] = (threshold - top).clamp_min(0)
    return _finish(torch.zeros_like(v).index_copy(0, order, gap * base), losses)


def chi2_penalty_weights(
    losses: Float[Tensor, " batch"], penalty: float, *, sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """Return weights of sum 1 that maximise ``sum(p * loss) - penalty * sum((m * p_i - 1)**2) / (2 * m)``.

    They are ``max(loss - eta, 0) / (penalty * m)``, with the ``eta`` that makes their sum 1.

    Args:
        losses: One loss per sample; a gradient is not followed.
        penalty: Above 0, in units of the losses; large values give equal weights.
        sample_weight: Takes the place of equal weights; a sample of weight 2 counts as two.

    Example:
        >>> chi2_penalty_weights(torch.tensor([1.0, 4.0, 2.0, 3.0]), penalty=2.5)
        tensor([0.1000, 0.4000, 0.2000, 0.3000])
    """
    checks.positive("penalty", penalty)
    v, base = _prepare(losses, sample_weight)
    depth, order = (v.max() - v).sort()
    base = base[order]
    mass, first, _ = _integrals(depth, base)
    n = 1 + int((first < penalty).sum())
    before = first[n - 2] if n > 1 else 0.0
    threshold = depth[n - 1] + (penalty - before) / mass[n - 1]
    gap = (threshold - depth).clamp_min(0)
    return _finish(torch.zeros_like(v).index_copy(0, order, gap * base), losses)


def check_share(name: str, value: float) -> None:
    """Raise unless a share of the batch is above 0 and at most 1."""
    checks.number(name, value)
    if not 0 < value <= 1:
        raise ValueError(
            f"{name} must be above 0 and at most 1, but got {value}. It is a share of the batch; use "
            f"{name}=1.0 for plain training."
        )


def _prepare(losses: Tensor, sample_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return losses without gradient and sample weights of sum 1, in double precision if available."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point() or losses.ndim != 1:
        got = (
            f"{losses.dtype} of shape {tuple(losses.shape)}"
            if isinstance(losses, Tensor)
            else type(losses).__name__
        )
        raise TypeError(
            f"losses must be a floating tensor of shape (batch,), but got {got}. Use a loss with "
            'reduction="none", and convert with torch.as_tensor(...).'
        )
    checks.batch("losses", losses)
    checks.finite("losses", losses)
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
