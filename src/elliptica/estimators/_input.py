"""The tables that estimators take, checked; where a table has text or gaps, the way to the preprocessor."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from elliptica.estimators._columns import MISSING, is_frame, named_columns, read_column

_NO_TARGETS = "no_validation"  # scikit-learn's word; None would mean that targets were forgotten
_NAMED = 5  # columns that a message names


def check_table(estimator: Any, X: Any, y: Any = _NO_TARGETS, *, reset: bool, y_numeric: bool = False) -> Any:
    """Inputs as floating point numbers, and targets if there are any; refused with the remedy.

    Args:
        estimator: Whose columns are remembered, or compared with.
        X: Table of the user.
        y: Targets, one or several columns.
        reset: Remember the columns instead of comparing them.
        y_numeric: Whether targets must be numbers.
    """
    options: dict[str, Any] = {"dtype": [np.float64, np.float32], "accept_sparse": False, "reset": reset}
    if not (isinstance(y, str) and y == _NO_TARGETS):
        options |= {"y": y, "multi_output": True, "y_numeric": y_numeric}
    try:
        return validate_data(estimator, X, **options)
    except (TypeError, ValueError) as error:
        odd = _odd_columns(X)
        if not odd:
            raise
        name, kind = type(estimator).__name__, TypeError if isinstance(error, TypeError) else ValueError
        first, *_ = str(error).splitlines()
        raise kind(
            f"{first}\n{name} takes numbers, but {odd}. Put the preprocessor before it:\n"
            "    from sklearn.pipeline import make_pipeline\n"
            "    from elliptica.estimators import TablePreprocessor\n"
            f"    model = make_pipeline(TablePreprocessor(), {name}(...))"
        ) from error


def _odd_columns(X: Any) -> str:
    """Which columns the preprocessor takes and the estimators do not, in words; empty if it is not that."""
    found: dict[str, list[str]] = {"text": [], "times": [], "gaps": []}
    try:
        table = X if is_frame(X) else np.asarray(X)
        if not is_frame(X) and table.ndim != 2:
            return ""
        for name, values in named_columns(table):
            is_time = "date" in (dtype := str(values.dtype).lower()) or dtype.startswith(("time", "duration"))
            kind, column = read_column(name, values)
            if kind == "category":
                found["text"].append(name)
            elif is_time:
                found["times"].append(name)
            if (column == MISSING).any() if kind == "category" else np.isnan(column).any():
                found["gaps"].append(name)
    except (AttributeError, TypeError, ValueError):  # nothing that the preprocessor would take
        return ""
    return " and ".join(_in_words(names, what) for what, names in found.items() if names)


def _in_words(names: list[str], what: str) -> str:
    shown = ", ".join(map(repr, names[:_NAMED]))
    if len(names) == 1:
        return f"column {shown} holds {what}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"columns {shown}{more} hold {what}"
