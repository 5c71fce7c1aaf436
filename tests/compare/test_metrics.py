"""Metrics of comparisons against scikit-learn, and how they are written."""

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from elliptica.compare.markdown import _cell
from elliptica.compare.metrics import Metric, classification_scores, regression_scores, show_number


def test_classification_metrics_are_those_of_scikit_learn():
    draws = np.random.default_rng(4)
    target = np.asarray(["a", "b", "c"])[draws.integers(0, 3, 200)]
    probabilities = draws.dirichlet(np.ones(3), 200)
    predicted = np.asarray(["a", "b", "c"])[probabilities.argmax(1)]
    scored = classification_scores(target, probabilities, ["a", "b", "c"], None)
    recalls = sklearn_metrics.recall_score(target, predicted, average=None)
    assert scored["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(target, predicted))
    assert scored["balanced_accuracy"] == pytest.approx(
        sklearn_metrics.balanced_accuracy_score(target, predicted)
    )
    assert scored["log_loss"] == pytest.approx(sklearn_metrics.log_loss(target, probabilities))
    assert scored["worst_class_accuracy"] == pytest.approx(recalls.min())
    groups = np.asarray(["u", "v", ""])[draws.integers(0, 3, 200)]
    grouped = classification_scores(target, probabilities, ["a", "b", "c"], groups)
    by_group = [np.mean((predicted == target)[groups == g]) for g in ("u", "v")]
    assert grouped["worst_group_accuracy"] == pytest.approx(min(by_group))
    assert set(grouped["parts"]) == {"u", "v"}


def test_a_certain_mistake_has_a_finite_log_loss():
    scored = classification_scores(np.array([0]), np.array([[0.0, 1.0]]), [0, 1], None)
    assert math.isfinite(scored["log_loss"])


def test_a_class_without_a_name_is_judged():
    """The empty text is a label like any other; among groups it stands for those too small to judge."""
    target = np.array(["", "", "b", "b"])
    p = np.array([[0.2, 0.8], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])
    found = classification_scores(target, p, ["", "b"], None)
    assert found["parts"] == {"": 0.0, "b": 1.0}
    assert found["worst_class_accuracy"] == 0.0
    assert found["balanced_accuracy"] == 0.5
    grouped = classification_scores(target, p, ["", "b"], np.array(["", "u", "u", "v"]))
    assert grouped["parts"] == {"u": 0.5, "v": 1.0}
    numbers = regression_scores(np.zeros(3), np.array([1.0, 2.0, 9.0]), np.empty(0), np.array(["u", "v", ""]))
    assert numbers["parts"] == {"u": 1.0, "v": 2.0}


def test_regression_metrics():
    target = np.arange(10.0)
    predicted = target + np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], 2)
    bounds = np.quantile(target, (0.2, 0.4, 0.6, 0.8))
    scored = regression_scores(target, predicted, bounds, None)
    assert scored["rmse"] == pytest.approx(sklearn_metrics.root_mean_squared_error(target, predicted))
    assert scored["worst_fifth_rmse"] == 4.0
    grouped = regression_scores(target, predicted, bounds, np.asarray(["u"] * 4 + ["v"] * 6))
    assert grouped["parts"]["u"] == pytest.approx(math.sqrt(0.5))
    assert grouped["worst_group_rmse"] == pytest.approx(math.sqrt((4 + 9 + 16) / 3))


def test_numbers_of_every_size():
    """House prices are no powers of ten, and 61 beside 61.13 is 61.00."""
    shown = [show_number(v, 4, "#") for v in (0.01234567, 9.5, 61.0, 1234.4, 54321.7, 5e8)]
    assert shown == ["0.01235", "9.500", "61.00", "1234", "54,322", "500,000,000"]
    assert show_number(-54321.7, 4, "+") == "-54,322"
    assert show_number(2e12, 4) == "2e+12"
    rmse, accuracy = Metric("rmse", "RMSE", False, False), Metric("accuracy", "accuracy", True, True)
    assert _cell(rmse, 61234.5, 1234.5) == "61,234 ± 1,234"
    assert _cell(rmse, 61.0, 7.0) == "61.00 ± 7.0"
    assert _cell(accuracy, 0.5, None) == "50.0 %"
    assert _cell(accuracy, None, None) == "-"
