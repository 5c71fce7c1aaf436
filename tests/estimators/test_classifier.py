"""`EllipticClassifier`: temperatures from held-out rows, against scikit-learn's own calibration."""

import warnings

import numpy as np
import pytest
from elliptica.estimators.fit import content_order, hold_out
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_blobs, make_multilabel_classification
from sklearn.frozen import FrozenEstimator

from elliptica._utils.random import stream_seed
from elliptica.estimators import EllipticClassifier
from elliptica.estimators.classifier import fit_temperature

QUICK = {"hidden": (16,), "max_iter": 5, "learning_rate": 0.01, "random_state": 0}


def overlapping(n_classes, n=240):
    return make_blobs(n, centers=n_classes, n_features=4, cluster_std=6.0, random_state=0)


def softmax(logits):
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_networks", [1, 3])
def test_temperature_is_that_of_scikit_learn_on_the_held_out_rows(n_classes, n_networks):
    x, y = overlapping(n_classes)
    options = {"validation_fraction": 0.4, "n_networks": n_networks}
    model = EllipticClassifier(**QUICK, **options, calibrate="temperature").fit(x, y)
    order = content_order(x, y.astype(float))
    kept, held = (
        order[part]
        for part in hold_out(x[order], y[order], 0.4, "classes", stream_seed(model._seed, "split") % 2**32)
    )
    assert len(held) == 96
    reference = CalibratedClassifierCV(FrozenEstimator(model), method="temperature").fit(x[held], y[held])
    np.testing.assert_allclose(model.predict_proba(x), reference.predict_proba(x), atol=1e-6)
    assert abs(np.log(model.temperature_)) > 0.02  # the test would see a missing temperature
    # training is that on the other rows, and labels do not change
    plain = EllipticClassifier(**QUICK, n_networks=n_networks).fit(x[kept], y[kept])
    assert plain.loss_curve_ == model.loss_curve_
    assert plain.temperature_ == 1
    np.testing.assert_array_equal(plain.predict(x), model.predict(x))
    np.testing.assert_allclose(plain.decision_function(x), model.decision_function(x))
    if n_classes == 3:
        shares = softmax(plain.decision_function(x) / model.temperature_)
        np.testing.assert_allclose(model.predict_proba(x), shares, atol=1e-12)


def test_temperature_counts_weights_as_copies():
    rng = np.random.default_rng(0)
    logits, codes, copies = rng.normal(size=(50, 3)), rng.integers(0, 3, 50), rng.integers(1, 4, 50)
    weighted = fit_temperature(logits, codes, copies.astype(float))
    assert weighted == pytest.approx(fit_temperature(np.repeat(logits, copies, 0), np.repeat(codes, copies)))
    assert weighted != pytest.approx(fit_temperature(logits, codes), rel=1e-3)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_weights_are_copies_also_where_rows_are_held_out(early_stopping):
    """Copies of a row stay on one side, so that a weight of 3 is three of them."""
    x, y = overlapping(3, 90)
    copies = np.random.default_rng(0).integers(0, 4, 90)
    model = EllipticClassifier(
        **QUICK, calibrate="temperature", early_stopping=early_stopping, validation_fraction=0.3
    )
    weighted = clone(model).fit(x, y, copies)
    repeated = clone(model).fit(np.repeat(x, copies, 0)[::-1], np.repeat(y, copies)[::-1])
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-9)
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), rtol=1e-9)


def test_temperature_at_its_ends():
    """Rows that are all right set none; rows that are no better than chance make all classes equal."""
    logits = np.array([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    with pytest.warns(UserWarning, match="held-out"):
        assert fit_temperature(logits, np.array([0, 1])) == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_temperature(logits, np.array([1, 2])) == pytest.approx(np.exp(10))
        assert fit_temperature(np.ones((3, 1)), np.zeros(3, dtype=int)) == 1.0


@pytest.mark.statistical
def test_temperature_can_be_far_from_one(rng):
    """Logits of a known temperature give it back."""
    logits = rng.normal(size=(20000, 4)) * 3
    codes = np.array([rng.choice(4, p=p) for p in softmax(logits / 4)])
    assert fit_temperature(logits, codes) == pytest.approx(4, rel=0.05)
    assert fit_temperature(logits / 40, codes) == pytest.approx(0.1, rel=0.05)


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_several_labels_have_no_temperature_and_no_smoothing():
    x, labels = make_multilabel_classification(40, 5, n_classes=3, random_state=0)
    for options in ({"calibrate": "temperature"}, {"method": "smoothing"}, {"method": "balanced"}):
        with pytest.raises(ValueError, match="label"):
            EllipticClassifier(**QUICK, **options).fit(x, labels, groups=np.zeros(40))
    with pytest.raises(ValueError, match="calibrate"):
        EllipticClassifier(calibrate="isotonic").fit(x, labels[:, 0])
    with pytest.raises(ValueError, match="validation_fraction"):
        EllipticClassifier(calibrate="temperature").fit(x[:1], [1])


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_a_weight_of_a_class_must_be_a_number(value):
    x, y = overlapping(2)
    with pytest.raises((TypeError, ValueError), match="class_weight"):
        EllipticClassifier(max_iter=1, class_weight={0: value, 1: 1}).fit(x, y)


def test_nullable_labels_of_pandas_stay_exact():
    pandas = pytest.importorskip("pandas")
    x, y = overlapping(2)
    large = pandas.Series(2**53 + y, dtype="Int64")
    model = EllipticClassifier(max_iter=1, random_state=0).fit(x, large)
    assert model.classes_.tolist() == [2**53, 2**53 + 1]
    truth = pandas.Series(y > 0, dtype="boolean")
    assert EllipticClassifier(max_iter=1).fit(x, truth).predict(x[:1]).dtype == bool
