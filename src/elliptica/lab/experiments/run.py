"""One run, one record: check it, train, measure; and many runs, here, in processes or on a Ray cluster.

Workers return records and this process writes them, so a command that was killed is simply started again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import nn

from elliptica._utils.extras import import_extra
from elliptica._utils.random import stream
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import metrics
from elliptica.lab.experiments.methods import METHODS, Context, make_loss, prepare
from elliptica.lab.experiments.records import (
    DRAWS,
    Record,
    is_recorded,
    records_of,
    run_hash,
    versions,
)
from elliptica.lab.experiments.registry import (
    DATASETS,
    MODELS,
    label_noise,
    load_dataset,
    load_plugins,
    make_model,
)
from elliptica.lab.experiments.specification import Run, SpecificationError
from elliptica.lab.training.batch import Objective, TrainingSettings
from elliptica.lab.training.loop import EpochEnd, FitResult, Progress, fit


@dataclasses.dataclass(frozen=True)
class Options:
    """What does not change a result."""

    out: Path  # folder of the records
    data_dir: Path | None = None  # where data are; None searches the usual places
    device: str = "cpu"  # where to train
    jobs: int = 1  # runs at once, in processes with one thread each if there are several
    ray: str | None = None  # address of a Ray cluster to do them on; None is this machine
    #: Record the right answers on validation and test rows after every epoch; they decide nothing. Runs that
    #: were recorded without them are done anew.
    every_epoch: bool = False
    plugins: tuple[str, ...] = ()  # files with methods, data and networks of the user's own


def do_run(run: Run, options: Options, progress: Progress = lambda *_: None) -> Record:
    """Train and measure one run, from its checkpoint if there is one."""
    load_plugins(options.plugins)  # this may be another process than that of the command
    data = load_dataset(run.load, run.seed, options.data_dir)
    settings, device = TrainingSettings(**run.training), torch.device(options.device)
    model = make_model(run.model, data, run.load["name"], run.seed)
    method = prepare(run.method, run.settings, _context(run, data, model, settings, device))
    shares = metrics.group_shares(data.train)
    budget = ordinary_evaluations(data.train.n_rows, settings) if run.match_evaluations else None
    data = method.data or data  # some methods train on other rows

    def test_noise() -> metrics.Noise | None:
        noise = run.load.get("test_noise", 0.0)
        return metrics.gaussian_noise(noise, stream(run.load["name"], run.seed, "test noise"))

    def measured(net: nn.Module, part: Split, **more: Any) -> dict[str, Any]:
        return metrics.measure(net, part, run.metric, device, shares, units=data.units, **more)

    def right_answers(net: nn.Module) -> dict[str, dict[str, int]]:
        test = metrics.count_right(net, data.test, device, test_noise())
        return {"validation": metrics.count_right(net, data.validation, device), "test": test}

    result = fit(
        model,
        method.objective,
        data,
        settings if run.select != "last" else dataclasses.replace(settings, select="last"),
        lambda net, part: metrics.score_of(measured(net, part, detailed=False), run.metric, run.select),
        name=run.streams,
        seed=run.seed,
        rows=method.rows,
        relabel=label_noise(run.load),
        arrange=method.arrange,
        budget=None if budget is None else budget - method.evaluations,
        checkpoint=checkpoint_of(run, options),
        device=device,
        progress=progress,
        observe=right_answers if options.every_epoch else None,
    )
    return Record.model_validate(
        {
            "run": run,
            "draws": DRAWS,
            "metrics": {
                "test": measured(model, data.test, noise=test_noise()),
                "validation": measured(model, data.validation),
            },
            "rows": metrics.count_rows(data),
            "method": method.details,
            "epoch": result.epoch,
            "curves": {"validation": [float(f"{score:.6g}") for score in result.scores]},
            "right": _by_epoch(result.observed) if options.every_epoch else {},
            "cost": {
                "evaluations": result.evaluations + method.evaluations,
                "epochs": result.epochs,
                "seconds": result.seconds + method.seconds,
                "first_stage": {"evaluations": method.evaluations, "seconds": method.seconds},
                "device": options.device,
                "threads": torch.get_num_threads(),
            },
            "versions": versions(),
        }
    )


def checkpoint_of(run: Run, options: Options) -> Path:
    """Return where a run keeps its checkpoint; other plugins, or answers of every epoch, have another."""
    kind = "-epochs" if options.every_epoch else ""
    if options.plugins:  # code that was changed must not go on from what it did before
        code = b"".join(Path(plugin).read_bytes() for plugin in options.plugins)
        kind += "-" + hashlib.blake2b(code, digest_size=4).hexdigest()
    return options.out / "checkpoints" / f"{run_hash(run)}{kind}.safetensors"


def _by_epoch(observed: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, list[int]]]:
    """Right answers by part and class (or group), a number for each epoch."""
    return {
        part: {number: [epoch[part][number] for epoch in observed] for number in counts}
        for part, counts in observed[0].items()
    }


def _context(
    run: Run, data: Dataset, model: nn.Module, settings: TrainingSettings, device: torch.device
) -> Context:
    """What the method may look at; a first stage has streams of its own and is not checkpointed."""
    first = f"{run.streams}/first stage"

    def first_stage(
        net: nn.Module, objective: Objective, settings: TrainingSettings, progress: Progress
    ) -> FitResult:
        options: dict[str, Any] = {"relabel": label_noise(run.load), "device": device, "progress": progress}
        return fit(net, objective, data, settings, lambda *_: 0.0, name=first, seed=run.seed, **options)

    return Context(
        data,
        make_loss(data.task),
        model,
        settings,
        lambda: make_model(run.model, data, first, run.seed),
        first_stage,
        stream(run.streams, run.seed, "preparation"),
        run.match_evaluations,
    )


def ordinary_evaluations(n_rows: int, settings: TrainingSettings) -> int:
    """Rows that ordinary training sends through its network."""
    left_out = n_rows % settings.batch_size if settings.drop_last and n_rows >= settings.batch_size else 0
    return settings.epochs * (n_rows - left_out)


def check_runs(runs: Sequence[Run], options: Options) -> dict[str, str]:
    """Build everything that runs need, once and on a few rows; return why data sets cannot be loaded.

    Raises:
        SpecificationError: If a name or a setting is wrong; the message names table, data set and row.
    """
    problems: dict[str, str] = {}
    loaded: dict[str, Dataset] = {}
    for run in {(run.table, run.dataset, run.row): run for run in runs}.values():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _check(run, options, loaded)
        except (OSError, ImportError) as error:
            problems[run.dataset] = f"{run.dataset}: {error}"
        except Exception as error:
            where = f"{run.table}, {run.dataset}, {run.row}"
            raise SpecificationError(f"{where}: {type(error).__name__}: {error}") from error
    return problems


def _check(run: Run, options: Options, loaded: dict[str, Dataset]) -> None:
    names = (run.method, METHODS), (run.load["name"], DATASETS), (run.model.get("name"), MODELS)
    for name, known in names:
        if name not in known:
            raise ValueError(f"{name} is not among {', '.join(known)}, or in a file of --plugin.")
    training = dataclasses.replace(TrainingSettings(**run.training), epochs=1)
    key = json.dumps(run.load, sort_keys=True)
    if key not in loaded:
        loaded[key] = _few_rows(load_dataset(run.load, run.seed, options.data_dir))
    data = loaded[key]
    if (run.metric == "rmse") != (data.task == "regression"):
        raise ValueError(f"metric {run.metric} does not suit {data.task}.")
    if options.every_epoch and data.task != "classification":
        raise ValueError("--every-epoch counts right answers of classes.")
    model = make_model(run.model, data, "check", 0)
    prepare(run.method, run.settings, _context(run, data, model, training, torch.device("cpu")))


def _few_rows(data: Dataset) -> Dataset:
    """Return some rows of each class and group."""

    def few(split: Split, n: int = 8 if data.task == "classification" else 64) -> Split:
        labels = torch.zeros(split.n_rows, dtype=torch.long) if split.group is None else split.group
        if data.task == "classification":
            labels = labels * (int(split.y.max()) + 1) + split.y
        rows = torch.cat([(labels == label).nonzero()[:n, 0] for label in labels.unique()])
        return Split(split.x[rows], split.y[rows], None if split.group is None else split.group[rows])

    return dataclasses.replace(
        data, train=few(data.train), validation=few(data.validation), test=few(data.test)
    )


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
    """Do runs in joblib's workers; those under way when a worker died are repeated, each by itself."""
    queues, jobs = [list(range(len(runs)))], options.jobs
    for numbers in queues:  # which grows
        begun, ended = set[int](), set[int]()
        pool = Parallel(jobs, batch_size=1, pre_dispatch=jobs, return_as="generator_unordered")
        try:
            for result in pool(_calls(numbers, begun, runs, options)):
                ended.add(result[0])
                yield result
        except BrokenProcessPool as error:
            if len(numbers) == 1:
                yield numbers[0], f"{type(error).__name__}: {error}".splitlines()[0]
            else:
                queues += [[number] for number in sorted(begun - ended)]
                queues.append([number for number in numbers if number not in begun])


def _calls(
    numbers: Sequence[int], begun: set[int], runs: Sequence[Run], options: Options
) -> Iterator[tuple[Any, ...]]:
    for number in numbers:
        begun.add(number)
        yield delayed(_in_process)(os.getpid(), number, runs[number], options)


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
    paths = {name: getattr(options, name) for name in ("out", "data_dir")}
    paths = {name: path.absolute() for name, path in paths.items() if path}  # workers have other folders
    given = dataclasses.replace(options, ray=None, **paths)
    waiting = {task.remote(number, run, given): number for number, run in enumerate(runs)}
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
