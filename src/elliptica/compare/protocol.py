"""The rules that all methods share: the rows of a fold, the choice among trials, what is recorded.

In every fold a method tries the settings of `elliptica.compare.plan.draw_settings` on the training rows
without the validation rows. The validation rows choose the trial and its length. The chosen settings are then
trained on all training rows, and predict the test rows once. In large tables trials see a part of the rows
only; the chosen settings are then trained on all rows but the validation rows, which choose the length again.
`elliptica.compare.networks` does so for networks, `elliptica.compare.references` for boosted trees and linear
models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

from elliptica._utils.random import stream_seed
from elliptica.compare.metrics import (
    MIN_PROBABILITY,
    classification_scores,
    metrics_of,
    regression_scores,
    target_bounds,
)
from elliptica.compare.plan import Plan
from elliptica.compare.problem import TableProblem
from elliptica.compare.shift import Fold, make_preprocessor
from elliptica.estimators.classifier import fit_temperature

#: Called with the share of a task that is done, and what is being done. May raise to stop it.
Report = Callable[[float, str], None]

#: Why a method failed that may be tried again.
NO_TIME = "the time was over before the first epoch"
#: Largest exponent of a predicted logarithm.
_MAX_LOG = 700.0
#: A temperature outside of this range says that the validation rows are too few.
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class Trial:
    """Settings that were tried."""

    settings: dict[str, Any]  # by name
    log_target: bool  # whether the logarithm of the targets was learnt
    length: int  # epochs or boosting iterations that were best on the validation rows; 0: not applicable
    validation: dict[str, float]  # scores on the validation rows; empty if training failed
    dropped: bool = False  # whether it was dropped after a first short training
    error: str = ""  # why it failed


@dataclass(frozen=True)
class Record:
    """A method in one fold."""

    repeat: int  # number of the repeat, from 0
    fold: int  # number of the fold, from 0
    method: str
    trials: tuple[Trial, ...]  # what was tried, in order
    chosen: int | None  # number of the trial that the validation rows chose; None: all failed
    rows: dict[str, int]  # rows that trials, the validation, the chosen settings and the test have seen
    seconds: float  # time of trials and training; networks of several methods and folds share theirs
    length: int = 0  # epochs or boosting iterations of the model that was tested; 0: not applicable
    temperature: float | None = None  # that calibrates the probabilities of the validation rows
    #: Predictions of the test rows: probabilities ``(rows, classes)``, or numbers ``(rows,)``;
    predicted: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    #: numbers before they are bounded to the range of the training targets; empty for probabilities.
    unbounded: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    error: str = ""  # why the method failed

    @property
    def key(self) -> tuple[int, int, str]:
        """Repeat, fold and method."""
        return self.repeat, self.fold, self.method

    def final(self) -> np.ndarray:
        """Predictions of the test rows; probabilities at the temperature of the validation rows."""
        if self.temperature is None:
            return self.predicted
        return at_temperature(self.predicted, self.temperature)

    def to_json(self) -> dict[str, Any]:
        """Everything but the predictions, as JSON has it."""
        content = asdict(replace(self, predicted=np.empty(0), unbounded=np.empty(0)))
        del content["predicted"], content["unbounded"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], predicted: np.ndarray, unbounded: np.ndarray) -> Record:
        """Put a record together again."""
        trials = tuple(Trial(**trial) for trial in content["trials"])
        return cls(**{**content, "trials": trials}, predicted=predicted, unbounded=unbounded)


class Predicted(NamedTuple):
    """Predictions of one or several models for the same rows."""

    values: np.ndarray  # probabilities, or numbers, bounded if the plan says so
    unbounded: np.ndarray  # the numbers before; empty for probabilities


@dataclass(frozen=True)
class FoldRows:
    """The rows of a fold as numbers; preprocessing and scaling have seen its training rows only."""

    fold: Fold
    x: np.ndarray  # inputs of all rows of the table, scaled, float32
    y: np.ndarray  # class numbers or targets of all rows
    fit: np.ndarray  # rows that trials train on,
    validation: np.ndarray  # rows that choose among them,
    train: np.ndarray  # and rows that the chosen settings are trained on,
    stop: np.ndarray | None  # with validation rows for the length, if trials saw a part of the rows only
    bounds: np.ndarray  # regression: upper bounds of the fifths of the training targets

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of rows, for the record."""
        parts = {"fit": self.fit, "validation": self.validation, "train": self.train, "test": self.fold.test}
        return {name: len(rows) for name, rows in parts.items()}


