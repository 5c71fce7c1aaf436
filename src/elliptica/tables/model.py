"""Train the final model of a comparison, and read tables for saved models, to predict or evaluate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline

from elliptica._utils.files import replacing
from elliptica._utils.random import stream_seed
from elliptica.estimators import EllipticClassifier, save
from elliptica.estimators.base import Fit
from elliptica.estimators.files import load_with_notes
from elliptica.estimators.preprocess import MISSING
from elliptica.estimators.wrapped import Average, Booster
from elliptica.tables.comparison import Comparison
from elliptica.tables.evidence import FittedModel, Predictor, Rows
from elliptica.tables.findings import RowsOf
from elliptica.tables.methods import CANNOT_BE_SAVED, METHODS, NAMES, SEVERAL, Plan, draw_settings
from elliptica.tables.problem import TableProblem, Target
from elliptica.tables.several import choose_weights
from elliptica.tables.shift import final_fold, make_preprocessor
from elliptica.tables.table import (
    ISO,
    MAX_ROWS,
    Column,
    Table,
    TableError,
    check_column,
    read_inputs,
    read_table,
)
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


def fit_model(comparison: Comparison, file: str | Path | None = None, method: str | None = None) -> Any:
    """Train the winner of a comparison on all rows of the table, with ``refit_all`` also of a test file.

    The settings are those of the trial that was best on the validation rows over all folds. The length is the
    median over folds. Rows that folds tested are used, because nothing is measured with this model.

    Args:
        comparison: A comparison with at least one finished fold.
        file: File to save the model to, or None.
        method: Method to train instead of the winner.
    """
    plan, method = comparison.plan, method or comparison.best
    if file is not None and CANNOT_BE_SAVED in NAMES[method]:
        raise TableError(f"{NAMES[method]}: the comparison is kept, but no safe file holds such a model.")
    weights = {method: 1.0}
    if method == SEVERAL:
        weights = choose_weights(comparison.problem, comparison.shift.folds, comparison.records)
    finals = [final_settings(comparison, name) for name in weights]
    fold = final_fold(comparison.problem, comparison.shift.shift, plan.seed, refit_all=comparison.refit_all)
    problem = only_rows(comparison.problem, fold.train)
    models = [fit_pipeline(problem, plan, final, stream_seed("model", plan.seed)) for final in finals]
    model = models[0] if method != SEVERAL else Average(models=models, weights=list(weights.values()))
    if file is not None:
        notes = {  # what predictions for another table need besides the model itself
            "target": problem.target_name,
            "ids": list(problem.ids),
            "reading": problem.reading(),
            "method": method,
            # False if no method was shown to be better than a constant prediction
            "predicts": comparison.verdict.predicts,
            "shift": comparison.shift.words,
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
    native = METHODS[final.method].boosted
    preprocess = make_preprocessor(problem, native)
    inputs = np.asarray(preprocess.fit_transform(problem.features, problem.target))
    codes = preprocess.categorical_ if native else None
    model = make_model(problem, plan, final, n_networks=plan.networks, seed=seed, codes=codes)
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


#: Most rows that are predicted at once.
MOST_PREDICTED = 2_000_000
#: Text that a spreadsheet would run as a formula, unless it is a number.
_FORMULA = r"^[=+\-@\t\r]"


def predict_file(
    model: str | Path,
    source: Any,
    out: str | Path | None = None,
    *,
    proba: bool = False,
    ids: Sequence[str] = (),
    max_rows: int = MOST_PREDICTED,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Predict every row of a table, in its order, as ``elliptica predict`` does.

    The table is read in the notation of training, while a pipeline from `elliptica.estimators.load` expects
    columns that have been read already.

    Args:
        model: File written by `fit_model` or ``elliptica compare``.
        source: CSV or Parquet file, or a frame, with the input columns; others are ignored.
        out: File for the predictions, CSV, or Parquet if its name says so; None writes nothing. In CSV, text
            that a spreadsheet would run as a formula is prefixed with an apostrophe.
        proba: Also return the probability of each class.
        ids: Columns to copy to the predictions, besides the ids of the comparison.
        max_rows: Maximum number of rows; longer tables raise.

    Returns:
        The predictions, each with its row number and ids, and notices about the table.
    """
    files = [Path(each).resolve() for each in (model, source) if isinstance(each, str | Path)]
    if out is not None and Path(out).resolve() in files:
        raise TableError(f"Predictions would overwrite {out}. Choose another --out.")
    saved = load_model(Path(model))
    if proba and not hasattr(saved.model, "classes_"):
        raise TableError("This model predicts numbers, which have no probabilities. Omit --proba.")
    table = read_table(source, max_rows=max_rows)
    names = [name for name in saved.notes.get("ids", ()) if name in table.frame.columns]
    for name in ids:
        check_column(table, name, "id")
    copied = [table.frame[name] for name in dict.fromkeys([*names, *ids])]
    if not any(column.name == "row" for column in copied):
        copied.insert(0, pl.Series("row", range(1, len(table.frame) + 1), dtype=pl.Int64))
    inputs, _, notices = saved.read(table, {column.name for column in copied})
    predictions = [pl.Series("prediction", np.asarray(saved.model.predict(inputs)))]
    if proba:
        chances = np.asarray(saved.model.predict_proba(inputs))
        labels = saved.model.classes_.tolist()
        predictions += [pl.Series(f"probability of {name}", chances[:, i]) for i, name in enumerate(labels)]
    if clash := {column.name for column in copied} & {column.name for column in predictions}:
        raise TableError(f"{table.name}: the id {clash.pop()!r} is a name of predictions. Rename it.")
    if saved.notes.get("predicts") is False:
        notices.insert(
            0, "Warning: in the comparison, no method was shown to be better than a constant prediction."
        )
    result = pl.DataFrame([*copied, *predictions])
    if out is not None:
        with replacing(Path(out).resolve()) as part:
            if Path(out).suffix.lower() == ".parquet":
                result.write_parquet(part)
            else:
                quote_formulas(result).write_csv(part)
    return result, (*table.notices, *notices)


