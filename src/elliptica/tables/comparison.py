"""Run a comparison on a table: `compare`, its options, its result and the folder of finished folds."""

from __future__ import annotations

import json
import tempfile
import threading
import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
from filelock import FileLock, Timeout
from joblib import cpu_count
from threadpoolctl import threadpool_limits

from elliptica._utils import checks
from elliptica._utils.extras import count
from elliptica._utils.files import read_arrays, replacing, write_atomically
from elliptica.core.chord import ChordRatio, chord_ratio
from elliptica.report.judge import Verdict as Verdict
from elliptica.report.judge import join
from elliptica.report.page import present_versions
from elliptica.tables.methods import (
    CONSTANT,
    METHODS,
    NAMES,
    REFERENCE,
    SEVERAL,
    Plan,
    Select,
    choose_methods,
    name_of,
    sizes,
)
from elliptica.tables.metrics import Metric, Predictions, fifths, metrics_of, score
from elliptica.tables.problem import TableProblem, Task, make_problem
from elliptica.tables.several import with_several
from elliptica.tables.shift import RANDOM, Fold, ShiftPlan, make_preprocessor, make_shift
from elliptica.tables.table import BUILT_IN, MAX_ROWS, TableError, read_table
from elliptica.tables.training import Record, Report, prepare, run_methods
from elliptica.tables.verdict import judge

RESULTS, PREDICTIONS, MODEL, CARD = "results.json", "predictions.npz", "model.elliptica", "model.md"
#: Lock file of the process that works in the folder.
LOCK = ".lock"
#: Other files that a comparison writes.
WRITTEN = ("report.md", "report.html", MODEL, CARD, PREDICTIONS)
#: Version of the records: of rows, draws and training. Others cannot be mixed with these.
FORMAT = 8


