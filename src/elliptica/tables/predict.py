"""Read tables for saved models: rows to predict, and rows with targets to evaluate a model on."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import torch
from sklearn.pipeline import Pipeline

from elliptica._utils.files import replacing
from elliptica._utils.text import count
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, load, read_notes
from elliptica.tables.columns import Reading, read_inputs, read_written_numbers, readings_of
from elliptica.tables.fitted_model import FittedModel, Predictor
from elliptica.tables.methods import NAMES
from elliptica.tables.problem import has_target
from elliptica.tables.store import check_writable
from elliptica.tables.table import MAX_ROWS as SAMPLE_ROWS
from elliptica.tables.table import Table, TableError, check_column, check_path, read_table

MAX_ROWS = 2_000_000
_TOO_LONG = "because all of them are held in memory. Split the table, or raise --max-rows (max_rows=)."
_WHENCE = "which elliptica compare writes."
#: Text that a spreadsheet would run as a formula, unless it is a number.
_FORMULA = r"^[=+\-@\t\r]"
#: Types of Parquet files that CSV files cannot hold, besides nested ones.
_NOT_IN_CSV = (pl.Binary, pl.Duration, pl.Object)


def predict_file(
    model: str | Path,
    source: Any,
    out: str | Path | None = None,
    *,
    proba: bool = False,
    ids: Sequence[str] = (),
    max_rows: int = MAX_ROWS,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Predict every row of a table, in its order, as ``elliptica predict`` does.

    The table is read by the decisions of the comparison: dates, currency signs, units and thousands
    separators are parsed as in training. (A pipeline loaded with `elliptica.estimators.load` expects columns
    that have been parsed already.)

    Args:
        model: File written by `fit_model` or ``elliptica compare``.
        source: CSV or Parquet file, or a frame, with the input columns; others are ignored.
        out: File for the predictions, CSV, or Parquet if its name says so; None writes nothing. In CSV, text
            that a spreadsheet would run as a formula is prefixed with an apostrophe.
        proba: Also return the probability of each class.
        ids: Columns to copy to the predictions, besides the ids of the comparison.
        max_rows: Maximum number of rows, because all are held in memory. Longer tables raise.

    Returns:
        The predictions, each with its row number and ids, and notices about the table.

    Raises:
        TableError: If the model cannot be read, the table does not fit it, or ``out`` cannot be written.
    """
    model, out = Path(model), None if out is None else Path(out)
    for path in (model, out, source):
        if isinstance(path, str | Path):
            check_path(Path(path))
    if out is not None:
        _check_inputs_kept(out, model, source)
    saved = load_model(model)
    _check_usable(saved, proba)
    if out is not None:
        _check_out(out)
    table = read_table(source, max_rows=max_rows, as_text=True, too_long=_TOO_LONG)
    named = _ids(table, ids, saved.notes)
    _check_ids(named, out)
    columns = {"row": pl.Series(range(1, len(table.frame) + 1), dtype=pl.Int64), **named}
    inputs, notices = _read_inputs(saved, table, set(columns))
    if saved.notes.get("predicts") is False:
        notices.insert(
            0,
            "Warning: in the comparison, no method was shown to be better than a constant prediction, "
            "including this model.",
        )
    ends = saved.notes.get("range") if saved.notes.get("bounded") is True else None
    raw, chances = _predict(saved, inputs, table.name, proba)
    predicted, said = _bounded(raw, ends)
    notices += said
    predictions = {"prediction": pl.Series(predicted)}
    if chances is not None:
        classes = saved.model.classes_.tolist()
        predictions |= {f"probability of {name}": pl.Series(chances[:, i]) for i, name in enumerate(classes)}
    if double := [name for name in columns if name in predictions]:
        raise TableError(f"The id column {double[0]!r} has the name of a prediction column. Rename it.")
    result = pl.DataFrame({**columns, **predictions})
    if out is not None:
        _write(result, out)
    return result, (*table.notices, *notices)