def prepare(problem: TableProblem, fold: Fold, plan: Plan) -> FoldRows:
    """Turn the rows into numbers, and draw the rows that trials see in a large table."""
    draws = np.random.default_rng(stream_seed("rows", plan.seed, fold.repeat, fold.number))
    train = _at_most(fold.train, plan.train_rows, draws)
    preprocess = make_preprocessor(problem).fit(problem.features[train])
    inputs = np.asarray(preprocess.transform(problem.features))
    x = StandardScaler().fit(inputs[train]).transform(inputs).astype(np.float32)
    if problem.task == "classification":
        y, bounds = np.unique(problem.target, return_inverse=True)[1], np.empty(0)
    else:
        y, bounds = problem.target, target_bounds(problem, train)
    fit, stop = fold.fit, None
    if len(fit) > plan.tuning_rows:
        train, stop = _at_most(fit, plan.train_rows, draws), fold.validation
    fit = _at_most(fit, plan.tuning_rows, draws)
    return FoldRows(fold, x, y, fit, fold.validation, train, stop, bounds)


def _at_most(rows: np.ndarray, n: int, draws: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= n else np.sort(draws.choice(rows, n, replace=False))


@dataclass(frozen=True)
class TargetScale:
    """From the targets of a regression to what a model learns, and back."""

    log: bool
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, target: np.ndarray, *, log: bool) -> TargetScale:
        """Standardise the targets of these rows, or their logarithms."""
        values = np.log(target) if log else target
        return cls(log, float(values.mean()), float(values.std()) or 1.0)

    def learn(self, target: np.ndarray) -> np.ndarray:
        """Targets as a model learns them."""
        values = np.log(target) if self.log else target
        return (values - self.mean) / self.scale

    def read(self, output: np.ndarray) -> np.ndarray:
        """Outputs of a model in the units of the table."""
        values = output * self.scale + self.mean
        return np.exp(values.clip(-_MAX_LOG, _MAX_LOG)) if self.log else values


def pool(members: np.ndarray, known: np.ndarray, plan: Plan) -> Predicted:
    """Take the mean over models of an ensemble; numbers are bounded before.

    Args:
        members: Probabilities ``(models, rows, classes)``, or numbers ``(models, rows)``.
        known: Targets of the training rows, whose range bounds the numbers.
        plan: Says whether numbers are bounded.
    """
    if members.ndim == 3:
        return Predicted(members.mean(0), np.empty(0))
    bounded = members.clip(known.min(), known.max()) if plan.bounded else members
    return Predicted(bounded.mean(0), members.mean(0))


def validate(problem: TableProblem, rows: FoldRows, predicted: np.ndarray) -> dict[str, float]:
    """Score predictions of the validation rows; without a group that has rows there, by class or fifth."""
    target = problem.target[rows.validation]
    groups = None if problem.groups is None else problem.groups[rows.validation]
    if groups is not None and not (groups != "").any():
        groups = None
    if problem.task == "classification":
        found = classification_scores(target, predicted, problem.classes, groups)
    else:
        found = regression_scores(target, predicted, rows.bounds, groups)
    del found["parts"]
    return found


def ranking(scores: Mapping[str, float], problem: TableProblem, plan: Plan) -> tuple[float, ...]:
    """The rule of choice among trials, larger is better.

    It is the Brier score for classes, which tells trials apart on few rows better than the accuracy, and the
    RMSE for numbers; with ``select="worst"`` first the accuracy or RMSE of the worst part.
    """
    average = scores["brier" if problem.task == "classification" else "rmse"]
    worst = metrics_of(problem.task, problem.groups is not None)[1]
    if plan.select == "average" or worst.name not in scores:
        return (-average,)
    return (scores[worst.name] if worst.higher_is_better else -scores[worst.name], -average)


def best_trials(trials: Sequence[Trial], problem: TableProblem, plan: Plan) -> list[int]:
    """Numbers of the trials that did not fail and were not dropped, the best one first."""
    usable = [number for number, trial in enumerate(trials) if trial.validation and not trial.dropped]
    return sorted(usable, key=lambda n: ranking(trials[n].validation, problem, plan), reverse=True)


def final_trial(records: Sequence[Record], problem: TableProblem, plan: Plan) -> int:
    """Number of the trial that was best on the validation rows on average over the folds of a method.

    Trials that were dropped or failed in a fold count as the last of that fold.
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
    """Temperature of the least log loss; 1 if all rows are classified correctly, since none is least then."""
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
    """Record a method that was trained and tested.

    Args:
        problem: The table.
        rows: Of the fold.
        method: Name.
        trials: What was tried.
        chosen: Number of the trial that was chosen.
        validation: Its predictions of the validation rows.
        predicted: Predictions of the test rows.
        length: Epochs or boosting iterations of the model that made them.
        seconds: Time of all of it.
    """
    temperature = None
    if problem.task == "classification":
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
    """Record a method of which every trial failed, or the last training; the first error is quoted."""
    reason = next((trial.error for trial in trials if trial.error), "the last training did not end in time")
    return Record(
        rows.fold.repeat,
        rows.fold.number,
        method,
        tuple(trials),
        None,
        rows.counts,
        seconds,
        error=f"Training failed with all of {len(trials)} settings. The first said: {reason}.",
    )
