"""Doing a run: train, measure, record; what is recorded is never repeated."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elliptica._utils.random import stream
from elliptica.distributed.ranks import Ranks
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.methods import make_loss, prepare, rows_per_sample
from elliptica.lab.experiments.methods.context import Context
from elliptica.lab.experiments.metrics import (
    Noise,
    count_right,
    count_rows,
    gaussian_noise,
    group_shares,
    measure,
    score_of,
)
from elliptica.lab.experiments.plugins import Plugin, ensure_plugins, plugin_versions
from elliptica.lab.experiments.records import (
    checkpoint_file,
    claimed,
    is_recorded,
    model_file,
    record_file,
    versions,
    write_record,
)
from elliptica.lab.experiments.registry import label_noise, load_dataset, make_model
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.batch import Objective
from elliptica.lab.training.checkpoint import model_tensors, save_checkpoint
from elliptica.lab.training.loop import FitResult, fit
from elliptica.lab.training.progress import EpochEnd, Progress, TensorBoard
from elliptica.lab.training.rows import split_rows
from elliptica.lab.training.settings import TrainingSettings

#: Receives events: the label of a run, a kind ("start", "epoch", "again", "done", "skipped", "failed",
#: "lost"), and details.
Listener = Callable[[str, str, dict[str, Any]], object]


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """How runs are done on a Ray cluster."""

    #: Of the cluster; None is that of ``RAY_ADDRESS``, or a new cluster of this machine alone.
    address: str | None = None
    cpus_per_run: float = 1  # processors that a run reserves; torch gets as many threads
    gpus_per_run: float = 0  # GPUs that it reserves; a share such as 0.5 lets runs have one together
    retries: int = 3  # how often a run is tried again whose worker was lost


@dataclasses.dataclass(frozen=True)
class Options:
    """What does not change a result."""

    out: Path  # folder of the records
    data_dir: Path | None = None  # where data are; None searches the usual places
    device: str = "cpu"  # where to train
    #: Runs at once, in processes with one thread each if there are several; None is one, or as many as a
    #: cluster has room for.
    jobs: int | None = None
    tensorboard: Path | None = None  # folder for event files, one folder per run in it; None writes none
    keep_models: bool = False  # write the selected weights beside each new record
    #: Record the right answers on validation and test rows after every epoch; they decide nothing. Runs that
    #: were recorded without them are done anew.
    every_epoch: bool = False
    ranks: Ranks = dataclasses.field(default_factory=Ranks)  # processes that share the work of each run
    ray: RaySettings | None = None  # a cluster to do them on; None is this machine, without Ray
    plugins: tuple[Plugin, ...] = ()  # modules with methods, data and networks of the user's own


def do_run(
    run: Run,
    options: Options,
    progress: Progress = lambda *_: None,
    *,
    checkpoint: Path | None = None,
    with_test: bool = True,
) -> dict[str, Any]:
    """Train and measure one run, from its checkpoint if there is one; returns the record.

    A search has checkpoints of its own, and leaves the test part alone.
    """
    ensure_plugins(options.plugins)  # this may be another process than that of the command
    code = plugin_versions(run)
    data = load_dataset(run.load, run.seed, options.data_dir)
    settings = training_settings(run)
    budget = ordinary_evaluations(data.train.n_rows, settings) if run.match_evaluations else None
    name, device = f"{run.table}/{run.streams or run.dataset}", torch.device(options.device)
    model = make_model(run.model, data, name, run.seed)
    shares = group_shares(data.train)

    def measured(net: nn.Module, part: Split, **options: Any) -> dict[str, Any]:
        return measure(net, part, run.metric, device, shares, units=data.units, **options)

    context = _context(run, data, model, settings, name, device, options.ranks)
    method = prepare(run.method, run.settings, context)

    def test_noise() -> Noise | None:
        return gaussian_noise(run.load.get("test_noise", 0.0), stream(name, run.seed, "test noise"))

    def right_answers(net: nn.Module) -> dict[str, dict[str, int]]:
        return {
            "validation": count_right(net, data.validation, device),
            "test": count_right(net, data.test, device, test_noise()),
        }

    is_observed = options.every_epoch and with_test
    if is_observed and data.task != "classification":
        raise ValueError(f"{run.dataset} has no classes, so that no right answers can be recorded.")
    checkpoint = checkpoint or checkpoint_file(options.out, run)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    found = fit(
        model,
        method.objective,
        method.data or data,
        settings if run.select != "last" else dataclasses.replace(settings, select="last"),
        lambda net, part: score_of(measured(net, part, detailed=False), run.metric, run.select),
        name=f"{name}/{run.row}",
        seed=run.seed,
        rows=method.rows,
        relabel=label_noise(run.load),
        arrange=method.arrange,
        budget=None if budget is None else budget - method.evaluations,
        checkpoint=checkpoint,
        device=device,
        progress=progress,
        observe=right_answers if is_observed else None,
        ranks=options.ranks,
        code=code,
    )
    if options.keep_models and with_test and options.ranks.is_first:
        save_checkpoint(model_file(options.out, run), {"model": model_tensors(model)}, {"epoch": found.epoch})
    with split_rows(model, options.ranks):
        metrics = {
            **({"test": measured(model, data.test, noise=test_noise())} if with_test else {}),
            "validation": measured(model, data.validation),
        }
    return {
        "run": run.model_dump(mode="json"),
        "metrics": metrics,
        **({"rows": count_rows(data)} if with_test else {}),
        "method": method.details,
        "epoch": found.epoch,
        "curves": {"loss": _rounded(found.losses), "validation": _rounded(found.scores)},
        **({"right": _by_epoch(found.observed)} if is_observed else {}),
        "cost": {
            "evaluations": found.evaluations + method.evaluations,
            "rows_per_sample": rows_per_sample(run.method, run.settings),
            "epochs": found.epochs,
            "seconds": found.seconds + method.seconds,
            "first_stage": {"evaluations": method.evaluations, "seconds": method.seconds},
            "device": options.device,
            "threads": torch.get_num_threads(),
            "world_size": options.ranks.size,
        },
        "versions": {**versions(), **code},
    }


def _rounded(values: list[float]) -> list[float]:
    """Six digits, which is enough to look at."""
    return [float(f"{value:.6g}") for value in values]


def _by_epoch(observed: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, list[int]]]:
    """Right answers by part and class (or group), a number for each epoch."""
    return {
        part: {number: [each[part][number] for each in observed] for number in counts}
        for part, counts in observed[0].items()
    }


def _context(
    run: Run,
    data: Dataset,
    model: nn.Module,
    settings: TrainingSettings,
    name: str,
    device: torch.device,
    ranks: Ranks,
) -> Context:
    """What the method may look at; a first stage has streams of its own and is not checkpointed."""

    def first_stage(
        net: nn.Module, objective: Objective, first: TrainingSettings, progress: Progress
    ) -> FitResult:
        return fit(
            net,
            objective,
            data,
            first,
            lambda *_: 0.0,
            name=f"{name}/{run.row}/first stage",
            seed=run.seed,
            relabel=label_noise(run.load),
            device=device,
            progress=progress,
            ranks=ranks,
        )

    return Context(
        data,
        make_loss(data.task),
        model,
        settings,
        lambda: make_model(run.model, data, f"{name}/first stage", run.seed),
        first_stage,
        stream(f"{name}/{run.row}", run.seed, "preparation"),
        run.match_evaluations,
    )


def ordinary_evaluations(n_rows: int, settings: TrainingSettings) -> int:
    """Rows that ordinary training sends through its network."""
    left_out = n_rows % settings.batch_size if settings.drop_last and n_rows >= settings.batch_size else 0
    return settings.epochs * (n_rows - left_out)


def training_settings(run: Run) -> TrainingSettings:
    """How a run trains; TOML and JSON have lists in the place of tuples."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in run.training.items()
    }
    return TrainingSettings(**given)


