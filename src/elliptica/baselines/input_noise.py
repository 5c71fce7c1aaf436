"""Noisy inputs: a bridge without mixing (Bishop, Neural Computation 1995)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import draw_uniform
from elliptica.baselines.erm import ERM, Batch
from elliptica.core.bridge import marginal_rows
from elliptica.core.inputs import named_inputs, rebuild_inputs
from elliptica.core.noise import Green, PairLaw, noise_std
from elliptica.core.partners import sample_partners
from elliptica.core.types import LossFn

NoiseLaw = Literal["gaussian", "bridge"]


class InputNoise(ERM):
    """The ordinary loss at ``x + sigma * z`` with standard normal ``z``; labels do not change.

    ``law="bridge"`` scales the noise of each sample by ``sqrt(s (1 - s))`` with ``s`` uniform on [0, 1]:
    the noise of a Brownian bridge from the sample to itself, at a random time. Its variance is
    ``sigma**2 / 6`` on average. Compare with it to see what the mixing of a bridge adds to its noise.
    ``sigma="green"`` takes the variance of the bridge from each sample to a partner (`elliptica.Green`), and
    leaves out the way there: elliptic training's noise on samples that stay where they are. Pass partners as
    ``end``, or they are drawn from the batch by inverse distance.
    Draws, in this order: the partners of ``sigma="green"``, the times of ``law="bridge"``, the noise of each
    input, after its variance where that is random.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        sigma: Standard deviation in units of the inputs: a number, or a tensor with one value per feature.
            Zero is plain training. Or ``"green"``, `elliptica.Green` or `elliptica.Screened`, see above.
        law: ``"gaussian"`` or ``"bridge"``, see above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> objective = InputNoise(nn.Linear(4, 3), nn.CrossEntropyLoss(), sigma=0.1)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    sigma: float | Tensor | PairLaw

    settings = ("sigma", "law")
    mixes_inputs = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        sigma: float | Tensor | PairLaw | Literal["green"],
        law: NoiseLaw = "gaussian",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.choice("law", law, get_args(NoiseLaw))
        if isinstance(sigma, PairLaw):
            self.sigma = sigma
        elif isinstance(sigma, str) and sigma == "green":
            self.sigma = Green()
        else:
            checks.nonnegative("sigma", sigma)
            if isinstance(sigma, Tensor):
                self.register_buffer("sigma", sigma.detach().clone(), persistent=False)
            else:
                self.sigma = float(sigma)
        self.law = law

    def _training_loss(self, batch: Batch) -> Tensor:
        y, generator = batch.y, batch.generator
        inputs = named_inputs(batch.x)
        partners = self._partners(inputs, batch)
        s = torch.full((len(y),), 0.5, device=y.device)
        if self.law == "bridge":
            s = draw_uniform((len(y),), device=y.device, generator=generator)
        noisy = {name: self._noisy(v, partners[name], s, generator) for name, v in inputs.items()}
        return self._mean(*self._losses_at(rebuild_inputs(batch.x, noisy), y), batch.weight)

    def _partners(self, inputs: dict[Hashable, Tensor], batch: Batch) -> dict[Hashable, Tensor]:
        """Return the far ends that decide the variance; the samples themselves if it does not matter."""
        if not isinstance(self.sigma, PairLaw):
            return inputs
        if batch.end is not None:
            return named_inputs(batch.end[0])
        (rows,) = {len(value) for value in inputs.values()}
        joint = torch.cat([value.reshape(rows, -1) for value in inputs.values()], dim=1)
        j = sample_partners(joint, pairing="inverse_distance", generator=batch.generator)[:, 0]
        return {name: value[j] for name, value in inputs.items()}

    def _noisy(self, value: Tensor, partner: Tensor, s: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw a bridge from each row to itself at time ``s``; for ``"gaussian"`` without its spread."""
        std = noise_std(self.sigma, value, partner, 1.0, generator)
        spread = torch.ones_like(s) if self.law == "gaussian" else None
        return marginal_rows(value, value, s, std=std, spread=spread, generator=generator)
