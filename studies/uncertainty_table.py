"""Tables of the study of uncertainty, from its records."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from scipy import stats

from elliptica._utils.statistics import holm

Record = dict[str, Any]

#: Data sets in the order of the page.
DATA = ("digits", "breastmnist", "waterbirds", "retinamnist", "fashion_mnist", "pathmnist_subset")
#: Methods in the order of the page, controls first.
METHODS = (
    "ERM",
    "ERM, stopped early",
    "ERM, ensemble",
    "noise",
    "smoothing",
    "noise + smoothing",
    "mixup",
    "elliptic",
    "elliptic, label noise",
    "elliptic, ensemble",
)
#: What is compared with every control.
ELLIPTIC = ("elliptic", "elliptic, label noise")
#: Single networks of which elliptic training would have to be better than each.
CONTROLS = ("ERM", "ERM, stopped early", "noise", "smoothing", "noise + smoothing", "mixup")
#: Measures that are compared; all but the last are better when small.
COMPARED = {
    "test.nll": "NLL",
    "test.nll_t": "NLL, T",
    "test.ece": "ECE",
    "test.ece_t": "ECE, T",
    "test.aurc": "AURC",
    "corrupted.nll": "NLL, corrupted",
    "outside.softmax": "AUROC, outside",
}
LARGE = {"test.accuracy", "test.worst_group", "outside.softmax", "outside.energy"}
SHUFFLED = ("ERM", "noise", "smoothing", "mixup", "mixup + noise", "elliptic", "green")
ALPHA = 0.05
#: Fewest seeds of a test.
FEWEST = 3


class Runs:
    """Records of the first part, found by data set, method and seed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.chosen = {(r["data"], r["method"], r["seed"]): r for r in records if r["chosen"]}
        self.data = [name for name in DATA if any(r["data"] == name for r in records)]

    def seeds(self, data: str) -> list[int]:
        """Seeds of a data set."""
        return sorted({r["seed"] for r in self.records if r["data"] == data})

    def values(self, data: str, method: str, measure: str) -> list[float]:
        """One value for each seed, at the strength that its validation rows chose."""
        return [read(self.chosen[data, method, seed], measure) for seed in self.seeds(data)]

    def mean(self, data: str, method: str, measure: str) -> float:
        """Mean over seeds."""
        return statistics.mean(self.values(data, method, measure))

    def better(self, measure: str, first: str, second: str, other: str | None = None) -> list[str]:
        """Data sets where the mean of one method is better than the (``other``) measure of another."""
        sign = -1 if measure in LARGE else 1
        return [
            data
            for data in self.data
            if sign * (self.mean(data, first, measure) - self.mean(data, second, other or measure)) < 0
        ]

    def best(self, data: str, measure: str, methods: Sequence[str] = METHODS) -> str:
        """Method of the best mean."""
        choose = max if measure in LARGE else min
        return choose(methods, key=lambda method: self.mean(data, method, measure))


def read(record: Record, measure: str) -> float:
    """Read a measure, as ``test.nll``; of corruptions and outsiders the mean over their kinds."""
    part, name = measure.split(".", 1)
    found = record[part]
    if part in ("corrupted", "outside"):
        return statistics.mean(each[name] for each in found.values())
    return float(found[name])


class Difference:
    """Elliptic training less a control on the same seeds; ``p`` of a paired t test."""

    def __init__(self, runs: Runs, method: str, data: str, control: str, measure: str) -> None:
        self.method, self.data, self.control, self.measure = method, data, control, measure
        pairs = zip(runs.values(data, method, measure), runs.values(data, control, measure), strict=True)
        gaps = [first - second for first, second in pairs]
        self.mean = statistics.mean(gaps)
        self.p: float | None = None  # too few seeds for a test
        if len(gaps) >= FEWEST:
            self.p = 1.0 if len(set(gaps)) < 2 else float(stats.ttest_1samp(gaps, 0.0).pvalue)
        self.adjusted = 1.0

    @property
    def is_better(self) -> bool:
        """Whether the mean is in favour of elliptic training."""
        return self.mean > 0 if self.measure in LARGE else self.mean < 0


def differences(runs: Runs) -> list[Difference]:
    """All comparisons of the page, corrected together by Holm's method."""
    found = [
        Difference(runs, method, data, control, measure)
        for method in ELLIPTIC
        for measure in COMPARED
        for data in runs.data
        for control in CONTROLS
    ]
    tested = [each for each in found if each.p is not None]
    corrected = holm(torch.tensor([each.p for each in tested], dtype=torch.float64)).tolist()
    for each, p in zip(tested, corrected, strict=True):
        each.adjusted = p
    return found


