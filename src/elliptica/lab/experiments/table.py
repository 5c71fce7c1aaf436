"""Tables as a pure function of records, as Markdown, LaTeX or CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from elliptica._utils.statistics import student_tail
from elliptica.lab.experiments.epochs import MEANING, Epoch, NoEpochsError, metrics_at
from elliptica.lab.experiments.records import DRAWS, Record
from elliptica.lab.experiments.specification import Run, Specification, runs

#: Which rows of the data a table is about, or what its runs cost up to the epoch that was chosen.
Part = Literal["test", "validation", "cost"]
Format = Literal["markdown", "latex", "csv"]
Head = tuple[str, str]  # data set and column

#: Level of the paired test that marks the best value, and seeds that it needs.
LEVEL, MIN_SEEDS = 0.05, 3
#: Marks values of records that the command would no longer give to the last digit.
DAGGER = "†"

SPREAD = "Mean and sample deviation over seeds."
RULE = (
    f"Bold: best mean, and better than every other row on the same seeds (paired t test, p < {LEVEL} after "
    f"Holm's correction; at least three seeds). {SPREAD}"
)
COST = (
    "Up to the epoch that was chosen, a first stage included. Evaluations: thousands of rows through the "
    "network in training. Seconds: wall time of training and validation, which depends on what else the "
    "machine did."
)
OLD = f"{DAGGER} Made with earlier random draws: a new run agrees in law, not to the digit."


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    values: dict[int, float]  # by seed, in the units of the table
    paper: tuple[float, float | None] | None  # the paper's mean and deviation, or None
    is_best: bool = False  # best mean, and better than every other method in a paired test
    is_old: bool = False  # some values were made with earlier random draws

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
    """A table ready to be printed: cells by row, data set and column."""

    name: str
    title: str
    paper: str
    part: Part
    rows: tuple[str, ...]
    heads: tuple[Head, ...]
    cells: dict[tuple[str, str, str], Cell]
    notes: tuple[str, ...]
    decimals: dict[str, int]
    epoch: Epoch = "chosen"

    def column(self, head: Head) -> list[Cell]:
        """The cells below a head."""
        return [self.cells[(row, *head)] for row in self.rows if (row, *head) in self.cells]

    def is_old(self, head: Head) -> bool:
        """Whether all values below a head were made with earlier random draws."""
        filled = [cell for cell in self.column(head) if cell.values]
        return bool(filled) and all(cell.is_old for cell in filled)


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
    ``remarks`` are printed below the table; ``epoch`` is explained in `metrics_at`.
    """
    if part == "cost" and epoch != "chosen":
        raise NoEpochsError("Costs are those up to the epoch that was chosen: leave out --epoch.")
    by_run = {(record.run.key, record.run.seed): record for record in records}
    found = [(run, by_run.get((run.key, run.seed))) for run in wanted]
    datasets = tuple(dict.fromkeys(run.dataset for run in wanted))
    rows = tuple(dict.fromkeys(run.row for run in wanted))
    columns = ["evaluations", "seconds"] if part == "cost" else list(specification.columns)
    papers = _papers(name, specification, wanted) if part == "test" and epoch != "best" else {}
    cells: dict[tuple[str, str, str], Cell] = {}
    for run, record in found:
        for column in columns:
            place = (run.row, run.dataset, column)
            cell = cells.setdefault(place, Cell({}, papers.get(place)))
            value = None if record is None else _value(record, part, column, specification, epoch)
            if record is not None and value is not None:
                cell.values[run.seed] = value
                cells[place] = replace(cell, is_old=cell.is_old or record.draws != DRAWS)
    heads = tuple((dataset, column) for dataset in datasets for column in columns)
    for head in heads if part != "cost" and epoch != "best" else ():
        _mark_best(cells, rows, head, larger=specification.metric == "accuracy")
    can_be_bold = max((len(cell.values) for cell in cells.values()), default=0) >= MIN_SEEDS
    notes = [specification.datasets[d].note for d in datasets if specification.datasets[d].note]
    notes += remarks
    if None in papers.values():
        notes.append("The paper's values are left out: the epochs, precision or budget here are others.")
    if part == "validation" and epoch == "chosen":
        notes.append("On the validation part, which also chose the epoch: for choices, not for reporting.")
    elif epoch != "chosen":
        notes += [MEANING[epoch], *["On the validation part."] * (part == "validation")]
    notes.append(COST if part == "cost" else RULE if can_be_bold else SPREAD)
    notes += [OLD] * any(cell.is_old for cell in cells.values())
    if missing := sum(record is None for _, record in found):
        notes.append(f"{missing} of {len(wanted)} runs are not recorded yet.")
    decimals = {d: 1 if part == "cost" else _decimals(cells, d, specification) for d in datasets}
    title, paper = specification.title, specification.paper
    return Table(name, title, paper, part, rows, heads, cells, tuple(notes), decimals, epoch)


