"""The reports of `elliptica diagnose --reports`: results of the PDE for a model, in text and numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica.core.batchnorm import evaluation_mode
from elliptica.core.elliptic import sample_paths
from elliptica.core.evaluate import log_weights
from elliptica.core.types import EllipticWarning
from elliptica.diagnostics.expected_loss import loss_map, occupation_report
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.hitting import hitting_report
from elliptica.diagnostics.importance_weights import weights_report
from elliptica.diagnostics.maximum_principle import maximum_principle_report
from elliptica.diagnostics.ordering import ordering_report
from elliptica.diagnostics.probes import RegionName, draw_bridges, region, shifted_probes
from elliptica.diagnostics.result import plain
from elliptica.diagnostics.shift import shift_bound
from elliptica.diagnostics.subharmonicity import subharmonicity_report
from elliptica.landscape.data_domain import nearest_other
from elliptica.landscape.domains import Ball, Box, Domain, inside
from elliptica.landscape.loss import loss_kind

#: Largest number of points for the solvers; the comparisons of losses use all points.
_QUERIES = 200
#: Largest number of points for the reports with one solve per target.
_FEW = 20

_LOSSES = {
    "cross_entropy": "cross-entropy minus the entropy of the label (equal to it for labels that are not "
    "mixed)",
    "binary": "binary cross-entropy minus the entropy of the label",
    "squared": "squared error",
    "absolute": "absolute error",
}


@dataclass(frozen=True)
class LandscapeOptions:
    """Settings of the reports.

    Attributes:
        domain: Outer region; ``"auto"``: a reflecting box up to 3 features, a ball beyond.
        fraction: Radius of the ball around each datum, as a share of the distance to its neighbour.
        n_probes: Points on bridges between the data.
        sigma: Noise of those bridges, as a share of each feature's deviation.
        n_walks: Walks per point.
        shift: Size of the shift of the inputs, as a share of each feature's deviation.
        seed: Seed of all random numbers.
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


@dataclass(frozen=True)
class Section:
    """One report.

    Attributes:
        name: Its key in the JSON file.
        question: The question that it answers.
        text: The report in words; an explanation if it does not apply.
        numbers: The report as plain numbers, or None.
    """

    name: str
    question: str
    text: str
    numbers: Any


