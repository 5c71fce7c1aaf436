"""Run the folds of a comparison on several workers: threads, processes or Ray."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from elliptica._utils.extras import import_extra
from elliptica.tables.cost import Speed, network_seconds, reference_seconds
from elliptica.tables.networks import JTT, run_networks
from elliptica.tables.plan import NETWORKS, REFERENCE, Plan
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import Record, Report, prepare
from elliptica.tables.references import run_reference
from elliptica.tables.shift import Fold, ShiftPlan
from elliptica.tables.store import Store
from elliptica.tables.table import TableError

Workers = Literal["threads", "processes", "ray"]
#: Called with the finished share of the whole and a message.
Listener = Callable[[float, str], None]

#: Folds of small tables are trained together, up to this many seconds on an ordinary machine. Larger stacks
#: are faster, but an interruption loses more.
_STACK_SECONDS = 8.0
_MOST_WORKERS = 8
#: Seconds that an interruption waits for its threads: Python aborts if it exits while one of them computes.
_PATIENCE = 10.0


class Stopped(Exception):
    """Raised in workers after an interruption."""


@dataclass(frozen=True)
class Task:
    """Some methods in some folds, run by one worker."""

    folds: tuple[Fold, ...]
    methods: tuple[str, ...]  # all of them networks, or none
    seconds: float  # estimated time on an ordinary machine


def count_workers(jobs: int | None, kind: Workers = "threads") -> int:
    """Return the number of workers: as requested, or one per available processor, up to eight.

    Raises:
        TableError: If ``jobs`` is not a positive integer, or if ``kind`` is unknown.
    """
    if kind not in get_args(Workers):
        raise TableError(f"workers must be one of {', '.join(get_args(Workers))}, but got {kind!r}.")
    if jobs is not None:
        if not isinstance(jobs, int) or jobs < 1:
            raise TableError(f"jobs must be an integer of at least 1, but got {jobs!r}.")
        return jobs
    if hasattr(os, "sched_getaffinity"):
        return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    return min(_MOST_WORKERS, os.cpu_count() or 1)  # pragma: no cover - not on Linux


def make_tasks(problem: TableProblem, shift: ShiftPlan, plan: Plan, store: Store, workers: int) -> list[Task]:
    """List the work that is left, fold by fold, so that an interruption leaves whole folds."""
    speed = Speed()
    tasks, open_folds = [], []
    for fold in shift.folds:
        missing = [m for m in plan.methods if not store.has(fold.repeat, fold.number, m)]
        networks = [m for m in missing if m in NETWORKS]
        if networks:
            open_folds.append((fold, networks))
        if others := tuple(m for m in missing if m not in NETWORKS):
            tasks.append(Task((fold,), others, reference_seconds(fold, problem, plan, speed)))
    for group in _group(open_folds, plan, speed, workers):
        methods = {m for _, networks in group for m in networks}
        if JTT in methods:
            methods.add(REFERENCE)  # JTT learns from its errors
        named = tuple(m for m in plan.methods if m in methods)
        own = replace(plan, methods=named)
        folds = tuple(fold for fold, _ in group)
        tasks.append(Task(folds, named, sum(network_seconds(fold, own, speed) for fold in folds)))
    return sorted(tasks, key=lambda t: (t.folds[-1].repeat, t.folds[-1].number, t.methods[0] not in NETWORKS))


def _group(
    folds: Sequence[tuple[Fold, list[str]]], plan: Plan, speed: Speed, workers: int
) -> Iterator[Sequence[tuple[Fold, list[str]]]]:
    """Combine folds of a small table into as many groups as there are workers."""
    if not folds:
        return
    seconds = network_seconds(folds[0][0], plan, speed)
    size = max(1, min(math.ceil(len(folds) / workers), int(_STACK_SECONDS / max(seconds, 1e-3))))
    for begin in range(0, len(folds), size):
        yield folds[begin : begin + size]


def run_task(
    problem: TableProblem, task: Task, plan: Plan, n_folds: int, report: Report | None, deadline: float | None
) -> list[Record]:
    """Run a task in a worker.

    Args:
        problem: The table.
        task: Folds and methods to run.
        plan: Sizes and settings.
        n_folds: Folds per repeat, shown in messages.
        report: Callback that receives the finished share of the task, or None.
        deadline: Value of ``time.monotonic()`` at which the task should end.
    """
    threadpool_limits(1, user_api="openmp")  # affects only this thread; the caller limits the others
    report = report or (lambda share, words: None)
    rows = [prepare(problem, fold, plan) for fold in task.folds]
    if task.methods[0] in NETWORKS:
        return run_networks(problem, rows, replace(plan, methods=task.methods), report)
    return [
        run_reference(problem, own, method, plan, report, n_folds, deadline)
        for own in rows
        for method in task.methods
    ]


def run_tasks(
    problem: TableProblem,
    shift: ShiftPlan,
    plan: Plan,
    store: Store,
    *,
    listen: Listener,
    workers: int,
    kind: Workers = "threads",
    deadline: float | None = None,
) -> None:
    """Run what the store does not have yet, and store each piece once it is finished.

    Args:
        problem: The table.
        shift: Its folds.
        plan: Methods and sizes.
        store: Storage of finished pieces.
        listen: Callback that receives the finished share and a message.
        workers: Number of tasks that run at the same time.
        kind: Kind of workers. Only threads report progress within a task.
        deadline: Value of ``time.monotonic()`` at which running trainings stop.
    """
    tasks = make_tasks(problem, shift, plan, store, workers)
    progress = _Progress(tasks, listen, min(workers, max(1, len(tasks))), deadline)
    calls = []
    for number, task in enumerate(tasks):
        n_folds = shift.folds_per_repeat
        if kind == "threads":
            calls.append(delayed(progress.run)(number, problem, task, plan, n_folds))
        else:
            parent = os.getpid() if kind == "processes" else None
            calls.append(delayed(_run_numbered)(parent, number, problem, task, plan, n_folds, deadline))
    with threadpool_limits(1):
        try:
            for number, records in _results(calls, workers, kind):
                store.add(records)
                progress.update(number, 1.0, "")
        except BaseException:
            progress.stop.set()
            progress.wait(_PATIENCE)
            raise
    listen(1.0, "done")


def _run_numbered(parent: int | None, number: int, *arguments: Any) -> tuple[int, list[Record]]:
    """Run a task in another process, which ends with the process ``parent``."""
    if parent is not None and not _watching:
        thread = threading.Thread(target=_end_with, args=(parent,), daemon=True)
        _watching.append(thread)
        thread.start()
    problem, task, plan, n_folds, deadline = arguments
    return number, run_task(problem, task, plan, n_folds, None, deadline)


#: In a worker process: the thread that watches its parent.
_watching: list[threading.Thread] = []


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, however it ended; joblib's workers would train on."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _results(calls: Sequence[Any], workers: int, kind: Workers) -> Iterator[tuple[int, list[Record]]]:
    """Yield results of tasks as they finish; joblib's Ray backend yields them one round at a time."""
    if kind == "ray":
        import_extra("Workers of Ray", "scale", "ray.util.joblib").register_ray()
        for begin in range(0, len(calls), workers):
            yield from Parallel(workers, backend="ray")(calls[begin : begin + workers])
    else:
        backend = {"threads": "threading", "processes": "loky"}[kind]
        yield from Parallel(workers, backend=backend, return_as="generator_unordered")(calls)


