"""Time until the library can be used: fresh processes that import it, against those that import torch."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.timing import HERE, Measurement

ROUNDS = 7
#: Seconds that `elliptica --help` may take.
HELP = 0.5
_EVERY = "import elliptica\nfor name in elliptica.__all__: getattr(elliptica, name)"
_COMMANDS = {
    "torch": ("-c", "import torch"),
    "`import elliptica`": ("-c", "import elliptica"),
    "`from elliptica import Elliptic`": ("-c", "from elliptica import Elliptic"),
    "`import elliptica` and every public name of it": ("-c", _EVERY),
    "`elliptica --help`": ("-m", "elliptica", "--help"),
    "python": ("-c", "pass"),
}


def run(arguments: tuple[str, ...]) -> float:
    """Start Python afresh; seconds of the processor, which other programs do not change."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=HERE.parent) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def measure() -> Iterator[Measurement]:
    """Each command once per round, in random order; ratios are taken within a round."""
    for arguments in _COMMANDS.values():  # files are in memory, bytecode is written
        run(arguments)
    orders = [random.sample(list(_COMMANDS), len(_COMMANDS)) for _ in range(ROUNDS)]
    rounds = [{name: run(_COMMANDS[name]) for name in order} for order in orders]
    bare = statistics.median(costs["python"] for costs in rounds)
    for name in (name for name in _COMMANDS if name.startswith("`")):
        is_help = "--help" in name
        against, budget = (f"{HELP} s", 1.0) if is_help else ("`import torch`", 1.3)
        pairs = [(costs[name], HELP if is_help else costs["torch"]) for costs in rounds]
        ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
        detail = f"{ours:.2f} s against {theirs:.2f} s (Python alone: {bare:.2f} s)"
        yield Measurement.of(f"{name}, processor time", against, [a / b for a, b in pairs], budget, detail)
