"""Fill ``docs/reproduction.md`` and ``results/tables/README.md`` from the committed records; trains nothing.

Only records of the current random draws give numbers. A row of the first page has the command of its runs;
both verdicts follow from their records. What stands behind "Earlier run:" stays until there are any::

    elliptica run table3 --out results/tables          # trains what is not recorded with these draws
    python studies/reproduction.py                     # rewrites the pages
"""

from __future__ import annotations

import shlex
import statistics

from scipy import stats
from typer.main import get_command

from common import ROOT, fill
from elliptica.cli import app
from elliptica.cli.experiments import make_choice
from elliptica.lab.experiments import table as tables
from elliptica.lab.experiments.choice import Choice, Place, describe, group_records, known_tables, read_folder
from elliptica.lab.experiments.page import commands
from elliptica.lab.experiments.records import DRAWS, Record, read_records
from elliptica.lab.experiments.specification import Specification

RECORDS = ROOT / "results" / "tables"
PAGE, NUMBERS = ROOT / "docs" / "reproduction.md", RECORDS / "README.md"

#: Repetitions behind the paper's means and deviations, as it says.
PAPER_SEEDS = {"table1": 5, "table2": 5, "table4": 3}
DEFAULT_PAPER_SEEDS = 10


def parse(command: str) -> Choice:
    """The runs of a command as it is printed: elliptica run TABLE OPTIONS."""
    given = get_command(app).commands["run"].make_context("run", shlex.split(command)[2:]).params
    names = ("table", "dataset", "methods", "seeds", "epochs", "match", "tuned")
    return make_choice(*(None if given[name] == () else given[name] for name in names))


def agrees(ours: tables.Cell, name: str) -> bool:
    """Whether our mean agrees with the paper's: Welch's test at 5 %."""
    assert ours.paper is not None
    theirs = (*ours.paper, PAPER_SEEDS.get(name, DEFAULT_PAPER_SEEDS))
    test = stats.ttest_ind_from_stats(ours.mean, ours.std, len(ours.values), *theirs, equal_var=False)
    return bool(test.pvalue >= 0.05)


def fate(is_gain: bool, gaps: list[tuple[float, float, float]]) -> str:
    """What becomes of a claim: from gains, half widths of their 95 % intervals, and the paper's gains.

    A claim to be level holds unless a gain is below zero. A claimed gain holds if all are above zero, does
    not hold if one is below the paper's, and is open otherwise.
    """
    if not is_gain:
        return "does not hold" if any(gain + width < 0 for gain, width, _ in gaps) else "holds"
    if all(gain - width > 0 for gain, width, _ in gaps):
        return "holds"
    return "does not hold" if any(gain + width < paper for gain, width, paper in gaps) else "open"


def judge(choice: Choice, says: str, number: str, claim: str) -> tuple[str, str]:
    """Number and claim of the last row of a choice, beside its other rows.

    Where the paper has no value the runs stand in for others: ``number`` stays, and the claim is open.
    """
    wanted, name = choice.runs(RECORDS), choice.name
    found = tables.make_table(name, choice.specification, wanted, read_records(RECORDS, wanted))
    column = choice.specification.select
    cells = {row: found.cells[row, found.heads[0][0], column] for row in found.rows}
    is_done = {row: len(cell.values) * len(cells) == len(wanted) for row, cell in cells.items()}
    *others, ours = cells
    papers = [head for head in found.heads if found.cells[ours, *head].paper]

    def shown(head: tables.Head, is_paper: bool = False) -> str:
        return " ± ".join(filter(None, tables.cell_texts(found, ours, head, is_paper)[:2]))

    if papers:
        texts = [f"{head[1]} {shown(head)} (paper {shown(head, True)})" for head in papers]
        is_close = all(is_done[ours] and agrees(found.cells[ours, *head], name) for head in papers)
        number = f"**{'agrees' if is_close else 'differs'}**: {', '.join(texts)}"
        number = number if is_done[ours] else "**not run**: to be run again"
    if not all(is_done.values()):
        earlier = claim.partition("Earlier run: ")[2] or claim.split("**")[1]
        return number, f"**open**: to be run again. Earlier run: {earlier}"
    texts, gaps, digits = [], [], found.decimals[found.heads[0][0]]
    sign = 1 if choice.specification.metric == "accuracy" else -1
    for row in others:
        differences = [cells[ours].values[seed] - cells[row].values[seed] for seed in cells[ours].values]
        mean, error = statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
        texts.append(f"{mean:+.{digits}f} (s.e. {error:.{digits}f}) against {row}")
        if (mine := cells[ours].paper) and (theirs := cells[row].paper):
            width = float(stats.t.ppf(0.975, len(differences) - 1)) * error
            gaps.append((sign * mean, width, sign * (mine[0] - theirs[0])))
    if not papers:
        texts = [f"instead {column} {shown((found.heads[0][0], column))}", *texts]
    return number, f"**{fate('better' in says, gaps) if papers else 'open'}**: {', '.join(texts)}"


def page() -> str:
    """The page of verdicts; cells that follow from records are made anew."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines):
        cells = line.strip("| ").split(" | ")
        if len(cells) == 5 and cells[-1].startswith("`elliptica run"):
            cells[2:4] = judge(parse(cells[-1].strip("`")), *cells[1:4])
            lines[place] = f"| {' | '.join(cells)} |"
    return "\n".join([*lines, ""])


def section(place: Place, members: list[Record], specification: Specification) -> str:
    """The table of a data set with the commands that repeat it; of earlier draws the commands alone."""
    name, dataset, variant = place
    title = f"{name.replace('table', 'Table ')}: {dataset}" + (f" ({describe(variant)})" if variant else "")
    words = ["elliptica", "run", name, "--out", "results/tables"]
    lines = [f"`{line}`" for line in commands(place, members, words)]
    if members[0].draws != DRAWS:
        return f"- {title}: {', '.join(lines)}"
    order = list(specification.methods)
    members = sorted(members, key=lambda record: (order.index(record.run.row), record.run.seed))
    found = tables.make_table(name, specification, [record.run for record in members], members)

    def mark(cell: tables.Cell) -> str:
        is_known = cell.paper is not None and cell.paper[1] and len(cell.values) > 1
        return "" if not is_known else " ✓" if agrees(cell, name) else " ✗"

    grid = tables.grid(found, title=lambda head: head[1], agreement=mark)
    notes = [note for note in found.notes if note not in (tables.RULE, tables.SPREAD)]
    below = [f"- {text}" for text in (*notes, *lines)]
    return "\n".join([f"## {title}", "", *tables.markdown_lines(grid), "", *below, ""])


def numbers() -> str:
    """The page of all tables, and the commands of those that are to be run again."""
    records, known, blocks = read_folder(RECORDS), known_tables(), {}
    for mark, is_current in (("tables", True), ("again", False)):
        groups = group_records([r for r in records if (r.draws == DRAWS) == is_current], RECORDS, known)
        blocks[mark] = "\n".join(section(p, rs, known[p[0]]) for p, rs in groups.items()).strip()
    return fill(NUMBERS, blocks, "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    NUMBERS.write_text(numbers(), encoding="utf-8")
