"""Run a comparison on a table: `compare`, its options and its result."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from elliptica.report.content import Verdict
from elliptica.tables.cost import estimate, fit_budget, measure_speed
from elliptica.tables.metrics import Metric, Predictions, metrics_of, score
from elliptica.tables.plan import (
    CONSTANT,
    NAMES,
    REFERENCE,
    Plan,
    Select,
    check_methods,
    choose_methods,
    parse_duration,
    sizes,
)
from elliptica.tables.problem import TableProblem, Task, make_problem
from elliptica.tables.protocol import Record, prepare
from elliptica.tables.runner import Listener, Workers, count_workers, run_tasks
from elliptica.tables.shift import Fold, ShiftPlan, make_shift
from elliptica.tables.store import Store, describe, file_head
from elliptica.tables.table import BUILT_IN, MAX_ROWS, TableError, read_table
from elliptica.tables.verdict import judge


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: records, scores and the verdict."""

    problem: TableProblem  # the table as a learning problem, with notices about it
    shift: ShiftPlan  # which rows are trained on and tested
    plan: Plan  # methods and sizes
    records: tuple[Record, ...] = field(repr=False)  # one per finished fold and method
    name: str = "frame"  # name of the table

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics that methods are judged by; the first two decide."""
        return metrics_of(self.problem.task, self.problem.groups is not None)

    @property
    def n_pieces(self) -> int:
        """Number of methods times number of folds."""
        return len(self.plan.methods) * len(self.shift.folds)

    @property
    def complete(self) -> bool:
        """Whether all folds are finished."""
        return len(self.records) == self.n_pieces

    @cached_property
    def failed(self) -> dict[str, str]:
        """Methods that failed in a fold, with the reason; they are not compared."""
        return {record.method: record.error for record in self.records if record.error}

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that are compared."""
        return tuple(method for method in self.plan.methods if method not in self.failed)

    @cached_property
    def _by_key(self) -> dict[tuple[int, int, str], Record]:
        return {record.key: record for record in self.records}

    @cached_property
    def finished(self) -> list[tuple[int, int]]:
        """Folds that all methods have finished, as (repeat, fold); only these are compared."""
        if REFERENCE in self.failed:
            return []
        folds = [(fold.repeat, fold.number) for fold in self.shift.folds]
        return [key for key in folds if all((*key, method) in self._by_key for method in self.methods)]

    def of(self, method: str) -> list[Record]:
        """Return the records of a method in the folds that are compared."""
        return [self._by_key[(*key, method)] for key in self.finished]

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions for the test rows, made the way saved models make them.

        They cover all methods and `CONSTANT`, which predicts the mean or the class frequencies of the
        training rows. Predicted numbers are bounded. Probabilities are calibrated with a temperature fitted
        on the validation rows.
        """
        return self._predictions({m: [r.final() for r in self.of(m)] for m in self.methods})

    @cached_property
    def uncalibrated(self) -> Predictions | None:
        """Predictions before temperature scaling; None for regression."""
        if self.problem.task == "regression":
            return None
        return self._predictions({m: [r.predicted for r in self.of(m)] for m in self.methods})

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Score of every method in every column; empty until a fold is finished.

        Besides the `metrics`, regression has ``beyond_range``, the share of predictions outside the range of
        the training targets. Classification has ``uncalibrated_log_loss`` and
        ``uncalibrated_calibration_error``, measured before temperature scaling.
        """
        if not self.finished:
            return {}
        if self.uncalibrated is None:
            unbounded = self._predictions({m: [r.unbounded for r in self.of(m)] for m in self.methods})
            return score(self.predictions, unbounded=unbounded.values)
        scores, before = score(self.predictions), score(self.uncalibrated)
        for method, values in scores.items():
            for name in ("log_loss", "calibration_error"):
                values[f"uncalibrated_{name}"] = before[method][name]
        return scores

    @cached_property
    def verdict(self) -> Verdict:
        """The answer of the comparison, see `judge`."""
        if not self.finished:
            text = "No verdict: no fold is finished yet. Rerun the same command to resume."
            if REFERENCE in self.failed:
                text = f"No verdict: ordinary training failed. {self.failed[REFERENCE]}"
            return Verdict(text, best=None)
        place = f"on unseen values of {self.problem.split_name}" if self.shift.shift == "unseen" else None
        return judge(
            self.predictions,
            select=self.plan.select,
            shift=self.shift.shift,
            shift_words=self.shift.words,
            names=NAMES,
            networks=self.plan.network_methods,
            place=place,
            target=self.problem.target_name,
        )

    @property
    def best(self) -> str:
        """Name of the method to use."""
        return self.verdict.best or REFERENCE

    def table(self) -> pl.DataFrame:
        """Return the scores as a frame: one row per method, the constant prediction last."""
        rows: list[dict[str, Any]] = []
        for method in self.methods if self.scores else ():
            seconds = sum(record.seconds for record in self.of(method))
            rows.append({"method": method, "name": NAMES[method], **self.scores[method], "seconds": seconds})
        if rows:
            constant = {"method": CONSTANT, "name": NAMES[CONSTANT], **self.scores[CONSTANT], "seconds": 0.0}
            rows.append(constant)
        return pl.DataFrame(rows, infer_schema_length=None)

    def _predictions(self, values: Mapping[str, Sequence[np.ndarray]]) -> Predictions:
        """Collect the predictions of the finished folds, and add those of a constant.

        Repeats without a finished fold are skipped.
        """
        problem, n = self.problem, len(self.problem.target)
        folds = {(each.repeat, each.number): each for each in self.shift.folds}
        values = {**values, CONSTANT: [_constant(problem, folds[key]) for key in self.finished]}
        repeats = sorted({repeat for repeat, _ in self.finished})
        fold = np.full((len(repeats), n), -1)
        classes = [len(problem.classes)] if problem.task == "classification" else []
        merged = {method: np.full((len(repeats), n, *classes), np.nan) for method in values}
        for place, key in enumerate(self.finished):
            repeat, rows = repeats.index(key[0]), folds[key].test
            fold[repeat, rows] = key[1]
            for method, parts in values.items():
                merged[method][repeat, rows] = parts[place]
        tested = (fold >= 0).any(0)
        bounds = np.empty(0)
        if problem.task == "regression":
            bounds = np.unique(np.quantile(problem.target[tested], (0.2, 0.4, 0.6, 0.8)))
        return Predictions(
            problem.task,
            problem.classes,
            problem.target,
            problem.groups,
            self.shift.clusters,
            fold,
            bounds,
            merged,
            ordered=self.shift.shift == "time",
        )