class _Progress:
    """Merge the progress of concurrent tasks and divide the remaining time among them."""

    def __init__(self, tasks: Sequence[Task], listen: Listener, workers: int, deadline: float | None) -> None:
        self.tasks, self.listen, self.workers, self.deadline = tasks, listen, workers, deadline
        self.stop = threading.Event()
        self._shares = [0.0] * len(tasks)
        self._begun = [False] * len(tasks)
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._active = 0  # threads at work

    def run(
        self, number: int, problem: TableProblem, task: Task, plan: Plan, n_folds: int
    ) -> tuple[int, list[Record]]:
        """Run a task in a thread."""
        with self._working():
            deadline = self._allot(number)
            return number, run_task(
                problem, task, plan, n_folds, lambda share, words: self.update(number, share, words), deadline
            )

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Count a thread that is at work; none begins after an interruption."""
        with self._idle:
            if self.stop.is_set():
                raise Stopped
            self._active += 1
        try:
            yield
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until no thread is at work, but not for ever: training one tree ensemble can take long."""
        with self._idle:
            self._idle.wait_for(lambda: not self._active, seconds)

    def update(self, number: int, share: float, words: str) -> None:
        """Update the progress of a task.

        Raises:
            Stopped: After an interruption.
        """
        if self.stop.is_set():
            raise Stopped
        with self._lock:
            self._shares[number] = max(self._shares[number], share)
            total = sum(task.seconds for task in self.tasks)
            done = sum(task.seconds * each for task, each in zip(self.tasks, self._shares, strict=True))
            self.listen(done / total, words)

    def _allot(self, number: int) -> float | None:
        """Return the time at which a task should end, so that the others get their share."""
        with self._lock:
            self._begun[number] = True
            left = sum(t.seconds for t, begun in zip(self.tasks, self._begun, strict=True) if not begun)
            if self.deadline is None:
                return None
            now, own = time.monotonic(), self.tasks[number].seconds
            rounds = max(1.0, (own + left) / (own * self.workers))
            return now + max(0.0, self.deadline - now) / rounds
