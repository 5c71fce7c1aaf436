"""Noisy feature mixup: manifold mixup with noise at the mixed points (Lim et al., ICLR 2022)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from elliptica import _checks
from elliptica._ends import End, Ends
from elliptica._inputs import call_model, named_inputs, rebuild_inputs
from elliptica._random import compute_dtype, draw_gamma, draw_normal, draw_uniform
from elliptica.baselines.manifold_mixup import ManifoldMixup
from elliptica.baselines.mixup import mix
from elliptica.hidden import find_layer, replaced_output
from elliptica.types import Inputs, LossFn

Levels = Literal["random", "fixed"]

_CPU = torch.device("cpu")


class NFM(ManifoldMixup):
    """Noisy feature mixup: manifold mixup, whose points ``h`` become ``(1 + b v) * h + a z``.

    Every entry has a ``z`` of its own, standard normal, and a ``v`` uniform on [-1, 1]. The levels are
    ``a = additive * B`` and ``b = multiplicative * C`` with ``B`` and ``C`` from Beta(2, 5), whose mean is
    2/7, drawn anew for each batch, as in the authors' code. ``levels="fixed"`` sets both to 1, as the
    paper's formulas read. Targets get no noise. Without noise it is `ManifoldMixup`, with the same draws.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        layers: Names of layers to choose from for each batch; None is the input. See `ManifoldMixup`.
        alpha: Of mixup's Beta(alpha, alpha); the authors use 1. At 0 nothing is mixed, and the noise stays.
        additive: Level of the additive noise, in units of the layer's output; the authors use 0.4.
        multiplicative: Level of the multiplicative noise; the authors use 0.2.
        levels: ``"random"`` or ``"fixed"``, see above.
        num_classes: Number of classes of integer labels; None reads it off the model's output.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> objective = NFM(model, nn.CrossEntropyLoss(), layers=(None, "1"))
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

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
        _checks.nonnegative("additive", additive)
        _checks.nonnegative("multiplicative", multiplicative)
        _checks.choice("levels", levels, get_args(Levels))
        self.additive = float(additive)
        self.multiplicative = float(multiplicative)
        self.levels = levels
        self._generator: torch.Generator | None = None  # during a call only

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        end: End | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Loss of a batch, a scalar; arguments as of `Mixup`.

        Draws, in this order: those of `ManifoldMixup`; additive level and noise; multiplicative level and
        noise (of each input, if there are several). What has level 0 is not drawn.
        """
        self._generator = generator
        try:
            return super().forward(x, y, sample_weight=sample_weight, end=end, generator=generator)
        finally:
            self._generator = None

    def extra_repr(self) -> str:
        """The settings."""
        noise = f"additive={self.additive}, multiplicative={self.multiplicative}, levels={self.levels!r}"
        return f"{super().extra_repr()}, {noise}"

    def _output(self, x: Inputs, ends: Ends, share: float) -> Any:
        at = self.at
        if at is None:
            pairs = {name: ends.of_input(name, value) for name, value in named_inputs(x).items()}
            noisy = {name: self._noisy(mix(near, far, share)) for name, (near, far) in pairs.items()}
            return call_model(self.model, rebuild_inputs(x, noisy))
        with contextlib.ExitStack() as stack:

            def before_layer(*_: object) -> None:
                # hooks run in the order in which they came: this one after mixup's, which is there by now
                stack.enter_context(replaced_output(self.model, at, self._noisy))

            stack.enter_context(find_layer(self.model, at).register_forward_pre_hook(before_layer))
            return super()._output(x, ends, share)

    def _noisy(self, mixed: Tensor) -> Tensor:
        """The mixed points with both noises."""
        dtype, device, generator = compute_dtype(mixed.dtype), mixed.device, self._generator
        noisy = mixed.to(dtype)
        noise: Tensor | None = None
        if self.additive > 0:
            level = self.additive * self._draw_level()
            noise = level * draw_normal(mixed.shape, dtype=dtype, device=device, generator=generator)
        if self.multiplicative > 0:
            level = self.multiplicative * self._draw_level()
            u = draw_uniform(mixed.shape, device=device, generator=generator).to(dtype)
            noisy = (1 + level * (2 * u - 1)) * noisy
        return (noisy if noise is None else noisy + noise).to(mixed.dtype)

    def _draw_level(self) -> float:
        """A draw from Beta(2, 5), as two gamma variables; 1, without a draw, for fixed levels."""
        if self.levels == "fixed":
            return 1.0
        first, second = (draw_gamma(k, 1, device=_CPU, generator=self._generator).item() for k in (2.0, 5.0))
        return first / (first + second)
