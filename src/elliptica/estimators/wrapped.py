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


class _Model(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Predict what ``_answers`` gives: numbers, or the probabilities of ``classes_``."""

    def predict(self, X: Any) -> np.ndarray:
        """Predict numbers, or the most probable classes."""
        answers = self._answers(X)
        return np.asarray(self.classes_[answers.argmax(1)]) if hasattr(self, "classes_") else answers

    @available_if(lambda self: hasattr(self, "classes_"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probabilities of the classes."""
        return np.asarray(self._answers(X))


@dataclass(kw_only=True, eq=False, repr=False)
class Booster(_Model):
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
        n_classes, self.n_features_in_, self.temperature_, self.mean_ = 1, X.shape[1], 1.0, 0.0
        if self.task == "classification":
            self.classes_, y = np.unique(y, return_inverse=True)
            y_val = None if X_val is None else np.searchsorted(self.classes_, y_val)
            n_classes = len(self.classes_)
        else:  # the libraries round targets to single precision
            self.mean_ = float(np.mean(y))
            y, y_val = y - self.mean_, None if y_val is None else y_val - self.mean_
        settings = {"objective": _OBJECTIVES[self.library][min(n_classes, 3) - 1], **(self.settings or {})}
        if n_classes > 2 and self.library != "catboost":
            settings["num_class"] = n_classes
        held = [self._data(X_val, y_val)] if self.early_stopping else []
        grow = {"catboost": self._catboost, "lightgbm": self._lightgbm, "xgboost": self._xgboost}
        self.model_, self.best_iteration_ = grow[self.library](settings, self._data(X, y), held)
        return self

    def _answers(self, X: np.ndarray) -> np.ndarray:
        kind = {"prediction_type": "Probability" if hasattr(self, "classes_") else "RawFormulaVal"}
        options = kind if self.library == "catboost" else {}
        data = self._data(X)  # checks the library before anything of a file is read
        answers = _restore(self.library, self.model_).predict(data, **options).astype(np.float64)
        if not hasattr(self, "classes_"):
            return np.asarray(answers + self.mean_)
        chances = np.column_stack([1 - answers, answers]) if answers.ndim == 1 else answers
        return at_temperature(chances, self.temperature_)

    def _data(self, X: np.ndarray, y: Any = None) -> Any:
        """Return rows as the library reads them; CatBoost needs whole numbers as codes."""
        if self.library not in _OBJECTIVES:  # a file may hold any name, and importing runs code
            raise ValueError(f"library must be one of {', '.join(_OBJECTIVES)}, but got {self.library!r}.")
        library, marks = importlib.import_module(self.library), self.categorical_features
        codes = [] if marks is None else np.flatnonzero(marks).tolist()
        if self.library == "xgboost":
            types = ["c" if k in codes else "q" for k in range(X.shape[1])]
            return library.DMatrix(X, y, feature_types=types, enable_categorical=True, nthread=1)
        if self.library == "lightgbm":
            return X if y is None else library.Dataset(X, y, categorical_feature=codes)
        cells = X.astype(object) if codes else X
        if codes:
            cells[:, codes] = np.nan_to_num(X[:, codes], nan=-1).astype(int)
        return library.Pool(cells, y, cat_features=codes)

    def _catboost(self, settings: dict[str, Any], train: Any, held: list[Any]) -> tuple[bytes, int]:
        settings |= {"iterations": self.max_iter, "random_seed": self.random_state, "border_count": 128}
        settings |= {"thread_count": 1, "allow_writing_files": False, "logging_level": "Silent"}
        settings |= {"od_type": "Iter", "od_wait": self.n_iter_no_change} if held else {}
        model = importlib.import_module("catboost").CatBoost(settings)
        model.fit(train, eval_set=held or None, use_best_model=bool(held))
        return bytes(model._serialize_model()), int(model.tree_count_)

    def _lightgbm(self, settings: dict[str, Any], train: Any, held: list[Any]) -> tuple[bytes, int]:
        library = importlib.import_module("lightgbm")
        settings |= {"seed": self.random_state, "num_threads": 1, "verbosity": -1, "deterministic": True}
        stop = [library.early_stopping(self.n_iter_no_change, verbose=False)] if held else []
        held = [rows.set_reference(train) for rows in held]
        model = library.train(settings, train, self.max_iter, valid_sets=held, callbacks=stop)
        length = model.best_iteration if held else model.current_iteration()
        return model.model_to_string(num_iteration=length).encode(), int(length)

    def _xgboost(self, settings: dict[str, Any], train: Any, held: list[Any]) -> tuple[bytes, int]:
        settings |= {"seed": self.random_state, "nthread": 1, "verbosity": 0}
        stop = {"evals": [(held[0], "held")], "early_stopping_rounds": self.n_iter_no_change} if held else {}
        grow = importlib.import_module("xgboost").train
        model = grow(settings, train, self.max_iter, verbose_eval=False, **stop)
        length = model.best_iteration + 1 if held else self.max_iter
        return bytes(model[:length].save_raw("ubj")), int(length)


@lru_cache(maxsize=16)
def _restore(library: str, content: bytes) -> Any:
    """Read a model in the format of its library; XGBoost would end the process on an empty one."""
    if not content:
        raise ValueError("The model is empty.")
    if library == "catboost":
        return importlib.import_module("catboost").CatBoost().load_model(blob=content)
    if library == "lightgbm":
        return importlib.import_module("lightgbm").Booster(model_str=content.decode())
    return importlib.import_module("xgboost").Booster({"nthread": 1}, model_file=bytearray(content))


@dataclass(kw_only=True, eq=False, repr=False)
class Average(_Model):
    """Weighted average of the predictions of fitted models, which read the same columns."""

    models: Sequence[Any]
    weights: Sequence[float]

    def __getattr__(self, name: str) -> Any:
        """Return what the models know alike: classes, and number and names of columns."""
        if name in ("classes_", "n_features_in_", "feature_names_in_"):
            return getattr(self.models[0], name)
        raise AttributeError(name)

    def _answers(self, X: Any) -> np.ndarray:
        answers = [getattr(model, "predict_proba", model.predict)(X) for model in self.models]
        return np.asarray(sum(w * answer for w, answer in zip(self.weights, answers, strict=True)))
