"""What is done on a worker of a Ray cluster: one run, from settings to record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from elliptica.lab.experiments.records import HAS_LOCKS, claimed, model_file, versions
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.progress import EpochEnd

#: Versions that must be the same on all machines: other code may give other numbers.
COMPARED = ("elliptica", "torch", "revision")
#: Seconds between two messages of a run.
PERIOD = 0.3
#: How names of temporary folders begin.
SCRATCH = "elliptica-run-"


@dataclasses.dataclass(frozen=True)
class Result:
    """What comes back of a run.

    Attributes:
        record: Its record.
        model: Content of the file of its weights, if it is to be kept and the driver cannot read it.
    """

    record: dict[str, Any]
    model: bytes | None


@dataclasses.dataclass(frozen=True)
class Begun:
    """A worker has begun with a run.

    Attributes:
        node: Name of its machine.
        pid: Number of its process.
    """

    node: str
    pid: int


#: What the driver hears of a run.
Message = Begun | EpochEnd


@dataclasses.dataclass(frozen=True)
class Order:
    """A run, and what a worker has to know to do it.

    Attributes:
        run: What to do.
        options: Where; ``out`` is a folder of the driver's machine.
        threads: Threads of torch.
        versions: The driver's.
        token: A file in ``out`` that a worker sees only if it shares the driver's disk.
        box: Address of messages to the driver.
    """

    run: Run
    options: Options
    threads: int
    versions: dict[str, str]
    token: Path
    box: str


def work(order: Order, messages: Any) -> Result:
    """Do a run and return its record.

    Checkpoints are kept beside the driver's records if the disk is shared, so that a run whose worker is lost
    goes on from there; otherwise in a temporary folder, and such a run begins anew. Both end the same.
    """
    problem = version_problem(order.versions, versions())
    if problem:
        raise RuntimeError(f"On node {platform.node()}: {problem}")
    torch.set_num_threads(order.threads)
    post = Post(messages, order.box)
    post(Begun(platform.node(), os.getpid()))
    options, is_shared = order.options, order.token.exists()
    with contextlib.ExitStack() as stack:
        if not is_shared:
            options = dataclasses.replace(options, out=stack.enter_context(scratch()))
        try:
            record = do_run(order.run, options, post)
        except OSError as error:  # a file that this machine lacks
            raise OSError(f"On node {platform.node()}: {error}") from error
        finally:
            post.send()
        kept = options.keep_models and not is_shared
        return Result(record, model_file(options.out, order.run).read_bytes() if kept else None)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the time of a run; those that killed workers left are removed, as their locks tell."""
    if HAS_LOCKS:
        for old in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
            with contextlib.suppress(OSError):  # another user's, or removed by another worker
                if time.time() - old.stat().st_mtime > 60:  # a new one may not have its lock yet
                    with claimed(old, old / "run") as is_left:
                        if is_left:
                            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name, claimed(Path(name), Path(name) / "run"):
        yield Path(name)


class Post:
    """Sends the ends of epochs to the driver, all of them but not one by one."""

    def __init__(self, messages: Any, box: str) -> None:
        self.messages, self.box = messages, box
        self.waiting: list[tuple[str, Message]] = []
        self.last = 0.0

    def __call__(self, message: Message) -> None:
        """Take a message."""
        self.waiting.append((self.box, message))
        if time.monotonic() - self.last > PERIOD:
            self.send()

    def send(self) -> None:
        """Send what is waiting."""
        if self.waiting:
            self.messages.put_nowait_batch(self.waiting)
        self.waiting, self.last = [], time.monotonic()


def version_problem(wanted: dict[str, str], found: dict[str, str]) -> str | None:
    """How versions of a worker differ from the driver's, and what to do; None if they do not."""
    both = [name for name in COMPARED if name in wanted and name in found]
    wrong = [name for name in both if wanted[name] != found[name]]
    if not wrong:
        return None
    told = ", ".join(f"{name} {found[name]} instead of {wanted[name]}" for name in wrong)
    return f"{told}, so its results could differ. Install the same there, then start Ray on it again."
