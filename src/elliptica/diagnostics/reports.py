"""The reports of `elliptica landscape`, one after the other, each as text and as numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from elliptica.core.elliptic import sample_paths
from elliptica.core.evaluate import log_weights
from elliptica.core.types import EllipticWarning
from elliptica.diagnostics import (
    hitting_report,
    loss_map,
    maximum_principle_report,
    occupation_report,
    ordering_report,
    shift_bound,
    shifted_probes,
    subharmonicity_report,
    weights_report,
)
from elliptica.diagnostics.report import plain
from elliptica.diagnostics.subject import Subject
from elliptica.landscape.data_domain import nearest_other
from elliptica.landscape.domains import Ball
from elliptica.landscape.loss import evaluation_mode

#: Most points that the solvers look at; the plain comparisons of losses use all of them.
_QUERIES = 200
#: Most points for the reports that cost one solve per target.
_FEW = 20


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


class Inspector(Subject):
    """Every report is a method; what it does not apply to, it says in a sentence."""

    def between(self) -> Any:
        """Losses on bridges between the data against losses at the data."""
        return maximum_principle_report(self.field, (self.samples.x, self.samples.y), self.probes)

    def test(self) -> Any:
        """The same at test points, by class and group."""
        if not self.has_test:
            return "The data have no test points: add x_test and y_test to the file."
        group = self.samples.group
        return maximum_principle_report(
            self.field, (self.samples.x, self.samples.y), (self.test_x, self.test_y), group=group
        )

    def shifted(self) -> Any:
        """The same at training points after a shift of the inputs, with their own targets."""
        offset = self.options.shift * self.flat.std(0)
        probes = shifted_probes(self.samples.x, self.samples.y, offset=offset)
        return maximum_principle_report(self.field, (self.samples.x, self.samples.y), probes)

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
            self.some_queries(_QUERIES)[0],
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
            *self.some_queries(_FEW),
            self.options.n_walks,
            generator=self.generator(),
        )

    def hitting(self) -> Any:
        """How far from the data, in the terms of the diffusion."""
        at = self.some_queries(_QUERIES)[0]
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

    def weights(self) -> Any:
        """Weights of whole bridges, with the gradient of the loss as drift."""
        generator, n = self.generator(), min(len(self.samples.x), _QUERIES)
        paths = sample_paths(
            self.samples.x[:n],
            self.samples.y[:n],
            target_space="simplex" if self.samples.is_classification else "real",
            num_classes=self.field.num_classes,
            sampling="path",
            n_bridges=10,
            sigma=self.options.sigma * self.samples.x.std(0),
            generator=generator,
        )
        loss = nn.CrossEntropyLoss() if self.samples.is_classification else nn.MSELoss()
        with evaluation_mode(self.field.model):
            return weights_report(log_weights(self.field.model, loss, paths).detach())

    def ordering(self) -> Any:
        """Rare class against common class."""
        if not self.samples.is_classification:
            return "For classes only: pass rare and common points to ordering_report yourself."
        counts = torch.bincount(self.samples.y)
        rare, common = int(counts.argmin()), int(counts.argmax())
        if counts[common] < 1.5 * counts[rare]:
            return "No class is rare here (the largest has less than 1.5 times the rows of the smallest)."
        points = []
        for label in (rare, common):
            rows = self.queries[self.test_y[self.queries] == label][:_FEW]
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


#: Order and questions of the page.
QUESTIONS = {
    "between": "Does the loss between my data exceed the loss at my data?",
    "test": "Does it at test points, and in which class or group?",
    "shifted": "Does it when all inputs are shifted (--shift deviations)?",
    "subharmonicity": "Is the hypothesis met under which the bound carries over to the network?",
    "landscape": "Which loss does the PDE expect at the queries, given the losses at the data?",
    "occupation": "What is the mean loss around a point (what the bridge objective minimises)?",
    "hitting": "How far are the queries from the data, in the terms of the diffusion?",
    "shift": "Which bound holds for the landscape under a shift of the inputs?",
    "weights": "Could importance weights on bridges (multiplicative, xi = 1) be trusted for this model?",
    "ordering": "Is the expected loss (labels kept) higher where data are rare?",
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
