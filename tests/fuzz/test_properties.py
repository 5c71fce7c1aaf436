"""Properties of estimators, baselines, partner indexes and statistics, against slow references.

The suite tries the same few examples every time; ``FUZZ=100`` tries a hundred times as many, and others.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, r2_score
from sklearn.pipeline import make_pipeline

from elliptica._utils.statistics import holm
from elliptica.estimators import (
    EllipticClassifier,
    EllipticRegressor,
    TablePreprocessor,
    load,
    save,
)

FUZZ = int(os.environ.get("FUZZ", "1"))


def examples(n):
    """Settings of a property that the suite tries ``n`` times."""
    more = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    return settings(max_examples=n * FUZZ, derandomize=FUZZ == 1, **more)


def finite(least=-1e3, most=1e3):
    return st.floats(least, most, allow_subnormal=False)


seeds = st.integers(0, 2**32 - 1)


@examples(50)
@given(st.lists(finite(0, 1), min_size=1, max_size=12))
def test_holm(values):
    """The definition: the largest product so far, at most 1."""
    adjusted, so_far = [0.0] * len(values), 0.0
    for place, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, (len(values) - place) * values[i])
        adjusted[i] = min(so_far, 1.0)
    np.testing.assert_allclose(holm(torch.tensor(values, dtype=torch.float64)), adjusted, rtol=1e-9)


# Objectives with plain formulas.


# Partners by inverse distance.


# Estimators on odd tables.

QUICK = {"hidden": (8,), "max_iter": 2, "batch_size": 8, "random_state": 0}


@st.composite
def tables(draw):
    """Numbers with constant, duplicated, huge and tiny columns, and a target of any unit."""
    rng, n = np.random.default_rng(draw(seeds)), draw(st.integers(4, 24))
    kinds = {
        "normal": lambda: rng.normal(size=n),
        "constant": lambda: np.full(n, rng.normal()),
        "binary": lambda: rng.integers(0, 2, n).astype(float),
        "skewed": lambda: np.exp(5 * rng.normal(size=n)),
    }
    columns = []
    for kind in draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=3)):
        columns.append(kinds[kind]() * draw(st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e30])))
    columns += columns[: draw(st.integers(0, 1))]
    y = rng.normal(size=n) * draw(st.sampled_from([1e-20, 1.0, 1e20])) + draw(st.sampled_from([0.0, 1.0]))
    return np.column_stack(columns), y


@examples(25)
@given(tables(), st.sampled_from(["erm", "elliptic", "mixup", "noise"]), seeds)
def test_a_regressor_predicts_row_by_row_within_the_range(table, method, seed):
    x, y = table
    model = EllipticRegressor(method=method, **QUICK).fit(x, y)
    found, far, room = model.predict(x), model.predict(1e3 * x), 1e-6 * np.abs(y).max()
    assert (np.minimum(found, far) >= y.min() - room).all()
    assert (np.maximum(found, far) <= y.max() + room).all()
    order = np.random.default_rng(seed).permutation(len(x))
    np.testing.assert_allclose(model.predict(x[order]), found[order], rtol=1e-5, atol=room)
    np.testing.assert_allclose(model.predict(x[:1]), found[:1], rtol=1e-5, atol=room)
    if len(np.unique(y)) > 1:
        scale = np.abs(y).max()
        assert model.score(x, y) == pytest.approx(r2_score(y / scale, found / scale), rel=1e-6, abs=1e-6)


@examples(25)
@given(tables(), st.integers(1, 4), st.sampled_from(["erm", "elliptic", "mixup"]), st.booleans(), seeds)
def test_a_classifier_gives_probabilities_of_its_classes(table, n_classes, method, words, seed):
    x, _ = table
    labels = np.array(["rose", "iris", "a,b", "ü"]) if words else np.array([7, -3, 0, 2**40])
    y = labels[np.random.default_rng(seed).integers(0, n_classes, len(x))]
    model = EllipticClassifier(method=method, **QUICK).fit(x, y)
    p = model.predict_proba(x)
    assert p.shape == (len(x), len(np.unique(y)))
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert (model.classes_ == np.unique(y)).all()
    assert (model.predict(x) == model.classes_[p.argmax(1)]).all()
    assert model.score(x, y) == pytest.approx(accuracy_score(y, model.predict(x)))
    np.testing.assert_allclose(model.predict_proba(x[::-1]), p[::-1], atol=1e-5)


@examples(15)
@given(tables(), st.booleans(), st.integers(1, 2))
def test_a_saved_model_predicts_the_same(table, is_classifier, n_networks):
    x, y = table
    target, kind = (y > np.median(y), EllipticClassifier) if is_classifier else (y, EllipticRegressor)
    model = kind(n_networks=n_networks, **QUICK).fit(x, target)
    with tempfile.TemporaryDirectory() as folder:
        copy = load(save(model, Path(folder) / "model.elliptica"))
    assert (copy.predict(x) == model.predict(x)).all()


@st.composite
def frames(draw):
    """A frame with gaps, rare and unseen categories, and an empty column; and new rows."""
    rng = np.random.default_rng(draw(seeds))
    n, share = draw(st.integers(6, 24)), draw(st.sampled_from([0.0, 0.2, 0.8]))

    def gaps(values):
        return [None if rng.random() < share else value for value in values]

    def rows(n, words):
        return pl.DataFrame(
            {
                "number": pl.Series(gaps(rng.normal(size=n).tolist()), dtype=pl.Float64),
                "word": pl.Series(gaps(rng.choice(words, n).tolist()), dtype=pl.String),
                "empty": pl.Series([None] * n, dtype=pl.Float64),
                "same": [3] * n,
            }
        )

    return rows(n, ["a", "b", "c,d"]), rows(5, ["a", "b", "never seen"]), rng.normal(size=n)


@pytest.mark.slow
@examples(15)
@given(frames(), st.randoms(use_true_random=False))
def test_gaps_and_unseen_words_are_predicted_row_by_row(made, draws):
    """Also after a file."""
    frame, new, y = made
    model = make_pipeline(TablePreprocessor(), EllipticRegressor(**QUICK)).fit(frame, y)
    found = model.predict(new)
    assert np.isfinite(found).all()
    order = draws.sample(range(5), 5)
    np.testing.assert_allclose(model.predict(new[order]), found[order], rtol=1e-5, atol=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        copy = load(save(model, Path(folder) / "model.elliptica"))
    assert (copy.predict(new) == found).all()
