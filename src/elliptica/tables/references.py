"""Run scikit-learn's boosted trees and linear models by the rules of `elliptica.tables.protocol`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elliptica._utils.random import stream_seed
from elliptica.tables.plan import NAMES, TREES, Plan, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import (
    FoldRows,
    Predicted,
    Record,
    Report,
    TargetScale,
    Trial,
    best_trials,
    failed_record,
    make_record,
    pool,
    validate,
)

#: Maximum number of trees over all classes, and minimum number of iterations.
MAX_TREES, MIN_ITERATIONS = 300, 60
#: Iterations without a better validation loss before boosting stops.
_PATIENCE = 10


def run_reference(
    problem: TableProblem,
    rows: FoldRows,
    method: str,
    plan: Plan,
    report: Report,
    n_folds: int,
    deadline: float | None = None,
) -> Record:
    """Try settings, choose on the validation rows, train on all training rows, and test once.

    Args:
        problem: The table.
        rows: Rows of the fold.
        method: ``"trees"`` or ``"linear"``.
        plan: Number of settings to try.
        report: Callback that receives the finished share.
        n_folds: Folds per repeat, shown in messages.
        deadline: Value of ``time.monotonic()`` after which no further setting is tried.
    """
    begin = time.perf_counter()
    words = f"{NAMES[method]}, fold {rows.fold.number + 1} of {n_folds}"
    trials, outputs = [], []
    for number in range(plan.trials):
        report(number / (plan.trials + 1), words)
        if number and deadline is not None and time.monotonic() > deadline:
            break
        trial, predicted = _try(problem, rows, method, number, plan)
        trials.append(trial)
        outputs.append(predicted)
    order = best_trials(trials, problem, plan)
    report(plan.trials / (plan.trials + 1), words)
    if not order:
        return failed_record(rows, method, trials, time.perf_counter() - begin)
    chosen = trials[order[0]]
    scale = TargetScale(chosen.log_target)
    length = None if rows.stop is not None else chosen.length
    model = _fit(problem, rows, method, chosen.settings, scale, (rows.train, rows.stop), length, plan)
    validation = outputs[order[0]]
    if rows.stop is not None:
        validation = _predict(problem, model, rows.x[rows.stop], scale, rows.train, plan).values
    return make_record(
        problem,
        rows,
        method,
        trials,
        order[0],
        validation=validation,
        predicted=_predict(problem, model, rows.x[rows.fold.test], scale, rows.train, plan),
        length=model.n_iter_ if length is None and method == TREES else chosen.length,
        seconds=time.perf_counter() - begin,
    )


def _try(
    problem: TableProblem, rows: FoldRows, method: str, number: int, plan: Plan
) -> tuple[Trial, np.ndarray]:
    """Train with the settings of a trial, and predict the validation rows."""
    settings, log = draw_settings(method, number, plan), plan.logs_target(number)
    scale = TargetScale(log)
    fit, validation = rows.fit, rows.validation
    model = _fit(problem, rows, method, settings, scale, (fit, validation), None, plan)
    length = model.n_iter_ if method == TREES else 0
    predicted = _predict(problem, model, rows.x[validation], scale, fit, plan).values
    if not np.isfinite(predicted).all():
        return Trial(settings, log, length, {}, error="predictions are not finite"), predicted
    return Trial(settings, log, length, validate(problem, rows, predicted)), predicted


def _fit(
    problem: TableProblem,
    rows: FoldRows,
    method: str,
    settings: dict[str, Any],
    scale: TargetScale,
    parts: tuple[np.ndarray, np.ndarray | None],
    length: int | None,
    plan: Plan,
) -> Any:
    """Train on the first part of the rows; without a length, boosting stops early on the second part."""
    train, held = parts
    seed = stream_seed("trees", plan.seed, rows.fold.repeat) % 2**32
    model = make_reference(method, problem.task, settings, length, seed)
    x, y = rows.x[train], _targets(problem, rows, train, scale)
    if method == TREES and length is None:
        assert held is not None
        model.set_params(max_iter=most_iterations(problem))
        model.fit(x, y, X_val=rows.x[held], y_val=_targets(problem, rows, held, scale))
        return _cut_to_best(model)
    return model.fit(x, y)


def _cut_to_best(model: Any) -> Any:
    """Remove the boosting iterations after the best validation score; its first value precedes any tree."""
    best = max(1, int(np.argmax(model.validation_score_)))
    model._predictors = model._predictors[:best]  # n_iter_ counts these
    return model


def most_iterations(problem: TableProblem) -> int:
    """Return the maximum number of boosting iterations; each grows a tree per class beyond two classes."""
    n_classes = len(problem.classes)
    return max(MIN_ITERATIONS, MAX_TREES // (n_classes if n_classes > 2 else 1))


def make_reference(method: str, task: str, settings: dict[str, Any], length: int | None, seed: int) -> Any:
    """Create boosted trees or a linear model.

    Args:
        method: ``"trees"`` or ``"linear"``.
        task: ``"classification"`` or ``"regression"``.
        settings: Settings of the trial.
        length: Boosting iterations; None stops early on validation rows, which `fit` must receive.
        seed: Seed of the trees.

    Example:
        >>> make_reference("linear", "regression", {"penalty": 2.0}, 0, 0)[-1]
        Ridge(alpha=2.0)
    """
    is_class = task == "classification"
    if method != TREES:
        penalty = settings["penalty"]
        linear = LogisticRegression(C=1 / penalty, max_iter=300) if is_class else Ridge(alpha=penalty)
        return make_pipeline(StandardScaler(), linear)
    trees = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    if length is None:
        stop: dict[str, Any] = {"early_stopping": True, "scoring": "loss", "n_iter_no_change": _PATIENCE}
    else:
        stop = {"early_stopping": False, "max_iter": length}
    return trees(**settings, **stop, random_state=seed)


def _targets(problem: TableProblem, rows: FoldRows, part: np.ndarray, scale: TargetScale) -> np.ndarray:
    return rows.y[part] if problem.task == "classification" else scale.learn(rows.y[part])


def _predict(
    problem: TableProblem, model: Any, x: np.ndarray, scale: TargetScale, trained_on: np.ndarray, plan: Plan
) -> Predicted:
    """Predict probabilities of all classes, or numbers in the units of the table.

    Numbers are not clipped: trees can hardly leave the range of the targets, and a linear model that wins
    does so by leaving it.
    """
    known = problem.target[trained_on]
    if problem.task == "regression":
        free = replace(plan, bounded=False)
        return pool(scale.read(np.asarray(model.predict(x)))[None], known, free)
    probabilities = np.zeros((1, len(x), len(problem.classes)))
    probabilities[0][:, model.classes_] = model.predict_proba(x)
    return pool(probabilities, known, plan)
