"""What the runs of the demo say: summaries, findings in words, the table, and the study of a report."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from elliptica.lab.demo.study import Run
from elliptica.lab.demo.training import METHODS, NAMES, Method
from elliptica.landscape import MaximumPrinciple
from elliptica.report.content import Grid, Measure, Report, ReportError, Study, mean_interval
from elliptica.report.verdict import judge_rows

_MEASURES = (
    Measure("between", "share of points between the data above every boundary loss", False, True),
    Measure("inside", "share of points inside the moons above every boundary loss", False, True, 2),
    Measure("accuracy", "accuracy", True, True),
)


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
    """One method over all its seeds."""

    method: Method  # which one
    n_seeds: int  # finished runs
    boundary_mean: Spread  # mean loss on the boundary
    boundary_max: Spread  # largest loss on the boundary
    inside_mean: Spread  # mean loss inside the moons
    inside_max: Spread  # largest loss inside the moons
    between_mean: Spread  # mean loss between the data
    between_max: Spread  # largest loss between the data
    between_above: Spread  # share of points between the data above the boundary's maximum
    maximum_held: int  # seeds in which no loss inside is above the boundary's maximum
    minimum_held: int  # seeds in which no loss inside is below the boundary's minimum
    between_held: int  # seeds in which no loss between the data is above the boundary's maximum
    accuracy: Spread  # share of right predictions inside the moons
    n_evaluations: int  # function evaluations of one training
    seconds: Spread  # wall time of one training


def summarise(runs: Sequence[Run]) -> list[MethodSummary]:
    """Condense runs to one summary per method that has any, in the order of all tables."""
    by_method = {method: [run for run in runs if run.method == method] for method in METHODS}
    return [_summarise_one(method, group) for method, group in by_method.items() if group]


def find(summaries: Sequence[MethodSummary], untrained: Sequence[MaximumPrinciple]) -> list[str]:
    """Say in sentences what was found, also where it is not what the paper shows."""
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


def headline(summaries: Sequence[MethodSummary]) -> str:
    """Say what is to be seen, from the verdicts over all seeds."""
    inside = _keepers([s.method for s in summaries if s.maximum_held == s.n_seeds], len(summaries))
    between = _keepers([s.method for s in summaries if s.between_held == s.n_seeds], len(summaries))
    least = max(summaries, key=lambda s: s.between_above.mean)
    return (
        f"Inside the moons the maximum principle is kept by {inside}; "
        f"between the data by {between}, least of all by {NAMES[least.method]}"
    )


def verdict(summary: MethodSummary) -> str:
    """The result of one method in two short lines."""
    return (
        f"inside ≤ boundary in {summary.maximum_held} of {summary.n_seeds} seeds\n"
        f"between the data {100 * summary.between_above.mean:.1f} % above it"
    )


def _keepers(methods: Sequence[Method], n_all: int) -> str:
    if not methods:
        return "none"
    return "every method" if len(methods) == n_all else join_words(NAMES[m] for m in methods)


class Section(NamedTuple):
    """Rows that belong together: a title, and for each row its name and one cell per method."""

    title: str
    rows: list[tuple[str, list[str]]]


def table_header(summaries: Sequence[MethodSummary]) -> list[str]:
    """Names of the methods."""
    return [NAMES[s.method] for s in summaries]


def table_sections(summaries: Sequence[MethodSummary]) -> list[Section]:
    """All numbers that are reported, mean ± sample deviation over seeds."""

    def row(name: str, cell: Callable[[MethodSummary], object]) -> tuple[str, list[str]]:
        return name, [str(cell(s)) for s in summaries]

    return [
        Section(
            "On the boundary",
            [row("mean loss", lambda s: s.boundary_mean), row("largest loss", lambda s: s.boundary_max)],
        ),
        Section(
            "Inside the moons",
            [
                row("mean loss", lambda s: s.inside_mean),
                row("largest loss", lambda s: s.inside_max),
                row("maximum principle", lambda s: f"{s.maximum_held} of {s.n_seeds}"),
                row("minimum principle", lambda s: f"{s.minimum_held} of {s.n_seeds}"),
                row("accuracy, %", lambda s: _percent(s.accuracy)),
            ],
        ),
        Section(
            "Between the data",
            [
                row("mean loss", lambda s: s.between_mean),
                row("largest loss", lambda s: s.between_max),
                row("share above, %", lambda s: _percent(s.between_above)),
                row("maximum principle", lambda s: f"{s.between_held} of {s.n_seeds}"),
            ],
        ),
        Section(
            "Cost of one run",
            [
                row("evaluations", lambda s: f"{s.n_evaluations:,}"),
                row("seconds", lambda s: s.seconds),
            ],
        ),
    ]


def _percent(share: Spread) -> Spread:
    return Spread(100 * share.mean, None if share.deviation is None else 100 * share.deviation)


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


def demo_report(file: Path, title: str | None = None) -> Report:
    """A page about the two moons, all seeds; the surfaces are on the demo's own page."""
    content = json.loads(file.read_text(encoding="utf-8"))
    try:
        values: dict[str, dict[str, dict[int, float]]] = {m.name: {} for m in _MEASURES}
        cost: dict[str, dict[str, dict[int, float]]] = {"evaluations": {}, "seconds": {}}
        for run in content["runs"]:
            method, seed, found = str(run["method"]), int(run["seed"]), run["evaluation"]
            shares = {name: found[name]["share_above"] for name in ("between", "inside")}
            for name, value in {**shares, "accuracy": found["accuracy"]}.items():
                values[name].setdefault(method, {})[seed] = 100 * float(value)
            cost["evaluations"].setdefault(method, {})[seed] = run["n_evaluations"] / 1000
            cost["seconds"].setdefault(method, {})[seed] = float(run["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{file} is not what elliptica demo writes ({error!r}). Run the demo again."
        ) from error
    methods = list(values["between"])
    reference = "erm" if "erm" in methods else methods[0]
    study = Study(
        name="two-moons",
        title="Two moons: the loss inside and between the data",
        subtitle=str(content["experiment"]),
        measures=_MEASURES,
        methods=methods,
        reference=reference,
        values=values,
        verdict=judge_rows(values, _MEASURES[:2], methods, reference, cost=cost),
        table=_grid(values, methods, cost),
        cost=cost,
        settings={"all": ", ".join(f"{k} {v}" for k, v in content.get("settings", {}).items())},
        commands=["elliptica demo"],
        own=[method for method in methods if method in ("path", "marginal")],
        versions={str(k): str(v) for k, v in content.get("versions", {}).items()},
        notes=["Not finished: the demo was interrupted."] if content.get("interrupted") else [],
    )
    return Report(title or study.title, "record of elliptica demo", study.verdict.headline, [study])


def _grid(values: Any, methods: list[str], cost: Any) -> Grid:
    rows = []
    for method in methods:
        line: list[tuple[str, float | str, bool]] = [(method, method, False)]
        for measure in _MEASURES:
            mean, low, high = mean_interval(list(values[measure.name][method].values()))
            line.append(
                (f"{mean:.{measure.decimals}f} ± {(high - low) / 2:.{measure.decimals}f}", mean, False)
            )
        seconds = list(cost["seconds"][method].values())
        line.append((f"{sum(seconds) / len(seconds):.2f}", sum(seconds) / len(seconds), False))
        n = len(values["between"][method])
        rows.append([*line, (str(n), n, False)])
    head = ["method", *(f"{m.label}, %" for m in _MEASURES), "seconds", "seeds"]
    return Grid("Mean ± half the 95 % interval over seeds", head, rows)
