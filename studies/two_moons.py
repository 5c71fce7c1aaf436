"""Study: on which regions, networks and partners does elliptic training keep the loss within its boundary's?

The paper says neither what a moon is nor what its boundary is. Ten regions, and four changes on half discs:
partners by distance with sigma 0.05, two hidden layers, ReLU, fewer steps. Each as in `elliptica demo`, 24
seeds. Ten minutes::

    python studies/two_moons.py run        # what is not recorded yet, then the table
    python studies/two_moons.py table      # the table from the records
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from common import Record, Study, table
from elliptica.lab.demo.study import Study as Demo
from elliptica.lab.demo.study import record, run_study
from elliptica.lab.demo.training import METHODS, NAMES, Variant, describe_variant, variant_settings


def run_variant(variant: Variant) -> Record:
    """Train all methods on a variant; return what the table needs, seed by seed."""
    study = Demo(variant_settings(variant))
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


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train what is not recorded yet."""
    done = {row["variant"] for row in records}
    yield from ([run_variant(variant)] for variant in get_args(Variant) if variant not in done)


def kept(runs: list[dict[str, float]]) -> int:
    """Count the seeds in which no loss inside is above the boundary's largest."""
    return sum(run["interior_max"] <= run["boundary_max"] for run in runs)


def blocks(records: list[Record]) -> dict[str, str]:
    """The table of all recorded variants."""
    found = {row["variant"]: row for row in records}
    rows = []
    for variant in (name for name in get_args(Variant) if name in found):
        cells = []
        for runs in (found[variant]["methods"][method] for method in METHODS):
            above, right = (
                100 * sum(r[key] for r in runs) / len(runs) for key in ("share_above", "accuracy")
            )
            cells.append(f"{kept(runs)} ({above:.1f} %, {right:.0f} %)")
        untrained = str(sum(found[variant]["untrained"]))
        rows.append([f"`{variant}`", describe_variant(variant), *cells, untrained])
    head = ["variant", "boundary; interior, or what is changed", *(NAMES[m] for m in METHODS), "untrained"]
    return {"tables": "\n".join(table(head, rows, "l" * len(head)))}


STUDY = Study("two_moons", blocks)

if __name__ == "__main__":
    STUDY.main(__doc__, run)
