"""Tables of the study of anticipation, from its records."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from elliptica.lab.experiments.records import read_lines

#: File of the records.
RECORDS = "records.jsonl.gz"

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
#: Groups of dimensions: name, least and largest.
GROUPS = {"d ≤ 2": (1, 2), "d = 3-5": (3, 5), "d = 8-13": (8, 13), "d = 30-64": (30, 64)}
SHIFTS = ("none", "mean", "scale", "extrapolation")
MEASURES = ("spearman", "auroc", "level")
#: Estimates in the unit of the loss: only these have a level.
LEVELLED = ("u", "neighbours' losses", "neighbours' labels", "entropy", "spread of 5 networks")
RESAMPLES = 2000

Record = dict[str, Any]
#: For each estimate and measure, its mean over the seeds; None where no seed has it.
Cell = dict[str, dict[str, float | None]]


def cells(records: list[Record]) -> dict[tuple[str, int, str], Cell]:
    """Average over seeds: one cell for each problem, dimension and shift; levels by the geometric mean."""
    found: dict[tuple[str, int, str], list[Record]] = {}
    for record in records:
        found.setdefault((record["problem"], record["dim"], record["shift"]), []).append(record)
    return {key: _average(runs) for key, runs in found.items()}


def _average(runs: list[Record]) -> Cell:
    cell: Cell = {}
    for name in runs[0]["estimates"]:
        cell[name] = {}
        for measure in MEASURES:
            values = [run["estimates"][name][measure] for run in runs]
            known = [value for value in values if value is not None]
            mean = statistics.geometric_mean if measure == "level" else statistics.mean
            cell[name][measure] = (
                mean([max(v, 1e-12) if measure == "level" else v for v in known]) if known else None
            )
    return cell


def chosen(
    records: list[Record], task: str, group: str, shift: str | None = None
) -> dict[tuple[str, int, str], Cell]:
    """Cells of a task, a group of dimensions and perhaps a shift."""
    low, high = GROUPS[group]
    return cells(
        [
            record
            for record in records
            if record["task"] == task and low <= record["dim"] <= high and shift in (None, record["shift"])
        ]
    )


def values_of(found: dict[tuple[str, int, str], Cell], name: str, measure: str) -> list[float]:
    """Values of one estimate in all cells that have it."""
    return [value for cell in found.values() if (value := cell[name][measure]) is not None]


def interval(found: dict[tuple[str, int, str], Cell], name: str, measure: str) -> tuple[float, float]:
    """95 % of the means when problems are drawn anew, each with all its cells."""
    problems: dict[tuple[str, int], list[float]] = {}
    for (problem, dim, _), cell in found.items():
        if (value := cell[name][measure]) is not None:
            problems.setdefault((problem, dim), []).append(value)
    sums = np.array([[sum(v), len(v)] for v in problems.values()])
    draw = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    totals = sums[draw].sum(1)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [0.025, 0.975])
    return float(low), float(high)


def best(found: dict[tuple[str, int, str], Cell], measure: str) -> dict[str, int]:
    """Count the cells in which each estimate is best; 5 networks are a control and do not compete."""
    count: dict[str, int] = {}
    for cell in found.values():
        known = {name: each[measure] for name, each in cell.items() if not name.startswith("spread")}
        scores = {name: value for name, value in known.items() if value is not None}
        if scores:
            winner = max(scores, key=lambda name: scores[name])
            count[winner] = count.get(winner, 0) + 1
    return count


def by_dimension(records: list[Record], task: str) -> list[str]:
    """All shifts together: each estimate in each group of dimensions."""
    lines = [
        "| dimension | estimate | Spearman | AUROC | level: median (10 to 90 %) | best Spearman in |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for group in GROUPS:
        found = chosen(records, task, group)
        wins = best(found, "spearman")
        for name in next(iter(found.values())):
            parts = []
            for measure in ("spearman", "auroc"):
                low, high = interval(found, name, measure)
                mean = statistics.mean(values_of(found, name, measure))
                parts.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
            level = "-"
            if name in LEVELLED:
                low, middle, high = np.quantile(values_of(found, name, "level"), [0.1, 0.5, 0.9])
                level = f"{middle:.2g} ({low:.2g} to {high:.2g})"
            wins_text = "control" if name.startswith("spread") else f"{wins.get(name, 0)} of {len(found)}"
            lines.append(f"| {group} | {name} | {' | '.join(parts)} | {level} | {wins_text} |")
    return lines


def by_shift(records: list[Record], task: str) -> list[str]:
    """Spearman / AUROC (level) of each estimate in each group of dimensions and under each shift."""
    names = list(next(iter(chosen(records, task, "d ≤ 2").values())))
    lines = [
        "| dimension | shift | " + " | ".join(names) + " | cells |",
        "|---|---|" + "--:|" * (len(names) + 1),
    ]
    for group in GROUPS:
        for shift in SHIFTS:
            found = chosen(records, task, group, shift)
            row = []
            for name in names:
                rank, area, level = (values_of(found, name, measure) for measure in MEASURES)
                text = f"{_mean(rank)} / {_mean(area)}"
                row.append(f"{text} ({statistics.median(level):.2g})" if name in LEVELLED else text)
            lines.append(f"| {group} | {shift} | " + " | ".join(row) + f" | {len(found)} |")
    return lines


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" if values else "-"


def walks(records: list[Record]) -> list[str]:
    """Why ``u`` has its level: where walks end, and what it cannot exceed."""
    lines = [
        "| dimension | shift | walks that end on data | held-out rows with a loss above the largest training "
        "loss | rows outside the training region | held-out / training loss (median) |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for group, (low, high) in GROUPS.items():
        for shift in SHIFTS:
            runs = [r for r in records if low <= r["dim"] <= high and r["shift"] == shift]
            means = [
                statistics.mean(r[name] for r in runs)
                for name in ("on_data", "above_largest_training_loss", "far")
            ]
            ratio = statistics.median(r["loss"] / r["training_loss"] for r in runs)
            shares = " | ".join(f"{mean:.0%}" for mean in means)
            lines.append(f"| {group} | {shift} | {shares} | {ratio:.2g} |")
    return lines


def against(records: list[Record], first: str, second: str) -> list[str]:
    """Compare two estimates cell by cell: mean difference of their Spearman correlations."""
    lines = []
    for task in ("classification", "regression"):
        for group in GROUPS:
            found = chosen(records, task, group)
            gaps = {
                key: {"gap": {"spearman": cell[first]["spearman"] - cell[second]["spearman"]}}
                for key, cell in found.items()
                if cell[first]["spearman"] is not None and cell[second]["spearman"] is not None
            }
            values = values_of(gaps, "gap", "spearman")
            low, high = interval(gaps, "gap", "spearman")
            lines.append(
                f"| {task} | {group} | {statistics.mean(values):+.2f} ({low:+.2f} to {high:+.2f}) | "
                f"{sum(value > 0 for value in values)} of {len(values)} |"
            )
    head = [f"| task | dimension | {first} minus {second} | higher in |", "|---|---|--:|--:|"]
    return head + lines


def extremes(records: list[Record], n: int = 5) -> list[str]:
    """Show the cells in which ``u`` does best and worst against the neighbours' labels."""
    gaps = {
        key: (cell["u"]["spearman"], cell["neighbours' labels"]["spearman"])
        for key, cell in cells(records).items()
    }
    known = {key: pair for key, pair in gaps.items() if None not in pair}
    ordered = sorted(known, key=lambda key: known[key][0] - known[key][1])
    lines = ["| problem | dimension | shift | u | neighbours' labels |", "|---|--:|---|--:|--:|"]
    for key in [*reversed(ordered[-n:]), *reversed(ordered[:n])]:
        lines.append(f"| {key[0]} | {key[1]} | {key[2]} | {known[key][0]:.2f} | {known[key][1]:.2f} |")
    return lines


