"""The objective: one module that owns the model and turns a batch into a loss (paper: Eq. (6))."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.compiler import uncompiled
from elliptica.core.batchnorm import BATCH_NORM_MODES, BatchNormMode, path_statistics, tracking_layers
from elliptica.core.bridge import Quadrature, time_weights
from elliptica.core.combinations import (
    check_combination,
    refuse_no_op,
    warn_if_negative,
    warn_of_mode,
    warn_of_own_sigma,
)
from elliptica.core.evaluate import Evaluator, time_steps
from elliptica.core.hidden import find_layer, hidden_features
from elliptica.core.inputs import bridged_names, call_model, check_weight, named_inputs
from elliptica.core.losses import PerSampleLoss, path_mean, weighted_mean
from elliptica.core.noise import Sigma, auto_sigma
from elliptica.core.partners import Among, Pairing
from elliptica.core.paths import End, PathSampler
from elliptica.core.schedule import Schedule, check_schedule, factor_in
from elliptica.core.settings import Sampling
from elliptica.core.targets import SimplexMap, TargetSpace, infer_target_space
from elliptica.core.types import Across, Drift, Inputs, LossFn, Paths
from elliptica.core.weighting import READINGS, WEIGHTINGS, Grid, Reading, Weighting
from elliptica.core.wrappers import refuse_wrapped

logger = logging.getLogger(__name__)


class Elliptic(nn.Module):
    """Elliptic loss regularisation: train on Brownian bridges between the data (paper: Algorithm 1).

    A drop-in objective: where you wrote ``loss = criterion(model(x), y)``, write
    ``loss = objective(x, y)``. Labels are bridged too, so that the loss is asked to be small, and
    smooth, between the data and not only at them. Use it when data are shifted, imbalanced or
    mislabelled. Do not use it when a point between two data points has no meaning (raw token ids:
    bridge in the embedding layer with ``at=``).

    In ``eval()`` mode it is the ordinary loss. The module owns the model, so wrap *it*:
    ``DistributedDataParallel(objective)``, ``torch.compile(objective)``; save ``objective.model``.
    A compiled objective still draws its points eagerly, so that they are the same; with ``at=``,
    ``chunk_size=``, or a weighting on a model with batch norm, it runs eagerly altogether.

    Args:
        model: Any network; called on rows of bridge points.
        loss_fn: Your ordinary loss; a ``reduction`` is switched off in a copy. A callable must return
            one value per sample.
        target_space: ``"simplex"`` (classes), ``"unit"`` (multilabel, each in [0, 1]) or ``"real"``;
            None reads it off the loss and the dtype of the targets.
        num_classes: Needed for integer labels.
        sampling: ``"marginal"``: one point per bridge, at a random one of the ``n_times`` times: an
            unbiased estimate of the paper's objective at the price of ordinary training. ``"path"``:
            all ``n_times`` points of each bridge, as in the paper; needed by the path weightings.
        n_times: Times on a bridge, both ends included (the paper's n_t). Fewer times mean more weight
            on the data themselves; 2 is ordinary training.
        n_bridges: Bridges per data point, each to a partner of its own (n_b).
        sigma: Diffusion coefficient (sigma_b) in units of the inputs: a number, a tensor with one
            value per feature, ``"auto"`` (a tenth of each feature's deviation in the first batch; with
            several processes pass ``sigma=auto_sigma(x)`` instead, so that all use the same), or
            the random variance that the PDE prescribes for each pair: ``"green"``, ``("green", scale)``,
            ``("screened", rate)``, see `Green` and `Screened`. Zero: straight lines.
        sigma_y: The same for targets, in their units; None means ``sigma`` if that is a number, and zero
            (linear targets) otherwise.
        horizon: Length of the time interval; only ``sigma * sqrt(horizon)`` matters.
        antithetic: Draw bridges in pairs of opposite noise to the same partner (even ``n_bridges``).
        pairing: Where bridges end, see `sample_partners`.
        power: Exponent for ``pairing="inverse_distance"``.
        among: Partners among ``"all"``, the ``"same_class"`` or the ``"other_class"`` points.
        simplex: How noisy class probabilities return to the simplex, see `project_to_simplex`.
        quadrature: Integral over time: ``"mean"`` of all ``n_times`` points, ``"left"`` sum (Euler), or
            ``"trapezoid"``; marginal points are drawn accordingly. ``"uniform"``, only for marginal
            points: any time in [0, 1], i.e. the integral itself, in which the data have no weight.
        weighting: Reading of importance weighting (Eq. (4), appendix C): ``"none"``;
            ``"gradient_norm"``, adds ``xi`` times the norm of the input gradient;
            ``"gradient_softmax"``, weights points by their standardised gradient norm;
            ``"multiplicative"``, weights paths by the exponential martingale, self-normalised;
            ``"girsanov"``, subtracts its logarithm (the Jensen form); ``"released"``, what the authors'
            later code does.
        xi: Strength of the weighting; 0 is no weighting.
        drift: ``drift(x, y)``, any callable or network, in place of the loss gradient in the
            ``"multiplicative"`` and ``"girsanov"`` weightings; per unit of relative time.
        bridged: Names (or positions) of the inputs to bridge when the model takes several; the others
            come from the nearer end.
        at: Name of a layer in whose output to bridge instead of in the inputs. With
            ``sampling="marginal"`` inputs that are not bridged must enter above that layer.
        bn: Batch norm statistics: from all path points (``"paths"``, the paper's joint pass), from an
            extra pass over the clean batch (``"clean"``), or ``"frozen"``.
        chunk_size: Evaluate at most so many rows at a time, but at least one path; memory is that of one
            chunk, gradients are the same (batch norm sees chunks), time grows by about a third.
        schedule: Function from the epoch to a factor on the noise, or None for "off"; needs
            `set_epoch`.
        validate: Check inputs for NaN and labels for their range in every call (one synchronisation
            on an accelerator).

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
        target_space: TargetSpace | None = None,
        num_classes: int | None = None,
        sampling: Sampling = "marginal",
        n_times: int = 5,
        n_bridges: int = 1,
        sigma: Sigma = 0.05,
        sigma_y: float | Tensor | None = None,
        horizon: float = 1.0,
        antithetic: bool = False,
        pairing: Pairing = "permutation",
        power: float = 1.0,
        among: Among = "all",
        simplex: SimplexMap = "abs",
        quadrature: Quadrature = "mean",
        weighting: Weighting = "none",
        xi: float = 1.0,
        drift: Drift | None = None,
        bridged: Sequence[Hashable] | None = None,
        at: str | None = None,
        bn: BatchNormMode = "paths",
        chunk_size: int | None = None,
        schedule: Schedule | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__()
        checks.model(model, "Elliptic")
        if chunk_size is not None:
            checks.count("chunk_size", chunk_size)
        checks.choice("weighting", weighting, WEIGHTINGS)
        checks.choice("bn", bn, BATCH_NORM_MODES)
        check_schedule(schedule)
        checks.nonnegative("xi", xi)
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        self._user_loss = (loss_fn,)  # in a tuple, so that it is not registered twice
        self.target_space = target_space
        self.weighting = weighting
        self.xi = float(xi)
        self.drift = drift
        self.bn = bn
        self.chunk_size = chunk_size
        self.schedule = schedule
        self.epoch: int | None = None
        self.across: Across | None = None  # set by elliptica.distributed.over_global_batch
        self._warned = False
        self._warned_of_mode = False
        self.auto_sigma: Tensor | None
        self.register_buffer("auto_sigma", None)
        if at is not None:
            find_layer(model, at)
        self.sampler = PathSampler(
            target_space=target_space or "real",  # read off the first batch if not given
            num_classes=self.loss.num_classes() if num_classes is None else num_classes,
            sampling=sampling,
            n_times=n_times,
            n_bridges=n_bridges,
            sigma=sigma,
            sigma_y=sigma_y,
            horizon=horizon,
            antithetic=antithetic,
            pairing=pairing,
            power=power,
            among=among,
            simplex=simplex,
            quadrature=quadrature,
            bridged=bridged,
            at=at,
            validate=validate,
        )
        check_combination(self.sampler, model, weighting, drift, chunk_size)

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        partners: Tensor | None = None,
        end: End | None = None,
        paths: Paths | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Loss of a batch, a scalar.

        Args:
            x: Inputs: a tensor, or a tuple or dict of tensors that the model is called with.
            y: Targets: integer labels, soft labels, or real values.
            sample_weight: Weight of each sample, used as given: the result is the mean of weight times
                loss, and a point between two samples gets the weight between theirs.
            partners: Row of the batch at which each bridge ends, ``(batch,)`` or ``(batch, bridge)``.
            end: Far ends that need not be in the batch: ``(x, y)`` or ``(x, y, sample_weight)``;
                without weights of their own they get those of the starts.
            paths: Points drawn before (see `sample`), evaluated instead of drawing new ones. (With ``at=``
                the noise of the hidden layer is drawn at every evaluation.)
            generator: Source of randomness; torch's default one if None.

        Returns:
            The objective, on the scale of the ordinary mean loss.
        """
        if self._strength() is None:
            return self.clean_loss(x, y, sample_weight=sample_weight)
        if paths is None:
            # never compiled: a generator cannot be, and the numbers are the same either way
            options = {"sample_weight": sample_weight, "partners": partners, "end": end}
            paths = self._uncompiled_sample(x, y, **options, generator=generator)
        if self.bn == "clean":
            with torch.no_grad():
                call_model(self.model, x)
        return self.loss_on(paths)

    def set_epoch(self, epoch: int) -> None:
        """Tell the schedule which epoch begins (0, 1, ...)."""
        self.epoch = epoch

    @torch.no_grad()
    def sample(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        partners: Tensor | None = None,
        end: End | None = None,
        generator: torch.Generator | None = None,
    ) -> Paths:
        """Draw the points that `forward` would evaluate."""
        sampler = self._sampler_for(y)
        strength = self._strength()
        features = None
        if sampler.at is not None and sampler.pairing != "permutation" and partners is None:
            features = hidden_features(self.model, x, sampler.at)
        return sampler.draw(
            x,
            y,
            sample_weight=sample_weight,
            partners=partners,
            end=end,
            features=features,
            strength=1.0 if strength is None else strength,
            sigma=self._measured_sigma(x),
            generator=generator,
        )

    def loss_on(self, paths: Paths) -> Tensor:
        """The objective at points that were drawn before."""
        reading = None if self.xi == 0.0 else READINGS.get(self.weighting)
        if reading is not None and reading.second_order and not torch.compiler.is_compiling():
            refuse_wrapped(self.model, True, self.chunk_size is not None)  # layers may be sharded late
        if reading is not None and reading.needs_path and paths.s.shape[2] < 2:
            raise ValueError(
                f'weighting={self.weighting!r} needs whole paths; draw them with sampling="path".'
            )
        if (
            paths.hidden is not None
            or self.chunk_size is not None
            or self.across is not None
            or (reading is not None and tracking_layers(self.model))
        ):
            return self._eager_loss_on(paths, reading)
        return self._loss_on(paths, reading)

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """The ordinary mean loss on the data themselves."""
        target = self._sampler_for(y).encode(x, y)
        check_weight(sample_weight, len(target))
        frozen = self.training and self.bn == "frozen"
        with path_statistics("frozen" if frozen else "paths", self.model):
            losses = self.loss(call_model(self.model, x), target)
        class_weight = self.loss.class_weight(target) if self.loss.weights_classes else None
        across = self.across if self.training else None  # one process may evaluate alone
        return weighted_mean(losses, sample_weight, class_weight, across=across)

    def extra_repr(self) -> str:
        """The settings that matter, and what ``sigma="auto"`` chose."""
        sigma: object = self.sampler.sigma
        if self.sampler.sigma == "auto" and self.auto_sigma is not None:
            low, high = (float(v) for v in self.auto_sigma.aminmax())
            sigma = f"auto ({low:.3g} to {high:.3g} per feature)"
        kept = {
            "sampling": self.sampler.sampling,
            "n_bridges": self.sampler.n_bridges,
            "sigma": sigma,
            "pairing": self.sampler.pairing,
            "weighting": self.weighting,
        }
        return ", ".join(f"{name}={value}" for name, value in kept.items())

    def _loss_on(self, paths: Paths, reading: Reading | None) -> Tensor:
        evaluate = Evaluator(self.model, self.loss, reading, self.drift, self.chunk_size, self.bn)
        with path_statistics(self.bn, self.model):
            losses, terms = evaluate(paths)
        over_time = None
        if len(losses) > 1 and self.sampler.quadrature != "mean":
            over_time = time_weights(len(losses), self.sampler.quadrature, losses)
        if reading is not None:
            if reading.second_order and torch.is_grad_enabled() and losses.requires_grad:
                refuse_no_op(terms)
            losses = reading.apply(losses, terms, self.xi, Grid(time_steps(paths), over_time, self.across))
        loss = path_mean(losses, paths, self.loss, over_time, self.across)
        if reading is not None and reading.second_order and self.sampler.validate and not self._warned:
            self._warned = warn_if_negative(loss, self.weighting, self.xi)
        return loss

    @uncompiled
    def _uncompiled_sample(self, x: Inputs, y: Tensor, **options: Any) -> Paths:
        return self.sample(x, y, **options)

    @uncompiled
    def _eager_loss_on(self, paths: Paths, reading: Reading | None) -> Tensor:
        """Hooks on layers, chunks, and running statistics under torch.func cannot be compiled."""
        return self._loss_on(paths, reading)

    def _strength(self) -> float | None:
        """Factor on the noise in this epoch; None when bridges are off."""
        if self.training != self.model.training and not self._warned_of_mode:
            self._warned_of_mode = True
            warn_of_mode(self.training, self.model.training)
        if not self.training:
            return None
        return factor_in(self.schedule, self.epoch)

    def _sampler_for(self, y: Tensor) -> PathSampler:
        """The sampler, once the target space is known."""
        if self.target_space is None:
            self.target_space = infer_target_space(self._user_loss[0], y)
            self.sampler = dataclasses.replace(self.sampler, target_space=self.target_space)
        return self.sampler

    def _measured_sigma(self, x: Inputs) -> Tensor | None:
        """What ``sigma="auto"`` chose on the first batch; hidden features move, so not for them."""
        if self.sampler.sigma != "auto" or self.sampler.at is not None:
            return None
        if self.auto_sigma is None:
            inputs = named_inputs(x)
            names = bridged_names(inputs, self.sampler.bridged)
            if len(names) > 1:
                raise ValueError(
                    f'sigma="auto" measures one input, but {len(names)} are bridged. Give a number.'
                )
            self.auto_sigma = auto_sigma(inputs[names[0]])
            warn_of_own_sigma(self.model)
            low, high = (float(v) for v in self.auto_sigma.aminmax())
            logger.info('sigma="auto" chose %.3g to %.3g per feature', low, high)
        return self.auto_sigma

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Restore what ``sigma="auto"`` had chosen, or that it had not chosen yet."""
        saved = state_dict.get(f"{prefix}auto_sigma")
        self.auto_sigma = None if saved is None else saved.clone()
        super()._load_from_state_dict(state_dict, prefix, *args)


# Sampling and the objective as functions, for those who want no module.


def elliptic_loss(
    model: nn.Module,
    loss_fn: LossFn,
    x: Inputs,
    y: Tensor,
    *,
    sample_weight: Tensor | None = None,
    partners: Tensor | None = None,
    end: End | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Tensor:
    """The objective as a function; settings are those of `Elliptic`.

    For loops that want no extra module. With several processes use `Elliptic` and wrap that; a wrapped
    model is refused here where the result would be silently wrong.

    Example:
        >>> model = nn.Linear(4, 1)
        >>> x, y = torch.randn(8, 4), torch.randn(8, 1)
        >>> elliptic_loss(model, nn.MSELoss(), x, y, sigma=0.05).backward()
    """
    if settings.get("schedule") is not None:
        raise ValueError(
            "A function has no epochs: call it with another sigma instead of schedule=, or use Elliptic."
        )
    objective = Elliptic(model, loss_fn, **settings)
    result: Tensor = objective(
        x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator
    )
    return result


def sample_paths(
    x: Inputs,
    y: Tensor,
    *,
    target_space: TargetSpace,
    sample_weight: Tensor | None = None,
    partners: Tensor | None = None,
    end: End | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Paths:
    """Draw the points that elliptic training evaluates (paper: Algorithm 1, lines 2 and 3).

    Settings are those of `elliptica.Elliptic`. Hand the result to `elliptica.path_losses`, or to
    ``objective(x, y, paths=...)``.

    Example:
        >>> x, y = torch.randn(6, 3), torch.randn(6, 1)
        >>> paths = sample_paths(x, y, target_space="real", sampling="path", n_times=4)
        >>> paths.x.shape, paths.y.shape
        (torch.Size([6, 1, 4, 3]), torch.Size([6, 1, 4, 1]))
    """
    sampler = PathSampler(target_space=target_space, **settings)
    with torch.no_grad():
        return sampler.draw(
            x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator
        )
