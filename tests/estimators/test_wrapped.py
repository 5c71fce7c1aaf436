"""Boosted trees of other libraries, and averages: lengths, categories, temperatures and files."""

import sys

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from elliptica.estimators import EllipticRegressor, load, save
from elliptica.estimators.wrapped import Average, Booster, at_temperature

SETTINGS = {"catboost": {}, "lightgbm": {"min_data_per_group": 10, "cat_smooth": 3}, "xgboost": {}}
LIBRARIES = list(SETTINGS)


def table(task, n=200):
    """Targets that only the code explains: odd codes are high, even ones low; with gaps."""
    draws = np.random.default_rng(0)
    x = np.column_stack([draws.normal(size=n), draws.integers(0, 12, n)])
    signal = 3 * (x[:, 1] % 2) + draws.normal(size=n) / 3
    x[::9, 0] = x[::17, 1] = np.nan
    y = np.nan_to_num(signal)
    if task == 0:
        return x, y
    return x, np.array(["a", "b", "c"])[np.searchsorted(np.quantile(y, [0.3, 0.6][: task - 1]), y)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_boosters(tmp_path, library, n_classes):
    pytest.importorskip(library)
    x, y = table(n_classes)
    task = "classification" if n_classes else "regression"
    same = {"library": library, "task": task, "settings": SETTINGS[library]}
    codes = np.array([False, True])
    grown = Booster(**same, categorical_features=codes, max_iter=300, early_stopping=True)
    grown.fit(x[:150], y[:150], x[150:], y[150:])
    assert 1 <= grown.best_iteration_ < 250  # the validation rows stop it
    new = np.vstack([x, [[np.nan, np.nan], [50.0, np.nan]]])
    if library != "catboost":  # which draws other numbers: no later iteration is kept
        again = Booster(**same, categorical_features=codes, max_iter=grown.best_iteration_)
        assert again.fit(x[:150], y[:150]).predict(new).tolist() == grown.predict(new).tolist()
    if n_classes:
        assert np.mean(grown.predict(x) == y) > 0.6
        plain, grown.temperature_ = grown.predict_proba(new), 2.0
        assert plain.sum(1) == pytest.approx(1)
        assert grown.predict_proba(new) == pytest.approx(at_temperature(plain, 2.0))
    else:
        assert np.mean((grown.predict(x) - y) ** 2) < 0.3 * y.var()
        assert not hasattr(grown, "predict_proba")
    file = save(grown, tmp_path / "m")
    answers = [getattr(m, "predict_proba", m.predict)(new) for m in (grown, load(file))]
    assert np.array_equal(*answers)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_damaged_model_of_a_library_is_refused(tmp_path, library):
    pytest.importorskip(library)
    model = Booster(library=library, max_iter=2).fit(*table(0))
    model.model_ = b"something else"
    with pytest.raises(TypeError, match="Booster"):
        save(model, tmp_path / "m")


def test_averages(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))
    models = [EllipticRegressor(max_iter=2, hidden=(4,)).fit(x, x[:, 0]), Ridge().fit(x, x[:, 1])]
    average = Average(models=models, weights=[0.25, 0.75])
    expected = 0.25 * models[0].predict(x) + 0.75 * models[1].predict(x)
    assert np.array_equal(average.predict(x), expected)
    assert np.array_equal(load(save(average, tmp_path / "m")).predict(x), expected)
    assert not hasattr(average, "predict_proba")


def test_a_model_imports_no_library_of_another_name(tmp_path, monkeypatch):
    """A file from anybody may name one."""
    (tmp_path / "stranger.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    model = Booster(library="stranger")
    model.model_, model.n_features_in_ = b"", 2
    for call in (model.predict, model.fit):
        with pytest.raises((ValueError, KeyError)):
            call(*table(0)[: 1 if call == model.predict else 2])
    assert "stranger" not in sys.modules
