"""The model that a comparison leaves: the chosen method trained on all rows, in one safe file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline

from elliptica._streams import stream_seed
from elliptica.compare.comparison import Comparison
from elliptica.compare.methods import make_estimator
from elliptica.compare.plan import draw_settings
from elliptica.compare.problem import Problem
from elliptica.compare.protocol import final_trial
from elliptica.estimators import TablePreprocessor, save


def notes_of(problem: Problem) -> dict[str, Any]:
    """What predictions for another table must know beside the model itself."""
    return {
        "target": problem.target_name,
        "ids": list(problem.ids),
        "text_as_missing": list(problem.text_as_missing),
    }


def fit_model(comparison: Comparison, file: Path | None = None) -> Pipeline:
    """Train the best network of a comparison on all rows.

    Its settings are those of the trial that was best on the validation rows on average over repeats. All rows
    are used, test rows among them, since nothing is measured with this model.

    Args:
        comparison: With at least one finished repeat.
        file: Where to save it; None: not saved.

    Returns:
        Preprocessing and network in a pipeline; takes frames with the columns of the inputs.
    """
    problem, plan, method = comparison.problem, comparison.plan, comparison.model_method
    settings = draw_settings(method, final_trial(comparison.records, method, problem, plan), plan)
    seed = stream_seed("model", plan.seed) % 2**32
    network = make_estimator(method, problem.task, settings, plan, len(problem.target), seed)
    model = Pipeline([("table", TablePreprocessor()), ("network", network)])
    model.fit(problem.features, problem.target)
    if file is not None:
        save(model, file, notes=notes_of(problem))
    return model