class Store:
    """The finished pieces of a comparison, in memory and (with a folder) on disk.

    A folder belongs to one store at a time, until `close`; the system releases its lock when the process
    ends. ``about`` must match for stored folds to be reused, but methods and repeats may be added; ``head``
    is other content of the file.
    """

    def __init__(
        self, folder: Path | None, about: Mapping[str, Any], plan: Plan, head: Mapping[str, Any]
    ) -> None:
        self.folder, self.plan = folder, plan
        self._about, self._head = json.loads(json.dumps({"format": FORMAT, **about})), dict(head)
        self._records: dict[tuple[int, int, str], Record] = {}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # fails now rather than after the first training
            pass
        self._lock = FileLock(folder / LOCK, timeout=0)
        try:
            self._lock.acquire()
            self._read(folder)
        except Timeout as error:
            raise TableError(
                f"Another comparison is writing to {folder}. Wait until it ends, or choose another --out."
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder to other processes; do not write afterwards."""
        if self.folder is not None:
            self._lock.release()

    def add(self, records: Iterable[Record]) -> None:
        """Store finished pieces; what is stored already stays."""
        self._records = {record.key: record for record in records} | self._records
        if self.folder is None:
            return
        # predictions are written first: records without them are redone, the reverse is harmless
        arrays: dict[str, Any] = {"/".join(map(str, k)): r.predicted for k, r in self._records.items()}
        arrays |= {"/".join(map(str, (*k, "held"))): r.held for k, r in self._records.items()}
        with replacing(self.folder / PREDICTIONS, durable=True) as part, part.open("wb") as handle:
            np.savez(handle, **dict(sorted(arrays.items())))
        self.write()

    def __contains__(self, key: tuple[int, int, str]) -> bool:
        return key in self._records

    def records(self) -> tuple[Record, ...]:
        """Return the finished pieces of the plan's methods, fold by fold."""
        order = {method: number for number, method in enumerate(self.plan.methods)}
        records = [record for record in self._records.values() if record.method in order]
        return tuple(sorted(records, key=lambda r: (r.repeat, r.fold, order[r.method])))

    def write(self, extra: Mapping[str, Any] | None = None) -> None:
        """Write the file atomically."""
        if self.folder is None:
            return
        content = {
            "about": self._about,
            **self._head,
            "plan": asdict(self.plan),
            **(extra or {}),
            "records": [self._records[key].to_json() for key in sorted(self._records)],
        }
        write_atomically(self.folder / RESULTS, json.dumps(content, indent=1), durable=True)

    def _read(self, folder: Path) -> None:
        """Read the records of the same comparison; other files are not overwritten."""
        if not (folder / RESULTS).exists():
            if foreign := [name for name in WRITTEN if (folder / name).exists()]:
                raise TableError(f"{folder} holds {foreign[0]} of something else. Choose another --out.")
            return
        file = folder / PREDICTIONS
        try:
            arrays = read_arrays(file) if file.exists() else {}
            file = folder / RESULTS
            content = json.loads(file.read_text(encoding="utf-8"))
            about = content["about"]
            for values in content["records"]:
                name = f"{values['repeat']}/{values['fold']}/{values['method']}"
                if name in arrays:  # records without predictions are redone
                    record = Record.from_json(values, arrays[name], arrays[f"{name}/held"])
                    self._records[record.key] = record
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise TableError(f"{file} cannot be read: {error!r}. Move it away.") from error
        changed = [key for key in self._about if self._about[key] != about.get(key)]
        if changed:
            was, now = about.get(changed[0]), self._about[changed[0]]
            raise TableError(
                f"{folder} holds another comparison: {changed[0]} was {was!r} and is now {now!r}. Choose "
                "another --out, or delete the folder."
            )


#: Called with the finished share of the whole and a message.
Listener = Callable[[float, str], None]
#: Share of a time limit that is for folds; the rest is for the last fit and the page.
FOLD_SHARE = 0.8
#: Folds of small tables are trained together, up to this many rows: faster, but an interruption loses more.
_STACK_ROWS = 4_000
#: Stacks of networks even in a small table, to keep two cores busy.
_LEAST_STACKS = 2
_MOST_WORKERS = 8


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: records, scores and the verdict."""

    problem: TableProblem  # the table as a learning problem, with notices about it
    shift: ShiftPlan  # which rows are trained on and tested
    plan: Plan  # methods and sizes
    records: tuple[Record, ...] = field(repr=False)  # one per finished fold and method
    name: str = "frame"  # name of the table
    minutes: float | None = None  # time limit
    refit_all: bool = False  # whether the saved model is also trained on the rows of a test file
    random: Comparison | None = None  # the same methods on random rows, beside another shift

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics that methods are judged by; the first two decide."""
        return metrics_of(self.problem.task, self.problem.groups is not None)

    @property
    def complete(self) -> bool:
        """Whether all folds are finished."""
        return not self.missing and (self.random is None or self.random.complete)

    @cached_property
    def missing(self) -> dict[str, int]:
        """Number of folds that are not finished, by method."""
        n = {m: len(self.shift.folds) - sum(r.method == m for r in self.records) for m in self.plan.methods}
        return {method: number for method, number in n.items() if number}

    @property
    def stopped(self) -> str:
        """Say what the time limit cut; empty if nothing."""
        if self.complete or self.minutes is None:
            return ""
        cut = []
        for part in (self, self.random) if self.random else (self,):
            rows = " of random rows" * (part is not self)
            for n in sorted({*part.missing.values()}):
                names = [name_of(m) for m in part.missing if part.missing[m] == n]
                who = "all methods" if len(names) == len(part.plan.methods) else join(names)
                cut.append(f"{n} of {count(len(part.shift.folds), 'fold')}{rows} ({who})")
        limit = f"The limit of {self.minutes:g} minutes cut {', '.join(cut)}."
        return f"{limit} Rerun the same command to resume."

    @cached_property
    def failed(self) -> dict[str, str]:
        """Methods that failed in a fold, with the reason; they are not compared."""
        return {record.method: record.error for record in self.records if record.error}

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that are compared."""
        return tuple(method for method in self.plan.methods if method not in self.failed)

    @cached_property
    def finished(self) -> list[tuple[int, int]]:
        """Folds that all methods have finished, as (repeat, fold); only these are compared."""
        if REFERENCE in self.failed:
            return []
        folds, done = [(f.repeat, f.number) for f in self.shift.folds], {r.key for r in self.records}
        return [key for key in folds if done.issuperset((*key, method) for method in self.methods)]

    def of(self, method: str) -> list[Record]:
        """Return the records of a method in the folds that are compared."""
        return [r for r in self.records if r.method == method and r.key[:2] in self.finished]

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions for the test rows, made the way saved models make them.

        They cover all methods and `CONSTANT`, which predicts the mean or the class frequencies of the
        training rows. Predicted numbers are bounded. Probabilities are calibrated with a temperature fitted
        on the validation rows. Repeats without a finished fold are skipped.
        """
        problem, n = self.problem, len(self.problem.target)
        folds = {(fold.repeat, fold.number): fold for fold in self.shift.folds}
        values = {m: [r.final() for r in self.of(m)] for m in self.methods}
        values[CONSTANT] = [_constant(problem, folds[key]) for key in self.finished]
        repeats = sorted({repeat for repeat, _ in self.finished})
        fold_of = np.full((len(repeats), n), -1)
        n_classes = [len(problem.classes)] if problem.classes else []
        merged = {method: np.full((len(repeats), n, *n_classes), np.nan) for method in values}
        for place, (repeat, number) in enumerate(self.finished):
            where = repeats.index(repeat), folds[repeat, number].test
            fold_of[where] = number
            for method, parts in values.items():
                merged[method][where] = parts[place]
        tested = problem.target[(fold_of >= 0).any(0)]
        return Predictions(
            problem.task,
            problem.classes,
            problem.target,
            problem.judged,
            self.shift.clusters,
            fold_of,
            fifths(tested) if problem.task == "regression" else np.empty(0),
            merged,
            ordered=self.shift.ordered,
        )

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Score of every method in every column; empty until a fold is finished."""
        return score(self.predictions) if self.finished else {}

    @cached_property
    def verdict(self) -> Verdict:
        """The answer of the comparison, see `judge`."""
        if not self.finished:
            text = "No verdict: no fold is finished yet. Rerun the same command to resume."
            if self.stopped:
                text = f"No verdict. {self.stopped}"
            if REFERENCE in self.failed:
                text = f"No verdict: ordinary training failed. {self.failed[REFERENCE]}"
            return Verdict(text, best=None)
        other = self.random.best if self.random and self.random.complete else None
        words = {"place": self.shift.place, "target": self.problem.target_name}
        at_random = other if other in self.methods else None
        limits: dict[str, Any] = {
            "select": self.plan.select,
            "at_random": at_random,
            "asked": self.plan.asked,
        }
        return judge(self.predictions, **limits, **words)

    @cached_property
    def chord(self) -> ChordRatio | None:
        """How wrong targets between rows of the table are; None for classes, or with few distinct rows."""
        rows = self.problem.own_rows
        if self.problem.task == "classification":
            return None
        inputs, target = self.problem.features[rows], self.problem.target[rows]
        with suppress(ValueError):
            return chord_ratio(make_preprocessor(self.problem).fit_transform(inputs, target), target)
        return None

    @property
    def best(self) -> str:
        """Name of the method to use."""
        return self.verdict.best or REFERENCE

    def table(self) -> pl.DataFrame:
        """Return the scores as a frame: one row per method, the constant prediction last."""
        rows = [
            {
                "method": method,
                "name": NAMES[method],
                **self.scores[method],
                "seconds": sum((r.seconds for r in self.of(method)), 0.0) if method != CONSTANT else 0.0,
            }
            for method in ((*self.methods, CONSTANT) if self.scores else ())
        ]
        return pl.DataFrame(rows, infer_schema_length=None)


def _constant(problem: TableProblem, fold: Fold) -> np.ndarray:
    """Predict the mean or the class frequencies of the training rows for every test row."""
    known = problem.target[fold.train]
    if problem.task == "regression":
        return np.full(len(fold.test), known.mean())
    return np.tile([np.mean(known == label) for label in problem.classes], (len(fold.test), 1))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of a comparison, explained at `compare`."""

    group: str | None = None
    task: Task = "auto"
    split_by: str | None = None
    time: str | None = None
    test: Any = None
    extrapolate: str | bool = False
    as_: Mapping[str, str] = field(default_factory=dict)
    methods: Sequence[str] | None = None
    folds: int = 5
    repeats: int | None = None
    trials: int | None = None
    epochs: int | None = None
    networks: int | None = None
    select: Select = "average"
    bounded: bool = True
    quick: bool = False
    minutes: float | None = None
    hidden: int | tuple[int, ...] | None = None
    seed: int = 0
    max_rows: int = MAX_ROWS
    jobs: int | None = None
    random: bool = True
    refit_all: bool = False

    def __post_init__(self) -> None:
        """Raise for values that would be misread, before anything is trained."""
        counts = {"folds": 2, "seed": 0} | dict.fromkeys(("repeats", "trials", "epochs", "networks"), 1)
        for name, least in (counts | {"jobs": 1, "max_rows": 1}).items():
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), least)
        for units in np.ravel(() if self.hidden is None else self.hidden):
            checks.count("hidden", units)
        for name in ("bounded", "quick", "random", "refit_all"):
            checks.choice(name, getattr(self, name), (True, False))
        checks.choice("task", self.task, get_args(Task))
        checks.choice("select", self.select, get_args(Select))
        checks.nonnegative("minutes", self.minutes or 0)
        if self.refit_all and self.test is None:
            raise TableError("refit_all adds the rows of a test file to the saved model. Pass --test FILE.")

    def plan(self, problem: TableProblem, shift: ShiftPlan) -> Plan:
        """Make the plan; sizes that are not given follow from the table."""
        methods = choose_methods(problem.task, self.methods, problem.groups is not None)
        usual = sizes(max(len(fold.train) for fold in shift.folds), quick=self.quick)
        given = {name: getattr(self, name) for name in ("trials", "epochs", "networks")}
        given["hidden"] = None if self.hidden is None else tuple(np.ravel(self.hidden).tolist())
        plan = Plan(
            methods,
            **usual | {name: value for name, value in given.items() if value is not None},
            asked=() if all(":" in name for name in self.methods or ()) else tuple(self.methods or ()),
            select=self.select,
            bounded=self.bounded,
            # the rows of a test file included
            log_target=problem.log_target_candidate and bool((problem.target > 0).all()),
            seed=self.seed,
        )
        if plan.trials < 3 or plan.epochs <= 2 * plan.first_epochs:  # dropping trials early saves nothing
            plan = replace(plan, first_epochs=0)
        return plan


