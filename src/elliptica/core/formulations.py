"""The paper's other variants of the bridge objective (paper: appendix E; docs: deviations).

Minimising the source term is the method itself plus the loss at the start (`SourceTerm`). Dynkin's sum is
meaningful over free Brownian paths, where it is the expected loss at their end (`DynkinSum`); over bridges it
is ordinary training, or unbounded below. The source-term PDE itself gives ``u = E[l(end)] - E[integral of
l]``, which rewards a large loss inside: evaluate it, with `estimate_landscape` and
``Operator(source=lambda z: -loss(z))``, but do not minimise it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils.random import compute_dtype, draw_normal
from elliptica.core.bridge import Bridges
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import Inputs, LossFn, copy_inputs
from elliptica.core.losses import PerSampleLoss, weighted_mean
from elliptica.core.targets import Targets, infer_target_space


class SourceTerm(Elliptic):
    """Loss at the data plus the integral of the loss along the bridges (paper: appendix E, last formula).

    The objective is ``l(start) + duration * (mean loss along the bridge)``: Dynkin's formula for a loss that
    satisfies ``A l = l``. With ``duration=0`` it is ordinary training. Batch norm statistics see both passes.

    Args:
        model: As in `Elliptic`.
        loss_fn: As in `Elliptic`.
        duration: Weight of the integral (the paper's fixed exit time).
        **settings: Any other setting of `Elliptic`.

    Example:
        >>> objective = SourceTerm(nn.Linear(4, 1), nn.MSELoss(), duration=0.5, sigma=0.05)
        >>> objective(torch.randn(8, 4), torch.randn(8, 1)).backward()
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, duration: float = 1.0, **settings: Any) -> None:
        super().__init__(model, loss_fn, **settings)
        self.duration = duration

    def forward(self, x: Inputs, y: Tensor, **options: Any) -> Tensor:
        """Return the loss of a batch; options are those of `Elliptic.forward`."""
        clean = self.clean_loss(copy_inputs(x), y, sample_weight=options.get("sample_weight"))
        if not self.training or self.strength is None:
            return clean
        return clean + self.duration * super().forward(x, y, **options)


class DynkinSum(nn.Module):
    """Dynkin's sum over free Brownian paths from the data (paper: appendix E, first formula, corrected).

    The objective is ``l(Z_0) + sum_i (E[l(Z_{i+1}) | Z_i] - l(Z_i))``, with each conditional expectation
    estimated by a pair of opposite steps. Its expected value is the loss at the end of the path,
    ``E l(Z_T)``, for every step size. With one step it is noise added to the inputs. (The factor ``1 / dt``
    printed in the paper cancels.) Labels are kept; real targets diffuse with ``sigma_y``.

    A single value may be negative even if the loss is not. It costs ``3 * n_steps`` evaluations per sample.
    Use it to study the formulation; `Elliptic` is the method.

    Args:
        model: Any network that takes one tensor.
        loss_fn: Your ordinary loss.
        sigma: Diffusion coefficient of the inputs.
        sigma_y: The same for real targets.
        horizon: Length ``T`` of the paths.
        n_steps: Steps on a path.
        num_classes: Number of classes. Required for integer labels unless the loss has class weights.

    Example:
        >>> objective = DynkinSum(nn.Linear(4, 1), nn.MSELoss(), sigma=0.1)
        >>> objective(torch.randn(8, 4), torch.randn(8, 1)).backward()
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        sigma: float = 0.05,
        sigma_y: float = 0.0,
        horizon: float = 1.0,
        n_steps: int = 4,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        num_classes = self.loss.num_classes() if num_classes is None else num_classes
        space = infer_target_space(loss_fn, num_classes=num_classes)
        if sigma_y and space != "real":
            raise ValueError(f"sigma_y={sigma_y} must be 0: Dynkin's formula fails for noisy class labels.")
        self.bridges = Bridges(Targets(space, num_classes), sigma, sigma_y)
        self.horizon, self.n_steps = horizon, n_steps

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the objective of a batch, a scalar; in ``eval()`` mode the ordinary loss."""
        is_class_weighted = self.loss.weights_classes and not y.is_floating_point()
        y = self.bridges.read(x, y, sample_weight).targets
        class_weight = self.loss.class_weight(y) if is_class_weighted else None
        n_steps = self.n_steps if self.training else 0
        points, factors = self._points(x, y, n_steps, generator)
        rows = [torch.cat(part) for part in zip(*points, strict=True)]
        losses = self.loss(self.model(rows[0]), rows[1]).unflatten(0, (-1, len(x)))
        return weighted_mean((factors.to(losses)[:, None] * losses).sum(0), sample_weight, class_weight)

    def _points(
        self, x: Tensor, y: Tensor, n_steps: int, generator: torch.Generator | None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Return the points at which the loss is needed, and the factor of each in the sum."""
        root = math.sqrt(self.horizon / max(n_steps, 1))
        points, factors = [(x, y)], [1.0]
        for step in range(n_steps):
            if step:  # at the first step, -l(Z_0) cancels the leading l(Z_0)
                points.append((x, y))
                factors.append(-1.0)
            else:
                factors[0] = 0.0
            dx = self._step(x, self.bridges.sigma * root, generator)
            dy = self._step(y, self.bridges.sigma_y * root, generator)
            # E[l(Z_{i+1}) | Z_i] by opposite steps; the path itself then takes a third, independent one
            points += [(x + dx, y + dy), (x - dx, y - dy)]
            factors += [0.5, 0.5]
            x = x + self._step(x, self.bridges.sigma * root, generator)
            y = y + self._step(y, self.bridges.sigma_y * root, generator)
        kept = [i for i, factor in enumerate(factors) if factor]
        return [points[i] for i in kept], torch.tensor([factors[i] for i in kept], device=x.device)

    def _step(self, like: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
        if std == 0:
            return torch.zeros_like(like)
        dtype = compute_dtype(like.dtype)
        noise = draw_normal(like.shape, dtype=dtype, device=like.device, generator=generator)
        return (std * noise).to(like.dtype)
