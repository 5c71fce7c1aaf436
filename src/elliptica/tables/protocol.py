"""Rules that all methods share: the rows of a fold, the choice among trials, and the record.

In every fold, a method tries the settings of `elliptica.tables.methods.draw_settings` on the training rows
without the validation rows. The validation rows choose the trial and its length. The chosen settings are then
trained on all training rows and predict the test rows once. In large tables, trials see only part of the
rows. The chosen settings are then trained on all rows except the validation rows, which choose the length
again. `elliptica.tables.networks` applies these rules to networks; here they are applied to the models of
scikit-learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.preprocessing import StandardScaler

from elliptica._utils.random import stream_seed
from elliptica.estimators.classifier import fit_temperature
from elliptica.tables.methods import METHODS, Plan, draw_settings
from elliptica.tables.metrics import MIN_PROBABILITY, fifths, metrics_of, score, single_test
from elliptica.tables.problem import TableProblem
from elliptica.tables.shift import Fold, make_preprocessor

#: Called with the finished share of a task and a message. May raise to stop the task.
Report = Callable[[float, str], None]

#: Largest predicted logarithm; its exponential is still finite.
_MAX_LOG = 700.0
#: Range of plausible temperatures; values outside mean that there are too few validation rows.
_TEMPERATURES = (0.05, 20.0)
#: Maximum number of trees over all classes, and minimum number of boosting iterations.
MAX_TREES, MIN_ITERATIONS = 300, 60
#: Iterations without a better validation loss before boosting stops.
_PATIENCE = 10


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
    """The rows of a fold as numbers; preprocessing and scaling are fitted on its training rows."""

    fold: Fold
    x: np.ndarray  # inputs of all rows of the table, scaled, float32
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
    inputs = np.asarray(preprocess.transform(problem.features))
    x = StandardScaler().fit(inputs[fold.train]).transform(inputs).astype(np.float32)
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


@dataclass(frozen=True)
class TargetScale:
    """Transformation between the targets of a regression and what a model learns."""

    log: bool
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, target: np.ndarray, *, log: bool) -> TargetScale:
        """Standardise the targets of these rows, or their logarithms."""
        values = np.log(target) if log else target
        return cls(log, float(values.mean()), float(values.std()) or 1.0)

    def learn(self, target: np.ndarray) -> np.ndarray:
        """Transform targets to what a model learns."""
        values = np.log(target) if self.log else target
        return (values - self.mean) / self.scale

    def read(self, output: np.ndarray) -> np.ndarray:
        """Transform outputs of a model back to the units of the table."""
        values = output * self.scale + self.mean
        return np.exp(values.clip(-_MAX_LOG, _MAX_LOG)) if self.log else values


def pool(members: np.ndarray, known: np.ndarray, plan: Plan) -> Predicted:
    """Average the predictions of an ensemble; numbers are clipped first.

    Args:
        members: Probabilities ``(models, rows, classes)``, or numbers ``(models, rows)``.
        known: Targets of the training rows; numbers are clipped to their range.
        plan: Its ``bounded`` says whether numbers are clipped.
    """
    if members.ndim == 3:
        return Predicted(members.mean(0), np.empty(0))
    bounded = members.clip(known.min(), known.max()) if plan.bounded else members
    return Predicted(bounded.mean(0), members.mean(0))


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


def run_sklearn(problem: TableProblem, rows: FoldRows, method: str, plan: Plan, report: Report) -> Record:
    """Try settings of a scikit-learn model, choose, train on all training rows, and test once."""
    begin = time.perf_counter()
    words = f"{METHODS[method].label}, fold {rows.fold.number + 1}"
    seed = stream_seed("trees", plan.seed, rows.fold.repeat) % 2**32

    def fit(number: int, train: np.ndarray, held: np.ndarray | None, length: int | None) -> Any:
        kept = None if held is None else (rows.x[held], problem.target[held])
        settings, log = draw_settings(method, number, plan), plan.logs_target(number)
        x, y = rows.x[train], problem.target[train]
        return fit_sklearn(problem, method, settings, x, y, log=log, length=length, held=kept, seed=seed)

    trials, outputs = [], []
    for number in range(plan.trials):
        report(number / (plan.trials + 1), words)
        model = fit(number, rows.fit, rows.validation, None)
        predicted = predict_sklearn(problem, model, rows.x[rows.validation])
        trial = Trial(draw_settings(method, number, plan), plan.logs_target(number), n_iterations(model), {})
        if np.isfinite(predicted).all():
            trial = replace(trial, validation=validate(problem, rows, predicted))
        else:
            trial = replace(trial, error="predictions are not finite")
        trials.append(trial)
        outputs.append(predicted)
    report(plan.trials / (plan.trials + 1), words)
    order = best_trials(trials, problem, plan)
    if not order:
        return failed_record(rows, method, trials, time.perf_counter() - begin)
    length = None if rows.stop is not None else trials[order[0]].length
    model = fit(order[0], rows.train, rows.stop, length)
    validation = outputs[order[0]]
    if rows.stop is not None:
        validation = predict_sklearn(problem, model, rows.x[rows.stop])
    predicted = predict_sklearn(problem, model, rows.x[rows.fold.test])
    return make_record(
        problem,
        rows,
        method,
        trials,
        order[0],
        validation=validation,
        # never clipped: trees hardly leave the range of the targets, and a line that wins does so by leaving
        predicted=Predicted(predicted, predicted if problem.task == "regression" else np.empty(0)),
        length=n_iterations(model),
        seconds=time.perf_counter() - begin,
    )


def fit_sklearn(
    problem: TableProblem,
    method: str,
    settings: Mapping[str, Any],
    x: np.ndarray,
    y: np.ndarray,
    *,
    log: bool,
    length: int | None,
    held: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
) -> Any:
    """Train a scikit-learn model: in trials, in folds, and for the model that is saved.

    Args:
        problem: The table.
        method: Name of the method.
        settings: Its settings.
        x: Scaled inputs.
        y: Classes or numbers.
        log: Learn the logarithm of the targets.
        length: Boosting iterations; None stops early on the rows ``held``.
        held: Inputs and targets that stop boosting.
        seed: Seed of the model.
    """
    make, boosted = METHODS[method].make, METHODS[method].boosted
    assert make is not None
    model = make(problem.task, settings, seed)
    stop = {}
    if boosted and length is None:
        assert held is not None
        n_trees = max(1, len(problem.classes)) if len(problem.classes) != 2 else 1  # per iteration
        most = max(MIN_ITERATIONS, MAX_TREES // n_trees)
        model.set_params(early_stopping=True, scoring="loss", n_iter_no_change=_PATIENCE, max_iter=most)
        stop = {"X_val": held[0], "y_val": np.log(held[1]) if log else held[1]}
    elif boosted:
        model.set_params(early_stopping=False, max_iter=length)
    if log:
        model = TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp, check_inverse=False)
    model.fit(x, y, **stop)
    if stop:  # remove iterations after the best validation score; its first value precedes any tree
        trees = model.regressor_ if log else model
        trees._predictors = trees._predictors[: max(1, int(np.argmax(trees.validation_score_)))]
    return model


def n_iterations(model: Any) -> int:
    """Return the boosting iterations of a model; 0 for others."""
    model = getattr(model, "regressor_", model)
    return len(getattr(model, "_predictors", ()))


def predict_sklearn(problem: TableProblem, model: Any, x: np.ndarray) -> np.ndarray:
    """Predict numbers, or probabilities of all classes, also of those that training has not seen."""
    if problem.task == "regression":
        return np.asarray(model.predict(x), dtype=np.float64)
    probabilities = np.zeros((len(x), len(problem.classes)))
    probabilities[:, np.searchsorted(problem.classes, model.classes_)] = model.predict_proba(x)
    return probabilities
