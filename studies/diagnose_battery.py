"""Study: does `elliptica.diagnose` name the fault, and does its advice help, where the truth is known?

Builds the situations of `tests/tables/battery.py` for three seeds, diagnoses each, and measures the test
error before and after the remedy; then diagnoses them for five seeds that thresholds were not chosen with.
Five minutes; delete the records first if `diagnose` has changed::

    python studies/diagnose_battery.py run        # what is not recorded yet, then the page
    python studies/diagnose_battery.py table      # the page from the records
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import elliptica
from common import ROOT, Record, Study, table

sys.path.insert(0, str(ROOT / "tests" / "tables"))

from battery import CASES, Case, measure

SEEDS = (0, 1, 2)
#: Seeds that nobody looked at while thresholds were chosen; diagnosed, not cured.
FRESH = (40, 41, 42, 43, 44)


def judge(case: Case, findings: Sequence[Any]) -> dict[str, Any]:
    """Compare findings, most important first, with the truth."""
    raised = [[f.name, f.severity] for f in findings if f.severity in ("look", "warning")]
    names = [name for name, _ in raised]
    right = "warning" not in [severity for _, severity in raised]
    if case.truth:
        right = bool({*names[:3]} & {*case.truth}) and not {*names} & {*case.explained}
    return {"first": raised[:3], "right": right}


def examine(case: Case, seed: int) -> Record:
    """Build and diagnose one situation; cure it on the seeds that are not fresh."""
    s = case.build(seed)
    held_out = None if s.x_test is None else (s.x_test, s.y_test)
    groups = {"groups": s.groups, "held_out_groups": s.test_groups, "unlabelled": s.unlabelled}
    diagnosis = elliptica.diagnose(s.model, s.loss_fn, s.x, s.y, held_out=held_out, **groups)
    record = {"case": case.name, "truth": case.truth, "seed": seed, **judge(case, diagnosis.findings)}
    others = {"after": case.remedy, "elliptic": case.elliptic} if seed in SEEDS else {}
    errors = {key: measure(case.metric, make(seed)) for key, make in others.items() if make is not None}
    return record | ({"before": measure(case.metric, s), **errors} if errors else {})


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Examine what is not recorded."""
    cases = {case.name: case for case in CASES}
    for name, seed in STUDY.missing(records, product(cases, (*SEEDS, *FRESH))):
        yield [examine(cases[name], seed)]


def counts(title: str, runs: list[Record]) -> str:
    """How many runs are diagnosed right."""
    sick, healthy = [r for r in runs if r["truth"]], [r for r in runs if not r["truth"]]
    missed = Counter(r["case"] for r in runs if not r["right"])
    wrong = ", ".join(f"{name} ({n})" for name, n in missed.items()) or "none"
    return (
        f"**{title}**, named among the first three: {sum(r['right'] for r in sick)} of {len(sick)} runs "
        f"of sick models; sound models with a warning: {sum(not r['right'] for r in healthy)} of "
        f"{len(healthy)}. Wrong: {wrong}."
    )


def blocks(records: list[Record]) -> dict[str, str]:
    """Counts on both kinds of seeds; findings, errors before and after."""
    fresh, chosen = ([r for r in records if (r["seed"] in FRESH) == is_fresh] for is_fresh in (True, False))
    rows = []
    for case in CASES:
        runs = [r for r in chosen if r["case"] == case.name]
        if not runs:
            continue
        answers = Counter(_answer(run) for run in runs)
        shown = "<br>".join(a if n == len(runs) else f"{a} ({n} of {len(runs)})" for a, n in answers.items())
        errors = [
            f"{statistics.mean(r[key] for r in runs):.3f}" if key in runs[0] else ""
            for key in ("before", "after", "elliptic")
        ]
        right = f"{sum(r['right'] for r in runs)} of {len(runs)}"
        truth = " or ".join(case.truth) or "sound"
        rows.append([case.name, truth, shown, right, case.advice, case.metric, *errors])
    head = ["situation", "truth", "first three findings (warnings in bold)", "right", "remedy", "measured by"]
    return {
        "fresh": counts("On five seeds that nobody looked at while thresholds were chosen", fresh),
        "chosen": counts("On the seeds below, which thresholds were chosen with", chosen),
        "table": "\n".join(table([*head, "before", "after", "elliptic"], rows, "llllll")),
    }


def _answer(run: Record) -> str:
    return ", ".join(f"**{name}**" if s == "warning" else name for name, s in run["first"]) or "none"


STUDY = Study("diagnose", blocks, ("case", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
