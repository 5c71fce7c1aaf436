"""Study: what does ``elliptica compare`` say about four tables that ship with scikit-learn?

The tables were chosen before any of them was run. Writes each one as CSV, runs the command on it with its
defaults, keeps report and records, and collects the verdicts::

    python studies/compare_tables.py             # goes on where it was
    python studies/compare_tables.py --page      # only the page, from the records
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from sklearn import datasets

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"
INTRODUCTION = """\
# `elliptica compare` on four tables

`python studies/compare_tables.py` writes four tables that ship with scikit-learn as CSV and runs
`elliptica compare --trees` on each, otherwise with its defaults. They were chosen before any was run. The
verdicts below are the command's own words, collected from `<table>/results.json`; `<table>/report.md` is what
it wrote.
"""


@dataclass(frozen=True)
class Example:
    """A table of the study.

    Attributes:
        load: Loader of scikit-learn.
        title: What it is.
        options: Options of the command beside the target.
        named: Whether classes are written by name.
    """

    load: Callable[..., Any]
    title: str
    options: tuple[str, ...] = ()
    named: bool = False


EXAMPLES = {
    "breast_cancer": Example(datasets.load_breast_cancer, "breast cancer, 2 classes", named=True),
    "diabetes": Example(datasets.load_diabetes, "diabetes, regression, group sex", ("--group", "sex")),
    "wine": Example(datasets.load_wine, "wine, 3 classes", named=True),
    "digits": Example(datasets.load_digits, "digits, 10 classes"),
}


def frame(name: str) -> pl.DataFrame:
    """A table with its target in the column ``target``."""
    example = EXAMPLES[name]
    loaded = example.load(**({"scaled": False} if name == "diabetes" else {}))
    names = [str(each) for each in loaded.feature_names]
    made = pl.DataFrame({each: loaded.data[:, i] for i, each in enumerate(names)})
    target = loaded.target
    if example.named:
        target = [str(loaded.target_names[i]) for i in target]
    return made.with_columns(pl.Series("target", target))


def run(name: str, work: Path, out: Path, extra: list[str]) -> None:
    """Run the command on one table, and keep its report and records."""
    work.mkdir(parents=True, exist_ok=True)
    frame(name).write_csv(work / f"{name}.csv")
    command = ["compare", f"{name}.csv", "--target", "target", "--trees", "--out", name]
    # in the folder of the table, so that no path of this machine is recorded
    arguments = [sys.executable, "-m", "elliptica", *command, *EXAMPLES[name].options, *extra]
    subprocess.run(arguments, cwd=work, check=True)
    (out / name).mkdir(parents=True, exist_ok=True)
    for file in ("report.md", "results.json"):
        shutil.copy(work / name / file, out / name / file)


def verdicts(out: Path) -> str:
    """The verdicts of the tables that are recorded."""
    lines = []
    for name, example in EXAMPLES.items():
        file = out / name / "results.json"
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            about = found["about"]
            lines += [
                f"**{example.title}** ({about['rows']} rows, {len(about['inputs'])} inputs; "
                f"[report]({name}/report.md)): {found['verdict']['text']}",
                "",
            ]
    return "\n".join(lines).rstrip()


def write_page(out: Path) -> None:
    """Write the verdicts between the marks of the page, which is made if there is none."""
    page = out / "README.md"
    text = page.read_text(encoding="utf-8") if page.exists() else f"{INTRODUCTION}\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{verdicts(out)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "compare")
    parser.add_argument("--work", type=Path, default=ROOT / "data" / "compare", help="CSV files and models")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("extra", nargs="*", help="options of elliptica compare, after --")
    arguments = parser.parse_args()
    if not arguments.page:
        for name in arguments.tables:
            run(name, arguments.work, arguments.out, arguments.extra)
    write_page(arguments.out)
    print(verdicts(arguments.out))


if __name__ == "__main__":
    main()
