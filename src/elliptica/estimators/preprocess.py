"""From a frame with numbers, categories and gaps to a table of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import check_is_fitted, validate_data

from elliptica.estimators.columns import Kind, is_frame, named_columns, read_column


class TablePreprocessor(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Turn a pandas or polars frame, or an array, into numbers for an estimator.

    Columns are told apart by dtype. Numbers, booleans and times (as days) have gaps filled with the
    median of the training rows, and, where a column had gaps in training, a column of 0 and 1 that says where
    they were. Strings and categories become one column per category; rare categories share one column, in
    which categories that were not seen in training are put as well, and a gap is a category. Make whole
    numbers that are codes strings first. Nothing is scaled: the estimators do that.

    Put it before an estimator: ``make_pipeline(TablePreprocessor(), EllipticClassifier())``.

    Args:
        min_frequency: Categories in fewer training rows are rare; 1 means none is.
        max_categories: Largest number of columns per category column, the rare one included.

    Attributes:
        kinds_: ``"number"`` or ``"category"`` for each column.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if ``X`` was a frame.

    Example:
        >>> import polars as pl
        >>> frame = pl.DataFrame({"age": [20, None, 40], "town": ["A", "B", "A"]})
        >>> table = TablePreprocessor(min_frequency=1)
        >>> table.fit_transform(frame)
        array([[20.,  0.,  1.,  0.],
               [30.,  1.,  0.,  1.],
               [40.,  0.,  1.,  0.]])
        >>> table.get_feature_names_out().tolist()
        ['age', 'missingindicator_age', 'town_A', 'town_B']
    """

    def __init__(self, *, min_frequency: int = 5, max_categories: int = 50) -> None:
        self.min_frequency = min_frequency
        self.max_categories = max_categories

    def fit(self, X: Any, y: Any = None) -> TablePreprocessor:
        """Learn kinds of columns, medians and categories; ``y`` is not used."""
        columns = [read_column(name, values) for name, values in named_columns(self._check(X, reset=True))]
        self.kinds_: list[Kind] = [kind for kind, _ in columns]
        if numbers := [array for kind, array in columns if kind == "number"]:
            self._imputer = _new_imputer().fit(np.column_stack(numbers))
        self._encoders = [
            _new_encoder(self.min_frequency, self.max_categories).fit(array[:, None])
            for kind, array in columns
            if kind == "category"
        ]
        rare = [encoder.infrequent_categories_[0] for encoder in self._encoders]
        self._n_rare = [0 if values is None else len(values) for values in rare]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Numbers, columns of numbers first; refuses a frame with other columns than in training."""
        check_is_fitted(self, "kinds_")
        pairs = list(named_columns(self._check(X, reset=False)))
        columns = [
            (kind, read_column(name, values, kind)[1])
            for kind, (name, values) in zip(self.kinds_, pairs, strict=True)
        ]
        parts = []
        if numbers := [array for kind, array in columns if kind == "number"]:
            parts.append(self._imputer.transform(np.column_stack(numbers)))
        texts = [array[:, None] for kind, array in columns if kind == "category"]
        parts += [encoder.transform(text) for encoder, text in zip(self._encoders, texts, strict=True)]
        return np.hstack(parts)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` returns."""
        check_is_fitted(self, "kinds_")
        known = getattr(self, "feature_names_in_", None)
        if input_features is None:
            input_features = [f"x{j}" for j in range(self.n_features_in_)] if known is None else known
        elif known is not None and not np.array_equal(known, input_features):
            raise ValueError(
                f"input_features is not equal to feature_names_in_, {list(known)}. Leave input_features out."
            )
        elif len(input_features) != self.n_features_in_:
            raise ValueError(
                "input_features should have length equal to number of features "
                f"({self.n_features_in_}), got {len(input_features)}"
            )
        numbers = [str(n) for n, kind in zip(input_features, self.kinds_, strict=True) if kind == "number"]
        texts = [str(n) for n, kind in zip(input_features, self.kinds_, strict=True) if kind == "category"]
        names = list(self._imputer.get_feature_names_out(numbers)) if numbers else []
        for encoder, name in zip(self._encoders, texts, strict=True):
            names += list(encoder.get_feature_names_out([name]))
        return np.asarray(names, dtype=object)

    def to_dict(self) -> dict[str, Any]:
        """All that was learnt, in numbers, strings, lists and dicts that JSON can hold.

        Keys: ``min_frequency``, ``max_categories``, ``named`` (whether columns had names) and ``columns``, in
        which each has a ``name`` and a ``kind``; numbers have a ``median`` (0 for a column without any value)
        and ``had_gaps``, categories have the ``frequent`` ones and ``n_rare``, the number of rare ones.
        Rare values themselves are left out: one that few rows have may be the name of a person, and is not
        needed, because rare and unknown values share a column.
        """
        check_is_fitted(self, "kinds_")
        named = hasattr(self, "feature_names_in_")
        names = self.feature_names_in_ if named else [f"x{j}" for j in range(self.n_features_in_)]
        columns: list[dict[str, Any]] = []
        n_numbers = n_texts = 0
        for name, kind in zip(names, self.kinds_, strict=True):
            column: dict[str, Any] = {"name": str(name), "kind": kind}
            if kind == "number":
                column["median"] = float(self._imputer.statistics_[n_numbers])
                column["had_gaps"] = n_numbers in self._imputer.indicator_.features_
                n_numbers += 1
            else:
                encoder = self._encoders[n_texts]
                rare = encoder.infrequent_categories_[0]
                hidden = set() if rare is None else set(rare)
                column["frequent"] = [c for c in encoder.categories_[0] if c not in hidden]
                column["n_rare"] = self._n_rare[n_texts]
                n_texts += 1
            columns.append(column)
        return {
            "min_frequency": int(self.min_frequency),
            "max_categories": int(self.max_categories),
            "named": named,
            "columns": columns,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TablePreprocessor:
        """A fitted preprocessor from what `to_dict` returned.

        Imputer and encoders are fitted to small tables that have the recorded medians, gaps and categories.

        Example:
            >>> table = TablePreprocessor().fit([[1.0], [3.0]])
            >>> TablePreprocessor.from_dict(table.to_dict()).transform([[float("nan")]])
            array([[2.]])
        """
        made = cls(min_frequency=state["min_frequency"], max_categories=state["max_categories"])
        columns = state["columns"]
        made.kinds_ = [column["kind"] for column in columns]
        made.n_features_in_ = len(columns)
        if state["named"]:
            made.feature_names_in_ = np.asarray([column["name"] for column in columns], dtype=object)
        numbers = [column for column in columns if column["kind"] == "number"]
        if numbers:
            medians = [column["median"] for column in numbers]
            gaps = [np.nan if column["had_gaps"] else column["median"] for column in numbers]
            made._imputer = _new_imputer().fit(np.array([medians, gaps], dtype=np.float64))
        made._encoders, made._n_rare = [], []
        for column in columns:
            if column["kind"] == "category":
                frequent = column["frequent"]
                n_rare = int(column["n_rare"])
                # one value that is not frequent stands for the rare ones; its name is never seen
                stand_in = [max(["", *frequent]) + "+"] if n_rare > 0 else []
                encoder = _new_encoder(2, len(frequent) + 2)
                rows = np.array(frequent * 2 + stand_in, dtype=object)
                made._encoders.append(encoder.fit(rows[:, None]))
                made._n_rare.append(n_rare)
        return made

    def _check(self, X: Any, reset: bool) -> Any:
        """Names and number of columns, and for arrays everything else."""
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise ValueError("The frame has no rows: 0 rows, but a minimum of 1 is required.")
            return X
        return validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


def _new_imputer() -> Any:
    return SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)


def _new_encoder(min_frequency: int, max_categories: int) -> Any:
    return OneHotEncoder(
        min_frequency=min_frequency,
        max_categories=max_categories,
        handle_unknown="infrequent_if_exist",
        sparse_output=False,
    )