def _papers(
    name: str, specification: Specification, wanted: list[Run]
) -> dict[tuple[str, str, str], tuple[float, float | None] | None]:
    """The paper's values, None where they may not stand beside the runs."""
    found: dict[tuple[str, str, str], tuple[float, float | None] | None] = {}
    for run in {(run.dataset, run.row): run for run in wanted}.values():
        values = specification.datasets[run.dataset].paper.get(run.row, {})
        is_comparable = bool(values) and _is_comparable(name, specification, run)
        for column, value in values.items():
            if column in specification.columns:
                pair = (value.mean, value.std) if is_comparable else None
                found[run.row, run.dataset, column] = pair
    return found


def _is_comparable(name: str, specification: Specification, run: Run) -> bool:
    """Whether a run was trained for as long as its table specifies; the paper's settings were tuned, too."""
    if run.match_evaluations or run.row not in specification.methods:
        return False
    usual = runs(name, specification, datasets=[run.dataset], methods=[run.row], seeds=1)
    return any(_schedule(other) == _schedule(run) for other in usual)


def _schedule(run: Run) -> tuple[Any, Any]:
    return run.training.get("epochs"), run.training.get("precision", "float32")


def _value(
    record: Record, part: Part, column: str, specification: Specification, epoch: Epoch
) -> float | None:
    """What stands in a cell, in the units of the table."""
    if part != "cost":
        value = metrics_at(record, part, epoch).get(column)
        return None if value is None else (1 if specification.metric == "rmse" else 100) * float(value)
    share = (record.epoch + 1) / record.cost.epochs
    first, total = record.cost.first_stage.get(column, 0.0), getattr(record.cost, column)
    return float(first + share * (total - first)) / (1000 if column == "evaluations" else 1)


def _decimals(cells: dict[tuple[str, str, str], Cell], dataset: str, specification: Specification) -> int:
    if specification.metric != "rmse":
        return 1
    means = [cell.mean for (_, d, column), cell in cells.items() if (d, column) == (dataset, "average")]
    return 2 if max(filter(math.isfinite, means), default=0) > 1 else 4


def _mark_best(
    cells: dict[tuple[str, str, str], Cell], rows: tuple[str, ...], head: Head, *, larger: bool
) -> None:
    places = [(row, *head) for row in rows]
    filled = {place: cells[place] for place in places if place in cells and cells[place].values}
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


def render(table: Table, form: Format) -> str:
    """The table as text."""
    if form == "csv":
        return _csv(table)
    return _markdown(table) if form == "markdown" else _latex(table)


