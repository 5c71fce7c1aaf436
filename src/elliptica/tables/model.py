"""Train the final model of a comparison, and describe the rows that it will predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from elliptica._utils.random import stream_seed
from elliptica.estimators import EllipticClassifier, EllipticRegressor, save
from elliptica.estimators.base import Fit
from elliptica.tables.comparison import Comparison
from elliptica.tables.methods import JTT, NAMES, REFERENCE, Plan, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import final_trial
from elliptica.tables.shift import final_fold, make_preprocessor
from elliptica.tables.table import TableError
from elliptica.tables.training import (
    Recipe,
    fit_models,
    make_model,
    training_groups,
    unbounded,
    upweighted,
)

#: Maximum number of training rows in the search for nearest neighbours.
_NEIGHBOURS_AMONG = 20_000


@dataclass(frozen=True)
class FinalSettings(Recipe):
    """The settings of the saved model."""

    temperature: float | None = None  # for classes: the mean over folds


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
    tried = [r for r in records if r.trials[trial].validation and not r.trials[trial].dropped]
    lengths = [r.length if r.chosen == trial else r.trials[trial].length for r in tried]
    temperatures = [record.temperature for record in records if record.temperature is not None]
    return FinalSettings(
        method,
        draw_settings(method, trial, comparison.plan),
        comparison.plan.logs_target(trial),
        int(np.median(lengths or [record.length for record in records])),
        float(np.exp(np.mean(np.log(temperatures)))) if temperatures else None,
    )


def fit_model(comparison: Comparison, file: str | Path | None = None, method: str | None = None) -> Pipeline:
    """Train the winner of a comparison on all rows of the table, without those of a test file.

    The settings are those of the trial that was best on the validation rows over all folds. The length is the
    median over folds. Rows that folds tested are used, because nothing is measured with this model.

    Args:
        comparison: A comparison with at least one finished fold.
        file: File to save the model to, or None.
        method: Method to train instead of the winner.

    Returns:
        Preprocessing and model in a pipeline; it accepts frames with the input columns.
    """
    plan, final = comparison.plan, final_settings(comparison, method)
    fold = final_fold(comparison.problem, comparison.shift.shift, plan.seed)
    problem = only_rows(comparison.problem, fold.train)
    wrong = None
    if final.method == JTT:  # one network of ordinary training on as many rows as trials see
        first = replace(final_settings(comparison, REFERENCE), temperature=None)
        rows = np.random.default_rng(plan.seed).permutation(fold.fit)[: plan.tuning_rows]
        seed, part = stream_seed("first stage", plan.seed), only_rows(comparison.problem, rows)
        network = fit_pipeline(part, replace(plan, networks=1), first, seed)
        wrong = np.asarray(network.predict(problem.features) != problem.target)
    pipeline = fit_pipeline(problem, plan, final, stream_seed("model", plan.seed), wrong)
    if file is not None:
        save(pipeline, file, notes=notes_of(comparison, final))
    return pipeline


def only_rows(problem: TableProblem, rows: np.ndarray) -> TableProblem:
    """Return inputs, targets and groups of some of the rows."""
    groups = None if problem.groups is None else problem.groups[rows]
    return replace(problem, features=problem.features[rows], target=problem.target[rows], groups=groups)


def fit_pipeline(
    problem: TableProblem, plan: Plan, final: FinalSettings, seed: int, wrong: np.ndarray | None = None
) -> Pipeline:
    """Train preprocessing and model on all rows of a problem, exactly as a fold trains on its rows.

    Args:
        problem: The rows.
        plan: Sizes of networks.
        final: Method and settings.
        seed: Seed of the training.
        wrong: Rows that the first stage of JTT misclassifies.
    """
    preprocess = make_preprocessor(problem)
    inputs = np.asarray(preprocess.fit_transform(problem.features))
    model = make_model(problem, plan, final, n_networks=plan.networks, seed=seed)
    groups = training_groups(problem) if final.sees_groups else None
    fit_models([Fit(model, inputs, problem.target, upweighted(wrong, final), groups)])
    if final.temperature is not None:  # taken from the folds, so no rows need to be held out
        _soften(model, final.temperature)
    return Pipeline([("table", preprocess), ("model", model)])


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


def _soften(model: Any, temperature: float) -> None:
    """Divide the logits of networks, of trees (the sums of their leaves) or of a linear model."""
    if isinstance(model, EllipticClassifier):
        model.set_params(calibrate="temperature")
        model.temperature_ = temperature
    elif isinstance(model, HistGradientBoostingClassifier):
        model._baseline_prediction = model._baseline_prediction / temperature
        for tree in (tree for trees in model._predictors for tree in trees):
            tree.nodes["value"] /= temperature
    else:
        model[-1].coef_, model[-1].intercept_ = (
            model[-1].coef_ / temperature,
            model[-1].intercept_ / temperature,
        )


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
        last = model[-1]
        predicted = np.asarray(
            (unbounded(last) if isinstance(last, EllipticRegressor) else last).predict(rows)
        )
        low, high = problem.target.min(), problem.target.max()
        beyond = float(((predicted < low) | (predicted > high)).mean())
    beyond_95, beyond_99 = (float((far > limit).mean()) for limit in limits)
    return TargetRows(len(rows), beyond_95, beyond_99, beyond)
