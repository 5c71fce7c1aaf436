"""Boosted trees of other libraries, and averages of models, as estimators that a safe file can hold."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if

#: Smaller probabilities count as this one.
MIN_PROBABILITY = 1e-15
#: Objectives for numbers, for two classes and for more of them.
_OBJECTIVES = {
    "catboost": ("RMSE", "Logloss", "MultiClass"),
    "lightgbm": ("regression", "binary", "multiclass"),
    "xgboost": ("reg:squarederror", "binary:logistic", "multi:softprob"),
}


def at_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Soften (above 1) or sharpen (below 1) probabilities."""
    powers = np.log(probabilities.clip(MIN_PROBABILITY)) / temperature
    powers = np.exp(powers - powers.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _has_classes(model: Any) -> bool:
    return hasattr(model, "classes_")


@dataclass(kw_only=True, eq=False, repr=False)
class Booster(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Boosted trees of CatBoost, LightGBM or XGBoost, kept in the library's own format.

    Inputs are numbers with NaN for gaps, and codes from 0 in the columns that ``categorical_features`` marks.
    With ``early_stopping``, validation rows choose the number of iterations, ``best_iteration_``.
    """

    library: Literal["catboost", "lightgbm", "xgboost"] = "lightgbm"
    task: Literal["classification", "regression"] = "regression"
    settings: Mapping[str, Any] | None = None  # by the library's names
    categorical_features: Any = None
    max_iter: int = 100
    early_stopping: bool = False
    n_iter_no_change: int = 20
    random_state: int = 0

    def fit(self, X: np.ndarray, y: Any, X_val: Any = None, y_val: Any = None) -> Booster:
        """Grow trees; the validation rows are needed for ``early_stopping``."""
        n_classes, self.n_features_in_, self.temperature_ = 0, X.shape[1], 1.0
        if self.task == "classification":
            self.classes_, y = np.unique(y, return_inverse=True)
            n_classes = len(self.classes_)
        sets = [(X, y)]
        if self.early_stopping:
            sets.append((X_val, np.searchsorted(self.classes_, y_val) if n_classes else y_val))
        settings: dict[str, Any] = {
            "objective": _OBJECTIVES[self.library][min(n_classes, 3) - 1 if n_classes else 0]
        }
        settings |= {"num_class": n_classes} if n_classes > 2 and self.library != "catboost" else {}
        grow = {"catboost": self._catboost, "lightgbm": self._lightgbm, "xgboost": self._xgboost}
        self.model_, self.best_iteration_ = grow[self.library]({**settings, **(self.settings or {})}, sets)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predict numbers, or the most probable classes."""
        if _has_classes(self):
            return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])
        return self._answers(X)

    @available_if(_has_classes)
    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Predict the probabilities of the classes, softened by ``temperature_``."""
        chances = self._answers(X)
        chances = np.column_stack([1 - chances, chances]) if chances.ndim == 1 else chances
        return at_temperature(chances, self.temperature_)

    def _answers(self, X: np.ndarray) -> np.ndarray:
        model, inputs, options = _restore(self.library, self.model_), X, {}
        if self.library == "catboost":
            kind = "Probability" if _has_classes(self) else "RawFormulaVal"
            inputs, options = self._cells(X), {"prediction_type": kind, "thread_count": 1}
        elif self.library == "lightgbm":
            options = {"num_threads": 1}
        else:
            inputs = self._matrix(X)
        return np.asarray(model.predict(inputs, **options), dtype=np.float64)

    @property
    def _codes(self) -> list[int]:
        """Numbers of the columns of codes."""
        return [] if self.categorical_features is None else np.flatnonzero(self.categorical_features).tolist()

    def _cells(self, X: np.ndarray) -> np.ndarray:
        """Return inputs for CatBoost, which needs whole numbers as codes."""
        if not self._codes:
            return X
        cells = X.astype(object)
        cells[:, self._codes] = np.nan_to_num(X[:, self._codes], nan=-1).astype(int)
        return cells

    def _matrix(self, X: np.ndarray, y: Any = None) -> Any:
        """Return inputs for XGBoost."""
        types = ["c" if k in self._codes else "q" for k in range(self.n_features_in_)]
        matrix = importlib.import_module("xgboost").DMatrix
        return matrix(X, y, feature_types=types, enable_categorical=True, nthread=1)

    def _catboost(self, settings: dict[str, Any], sets: Sequence[Any]) -> tuple[bytes, int]:
        library = importlib.import_module("catboost")
        settings |= {"iterations": self.max_iter, "random_seed": self.random_state, "border_count": 128}
        settings |= {"thread_count": 1, "allow_writing_files": False, "logging_level": "Silent"}
        settings |= {"od_type": "Iter", "od_wait": self.n_iter_no_change} if len(sets) > 1 else {}
        train, *held = [library.Pool(self._cells(X), y, cat_features=self._codes) for X, y in sets]
        model = library.CatBoost(settings).fit(train, eval_set=held or None, use_best_model=bool(held))
        return bytes(model._serialize_model()), int(model.tree_count_)

    def _lightgbm(self, settings: dict[str, Any], sets: Sequence[Any]) -> tuple[bytes, int]:
        library = importlib.import_module("lightgbm")
        settings |= {"seed": self.random_state, "num_threads": 1, "verbosity": -1, "deterministic": True}
        train, *held = [library.Dataset(X, y, categorical_feature=self._codes) for X, y in sets]
        stop = [library.early_stopping(self.n_iter_no_change, verbose=False)] if held else []
        held = [each.set_reference(train) for each in held]
        model = library.train(settings, train, self.max_iter, valid_sets=held, callbacks=stop)
        length = model.best_iteration if held else model.current_iteration()
        return model.model_to_string(num_iteration=length).encode(), int(length)

    def _xgboost(self, settings: dict[str, Any], sets: Sequence[Any]) -> tuple[bytes, int]:
        settings |= {"seed": self.random_state, "nthread": 1, "verbosity": 0}
        train, *held = [self._matrix(X, y) for X, y in sets]
        stop = {"evals": [(held[0], "held")], "early_stopping_rounds": self.n_iter_no_change} if held else {}
        grow = importlib.import_module("xgboost").train
        model = grow(settings, train, self.max_iter, verbose_eval=False, **stop)
        length = model.best_iteration + 1 if held else self.max_iter
        return bytes(model[:length].save_raw("ubj")), int(length)


@lru_cache(maxsize=16)
def _restore(library: str, content: bytes) -> Any:
    """Read a model in the format of its library."""
    if library == "catboost":
        return importlib.import_module("catboost").CatBoost().load_model(blob=content)
    if library == "lightgbm":
        return importlib.import_module("lightgbm").Booster(model_str=content.decode())
    model = importlib.import_module("xgboost").Booster({"nthread": 1})
    model.load_model(bytearray(content))
    return model


@dataclass(kw_only=True, eq=False, repr=False)
class Average(BaseEstimator):  # type: ignore[misc]
    """Weighted average of the predictions of fitted models, which read the same columns."""

    models: Sequence[Any]
    weights: Sequence[float]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        """Return what the models know alike: classes, and number and names of columns."""
        if name in ("classes_", "n_features_in_", "feature_names_in_"):
            return getattr(self.models[0], name)
        raise AttributeError(name)

    def predict(self, X: Any) -> np.ndarray:
        """Predict numbers, or the most probable classes."""
        if _has_classes(self):
            return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])
        return self._average([model.predict(X) for model in self.models])

    @available_if(_has_classes)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probabilities of the classes."""
        return self._average([model.predict_proba(X) for model in self.models])

    def _average(self, answers: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(sum(w * answer for w, answer in zip(self.weights, answers, strict=True)))
