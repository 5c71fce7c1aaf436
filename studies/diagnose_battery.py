"""Study: does `elliptica.diagnose` name the fault, and does its advice help, where the truth is known?

Builds the situations of `tests/tables/battery.py` for three seeds, diagnoses each, and measures the
test error before and after the remedy; then diagnoses them for five seeds that thresholds were not chosen
with. Writes a file of records and the tables that follow from it::

    python studies/diagnose_battery.py run                     # everything, about ten minutes
    python studies/diagnose_battery.py run --only "rare class" # situations by a part of their name
    python studies/diagnose_battery.py table                   # only the tables, from the record
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import elliptica
from elliptica.lab.experiments.records import read_lines, write_lines

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tables"))

from battery import CASES, Case, Situation, measure  # noqa: E402

HERE = ROOT / "results" / "diagnose"
SEEDS = (0, 1, 2)
#: Seeds that nobody looked at while thresholds were chosen; diagnosed, not cured.
FRESH = (30, 31, 32, 33, 34)
#: Severities that ask for the reader's attention.
RAISED = ("look", "warning")
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def diagnose(situation: Situation) -> Any:
    """Diagnose a situation with all that is known of its rows."""
    held_out = None if situation.x_test is None else (situation.x_test, situation.y_test)
    return elliptica.diagnose(
        situation.model,
        situation.loss_fn,
        situation.x,
        situation.y,
        held_out=held_out,
        groups=situation.groups,
        held_out_groups=situation.test_groups,
        unlabelled=situation.unlabelled,
    )


def judge(case: Case, findings: Sequence[Any]) -> dict[str, Any]:
    """Compare findings, most important first, with the truth.

    A sick case is right if one of its names is among the first three that were raised; a sound one if no
    finding is a warning. Of a sick case, the record also says which warnings were not its fault.
    """
    raised = [{"name": f.name, "severity": f.severity} for f in findings if f.severity in RAISED]
    first, warned = raised[:3], [f["name"] for f in raised if f["severity"] == "warning"]
    right = any(f["name"] in case.truth for f in first) if case.truth else not warned
    return {
        "first": first,
        "right": right,
        "rank": next((i for i, f in enumerate(raised, 1) if f["name"] in case.truth), None),
        "other_warnings": [name for name in warned if name not in case.truth],
    }


def examine(case: Case, seed: int, *, findings: bool = True, cure: bool = True) -> dict[str, Any]:
    """Build, diagnose and, unless told otherwise, cure one situation."""
    start = time.perf_counter()
    situation = case.build(seed)
    record: dict[str, Any] = {"case": case.name, "truth": list(case.truth), "seed": seed}
    record["build_seconds"] = round(time.perf_counter() - start, 2)
    if findings:
        start = time.perf_counter()
        record |= judge(case, diagnose(situation).findings)
        record["diagnose_seconds"] = round(time.perf_counter() - start, 2)
    record |= {"metric": case.metric, "advice": case.advice}
    if not cure:
        return record
    if case.remedy is not None or case.elliptic is not None:
        record["before"] = measure(case.metric, situation)
    if case.remedy is not None:
        record["after"] = measure(case.metric, case.remedy(seed))
    if case.elliptic is not None:
        record["elliptic"] = measure(case.metric, case.elliptic(seed))
    return record


def by_case(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each case, in the order of the battery."""
    found = {case.name: [r for r in records if r["case"] == case.name] for case in CASES}
    return {name: runs for name, runs in found.items() if runs}


def tables(records: list[dict[str, Any]]) -> str:
    """Return the tables and the counts above the first."""
    fresh = [r for r in records if r["seed"] in FRESH]
    judged = by_case([r for r in records if "right" in r and r["seed"] not in FRESH])
    cured = by_case([r for r in records if "after" in r])
    elliptic = by_case([r for r in records if "elliptic" in r])
    return "\n".join([*_fresh(fresh), *_findings(judged), "", *_remedies(cured), "", *_elliptic(elliptic)])


def _fresh(runs: list[dict[str, Any]]) -> list[str]:
    """Count right answers on the seeds that thresholds were not chosen with."""
    if not runs:
        return []
    sick, sound = [r for r in runs if r["truth"]], [r for r in runs if not r["truth"]]
    missed = Counter(r["case"] for r in runs if not r["right"])
    wrong = ", ".join(f"{name} ({n} of {len(FRESH)})" for name, n in missed.items()) or "none"
    return [
        "**On five seeds that nobody looked at while thresholds were chosen**, named among the first three: "
        f"{sum(r['right'] for r in sick)} of {len(sick)} runs of sick models; sound models with a warning: "
        f"{sum(not r['right'] for r in sound)} of {len(sound)}. Wrong: {wrong}. The seeds are new, the "
        "situations are not: thresholds were chosen for these, and other faults will be missed more often.",
        "",
        "Thresholds were chosen while looking at the seeds below, so that these say less:",
        "",
    ]


