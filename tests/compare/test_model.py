"""The model that a comparison leaves: any winner, saved and loaded; and unlabelled rows."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from elliptica.compare import compare, describe_target_rows, fit_model
from elliptica.compare.model import final_settings
from elliptica.estimators import EllipticClassifier, load, read_notes


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


def test_the_linear_model_is_that_of_scaled_inputs(heights):
    """Folding the scaling into the weights changes no prediction."""
    final = final_settings(heights, "linear")
    model = fit_model(heights, method="linear")
    x = StandardScaler().fit_transform(model[0].transform(heights.problem.features))
    y = np.log(heights.problem.target) if final.log_target else heights.problem.target
    expected = Ridge(alpha=final.settings["penalty"]).fit(x, y).predict(x)
    expected = np.exp(expected) if final.log_target else expected
    assert model.predict(heights.problem.features) == pytest.approx(expected)


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
