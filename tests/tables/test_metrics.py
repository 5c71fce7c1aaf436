"""Metrics of comparisons against scikit-learn, and how they are written."""

import math
from itertools import pairwise

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from elliptica.tables.metrics import (
    Predictions,
    classification_scores,
    regression_scores,
    score,
    score_parts,
    show_number,
    single_test,
)


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


def three_classes(n=300, repeats=1, seed=4):
    draws = np.random.default_rng(seed)
    target = draws.integers(0, 3, n)
    values = {"erm": draws.dirichlet(np.ones(3), (repeats, n))}
    fold = np.stack([draws.permutation(np.arange(n) % 5) for _ in range(repeats)])
    return Predictions("classification", [0, 1, 2], target, None, np.arange(n), fold, np.empty(0), values)


def test_brier_and_mae_are_those_of_scikit_learn():
    found = three_classes()
    onehot, p = np.eye(3)[found.target], found.values["erm"][0]
    assert score(found)["erm"]["brier"] == pytest.approx(((p - onehot) ** 2).sum(1).mean())
    y = np.arange(10.0)
    test = single_test("regression", y, {"erm": y + np.tile([1.0, -3.0], 5)}, bounds=np.array([4.5]))
    assert score(test)["erm"]["mae"] == 2.0


def test_scores_are_over_tested_rows_of_all_repeats():
    """A row that no fold tests counts nowhere; repeats count alike."""
    found = three_classes(repeats=2)
    whole = score(found)["erm"]
    each = [
        score(single_test("classification", found.target, {"erm": v}, classes=[0, 1, 2]))
        for v in found.values["erm"]
    ]
    for name in ("accuracy", "log_loss", "brier", "calibration_error"):
        assert whole[name] == pytest.approx(np.mean([e["erm"][name] for e in each]))
    fold = found.fold.copy()
    fold[:, :100] = -1
    values = {"erm": np.where(fold[..., None] < 0, np.nan, found.values["erm"])}
    part = Predictions(
        "classification", [0, 1, 2], found.target, None, found.clusters, fold, np.empty(0), values
    )
    cut = Predictions(
        "classification",
        [0, 1, 2],
        found.target[100:],
        None,
        found.clusters[100:],
        fold[:, 100:],
        np.empty(0),
        {"erm": found.values["erm"][:, 100:]},
    )
    assert score(part)["erm"] == pytest.approx(score(cut)["erm"])
    assert score_parts(part).rows == score_parts(cut).rows


@pytest.mark.statistical
def test_calibration_error(rng):
    """Honest probabilities have a small one, sharpened ones a large one."""
    p = rng.uniform(0.5, 1.0, 20_000)
    right = rng.random(20_000) < p
    target = right.astype(int)
    honest = classification_scores(target, np.stack([1 - p, p], 1), [0, 1], None)["calibration_error"]
    assert honest < 0.015
    sure = 0.5 + 0.5 * (2 * p - 1) ** 0.3
    over = classification_scores(target, np.stack([1 - sure, sure], 1), [0, 1], None)["calibration_error"]
    assert over == pytest.approx((sure - p).mean(), abs=0.02)


@pytest.mark.parametrize(("n", "n_bins"), [(19, 1), (45, 2), (299, 14), (300, 15), (3000, 15)])
def test_calibration_error_has_bins_of_20_rows_and_at_most_15(n, n_bins):
    """Against a loop over equally many rows; the labels are noise, so other bins give other errors."""
    draws = np.random.default_rng(n)
    p = np.sort(draws.uniform(0.5, 1.0, n))
    right = draws.random(n) < 0.7
    found = classification_scores(right.astype(int), np.stack([1 - p, p], 1), [0, 1], None)
    edges = np.quantile(p, np.arange(1, n_bins) / n_bins)
    parts = [(p <= high) & (p > low) for low, high in pairwise([0, *edges, 1])]
    expected = sum(part.mean() * abs(p[part].mean() - right[part].mean()) for part in parts)
    assert len(parts) == n_bins
    assert found["calibration_error"] == pytest.approx(expected)


def test_rows_of_one_confidence_share_a_bin():
    """A constant prediction is off by one number; bins of equal size by row order would find more."""
    target = np.repeat([0, 1], [600, 400])
    p = np.tile([0.7, 0.3], (1000, 1))
    assert classification_scores(target, p, [0, 1], None)["calibration_error"] == pytest.approx(0.1)


def test_parts_have_their_rows():
    y = np.arange(10.0)
    groups = np.array(["u"] * 3 + [""] * 2 + ["v"] * 5)
    test = single_test("regression", y, {"erm": y + 1, "mixup": y + 2}, groups=groups)
    parts = score_parts(test)
    assert parts.kind == "group"
    assert parts.rows == {"u": 3, "v": 5}
    assert parts.values == {"erm": {"u": 1.0, "v": 1.0}, "mixup": {"u": 2.0, "v": 2.0}}
    bands = score_parts(single_test("regression", y, {"erm": y}, bounds=np.array([1.0, 8.0])))
    assert bands.rows == {"band 1: up to 1": 2, "band 2: 1 to 8": 7, "band 3: above 8": 1}


def test_predictions_that_left_the_range_are_counted():
    y = np.linspace(0, 1, 100)
    raw = 1.2 * y
    test = single_test("regression", y, {"erm": raw.clip(0, 1), "trees": y}, bounds=np.array([0.5]))
    found = score(test, unbounded={"erm": raw[None]})
    assert found["erm"]["beyond_range"] == pytest.approx((raw > 1).mean())
    assert "beyond_range" not in found["trees"]


@pytest.mark.bad_input
def test_predictions_that_do_not_fit_are_errors():
    y = np.arange(4.0)
    with pytest.raises(ValueError, match="Predictions of 'mixup' must have shape"):
        single_test("regression", y, {"erm": y, "mixup": y[:3]})
    with pytest.raises(ValueError, match="'erm' are missing or not finite"):
        single_test("regression", y, {"erm": np.array([0.0, np.nan, 1.0, 2.0])})
    with pytest.raises(ValueError, match="No row was tested"):
        Predictions(
            "regression", [], y, None, np.arange(4), np.full((1, 4), -1), np.empty(0), {"erm": y[None]}
        )
    with pytest.raises(ValueError, match="fold must have shape"):
        Predictions("regression", [], y, None, np.arange(4), np.zeros((1, 3)), np.empty(0), {"erm": y[None]})
    with pytest.raises(ValueError, match="target 'c' is not one of the classes"):
        classification_scores(np.array(["a", "c"]), np.full((2, 2), 0.5), ["a", "b"], None)
    with pytest.raises(ValueError, match="too small to judge"):
        score(single_test("regression", y, {"erm": y}, groups=np.array([""] * 4)))
