"""Tables as a pure function of records: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from elliptica._statistics import student_tail
from elliptica.experiments.specification import Run, Specification

Format = Literal["markdown", "latex", "csv"]
#: Which rows of the data a table is about, or what its runs cost up to the epoch that was chosen.
Part = Literal["test", "validation", "cost"]
Record = dict[str, Any]

#: Level of the paired test that marks the best value.
LEVEL = 0.05


@dataclass(frozen=True)
class Cell:
    """One value of a table.

    Attributes:
        values: By seed, in the units of the table.
        paper: The paper's mean and deviation, or None.
        is_best: Best mean, and better than every other method in a paired test.
    """

    values: dict[int, float]
    paper: tuple[float, float | None] | None
    is_best: bool = False

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.values.values()) if self.values else math.nan

    @property
    def std(self) -> float:
        """Sample deviation over seeds."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Table:
    """A table ready to be printed: cells by row and by (data set, column)."""

    name: str
    title: str
    paper: str
    rows: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]
    cells: dict[tuple[str, str, str], Cell]
    notes: tuple[str, ...]
    decimals: dict[str, int]


RULE = (
    f"Bold: best mean, and better than every other row on the same seeds (paired t test, p < {LEVEL} after "
    "Holm's correction; at least three seeds). Mean and sample deviation over seeds."
)


COST = (
    "Up to the epoch that was chosen, a first stage included. Evaluations: thousands of rows through the "
    "network in training. Seconds: wall time of training and validation, which depends on what else the "
    "machine did."
)


def make_table(
    name: str,
    specification: Specification,
    wanted: list[Run],
    records: list[Record],
    part: Part = "test",
) -> Table:
    """Collect the records of the runs that a table consists of.

    The validation part is for choices among methods; the paper's values stand beside the test part only.
    """
    by_key = {(r["run"]["row"], r["run"]["dataset"], r["run"]["seed"], _key(r)): r for r in records}
    datasets = tuple(dict.fromkeys(run.dataset for run in wanted))
    rows = tuple(dict.fromkeys(run.row for run in wanted))
    columns = ["evaluations", "seconds"] if part == "cost" else list(specification.columns)
    cells: dict[tuple[str, str, str], Cell] = {}
    missing = 0
    for run in wanted:
        record = by_key.get((run.row, run.dataset, run.seed, run.key))
        missing += record is None
        for column in columns:
            place = (run.row, run.dataset, column)
            papers = specification.datasets[run.dataset].paper if part == "test" else {}
            paper = papers.get(run.row, {}).get(column)
            cell = cells.setdefault(place, Cell({}, None if paper is None else (paper.mean, paper.std)))
            value = None if record is None else _value(record, part, column, specification)
            if value is not None:
                cell.values[run.seed] = value
    heads = tuple((dataset, column) for dataset in datasets for column in columns)
    for head in heads if part != "cost" else ():
        _mark_best(cells, rows, head, larger=specification.metric == "accuracy")
    notes = [specification.datasets[d].note for d in datasets if specification.datasets[d].note]
    if part == "validation":
        notes.append("On the validation part, which also chose the epoch: for choices, not for reporting.")
    notes.append(COST if part == "cost" else RULE)
    if missing:
        notes.append(f"{missing} of {len(wanted)} runs are not recorded yet.")
    decimals = {d: 1 if part == "cost" else _decimals(cells, rows, d, specification) for d in datasets}
    return Table(name, specification.title, specification.paper, rows, heads, cells, tuple(notes), decimals)


def _value(record: Record, part: Part, column: str, specification: Specification) -> float | None:
    """What stands in a cell, in the units of the table."""
    if part != "cost":
        value = record["metrics"][part].get(column)
        factor = 1 if specification.metric == "rmse" else 100
        return None if value is None else factor * float(value)
    cost, share = record["cost"], (record["epoch"] + 1) / record["cost"]["epochs"]
    first = cost.get("first_stage", {}).get(column, 0)
    return float(first + share * (cost[column] - first)) / (1000 if column == "evaluations" else 1)


def _key(record: Record) -> str:
    return Run.model_validate(record["run"]).key


def _decimals(cells: Any, rows: tuple[str, ...], dataset: str, specification: Specification) -> int:
    if specification.metric != "rmse":
        return 1
    means = [cells[(row, dataset, "average")].mean for row in rows if (row, dataset, "average") in cells]
    finite = [m for m in means if math.isfinite(m)]
    return 2 if finite and max(finite) > 1 else 4


