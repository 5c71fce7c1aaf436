"""Training by one path: trials of all methods and folds, failures, ensembles, and the saved model."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compare_cases import PLAN, prices, quiet, two_classes
from elliptica.estimators import base
from elliptica.tables import training
from elliptica.tables.methods import METHODS, Plan
from elliptica.tables.model import fit_pipeline, only_rows
from elliptica.tables.shift import make_shift
from elliptica.tables.training import (
    Recipe,
    Record,
    Trial,
    _temperature,
    at_temperature,
    best_trials,
    final_trial,
    fit_models,
    make_model,
    prepare,
    ranking,
    run_methods,
    validate,
)
from table_cases import problem_of


@pytest.fixture(scope="module")
def classes():
    return two_classes()


@pytest.fixture(scope="module")
def rows(classes):
    return prepare(classes, make_shift(classes).folds[0], PLAN)


@pytest.fixture
def fits(monkeypatch):
    """All fits, in order."""
    seen, usual = [], training.fit_models
    monkeypatch.setattr(training, "fit_models", lambda fits, *more: seen.extend(fits) or usual(fits, *more))
    return seen


def test_all_methods_in_all_folds(classes):
    plan = replace(PLAN, methods=("erm", "elliptic", "groupdro"))
    folds = [prepare(classes, fold, plan) for fold in make_shift(classes, folds=3).folds[:2]]
    records = run_methods(classes, folds, plan, quiet)
    assert [(r.fold, r.method) for r in records] == [(f, m) for f in (0, 1) for m in plan.methods]
    for record in records:
        assert record.predicted.shape == (50, 2)
        assert record.predicted.sum(1) == pytest.approx(1)
        assert [t.length > 0 for t in record.trials] == [True, True]
    alone = run_methods(classes, folds[1:], replace(plan, methods=("erm",)), quiet)[0]
    same = next(r for r in records if r.key == alone.key)
    assert alone.predicted == pytest.approx(same.predicted, abs=1e-4)  # others of a stack do not matter


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(
    "method",
    ["erm", "elliptic-weighted", "groupdro", "trees", "catboost", "lightgbm", "xgboost", "linear"],
)
def test_the_saved_model_predicts_what_the_tested_procedure_predicts(classes, task, method):
    """Trained on the rows of a fold with its settings, length and seed, to the last digit but rounding."""
    pytest.importorskip(METHODS[method].needs or "sklearn")
    if task not in METHODS[method].tasks or (task == "regression" and method == "groupdro"):
        pytest.skip("there is none")
    problem = classes if task == "classification" else prices()
    plan = replace(PLAN, methods=(method,), log_target=task == "regression")
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    (record,) = run_methods(problem, [rows], plan, quiet)
    trial = record.trials[record.chosen]
    final = Recipe(method, trial.settings, trial.log_target, trial.length)
    seed = training.stream_seed("training", plan.seed, 0, 0, "final")
    model = fit_pipeline(only_rows(problem, rows.train), plan, final, seed)
    unseen = problem.features[rows.fold.test]
    predicted = model.predict_proba(unseen) if task == "classification" else model.predict(unseen)
    assert predicted == pytest.approx(record.predicted, rel=1e-6, abs=1e-9)


def test_the_logarithm_wins_where_it_is_right():
    problem = prices()
    plan = Plan(("linear",), trials=4, log_target=True)
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    (record,) = run_methods(problem, [rows], plan, quiet)
    assert [t.log_target for t in record.trials] == [False, True, False, True]
    assert record.trials[record.chosen].log_target  # exactly linear there
    test, known = problem.target[rows.fold.test], problem.target[rows.train]
    inside = (test > known.min()) & (test < known.max())
    assert np.median(np.abs(record.predicted / test - 1)[inside]) < 0.05


def test_a_diverged_trial_is_recorded_and_not_chosen(classes, rows, monkeypatch):
    usual = training.draw_settings

    def draw(method, number, plan):
        settings = usual(method, number, plan)
        return settings | ({"learning_rate": 1e30} if number == 0 or method == "elliptic" else {})

    monkeypatch.setattr(training, "draw_settings", draw)
    erm, elliptic = run_methods(classes, [rows], PLAN, quiet)
    assert (erm.chosen, erm.error) == (1, "")
    assert erm.trials[0].error
    assert not erm.trials[0].validation
    assert elliptic.chosen is None
    assert elliptic.error
    assert len(elliptic.predicted) == 0


def test_a_diverged_network_is_left_out_of_the_mean(classes, rows, monkeypatch):
    def train_stack(jobs, usual=base.train_stack, **options):
        trained = usual(jobs, **options)
        if len(jobs) > 3:  # the last training: three networks of each method
            trained[1].progress.ended = "failed"
            trained[1].parameters[0].fill_(float("nan"))
        return trained

    monkeypatch.setattr(base, "train_stack", train_stack)
    records = run_methods(classes, [rows], replace(PLAN, trials=1, networks=3), quiet)
    assert [(record.lost, record.error) for record in records] == [(1, ""), (0, "")]
    assert np.isfinite(records[0].predicted).all()


def test_worse_trials_are_dropped_after_first_epochs(classes):
    plan = replace(PLAN, methods=("erm",), trials=6, epochs=12, first_epochs=2)
    rows = [prepare(classes, make_shift(classes).folds[0], plan)]
    (record,) = run_methods(classes, rows, plan, quiet)
    kept = [n for n, t in enumerate(record.trials) if not t.dropped]
    assert len(kept) == 2
    assert record.chosen in kept
    assert all(t.length <= 2 for t in record.trials if t.dropped)
    assert all(t.validation for t in record.trials)


def test_trees_drop_settings_after_few_rows(classes, rows, fits):
    plan = replace(PLAN, methods=("trees",), trials=4, first_rows=0)
    rows = replace(rows, first=rows.fit[::2])
    (record,) = run_methods(classes, [rows], plan, quiet)
    kept = [n for n, t in enumerate(record.trials) if not t.dropped]
    assert (len(record.trials), len(kept), len(fits)) == (10, 2, 13)
    assert record.chosen in kept
    assert [len(fit.rows) for fit in fits] == [45] * 10 + [90] * 2 + [120]


@pytest.mark.parametrize("method", ["erm", "trees", "linear"])
def test_large_tables_are_calibrated_with_the_models_that_are_tested(classes, method, monkeypatch):
    """Their validation rows are not trained on, so the temperature belongs to the tested model itself."""
    seen = []
    monkeypatch.setattr(training, "_temperature", lambda p, y: (seen.append(p), 1.0)[1])
    plan = replace(PLAN, methods=(method,), tuning_rows=40)
    fold = make_shift(classes).folds[0]
    fold = replace(fold, test=fold.validation)  # then predictions of both parts are of the same rows
    (record,) = run_methods(classes, [prepare(classes, fold, plan)], plan, quiet)
    assert np.array_equal(seen[0], record.predicted)


@pytest.mark.parametrize("methods", [("erm", "mixup"), ("trees",), ("linear",)])
def test_trials_leave_the_validation_rows_out_and_the_tested_model_does_not(classes, rows, methods, fits):
    plan = replace(PLAN, methods=methods, epochs=60)
    records = run_methods(classes, [rows], plan, quiet)
    n = sum(plan.trials_of(method) for method in methods)
    assert all(np.array_equal(fit.rows, rows.fit) for fit in fits[:n])
    assert all(np.array_equal(fit.rows, rows.train) for fit in fits[n:])
    assert len(fits) == n + len(methods)
    assert [len(record.trials) for record in records] == [plan.trials_of(method) for method in methods]


def test_a_linear_model_may_leave_the_range_of_the_targets():
    """A line beyond the training range: clipped, the one model that is right would lose."""
    x = np.arange(200.0)
    problem = problem_of(pl.DataFrame({"t": x, "x": x, "y": x + 0.5}), time="t")
    plan = Plan(("erm", "linear"), trials=1, networks=1, hidden=(8,))
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    (network,) = run_methods(problem, [rows], replace(plan, methods=("erm",)), quiet)
    (line,) = run_methods(problem, [rows], replace(plan, methods=("linear",)), quiet)
    most = problem.target[rows.train].max()
    assert line.predicted.min() > most
    assert line.clipped == 0 < network.clipped == (network.predicted == most).sum()


def test_trees_are_tested_at_their_best_iteration(classes):
    """Early stopping looks twenty iterations ahead; these are not part of the model."""
    plan = replace(PLAN, methods=("trees",), tuning_rows=60)
    rows = prepare(classes, make_shift(classes).folds[0], plan)
    x, kinds = rows.inputs(255, final=True)
    seeds = {part: training.stream_seed("training", 0, 0, 0, part) for part in ("trials", "final")}
    (record,) = run_methods(classes, [rows], plan, quiet)
    trial = record.trials[record.chosen]

    def predicted(train, length, where, part="final"):
        recipe = Recipe("trees", trial.settings, False, length)
        model = make_model(classes, plan, recipe, kinds, n_networks=1, seed=seeds[part])
        fit_models([base.Fit(model, x, rows.y, rows=train)])
        return model.predict_proba(x[where])

    test = rows.fold.test
    assert np.array_equal(record.predicted, predicted(rows.train, record.length, test))
    assert not np.allclose(record.predicted, predicted(rows.train, record.length + 10, test))
    best = predicted(rows.fit, trial.length, rows.fold.validation, "trials")
    chosen = best[np.arange(len(best)), rows.y[rows.fold.validation]]
    assert trial.validation["log_loss"] == pytest.approx(-np.log(chosen).mean())


def test_trees_learn_categories_of_few_rows():
    """Scikit-learn's trees join categories of fewer than ten rows; mean targets tell them apart."""
    draws = np.random.default_rng(0)
    town = np.arange(480) % 60
    y = draws.normal(size=60)[town] + 0.2 * draws.normal(size=480)
    frame = pl.DataFrame({"town": [f"t{t}" for t in town], "x": draws.normal(size=480), "y": y})
    problem = problem_of(frame)
    rows = prepare(problem, make_shift(problem).folds[0], PLAN)
    (record,) = run_methods(problem, [rows], replace(PLAN, methods=("trees",)), quiet)
    assert record.trials[record.chosen].settings["means"]
    assert np.square(record.predicted - y[rows.fold.test]).mean() < 0.3 * y.var()