def _check_usable(saved: SavedModel, proba: bool) -> None:
    """Raise for a model that cannot predict a table, or not in one column."""
    if saved.preprocessor is None:
        raise TableError(
            f"{saved.name} holds a model without its preprocessing, so elliptica cannot read a "
            "table for it. Use it from Python with elliptica.estimators.load."
        )
    if getattr(saved.model, "_is_multilabel", False) or not getattr(saved.model, "_is_flat", True):
        raise TableError(
            f"{saved.name} predicts {saved.model.n_outputs_} targets at once, but a table of predictions has "
            "one column for them. Use it from Python: elliptica.estimators.load."
        )
    if proba and not hasattr(saved.model, "classes_"):
        raise TableError("This model predicts numbers, which have no probabilities. Omit --proba.")


def _predict(saved: SavedModel, inputs: Any, name: str, proba: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Predictions and, if asked for, probabilities; raise where a model has no answer."""
    try:
        predicted = np.asarray(saved.model.predict(inputs))
        chances = np.asarray(saved.model.predict_proba(inputs)) if proba else None
    except ValueError as error:
        raise TableError(f"{saved.name} cannot predict {name}: {error}") from error
    if predicted.dtype.kind == "f" and (n_bad := int((~np.isfinite(predicted)).sum())):
        raise TableError(
            f"{saved.name} predicts NaN or infinity for {n_bad} of {len(predicted)} rows of {name}. Compare "
            "again, or correct numbers that are out of all proportion."
        )
    return predicted, chances


def _check_inputs_kept(out: Path, model: Path, source: Any) -> None:
    """Raise if the predictions would overwrite the model or the table, under any name."""
    given = {"model": model}
    if isinstance(source, str | Path):
        given["table"] = Path(source)
    for what, file in given.items():
        same = out.resolve() == file.resolve() or (
            out.exists() and file.exists() and out.samefile(file)  # also hard links
        )
        if same:
            raise TableError(
                f"Predictions would overwrite the {what} {file}. Choose another --out than {out}."
            )


def _check_out(out: Path) -> None:
    """Raise before the work starts if a file cannot be written."""
    if out.is_dir():
        raise TableError(f"{out} is a folder. Pass the name of a CSV file to --out.")
    if not out.exists():
        check_writable(out.resolve().parent)
    elif not os.access(out, os.W_OK):
        raise TableError(f"The file {out} is not writable. Choose another --out, or make it writable.")
    elif out.is_file():
        check_writable(out.resolve().parent)  # a new file replaces it
    else:
        _try_device(out)


def _try_device(out: Path) -> None:
    """Write an empty line to a device, so that /dev/full fails before the work starts."""
    try:
        if out.is_char_device():
            with out.open("wb", buffering=0) as handle:
                if not handle.isatty():
                    handle.write(b"\n")
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> TableError:
    return TableError(
        f"{out} cannot be written ({error.strerror or error}). Choose another --out. The model and the table "
        "are unchanged."
    )


def _is_parquet(out: Path) -> bool:
    return out.suffix.lower() == ".parquet"


def _write(result: pl.DataFrame, out: Path) -> None:
    """Write predictions; a regular file is replaced as a whole or not at all."""
    as_parquet = _is_parquet(out)
    content = result if as_parquet else quote_formulas(result)
    try:
        if out.exists() and not out.is_file():
            with _open_special(out) as handle:
                content.write_csv(handle)
            return
        with replacing(out.resolve()) as part:
            if as_parquet:
                content.write_parquet(part)
            else:
                content.write_csv(part)
    except OSError as error:
        raise _unwritable(out, error) from error


def _open_special(out: Path) -> IO[bytes]:
    """Open a device or a pipe for writing; raise for a pipe that nobody reads, which would wait for ever."""
    if not out.is_fifo():
        return out.open("wb")
    try:
        handle = os.open(out, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "nobody reads this pipe", str(out)) from error
        raise
    os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def quote_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Prefix text that a spreadsheet would run with an apostrophe, in cells and column names.

    Example:
        >>> frame = pl.DataFrame({"=id": ["=HYPERLINK(1)", "-5", "a", None]})
        >>> quote_formulas(frame).to_dict(as_series=False)
        {"'=id": ["'=HYPERLINK(1)", '-5', 'a', None]}
    """
    columns = []
    for column in frame.iter_columns():
        if column.dtype in (pl.Categorical, pl.Enum):
            column = column.cast(pl.String)
        if column.dtype == pl.String:
            number = column.cast(pl.Float64, strict=False).is_not_null()
            risky = (column.str.contains(_FORMULA) & ~number).fill_null(False)
            column = column.zip_with(~risky, "'" + column)
        columns.append(column.alias(f"'{column.name}" if re.match(_FORMULA, column.name) else column.name))
    return pl.DataFrame(columns)


def _ids(table: Table, wanted: Sequence[str], notes: Mapping[str, Any]) -> dict[str, pl.Series]:
    """Return the id columns that were requested, and those of the comparison that the table has."""
    for name in wanted:
        check_column(table, name, "id")
    known = [name for name in _names(notes, "ids") if name in table.frame.columns]
    return {name: table.frame[name] for name in dict.fromkeys((*known, *wanted))}


def _check_ids(columns: Mapping[str, pl.Series], out: Path | None) -> None:
    """Raise for ids that the file of predictions cannot hold."""
    for name, column in columns.items():
        kind = column.dtype
        if out is not None and not _is_parquet(out) and (kind.is_nested() or kind in _NOT_IN_CSV):
            raise TableError(
                f"The id column {name!r} is of type {kind}, which a CSV file cannot hold. Pass another --id, "
                "or an --out that ends in .parquet."
            )


def _names(notes: Mapping[str, Any], key: str) -> list[str]:
    """Return column names from the notes of a model; the notes are untrusted."""
    names = notes.get(key, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


@dataclass(frozen=True)
class SavedModel:
    """A model loaded from a file."""

    name: str  # name of the file
    model: Any  # the estimator without its preprocessing: a network, trees or a linear model
    #: Converts a table to the inputs; None: the model was trained on numbers.
    preprocessor: TablePreprocessor | None
    notes: Mapping[str, Any]  # other contents of the file, which are untrusted

    def check_network(self) -> None:
        """Raise if the model is not a network.

        Raises:
            TableError: If it is not; the message says what can be done with it.
        """
        if isinstance(self.model, EllipticClassifier | EllipticRegressor):
            return
        kind = NAMES.get(str(self.notes.get("method")), type(self.model).__name__)
        raise TableError(
            f"{self.name} holds {kind}, not a network, and only networks have a page. "
            "elliptica predict uses the model, and the report of the comparison shows its scores. To get a "
            "network, exclude trees and linear: elliptica compare ... --methods erm,mixup,elliptic."
        )


def load_model(file: Path) -> SavedModel:
    """Load a model that ``elliptica compare`` or `elliptica.estimators.save` wrote.

    Raises:
        TableError: If the file does not exist or does not hold a model.
    """
    check_path(file)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise TableError(f"The model {file} {what}. Expected a file such as model.elliptica, {_WHENCE}")
    try:
        model, notes = load(file), read_notes(file)
    except (ValueError, OSError) as error:
        raise TableError(
            f"The model cannot be read: {error} Expected a file such as model.elliptica, {_WHENCE}"
        ) from error
    preprocessor, model = (model[0], model[-1]) if isinstance(model, Pipeline) else (None, model)
    return SavedModel(file.name, model, preprocessor, notes)


def _read_inputs(
    saved: SavedModel, table: Table, carried: Set[str]
) -> tuple[pl.DataFrame | np.ndarray, list[str]]:
    """Convert a table to the inputs of a model, with notices about it.

    Args:
        saved: The model, with its preprocessor if it has one.
        table: A table read with ``as_text=True``.
        carried: Columns that have another use.

    Raises:
        TableError: If columns are missing, or do not fit what the model was trained on.
    """
    readings = _readings(saved, table, carried)
    names = [reading.name for reading in readings]
    notices: list[str] = []
    extra = [name for name in table.frame.columns if name not in names and name not in carried]
    if extra and set(names) <= set(table.frame.columns):
        notices.append(f"Columns that the model does not use: {', '.join(map(repr, extra))}.")
    state = None if saved.preprocessor is None else saved.preprocessor.to_dict()
    frame = read_inputs(readings, table, state=state, notices=notices)
    notices += _outside(frame, saved.notes.get("ranges"))
    if saved.preprocessor is not None:
        return saved.preprocessor.transform(frame), notices
    return _without_gaps(frame, saved.model), notices


def _readings(saved: SavedModel, table: Table, outside: Set[str]) -> list[Reading]:
    """Return how each input is parsed; a model trained on an array takes all columns in order."""
    if saved.preprocessor is not None:
        state = saved.preprocessor.to_dict()
        reading = saved.notes.get("reading")
        noted = reading.get("columns") if isinstance(reading, dict) else None
        if isinstance(noted, list) and all(isinstance(each, dict) for each in noted):
            readings = {each.name: each for each in map(Reading.from_dict, noted)}
            if [column["name"] for column in state["columns"]] == list(readings):
                return list(readings.values())
        return readings_of(state, _names(saved.notes, "text_as_missing"))
    names = getattr(saved.model, "feature_names_in_", None)
    if names is None:
        names = [name for name in table.frame.columns if name not in outside]
        if len(names) != saved.model.n_features_in_:
            raise TableError(
                f"The model takes {saved.model.n_features_in_} columns without names, but {table.name} has "
                f"{len(names)} besides the target and the group. Keep only these, in the order of training."
            )
    return [Reading(str(name), "number") for name in names]


def _outside(frame: pl.DataFrame, ranges: Any) -> list[str]:
    """Count rows with a number outside the range of the training rows."""
    if not isinstance(ranges, Mapping):
        return []
    beyond: dict[str, pl.Series] = {}
    for name, ends in ranges.items():
        if _is_range(ends) and name in frame.columns and frame[name].dtype.is_numeric():
            beyond[name] = ~frame[name].is_between(*ends).fill_null(True)
    counts = {name: int(rows.sum()) for name, rows in beyond.items() if rows.any()}
    if not counts:
        return []
    rows = pl.DataFrame(list(beyond.values())).max_horizontal().sum()
    most = sorted(counts, key=lambda name: -counts[name])[:3]
    shown = ", ".join(f"{name!r} in {counts[name]:,}" for name in most)
    more = f" and {len(counts) - len(most)} more" if len(counts) > len(most) else ""
    return [
        f"{rows:,} of {len(frame):,} rows lie outside the range of the training rows ({shown}{more}). The "
        "model was not tested there."
    ]


def _bounded(predicted: np.ndarray, ends: Any) -> tuple[np.ndarray, list[str]]:
    """Clip numbers to the range of the training targets if the model does not do so itself."""
    if not _is_range(ends) or predicted.dtype.kind != "f":
        return predicted, []
    inside = predicted.clip(*ends)
    changed = int((inside != predicted).sum())
    low, high = (f"{end:g}" for end in ends)
    text = f"{changed:,} of {len(predicted):,} predictions left the range of the training targets"
    return inside, [f"{text} ({low} to {high}) and were clipped to it."] if changed else []


def _is_range(ends: Any) -> bool:
    """Return whether a value from a file is an ordered pair of numbers."""
    is_pair = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
    return is_pair and ends[0] <= ends[1]


def _without_gaps(features: pl.DataFrame, model: Any) -> pl.DataFrame | np.ndarray:
    """Prepare a table for a model without a preprocessor: no gaps, and names only if it knows names."""
    gaps = [column.name for column in features.iter_columns() if column.null_count()]
    if gaps:
        raise TableError(
            f"Column {gaps[0]!r} has missing values, which the model cannot handle because it was saved "
            "without a preprocessor. Fill them in, or remove these rows."
        )
    return features if hasattr(model, "feature_names_in_") else features.to_numpy()


@dataclass(frozen=True)
class LabelledRows:
    """A saved model, and rows with targets for it."""

    network: Any  # the estimator without its preprocessing; trees or a linear model if requested
    inputs: pl.DataFrame | np.ndarray  # rows in the form that the estimator expects
    names: list[str]  # names of the inputs
    target: np.ndarray  # targets of the rows: labels among its classes, or numbers
    groups: list[str] | None  # group of each row as text, or None
    notices: tuple[str, ...]  # remarks about how the rows were read
    numbers: list[int] | None = None  # row numbers in the file, from 1; None for a sample

    def fitted(self) -> FittedModel:
        """Return the network with its rows in the form that it was trained on."""
        network = self.network
        rows = network.network_rows(self.inputs, self.target)
        return FittedModel(
            *rows,
            name=f"{type(network).__name__}, {network.method}",
            groups=self.groups,
            class_names=[str(label) for label in getattr(network, "classes_", ())],
            feature_names=self.names,
        )


def fitted_predictor(
    rows: LabelledRows, held_out: LabelledRows | None = None, unlabelled: np.ndarray | None = None
) -> FittedModel:
    """Combine a saved model with rows, predicting as in use: bounded, calibrated, trees as well as networks.

    Args:
        rows: Training rows.
        held_out: Other rows with targets.
        unlabelled: Other inputs, in the form that the model expects.
    """
    inputs = np.asarray(rows.inputs, dtype=np.float64)
    classes = getattr(rows.network, "classes_", None)
    module = Predictor(rows.network)

    def targets(found: LabelledRows) -> torch.Tensor:
        if classes is None:
            return torch.tensor(found.target, dtype=torch.float64)[:, None]
        return torch.from_numpy(np.searchsorted(classes, found.target))

    held = None
    if held_out is not None:
        held = torch.tensor(np.asarray(held_out.inputs), dtype=torch.float64), targets(held_out)
    return FittedModel(
        module,
        torch.nn.MSELoss() if classes is None else torch.nn.CrossEntropyLoss(),
        torch.from_numpy(inputs.copy()),
        targets(rows),
        groups=rows.groups,
        class_names=None if classes is None else [str(label) for label in classes],
        feature_names=rows.names if len(rows.names) == inputs.shape[1] else (),
        test=held,
        test_groups=None if held_out is None else held_out.groups,
        unlabelled=None if unlabelled is None else torch.from_numpy(unlabelled.copy()),
        unlabelled_row_numbers=None if unlabelled is None else range(1, len(unlabelled) + 1),
        scales_inputs=True,
        row_numbers=rows.numbers,
        test_row_numbers=None if held_out is None else held_out.numbers,
    )


def read_unlabelled(model: Path, source: Any) -> tuple[np.ndarray, list[str]]:
    """Read a table without targets in the form that a saved model expects, with notices about it."""
    saved = load_model(model)
    table = read_table(source, max_rows=MAX_ROWS, as_text=True)
    target = saved.notes.get("target")
    carried = {target} if isinstance(target, str) else set()
    inputs, notices = _read_inputs(saved, table, carried)
    return np.asarray(inputs, dtype=np.float64), [*table.notices, *notices]


def read_labelled(
    model: Path,
    source: Any,
    target: str | None = None,
    *,
    group: str | None = None,
    max_rows: int | None = SAMPLE_ROWS,
    networks_only: bool = True,
) -> LabelledRows:
    """Read a table with targets in the form that a saved model expects.

    Args:
        model: File written by ``elliptica compare`` or `elliptica.estimators.save`.
        source: CSV or Parquet file, or a frame.
        target: Target column; by default that of the comparison. Rows without a target are dropped.
        group: Column of groups, to judge rows by group.
        max_rows: Size of a random sample of longer tables; None reads all rows.
        networks_only: Whether trees and linear models raise an error.

    Raises:
        TableError: If the model cannot be read, or the table does not fit it.
    """
    saved = load_model(model)
    if networks_only:
        saved.check_network()
    network = saved.model
    if getattr(network, "_is_multilabel", False) or not getattr(network, "_is_flat", True):
        raise TableError(
            f"{saved.name} predicts {network.n_outputs_} targets at once, but --target names only one. Use "
            "it from Python: elliptica.diagnose(*estimator.network_rows(X, y))."
        )
    if target is None and not isinstance(target := saved.notes.get("target"), str):
        raise TableError(f"{saved.name} does not say which column it predicts. Pass --target COLUMN.")
    table = read_table(source, max_rows=max_rows, sample=True, as_text=True)
    check_column(table, target, "target")
    if group is not None:
        check_column(table, group, "group")
    used = {target} if group is None else {target, group}
    names = [reading.name for reading in _readings(saved, table, used)]
    if target in names:
        raise TableError(
            f"{target!r} is an input of the model, so it cannot be its target. Name another column."
        )
    rows, notices = _with_target(table, target)
    is_sample = any("random sample" in notice for notice in table.notices)
    known = has_target(table.frame[target]).to_list()
    numbers = None if is_sample else [i + 1 for i, each in enumerate(known) if each]
    labels = _labels(rows, _target_reading(saved, target), network)
    groups = None
    if group is not None:
        groups = rows.frame[group].cast(pl.String).fill_null("(missing)").to_list()
    inputs, more = _read_inputs(saved, rows, used)
    if saved.preprocessor is not None:
        names = [str(name) for name in saved.preprocessor.get_feature_names_out()]
    said = (*table.notices, *notices, *more)
    return LabelledRows(network, inputs, names, labels, groups, said, numbers)


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


def _target_reading(saved: SavedModel, target: str) -> Reading:
    """Return how numbers of the target are parsed; older models and other columns have no notation."""
    reading = saved.notes.get("reading")
    noted = reading.get("target") if isinstance(reading, dict) else None
    known = Reading.from_dict(noted) if isinstance(noted, dict) else None
    return known if known is not None and known.name == target else Reading(target, "number")


def _labels(table: Table, reading: Reading, network: Any) -> np.ndarray:
    """Return the targets as the model learnt them: numbers, or labels among its classes."""
    target = reading.name
    column = table.frame[target]
    classes = getattr(network, "classes_", None)
    if column.dtype == pl.Boolean and classes is not None and classes.dtype.kind in "biuf":
        column = column.cast(pl.Int8)
    text = column.cast(pl.String)
    if classes is not None and classes.dtype.kind not in "biuf":
        places = {str(label): i for i, label in enumerate(classes.tolist())}
        class_numbers: list[int | None] = [places.get(value) for value in text.to_list()]
    else:
        numbers = text.str.replace("(?i)^true$", "1").str.replace("(?i)^false$", "0")
        values = read_written_numbers(numbers, reading, decimal_comma=table.decimal_comma).numbers
        if classes is None:
            _refuse(target, text, values.is_null().to_list(), "not a number, but the model predicts numbers")
            return values.to_numpy()
        by_value = {float(label): i for i, label in enumerate(classes.tolist())}
        class_numbers = [None if value is None else by_value.get(value) for value in values.to_list()]
    shown = ", ".join(map(repr, classes.tolist()[:12])) + (" ..." if len(classes) > 12 else "")
    _refuse(target, text, [i is None for i in class_numbers], f"not among the classes of the model ({shown})")
    return np.asarray(classes[np.asarray(class_numbers, dtype=int)])


def _refuse(target: str, text: pl.Series, odd: list[bool], why: str) -> None:
    if any(odd):
        raise TableError(
            f"{sum(odd)} values of the target {target!r} do not fit the model, e.g. "
            f"{text[odd.index(True)]!r}, which is {why}. Pass the column that it was trained to predict."
        )
