"""`network_rows`: the very numbers that training saw, ready for `elliptica.diagnose`."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from torch import nn

import elliptica
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, load, save

QUICK = {"hidden": (8,), "max_iter": 2, "random_state": 0}


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(40, 3)) * [1, 1e3, 1e-3] + [5, 0, 0]


def test_classes_are_numbers_in_the_order_of_classes_(x):
    labels = np.array(["no", "yes", "perhaps", "yes"] * 10)
    model = EllipticClassifier(**QUICK).fit(x, labels)
    module, loss, inputs, targets = model.network_rows(x[:6], labels[:6])
    assert module is model.module_
    assert isinstance(loss, nn.CrossEntropyLoss)
    expected = (x[:6] - x.mean(0)) / x.std(0)  # scaled by the rows of training, not by these
    np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-5)
    assert inputs.dtype == torch.float32
    assert targets.tolist() == [0, 2, 1, 2, 0, 2]  # no, perhaps, yes
    chance = module(inputs).softmax(1).detach().numpy()
    np.testing.assert_allclose(chance, model.predict_proba(x[:6]), atol=1e-5)


def test_real_targets_are_scaled_as_in_training(x):
    y = np.stack([x[:, 0] * 7 + 100, x[:, 1]], axis=1)
    model = EllipticRegressor(**QUICK).fit(x, y)
    module, loss, inputs, targets = model.network_rows(x, y)
    assert isinstance(loss, nn.MSELoss)
    np.testing.assert_allclose(targets.numpy(), (y - y.mean(0)) / y.std(0), atol=1e-5)
    assert targets.dtype == torch.float32
    # R2 = 1 - squared error in units of the variance
    assert 1 - loss(module(inputs), targets).item() == pytest.approx(model.score(x, y), abs=1e-4)
    flat = EllipticRegressor(**QUICK).fit(x, y[:, 0])
    assert flat.network_rows(x, y[:, 0]).y.shape == (40, 1)


def test_several_labels_at_once(x):
    labels = (x > x.mean(0)).astype(int)
    rows = EllipticClassifier(**QUICK).fit(x, labels).network_rows(x, labels)
    assert isinstance(rows.loss, nn.BCEWithLogitsLoss)
    assert rows.y.tolist() == labels.tolist()
    assert rows.y.dtype == torch.float32


def test_without_scaling_the_rows_are_the_users(x):
    model = EllipticRegressor(standardize=False, **QUICK).fit(x / 1000, x[:, 0])
    rows = model.network_rows(x, x[:, 0])
    np.testing.assert_array_equal(rows.x.numpy(), x.astype(np.float32))
    np.testing.assert_array_equal(rows.y.numpy()[:, 0], x[:, 0].astype(np.float32))


@pytest.mark.parametrize("kind", ["classes", "labels", "real"])
def test_they_are_what_diagnose_takes(x, kind, tmp_path):
    target = {"classes": x[:, 0] > 5, "labels": (x > x.mean(0)).astype(int), "real": x[:, 0]}[kind]
    model = (EllipticRegressor if kind == "real" else EllipticClassifier)(**QUICK).fit(x, target)
    before = [p.detach().clone() for p in model.module_.parameters()]
    found = elliptica.diagnose(*model.network_rows(x, target))
    assert found.n_rows == 40 or found.n_given == 40
    assert all(torch.equal(a, b) for a, b in zip(before, model.module_.parameters(), strict=True))
    again = elliptica.diagnose(*load(save(model, tmp_path / "m.elliptica")).network_rows(x, target))
    assert again.to_dict() == found.to_dict()


def test_behind_a_preprocessor():
    frame = pd.DataFrame({"area": [30.0, 45.0, None, 80.0] * 5, "town": ["A", "B", "A", "A"] * 5})
    rent = np.arange(20.0)
    pipeline = make_pipeline(TablePreprocessor(), EllipticRegressor(**QUICK)).fit(frame, rent)
    rows = pipeline[-1].network_rows(pipeline[:-1].transform(frame), rent)
    assert rows.x.shape == (20, 4)
    np.testing.assert_allclose(rows.x.mean(0).numpy(), np.zeros(4), atol=1e-6)


@pytest.mark.bad_input
def test_rows_that_do_not_fit_are_refused(x):
    labels = np.arange(40) % 2
    with pytest.raises(NotFittedError):
        EllipticClassifier().network_rows(x, labels)
    model = EllipticClassifier(**QUICK).fit(x, labels)
    with pytest.raises(ValueError, match=r"classes \[2\] that training did not begin with.*drop these rows"):
        model.network_rows(x, labels + 1)
    with pytest.raises(ValueError, match="2 features, but EllipticClassifier is expecting 3"):
        model.network_rows(x[:, :2], labels)
    with pytest.raises(ValueError, match="1 columns as before"):
        EllipticRegressor(**QUICK).fit(x, x[:, 0]).network_rows(x, x[:, :2])