@dataclass
class Session:
    """A comparison in progress; `compare` opens one and runs it to the end."""

    problem: TableProblem
    shift: ShiftPlan
    plan: Plan
    store: Store
    name: str  # name of the table
    options: Options

    @classmethod
    def open(
        cls,
        source: Any,
        target: str | None,
        options: Options | None = None,
        *,
        out: str | Path | None = None,
        command: str = "",
    ) -> Session:
        """Read the table and the folds that are already finished; arguments as in `compare`."""
        options = options or Options()
        limits: dict[str, Any] = {"max_rows": options.max_rows, "seed": options.seed}
        table = read_table(source, **limits)
        target = target or BUILT_IN.get(table.name)
        if target is None:
            columns = ", ".join(table.frame.columns[:20])
            raise TableError(f"No target was given. Name the column to predict: {columns}.")
        test = None if options.test is None else read_table(options.test, **limits)
        roles = ("task", "group", "split_by", "time", "as_")
        given: dict[str, Any] = {name: getattr(options, name) for name in roles}
        problem = make_problem(table, target, test=test, **given)
        divide = ("folds", "repeats", "extrapolate", "seed", "random")
        shift = make_shift(problem, **{name: getattr(options, name) for name in divide})
        plan = options.plan(problem, shift)
        same = ("group", "time", "split_by", "extrapolate", "folds", "trials", "epochs", "networks")
        about = {
            "table": table.name,
            "target": target,
            "task": problem.task,
            "shift": shift.shift,
            **{
                name: getattr(options, name)
                for name in (*same, "select", "bounded", "quick", "hidden", "seed")
            },
            "rows": len(problem.target),
            "inputs": problem.features.columns,
            "contents": problem.digest(),
        }
        head = {
            "command": command,
            "shift": shift.words,
            "notices": list(problem.notices),
            "columns": [asdict(column) for column in problem.columns],
            "versions": present_versions("polars", "scikit-learn"),
        }
        store = Store(None if out is None else Path(out), about, plan, head)
        return cls(problem, shift, plan, store, table.name, options)

    def run(self, listen: Listener | None = None) -> None:
        """Run the folds that are not finished, until the time limit; report progress to ``listen``."""
        minutes = self.options.minutes
        tasks, workers = self._tasks(), self.options.jobs or min(_MOST_WORKERS, cpu_count())
        deadline = None if minutes is None else clock.monotonic() + 60 * minutes * FOLD_SHARE
        progress = _Progress(listen, deadline, tasks)
        with threadpool_limits(1), ThreadPoolExecutor(workers) as pool:
            waiting = {pool.submit(self._run_task, task, progress) for task in tasks}
            try:
                for future in as_completed(tuple(waiting)):
                    waiting.remove(future)
                    self.store.add(future.result())
            except _Stopped:  # finished folds are the answer
                pass
            finally:  # no thread may outlive the program: it could be inside torch
                progress.stop.set()
                pool.shutdown(cancel_futures=True)
            done = [f for f in waiting if not f.cancelled() and f.exception() is None]
            self.store.add(record for future in done for record in future.result())

    def _tasks(self) -> list[_Task]:
        """List the work that is left, fold by fold, so that an interruption leaves whole folds.

        Folds are stacked alike whatever is left and however many workers there are: networks that are trained
        in other company are rounded otherwise.
        """
        tasks, trained = list[_Task](), [m for m in self.plan.methods if m != SEVERAL]
        for stack in [s for plan in (self.shift, self.shift.random) if plan for s in _stacks(plan.folds)]:
            left = [(f, m) for f in stack for m in trained if (f.repeat, f.number, m) not in self.store]
            networks = {method for _, method in left if METHODS[method].make is None}
            if networks:
                tasks.append(_Task(stack, tuple(m for m in trained if m in networks)))
            tasks += [_Task((fold,), (method,)) for fold, method in left if method not in networks]
        return tasks

    def _run_task(self, task: _Task, progress: _Progress) -> list[Record]:
        """Run a task in a thread."""
        report = progress.of(task)
        report(0.0, "preprocessing")
        threadpool_limits(1, user_api="openmp")  # affects only this thread; the caller limits the others
        rows = [prepare(self.problem, fold, self.plan) for fold in task.folds]
        records = run_methods(self.problem, rows, replace(self.plan, methods=task.methods), report)
        report(1.0, "done")
        return records

    def result(self, shift: ShiftPlan | None = None) -> Comparison:
        """Return the result of the folds that are finished so far, of the whole or of the random rows."""
        shift = shift or self.shift
        random = self.result(shift.random) if shift.random else None
        folds = {(fold.repeat, fold.number) for fold in shift.folds}  # a folder may hold more repeats
        records = tuple(record for record in self.store.records() if record.key[:2] in folds)
        if SEVERAL in self.plan.methods:
            records = with_several(self.problem, shift.folds, self.plan.methods, records)
        limits = self.options.minutes, self.options.refit_all
        return Comparison(self.problem, shift, self.plan, records, self.name, *limits, random)


