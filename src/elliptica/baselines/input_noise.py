"""Noisy inputs: what is left of a bridge when nothing is mixed (Bishop, Neural Computation 1995)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator, draw_uniform
from elliptica.baselines.erm import ERM
from elliptica.core.bridge import marginal_rows
from elliptica.core.inputs import check_batch, count_rows, named_inputs, rebuild_inputs
from elliptica.core.noise import noise_std
from elliptica.core.paths import End
from elliptica.core.types import Inputs, LossFn

NoiseLaw = Literal["gaussian", "bridge"]


class InputNoise(ERM):
    """The ordinary loss at ``x + sigma * z`` with standard normal ``z``; labels are untouched.

    ``law="bridge"`` scales the noise of each sample by ``sqrt(s (1 - s))`` with ``s`` uniform on [0, 1]:
    the noise of a Brownian bridge from the sample to itself, at a random time. Its variance is
    ``sigma**2 / 6`` on average. Compare with it to see what the mixing of a bridge adds to its noise.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        sigma: Standard deviation in units of the inputs: a number, or a tensor with one value per feature.
            Zero is plain training.
        law: ``"gaussian"`` or ``"bridge"``, see above.
        num_classes: Number of classes of integer labels; None reads it off the model's output.

    Example:
        >>> objective = InputNoise(nn.Linear(4, 3), nn.CrossEntropyLoss(), sigma=0.1)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    sigma: float | Tensor

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        sigma: float | Tensor,
        law: NoiseLaw = "gaussian",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.nonnegative("sigma", sigma)
        checks.choice("law", law, get_args(NoiseLaw))
        if isinstance(sigma, Tensor):
            self.register_buffer("sigma", sigma.detach().clone(), persistent=False)
        else:
            self.sigma = float(sigma)
        self.law = law

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        end: End | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Loss of a batch, a scalar.

        Draws, in this order: the times of ``law="bridge"``, the noise of each input.

        Args:
            x: Inputs: a tensor, or a tuple or dict of tensors that the model is called with; all get noise.
            y: Targets: integer labels, soft labels, or real values.
            sample_weight: Weight of each sample, used as given: the mean of weight times loss.
            end: Taken so that all methods are called alike; there is nothing to mix with.
            generator: Source of randomness; torch's default one if None.
        """
        if not self.training:
            return self.clean_loss(x, y, sample_weight=sample_weight)
        inputs = named_inputs(x)
        rows = count_rows(inputs)
        check_batch(inputs, list(inputs), y, rows, finite=True)
        check_generator(generator, y.device)
        s = torch.full((rows,), 0.5, device=y.device)
        if self.law == "bridge":
            s = draw_uniform((rows,), device=y.device, generator=generator)
        noisy = {name: self._noisy(value, s, generator) for name, value in inputs.items()}
        return self.clean_loss(rebuild_inputs(x, noisy), y, sample_weight=sample_weight)

    def extra_repr(self) -> str:
        """The settings."""
        sigma = f"{len(self.sigma.flatten())} values" if isinstance(self.sigma, Tensor) else self.sigma
        return f"sigma={sigma}, law={self.law!r}"

    def _noisy(self, value: Tensor, s: Tensor, generator: torch.Generator | None) -> Tensor:
        """A bridge from each row to itself at time ``s``, or with its spread left out."""
        std = noise_std(self.sigma, value, value, 1.0, generator)
        spread = torch.ones_like(s) if self.law == "gaussian" else None
        return marginal_rows(value, value, s, std=std, spread=spread, generator=generator)
