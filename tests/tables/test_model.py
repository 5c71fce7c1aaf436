"""The model that a comparison leaves: any winner, saved and loaded; and unlabelled rows."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from compare_cases import prices, quiet, two_classes
from elliptica._utils.random import stream_seed
from elliptica.estimators import EllipticClassifier, load, read_notes, save
from elliptica.tables import compare, describe_target_rows, fit_model
from elliptica.tables.model import FinalSettings, final_settings, fit_pipeline
from elliptica.tables.networks import run_networks, training_seed
from elliptica.tables.plan import NETWORKS, Plan
from elliptica.tables.protocol import at_temperature, prepare
from elliptica.tables.references import make_reference, run_reference
from elliptica.tables.shift import make_shift


def test_the_winner_is_saved_whatever_it_is(found, flowers, tmp_path):
    for method in ("elliptic", "elliptic-weighted", "groupdro", "jtt", "trees", "linear"):
        file = tmp_path / f"{method}.elliptica"
        model = fit_model(found, file, method)
        again = load(file)
        inputs = found.problem.features
        assert np.array_equal(again.predict_proba(inputs), model.predict_proba(inputs))
        assert (again.predict(inputs) == found.problem.target).mean() > 0.5
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
        assert read_notes(tmp_path / "a.elliptica")["range"] == [low, high]
    assert any(final_settings(heights, method).log_target for method in heights.methods)


@pytest.mark.parametrize("method", ["erm", "elliptic", "elliptic-weighted", "trees", "linear"])
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_the_saved_model_predicts_exactly_what_the_tested_procedure_predicts(task, method, tmp_path):
    """Trained on the rows of a fold, with its settings, length and seed: the predictions of its record."""
    problem = two_classes() if task == "classes" else prices()
    plan = Plan(("erm", method), trials=2, epochs=5, networks=2, hidden=(16,), log_target=task == "numbers")
    plan = replace(plan, methods=(method,))
    fold = make_shift(problem).folds[0]
    rows = prepare(problem, fold, plan)
    if method in NETWORKS:
        (record,) = run_networks(problem, [rows], plan, quiet)
        seed = training_seed(plan, fold.repeat, fold.number, is_final=True)
    else:
        record = run_reference(problem, rows, method, plan, quiet, 5)
        seed = stream_seed("trees", plan.seed, fold.repeat)
    trial = record.trials[record.chosen]
    final = FinalSettings(method, trial.settings, trial.log_target, record.length, record.temperature)
    part = {name: getattr(problem, name)[fold.train] for name in ("features", "target")}
    model = fit_pipeline(replace(problem, **part, groups=None), plan, final, seed)
    again = load(save(model, tmp_path / "m"))
    test = problem.features[fold.test]
    if task == "classes":
        assert np.allclose(model.predict_proba(test), record.final(), rtol=0, atol=1e-12)
        assert np.array_equal(again.predict_proba(test), model.predict_proba(test))
    else:
        assert np.array_equal(model.predict(test), record.final())
        assert np.array_equal(again.predict(test), record.final())


def test_unlabelled_rows_are_measured_by_their_distance(flowers, tiny):
    frame = flowers.drop("kind", "colour", "site").drop_nulls()
    near = frame.drop("height").with_columns(pl.col("size") + 1e-3)
    far = near.with_columns(pl.col("size") + 100.0)
    shares = []
    for rows in (near, far):
        result = compare(frame, "height", methods=["linear"], target_rows=rows, bounded=True, **tiny)
        model = fit_model(result, method="linear")
        shares.append(describe_target_rows(result, model))
    assert shares[0].rows == len(near)
    assert shares[0].beyond_99 <= shares[0].beyond_95 < 0.1
    assert shares[0].beyond_range < 0.1
    assert (shares[1].beyond_95, shares[1].beyond_99, shares[1].beyond_range) == (1.0, 1.0, 1.0)
    assert (
        describe_target_rows(replace(result, problem=replace(result.problem, target_rows=None)), model)
        is None
    )


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
            seed = stream_seed("model", overconfident.plan.seed) % 2**32
            plain = make_reference("trees", "classification", final.settings, final.length, seed)
        else:
            x = StandardScaler().fit_transform(x)
            plain = LogisticRegression(C=1 / final.settings["penalty"], max_iter=300)
        expected = at_temperature(plain.fit(x, problem.target).predict_proba(x), 2.0)
        assert model.predict_proba(problem.features) == pytest.approx(expected, abs=1e-5)


def test_the_saved_jtt_has_the_stages_of_the_compared_one(found, monkeypatch):
    """First one network of ordinary training, as trials train it; then its errors count more often."""
    fits = []
    usual = EllipticClassifier.fit

    def watched(self, x, y, sample_weight=None, **more):
        fits.append((self, len(y), sample_weight))
        return usual(self, x, y, sample_weight, **more)

    monkeypatch.setattr(EllipticClassifier, "fit", watched)
    fit_model(found, method="jtt")
    (first, n_first, no_weight), (second, n_second, weight) = fits
    ordinary, final = final_settings(found, "erm"), final_settings(found, "jtt")
    n = len(found.problem.target)
    assert no_weight is None
    assert (first.method, first.max_iter, first.n_networks) == ("erm", ordinary.length, 1)
    assert {name: getattr(first, name) for name in ordinary.settings} == ordinary.settings
    assert n_first == round(0.75 * n)
    wrong = weight > 1
    assert 0 < wrong.mean() < 0.5
    assert (second.method, second.max_iter, n_second) == ("erm", final.length, n)
    assert np.array_equal(weight, np.where(wrong, final.settings["upweight"], 1.0))
    assert final.settings["upweight"] > 1