def _mark_best(cells: Any, rows: tuple[str, ...], head: tuple[str, str], *, larger: bool) -> None:
    found = {
        row: cells[(row, *head)] for row in rows if cells.get((row, *head)) and cells[(row, *head)].values
    }
    if len(found) < 2:
        return
    pick = max if larger else min
    best = pick(found, key=lambda row: found[row].mean)
    p_values = sorted(
        _paired_p(found[best].values, cell.values) for row, cell in found.items() if row != best
    )
    if all(p * (len(p_values) - i) < LEVEL for i, p in enumerate(p_values)):
        cell = found[best]
        cells[(best, *head)] = Cell(cell.values, cell.paper, True)


def _paired_p(a: dict[int, float], b: dict[int, float]) -> float:
    """Two-sided p of a paired t test on the seeds that both have."""
    gaps = [a[seed] - b[seed] for seed in sorted(set(a) & set(b))]
    if len(gaps) < 3:
        return 1.0
    spread = statistics.stdev(gaps)
    if spread == 0:  # equal gaps of coarse accuracies: what their signs alone say
        return 1.0 if gaps[0] == 0 else 0.5 ** (len(gaps) - 1)
    t = abs(statistics.mean(gaps)) / (spread / math.sqrt(len(gaps)))
    return 2 * student_tail(-t, len(gaps) - 1)


def render(table: Table, form: Format) -> str:
    """The table as text."""
    if form == "csv":
        return _csv(table)
    return _markdown(table) if form == "markdown" else _latex(table)


def _markdown(table: Table) -> str:
    with_paper = {head for head in table.heads for row in table.rows if _has_paper(table, row, head)}
    heads: list[str] = []
    for head in table.heads:
        heads += [" ".join(head), "paper"] if head in with_paper else [" ".join(head)]
    lines = [
        f"### {table.title} ({table.paper})",
        "",
        "| method | " + " | ".join(heads) + " | seeds |",
        "|---|" + "--:|" * len(heads) + "--:|",
    ]
    for row in table.rows:
        texts = []
        for head in table.heads:
            cell = table.cells.get((row, *head))
            texts.append("" if cell is None else _shown(cell, table.decimals[head[0]]))
            if head in with_paper:
                texts.append("" if cell is None else _paper(cell))
        lines.append(f"| {row} | " + " | ".join(texts) + f" | {_seeds(table, row)} |")
    return "\n".join([*lines, "", *table.notes])


def _has_paper(table: Table, row: str, head: tuple[str, str]) -> bool:
    cell = table.cells.get((row, *head))
    return cell is not None and cell.paper is not None


def _shown(cell: Cell, decimals: int) -> str:
    if not cell.values:
        return "-"
    text = f"{cell.mean:.{decimals}f} ± {cell.std:.{decimals}f}"
    return f"**{text}**" if cell.is_best else text


def _paper(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    mean, std = cell.paper
    return f"{mean:g}" if std is None else f"{mean:g} ± {std:g}"


def _seeds(table: Table, row: str) -> str:
    counts = sorted({len(c.values) for (r, _, _), c in table.cells.items() if r == row})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _latex(table: Table) -> str:
    columns = "l" + "r" * len(table.heads)
    lines = [
        f"% {table.title} ({table.paper}); {RULE}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        "Method & " + " & ".join(f"{d} {c}" for d, c in table.heads) + r" \\ \midrule",
    ]
    for row in table.rows:
        texts = []
        for head in table.heads:
            cell = table.cells.get((row, *head))
            if cell is None or not cell.values:
                texts.append("--")
                continue
            decimals = table.decimals[head[0]]
            mean = f"{cell.mean:.{decimals}f}"
            mean = rf"\textbf{{{mean}}}" if cell.is_best else mean
            texts.append(rf"{mean}$_{{\pm {cell.std:.{decimals}f}}}$")
        lines.append(f"{_escape(row)} & " + " & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _escape(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["method", "dataset", "column", "mean", "std", "seeds", "paper_mean", "paper_std", "best"]
    )
    for (row, dataset, column), cell in table.cells.items():
        mean, std = cell.paper or ("", "")
        writer.writerow(
            [row, dataset, column, cell.mean, cell.std, len(cell.values), mean, std, cell.is_best]
        )
    return buffer.getvalue().rstrip("\n")
