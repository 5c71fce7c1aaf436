"""mixup: train on straight lines between random pairs of a batch (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator, draw_gamma, draw_permutation, draw_uniform
from elliptica.baselines.erm import ERM, Batch
from elliptica.baselines.names import named
from elliptica.core.hidden import find_layer, replaced_output
from elliptica.core.inputs import call_model, count_rows, named_inputs, rebuild_inputs
from elliptica.core.partners import Ends, ends_given
from elliptica.core.types import Inputs, LossFn

_CPU = torch.device("cpu")


@named("mixup")
class Mixup(ERM):
    """mixup: the loss at a random point between each sample and another one of the batch.

    At ``share * x + (1 - share) * x_partner`` the loss is the mean for both labels:
    ``share * loss(y) + (1 - share) * loss(y_partner)``, with one share per batch from Beta(alpha, alpha)
    and partners from a random permutation of the batch, as in the authors' code. For cross-entropy that is
    the loss of the mixed label; for the squared error it has the gradient of the loss of the mixed target.
    Draws, in this order: two gamma variables, the partners.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss, see `ERM`.
        alpha: Parameter of the Beta law. 1 makes shares uniform, small values hardly mix, and 0 does not mix.
        num_classes: Number of classes of integer labels; None infers it from the model's output.
        at: Name of a layer in whose output to mix, instead of in the inputs (manifold mixup). Inputs of
            the model must enter below that layer.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> objective = Mixup(model, nn.CrossEntropyLoss(), alpha=0.2)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> objective(x, y).backward()
    """

    settings: ClassVar[tuple[str, ...]] = ("alpha", "at")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        at: str | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.nonnegative("alpha", alpha)
        if at is not None:
            find_layer(model, at)
        self.alpha = float(alpha)
        self.at = at
        self.mixes_inputs = at is None

    def _training_loss(self, batch: Batch) -> Tensor:
        generator = batch.generator
        share = draw_share(self.alpha, generator)
        if batch.end is None:
            ends = Ends(1, self._partners(batch.y, generator))
        else:
            ends = ends_given(batch.end, named_inputs(batch.x), batch.y, 1, lambda labels: labels, 0)
            if ends.weight is not None and batch.weight is None:
                raise ValueError("end has sample weights, but the batch has none. Pass sample_weight= too.")
        output = self._output(batch.x, ends, share, generator)
        near, far = (self._encode(labels, output) for labels in ends.of(batch.y, ends.y))
        weights = None if batch.weight is None else ends.of(batch.weight, ends.weight)
        return self._average(output, near, far, share, weights)

    def _partners(self, y: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw the row of the batch that each row is mixed with."""
        return draw_permutation(len(y), device=y.device, generator=generator)

    def _average(
        self, output: Any, near: Tensor, far: Tensor, share: float, weights: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Average over the batch; between two samples the weight changes linearly."""
        losses = self._losses(output, near, far, share)
        weight = None if weights is None else mix(*weights, share)
        return self._mean(losses, mix(near, far, share), weight)

    def _points(self, near: Tensor, far: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
        """Return the points at which the model, or the layers above, are evaluated."""
        return mix(near, far, share)

    def _losses(self, output: Any, near: Tensor, far: Tensor, share: float) -> Tensor:
        """Return the mixed losses of both targets at the mixed points."""
        return mix(self.loss(output, near), self.loss(output, far), share)

    def _output(self, x: Inputs, ends: Ends, share: float, generator: torch.Generator | None) -> Any:
        """Return the model's output at the mixed points."""
        pairs = {name: ends.of_input(name, value) for name, value in named_inputs(x).items()}
        if self.at is None:
            mixed = {name: self._points(*pair, share, generator) for name, pair in pairs.items()}
            return call_model(self.model, rebuild_inputs(x, mixed))
        if ends.index is None:  # partners from elsewhere go through the lower layers, too
            x = rebuild_inputs(x, {name: torch.cat(pair) for name, pair in pairs.items()})
        rows = count_rows(named_inputs(x))

        def mixed_layer(hidden: Tensor) -> Tensor:
            checks.same_rows(f"the output of the layer at={self.at!r}", hidden, rows)
            near, far = hidden.chunk(2) if ends.index is None else (hidden, hidden[ends.index])
            return self._points(near, far, share, generator)

        with replaced_output(self.model, self.at, mixed_layer):
            return call_model(self.model, x)


def mixup_batch(
    x: Float[Tensor, " batch *feature"],
    y: Float[Tensor, "batch classes"],
    *,
    alpha: float = 1.0,
    share: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, " batch *feature"], Float[Tensor, "batch classes"]]:
    """Mix each row with a random other one, at the same share for the whole batch (mixup).

    Rows become ``share * row + (1 - share) * partner``, inputs and targets alike, with the share
    (mixup's lambda) from Beta(alpha, alpha) and partners from a random permutation of the batch. Every row is
    a partner once, so the batch mean does not change. Draws, in this order: two gamma variables, the
    permutation.

    Args:
        x: Inputs.
        y: One-hot or soft labels.
        alpha: Above zero. 1 makes shares uniform, small values hardly mix.
        share: The share itself, from 0 (partners) to 1 (rows unchanged), instead of a draw.
        generator: Source of randomness. None means torch's default generator.

    Returns:
        New inputs and targets.

    Example:
        >>> x, y = torch.randn(4, 2), torch.eye(2)[[0, 1, 1, 0]]
        >>> mixed_x, mixed_y = mixup_batch(x, y)
        >>> torch.allclose(mixed_y.mean(0), y.mean(0))
        True
    """
    checks.batch("x", x)
    checks.same_rows("y", y, len(x))
    checks.positive("alpha", alpha)
    check_generator(generator, x.device)
    if share is not None:
        checks.number("share", share)
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, but got {share}. Use share=None to draw it.")
    share = draw_share(alpha, generator) if share is None else share
    partners = draw_permutation(len(x), device=x.device, generator=generator)
    return mix(x, x[partners], share), mix(y, y[partners], share)


def draw_share(alpha: float, generator: torch.Generator | None) -> float:
    """Draw a share from Beta(alpha, alpha), from two gamma variables; for alpha 0 return 1 without a draw."""
    if alpha == 0:
        return 1.0
    first, second = draw_gamma(alpha, 2, device=_CPU, generator=generator).tolist()
    if first == second:  # both underflow for small alpha, where the law is a coin flip
        return float(draw_uniform((1,), device=_CPU, generator=generator) < 0.5)
    return first / (first + second)


def mix(near: Tensor, far: Tensor, share: float) -> Tensor:
    """Interpolate between ``near`` (share 1) and ``far`` (share 0)."""
    return share * near + (1 - share) * far
