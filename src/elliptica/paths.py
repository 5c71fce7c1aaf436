"""From a batch to points on bridges: partners, times, noise and targets together.

Order of draws (part of the contract): partners, times, noise of each input, noise of the targets;
noise of a hidden layer is drawn when that layer runs. Rows are laid out time-major and bridge-major in
memory, ``(time, bridge * batch, *feature)``, and shown as ``(batch, bridge, time, *feature)`` views.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from elliptica._ends import (
    End,
    Ends,
    carried,
    ends_given,
    ends_in_batch,
    ends_only,
    view_rows,
)
from elliptica._inputs import (
    bridged_names,
    check_batch,
    check_weight,
    count_rows,
    named_inputs,
    rebuild_inputs,
)
from elliptica._random import check_generator
from elliptica.bridge import (
    bridge_rows,
    marginal_rows,
    quantile_times,
    stratified_times,
    time_grid,
    unit_spread,
)
from elliptica.diffusion import PairLaw, auto_sigma, noise_std
from elliptica.hidden import HiddenBridge
from elliptica.pairing import sample_partners
from elliptica.path_settings import PathSettings
from elliptica.targets import (
    encode_targets,
    project_targets,
)
from elliptica.types import Inputs, Paths


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
