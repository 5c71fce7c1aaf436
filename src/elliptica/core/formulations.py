"""The paper's other variants of the bridge objective (paper: appendix E; docs: deviations).

Appendix E has three formulas. Minimising the source term is the method itself plus the loss at the start
(`SourceTerm`). Dynkin's sum is meaningful over free Brownian paths, where it is the expected loss at their
end (`DynkinSum`). Over bridges it is either ordinary training (successors drawn from the bridge) or unbounded
below (Brownian successors). The source-term PDE itself gives ``u = E[l(end)] - E[integral of l]``, which
rewards a large loss inside. It is not something to minimise; evaluate it with `estimate_landscape` and
``Operator(source=lambda z: -loss(z))``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator, compute_dtype, draw_normal
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import check_batch, check_weight, named_inputs
from elliptica.core.losses import PerSampleLoss, weighted_mean
from elliptica.core.targets import encode_targets, infer_target_space
from elliptica.core.types import Inputs, LossFn, WithOutputs


class SourceTerm(Elliptic):
    """Loss at the data plus the integral of the loss along the bridges (paper: appendix E, last formula).

    The objective is ``l(start) + duration * (mean loss along the bridge)``: Dynkin's formula for a loss that
    satisfies ``A l = l``. Compared with `Elliptic`, the data themselves have an additional weight of 1
    against ``duration``. With ``duration=0`` it is ordinary training. Batch norm statistics see both passes.

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
        checks.nonnegative_number("duration", duration)
        self.duration = float(duration)

    def forward(self, x: Inputs, y: Tensor, **options: Any) -> Tensor | WithOutputs:
        """Return the loss of a batch; options are those of `Elliptic.forward`.

        With ``with_outputs=True`` outputs and targets are those along the bridges.
        """
        is_off = self._noise_factor() is None
        if is_off and options.get("with_outputs"):
            return super().forward(x, y, **options)
        clean = self.clean_loss(x, y, sample_weight=options.get("sample_weight"))
        if is_off or (self.duration == 0 and not options.get("with_outputs")):
            return clean
        along = super().forward(x, y, **options)
        if isinstance(along, WithOutputs):
            return along._replace(loss=clean + self.duration * along.loss)
        return clean + self.duration * along


class DynkinSum(nn.Module):
    """Dynkin's sum over free Brownian paths from the data (paper: appendix E, first formula, corrected).

    The objective is ``l(Z_0) + sum_i (E[l(Z_{i+1}) | Z_i] - l(Z_i))``, with each conditional expectation
    estimated by a pair of opposite steps. Its expected value is the loss at the end of the path,
    ``E l(Z_T)``, for every step size. With one step it is noise added to the inputs. (The factor ``1 / dt``
    printed in the paper cancels.) Labels are kept; real targets diffuse with ``sigma_y``.

    A single value may be negative even if the loss is not: only the expectation is a loss. It costs
    ``3 * n_steps`` evaluations per sample. Use it to study the formulation; `Elliptic` is the method.

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
        checks.nonnegative_number("sigma", sigma)
        checks.nonnegative_number("sigma_y", sigma_y)
        checks.positive("horizon", horizon)
        checks.count("n_steps", n_steps)
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        self._user_loss = (loss_fn,)
        self.sigma, self.sigma_y = float(sigma), float(sigma_y)
        self.horizon, self.n_steps = float(horizon), n_steps
        self.num_classes = self.loss.num_classes() if num_classes is None else num_classes

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the objective of a batch, a scalar; in ``eval()`` mode the ordinary loss."""
        checks.batch("x", x)
        check_batch(named_inputs(x), list(named_inputs(x)), y, len(x), finite=True)
        check_weight(sample_weight, len(x))
        check_generator(generator, x.device)
        space = infer_target_space(self._user_loss[0], y)
        if self.sigma_y and space != "real":
            raise ValueError(
                f"sigma_y={self.sigma_y} adds noise to the targets, but Dynkin's formula does not hold on "
                "the simplex of class probabilities. Use sigma_y=0."
            )
        is_label = not y.is_floating_point()
        y = encode_targets(y, space, num_classes=self.num_classes, dtype=x.dtype)
        class_weight = self.loss.class_weight(y) if self.loss.weights_classes and is_label else None
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
            dx, dy = (
                self._step(x, self.sigma * root, generator),
                self._step(y, self.sigma_y * root, generator),
            )
            # E[l(Z_{i+1}) | Z_i] by opposite steps; the path itself then takes a third, independent one
            points += [(x + dx, y + dy), (x - dx, y - dy)]
            factors += [0.5, 0.5]
            x = x + self._step(x, self.sigma * root, generator)
            y = y + self._step(y, self.sigma_y * root, generator)
        kept = [i for i, factor in enumerate(factors) if factor]
        return [points[i] for i in kept], torch.tensor([factors[i] for i in kept], device=x.device)

    def _step(self, like: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
        if std == 0:
            return torch.zeros_like(like)
        dtype = compute_dtype(like.dtype)
        noise = draw_normal(like.shape, dtype=dtype, device=like.device, generator=generator)
        return (std * noise).to(like.dtype)
