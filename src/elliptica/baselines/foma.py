"""FOMA: scale some singular directions of a batch of inputs and targets (Kaufman and Azencot, ICML 2024)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator, compute_dtype, draw_uniform
from elliptica.baselines._targets import check_real_targets
from elliptica.baselines.erm import ERM, Batch
from elliptica.baselines.mixup import draw_share
from elliptica.core.hidden import find_layer, replaced_output
from elliptica.core.inputs import call_model, named_inputs, rebuild_inputs
from elliptica.core.partners import target_distances
from elliptica.core.types import Inputs, LossFn

Directions = Literal["small", "large"]
Targets = Literal["scaled", "kept"]

_CPU = torch.device("cpu")


class FOMA(ERM):
    """FOMA, for regression: scale the small or the large singular values of the batch.

    Inputs and targets, side by side, are the rows of a matrix ``Z`` with singular values ``s``, the largest
    first. Those with a cumulative share ``(s_1 + ... + s_j) / (s_1 + ... + s_n)`` above ``rho`` (small
    directions), or below it (large ones), are multiplied by ``lambda`` from Beta(alpha, alpha). The new rows
    replace the batch. The directions are constants for the gradient: differentiating a singular value
    decomposition divides by differences of singular values, and is not finite for many batches.

    The method is made for batches of similar targets, see `neighbour_order`. Several layers are scaled one
    after another, each with its own ``lambda``, drawn in the order in which they run.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    With several processes each decomposes its own part of the batch, so the augmentation differs from that of
    a single process.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss on real targets, see `ERM`.
        rho: Share of the singular values from which directions are small, at least 0. The authors use 0.825
            to 0.975.
        alpha: Parameter of the Beta law; the authors use 0.3 to 1.4. At 0 nothing is scaled.
        scaled: ``"small"`` or ``"large"`` directions, see above.
        targets: ``"scaled"`` replaces the targets, too, as the method is described; ``"kept"`` trains on the
            original ones, as the authors' code does.
        layers: Names of layers whose output to scale; None is the input.

    Example:
        >>> x, y = torch.randn(100, 4), torch.randn(100, 1)
        >>> objective = FOMA(nn.Linear(4, 1), nn.MSELoss(), rho=0.9)
        >>> for rows in neighbour_order(y, 25).split(25):
        ...     objective(x[rows], y[rows]).backward()
    """

    settings: ClassVar[tuple[str, ...]] = ("rho", "alpha", "scaled", "targets", "layers")

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        rho: float,
        alpha: float = 1.0,
        scaled: Directions = "small",
        targets: Targets = "scaled",
        layers: Sequence[str | None] = (None,),
    ) -> None:
        super().__init__(model, loss_fn)
        checks.nonnegative("rho", rho)
        checks.nonnegative("alpha", alpha)
        checks.choice("scaled", scaled, get_args(Directions))
        checks.choice("targets", targets, get_args(Targets))
        if isinstance(layers, str) or not layers or len(set(layers)) < len(layers):
            raise ValueError(
                f"layers must name at least one layer, each only once, but got {layers!r}. Write e.g. "
                "layers=(None, '1'), where None is the input."
            )
        for name in layers:
            if name is not None:
                find_layer(model, name)
        self.rho = float(rho)
        self.alpha = float(alpha)
        self.scaled = scaled
        self.targets = targets
        self.layers = tuple(layers)
        self.mixes_inputs = None in self.layers

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the ordinary mean loss on the data themselves; class labels raise as in training."""
        _check_targets(y)
        return super().clean_loss(x, y, sample_weight=sample_weight)

    def _check(self, x: Inputs, y: Tensor, weight: Tensor | None, generator: torch.Generator | None) -> None:
        _check_targets(y)
        super()._check(x, y, weight, generator)

    def _training_loss(self, batch: Batch) -> Tensor:
        x, target = batch.x, batch.y

        def scale(values: list[Tensor]) -> list[Tensor]:
            nonlocal target
            share = draw_share(self.alpha, batch.generator)
            *values, y = _scale([*values, target], share, self.rho, self.scaled)
            target = y if self.targets == "scaled" else target
            return values

        def scaled_layer(hidden: Tensor) -> Tensor:
            checks.same_rows("the output of each layer of layers=", hidden, len(batch.y))
            return scale([hidden])[0]

        if None in self.layers:
            inputs = named_inputs(x)
            x = rebuild_inputs(x, dict(zip(inputs, scale(list(inputs.values())), strict=True)))
        with contextlib.ExitStack() as hooks:
            for name in self.layers:
                if name is not None:
                    hooks.enter_context(replaced_output(self.model, name, scaled_layer))
            output = call_model(self.model, x)
        return self._mean(self.loss(output, target), target, batch.weight, soft=True)


