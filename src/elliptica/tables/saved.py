"""Predict the rows of a table with a saved model, which need not wait for what trained it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.pipeline import Pipeline

from elliptica._utils.extras import count
from elliptica._utils.files import replacing
from elliptica.estimators.files import load_with_notes
from elliptica.tables.after import Intervals
from elliptica.tables.metrics import Metric, fifths, metrics_of, score, single_test
from elliptica.tables.problem import Target
from elliptica.tables.table import ISO, Column, Table, TableError, check_column, read_inputs, read_table

#: Columns of predicted numbers.
_NUMBERS = ("prediction", "low", "high")
#: Text that a spreadsheet would run as a formula, unless it is a number.
_FORMULA = r"^[=+\-@\t\r]"


def predict_file(
    model: str | Path,
    source: Any,
    out: str | Path | None = None,
    *,
    proba: bool = False,
    ids: Sequence[str] = (),
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Predict every row of a table, in its order, as ``elliptica predict`` does.

    The table is read in the notation of training, while a pipeline from `elliptica.estimators.load` expects
    columns that have been read already.

    Args:
        model: File written by `fit_model` or ``elliptica compare``.
        source: CSV or Parquet file, or a frame, with the input columns; others are ignored.
        out: File for the predictions, CSV, or Parquet if its name says so; None writes nothing. In CSV, text
            that a spreadsheet would run as a formula is prefixed with an apostrophe.
        proba: Also return the probability of each class; those of two classes are always returned.
        ids: Columns to copy to the predictions, besides the ids of the comparison.

    Returns:
        The predictions, each with its row number and ids, and with the ends of its interval or the
        probability of its class; and notices about the table, with scores if it has targets.
    """
    if out is not None and Path(out).suffix.lower() not in (".csv", ".parquet"):
        raise TableError(f"{out}: predictions are written to .csv or .parquet. Choose another --out.")
    files = [Path(each).resolve() for each in (model, source) if isinstance(each, str | Path)]
    if out is not None and Path(out).resolve() in files:
        raise TableError(f"Predictions would overwrite {out}. Choose another --out.")
    saved = load_model(Path(model))
    table = read_table(source)
    names = [name for name in saved.notes.get("ids", ()) if name in table.frame.columns]
    for name in ids:
        check_column(table, name, "id")
    copied = [table.frame[name] for name in dict.fromkeys([*names, *ids])]
    if not any(column.name == "row" for column in copied):
        copied.insert(0, pl.Series("row", range(1, len(table.frame) + 1), dtype=pl.Int64))
    goal = saved.notes.get("target")
    inputs, _, notices = saved.read(table, {column.name for column in copied} | {str(goal)})
    predictions, values = saved.predict(inputs, proba)
    if clash := {column.name for column in copied} & {column.name for column in predictions}:
        raise TableError(f"{table.name}: the id {clash.pop()!r} is a name of predictions. Rename it.")
    if saved.notes.get("predicts") is False:
        notices.insert(
            0, "Warning: in the comparison, no method was shown to be better than a constant prediction."
        )
    if goal in table.frame.columns and (scores := saved.scores(table.frame[goal], values)):
        notices.append(scores)
    result = pl.DataFrame([*copied, *predictions])
    if out is not None:
        _write(result, Path(out))
    return result, (*table.notices, *notices)


def _write(frame: pl.DataFrame, out: Path) -> None:
    with replacing(out.resolve()) as part:
        if out.suffix.lower() == ".parquet":
            frame.write_parquet(part)
        else:
            quote_formulas(frame).write_csv(part)


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
            shown = ", ".join(f"{name!r} in {new[name]:,}" for name in most[:5])
            rows = count(len(table.frame), "row")
            notices.append(f"Values outside the range of training, or new categories, of {rows}: {shown}.")
        unknown = [name for name in table.frame.columns if name not in used and name not in inputs.columns]
        if unknown:
            notices.append(f"Columns that the model does not use: {', '.join(map(repr, unknown))}.")
        if self.preprocessor is not None:
            names = [str(name) for name in self.preprocessor.get_feature_names_out()]
            return self.preprocessor.transform(inputs), names, notices
        has_names = hasattr(self.model, "feature_names_in_")
        return inputs if has_names else inputs.to_numpy(), inputs.columns, notices

    def predict(self, inputs: Any, proba: bool) -> tuple[list[pl.Series], np.ndarray]:
        """Return the columns of predictions, and the numbers or probabilities that they are made of."""
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            if proba:
                raise TableError("This model predicts numbers, which have no probabilities. Omit --proba.")
            values = np.asarray(self.model.predict(inputs))
            ends = self.intervals.around(values) if self.intervals else ()
            return [pl.Series(*each) for each in zip(_NUMBERS, (values, *ends), strict=False)], values
        values = np.asarray(self.model.predict_proba(inputs))
        guess = classes[values.argmax(1)]
        columns = [pl.Series("prediction", guess), pl.Series("probability", values.max(1))]
        if proba or len(classes) == 2:
            columns += [pl.Series(f"probability of {c}", v) for c, v in zip(classes, values.T, strict=True)]
        return columns, values

    @property
    def intervals(self) -> Intervals | None:
        """Intervals of predicted numbers, if the comparison could make them."""
        return Intervals(**self.notes["intervals"]) if self.notes.get("intervals") else None

    def scores(self, cells: pl.Series, values: np.ndarray) -> str:
        """Score predictions of rows with targets, beside the scores of the comparison."""
        try:
            known, target = self.goal(cells.name).read(cells)
        except TableError as error:
            return f"Not scored. {error}"
        if not known.any():
            return ""
        names, promised = getattr(self.model, "classes_", None), dict(self.notes.get("scores", {}))
        task, classes = ("regression", None) if names is None else ("classification", names.tolist())
        bounds = fifths(target) if names is None else None
        test = single_test(task, target, {"": values[known]}, classes=classes, bounds=bounds)
        ours, metrics = score(test)[""], metrics_of(task, False)
        if self.intervals:
            low, high = self.intervals.around(values[known])
            ours["inside"] = float(((target >= low) & (target <= high)).mean())
            promised["inside"] = self.intervals.coverage
            metrics += (Metric("inside", "inside the intervals", True, True),)
        before = {
            m.name: f" ({m.show(promised[m.name])})" for m in metrics if promised.get(m.name) is not None
        }
        texts = [f"{m.label} {m.show(ours[m.name])}{before.get(m.name, '')}" for m in metrics]
        text = f"Scores of {known.sum():,} rows (in brackets: in the comparison): {', '.join(texts)}."
        return f"{text} If the model was trained on these rows, they say nothing about others."

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
