"""Engines: where runs are done. In this process, in several, under torchrun, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
import torch.distributed as dist

from elliptica._utils.extras import remedy
from elliptica.distributed.ranks import Ranks
from elliptica.lab.experiments.preflight import check_before
from elliptica.lab.experiments.run import Listener, Options, finish_run
from elliptica.lab.experiments.specification import Run

#: Something to do in a process: given a listener, it returns "done" or "skipped".
Job = Callable[[Listener], str]

#: What is reported of a job whose process died.
DIED_ONCE = "its process died (killed, or out of memory): it is tried once more at the end"
DIED_TWICE = "Its process died twice: killed, or out of memory."
#: Seconds between two looks at what processes report, and between two reports of a process.
PERIOD = 0.2
#: How long a process that failed waits for the others to fail, too.
PATIENCE = timedelta(seconds=30)


class EngineError(RuntimeError):
    """An engine cannot be used; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    #: ``"done"``, ``"skipped"`` (recorded, or under way in another process), ``"failed"``, or ``"lost"`` (its
    #: worker died too often).
    state: str
    error: str = ""  # why it failed or was lost
    is_bad_setting: bool = False  # whether it failed because of its settings: they diverged or were rejected


class Engine(Protocol):
    """A way to do many runs; a run that fails is reported and does not stop the others."""

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """Try what runs need where they will be done; returns those that can be done, and problems."""

    def do(self, runs: Sequence[Run], options: Options, listen: Listener) -> list[Outcome]:
        """Do runs; returns how each ended."""


@contextlib.contextmanager
def open_engine(options: Options) -> Iterator[Engine]:
    """Open the engine that options ask for.

    Raises:
        EngineError: If it cannot be used; the message says what to do.
    """
    if options.ray is None:
        yield DataParallel(options.ranks) if isinstance(options.ranks, Launched) else Local(options.jobs or 1)
        return
    try:
        from elliptica.lab.experiments.ray_engine import open_cluster
    except ImportError as error:
        raise EngineError(f"Ray cannot be used ({error}): {remedy('scale')}") from error
    with open_cluster(options.ray, options.jobs) as cluster:
        yield cluster


def guarded(label: str, job: Callable[[], str], listen: Listener) -> Outcome:
    """Do a job; an error is reported and ends this job only."""
    try:
        return Outcome(job())
    except Exception as error:
        return failed(label, error, listen)


def failed(label: str, error: BaseException, listen: Listener) -> Outcome:
    """Report an error of a job."""
    text = f"{type(error).__name__}: {error}"
    listen(label, "failed", {"error": text})
    return Outcome("failed", text, isinstance(error, FloatingPointError | ValueError))


