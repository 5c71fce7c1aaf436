"""Study: on which regions, networks and partners does elliptic training keep the loss within its boundary's?

The paper says neither what a moon is nor what its boundary is. Ten regions, and four changes on half discs:
partners by distance with sigma 0.05, two hidden layers, ReLU, fewer steps. Each as in `elliptica demo`, 24
seeds. Ten minutes::

    python studies/two_moons.py run        # what is not recorded yet, then the table
    python studies/two_moons.py table      # the table from the records
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

import torch

from elliptica.lab.demo.study import Study, record, run_study
from elliptica.lab.demo.training import METHODS, NAMES, Variant, describe_variant, variant_settings
from elliptica.lab.experiments.records import append_lines, read_lines

HERE = Path(__file__).resolve().parent.parent / "results" / "two_moons"
RECORDS = HERE / "variants.jsonl.gz"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def run_variant(variant: Variant) -> dict[str, Any]:
    """Train all methods on a variant; return what the table needs, seed by seed."""
    study = Study(variant_settings(variant))
    run_study(study)
    if study.interrupted:
        raise KeyboardInterrupt
    whole = record(study)
    return {
        "variant": variant,
        "settings": whole["settings"],
        "versions": whole["versions"],
        "untrained": [verdict.holds for verdict in study.untrained],
        "methods": {
            method: [
                {
                    "boundary_max": run.evaluation.inside.boundary_max,
                    "interior_max": run.evaluation.inside.interior_max,
                    "share_above": run.evaluation.inside.share_above,
                    "accuracy": run.evaluation.accuracy,
                }
                for run in study.runs
                if run.method == method
            ]
            for method in METHODS
        },
    }


def read() -> dict[str, dict[str, Any]]:
    """Read the records by variant."""
    return {row["variant"]: row for row in read_lines(RECORDS)}


def kept(runs: list[dict[str, float]]) -> int:
    """Count the seeds in which no loss inside is above the boundary's largest."""
    return sum(run["interior_max"] <= run["boundary_max"] for run in runs)


def table(found: dict[str, dict[str, Any]]) -> str:
    """Make the table of all recorded variants."""
    names = " | ".join(NAMES[method] for method in METHODS)
    lines = [
        f"| variant | boundary; interior, or what is changed | {names} | untrained |",
        "|---|---|" + "---|" * (len(METHODS) + 1),
    ]
    for variant in get_args(Variant):
        if variant not in found:
            continue
        row = found[variant]
        cells = []
        for method in METHODS:
            runs = row["methods"][method]
            above = 100 * sum(run["share_above"] for run in runs) / len(runs)
            right = 100 * sum(run["accuracy"] for run in runs) / len(runs)
            cells.append(f"{kept(runs)} ({above:.1f} %, {right:.0f} %)")
        lines.append(
            f"| `{variant}` | {describe_variant(variant)} | {' | '.join(cells)} | {sum(row['untrained'])} |"
        )
    return "\n".join(lines)


def write_table() -> None:
    """Put the table into the page of the results."""
    page = HERE / "README.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    text = f"{before}{BEGIN}\n\n{table(read())}\n\n{END}{rest.split(END)[1]}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    if parser.parse_args().what == "run":
        torch.set_num_threads(1)
        done = read()
        for variant in get_args(Variant):
            if variant not in done:
                row = run_variant(variant)
                append_lines(RECORDS, [row])
                print(variant, {method: kept(runs) for method, runs in row["methods"].items()}, flush=True)
    write_table()


if __name__ == "__main__":
    main()
