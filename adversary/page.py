"""Write ``results/adversary/README.md`` from the records: a pure function of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adversary import kills
from adversary.cases import FAILURES, as_table

RESULTS = Path(__file__).resolve().parent.parent / "results" / "adversary"

HEAD = """# Robustness

How the library and the commands behave under fuzzing, killed processes and full disks, how the statistical
tests behave under other seeds, and which mutations of the code the tests notice. This page is written from
the records in this folder by `python -m adversary page`; the command above a table makes its record again.

{table}
"""

CASES = """## Fuzzing

`make fuzz` writes no record; `python -m adversary cases --out results/adversary/cases.json` does (seed
{seed}, {minutes:g} minutes, revision {revision}). It tries {choices:,} valid, unusual and invalid
choices for arguments, options and files of {n_targets} targets, each one alone ({alone:,} cases). Then come
{combined:,} random combinations, and {kept} regression cases that failed once. Another seed draws other
parameters and combinations.

- *Right*: the result agrees with a slow reference or an invariant.
- *Clear error*: unusual or invalid input, and a message that the product raises on purpose.
- *Wrong*: any other result; also valid input that raises, and invalid input that does not.
- *Deep error*: an exception of a library below ours, or of a line that is not a `raise`.
- *Broken case*: a fault of the fuzzer.

{table}

`cases.json` in this folder has the outcomes of each target.
"""

KILLS = """## Fault injection

`python -m adversary kills` (seed {seed}, {minutes:g} minutes). *Kept* means that nothing was lost: the same
command completes, and every number, prediction and model equals that of an undisturbed run.

{table}
"""

SEEDS = """## Statistical tests under other seeds

`python -m adversary seeds` ({minutes:g} minutes): {tests} tests under {shifts} shifted seeds, {draws}
draws. If every test rejects a correct sampler at most once in 10,000 draws, which is what they are designed
for, at most {expected_failures:.2g} failures are expected. There were **{failed}**.
{failures}"""

MUTANTS = """## Mutation testing

`python -m adversary mutants` (seed {seed}) changes operators, constants, conditions, arguments and
statements in `core`, `landscape` and `compare`, one at a time, and runs the tests of the package. The first
run of this sample killed **{first:.0%}**; that is the score to expect of a new sample. Tests were added for
survivors, and now **{now:.0%}** are killed.

{table}

{survivors}
"""

TEETH = """## Planted defects

`python -m adversary teeth` (seed {seed}). A wrong weight, sign or scale is planted in a copy of the library,
one at a time. The target that should notice it tries every choice alone and up to {number} combinations,
until a case fails that passes without the defect. **{noticed} of {all}** were noticed.

{table}

{missed}
"""

DETERMINISM = """## Reproducibility