def quote_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Prefix text that a spreadsheet would run with an apostrophe, in cells and column names.

    Example:
        >>> frame = pl.DataFrame({"=id": ["=HYPERLINK(1)", "-5", "a", None]})
        >>> quote_formulas(frame).to_dict(as_series=False)
        {"'=id": ["'=HYPERLINK(1)", '-5', 'a', None]}
    """
    text = pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String)
    risky = text.str.contains(_FORMULA) & text.cast(pl.Float64, strict=False).is_null()
    quoted = frame.with_columns(pl.when(risky).then("'" + text).otherwise(text).name.keep())
    return quoted.rename({name: f"'{name}" for name in frame.columns if re.match(_FORMULA, name)})


@dataclass(frozen=True)
class SavedModel:
    """A model loaded from a file."""

    name: str  # name of the file
    model: Any  # the estimator without its preprocessing: a network, trees or a linear model
    preprocessor: Any  # converts a table to the inputs; None: the model was trained on numbers
    notes: Mapping[str, Any]  # other contents of the file

    def columns(self, table: Table, used: Set[str]) -> list[Column]:
        """Return how each input is read; ``used`` columns have another use.

        Without notes of a comparison, cells are plain numbers, categories, ISO dates or texts.
        """
        if reading := self.notes.get("reading"):
            return [Column.from_json(each) for each in reading["columns"]]
        names = getattr(self.preprocessor or self.model, "feature_names_in_", None)
        if names is None:
            names = [name for name in table.frame.columns if name not in used]
        kinds = getattr(self.preprocessor, "kinds_", ["number"] * len(names))
        return [
            Column(str(name), kind, format=ISO if kind == "date" else "")
            for name, kind in zip(names, kinds, strict=True)
        ]

    def read(self, table: Table, used: Set[str]) -> tuple[Any, list[str], list[str]]:
        """Convert a table to the inputs of the model; return them, their names, and notices."""
        columns = self.columns(table, used)
        inputs, notices = read_inputs(columns, table), []
        new = {column.name: int(column.is_new(inputs[column.name]).sum()) for column in columns}
        if most := [name for name in sorted(new, key=lambda name: -new[name]) if new[name]]:
            shown = ", ".join(f"{name!r} in {new[name]:,} rows" for name in most[:5])
            notices.append(
                f"Numbers outside the range of training, or new categories: {shown}. The model was not "
                "tested there."
            )
        unknown = [name for name in table.frame.columns if name not in used and name not in inputs.columns]
        if unknown:
            notices.append(f"Columns that the model does not use: {', '.join(map(repr, unknown))}.")
        if self.preprocessor is not None:
            names = [str(name) for name in self.preprocessor.get_feature_names_out()]
            return self.preprocessor.transform(inputs), names, notices
        has_names = hasattr(self.model, "feature_names_in_")
        return inputs if has_names else inputs.to_numpy(), inputs.columns, notices

    def goal(self, name: str) -> Target:
        """Return how the targets of a table are read; ``name`` is their column."""
        if reading := self.notes.get("reading"):
            goal = Target.from_json(reading["target"])
            return replace(goal, column=replace(goal.column, name=name))
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            return Target(Column(name, "number"))
        column = Column(name, "category", coded=classes.dtype.kind in "iuf")
        return Target(column, tuple(int(c) if isinstance(c, float) else c for c in classes.tolist()))


def load_model(file: Path) -> SavedModel:
    """Load a model that ``elliptica compare`` or `elliptica.estimators.save` wrote."""
    model, notes = load_with_notes(file)
    first, last = (model[0], model[-1]) if isinstance(model, Pipeline) else (None, model)
    return SavedModel(file.name, last, first, notes)


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
        raise TableError(f"{saved.name} is an average of several models. Diagnose one of its methods alone.")
    target = target or saved.notes.get("target")
    if target is None:
        raise TableError(f"{saved.name} does not say which column it predicts. Pass --target COLUMN.")
    classes, notices = getattr(saved.model, "classes_", None), dict[str, None]()
    rows: dict[RowsOf, Rows] = {}
    sources: dict[RowsOf, Any] = {"training": source, "held-out": test, "unlabelled": unlabelled}
    for kind in (kind for kind in sources if sources[kind] is not None):
        table = read_table(sources[kind], max_rows=max_rows, sample=True)
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
