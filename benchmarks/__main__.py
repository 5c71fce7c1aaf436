"""Run all benchmarks, or those named, and write ``results.json`` and the table of the README."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import import_module
from pathlib import Path

import torch

import elliptica

HERE = Path(__file__).resolve().parent
SUITES = ("samplers", "steps", "variance", "memory", "landscape", "cmixup", "report", "imports", "sweep")
SUITES += ("partners", "growth", "cost")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def short(ratio: float) -> str:
    """Two decimals, or two digits of a small ratio."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table(rows: list[dict[str, object]]) -> str:
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


def main(names: list[str]) -> None:
    """Measure, print as we go, write at the end; suites that were not asked for keep their rows."""
    file = HERE / "results.json"
    kept = json.loads(file.read_text())["measurements"] if file.exists() else []
    measured: dict[str, list[dict[str, object]]] = {}
    for suite in names or SUITES:
        measured[suite] = []
        for measurement in import_module(f"benchmarks.{suite}").measure():
            measured[suite].append({"suite": suite, **measurement.as_dict()})
            print(
                f"{short(measurement.ratio):>8} (budget {measurement.budget:g})  {measurement.what}",
                flush=True,
            )
    rows = [r for s in SUITES for r in measured.get(s, [k for k in kept if k["suite"] == s])]
    print("\n" + table(rows))
    machine = {
        "torch": torch.__version__,
        "elliptica": elliptica.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }
    file.write_text(json.dumps({"machine": machine, "measurements": rows}, indent=1) + "\n")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
