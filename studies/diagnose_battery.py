"""Study: does `elliptica.diagnose` name the fault, and does its advice help, where the truth is known?

Builds the situations of `tests/tables/battery.py` for three seeds, diagnoses each, and measures the test
error before and after the remedy; then diagnoses them for five seeds that thresholds were not chosen with::

    python studies/diagnose_battery.py run                     # everything, about five minutes
    python studies/diagnose_battery.py run --only "rare class" # situations by a part of their name
    python studies/diagnose_battery.py table                   # only the page, from the record
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import elliptica
from elliptica.lab.experiments.records import read_lines, write_lines

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tables"))

from battery import CASES, Case, measure  # noqa: E402

HERE = ROOT / "results" / "diagnose"
SEEDS = (0, 1, 2)
#: Seeds that nobody looked at while thresholds were chosen; diagnosed, not cured.
FRESH = (40, 41, 42, 43, 44)
PAGE = """# Diagnosis of models whose fault is known

`python studies/diagnose_battery.py run` builds the situations of `tests/tables/battery.py` for some seeds,
calls `elliptica.diagnose` on each (nothing else set), follows the advice, and rewrites this page from
`battery.jsonl.gz`.

A finding counts if its severity is *look* or *warning*. A sick model is diagnosed right if one of the names
under *truth* is among the first three such findings and no consequence of the fault is listed beside it; a
sound one if no finding is a *warning*. Remedies use what a practitioner has: the rows that are removed are
found by their neighbours, not taken from the truth. Errors are means over the seeds on clean rows. *optimism*
is the distance between the error on the held-out rows and that on fresh rows.

"""


def judge(case: Case, findings: Sequence[Any]) -> dict[str, Any]:
    """Compare findings, most important first, with the truth."""
    raised = [[f.name, f.severity] for f in findings if f.severity in ("look", "warning")]
    names = [name for name, _ in raised]
    right = "warning" not in [severity for _, severity in raised]
    if case.truth:
        right = bool({*names[:3]} & {*case.truth}) and not {*names} & {*case.explained}
    return {"first": raised[:3], "right": right}


def examine(case: Case, seed: int, *, cure: bool = True) -> dict[str, Any]:
    """Build, diagnose and, unless told otherwise, cure one situation."""
    s = case.build(seed)
    diagnosis = elliptica.diagnose(
        s.model,
        s.loss_fn,
        s.x,
        s.y,
        held_out=None if s.x_test is None or s.y_test is None else (s.x_test, s.y_test),
        groups=s.groups,
        held_out_groups=s.test_groups,
        unlabelled=s.unlabelled,
    )
    record = {"case": case.name, "truth": case.truth, "seed": seed, **judge(case, diagnosis.findings)}
    if cure:
        others = {"after": case.remedy, "elliptic": case.elliptic}
        errors = {key: measure(case.metric, make(seed)) for key, make in others.items() if make is not None}
        record |= {"before": measure(case.metric, s), **errors} if errors else {}
    return record


def page(records: list[dict[str, Any]]) -> str:
    """Return the page: counts on both kinds of seeds, findings, errors before and after."""
    lines = []
    for title, fresh in (("On five seeds that nobody looked at while thresholds were chosen", True),
                         ("On the seeds below, which thresholds were chosen with", False)):  # fmt: skip
        runs = [r for r in records if (r["seed"] in FRESH) == fresh]
        sick, healthy = [r for r in runs if r["truth"]], [r for r in runs if not r["truth"]]
        missed = Counter(r["case"] for r in runs if not r["right"])
        wrong = ", ".join(f"{name} ({n})" for name, n in missed.items()) or "none"
        lines += [
            f"**{title}**, named among the first three: {sum(r['right'] for r in sick)} of {len(sick)} runs "
            f"of sick models; sound models with a warning: {sum(not r['right'] for r in healthy)} of "
            f"{len(healthy)}. Wrong: {wrong}.",
            "",
        ]
    lines += [
        "The situations are not new: thresholds were chosen for these, and other faults will be missed more "
        "often. *elliptic*: the same rows and network with elliptic training (`marginal`, nothing tuned).",
        "",
        "| situation | truth | first three findings (warnings in bold) | right | remedy | measured by "
        "| before | after | elliptic |",
        "|---|---|---|---|---|---|--:|--:|--:|",
    ]
    for case in CASES:
        runs = [r for r in records if r["case"] == case.name and r["seed"] not in FRESH]
        if not runs:
            continue
        answers = Counter(_answer(run) for run in runs)
        shown = "<br>".join(a if n == len(runs) else f"{a} ({n} of {len(runs)})" for a, n in answers.items())
        errors = [
            f"{statistics.mean(r[key] for r in runs):.3f}" if key in runs[0] else ""
            for key in ("before", "after", "elliptic")
        ]
        cells = [case.name, " or ".join(case.truth) or "sound", shown]
        cells += [f"{sum(r['right'] for r in runs)} of {len(runs)}", case.advice, case.metric, *errors]
        lines.append(f"| {' | '.join(cells)} |")
    return PAGE + "\n".join(lines) + "\n"


def _answer(run: dict[str, Any]) -> str:
    return ", ".join(f"**{name}**" if s == "warning" else name for name, s in run["first"]) or "none"


def main() -> None:
    """Run the study or write its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--only", default="", help="part of the names of the situations; nothing is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = HERE / "battery.jsonl.gz"
    if options.command == "run":
        records = []
        for case in (case for case in CASES if options.only in case.name):
            for seed in (*SEEDS, *FRESH):
                records.append(examine(case, seed, cure=seed in SEEDS))
                print(case.name, seed, _answer(records[-1]), records[-1]["right"], flush=True)
        if options.only:
            return
        write_lines(file, records)
    (HERE / "README.md").write_text(page(read_lines(file)))


if __name__ == "__main__":
    main()
