"""The rules that all methods share: rows of a fold, choice among trials, bounds, temperatures, records."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compare_cases import PLAN, two_classes
from elliptica.tables.protocol import (
    Record,
    TargetScale,
    Trial,
    at_temperature,
    best_trials,
    final_trial,
    make_record,
    pool,
    prepare,
    ranking,
    validate,
)
from elliptica.tables.shift import make_shift


@pytest.fixture(scope="module")
def classes():
    return two_classes()


def test_preprocessing_sees_training_rows_only(classes):
    fold = make_shift(classes).folds[0]
    rows = prepare(classes, fold, PLAN)
    assert rows.x[rows.train].mean(0) == pytest.approx(0, abs=1e-5)
    assert rows.x[rows.train].std(0) == pytest.approx(1, abs=1e-5)
    moved = classes.features.with_columns(
        pl.when(pl.int_range(pl.len()).is_in(fold.test.tolist())).then(1e6).otherwise(pl.col("x")).alias("x")
    )
    again = prepare(replace(classes, features=moved), fold, PLAN)
    assert np.array_equal(again.x[rows.train], rows.x[rows.train])


def test_trials_of_a_large_table_see_a_part_of_it(classes):
    fold = make_shift(classes).folds[0]
    rows = prepare(classes, fold, replace(PLAN, tuning_rows=30, train_rows=50))
    assert rows.counts == {"fit": 30, "validation": 30, "train": 50, "test": 30}
    assert set(rows.fit) <= set(fold.fit)
    assert set(rows.train) <= set(fold.fit)  # the validation rows choose the length of the last training, too
    assert np.array_equal(rows.stop, fold.validation)
    whole = prepare(classes, fold, PLAN)
    assert whole.stop is None
    assert np.array_equal(whole.train, fold.train)


def test_targets_are_scaled_and_read_back():
    target = np.array([1.0, 10.0, 100.0])
    for log in (False, True):
        scale = TargetScale.of(target, log=log)
        learnt = scale.learn(target)
        assert learnt.mean() == pytest.approx(0)
        assert learnt.std() == pytest.approx(1)
        assert scale.read(learnt) == pytest.approx(target)
    assert learnt[2] - learnt[1] == pytest.approx(learnt[1] - learnt[0])  # logarithms are evenly spaced
    assert np.isfinite(scale.read(np.array([1e6]))).all()


def test_each_network_of_an_ensemble_is_bounded_before_the_mean():
    """One network that blows up moves a mean of bounded predictions to the edge at most of its share."""
    members = np.array([[1.0, 2.0], [1.0, 1e9]])
    known = np.array([0.0, 4.0])
    found = pool(members, known, PLAN)
    assert found.values.tolist() == [1.0, 3.0]
    assert found.unbounded.tolist() == [1.0, (2 + 1e9) / 2]
    assert pool(members, known, replace(PLAN, bounded=False)).values.tolist() == [1.0, (2 + 1e9) / 2]


def test_temperatures(classes):
    sure = np.tile([[0.99, 0.01]], (30, 1))
    assert at_temperature(sure, 1.0) == pytest.approx(sure)
    assert at_temperature(sure, 1e9)[0] == pytest.approx([0.5, 0.5])
    rows = prepare(classes, make_shift(classes).folds[0], PLAN)
    right = np.eye(2)[rows.y[rows.validation]] * 0.98 + 0.01
    wrong = right.copy()
    wrong[:6] = 1 - wrong[:6]  # a fifth is wrong with 99 % confidence
    record = make_record(
        *(classes, rows, "erm", [], 0),
        validation=wrong,
        predicted=pool(sure[None], np.empty(0), PLAN),
        length=1,
        seconds=0.0,
    )
    assert record.final()[0] == pytest.approx([0.8, 0.2], abs=1e-3)
    record = replace(record, temperature=1.0)
    assert record.final() == pytest.approx(record.predicted)
    perfect = make_record(
        *(classes, rows, "erm", [], 0),
        validation=right,
        predicted=pool(sure[None], np.empty(0), PLAN),
        length=1,
        seconds=0.0,
    )
    assert perfect.temperature == 1.0


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


def test_validation_without_a_judged_group_is_by_class(classes):
    rows = prepare(classes, make_shift(classes).folds[0], PLAN)
    predicted = np.full((len(rows.validation), 2), 0.5)
    assert "worst_group_accuracy" in validate(classes, rows, predicted)
    small = replace(classes, groups=np.full(150, ""))
    scores = validate(small, rows, predicted)
    assert "worst_class_accuracy" in scores
    assert ranking(scores, classes, replace(PLAN, select="worst")) == (-scores["brier"],)


def test_records_survive_json():
    record = Record(1, 2, "erm", (trial(0.2),), 0, {"fit": 3}, 1.5, length=4, temperature=1.2)
    content = json.loads(json.dumps(record.to_json()))
    again = Record.from_json(content, np.array([1.0]), np.array([2.0]))
    assert replace(again, predicted=record.predicted, unbounded=record.unbounded).trials == record.trials
    assert (again.key, again.temperature, again.length) == ((1, 2, "erm"), 1.2, 4)
    assert again.unbounded.tolist() == [2.0]
