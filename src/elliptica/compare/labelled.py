"""Rows of a table with their targets, for a saved model: what `elliptica diagnose` looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.pipeline import Pipeline

from elliptica._words import count
from elliptica.compare._csv import TableError
from elliptica.compare.predict import load_model, read_inputs
from elliptica.compare.table import Table, as_numbers, check_column, read_table
from elliptica.estimators import EllipticClassifier, EllipticRegressor


@dataclass(frozen=True)
class LabelledRows:
    """A saved network and rows for it.

    Attributes:
        network: The estimator, without its preprocessing.
        inputs: Rows as it takes them.
        target: Their targets: labels among its classes, or numbers.
        groups: Group of each row as text, or None.
        notices: What was decided in reading, in words.
    """

    network: EllipticClassifier | EllipticRegressor
    inputs: pl.DataFrame | np.ndarray
    target: np.ndarray
    groups: list[str] | None
    notices: tuple[str, ...]


def read_labelled(
    model: Path, source: Any, target: str | None = None, *, group: str | None = None
) -> LabelledRows:
    """Read a table with targets as a saved model takes it.

    Args:
        model: File that ``elliptica compare`` or `elliptica.estimators.save` wrote.
        source: CSV or Parquet file, or a frame; of a very long one, a random sample.
        target: Column of the targets; None: that of the comparison. Rows without one are dropped.
        group: Column of groups, if rows are to be judged by group.

    Raises:
        TableError: If the model cannot be read, or the table does not fit it.
    """
    whole, notes = load_model(model)
    preprocessor, network = (whole[0], whole[-1]) if isinstance(whole, Pipeline) else (None, whole)
    if getattr(network, "_is_multilabel", False) or not getattr(network, "_is_flat", True):
        raise TableError(
            f"{model.name} predicts {network.n_outputs_} targets at once, and --target names one. Use it "
            "from Python: elliptica.diagnose(*estimator.network_rows(X, y))."
        )
    if target is None and not isinstance(target := notes.get("target"), str):
        raise TableError(f"{model.name} does not say which column it predicts. Pass --target COLUMN.")
    table = read_table(source, sample=True, as_text=True)
    check_column(table, target, "target")
    if group is not None:
        check_column(table, group, "group")
    wanted = _wanted(table, preprocessor, network, outside={target, group})
    if target in (column["name"] for column in wanted):
        raise TableError(f"{target!r} is an input of the model, so it cannot be what it predicts.")
    rows, notices = _with_target(table, target)
    labels = _labels(rows, target, network)
    groups = None
    if group is not None:
        groups = rows.frame[group].cast(pl.String).fill_null("(missing)").to_list()
    used = {target} if group is None else {target, group}
    features, more = read_inputs(rows, wanted, notes, used)
    inputs = _without_gaps(features, network) if preprocessor is None else preprocessor.transform(features)
    return LabelledRows(network, inputs, labels, groups, (*table.notices, *notices, *more))


def _wanted(table: Table, preprocessor: Any, network: Any, outside: set[str | None]) -> list[dict[str, Any]]:
    """Columns of the model; a network that was trained on an array takes all others in their order."""
    if preprocessor is not None:
        return list(preprocessor.to_dict()["columns"])
    names = getattr(network, "feature_names_in_", None)
    if names is None:
        names = [name for name in table.frame.columns if name not in outside]
        if len(names) != network.n_features_in_:
            raise TableError(
                f"The model takes {network.n_features_in_} columns without names, but {table.name} has "
                f"{len(names)} beside the target and the group. Leave just these, in the order of training."
            )
    return [{"name": str(name), "kind": "number", "had_gaps": True} for name in names]


def _without_gaps(features: pl.DataFrame, network: Any) -> pl.DataFrame | np.ndarray:
    """A table for a network without a preprocessor: no gaps, and names only where it knows names."""
    gaps = [column.name for column in features.iter_columns() if column.null_count()]
    if gaps:
        raise TableError(
            f"Column {gaps[0]!r} has missing values, which the model does not take: it was saved without a "
            "preprocessor. Fill them in, or remove these rows."
        )
    return features if hasattr(network, "feature_names_in_") else features.to_numpy()


def _with_target(table: Table, target: str) -> tuple[Table, list[str]]:
    known = table.frame[target].is_not_null()
    frame = table.frame.filter(known)
    if len(frame) < 2:
        raise TableError(
            f"{table.name} has {count(len(frame), 'row')} with a {target!r}, but at least two are needed."
        )
    lost = len(known) - len(frame)
    notices = [f"{lost} of {len(known)} rows have no target and are dropped."] if lost else []
    return replace(table, frame=frame), notices


def _labels(table: Table, target: str, network: Any) -> np.ndarray:
    """Targets as the model learnt them: numbers, or labels among its classes."""
    column = table.frame[target]
    classes = getattr(network, "classes_", None)
    if column.dtype == pl.Boolean and classes is not None and classes.dtype.kind in "biuf":
        column = column.cast(pl.Int8)
    text = column.cast(pl.String)
    if classes is not None and classes.dtype.kind not in "biuf":
        places = {str(label): i for i, label in enumerate(classes.tolist())}
        found: list[int | None] = [places.get(value) for value in text.to_list()]
    else:
        numbers = text.str.to_lowercase().replace({"true": "1", "false": "0"})
        values = as_numbers(numbers, decimal_comma=table.decimal_comma)
        if classes is None:
            _refuse(target, text, values.is_null().to_list(), "no number, but the model predicts numbers")
            return values.to_numpy()
        by_value = {float(label): i for i, label in enumerate(classes.tolist())}
        found = [None if value is None else by_value.get(value) for value in values.to_list()]
    shown = ", ".join(map(repr, classes.tolist()[:12])) + (" ..." if len(classes) > 12 else "")
    _refuse(target, text, [i is None for i in found], f"none of the classes of the model ({shown})")
    return np.asarray(classes[np.asarray(found, dtype=int)])


def _refuse(target: str, text: pl.Series, odd: list[bool], why: str) -> None:
    if any(odd):
        raise TableError(
            f"{sum(odd)} values of the target {target!r} do not fit the model, e.g. "
            f"{text[odd.index(True)]!r}, which is {why}. Is it the column that the model was trained for?"
        )
