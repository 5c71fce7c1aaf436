"""The training objective of the paper (Algorithm 1), as a module and as a function."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.core.bridge import Batch, Bridges, FarEnd, Paths, Quadrature, Sampling
from elliptica.core.inputs import (
    Inputs,
    LossFn,
    call_model,
    check_batch,
    copy_inputs,
    named_inputs,
    warn_user,
)
from elliptica.core.layers import Split, run_uncompiled, untracked_statistics
from elliptica.core.losses import GatherRanks, PerSampleLoss, evaluate, integrate, weighted_mean
from elliptica.core.noise import Sigma
from elliptica.core.partners import Pairing
from elliptica.core.targets import SimplexMap, Targets, TargetSpace, infer_target_space
from elliptica.core.weighting import Weighting, make_weighting

# usual range of sigma over the inputs' deviation: below it bridges are straight lines, above it noise
_USUAL_NOISE = (0.002, 2.0)


class Elliptic(nn.Module):
    """Elliptic loss regularisation: train on Brownian bridges between the data (paper: Algorithm 1).

    A drop-in objective: replace ``loss = criterion(model(x), y)`` by ``loss = objective(x, y)``. The loss is
    the mean over random points on Brownian bridges between pairs of data points, with targets that change
    from one end to the other. Whether it helps depends on the data: see docs/reproduction.md, and for real
    targets look at `elliptica.chord_ratio` first.

    In ``eval()`` mode it returns the ordinary loss. The module owns the model, so wrap the objective and not
    the model: ``DistributedDataParallel(objective)``, ``torch.compile(objective)``. Save ``objective.model``.
    Set ``objective.strength`` to scale the noise during training, or to None for ordinary training.

    Begin with three settings: ``num_classes`` for labels, ``sigma``, and ``sigma_y`` for real targets.

    Args:
        model: Any network. It is called on rows of bridge points.
        loss_fn: Your ordinary loss. Its ``reduction``, if it has one, is switched off in a copy. Any other
            callable must return one value per sample.
        num_classes: Number of classes. Required for integer labels.
        sigma: Diffusion coefficient (sigma_b) in units of the inputs: a number; a tensor with one value per
            feature, such as ``auto_sigma(x_train)``; `Covariance`; ``"green"``, the law that the PDE
            prescribes (`Green`); or your own law. Zero: straight lines.
        sigma_y: The same for the targets, in their units. None means ``sigma`` for real targets if ``sigma``
            is a number, and zero otherwise. Classes then change linearly along a bridge: noise on them (the
            paper's choice, see `paper`) acts as label smoothing and costs calibration.
        sampling: ``"marginal"`` draws one point per bridge, at a random one of the ``n_times`` times. This is
            an unbiased estimate of the paper's objective and evaluates as many rows as the batch has.
            ``"path"`` evaluates all ``n_times`` points of each bridge, as in the paper.
        n_times: Times on a bridge, both ends included (the paper's n_t). Fewer times mean more weight on the
            data themselves; 2 is ordinary training.
        n_bridges: Bridges per data point (n_b), each to its own partner.
        pairing: Where bridges end (section 5.1): ``"permutation"``, ``"inverse_distance"``, ``"nearest"``, or
            an object such as ``InverseDistance(power=2)``, ``LabelKernel(bandwidth=1.75)``,
            ``Permutation(among="same_class")``, or your own, see `elliptica.core.partners`.
        weighting: Importance weighting (Eq. (4), appendix C): None, ``"gradient_softmax"``,
            ``"gradient_norm"``, ``"multiplicative"``, ``"girsanov"``, an object such as
            ``GradientSoftmax(xi=0.5)``, or your own, see `elliptica.core.weighting`.
        quadrature: Rule for the integral over time: the ``"mean"`` of all ``n_times`` points, or the
            ``"left"`` sum (Euler). Marginal points are drawn with the same weights. ``"uniform"`` (marginal
            points only) draws any time: the integral itself, in which the data have no weight.
        end_time: Largest relative time of the points; bridges end at 1. The paper's "time range [0, 0.01]"
            may mean this, or the short bridges of ``Elliptic.paper(..., horizon=0.01)``.
        target_space: ``"simplex"`` (classes), ``"unit"`` (multilabel, each in [0, 1]) or ``"real"``. None
            infers it from the loss, if it is one of torch's.
        simplex: How to map noisy class probabilities back to the simplex, see `project_to_simplex`.
        bridged: Names (or positions) of the inputs to bridge if the model takes several. The others are taken
            from the nearer end.
        at: Name of a layer. Bridges are drawn in its output instead of in the inputs, e.g. in the embedding
            of text.
        bn: Where batch norm takes its running statistics from: all path points (``"paths"``, the paper's
            joint pass), or an extra pass over the clean batch (``"clean"``).
        validate: Check every batch for NaN and for labels out of range (one synchronisation per call on an
            accelerator).

    Example:
        >>> model = nn.Linear(4, 3)
        >>> objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> loss = objective(x, y)                       # was: criterion(model(x), y)
        >>> loss.backward()
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        num_classes: int | None = None,
        sigma: Sigma = 0.05,
        sigma_y: Sigma | None = None,
        sampling: Sampling = "marginal",
        n_times: int = 5,
        n_bridges: int = 1,
        pairing: str | Pairing = "permutation",
        weighting: str | Weighting | None = None,
        quadrature: Quadrature = "mean",
        end_time: float = 1.0,
        target_space: TargetSpace | None = None,
        simplex: SimplexMap = "abs",
        bridged: Sequence[Hashable] | None = None,
        at: str | None = None,
        bn: Literal["paths", "clean"] = "paths",
        validate: bool = True,
    ) -> None:
        super().__init__()
        checks.choice("bn", bn, ("paths", "clean"))
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        num_classes = self.loss.num_classes() if num_classes is None else num_classes
        self.weighting = make_weighting(weighting)
        space = target_space or infer_target_space(loss_fn, num_classes=num_classes)
        self.bridges = Bridges(
            Targets(space, num_classes, simplex, validate),
            sigma,
            sigma_y,
            sampling,
            n_times,
            n_bridges,
            pairing,
            quadrature,
            end_time,
            bridged,
            same_partner=self.weighting is not None and self.weighting.within_pairs,
        )
        if self.weighting is not None:
            self._check_weighting(self.weighting)
        self.split = None if at is None else Split(model, at)
        self.bn = bn
        #: Factor on the noise; None switches bridges off
        self.strength: float | None = 1.0
        self.gather_ranks: GatherRanks | None = None  # set by elliptica.distributed.over_global_batch
        self._judged_scale = False

    @classmethod
    def paper(
        cls, model: nn.Module, loss_fn: LossFn, *, sigma: float = 0.05, horizon: float = 1.0, **settings: Any
    ) -> Elliptic:
        """Make an objective with the paper's whole paths and noise on targets.

        Draws whole paths, with as much noise on the targets as on the inputs, also on classes. On a time
        interval of length ``horizon`` only ``sigma * sqrt(horizon)`` matters. Settings that you pass override
        these; the paper's for each data set are in docs: settings. Two choices remain ours (docs:
        deviations); Algorithm 1 also allows ``pairing="inverse_distance"`` and uses ``quadrature="left"``.

        Example:
            >>> objective = Elliptic.paper(nn.Linear(4, 3), nn.CrossEntropyLoss(), num_classes=3, sigma=0.1)
            >>> objective.bridges.sampling, objective.bridges.n_times, objective.bridges.sigma_y
            ('path', 5, 0.1)
        """
        sigma_y, root = settings.pop("sigma_y", sigma), math.sqrt(horizon)
        noise = {"sigma": sigma * root, "sigma_y": sigma_y * root}
        return cls(model, loss_fn, **{"sampling": "path", **noise, **settings})

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        partners: Tensor | None = None,
        end: FarEnd | None = None,
        paths: Paths | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the mean loss along bridges between the rows of a batch (paper: Algorithm 1).

        Args:
            x: Inputs: a tensor, or the tuple or dict of tensors that your model takes.
            y: Targets: integer labels, soft labels, or real values.
            sample_weight: Weight of each sample. The result is the mean of weight times loss, without
                normalisation. Between two samples the weight changes linearly.
            partners: Row of the batch at which each bridge ends, ``(batch,)`` or ``(batch, bridge)``.
            end: Far ends that need not be in the batch: ``(x, y)`` or ``(x, y, sample_weight)``, with or
                without a bridge axis. Without their own weights they get those of the starts.
            paths: Points drawn earlier with `sample`, to evaluate instead of new ones.
            generator: Source of randomness. None means torch's default generator.

        Returns:
            The objective, on the scale of the ordinary mean loss.
        """
        if not self.training or self.strength is None:
            return self.clean_loss(x, y, sample_weight=sample_weight)
        if paths is None:
            paths = self.sample(
                x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator
            )
        elif not (sample_weight is None and partners is None and end is None):
            raise ValueError("paths hold weights and ends already: pass sample_weight=, ... to sample().")
        if self.bn == "clean":  # this pass only updates the running statistics
            with torch.no_grad():
                call_model(self.model, copy_inputs(x))
        return self.loss_on(paths)

    def sample(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        partners: Tensor | None = None,
        end: FarEnd | None = None,
        generator: torch.Generator | None = None,
    ) -> Paths:
        """Draw the points that `forward` evaluates, from the same arguments (paper: Algorithm 1)."""
        if torch.compiler.is_compiling():  # a generator cannot be compiled; eager draws are the same
            given: dict[str, Any] = {"partners": partners, "end": end, "generator": generator}
            return run_uncompiled(self.sample, x, y, sample_weight=sample_weight, **given)
        features, keep_inputs = None, False
        if self.split is not None:
            features, keep_inputs = self._hidden, not self.split.cuts(self.model)
        batch = self.bridges.read(x, y, sample_weight, features, keep_inputs)  # check once, encode targets
        if not self._judged_scale:
            self._judge_scale(batch)
        pairs = self.bridges.pair(batch, partners, end, generator)  # X', y' ~ P(Pi)
        return self.bridges.draw(batch, pairs, 1.0 if self.strength is None else self.strength, generator)

    def loss_on(self, paths: Paths) -> Tensor:
        """Return the objective at points that `sample` drew (paper: Eq. (6), with the weights of Eq. (4))."""
        weighting = self.weighting
        if torch.compiler.is_compiling() and (weighting is not None or self.split is not None):
            return run_uncompiled(self.loss_on, paths)  # hooks and gradients inside are not compiled
        losses, slopes = evaluate(  # l(f(X_s), y_s)
            self.model,
            self.loss,
            paths,
            self.split,
            slopes_of="none" if weighting is None else weighting.slopes_of,
            second_order=weighting is not None and weighting.second_order,
            untracked=self.bn == "clean",
        )
        if weighting is not None:
            weighted = weighting(paths.by_time(losses), slopes, paths)  # Eq. (4)
            if weighted.numel() != losses.numel():
                raise ValueError(f"weighting={weighting!r} must keep the shape (time, rows) of the losses.")
            losses = weighted.flatten()
        return integrate(losses, paths, self.loss, self.gather_ranks)  # Eq. (6)

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the ordinary mean loss at the data themselves."""
        inputs = named_inputs(x)
        check_batch(inputs, (), y, sample_weight, validate=False)
        like = next(iter(inputs.values()))
        target = self.bridges.targets.encode(y, like.dtype if like.is_floating_point() else torch.float32)
        losses = self.loss(call_model(self.model, x), target)
        is_class_weighted = self.loss.weights_classes and not y.is_floating_point()
        class_weight = self.loss.class_weight(target) if is_class_weighted else None
        gather = self.gather_ranks if self.training else None  # a single process may evaluate alone
        return weighted_mean(losses, sample_weight, class_weight, gather)

    def extra_repr(self) -> str:
        """Show how points are drawn and weighted."""
        bridges = self.bridges
        shown = [f"{name}={getattr(bridges, name)!r}" for name in ("sigma", "sigma_y", "sampling", "pairing")]
        return ", ".join([*shown, f"weighting={self.weighting!r}"])

    def _hidden(self, x: Inputs, *, tracked: bool = True) -> Tensor:
        """Return the features that are bridged instead of the inputs; record statistics once per step."""
        assert self.split is not None
        untracked = self.bn == "clean" or not tracked
        with untracked_statistics(self.model) if untracked else contextlib.nullcontext():
            return self.split.features(self.model, x)

    def _check_weighting(self, weighting: Weighting) -> None:
        """Raise if the points cannot carry the weighting, which would then be silently meaningless."""
        if weighting.needs_path and (self.bridges.sampling != "path" or self.bridges.end_time < 1):
            raise ValueError(
                f'weighting={weighting!r} weights whole paths: it needs sampling="path" and end_time=1.'
            )
        if weighting.within_pairs and self.bridges.n_bridges < 2:
            raise ValueError(f"weighting={weighting!r} compares bridges of a pair: use n_bridges=2 or more.")

    def _judge_scale(self, batch: Batch) -> None:
        """Warn once if the noise does not suit the scale of the inputs."""
        sigma = self.bridges.sigma
        if self.split is not None or not isinstance(sigma, float) or sigma == 0.0:
            self._judged_scale = True
            return
        if len(batch.targets) < 2:
            return
        for name in batch.bridged:
            spread = batch.inputs[name].detach().float().std(0)
            spread = spread[spread > 0]
            if not spread.numel():
                return  # nothing varies: judge the next batch
            typical = float(spread.median())
            if not _USUAL_NOISE[0] <= sigma / typical <= _USUAL_NOISE[1]:
                warn_user(
                    f"The inputs vary by about {typical:.3g} (median deviation of the features), but sigma="
                    f"{sigma:g}: standardise the inputs, or try sigma={0.1 * typical:.2g}."
                )
        self._judged_scale = True


def elliptic_loss(
    model: nn.Module,
    loss_fn: LossFn,
    x: Inputs,
    y: Tensor,
    *,
    sample_weight: Tensor | None = None,
    partners: Tensor | None = None,
    end: FarEnd | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Tensor:
    """Compute the elliptic objective of a batch (paper: Algorithm 1); settings are those of `Elliptic`.

    Use it in loops without an objective module. With several processes wrap an `Elliptic` instead.

    Example:
        >>> model = nn.Linear(4, 1)
        >>> x, y = torch.randn(8, 4), torch.randn(8, 1)
        >>> elliptic_loss(model, nn.MSELoss(), x, y, sigma=0.05).backward()
    """
    objective = Elliptic(model, loss_fn, **settings)
    objective._judged_scale = True  # or every call would warn again
    return objective(x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator)


def sample_paths(
    x: Inputs,
    y: Tensor,
    *,
    target_space: TargetSpace,
    num_classes: int | None = None,
    simplex: SimplexMap = "abs",
    sample_weight: Tensor | None = None,
    partners: Tensor | None = None,
    end: FarEnd | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Paths:
    """Draw the points that elliptic training evaluates (paper: Algorithm 1, pairs and bridges).

    Settings are those of `elliptica.Elliptic` that control how points are drawn, and ``same_partner=True`` to
    let all bridges of a point end at one partner. Pass the result to `elliptica.path_losses` or
    ``objective.loss_on``.

    Example:
        >>> x, y = torch.randn(6, 3), torch.randn(6, 1)
        >>> paths = sample_paths(x, y, target_space="real", sampling="path", n_times=4)
        >>> paths.x.shape, paths.y.shape
        (torch.Size([6, 1, 4, 3]), torch.Size([6, 1, 4, 1]))
    """
    bridges = Bridges(Targets(target_space, num_classes, simplex), **settings)
    batch = bridges.read(x, y, sample_weight)
    return bridges.draw(batch, bridges.pair(batch, partners, end, generator), generator=generator)
