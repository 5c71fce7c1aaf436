"""Run every statistical test under shifted seeds, and compare the failures with the stated significance.

``python -m adversary seeds``. EXTRA_SEED moves all streams of a test at once. A test says how often it
rejects a right sampler, ``@pytest.mark.statistical(alpha=...)``, and notes which moving streams it used:
one that used none would pass ten times without having been asked ten times.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "results" / "adversary" / "seeds.json"
#: Tests that start processes, open a browser or read real data are left to ``make test-all``.
CHOSEN = "statistical and not distributed and not browser and not needs_data"
#: Statistical tests without a draw, and why they need none.
WITHOUT_DRAWS = {
    "tests/core/test_partners::test_permutation_rejects[next_row]": "this wrong sampler does not draw",
}


@dataclass
class Test:
    """What shifted runs of a test showed."""

    alpha: float
    streams: set[str] = field(default_factory=set)
    draws: int = 0
    failures: dict[int, str] = field(default_factory=dict)


def main(shifts: int = 10, out: Path | None = RECORD, *, only: Sequence[str] = (), jobs: int = 2) -> bool:
    """Run the statistical tests under EXTRA_SEED = 1, 2, ... and write a record.

    Args:
        shifts: Number of shifted seeds.
        out: File of the record; None writes none.
        only: Paths or names of tests to run, instead of all.
        jobs: Processes at a time.

    Returns:
        Whether the failures are explained by the stated significance, and every test has moved.
    """
    start, tests = time.monotonic(), dict[str, Test]()
    for shift in range(1, shifts + 1):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            run(shift, report, only, jobs)
            read(report.read_text(encoding="utf-8"), shift, tests)
        failed = sum(shift in test.failures for test in tests.values())
        minutes = (time.monotonic() - start) / 60
        print(f"EXTRA_SEED={shift}: {failed} of {len(tests)} failed, {minutes:.1f} minutes", flush=True)
    found = summarise(tests, shifts)
    found["minutes"] = round(minutes, 1)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(
        f"{found['tests']} tests, {found['draws']} draws: {len(found['failures'])} failures, at most "
        f"{found['expected_failures']:.2g} expected; {len(found['unmoved'])} tests did not move"
    )
    return bool(found["explained"]) and not found["unmoved"]


def run(shift: int, report: Path, only: Sequence[str], jobs: int) -> None:
    """Run the tests in a process of their own, which writes a report."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    options = ["-q", "-p", "no:cacheprovider", "-n", str(jobs), "--dist", "worksteal", "-m", CHOSEN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *(only or ["tests"])],
        env={
            **os.environ,
            "EXTRA_SEED": str(shift),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def read(report: str, shift: int, tests: dict[str, Test]) -> None:
    """Add the results of one run, from its JUnit report."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        told = [(each.get("name"), each.get("value", "")) for each in case.iter("property")]
        name = f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}"
        alphas = [float(value) for key, value in told if key == "alpha"]
        if not alphas:
            raise RuntimeError(
                f"{name} could not be run: {ElementTree.tostring(case, encoding='unicode')[:2000]}"
            )
        test = tests.setdefault(name, Test(max(alphas)))
        test.streams |= {value for key, value in told if key == "stream"}
        test.draws += 1
        for kind in ("failure", "error"):
            if (failed := case.find(kind)) is not None:
                test.failures[shift] = failed.get("message", kind)[:300]


def summarise(tests: dict[str, Test], shifts: int) -> dict[str, object]:
    """Compare failures with the stated significance.

    The number of failures of right tests is at most Poisson with the sum of their significances: more than
    that explains, at the level of 1 in 1 000, is a finding.
    """
    expected = sum(test.alpha * test.draws for test in tests.values())
    failures = [
        {"test": name, "alpha": test.alpha, "shift": shift, "message": message}
        for name, test in sorted(tests.items())
        for shift, message in test.failures.items()
    ]
    levels = sorted({test.alpha for test in tests.values()})
    return {
        "shifts": shifts,
        "tests": len(tests),
        "draws": sum(test.draws for test in tests.values()),
        "by_significance": {f"{level:g}": sum(t.alpha == level for t in tests.values()) for level in levels},
        "expected_failures": expected,
        "failures": failures,
        "probability": poisson_tail(len(failures), expected),
        "explained": poisson_tail(len(failures), expected) > 1e-3,
        "without_draws": {name: why for name, why in WITHOUT_DRAWS.items() if name in tests},
        "unmoved": sorted(
            name for name, test in tests.items() if not test.streams and name not in WITHOUT_DRAWS
        ),
    }


def poisson_tail(least: int, mean: float) -> float:
    """Compute the probability of at least this many events.

    Example:
        >>> round(poisson_tail(1, 0.1), 4)
        0.0952
    """
    return 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(least))