def test_preprocessing_sees_training_rows_only(classes, rows):
    tested = pl.int_range(pl.len()).is_in(rows.fold.test.tolist())
    moved = classes.features.with_columns(pl.when(tested).then(1e6).otherwise(pl.col("x")).alias("x"))
    again = prepare(replace(classes, features=moved), rows.fold, PLAN)
    for codes in (0, 255):
        x, other = (each.inputs(codes, final=True)[0] for each in (rows, again))
        assert np.array_equal(x[rows.train], other[rows.train])
        assert rows.inputs(codes, final=False)[0] is x


def test_target_means_contain_no_rows_that_judge(classes, rows):
    """Validation rows judge trials, test rows the final training."""
    many = pl.Series("c", [f"c{i % 55}" for i in range(len(classes.target))])
    table = replace(
        classes,
        features=classes.features.with_columns(many),
        inputs=(*classes.inputs, replace(classes.inputs[0], name="c", kind="category")),
    )
    validation, test = rows.fold.validation, rows.fold.test
    for final, judging in ((False, np.r_[validation, test]), (True, test)):
        target = classes.target.copy()
        target[judging] = np.roll(target[judging], 1)
        pair = [prepare(replace(table, target=y), rows.fold, PLAN) for y in (classes.target, target)]
        x, other = (each.inputs(0, final=final)[0] for each in pair)
        assert np.array_equal(x, other)
        assert final or not np.array_equal(x, pair[0].inputs(0, final=True)[0])


