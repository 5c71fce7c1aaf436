"""Write the tables of ``results/tables/README.md`` from the committed records; nothing is trained.

::

    elliptica run table3 --out results/tables          # trains what is not recorded
    python studies/tables.py                           # rewrites the page
"""

from __future__ import annotations

from pathlib import Path

from elliptica.experiments.records import read_records
from elliptica.experiments.specification import load_specification, runs
from elliptica.experiments.table import make_table, render

HERE = Path(__file__).resolve().parent.parent / "results" / "tables"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
#: Tables of the page, with the data sets that were run.
SHOWN = {"table3": ["airfoil", "no2"], "table5": ["skillcraft"]}


def page(text: str) -> str:
    """The page with its tables made anew from the records."""
    for name, datasets in SHOWN.items():
        specification = load_specification(name)
        wanted = runs(name, specification, datasets=datasets)
        table = render(make_table(name, specification, wanted, read_records(HERE, wanted)), "markdown")
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Rewrite the page."""
    file = HERE / "README.md"
    file.write_text(page(file.read_text()))


if __name__ == "__main__":
    main()
