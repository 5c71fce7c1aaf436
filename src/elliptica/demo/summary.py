"""What the runs say, method by method, and in two sentences."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from elliptica.demo.settings import METHODS, NAMES, Method
from elliptica.demo.study import Run


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and sample standard deviation (None for a single seed)."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        """Mean and deviation with as many decimals as the deviation deserves."""
        digits = _decimals(self.mean if self.deviation is None else self.deviation)
        if self.deviation is None:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


@dataclass(frozen=True)
class MethodSummary:
    """One method over all its seeds.

    Attributes:
        method: Which one.
        n_seeds: Finished runs.
        boundary_mean: Mean loss on the boundary.
        boundary_max: Largest loss on the boundary.
        inside_mean: Mean loss inside the moons.
        inside_max: Largest loss inside the moons.
        between_mean: Mean loss between the data.
        between_max: Largest loss between the data.
        between_above: Share of points between the data above the boundary's maximum.
        maximum_held: Seeds in which no loss inside is above the boundary's maximum.
        minimum_held: Seeds in which no loss inside is below the boundary's minimum.
        between_held: Seeds in which no loss between the data is above the boundary's maximum.
        accuracy: Share of right predictions inside the moons.
        n_evaluations: Function evaluations of one training.
        seconds: Wall time of one training.
    """

    method: Method
    n_seeds: int
    boundary_mean: Spread
    boundary_max: Spread
    inside_mean: Spread
    inside_max: Spread
    between_mean: Spread
    between_max: Spread
    between_above: Spread
    maximum_held: int
    minimum_held: int
    between_held: int
    accuracy: Spread
    n_evaluations: int
    seconds: Spread


def summarise(runs: Sequence[Run]) -> list[MethodSummary]:
    """Condense runs to one summary per method that has any, in the order of all tables."""
    by_method = {method: [run for run in runs if run.method == method] for method in METHODS}
    return [_summarise_one(method, group) for method, group in by_method.items() if group]


def find(summaries: Sequence[MethodSummary]) -> list[str]:
    """Say in sentences what was found, also where it is not what the paper shows."""
    held = join_words(f"{NAMES[s.method]} in {s.maximum_held} of {s.n_seeds}" for s in summaries)
    above = join_words(
        f"{NAMES[s.method]} {100 * s.between_above.mean:.1f} %"
        f" (largest loss {s.between_max.mean / s.boundary_max.mean:.3g} times the boundary's)"
        for s in summaries
    )
    kept_between = [NAMES[s.method] for s in summaries if s.between_held == s.n_seeds]
    nobody = (
        "no method keeps the bound in every seed"
        if not kept_between
        else join_words(kept_between) + " kept it"
    )
    return [
        f"Inside the moons the maximum principle (no loss above the boundary's largest) held for {held} "
        f"seeds. {compare_with_paper(summaries)}",
        f"Between the data, where labels are mixed as well, {nobody}; points above the boundary's largest "
        f"loss: {above}.",
    ]


def compare_with_paper(summaries: Sequence[MethodSummary]) -> str:
    """Set the verdicts inside the moons against the paper's figure (paper: Fig. 3)."""
    always = {s.method: s.maximum_held == s.n_seeds for s in summaries}
    if len(always) < len(METHODS):
        return "Not all methods were run, so this is not compared with the paper."
    claim = "The paper's Figure 3 shows it for elliptic training only"
    if all(always.values()):
        return f"{claim}; here every method has it, ERM included, so the figure's contrast is not reproduced."
    if always["path"] and not always["erm"] and not always["mixup"]:
        return f"{claim}, which is what is found here."
    return f"{claim}, which is not what is found here."


def join_words(parts: Iterable[str]) -> str:
    """Join as in a sentence: a, b and c."""
    *front, last = parts
    return f"{', '.join(front)} and {last}" if front else last


def _summarise_one(method: Method, runs: Sequence[Run]) -> MethodSummary:
    def over_seeds(value: Callable[[Run], float]) -> Spread:
        return _spread([value(run) for run in runs])

    return MethodSummary(
        method=method,
        n_seeds=len(runs),
        boundary_mean=over_seeds(lambda run: run.evaluation.boundary_mean),
        boundary_max=over_seeds(lambda run: run.evaluation.inside.boundary_max),
        inside_mean=over_seeds(lambda run: run.evaluation.inside_mean),
        inside_max=over_seeds(lambda run: run.evaluation.inside.interior_max),
        between_mean=over_seeds(lambda run: run.evaluation.between_mean),
        between_max=over_seeds(lambda run: run.evaluation.between.interior_max),
        between_above=over_seeds(lambda run: run.evaluation.between.share_above),
        maximum_held=sum(run.evaluation.inside.holds for run in runs),
        minimum_held=sum(run.evaluation.inside.minimum_holds for run in runs),
        between_held=sum(run.evaluation.between.holds for run in runs),
        accuracy=over_seeds(lambda run: run.evaluation.accuracy),
        n_evaluations=runs[0].n_evaluations,
        seconds=over_seeds(lambda run: run.seconds),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def _decimals(value: float) -> int:
    """Decimals that show two figures of a number, between two and five."""
    for decimals in (2, 3, 4):
        if abs(value) >= 10.0 ** (1 - decimals):
            return decimals
    return 5 if value else 2
