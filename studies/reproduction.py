"""Write the tables of the pages in ``results/tables`` from the committed records; nothing is trained.

::

    elliptica run table3 --out results/tables          # trains what is not recorded
    python studies/tables.py                           # rewrites the pages
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.records import read_records
from elliptica.lab.experiments.specification import load_specification
from elliptica.lab.experiments.table import Part, make_table, render

HERE = Path(__file__).resolve().parent.parent / "results" / "tables"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


@dataclass(frozen=True)
class Shown:
    """A table of the page: the mark between which it stands, and which runs it shows."""

    mark: str
    choice: Choice
    part: Part = "test"


SMALL = ["retinamnist", "pathmnist_subset", "pathmnist_subset-other-centre"]
PLAIN = ["erm", "mixup", "mixupe", "elliptic", "marginal"]
THREE = ["erm", "c-mixup", "marginal"]
REGRESSION = ["erm", "mixup", "c-mixup", "elliptic", "marginal"]  # rows with ten seeds
NEWER = ["ada", "erm as ada", "foma", "foma as released", "erm as foma"]
WEIGHTED = ["gradient_norm", "gradient_softmax", "girsanov", "released"]  # "multiplicative" is to be rerun
VARIANTS = ["none", *(f"{name} {xi}" for name in WEIGHTED for xi in (0.1, 1, 10))]
NOISE = ["features-noise0_0", "features-noise0_1", "features-noise0_5"]
LINEAR, TWO_LAYERS = ["waterbirds-features"], ["waterbirds-features-mlp"]


def tuned(table: str, dataset: list[str]) -> Choice:
    """Runs with the settings that were chosen on the validation part."""
    return Choice(table, dataset, tuned=True)


def matched(table: str, dataset: list[str] | None = None, **more: Any) -> Choice:
    """Runs with the evaluations of ordinary training."""
    return Choice(table, dataset, match_evaluations=True, **more)


#: Pages, and their tables with the data sets that were run.
SHOWN = {
    "README.md": [
        Shown("table1", matched("table1", ["cifar10-batch1"], seeds=3)),
        Shown("table3", Choice("table3", ["airfoil", "no2"], REGRESSION)),
        Shown("table3-newer", Choice("table3", ["airfoil", "no2"], ["erm", "c-mixup", *NEWER], seeds=5)),
        Shown("table3-scaled", Choice("table3", ["airfoil-scaled", "no2-scaled"], [*THREE, *NEWER], seeds=5)),
        Shown("table5", Choice("table5", ["skillcraft", "crime"], [*REGRESSION, "green"])),
        Shown("table3-all", Choice("table3", ["airfoil-all", "no2-all"], THREE, seeds=5)),
        Shown("table5-train", Choice("table5", ["skillcraft-train", "crime-train"], THREE, seeds=5)),
        Shown("table6", Choice("table6", ["breastmnist"])),
        Shown("table6-per-batch", Choice("table6", ["breastmnist-per-batch"], PLAIN)),
        Shown("table6-small", Choice("table6", SMALL, seeds=3)),
        Shown("table9", Choice("table9", ["breastmnist"])),
        Shown("table10", Choice("table10", ["breastmnist"], ["elliptic", "elliptic by distance"])),
        Shown("weighting-validation", Choice("weighting", methods=VARIANTS), "validation"),
        Shown("weighting", Choice("weighting", methods=VARIANTS)),
    ],
    "robustness.md": [
        Shown("table4", tuned("table4", LINEAR)),
        Shown("table4-mlp", tuned("table4", TWO_LAYERS)),
        Shown("table11", tuned("table11", LINEAR)),
        Shown("table11-mlp", tuned("table11", TWO_LAYERS)),
        Shown("table4-cost", tuned("table4", LINEAR), "cost"),
        Shown("table11-cost", tuned("table11", LINEAR), "cost"),
        Shown("table7", Choice("table7", LINEAR + TWO_LAYERS)),
        Shown("table8", Choice("table8", NOISE)),
        Shown("parts", matched("parts", LINEAR)),
        Shown("parts-breast", matched("parts", ["breastmnist"])),
        Shown("parts-regression", matched("parts-regression")),
        Shown("shift", Choice("shift")),
        Shown("shift-cost", Choice("shift"), "cost"),
    ],
}


def page(name: str) -> str:
    """A page with its tables made anew from the records."""
    text = (HERE / name).read_text()
    for shown in SHOWN[name]:
        of, wanted = shown.choice.table, shown.choice.runs(HERE)
        records = read_records(HERE, wanted)
        table = render(make_table(of, load_specification(of), wanted, records, shown.part), "markdown")
        begin, end = BEGIN.format(shown.mark), END.format(shown.mark)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Rewrite the pages."""
    for name in SHOWN:
        (HERE / name).write_text(page(name))


if __name__ == "__main__":
    main()
