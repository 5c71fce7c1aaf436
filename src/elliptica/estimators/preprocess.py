"""Convert a frame with numbers, categories, dates, text and gaps to a table of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from elliptica._utils import checks

Kind = Literal["number", "category", "date", "text"]

#: Name of the category of missing values.
MISSING = "(missing)"
#: A number this many spreads from the median makes a heavy tail, which is squashed into fewer of them.
_HEAVY, BOUND = 10.0, 3.0
#: Other numbers are clipped at this multiple of the training range beyond it.
_MARGIN = 2.0
#: Maximum number of texts from which parts of words are learnt, and maximum number of parts.
_MOST_TEXTS, _MOST_PARTS = 10_000, 4_000
#: Largest number of codes that all boosted trees split by.
_MOST_CODES = 255
#: Mean targets of a category count as much as so many rows of the mean of all rows.
_SHRINKAGE = 5.0


@dataclass(kw_only=True, eq=False, repr=False)
class TablePreprocessor(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Convert a pandas or polars frame, or an array, to numbers for an estimator.

    Kinds of columns follow from their dtype, unless ``kinds`` overrides them:

    - *Numbers*, booleans and durations (in days): gaps are filled with the median of the training rows. If a
      column had gaps in training, a column of 0 and 1 marks them.
    - *Categories* (strings and categories) become one column per category. Rare categories share one column
      with categories that training never saw, and a gap is a category. More than ``max_categories`` become
      the mean target of their rows, shrunk towards that of all rows (a column per class beyond two). Convert
      whole numbers that are codes to strings first, or name them in ``kinds``.
    - *Dates* become days since 1970, the year, and the season: month, day, day of the week and, if there are
      any, hour, each as a point on a circle (skrub's ``DatetimeEncoder``).
    - *Free text* (strings of three or more words on average, with more values than ``max_categories``)
      becomes the main directions of its parts of words.

    The estimators scale the result. Put it before one: ``make_pipeline(TablePreprocessor(),
    EllipticClassifier())``.

    Args:
        min_frequency: Categories in fewer training rows are rare; 1 means that none is.
        max_categories: Largest number of columns per category column, including the rare one.
        kinds: ``"number"``, ``"category"``, ``"date"`` or ``"text"`` for some columns, by name; None decides
            by dtype.
        scale: ``"standard"`` leaves numbers unchanged. ``"robust"`` bounds them: numbers with a heavy tail in
            the training rows (more than ten spreads from the median) are squashed smoothly into (-3, 3), and
            others are clipped at twice the training range beyond it.
        n_components: Number of output columns per column of free text.
        native: Encode for trees that split by category and by gaps: up to `max_categories` are codes from 0,
            numbers are unchanged, and gaps and categories that training never saw are NaN.

    Attributes:
        kinds_: Kind of each column.
        kinds_out_: Kind of each output column; target means are numbers.

    Example:
        >>> frame = pl.DataFrame({"age": [20, None, 40], "town": ["A", "B", "A"]})
        >>> table = TablePreprocessor(min_frequency=1)
        >>> table.fit_transform(frame)
        array([[20.,  0.,  1.,  0.],
               [30.,  1.,  0.,  1.],
               [40.,  0.,  1.,  0.]])
        >>> table.get_feature_names_out().tolist()
        ['age', 'missingindicator_age', 'town_A', 'town_B']
    """

    min_frequency: int = 5
    max_categories: int = 50
    kinds: Mapping[str, Kind] | None = None
    scale: Literal["standard", "robust"] = "standard"
    n_components: int = 10
    native: bool = False

    def fit(self, X: Any, y: Any = None) -> TablePreprocessor:
        """Learn how to encode each column; target means need ``y``, where floats are numbers, not classes."""
        self.fit_transform(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Learn, and return the training rows; the target means of a row are those of other rows."""
        columns = list(self._columns(X, reset=True))
        kinds = dict(self.kinds or {})
        if unknown := set(kinds) - {column.name for column in columns}:
            raise ValueError(f"kinds names columns that are not in X: {sorted(unknown)}.")
        for kind in kinds.values():
            checks.choice("kinds", kind, get_args(Kind))
        checks.choice("scale", self.scale, ("standard", "robust"))
        self.kinds_: list[Kind] = [kinds.get(column.name) or self._kind(column) for column in columns]
        self.encoders_ = []
        self.zones_ = [has_zone(column) for column in columns]
        self.kinds_out_: list[Kind] = []
        numbers = []
        for kind, column in zip(self.kinds_, columns, strict=True):
            values = read_column(column, kind)
            encoder = self._encoder(kind, values, y)
            numbers.append(encoder.fit_transform(values, y))
            self.encoders_.append(encoder)
            is_mean = isinstance(encoder, TargetEncoder)
            self.kinds_out_ += ["number" if is_mean else kind] * numbers[-1].shape[1]
        return np.hstack(numbers, dtype=np.float64)

    def transform(self, X: Any) -> np.ndarray:
        """Return the columns as numbers, in the order of ``X``; raise if they differ from training."""
        check_is_fitted(self, "encoders_")
        parts = zip(self._columns(X, reset=False), self.kinds_, self.zones_, self.encoders_, strict=True)
        numbers = [encoder.transform(read_column(*how)) for *how, encoder in parts]  # type: ignore[arg-type]
        return np.hstack(numbers, dtype=np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`."""
        check_is_fitted(self, "encoders_")
        names = _check_feature_names_in(self, input_features)
        parts = [encoder.get_feature_names_out([n]) for n, encoder in zip(names, self.encoders_, strict=True)]
        return np.asarray([name for part in parts for name in part], dtype=object)

    def probe(self) -> pl.DataFrame:
        """Return 60 rows of each kind, known and unknown, on which two preprocessors can be compared."""
        values: dict[str, list[Any]] = {
            "number": [-1.5, 0.0, 1e3, None],
            "date": [datetime(2020, 2, 29, 12), datetime(1990, 1, 1), datetime(2033, 7, 8, 9), None],
            "category": ["a", "", "1", None],
            "text": ["some words of text", "more of these words", "", None],
        }
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        frame = {}
        for name, kind, zone, encoder in zip(names, self.kinds_, self.zones_, self.encoders_, strict=True):
            known = encoder.categories_[0].tolist() if kind == "category" else []
            if kind == "number":
                known = (encoder[0] if isinstance(encoder, Pipeline) else encoder).usual_
            column = pl.Series((values[kind] + known + [None] * 60)[:60], strict=False)
            frame[str(name)] = column.dt.replace_time_zone("UTC") if zone and kind == "date" else column
        return pl.DataFrame(frame)

    def _columns(self, X: Any, reset: bool) -> Iterator[pl.Series]:
        """Check names and number of columns, and yield them."""
        is_frame = hasattr(X, "columns") and hasattr(X, "__getitem__")
        if is_frame:
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise ValueError("X has 0 sample(s), but a minimum of 1 is required.")
            names, columns = [str(name) for name in X.columns], [X[name] for name in X.columns]
        else:
            X = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
            names, columns = [f"x{j}" for j in range(X.shape[1])], list(X.T)
        for name, column in zip(names, columns, strict=True):
            series = as_series(name, column)
            if series.dtype.is_nested() or series.dtype in (pl.Object, pl.Binary, pl.Time):
                raise TypeError(f"Column {name!r} holds {series.dtype}: it must be a string, number or date.")
            yield series

    def _kind(self, column: pl.Series) -> Kind:
        """Return the kind of a column of training rows by its dtype."""
        dtype = column.dtype
        if dtype.is_temporal() and dtype not in (pl.Duration, pl.Time):
            return "date"
        if dtype.is_numeric() or dtype in (pl.Boolean, pl.Duration, pl.Null):
            return "number"
        is_text = dtype == pl.String and column.n_unique() > self.max_categories
        return "text" if is_text and is_free_text(column.drop_nulls().to_list()) else "category"

    def _encoder(self, kind: Kind, values: np.ndarray, y: Any) -> Any:
        if kind == "number":
            return Bounds(False) if self.native else _number_encoder(self.scale == "robust")
        if kind == "date":
            return Dates(self.scale == "robust")
        if kind == "category":
            return self._category_encoder(values, y)
        return TextDirections(self.n_components, self.min_frequency)

    def _category_encoder(self, values: np.ndarray, y: Any) -> Any:
        known = sorted(set(values[:, 0]) - {MISSING}) or [MISSING]
        limit = self.max_categories
        if len(known) > limit and (target_type := self._target_type(y)) is not None:
            parts = KFold(5, shuffle=True, random_state=0)
            return TargetEncoder(target_type=target_type, smooth=_SHRINKAGE, cv=parts)
        if self.native:
            unknown: dict[str, Any] = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
            return OrdinalEncoder(categories=[known], max_categories=_MOST_CODES, **unknown)  # as are gaps
        return OneHotEncoder(
            min_frequency=self.min_frequency,
            max_categories=limit,
            handle_unknown="infrequent_if_exist",
            sparse_output=False,
        )

    def _target_type(self, y: Any) -> str | None:
        """Return scikit-learn's name of the kind of targets; None if their means make no columns."""
        y = np.asarray([[]] if y is None else y)
        if y.ndim > 1 or y.dtype.kind == "f":
            return "continuous" if y.ndim == 1 else None
        n_classes = len(np.unique(y))
        return "binary" if n_classes == 2 else "multiclass" if 2 < n_classes <= self.max_categories else None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


def as_series(name: str, values: Any) -> pl.Series:
    """Return a column of any frame or array as a series of polars, with null for missing values."""
    if isinstance(values, pl.Series):
        series = values
    else:
        is_category, zone = str(values.dtype) == "category", getattr(values.dtype, "tz", None)
        if str(values.dtype).startswith("datetime64") and not isinstance(values, np.ndarray):
            values = values.to_numpy(dtype="datetime64[ns]")  # pandas; a time zone becomes UTC
        array = np.asarray(values, dtype=object) if hasattr(values, "isna") else np.asarray(values)
        if array.dtype.kind in "OUT":
            items = [None if _is_missing(value) else value for value in array.tolist()]
            series = pl.Series(name, items, strict=False)
        else:
            series = pl.Series(name, array)
        series = series if zone is None else series.dt.replace_time_zone("UTC")
        series = _as_text(series).cast(pl.Categorical) if is_category else series
    return series.fill_nan(None) if series.dtype.is_float() else series


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def has_zone(column: pl.Series) -> bool:
    """Return whether the dates of a column have a time zone."""
    return getattr(column.dtype, "time_zone", None) is not None


def read_column(column: pl.Series, kind: Kind, zone: bool | None = None) -> np.ndarray:
    """Read a column of a known kind as float64 with NaN for gaps, or as strings, ``(rows, 1)``.

    Booleans are 0 and 1, durations are days, dates are days since 1970; ``zone`` says whether those of
    training had a time zone.
    """
    dtype = column.dtype
    if kind in ("category", "text"):
        text = _as_text(column).fill_null(MISSING if kind == "category" else "")
        return np.asarray(text.to_list(), dtype=object)[:, None]
    is_date = dtype.is_temporal() and dtype != pl.Duration
    fits = is_date and zone in (None, has_zone(column))
    if kind == "number":
        fits = dtype.is_numeric() or dtype.is_temporal() or dtype == pl.Boolean
    if not fits and column.null_count() < len(column):
        raise ValueError(f"Column {column.name!r} held {kind}s in training, but now {dtype}. Convert it.")
    if is_date:
        column = column.cast(pl.Datetime("us")).cast(pl.Int64) / 8.64e10
    elif dtype == pl.Duration:
        column = column.cast(pl.Duration("us")).cast(pl.Int64) / 8.64e10
    values = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    if np.isinf(values).any():
        raise ValueError(f"Column {column.name!r} contains infinity. Replace it by a number or by NaN.")
    return values[:, None]


def _as_text(column: pl.Series) -> pl.Series:
    """Write values as categories; 1 and 1.0 are the same."""
    text = column.cast(pl.String)
    return text.str.strip_suffix(".0") if column.dtype.is_float() else text


def is_free_text(values: Sequence[str], n_words: float = 3.0) -> bool:
    """Return whether texts have at least three words on average, like remarks and titles but unlike codes."""
    some = values[:: max(1, len(values) // 1000)]  # a thousand of them are enough
    return sum(len(text.split()) for text in some) >= n_words * max(1, len(some))


@dataclass(eq=False, repr=False)
class Bounds(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Bound numbers as learnt on the training rows, if ``active``.

    Heavy tails are squashed as by skrub's ``SquashingScaler`` (Holzmueller et al., 2024), whose spread is the
    range if the quartiles are equal, so that one outlier among zeros would decide.
    """

    active: bool = True

    def fit(self, X: np.ndarray, y: Any = None) -> Bounds:
        """Learn the bounds."""
        known = X[~np.isnan(X)]
        self.squash_, self.clip_ = None, None
        self.usual_ = np.quantile(known, np.linspace(0, 1, 12)).tolist() if len(known) else []
        if self.active and len(known):
            low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
            apart = np.abs(known - median)
            spread = high - low if high > low else np.median(apart[apart > 0]) if apart.any() else 1.0
            margin = _MARGIN * (known.max() - known.min())
            if apart.max() > _HEAVY * spread:
                self.squash_ = (float(median), float(spread))
            else:
                self.clip_ = (float(known.min() - margin), float(known.max() + margin))
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Return numbers within the bounds."""
        if self.squash_ is not None:
            z = (X - self.squash_[0]) / self.squash_[1]
            return np.asarray(z / np.hypot(1.0, z / BOUND))
        return X if self.clip_ is None else X.clip(*self.clip_)

    def get_feature_names_out(self, input_features: Any) -> Any:
        """Return the names unchanged."""
        return np.asarray(input_features, dtype=object)


@dataclass(eq=False, repr=False)
class Dates(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode dates (in days since 1970) as numbers and as seasons."""

    bounded: bool = True

    def fit(self, X: np.ndarray, y: Any = None) -> Dates:
        """Learn bounds, the median, which replaces gaps, and the finest unit that differs."""
        self.days_ = _number_encoder(self.bounded).fit(X)
        known = X[~np.isnan(X)]
        self.median_ = float(np.median(known)) if len(known) else 0.0
        months = known.astype("datetime64[D]").astype("datetime64[M]")
        days = known.astype("datetime64[D]") - months  # all the same: without weekdays, which would be noise
        self.resolution_ = "hour" if (known % 1).any() else "day" if len(np.unique(days)) > 1 else "month"
        self.year_ = Bounds(self.bounded).fit(self._seasons(X)[:, :1])
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Return days, a mark of gaps if there were any in training, the year, and circles."""
        days = self.days_.transform(X)  # not skrub's total_seconds, a float32 with steps of two minutes
        seasons = self._seasons(X)
        return np.hstack([days, self.year_.transform(seasons[:, :1]), seasons[:, 1:]], dtype=np.float64)

    def get_feature_names_out(self, input_features: Any) -> list[str]:
        """Return the names of the columns."""
        seasons = self._encoder(input_features[0]).all_outputs_
        return [*self.days_.get_feature_names_out(input_features), *seasons]

    def _seasons(self, X: np.ndarray) -> np.ndarray:
        """Return the year and circles of the dates themselves, which bounds would move to other months."""
        days = np.where(np.isnan(X), self.median_, X)[:, 0]
        column = pl.Series("date", np.round(days * 8.64e10).astype("datetime64[us]"))
        return np.asarray(self._encoder("date").transform(column).to_numpy(), dtype=np.float64)

    def _encoder(self, name: str) -> Any:
        """Return skrub's encoder; imported only if needed, because that takes seconds."""
        from skrub import DatetimeEncoder

        encoder = DatetimeEncoder(
            resolution=self.resolution_,
            add_weekday=self.resolution_ != "month",
            add_total_seconds=False,
            periodic_encoding="circular",
        )
        # skrub drops hours if it sees none, but the resolution was learnt on the training rows
        return encoder.fit(pl.Series(name, np.array(["2000-01-01T01"], dtype="datetime64[us]")))


@dataclass(eq=False, repr=False)
class TextDirections(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode free text by directions among parts of words: skrub's ``StringEncoder`` without rare parts."""

    n_components: int = 10
    min_frequency: int = 5

    def fit(self, X: np.ndarray, y: Any = None) -> TextDirections:
        """Learn parts of words and their directions."""
        texts = X[:: -(-len(X) // _MOST_TEXTS), 0]  # a regular sample with step ceil(n / most)
        sizes: dict[str, Any] = {"min_df": min(self.min_frequency, len(texts)), "max_features": _MOST_PARTS}
        self.parts_: Any = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), **sizes)
        self.directions_: Any = None
        try:
            counts = self.parts_.fit_transform(texts)
        except ValueError:  # no part is frequent: texts become zeros
            self.parts_ = None
            return self
        n_components = max(1, min(self.n_components, *(size - 1 for size in counts.shape)))
        with np.errstate(divide="ignore", invalid="ignore"):  # equal texts explain no variance
            self.directions_ = TruncatedSVD(n_components, random_state=0).fit(counts)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Return the position of each text along the directions."""
        if self.parts_ is None:
            return np.zeros((len(X), 1))
        return np.asarray(self.directions_.transform(self.parts_.transform(X[:, 0])))

    def get_feature_names_out(self, input_features: Any) -> list[str]:
        """Return the names of the columns."""
        n = 1 if self.directions_ is None else len(self.directions_.components_)
        return [f"{input_features[0]}_{j}" for j in range(n)]


def _number_encoder(bounded: bool) -> Pipeline:
    imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    return Pipeline([("bounds", Bounds(bounded)), ("gaps", imputer)])