def foma_batch(
    x: Float[Tensor, " batch *feature"],
    y: Float[Tensor, " batch *target"],
    *,
    share: float,
    rho: float,
    scaled: Directions = "small",
) -> tuple[Float[Tensor, " batch *feature"], Float[Tensor, " batch *target"]]:
    """Multiply the small or large singular values of inputs and targets, side by side, by ``share``.

    Args:
        x: Inputs.
        y: Real targets.
        share: Factor, from 0 (the directions are removed) to 1 (nothing changes).
        rho: Share of the singular values from which directions are small, see `FOMA`.
        scaled: ``"small"`` or ``"large"`` directions.

    Example:
        >>> x, y = torch.tensor([[2.0], [0.0]]), torch.tensor([[0.0], [1.0]])  # singular values 2 and 1
        >>> [v.flatten().tolist() for v in foma_batch(x, y, share=0.5, rho=0.9)]
        [[2.0, 0.0], [0.0, 0.5]]
    """
    _check_targets(y)
    checks.floating("x", x)
    checks.batch("x", x)
    checks.same_rows("y", y, len(x))
    checks.finite("x", x)
    checks.finite("y", y)
    checks.nonnegative("share", share)
    checks.nonnegative("rho", rho)
    checks.choice("scaled", scaled, get_args(Directions))
    new_x, new_y = _scale([x, y], share, rho, scaled)
    return new_x, new_y


def _scale(parts: list[Tensor], share: float, rho: float, scaled: Directions) -> list[Tensor]:
    """Scale directions of ``parts`` side by side; gradients flow through the rows, not the directions."""
    if share == 1:
        return parts
    dtype = torch.promote_types(*(compute_dtype(p.dtype) for p in (parts[0], parts[-1])))
    with torch.autocast(parts[0].device.type, enabled=False):
        rows = torch.cat([part.reshape(len(part), -1).to(dtype) for part in parts], 1)
        with torch.no_grad():
            _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
            cumulative = values.cumsum(0) / values.sum().clamp_min(torch.finfo(dtype).tiny)
            leading = vectors[cumulative <= rho if scaled == "small" else cumulative < rho]
        lead, rest = (1.0, share) if scaled == "small" else (share, 1.0)
        moved = rest * rows + (lead - rest) * (rows @ leading.T) @ leading
    pieces = moved.split([part[0].numel() for part in parts], 1)
    return [piece.reshape(part.shape).to(part.dtype) for piece, part in zip(pieces, parts, strict=True)]


def neighbour_order(
    y: Float[Tensor, " n *target"],
    batch_size: int,
    *,
    sampled: bool = False,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " n"]:
    """Order the rows of an epoch so that each batch has similar targets: ``order.split(batch_size)``.

    A batch is a random row among those not used yet, followed by those of them whose targets are nearest.
    With ``sampled=True`` they are drawn, with probability proportional to the inverse of the distance. The
    last batches collect the remaining rows, which are less similar.

    Args:
        y: Real targets of the training rows.
        batch_size: Rows of a batch.
        sampled: Draw neighbours instead of taking the nearest.
        generator: Source of randomness. None means torch's default generator.

    Example:
        >>> y = torch.tensor([[0.0], [9.0], [0.1], [9.1]])
        >>> sorted(sorted(rows.tolist()) for rows in neighbour_order(y, 2).split(2))
        [[0, 2], [1, 3]]
    """
    _check_targets(y)
    checks.batch("y", y)
    checks.finite("y", y)
    checks.count("batch_size", batch_size)
    check_generator(generator, y.device)
    left = torch.arange(len(y), device=y.device)
    order = []
    while len(left):
        u = draw_uniform((1,), device=_CPU, generator=generator).item()
        anchor = min(int(u * len(left)), len(left) - 1)
        key = target_distances(y[left[anchor]][None], y[left])[0]
        if sampled:  # the smallest of exponential times with rates 1 / distance: draws without replacement
            times = -torch.log1p(-draw_uniform((len(left),), device=y.device, generator=generator))
            key = key * times.to(key.dtype)
        key[anchor] = -1
        by_key = key.argsort(stable=True)
        order.append(left[by_key[:batch_size]])
        left = left[by_key[batch_size:].sort().values]
    return torch.cat(order)


def _check_targets(y: object) -> None:
    check_real_targets(y, "FOMA takes inputs and targets for one matrix")
