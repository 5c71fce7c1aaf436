"""Read columns of any table by their kind, and check the tables that estimators accept."""

from __future__ import annotations

import contextlib
import datetime
import numbers
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

Kind = Literal["number", "category", "date", "text"]

#: Name of the category of missing values.
MISSING = "(missing)"

_DAY = np.timedelta64(1, "D")
_NO_TARGETS = "no_validation"  # scikit-learn's marker; None would mean that targets are missing
_NAMED = 5  # maximum number of columns in a message


def is_free_text(values: Sequence[str], n_words: float = 3.0) -> bool:
    """Return whether texts have at least three words on average, like remarks and titles but unlike codes.

    Example:
        >>> is_free_text(["a small flat near the lake", "house"]), is_free_text(["New York", "Ulm"])
        (True, False)
    """
    step = max(1, len(values) // 1000)  # a thousand of them are enough
    some = values[::step]
    return sum(len(text.split()) for text in some) >= n_words * max(1, len(some))


def is_frame(X: object) -> bool:
    """Return whether ``X`` has named columns, like frames of pandas and polars."""
    return hasattr(X, "columns") and hasattr(X, "__getitem__") and not isinstance(X, np.ndarray)


def named_columns(X: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the columns; those of an array are named x0, x1, ..."""
    if is_frame(X):
        for name in X.columns:
            yield str(name), X[name]
    else:
        for j in range(X.shape[1]):
            yield f"x{j}", X[:, j]


def read_column(name: str, values: Any, kind: Kind | None = None) -> tuple[Kind, np.ndarray]:
    """Read a column as float64 with NaN for missing values, or as strings.

    Numbers, booleans (0 and 1) and durations (days) are numbers. Dates become days since 1970. Strings,
    categories of pandas and polars, and mixtures of strings and numbers are categories, with `MISSING` for
    missing values. Free text must be requested; missing texts are empty.

    Args:
        name: Name of the column, for messages.
        values: A column of a frame or of an array.
        kind: Required kind; None decides by the dtype.
    """
    own_kind, array = _read(name, values, kind)
    if kind in (None, own_kind):
        return own_kind, array
    if kind == "text":
        return kind, np.where(array == MISSING, "", array)
    if kind == "number" and own_kind == "date":
        return kind, array
    # a column that happens to be empty does not reveal its kind
    known = array[array != MISSING] if own_kind == "category" else array[~np.isnan(array)]
    if len(known):
        raise ValueError(
            f"Column {name!r} held {kind}s when the preprocessor was fitted, but now holds {known[0]!r}. "
            f"Convert the column to {kind}s first. If the model is a file of elliptica compare, use "
            "elliptica.tables.predict_file(file, frame), which converts columns as elliptica predict does."
        )
    return kind, np.full(len(array), np.nan)


def _read(name: str, values: Any, kind: Kind | None) -> tuple[Kind, np.ndarray]:
    """Read a column by its dtype: numbers, dates as days, or categories (also if requested)."""
    dtype = str(values.dtype).lower()
    as_strings = kind in ("category", "text")
    if dtype in ("string", "str") and (text := _strings(values)) is not None:
        return "category", text
    if dtype.startswith("datetime64[") and "," in dtype:  # pandas with a time zone: convert to UTC
        array = values.to_numpy(dtype="datetime64[ns]")
    else:
        array = np.asarray(values)
    own_kind: Kind = "number"
    if array.dtype.kind == "O" and (days := _dates(array)) is not None:
        array = days
    if array.dtype.kind in "Mm":
        own_kind, array = "date" if array.dtype.kind == "M" else "number", _days(array)
    elif array.dtype.kind not in "biuf":
        own_kind, array = _read_objects(name, array.astype(object), as_strings)
    is_category = dtype.startswith(("categor", "enum"))
    if own_kind == "number" and (as_strings or (is_category and kind != "number")):
        own_kind, array = _read_objects(name, array.astype(object), True)
    if own_kind != "category":
        array = array.astype(np.float64)
        if np.isinf(array).any():
            raise ValueError(
                f"Column {name!r} contains infinity. Replace it by a number, or by NaN if it is missing."
            )
    return own_kind, array


def _strings(values: Any) -> np.ndarray | None:
    """Convert strings of polars or pandas without a Python loop; None if that is not possible."""
    if hasattr(values, "fill_null"):
        return np.asarray(values.fill_null(MISSING).to_numpy(), dtype=object)
    if hasattr(values, "fillna"):
        return np.asarray(values.fillna(MISSING).to_numpy(dtype=object), dtype=object)
    return None


def _dates(array: np.ndarray) -> np.ndarray | None:
    """Convert Python dates and times; None if there are other objects."""
    present = [value for value in array[:1000] if not _is_missing(value)]
    if not present or not all(isinstance(value, datetime.date) for value in present):
        return None
    try:
        return np.array([None if _is_missing(v) else v for v in array], dtype="datetime64[us]")
    except (TypeError, ValueError):
        return None


def _read_objects(name: str, array: np.ndarray, as_strings: bool) -> tuple[Kind, np.ndarray]:
    """Read a column of Python objects: numbers if all are and strings are not requested, else categories."""
    missing = np.array([_is_missing(value) for value in array], dtype=bool)
    present = array[~missing]
    odd = next((v for v in present if not _is_text_or_number(v)), None)
    if odd is not None:
        raise TypeError(
            f"Column {name!r} holds {type(odd).__name__} values ({odd!r:.40}), but every argument must be a "
            "string or a number. Convert the column, or drop it."
        )
    # an empty column is a number unless it is known to be something else
    if not as_strings and all(isinstance(v, numbers.Number) for v in present):
        out = np.full(len(array), np.nan)
        out[~missing] = present.astype(np.float64)
        return "number", out
    text = np.full(len(array), MISSING, dtype=object)
    text[~missing] = [_as_text(value) for value in present]
    return "category", text


def _is_text_or_number(value: object) -> bool:
    """Return whether a value is a string or a real number."""
    is_complex = isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)
    return isinstance(value, (str, numbers.Number)) and not is_complex


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _as_text(value: object) -> str:
    """Write numbers as categories; 1 and 1.0 are the same."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _days(array: np.ndarray) -> np.ndarray:
    """Convert times to days (since 1970)."""
    since = array - np.datetime64(0, "D") if array.dtype.kind == "M" else array
    return np.where(np.isnat(array), np.nan, since / _DAY)


def check_table(estimator: Any, X: Any, y: Any = _NO_TARGETS, *, reset: bool, y_numeric: bool = False) -> Any:
    """Check inputs and targets, and convert inputs to floating point; errors name the remedy.

    Args:
        estimator: Estimator whose columns are recorded or compared.
        X: The user's table.
        y: Targets, one or several columns.
        reset: Record the columns instead of comparing them.
        y_numeric: Whether targets must be numbers.
    """
    options: dict[str, Any] = {"dtype": [np.float64, np.float32], "accept_sparse": False, "reset": reset}
    X = _readable(X)
    check_names(estimator, X, reset=reset)
    if not (isinstance(y, str) and y == _NO_TARGETS):
        y = _readable(y)
        check_objects(y, y_numeric)
        options |= {"y": y, "multi_output": True, "y_numeric": y_numeric}
    try:
        if times := _time_columns(X):
            raise TypeError(f"{_in_words(times, 'times')}, which NumPy would count in units of their own.")
        return validate_data(estimator, X, **options)
    except (TypeError, ValueError) as error:
        odd = _odd_columns(X)
        if not odd:
            _explain_columns(X)
            raise
        name, kind = type(estimator).__name__, TypeError if isinstance(error, TypeError) else ValueError
        first, *_ = str(error).splitlines()
        raise kind(
            f"{first}\n{name} needs numbers, but {odd}. Put a preprocessor before it:\n"
            "    from sklearn.pipeline import make_pipeline\n"
            "    from elliptica.estimators import TablePreprocessor\n"
            f"    model = make_pipeline(TablePreprocessor(), {name}(...))"
        ) from error


def check_names(estimator: Any, X: Any, *, reset: bool) -> None:
    """Raise if a frame is lazy, has two columns of one name, or the columns of training in another order."""
    if type(X).__name__ == "LazyFrame":
        raise TypeError("X is a lazy frame, which has no values yet. Pass X.collect().")
    names = [str(name) for name in X.columns] if is_frame(X) else []
    if double := sorted(
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    ):
        raise ValueError(f"X has several columns named {double[0]!r:.60}. Rename all but one of them.")
    # scikit-learn compares names with those of training only if they are strings
    before = names if reset else getattr(estimator, "_frame_names", names)
    if reset:
        estimator._frame_names = names
    elif names != before and set(names) == set(before):
        at = next(i for i, pair in enumerate(zip(names, before, strict=True)) if len(set(pair)) > 1)
        raise ValueError(
            "The feature names should match those that were passed during fit. Feature names must be in the "
            f"same order as they were in fit, but column {at} is {names[at]!r:.60} instead of "
            f"{before[at]!r:.60}. Select the columns in that order first."
        )


def _readable(values: Any) -> Any:
    """Return tensors and nullable integers of pandas as NumPy reads them exactly; others stay as they are."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return values.float() if values.dtype == torch.bfloat16 else values
    if isinstance(values, np.ndarray) and values.dtype.kind == "T":  # scikit-learn cannot read these strings
        return values.astype(object)
    own = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    if isinstance(own, np.dtype) and own.kind in "biu" and not values.isna().any():
        return values.to_numpy(dtype=own)  # scikit-learn would take float64, which cannot hold all of them
    return values


def check_objects(y: Any, numeric: bool = False) -> None:
    """Raise for targets that are missing, no numbers if these are needed, or of types that do not compare."""
    if not isinstance(getattr(y, "dtype", None), np.dtype):
        if isinstance(y, str) or not hasattr(y, "__len__"):
            return
        try:
            y = np.asarray(y)
        except ValueError:  # rows of unequal length: scikit-learn says so
            return
    values = np.asarray(y)
    if values.dtype.kind != "O" or values.ndim == 0:
        return
    flat = values.reshape(len(values), -1)
    for row, cells in enumerate(flat):
        if any(_is_missing(value) for value in cells):
            raise ValueError(
                f"y contains NaN or None: it is missing in row {row} (counted from 0). Drop such rows."
            )
    odd = next((v for v in flat.ravel() if not isinstance(v, (str, numbers.Number, np.bool_))), None)
    if numeric and odd is not None:
        raise TypeError(
            f"y must hold numbers, but holds {type(odd).__name__} values ({odd!r:.40}). Convert them first, "
            "dates for instance to days."
        )
    kinds = {"text" if isinstance(value, str) else "other" for value in flat.ravel()}
    if len(kinds) > 1:
        raise TypeError("y mixes strings with other types, which cannot be sorted. Convert all to strings.")


def _time_columns(X: Any) -> list[str]:
    """Return the names of columns of dates, times and durations."""
    if is_frame(X):
        return [
            name
            for name, values in named_columns(X)
            if str(getattr(values, "dtype", "")).lower().startswith(("date", "time", "duration"))
        ]
    is_time = isinstance(X, np.ndarray) and X.dtype.kind in "Mm" and X.ndim == 2
    return [f"x{j}" for j in range(X.shape[1])] if is_time else []


def _explain_columns(X: Any) -> None:
    """Raise for the first column of a frame that holds neither numbers nor text nor times."""
    for name, values in named_columns(X) if is_frame(X) else ():
        with contextlib.suppress(AttributeError, ValueError):
            read_column(name, values)


def _odd_columns(X: Any) -> str:
    """Describe the columns that only the preprocessor can handle; empty if there are none."""
    columns: dict[str, list[str]] = {"text": [], "times": [], "gaps": []}
    try:
        table = X if is_frame(X) else np.asarray(X)
        if not is_frame(X) and table.ndim != 2:
            return ""
        for name, values in named_columns(table):
            is_duration = str(values.dtype).lower().startswith(("time", "duration"))
            kind, column = read_column(name, values)
            if kind == "category":
                columns["text"].append(name)
            elif kind == "date" or is_duration:
                columns["times"].append(name)
            if (column == MISSING).any() if kind == "category" else np.isnan(column).any():
                columns["gaps"].append(name)
    except (AttributeError, TypeError, ValueError):  # not a table that the preprocessor could handle
        return ""
    return " and ".join(_in_words(names, what) for what, names in columns.items() if names)


def _in_words(names: list[str], what: str) -> str:
    shown = ", ".join(map(repr, names[:_NAMED]))
    if len(names) == 1:
        return f"column {shown} holds {what}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"columns {shown}{more} hold {what}"
