"""Write the tables of ``docs/reproduction.md`` from the committed records; nothing is trained.

::

    elliptica run table3 --out results/tables          # trains what is not recorded
    python studies/reproduction.py                     # rewrites the page
"""

from __future__ import annotations

import statistics
from functools import partial

from scipy import stats

from common import ROOT, fill, table
from elliptica.lab.experiments import table as tables
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.records import read_records, records_of
from elliptica.lab.experiments.specification import load_specification

RECORDS = ROOT / "results" / "tables"
PAGE = ROOT / "docs" / "reproduction.md"

#: Repetitions behind the paper's means and deviations, as it says.
PAPER_SEEDS = {"table1": 5, "table2": 5, "table4": 3}
DEFAULT_PAPER_SEEDS = 10
AGREES, DIFFERS = "✓", "✗"


SMALL = ["retinamnist", "pathmnist_subset", "pathmnist_subset-other-centre"]
HIDDEN = "elliptic hidden kernel"
NOISES = ["noise as green", "noise"]
THREE = ["erm", "c-mixup", "marginal"]
REGRESSION = ["erm", "mixup", "c-mixup", "elliptic", "marginal"]
NEWER = ["ada", "erm as ada", "foma", "foma as released", "erm as foma"]
PARTS = ["one path", "one path kernel", "one path hidden", "one path hidden kernel"]
PARTS += ["one line hidden kernel", "mixup hidden"]
SCALED = ["erm", "c-mixup", "elliptic", "marginal", HIDDEN, *NEWER]
WEIGHTED = ["gradient_norm", "gradient_softmax", "girsanov", "released"]  # "multiplicative" is to be rerun
VARIANTS = ["none", *(f"{name} {xi}" for name in WEIGHTED for xi in (0.1, 1, 10))]
NOISE = ["features-noise0_0", "features-noise0_1", "features-noise0_5"]
LINEAR, TWO_LAYERS = ["waterbirds-features"], ["waterbirds-features-mlp"]


#: Runs with the settings that were chosen on validation, or with the evaluations of ordinary training.
tuned, matched = partial(Choice, tuned=True), partial(Choice, match_evaluations=True)

#: Tables of the page, by the mark between which they stand: which runs each shows.
SHOWN = {
    "table1": matched("table1", ["cifar10-batch1"], seeds=3),
    "table3": Choice("table3", ["airfoil", "no2"], [*REGRESSION, HIDDEN]),
    "table3-parts": Choice("table3", ["airfoil"], ["erm", "mixup", *PARTS], seeds=5),
    "table3-newer": Choice("table3", ["airfoil", "no2"], ["erm", "c-mixup", *NEWER], seeds=5),
    "table3-scaled": Choice("table3", ["airfoil-scaled", "no2-scaled"], SCALED, seeds=5),
    "table3-scaled-parts": Choice("table3", ["airfoil-scaled"], ["erm", *PARTS[2:]], seeds=5),
    "table3-all": Choice("table3", ["airfoil-all", "no2-all"], THREE, seeds=5),
    "table5-skillcraft": Choice("table5", ["skillcraft"], [*REGRESSION, "green", *NEWER[:2]]),
    "table5-crime": Choice("table5", ["crime"], [*REGRESSION, "green", *NEWER]),
    "table5-order": Choice("table5", ["skillcraft-in-order", "crime-in-order"], ["erm", "c-mixup"]),
    "table5-train": Choice("table5", ["skillcraft-train", "crime-train"], THREE, seeds=5),
    "table5-rcf": Choice("table5", ["rcf_mnist-features"], [*REGRESSION, "green", *NOISES]),
    "table6": Choice("table6", ["breastmnist"]),
    "table6-small": Choice("table6", SMALL, seeds=3),
    "table9": Choice("table9", ["breastmnist"]),
    "table10": Choice("table10", ["breastmnist"], ["elliptic", "elliptic by distance"]),
    "weighting-validation": Choice("weighting", methods=VARIANTS),
    "weighting": Choice("weighting", methods=VARIANTS),
    "table4": tuned("table4", LINEAR),
    "table4-mlp": tuned("table4", TWO_LAYERS),
    "table11": tuned("table11", LINEAR),
    "table11-mlp": tuned("table11", TWO_LAYERS),
    "table7": Choice("table7", LINEAR + TWO_LAYERS),
    "table8": Choice("table8", NOISE),
    "parts": matched("parts", LINEAR),
    "parts-breast": matched("parts", ["breastmnist"]),
    "parts-regression": matched("parts-regression"),
    "shift": Choice("shift"),
}

#: Blocks that other studies make from their records: the page, and what stands before and after the block.
QUOTED = {
    "controls": ("regression_controls", "### skillcraft\n", "\n### "),
    "uncertainty": ("uncertainty", "**In short.**", "**Seeds recorded"),
    "breast-protocols": ("breast_protocols", "<!-- matrix: begin -->", "<!-- matrix: end -->"),
    "breast-near": ("breast_protocols", "<!-- near: begin -->", "<!-- near: end -->"),
}

#: Why data sets of the paper were not run, by table.
NOT_RUN = {
    "table1": "200 epochs of these networks need an accelerator",
    "table2": "200 epochs of these networks need an accelerator; nine tenths of the classes were not fetched",
    "table4": "fine-tuning ResNet-50 and DenseNet-121 needs an accelerator; the photographs were not fetched",
    "table5": "fine-tuning ResNet-18 needs an accelerator",
    "table6": "the images were not fetched",
    "table7": "as Table 4",
    "table8": "as Table 4",
    "table9": "as Table 6",
    "table10": "as Table 6",
    "table11": "as Table 4",
}


