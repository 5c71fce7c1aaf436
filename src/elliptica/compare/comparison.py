"""`compare`: run the protocol on a table, keep what is finished, and answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from sklearn.pipeline import Pipeline

from elliptica._utils.random import stream_seed
from elliptica.compare.metrics import Metric, metrics_of
from elliptica.compare.plan import (
    TREES,
    Plan,
    Select,
    check_methods,
    choose_methods,
    draw_settings,
    make_estimator,
)
from elliptica.compare.problem import TableProblem, Task, make_problem
from elliptica.compare.protocol import Prepared, Record, final_trial, prepare, run_method, split_rows
from elliptica.compare.store import Store
from elliptica.compare.table import MAX_ROWS, read_table
from elliptica.compare.verdict import NAMES, REFERENCE, Scores, judge
from elliptica.estimators import TablePreprocessor, save
from elliptica.report.content import Verdict

#: Told before each run: how many are finished, how many there are, and what comes.
Listener = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    problem: TableProblem  # what was learnt, with notices about the table
    plan: Plan  # how
    records: tuple[Record, ...] = field(repr=False)  # one per finished repeat and method
    name: str = "frame"  # of the table

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What methods are judged by; the first two decide."""
        return metrics_of(self.problem.task, self.problem.groups is not None)

    @property
    def complete(self) -> bool:
        """Whether all runs are finished."""
        return len(self.records) == self.plan.n_runs

    @property
    def repeats(self) -> list[int]:
        """Repeats that all methods have finished; only these are used."""
        done = {(record.repeat, record.method) for record in self.records}
        return [r for r in range(self.plan.repeats) if all((r, m) in done for m in self.plan.methods)]

    def of(self, method: str) -> list[Record]:
        """Records of a method, in the order of `repeats`."""
        found = {record.repeat: record for record in self.records if record.method == method}
        return [found[repeat] for repeat in self.repeats]

    @cached_property
    def verdict(self) -> Verdict:
        """The answer, see `judge`."""
        scores: Scores = {
            method: {m.name: [record.test[m.name] for record in self.of(method)] for m in self.metrics}
            for method in self.plan.methods
        }
        shares = [r.rows["test"] / (r.rows["train"] + r.rows["validation"]) for r in self.of(REFERENCE)]
        return judge(scores, self.metrics, statistics.mean(shares or [0.0]), self.plan.select)

    @property
    def best(self) -> str:
        """Method to use; ``"erm"`` if none is shown to be better."""
        return self.verdict.best or REFERENCE

    @property
    def model_method(self) -> str:
        """Method of the saved model: the best one that is a network (trees are not saved)."""
        return next((name for name in self.verdict.winners if name != TREES), REFERENCE)

    def table(self) -> pl.DataFrame:
        """Means and deviations of the test scores over repeats, a row per method."""
        rows = []
        for method in self.plan.methods:
            found = self.of(method)
            row: dict[str, Any] = {"method": method, "name": NAMES[method]}
            for metric in self.metrics:
                values = [record.test[metric.name] for record in found]
                row[metric.name] = statistics.mean(values) if values else None
                row[f"{metric.name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
            row["seconds"] = statistics.mean(r.seconds for r in found) if found else None
            counts = [r.evaluations for r in found if r.evaluations is not None]
            row["evaluations"] = statistics.mean(counts) if counts else None
            rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)


@dataclass(frozen=True)
class Session:
    """A comparison that is under way; `compare` opens one and runs it to the end."""

    problem: TableProblem
    plan: Plan
    store: Store
    name: str

    @classmethod
    def open(
        cls,
        source: Any,
        target: str,
        *,
        group: str | None,
        task: Task,
        split_by: str | None,
        group_as_input: bool,
        methods: Sequence[str] | None,
        trees: bool,
        repeats: int,
        trials: int,
        select: Select,
        epochs: int,
        hidden: tuple[int, ...],
        seed: int,
        max_rows: int,
        sample: bool,
        out: str | Path | None,
        ids: Sequence[str] = (),
        command: str = "",
    ) -> Session:
        """Read the table and what is finished already; arguments as in `compare`."""
        plan = Plan((REFERENCE,), repeats, trials, select, epochs, tuple(hidden), seed)
        check_methods(methods)  # options that are wrong for every table, before a long one is read
        table = read_table(source, max_rows=max_rows, sample=sample, seed=seed)
        problem = make_problem(
            table,
            target,
            task=task,
            group=group,
            split_by=split_by,
            group_as_input=group_as_input,
            ids=ids,
        )
        plan = replace(plan, methods=choose_methods(problem.task, methods, trees))
        for repeat in range(plan.repeats):
            split_rows(problem, repeat, plan.seed)  # refuses what no training can use, before any is done
        folder = None if out is None else Path(out)
        return cls(problem, plan, Store(folder, problem, plan, table.name, command), table.name)

    def run(self, listen: Listener) -> None:
        """Do what is not finished, repeat by repeat, so that an interruption leaves whole repeats."""
        total = self.plan.n_runs
        for repeat in range(self.plan.repeats):
            prepared: Prepared | None = None
            for method in self.plan.methods:
                if self.store.has(repeat, method):
                    continue
                listen(
                    len(self.store.records()),
                    total,
                    f"repeat {repeat + 1} of {self.plan.repeats}, {NAMES[method]}",
                )
                prepared = prepared or prepare(self.problem, repeat, self.plan)
                self.store.add(run_method(self.problem, prepared, method, repeat, self.plan))
        listen(total, total, "done")

    def result(self) -> Comparison:
        """What is known so far."""
        return Comparison(self.problem, self.plan, self.store.records(), self.name)