class Report:
    """Pass the epochs of a run on to a listener and, if options ask for it, to TensorBoard.

    Args:
        run: What is run.
        options: Where.
        listen: Receives every epoch.
    """

    def __init__(self, run: Run, options: Options, listen: Listener) -> None:
        self.run, self.listen, self.last = run, listen, 0
        self.board = None
        if options.tensorboard is not None and options.ranks.is_first:
            name = record_file(options.out, run).relative_to(options.out).with_suffix("")
            self.board = TensorBoard(options.tensorboard / name, settings=_all_settings(run))

    def __call__(self, end: EpochEnd) -> None:
        """Take the end of an epoch; TensorBoard skips one that is repeated."""
        if end.epoch > self.last and self.board is not None:
            self.board(end)
        self.last = max(self.last, end.epoch)
        details = {"epoch": end.epoch, "epochs": end.epochs, "loss": end.loss, "score": end.score}
        self.listen(self.run.label, "epoch", details)

    def finish(self, record: dict[str, Any]) -> dict[str, Any]:
        """Take the record, and give it back."""
        if self.board is not None:
            self.board.finish(_single_numbers(record))
        return record

    def close(self) -> None:
        """Close the files of TensorBoard."""
        if self.board is not None:
            self.board.close()


def _all_settings(run: Run) -> dict[str, Any]:
    """Name each setting of a run once."""
    names = {name: getattr(run, name) for name in ("table", "dataset", "row", "method", "seed", "select")}
    groups = {"training": run.training, "method": run.settings, "model": run.model}
    return names | {
        f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()
    }


def _single_numbers(record: dict[str, Any]) -> dict[str, float]:
    """Pick the metrics of a record that are one number."""
    return {
        f"{part}_{name}": value
        for part, metrics in record["metrics"].items()
        for name, value in metrics.items()
        if isinstance(value, float)
    }


@contextlib.contextmanager
def claim(run: Run, options: Options) -> Iterator[bool]:
    """Claim a run; False if it is recorded or another process has it. The first rank answers for all."""
    file = record_file(options.out, run)

    def is_left() -> bool:
        return not is_recorded(options.out, run, with_epochs=options.every_epoch)

    if not options.ranks.is_first or not is_left():
        yield False
        return
    with claimed(options.out, file) as mine:
        yield mine and is_left()


def record_run(run: Run, options: Options, record: dict[str, Any], listen: Listener) -> str:
    """Write the record of a run in place of its checkpoint; returns "done"."""
    if options.ranks.is_first:
        write_record(record_file(options.out, run), record)
        checkpoint_file(options.out, run).unlink(missing_ok=True)
    listen(run.label, "done", record["metrics"]["test"])
    return "done"


def finish_run(run: Run, options: Options, listen: Listener) -> str:
    """Do a run in this process unless it is recorded or another process has it; returns what happened."""
    with claim(run, options) as mine:
        if not options.ranks.from_first(mine):
            listen(run.label, "skipped", {})
            return "skipped"
        listen(run.label, "start", {"epochs": run.training.get("epochs")})
        with contextlib.closing(Report(run, options, listen)) as report:
            record = report.finish(do_run(run, options, report))
        return record_run(run, options, record, listen)
