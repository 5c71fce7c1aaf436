"""Time until the library can be used: fresh processes that import it, against those that import torch."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.timing import HERE, Measurement

ROUNDS = 7
#: Seconds that `elliptica --help` may take.
HELP = 0.5
_COMMANDS = {
    "torch": ("-c", "import torch"),
    "`import elliptica`": ("-c", "import elliptica"),
    "`from elliptica import Elliptic`": ("-c", "from elliptica import Elliptic"),
    "`import elliptica` and every public name of it": (
        "-c",
        "import elliptica\nfor name in elliptica.__all__: getattr(elliptica, name)",
    ),
    "`elliptica --help`": ("-m", "elliptica", "--help"),
    "python": ("-c", "pass"),
}


def run(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Start Python afresh; seconds of the processor, and on the clock, which count other programs, too."""
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, cwd=HERE.parent
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begin


def measure() -> Iterator[Measurement]:
    """Each command once per round, in random order; ratios are taken within a round."""
    for arguments in _COMMANDS.values():  # files are in memory, bytecode is written
        run(arguments)
    orders = [random.sample(list(_COMMANDS), len(_COMMANDS)) for _ in range(ROUNDS)]
    rounds = [{name: run(_COMMANDS[name]) for name in order} for order in orders]
    for kind, words in enumerate(("processor time", "time on the clock")):
        for name in (name for name in _COMMANDS if name.startswith("`")):
            is_help = "--help" in name
            ours = [costs[name][kind] for costs in rounds]
            theirs = [HELP if is_help else costs["torch"][kind] for costs in rounds]
            bare = statistics.median(costs["python"][kind] for costs in rounds)
            medians = statistics.median(ours), statistics.median(theirs), bare
            yield Measurement.of(
                f"{name}, {words}",
                f"{HELP} s" if is_help else "`import torch`",
                [a / b for a, b in zip(ours, theirs, strict=True)],
                1.0 if is_help else 1.3,
                "{:.2f} s against {:.2f} s (Python alone: {:.2f} s)".format(*medians),
            )
