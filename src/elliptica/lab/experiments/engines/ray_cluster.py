"""Jobs on a Ray cluster: runs travel to its workers, records come back and are written here.

Workers need the code and the data but no common disk. A thread of the driver follows each job, so that
claims, records and the choices of a tuning are made in one place, as without Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import ray
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elliptica.lab.experiments.engines.interface import EngineError, Job, WorkerLost, guarded
from elliptica.lab.experiments.engines.ray_nodes import check_nodes, room
from elliptica.lab.experiments.engines.ray_worker import PERIOD, Begun, Message, Order, Result, work
from elliptica.lab.experiments.progress import Listener, Report, reported
from elliptica.lab.experiments.records import model_file, versions
from elliptica.lab.experiments.run import Options, RaySettings
from elliptica.lab.experiments.specification import Run

#: Jobs that are followed at once, or twice as many as the cluster has room for: Ray never waits for us.
FOLLOWED = 512
#: The worker is gone, not the run's fault: worth another try.
LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)


@contextlib.contextmanager
def open_cluster(settings: RaySettings, jobs: int | None) -> Iterator[RayCluster]:
    """Connect to a cluster, or start one on this machine; a connection that exists is used and kept."""
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise EngineError(
            f"The address {address} is one of Ray Client, which is not supported. Run elliptica on a machine "
            "of the cluster with --address auto, or send it there with: ray job submit -- elliptica run ..."
        )
    if ray.is_initialized():
        yield RayCluster(settings, jobs)
        return
    more: dict[str, Any] = {}
    if address == "local":  # workers as important as plain processes are, and no statistics for others
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        more["include_dashboard"] = False
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **more)
    except Exception as error:  # Ray raises bare ones, too
        first = str(error).strip().splitlines()[0]
        if address == "local":
            raise EngineError(
                f"Ray did not start ({first}). Try again, or use --jobs without Ray."
            ) from error
        raise EngineError(
            f"There is no Ray cluster at {address} ({first}). Start one with: ray start --head, or leave out "
            "--address (and RAY_ADDRESS) for one of this machine alone."
        ) from error
    try:
        yield RayCluster(settings, jobs)
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Fail at once if nobody is at an address; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class RayCluster:
    """The engine of a cluster.

    Args:
        settings: What a run gets, and how often it is tried again.
        at_once: Jobs, and runs, at once; None is as many as the cluster has room for.
    """

    def __init__(self, settings: RaySettings, at_once: int | None = None) -> None:
        self.settings = settings
        self.at_once = at_once or max(FOLLOWED, 2 * room(settings))
        self.stopped = threading.Event()
        self.slots = threading.Semaphore(self.at_once)
        self.mail = Mail()
        self.versions = versions()
        self.token = f"shared-{uuid.uuid4().hex}"
        self.work = ray.remote(num_cpus=settings.cpus_per_run, num_gpus=settings.gpus_per_run, max_retries=0)(
            work
        )

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`: tried on every node."""
        return check_nodes(runs, _absolute(options), self.settings)

    def do(self, jobs: dict[str, Job], listen: Listener) -> dict[str, str]:
        """See `Engine`."""
        lock = threading.Lock()

        def tell(*event: Any) -> None:
            with lock:
                listen(*event)

        self.stopped.clear()
        self.slots = threading.Semaphore(self.at_once)  # a job may do several runs at once
        threads = ThreadPoolExecutor(min(self.at_once, max(len(jobs), 1)))
        try:
            futures = {
                label: threads.submit(guarded, label, job, tell, self.do_run) for label, job in jobs.items()
            }
            waiting = set(futures.values())
            while waiting:
                waiting = wait(waiting, timeout=PERIOD).not_done
            return {label: future.result() for label, future in futures.items()}
        finally:
            self.stopped.set()  # after Ctrl-C: threads take their tasks back
            threads.shutdown(cancel_futures=True)

    def do_run(self, run: Run, options: Options, listen: Listener) -> dict[str, Any]:
        """Do a run on a worker, on another one if that is lost; returns the record."""
        options = _absolute(options)
        with contextlib.ExitStack() as stack:
            while not self.slots.acquire(timeout=PERIOD):
                if self.stopped.is_set():
                    raise KeyboardInterrupt
            stack.callback(self.slots.release)
            reports: list[Report] = []

            def hear(message: Message) -> None:
                if isinstance(message, Begun):
                    where = {"node": message.node, "pid": message.pid}
                    listen(run.label, "start", {"epochs": run.training.get("epochs"), **where})
                    if not reports:  # now, not while it waits for a worker
                        told = reported(run, options.out, options.tensorboard, listen)
                        reports.append(stack.enter_context(told))
                else:
                    reports[0](message)

            result = self._tried(run, options, hear, listen)
            if result.model is not None:
                _write(model_file(options.out, run), result.model)
            return reports[0].finish(result.record) if reports else result.record

    def _tried(
        self, run: Run, options: Options, hear: Callable[[Message], object], listen: Listener
    ) -> Result:
        """Do a run, again if its worker is lost."""
        tries, threads = self.settings.retries + 1, max(int(self.settings.cpus_per_run), 1)
        for number in range(1, tries + 1):
            with self._token(options) as token:
                order = Order(run, options, threads, self.versions, token, uuid.uuid4().hex)
                try:
                    return self._followed(order, hear)
                except LOST as error:
                    why = str(error).strip().splitlines()[0]
            if number < tries:
                told = f"its worker was lost, try {number + 1} of {tries} ({why})"
                listen(run.label, "again", {"error": told})
        raise WorkerLost(
            f"its worker was lost {tries} times, at last: {why} If memory was short, give each run more "
            "processors (--cpus-per-run) so that fewer share a machine; otherwise raise --retries."
        )

    def _followed(self, order: Order, hear: Callable[[Message], object]) -> Result:
        """Send a run to the cluster and pass on what is heard of it until it ends."""
        with self.mail.box(order.box) as box:
            task = self.work.options(name=order.run.label).remote(order, self.mail.messages)
            try:
                while not ray.wait([task], timeout=PERIOD)[0]:
                    if self.stopped.is_set():
                        raise KeyboardInterrupt
                    self.mail.fetch()
                    _pass_on(box, hear)
                self.mail.fetch(now=True)
                _pass_on(box, hear)
                result: Result = ray.get(task)
                return result
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except BaseException:  # interrupted, or the listener has had enough of this run
                ray.cancel(task, force=True)
                raise

    @contextlib.contextmanager
    def _token(self, options: Options) -> Iterator[Path]:
        """A file by which a worker knows whether it shares our disk."""
        file = options.out / ".locks" / f"{self.token}-{threading.get_ident()}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)


