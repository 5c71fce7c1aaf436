"""Summarise the runs of the demo: numbers, findings in words, the table, and the study of a report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elliptica.lab.demo.study import Run
from elliptica.lab.demo.training import METHODS, NAMES, DemoSettings, Method
from elliptica.landscape import MaximumPrinciple

#: Caveats on the result on half discs; the numbers are from ``results/two_moons/variants.jsonl``.
SMALL_PRINT = (
    "Shorter training does as well: with 100 steps every method keeps the bound in 24 of 24 seeds, at 85 % "
    "accuracy. Ten regions were tried, and half discs show the contrast: on tubes, bands and shells "
    "nearly every run keeps the bound, on arcs or curves alone most runs of every method break it. On half "
    "discs, elliptic training with the paper's partners, by distance, and sigma 0.05 keeps it in 17 of 24 "
    "seeds. With two hidden layers ERM, mixup and elliptic keep it in 6, 12 and 14; with ReLU in 21, 23 and "
    "24. ERM with elliptic training's noise, but nothing mixed, in 5."
)


@dataclass(frozen=True)
class MethodSummary:
    """One method over all its seeds."""

    method: Method  # which one
    n_seeds: int  # finished runs
    n_kept: int  # seeds in which no loss inside is above the boundary's largest
    above: float  # share of points inside above the boundary's largest loss, mean over seeds
    boundary_max: float  # largest loss on the boundary, median over seeds
    inside_max: float  # largest loss inside, median over seeds
    ratios: tuple[float, ...]  # largest loss inside over largest on the boundary, seed by seed
    accuracy: float  # share of right predictions inside the moons, mean over seeds
    n_evaluations: int  # function evaluations of one training
    seconds: float  # wall time of all trainings

    @property
    def n_broken(self) -> int:
        """Seeds in which some loss inside is above the boundary's largest."""
        return self.n_seeds - self.n_kept


def summarise(runs: Sequence[Run]) -> list[MethodSummary]:
    """Condense runs to one summary per method that has any, in the order of all tables."""
    by_method = {method: [run for run in runs if run.method == method] for method in METHODS}
    return [_summarise_one(method, group) for method, group in by_method.items() if group]


def find(
    summaries: Sequence[MethodSummary], untrained: Sequence[MaximumPrinciple], settings: DemoSettings
) -> list[str]:
    """Return the results as sentences, also where they differ from the paper."""
    n_untrained = sum(verdict.holds for verdict in untrained)
    sentences = [
        f"{headline(summaries)}. {compare_with_paper(summaries)}",
        "The bound compares a network with its own boundary only: untrained ones keep it in "
        f"{n_untrained} of {len(untrained)} seeds. Look at it together with the accuracy.",
    ]
    return [*sentences, SMALL_PRINT] if is_default(settings) else sentences


def is_default(settings: DemoSettings) -> bool:
    """Return whether these are the demo's default settings, with any number of seeds and steps."""
    default = DemoSettings()
    names = ("region", "sigma", "pairing", "hidden", "activation")
    return all(getattr(settings, name) == getattr(default, name) for name in names)


def compare_with_paper(summaries: Sequence[MethodSummary]) -> str:
    """Compare the verdicts inside the moons with the paper's figure (paper: Fig. 3)."""
    broken = {s.method: s.n_broken for s in summaries}
    if len(broken) < len(METHODS):
        return "Not all methods were run, so this is not compared with the paper."
    claim = "The paper's Figure 3 shows the bound for elliptic training only"
    if not any(broken.values()):
        return f"{claim}; here it holds for every method, so the contrast is not reproduced."
    if broken["elliptic"] == 0 and broken["erm"] > 0 and broken["mixup"] > 0:
        often = join_words(f"{NAMES[m]} in {broken[m]}" for m in ("erm", "mixup"))
        return f"{claim}. Here the contrast is gradual: {often} seeds break it."
    return f"{claim}, which we do not reproduce here."


def join_words(parts: Iterable[str]) -> str:
    """Join as in a sentence: a, b and c."""
    *front, last = parts
    return f"{', '.join(front)} and {last}" if front else last


def headline(summaries: Sequence[MethodSummary]) -> str:
    """Return a headline from the verdicts over all seeds."""
    by_method = {s.method: s for s in summaries}
    if not any(s.n_broken for s in summaries):
        return "Inside the moons every method keeps its loss within that of its boundary"
    if "erm" not in by_method or "elliptic" not in by_method:
        return "Loss inside the moons against loss on their boundary"
    erm, elliptic = by_method["erm"], by_method["elliptic"]
    return (
        f"ERM: the loss inside the moons rises above its boundary in {_count(erm.n_broken)} of {erm.n_seeds} "
        f"seeds. Elliptic training: in {_count(elliptic.n_broken)}"
    )


def verdict(summary: MethodSummary) -> str:
    """Return the result of one method in a short line."""
    return f"bound kept in {summary.n_kept} of {summary.n_seeds} seeds"


def _count(n: int) -> str:
    return str(n) if n else "none"


#: Heads of the columns of the table.
TABLE_HEADER = (
    "method",
    "bound\nkept",
    "inside\nabove",
    "accuracy\ninside",
    "largest loss,\nrim / inside",
    "seconds",
)


def table_rows(summaries: Sequence[MethodSummary]) -> list[list[str]]:
    """Return all reported numbers, a row for each method."""
    return [
        [
            NAMES[s.method],
            f"{s.n_kept} of {s.n_seeds}",
            f"{100 * s.above:.1f} %",
            f"{100 * s.accuracy:.1f} %",
            f"{s.boundary_max:.2f} / {s.inside_max:.2f}",
            f"{s.seconds:.1f}",
        ]
        for s in summaries
    ]


def _summarise_one(method: Method, runs: Sequence[Run]) -> MethodSummary:
    inside = [run.evaluation.inside for run in runs]
    return MethodSummary(
        method=method,
        n_seeds=len(runs),
        n_kept=sum(verdict.holds for verdict in inside),
        above=statistics.fmean(verdict.share_above for verdict in inside),
        boundary_max=statistics.median(verdict.boundary_max for verdict in inside),
        inside_max=statistics.median(verdict.interior_max for verdict in inside),
        ratios=tuple(run.ratio for run in runs),
        accuracy=statistics.fmean(run.evaluation.accuracy for run in runs),
        n_evaluations=runs[0].n_evaluations,
        seconds=sum(run.seconds for run in runs),
    )
