"""Jobs in several processes of this machine, each with one thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from elliptica.lab.experiments.engines.interface import Job, guarded
from elliptica.lab.experiments.preflight import check_before
from elliptica.lab.experiments.run import Listener, Options, do_here
from elliptica.lab.experiments.specification import Run

#: What is told of jobs whose process died.
AGAIN = "a process died (killed, or out of memory): it is tried alone at the end"
DEAD = "Its process died twice, the second time alone: killed, or out of memory."


class Processes:
    """The engine of one machine.

    Args:
        n_processes: Jobs at once.
    """

    def __init__(self, n_processes: int) -> None:
        self.n_processes = n_processes

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`."""
        return check_before(runs, options)

    def do(self, jobs: dict[str, Job], listen: Listener) -> dict[str, str]:
        """See `Engine`; a process that dies takes its pool along, so what is left gets another one.

        Nobody says which job killed it. Those that were under way are tried once more, each alone.
        """
        found: dict[str, str] = {}
        left, suspects = dict(jobs), dict[str, Job]()
        while left:
            done, begun = self._in_pool(left, self.n_processes, listen)
            found |= done
            left = {label: job for label, job in left.items() if label not in done}
            for label in [label for label in left if label in begun] or list(left):
                listen(label, "again", {"error": AGAIN})
                suspects[label] = left.pop(label)
        for label, job in suspects.items():
            done, _ = self._in_pool({label: job}, 1, listen)
            if label not in done:
                listen(label, "failed", {"error": DEAD})
            found[label] = done.get(label, "failed")
        return found

    def _in_pool(
        self, jobs: dict[str, Job], n_processes: int, listen: Listener
    ) -> tuple[dict[str, str], set[str]]:
        """Do jobs until a process dies; returns what happened to those that ended, and which were begun."""
        context = multiprocessing.get_context("spawn")
        events: Any = context.Queue()
        pool = ProcessPoolExecutor(n_processes, mp_context=context, initializer=_begin, initargs=(events,))
        begun: set[str] = set()

        def hear(label: str, kind: str, details: dict[str, Any]) -> None:
            if kind == "begun":
                begun.add(label)
            else:
                listen(label, kind, details)

        try:
            with _deaf_to_interrupts():  # processes that start now will not hear Ctrl-C: this one tells them
                futures = {pool.submit(_in_process, label, job): label for label, job in jobs.items()}
            return _watch(futures, events, hear), begun
        except KeyboardInterrupt:
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment, in this process and for good in those that it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(futures: dict[Future[str], str], events: Any, listen: Listener) -> dict[str, str]:
    """What happened to jobs, without those whose process died."""
    waiting = set(futures)
    found: dict[str, str] = {}
    while waiting:
        with contextlib.suppress(queue.Empty):
            while True:
                listen(*events.get(timeout=0.2))
        for future in [f for f in waiting if f.done()]:
            waiting.discard(future)
            label = futures[future]
            error = future.exception()
            if error is None:
                found[label] = future.result()
            elif not isinstance(error, BrokenProcessPool):  # e.g. a job that cannot be sent
                listen(label, "failed", {"error": f"{type(error).__name__}: {error}"})
                found[label] = "failed"
    with contextlib.suppress(queue.Empty):
        while True:
            listen(*events.get_nowait())
    return found


def _in_process(label: str, job: Job) -> str:
    last = [0.0]
    _EVENTS[0].put((label, "begun", {}))

    def listen(name: str, kind: str, details: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "epoch" and now - last[0] < 0.2 and details["epoch"] < details["epochs"]:
            return  # not every epoch of a fast run
        last[0] = now
        _EVENTS[0].put((name, kind, details))

    return guarded(label, job, listen, do_here)


#: In a process of a pool: where it tells its events.
_EVENTS: list[Any] = []


def _begin(events: Any) -> None:
    """Start of a process that shares the machine with others like it."""
    _EVENTS[:] = [events]
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
