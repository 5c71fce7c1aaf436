"""Declare every setting of the method once, with its default and its check.

`BridgeSettings` controls how points are drawn; `BridgeMix` and `sample_paths` take these. `Settings` adds how
the losses at the points are used; `Elliptic` and `elliptic_loss` take all of them.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.text import did_you_mean
from elliptica.core.batchnorm import BATCH_NORM_MODES, BatchNormMode
from elliptica.core.bridge import QUADRATURES, Quadrature
from elliptica.core.noise import Sigma, check_sigma, refuse_learnable
from elliptica.core.partners import AMONG, PAIRINGS, Among, Pairing, check_real_targets
from elliptica.core.schedule import Schedule, check_schedule
from elliptica.core.targets import SIMPLEX_MAPS, TARGET_SPACES, SimplexMap, TargetSpace, warn_of_smoothing
from elliptica.core.types import Drift, warn_user
from elliptica.core.weighting import (
    VARIANTS,
    WEIGHTINGS,
    GradientDrift,
    Variant,
    Weighting,
    check_drift,
)

Sampling = Literal["path", "marginal"]
SAMPLINGS: tuple[Sampling, ...] = ("path", "marginal")

_B = TypeVar("_B", bound="BridgeSettings")

_FINE_ENOUGH = 20  # with fewer points on a path, the coarse grid dominates a log-weight


@dataclass(frozen=True, kw_only=True, eq=False)
class BridgeSettings:
    """Settings that control how points on bridges are drawn; see `elliptica.Elliptic` for each."""

    target_space: TargetSpace | None = None
    num_classes: int | None = None
    sampling: Sampling = "marginal"
    n_times: int = 5
    n_bridges: int = 1
    sigma: Sigma = 0.05
    sigma_y: float | Tensor | None = None
    horizon: float = 1.0
    antithetic: bool = False
    same_partner: bool = False
    pairing: Pairing = "permutation"
    power: float = 1.0
    bandwidth: float | None = None
    among: Among = "all"
    simplex: SimplexMap = "abs"
    quadrature: Quadrature = "mean"
    bridged: Sequence[Hashable] | None = None
    validate: bool = True

    def __post_init__(self) -> None:
        if self.target_space is not None:
            checks.choice("target_space", self.target_space, TARGET_SPACES)
        checks.choice("sampling", self.sampling, SAMPLINGS)
        checks.choice("pairing", self.pairing, PAIRINGS)
        checks.choice("among", self.among, AMONG)
        checks.choice("simplex", self.simplex, SIMPLEX_MAPS)
        checks.choice("quadrature", self.quadrature, QUADRATURES)
        if self.sampling == "path" and self.quadrature == "uniform":
            raise ValueError(
                'quadrature="uniform" draws a random time for each point, but sampling="path" uses a fixed '
                'grid of times. Use sampling="marginal", or another quadrature.'
            )
        checks.flag("antithetic", self.antithetic)
        checks.flag("same_partner", self.same_partner)
        checks.flag("validate", self.validate)
        checks.path_counts(self.n_times, self.n_bridges, self.antithetic)
        checks.positive("horizon", self.horizon)
        if self.num_classes is not None:
            checks.count("num_classes", self.num_classes)
        checks.nonnegative_number("power", self.power)
        if self.bandwidth is not None:
            checks.positive("bandwidth", self.bandwidth)
            if self.pairing != "label_kernel":
                raise ValueError(
                    f'bandwidth={self.bandwidth:g} is for pairing="label_kernel", but pairing is '
                    f'{self.pairing!r}. Set pairing="label_kernel", or omit bandwidth.'
                )
        if self.pairing == "label_kernel" and self.target_space is not None:
            check_real_targets(self.target_space)
        object.__setattr__(self, "sigma", check_sigma(self.sigma))
        if self.sigma_y is not None:
            checks.nonnegative("sigma_y", self.sigma_y)
            refuse_learnable("sigma_y", self.sigma_y)
            # a number of numpy is not a float
            sigma_y = self.sigma_y if isinstance(self.sigma_y, Tensor) else float(self.sigma_y)
            object.__setattr__(self, "sigma_y", sigma_y)
        elif self.target_space is not None:
            self.settle_sigma_y(self.target_space)
        self.warn_of_smoothing()

    def warn_of_smoothing(self) -> None:
        """Warn if the paper's map to the simplex leaves little mass on the true classes."""
        if self.simplex == "abs" and self.num_classes is not None and isinstance(self.sigma_y, float | int):
            warn_of_smoothing(self.num_classes, self.sigma_y, self.horizon)

    def with_target_space(self: _B, space: TargetSpace) -> _B:
        """Return the same settings with a target space that was not known before."""
        known = copy.copy(self)  # a copy skips the checks, which would warn again
        object.__setattr__(known, "target_space", space)
        if known.sigma_y is None:
            known.settle_sigma_y(space)
        return known

    def settle_sigma_y(self, space: TargetSpace) -> None:
        """Choose ``sigma_y``: equal to ``sigma`` for real targets, zero for classes.

        Noise on labels is label smoothing, which costs calibration. For real targets a number can serve both;
        scales that were measured on the inputs mean nothing for targets.
        """
        same = space == "real" and isinstance(self.sigma, float)
        object.__setattr__(self, "sigma_y", self.sigma if same else 0.0)

    def shown(self) -> dict[str, str]:
        """Return ``sigma``, ``sigma_y`` and all settings that differ from their defaults, as text."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        if self.num_classes is not None and self.target_space == "simplex":
            del values["target_space"]  # follows from the number of classes
        return {
            name: _written(value)
            for name, (value, default) in values.items()
            if name in ("sigma", "sigma_y") or isinstance(value, Tensor) or value != default
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings(BridgeSettings):
    """All settings of the objective; see `elliptica.Elliptic` for each."""

    weighting: Weighting = "none"
    xi: float = 1.0
    drift: Drift | GradientDrift | None = None
    at: str | None = None
    bn: BatchNormMode = "paths"
    chunk_size: int | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.chunk_size is not None:
            checks.count("chunk_size", self.chunk_size)
        checks.choice("weighting", self.weighting, WEIGHTINGS)
        checks.choice("bn", self.bn, BATCH_NORM_MODES)
        check_schedule(self.schedule)
        checks.nonnegative_number("xi", self.xi)
        check_drift(self.drift)
        if self.weighting in VARIANTS and VARIANTS[self.weighting].within_pairs:
            object.__setattr__(self, "same_partner", True)
        super().__post_init__()
        self._check_combination()

    @property
    def variant(self) -> Variant | None:
        """The importance weighting to apply, or None."""
        return None if self.xi == 0.0 else VARIANTS.get(self.weighting)

    def _check_combination(self) -> None:
        """Raise for incompatible settings; warn about questionable ones."""
        variant = VARIANTS.get(self.weighting)
        if self.sampling == "marginal" and variant is not None and variant.needs_path:
            several = " with n_bridges=2 or more" if variant.within_pairs else ""
            raise ValueError(
                f'weighting={self.weighting!r} weights whole paths, but sampling="marginal" draws single '
                f'points. Use sampling="path"{several}, or weighting="gradient_softmax".'
            )
        if variant is not None and variant.within_pairs and self.n_bridges < 2:
            raise ValueError(
                f"weighting={self.weighting!r} compares the bridges between the same two ends, so each point "
                f"needs several, but n_bridges={self.n_bridges}. Use n_bridges=2 or more, or "
                'weighting="gradient_softmax".'
            )
        if self.drift not in (None, "input") and (variant is None or not variant.needs_path):
            raise ValueError(
                f'drift= needs a path weighting, but weighting={self.weighting!r}. Use sampling="path" with '
                'weighting="multiplicative" and n_bridges=2 or more (for a fixed drift), or with '
                'weighting="girsanov" (to train a drift network).'
            )
        if self.drift == "both" and not isinstance(self.sigma_y, Tensor) and self.sigma_y == 0.0:
            raise ValueError(
                'drift="both" also acts on the targets, which must diffuse, but sigma_y=0. Use sigma_y > 0, '
                'or drift="input".'
            )
        own_drift = self.drift is not None and not isinstance(self.drift, str)
        if self.at is not None and (own_drift or self.chunk_size is not None):
            raise ValueError(
                "Bridging in a hidden layer (at=) cannot be combined with drift= or chunk_size=, because the "
                'points exist only during the forward pass. Use sampling="marginal" to limit memory.'
            )
        if self.weighting == "girsanov" and self.n_times < _FINE_ENOUGH:
            warn_user(
                f"With n_times={self.n_times} the coarse grid (the chord's curvature) dominates the Girsanov "
                f"sum, not the diffusion. Use n_times={_FINE_ENOUGH} or more to approximate the integral."
            )


def _written(value: object) -> str:
    if isinstance(value, Tensor):
        low, high = (float(v) for v in value.aminmax())
        return f"{low:.3g} to {high:.3g} per feature"
    if callable(value):
        function = getattr(value, "func", value)
        return str(getattr(function, "__name__", type(function).__name__)).lstrip("_")
    return repr(value)


_S = TypeVar("_S", bound=BridgeSettings)
_T = TypeVar("_T")
_P = ParamSpec("_P")


def make_settings(kind: Callable[_P, _S], *args: _P.args, **given: _P.kwargs) -> _S:
    """Make settings from keywords; for an unknown name, raise an error that suggests a similar one."""
    _check_names(kind, args, given)
    return kind(*args, **given)


def _check_names(kind: Callable[..., object], args: Sequence[object], given: Iterable[str]) -> None:
    if args:
        raise TypeError(
            f"Settings must be passed by name, but got {args[0]!r} without one. Write e.g. num_classes=10."
        )
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"There are {', '.join(known)}."
            if name in Settings.__dataclass_fields__:
                hint = "It acts on the losses: use elliptica.Elliptic."
            raise TypeError(f"There is no setting {name!r}. {hint}")


def check_names(kind: type[_T]) -> type[_T]:
    """Make a class of settings that users instantiate raise the errors of `make_settings`."""
    make = kind.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **given: Any) -> None:
        _check_names(kind, args, given)
        make(self, **given)

    kind.__init__ = init  # type: ignore[method-assign]  # shows the same signature
    return kind


def takes(
    kind: Callable[_P, _S],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, nn.Module, Any, _P], None]]:
    """Replace the last argument of ``(self, model, loss_fn, settings)`` by the keywords of ``kind``.

    Type checkers, ``help`` and ``inspect.signature`` show all of them, though they are declared once.
    """

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, nn.Module, Any, _P], None]:
        @functools.wraps(init)
        def call(self: Any, model: nn.Module, loss_fn: Any, *args: _P.args, **given: _P.kwargs) -> None:
            init(self, model, loss_fn, make_settings(kind, *args, **given))

        own = [p for p in inspect.signature(init).parameters.values() if p.name != "settings"]
        keywords = inspect.signature(kind).parameters.values()
        call.__signature__ = inspect.Signature([*own, *keywords])  # type: ignore[attr-defined]
        return cast(Any, call)

    return decorate
