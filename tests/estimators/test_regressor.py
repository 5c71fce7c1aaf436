"""`EllipticRegressor`: predictions within the range of the targets, and logarithms of targets."""

import numpy as np
import pytest
import torch
from elliptica.estimators.fit import content_order, hold_out
from sklearn.base import clone
from sklearn.metrics import r2_score

from elliptica._utils.random import stream_seed
from elliptica.estimators import EllipticRegressor

QUICK = {"hidden": (16,), "max_iter": 30, "learning_rate": 0.01, "random_state": 0}


@pytest.fixture
def rows():
    x = np.random.default_rng(0).normal(size=(60, 3))
    return x, np.stack([x[:, 0] * 10, 3 - x[:, 1]], axis=1)


def held_rows(model, x, y):
    """Rows that a model held out, found again."""
    order = content_order(x, y[:, None])
    seed = stream_seed(model._seed, "split") % 2**32
    return order[hold_out(x[order], y[order], model.validation_fraction, "real", seed)[1]]


def test_bounded_predictions_are_the_clipped_ones(rows):
    """Per output, exactly, and training is the same; far away every prediction is a bound."""
    x, y = rows
    free = EllipticRegressor(**QUICK, bounded=False).fit(x, y)
    bounded = EllipticRegressor(**QUICK).fit(x, y)
    assert free.loss_curve_ == bounded.loss_curve_
    far = np.concatenate([x, 5 * x])
    expected = np.clip(free.predict(far), y.min(0), y.max(0))
    np.testing.assert_array_equal(bounded.predict(far), expected)
    assert (expected != free.predict(far)).mean() > 0.1  # the test would see a missing bound
    assert (expected[:60] == free.predict(x)).any(0).all()
    assert EllipticRegressor(**QUICK).fit(x, y[:, 0]).predict(100 * x).max() == y[:, 0].max()
    # a setting of prediction alone: it can be changed afterwards
    np.testing.assert_array_equal(free.set_params(bounded=True).predict(far), expected)


def test_only_rows_that_count_set_the_range(rows):
    """Rows of no weight do not; rows held out for validation and rows of later calls do."""
    x, y = rows[0], rows[1][:, 0]
    weight = (np.arange(60) % 7 > 0).astype(float)
    spoilt = np.where(weight == 0, 1e6, y)
    model = EllipticRegressor(**QUICK).fit(x, spoilt, weight)
    assert model.y_max_ == y[weight > 0].max()
    assert model.predict(100 * x).max() == y[weight > 0].max()
    was_held = 0
    for seed in range(8):
        early = EllipticRegressor(hidden=(), max_iter=1, early_stopping=True, random_state=seed).fit(x, y)
        assert (early.y_min_, early.y_max_) == (y.min(), y.max())
        was_held += y.argmax() in held_rows(early, x, y)
    assert was_held > 0
    parts = EllipticRegressor(**QUICK)
    parts.partial_fit(x[y < 0], y[y < 0])
    assert parts.y_max_ < 0
    parts.partial_fit(x[y > 0], y[y > 0])
    assert (parts.y_min_, parts.y_max_) == (y.min(), y.max())
    assert parts.partial_fit(x[y < 0], y[y < 0]).y_max_ == y.max()


@pytest.mark.parametrize("options", [{}, {"target_transform": "log"}, {"bounded": False}])
def test_validation_scores_are_those_of_predictions(rows, options):
    """In the units of y, bounded where predictions are."""
    x, y = rows[0], np.exp(rows[1][:, 0] / 5)
    settings = {"early_stopping": True, "validation_fraction": 0.4}
    model = EllipticRegressor(**QUICK, **settings, **options).fit(x, y)
    held = held_rows(model, x, y)
    assert len(held) == 24
    assert model.score(x[held], y[held]) == pytest.approx(max(model.validation_scores_))


def test_bounds_of_ensembles_hold_exactly(rows):
    """Means of equal numbers may be off by a rounding; members are bounded before the mean."""
    x = rows[0]
    y = np.where(np.arange(60) % 2, 0.1, 0.7) + 0 * x[:, 0]
    model = EllipticRegressor(**QUICK, n_networks=3).fit(x, y)
    found = model.predict(1000 * x)
    assert found.max() <= 0.7
    assert found.min() >= 0.1
    members = []
    with torch.no_grad():
        for network in model.module_.networks:
            inputs = torch.from_numpy(((x - model.x_mean_) / model.x_scale_).astype(np.float32))
            value = network.double()(inputs.double())[:, 0].numpy() * model.y_scale_ + model.y_mean_
            members.append(value.clip(0.1, 0.7))
    np.testing.assert_allclose(model.predict(x), np.mean(members, axis=0), rtol=1e-6)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_log_targets_are_learnt_as_logs(rows, n_targets):
    """The network is that of a regressor on log y, and predictions are its exponentials."""
    x = rows[0]
    y = np.exp(rows[1][:, 0] / 4) if n_targets == 1 else np.exp(rows[1] / 4)
    logs = EllipticRegressor(**QUICK, bounded=False).fit(x, np.log(y))
    model = EllipticRegressor(**QUICK, bounded=False, target_transform="log").fit(x, y)
    assert model.loss_curve_ == logs.loss_curve_
    np.testing.assert_allclose(model.predict(2 * x), np.exp(logs.predict(2 * x)), rtol=1e-12)
    np.testing.assert_allclose(model.score(x, y), r2_score(y, np.exp(logs.predict(x))))
    bounded = clone(model).set_params(bounded=True).fit(x, y)
    np.testing.assert_array_equal(bounded.predict(9 * x), model.predict(9 * x).clip(y.min(0), y.max(0)))
    targets = model.network_rows(x, y).y.numpy()
    np.testing.assert_allclose(targets.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(targets, logs.network_rows(x, np.log(y)).y.numpy(), atol=1e-6)


def test_log_predictions_stay_finite_far_away(rows):
    x, y = rows
    model = EllipticRegressor(**QUICK, bounded=False, target_transform="log").fit(x, np.exp(y[:, 0]))
    found = model.predict(1e6 * x)
    assert np.isfinite(found).all()
    assert found.max() > 1e300


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_targets_without_logarithm_are_refused(rows):
    x, y = rows[0], np.abs(rows[1][:, 0]) + 1
    model = EllipticRegressor(**QUICK, target_transform="log")
    for low in (0.0, -2.0):
        y[3] = low
        with pytest.raises(
            ValueError, match=f"above zero, but the smallest is {low:g}. Use target_transform=None"
        ):
            clone(model).fit(x, y)
    weight = np.ones(60)
    weight[3] = 0
    fitted = clone(model).fit(x, y, weight)  # a row that does not count may have any target
    with pytest.raises(ValueError, match="target_transform"):
        fitted.network_rows(x, y)
    with pytest.raises(ValueError, match="target_transform"):
        EllipticRegressor(target_transform="sqrt").fit(x, y)
