"""Tables as a pure function of records, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from elliptica._utils.extras import count
from elliptica._utils.statistics import student_tail
from elliptica.lab.experiments.metrics import MEANING, Epoch, metrics_at
from elliptica.lab.experiments.records import DRAWS, Record
from elliptica.lab.experiments.specification import Run, Specification, runs
from elliptica.report.judge import MIN_SEEDS
from elliptica.report.page import escape_markdown

#: Which rows of the data a table is about.
Part = Literal["test", "validation"]
Head = tuple[str, str]  # data set and column
Place = tuple[str, str, str]  # row, data set and column
Pair = tuple[float, float | None]  # the paper's mean and deviation

#: Level of the paired test that marks the best value.
LEVEL = 0.05

SPREAD = "Mean and sample deviation over seeds."
RULE = (
    f"Bold: best mean, and better than every other row on the same seeds (paired t test, p < {LEVEL} after "
    f"Holm's correction; at least three seeds). {SPREAD}"
)
HIDDEN = "with earlier random draws left out: elliptica run does them anew"


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    values: dict[int, float]  # by seed, in the units of the table
    paper: Pair | None
    is_best: bool = False  # best mean, and better than every other method in a paired test

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
    """A table ready to be printed."""

    name: str
    title: str
    rows: tuple[str, ...]
    heads: tuple[Head, ...]
    cells: dict[Place, Cell]
    notes: tuple[str, ...]
    decimals: dict[str, int]  # by data set

    def column(self, head: Head) -> list[Cell]:
        """The cells below a head; a row need not have one."""
        return [self.cells.get((row, *head), Cell({}, None)) for row in self.rows]


def make_table(
    name: str,
    specification: Specification,
    wanted: list[Run],
    records: Iterable[Record],
    part: Part = "test",
    remarks: tuple[str, ...] = (),
    epoch: Epoch = "chosen",
) -> Table:
    """Collect the records of the runs that a table consists of.

    The validation part is for choices among methods; the paper's values stand beside the test part only.
    ``remarks`` are printed below the table; ``epoch`` is explained in `metrics_at`. Records with earlier
    random draws, which a new run does not repeat to the digit, are only counted.
    """
    recorded = {(record.run.key, record.run.seed): record for record in records}
    by_run = {place: record for place, record in recorded.items() if record.draws == DRAWS}
    papers = _papers(name, specification, wanted) if part == "test" and epoch != "best" else {}
    cells: dict[Place, Cell] = {}
    for run in wanted:
        record = by_run.get((run.key, run.seed))
        for column in specification.columns:
            place = run.row, run.dataset, column
            cell = cells.setdefault(place, Cell({}, papers.get(place)))
            if record and (value := metrics_at(record, part, epoch).get(column)) is not None:
                cell.values[run.seed] = (1 if run.metric == "rmse" else 100) * float(value)
    datasets = list(dict.fromkeys(run.dataset for run in wanted))
    rows = tuple(dict.fromkeys(run.row for run in wanted))
    heads = tuple((dataset, column) for dataset in datasets for column in specification.columns)
    for head in heads if epoch != "best" else ():
        is_rate = specification.metric == "accuracy" and head[1] != "calibration"
        _mark_best(cells, head, larger=is_rate or head[1] == "auroc")
    notes = [*(specification.datasets[d].note for d in datasets), *remarks]
    if None in papers.values():
        notes.append("The paper's values are left out: the epochs, precision or budget here are others.")
    if part == "validation" and epoch == "chosen":
        notes.append("On the validation part, which also chose the epoch: for choices, not for reporting.")
    notes += [MEANING[epoch], "On the validation part." * (part == "validation" and epoch != "chosen")]
    can_be_bold = any(len(cell.values) >= MIN_SEEDS for cell in cells.values())
    notes.append(RULE if can_be_bold else SPREAD)
    if hidden := [record.run.row for place, record in recorded.items() if place not in by_run]:
        notes.append(f"{count(len(hidden), 'run')} {HIDDEN} ({', '.join(dict.fromkeys(hidden))}).")
    if missing := sum((run.key, run.seed) not in recorded for run in wanted):
        notes.append(f"{missing} of {len(wanted)} runs are not recorded yet.")
    decimals = {d: _decimals(cells, d, specification.metric) for d in datasets}
    title = f"{specification.title} ({specification.paper})" if specification.paper else specification.title
    return Table(name, title, rows, heads, cells, tuple(filter(None, notes)), decimals)


def _papers(name: str, specification: Specification, wanted: list[Run]) -> dict[Place, Pair | None]:
    """The paper's values, None for runs that were not trained for as long as the table specifies.

    Other settings do not matter: the paper's were tuned, too.
    """
    papers: dict[Place, Pair | None] = {}
    for run in {(run.dataset, run.row): run for run in wanted}.values():
        values = specification.datasets[run.dataset].paper.get(run.row, {})
        usual = (
            runs(name, specification, datasets=[run.dataset], methods=[run.row], seeds=1) if values else []
        )
        fits = not run.match_evaluations and any(_schedule(other) == _schedule(run) for other in usual)
        for column in values.keys() & set(specification.columns):
            value = values[column]
            papers[run.row, run.dataset, column] = (value.mean, value.std) if fits else None
    return papers


def _schedule(run: Run) -> tuple[Any, Any]:
    return run.training.get("epochs"), run.training.get("precision", "float32")


def _decimals(cells: dict[Place, Cell], dataset: str, metric: str) -> int:
    means = [cell.mean for (_, d, column), cell in cells.items() if (d, column) == (dataset, "average")]
    return 1 if metric != "rmse" else 2 if max(filter(math.isfinite, means), default=0) > 1 else 4


def _mark_best(cells: dict[Place, Cell], head: Head, *, larger: bool) -> None:
    filled = {place: cell for place, cell in cells.items() if place[1:] == head and cell.values}
    if len(filled) < 2:
        return
    best = (max if larger else min)(filled, key=lambda place: filled[place].mean)
    others = (cell.values for place, cell in filled.items() if place != best)
    p_values = sorted(_paired_p(filled[best].values, values) for values in others)
    if all(p * (len(p_values) - i) < LEVEL for i, p in enumerate(p_values)):
        cells[best] = replace(cells[best], is_best=True)


def _paired_p(a: dict[int, float], b: dict[int, float]) -> float:
    """Two-sided p of a paired t test on the seeds that both have."""
    gaps = [a[seed] - b[seed] for seed in sorted(set(a) & set(b))]
    if len(gaps) < MIN_SEEDS:
        return 1.0
    spread, rounding = statistics.stdev(gaps), 1e-9 * max(map(abs, [*a.values(), *b.values()]))
    if spread <= rounding:  # equal gaps of coarse accuracies: what their signs alone say
        return 1.0 if abs(gaps[0]) <= rounding else 0.5 ** (len(gaps) - 1)
    t = abs(statistics.mean(gaps)) / (spread / math.sqrt(len(gaps)))
    return 2 * student_tail(-t, len(gaps) - 1)


def grid(
    table: Table,
    *,
    title: Callable[[Head], str] = " ".join,
    agreement: Callable[[Cell], str] = lambda _: "",
) -> list[list[str]]:
    """The table as rows of text, the first its head; the paper's value stands after ours.

    ``agreement`` stands behind the paper's value.
    """
    columns = [["method", *table.rows]]
    for head in table.heads:
        cells = table.column(head)
        columns.append([title(head), *(_show(*cell_texts(table, row, head, False)) for row in table.rows)])
        if any(cell.paper for cell in cells):
            theirs = [_show(*cell_texts(table, row, head, True)) for row in table.rows]
            columns.append(["paper", *map(str.__add__, theirs, map(agreement, cells))])
    counts = [[len(c.values) for place, c in table.cells.items() if place[0] == row] for row in table.rows]
    columns.append(["seeds", *(" to ".join(map(str, sorted({min(n), max(n)}))) for n in counts)])
    return [list(line) for line in zip(*columns, strict=True)]


def cell_texts(table: Table, row: str, head: Head, is_paper: bool) -> tuple[str, str, bool]:
    """Mean and deviation as text, and whether they are bold; empty where there is nothing."""
    cell, decimals = table.cells.get((row, *head)), table.decimals[head[0]]
    if cell is None or (is_paper and cell.paper is None):
        return "", "", False
    if is_paper and cell.paper is not None:  # as printed there
        mean, std = cell.paper
        spread = "" if std is None else f"{std:.1f}" if decimals == 1 and std >= 0.1 else f"{std:g}"
        return f"{mean:.1f}" if decimals == 1 else f"{mean:g}", spread, False
    spread = "" if math.isnan(cell.std) else f"{cell.std:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}" if cell.values else "-", spread, cell.is_best


def _show(mean: str, std: str, is_best: bool) -> str:
    text = f"{mean} ± {std}" if std else mean
    return f"**{text}**" if is_best else text


def markdown_lines(lines: list[list[str]]) -> list[str]:
    """Rows of text as a table in Markdown."""
    first, *others = ("| " + " | ".join(line) + " |" for line in lines)
    return [first, "|---|" + "--:|" * (len(lines[0]) - 1), *others]


def render(table: Table, *, escaped: bool = True) -> str:
    """The table as Markdown, or for a terminal, where names are not escaped."""
    escape = escape_markdown if escaped else lambda text: " ".join(text.split())
    lines = grid(table, title=lambda head: escape(" ".join(head)))
    lines = [[escape(line[0]), *line[1:]] for line in lines]
    return "\n".join(
        [f"### {escape(table.title)}", "", *markdown_lines(lines), "", *map(escape, table.notes)]
    )
