"""Controls for elliptic training: smoothed labels without noise, noise without mixing."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_normal, draw_uniform
from elliptica.baselines.erm import ERM, Batch, between, check_classes
from elliptica.core.inputs import LossFn, call_model, named_inputs, rebuild_inputs
from elliptica.core.noise import Green
from elliptica.core.partners import sample_partners
from elliptica.core.targets import SimplexMap, project_to_simplex

NoiseLaw = Literal["gaussian", "bridge"]

_POINTS = 2**13


class LabelSmoothing(ERM):
    """Smooth labels: the loss of ``(1 - smoothing) * onehot + smoothing / K`` (Szegedy et al., CVPR 2016).

    Without class weights that is torch's ``CrossEntropyLoss(label_smoothing=...)``. With class weights the
    mean is divided by the weights of the *smoothed* labels (torch: of the true ones).

    Args:
        smoothing: From 0 (plain training) to 1 (uniform labels); the authors use 0.1. For the smoothing of
            labels in elliptic training see `matched_smoothing`.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> loss = LabelSmoothing(model, nn.CrossEntropyLoss(), smoothing=0.2)(x, y)
        >>> torch.allclose(loss, nn.CrossEntropyLoss(label_smoothing=0.2)(model(x), y))
        True
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, smoothing: float = 0.1, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        if getattr(loss_fn, "label_smoothing", 0.0):
            raise ValueError("loss_fn smooths labels already. Pass nn.CrossEntropyLoss(), or use ERM.")
        self.smoothing = between("smoothing", smoothing, 0, 1)

    def _training_loss(self, batch: Batch) -> Tensor:
        check_classes(batch.y)
        output = call_model(self.model, batch.x)
        target = self._encode(batch.y, output)
        target = (1 - self.smoothing) * target + self.smoothing / target.shape[1]
        return self._mean(self.loss(output, target), target, batch.weight)


def matched_smoothing(
    num_classes: int,
    sigma_y: float,
    *,
    simplex: SimplexMap = "abs",
    horizon: float = 1.0,
    n_times: int = 5,
    quadrature: Literal["uniform", "mean"] = "uniform",
) -> float:
    """Compute the label smoothing that equals elliptic training between two samples of one class.

    Along such a bridge the label is the one-hot label plus noise of variance ``sigma_y**2 * horizon *
    s (1 - s)`` per class, mapped back to the simplex. If a mean mass ``m``, over noise and times, is left
    on the true class, then smoothing by ``(1 - m) K / (K - 1)`` leaves as much. Only the mean is matched: a
    bridge also makes labels random, and at each time differently so.

    The mean is taken over a scrambled Sobol sequence of 8192 points with a fixed seed, so the result is the
    same in every call. Its error is below 0.0005 for ``sigma_y * sqrt(horizon)`` up to 1. Use it as the
    ``smoothing`` of `LabelSmoothing`.

    Args:
        num_classes: Number of classes ``K``, at least 2.
        sigma_y: Diffusion coefficient of the targets, see `elliptica.Elliptic`. Zero gives no smoothing.
        simplex: Map to the simplex, see `project_to_simplex`.
        horizon: Length of the time interval.
        n_times: Times on a bridge, both ends included; no effect with ``quadrature="uniform"``.
        quadrature: Law of the times. ``"uniform"``: any time in [0, 1]. ``"mean"`` is the default of
            `elliptica.Elliptic`, in which the ends, with labels as they are, count as well.

    Example:
        >>> round(matched_smoothing(100, 0.05), 2)
        0.6
        >>> round(matched_smoothing(100, 0.05, simplex="euclidean"), 2)
        0.03
    """
    checks.choice("quadrature", quadrature, ("uniform", "mean"))
    std = between("sigma_y", sigma_y) * math.sqrt(horizon)
    sequence = torch.quasirandom.SobolEngine(num_classes + 1, scramble=True, seed=0)
    u = sequence.draw(_POINTS, dtype=torch.float64)
    s = u[:, 0]
    if quadrature == "mean":
        s = (s * n_times).long().clamp_max(n_times - 1) / (n_times - 1)
    noise = torch.special.ndtri(u[:, 1:].clamp(1e-12, 1 - 1e-12))
    noisy = noise * (std * _spread(s.double()))[:, None]
    noisy[:, 0] += 1  # by symmetry the first class may be the true one
    spilt = (1 - project_to_simplex(noisy, simplex)[:, 0]).sum()
    share = float(spilt) / _POINTS * num_classes / (num_classes - 1)
    return min(max(share, 0.0), 1.0)


