"""Rules that all methods share: the rows of a fold, the choice among trials, and the record.

In every fold, a method tries the settings of `elliptica.tables.methods.draw_settings` on the training rows
without the validation rows. The validation rows choose the trial and its length. The chosen settings are then
trained on all training rows and predict the test rows once. In large tables, trials see only part of the
rows. The chosen settings are then trained on all rows except the validation rows, which choose the length
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from elliptica._utils.random import stream_seed
from elliptica._utils.statistics import fit_temperature
from elliptica.tables.methods import METHODS, Plan
from elliptica.tables.metrics import MIN_PROBABILITY, fifths, metrics_of, score, single_test
from elliptica.tables.problem import TableProblem
from elliptica.tables.shift import Fold, make_preprocessor

#: Called with the finished share of a task and a message. May raise to stop the task.
Report = Callable[[float, str], None]

#: Range of plausible temperatures; values outside mean that there are too few validation rows.
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, with their validation scores."""

    settings: dict[str, Any]  # by name
    log_target: bool  # whether the logarithm of the targets was learnt
    length: int  # epochs or boosting iterations that were best on the validation rows; 0: not applicable
    validation: dict[str, float]  # scores on the validation rows; empty if training failed
    dropped: bool = False  # whether it was dropped after a first short training
    error: str = ""  # why it failed, empty if it did not


@dataclass(frozen=True)
class Record:
    """The result of a method in one fold."""

    repeat: int  # number of the repeat, from 0
    fold: int  # number of the fold, from 0
    method: str
    trials: tuple[Trial, ...]  # in order
    chosen: int | None  # number of the trial that the validation rows chose; None: all failed
    rows: dict[str, int]  # number of rows in trials, validation, final training and test
    seconds: float  # time of trials and training; networks trained together share theirs equally
    length: int = 0  # epochs or boosting iterations of the model that was tested; 0: not applicable
    temperature: float | None = None  # calibrates probabilities; fitted on the validation rows
    #: Predictions for the test rows: probabilities ``(rows, classes)``, or numbers ``(rows,)``.
    predicted: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    #: Predicted numbers before they are clipped to the range of the training targets; empty for classes.
    unbounded: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    error: str = ""  # why the method failed

    @property
    def key(self) -> tuple[int, int, str]:
        """Repeat, fold and method."""
        return self.repeat, self.fold, self.method

    def final(self) -> np.ndarray:
        """Return the predictions for the test rows; probabilities are calibrated."""
        if self.temperature is None:
            return self.predicted
        return at_temperature(self.predicted, self.temperature)

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON can store, without the predictions."""
        content = asdict(replace(self, predicted=np.empty(0), unbounded=np.empty(0)))
        del content["predicted"], content["unbounded"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], predicted: np.ndarray, unbounded: np.ndarray) -> Record:
        """Restore a record."""
        trials = tuple(Trial(**trial) for trial in content["trials"])
        return cls(**{**content, "trials": trials}, predicted=predicted, unbounded=unbounded)


class Predicted(NamedTuple):
    """Predictions of one or more models for the same rows."""

    values: np.ndarray  # probabilities, or numbers, clipped if the plan says so
    unbounded: np.ndarray  # the numbers before clipping; empty for probabilities


@dataclass(frozen=True)
class FoldRows:
    """The rows of a fold as numbers; preprocessing is fitted on its training rows."""

    fold: Fold
    x: np.ndarray  # inputs of all rows of the table
    y: np.ndarray  # class numbers or targets of all rows
    fit: np.ndarray  # rows that trials are trained on
    validation: np.ndarray  # rows that choose among trials
    train: np.ndarray  # rows that the chosen settings are trained on
    stop: np.ndarray | None  # validation rows for the final training, if trials saw only part of the rows
    bounds: np.ndarray  # regression: upper bounds of the fifths of the training targets

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows by use, for the record."""
        parts = {"fit": self.fit, "validation": self.validation, "train": self.train, "test": self.fold.test}
        return {name: len(rows) for name, rows in parts.items()}


def prepare(problem: TableProblem, fold: Fold, plan: Plan) -> FoldRows:
    """Convert the rows to numbers, and sample the rows that trials see in a large table."""
    preprocess = make_preprocessor(problem).fit(problem.features[fold.train])
    x = np.asarray(preprocess.transform(problem.features))
    y, bounds = problem.target, np.empty(0)
    if problem.task == "classification":
        y = np.unique(y, return_inverse=True)[1]
    else:
        bounds = fifths(y[fold.train])
    fit, train, stop = fold.fit, fold.train, None
    if len(fit) > plan.tuning_rows:
        train, stop = fit, fold.validation
        draws = np.random.default_rng(stream_seed("rows", plan.seed, fold.repeat, fold.number))
        fit = np.sort(draws.choice(fit, plan.tuning_rows, replace=False))
    return FoldRows(fold, x, y, fit, fold.validation, train, stop, bounds)


