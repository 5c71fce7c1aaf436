"""The engine of a Ray cluster: one task per run; records come back and are written here.

Workers need the code and the data but no shared disk. Claims and records are the driver's, as without Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elliptica._utils.files import replacing
from elliptica.lab.experiments.engines import EngineError, Outcome, failed
from elliptica.lab.experiments.plugins import Plugin, PluginError, ensure_plugins
from elliptica.lab.experiments.preflight import (
    data_problems,
    device_problem,
    folder_problem,
    one_per_data,
    with_folder,
    without,
)
from elliptica.lab.experiments.records import HAS_LOCKS, claimed, model_file, versions
from elliptica.lab.experiments.run import Listener, Options, RaySettings, Report, claim, do_run, record_run
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.progress import EpochEnd

#: Versions that must agree on all machines: other code may give other numbers.
COMPARED = ("elliptica", "torch", "revision")
#: Seconds between two messages of a run, and between two looks at them.
PERIOD = 0.3
#: How names of temporary folders begin.
SCRATCH = "elliptica-run-"
#: Tasks at once, or twice as many as the cluster has room for: Ray never waits for the driver.
AT_ONCE = 512


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
    if address == "local":  # workers with the priority of ordinary processes, and no usage statistics
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        more["include_dashboard"] = False
    try:
        _knock(address)
        with own_sigterm():
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


@contextlib.contextmanager
def own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by one that ends the process without a word."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Fail at once if nobody is at an address; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Begun(NamedTuple):
    """The message of a worker that has begun a run."""

    node: str
    pid: int


#: What the driver hears of a run.
Message = Begun | EpochEnd


class RayCluster:
    """Do runs on a cluster.

    Args:
        settings: What a run reserves, and how often it is tried again.
        at_once: Runs at once; None is as many as the cluster has room for.
    """

    def __init__(self, settings: RaySettings, at_once: int | None = None) -> None:
        self.settings = settings
        room = int(ray.cluster_resources().get("CPU", 0) / settings.cpus_per_run)
        self.at_once = at_once or max(AT_ONCE, 2 * room)
        self.versions = versions()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.messages = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self.work = ray.remote(
            num_cpus=settings.cpus_per_run, num_gpus=settings.gpus_per_run, max_retries=settings.retries
        )(work)

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`: tried on every node."""
        return check_nodes(runs, _absolute(options), self.settings)

    def do(self, runs: Sequence[Run], options: Options, listen: Listener) -> list[Outcome]:
        """See `Engine`."""
        options = _absolute(options)
        waiting, found = deque(enumerate(runs)), dict[int, Outcome]()
        tasks: dict[Any, _Task] = {}
        with self._token(options) as token, contextlib.ExitStack() as open_tasks:
            try:
                while waiting or tasks:
                    while waiting and len(tasks) < self.at_once:
                        number, run = waiting.popleft()
                        task = _Task(number, run, options, self.settings.retries + 1, listen)
                        open_tasks.callback(task.close)
                        if not task.is_mine:
                            found[number] = task.skip()
                            continue
                        tasks[self._send(number, run, options, token)] = task
                    done = ray.wait(list(tasks), timeout=PERIOD)[0] if tasks else []
                    self._pass_on(tasks)
                    for reference in done:
                        task = tasks.pop(reference)
                        found[task.number] = task.end(reference)
            except BaseException:
                for reference in tasks:
                    ray.cancel(reference, force=True)
                raise
        return [found[number] for number in range(len(runs))]

    def _send(self, number: int, run: Run, options: Options, token: Path) -> Any:
        threads = max(int(self.settings.cpus_per_run), 1)
        task = self.work.options(name=run.label)
        return task.remote(run, options, threads, self.versions, token, number, self.messages)

    def _pass_on(self, tasks: dict[Any, _Task]) -> None:
        """Give new messages of workers to the tasks that they are of."""
        by_number = {task.number: (reference, task) for reference, task in tasks.items()}
        for number, message in self.messages.get_nowait_batch(self.messages.qsize()):
            if number in by_number:
                reference, task = by_number[number]
                if not task.hear(message):
                    ray.cancel(reference, force=True)

    @contextlib.contextmanager
    def _token(self, options: Options) -> Iterator[Path]:
        """Make a file by which a worker knows whether it shares our disk."""
        file = options.out / ".locks" / f"shared-{uuid.uuid4().hex}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)


