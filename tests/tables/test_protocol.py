"""The rules that all methods share: rows of a fold, choice among trials, bounds, temperatures, records."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compare_cases import PLAN, quiet, two_classes
from elliptica.tables import protocol
from elliptica.tables.methods import Plan
from elliptica.tables.protocol import (
    Record,
    TargetScale,
    Trial,
    at_temperature,
    best_trials,
    final_trial,
    fit_sklearn,
    make_record,
    pool,
    prepare,
    ranking,
    run_sklearn,
    validate,
)
from elliptica.tables.shift import make_shift
from table_cases import problem_of


@pytest.fixture(scope="module")
def classes():
    return two_classes()


@pytest.fixture(scope="module")
def rows(classes):
    return prepare(classes, make_shift(classes).folds[0], PLAN)


def test_preprocessing_sees_training_rows_only(classes, rows):
    assert rows.x[rows.train].mean(0) == pytest.approx(0, abs=1e-5)
    assert rows.x[rows.train].std(0) == pytest.approx(1, abs=1e-5)
    tested = pl.int_range(pl.len()).is_in(rows.fold.test.tolist())
    moved = classes.features.with_columns(pl.when(tested).then(1e6).otherwise(pl.col("x")).alias("x"))
    again = prepare(replace(classes, features=moved), rows.fold, PLAN)
    assert np.array_equal(again.x[rows.train], rows.x[rows.train])


def test_trials_of_a_large_table_see_a_part_of_it(classes, rows):
    fold = rows.fold
    large = prepare(classes, fold, replace(PLAN, tuning_rows=30))
    assert large.counts == {"fit": 30, "validation": 30, "train": 90, "test": 30}
    assert set(large.fit) <= set(fold.fit)
    assert np.array_equal(large.train, fold.fit)  # the validation rows choose the last length, too
    assert np.array_equal(large.stop, fold.validation)
    assert rows.stop is None
    assert np.array_equal(rows.train, fold.train)


def test_targets_are_scaled_and_read_back():
    target = np.array([1.0, 10.0, 100.0])
    for log in (False, True):
        scale = TargetScale.of(target, log=log)
        learnt = scale.learn(target)
        assert (learnt.mean(), learnt.std()) == pytest.approx((0, 1))
        assert scale.read(learnt) == pytest.approx(target)
    assert learnt[2] - learnt[1] == pytest.approx(learnt[1] - learnt[0])  # logarithms are evenly spaced
    assert np.isfinite(scale.read(np.array([1e6]))).all()


def test_each_network_of_an_ensemble_is_bounded_before_the_mean():
    """One network that blows up moves a mean of bounded predictions to the edge at most of its share."""
    members, known = np.array([[1.0, 2.0], [1.0, 1e9]]), np.array([0.0, 4.0])
    pooled = pool(members, known, PLAN)
    assert pooled.values.tolist() == [1.0, 3.0]
    assert pooled.unbounded.tolist() == [1.0, (2 + 1e9) / 2]
    assert pool(members, known, replace(PLAN, bounded=False)).values.tolist() == [1.0, (2 + 1e9) / 2]


def test_temperatures(classes, rows):
    sure = np.tile([[0.99, 0.01]], (30, 1))
    assert at_temperature(sure, 1.0) == pytest.approx(sure)
    assert at_temperature(sure, 1e9)[0] == pytest.approx([0.5, 0.5])
    right = np.eye(2)[rows.y[rows.validation]] * 0.98 + 0.01
    wrong = right.copy()
    wrong[:6] = 1 - wrong[:6]  # a fifth is wrong with 99 % confidence

    def record(validation):
        predicted = pool(sure[None], np.empty(0), PLAN)
        given = {"validation": validation, "predicted": predicted, "length": 1, "seconds": 0.0}
        return make_record(classes, rows, "erm", [], 0, **given)

    assert record(wrong).final()[0] == pytest.approx([0.8, 0.2], abs=1e-3)
    assert record(right).temperature == 1.0  # no minimum exists
    assert record(right).final() == pytest.approx(sure)


def trial(value, **changes):
    """A trial whose average and worst scores differ in their order."""
    scores = {"brier": value, "worst_group_accuracy": value}
    return replace(Trial({}, False, 1, scores), **changes)


def test_choice_among_trials(classes):
    tried = [trial(0.4), trial(0.3), trial(0.1, dropped=True), trial(0.1, validation={}, error="bad")]
    assert best_trials(tried, classes, PLAN) == [1, 0]  # neither dropped nor failed ones
    assert best_trials(tried, classes, replace(PLAN, select="worst")) == [0, 1]
    assert best_trials(tried[2:], classes, PLAN) == []


def test_final_trial_is_the_best_over_folds(classes):
    def record(fold, *trials):
        return Record(0, fold, "erm", trials, 0, {}, 0.0)

    a = record(0, trial(0.1), trial(0.2), trial(0.3))
    b = record(1, trial(0.1, dropped=True), trial(0.2), trial(0.3))
    c = record(2, trial(0.3), trial(0.2), trial(0.1))
    assert final_trial([a, b, c], classes, PLAN) == 1  # places 0 3 2, 1 0 1, 2 1 0: ties go to the first
    assert final_trial([c], classes, PLAN) == 2


def test_validation_without_a_judged_group_is_by_class(classes, rows):
    predicted = np.full((len(rows.validation), 2), 0.5)
    assert "worst_group_accuracy" in validate(classes, rows, predicted)
    scores = validate(replace(classes, groups=np.full(150, "")), rows, predicted)
    assert "worst_class_accuracy" in scores
    assert ranking(scores, classes, replace(PLAN, select="worst")) == (-scores["brier"],)


def test_records_survive_json():
    record = Record(1, 2, "erm", (trial(0.2),), 0, {"fit": 3}, 1.5, length=4, temperature=1.2)
    content = json.loads(json.dumps(record.to_json()))
    again = Record.from_json(content, np.array([1.0]), np.array([2.0]))
    assert again.to_json() == record.to_json()
    assert again.trials == record.trials
    assert again.unbounded.tolist() == [2.0]


def test_a_linear_model_may_leave_the_range_of_the_targets():
    """A line beyond the training range: clipped, the one model that is right would lose."""
    x = np.arange(200.0)
    problem = problem_of(pl.DataFrame({"t": x, "x": x, "y": x + 0.5}), time="t")
    plan = Plan(("linear",), trials=1)
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    record = run_sklearn(problem, rows, "linear", plan, quiet)
    assert record.predicted.min() > problem.target[rows.train].max()
    assert np.array_equal(record.predicted, record.unbounded)


@pytest.mark.parametrize("method", ["trees", "linear"])
def test_models_get_the_same_rows_and_trials_as_networks(classes, rows, method, monkeypatch):
    """Trials leave the validation rows out; the model that is tested does not."""
    fitted, fit = [], protocol.fit_sklearn
    monkeypatch.setattr(
        protocol, "fit_sklearn", lambda *given, **more: (fitted.append(len(given[3])), fit(*given, **more))[1]
    )
    record = run_sklearn(classes, rows, method, PLAN, quiet)
    assert fitted == [len(rows.fit)] * PLAN.trials + [len(rows.train)]
    assert len(record.trials) == PLAN.trials
    assert record.rows == rows.counts
    assert record.predicted.sum(1) == pytest.approx(1)
    assert (record.length > 0) == (method == "trees")


def test_trees_are_tested_at_their_best_iteration(classes):
    """Early stopping looks ten iterations ahead; these are not part of the model."""
    rows = prepare(classes, make_shift(classes).folds[0], replace(PLAN, tuning_rows=60))
    record = run_sklearn(classes, rows, "trees", PLAN, quiet)
    trial = record.trials[record.chosen]

    def predicted(train, length, where):
        x, y = rows.x[train], classes.target[train]
        model = fit_sklearn(classes, "trees", trial.settings, x, y, log=False, length=length)
        return model.predict_proba(rows.x[where])

    test = rows.fold.test
    assert np.array_equal(record.predicted, predicted(rows.train, record.length, test))
    assert not np.allclose(record.predicted, predicted(rows.train, record.length + 10, test))
    best = predicted(rows.fit, trial.length, rows.validation)
    chosen = best[np.arange(len(best)), rows.y[rows.validation]]
    assert trial.validation["log_loss"] == pytest.approx(-np.log(chosen).mean())