def rows_of(table: Sequence[Sequence[str]]) -> list[str]:
    """Lay a table out as markdown; the first column is text, others are numbers."""
    head, *rows = table
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def percent(value: float) -> str:
    """Show a share."""
    return f"{100 * value:.1f}"


def spread(values: Sequence[float], scale: float = 1.0, decimals: int = 3) -> str:
    """Show mean and deviation over seeds."""
    shown = f"{scale * statistics.mean(values):.{decimals}f}"
    return shown if len(values) < 2 else f"{shown} ± {scale * statistics.stdev(values):.{decimals}f}"


def strengths(runs: Runs, data: str, method: str) -> str:
    """Show how often each strength was chosen."""
    counts = Counter(runs.chosen[data, method, seed]["strength"] for seed in runs.seeds(data))
    if method == "ERM, stopped early":
        return f"step {min(map(int, counts))} to {max(map(int, counts))}"
    return "; ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in sorted(counts.items()))


def main_tables(runs: Runs) -> list[str]:
    """Tables of the test rows, one for each data set."""
    lines = []
    for data in runs.data:
        rows = runs.chosen[data, "ERM", 0]["rows"]
        n_classes = runs.chosen[data, "ERM", 0]["n_classes"]
        about = f"{n_classes} classes, {rows['train']} / {rows['validation']} / {rows['test']} rows"
        has_groups = "worst_group" in runs.chosen[data, "ERM", 0]["test"]
        head = ["method", "strength", "accuracy", *(["worst group"] if has_groups else [])]
        head += ["NLL", "NLL, T", "ECE", "ECE, T", "Brier", "Brier, T", "T", "AURC"]
        table = [head]
        for method in METHODS:
            row = [method, strengths(runs, data, method)]
            names = ["accuracy", *(["worst_group"] if has_groups else [])]
            row += [spread(runs.values(data, method, f"test.{name}"), 100, 1) for name in names]
            row += [spread(runs.values(data, method, f"test.{name}")) for name in ("nll", "nll_t")]
            row += [spread(runs.values(data, method, f"test.{name}"), 100, 1) for name in ("ece", "ece_t")]
            row += [f"{runs.mean(data, method, f'test.{name}'):.3f}" for name in ("brier", "brier_t")]
            temperatures = [runs.chosen[data, method, seed]["temperature"] for seed in runs.seeds(data)]
            row.append(f"{statistics.geometric_mean(temperatures):.2f}")
            row.append(spread(runs.values(data, method, "test.aurc"), 100, 2))
            table.append(row)
        lines += ["", f"**{data}**: {about} (seed 0), {len(runs.seeds(data))} seeds", "", *rows_of(table)]
    return lines


def by_data(runs: Runs, measures: Sequence[str], show: Any = percent) -> list[str]:
    """Tabulate means, methods by data sets; several measures stand behind each other."""
    table = [["method", *runs.data]]
    for method in METHODS:
        cells = (" / ".join(show(runs.mean(data, method, m)) for m in measures) for data in runs.data)
        table.append([method, *cells])
    return rows_of(table)


def corrupted_table(runs: Runs) -> list[str]:
    """Accuracy, NLL before and after the temperature, ECE before and after: means over the corruptions."""
    table = [["method", *runs.data]]
    for method in METHODS:
        row = [method]
        for data in runs.data:
            accuracy, ece, ece_t = (
                percent(runs.mean(data, method, f"corrupted.{name}")) for name in ("accuracy", "ece", "ece_t")
            )
            nll, nll_t = (f"{runs.mean(data, method, f'corrupted.{name}'):.2f}" for name in ("nll", "nll_t"))
            row.append(f"{accuracy} / {nll} ({nll_t}) / {ece} ({ece_t})")
        table.append(row)
    return rows_of(table)


def outside_tables(runs: Runs) -> list[str]:
    """AUROC of the largest probability and of the energy for each kind of outsiders."""
    kinds = ("left-out classes", "another data set", "shuffled columns")
    lines = []
    for kind in kinds:
        having = [data for data in runs.data if kind in runs.chosen[data, "ERM", 0]["outside"]]
        table = [["method", *having]]
        for method in METHODS:
            row = [method]
            for data in having:
                found = [runs.chosen[data, method, seed]["outside"][kind] for seed in runs.seeds(data)]
                row.append(
                    " / ".join(percent(statistics.mean(f[s] for f in found)) for s in ("softmax", "energy"))
                )
            table.append(row)
        lines += ["", f"*{kind[0].upper()}{kind[1:]}*", "", *rows_of(table)]
    return lines


