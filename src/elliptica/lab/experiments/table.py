"""Tables as a pure function of records, as Markdown, LaTeX or CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from elliptica._utils.statistics import student_tail
from elliptica._utils.text import count
from elliptica.lab.experiments.epochs import MEANING, Epoch, NoEpochsError, has_epochs, metrics_at
from elliptica.lab.experiments.specification import Run, Specification, runs

#: Which rows of the data a table is about, or what its runs cost up to the epoch that was chosen.
Part = Literal["test", "validation", "cost"]
Record = dict[str, Any]

#: Level of the paired test that marks the best value.
LEVEL = 0.05
#: Seeds that it needs.
MIN_SEEDS = 3


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    values: dict[int, float]  # by seed, in the units of the table
    paper: tuple[float, float | None] | None  # the paper's mean and deviation, or None
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
    """A table ready to be printed: cells by row and by (data set, column)."""

    name: str
    title: str
    paper: str
    part: Part
    rows: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]
    cells: dict[tuple[str, str, str], Cell]
    notes: tuple[str, ...]
    decimals: dict[str, int]
    epoch: Epoch = "chosen"


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


def make_table(
    name: str,
    specification: Specification,
    wanted: list[Run],
    records: list[Record],
    part: Part = "test",
    remarks: tuple[str, ...] = (),
    epoch: Epoch = "chosen",
) -> Table:
    """Collect the records of the runs that a table consists of.

    The validation part is for choices among methods; the paper's values stand beside the test part only.
    ``remarks`` are printed below the table; ``epoch`` is explained in `metrics_at`.
    """
    _check_epochs(records, part, epoch)
    by_key = {(r["run"]["row"], r["run"]["dataset"], r["run"]["seed"], _key(r)): r for r in records}
    datasets = tuple(dict.fromkeys(run.dataset for run in wanted))
    rows = tuple(dict.fromkeys(run.row for run in wanted))
    columns = ["evaluations", "seconds"] if part == "cost" else list(specification.columns)
    cells: dict[tuple[str, str, str], Cell] = {}
    missing, comparable = 0, dict[str, bool]()
    for run in wanted:
        record = by_key.get((run.row, run.dataset, run.seed, run.key))
        missing += record is None
        for column in columns:
            place = (run.row, run.dataset, column)
            has_paper = part == "test" and epoch != "best"  # an epoch chosen on the test rows is no result
            papers = specification.datasets[run.dataset].paper if has_paper else {}
            paper = papers.get(run.row, {}).get(column)
            if paper is not None:
                if run.key not in comparable:
                    comparable[run.key] = is_comparable(name, specification, run)
                paper = paper if comparable[run.key] else None
            cell = cells.setdefault(place, Cell({}, None if paper is None else (paper.mean, paper.std)))
            value = None if record is None else _value(record, part, column, specification, epoch)
            if value is not None:
                cell.values[run.seed] = value
    heads = tuple((dataset, column) for dataset in datasets for column in columns)
    for head in heads if part != "cost" and epoch != "best" else ():
        _mark_best(cells, rows, head, larger=specification.metric == "accuracy")
    notes = [specification.datasets[d].note for d in datasets if specification.datasets[d].note]
    notes += remarks
    if not all(comparable.values()):
        notes.append("The paper's values are left out: the epochs, precision or budget here are others.")
    notes += _where_and_when(part, epoch)
    notes.append(COST if part == "cost" else RULE if _can_be_bold(cells) else SPREAD)
    if missing:
        notes.append(f"{missing} of {len(wanted)} runs are not recorded yet.")
    decimals = {d: 1 if part == "cost" else _decimals(cells, rows, d, specification) for d in datasets}
    return Table(
        name,
        specification.title,
        specification.paper,
        part,
        rows,
        heads,
        cells,
        tuple(notes),
        decimals,
        epoch,
    )


def is_comparable(name: str, specification: Specification, run: Run) -> bool:
    """Whether the paper's values may stand beside a run: trained for as long as its table specifies, and so.

    Settings that were tuned do not matter: the paper's were, too.
    """
    if run.match_evaluations or run.row not in specification.methods:
        return False
    found = runs(name, specification, datasets=[run.dataset], methods=[run.row], seeds=1)
    return any(_schedule(each) == _schedule(run) for each in found)


def _schedule(run: Run) -> tuple[Any, Any]:
    return run.training.get("epochs"), run.training.get("precision", "float32")


def _can_be_bold(cells: dict[tuple[str, str, str], Cell]) -> bool:
    return max((len(cell.values) for cell in cells.values()), default=0) >= MIN_SEEDS


def _where_and_when(part: Part, epoch: Epoch) -> list[str]:
    """What is not usual about the rows and the epoch."""
    if epoch == "chosen":
        told = "On the validation part, which also chose the epoch: for choices, not for reporting."
        return [told] if part == "validation" else []
    return [MEANING[epoch], *["On the validation part."] * (part == "validation")]


def _check_epochs(records: list[Record], part: Part, epoch: Epoch) -> None:
    if epoch == "chosen":
        return
    if part == "cost":
        raise NoEpochsError("Costs are those up to the epoch that was chosen: leave out --epoch.")
    lacking = [record["run"] for record in records if not has_epochs(record)]
    if lacking:
        rows = dict.fromkeys(f"{run['dataset']} {run['row']}" for run in lacking)
        raise NoEpochsError(
            f"{count(len(lacking), 'record')} of {len(records)} say nothing about other epochs than the one "
            f"that was chosen ({', '.join(rows)}). To do these runs anew: elliptica run --every-epoch. To "
            "leave them out, name others with --dataset and --methods."
        )


def _value(
    record: Record, part: Part, column: str, specification: Specification, epoch: Epoch
) -> float | None:
    """What stands in a cell, in the units of the table."""
    if part != "cost":
        value = metrics_at(record, part, epoch).get(column)
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
    if len(gaps) < MIN_SEEDS:
        return 1.0
    spread, rounding = statistics.stdev(gaps), 1e-9 * max(map(abs, [*a.values(), *b.values()]))
    if spread <= rounding:  # equal gaps of coarse accuracies: what their signs alone say
        return 1.0 if abs(gaps[0]) <= rounding else 0.5 ** (len(gaps) - 1)
    t = abs(statistics.mean(gaps)) / (spread / math.sqrt(len(gaps)))
    return 2 * student_tail(-t, len(gaps) - 1)


Format = Literal["markdown", "latex", "csv"]


def render(table: Table, form: Format) -> str:
    """The table as text."""
    if form == "csv":
        return _csv(table)
    return _markdown(table) if form == "markdown" else _latex(table)


def _heads(table: Table) -> list[tuple[tuple[str, str], bool]]:
    """Columns: a data set and a number, ours, and the paper's after it where it has one."""
    found = []
    for head in table.heads:
        cells = [table.cells.get((row, *head)) for row in table.rows]
        found.append((head, False))
        if any(cell is not None and cell.paper is not None for cell in cells):
            found.append((head, True))
    return found