class Mail:
    """Messages of workers on their way to the threads that follow them."""

    def __init__(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.messages = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self.boxes: dict[str, queue.SimpleQueue[Message]] = {}
        self.lock = threading.Lock()
        self.last = 0.0

    @contextlib.contextmanager
    def box(self, name: str) -> Iterator[queue.SimpleQueue[Message]]:
        """Where messages to a name are put."""
        self.boxes[name] = queue.SimpleQueue()
        try:
            yield self.boxes[name]
        finally:
            del self.boxes[name]

    def fetch(self, *, now: bool = False) -> None:
        """Put new messages into their boxes; asks not more often than they are sent, unless ``now``."""
        with self.lock:
            if not now and time.monotonic() - self.last < PERIOD:
                return
            for name, event in self.messages.get_nowait_batch(self.messages.qsize()):
                if name in self.boxes:  # not of a worker that was given up
                    self.boxes[name].put(event)
            self.last = time.monotonic()


def _pass_on(box: queue.SimpleQueue[Message], hear: Callable[[Message], object]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            hear(box.get_nowait())


def _write(file: Path, content: bytes) -> None:
    """As a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.part")
    part.write_bytes(content)
    part.replace(file)


def _absolute(options: Options) -> Options:
    """Workers have another working directory."""
    data_dir = options.data_dir and options.data_dir.expanduser().absolute()
    return dataclasses.replace(options, out=options.out.absolute(), data_dir=data_dir, ray=None)