def agrees(ours: tables.Cell, paper_seeds: int) -> bool:
    """Whether our mean agrees with the paper's: Welch's test at 5 %."""
    assert ours.paper is not None
    theirs = (*ours.paper, paper_seeds)
    test = stats.ttest_ind_from_stats(ours.mean, ours.std, len(ours.values), *theirs, equal_var=False)
    return bool(test.pvalue >= 0.05)


def collect(choice: Choice, part: tables.Part = "test") -> tables.Table:
    """Make the table from the records."""
    wanted, specification = choice.runs(RECORDS), load_specification(choice.table)
    records = read_records(RECORDS, wanted)
    return tables.make_table(choice.table, specification, wanted, records, part, all_draws=True)


def render(choice: Choice, part: tables.Part) -> str:
    """The table as Markdown; each value of the paper says whether ours agrees with it."""
    found = collect(choice, part)
    paper_seeds = PAPER_SEEDS.get(found.name, DEFAULT_PAPER_SEEDS)
    several = len({dataset for dataset, _ in found.heads}) > 1

    def mark(cell: tables.Cell) -> str:
        if cell.paper is None or not cell.paper[1] or len(cell.values) < 2 or not cell.std:
            return ""
        return f" {AGREES if agrees(cell, paper_seeds) else DIFFERS}"

    names = {"title": lambda head: " ".join(head) if several else head[1], "agreement": mark}
    lines = tables.markdown_lines(tables.grid(found, tables.markdown_text, **names))
    notes = [note for note in found.notes if note not in (tables.RULE, tables.SPREAD, tables.OLD)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def paired_gaps(dataset: str, row: str, others: list[str]) -> str:
    """Mean differences of a row from others on the same seeds, with standard errors."""
    found = collect(Choice("table3", [dataset], [row, *others], seeds=5))
    ours, parts = found.cells[(row, dataset, "average")].values, []
    mark = f" {tables.DAGGER}" * any(cell.is_old for cell in found.cells.values())
    for other in others:
        values = found.cells[(other, dataset, "average")].values
        gaps = [ours[seed] - values[seed] for seed in sorted(ours.keys() & values.keys())]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        parts.append(f"{other} {statistics.mean(gaps):+.2f} ± {error:.2f}")
    return "; ".join(parts) + f".{mark}"


def draws() -> str:
    """Which rows the commands repeat to the last digit, and which only in distribution."""
    shown = map(collect, SHOWN.values())
    cells = [(t.name, *place[:2], c.is_old) for t in shown for place, c in t.cells.items() if c.values]

    def listed(is_old: bool) -> str:
        by_table: dict[str, dict[str, None]] = {}
        for name, row, dataset, _ in (cell for cell in cells if cell[-1] == is_old):
            is_whole = not any(c[0] == name and c[2] == dataset and c[-1] != is_old for c in cells)
            by_table.setdefault(name, {})[dataset if is_whole else f"{dataset} {row}"] = None
        return "; ".join(f"`{name}` ({', '.join(names)})" for name, names in by_table.items()) or "none"

    earlier = f"Earlier random draws ({tables.DAGGER}), a new run agrees in distribution only"
    current = "Current random draws, every digit comes out again"
    return f"- {current}: {listed(False)}.\n- {earlier}: {listed(True)}."


def not_run() -> str:
    """The paper's values for elliptic training on data that were not run, and why."""
    lines = []
    for name, reason in NOT_RUN.items():
        specification = load_specification(name)
        recorded = {record.run.dataset for record in records_of(RECORDS, name).read()}
        for dataset, spec in specification.datasets.items():
            rows = [row for row in spec.paper if "elliptic" in row] or list(spec.paper)
            for row in rows if dataset not in recorded else []:
                cells = spec.paper[row].items()
                values = ", ".join(f"{c} {v.mean:g}" + (f" ± {v.std:g}" if v.std else "") for c, v in cells)
                lines.append([specification.paper, dataset, row, values, reason])
    return "\n".join(table(["table", "data", "row", "paper", "because"], lines, "lllll"))


def quote(study: str, begin: str, end: str) -> str:
    """A block of another study's page."""
    text = (ROOT / "results" / study / "README.md").read_text(encoding="utf-8")
    return text.partition(begin)[2].partition(end)[0].strip()


def two_moons() -> str:
    """Three of the variants of two moons: the demo's, the one that closes the region, and fewer steps."""
    lines = quote("two_moons", "<!-- tables: begin -->", "<!-- tables: end -->").splitlines()
    wanted = ("| variant", "|---", "| `half-disc`", "| `tube`", "| `short`")
    return "\n".join(line for line in lines if line.startswith(wanted))


def page() -> str:
    """The page with its tables made anew from the records."""
    blocks = {mark: render(c, "validation" if "validation" in mark else "test") for mark, c in SHOWN.items()}
    blocks |= {mark: quote(*where) for mark, where in QUOTED.items()}
    others = ["erm", "erm as ada", "erm as foma", "c-mixup", *PARTS[2:]]
    gaps = paired_gaps("airfoil-scaled", HIDDEN, others)
    blocks |= {"draws": draws(), "two-moons": two_moons(), "not-run": not_run(), "table3-scaled-paired": gaps}
    return fill(PAGE, blocks, "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
