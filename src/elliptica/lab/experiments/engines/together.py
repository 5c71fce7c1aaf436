"""Jobs in processes that ``torchrun`` started, which share the work of each."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elliptica.distributed.ranks import Ranks
from elliptica.lab.experiments.engines.interface import EngineError, Job
from elliptica.lab.experiments.preflight import check_before
from elliptica.lab.experiments.run import Listener, Options, do_here
from elliptica.lab.experiments.specification import Run

#: How long a process that failed waits for the others to say so, too.
PATIENCE = timedelta(seconds=30)


@dataclass(frozen=True)
class Team(Ranks):
    """Processes with a second connection, which still works when a process fails within a collective.

    Attributes:
        control: Process group of that connection.
    """

    control: Any = None

    def has_failed_together(self) -> bool:
        """Whether all processes failed in the same way, so that all can go on with the next run.

        A loss that diverges does so everywhere. If it was this process alone, the others wait for it in a
        collective and can only be ended.
        """
        try:
            dist.monitored_barrier(self.control, timeout=PATIENCE)
        except RuntimeError:
            return False
        return True


def is_launched() -> bool:
    """Whether ``torchrun`` started several processes like this one."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


@contextlib.contextmanager
def joined(options: Options) -> Iterator[Options]:
    """Options with the processes that ``torchrun`` started, connected; each has a GPU of its own, if any.

    Raises:
        EngineError: If the options ask for processes of their own.
    """
    if not is_launched():
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
    team = Team(dist.get_rank(), dist.get_world_size(), None, control)
    with warnings.catch_warnings():
        if not team.is_first:
            warnings.simplefilter("ignore")  # the first one says the same
        yield dataclasses.replace(options, device=device, ranks=team)
    dist.destroy_process_group()  # not after an error: the others may not be there any more


class Together:
    """The engine of processes that share the work of each job, one job after the other.

    Args:
        team: The processes.
    """

    def __init__(self, team: Team) -> None:
        self.team = team

    def check(self, runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
        """See `Engine`; a problem in any process is one. The first looks first: it may set files aside."""
        if not self.team.is_first:
            self.team.wait()
        left, problems = check_before(runs, options)
        if self.team.is_first:
            self.team.wait()
        found = self.team.all(({run.label for run in left}, problems))
        labels = set.intersection(*(each for each, _ in found))
        told = dict.fromkeys(problem for _, each in found for problem in each)
        return [run for run in runs if run.label in labels], list(told)

    def do(self, jobs: dict[str, Job], listen: Listener) -> dict[str, str]:
        """See `Engine`; a job that fails in one process alone ends all."""
        return {label: self._do(label, job, listen) for label, job in jobs.items()}

    def _do(self, label: str, job: Job, listen: Listener) -> str:
        try:
            return job(listen, do_here)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            if not self.team.has_failed_together():
                raise SystemExit(
                    f"error: {label} failed in process {self.team.rank} of {self.team.size}, which ends all "
                    f"of them: {what}"
                ) from error
            listen(label, "failed", {"error": what})
            return "failed"