class LandscapeReports:
    """All reports on one model, each a method; one that does not apply returns a sentence that says so.

    Args:
        fitted: The model with its rows, and test points if there are any.
        options: Region, points and walks.

    Raises:
        ValueError: If the outputs of the model do not fit the targets, or the region cannot be made.
    """

    def __init__(self, fitted: FittedModel, options: LandscapeOptions) -> None:
        _check_outputs(fitted)
        self.fitted, self.options = fitted, options
        self.field, self.flat = fitted.field, fitted.x.flatten(1)
        self.at_data = fitted.losses.to(fitted.x)
        around = self.flat if fitted.test is None else torch.cat([self.flat, fitted.test[0].flatten(1)])
        self.domain, self.domain_name = region(self.flat, options.domain, options.fraction, around)
        bridges = draw_bridges(
            fitted.x,
            fitted.targets,
            options.n_probes,
            target_space=fitted.space,
            sigma=options.sigma * fitted.x.std(0),
            generator=self.generator(),
        )
        self.probes = bridges.x, bridges.y
        self.test_x, self.test_y = self._test_points()
        # drop queries in a ball around a datum, where a walk ends at once
        flat = self.test_x.flatten(1)
        free = self.domain.nearest_ball(flat)[0] > 0
        within = inside(self.domain, flat)  # a hull does not reach the noise of the bridges
        self.n_in_balls, self.n_beyond = int((~free).sum()), int((~within).sum())
        self.queries = (free & within).nonzero().flatten()

    def generator(self) -> torch.Generator:
        """Return the same stream for every report, so that adding one does not change the others."""
        return torch.Generator().manual_seed(self.options.seed)

    def preface(self) -> str:
        """Describe task, loss, points and region of all reports."""
        fitted, has_test = self.fitted, self.fitted.test is not None
        tasks = {
            "simplex": f"classification into {fitted.n_classes} classes",
            "unit": "multilabel",
            "real": "regression",
        }
        loss = _LOSSES.get(loss_kind(fitted.loss_fn) or "", "that of the model")
        lines = [
            f"{len(fitted.x)} training points with {self.flat.shape[1]} features; {tasks[fitted.space]}; "
            f"loss: {loss}.",
            f"Region: {self.domain_name} around training{' and test' if has_test else ''} points, "
            f"with a ball of {self.options.fraction:g} of the neighbour distance around each training point.",
        ]
        place = "points between the data, each with the target of its nearest datum (the file has no x_test)"
        lines.append(
            f"Queries: {'test points' if has_test else place}; {self.n_in_balls} of {len(self.test_x)} lie "
            "in a ball around a datum and are used only to compare losses."
        )
        if self.n_beyond:
            lines.append(f"{self.n_beyond} queries lie outside the region and are skipped by the solvers.")
        outside = int((~inside(_around(self.flat, self.domain.domain), self.test_x.flatten(1))).sum())
        if outside:
            lines.append(
                f"{outside} queries lie outside the region of the training points; it was enlarged for them."
            )
        return "\n".join(lines)

    def some_queries(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the first queries outside the balls."""
        rows = self.queries[:n]
        if len(rows) == 0:
            raise ValueError(
                "Every query lies in a ball around a datum, or outside the region. Use a smaller fraction, "
                "or another domain."
            )
        return self.test_x[rows], self.test_y[rows]

    def _test_points(self) -> tuple[Tensor, Tensor]:
        """Return test points, or else points between the data (with the target of the nearest datum)."""
        if self.fitted.test is not None:
            return self.fitted.test
        x = self.probes[0]
        return x, self.fitted.y[torch.cdist(x.flatten(1), self.flat).argmin(1)]

    def between(self) -> Any:
        """Compare losses on bridges between the data with losses at the data."""
        return maximum_principle_report(self.field, (self.fitted.x, self.fitted.y), self.probes)

    def test(self) -> Any:
        """Compare losses at test points with losses at the data, by class and group."""
        fitted = self.fitted
        if fitted.test is None:
            return "The data have no test points. Add x_test and y_test to the file."
        return maximum_principle_report(
            self.field, (fitted.x, fitted.y), fitted.test, group=fitted.test_groups
        )

    def shifted(self) -> Any:
        """Compare losses after a shift of the inputs with losses at the data."""
        data = (self.fitted.x, self.fitted.y)
        probes = shifted_probes(*data, offset=self.options.shift * self.flat.std(0))
        return maximum_principle_report(self.field, data, probes)

    def subharmonicity(self) -> Any:
        """Test the hypothesis under which the network inherits the maximum principle."""
        radius = 0.5 * float(nearest_other(self.flat).median())
        x, y = self.probes[0][:100], self.probes[1][:100]
        return subharmonicity_report(self.field, x, y, [radius], generator=self.generator())

    def landscape(self) -> Any:
        """Estimate the loss expected at test points, with the training losses on balls around the data."""
        return loss_map(
            self.field,
            self.domain,
            self.some_queries(_QUERIES)[0],
            labels="nearest",
            train=(self.fitted.x, self.fitted.y),
            data_values=self.at_data,
            n_walks=self.options.n_walks,
            generator=self.generator(),
        )

    def occupation(self) -> Any:
        """Estimate the mean loss on the way of a diffusion to the boundary."""
        return occupation_report(
            self.field,
            self.domain,
            *self.some_queries(_FEW),
            self.options.n_walks,
            generator=self.generator(),
        )

    def hitting(self) -> Any:
        """Measure how far from the data the queries are, for the diffusion."""
        at = self.some_queries(_QUERIES)[0]
        return hitting_report(self.domain, at, n_walks=self.options.n_walks, generator=self.generator())

    def shift(self) -> Any:
        """Bound the loss and the landscape under a shift of the inputs, for regression."""
        if not self.field.is_squared:
            return "For regression with the squared error only."
        fitted, size = self.fitted, self.options.shift
        joint = torch.cat([self.flat, fitted.y.flatten(1)], dim=1)
        transform = (None, size * self.flat.std(0))
        x, y, domain = fitted.x[:_FEW], fitted.y[:_FEW], Ball.around(joint, 1.1 + size)
        settings: dict[str, Any] = {"n_walks": self.options.n_walks, "generator": self.generator()}
        try:
            return shift_bound(self.field, x, y, transform, domain, **settings)
        except TypeError:  # layers with unknown constants: use an estimate, and say so
            return shift_bound(self.field, x, y, transform, domain, lipschitz="estimated", **settings)

    def weights(self) -> Any:
        """Judge the weights of whole bridges, with the gradient of the loss as drift."""
        fitted, n = self.fitted, min(len(self.fitted.x), _QUERIES)
        paths = sample_paths(
            fitted.x[:n],
            fitted.targets[:n],
            target_space=fitted.space,
            sampling="path",
            n_bridges=10,
            same_partner=True,
            sigma=self.options.sigma * fitted.x.std(0),
            generator=self.generator(),
        )
        with evaluation_mode(fitted.model):
            return weights_report(log_weights(fitted.model, fitted.loss_fn, paths).detach())

    def ordering(self) -> Any:
        """Compare a rare class with a common one."""
        if self.fitted.labels is None:
            return "For classes only: pass rare and common points to ordering_report yourself."
        counts = torch.bincount(self.fitted.labels)
        rare, common = int(counts.argmin()), int(counts.argmax())
        if counts[common] < 1.5 * counts[rare]:
            return "No class is rare here (the largest has less than 1.5 times the rows of the smallest)."
        labels = self.test_y.argmax(1) if self.test_y.is_floating_point() else self.test_y
        points = []
        for label in (rare, common):
            rows = self.queries[labels[self.queries] == label][:_FEW]
            if len(rows) == 0:
                return f"No test point of class {label} lies outside the balls around the data."
            points.append((self.test_x[rows], self.test_y[rows]))
        return ordering_report(
            self.field,
            self.domain,
            points[0],
            points[1],
            probes=self.some_queries(_FEW),
            n_walks=self.options.n_walks,
            joint=False,
            generator=self.generator(),
        )


#: Names of the reports in their order, and the question that each answers.
QUESTIONS = {
    "between": "Does the loss between my data exceed the loss at my data?",
    "test": "Does the loss at test points exceed it, and in which class or group?",
    "shifted": "Does the loss exceed it when all inputs are shifted (--shift deviations)?",
    "subharmonicity": "Is the loss subharmonic, so that the bound holds for the network?",
    "landscape": "Which loss does the PDE expect at the queries, given the losses at the data?",
    "occupation": "What is the mean loss along a diffusion from a point to the boundary?",
    "hitting": "How far are the queries from the data, for the diffusion?",
    "shift": "Which bound holds for the loss, and for the landscape, under a shift of the inputs?",
    "weights": "Could importance weights on bridges (multiplicative, xi = 1) be trusted for this model?",
    "ordering": "Is the expected loss (labels kept) higher where data are rare?",
}


def run_reports(reports: LandscapeReports, wanted: tuple[str, ...] = tuple(QUESTIONS)) -> Iterator[Section]:
    """Run reports one by one; one that fails reports why and does not stop the others."""
    for name in wanted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EllipticWarning)  # the notes of each report say the same
            try:
                result = getattr(reports, name)()
            except (ValueError, RuntimeError) as error:
                yield Section(name, QUESTIONS[name], f"Not computed: {error}", None)
                continue
        numbers = None if isinstance(result, str) else plain(result)
        yield Section(name, QUESTIONS[name], str(result), numbers)


def _check_outputs(fitted: FittedModel) -> None:
    """Evaluate two rows before anything long, and compare the outputs with the targets."""
    rows = fitted.x[:2]
    try:
        with evaluation_mode(fitted.model), torch.no_grad():
            output = fitted.model(rows)
        if not isinstance(output, Tensor):
            raise TypeError(f"it returns {type(output).__name__}, not a tensor")
        if len(output) != 2:
            raise ValueError(f"for 2 rows it returns the shape {tuple(output.shape)}")
    except Exception as error:  # it is the user's code
        raise ValueError(
            f"The model cannot be evaluated on the data (inputs {tuple(rows.shape)}): {error}"
        ) from error
    if fitted.y.is_floating_point():
        if output.shape != fitted.y[:2].shape:
            raise ValueError(
                f"The model returns {tuple(output.shape[1:])} per row, but the targets are "
                f"{tuple(fitted.y.shape[1:])} (real numbers: a regression). For classes, save y as "
                "whole numbers."
            )
        return
    largest = max(int(y.max()) for y in (fitted.y, *([] if fitted.test is None else [fitted.test[1]])))
    if output.ndim != 2 or output.shape[1] <= largest:
        raise ValueError(
            f"Labels range up to {largest}, but the model returns {tuple(output.shape[1:])} per row. One "
            "logit for each class is needed."
        )


def _around(points: Tensor, outer: Domain) -> Domain:
    """Make a region of the same kind around some points."""
    if isinstance(outer, Box):
        return Box.around(points, wall=outer.wall)
    return Ball.around(points) if isinstance(outer, Ball) else outer
