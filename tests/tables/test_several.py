"""The best of several: its weights, its records, and the model that is saved."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from elliptica.estimators import load
from elliptica.tables import compare, fit_model
from elliptica.tables.model import fit_pipeline, only_rows, read_fitted
from elliptica.tables.saved import predict_file
from elliptica.tables.several import choose_weights, greedy_weights
from elliptica.tables.table import TableError
from elliptica.tables.training import Recipe, stream_seed


def test_weights_are_close_to_the_best_of_all_averages():
    """Compared with every average of twenty members of three methods."""
    draws = np.random.default_rng(0)
    for _ in range(20):
        errors = draws.normal(size=(3, 30)) * draws.uniform(0.5, 2, (3, 1)) + draws.normal(size=30)
        products = errors @ errors.T
        every = [np.array(c) / 20 for c in itertools.product(range(21), repeat=3) if sum(c) == 20]
        least = min(w @ products @ w for w in every)
        weights = greedy_weights(products)
        assert weights.sum() == pytest.approx(1)
        assert weights @ products @ weights <= 1.02 * least
        assert weights @ products @ weights <= products.diagonal().min()  # never worse than one alone


def test_it_is_an_average_of_what_the_fold_tested(found):
    for fold in found.shift.folds:
        parts = {r.method: r for r in found.records if r.fold == fold.number}
        several = parts.pop("several")
        weights = several.trials[0].settings
        assert several.final() == pytest.approx(sum(w * parts[m].final() for m, w in weights.items()))
        truth = np.eye(2)[np.unique(found.problem.target, return_inverse=True)[1]][fold.validation]
        held = sum(w * parts[m].held for m, w in weights.items())
        least = min(((part.held - truth) ** 2).mean() for part in parts.values())
        assert ((held - truth) ** 2).mean() <= least + 1e-6
    failed = tuple(replace(r, error="bad") if r.method in weights else r for r in found.records)
    assert not set(choose_weights(found.problem, found.shift.folds, failed)) & set(weights)


@pytest.mark.parametrize("target", ["kind", "height"])
def test_the_saved_average_is_the_tested_procedure(flowers, tiny, target, tmp_path):
    """The parts of a fold, trained on its rows as the final model trains them, give what the fold tested."""
    frame = flowers.drop("height" if target == "kind" else "kind")
    found = compare(frame, target, methods=["trees", "linear", "several"], out=tmp_path / "out", **tiny)
    again = compare(frame, target, methods=["trees", "linear", "several"], out=tmp_path / "out", **tiny)
    assert again.scores["several"] == found.scores["several"]  # from the files
    fold, problem = found.shift.folds[0], found.problem
    records = {r.method: r for r in found.records if r.fold == 0}
    seed, predicted = stream_seed("training", 0, 0, 0, "final"), 0.0
    for method, weight in records["several"].trials[0].settings.items():
        record = records[method]
        trial = record.trials[record.chosen]
        recipe = Recipe(method, trial.settings, trial.log_target, trial.length, record.temperature)
        model = fit_pipeline(only_rows(problem, fold.train), found.plan, recipe, seed)
        answers = getattr(model, "predict_proba", model.predict)
        predicted += weight * answers(problem.features[fold.test])
    assert predicted == pytest.approx(records["several"].final(), rel=1e-5, abs=1e-7)
    file = tmp_path / "m.elliptica"
    expected = fit_model(found, file, "several").predict(problem.features)
    assert np.array_equal(load(file).predict(problem.features), expected)
    assert predict_file(file, frame)[0]["prediction"].to_list() == expected.tolist()
    with pytest.raises(TableError, match="several"):
        read_fitted(file, frame)


def test_an_estimator_of_yours(flowers, tiny, tmp_path):
    forest = "sklearn.ensemble:ExtraTreesRegressor"
    ridge = "sklearn.linear_model:BayesianRidge"
    frame = flowers.drop("kind").with_columns(pl.col("height") - 100)
    found = compare(frame, "height", methods=["several", forest, ridge], **tiny)
    assert found.methods == ("erm", "several", forest, ridge)
    assert found.table()["name"].to_list()[2:4] == ["ExtraTreesRegressor (cannot be saved)", "BayesianRidge"]
    assert [len(record.trials) for record in found.of(forest)] == [1, 1, 1]
    assert forest not in choose_weights(found.problem, found.shift.folds, found.records)
    assert fit_model(found, tmp_path / "m", ridge).predict(found.problem.features).std() > 0
    with pytest.raises(TableError, match="ExtraTrees"):
        fit_model(found, tmp_path / "n", forest)
    for wrong in ("sklearn.svm:SVC", "sklearn.linear_model:Ridge"):
        with pytest.raises(TableError, match="methods"):
            compare(flowers.drop("height"), "kind", methods=[wrong], **tiny)
