"""One job after the other, in this process."""

from __future__ import annotations

from elliptica.lab.experiments.engines.interface import Job, guarded
from elliptica.lab.experiments.preflight import check_before
from elliptica.lab.experiments.run import Listener, Options, do_here
from elliptica.lab.experiments.specification import Run


class Sequential:
    """The engine without workers."""

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`."""
        return check_before(runs, options)

    def do(self, jobs: dict[str, Job], listen: Listener) -> dict[str, str]:
        """See `Engine`."""
        return {label: guarded(label, job, listen, do_here) for label, job in jobs.items()}
