"""Train the final model of a comparison, and read labelled rows for saved models, to evaluate them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline

from elliptica._utils.random import stream_seed
from elliptica.estimators import EllipticClassifier, save
from elliptica.estimators.base import Fit
from elliptica.estimators.preprocess import MISSING
from elliptica.estimators.wrapped import Average, Booster
from elliptica.tables.after import intervals
from elliptica.tables.comparison import Comparison
from elliptica.tables.evidence import FittedModel, Predictor, Rows
from elliptica.tables.findings import RowsOf
from elliptica.tables.methods import CANNOT_BE_SAVED, METHODS, NAMES, SEVERAL, Plan, codes_of, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.saved import SavedModel, load_model
from elliptica.tables.several import choose_weights
from elliptica.tables.shift import make_preprocessor
from elliptica.tables.table import MAX_ROWS, Table, TableError, check_column, read_table
from elliptica.tables.training import Recipe, final_trial, fit_models, make_model, training_groups


def final_settings(comparison: Comparison, method: str | None = None) -> Recipe:
    """Return the settings of the winner (or another method): the trial that was best over all folds."""
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
    return Recipe(
        method,
        draw_settings(method, trial, comparison.plan),
        comparison.plan.logs_target(trial),
        int(np.median(lengths or [record.length for record in records])),
        float(np.exp(np.mean(np.log(temperatures)))) if temperatures else None,
    )


def fit_model(
    comparison: Comparison,
    file: str | Path | None = None,
    method: str | None = None,
    rows: np.ndarray | None = None,
) -> Any:
    """Train the winner of a comparison on all rows of the table, with ``refit_all`` also of a test file.

    The settings are those of the trial that was best on the validation rows over all folds. The length is the
    median over folds. Rows that folds tested are used, because nothing is measured with this model.

    Args:
        comparison: A comparison with at least one finished fold.
        file: File to save the model to, or None.
        method: Method to train instead of the winner.
        rows: Rows to train on instead.
    """
    plan, method = comparison.plan, method or comparison.best
    if file is not None and CANNOT_BE_SAVED in NAMES[method]:
        raise TableError(f"{NAMES[method]}: the comparison is kept, but no safe file holds such a model.")
    weights = {method: 1.0}
    if method == SEVERAL:
        weights = choose_weights(comparison.problem, comparison.shift.folds, comparison.records)
    finals = [final_settings(comparison, name) for name in weights]
    whole = comparison.problem
    if rows is None:
        rows = np.arange(len(whole.target)) if comparison.refit_all else whole.own_rows
    problem = only_rows(whole, rows)
    models = [fit_pipeline(problem, plan, final, stream_seed("model", plan.seed)) for final in finals]
    model = models[0] if method != SEVERAL else Average(models=models, weights=list(weights.values()))
    if file is not None:
        limits = intervals(comparison, method) if comparison.finished else None
        notes = {  # what predictions for another table need besides the model itself
            "target": problem.target_name,
            "ids": list(problem.ids),
            "reading": problem.reading(),
            "method": method,
            # False if no method was shown to be better than a constant prediction
            "predicts": comparison.verdict.predicts,
            "shift": comparison.shift.words,
            "scores": comparison.scores.get(method, {}),
            "intervals": limits and asdict(limits),
        }
        save(model, file, notes=notes)
    return model


def only_rows(problem: TableProblem, rows: np.ndarray) -> TableProblem:
    """Return inputs, targets and groups of some of the rows."""
    groups = None if problem.groups is None else problem.groups[rows]
    inputs, target = problem.features[rows], problem.target[rows]
    return replace(problem, features=inputs, target=target, groups=groups, is_test=None)


def fit_pipeline(problem: TableProblem, plan: Plan, final: Recipe, seed: int) -> Pipeline:
    """Train preprocessing and model on all rows of a problem, exactly as a fold trains on its rows."""
    preprocess = make_preprocessor(problem, codes_of(final.method, final.settings))
    inputs = np.asarray(preprocess.fit_transform(problem.features, problem.target))
    model = make_model(problem, plan, final, preprocess.kinds_out_, n_networks=plan.networks, seed=seed)
    groups = training_groups(problem) if METHODS[final.method].sees_groups else None
    if fit_models([Fit(model, inputs, problem.target, None, groups)]) == [plan.networks]:
        raise TableError(f"The training of {NAMES[final.method]} on all rows diverged; no model is saved.")
    if final.temperature is not None:  # taken from the folds, so no rows need to be held out
        _soften(model, final.temperature)
    return Pipeline([("table", preprocess), ("model", model)])


def _soften(model: Any, temperature: float) -> None:
    """Divide the logits of networks, of trees (the sums of their leaves) or of a linear model."""
    if isinstance(model, EllipticClassifier):
        model.set_params(calibrate="temperature")
        model.temperature_ = temperature
    elif isinstance(model, Booster):
        model.temperature_ = temperature
    elif isinstance(model, HistGradientBoostingClassifier):
        model._baseline_prediction = model._baseline_prediction / temperature
        for tree in (tree for trees in model._predictors for tree in trees):
            tree.nodes["value"] /= temperature
    else:
        model[-1].coef_ /= temperature
        model[-1].intercept_ /= temperature


def read_fitted(
    model: Path,
    source: Any,
    target: str | None = None,
    *,
    group: str | None = None,
    test: Any = None,
    unlabelled: Any = None,
    max_rows: int | None = MAX_ROWS,
) -> tuple[FittedModel, list[str]]:
    """Combine a saved model with the rows of tables, predicting as in use: bounded, calibrated, trees, too.

    ``target`` is by default the column that the model predicts; rows without it are dropped. ``max_rows`` is
    the size of the random sample of longer tables. Returns notices about the tables, too.
    """
    saved = load_model(model)
    if isinstance(saved.model, Average):
        one = "elliptica compare ... --methods METHOD, or fit_model(comparison, file, METHOD)"
        raise TableError(f"{saved.name} is an average of several models. Diagnose one of them: {one}.")
    target = target or saved.notes.get("target")
    if target is None:
        raise TableError(f"{saved.name} does not say which column it predicts. Pass --target COLUMN.")
    classes, notices = getattr(saved.model, "classes_", None), dict[str, None]()
    rows: dict[RowsOf, Rows] = {}
    sources: dict[RowsOf, Any] = {"training": source, "held-out": test, "unlabelled": unlabelled}
    for kind in (kind for kind in sources if sources[kind] is not None):
        table = read_table(sources[kind], max_rows=max_rows)
        used = {target} if group is None else {target, group}
        y, groups, kept = None, None, np.arange(len(table.frame))
        if kind != "unlabelled":
            y, groups, kept = _labels(saved, table, target, group)
        inputs, names, said = saved.read(table, used)
        values = np.asarray(inputs, dtype=np.float64)[kept]
        if not rows:  # gaps of the inputs of trees are numbers below all others
            gaps = 2 * np.nanmin(values, 0, initial=0) - np.nanmax(values, 0, initial=0) - 1
        x = torch.from_numpy(np.where(np.isnan(values), gaps, values))
        rows[kind] = Rows(x, y, groups, [] if table.is_sample else (kept + 1).tolist())
        if lost := len(table.frame) - len(kept):
            said = [f"{lost} of {len(table.frame)} rows have no target and are dropped.", *said]
        notices |= dict.fromkeys((*table.notices, *said))
    loss = torch.nn.MSELoss() if classes is None else torch.nn.CrossEntropyLoss()
    labels = () if classes is None else [str(label) for label in classes]
    fitted = FittedModel(
        Predictor(saved.model, gaps), loss, rows, labels, feature_names=names, scales_inputs=True, first_row=1
    )
    return fitted, list(notices)


def _labels(
    saved: SavedModel, table: Table, target: str, group: str | None
) -> tuple[torch.Tensor, list[str] | None, np.ndarray]:
    """Return the targets as the model has them, the groups, and the rows that have a target."""
    used = {target} if group is None else {target, group}
    for name in used:
        check_column(table, name, "target or group")
    known, labels = saved.goal(target).read(table.frame[target], f"{table.name}: ")
    if len(labels) < 2:
        raise TableError(f"{table.name} has {len(labels)} rows with a {target!r}, but two are needed.")
    if target in (column.name for column in saved.columns(table, used)):
        raise TableError(f"{target!r} is an input of {saved.name}, not its target. Pass --target COLUMN.")
    classes, kept = getattr(saved.model, "classes_", None), np.flatnonzero(known)
    y = torch.tensor(labels[:, None] if classes is None else np.searchsorted(classes, labels))
    groups = None if group is None else table.frame[group].cast(pl.String).fill_null(MISSING)[kept].to_list()
    return y, groups, kept
