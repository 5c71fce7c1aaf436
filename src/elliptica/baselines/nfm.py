"""Noisy feature mixup: manifold mixup with noise at the mixed points (Lim et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_gamma, draw_normal, draw_uniform
from elliptica.baselines.manifold_mixup import ManifoldMixup
from elliptica.baselines.mixup import mix
from elliptica.baselines.names import named
from elliptica.core.types import LossFn

Levels = Literal["random", "fixed"]

_CPU = torch.device("cpu")


@named("nfm")
class NFM(ManifoldMixup):
    """Noisy feature mixup: manifold mixup, whose points ``h`` become ``(1 + b v) * h + a z``.

    Every entry has its own standard normal ``z``, and its own ``v`` uniform on [-1, 1]. The levels are
    ``a = additive * B`` and ``b = multiplicative * C`` with ``B`` and ``C`` from Beta(2, 5), whose mean is
    2/7, drawn for each batch, as in the authors' code. ``levels="fixed"`` sets both to 1, as in the
    paper's formulas. Targets get no noise. Without noise it is `ManifoldMixup`, with the same draws.

    Draws, in this order: those of `ManifoldMixup`; additive level and noise; multiplicative level and noise
    (of each input, if there are several). Noise of level 0 is not drawn.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        layers: Names of layers to choose from for each batch; None is the input. See `ManifoldMixup`.
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 1. At 0 there is only noise.
        additive: Level of the additive noise, in units of the layer's output; the authors use 0.4.
        multiplicative: Level of the multiplicative noise; the authors use 0.2.
        levels: ``"random"`` or ``"fixed"``, see above.
        num_classes: Number of classes of integer labels; None infers it from the model's output.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> objective = NFM(model, nn.CrossEntropyLoss(), layers=(None, "1"))
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    settings = ("alpha", "layers", "additive", "multiplicative", "levels")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        layers: Sequence[str | None],
        alpha: float = 1.0,
        additive: float = 0.4,
        multiplicative: float = 0.2,
        levels: Levels = "random",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, layers=layers, alpha=alpha, num_classes=num_classes)
        checks.nonnegative("additive", additive)
        checks.nonnegative("multiplicative", multiplicative)
        checks.choice("levels", levels, get_args(Levels))
        self.additive = float(additive)
        self.multiplicative = float(multiplicative)
        self.levels = levels

    def _points(self, near: Tensor, far: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
        """Return the mixed points with both noises; noise of level 0 is not drawn."""
        mixed = mix(near, far, share)
        dtype, device = compute_dtype(mixed.dtype), mixed.device
        noisy = mixed.to(dtype)
        noise: Tensor | None = None
        if self.additive > 0:
            level = self.additive * self._draw_level(generator)
            noise = level * draw_normal(mixed.shape, dtype=dtype, device=device, generator=generator)
        if self.multiplicative > 0:
            level = self.multiplicative * self._draw_level(generator)
            u = draw_uniform(mixed.shape, device=device, generator=generator).to(dtype)
            noisy = (1 + level * (2 * u - 1)) * noisy
        return (noisy if noise is None else noisy + noise).to(mixed.dtype)

    def _draw_level(self, generator: torch.Generator | None) -> float:
        """Draw from Beta(2, 5), from two gamma variables; for fixed levels return 1 without a draw."""
        if self.levels == "fixed":
            return 1.0
        first, second = (draw_gamma(k, 1, device=_CPU, generator=generator).item() for k in (2.0, 5.0))
        return first / (first + second)
