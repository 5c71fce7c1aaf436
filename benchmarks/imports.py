"""Time until the library can be used: fresh processes that import it, against those that import torch."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import Measurement

ROUNDS = 7
#: Seconds that `elliptica --help` may take.
HELP = 0.5
_COMMANDS = {
    "torch": ("-c", "import torch"),
    "import": ("-c", "import elliptica"),
    "objective": ("-c", "from elliptica import Elliptic"),
    "all": ("-c", "import elliptica\nfor name in elliptica.__all__: getattr(elliptica, name)"),
    "help": ("-m", "elliptica", "--help"),
    "python": ("-c", "pass"),
}


class Cost(NamedTuple):
    """What a process took.

    Attributes:
        wall: Seconds on the clock; on a busy machine they say more about its other processes.
        cpu: Seconds of the processor, in the program and in the system.
    """

    wall: float
    cpu: float


def run(arguments: tuple[str, ...]) -> Cost:
    """Start Python afresh and wait for its end."""
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parent.parent,
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} failed with status {process.returncode}")
    return Cost(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime)


def measure() -> Iterator[Measurement]:
    """Each command once per round, in random order; ratios are taken within a round."""
    for arguments in _COMMANDS.values():  # files are in memory, bytecode is written
        run(arguments)
    rounds: list[dict[str, Cost]] = []
    for _ in range(ROUNDS):
        names = list(_COMMANDS)
        random.shuffle(names)
        rounds.append({name: run(_COMMANDS[name]) for name in names})
    imports = {
        "import": "`import elliptica`",
        "objective": "`from elliptica import Elliptic`",
        "all": "`import elliptica` and every public name of it",
    }
    for kind, words in (("cpu", "processor time"), ("wall", "time on the clock")):
        for name, what in imports.items():
            yield _row(rounds, name, f"{what}, {words}", "`import torch`", kind, 1.3)
        yield _row(rounds, "help", f"`elliptica --help`, {words}", f"{HELP} s", kind, 1.0)


def _row(
    rounds: list[dict[str, Cost]], name: str, what: str, against: str, kind: str, budget: float
) -> Measurement:
    ours = [getattr(costs[name], kind) for costs in rounds]
    theirs = [HELP if name == "help" else getattr(costs["torch"], kind) for costs in rounds]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    bare = statistics.median(getattr(costs["python"], kind) for costs in rounds)
    medians = statistics.median(ours), statistics.median(theirs), bare
    detail = "{:.2f} s against {:.2f} s (Python alone: {:.2f} s)".format(*medians)
    return Measurement(what, against, statistics.median(ratios), low, high, budget, detail)