class _Task:
    """A run under way: its claim, its report, and how often it was begun."""

    def __init__(self, number: int, run: Run, options: Options, tries: int, listen: Listener) -> None:
        self.number, self.run, self.options, self.tries, self.listen = number, run, options, tries, listen
        self.stack = contextlib.ExitStack()
        self.is_mine = self.stack.enter_context(claim(run, options))
        self.report: Report | None = None
        self.begun = 0

    def skip(self) -> Outcome:
        """Another process has it, or had."""
        self.close()
        self.listen(self.run.label, "skipped", {})
        return Outcome("skipped")

    def hear(self, message: Message) -> bool:
        """Take a message; False if the run was begun too often."""
        if self.report is None:  # now, not while the run waits for a worker
            self.report = Report(self.run, self.options, self.listen)
            self.stack.callback(self.report.close)
        if not isinstance(message, Begun):
            self.report(message)
            return True
        self.begun += 1
        if self.begun > self.tries:  # Ray itself does not count workers that ran out of memory
            return False
        if self.begun > 1:
            told = f"its worker was lost, try {self.begun} of {self.tries}"
            self.listen(self.run.label, "again", {"error": told})
        where = {"node": message.node, "pid": message.pid}
        self.listen(self.run.label, "start", {"epochs": self.run.training.get("epochs"), **where})
        return True

    def end(self, reference: Any) -> Outcome:
        """Record the result of the task, or report why there is none."""
        with contextlib.closing(self):
            try:
                record, weights = ray.get(reference)
                if weights is not None:
                    with replacing(model_file(self.options.out, self.run)) as part:
                        part.write_bytes(weights)
                if self.report is not None:
                    self.report.finish(record)
                return Outcome(record_run(self.run, self.options, record, self.listen))
            except ray.exceptions.RayTaskError as error:
                return failed(self.run.label, error.cause, self.listen)
            except ray.exceptions.RayError as error:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            except Exception as error:  # e.g. the disk is full
                return failed(self.run.label, error, self.listen)
            told = (
                f"its worker was lost {self.tries} times, at last: {why} If memory was short, give each run "
                "more processors (--cpus-per-run) so that fewer share a machine; otherwise raise --retries."
            )
            self.listen(self.run.label, "lost", {"error": told})
            return Outcome("lost", told)

    def close(self) -> None:
        """Give up the claim."""
        self.stack.close()


def _absolute(options: Options) -> Options:
    """Make paths absolute: workers have another working directory."""
    data_dir = options.data_dir and options.data_dir.expanduser().absolute()
    return dataclasses.replace(options, out=options.out.absolute(), data_dir=data_dir, ray=None)


def work(
    run: Run,
    options: Options,
    threads: int,
    wanted: dict[str, str],
    token: Path,
    number: int,
    messages: Any,
) -> tuple[dict[str, Any], bytes | None]:
    """Do a run; returns its record and, if the driver wants them but cannot read them, its weights.

    Checkpoints lie beside the driver's records if the disk is shared, so that a run whose worker is lost
    resumes from there; otherwise in a temporary folder, and such a run starts over. Both end the same.

    Args:
        run: What to do.
        options: Where; ``out`` is a folder of the driver's machine.
        threads: Threads of torch.
        wanted: The driver's versions.
        token: A file in ``out`` that a worker sees only if it shares the driver's disk.
        number: Of the run, in its messages.
        messages: The queue to the driver.
    """
    problem = version_problem(wanted, versions())
    if problem:
        raise RuntimeError(f"On node {platform.node()}: {problem}")
    torch.set_num_threads(threads)
    post = Post(messages, number)
    post(Begun(platform.node(), os.getpid()))
    is_shared = token.exists()
    with contextlib.nullcontext(options.out) if is_shared else scratch() as out:
        options = dataclasses.replace(options, out=out)
        try:
            record = do_run(run, options, post)
        except OSError as error:  # a file that this machine lacks
            raise OSError(f"On node {platform.node()}: {error}") from error
        finally:
            post.send()
        is_sent = options.keep_models and not is_shared
        return record, model_file(out, run).read_bytes() if is_sent else None


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for the time of a run; remove those of killed workers, whose locks are free."""
    if HAS_LOCKS:
        for old in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
            with contextlib.suppress(OSError):  # another user's, or removed by another worker
                if time.time() - old.stat().st_mtime > 60:  # a new one may not have its lock yet
                    with claimed(old, old / "run") as is_free:
                        if is_free:
                            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name, claimed(Path(name), Path(name) / "run"):
        yield Path(name)


class Post:
    """Send messages of a run to the driver: all of them, in batches."""

    def __init__(self, messages: Any, number: int) -> None:
        self.messages, self.number = messages, number
        self.waiting: list[tuple[int, Message]] = []
        self.last = 0.0

    def __call__(self, message: Message) -> None:
        """Take a message."""
        self.waiting.append((self.number, message))
        if time.monotonic() - self.last > PERIOD:
            self.send()

    def send(self) -> None:
        """Send what is waiting."""
        if self.waiting:
            self.messages.put_nowait_batch(self.waiting)
        self.waiting, self.last = [], time.monotonic()


def version_problem(wanted: dict[str, str], found: dict[str, str]) -> str | None:
    """Say how versions of a worker differ from the driver's, and what to do; None if they agree."""
    both = [name for name in COMPARED if name in wanted and name in found]
    wrong = [name for name in both if wanted[name] != found[name]]
    if not wrong:
        return None
    told = ", ".join(f"{name} {found[name]} instead of {wanted[name]}" for name in wrong)
    return f"{told}, so its results could differ. Install the same there, then start Ray on it again."


