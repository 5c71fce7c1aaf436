"""Run all benchmarks, or those named, and write ``results.json`` and the table of the README."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import elliptica

HERE = Path(__file__).resolve().parent
SUITES = ("samplers", "steps", "variance", "landscape", "cmixup", "report", "imports", "sweep")
SUITES += ("partners", "growth", "compare", "stacked")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def short(ratio: float) -> str:
    """Two decimals, or two digits of a small ratio."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one line per measurement."""
    lines = ["| what | against | ratio | quartiles | budget | |", "|---|---|--:|--:|--:|---|"]
    for r in rows:
        mark = "" if r["within_budget"] else "**over**, see below"
        note = f"{r['detail']} {mark}".strip()
        lines.append(
            f"| {r['what']} | {r['against']} | {short(r['ratio'])} "
            f"| {short(r['low'])}-{short(r['high'])} "
            f"| {'-' if r['budget'] is None else format(r['budget'], 'g')} | {note} |"
        )
    return "\n".join(lines)


def slower(row: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether a measurement is worse than the committed one by more than their spread and a tenth."""
    return before is not None and row["low"] > before["high"] and row["ratio"] > 1.1 * before["ratio"]


def machine() -> dict[str, object]:
    """Where a suite was measured."""
    return {
        "torch": torch.__version__,
        "elliptica": elliptica.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def write(results: dict[str, Any]) -> None:
    """The JSON file and the table of the README."""
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(f"{before}{BEGIN}\n{table(results['measurements'])}\n{END}{after}")


def main(names: list[str]) -> int:
    """Measure, print as we go, write after each suite; suites that were not asked for keep their rows.

    Returns the exit status: 1 if something became slower than in ``results.json`` as it was.
    """
    if unknown := [name for name in names if name not in SUITES]:
        print(f"error: there is no suite {', '.join(unknown)}. There are {', '.join(SUITES)}.")
        return 2
    results = json.loads((HERE / "results.json").read_text())
    machines = results.setdefault("machines", {})
    if "machine" in results:  # one for all, in older files
        machines |= {row["suite"]: results["machine"] for row in results["measurements"]} | machines
        del results["machine"]
    committed = {(row["suite"], row["what"], row["against"]): row for row in results["measurements"]}
    worse: list[str] = []
    for suite in names or SUITES:
        rows = []
        machines[suite] = machine()
        for measurement in import_module(f"benchmarks.{suite}").measure():
            row = {"suite": suite, **measurement.as_dict()}
            rows.append(row)
            before = committed.get((suite, measurement.what, measurement.against))
            was = "" if before is None else f", was {short(before['ratio'])}"
            print(
                f"{short(measurement.ratio):>8} (budget {measurement.budget:g}{was})  {measurement.what}",
                flush=True,
            )
            if slower(row, before):
                worse.append(f"{row['what']}: {short(row['ratio'])}, was {short(before['ratio'])}")
        kept = {s: [r for r in results["measurements"] if r["suite"] == s] for s in SUITES} | {suite: rows}
        results["measurements"] = [row for s in SUITES for row in kept[s]]
        write(results)  # now: a suite that fails later takes nothing along
    print("\n" + table(results["measurements"]))
    for line in worse:
        print(f"slower than before: {line}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
