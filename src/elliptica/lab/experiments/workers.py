"""Do many runs: in this process, in several of this machine (joblib), or as tasks on a Ray cluster.

Workers return records and this process writes them, so a command that was killed is simply started again.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from joblib import Parallel, delayed

from elliptica._utils.extras import import_extra
from elliptica.lab.experiments.records import Record, is_recorded, records_of, run_hash
from elliptica.lab.experiments.run import Options, checkpoint_of, do_run
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.loop import EpochEnd

#: Called with a run and what happened to it: an epoch (only with one worker), its record, why it failed, or
#: None for one that is recorded already.
Listener = Callable[[Run, EpochEnd | Record | str | None], object]
#: Number of a run, with its record or why it failed.
Result = tuple[int, Record | str]


def do_runs(runs: Sequence[Run], options: Options, listen: Listener = lambda *_: None) -> dict[str, str]:
    """Do the runs that are not recorded yet; return why some failed, by `run_hash`. The others go on."""
    left = []
    for run in runs:
        if is_recorded(options.out, run, with_epochs=options.every_epoch):
            listen(run, None)
        else:
            left.append(run)
    results = _on_ray if options.ray else _in_processes if options.jobs > 1 else _here
    failures = {}
    for number, result in results(left, options, listen):
        run = left[number]
        if isinstance(result, str):
            failures[run_hash(run)] = result
        else:
            records_of(options.out, run.table).append(result)
            checkpoint_of(run, options).unlink(missing_ok=True)
        listen(run, result)
    return failures


def _attempt(number: int, run: Run, options: Options, listen: Listener = lambda *_: None) -> Result:
    try:
        return number, do_run(run, options, lambda end: listen(run, end))
    except Exception as error:
        return number, f"{type(error).__name__}: {error}"


def _here(runs: Sequence[Run], options: Options, listen: Listener) -> Iterator[Result]:
    return (_attempt(number, run, options, listen) for number, run in enumerate(runs))


def _in_processes(runs: Sequence[Run], options: Options, _: Listener) -> Iterator[Result]:
    calls = [delayed(_in_process)(os.getpid(), number, run, options) for number, run in enumerate(runs)]
    yield from Parallel(options.jobs, return_as="generator_unordered")(calls)


def _in_process(parent: int, number: int, run: Run, options: Options) -> Result:
    """Do a run with one thread, in a process that ends with its parent."""
    torch.set_num_threads(1)
    if "end with parent" not in {thread.name for thread in threading.enumerate()}:
        threading.Thread(target=_end_with, args=(parent,), name="end with parent", daemon=True).start()
    return _attempt(number, run, options)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, however it ended; joblib's workers would train on."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _on_ray(runs: Sequence[Run], options: Options, _: Listener) -> Iterator[Result]:
    """Give each run to Ray as a task with one processor (and a GPU with ``device="cuda"``).

    Ray repeats a task whose worker or node is lost. Every node needs the code, the plugins and the data.
    """
    ray = import_extra("--ray", "scale", "ray")
    if not ray.is_initialized():
        ray.init(address=options.ray, log_to_driver=False)
    gpus = 1 if torch.device(options.device).type == "cuda" else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=3)(_attempt)
    waiting = {task.remote(n, run, dataclasses.replace(options, ray=None)): n for n, run in enumerate(runs)}
    try:
        while waiting:
            (done,), _rest = ray.wait(list(waiting))
            number = waiting.pop(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:  # its workers were lost too often
                yield number, f"{type(error).__name__}: {error}"
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