def _constant(problem: TableProblem, fold: Fold) -> np.ndarray:
    """Predict the mean or the class frequencies of the training rows for every test row."""
    known = problem.target[fold.train]
    if problem.task == "regression":
        return np.full(len(fold.test), known.mean())
    shares = [np.mean(known == label) for label in problem.classes]
    return np.tile(shares, (len(fold.test), 1))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of a comparison, explained at `compare`."""

    group: str | None = None
    task: Task = "auto"
    split_by: str | None = None
    time: str | None = None
    test: Any = None
    extrapolate: bool = False
    target_rows: Any = None
    group_as_input: bool = False
    as_: Mapping[str, str] = field(default_factory=dict)
    ids: Sequence[str] = ()
    methods: Sequence[str] | None = None
    folds: int = 5
    repeats: int | None = None
    trials: int | None = None
    epochs: int | None = None
    networks: int | None = None
    select: Select = "average"
    bounded: bool = True
    quick: bool = False
    budget: str | float | None = None
    hidden: tuple[int, ...] | None = None
    seed: int = 0
    max_rows: int = MAX_ROWS
    sample: bool = False
    jobs: int | None = None
    workers: Workers = "threads"

    def __post_init__(self) -> None:
        check_methods(self.methods)
        for name in ("folds", "repeats"):
            value, least = getattr(self, name), 2 if name == "folds" else 1
            if value is not None and (not isinstance(value, int) or value < least):
                raise TableError(f"{name} must be an integer of at least {least}, but got {value!r}.")
        if self.budget is not None:
            parse_duration(self.budget)
        count_workers(self.jobs, self.workers)
        self._sized(Plan((REFERENCE,)))

    @property
    def seconds(self) -> float | None:
        """Budget in seconds; None means no limit."""
        return None if self.budget is None else parse_duration(self.budget)

    def plan(self, problem: TableProblem, shift: ShiftPlan) -> Plan:
        """Make the plan; sizes that are not given follow from the table."""
        methods = choose_methods(problem.task, self.methods, problem.groups is not None)
        largest = max(len(fold.train) for fold in shift.folds)
        plan = replace(
            Plan(methods),
            **sizes(largest, quick=self.quick),
            log_target=problem.log_target_candidate
            and bool((problem.target > 0).all()),  # the rows of a test file included
        )
        return self._sized(plan)

    def _sized(self, plan: Plan) -> Plan:
        """Apply the sizes that the user gave to a plan."""
        given = {name: getattr(self, name) for name in ("trials", "epochs", "networks", "hidden")}
        given = {name: value for name, value in given.items() if value is not None}
        plan = replace(
            plan,
            **given,
            select=self.select,
            bounded=self.bounded,
            seed=self.seed,
        )
        if plan.trials < 3 or plan.epochs <= 2 * plan.first_epochs:  # dropping trials early saves nothing
            plan = replace(plan, first_epochs=0)
        return plan

    def identity(self, shift: ShiftPlan) -> dict[str, Any]:
        """Return what must match for stored folds to be reused; methods and repeats may be added."""
        names = ("folds", "trials", "epochs", "networks", "select", "bounded", "quick", "hidden", "seed")
        return {"shift": shift.shift, **{name: getattr(self, name) for name in names}, "budget": self.seconds}


@dataclass
class Session:
    """A comparison in progress; `compare` opens one and runs it to the end."""

    problem: TableProblem
    shift: ShiftPlan
    plan: Plan
    store: Store
    name: str  # name of the table
    options: Options
    #: Estimated duration in seconds, measured on this machine.
    estimate: float
    began: float = field(default_factory=clock.monotonic)

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
        """Read the table and the folds that are already finished; arguments as in `compare`.

        Raises:
            TableError: If the table or the options cannot be used. Raised before any training.
        """
        began = clock.monotonic()
        options = options or Options()
        limits: dict[str, Any] = {
            "max_rows": options.max_rows,
            "sample": options.sample,
            "seed": options.seed,
        }
        table = read_table(source, **limits)
        if target is None:
            target = BUILT_IN.get(table.name)
            if target is None:
                raise TableError(
                    "No target column was given. Name the column to predict with --target (target=)."
                )
        problem = make_problem(
            table,
            target,
            task=options.task,
            group=options.group,
            split_by=options.split_by,
            time=options.time,
            group_as_input=options.group_as_input,
            ids=options.ids,
            as_=options.as_,
            test=None if options.test is None else read_table(options.test, **limits),
            target_rows=None if options.target_rows is None else read_table(options.target_rows, **limits),
        )
        shift = make_shift(
            problem,
            folds=options.folds,
            repeats=options.repeats,
            extrapolate=options.extrapolate,
            seed=options.seed,
        )
        plan = options.plan(problem, shift)
        about = describe(problem, table.name, options.identity(shift))
        folder = None if out is None else Path(out)
        store = Store(folder, about, plan, file_head(problem, shift.words, command))
        try:
            return cls._planned(problem, shift, store, table.name, options, began)
        except BaseException:
            store.close()
            raise

    @classmethod
    def _planned(
        cls,
        problem: TableProblem,
        shift: ShiftPlan,
        store: Store,
        name: str,
        options: Options,
        began: float,
    ) -> Session:
        """Fit the plan to the budget and estimate the remaining time."""
        plan, workers = store.plan, count_workers(options.jobs)
        first = shift.folds[0]
        n_inputs = prepare(problem, first, replace(plan, train_rows=1000)).x.shape[1]
        speed = measure_speed(problem, plan, n_inputs)
        if options.seconds is not None and not store.resumed:
            plan = fit_budget(problem, shift.folds, plan, speed, workers, options.seconds)
            store.plan = plan
        open_folds = [
            fold
            for fold in shift.folds
            if not all(store.has(fold.repeat, fold.number, method) for method in plan.methods)
        ]
        seconds = estimate(problem, open_folds, plan, speed, workers)
        return cls(problem, shift, plan, store, name, options, seconds, began)

    def close(self) -> None:
        """Release the folder to other processes."""
        self.store.close()

    def run(self, listen: Listener | None = None) -> None:
        """Run the folds that are not finished; call ``listen`` with the finished share and a message."""
        budget, deadline = self.options.seconds, None
        if budget is not None:  # training gets at least half of it, however long reading took
            deadline = max(self.began + 0.85 * budget, clock.monotonic() + 0.5 * budget)
        run_tasks(
            self.problem,
            self.shift,
            self.plan,
            self.store,
            listen=listen or (lambda share, words: None),
            workers=count_workers(self.options.jobs),
            kind=self.options.workers,
            deadline=deadline,
        )

    def result(self) -> Comparison:
        """Return the result of the folds that are finished so far."""
        folds = {(fold.repeat, fold.number) for fold in self.shift.folds}  # a folder may hold more repeats
        records = tuple(record for record in self.store.records() if record.key[:2] in folds)
        return Comparison(self.problem, self.shift, self.plan, records, self.name)


def compare(
    source: Any,
    target: str | None = None,
    *,
    out: str | Path | None = None,
    listen: Listener | None = None,
    **options: Any,
) -> Comparison:
    """Compare training methods on your own table under the shift that you expect.

    Every row is tested by models that were trained without it. In each fold, all methods get the same rows,
    the same preprocessing and the same number of trials. Validation rows choose among the trials.

    Args:
        source: Path of a CSV or Parquet file, a polars or pandas frame, or the name of a scikit-learn table,
            such as ``"diabetes"``.
        target: Column to predict; optional for scikit-learn's tables.
        out: Folder that stores finished folds. Call `compare` again with the same folder to resume.
        listen: Callback that receives the finished share and a message.
        **options: Fields of `Options`:

            - the shift: ``test`` (labelled rows to test on), ``time`` (a column: train on the past),
              ``split_by`` (a column: test on unseen values), ``extrapolate=True`` (test on the rows farthest
              from the rest); by default, random rows are tested;
            - the table: ``group`` (column of groups; methods are judged in the worst one), ``task``,
              ``as_`` (kinds of columns, e.g. ``{"code": "category"}``), ``ids``, ``group_as_input``,
              ``target_rows`` (unlabelled rows that you want to predict), ``max_rows``, ``sample``;
            - the methods: ``methods`` (names; ordinary training is always included), ``select``
              (``"average"`` or ``"worst"``), ``bounded`` (clip predicted numbers to the range of the training
              targets);
            - the effort: ``budget`` (``"2m"``), ``quick``, ``folds``, ``repeats``, ``trials``, ``epochs``,
              ``networks``, ``hidden``, ``seed``, ``jobs``, ``workers`` (``"threads"``, ``"processes"``,
              ``"ray"``).

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
        session.close()
