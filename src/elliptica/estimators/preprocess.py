"""Convert a frame with numbers, categories, dates, text and gaps to a table of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, normalize
from sklearn.utils.validation import check_is_fitted, validate_data

from elliptica.estimators.columns import (
    Kind,
    check_names,
    is_frame,
    is_free_text,
    named_columns,
    read_column,
)

#: A number this many spreads from the median makes a heavy tail.
_HEAVY = 10.0
#: Heavy tails are squashed into this many spreads around the median.
_BOUND = 3.0
#: Other numbers are clipped at this multiple of the training range beyond it.
_MARGIN = 2.0
#: Squares of larger numbers overflow.
_LARGEST = 1e150
_SCALES = ("standard", "robust")
_RESOLUTIONS = ("year", "month", "day", "hour")
#: Maximum number of texts from which parts of words are learnt, and maximum number of parts.
_MOST_TEXTS = 10_000
_MOST_PARTS = 4_000
_PARTS: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (3, 4)}  # as in skrub's StringEncoder


class TablePreprocessor(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Convert a pandas or polars frame, or an array, to numbers for an estimator.

    Kinds of columns follow from their dtype, unless ``kinds`` overrides them:

    - *Numbers*, booleans and durations (in days): gaps are filled with the median of the training rows. If a
      column had gaps in training, a column of 0 and 1 marks them.
    - *Categories* (strings and categories) become one column per category. Rare categories share one column
      with categories that training never saw, and a gap is a category. Convert whole numbers that are codes
      to strings first, or name them in ``kinds``.
    - *Dates* become days since the first training row, the year, and the season: month, day, day of the week
      and hour, if these differ, each as a point on a circle (skrub's ``DatetimeEncoder``).
    - *Free text* (strings of three or more words on average, with more values than ``max_categories``)
      becomes the main directions of its parts of words (skrub's ``StringEncoder``).

    The estimators scale the result.

    Put it before an estimator: ``make_pipeline(TablePreprocessor(), EllipticClassifier())``.

    Args:
        min_frequency: Categories in fewer training rows are rare; 1 means that none is.
        max_categories: Largest number of columns per category column, including the rare one.
        kinds: ``"number"``, ``"category"``, ``"date"`` or ``"text"`` for some columns, by name; None decides
            by dtype.
        scale: ``"standard"`` leaves numbers unchanged. ``"robust"`` bounds them: numbers with a heavy tail in
            the training rows (see `has_heavy_tail`) are squashed smoothly into (-3, 3), and others are
            clipped at twice the training range beyond it.
        n_components: Number of output columns per column of free text.

    Attributes:
        kinds_: Kind of each column.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if ``X`` was a frame.

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

    def __init__(
        self,
        *,
        min_frequency: int = 5,
        max_categories: int = 50,
        kinds: Mapping[str, Kind] | None = None,
        scale: str = "standard",
        n_components: int = 10,
    ) -> None:
        self.min_frequency = min_frequency
        self.max_categories = max_categories
        self.kinds = kinds
        self.scale = scale
        self.n_components = n_components

    def fit(self, X: Any, y: Any = None) -> TablePreprocessor:
        """Learn kinds of columns, medians, categories, scales and parts of words; ``y`` is ignored."""
        table = self._check(X, reset=True)
        kinds = self._given_kinds([name for name, _ in named_columns(table)])
        columns = [self._read(name, values, kinds.get(name)) for name, values in named_columns(table)]
        self.kinds_: list[Kind] = [kind for kind, _ in columns]
        if numbers := [array for kind, array in columns if kind == "number"]:
            self._imputer = _new_imputer().fit(np.column_stack(numbers))
        self._bounds = [_Bounds.fit(array) if self.scale == "robust" else _Bounds() for array in numbers]
        self._encoders = [
            _new_encoder(self.min_frequency, self.max_categories).fit(array[:, None])
            for kind, array in columns
            if kind == "category"
        ]
        rare = [encoder.infrequent_categories_[0] for encoder in self._encoders]
        self._n_rare = [0 if values is None else len(values) for values in rare]
        self._dates = [_Dates.fit(array, self.scale == "robust") for kind, array in columns if kind == "date"]
        self._texts = [
            _Text.fit(array, self.n_components, self.min_frequency)
            for kind, array in columns
            if kind == "text"
        ]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return numbers, then categories, dates and text; raise if columns differ from training."""
        check_is_fitted(self, "kinds_")
        pairs = named_columns(self._check(X, reset=False))
        columns = [
            (kind, read_column(name, values, kind)[1])
            for kind, (name, values) in zip(self.kinds_, pairs, strict=True)
        ]
        parts = []
        if numbers := [array for kind, array in columns if kind == "number"]:
            filled = self._imputer.transform(np.column_stack(numbers))
            for j, bounds in enumerate(self._bounds):
                filled[:, j] = bounds.apply(filled[:, j])
            parts.append(filled)
        for wanted, encoders in (("category", self._encoders), ("date", self._dates), ("text", self._texts)):
            arrays = [array for kind, array in columns if kind == wanted]
            parts += [
                encoder.transform(array[:, None] if wanted == "category" else array)
                for encoder, array in zip(encoders, arrays, strict=True)
            ]
        return np.hstack(parts)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`."""
        check_is_fitted(self, "kinds_")
        known = getattr(self, "feature_names_in_", None)
        if input_features is None:
            input_features = [f"x{j}" for j in range(self.n_features_in_)] if known is None else known
        elif known is not None and not np.array_equal(known, input_features):
            raise ValueError(
                f"input_features is not equal to feature_names_in_, {list(known)}. Omit input_features."
            )
        elif len(input_features) != self.n_features_in_:
            raise ValueError(
                "input_features should have length equal to number of features "
                f"({self.n_features_in_}), got {len(input_features)}"
            )
        of = {
            wanted: [str(n) for n, kind in zip(input_features, self.kinds_, strict=True) if kind == wanted]
            for wanted in get_args(Kind)
        }
        names = list(self._imputer.get_feature_names_out(of["number"])) if of["number"] else []
        for encoder, name in zip(self._encoders, of["category"], strict=True):
            names += list(encoder.get_feature_names_out([name]))
        for date, name in zip(self._dates, of["date"], strict=True):
            names += date.names(name)
        for text, name in zip(self._texts, of["text"], strict=True):
            names += text.names(name)
        return np.asarray(names, dtype=object)

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted state except `tensors`, as values that JSON can store.

        Keys: the settings, ``named`` (whether columns had names) and ``columns``. Each column has a ``name``
        and a ``kind``. Numbers have a ``median`` (0 for an empty column), ``had_gaps`` and, if they are
        bounded, ``location`` and ``spread`` or ``low`` and ``high``. Categories have the ``frequent`` ones
        and ``n_rare``, the number of rare ones. Dates have the ``origin``, the ``median`` (both in days since
        1970), ``had_gaps`` and the ``resolution``. Text has its ``parts`` of words. Rare values themselves
        are not stored: a value in few rows may be the name of a person, and rare and unknown values share a
        column anyway. Rare parts of words are not stored for the same reason.
        """
        check_is_fitted(self, "kinds_")
        named = hasattr(self, "feature_names_in_")
        names = self.feature_names_in_ if named else [f"x{j}" for j in range(self.n_features_in_)]
        states: dict[str, Iterator[dict[str, Any]]] = {
            "number": self._number_states(),
            "category": self._category_states(),
            "date": (part.to_dict() for part in self._dates),
            "text": ({"parts": part.parts} for part in self._texts),
        }
        return {
            "min_frequency": int(self.min_frequency),
            "max_categories": int(self.max_categories),
            "scale": self.scale,
            "n_components": int(self.n_components),
            "named": named,
            "columns": [
                {"name": str(name), "kind": kind, **next(states[kind])}
                for name, kind in zip(names, self.kinds_, strict=True)
            ],
        }

    def _number_states(self) -> Iterator[dict[str, Any]]:
        for j, bounds in enumerate(self._bounds):
            gaps = j in self._imputer.indicator_.features_
            yield {"median": float(self._imputer.statistics_[j]), "had_gaps": gaps, **bounds.to_dict()}

    def _category_states(self) -> Iterator[dict[str, Any]]:
        for encoder, n_rare in zip(self._encoders, self._n_rare, strict=True):
            rare = encoder.infrequent_categories_[0]
            hidden = set() if rare is None else set(rare)
            yield {"frequent": [c for c in encoder.categories_[0] if c not in hidden], "n_rare": n_rare}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays that belong to `to_dict`: weights of the parts of words of free text."""
        check_is_fitted(self, "kinds_")
        arrays: dict[str, np.ndarray] = {}
        for j, text in enumerate(self._texts):
            arrays |= {f"text/{j}/weights": text.weights, f"text/{j}/components": text.components}
        return arrays

    @classmethod
    def from_dict(
        cls, state: Mapping[str, Any], tensors: Mapping[str, Any] | None = None
    ) -> TablePreprocessor:
        """Restore a fitted preprocessor from the results of `to_dict` and `tensors`.

        Imputer and encoders are fitted to small tables with the recorded medians, gaps and categories.

        Example:
            >>> table = TablePreprocessor().fit([[1.0], [3.0]])
            >>> TablePreprocessor.from_dict(table.to_dict()).transform([[float("nan")]])
            array([[2.]])
        """
        made = cls(
            min_frequency=int(state["min_frequency"]),
            max_categories=int(state["max_categories"]),
            scale=state.get("scale", "standard"),
            n_components=int(state.get("n_components", 10)),
        )
        columns = state["columns"]
        if not columns or not all(isinstance(column["name"], str) for column in columns):
            raise ValueError("a preprocessor without columns, or with names that are not text")
        made.kinds_ = [column["kind"] for column in columns]
        made.n_features_in_ = len(columns)
        if state["named"]:
            made.feature_names_in_ = np.asarray([column["name"] for column in columns], dtype=object)
        of = {kind: [column for column in columns if column["kind"] == kind] for kind in get_args(Kind)}
        if sum(map(len, of.values())) != len(columns):
            raise ValueError("the preprocessor has columns of an unknown kind")
        if numbers := of["number"]:
            medians = [float(column["median"]) for column in numbers]
            if not np.isfinite(medians).all():
                raise ValueError("a median that is NaN or infinite")
            gaps = [np.nan if column["had_gaps"] else column["median"] for column in numbers]
            made._imputer = _new_imputer().fit(np.array([medians, gaps], dtype=np.float64))
        made._bounds = [_Bounds.from_dict(column) for column in numbers]
        made._encoders = [
            _old_encoder(column["frequent"], int(column["n_rare"])) for column in of["category"]
        ]
        made._n_rare = [int(column["n_rare"]) for column in of["category"]]
        made._dates = [_Dates.from_dict(column) for column in of["date"]]
        made._texts = [
            _Text.restore(column["parts"], tensors or {}, j) for j, column in enumerate(of["text"])
        ]
        return made

    def _given_kinds(self, names: list[str]) -> dict[str, Kind]:
        if min(self.min_frequency, self.max_categories, self.n_components) < 1:
            raise ValueError("min_frequency, max_categories and n_components must be at least 1.")
        if self.scale not in _SCALES:
            raise ValueError(f"scale must be one of {', '.join(_SCALES)}, but got {self.scale!r}.")
        given = dict(self.kinds or {})
        for name, kind in given.items():
            if name not in names:
                raise ValueError(
                    f"kinds names the column {name!r}, which is not in X. Its columns are {names[:12]}."
                )
            if kind not in get_args(Kind):
                raise ValueError(
                    f"Values of kinds must be {', '.join(get_args(Kind))}, but {name!r} has {kind!r}."
                )
        return given

    def _read(self, name: str, values: Any, kind: Kind | None) -> tuple[Kind, np.ndarray]:
        """Read a column of the training rows, by dtype if its kind is not given."""
        own_kind, array = read_column(name, values, kind)
        is_category = str(values.dtype).lower().startswith(("cat", "enum"))
        if kind is not None or own_kind != "category" or is_category:
            return own_kind, array
        many = len(set(array.tolist())) > self.max_categories
        return (
            read_column(name, values, "text") if many and is_free_text(array.tolist()) else (own_kind, array)
        )

    def _check(self, X: Any, reset: bool) -> Any:
        """Check names and number of columns, and the values of arrays."""
        if is_frame(X):
            check_names(self, X, reset=reset)
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise ValueError("The frame has 0 rows, but a minimum of 1 is required.")
            return X
        return validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


def robust_scale(values: np.ndarray) -> tuple[float, float]:
    """Return median and spread of numbers.

    The spread is the distance between the quartiles. If they are equal, it is the median of the nonzero
    distances from the median.
    """
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    if high > low:
        return float(median), float(high - low)
    distances = np.abs(values - median)
    distances = distances[distances > 0]
    return float(median), float(np.median(distances)) if len(distances) else 1.0


def has_heavy_tail(values: np.ndarray) -> bool:
    """Return whether some number is more than ten spreads (see `robust_scale`) from the median.

    This is practically never so for normal numbers, but usual for a thousand log-normal ones.

    Example:
        >>> has_heavy_tail(np.arange(100.0)), has_heavy_tail(np.append(np.arange(100.0), 1e4))
        (False, True)
    """
    if not len(values):
        return False
    median, spread = robust_scale(values)
    return bool(np.abs(values - median).max() > _HEAVY * spread)


@dataclass(frozen=True)
class _Bounds:
    """How numbers are bounded, as learnt on the training rows; without settings they stay unchanged.

    Heavy tails are squashed as in skrub's ``SquashingScaler`` (Holzmueller et al., 2024). That class is not
    used for two reasons: it returns 0 for 1e200, whose square overflows, and if the quartiles are equal it
    uses the range as the spread, so that one outlier among zeros decides.
    """

    location: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def fit(cls, values: np.ndarray) -> _Bounds:
        known = np.clip(values[~np.isnan(values)], -_LARGEST, _LARGEST)
        if not len(known):
            return cls()
        if has_heavy_tail(known):
            return cls(*robust_scale(known))
        low, high = float(known.min()), float(known.max())
        return cls(low=low - _MARGIN * (high - low), high=high + _MARGIN * (high - low))

    def apply(self, values: np.ndarray) -> np.ndarray:
        if self.location is not None and self.spread is not None:
            z = (np.clip(values, -_LARGEST, _LARGEST) - self.location) / self.spread
            return np.asarray(z / np.hypot(1.0, z / _BOUND))
        if self.low is not None and self.high is not None:
            return np.clip(values, self.low, self.high)
        return values

    def to_dict(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> _Bounds:
        return cls(**{name: float(state[name]) for name in cls.__dataclass_fields__ if name in state})


def date_resolution(days: np.ndarray) -> str:
    """Return the finest of year, month, day and hour in which dates (in days since 1970) differ.

    Example:
        >>> date_resolution(np.array([0.0, 31.0, 59.0])), date_resolution(np.array([0.0, 0.5]))
        ('month', 'hour')
    """
    dates = np.floor(days).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    if len(np.unique(days % 1)) > 1:
        return "hour"
    if len(np.unique(dates - months)) > 1:
        return "day"
    return "month" if len(np.unique(months.astype(int) % 12)) > 1 else "year"


@dataclass(frozen=True)
class _Dates:
    """Dates (in days since 1970) as numbers and seasons."""

    origin: float  # first day of the training rows
    median: float  # replaces missing dates
    had_gaps: bool
    resolution: str  # finest unit that differs in training: "year", "month", "day" or "hour"
    bounds: _Bounds  # bounds of the days

    @classmethod
    def fit(cls, days: np.ndarray, bounded: bool) -> _Dates:
        known = days[~np.isnan(days)]
        if not len(known):
            known = np.zeros(1)
        return cls(
            origin=float(np.floor(known.min())),
            median=float(np.quantile(known, 0.5, method="lower")),
            had_gaps=bool(np.isnan(days).any()),
            resolution=date_resolution(known),
            bounds=_Bounds.fit(known) if bounded else _Bounds(),
        )

    def transform(self, days: np.ndarray) -> np.ndarray:
        import polars as pl

        gaps = np.isnan(days)
        days = self.bounds.apply(np.where(gaps, self.median, days))
        # not skrub's total_seconds, a float32 with steps of two minutes
        parts = [days[:, None] - self.origin]
        column = pl.Series("date", np.round(days * 8.64e10).astype("datetime64[us]"))
        parts.append(self._encoder("date").transform(column).to_numpy())
        if self.had_gaps:
            parts.append(gaps[:, None].astype(np.float64))
        return np.hstack(parts, dtype=np.float64)

    def names(self, name: str) -> list[str]:
        gaps = [f"missingindicator_{name}"] if self.had_gaps else []
        return [f"{name}_days", *self._encoder(name).all_outputs_, *gaps]

    def _encoder(self, name: str) -> Any:
        """Return skrub's encoder; imported only if needed, because it loads pandas and matplotlib."""
        import polars as pl
        from skrub import DatetimeEncoder

        encoder = DatetimeEncoder(
            resolution=self.resolution,
            add_weekday=self.resolution in ("day", "hour"),
            add_total_seconds=False,
            periodic_encoding="circular",
        )
        # skrub drops hours if it sees none, but the resolution was learnt on the training rows
        return encoder.fit(pl.Series(name, np.array(["2000-01-01T01"], dtype="datetime64[us]")))

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("origin", "median", "had_gaps", "resolution")}
        return {**plain, **self.bounds.to_dict()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> _Dates:
        if (resolution := state["resolution"]) not in _RESOLUTIONS:
            raise ValueError(f"unknown resolution of dates {resolution!r}")
        bounds = _Bounds.from_dict(state)
        return cls(
            float(state["origin"]), float(state["median"]), bool(state["had_gaps"]), resolution, bounds
        )


@dataclass(frozen=True)
class _Text:
    """Free text as its main directions among parts of words, as in skrub's ``StringEncoder``.

    skrub fits the encoder; the result is kept as two arrays, so that it can be saved without pickle and
    loaded without skrub. skrub keeps every part of every word. Here, rare parts are dropped, which limits the
    size of the file and keeps names of people out of it.
    """

    parts: list[str]  # parts of words
    weights: np.ndarray  # weight of each part; rare parts have large weights
    components: np.ndarray  # directions, ``(direction, part)``

    @classmethod
    def fit(cls, texts: np.ndarray, n_components: int, min_frequency: int) -> _Text:
        import polars as pl
        from skrub import StringEncoder

        some = texts[:: -(-len(texts) // _MOST_TEXTS)]  # a regular sample with step ceil(n / most)
        parts = _frequent_parts(some, min_frequency)
        n_components = min(n_components, len(parts) - 1, len(some) - 1)
        if n_components < 1:
            return cls([], np.zeros(0), np.zeros((0, 0)))
        encoder = StringEncoder(n_components=n_components, vocabulary=parts, random_state=0)
        encoder.fit_transform(pl.Series("text", some.tolist(), dtype=pl.String))
        components = encoder.tsvd_.components_ / encoder.scaling_factor_
        return cls(
            parts, np.asarray(encoder.vectorizer_.idf_, np.float32), np.asarray(components, np.float32)
        )

    def transform(self, texts: np.ndarray) -> np.ndarray:
        if not self.parts:
            return np.zeros((len(texts), 0))
        different, places = np.unique(texts.astype(str), return_inverse=True)
        counts = CountVectorizer(vocabulary=self.parts, **_PARTS).transform(different)
        directions = normalize(counts.multiply(self.weights).tocsr()) @ self.components.T
        return np.asarray(directions, dtype=np.float64)[places]

    def names(self, name: str) -> list[str]:
        return [f"{name}_{j}" for j in range(len(self.components))]

    @classmethod
    def restore(cls, parts: list[str], tensors: Mapping[str, Any], number: int) -> _Text:
        arrays = [tensors.get(f"text/{number}/{name}") for name in ("weights", "components")]
        if any(array is None for array in arrays):
            raise ValueError("the preprocessor has a column of free text, but its weights are missing")
        weights, components = (np.asarray(array) for array in arrays)
        if not isinstance(parts, list) or weights.shape != (len(parts),):
            raise ValueError("parts of words and their weights have different sizes")
        if components.ndim != 2 or (parts and components.shape[1] != len(parts)):
            raise ValueError("parts of words and their directions have different sizes")
        return cls([str(part) for part in parts], weights, components)


def _frequent_parts(texts: np.ndarray, min_frequency: int) -> list[str]:
    """Return the parts of words that enough texts have, up to a maximum number."""
    try:
        counter = CountVectorizer(**_PARTS, min_df=min(min_frequency, len(texts)), max_features=_MOST_PARTS)
        return [str(part) for part in counter.fit(texts.tolist()).get_feature_names_out()]
    except ValueError:  # scikit-learn raises if none is left
        return []


def _new_imputer() -> Any:
    return SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)


def _new_encoder(min_frequency: int, max_categories: int) -> Any:
    return OneHotEncoder(
        min_frequency=min_frequency,
        max_categories=max_categories,
        handle_unknown="infrequent_if_exist",
        sparse_output=False,
    )


def _old_encoder(frequent: list[str], n_rare: int) -> Any:
    """Build an encoder that knows some categories and whether there were rare ones."""
    if not all(isinstance(category, str) for category in frequent):
        raise ValueError("categories that are not text")
    # one infrequent value stands for all rare ones; its name never appears
    stand_in = [max(["", *frequent]) + "+"] if n_rare > 0 else []
    rows = np.array(frequent * 2 + stand_in, dtype=object)
    return _new_encoder(2, len(frequent) + 2).fit(rows[:, None])
