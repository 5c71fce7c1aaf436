"""Read tables for saved models: rows to predict, and rows with targets to measure a model on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.pipeline import Pipeline

from elliptica._utils.text import count
from elliptica.compare.problem import STRAY_SHARE, as_feature, find_strays, has_target, is_usable
from elliptica.compare.store import check_writable
from elliptica.compare.table import MAX_ROWS as SAMPLE_ROWS
from elliptica.compare.table import Table, TableError, as_numbers, check_column, read_table
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, load, read_notes

MAX_ROWS = 2_000_000
_TOO_LONG = "because all of them are held in memory. Split the table, or raise --max-rows (max_rows=)."
#: So many cells of text without a number among them are no chance.
_MANY = 10
_WHENCE = "which elliptica compare writes."


def predict_file(
    model: Path,
    source: Any,
    out: Path | None = None,
    *,
    proba: bool = False,
    ids: Sequence[str] = (),
    max_rows: int = MAX_ROWS,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Predict every row of a table, in its order.

    Args:
        model: File that `fit_model` or ``elliptica compare`` wrote.
        source: CSV or Parquet file, or a frame, with the columns of the inputs; others are ignored.
        out: CSV file for the predictions; None: not written.
        proba: Also the probability of each class.
        ids: Columns to carry to the predictions, beside those that the comparison was told of.
        max_rows: Longer tables are refused: all rows are in memory at once.

    Returns:
        The predictions, each with the number of its row and its ids, and notices about the table.

    Raises:
        TableError: If the model cannot be read, the table does not fit it, or ``out`` cannot be written.
    """
    if out is not None and isinstance(source, str | Path) and out.resolve() == Path(source).resolve():
        raise TableError(f"Predictions would overwrite the table itself. Choose another --out than {out}.")
    saved = load_model(model)
    if saved.preprocessor is None:
        raise TableError(
            f"{saved.name} holds a network without its preprocessing, so that it is not known how to read a "
            "table for it. Use it from Python: elliptica.estimators.load."
        )
    network = saved.network
    if proba and not isinstance(network, EllipticClassifier):
        raise TableError("This model predicts numbers, which have no probabilities. Leave --proba out.")
    if out is not None:
        _check_out(out)
    table = read_table(source, max_rows=max_rows, as_text=True, too_long=_TOO_LONG)
    columns = {
        "row": pl.Series(range(1, len(table.frame) + 1), dtype=pl.Int64),
        **_ids(table, ids, saved.notes),
    }
    inputs, notices = _read_inputs(saved, table, set(columns))
    found = {"prediction": pl.Series(network.predict(inputs))}
    if proba:
        chances = network.predict_proba(inputs)
        found |= {
            f"probability of {c}": pl.Series(chances[:, i]) for i, c in enumerate(network.classes_.tolist())
        }
    if double := [name for name in columns if name in found]:
        raise TableError(f"Predictions have a column {double[0]!r} of their own. Rename the id column.")
    result = pl.DataFrame({**columns, **found})
    if out is not None:
        result.write_csv(out)
    return result, (*table.notices, *notices)


def _ids(table: Table, wanted: Sequence[str], notes: Mapping[str, Any]) -> dict[str, pl.Series]:
    """Columns that are asked for, and those of the comparison that the table has."""
    for name in wanted:
        check_column(table, name, "id")
    known = [name for name in _names(notes, "ids") if name in table.frame.columns]
    return {name: table.frame[name] for name in dict.fromkeys((*known, *wanted))}


def _names(notes: Mapping[str, Any], key: str) -> list[str]:
    """Names of columns in the notes of a model, which may come from anywhere."""
    found = notes.get(key, [])
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _check_out(out: Path) -> None:
    """Refuse a file that cannot be written before the work is done."""
    if out.is_dir():
        raise TableError(f"{out} is a folder. Pass the name of a CSV file to --out.")
    if not out.exists():
        check_writable(out.parent)
    elif not os.access(out, os.W_OK):
        raise TableError(f"The file {out} must not be written to. Choose another --out, or make it writable.")


@dataclass(frozen=True)
class SavedModel:
    """A model from a file."""

    name: str  # of the file
    network: Any  # the estimator, without its preprocessing
    #: What turns a table into its inputs; None: it was trained on numbers.
    preprocessor: TablePreprocessor | None
    notes: Mapping[str, Any]  # what the file says beside it, which may come from anywhere


