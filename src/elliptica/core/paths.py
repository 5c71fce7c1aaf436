"""From a batch to points on bridges: partners, times, noise and targets together.

Order of draws (part of the contract): partners, times, noise of each input, noise of the targets;
noise of a hidden layer is drawn when that layer runs. Rows are laid out time-major and bridge-major in
memory, ``(time, bridge * batch, *feature)``, and shown as ``(batch, bridge, time, *feature)`` views.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import check_generator
from elliptica.core.bridge import (
    bridge_rows,
    marginal_rows,
    quantile_times,
    stratified_times,
    time_grid,
    unit_spread,
)
from elliptica.core.hidden import HiddenBridge
from elliptica.core.inputs import (
    bridged_names,
    check_batch,
    check_weight,
    count_rows,
    named_inputs,
    rebuild_inputs,
)
from elliptica.core.noise import PairLaw, auto_sigma, noise_std
from elliptica.core.partners import sample_partners
from elliptica.core.settings import PathSettings
from elliptica.core.targets import encode_targets, project_targets
from elliptica.core.types import Inputs, Paths


@dataclass(frozen=True)
class PathSampler(PathSettings):
    """Settings of the bridges, checked once; `draw` makes `Paths` of a batch."""

    def draw(
        self,
        x: Inputs,
        y: Tensor,
        *,
        sample_weight: Tensor | None = None,
        partners: Tensor | None = None,
        end: End | None = None,
        features: Tensor | None = None,
        strength: float = 1.0,
        sigma: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Paths:
        """Draw paths for a batch.

        ``features`` are what distances between points are measured on, ``strength`` multiplies the
        noise, ``sigma`` replaces ``"auto"``; everything else is as in `Elliptic.forward`.
        """
        inputs = named_inputs(x)
        rows = count_rows(inputs)
        names = bridged_names(inputs, self.bridged)
        reference = inputs[names[0]]
        check_generator(generator, reference.device)
        check_batch(inputs, names if self.at is None else [], y, rows, self.validate)
        check_weight(sample_weight, rows)
        targets = self._encode(y, reference)
        if end is not None:
            self._check_end(partners)
            label_axes = 1 if self.target_space == "simplex" else 0
            ends = ends_given(
                end, inputs, targets, self.n_bridges, lambda far: self._encode(far, reference), label_axes
            )
            if ends.weight is not None and sample_weight is None:
                raise ValueError("end holds sample weights, but the batch has none. Pass sample_weight= too.")
        elif partners is not None:
            ends = ends_in_batch(partners, rows, self.n_bridges)
        else:
            drawn = self._partners(reference if features is None else features, y, generator)
            ends = Ends(self.n_bridges, drawn.t().reshape(-1))
        s = self._times(rows, targets, generator)
        spread = unit_spread(s[0]) if self.sampling == "marginal" else None

        points: dict[Hashable, Tensor] = {}
        variance: dict[Hashable, float | Tensor] = {}
        for name, value in inputs.items():
            pair = ends.of_input(name, value)
            if name not in names:
                points[name] = carried(*pair, s)
            elif self.at is not None:
                points[name] = ends_only(*pair, s)
            else:
                scaled = _scaled(self._resolve(value, sigma), strength)
                points[name], variance[name] = self._bridge(*pair, s, spread, scaled, generator)
        assert self.sigma_y is not None
        free_y, variance_y = self._bridge(
            *ends.of(targets, ends.y), s, spread, _scaled(self.sigma_y, strength), generator
        )
        y_points = free_y if _is_zero(variance_y) else self._project(free_y)
        shown_y = view_rows(y_points, self.n_bridges)
        weight = None
        if sample_weight is not None:
            pair = ends.of(sample_weight, ends.weight)
            weight = view_rows(torch.lerp(*pair, s.to(sample_weight.dtype)), self.n_bridges)
        hidden = None
        if self.at is not None:
            hidden = HiddenBridge(self.at, self._hidden_bridge(s, ends, strength, generator))
        return Paths(
            x=rebuild_inputs(x, {k: view_rows(v, self.n_bridges) for k, v in points.items()}),
            y=shown_y,
            s=view_rows(s, self.n_bridges),
            variance=variance,
            weight=weight,
            free_y=shown_y if free_y is y_points else view_rows(free_y, self.n_bridges),
            variance_y=variance_y,
            hidden=hidden,
        )

    def _bridge(
        self,
        start: Tensor,
        end: Tensor,
        s: Tensor,
        spread: Tensor | None,
        sigma: float | Tensor | PairLaw,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, float | Tensor]:
        """Points ``(time, rows, *feature)`` and the variance ``sigma**2 * horizon`` behind them."""
        std = noise_std(sigma, start, end, self.horizon, generator, self.antithetic)
        if self.sampling == "path":
            points = bridge_rows(
                start,
                end,
                n_times=self.n_times,
                std=std,
                antithetic=self.antithetic,
                generator=generator,
            )
        else:
            points = marginal_rows(
                start, end, s[0], std=std, spread=spread, antithetic=self.antithetic, generator=generator
            ).unsqueeze(0)
        return points, std**2

    def _hidden_bridge(
        self, s: Tensor, ends: Ends, strength: float, generator: torch.Generator | None
    ) -> Callable[[Tensor], tuple[Tensor, float | Tensor]]:
        """A function that bridges the rows of a layer once its output is known."""

        def bridge(rows: Tensor) -> tuple[Tensor, float | Tensor]:
            layer = rows.unflatten(0, (len(s), -1))
            start, far = layer[0], layer[-1]
            if ends.index is not None and len(s) == 1:
                far = start.index_select(0, ends.index)
            sigma = _scaled(self._resolve(start.detach(), None), strength)
            points, variance = self._bridge(start, far, s, None, sigma, generator)
            return points.flatten(0, 1), variance

        return bridge

    def _project(self, y: Tensor) -> Tensor:
        """Back into the target space; the ends of a path are there already and stay bit-exact."""
        if self.target_space == "real":
            return y
        if self.sampling == "marginal":
            return project_targets(y, self.target_space, self.simplex, class_axis=2)
        inner = project_targets(y[1:-1], self.target_space, self.simplex, class_axis=2)
        return torch.cat([y[:1], inner, y[-1:]])

    def _resolve(self, value: Tensor, sigma: Tensor | None) -> float | Tensor | PairLaw:
        """``sigma``, with ``"auto"`` measured on ``value`` unless it was measured before."""
        if self.sigma == "auto":
            return auto_sigma(value) if sigma is None else sigma
        assert not isinstance(self.sigma, str | tuple)
        return self.sigma

    def _partners(self, features: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw a partner for each bridge; antithetic bridges share theirs."""
        labels = None
        if self.among != "all":
            labels = y.argmax(1) if y.is_floating_point() and y.ndim > 1 else y
            if self.target_space != "simplex" or labels.ndim != 1 or labels.is_floating_point():
                raise ValueError(
                    f"among={self.among!r} needs one class per row, but y has shape "
                    f'{tuple(y.shape)} and dtype {y.dtype}. Use among="all".'
                )
        partners = sample_partners(
            features,
            n_bridges=self.n_bridges // 2 if self.antithetic else self.n_bridges,
            pairing=self.pairing,
            power=self.power,
            labels=labels,
            among=self.among,
            generator=generator,
        )
        return partners.repeat(1, 2) if self.antithetic else partners

    def _check_end(self, partners: Tensor | None) -> None:
        """Given far ends exclude partners, and marginal bridging in a hidden layer."""
        if partners is not None:
            raise ValueError("Give partners (row numbers of the batch) or end, not both.")
        if self.at is not None and self.sampling == "marginal":
            raise ValueError(
                'end= with at= needs the far ends in the forward pass: use sampling="path", or put '
                "both ends into the batch and pass partners=."
            )

    def encode(self, x: Inputs, y: Tensor) -> Tensor:
        """Targets of a batch as points of their space, in the dtype of its inputs."""
        return self._encode(y, next(iter(named_inputs(x).values())))

    def _encode(self, y: Tensor, reference: Tensor) -> Tensor:
        """Targets as points of their space."""
        dtype = reference.dtype if reference.is_floating_point() else torch.get_default_dtype()
        return encode_targets(
            y, self.target_space, num_classes=self.num_classes, dtype=dtype, validate=self.validate
        )

    def _times(self, rows: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Relative times ``(time, bridge * batch)``: the grid of a path, or one time per row."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        if self.sampling == "path":
            grid = torch.tensor(time_grid(self.n_times), dtype=dtype, device=like.device)
            return grid[:, None].expand(-1, self.n_bridges * rows)
        draws = self.n_bridges // 2 if self.antithetic else self.n_bridges
        u = stratified_times(rows, draws, device=like.device, generator=generator)
        s = quantile_times(u.to(dtype), self.n_times, self.quadrature)
        return s.repeat(1, 2) if self.antithetic else s


def _scaled(sigma: float | Tensor | PairLaw, strength: float) -> float | Tensor | PairLaw:
    """``sigma`` times a factor."""
    if strength == 1.0:
        return sigma
    if isinstance(sigma, PairLaw):
        return dataclasses.replace(sigma, scale=sigma.scale * strength)
    return sigma * strength


def _is_zero(variance: float | Tensor) -> bool:
    return not isinstance(variance, Tensor) and variance == 0.0


# Both ends of every bridge of a batch, as rows laid out ``(bridge * batch, *feature)``.


#: The far end of each pair when it is not in the batch: inputs, targets and, optionally, weights.
End = tuple[Inputs, Tensor] | tuple[Inputs, Tensor, Tensor]


def view_rows(z: Tensor, n_bridges: int) -> Tensor:
    """``(time, bridge * batch, *feature)`` as ``(batch, bridge, time, *feature)``, without a copy."""
    if n_bridges == 1:
        return z.transpose(0, 1).unsqueeze(1)
    return z.reshape(len(z), n_bridges, -1, *z.shape[2:]).transpose(0, 2)


def flatten_rows(z: Tensor) -> Tensor:
    """``(batch, bridge, time, *feature)`` as ``(time, bridge * batch, *feature)``."""
    return z.transpose(0, 2).flatten(1, 2)


@dataclass(frozen=True)
class Ends:
    """Where bridges end: at rows ``index`` of the batch, or at points that were given.

    Attributes:
        n_bridges: Bridges per point.
        index: Partner of each row, ``(bridge * batch,)``; None when the far ends were given.
        x: Far ends of the inputs by name, when given.
        y: Far ends of the encoded targets, when given.
        weight: Sample weights of the far ends, when given.
    """

    n_bridges: int
    index: Tensor | None
    x: Mapping[Hashable, Tensor] | None = None
    y: Tensor | None = None
    weight: Tensor | None = None

    def of(self, value: Tensor, far: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both ends of ``value``; ``far`` is its given end, if there is one."""
        start = value
        if self.n_bridges > 1:
            start = value.repeat(self.n_bridges, *[1] * (value.ndim - 1))
        if self.index is not None:
            return start, value.index_select(0, self.index)
        return start, start if far is None else far

    def of_input(self, name: Hashable, value: Tensor) -> tuple[Tensor, Tensor]:
        """Both ends of the input ``name``."""
        return self.of(value, None if self.x is None else self.x[name])


def ends_in_batch(partners: Tensor, rows: int, n_bridges: int) -> Ends:
    """Ends at other rows of the batch; ``partners`` is ``(batch, bridge)`` or ``(batch,)``."""
    if not isinstance(partners, Tensor):
        raise TypeError(
            f"partners must be a torch.Tensor of row numbers, but got {type(partners).__name__}. "
            "Convert it with torch.as_tensor(partners)."
        )
    if partners.is_floating_point() or partners.dtype == torch.bool:
        raise TypeError(f"partners must hold row numbers, but has dtype {partners.dtype}.")
    if partners.ndim == 1:
        partners = partners[:, None].expand(-1, n_bridges)
    if tuple(partners.shape) != (rows, n_bridges):
        raise ValueError(
            f"partners must have shape (batch, n_bridges) = ({rows}, {n_bridges}), but has "
            f"{tuple(partners.shape)}."
        )
    low, high = (int(v) for v in partners.aminmax())
    if low < 0 or high >= rows:
        raise ValueError(
            f"partners must be rows of this batch, 0..{rows - 1}, but span {low} to {high}. Rows of a "
            "data set (as a PartnerTable gives) go in as end=(x[partner], y[partner])."
        )
    return Ends(n_bridges, partners.t().reshape(-1))


def ends_given(
    end: End,
    inputs: Mapping[Hashable, Tensor],
    targets: Tensor,
    n_bridges: int,
    encode: Callable[[Tensor], Tensor],
    label_axes: int,
) -> Ends:
    """Ends that need not be in the batch.

    ``encode`` turns their targets into points, which adds ``label_axes`` axes to integer labels.
    """
    if not isinstance(end, tuple) or len(end) not in (2, 3):
        raise TypeError(
            "end must be a tuple (x, y) or (x, y, sample_weight) of the far ends, but got "
            f"{type(end).__name__}."
        )
    if not isinstance(end[1], Tensor):
        raise TypeError(f"end's y must be a torch.Tensor, but got {type(end[1]).__name__}.")
    far_inputs = named_inputs(end[0])
    if list(far_inputs) != list(inputs):
        raise ValueError(
            f"end must hold the same inputs as x ({', '.join(map(repr, inputs))}), but holds "
            f"{', '.join(map(repr, far_inputs))}."
        )
    rows = len(targets)
    x = {
        name: _far_rows(f"end's x[{name!r}]", far, inputs[name].shape, n_bridges, inputs[name].dtype)
        for name, far in far_inputs.items()
    }
    labels = end[1]
    axes = targets.ndim - (0 if labels.is_floating_point() or labels.dtype == torch.bool else label_axes)
    if labels.ndim == axes + 1 and labels.shape[:2] == (rows, n_bridges):  # a target for each bridge
        y = encode(labels.flatten(0, 1)).unflatten(0, (rows, n_bridges))
    else:
        y = encode(labels)
    weight = None
    if len(end) == 3:
        weight = _far_rows("end's sample_weight", end[2], targets.shape[:1], n_bridges)
    return Ends(n_bridges, None, x, _far_rows("end's y", y, targets.shape, n_bridges), weight)


def _far_rows(
    name: str, far: Tensor, shape: torch.Size, n_bridges: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Lay far ends out as ``(bridge * batch, *feature)``."""
    checks.finite(name, far)
    if dtype is not None and far.dtype != dtype:
        raise TypeError(f"{name} has dtype {far.dtype}, but x has {dtype}. Convert it with .to({dtype}).")
    with_bridges = (shape[0], n_bridges, *shape[1:])
    if tuple(far.shape) == with_bridges:
        return far.transpose(0, 1).flatten(0, 1)
    if far.shape == shape:
        return far.repeat(n_bridges, *[1] * (far.ndim - 1))
    raise ValueError(f"{name} must have shape {with_bridges} or {tuple(shape)}, but has {tuple(far.shape)}.")


def carried(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Inputs that are not bridged come from the nearer end (the start, half-way)."""
    near_start = (s <= 0.5).reshape(*s.shape, *[1] * (start.ndim - 1))
    return torch.where(near_start, start.unsqueeze(0), end.unsqueeze(0))


def ends_only(start: Tensor, end: Tensor, s: Tensor) -> Tensor:
    """Rows for bridging in a hidden layer: the start at every time, the end at the last."""
    if len(s) == 1:
        return start.unsqueeze(0)
    return torch.cat([start.unsqueeze(0).expand(len(s) - 1, *start.shape), end.unsqueeze(0)])