def grid(
    table: Table,
    show: Callable[[str, str, bool], str],
    *,
    title: Callable[[Head], str] = " ".join,
    dagger: str = f" {DAGGER}",
    agreement: Callable[[Cell], str] = lambda _: "",
) -> list[list[str]]:
    """The table as rows of text, the first its head; a paper's value stands after ours.

    Args:
        table: What to show.
        show: Makes a text of mean, deviation and whether they are the best.
        title: Names a column.
        dagger: Marks old values: a whole column at its head, single ones where they stand.
        agreement: Stands behind the paper's value.
    """
    lines = [["method"], *([row] for row in table.rows)]
    for head in table.heads:
        is_old = table.is_old(head)
        lines[0].append(title(head) + dagger * is_old)
        has_paper = any(cell.paper is not None for cell in table.column(head))
        lines[0] += ["paper"] * has_paper
        for line, row in zip(lines[1:], table.rows, strict=True):
            cell = table.cells.get((row, *head), Cell({}, None))
            line.append(show(*cell_texts(table, row, head, False)) + dagger * (cell.is_old and not is_old))
            if has_paper:
                line.append(show(*cell_texts(table, row, head, True)) + agreement(cell))
    lines[0].append("seeds")
    for line, row in zip(lines[1:], table.rows, strict=True):
        counts = sorted({len(cell.values) for (r, _, _), cell in table.cells.items() if r == row})
        line.append(" to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))))
    return lines


def cell_texts(table: Table, row: str, head: Head, is_paper: bool) -> tuple[str, str, bool]:
    """Mean and deviation as text, and whether they are bold; empty where there is nothing."""
    cell, decimals = table.cells.get((row, *head)), table.decimals[head[0]]
    if cell is None or (is_paper and cell.paper is None):
        return "", "", False
    if cell.paper is not None and is_paper:  # as printed there
        mean, std = cell.paper
        shown = f"{mean:.1f}" if decimals == 1 else f"{mean:g}"
        return (
            shown,
            "" if std is None else f"{std:.1f}" if decimals == 1 and std >= 0.1 else f"{std:g}",
            False,
        )
    if not cell.values:
        return "-", "", False
    std_text = "" if math.isnan(cell.std) else f"{cell.std:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}", std_text, cell.is_best


def markdown_text(mean: str, std: str, is_best: bool) -> str:
    """A mean and its deviation in Markdown."""
    text = f"{mean} ± {std}" if std else mean
    return f"**{text}**" if is_best else text


def markdown_lines(lines: list[list[str]]) -> list[str]:
    """Rows of text as a table in Markdown."""
    first, *others = ("| " + " | ".join(line) + " |" for line in lines)
    return [first, "|---|" + "--:|" * (len(lines[0]) - 1), *others]


def _title(table: Table) -> str:
    return " ".join((f"{table.title} ({table.paper})" if table.paper else table.title).split())


def _markdown(table: Table) -> str:
    lines = grid(table, markdown_text, title=lambda head: inert_markdown(" ".join(head)))
    lines = [[inert_markdown(line[0]), *line[1:]] for line in lines]
    return "\n".join([f"### {inert_markdown(_title(table))}", "", *markdown_lines(lines), "", *table.notes])


def _latex(table: Table) -> str:
    def show(mean: str, std: str, is_best: bool) -> str:
        mean = rf"\textbf{{{mean}}}" if is_best else "--" if mean == "-" else mean
        return rf"{mean}$_{{\pm {std}}}$" if std else mean

    lines = grid(table, show, title=lambda head: _escape(" ".join(head)), dagger=r"$^\dagger$")
    body = [" & ".join([_escape(line[0]), *line[1:]]) + r" \\" for line in lines]
    comments = [
        f"{_title(table)}, {table.part}",
        *(line for note in table.notes for line in note.splitlines()),
    ]
    columns = "l" + "r" * (len(lines[0]) - 1)
    begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0] + r" \midrule"]
    return "\n".join(
        [*(f"% {line}" for line in comments), *begin, *body[1:], r"\bottomrule", r"\end{tabular}"]
    )


def _escape(text: str) -> str:
    names = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(
        names.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in " ".join(text.split())
    )


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = ["method", "dataset", "column", "part", "mean", "std", "seeds", "paper_mean", "paper_std", "best"]
    writer.writerow([*names, "old_draws", "epoch"])
    for place, cell in table.cells.items():
        numbers = ["" if math.isnan(value) else value for value in (cell.mean, cell.std)]
        paper = ["" if value is None else value for value in cell.paper or ("", "")]
        line = [*map(inert_cell, place), table.part, *numbers, len(cell.values), *paper]
        writer.writerow([*line, cell.is_best, cell.is_old, table.epoch])
    return buffer.getvalue().rstrip("\n")


def inert_markdown(text: str) -> str:
    """Keep HTML and the bars of tables in a text from becoming part of the Markdown that it is put into."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def inert_cell(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would run as a formula."""
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
