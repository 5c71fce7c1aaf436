"""A model, its data and the region between them: what all reports of `elliptica landscape` are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.diagnostics.bridges import RegionName, draw_bridges, region
from elliptica.diagnostics.source import Samples, SourceError
from elliptica.landscape.domains import Ball, Box, Domain, inside
from elliptica.landscape.loss import LossField, evaluation_mode, excess_cross_entropy


@dataclass(frozen=True)
class Options:
    """Settings of the reports.

    Attributes:
        domain: Outer region; ``"auto"``: a reflecting box up to 3 features, a ball beyond.
        fraction: Radius of the ball around each datum, as a share of the distance to its neighbour.
        n_probes: Points on bridges between the data.
        sigma: Noise of those bridges, as a share of each feature's deviation.
        n_walks: Walks per point.
        shift: Size of the shift of the inputs in the report on shifts (regression), as a share of each
            feature's deviation.
        seed: Of everything that is drawn.
    """

    domain: RegionName = "auto"
    fraction: float = 0.3
    n_probes: int = 500
    sigma: float = 0.05
    n_walks: int = 500
    shift: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        checks.choice("domain", self.domain, get_args(RegionName))
        checks.count("n_probes", self.n_probes, 10)
        checks.count("n_walks", self.n_walks, 16)
        checks.nonnegative("sigma", self.sigma)
        checks.nonnegative("shift", self.shift)


class Subject:
    """A model on its data: checked once, with the points at which it is looked at."""

    def __init__(self, model: nn.Module, samples: Samples, options: Options) -> None:
        self.samples, self.options = samples, options
        classes = self._check_model(model)
        loss: Callable[..., Tensor] = excess_cross_entropy if samples.is_classification else nn.MSELoss()
        self.field = LossField(model, loss, num_classes=classes)
        self.flat = samples.x.flatten(1)
        self.at_data = self.field(samples.x, samples.y)
        self.domain, self.domain_name = region(
            self.flat, options.domain, options.fraction, self._everything()
        )
        self.probes = self._bridges(classes)
        self.test_x, self.test_y = self._test_points()
        # in a ball around a datum nothing is estimated: a walk ends where it starts
        flat = self.test_x.flatten(1)
        free = self.domain.nearest_ball(flat)[0] > 0
        within = inside(self.domain, flat)  # a hull does not reach the noise of the bridges
        self.n_in_balls, self.n_beyond = int((~free).sum()), int((~within).sum())
        self.queries = (free & within).nonzero().flatten()

    def generator(self) -> torch.Generator:
        """The same stream for every report, so that adding one leaves the others alone."""
        return torch.Generator().manual_seed(self.options.seed)

    @property
    def has_test(self) -> bool:
        """Whether the data came with test points."""
        return self.samples.test_x is not None

    def preface(self) -> str:
        """Which task, loss, points and region all reports are about."""
        samples = self.samples
        if samples.is_classification:
            task = f"classification into {self.field.num_classes} classes"
            loss = "cross-entropy minus the entropy of the label (equal to it for labels that are not mixed)"
        else:
            task, loss = "regression", "squared error"
        lines = [
            f"{len(samples.x)} training points with {self.flat.shape[1]} features; {task}; loss: {loss}.",
            f"Region: {self.domain_name} around training{' and test' if self.has_test else ''} points, "
            f"with a ball of {self.options.fraction:g} of the neighbour distance around each training point.",
        ]
        place = (
            "test points"
            if self.has_test
            else (
                "points between the data, each with the target of its nearest datum (the file has no x_test)"
            )
        )
        lines.append(
            f"Queries: {place}; {self.n_in_balls} of {len(self.test_x)} lie in a ball around a datum and are "
            "left to the comparisons of losses."
        )
        if self.n_beyond:
            lines.append(f"{self.n_beyond} queries lie outside the region and are left out of the solves.")
        outside = int((~inside(_around(self.flat, self.domain.domain), self.test_x.flatten(1))).sum())
        if outside:
            lines.append(
                f"{outside} queries lie outside the region of the training points; it was enlarged for them."
            )
        return "\n".join(lines)

    def _check_model(self, model: nn.Module) -> int | None:
        """One forward pass before anything long; the number of classes, if there are any."""
        rows = self.samples.x[:2]
        try:
            with evaluation_mode(model), torch.no_grad():
                output = model(rows)
            if not isinstance(output, Tensor):
                raise TypeError(f"it returns {type(output).__name__}, not a tensor")
            if len(output) != 2:
                raise ValueError(f"for 2 rows it returns the shape {tuple(output.shape)}")
        except Exception as error:  # it is the user's code
            raise SourceError(
                f"The model cannot be evaluated on the data (inputs {tuple(rows.shape)}): {error}"
            ) from error
        if not self.samples.is_classification:
            if output.shape != self.samples.y[:2].shape:
                raise SourceError(
                    f"The model returns {tuple(output.shape[1:])} per row, but the targets are "
                    f"{tuple(self.samples.y.shape[1:])} (real numbers: a regression). For classes, save y as "
                    "whole numbers."
                )
            return None
        if output.ndim != 2 or output.shape[1] < self.samples.n_outputs:
            raise SourceError(
                f"The labels go up to {self.samples.n_outputs - 1}, but the model returns "
                f"{tuple(output.shape[1:])} per row: one logit for each class is needed."
            )
        return output.shape[1]

    def _everything(self) -> Tensor:
        """Training and test points, which the region must hold."""
        if self.samples.test_x is None:
            return self.flat
        return torch.cat([self.flat, self.samples.test_x.flatten(1)])

    def _bridges(self, classes: int | None) -> tuple[Tensor, Tensor]:
        bridges = draw_bridges(
            self.samples.x,
            self.samples.y,
            self.options.n_probes,
            target_space="simplex" if self.samples.is_classification else "real",
            num_classes=classes,
            sigma=self.options.sigma * self.samples.x.std(0),
            generator=self.generator(),
        )
        return bridges.x, bridges.y

    def _test_points(self) -> tuple[Tensor, Tensor]:
        """Test points, or else points between the data (with the target of the nearest datum)."""
        if self.samples.test_x is not None and self.samples.test_y is not None:
            return self.samples.test_x, self.samples.test_y
        x = self.probes[0]
        nearest = torch.cdist(x.flatten(1), self.flat).argmin(1)
        return x, self.samples.y[nearest]

    def some_queries(self, n: int) -> tuple[Tensor, Tensor]:
        """The first queries outside the balls."""
        rows = self.queries[:n]
        if len(rows) == 0:
            raise ValueError(
                "Every query lies in a ball around a datum, or outside the region. Use a smaller fraction, "
                "or another domain."
            )
        return self.test_x[rows], self.test_y[rows]


def _around(points: Tensor, outer: Domain) -> Domain:
    """The region of the same kind around some of the points."""
    if isinstance(outer, Box):
        return Box.around(points, wall=outer.wall)
    return Ball.around(points) if isinstance(outer, Ball) else outer
