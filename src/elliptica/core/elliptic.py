"""The training objective of the paper (Algorithm 1), as a module and as a function."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.compiler import run_uncompiled
from elliptica._utils.random import check_generator
from elliptica.core.alerts import (
    reject_no_op,
    reject_other_drift,
    reject_prefixes,
    reject_unpaired,
    warn_if_negative,
    warn_of_constant,
    warn_of_mode,
    warn_of_own_sigma,
    warn_of_scale,
)
from elliptica.core.batchnorm import path_statistics, tracking_layers
from elliptica.core.bridge import (
    draw_bridges,
    draw_single_points,
    flatten_rows,
    is_single,
    time_weights,
)
from elliptica.core.evaluate import Evaluator, time_steps
from elliptica.core.hidden import check_hidden_ends, draw_hidden_bridges, find_layer, hidden_features
from elliptica.core.inputs import (
    bridged_names,
    call_model,
    carries_gradient,
    check_weight,
    count_rows,
    named_inputs,
    read_batch,
    target_encoder,
)
from elliptica.core.losses import (
    PerSampleLoss,
    join_outputs,
    losses_at,
    outputs_at,
    path_mean,
    recorded_outputs,
    weighted_mean,
)
from elliptica.core.noise import auto_sigma
from elliptica.core.partners import End, choose_ends
from elliptica.core.schedule import factor_in
from elliptica.core.settings import BridgeSettings, Settings, make_settings, takes
from elliptica.core.targets import TargetSpace, infer_target_space, space_of_loss
from elliptica.core.types import Across, Inputs, LossFn, Paths, WithOutputs, check_paths, warn_user
from elliptica.core.weighting import VARIANTS, Grid
from elliptica.core.wrappers import refuse_wrapped

logger = logging.getLogger(__name__)


class Elliptic(nn.Module):
    """Elliptic loss regularisation: train on Brownian bridges between the data (paper: Algorithm 1).

    A drop-in objective: replace ``loss = criterion(model(x), y)`` by ``loss = objective(x, y)``. The ordinary
    loss is the mean over the data. This one is the mean over random points on Brownian bridges between
    pairs of data points, with targets that change from one end to the other. Whether it helps depends on
    the data: docs/reproduction.md compares it with ordinary training and mixup, with and without shift, rare
    groups and wrong labels. Do not bridge where a point between two data points has no meaning, such as
    raw token ids; bridge in the embedding layer instead (``at=``).

    In ``eval()`` mode it returns the ordinary loss. The module owns the model, so wrap the objective and
    not the model: ``DistributedDataParallel(objective)``, ``torch.compile(objective)``. Save
    ``objective.model``. A compiled objective still draws its points eagerly, so they are the same as without
    compilation. With ``at=``, with ``chunk_size=``, or with a weighting on a model with batch norm, all of it
    runs eagerly.

    Args:
        model: Any network. It is called on rows of bridge points.
        loss_fn: Your ordinary loss. Its ``reduction``, if it has one, is switched off in a copy. Any other
            callable must return one value per sample.
        target_space: ``"simplex"`` (classes), ``"unit"`` (multilabel, each in [0, 1]) or ``"real"``.
            None infers it from the loss and the dtype of the targets.
        num_classes: Number of classes. Required for integer labels.
        sampling: ``"marginal"`` draws one point per bridge, at a random one of the ``n_times`` times. This is
            an unbiased estimate of the paper's objective and evaluates as many rows as the batch has.
            ``"path"`` evaluates all ``n_times`` points of each bridge, as in the paper. The path weightings
            need it.
        n_times: Times on a bridge, both ends included (the paper's n_t). Fewer times mean more weight
            on the data themselves; 2 is ordinary training.
        n_bridges: Bridges per data point (n_b), each to its own partner.
        sigma: Diffusion coefficient (sigma_b) in units of the inputs. A number; a tensor with one value per
            feature; ``"auto"``, a tenth of each feature's standard deviation in the first batch (with several
            processes pass ``sigma=auto_sigma(x)`` instead, so that all use the same value); or the
            random variance that the PDE prescribes for each pair: ``"green"``, ``("green", scale)``,
            ``("screened", rate)``, see `Green` and `Screened`. Zero: straight lines.
        sigma_y: The same for the targets, in their units. None means ``sigma`` for real targets if ``sigma``
            is a number, and zero otherwise. Classes then change linearly along a bridge: noise on them (the
            paper's choice, see `paper`) acts as label smoothing and costs calibration.
        horizon: Length of the time interval; only ``sigma * sqrt(horizon)`` matters.
        antithetic: Draw bridges in pairs of opposite noise to the same partner (even ``n_bridges``).
        same_partner: Let all ``n_bridges`` bridges of a point end at the same partner, as in the authors'
            code. ``weighting="multiplicative"`` implies it.
        pairing: Where bridges end, see `sample_partners`.
        power: Exponent for ``pairing="inverse_distance"``.
        bandwidth: Width of the kernel for ``pairing="label_kernel"``, in units of the targets.
        among: Which points may be partners: ``"all"``, the ``"same_class"`` or the ``"other_class"``.
        simplex: How to map noisy class probabilities back to the simplex, see `project_to_simplex`.
        quadrature: Rule for the integral over time: the ``"mean"`` of all ``n_times`` points, the ``"left"``
            sum (Euler) or the ``"trapezoid"`` rule. Marginal points are drawn with the same weights.
            ``"uniform"`` (marginal points only) draws any time in [0, 1]: the integral itself, in which the
            data have no weight.
        weighting: Variant of importance weighting (Eq. (4), appendix C): ``"none"``;
            ``"gradient_norm"`` adds ``xi`` times the norm of the input gradient;
            ``"gradient_softmax"`` weights points by their standardised gradient norm;
            ``"multiplicative"`` weights paths by the exponential martingale, self-normalised over the
            bridges of each pair of ends (needs ``n_bridges`` of 2 or more);
            ``"girsanov"`` subtracts the logarithm of that martingale (the Jensen form); ``"released"`` does
            what the authors' later code does.
        xi: Strength of the weighting; 0 is no weighting.
        drift: Drift of the ``"multiplicative"`` and ``"girsanov"`` weightings. ``"input"`` (or None) is the
            loss gradient with respect to the input. ``"both"`` is the gradient with respect to input and
            target (appendix C; needs ``sigma_y > 0``). Any callable or network ``drift(x, y)`` may return
            ``mu_x`` or ``(mu_x, mu_y)``, per unit of relative time. A network is trained under
            ``"girsanov"``. Under ``"multiplicative"`` it is fixed: it runs in eval mode and is not part of
            the objective's parameters, mode or state, but it moves with ``objective.to(...)``.
        bridged: Names (or positions) of the inputs to bridge if the model takes several. The others are
            taken from the nearer end.
        at: Name of a layer. Bridges are drawn in its output instead of in the inputs. With
            ``sampling="marginal"``, inputs that are not bridged must enter the model above that layer.
        bn: Where batch norm takes its statistics from: all path points (``"paths"``, the paper's joint
            pass), an extra pass over the clean batch (``"clean"``), or the running statistics (``"frozen"``).
        chunk_size: Largest number of rows to evaluate at a time (at least one path). Memory is that of one
            chunk. Gradients are unchanged, except that batch norm sees chunks. Time grows by about a third.
        schedule: Function from the epoch to a factor on the noise, or to None to switch bridges off.
            Call `set_epoch` at the start of each epoch.
        validate: Check every batch for NaN and for labels out of range (one synchronisation per call on an
            accelerator).

    Example:
        >>> model = nn.Linear(4, 3)
        >>> objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> loss = objective(x, y)                       # was: criterion(model(x), y)
        >>> loss.backward()
    """

    @takes(Settings)
    def __init__(self, model: nn.Module, loss_fn: LossFn, settings: Settings) -> None:
        super().__init__()
        checks.model(model, "Elliptic")
        if settings.at is not None:
            find_layer(model, settings.at)
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        self._user_loss = (loss_fn,)  # a tuple, so that nn.Module does not register it a second time
        weighted = self.loss.num_classes()
        if settings.num_classes is not None and weighted not in (None, settings.num_classes):
            raise ValueError(
                f"loss_fn has weights of {weighted} classes, but num_classes={settings.num_classes}. Give "
                "one weight for each class, or omit num_classes."
            )
        if settings.num_classes is None and weighted is not None:
            settings = copy.copy(settings)  # a copy skips the checks, which would warn again
            object.__setattr__(settings, "num_classes", weighted)
            settings.warn_of_smoothing()
        space = space_of_loss(loss_fn) if settings.target_space is None else None
        if space is not None and settings.sigma_y is None:
            settings.settle_sigma_y(space)
        self.settings = settings
        self._variant = settings.variant
        second_order = self._variant is not None and self._variant.second_order
        self.drift: Any
        if settings.weighting in VARIANTS and VARIANTS[settings.weighting].second_order:
            self.drift = settings.drift  # nn.Module registers it if it is a network
            if self._variant is None and isinstance(self.drift, nn.Module):  # xi=0: DDP must not wait
                names = self.drift.state_dict(prefix="drift.", keep_vars=True)
                self._ddp_params_and_buffers_to_ignore = list(names)
        else:  # the weights carry no gradient, so the drift is fixed: hide it from optimisers and DDP
            object.__setattr__(self, "drift", settings.drift)
        refuse_wrapped(model, second_order, settings.chunk_size is not None)
        self.epoch: int | None = None
        self.across: Across | None = None  # set by elliptica.distributed.over_global_batch
        self._warned_of_negative = False
        self._warned_of_constant = False
        self._warned_of_mode: set[bool] = set()
        self._judged_scale = False
        self.auto_sigma: Tensor | None
        self.register_buffer("auto_sigma", None)

    @classmethod
    def paper(cls, model: nn.Module, loss_fn: LossFn, **settings: Any) -> Elliptic:
        """Make an objective with the paper's settings where our defaults differ.

        Draws whole paths of ``n_times`` points, and puts as much noise on the targets as on the inputs, also
        on classes. Pass ``sigma``, ``n_bridges``, ``horizon``, ... as the paper does for each data set (docs:
        settings, "The paper's settings"). Settings that you pass override these. If ``sigma`` is not a
        number, pass ``sigma_y`` too.

        Two choices remain ours (docs: deviations). Partners come from a random permutation; Algorithm 1
        also allows inverse distances: ``pairing="inverse_distance"``. The integral over time is the mean of
        all points; Algorithm 1 uses Euler's sum: ``quadrature="left"``.

        Example:
            >>> objective = Elliptic.paper(nn.Linear(4, 3), nn.CrossEntropyLoss(), num_classes=3, sigma=0.1)
            >>> objective.sampling, objective.n_times, objective.sigma_y
            ('path', 5, 0.1)
        """
        sigma = settings.get("sigma", BridgeSettings.sigma)
        if not isinstance(sigma, float | int) and "sigma_y" not in settings:
            raise ValueError(
                "The paper puts as much noise on the targets as on the inputs, which is undefined for "
                f"sigma={sigma!r}. Pass sigma_y= as well, or a number for sigma."
            )
        as_strong = {"sigma_y": sigma} if isinstance(sigma, float | int) else {}
        return cls(model, loss_fn, **{"sampling": "path", **as_strong, **settings})

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
        with_outputs: bool = False,
    ) -> Tensor | WithOutputs:
        """Return the mean loss along bridges between the rows of a batch (paper: Algorithm 1).

        Args:
            x: Inputs: a tensor, or the tuple or dict of tensors that your model takes.
            y: Targets: integer labels, soft labels, or real values.
            sample_weight: Weight of each sample. The result is the mean of weight times loss, without
                normalisation. Between two samples the weight changes linearly.
            partners: Row of the batch at which each bridge ends, ``(batch,)`` or ``(batch, bridge)``.
            end: Far ends that need not be in the batch: ``(x, y)`` or ``(x, y, sample_weight)``. Without
                their own weights they get those of the starts.
            paths: Points drawn earlier with `sample`, to evaluate instead of new ones. (With ``at=`` the
                noise of the hidden layer is drawn at every evaluation.)
            generator: Source of randomness. None means torch's default generator.
            with_outputs: Return `WithOutputs`: the loss with the model's outputs and the targets at the
                points, for example to track the training accuracy without a second pass. Count only points
                at the data, as in the example: halfway between two classes no label is right.

        Returns:
            The objective, on the scale of the ordinary mean loss.

        Example:
            >>> objective = Elliptic(nn.Linear(4, 3), nn.CrossEntropyLoss(), num_classes=3)
            >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
            >>> loss, output, target = objective(x, y, with_outputs=True)
            >>> at_data = target.amax(1) == 1
            >>> accuracy = (output.argmax(1) == target.argmax(1))[at_data].float().mean()
            >>> output.shape, target.shape
            (torch.Size([8, 3]), torch.Size([8, 3]))
        """
        if with_outputs:
            given: dict[str, Any] = {"partners": partners, "end": end, "generator": generator}
            return self._with_outputs(x, y, paths, sample_weight=sample_weight, **given)
        if self._noise_factor() is None:  # eval mode, or an epoch in which the schedule says "off"
            return self.clean_loss(x, y, sample_weight=sample_weight)
        # Algorithm 1: choose partners, draw bridges of inputs and targets to them ...
        if paths is None:
            paths = self.sample(
                x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator
            )
        elif torch.compiler.is_compiling():  # check here: inside `loss_on` the check would break the graph
            self._check_paths(paths)
        if self.settings.bn == "clean":  # this pass only updates the running statistics
            with torch.no_grad():
                call_model(self.model, x)
        # ... then evaluate the loss along them, weight it, and average (Eq. (6), Eq. (4)).
        return self.loss_on(paths)

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
        """Draw the points that `forward` evaluates (paper: Algorithm 1, partners and bridges).

        Arguments are those of `forward`.
        """
        if torch.compiler.is_compiling():  # a generator cannot be compiled; eager draws are the same
            given: dict[str, Any] = {"partners": partners, "end": end, "generator": generator}
            return run_uncompiled(self.sample, x, y, sample_weight=sample_weight, **given)
        settings = self.settings if self.settings.target_space is not None else self._read_target_space(y)
        factor = self._noise_factor()
        strength = 1.0 if factor is None else factor  # points requested in eval mode get the full noise
        # inputs may come from an encoder in front of the model, which must receive gradients
        with torch.set_grad_enabled(carries_gradient(x, y, sample_weight, end)):
            batch = read_batch(x, y, sample_weight, settings, in_hidden=settings.at is not None)
            if generator is not None:
                check_generator(generator, batch.reference.device)
            if not self._judged_scale and settings.at is None:
                self._judged_scale = warn_of_scale(batch, settings)
            if settings.at is not None:  # the points do not exist until that layer has run
                check_hidden_ends(settings, end)
                features = self._hidden_features(x, partners, end)
                ends = choose_ends(batch, settings, partners, end, features, generator)
                return draw_hidden_bridges(batch, ends, settings, strength=strength, generator=generator)
            if partners is None and end is None and is_single(batch, settings):  # the fast path
                return draw_single_points(batch, settings, strength, generator)
            # partners from P(Pi) (section 5.1), then bridges of inputs and targets to them (Algorithm 2)
            ends = choose_ends(batch, settings, partners, end, None, generator)
            sigma = self._measured_sigma(x) if settings.sigma == "auto" else None
            return draw_bridges(batch, ends, settings, strength=strength, sigma=sigma, generator=generator)

    def loss_on(self, paths: Paths) -> Tensor:
        """Return the objective at points that `sample` drew (paper: Eq. (6), with the weights of Eq. (4))."""
        settings, variant = self.settings, self._variant
        if not isinstance(paths, Paths):
            check_paths(paths)  # type: ignore[unreachable]  # called with something else
        if torch.compiler.is_compiling() and not self._can_be_compiled(paths):
            return run_uncompiled(self.loss_on, paths)
        if variant is not None and not torch.compiler.is_compiling():
            self._check_paths(paths)
        terms: tuple[Tensor, ...] = ()
        is_plain = paths.hidden is None and settings.chunk_size is None and settings.bn == "paths"
        if variant is None and is_plain and isinstance(paths.x, Tensor):
            # the integrand of Eq. (6), l(f(X_s), y_s), at all points in one forward pass
            x, y = flatten_rows(paths.x).flatten(0, 1), flatten_rows(paths.y)
            even = settings.quadrature == "mean" or y.shape[0] == 1
            if even and paths.weight is None and self.across is None and not self.loss.weights_classes:
                # all points count alike: Eq. (6) is the plain mean, which the loss computes itself
                return self.loss.mean(outputs_at(self.model, x, x.shape[0]), y.flatten(0, 1))
            losses = losses_at(self.model, self.loss, x, y)
        else:  # the same in chunks, in a hidden layer, for several inputs, or with input gradients
            losses, terms = self._evaluate(paths)
        over_time = None
        if len(losses) > 1 and settings.quadrature != "mean":  # Euler's or the trapezoid rule over s
            over_time = time_weights(len(losses), settings.quadrature, losses)
        if variant is not None:  # a variant of importance weighting (Eq. (4), appendix C)
            grid = Grid(time_steps(paths), over_time, self.across, paths.s.shape[1])
            losses = variant.apply(losses, terms, settings.xi, grid)
        loss = path_mean(losses, paths, self.loss, over_time, self.across)  # Eq. (6): mean over s and data
        if (
            variant is not None
            and variant.second_order
            and settings.validate
            and not self._warned_of_negative
        ):
            self._warned_of_negative = warn_if_negative(loss, settings.weighting, settings.xi)
        return loss

    def _with_outputs(self, x: Inputs, y: Tensor, paths: Paths | None, **given: Any) -> WithOutputs:
        """Return the objective with the outputs and targets at its points."""
        if torch.compiler.is_compiling():  # forward hooks are not compiled
            return run_uncompiled(self._with_outputs, x, y, paths, **given)
        n_times = self.settings.n_times if self.settings.sampling == "path" else 1
        with recorded_outputs(self.loss) as compared:
            loss = Elliptic.forward(self, x, y, paths=paths, **given)
        assert isinstance(loss, Tensor)
        return WithOutputs(loss, *join_outputs(compared, n_times if paths is None else paths.s.shape[2]))

    def _evaluate(self, paths: Paths) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return losses ``(time, rows)`` and the weighting's terms where a plain pass is not enough."""
        settings, variant = self.settings, self._variant
        if variant is not None and variant.second_order and not torch.compiler.is_compiling():
            refuse_wrapped(self.model, True, settings.chunk_size is not None)  # it may be sharded by now
        evaluate = Evaluator(
            self.model, self.loss, variant, self.drift, settings.chunk_size, settings.bn, settings.validate
        )
        with path_statistics(settings.bn, self.model):
            losses, terms = evaluate(paths)
        if variant is not None and variant.second_order and torch.is_grad_enabled() and losses.requires_grad:
            reject_no_op(terms)
        return losses, terms

    def _check_paths(self, paths: Paths) -> None:
        """Raise if the weighting cannot work with these paths."""
        settings, variant = self.settings, self._variant
        if variant is not None and variant.needs_path and paths.s.shape[2] < 2:
            raise ValueError(
                f"weighting={settings.weighting!r} needs whole paths, but these hold single points. Draw "
                'them with sampling="path".'
            )
        if variant is not None and variant.within_pairs and settings.validate:
            reject_unpaired(paths)

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the ordinary mean loss at the data themselves."""
        settings = self.settings if self.settings.target_space is not None else self._read_target_space(y)
        inputs = named_inputs(x)
        checks.same_rows("y", y, count_rows(inputs))
        target = target_encoder(next(iter(inputs.values())), settings)(y)
        check_weight(sample_weight, len(target))
        frozen = self.training and settings.bn == "frozen"
        with path_statistics("frozen" if frozen else "paths", self.model):
            losses = self.loss(call_model(self.model, x), target)
        by_class = self.loss.weights_classes and not y.is_floating_point()
        class_weight = self.loss.class_weight(target) if by_class else None
        across = self.across if self.training else None  # a single process may evaluate alone
        return weighted_mean(losses, sample_weight, class_weight, across=across)

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch (0, 1, ...) for the schedule."""
        checks.count("epoch", epoch, 0)
        self.epoch = epoch

    def extra_repr(self) -> str:
        """Show the noise, the settings that differ from their defaults, and values of ``sigma="auto"``."""
        shown = self.settings.shown()
        if isinstance(self.drift, nn.Module):
            if "drift" in self._modules:
                shown.pop("drift", None)  # shown as a module
            else:
                shown["drift"] += " (fixed)"
        if self.settings.sigma == "auto" and self.auto_sigma is not None:
            low, high = (float(v) for v in self.auto_sigma.aminmax())
            shown["sigma"] += f" ({low:.3g} to {high:.3g} per feature)"
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the state of an objective. The state of a bare model is loaded into the model, with a warning.

        Raise an error if a wrapper (``DistributedDataParallel``, ``torch.compile``) has changed the names,
        even with ``strict=False``, which would load nothing.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"state_dict must be a dict, as from objective.state_dict(), but got "
                f"{type(state_dict).__name__}."
            )
        own = self.state_dict(keep_vars=True).keys()
        models = self.model.state_dict(keep_vars=True).keys()
        reject_prefixes(state_dict.keys(), {f"model.{name}" for name in models}, models)
        if strict:
            reject_other_drift(state_dict.keys(), own, self.settings.weighting)
        if not state_dict.keys() & own and state_dict.keys() & models:
            if strict and state_dict.keys() != models:
                missing, unknown = models - state_dict.keys(), state_dict.keys() - models
                raise RuntimeError(
                    "load_state_dict of an objective expects its own state, with names like "
                    f"'{next(iter(own))}', but got names of its model: {len(missing)} are missing and "
                    f"{len(unknown)} do not belong to the model. Use "
                    "objective.model.load_state_dict(state, strict=False) to load those that fit."
                )
            warn_user(
                "This is the state of a model, not of an objective. It was loaded into objective.model; the "
                "rest of the objective is unchanged. Use objective.model.load_state_dict(state) to avoid "
                "this warning."
            )
            return self.model.load_state_dict(state_dict, strict, assign)
        return super().load_state_dict(state_dict, strict, assign)

    def _noise_factor(self) -> float | None:
        """Return the factor on the noise in this epoch, or None if bridges are off."""
        if self.training != self.model.training and self.training not in self._warned_of_mode:
            self._warned_of_mode.add(self.training)
            warn_of_mode(self.training, self.model.training)
        if not self.training:
            return None
        return 1.0 if self.settings.schedule is None else factor_in(self.settings.schedule, self.epoch)

    def _read_target_space(self, y: Tensor) -> Settings:
        """Infer the target space from the loss and the first targets, and remember it."""
        self.settings = self.settings.with_target_space(infer_target_space(self._user_loss[0], y))
        return self.settings

    def _can_be_compiled(self, paths: Paths) -> bool:
        """Return whether the points can be evaluated in a compiled graph.

        Hooks on layers, chunks, and running statistics under torch.func cannot be compiled.
        """
        if paths.hidden is not None or self.settings.chunk_size is not None or self.across is not None:
            return False
        return self._variant is None or not tracking_layers(self.model)

    def _hidden_features(self, x: Inputs, partners: Tensor | None, end: End | None) -> Tensor | None:
        """Compute the features for distances when bridges are drawn in a hidden layer."""
        assert self.settings.at is not None
        if self.settings.pairing == "permutation" or partners is not None or end is not None:
            return None
        return hidden_features(self.model, x, self.settings.at)

    def _measured_sigma(self, x: Inputs) -> Tensor:
        """Return the values of ``sigma="auto"``, measured on the first batch."""
        if self.auto_sigma is None:
            inputs = named_inputs(x)
            names = bridged_names(inputs, self.settings.bridged)
            if len(names) > 1:
                raise ValueError(
                    f'sigma="auto" measures a single input, but {len(names)} are bridged. Pass a number.'
                )
            measured = auto_sigma(inputs[names[0]])
            if not bool(measured.any()):  # nothing to keep: the next batch may vary
                self._warned_of_constant = self._warned_of_constant or warn_of_constant()
                return measured
            self.auto_sigma = measured
            warn_of_own_sigma(self.model)
            low, high = (float(v) for v in self.auto_sigma.aminmax())
            logger.info('sigma="auto" chose %.3g to %.3g per feature', low, high)
        return self.auto_sigma

    def _apply(self, fn: Any, recurse: bool = True) -> Elliptic:
        """Move or convert a fixed drift network too, which is not registered as a submodule."""
        super()._apply(fn, recurse)
        if recurse and isinstance(self.drift, nn.Module) and "drift" not in self._modules:
            self.drift._apply(fn)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Restore the values of ``sigma="auto"``, or the fact that they were not measured yet."""
        saved = state_dict.get(f"{prefix}auto_sigma")
        self.auto_sigma = None if saved is None else saved.clone()
        super()._load_from_state_dict(state_dict, prefix, *args)


def _setting(name: str) -> property:
    """Make a read-only attribute that shows a setting."""

    def show(self: Elliptic) -> Any:
        return getattr(self.settings, name)

    def refuse(self: Elliptic, value: object) -> None:
        raise AttributeError(
            f"{name} is fixed when the objective is made, so {name} = {value!r} would have no effect. Make a "
            "new Elliptic, or pass schedule= for noise that changes with the epoch."
        )

    return property(show, refuse)


for _field in dataclasses.fields(Settings):
    if _field.name != "drift":  # an attribute of its own, because it may be a network
        setattr(Elliptic, _field.name, _setting(_field.name))


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
    """Compute the elliptic objective of a batch (paper: Algorithm 1); settings are those of `Elliptic`.

    Use this function in loops without an objective module. With several processes use `Elliptic` and wrap
    that: a wrapped model raises an error here where the result would be silently wrong.

    Example:
        >>> model = nn.Linear(4, 1)
        >>> x, y = torch.randn(8, 4), torch.randn(8, 1)
        >>> elliptic_loss(model, nn.MSELoss(), x, y, sigma=0.05).backward()
    """
    if settings.get("schedule") is not None:
        raise ValueError(
            "elliptic_loss cannot use schedule=, because a function does not know the epoch. Pass another "
            "sigma in each epoch, or use Elliptic."
        )
    objective = Elliptic(model, loss_fn, **settings)
    objective._judged_scale = True  # or every call would warn again
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

    Settings are those of `elliptica.Elliptic` that control how points are drawn. To draw in a hidden layer
    (``at=``) use `Elliptic.sample`. Pass the result to `elliptica.path_losses` or to
    ``objective(x, y, paths=...)``.

    Example:
        >>> x, y = torch.randn(6, 3), torch.randn(6, 1)
        >>> paths = sample_paths(x, y, target_space="real", sampling="path", n_times=4)
        >>> paths.x.shape, paths.y.shape
        (torch.Size([6, 1, 4, 3]), torch.Size([6, 1, 4, 1]))
    """
    how = make_settings(BridgeSettings, target_space=target_space, **settings)
    with torch.set_grad_enabled(carries_gradient(x, y, sample_weight, end)):
        batch = read_batch(x, y, sample_weight, how)
        check_generator(generator, batch.reference.device)
        ends = choose_ends(batch, how, partners, end, generator=generator)
        return draw_bridges(batch, ends, how, generator=generator)
