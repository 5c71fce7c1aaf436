"""Page of the study of controls, from its records alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from scipy import stats

#: Seeds to measurements.
Rows = dict[str, dict[str, Any]]
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
MARGINS = ("0.05", "0.1", "0.25")
ENSEMBLE = "erm, ensemble of 9"
#: In the order of the tables.
ORDER = (
    *("erm", "c-mixup", "elliptic", "green", "noise as green", "plain noise"),
    *("erm, log target", "green, log target", ENSEMBLE, "boosted trees", "ridge"),
)


def values(rows: Rows, row: str, variant: str, column: str) -> list[float]:
    """One value for each seed."""
    seeds = sorted(rows[row], key=int)
    return [rows[row][seed][variant][column] for seed in seeds]


def show(found: list[float]) -> str:
    """Mean and deviation."""
    mean = statistics.mean(found)
    digits = 2 if mean > 1 else 4
    spread = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def against(rows: Rows, row: str, variant: str, other: str, column: str) -> str:
    """Mean difference to another row as it is, seed by seed, and p of a paired t test.

    Ensembles overlap and trees have no randomness, so these have no p.
    """
    mine, theirs = values(rows, row, variant, column), values(rows, other, "plain", column)
    if len(mine) != len(theirs):
        return "-"
    gaps = [a - b for a, b in zip(mine, theirs, strict=True)]
    if len(set(gaps)) < 2:
        return "-"
    gap = f"{statistics.mean(gaps):+.{2 if statistics.mean(theirs) > 1 else 4}f}"
    if row in (ENSEMBLE, "boosted trees"):
        return gap
    return f"{gap} (p = {stats.ttest_1samp(gaps, 0.0).pvalue:.1g})"


def table(dataset: str, rows: Rows) -> list[str]:
    """Every row with and without clipping."""
    lines = [
        f"### {dataset}",
        "",
        "| | average | worst | average, clipped | worst, clipped | worst, against ERM | the same, clipped |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [
            show(values(rows, row, variant, column))
            for variant in ("plain", "clipped 0")
            for column in ("average", "worst")
        ]
        gaps = [
            "-" if row == "erm" and variant == "plain" else against(rows, row, variant, "erm", "worst")
            for variant in ("plain", "clipped 0")
        ]
        lines.append(f"| {row} | {' | '.join([*cells, *gaps])} |")
    return [*lines, ""]


def range_table(dataset: str, rows: Rows) -> list[str]:
    """How often predictions leave the range, what one row carries, and how much luck is in the range."""
    lines = [
        f"### {dataset}: the range",
        "",
        "| | predictions outside, % | largest row's share of the worst group's squared error, % "
        "| worst, clipped | widened by 5 % | by 10 % | by 25 % |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row, by_seed in rows.items():
        shares = [
            f"{100 * statistics.mean(record[key] for record in by_seed.values()):.0f}"
            for key in ("outside", "largest_row")
        ]
        wide = [] if row == ENSEMBLE else [f"clipped {margin}" for margin in MARGINS]
        cells = [show(values(rows, row, variant, "worst")) for variant in ("clipped 0", *wide)]
        lines.append(f"| {row} | {' | '.join([*shares, *cells, *['-'] * (4 - len(cells))])} |")
    return [*lines, ""]


def page(records: dict[str, dict[str, Any]]) -> str:
    """All tables."""
    lines: list[str] = []
    for dataset, found in records.items():
        rows = {row: found[row] for row in ORDER if row in found}
        lines += table(dataset, rows) + range_table(dataset, rows)
        both = ("green", "noise as green")
        if all(row in rows for row in both):
            gaps = [
                f"{column} {against(rows, both[0], 'plain', both[1], column)}"
                for column in ("average", "worst")
            ]
            lines += [f"Green's bridges against noise of the same law, seed by seed: {'; '.join(gaps)}.", ""]
    return "\n".join(lines).rstrip()


def write_page(records: dict[str, dict[str, Any]], folder: Path) -> None:
    """Put the tables between the markers of the README."""
    file = folder / "README.md"
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    text = f"{before}{BEGIN}\n{page(records)}\n{END}{rest.partition(END)[2]}"
    file.write_text(text, encoding="utf-8")
