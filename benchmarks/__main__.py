"""Run all benchmarks, or those named, and write ``results.json`` and the table of the README."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import import_module
from typing import Any

import torch

import elliptica
from benchmarks import timing

SUITES = ("samplers", "steps", "variance", "imports", "partners", "compare", "stacked", "umix")


def short(ratio: float) -> str:
    """Two decimals, or two digits of a small ratio."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one line per measurement."""
    lines = ["| what | against | ratio | quartiles | budget | |", "|---|---|--:|--:|--:|---|"]
    for r in rows:
        note = f"{r['detail']} {'' if r['within_budget'] else '**over**, see below'}".strip()
        budget = "-" if r["budget"] is None else format(r["budget"], "g")
        ratios = f"{short(r['ratio'])} | {short(r['low'])}-{short(r['high'])}"
        lines.append(f"| {r['what']} | {r['against']} | {ratios} | {budget} | {note} |")
    return "\n".join(lines)


def slower(row: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether a measurement is worse than the committed one by more than their spread and a tenth."""
    return before is not None and row["low"] > before["high"] and row["ratio"] > 1.1 * before["ratio"]


def main(names: list[str]) -> int:
    """Measure, print as we go, write after each suite; suites that were not asked for keep their rows.

    Returns the exit status: 1 if something became slower than in ``results.json`` as it was.
    """
    results = json.loads((timing.HERE / "results.json").read_text())
    committed = {(row["suite"], row["what"], row["against"]): row for row in results["measurements"]}
    worse: list[str] = []
    for suite in names or SUITES:
        rows = []
        for measurement in import_module(f"benchmarks.{suite}").measure():
            row = {"suite": suite, **measurement.as_dict()}
            rows.append(row)
            before = committed.get((suite, row["what"], row["against"]))
            was = "" if before is None else f", was {short(before['ratio'])}"
            print(f"{short(row['ratio']):>8} (budget {measurement.budget:g}{was})  {row['what']}", flush=True)
            if slower(row, before):
                worse.append(f"{row['what']}: {short(row['ratio'])}{was}")
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        machine = {"threads": torch.get_num_threads(), "cores": os.cpu_count()}
        results["machines"][suite] = {"elliptica": elliptica.__version__, **versions, **machine}
        kept = {s: [r for r in results["measurements"] if r["suite"] == s] for s in SUITES} | {suite: rows}
        results["measurements"] = [row for s in SUITES for row in kept[s]]
        # now: a suite that fails later takes nothing along
        (timing.HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        timing.fill("table", table(results["measurements"]))
    for line in worse:
        print(f"slower than before: {line}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