`python -m adversary determinism`: see [At scale](../../docs/scale.md#the-same-result-again).
"""


#: Rows of the table of cases: modules of the fuzzer, and what their targets are.
AREAS = {
    "library_core": "core, partners",
    "library_methods": "baselines",
    "library_landscape": "landscape, diagnostics, several processes",
    "library_files": "estimators, files",
}


def totals(record: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Add up the outcomes of the library and of the commands."""
    found = {"library": Counter[str](), "commands": Counter[str]()}
    for each in record["targets"].values():
        found[each["kind"]].update(each["counts"])
    return found


def cases_section(record: Mapping[str, Any]) -> str:
    """Write the outcomes by area and command."""
    rows: dict[str, Counter[str]] = {f"**{kind}**": each for kind, each in totals(record).items()}
    library, commands = rows
    parts: dict[str, dict[str, Counter[str]]] = {library: {}, commands: {}}
    for name, each in record["targets"].items():
        area = AREAS.get(each["module"])
        own = parts[commands if area is None else library]
        own.setdefault(area or f"`{name}`", Counter()).update(each["counts"])
    table = as_table({k: v for kind in rows for k, v in {kind: rows[kind], **parts[kind]}.items()})
    cases = sum(sum(each.values()) for each in rows.values())
    combined = record["combinations"]
    text = CASES.format(
        **{**record, **record["versions"]},
        table=table,
        choices=sum(each["choices"] for each in record["targets"].values()),
        n_targets=len(record["targets"]),
        combined=combined,
        alone=cases - combined - record["regression_cases"],
        kept=record["regression_cases"],
    )
    for failure in record["failures"]:
        text += f"\n- {failure['outcome']}: {_inert(failure['detail'])} `{json.dumps(failure['case'])}`\n"
    return text


def kills_section(record: Mapping[str, Any]) -> str:
    """Write what was done to running commands."""
    return KILLS.format(**record, table=kills.as_table(record["scenarios"]))


def seeds_section(record: Mapping[str, Any]) -> str:
    """Write how many statistical tests failed under other seeds."""
    failures = [
        f"\n- `{each['test']}`, seed {each['shift']}: {_inert(each['message'])}"
        for each in record["failures"]
    ]
    return SEEDS.format(**{**record, "failures": "".join(failures)}, failed=len(failures))


def mutants_section(record: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Write the mutation score, and why each survivor remains."""
    lines = ["| package | mutants | survived at first | survive now | killed |", "|---|--:|--:|--:|--:|"]
    packages = sorted({each["file"].split("/")[0] for each in record["mutants"]})
    for package in (*packages, "all"):
        own = [each for each in record["mutants"] if package in ("all", each["file"].split("/")[0])]
        first = sum(each["survived_before"] or each["outcome"] == "survived" for each in own)
        now = sum(each["outcome"] == "survived" for each in own)
        lines.append(f"| {package} | {len(own)} | {first} | {now} | {1 - now / len(own):.0%} |")
    survivors = [
        f"- `{each['file']}`: `{each['before']}` became `{each['after']}`. "
        f"{reasons.get(each['key'], '**No reason yet.**')}"
        for each in record["mutants"]
        if each["outcome"] == "survived"
    ]
    return MUTANTS.format(
        seed=record["seed"],
        first=1 - first / len(own),
        now=1 - now / len(own),
        table="\n".join(lines),
        survivors="\n".join(survivors),
    )


def summary(records: Mapping[str, Any]) -> str:
    """Write a table with one row for each record."""
    lines = ["| what | how much | result |", "|---|---|---|"]
    if record := records["cases"]:
        found = totals(record)
        failed = sum(each[outcome] for each in found.values() for outcome in FAILURES)
        amount = " and ".join(f"{sum(each.values()):,} cases of the {kind}" for kind, each in found.items())
        lines.append(f"| [fuzzing](#fuzzing) | {amount} | {failed} failures |")
    if record := records["kills"]:
        kept = sum(each["outcome"] == kills.KEPT for each in record["scenarios"])
        number = sum(each["details"].get("kills", 0) for each in record["scenarios"])
        amount = f"{len(record['scenarios'])} scenarios, {number} kills at random moments among them"
        lines.append(
            f"| [fault injection](#fault-injection) | {amount} | {kept} kept all results, to the last bit |"
        )
    if record := records["seeds"]:
        place = "#statistical-tests-under-other-seeds"
        amount = f"{record['tests']} tests, {record['shifts']} seeds"
        lines.append(f"| [other seeds]({place}) | {amount} | {len(record['failures'])} failures |")
    if record := records["mutants"]:
        killed = sum(each["outcome"] == "killed" for each in record["mutants"])
        amount = f"{len(record['mutants'])} mutants"
        lines.append(f"| [mutation testing](#mutation-testing) | {amount} | {killed} killed |")
    return "\n".join(lines)


def teeth_section(record: Mapping[str, Any]) -> str:
    """Write how many planted defects were noticed by package, and which were missed."""
    lines = ["| package | defects | noticed |", "|---|--:|--:|"]
    defects = record["defects"]
    for package in sorted({each["file"].split("/")[0] for each in defects}):
        own = [each for each in defects if each["file"].startswith(f"{package}/")]
        lines.append(f"| {package} | {len(own)} | {sum(bool(each['by']) for each in own)} |")
    missed = [f"- missed: {each['name']} (`{each['file']}`)" for each in defects if not each["by"]]
    numbers = {"all": len(defects), "noticed": len(defects) - len(missed)}
    return TEETH.format(**record, **numbers, table="\n".join(lines), missed="\n".join(missed))


def _inert(text: str) -> str:
    """Keep text inside one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def page(folder: Path = RESULTS) -> str:
    """Make the page from the records that exist."""
    from adversary.mutants import reasons

    def read(name: str) -> Any:
        path = folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    records = {name: read(name) for name in ("cases", "kills", "seeds", "mutants", "teeth", "determinism")}
    parts = [HEAD.format(table=summary(records))]
    if record := records["cases"]:
        parts.append(cases_section(record))
    if record := records["kills"]:
        parts.append(kills_section(record))
    if record := records["seeds"]:
        parts.append(seeds_section(record))
    if record := records["mutants"]:
        parts.append(mutants_section(record, reasons()))
    if record := records["teeth"]:
        parts.append(teeth_section(record))
    if records["determinism"]:
        parts.append(DETERMINISM)
    return "\n".join(part.rstrip() + "\n" for part in parts)
