"""Study: does `elliptica.diagnose` name the fault, and does its advice help, where the truth is known?

Builds the situations of `tests/tables/battery.py` for three seeds, diagnoses each, and measures the
test error before and after the remedy; then diagnoses them for five seeds that thresholds were not chosen
with. Writes a file of records and the tables that follow from it::

    python studies/diagnose_battery.py run      # everything, about ten minutes
    python studies/diagnose_battery.py table    # only the tables, from the record
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import elliptica
from common import ROOT, Record, Study, table

sys.path.insert(0, str(ROOT / "tests" / "tables"))

from battery import CASES, Case, Situation, measure

SEEDS = (0, 1, 2)
#: Seeds that nobody looked at while thresholds were chosen; diagnosed, not cured.
FRESH = (30, 31, 32, 33, 34)
#: Severities that ask for the reader's attention.
RAISED = ("look", "warning")


def diagnose(situation: Situation) -> Any:
    """Diagnose a situation with all that is known of its rows."""
    held_out = None if situation.x_test is None else (situation.x_test, situation.y_test)
    groups = {"groups": situation.groups, "held_out_groups": situation.test_groups}
    given = (situation.model, situation.loss_fn, situation.x, situation.y)
    return elliptica.diagnose(*given, held_out=held_out, **groups, unlabelled=situation.unlabelled)


def judge(case: Case, findings: Sequence[Any]) -> Record:
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


def examine(case: Case, seed: int) -> Record:
    """Build, diagnose and, unless the seed is fresh, cure one situation."""
    situation, record = case.build(seed), {"case": case.name, "truth": list(case.truth), "seed": seed}
    start = time.perf_counter()
    record |= judge(case, diagnose(situation).findings)
    record["diagnose_seconds"] = round(time.perf_counter() - start, 2)
    record |= {"metric": case.metric, "advice": case.advice}
    cures = {"after": case.remedy, "elliptic": case.elliptic}
    if seed not in FRESH and any(cures.values()):
        record["before"] = measure(case.metric, situation)
        record |= {name: measure(case.metric, cure(seed)) for name, cure in cures.items() if cure is not None}
    return record


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Examine what is not recorded yet; delete the records after a change of `diagnose`."""
    done = {(r["case"], r["seed"]) for r in records}
    wanted = ((case, seed) for case in CASES for seed in (*SEEDS, *FRESH) if (case.name, seed) not in done)
    yield from ([examine(case, seed)] for case, seed in wanted)


def by_case(records: list[Record], key: str) -> dict[str, list[Record]]:
    """Return the records of each case that have a key, in the order of the battery."""
    found = {case.name: [r for r in records if r["case"] == case.name and key in r] for case in CASES}
    return {name: runs for name, runs in found.items() if runs}


def count(runs: list[Record]) -> str:
    """Count right answers."""
    sick, sound = ([r["right"] for r in runs if bool(r["truth"]) == is_sick] for is_sick in (True, False))
    return (
        f"amed among the first three: {sum(sick)} of {len(sick)} runs of sick models{{}}ound models with a "
        f"warning: {len(sound) - sum(sound)} of {len(sound)}"
    )


def fresh_answer(runs: list[Record]) -> str:
    """Count right answers on the seeds that thresholds were not chosen with."""
    missed = Counter(r["case"] for r in runs if not r["right"])
    wrong = ", ".join(f"{name} ({n} of {len(FRESH)})" for name, n in missed.items()) or "none"
    return (
        "**On five seeds that nobody looked at while thresholds were chosen**, "
        f"n{count(runs).format('; s')}. Wrong: {wrong}. The seeds are new, the situations are not: "
        "thresholds were chosen for these, and other faults will be missed more often."
    )


def findings_row(name: str, seeds: list[Record]) -> list[str]:
    """What was found in a situation; most runs agree: each answer once, with how many seeds gave it."""
    answers = Counter(_answer(run) for run in seeds)
    shown = (a if n == len(seeds) else f"{a} ({n} of {len(seeds)})" for a, n in answers.items())
    right = sum(run["right"] for run in seeds)
    verdict = {len(seeds): "right", 0: "wrong"}.get(right, f"{right} of {len(seeds)}")
    return [name, " or ".join(seeds[0]["truth"]) or "sound", "<br>".join(shown), verdict]


def _answer(run: Record) -> str:
    words = [f"**{f['name']}**" if f["severity"] == "warning" else f["name"] for f in run["first"]]
    return ", ".join(words) or "none"


def cure_row(name: str, seeds: list[Record], key: str) -> list[str]:
    """Mean errors before and after a cure, and in how many seeds it helps."""
    before, after = (f"{statistics.mean(run[k] for run in seeds):.3f}" for k in ("before", key))
    better = f"{sum(run[key] < run['before'] for run in seeds)} of {len(seeds)}"
    if key == "after":
        return [name, seeds[0]["advice"], seeds[0]["metric"], before, after, better]
    cured = [run["after"] for run in seeds if "after" in run]
    remedy = f"{statistics.mean(cured):.3f}" if cured else "sound"
    return [name, seeds[0]["metric"], before, after, remedy, better]


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables and the counts above the first."""
    fresh, known = ([r for r in records if (r["seed"] in FRESH) == is_fresh] for is_fresh in (True, False))
    cured = {
        key: [cure_row(*item, key) for item in by_case(records, key).items()] for key in ("after", "elliptic")
    }
    findings = ["situation", "truth", "first three findings (warnings in bold)", "right"]
    remedies = ["situation", "remedy", "measured by", "before", "after", "seeds that improve"]
    elliptic = ["situation", "measured by", "plain", "elliptic", "remedy above", "seeds that improve"]
    lines = [
        *(fresh_answer(fresh), ""),
        *("Thresholds were chosen while looking at the seeds below, so that these say less:", ""),
        *(f"N{count(known).format('. S')} runs.", ""),
        *table(findings, (findings_row(*item) for item in by_case(known, "right").items()), "llll"),
        *("", *table(remedies, cured["after"], "lll"), ""),
        *('The same rows and network with elliptic training (`sampling="marginal"`, nothing tuned):', ""),
        *table(elliptic, cured["elliptic"], "ll"),
    ]
    return {"tables": "\n".join(lines)}


STUDY = Study("diagnose", blocks)

if __name__ == "__main__":
    STUDY.main(__doc__, run)