def check_nodes(runs: list[Run], options: Options, settings: RaySettings) -> tuple[list[Run], list[str]]:
    """Try folder, settings, code, device and data; returns the runs that can be done, and problems.

    Data that one node lacks are a problem, because any node may get any run.
    """
    problem = folder_problem(options.out) or _gpu_problem(options.device, settings.gpus_per_run)
    if problem:
        return [], [problem]
    nodes = _large_nodes(settings)
    problems = _code_problems(nodes, options.plugins)
    if problems:
        return [], problems
    device = None if settings.gpus_per_run else options.device  # Ray hides GPUs from what asks for none
    wrong: dict[str, str] = {}
    for name, answer in _on_each(nodes, _node_problems, one_per_data(runs, options), options, device):
        if isinstance(answer, Exception):
            raise EngineError(f"Node {name} could not be tried: {answer}") from answer
        wrong |= {key: f"On node {name}: {told}" for key, told in answer.items() if key not in wrong}
    if device in wrong:
        return [], [wrong[device]]
    return with_folder(without(runs, wrong), list(wrong.values()), options.out)


def _code_problems(nodes: list[dict[str, Any]], plugins: Sequence[Plugin]) -> list[str]:
    """Find nodes that lack our code or the user's, or have another version of it."""
    here, problems = versions(), []
    for name, answer in _on_each(nodes, _probe()):
        if isinstance(answer, Exception):
            problems.append(
                f"Node {name}: elliptica cannot be imported there ({type(answer).__name__}: {answer}). "
                f"Install elliptica {here['elliptica']} with its extras lab and scale and torch "
                f"{here['torch']}, as here, then start Ray on it again."
            )
        elif problem := version_problem(here, answer):
            problems.append(f"Node {name}: {problem}")
    if not problems and plugins:
        found = _on_each(nodes, _plugin_problem, plugins)
        problems = [f"Node {name}: {answer}" for name, answer in found if answer is not None]
    return problems


def _gpu_problem(device: str, gpus: float) -> str | None:
    """Say how device and reserved GPUs contradict each other, if they do."""
    if gpus and device == "cpu":
        return f"--gpus-per-run {gpus:g} reserves GPUs, but runs are on the CPU. Add --device cuda."
    if gpus and device.startswith("cuda:"):
        return (
            f"--device {device} names a GPU, but Ray gives each run its own, which is the first that the run "
            "sees. Say --device cuda."
        )
    if not gpus and device.startswith("cuda"):
        return (
            "--device cuda needs GPUs, but none are reserved. Add --gpus-per-run 1, or a share such as 0.5."
        )
    return None


def _large_nodes(settings: RaySettings) -> list[dict[str, Any]]:
    """Find the nodes that are large enough for a run."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": settings.cpus_per_run, "GPU": settings.gpus_per_run}
    large = [n for n in alive if all(n["Resources"].get(k, 0) >= v for k, v in wanted.items())]
    if not large:
        sizes = ", ".join(
            f"{_name(n)} has {n['Resources'].get('CPU', 0):g} processors and "
            f"{n['Resources'].get('GPU', 0):g} GPUs"
            for n in alive
        )
        raise EngineError(
            f"No node can do a run that asks for {settings.cpus_per_run:g} processors and "
            f"{settings.gpus_per_run:g} GPUs: {sizes}. Lower --cpus-per-run or --gpus-per-run, or add nodes."
        )
    return large


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _probe() -> Callable[[], dict[str, str]]:
    """Make a function that reaches a node without our code: inner functions travel as they are."""

    def probe() -> dict[str, str]:
        from elliptica.lab.experiments.records import versions

        return versions()

    return probe


def _plugin_problem(plugins: Sequence[Plugin]) -> str | None:
    """Say why plugins cannot be used on this node; None if they can."""
    try:
        ensure_plugins(plugins)
    except PluginError as error:
        return f"{error} Workers need the module at the same path, or installed."
    return None


def _node_problems(runs: list[Run], options: Options, device: str | None) -> dict[str, str]:
    """Find on a node what is wrong there, by data or device."""
    ensure_plugins(options.plugins)
    problem = device_problem(device) if device else None
    return {device: problem} if device and problem else data_problems(runs, options.data_dir)


def _on_each(
    nodes: list[dict[str, Any]], function: Callable[..., Any], *arguments: Any
) -> list[tuple[str, Any]]:
    """Call a function on each node; returns results or errors. Nodes that are lost meanwhile are skipped."""
    task = ray.remote(num_cpus=0, max_retries=0)(function)  # it need not wait for runs of others
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            *arguments
        )
        for node in nodes
    ]
    found: list[tuple[str, Any]] = []
    for node, reference in zip(nodes, asked, strict=True):
        try:
            found.append((_name(node), ray.get(reference)))
        except ray.exceptions.RayTaskError as error:
            found.append((_name(node), error.cause))
        except ray.exceptions.RayError:
            continue
    return found
