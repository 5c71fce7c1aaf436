"""Which objects `save` takes, and what to save instead of the others."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline

from elliptica.estimators._base import EllipticEstimator
from elliptica.estimators.classifier import EllipticClassifier
from elliptica.estimators.preprocess import TablePreprocessor
from elliptica.estimators.regressor import EllipticRegressor


def savable_parts(estimator: Any) -> tuple[TablePreprocessor | None, EllipticEstimator, list[str]]:
    """The preprocessor, if any, the estimator, and the names of the steps."""
    steps = estimator.steps if isinstance(estimator, Pipeline) else [("", estimator)]
    names, parts = [name for name, _ in steps], [part for _, part in steps]
    if type(parts[-1]) in (EllipticClassifier, EllipticRegressor):
        if len(parts) == 1:
            return None, parts[0], names
        if len(parts) == 2 and type(parts[0]) is TablePreprocessor:
            return parts[0], parts[1], names
    raise TypeError(
        "save takes EllipticClassifier, EllipticRegressor, or a pipeline of TablePreprocessor and one of "
        f"them, but got {_kind(estimator)}. {_remedy(estimator, parts)}"
    )


def _kind(estimator: Any) -> str:
    """What an object is; of a pipeline, its steps too."""
    name = type(estimator).__name__
    if not isinstance(estimator, Pipeline):
        return name
    return f"{name} of {', '.join(type(part).__name__ for _, part in estimator.steps)}"


def _remedy(estimator: Any, parts: list[Any]) -> str:
    """How to save what can be saved of an object that `save` does not take."""
    if type(estimator).__name__.endswith("SearchCV"):
        return "Save the estimator that the search chose: save(search.best_estimator_, path)."
    if len(parts) > 1 and isinstance(parts[-1], EllipticEstimator):
        return (
            "The network alone can be saved, and then takes rows as the steps before it give them: "
            "save(pipeline[-1], path). For the whole pipeline use joblib, whose files must be trusted."
        )
    return "For other objects use joblib, whose files must be trusted."
