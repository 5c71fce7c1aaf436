"""The reports of `elliptica landscape`, one after the other, each as text and as numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from elliptica import _checks
from elliptica.inspection.source import Samples, SourceError
from elliptica.landscape.data_domain import DataDomain, Outer, nearest_other
from elliptica.landscape.domains import Ball, Box, Domain, Polytope
from elliptica.landscape.loss import LossField, excess_cross_entropy
from elliptica.landscape.reports import (
    bridge_probes,
    hitting_report,
    loss_map,
    maximum_principle_report,
    occupation_report,
    ordering_report,
    shift_bound,
    subharmonicity_report,
)
from elliptica.landscape.reports._base import plain
from elliptica.types import EllipticWarning

DomainName = Literal["auto", "ball", "box", "reflecting_box", "hull"]

#: Most points that the solvers look at; the plain comparisons of losses use all of them.
_QUERIES = 200
#: Most points for the reports that cost one solve per target.
_FEW = 20


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

    domain: DomainName = "auto"
    fraction: float = 0.3
    n_probes: int = 500
    sigma: float = 0.05
    n_walks: int = 500
    shift: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.choice("domain", self.domain, get_args(DomainName))
        _checks.count("n_probes", self.n_probes, 10)
        _checks.count("n_walks", self.n_walks, 16)
        _checks.nonnegative("sigma", self.sigma)
        _checks.nonnegative("shift", self.shift)


@dataclass(frozen=True)
class Section:
    """One report.

    Attributes:
        name: Its key in the JSON file.
        question: What it answers.
        text: The report in words; an explanation if it does not apply.
        numbers: The report as plain numbers, or None.
    """

    name: str
    question: str
    text: str
    numbers: Any


class Inspector:
    """A model, its data and the region between them; every report is a method."""

    def __init__(self, model: nn.Module, samples: Samples, options: Options) -> None:
        self.samples, self.options = samples, options
        loss: Callable[..., Tensor] = excess_cross_entropy if samples.is_classification else nn.MSELoss()
        classes = samples.n_outputs if samples.is_classification else None
        self.field = LossField(model, loss, num_classes=classes)
        self._check_model(model)
        self.flat = samples.x.flatten(1)
        self.at_data = self.field(samples.x, samples.y)
        self.domain = self._domain()
        self.probes = self._bridges()
        self.test_x, self.test_y = self._test_points()

    def generator(self) -> torch.Generator:
        """The same stream for every report, so that adding one leaves the others alone."""
        return torch.Generator().manual_seed(self.options.seed)

    def _check_model(self, model: nn.Module) -> None:
        """One forward pass before anything long."""
        rows = self.samples.x[:2]
        try:
            output = self.field(rows, self.samples.y[:2])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise SourceError(
                f"The model cannot be evaluated on the data (inputs {tuple(rows.shape)}, targets "
                f"{tuple(self.samples.y[:2].shape)}): {error}"
            ) from error
        assert len(output) == 2

    def _domain(self) -> DataDomain:
        dim = self.flat.shape[1]
        name: Outer | DomainName = self.options.domain
        if name == "auto":
            name = "reflecting_box" if dim <= 3 else "ball"
        everything = self.flat
        if self.samples.test_x is not None:
            everything = torch.cat([self.flat, self.samples.test_x.flatten(1)])
        everything = everything[:, everything.std(0) > 0] if name == "hull" else everything
        outer: Domain
        if name == "ball":
            outer = Ball.around(everything)
        elif name == "hull":
            outer = Polytope.hull(everything)
        else:
            outer = Box.around(everything, wall="reflect" if name == "reflecting_box" else "absorb")
        return DataDomain(self.flat, fraction=self.options.fraction, outer=outer)

    def _bridges(self) -> tuple[Tensor, Tensor]:
        generator = self.generator()
        rows = torch.randint(len(self.samples.x), (self.options.n_probes,), generator=generator)
        classes = self.samples.n_outputs if self.samples.is_classification else None
        return bridge_probes(
            self.samples.x[rows],
            self.samples.y[rows],
            target_space="simplex" if self.samples.is_classification else "real",
            num_classes=classes,
            sampling="marginal",
            quadrature="uniform",
            sigma=self.options.sigma * self.samples.x.std(0),
            sigma_y=0.0,
            generator=generator,
        )

    def _test_points(self) -> tuple[Tensor, Tensor]:
        """Test points, or else points between the data (with the target of the nearest datum)."""
        if self.samples.test_x is not None and self.samples.test_y is not None:
            return self.samples.test_x, self.samples.test_y
        x = self.probes[0]
        nearest = torch.cdist(x.flatten(1), self.flat).argmin(1)
        return x, self.samples.y[nearest]

    def between(self) -> Any:
        """Losses on bridges between the data against losses at the data."""
        return maximum_principle_report(self.field, (self.samples.x, self.samples.y), self.probes)

    def test(self) -> Any:
        """The same at test points, by class and group."""
        group = self.samples.group
        return maximum_principle_report(
            self.field, (self.samples.x, self.samples.y), (self.test_x, self.test_y), group=group
        )

    def subharmonicity(self) -> Any:
        """The hypothesis under which the network inherits the maximum principle."""
        radius = 0.5 * float(nearest_other(self.flat).median())
        x, y = self.probes[0][:100], self.probes[1][:100]
        return subharmonicity_report(self.field, x, y, [radius], generator=self.generator())

    def landscape(self) -> Any:
        """Expected loss at test points, with the training losses on balls around the data."""
        return loss_map(
            self.field,
            self.domain,
            self.test_x[:_QUERIES],
            labels="nearest",
            train=(self.samples.x, self.samples.y),
            data_values=self.at_data,
            n_walks=self.options.n_walks,
            generator=self.generator(),
        )

    def occupation(self) -> Any:
        """Mean loss on the way of a diffusion: what the bridge objective minimises."""
        return occupation_report(
            self.field,
            self.domain,
            self.test_x[:_FEW],
            self.test_y[:_FEW],
            self.options.n_walks,
            generator=self.generator(),
        )

    def hitting(self) -> Any:
        """How far from the data, in the terms of the diffusion."""
        at = self.test_x[:_QUERIES]
        return hitting_report(self.domain, at, n_walks=self.options.n_walks, generator=self.generator())

    def shift(self) -> Any:
        """A guarantee under a shift of the inputs, for regression."""
        if self.samples.is_classification:
            return "For regression with the squared error only."
        joint = torch.cat([self.flat, self.samples.y.flatten(1)], dim=1)
        offset = self.options.shift * self.flat.std(0)
        x, y = self.samples.x[:_FEW], self.samples.y[:_FEW]
        domain = Ball.around(joint, 1.1 + self.options.shift)
        transform = (None, offset)
        settings: dict[str, Any] = {"n_walks": self.options.n_walks, "generator": self.generator()}
        try:
            return shift_bound(self.field, x, y, transform, domain, **settings)
        except TypeError:  # layers of unknown constant: an estimate, and called so
            return shift_bound(self.field, x, y, transform, domain, lipschitz="estimated", **settings)

    def ordering(self) -> Any:
        """Rare class against common class."""
        if not self.samples.is_classification:
            return "For classes only: pass rare and common points to ordering_report yourself."
        counts = torch.bincount(self.samples.y)
        rare, common = int(counts.argmin()), int(counts.argmax())
        if counts[common] < 1.5 * counts[rare]:
            return "No class is rare here (the largest has less than 1.5 times the rows of the smallest)."
        points = []
        free = self.domain.distance(self.test_x.flatten(1)) > 0  # in a ball a walk ends where it starts
        for label in (rare, common):
            rows = ((self.test_y == label) & free).nonzero().flatten()[:_FEW]
            if len(rows) == 0:
                return f"No test point of class {label} lies outside the balls around the data."
            points.append((self.test_x[rows], self.test_y[rows]))
        return ordering_report(
            self.field,
            self.domain,
            points[0],
            points[1],
            n_walks=self.options.n_walks,
            joint=False,
            generator=self.generator(),
        )


#: Order and questions of the page.
QUESTIONS = {
    "between": "Does the loss between my data exceed the loss at my data?",
    "test": "Does it at test points, and in which class or group?",
    "subharmonicity": "Is the hypothesis met under which the bound carries over to the network?",
    "landscape": "Which loss does the PDE expect at test points, given the losses at the data?",
    "occupation": "What is the mean loss around a point (what the bridge objective minimises)?",
    "hitting": "How far are test points from the data, in the terms of the diffusion?",
    "shift": "What is guaranteed under a shift of the inputs?",
    "ordering": "Is the expected loss higher where data are rare?",
}


def run_reports(inspector: Inspector, wanted: tuple[str, ...] = tuple(QUESTIONS)) -> Iterator[Section]:
    """Run reports one by one; one that fails says why and does not stop the others."""
    for name in wanted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EllipticWarning)  # the notes of each report say the same
            try:
                found = getattr(inspector, name)()
            except (ValueError, RuntimeError) as error:
                yield Section(name, QUESTIONS[name], f"Not computed: {error}", None)
                continue
        numbers = None if isinstance(found, str) else plain(found)
        yield Section(name, QUESTIONS[name], str(found), numbers)
