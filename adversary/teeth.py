"""Plant defects in a copy of the sources, one at a time, and see whether hostile input notices them.

``teeth.toml`` lists the defects: a wrong weight, sign or scale that no error message betrays. Each one runs
in a fork, on its own copy of the sources, against cases of the target that should notice it, until one fails.
A case that fails without the defect, too, does not count. A defect that is missed needs a sharper reference
in that target.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adversary.mutants import ROOT, SOURCE, Task, preload, run_all, tomllib

DEFECTS = Path(__file__).with_name("teeth.toml")
RECORD = ROOT / "results" / "adversary" / "teeth.json"
MODULES = ("adversary.library_core", "adversary.library_methods", "adversary.library_landscape")
#: Seconds after which the cases of a defect end.
SECONDS = 60.0


def read_defects() -> list[dict[str, str]]:
    """Read what to plant: file, text before and after, target, and a name."""
    return tomllib.loads(DEFECTS.read_text(encoding="utf-8"))["defect"]


def plant(defect: Mapping[str, str], source: Path = SOURCE) -> str:
    """Return the text of the file with the defect; the text before must occur exactly once."""
    text = (source / defect["file"]).read_text(encoding="utf-8")
    found = text.count(defect["before"])
    if found != 1:
        raise ValueError(f"{defect['name']}: {defect['file']} has {defect['before']!r} {found} times.")
    return text.replace(defect["before"], defect["after"])


def attack(copy: Path, target: str, number: int, seed: int) -> dict[str, Any]:
    """Judge cases of a target on a copy of the sources until one fails (in a fork)."""
    sys.path[:0] = [str(copy.parent), str(ROOT / "tests"), str(ROOT)]
    importlib.invalidate_caches()
    cases, workers = (importlib.import_module(f"adversary.{name}") for name in ("cases", "workers"))
    assert Path(cases.elliptica.__file__).parent == copy, "the copy was not imported"
    workers.load_targets(MODULES)
    deadline, tried = time.monotonic() + SECONDS, 0
    chosen = [cases.TARGETS[target]]
    for case in [*cases.each_choice(chosen, seed), *cases.combinations(chosen, number, seed)]:
        outcome = cases.judge(case)
        tried += 1
        if outcome.outcome in cases.FAILURES and outcome.outcome != cases.BROKEN:
            return {"cases": tried, "by": f"{outcome.outcome}: {outcome.detail}"[:200], "case": case}
        if time.monotonic() > deadline:
            break
    return {"cases": tried, "by": ""}


def is_sound(copy: Path, case: Mapping[str, Any]) -> dict[str, Any]:
    """Tell whether a case passes on the sources as they are (in a fork)."""
    sys.path[:0] = [str(copy.parent), str(ROOT / "tests"), str(ROOT)]
    cases, workers = (importlib.import_module(f"adversary.{name}") for name in ("cases", "workers"))
    workers.load_targets(MODULES)
    return {"sound": cases.judge(case).outcome not in cases.FAILURES}


def main(seed: int = 0, number: int = 100, only: str = "", out: str = str(RECORD)) -> bool:
    """Plant every defect, and return whether all were noticed; write the record if all were tried.

    If the package is imported already, the work is done in a new process.
    """
    if SOURCE.name in sys.modules:
        words = [sys.executable, "-m", __spec__.name, str(seed), str(number), only, out]
        return not subprocess.run(words, cwd=ROOT, check=False).returncode
    preload()
    results: list[dict[str, Any]] = []

    def task(defect: dict[str, str]) -> Task:
        entry: dict[str, Any] = {k: defect[k] for k in ("name", "file", "target")}

        def done(said: dict[str, Any] | None, seconds: float) -> Task | None:
            entry.update(said or {"cases": 0, "by": "crash, hang or import error"})
            case = entry.pop("case", None)
            if case is not None:
                clean = (defect["file"], (SOURCE / defect["file"]).read_text(encoding="utf-8"))
                return Task(lambda copy: is_sound(copy, case), confirmed, SECONDS + 60.0, clean)
            return keep()

        def confirmed(said: dict[str, Any] | None, seconds: float) -> None:
            entry["by"] *= bool(said and said["sound"])
            keep()

        def keep() -> None:
            results.append(entry)
            verdict = "noticed" if entry["by"] else "MISSED"
            print(f"{verdict:8}{entry['cases']:4}  {entry['name']}  [{entry['by']}]", flush=True)

        change = (defect["file"], plant(defect))
        return Task(lambda copy: attack(copy, defect["target"], number, seed), done, SECONDS + 60.0, change)

    run_all([task(each) for each in read_defects() if only in f"{each['target']} {each['name']}"])
    missed = [each["name"] for each in results if not each["by"]]
    print(f"{len(results)} defects, {len(missed)} missed: {missed}")
    if not only:
        results.sort(key=lambda each: (each["target"], each["name"]))
        Path(out).write_text(
            json.dumps({"seed": seed, "number": number, "defects": results}, indent=1) + "\n"
        )
    return not missed


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:3]), *sys.argv[3:5]))