def test_trials_of_a_large_table_see_a_part_of_it(classes, rows):
    fold = rows.fold
    large = prepare(classes, fold, replace(PLAN, tuning_rows=30))
    assert (len(large.fit), len(large.fold.validation), len(large.train)) == (30, 30, 90)
    assert set(large.fit) <= set(fold.fit)
    assert np.array_equal(large.train, fold.fit)  # the validation rows choose the last length, too
    assert np.array_equal(large.stop, fold.validation)
    assert rows.stop is None
    assert np.array_equal(rows.train, fold.train)


def test_temperatures(rows):
    sure = np.tile([[0.99, 0.01]], (30, 1))
    assert at_temperature(sure, 1.0) == pytest.approx(sure)
    assert at_temperature(sure, 1e9)[0] == pytest.approx([0.5, 0.5])
    right = np.eye(2)[rows.y[rows.fold.validation]] * 0.98 + 0.01
    wrong = right.copy()
    wrong[:6] = 1 - wrong[:6]  # a fifth is wrong with 99 % confidence

    labels = rows.y[rows.fold.validation]
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
        return Record(0, fold, "erm", trials, 0, 0.0)

    a = record(0, trial(0.1), trial(0.2), trial(0.3))
    b = record(1, trial(0.1, dropped=True), trial(0.2), trial(0.3))
    c = record(2, trial(0.3), trial(0.2), trial(0.1))
    assert final_trial([a, b, c], classes, PLAN) == 1  # places 0 3 2, 1 0 1, 2 1 0: ties go to the first
    assert final_trial([c], classes, PLAN) == 2


def test_validation_without_a_judged_group_is_by_class(classes, rows):
    predicted = np.full((len(rows.fold.validation), 2), 0.5)
    assert "worst_group_accuracy" in validate(classes, rows, predicted)
    scores = validate(replace(classes, judged=np.full(150, "")), rows, predicted)
    assert "worst_class_accuracy" in scores
    assert ranking(scores, classes, replace(PLAN, select="worst")) == (-scores["brier"],)


def test_records_survive_json():
    record = Record(1, 2, "erm", (trial(0.2),), 0, 1.5, length=4, temperature=1.2)
    content = json.loads(json.dumps(record.to_json()))
    again = Record.from_json(content, np.array([1.0]), np.empty(0))
    assert again.to_json() == record.to_json()
    assert again.trials == record.trials
    assert again.predicted.tolist() == [1.0]
