"""Train the final model of a comparison on all rows, and describe the rows that it will predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from elliptica._utils.random import stream_seed
from elliptica.core.weighting import GradientSoftmax
from elliptica.estimators import EllipticClassifier, EllipticRegressor, save
from elliptica.tables.comparison import Comparison
from elliptica.tables.networks import JTT, training_groups
from elliptica.tables.plan import NAMES, NETWORKS, REFERENCE, SEES_GROUPS, TREES, Plan, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import Record, final_trial
from elliptica.tables.references import make_reference
from elliptica.tables.shift import make_preprocessor, trial_rows
from elliptica.tables.table import TableError

#: Maximum number of training rows in the search for nearest neighbours.
_NEIGHBOURS_AMONG = 20_000


@dataclass(frozen=True)
class FinalSettings:
    """The settings of the saved model."""

    method: str
    settings: dict[str, Any]
    log_target: bool  # whether it learns the logarithm of the targets
    length: int  # epochs or boosting iterations; 0: not applicable
    temperature: float | None  # for classes: the mean over folds


def final_settings(comparison: Comparison, method: str | None = None) -> FinalSettings:
    """Return the settings of the winner (or another method): the trial that was best over all folds.

    Raises:
        TableError: If no fold of the method is finished.
    """
    method = method or comparison.best
    records = [record for record in comparison.records if record.method == method and not record.error]
    if not records:
        raise TableError(
            f"No fold of {NAMES[method]} is finished, so no model can be trained. Finish a fold first."
        )
    trial = final_trial(records, comparison.problem, comparison.plan)
    tried = [record for record in records if _was_tried(record, trial)]
    lengths = [r.length if r.chosen == trial else r.trials[trial].length for r in tried]
    temperatures = [record.temperature for record in records if record.temperature is not None]
    return FinalSettings(
        method,
        draw_settings(method, trial, comparison.plan),
        comparison.plan.logs_target(trial),
        int(np.median(lengths or [record.length for record in records])),
        float(np.exp(np.mean(np.log(temperatures)))) if temperatures else None,
    )


def _was_tried(record: Record, trial: int) -> bool:
    """Return whether a fold knows the length for these settings."""
    return bool(record.trials[trial].validation) and not record.trials[trial].dropped


def fit_model(comparison: Comparison, file: str | Path | None = None, method: str | None = None) -> Pipeline:
    """Train the winner of a comparison on all rows.

    The settings are those of the trial that was best on the validation rows over all folds. The length is the
    median over folds. All rows are used, including test rows, because nothing is measured with this model.

    Args:
        comparison: A comparison with at least one finished fold.
        file: File to save the model to, or None.
        method: Method to train instead of the winner.

    Returns:
        Preprocessing and model in a pipeline; it accepts frames with the input columns.
    """
    problem, plan = comparison.problem, comparison.plan
    final = final_settings(comparison, method)
    preprocess = make_preprocessor(problem)
    inputs = np.asarray(preprocess.fit_transform(problem.features))
    if final.method in NETWORKS:
        wrong = _first_errors(comparison, inputs) if final.method == JTT else None
        model = _fit_network(problem, plan, final, inputs, wrong)
    elif final.method == TREES:
        model = _fit_trees(problem, final, inputs)
    else:
        model = _fit_linear(problem, final, inputs)
    pipeline = Pipeline([("table", preprocess), ("model", model)])
    if file is not None:
        save(pipeline, file, notes=notes_of(comparison, final))
    return pipeline


def notes_of(comparison: Comparison, final: FinalSettings) -> dict[str, Any]:
    """Collect what predictions for another table need besides the model itself."""
    problem = comparison.problem
    return {
        "target": problem.target_name,
        "ids": list(problem.ids),
        "reading": problem.reading(),
        "method": final.method,
        # False if no method was shown to be better than a constant prediction
        "predicts": getattr(comparison.verdict, "predicts", True),
        "shift": comparison.shift.words,
    }


def _first_errors(comparison: Comparison, inputs: np.ndarray) -> np.ndarray:
    """Return which rows the first stage of JTT misclassifies, as in the folds.

    The first stage is one network of ordinary training with the settings and length of ordinary training. It
    sees as many rows as trials do; the errors on the other rows count as well.
    """
    problem, plan = comparison.problem, comparison.plan
    final = replace(final_settings(comparison, REFERENCE), temperature=None)
    rows = trial_rows(problem, comparison.shift.shift, plan.tuning_rows, plan.seed)
    part = replace(problem, target=problem.target[rows])
    first = _fit_network(part, replace(plan, networks=1), final, inputs[rows])
    return np.asarray(first.predict(inputs) != problem.target)


def _fit_network(
    problem: TableProblem,
    plan: Plan,
    final: FinalSettings,
    inputs: np.ndarray,
    wrong: np.ndarray | None = None,
) -> Any:
    """Train a network; JTT needs the errors of its first stage."""
    settings = dict(final.settings)
    weight = None
    method = final.method
    if method == JTT:
        assert wrong is not None
        method, weight = "erm", np.where(wrong, settings.pop("upweight"), 1.0)
    if method == "elliptic-weighted":
        method, settings["weighting"] = "elliptic", GradientSoftmax(settings.pop("xi"))
    options = {
        "method": method,
        "hidden": plan.hidden,
        "batch_size": plan.batch_size,
        "max_iter": max(1, final.length),
        "n_networks": plan.networks,
        "random_state": stream_seed("model", plan.seed) % 2**32,
        **settings,
    }
    groups = training_groups(problem) if final.method in SEES_GROUPS else None
    if problem.task == "regression":
        log = "log" if final.log_target else None
        regressor = EllipticRegressor(**options, bounded=plan.bounded, target_transform=log)
        return regressor.fit(inputs, problem.target, groups=groups)
    classifier = EllipticClassifier(**options).fit(inputs, problem.target, weight, groups=groups)
    if final.temperature is not None:  # taken from the folds, so no rows need to be held out
        classifier.set_params(calibrate="temperature")
        classifier.temperature_ = final.temperature
    return classifier


def _fit_reference(problem: TableProblem, final: FinalSettings, inputs: np.ndarray) -> Any:
    model = make_reference(final.method, problem.task, final.settings, final.length, 0)
    if final.log_target:
        model = TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)
    return model.fit(inputs, problem.target)


def _fit_trees(problem: TableProblem, final: FinalSettings, inputs: np.ndarray) -> Any:
    """Train on all rows; a temperature divides the leaves, because their sums are the logits."""
    model = _fit_reference(problem, final, inputs)
    if final.temperature is not None:
        model._baseline_prediction = model._baseline_prediction / final.temperature
        for trees in model._predictors:
            for tree in trees:
                tree.nodes["value"] /= final.temperature
    return model


def _fit_linear(problem: TableProblem, final: FinalSettings, inputs: np.ndarray) -> Any:
    """Train on scaled inputs as the folds do, then fold the scaling into the weights."""
    scaler = StandardScaler().fit(inputs)
    model = _fit_reference(problem, final, scaler.transform(inputs))
    inner = model.regressor_ if final.log_target else model
    weights = inner.coef_ / scaler.scale_
    inner.intercept_ = inner.intercept_ - weights @ scaler.mean_
    inner.coef_ = weights
    if final.temperature is not None:
        inner.coef_, inner.intercept_ = inner.coef_ / final.temperature, inner.intercept_ / final.temperature
    return model


@dataclass(frozen=True)
class TargetRows:
    """How far unlabelled rows lie from the training rows, and what is predicted for them."""

    rows: int
    #: Share of rows whose nearest training row is farther than that of 95 % and 99 % of the training rows.
    beyond_95: float
    beyond_99: float
    #: Share of predicted numbers outside the range of the targets; None for classes.
    beyond_range: float | None


def describe_target_rows(comparison: Comparison, model: Pipeline) -> TargetRows | None:
    """Measure how far the unlabelled rows lie from the training rows; None if there are none.

    Args:
        comparison: A comparison with ``target_rows`` in its problem.
        model: The result of `fit_model`.
    """
    problem, wanted = comparison.problem, comparison.problem.target_rows
    if wanted is None:
        return None
    draws = np.random.default_rng(stream_seed("neighbours", comparison.plan.seed))
    known = np.asarray(model[0].transform(problem.features))
    rows = np.asarray(model[0].transform(wanted))
    scaler = StandardScaler().fit(known)
    if len(known) > _NEIGHBOURS_AMONG:
        known = known[draws.choice(len(known), _NEIGHBOURS_AMONG, replace=False)]
    search = NearestNeighbors(n_neighbors=1).fit(scaler.transform(known))
    own = search.kneighbors()[0][:, 0]  # excludes the row itself
    far = search.kneighbors(scaler.transform(rows))[0][:, 0]
    limits = np.quantile(own, (0.95, 0.99))
    beyond = None
    if problem.task == "regression":
        predicted = _unbounded(model[-1], rows)
        low, high = problem.target.min(), problem.target.max()
        beyond = float(((predicted < low) | (predicted > high)).mean())
    beyond_95, beyond_99 = (float((far > limit).mean()) for limit in limits)
    return TargetRows(len(rows), beyond_95, beyond_99, beyond)


def _unbounded(model: Any, rows: np.ndarray) -> np.ndarray:
    """Predict numbers without clipping them."""
    if not isinstance(model, EllipticRegressor):
        return np.asarray(model.predict(rows))
    before = model.bounded
    model.bounded = False
    try:
        return np.asarray(model.predict(rows))
    finally:
        model.bounded = before
