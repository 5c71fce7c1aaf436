"""The model that a comparison leaves: any winner, saved and loaded; and unlabelled rows."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from elliptica.estimators import EllipticClassifier, load, read_notes
from elliptica.tables import fit_model
from elliptica.tables import model as model_module
from elliptica.tables.model import final_settings
from elliptica.tables.training import at_temperature, make_model


def test_the_winner_is_saved_whatever_it_is(found, flowers, tmp_path):
    for method in ("elliptic", "elliptic-weighted", "groupdro", "jtt", "trees", "linear"):
        file = tmp_path / f"{method}.elliptica"
        model = fit_model(found, file, method)
        again = load(file)
        inputs = found.problem.features
        assert np.array_equal(again.predict_proba(inputs), model.predict_proba(inputs))
        notes = read_notes(file)
        assert (notes["target"], notes["method"]) == ("kind", method)
        final = final_settings(found, method)
        if isinstance(model[-1], EllipticClassifier):
            assert model[-1].temperature_ == pytest.approx(final.temperature)
            assert model[-1].max_iter == final.length


def test_models_of_numbers_are_bounded_and_may_learn_logarithms(heights, tmp_path):
    low, high = heights.problem.target.min(), heights.problem.target.max()
    for method in ("erm", "c-mixup", "trees", "linear"):
        model = fit_model(heights, tmp_path / "a.elliptica", method)
        predicted = load(tmp_path / "a.elliptica").predict(heights.problem.features)
        assert np.array_equal(predicted, model.predict(heights.problem.features))
        if method in ("erm", "c-mixup"):
            assert low <= predicted.min() <= predicted.max() <= high


def test_the_linear_model_is_that_of_scaled_inputs(heights):
    """Folding the scaling into the weights changes no prediction."""
    final = final_settings(heights, "linear")
    model = fit_model(heights, method="linear")
    x = StandardScaler().fit_transform(model[0].transform(heights.problem.features))
    y = np.log(heights.problem.target) if final.log_target else heights.problem.target
    expected = Ridge(alpha=final.settings["penalty"]).fit(x, y).predict(x)
    expected = np.exp(expected) if final.log_target else expected
    assert model.predict(heights.problem.features) == pytest.approx(expected)


@pytest.fixture
def overconfident(found):
    """The same comparison, in which the validation rows have found a temperature of 2 in every fold."""
    return replace(found, records=tuple(replace(record, temperature=2.0) for record in found.records))


@pytest.mark.parametrize("method", ["erm", "trees", "linear"])
def test_what_is_judged_is_calibrated_as_what_is_saved(overconfident, method, tmp_path):
    """Scores are those of softened probabilities, and the file softens its own by as much."""
    fold = overconfident.shift.folds[0]
    (record,) = (r for r in overconfident.of(method) if r.fold == fold.number)
    judged = overconfident.predictions.values[method][0, fold.test]
    assert judged == pytest.approx(at_temperature(record.predicted, 2.0))
    final = final_settings(overconfident, method)
    assert final.temperature == pytest.approx(2.0)
    file = tmp_path / "m.elliptica"
    fit_model(overconfident, file, method)
    warm = replace(overconfident, records=tuple(replace(r, temperature=1.0) for r in overconfident.records))
    plain = fit_model(warm, None, method).predict_proba(overconfident.problem.features)
    saved = load(file).predict_proba(overconfident.problem.features)
    assert saved == pytest.approx(at_temperature(plain, 2.0), abs=1e-6)
    assert np.abs(saved - plain).max() > 0.01


def test_trees_and_lines_of_classes_are_those_of_scikit_learn_at_a_temperature(overconfident):
    problem = overconfident.problem
    for method in ("trees", "linear"):
        final = final_settings(overconfident, method)
        model = fit_model(overconfident, None, method)
        x = model[0].transform(problem.features)
        if method == "trees":
            plain = make_model(problem, overconfident.plan, final, n_networks=1, seed=0)
        else:
            x = StandardScaler().fit_transform(x)
            plain = LogisticRegression(C=1 / final.settings["penalty"], max_iter=300)
        expected = at_temperature(plain.fit(x, problem.target).predict_proba(x), 2.0)
        assert model.predict_proba(problem.features) == pytest.approx(expected, abs=1e-5)


def test_the_saved_jtt_has_the_stages_of_the_compared_one(found, monkeypatch):
    """First one network of ordinary training, as trials train it; then its errors count more often."""
    fits, usual = [], model_module.fit_models
    monkeypatch.setattr(model_module, "fit_models", lambda given: fits.extend(given) or usual(given))
    fit_model(found, method="jtt")
    first, second = fits
    ordinary, final = final_settings(found, "erm"), final_settings(found, "jtt")
    n = len(found.problem.target)
    model = first.estimator
    assert first.sample_weight is None
    assert (model.method, model.max_iter, model.n_networks) == ("erm", ordinary.length, 1)
    assert {name: getattr(model, name) for name in ordinary.settings} == ordinary.settings
    assert len(first.y) == pytest.approx(0.75 * n, abs=2)
    assert (second.estimator.method, second.estimator.max_iter, len(second.y)) == ("erm", final.length, n)
    assert set(second.sample_weight) == {1.0, final.settings["upweight"]}
    assert 0 < (second.sample_weight > 1).mean() < 0.5
