"""Ways to do many jobs: one after the other, in several processes, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from elliptica.lab.experiments.engines.interface import Engine as Engine
from elliptica.lab.experiments.engines.interface import EngineError as EngineError
from elliptica.lab.experiments.engines.interface import Job as Job
from elliptica.lab.experiments.engines.processes import Processes
from elliptica.lab.experiments.engines.sequential import Sequential
from elliptica.lab.experiments.engines.together import Team, Together
from elliptica.lab.experiments.engines.together import is_launched as is_launched
from elliptica.lab.experiments.engines.together import joined as joined
from elliptica.lab.experiments.run import Listener, Options, finish_run
from elliptica.lab.experiments.specification import Run


@contextlib.contextmanager
def open_engine(options: Options) -> Iterator[Engine]:
    """The engine that options ask for.

    Raises:
        EngineError: If it cannot be used; the message says what to do.
    """
    if isinstance(options.ranks, Team):
        yield Together(options.ranks)
        return
    if options.ray is None:
        yield Processes(options.jobs) if options.jobs and options.jobs > 1 else Sequential()
        return
    try:
        from elliptica.lab.experiments.engines.ray_cluster import open_cluster
    except ImportError as error:
        raise EngineError(f'Ray cannot be used ({error}): pip install "elliptica[scale]"') from error
    with open_cluster(options.ray, options.jobs) as cluster:
        yield cluster


def run_jobs(runs: list[Run], options: Options) -> dict[str, Job]:
    """Runs as jobs, by their labels."""
    return {run.label: functools.partial(finish_run, run, options) for run in runs}


def do_all(runs: list[Run], options: Options, listen: Listener) -> dict[str, str]:
    """Do runs with the engine that options ask for; returns what happened to each, by its label.

    A run that fails is reported and does not stop the others.
    """
    with open_engine(options) as engine:
        return engine.do(run_jobs(runs, options), listen)
