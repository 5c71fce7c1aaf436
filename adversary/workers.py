"""Judge cases in processes of their own, so that a crash or a hang ends one case and not the run."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from adversary.cases import CRASH, HANG, TARGETS, Outcome

#: Modules that register targets.
MODULES = (
    "adversary.library_core",
    "adversary.library_methods",
    "adversary.library_landscape",
    "adversary.library_files",
    "adversary.commands",
)
#: A case that asks for more memory than this gets an error from the system.
MOST_BYTES = 12 * 2**30


def load_targets(modules: Sequence[str] = MODULES) -> None:
    """Import every module that registers targets."""
    for name in modules:
        importlib.import_module(name)


def _serve(connection: Connection, modules: Sequence[str]) -> None:
    """Judge cases that arrive over a pipe until None comes."""
    os.setsid()  # so that whoever kills this process kills its children, too
    import torch

    from adversary.cases import judge

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    load_targets(modules)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    while (case := connection.recv()) is not None:
        connection.send(judge(case))


@dataclass
class _Worker:
    """A process and the case that it works on."""

    context: Any
    modules: Sequence[str]
    process: Any = None
    connection: Any = None
    case: Mapping[str, Any] | None = None
    deadline: float = 0.0
    served: int = field(default=0)

    def start(self, case: Mapping[str, Any]) -> None:
        """Hand over a case; start the process if there is none."""
        target = TARGETS[case["target"]]
        if self.process is not None and (self.served >= 400 or target.kind == "commands"):
            self.stop()
        if self.process is None:
            self.connection, other = self.context.Pipe()
            self.process = self.context.Process(target=_serve, args=(other, self.modules))
            self.process.start()
            other.close()
            self.served = 0
        self.case, self.deadline = case, time.monotonic() + target.limit + (20 if self.served == 0 else 0)
        self.served += 1
        self.connection.send(case)

    def result(self) -> Outcome | None:
        """Return the outcome if there is one, or judge a dead or a late process."""
        assert self.case is not None
        if self.connection.poll():
            try:
                outcome = self.connection.recv()
            except (EOFError, ConnectionError):
                self.process.join(5)
                code = self.process.exitcode
                outcome = Outcome(CRASH, f"the process ended with {_describe(code)}")
                self.stop()
        elif time.monotonic() > self.deadline:
            outcome = Outcome(HANG, f"no answer in {TARGETS[self.case['target']].limit:g} s")
            self.stop()
        else:
            return None
        self.case = None
        return outcome

    def stop(self) -> None:
        """End the process and its children."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        self.process.join(10)
        self.connection.close()
        self.process = self.connection = None


def _describe(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"code {code}"


def judge_all(
    cases: Sequence[Mapping[str, Any]], jobs: int = 2, modules: Sequence[str] = MODULES
) -> Iterator[tuple[Mapping[str, Any], Outcome]]:
    """Yield each case with its outcome, as they come, from ``jobs`` processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["adversary.cases", *modules])
    left = deque(cases)
    workers = [_Worker(context, modules) for _ in range(min(jobs, max(1, len(cases))))]
    try:
        while left or any(worker.case is not None for worker in workers):
            for worker in workers:
                if worker.case is None and left:
                    worker.start(left.popleft())
            busy = [worker for worker in workers if worker.case is not None]
            wait([worker.connection for worker in busy], timeout=0.5)
            for worker in busy:
                case = worker.case
                outcome = worker.result()
                if outcome is not None and case is not None:
                    yield case, outcome
    finally:
        for worker in workers:
            worker.stop()


def judge_one(case: Mapping[str, Any], modules: Sequence[str] = MODULES) -> Outcome:
    """Judge a case in a process of its own."""
    ((_, outcome),) = judge_all([case], 1, modules)
    return outcome