def load_model(file: Path) -> SavedModel:
    """Read what ``elliptica compare`` or `elliptica.estimators.save` wrote.

    Raises:
        TableError: If there is no such file, or it is none.
    """
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise TableError(f"The model {file} {what}. Expected a file such as model.elliptica, {_WHENCE}")
    try:
        model, notes = load(file), read_notes(file)
    except (ValueError, OSError) as error:
        raise TableError(
            f"The model cannot be read: {error} Expected a file such as model.elliptica, {_WHENCE}"
        ) from error
    preprocessor, network = (model[0], model[-1]) if isinstance(model, Pipeline) else (None, model)
    return SavedModel(file.name, network, preprocessor, notes)


def _read_inputs(
    model: SavedModel, table: Table, carried: Set[str]
) -> tuple[pl.DataFrame | np.ndarray, list[str]]:
    """Turn a table into what the network takes, with notices about it.

    Args:
        model: With its preprocessor, if it has one.
        table: Read with ``as_text=True``.
        carried: Columns that are used otherwise.

    Raises:
        TableError: If columns are missing, or hold something else than in training.
    """
    wanted = _columns(model, table, carried)
    names = [column["name"] for column in wanted]
    missing = [name for name in names if name not in table.frame.columns]
    if len(missing) > 1:
        raise TableError(
            f"{table.name} lacks {len(missing)} of the {len(names)} inputs of the model: "
            f"{', '.join(map(repr, missing[:12]))}{' ...' if len(missing) > 12 else ''}."
        )
    for name in missing:
        check_column(table, name, "model")
    notices = []
    if extra := [name for name in table.frame.columns if name not in names and name not in carried]:
        notices.append(f"Columns that the model does not use: {', '.join(map(repr, extra))}.")
    mended = _names(model.notes, "text_as_missing")
    frame = pl.DataFrame([_column(table, each, each["name"] in mended, notices) for each in wanted])
    if model.preprocessor is not None:
        return model.preprocessor.transform(frame), notices
    return _without_gaps(frame, model.network), notices


def _columns(model: SavedModel, table: Table, outside: Set[str]) -> list[dict[str, Any]]:
    """Columns of the model; a network that was trained on an array takes all others in their order."""
    if model.preprocessor is not None:
        return list(model.preprocessor.to_dict()["columns"])
    names = getattr(model.network, "feature_names_in_", None)
    if names is None:
        names = [name for name in table.frame.columns if name not in outside]
        if len(names) != model.network.n_features_in_:
            raise TableError(
                f"The model takes {model.network.n_features_in_} columns without names, but {table.name} has "
                f"{len(names)} beside the target and the group. Leave just these, in the order of training."
            )
    return [{"name": str(name), "kind": "number", "had_gaps": True} for name in names]


def _column(table: Table, wanted: dict[str, Any], text_as_missing: bool, notices: list[str]) -> pl.Series:
    name = wanted["name"]
    column = table.frame[name]
    if not is_usable(column) and column.null_count() < len(column):
        raise TableError(
            f"Column {name!r} is of type {column.dtype}, but the model learnt {wanted['kind']}s."
        )
    if wanted["kind"] == "number":
        numbers = _numbers(table, column, text_as_missing, notices)
        gaps = numbers.null_count()
        if gaps and not wanted["had_gaps"]:
            notices.append(
                f"Column {name!r}: {gaps} missing values are replaced by {wanted['median']:g}, the median in "
                "training, where none were missing."
            )
        return numbers
    text = as_feature(column.cast(pl.String))
    unknown = text.filter(~text.is_in(wanted["frequent"]))
    if len(unknown):
        why = "were rare in training, or not seen in it" if wanted["n_rare"] else "were not seen in training"
        notices.append(
            f"Column {name!r}: {len(unknown)} values {why}, e.g. {unknown[0]!r}; they count as rare ones."
        )
    return text