def disagreement_table(runs: Runs) -> list[str]:
    """How much the networks of an ensemble disagree, by distance."""
    table = [["ensemble", *runs.data]]
    for method in ("ERM, ensemble", "elliptic, ensemble"):
        row = [method]
        for data in runs.data:
            found = [runs.chosen[data, method, seed]["disagreement"] for seed in runs.seeds(data)]
            row.append(" / ".join(f"{statistics.mean(f[t] for f in found):.3f}" for t in ("1", "3", "10")))
        table.append(row)
    return rows_of(table)


def strength_table(runs: Runs) -> list[str]:
    """Elliptic training at every strength, with and without the paper's label noise."""
    table = [["method, sigma", *runs.data]]
    for method in ("elliptic", "elliptic, label noise"):
        for strength in ("0.1", "0.3", "1"):
            row = [f"{method}, {strength}"]
            for data in runs.data:
                found = [
                    r
                    for r in runs.records
                    if (r["data"], r["method"], r["strength"]) == (data, method, strength)
                ]
                nll = statistics.mean(read(r, "test.nll") for r in found)
                others = ("test.ece", "outside.softmax", "outside.energy")
                shown = [percent(statistics.mean(read(r, m) for r in found)) for m in others]
                temperature = statistics.geometric_mean(r["temperature"] for r in found)
                row.append(f"{nll:.3f} / {shown[0]} / {temperature:.2f} / {shown[1]} / {shown[2]}")
            table.append(row)
    return rows_of(table)


def paired_tables(runs: Runs, found: Sequence[Difference]) -> list[str]:
    """Elliptic training less each control, for each measure."""
    lines = []
    for method in ELLIPTIC:
        lines += ["", f"*{method[0].upper()}{method[1:]}*, less each control"]
        for measure, title in COMPARED.items():
            own = [each for each in found if (each.method, each.measure) == (method, measure)]
            table = [[title, *runs.data, "better in"]]
            for control in CONTROLS:
                row = [each for each in own if each.control == control]
                better = sum(each.is_better for each in row)
                table.append([control, *map(shown_difference, row), f"{better} of {len(row)}"])
            lines += ["", *rows_of(table)]
    return lines


def shown_difference(found: Difference) -> str:
    """Show a difference with its p-value; a star if it survives the correction."""
    scale, decimals = (1, 3) if "nll" in found.measure else (100, 2 if "aurc" in found.measure else 1)
    star = "*" if found.adjusted < ALPHA else ""
    shown = f"{scale * found.mean:+.{decimals}f}"
    return shown if found.p is None else f"{shown} (p = {found.p:.2g}){star}"


class Shuffling:
    """Records under shuffled labels."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.data = [name for name in DATA if any(r["data"] == name for r in records)]

    def seeds(self, data: str) -> list[int]:
        """Seeds of a data set."""
        return sorted({r["seed"] for r in self.records if r["data"] == data})

    def chosen(self, data: str, method: str, when: str) -> list[Record]:
        """For each seed the strength of the least loss on noisy validation rows, ``last`` or ``stopped``."""
        return [
            min(
                (r for r in self.records if (r["data"], r["method"], r["seed"]) == (data, method, seed)),
                key=lambda r: r[when]["validation_nll"],
            )
            for seed in self.seeds(data)
        ]

    def accuracies(self, data: str, method: str, when: str) -> list[float]:
        """Accuracy on clean test rows for each seed."""
        return [r[when]["accuracy"] for r in self.chosen(data, method, when)]

    def range(self, data: str, when: str) -> tuple[float, float]:
        """Least and largest mean accuracy of the methods."""
        means = [statistics.mean(self.accuracies(data, method, when)) for method in SHUFFLED]
        return min(means), max(means)

    def table(self) -> list[str]:
        """Accuracy at the end and with early stopping, with the strengths that were chosen."""
        head = ["method"]
        for data in self.data:
            head += [f"{data}, last", "strength", f"{data}, stopped early", "strength", "step"]
        table = [head]
        for method in SHUFFLED:
            row = [method]
            for data in self.data:
                for when in ("last", "stopped"):
                    chosen = self.chosen(data, method, when)
                    counts = Counter(r["strength"] for r in chosen)
                    row.append(spread(self.accuracies(data, method, when), 100, 1))
                    row.append(
                        "; ".join(f"{s} ({n})" for s, n in sorted(counts.items())) if method != "ERM" else ""
                    )
                row.append(f"{statistics.mean(r['stopped']['step'] for r in chosen):.0f}")
            table.append(row)
        return rows_of(table)
