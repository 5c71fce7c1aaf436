"""Doing many runs, one by one or in several processes."""

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
from typing import Any

import torch

from elliptica.experiments.run import Listener, Options, finish_run
from elliptica.experiments.specification import Run


def do_all(runs: list[Run], options: Options, listen: Listener) -> dict[str, str]:
    """Do runs, in ``options.jobs`` processes; returns what happened to each, by its label.

    A run that fails is reported and does not stop the others.
    """
    if options.jobs == 1:
        return {run.label: _guarded(run, options, listen) for run in runs}
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    pool = ProcessPoolExecutor(options.jobs, mp_context=context, initializer=_begin, initargs=(events,))
    try:
        with _deaf_to_interrupts():  # processes that start now will not hear Ctrl-C: this one tells them
            futures: dict[Future[str], Run] = {pool.submit(_in_process, run, options): run for run in runs}
        return _watch(futures, events, listen)
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


def _watch(futures: dict[Future[str], Run], events: Any, listen: Listener) -> dict[str, str]:
    waiting = set(futures)
    found: dict[str, str] = {}
    while waiting:
        with contextlib.suppress(queue.Empty):
            while True:
                listen(*events.get(timeout=0.2))
        for future in [f for f in waiting if f.done()]:
            waiting.discard(future)
            run = futures[future]
            error = future.exception()
            if error is not None:  # the process died: killed, or out of memory
                listen(run.label, "failed", {"error": f"{type(error).__name__}: {error}"})
                found[run.label] = "failed"
            else:
                found[run.label] = future.result()
    with contextlib.suppress(queue.Empty):
        while True:
            listen(*events.get_nowait())
    return found


def _guarded(run: Run, options: Options, listen: Listener) -> str:
    try:
        return finish_run(run, options, listen)
    except Exception as error:
        listen(run.label, "failed", {"error": f"{type(error).__name__}: {error}"})
        return "failed"


def _in_process(run: Run, options: Options) -> str:
    last = [0.0]

    def listen(label: str, kind: str, details: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "epoch" and now - last[0] < 0.2 and details["epoch"] < details["epochs"]:
            return  # not every epoch of a fast run
        last[0] = now
        _EVENTS[0].put((label, kind, details))

    return _guarded(run, options, listen)


#: In a process of a pool: where it tells its events.
_EVENTS: list[Any] = []


def _begin(events: Any) -> None:
    _EVENTS[:] = [events]
    one_thread()


def one_thread() -> None:
    """Start of a process that shares the machine with others like it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