def _numbers(table: Table, column: pl.Series, text_as_missing: bool, notices: list[str]) -> pl.Series:
    """As in training: text is missing where it was there, or where it is rare enough to be a slip."""
    if column.dtype.is_numeric():
        return as_feature(column)
    found = find_strays(column.cast(pl.String), decimal_comma=table.decimal_comma)
    if len(found.odd):
        other = len(found.odd) == found.n_known >= _MANY  # another column, or another way to write numbers
        if other or (not text_as_missing and found.share >= STRAY_SHARE):
            raise TableError(
                f"Column {column.name!r} held numbers when the model was trained, but now {len(found.odd)} "
                f"of {found.n_known} values are none, e.g. {found.odd[0]!r}. Correct them; an empty cell is "
                "a missing value."
            )
        notices.append(f"Warning: {found.words(column.name)}. Taken as missing.")
    return as_feature(found.numbers)


def _without_gaps(features: pl.DataFrame, network: Any) -> pl.DataFrame | np.ndarray:
    """A table for a network without a preprocessor: no gaps, and names only where it knows names."""
    gaps = [column.name for column in features.iter_columns() if column.null_count()]
    if gaps:
        raise TableError(
            f"Column {gaps[0]!r} has missing values, which the model does not take: it was saved without a "
            "preprocessor. Fill them in, or remove these rows."
        )
    return features if hasattr(network, "feature_names_in_") else features.to_numpy()


@dataclass(frozen=True)
class LabelledRows:
    """A saved network and rows for it."""

    network: EllipticClassifier | EllipticRegressor  # the estimator, without its preprocessing
    inputs: pl.DataFrame | np.ndarray  # rows as it takes them
    names: list[str]  # of its inputs
    target: np.ndarray  # targets of the rows: labels among its classes, or numbers
    groups: list[str] | None  # group of each row as text, or None
    notices: tuple[str, ...]  # what was decided in reading, in words

    def fitted(self) -> FittedModel:
        """Return the network with its rows as it saw them in training."""
        network = self.network
        rows = network.network_rows(self.inputs, self.target)
        in_plane = rows.x.shape[1] == 2
        return FittedModel(
            *rows,
            name=f"{type(network).__name__}, {network.method}",
            groups=self.groups,
            class_names=[str(label) for label in getattr(network, "classes_", ())],
            feature_names=self.names,
            location=network.x_mean_.tolist() if in_plane else (0.0, 0.0),
            scale=network.x_scale_.tolist() if in_plane else (1.0, 1.0),
        )


def read_labelled(
    model: Path,
    source: Any,
    target: str | None = None,
    *,
    group: str | None = None,
    max_rows: int | None = SAMPLE_ROWS,
) -> LabelledRows:
    """Read a table with targets as a saved model takes it.

    Args:
        model: File that ``elliptica compare`` or `elliptica.estimators.save` wrote.
        source: CSV or Parquet file, or a frame.
        target: Column of the targets; None: that of the comparison. Rows without one are dropped.
        group: Column of groups, if rows are to be judged by group.
        max_rows: Of a longer table, a random sample of this size is read; None: all rows.

    Raises:
        TableError: If the model cannot be read, or the table does not fit it.
    """
    saved = load_model(model)
    network = saved.network
    if getattr(network, "_is_multilabel", False) or not getattr(network, "_is_flat", True):
        raise TableError(
            f"{saved.name} predicts {network.n_outputs_} targets at once, and --target names one. Use it "
            "from Python: elliptica.diagnose(*estimator.network_rows(X, y))."
        )
    if target is None and not isinstance(target := saved.notes.get("target"), str):
        raise TableError(f"{saved.name} does not say which column it predicts. Pass --target COLUMN.")
    table = read_table(source, max_rows=max_rows, sample=True, as_text=True)
    check_column(table, target, "target")
    if group is not None:
        check_column(table, group, "group")
    used = {target} if group is None else {target, group}
    names = [column["name"] for column in _columns(saved, table, used)]
    if target in names:
        raise TableError(f"{target!r} is an input of the model, so it cannot be what it predicts.")
    rows, notices = _with_target(table, target)
    labels = _labels(rows, target, network)
    groups = None
    if group is not None:
        groups = rows.frame[group].cast(pl.String).fill_null("(missing)").to_list()
    inputs, more = _read_inputs(saved, rows, used)
    if saved.preprocessor is not None:
        names = [str(name) for name in saved.preprocessor.get_feature_names_out()]
    return LabelledRows(network, inputs, names, labels, groups, (*table.notices, *notices, *more))


def _with_target(table: Table, target: str) -> tuple[Table, list[str]]:
    known = has_target(table.frame[target])
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
            f"{text[odd.index(True)]!r}, which is {why}. Pass the column that it was trained for."
        )
