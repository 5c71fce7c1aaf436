"""Metrics of comparisons against scikit-learn, and how they are written."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from elliptica.tables.metrics import Predictions, score, score_parts, show_number, single_test


def classes(target, p, names, groups=None):
    """Scores and parts of one method."""
    test = single_test("classification", target, {"": p}, classes=names, groups=groups)
    return score(test)[""], score_parts(test).values[""]


def numbers(target, predicted, bounds=None, groups=None):
    test = single_test("regression", target, {"": predicted}, bounds=bounds, groups=groups)
    return score(test)[""], score_parts(test).values[""]


def test_classification_metrics_are_those_of_scikit_learn():
    draws = np.random.default_rng(4)
    target = np.asarray(["a", "b", "c"])[draws.integers(0, 3, 200)]
    p = draws.dirichlet(np.ones(3), 200)
    predicted = np.asarray(["a", "b", "c"])[p.argmax(1)]
    scored, _ = classes(target, p, ["a", "b", "c"])
    recalls = sklearn_metrics.recall_score(target, predicted, average=None)
    assert scored["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(target, predicted))
    assert scored["balanced_accuracy"] == pytest.approx(recalls.mean())
    assert scored["log_loss"] == pytest.approx(sklearn_metrics.log_loss(target, p))
    assert scored["worst_class_accuracy"] == pytest.approx(recalls.min())
    onehot = target[:, None] == np.array(["a", "b", "c"])
    assert scored["brier"] == pytest.approx(((p - onehot) ** 2).sum(1).mean())
    groups = np.asarray(["u", "v", ""])[draws.integers(0, 3, 200)]
    grouped, parts = classes(target, p, ["a", "b", "c"], groups)
    by_group = {g: np.mean((predicted == target)[groups == g]) for g in ("u", "v")}
    assert parts == pytest.approx(by_group)
    assert grouped["worst_group_accuracy"] == pytest.approx(min(by_group.values()))


def test_a_certain_mistake_has_a_finite_log_loss():
    assert math.isfinite(classes(np.array([0]), np.array([[0.0, 1.0]]), [0, 1])[0]["log_loss"])


def test_a_class_without_a_name_is_judged():
    """The empty text is a label like any other; among groups it stands for those too small to judge."""
    target = np.array(["", "", "b", "b"])
    p = np.array([[0.2, 0.8], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])
    scored, parts = classes(target, p, ["", "b"])
    assert parts == {"": 0.0, "b": 1.0}
    assert (scored["worst_class_accuracy"], scored["balanced_accuracy"]) == (0.0, 0.5)
    assert classes(target, p, ["", "b"], np.array(["", "u", "u", "v"]))[1] == {"u": 0.5, "v": 1.0}
    groups = np.array(["u", "v", ""])
    assert numbers(np.zeros(3), np.array([1.0, 2.0, 9.0]), groups=groups)[1] == {"u": 1.0, "v": 2.0}


def test_regression_metrics():
    target = np.arange(10.0)
    predicted = target + np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], 2)
    bounds = np.quantile(target, (0.2, 0.4, 0.6, 0.8))
    scored, _ = numbers(target, predicted, bounds)
    assert scored["rmse"] == pytest.approx(sklearn_metrics.root_mean_squared_error(target, predicted))
    assert scored["mae"] == 2.0
    assert scored["worst_fifth_rmse"] == 4.0
    grouped, parts = numbers(target, predicted, bounds, np.asarray(["u"] * 4 + ["v"] * 6))
    assert parts["u"] == pytest.approx(math.sqrt(0.5))
    assert grouped["worst_group_rmse"] == pytest.approx(math.sqrt((4 + 9 + 16) / 3))


def test_numbers_of_every_size():
    """House prices are no powers of ten."""
    shown = [show_number(v) for v in (0.01234567, 9.5, 61.0, 1234.4, 54321.7, 5e8, -54321.7)]
    assert shown == ["0.01235", "9.5", "61", "1234", "54,322", "500,000,000", "-54,322"]


def test_scores_are_over_tested_rows_of_all_repeats():
    """A row that no fold tests counts nowhere; repeats count alike."""
    draws, n = np.random.default_rng(4), 300
    target, values = draws.integers(0, 3, n), draws.dirichlet(np.ones(3), (2, n))
    fold = np.stack([draws.permutation(np.arange(n) % 5) for _ in range(2)])
    both = Predictions(
        "classification", [0, 1, 2], target, None, np.arange(n), fold, np.empty(0), {"erm": values}
    )
    whole, repeats = score(both)["erm"], [classes(target, p, [0, 1, 2])[0] for p in values]
    for name in ("accuracy", "log_loss", "brier", "calibration_error"):
        assert whole[name] == pytest.approx(np.mean([one[name] for one in repeats]))
    fold = fold.copy()
    fold[:, :100] = -1
    part = replace(both, fold=fold, values={"erm": np.where(fold[..., None] < 0, np.nan, values)})
    rest = {"target": target[100:], "clusters": np.arange(200), "fold": fold[:, 100:]}
    cut = replace(both, **rest, values={"erm": values[:, 100:]})
    assert score(part)["erm"] == pytest.approx(score(cut)["erm"])
    assert score_parts(part).rows == score_parts(cut).rows


@pytest.mark.parametrize(("n", "n_bins"), [(19, 1), (45, 2), (299, 14), (300, 15), (3000, 15)])
def test_calibration_error_has_bins_of_20_rows_and_at_most_15(n, n_bins):
    """Against a loop over equally many rows; the labels are noise, so other bins give other errors."""
    draws = np.random.default_rng(n)
    p = np.sort(draws.uniform(0.5, 1.0, n))
    right = draws.random(n) < 0.7
    edges = np.quantile(p, np.arange(1, n_bins) / n_bins)
    parts = [(p <= high) & (p > low) for low, high in pairwise([0, *edges, 1])]
    expected = sum(part.mean() * abs(p[part].mean() - right[part].mean()) for part in parts)
    assert len(parts) == n_bins
    scored, _ = classes(right.astype(int), np.stack([1 - p, p], 1), [0, 1])
    assert scored["calibration_error"] == pytest.approx(expected)


def test_rows_of_one_confidence_share_a_bin():
    """A constant prediction is off by one number; bins of equal size by row order would find more."""
    p = np.tile([0.7, 0.3], (1000, 1))
    assert classes(np.repeat([0, 1], [600, 400]), p, [0, 1])[0]["calibration_error"] == pytest.approx(0.1)


def test_parts_have_their_rows():
    y = np.arange(10.0)
    groups = np.array(["u"] * 3 + [""] * 2 + ["v"] * 5)
    parts = score_parts(single_test("regression", y, {"erm": y + 1, "mixup": y + 2}, groups=groups))
    assert parts.rows == {"u": 3, "v": 5}
    assert parts.values == {"erm": {"u": 1.0, "v": 1.0}, "mixup": {"u": 2.0, "v": 2.0}}
    bands = score_parts(single_test("regression", y, {"erm": y}, bounds=np.array([1.0, 8.0])))
    assert list(bands.rows.values()) == [2, 7, 1]


@pytest.mark.bad_input
def test_predictions_that_cannot_be_scored():
    y = np.arange(4.0)
    with pytest.raises(ValueError, match="erm"):
        single_test("regression", y, {"erm": np.array([0.0, np.nan, 1.0, 2.0])})
    with pytest.raises(ValueError, match="groups"):
        score(single_test("regression", y, {"erm": y}, groups=np.array([""] * 4)))
