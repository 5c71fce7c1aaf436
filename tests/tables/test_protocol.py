"""The rules that all methods share: rows of a fold, choice among trials, bounds, temperatures, records."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compare_cases import PLAN, two_classes
from elliptica.tables.shift import make_shift
from elliptica.tables.training import (
    Record,
    Trial,
    _temperature,
    at_temperature,
    best_trials,
    final_trial,
    prepare,
    ranking,
    validate,
)


@pytest.fixture(scope="module")
def classes():
    return two_classes()


@pytest.fixture(scope="module")
def rows(classes):
    return prepare(classes, make_shift(classes).folds[0], PLAN)


def test_preprocessing_sees_training_rows_only(classes, rows):
    tested = pl.int_range(pl.len()).is_in(rows.fold.test.tolist())
    moved = classes.features.with_columns(pl.when(tested).then(1e6).otherwise(pl.col("x")).alias("x"))
    again = prepare(replace(classes, features=moved), rows.fold, PLAN)
    assert np.array_equal(again.x[rows.train], rows.x[rows.train])


def test_trials_of_a_large_table_see_a_part_of_it(classes, rows):
    fold = rows.fold
    large = prepare(classes, fold, replace(PLAN, tuning_rows=30))
    assert (len(large.fit), len(large.validation), len(large.train)) == (30, 30, 90)
    assert set(large.fit) <= set(fold.fit)
    assert np.array_equal(large.train, fold.fit)  # the validation rows choose the last length, too
    assert np.array_equal(large.stop, fold.validation)
    assert rows.stop is None
    assert np.array_equal(rows.train, fold.train)


def test_temperatures(rows):
    sure = np.tile([[0.99, 0.01]], (30, 1))
    assert at_temperature(sure, 1.0) == pytest.approx(sure)
    assert at_temperature(sure, 1e9)[0] == pytest.approx([0.5, 0.5])
    right = np.eye(2)[rows.y[rows.validation]] * 0.98 + 0.01
    wrong = right.copy()
    wrong[:6] = 1 - wrong[:6]  # a fifth is wrong with 99 % confidence

    labels = rows.y[rows.validation]
    assert at_temperature(sure, _temperature(wrong, labels))[0] == pytest.approx([0.8, 0.2], abs=1e-3)
    assert _temperature(right, labels) == 1.0  # no minimum exists


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