def compare(
    source: Any,
    target: str,
    *,
    group: str | None = None,
    task: Task = "auto",
    split_by: str | None = None,
    group_as_input: bool = False,
    methods: Sequence[str] | None = None,
    trees: bool = False,
    repeats: int = 5,
    trials: int = 4,
    select: Select = "average",
    epochs: int = 100,
    hidden: tuple[int, ...] = (128, 128),
    seed: int = 0,
    max_rows: int = MAX_ROWS,
    sample: bool = False,
    ids: Sequence[str] = (),
    out: str | Path | None = None,
    listen: Listener | None = None,
) -> Comparison:
    """Compare ordinary training, mixup and elliptic training on a table of your own.

    In each repeat rows are split anew into training, validation and test; every method gets the same rows,
    the same preprocessing and the same number of trials, chooses on the validation rows and is tested once.

    Args:
        source: Path of a CSV or Parquet file, or a polars or pandas frame.
        target: Column to predict.
        group: Column of groups: methods are judged in the worst one. Training does not see it.
        task: ``"auto"``, ``"classification"`` or ``"regression"``.
        split_by: Column whose equal values stay on one side of every split (a patient, a site).
        group_as_input: Let the group be an input, too.
        methods: Names; None: all of the task. Ordinary training (``"erm"``) is always run.
        trees: Run scikit-learn's gradient boosting, too.
        repeats: Number of random splits.
        trials: Settings tried per method and repeat.
        select: What decides among trials on the validation rows: ``"average"`` or ``"worst"``.
        epochs: Passes over the training rows, at most.
        hidden: Widths of the network's hidden layers.
        seed: Of everything that is drawn.
        max_rows: Longer tables are refused,
        sample: or reduced to a random sample of that size.
        ids: Columns that name the rows: no inputs, but carried to the predictions of the model.
        out: Folder in which finished runs are kept, so that the same call resumes.
        listen: Told before each run.

    Raises:
        TableError: If the table or the options cannot be used.

    Example:
        >>> rows = [{"x": i % 10, "y": "low" if i % 10 < 5 else "high"} for i in range(100)]
        >>> found = compare(pl.DataFrame(rows), "y", methods=["elliptic"], repeats=1, trials=1, epochs=5)
        >>> found.table()["method"].to_list()
        ['erm', 'elliptic']
        >>> found.verdict.text[:10]
        'No verdict'
    """
    session = Session.open(
        source,
        target,
        group=group,
        task=task,
        split_by=split_by,
        group_as_input=group_as_input,
        methods=methods,
        trees=trees,
        repeats=repeats,
        trials=trials,
        select=select,
        epochs=epochs,
        hidden=hidden,
        seed=seed,
        max_rows=max_rows,
        sample=sample,
        ids=ids,
        out=out,
    )
    session.run(listen or (lambda *_: None))
    return session.result()


def notes_of(problem: TableProblem) -> dict[str, Any]:
    """Collect what predictions for another table must know beside the model itself."""
    return {
        "target": problem.target_name,
        "ids": list(problem.ids),
        "text_as_missing": list(problem.text_as_missing),
    }


def fit_model(comparison: Comparison, file: Path | None = None) -> Pipeline:
    """Train the best network of a comparison on all rows.

    Its settings are those of the trial that was best on the validation rows on average over repeats. All rows
    are used, test rows among them, since nothing is measured with this model.

    Args:
        comparison: With at least one finished repeat.
        file: Where to save it; None: not saved.

    Returns:
        Preprocessing and network in a pipeline; takes frames with the columns of the inputs.
    """
    problem, plan, method = comparison.problem, comparison.plan, comparison.model_method
    settings = draw_settings(method, final_trial(comparison.records, method, problem, plan), plan)
    seed = stream_seed("model", plan.seed) % 2**32
    network = make_estimator(method, problem.task, settings, plan, len(problem.target), seed)
    model = Pipeline([("table", TablePreprocessor()), ("network", network)])
    model.fit(problem.features, problem.target)
    if file is not None:
        save(model, file, notes=notes_of(problem))
    return model