def _stacks(folds: Sequence[Fold]) -> list[tuple[Fold, ...]]:
    """Divide folds into stacks whose networks are trained together."""
    size = max(1, _STACK_ROWS // max(len(fold.train) for fold in folds))
    size = min(size, -(-len(folds) // _LEAST_STACKS))
    return [tuple(folds[begin : begin + size]) for begin in range(0, len(folds), size)]


@dataclass(frozen=True)
class _Task:
    """Some methods in some folds, run by one worker."""

    folds: tuple[Fold, ...]
    methods: tuple[str, ...]  # networks, or a method of another kind


class _Stopped(Exception):
    """Raised in workers after the time limit or an interruption."""


class _Progress:
    """Merge the progress of concurrent tasks, and stop them."""

    def __init__(self, listen: Listener | None, deadline: float | None, tasks: Sequence[_Task]) -> None:
        self.listen, self.deadline = listen or (lambda share, words: None), deadline
        self.tasks, self.done = tasks, {id(task): 0.0 for task in tasks}
        self.stop, self._lock = threading.Event(), threading.Lock()

    def of(self, task: _Task) -> Report:
        """Return the callback of a task, which raises when it has to stop."""
        total = sum(len(each.folds) * len(each.methods) for each in self.tasks)
        where = f"fold{'s' * (len(task.folds) > 1)} {', '.join(str(f.number + 1) for f in task.folds)}"
        where = f"{'random ' * (task.folds[0].repeat == RANDOM)}{where}"
        if METHODS[task.methods[0]].make is not None:
            where = f"{where}, {NAMES[task.methods[0]]}"

        def report(share: float, words: str) -> None:
            if self.stop.is_set() or (self.deadline is not None and clock.monotonic() > self.deadline):
                raise _Stopped
            with self._lock:
                self.done[id(task)] = max(self.done[id(task)], share)
                done = sum(self.done[id(t)] * len(t.folds) * len(t.methods) for t in self.tasks)
                self.listen(min(1.0, done / total), f"{where}: {words}")

        return report


def compare(
    source: Any,
    target: str | None = None,
    *,
    out: str | Path | None = None,
    listen: Listener | None = None,
    **options: Any,
) -> Comparison:
    """Compare training methods on your own table under the shift that you expect.

    Every row is tested by models that were trained without it. In each fold, all methods get the same rows.
    Validation rows choose among the trials of a method.

    Args:
        source: Path of a CSV or Parquet file, a polars or pandas frame, or the name of a scikit-learn table,
            such as ``"diabetes"``.
        target: Column to predict; optional for scikit-learn's tables.
        out: Folder that stores finished folds. Call `compare` again with the same folder to resume.
        listen: Callback that receives the finished share and a message.
        **options: Fields of `Options`:

            - the shift: ``test`` (labelled rows to test on), ``time`` (a column: train on the past),
              ``split_by`` (a column: test on unseen values), ``extrapolate`` (a column: test on its far
              ends; True: on those of the first principal direction of the numeric columns), beside
              random rows (``random=False``: without); by default, only random rows are tested;
            - the table: ``group`` (column of groups; methods are judged in the worst one), ``task``,
              ``as_`` (kinds of columns, e.g. ``{"code": "category"}``; ``"id"``: not an input), ``max_rows``
              (a longer table is sampled);
            - the methods: ``methods`` (names, or estimators like
              ``"sklearn.ensemble:ExtraTreesRegressor"``; ordinary training is always included), ``select``
              (``"average"`` or ``"worst"``), ``bounded`` (clip predicted numbers to the range of the training
              targets), ``refit_all`` (the saved model also learns the rows of ``test``);
            - the effort: ``minutes`` (about; finished folds are compared), ``quick``, ``folds``,
              ``repeats``, ``trials``, ``epochs``, ``networks``, ``hidden``, ``seed``, ``jobs``.

    Raises:
        TableError: If the table or the options cannot be used.

    Example:
        >>> rows = [{"x": i % 10, "y": "low" if i % 10 < 5 else "high"} for i in range(100)]
        >>> result = compare(pl.DataFrame(rows), "y", methods=["elliptic"], trials=1, epochs=5)
        >>> result.table()["method"].to_list()
        ['erm', 'elliptic', 'constant']
    """
    session = Session.open(source, target, Options(**options), out=out)
    try:
        session.run(listen)
        return session.result()
    finally:
        session.store.close()
