"""Mixup and its relatives: train at points between the samples of a batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_gamma, draw_normal, draw_permutation, draw_uniform
from elliptica.baselines.erm import ERM, Batch, between, check_classes
from elliptica.core.inputs import Inputs, LossFn, call_model, check_weight, named_inputs, rebuild_inputs
from elliptica.core.layers import replaced_output

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pairs:
    """Both ends of each line."""

    x: dict[Hashable, tuple[Tensor, Tensor]]
    y: tuple[Tensor, Tensor]
    weight: tuple[Tensor, Tensor] | None
    index: Tensor | None  # rows of the batch that are the far ends; None if they come from elsewhere


def pair_rows(batch: Batch, index: Tensor) -> Pairs:
    """Pair each row of a batch with its row ``index``."""
    weight = batch.weight
    return Pairs(
        {name: (value, value[index]) for name, value in named_inputs(batch.x).items()},
        (batch.y, batch.y[index]),
        None if weight is None else (weight, weight[index]),
        index,
    )


def pair_with_end(batch: Batch) -> Pairs:
    """Pair each row of a batch with the far end that the caller passed for it."""
    assert batch.end is not None
    far_x, far_y, *far_weight = batch.end
    inputs, far_inputs = named_inputs(batch.x), named_inputs(far_x)
    x = {name: (value, far_inputs[name]) for name, value in inputs.items()}
    for name, (near, far) in {**x, "y": (batch.y, far_y)}.items():
        if near.shape != far.shape or not bool(far.isfinite().all()):
            raise ValueError(f"end must be finite and have the shapes of x and y; {name!r} has not.")
    weight = None if batch.weight is None else (batch.weight, batch.weight)
    if far_weight:
        if batch.weight is None:
            raise ValueError("end has sample weights, but the batch has none. Pass sample_weight= too.")
        check_weight(far_weight[0], len(far_y))
        weight = (batch.weight, far_weight[0])
    return Pairs(x, (batch.y, far_y), weight, None)


class Mixup(ERM):
    """Train at a random point between each sample and another one of the batch (Zhang et al., ICLR 2018).

    At ``share * x + (1 - share) * x_partner`` the loss is the mean for both labels:
    ``share * loss(y) + (1 - share) * loss(y_partner)``, with one share per batch from Beta(alpha, alpha)
    and partners from a random permutation of the batch, as in the authors' code. For cross-entropy that is
    the loss of the mixed label; for the squared error it has the gradient of the loss of the mixed target.
    Draws, in this order: two gamma variables, the partners.

    Args:
        alpha: Parameter of the Beta law. 1 makes shares uniform, small values hardly mix, and 0 does not mix.
        at: Name of a layer in whose output to mix, instead of in the inputs (manifold mixup). Inputs of
            the model must enter below that layer.
    """

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
        self.alpha = between("alpha", alpha)
        self.at = at
        self.mixes_inputs = at is None

    def _training_loss(self, batch: Batch) -> Tensor:
        share, pairs = self._draw(batch)
        output = self._output(batch.x, pairs, share, batch.generator)
        return self._average(output, pairs, share)

    def _draw(self, batch: Batch) -> tuple[float, Pairs]:
        """Draw the share, then the partners unless they are given."""
        share = draw_share(self.alpha, batch.generator)
        if batch.end is not None:
            return share, pair_with_end(batch)
        return share, pair_rows(batch, self._partners(batch.y, batch.generator))

    def _partners(self, y: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw the row of the batch that each row is mixed with."""
        return draw_permutation(len(y), device=y.device, generator=generator)

    def _average(self, output: Any, pairs: Pairs, share: float) -> Tensor:
        """Average over the batch; between two samples the weight changes linearly."""
        near, far = (self._encode(labels, output) for labels in pairs.y)
        losses = self._losses(output, near, far, share)
        weight = None if pairs.weight is None else mix(*pairs.weight, share)
        return self._mean(losses, mix(near, far, share), weight)

    def _points(self, near: Tensor, far: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
        """Return the points at which the model, or the layers above, are evaluated."""
        return mix(near, far, share)

    def _losses(self, output: Any, near: Tensor, far: Tensor, share: float) -> Tensor:
        """Return the mixed losses of both targets at the mixed points."""
        return mix(self.loss(output, near), self.loss(output, far), share)

    def _output(self, x: Inputs, pairs: Pairs, share: float, generator: torch.Generator | None) -> Any:
        """Return the model's output at the mixed points."""
        if self.at is None:
            mixed = {name: self._points(*pair, share, generator) for name, pair in pairs.x.items()}
            return call_model(self.model, rebuild_inputs(x, mixed))
        rows = len(pairs.y[0])
        if pairs.index is None:  # partners from elsewhere go through the lower layers, too
            x = rebuild_inputs(x, {name: torch.cat(pair) for name, pair in pairs.x.items()})
            rows *= 2

        def mixed_layer(hidden: Tensor) -> Tensor:
            checks.same_rows(f"The output of the layer at={self.at!r}", hidden, rows)
            near, far = hidden.chunk(2) if pairs.index is None else (hidden, hidden[pairs.index])
            return self._points(near, far, share, generator)

        with replaced_output(self.model, self.at, mixed_layer):
            return call_model(self.model, x)


class ManifoldMixup(Mixup):
    """Mix in one of several layers, chosen at random for each batch (Verma et al., ICML 2019).

    All layers are equally likely. With a single layer it is ``Mixup(at=...)``, with the inputs only `Mixup`,
    with the same draws. Draws, in this order: the layer (if there are several), then those of `Mixup`.
    ``objective.at`` is the layer of the latest batch.

    Args:
        layers: Names of layers in whose output to mix; None is the input. The authors choose among the input
            and the first two residual blocks: ``(None, "layer1", "layer2")`` in the usual names. Inputs of
            the model must enter below these layers, and each must run once in a forward pass.
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 2. At 0 nothing is mixed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        layers: Sequence[str | None],
        alpha: float = 2.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        self.layers = tuple(layers)
        self.mixes_inputs = None in self.layers

    def _training_loss(self, batch: Batch) -> Tensor:
        self.at = self._draw_layer(batch.generator)
        return super()._training_loss(batch)

    def _draw_layer(self, generator: torch.Generator | None) -> str | None:
        if len(self.layers) == 1:
            return self.layers[0]
        u = draw_uniform((1,), device=_CPU, generator=generator).item()
        return self.layers[min(int(u * len(self.layers)), len(self.layers) - 1)]


class NFM(ManifoldMixup):
    """Add noise to the points of manifold mixup: ``(1 + b v) * h + a z`` (Lim et al., ICLR 2022).

    Every entry has its own standard normal ``z``, and its own ``v`` uniform on [-1, 1]. The levels are
    ``a = additive * B`` and ``b = multiplicative * C`` with ``B`` and ``C`` from Beta(2, 5), whose mean is
    2/7, drawn for each batch, as in the authors' code. Targets get no noise. Without noise it is
    `ManifoldMixup`, with the same draws.

    Draws, in this order: those of `ManifoldMixup`; additive level and noise; multiplicative level and noise
    (of each input, if there are several). Noise of level 0 is not drawn.

    Args:
        layers: Names of layers to choose from for each batch; None is the input. See `ManifoldMixup`.
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 1. At 0 there is only noise.
        additive: Level of the additive noise, in units of the layer's output; the authors use 0.4.
        multiplicative: Level of the multiplicative noise; the authors use 0.2.
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
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, layers=layers, alpha=alpha, num_classes=num_classes)
        self.additive = between("additive", additive)
        self.multiplicative = between("multiplicative", multiplicative)

    def _points(self, near: Tensor, far: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
        """Return the mixed points with both noises."""
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
        """Draw from Beta(2, 5), from two gamma variables."""
        first, second = (draw_gamma(k, 1, device=_CPU, generator=generator).item() for k in (2.0, 5.0))
        return first / (first + second)


class RegMixup(Mixup):
    """Add ``weight`` times the loss of mixup to the ordinary loss (Pinto et al., NeurIPS 2022).

    Clean and mixed rows go through the model together, as in the authors' code. That is twice the rows of
    ordinary training, and batch norm takes one set of statistics from both. This is the sum of the paper; the
    authors' code averages over all rows, which at weight 1 is half of it.

    Args:
        alpha: Parameter of mixup's Beta(alpha, alpha); large, so that mixed rows are about halfway. The
            authors use 20 for CIFAR-10 and 10 for CIFAR-100.
        weight: Weight of the mixup term; the authors use 1. At 0 it is plain training (but batch norm sees
            the mixed rows, too).
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 20.0,
        weight: float = 1.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        self.weight = between("weight", weight)

    def _training_loss(self, batch: Batch) -> Tensor:
        share, pairs = self._draw(batch)
        both = {name: torch.cat([pair[0], mix(*pair, share)]) for name, pair in pairs.x.items()}
        output: Tensor = call_model(self.model, rebuild_inputs(batch.x, both))
        checks.same_rows("The output of the model", output, 2 * len(batch.y))
        clean, mixed = output.chunk(2)
        target = self._encode(batch.y, clean)
        plain = self._mean(self.loss(clean, target), target, batch.weight)
        return plain + self.weight * self._average(mixed, pairs, share)


class MixupE(Mixup):
    """Add to mixup's loss a first-order term that it lacks, for classification (Zou et al., UAI 2023).

    With the logits ``f`` and probabilities ``p`` of the *unmixed* batch and ``s = f . (onehot - p)``, let
    ``L = L_mixup - eta * alpha / (2 alpha + 1) * mean(s_i)``, where samples with ``s_i >= threshold`` count
    as zero. The result is ``L`` times the number ``|L_mixup| / |L|``: its value is that of mixup (while
    ``L`` is positive), its gradient is parallel to that of ``L``. This is the version of the authors'
    published command (version 3 of four in their code).

    It needs a second, clean forward pass, in which batch norm records statistics a second time.

    Args:
        alpha: Parameter of mixup's Beta(alpha, alpha); the authors use 2.
        eta: Strength of the term; the authors use 0.001. At 0 it is mixup, without the second pass.
        threshold: Samples above it are skipped; the authors use 1.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        alpha: float = 2.0,
        eta: float = 0.001,
        threshold: float = 1.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, num_classes=num_classes)
        self.eta = between("eta", eta)
        self.threshold = between("threshold", min(threshold, 1e30), -1e30)  # a NaN would skip all samples

    def _training_loss(self, batch: Batch) -> Tensor:
        mixed = super()._training_loss(batch)
        if self.eta == 0:
            return mixed
        terms = self._alignments(batch.x, batch.y)
        terms = -terms * (terms.detach() < self.threshold)
        if batch.weight is not None:
            terms = terms * batch.weight
        share = self.alpha / (2 * self.alpha + 1)  # one minus the mean of Beta(alpha + 1, alpha)
        total = mixed + self.eta * share * terms.mean()
        # restore the size of mixup's loss: only the direction of the gradient is to change
        size = total.detach().abs().clamp_min(torch.finfo(total.dtype).tiny)
        return total * (mixed.detach().abs() / size)

    def _alignments(self, x: Inputs, y: Tensor) -> Tensor:
        """Return each sample's ``f . (onehot - p)``; both factors have gradients."""
        check_classes(y)
        output: Tensor = call_model(self.model, x)
        target = self._encode(y, output)
        if output.ndim != 2 or output.shape[1] == 1 or target.shape != output.shape:
            raise ValueError(
                f"MixupE needs logits (batch, classes), but the output is {tuple(output.shape)}."
            )
        logits = output.to(compute_dtype(output.dtype))
        return (logits * (target.to(logits.dtype) - logits.softmax(1))).sum(1)


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
