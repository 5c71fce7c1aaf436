"""Several workers of one search, in processes of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from elliptica.lab.experiments.engines.interface import Engine, Job
from elliptica.lab.experiments.engines.processes import Processes
from elliptica.lab.experiments.engines.sequential import Sequential
from elliptica.lab.experiments.run import Do, Listener, Options
from elliptica.lab.experiments.search.study import Search
from elliptica.lab.experiments.search.worker import work


def work_together(search: Search, options: Options, told: Callable[[dict[str, Any]], object]) -> list[str]:
    """Work in ``options.jobs`` processes; ``told`` hears of each trial that ends. Returns what went wrong."""
    n_workers = options.jobs or 1
    problems: list[str] = []

    def listen(label: str, kind: str, details: dict[str, Any]) -> None:
        if kind == "trial":
            told(details)
        elif kind == "failed":
            problems.append(f"{label}: {details['error']}")

    engine: Engine = Sequential() if n_workers == 1 else Processes(n_workers)
    jobs: dict[str, Job] = {f"worker {n}": functools.partial(_job, search, options) for n in range(n_workers)}
    engine.do(jobs, listen)
    return problems


def _job(search: Search, options: Options, listen: Listener, _do: Do) -> str:
    """A worker as a job of an engine."""

    def told(_number: int, kind: str, details: dict[str, Any]) -> None:
        if kind == "end":
            listen("", "trial", details)

    work(search, options, told)
    return "done"