class Local:
    """Do runs on this machine.

    Args:
        n_processes: Runs at once: one is done in this process, several in processes with one thread each.
    """

    def __init__(self, n_processes: int = 1) -> None:
        self.n_processes = n_processes

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`."""
        return check_before(runs, options)

    def do(self, runs: Sequence[Run], options: Options, listen: Listener) -> list[Outcome]:
        """See `Engine`."""
        if self.n_processes == 1:
            return [
                guarded(run.label, functools.partial(finish_run, run, options, listen), listen)
                for run in runs
            ]
        jobs = [(run.label, functools.partial(finish_run, run, options)) for run in runs]
        return in_processes(jobs, self.n_processes, listen)


def in_processes(jobs: Sequence[tuple[str, Job]], n_processes: int, listen: Listener) -> list[Outcome]:
    """Do labelled jobs in several processes, each in a pool of its own: one that dies loses its job only.

    That job is tried once more after all others have begun. joblib falls short here: if one process of its
    pool is killed, every job fails, and Ctrl-C while its processes import prints their tracebacks.
    """
    found: dict[int, Outcome] = {}
    waiting, died = deque(range(len(jobs))), set[int]()
    idle = [_Worker() for _ in range(min(n_processes, len(jobs)))]
    busy: dict[Future[Outcome], tuple[int, _Worker]] = {}
    try:
        while waiting or busy:
            while waiting and idle:
                number, worker = waiting.popleft(), idle.pop()
                busy[worker.begin(*jobs[number])] = number, worker
            done, _ = wait(busy, PERIOD, FIRST_COMPLETED)
            for _, worker in busy.values():
                worker.pass_on(listen)
            for future in done:
                number, worker = busy.pop(future)
                label, error = jobs[number][0], future.exception()
                if not isinstance(error, BrokenProcessPool):
                    idle.append(worker)
                    found[number] = failed(label, error, listen) if error else future.result()
                    continue
                worker.close()
                idle.append(_Worker())
                if number in died:
                    listen(label, "failed", {"error": DIED_TWICE})
                    found[number] = Outcome("failed", DIED_TWICE)
                else:
                    listen(label, "again", {"error": DIED_ONCE})
                    died.add(number)
                    waiting.append(number)
    except BaseException:
        for _, worker in busy.values():
            worker.kill()
        raise
    finally:
        for worker in (*idle, *(worker for _, worker in busy.values())):
            worker.close()
    return [found[number] for number in range(len(jobs))]


class _Worker:
    """One process, which starts with its first job, and the pipe of its reports."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.events, self.sender = context.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin_process, initargs=(self.sender,)
        )

    def begin(self, label: str, job: Job) -> Future[Outcome]:
        """Send a job. Processes ignore Ctrl-C from their first moment on: this one ends them."""
        with _ignored_interrupts():
            future = self.pool.submit(_in_process, label, job)
        self.sender.close()  # now the process alone has it: a report that a kill cuts short ends in an error
        return future

    def pass_on(self, listen: Listener) -> None:
        """Give new reports to a listener."""
        while True:
            try:
                if not self.events.poll():
                    return
                event = self.events.recv()
            except (EOFError, OSError):  # it died
                return
            listen(*event)

    def kill(self) -> None:
        """End the process in the middle of its job."""
        for process in list((getattr(self.pool, "_processes", None) or {}).values()):
            process.terminate()

    def close(self) -> None:
        """End the process after its job."""
        self.pool.shutdown(cancel_futures=True)
        self.events.close()


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment, in this process and for good in those that it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


#: In a process of a pool: where it reports.
_SENDER: list[Connection] = []


def _begin_process(sender: Connection) -> None:
    """Prepare a process that shares the machine with others like it."""
    _SENDER[:] = [sender]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """End this process when its parent is gone, however it ended; a pool would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_process(label: str, job: Job) -> Outcome:
    last = 0.0

    def listen(name: str, kind: str, details: dict[str, Any]) -> None:
        nonlocal last
        now = time.monotonic()
        if kind == "epoch" and now - last < PERIOD and details["epoch"] < details["epochs"]:
            return  # not every epoch of a fast run
        last = now
        _SENDER[0].send((name, kind, details))

    return guarded(label, functools.partial(job, listen), listen)


@dataclasses.dataclass(frozen=True)
class Launched(Ranks):
    """Ranks with a second connection, which still works when a process fails within a collective."""

    control: Any = None  # process group of that connection

    def have_all_failed(self) -> bool:
        """Whether all processes failed alike, so that all can continue with the next run.

        A loss that diverges does so everywhere. If this process failed alone, the others wait for it in a
        collective and can only be ended.
        """
        try:
            dist.monitored_barrier(self.control, timeout=PATIENCE)
        except RuntimeError:
            return False
        return True


def is_torchrun() -> bool:
    """Whether ``torchrun`` started several processes like this one."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


@contextlib.contextmanager
def launched(options: Options) -> Iterator[Options]:
    """Connect the processes that ``torchrun`` started, if any; each has a GPU of its own.

    Raises:
        EngineError: If the options ask for processes of their own.
    """
    if not is_torchrun():
        yield options
        return
    if options.jobs not in (None, 1):
        raise EngineError(
            f"torchrun has started the processes, so --jobs {options.jobs} cannot. Leave it out."
        )
    if options.ray is not None:
        raise EngineError("torchrun has started the processes, so Ray cannot. Leave out --engine ray.")
    device = options.device
    if torch.device(device).type == "cuda":
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    control = dist.new_group(backend="gloo", timeout=PATIENCE)  # else a barrier waits half an hour
    ranks = Launched(dist.get_rank(), dist.get_world_size(), None, control)
    with warnings.catch_warnings():
        if not ranks.is_first:
            warnings.simplefilter("ignore")  # the first one says the same
        yield dataclasses.replace(options, device=device, ranks=ranks)
    dist.destroy_process_group()  # not after an error: the others may be gone


class DataParallel:
    """Do one run after the other, each in all processes."""

    def __init__(self, ranks: Launched) -> None:
        self.ranks = ranks

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`; a problem in any process is one. The first looks first: it may set files aside."""
        if not self.ranks.is_first:
            self.ranks.wait()
        left, problems = check_before(runs, options)
        if self.ranks.is_first:
            self.ranks.wait()
        found = self.ranks.all(({run.label for run in left}, problems))
        labels = set.intersection(*(each for each, _ in found))
        reported = dict.fromkeys(problem for _, each in found for problem in each)
        return [run for run in runs if run.label in labels], list(reported)

    def do(self, runs: Sequence[Run], options: Options, listen: Listener) -> list[Outcome]:
        """See `Engine`; a run that fails in one process alone ends all."""
        return [self._do(run, options, listen) for run in runs]

    def _do(self, run: Run, options: Options, listen: Listener) -> Outcome:
        try:
            return Outcome(finish_run(run, options, listen))
        except Exception as error:
            if not self.ranks.have_all_failed():
                raise SystemExit(
                    f"error: {run.label} failed in process {self.ranks.rank} of {self.ranks.size}, which "
                    f"ends all of them: {type(error).__name__}: {error}"
                ) from error
            return failed(run.label, error, listen)