def _title(table: Table) -> str:
    return f"{table.title} ({table.paper})" if table.paper else table.title


def _markdown(table: Table) -> str:
    heads = _heads(table)
    titles = ["paper" if is_paper else inert_markdown(" ".join(head)) for head, is_paper in heads]
    lines = [
        f"### {inert_markdown(_title(table))}",
        "",
        "| method | " + " | ".join(titles) + " | seeds |",
        "|---|" + "--:|" * len(heads) + "--:|",
    ]
    for row in table.rows:
        texts = []
        for head, is_paper in heads:
            mean, std, is_best = cell_texts(table, row, head, is_paper)
            text = f"{mean} ± {std}" if std else mean
            texts.append(f"**{text}**" if is_best else text)
        lines.append(f"| {inert_markdown(row)} | " + " | ".join(texts) + f" | {_seeds(table, row)} |")
    return "\n".join([*lines, "", *table.notes])


def _latex(table: Table) -> str:
    heads = _heads(table)
    titles = ["paper" if is_paper else _escape(" ".join(head)) for head, is_paper in heads]
    lines = [
        f"% {_title(table)}, {table.part}",
        *(f"% {line}" for note in table.notes for line in note.splitlines()),
        rf"\begin{{tabular}}{{l{'r' * len(heads)}r}}",
        r"\toprule",
        "Method & " + " & ".join(titles) + r" & seeds \\ \midrule",
    ]
    for row in table.rows:
        texts = []
        for head, is_paper in heads:
            mean, std, is_best = cell_texts(table, row, head, is_paper)
            mean = rf"\textbf{{{mean}}}" if is_best else mean.replace("-", "--") if mean == "-" else mean
            texts.append(rf"{mean}$_{{\pm {std}}}$" if std else mean)
        lines.append(f"{_escape(row)} & " + " & ".join(texts) + rf" & {_seeds(table, row)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def cell_texts(table: Table, row: str, head: tuple[str, str], is_paper: bool) -> tuple[str, str, bool]:
    """Mean and deviation as text, and whether they are bold; empty where there is nothing."""
    cell = table.cells.get((row, *head))
    if cell is None:
        return "", "", False
    if is_paper:
        return _paper(cell, table.decimals[head[0]])
    if not cell.values:
        return "-", "", False
    decimals = table.decimals[head[0]]
    std = "" if math.isnan(cell.std) else f"{cell.std:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}", std, cell.is_best


def _paper(cell: Cell, decimals: int) -> tuple[str, str, bool]:
    """As printed there, with as many decimals as ours if it has fewer."""
    if cell.paper is None:
        return "", "", False
    mean, std = cell.paper
    if decimals == 1:
        return f"{mean:.1f}", "" if std is None else f"{std:.1f}" if std >= 0.1 else f"{std:g}", False
    return f"{mean:g}", "" if std is None else f"{std:g}", False


def _seeds(table: Table, row: str) -> str:
    counts = sorted({len(c.values) for (r, _, _), c in table.cells.items() if r == row})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _escape(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = ["method", "dataset", "column", "part", "mean", "std", "seeds", "paper_mean", "paper_std", "best"]
    names += ["epoch"] if table.epoch != "chosen" else []
    writer.writerow(names)
    for (row, dataset, column), cell in table.cells.items():
        values = ["" if math.isnan(value) else value for value in (cell.mean, cell.std)]
        paper = ["" if value is None else value for value in cell.paper or ("", "")]
        names = [inert_cell(name) for name in (row, dataset, column)]
        written = [*names, table.part, *values, len(cell.values), *paper, cell.is_best]
        writer.writerow([*written, *([table.epoch] if table.epoch != "chosen" else [])])
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