def _findings(cases: dict[str, list[dict[str, Any]]]) -> list[str]:
    if not cases:
        return ["The diagnoses are not recorded yet."]
    runs = [run for seeds in cases.values() for run in seeds]
    sick, sound = [r for r in runs if r["truth"]], [r for r in runs if not r["truth"]]
    lines = [
        f"Named among the first three: {sum(r['right'] for r in sick)} of {len(sick)} runs of sick models. "
        f"Sound models with a warning: {sum(not r['right'] for r in sound)} of {len(sound)} runs.",
        "",
        "| situation | truth | first three findings (warnings in bold) | right |",
        "|---|---|---|---|",
    ]
    for name, seeds in cases.items():
        truth = " or ".join(seeds[0]["truth"]) or "sound"
        # most runs agree: show each answer once, with how many seeds gave it
        answers = Counter(_answer(run) for run in seeds)
        shown = "<br>".join(
            answer if n == len(seeds) else f"{answer} ({n} of {len(seeds)})" for answer, n in answers.items()
        )
        right = sum(run["right"] for run in seeds)
        verdict = {len(seeds): "right", 0: "wrong"}.get(right, f"{right} of {len(seeds)}")
        lines.append(f"| {name} | {truth} | {shown} | {verdict} |")
    return lines


def _answer(run: dict[str, Any]) -> str:
    words = [f"**{f['name']}**" if f["severity"] == "warning" else f["name"] for f in run["first"]]
    return ", ".join(words) or "none"


def _remedies(cases: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = [
        "| situation | remedy | measured by | before | after | seeds that improve |",
        "|---|---|---|--:|--:|--:|",
    ]
    for name, seeds in cases.items():
        before, after = (statistics.mean(run[key] for run in seeds) for key in ("before", "after"))
        better = sum(run["after"] < run["before"] for run in seeds)
        lines.append(
            f"| {name} | {seeds[0]['advice']} | {seeds[0]['metric']} | {before:.3f} | {after:.3f} "
            f"| {better} of {len(seeds)} |"
        )
    return lines


def _elliptic(cases: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = [
        'The same rows and network with elliptic training (`sampling="marginal"`, nothing tuned):',
        "",
        "| situation | measured by | plain | elliptic | remedy above | seeds that improve |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, seeds in cases.items():
        plain, elliptic = (statistics.mean(run[key] for run in seeds) for key in ("before", "elliptic"))
        cured = [run["after"] for run in seeds if "after" in run]
        better = sum(run["elliptic"] < run["before"] for run in seeds)
        lines.append(
            f"| {name} | {seeds[0]['metric']} | {plain:.3f} | {elliptic:.3f} "
            f"| {f'{statistics.mean(cured):.3f}' if cured else 'sound'} | {better} of {len(seeds)} |"
        )
    return lines


PAGE = f"""# Diagnosis of models whose fault is known

`python studies/diagnose_battery.py run` builds the situations of `tests/tables/battery.py` for some
seeds, calls `elliptica.diagnose` on each (nothing else set), follows the advice, and
rewrites this page from `battery.jsonl.gz`.

A finding counts if its severity is *look* or *warning*. A sick model is diagnosed right if one of the names
under *truth* is among the first three such findings; a sound one if no finding is a *warning*. Remedies use
what a practitioner has: the rows that are removed are found by their neighbours, not taken from the truth.
Errors are means over the seeds on clean rows. *optimism* is the distance between the error on the held-out
rows and that on fresh rows.

{BEGIN}
{END}
"""


def page(records: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    return PAGE.replace(f"{BEGIN}\n{END}", f"{BEGIN}\n{tables(records)}\n{END}")


def run(seeds: Sequence[int], only: str, *, findings: bool) -> list[dict[str, Any]]:
    """Examine the chosen cases and print one line for each."""
    records = []
    for case in CASES:
        if only not in case.name:
            continue
        for seed in seeds:
            record = examine(case, seed, findings=findings, cure=seed not in FRESH)
            records.append(record)
            answer = _answer(record) if findings else "not diagnosed"
            verdict = ("right" if record["right"] else "WRONG") if findings else ""
            errors = " -> ".join(
                f"{record[key]:.4f}" for key in ("before", "after", "elliptic") if key in record
            )
            print(f"{case.name}, seed {seed}: {answer} {verdict} {errors}".rstrip(), flush=True)
    return records


def main() -> None:
    """Run the study or write its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--only", default="", help="part of the names of the situations; nothing is written")
    parser.add_argument("--seeds", type=int, nargs="+", default=(*SEEDS, *FRESH))
    parser.add_argument("--remedies", action="store_true", help="only errors before and after; no diagnosis")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = HERE / "battery.jsonl.gz"
    if options.command == "run":
        records = run(options.seeds, options.only, findings=not options.remedies)
        if options.only:
            return
        write_lines(file, records)
    (HERE / "README.md").write_text(page(read_lines(file)))


if __name__ == "__main__":
    main()
