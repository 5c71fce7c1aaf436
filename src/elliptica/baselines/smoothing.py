"""Label smoothing (Szegedy et al., CVPR 2016), and the smoothing that equals label bridges."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.baselines.erm import ERM, Batch
from elliptica.core.bridge import QUADRATURES, Quadrature, quantile_times, unit_spread
from elliptica.core.inputs import call_model
from elliptica.core.targets import SIMPLEX_MAPS, SimplexMap, project_to_simplex
from elliptica.core.types import LossFn

_CHUNK_NUMBERS = 2**22


class LabelSmoothing(ERM):
    """The loss of the target ``(1 - smoothing) * onehot + smoothing / K``, for ``K`` classes.

    Without class weights that is torch's ``CrossEntropyLoss(label_smoothing=...)``. With class weights the
    mean is divided by the weights of the *smoothed* labels (torch: of the true ones).

    In ``eval()`` mode it is the ordinary loss, without smoothing. The module owns the model; save
    ``objective.model``.

    Args:
        model: Any network that returns one logit per class.
        loss_fn: Your ordinary classification loss, see `ERM`.
        smoothing: From 0 (plain training) to 1 (uniform labels); the authors use 0.1. For the smoothing of
            labels in elliptic training see `matched_smoothing`.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> loss = LabelSmoothing(model, nn.CrossEntropyLoss(), smoothing=0.2)(x, y)
        >>> torch.allclose(loss, nn.CrossEntropyLoss(label_smoothing=0.2)(model(x), y))
        True
    """

    settings = ("smoothing",)

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        smoothing: float = 0.1,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.number("smoothing", smoothing)
        if not 0 <= smoothing <= 1:
            raise ValueError(
                f"smoothing must be between 0 and 1, but got {smoothing}. It is the share of a label that is "
                "spread over all classes; 0.1 is usual."
            )
        already = getattr(loss_fn, "label_smoothing", 0.0)
        if already:
            raise ValueError(
                f"loss_fn already smooths labels (label_smoothing={already}), so they would be smoothed "
                "twice. Pass nn.CrossEntropyLoss() without it, or use ERM."
            )
        self.smoothing = float(smoothing)

    def _training_loss(self, batch: Batch) -> Tensor:
        _check_classes(batch.y)
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
    quadrature: Quadrature = "uniform",
    n_points: int = 2**13,
) -> float:
    """Compute the label smoothing that equals elliptic training between two samples of one class.

    Along such a bridge the label is the one-hot label plus noise of variance ``sigma_y**2 * horizon *
    s (1 - s)`` per class, mapped back to the simplex. If a mean mass ``m``, over noise and times, is left
    on the true class, then smoothing by ``(1 - m) K / (K - 1)`` leaves as much. Only the mean is matched: a
    bridge also makes labels random, and at each time differently so.

    The mean is taken over a scrambled Sobol sequence with a fixed seed, so the result is the same in every
    call. With the default ``n_points`` its error is below 0.0005 for ``sigma_y * sqrt(horizon)`` up to 1.

    Args:
        num_classes: Number of classes ``K``, at least 2.
        sigma_y: Diffusion coefficient of the targets, see `elliptica.Elliptic`. Zero gives no smoothing.
        simplex: Map to the simplex, see `project_to_simplex`.
        horizon: Length of the time interval, as of `elliptica.Elliptic`.
        n_times: Times on a bridge, both ends included; no effect with ``quadrature="uniform"``.
        quadrature: Law of the times. ``"uniform"``: any time in [0, 1]. ``"mean"`` is the default of
            `elliptica.Elliptic`, in which the ends, with labels as they are, count as well.
        n_points: Points of the sequence, best a power of two.

    Returns:
        A number for the ``smoothing`` of `LabelSmoothing`.

    Example:
        >>> round(matched_smoothing(100, 0.05), 2)
        0.6
        >>> round(matched_smoothing(100, 0.05, simplex="euclidean"), 2)
        0.03
    """
    checks.count("num_classes", num_classes, 2, " (one class cannot be smoothed)")
    checks.nonnegative("sigma_y", sigma_y)
    checks.positive("horizon", horizon)
    checks.choice("simplex", simplex, SIMPLEX_MAPS)
    checks.choice("quadrature", quadrature, QUADRATURES)
    checks.count("n_times", n_times, 2, " (it counts both end points of a path)")
    checks.count("n_points", n_points)
    sequence = torch.quasirandom.SobolEngine(num_classes + 1, scramble=True, seed=0)
    spilt = torch.zeros((), dtype=torch.float64)
    step = max(1, _CHUNK_NUMBERS // num_classes)
    for begin in range(0, n_points, step):
        u = sequence.draw(min(step, n_points - begin), dtype=torch.float64)
        s = quantile_times(u[:, 0].clone(), n_times, quadrature)
        spread = sigma_y * math.sqrt(horizon) * unit_spread(s)
        noisy = torch.special.ndtri(u[:, 1:].clamp(1e-12, 1 - 1e-12)) * spread[:, None]
        noisy[:, 0] += 1  # by symmetry the first class may be the true one
        spilt += (1 - project_to_simplex(noisy, simplex)[:, 0]).sum()
    share = float(spilt) / n_points * num_classes / (num_classes - 1)
    return min(max(share, 0.0), 1.0)


def _check_classes(y: Tensor) -> None:
    """Raise if floating targets are not class probabilities."""
    if not y.is_floating_point():
        return
    total = y.detach().float().sum(1) if y.ndim > 1 else torch.zeros(1)
    if bool((y < 0).any()) or float((total - 1).abs().max()) > 1e-2:
        raise ValueError(
            "LabelSmoothing is for classification: y must hold integer labels or class probabilities that "
            f"sum to 1 along axis 1, but has dtype {y.dtype}, shape {tuple(y.shape)} and values from "
            f"{float(y.min()):.3g} to {float(y.max()):.3g}. Use ERM or InputNoise for real targets."
        )
