"""Predictions for the rows of another table, with a model that a comparison has left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
from sklearn.pipeline import Pipeline

from elliptica.compare._csv import TableError
from elliptica.compare.problem import as_feature, is_usable
from elliptica.compare.store import check_writable
from elliptica.compare.table import Table, as_numbers, check_column, read_table
from elliptica.estimators import EllipticClassifier, load


def predict_file(
    model: Path, source: Any, out: Path | None = None, *, proba: bool = False
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Predict every row of a table, in its order.

    Args:
        model: File that `fit_model` or ``elliptica compare`` wrote.
        source: CSV or Parquet file, or a frame, with the columns of the inputs; others are ignored.
        out: CSV file for the predictions; None: not written.
        proba: Also the probability of each class.

    Returns:
        The predictions, and notices about the table.

    Raises:
        TableError: If the model cannot be read, the table does not fit it, or ``out`` cannot be written.
    """
    if out is not None and isinstance(source, str | Path) and out.resolve() == Path(source).resolve():
        raise TableError(f"Predictions would overwrite the table itself. Choose another --out than {out}.")
    pipeline = _load(model)
    if proba and not isinstance(pipeline[-1], EllipticClassifier):
        raise TableError("This model predicts numbers, which have no probabilities. Leave --proba out.")
    if out is not None:
        _check_out(out)
    table = read_table(source, max_rows=None, as_text=True)
    inputs, notices = _inputs(table, pipeline[0].to_dict()["columns"])
    columns = {"prediction": pipeline.predict(inputs)}
    if proba:
        chances = pipeline.predict_proba(inputs)
        columns |= {f"probability of {c}": chances[:, i] for i, c in enumerate(pipeline.classes_.tolist())}
    found = pl.DataFrame(columns)
    if out is not None:
        found.write_csv(out)
    return found, (*table.notices, *notices)


def _check_out(out: Path) -> None:
    """Refuse a file that cannot be written before the work is done."""
    if out.is_dir():
        raise TableError(f"{out} is a folder. Pass the name of a CSV file to --out.")
    if not out.exists():
        check_writable(out.parent)
    elif not os.access(out, os.W_OK):
        raise TableError(f"The file {out} must not be written to. Choose another --out, or make it writable.")


def _load(file: Path) -> Pipeline:
    if not file.is_file():
        raise TableError(f"The model {file} does not exist. elliptica compare writes model.elliptica.")
    try:
        model = load(file)
    except (ValueError, OSError) as error:
        raise TableError(f"{file.name} cannot be read as a model: {error}") from error
    if not isinstance(model, Pipeline):
        raise TableError(
            f"{file.name} holds a network without its preprocessing, so that it is not known how to read a "
            "table for it. Use it from Python: elliptica.estimators.load."
        )
    return model


def _inputs(table: Table, wanted: list[dict[str, Any]]) -> tuple[pl.DataFrame, list[str]]:
    """The columns of the model, in its order and types."""
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
    if extra := [name for name in table.frame.columns if name not in names]:
        notices.append(f"Columns that the model does not use: {', '.join(map(repr, extra))}.")
    columns = [_column(table, column, notices) for column in wanted]
    return pl.DataFrame(columns), notices


def _column(table: Table, wanted: dict[str, Any], notices: list[str]) -> pl.Series:
    name = wanted["name"]
    column = table.frame[name]
    if not is_usable(column) and column.null_count() < len(column):
        raise TableError(
            f"Column {name!r} is of type {column.dtype}, but the model learnt {wanted['kind']}s."
        )
    if wanted["kind"] == "number":
        numbers = _numbers(table, column)
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


def _numbers(table: Table, column: pl.Series) -> pl.Series:
    if column.dtype.is_numeric():
        return as_feature(column)
    text = column.cast(pl.String)
    numbers = as_feature(as_numbers(text, decimal_comma=table.decimal_comma))
    odd = (as_numbers(text, decimal_comma=table.decimal_comma).is_null() & text.is_not_null()).arg_true()
    if len(odd):
        raise TableError(
            f"Column {column.name!r} held numbers when the model was trained, but {len(odd)} values are "
            f"none, e.g. {text[int(odd[0])]!r} in row {int(odd[0]) + 1}. Correct them; an empty cell is a "
            "missing value."
        )
    return numbers