class InputNoise(ERM):
    """Add noise to the inputs: the loss at ``x + sigma * z`` with standard normal ``z`` (Bishop 1995).

    Labels do not change. ``law="bridge"`` scales the noise of each sample by ``sqrt(s (1 - s))`` with ``s``
    uniform on [0, 1]: the noise of a Brownian bridge from the sample to itself, at a random time. Its
    variance is ``sigma**2 / 6`` on average. Compare with it to see what the mixing of a bridge adds to its
    noise. ``sigma="green"`` takes the variance of the bridge from each sample to a partner
    (`elliptica.Green`), and leaves out the way there: elliptic training's noise on samples that stay where
    they are. Pass partners as ``end``, or they are drawn from the batch by inverse distance.

    Draws, in this order: the partners of ``sigma="green"``, the times of ``law="bridge"``, the noise of each
    input, after its variance where that is random.

    Args:
        sigma: Standard deviation in units of the inputs: a number, or a tensor with one value per feature.
            Zero is plain training. Or ``"green"``, or `elliptica.Green`, see above.
        law: ``"gaussian"`` or ``"bridge"``, see above.
    """

    sigma: float | Tensor | Green
    mixes_inputs = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        sigma: float | Tensor | Green | Literal["green"],
        law: NoiseLaw = "gaussian",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.choice("law", law, ("gaussian", "bridge"))
        if isinstance(sigma, str):
            checks.choice("sigma", sigma, ("green",))
            sigma = Green()
        if isinstance(sigma, Tensor):
            between("sigma", float(sigma.min()))
            self.register_buffer("sigma", sigma.detach().clone(), persistent=False)
        else:
            self.sigma = sigma if isinstance(sigma, Green) else between("sigma", sigma)
        self.law = law

    def _training_loss(self, batch: Batch) -> Tensor:
        y, generator = batch.y, batch.generator
        inputs = named_inputs(batch.x)
        partners = self._partners(inputs, batch)
        spread = torch.ones(len(y), device=y.device)
        if self.law == "bridge":
            spread = _spread(draw_uniform((len(y),), device=y.device, generator=generator).double())
        noisy = {name: self._noisy(v, partners[name], spread, generator) for name, v in inputs.items()}
        return self._mean(*self._losses_at(rebuild_inputs(batch.x, noisy), y), batch.weight)

    def _partners(self, inputs: dict[Hashable, Tensor], batch: Batch) -> dict[Hashable, Tensor]:
        """Return the far ends that decide the variance; the samples themselves if it does not matter."""
        if not isinstance(self.sigma, Green):
            return inputs
        if batch.end is not None:
            return named_inputs(batch.end[0])
        joint = torch.cat([value.flatten(1) for value in inputs.values()], dim=1)
        j = sample_partners(joint, pairing="inverse_distance", generator=batch.generator)[:, 0]
        return {name: value[j] for name, value in inputs.items()}

    def _noisy(
        self, value: Tensor, partner: Tensor, spread: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Add noise to one input, with a spread for each row."""
        dtype = compute_dtype(value.dtype)
        std: float | Tensor
        if isinstance(self.sigma, Green):
            std = self.sigma(value, partner, generator=generator)  # a random variance for each pair
        elif isinstance(self.sigma, Tensor):
            std = self.sigma.to(value.device, dtype).expand(value.shape[1:])  # never along the batch
        elif self.sigma == 0:
            return value
        else:
            std = self.sigma
        z = draw_normal(value.shape, dtype=dtype, device=value.device, generator=generator)
        scale = spread.to(dtype).reshape(-1, *[1] * (value.ndim - 1)) * std
        return torch.addcmul(value.to(dtype), z, scale).to(value.dtype)


def _spread(s: Tensor) -> Tensor:
    """Return the standard deviation of a unit bridge at time ``s``."""
    return (s - s * s).clamp_min(0).sqrt()