def validate(problem: TableProblem, rows: FoldRows, predicted: np.ndarray) -> dict[str, float]:
    """Score predictions of the validation rows; by class or fifth if no group has rows there."""
    groups = None if problem.groups is None else problem.groups[rows.validation]
    if groups is not None and not (groups != "").any():
        groups = None
    target = problem.target[rows.validation]
    test = single_test(
        problem.task, target, {"": predicted}, classes=problem.classes, groups=groups, bounds=rows.bounds
    )
    return score(test)[""]


def ranking(scores: Mapping[str, float], problem: TableProblem, plan: Plan) -> tuple[float, ...]:
    """Return the sort key that chooses among trials; larger is better.

    For classes it is the Brier score, which separates trials on few rows better than accuracy does. For
    numbers it is the RMSE. With ``select="worst"``, the accuracy or RMSE of the worst part comes first.
    """
    average = scores["brier" if problem.task == "classification" else "rmse"]
    worst = metrics_of(problem.task, problem.groups is not None)[1]
    if plan.select != "worst" or worst.name not in scores:
        return (-average,)
    return (scores[worst.name] if worst.higher_is_better else -scores[worst.name], -average)


def best_trials(trials: Sequence[Trial], problem: TableProblem, plan: Plan) -> list[int]:
    """Return the trials that neither failed nor were dropped, the best one first."""
    usable = [number for number, trial in enumerate(trials) if trial.validation and not trial.dropped]
    return sorted(usable, key=lambda n: ranking(trials[n].validation, problem, plan), reverse=True)


def final_trial(records: Sequence[Record], problem: TableProblem, plan: Plan) -> int:
    """Return the trial with the best average rank on the validation rows over the folds of a method.

    A trial that failed or was dropped in a fold ranks last there.
    """
    places: dict[int, list[int]] = {}
    for record in records:
        order = best_trials(record.trials, problem, plan)
        for number in range(len(record.trials)):
            places.setdefault(number, []).append(
                order.index(number) if number in order else len(record.trials)
            )
    return min(places, key=lambda number: (np.mean(places[number]), number))


def at_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Soften (above 1) or sharpen (below 1) probabilities.

    Example:
        >>> at_temperature(np.array([[0.8, 0.2]]), 0.5).round(3)
        array([[0.941, 0.059]])
    """
    powers = (_log(probabilities) / temperature).astype(np.float64)
    powers = np.exp(powers - powers.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _log(probabilities: np.ndarray) -> np.ndarray:
    return np.log(probabilities.clip(MIN_PROBABILITY))


def _temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Fit the temperature with the least log loss; 1 if all rows are correct, when no minimum exists."""
    if (probabilities.argmax(1) == labels).all():
        return 1.0
    return float(np.clip(fit_temperature(_log(probabilities), labels), *_TEMPERATURES))


def make_record(
    problem: TableProblem,
    rows: FoldRows,
    method: str,
    trials: Sequence[Trial],
    chosen: int,
    *,
    validation: np.ndarray,
    predicted: Predicted,
    length: int,
    seconds: float,
) -> Record:
    """Record a method that was tested; the predictions for the validation rows calibrate it."""
    temperature = None
    if problem.task == "classification" and METHODS[method].calibrated:
        temperature = _temperature(validation, rows.y[rows.validation])
    return Record(
        rows.fold.repeat,
        rows.fold.number,
        method,
        tuple(trials),
        chosen,
        rows.counts,
        seconds,
        length,
        temperature=temperature,
        predicted=predicted.values,
        unbounded=predicted.unbounded,
    )


def failed_record(rows: FoldRows, method: str, trials: Sequence[Trial], seconds: float) -> Record:
    """Record a method whose trials or final training all failed; the record quotes the first error."""
    reason = next((trial.error for trial in trials if trial.error), "the final training diverged")
    return Record(
        rows.fold.repeat,
        rows.fold.number,
        method,
        tuple(trials),
        None,
        rows.counts,
        seconds,
        error=f"Training failed with all of {len(trials)} settings. The first error was: {reason}.",
    )
