"""Write the tables of ``results/tables/README.md`` from the committed records; nothing is trained.

::

    elliptica run table3 --out results/tables          # trains what is not recorded
    python studies/tables.py                           # rewrites the page
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elliptica.experiments.command import Choice
from elliptica.experiments.records import read_records
from elliptica.experiments.render import render
from elliptica.experiments.specification import load_specification
from elliptica.experiments.table import Part, make_table

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
#: Tables of the page, with the data sets that were run.
SHOWN = [
    Shown("table3", Choice("table3", ["airfoil", "no2"])),
    Shown("table5", Choice("table5", ["skillcraft", "crime"])),
    Shown("table6", Choice("table6", ["breastmnist"])),
    Shown("table6-per-batch", Choice("table6", ["breastmnist-per-batch"], PLAIN)),
    Shown("table6-small", Choice("table6", SMALL, seeds=3)),
    Shown("table9", Choice("table9", ["breastmnist"])),
    Shown("table10", Choice("table10", ["breastmnist"], ["elliptic", "elliptic by distance"])),
    Shown("weighting-validation", Choice("weighting"), "validation"),
    Shown("weighting", Choice("weighting")),
]


def page(text: str) -> str:
    """The page with its tables made anew from the records."""
    for shown in SHOWN:
        name, wanted = shown.choice.table, shown.choice.runs(HERE)
        records = read_records(HERE, wanted)
        table = render(make_table(name, load_specification(name), wanted, records, shown.part), "markdown")
        begin, end = BEGIN.format(shown.mark), END.format(shown.mark)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Rewrite the page."""
    file = HERE / "README.md"
    file.write_text(page(file.read_text()))


if __name__ == "__main__":
    main()
