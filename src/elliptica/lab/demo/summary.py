"""What the runs say, method by method and in words."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from elliptica.lab.demo.settings import METHODS, NAMES, Method
from elliptica.lab.demo.study import Run
from elliptica.landscape import MaximumPrinciple


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and sample standard deviation (None for a single seed)."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        """Mean and deviation with as many decimals as the deviation deserves."""
        digits = _decimals(self.mean / 10 if self.deviation is None else self.deviation)
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


def find(summaries: Sequence[MethodSummary], untrained: Sequence[MaximumPrinciple]) -> list[str]:
    """Say in sentences what was found, also where it is not what the paper shows.

    Args:
        summaries: One for each method.
        untrained: Verdicts inside the moons before any training, as a measure of what they mean.
    """
    n_untrained = sum(verdict.holds for verdict in untrained)
    held = join_words(f"{NAMES[s.method]} in {s.maximum_held} of {s.n_seeds}" for s in summaries)
    above = join_words(
        f"{NAMES[s.method]} {100 * s.between_above.mean:.1f} %"
        f" (largest loss {_ratio(s.between_max.mean, s.boundary_max.mean)} times the boundary's)"
        for s in summaries
    )
    kept_between = [NAMES[s.method] for s in summaries if s.between_held == s.n_seeds]
    keepers = f"{join_words(kept_between) if kept_between else 'no method'} kept"
    lowest = min(summaries, key=lambda s: s.inside_max.mean)
    largest = join_words(f"{NAMES[s.method]} {s.inside_max.mean:.3g}" for s in summaries)
    return [
        f"Inside the moons the maximum principle (no loss above the boundary's largest) held for {held} "
        f"seeds, and for the untrained networks in {n_untrained} of {len(untrained)}. "
        f"{compare_with_paper(summaries)}",
        f"Between the data, where labels are mixed as well, {keepers} the bound in every seed; "
        f"points above the boundary's largest loss: {above}.",
        "The bound compares a method with its own boundary only. Largest loss inside the moons, mean over "
        f"seeds: {largest}; the least is that of {NAMES[lowest.method]}.",
    ]


def compare_with_paper(summaries: Sequence[MethodSummary]) -> str:
    """Set the verdicts inside the moons against the paper's figure (paper: Fig. 3)."""
    always = {s.method: s.maximum_held == s.n_seeds for s in summaries}
    if len(always) < len(METHODS):
        return "Not all methods were run, so this is not compared with the paper."
    claim = "The paper's Figure 3 shows it for elliptic training only"
    if all(always.values()):
        return (
            f"{claim}; with our reading of the regions every method has it: the contrast is not reproduced."
        )
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


def _decimals(deviation: float) -> int:
    """Decimals that show a deviation, between two and four."""
    if deviation == 0 or deviation >= 0.05:
        return 2
    return 3 if deviation >= 0.001 else 4


def _ratio(value: float, of: float) -> str:
    ratio = value / of
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
