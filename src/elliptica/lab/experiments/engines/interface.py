"""What engines have in common: jobs in, a few words about each out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from elliptica.lab.experiments.run import Do, Listener, Options
from elliptica.lab.experiments.specification import Run

#: Something to do, e.g. a run or the tuning of a row: told whom to tell and how runs are done, it returns
#: what happened in a few words.
Job = Callable[[Listener, Do], str]


class EngineError(RuntimeError):
    """An engine cannot be used; the message says what to do."""


class WorkerLost(RuntimeError):
    """The process or machine that did a run is gone, and so it was every time it was tried again."""


class Engine(Protocol):
    """A way to do many jobs; a job that fails is reported and does not stop the others."""

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """Try what runs need where they will be done; returns those that can be done, and problems."""

    def do(self, jobs: dict[str, Job], listen: Listener) -> dict[str, str]:
        """Do jobs, which have names; returns what happened to each."""


def guarded(label: str, job: Job, listen: Listener, do: Do) -> str:
    """Do a job; an error is told and ends this job only."""
    try:
        return job(listen, do)
    except WorkerLost as error:
        listen(label, "lost", {"error": str(error)})
        return "lost"
    except Exception as error:
        listen(label, "failed", {"error": f"{type(error).__name__}: {error}"})
        return "failed"