def table(records: list[Record]) -> str:
    """All tables."""
    n_cells = len(cells(records))
    seconds = sum(record["walk_seconds"] for record in records)
    undefined = sum(record["estimates"]["u"]["auroc"] is None for record in records)
    lines = [
        f"{n_cells} cells, {len(records)} runs; in {undefined} runs too few rows are misclassified (or "
        f"right) for an AUROC. The walks behind `u` took {seconds / 60:.1f} minutes.",
        "",
    ]
    for task in ("classification", "regression"):
        lines += [f"**{task.capitalize()}, all shifts**", "", *by_dimension(records, task), ""]
    for task in ("classification", "regression"):
        title = f"**{task.capitalize()} by shift: Spearman / AUROC (median level)**"
        lines += [title, "", *by_shift(records, task), ""]
    lines += ["**Spearman, cell by cell**", "", *against(records, "neighbours' labels", "u"), ""]
    lines += [*against(records, "u", "neighbours' losses"), "", *against(records, "u", "distance"), ""]
    lines += [
        "**Where `u` is best and worst beside the neighbours' labels (Spearman)**",
        "",
        *extremes(records),
        "",
    ]
    lines += ["**Why `u` has its level**", "", *walks(records)]
    return "\n".join(lines)


def write_table(folder: Path) -> None:
    """Put the tables between the markers of the README."""
    records = read_lines(folder / RECORDS)
    assert all(math.isfinite(record["loss"]) for record in records)
    text = table(records)
    print(text)
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
