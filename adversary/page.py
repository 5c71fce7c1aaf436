"""Write ``results/adversary/README.md`` from the records: a pure function of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adversary.cases import OUTCOMES

RESULTS = Path(__file__).resolve().parent.parent / "results" / "adversary"

HEAD = """# The adversary

What hostile input, killed processes, other seeds and changed code did to the product. Every section is made
from a record in this folder by `python -m adversary page`; the command above a table makes its record
again.
"""

CASES = """## Hostile input

`python -m adversary cases --out results/adversary/cases.json` (seed {seed}, {minutes:g} minutes).
`make fuzz` does the same; another seed tries other cases. A case is *right* if its result agrees with a slow
reference or an invariant, and a *clear error* if the product itself refused input that it may refuse.
*Wrong* is any other result, also valid input that was refused and invalid input that was not. A *deep
error* comes from a library below ours. A *broken case* is a fault of the adversary.
`adversary/regressions.json` keeps {kept} cases that failed once; they are part of every run.

{table}
"""

KILLS = """## Kills, full disks, lost nodes

`python -m adversary kills` (seed {seed}, {minutes:g} minutes). *Kept* means that nothing was lost: the same
command completes, and every number, prediction and model equals that of an undisturbed run.

{table}
"""

SEEDS = """## Statistical tests under other seeds

`python -m adversary seeds` ({minutes:g} minutes): {tests} tests under {shifts} shifted seeds, {draws}
draws. At the significance that the tests state, at most {expected_failures:.2g} failures are expected from
right samplers. There were **{failed}**.

{table}
"""

CORRECTED = """
In the first run {n} draws of four tests failed. No sampler was wrong: two tests did not always reject their
wrong sampler, one allowed less than the confidence of its limit, one asked for a particular value. These
four were corrected and run again under the same seeds; the counts above are those of the first run for all
other tests, and of the second for these.

{tests}
"""

MUTANTS = """## Mutants

`python -m adversary mutants` (seed {seed}). Changes of the syntax tree in `core`, `landscape` and
`compare`, each judged by the tests of its package. *Survived at first* counts changes that no test of the
package noticed before tests were added for them, so the last column holds for this sample, and a new sample
would show new survivors.

{table}

{survivors}
"""

TEETH = """## Planted defects

`python -m adversary teeth` (seed {seed}, at most {number} cases each). A wrong weight, sign or scale is
planted in a copy of the library, one at a time, and the target that should notice it runs until a case fails.
**{noticed} of {all}** were noticed.

{table}

{missed}
"""

DETERMINISM = """## The same result again

`python -m adversary determinism`: see [At scale](../../docs/scale.md#the-same-result-again).
"""


def cases_section(record: Mapping[str, Any], kept: int) -> str:
    """Write the outcomes by kind and target."""
    lines = [f"| target | cases | {' | '.join(OUTCOMES)} |", "|---|--:|" + "--:|" * len(OUTCOMES)]
    for kind in ("library", "commands"):
        names = [name for name in record["counts"] if record["kinds"][name] == kind]
        total = sum((Counter(record["counts"][name]) for name in names), Counter())
        for name, counts in [(f"**{kind}**", total), *((name, record["counts"][name]) for name in names)]:
            numbers = [str(counts.get(outcome, 0)) for outcome in OUTCOMES]
            lines.append(f"| {name} | {sum(counts.values())} | {' | '.join(numbers)} |")
    text = CASES.format(**record, kept=kept, table="\n".join(lines))
    for failure in record["failures"]:
        text += f"\n- {failure['outcome']}: {_inert(failure['detail'])} `{json.dumps(failure['case'])}`\n"
    return text


def kills_section(record: Mapping[str, Any]) -> str:
    """Write what was done to running commands."""
    lines = ["| scenario | what was done | outcome | details |", "|---|---|---|---|"]
    for each in record["scenarios"]:
        details = "; ".join(f"{k} {v}" for k, v in each["details"].items() if k != "problems")
        lines.append(f"| {each['name']} | {_inert(each['done'])} | {each['outcome']} | {_inert(details)} |")
    return KILLS.format(**record, table="\n".join(lines))


def seeds_section(record: Mapping[str, Any]) -> str:
    """Write how many statistical tests failed under other seeds, at first and after corrections."""
    lines = ["| significance of a test | tests |", "|--:|--:|"]
    lines += [f"| {level} | {number} |" for level, number in record["by_significance"].items()]
    for failure in record["failures"]:
        lines.append(f"\n- `{failure['test']}`, seed {failure['shift']}: {_inert(failure['message'])}")
    text = SEEDS.format(**record, failed=len(record["failures"]), table="\n".join(lines))
    if first := record.get("corrected"):
        names = [f"- `{each['test']}`, seed {each['shift']}: {_inert(each['message'])}" for each in first]
        text += CORRECTED.format(n=len(first), tests="\n".join(names))
    return text


def mutants_section(record: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Write the mutation score, and why each survivor is equivalent."""
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
    return MUTANTS.format(**record, table="\n".join(lines), survivors="\n".join(survivors))


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
    from adversary.__main__ import read_kept
    from adversary.mutants import reasons

    def read(name: str) -> Any:
        path = folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    parts = [HEAD]
    if record := read("cases"):
        parts.append(cases_section(record, len(read_kept())))
    if record := read("kills"):
        parts.append(kills_section(record))
    if record := read("seeds"):
        parts.append(seeds_section(record))
    if record := read("mutants"):
        parts.append(mutants_section(record, reasons()))
    if record := read("teeth"):
        parts.append(teeth_section(record))
    if read("determinism"):
        parts.append(DETERMINISM)
    return "\n".join(part.rstrip() + "\n" for part in parts)
