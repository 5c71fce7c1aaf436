"""Training by one path: trials of all methods and folds, failures, ensembles, and the saved model."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compare_cases import PLAN, prices, quiet, two_classes
from elliptica.estimators.base import Fit
from elliptica.tables import protocol, training
from elliptica.tables.methods import METHODS, Plan
from elliptica.tables.model import FinalSettings, fit_pipeline, only_rows
from elliptica.tables.protocol import prepare
from elliptica.tables.shift import make_shift
from elliptica.tables.training import Recipe, fit_models, make_model, run_methods
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
    plan = replace(PLAN, methods=("erm", "elliptic", "groupdro", "jtt"))
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
@pytest.mark.parametrize("method", ["erm", "elliptic-weighted", "jtt", "groupdro", "trees", "linear"])
def test_the_saved_model_predicts_what_the_tested_procedure_predicts(classes, task, method, fits):
    """Trained on the rows of a fold with its settings, length and seed, to the last digit but rounding."""
    if task not in METHODS[method].tasks or (task == "regression" and method == "groupdro"):
        pytest.skip("there is none")
    problem = classes if task == "classification" else prices()
    methods = ("erm", method) if method == "jtt" else (method,)
    plan = replace(PLAN, methods=methods, log_target=task == "regression")
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    record = run_methods(problem, [rows], plan, quiet)[-1]
    trial, last = record.trials[record.chosen], fits[-1]
    final = FinalSettings(method, trial.settings, trial.log_target, trial.length)
    seed = training.stream_seed("training", plan.seed, 0, 0, "final")
    wrong = None if last.sample_weight is None else last.sample_weight[rows.train] > 1
    model = fit_pipeline(only_rows(problem, rows.train), plan, final, seed, wrong)
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


def test_worse_trials_are_dropped_after_first_epochs(classes):
    plan = replace(PLAN, methods=("erm",), trials=6, epochs=12, first_epochs=2)
    rows = [prepare(classes, make_shift(classes).folds[0], plan)]
    (record,) = run_methods(classes, rows, plan, quiet)
    kept = [n for n, t in enumerate(record.trials) if not t.dropped]
    assert len(kept) == 2
    assert record.chosen in kept
    assert all(t.length <= 2 for t in record.trials if t.dropped)
    assert all(t.validation for t in record.trials)


@pytest.mark.parametrize("method", ["erm", "trees", "linear"])
def test_large_tables_are_calibrated_with_the_models_that_are_tested(classes, method, monkeypatch):
    """Their validation rows are not trained on, so the temperature belongs to the tested model itself."""
    seen = []
    monkeypatch.setattr(protocol, "_temperature", lambda p, y: (seen.append(p), 1.0)[1])
    plan = replace(PLAN, methods=(method,), tuning_rows=40)
    fold = make_shift(classes).folds[0]
    fold = replace(fold, test=fold.validation)  # then predictions of both parts are of the same rows
    (record,) = run_methods(classes, [prepare(classes, fold, plan)], plan, quiet)
    assert np.array_equal(seen[0], record.predicted)


@pytest.mark.parametrize("methods", [("erm", "jtt"), ("trees",), ("linear",)])
def test_trials_leave_the_validation_rows_out_and_the_tested_model_does_not(classes, rows, methods, fits):
    plan = replace(PLAN, methods=methods, epochs=60)
    records = run_methods(classes, [rows], plan, quiet)
    n = plan.trials * len(methods)
    assert all(np.array_equal(fit.rows, rows.fit) for fit in fits[:n])
    assert all(np.array_equal(fit.rows, rows.train) for fit in fits[n:])
    assert len(fits) == n + len(methods)
    assert all(len(record.trials) == plan.trials and record.rows == rows.counts for record in records)
    weights = [fit.sample_weight for fit in fits if fit.sample_weight is not None]
    assert len(weights) == (plan.trials + 1 if "jtt" in methods else 0)
    for weight in weights:  # JTT counts the rows that ordinary training got wrong more often
        assert 0 < (weight > 1).mean() < 0.5


def test_a_linear_model_may_leave_the_range_of_the_targets():
    """A line beyond the training range: clipped, the one model that is right would lose."""
    x = np.arange(200.0)
    problem = problem_of(pl.DataFrame({"t": x, "x": x, "y": x + 0.5}), time="t")
    plan = Plan(("linear",), trials=1)
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    (record,) = run_methods(problem, [rows], plan, quiet)
    assert record.predicted.min() > problem.target[rows.train].max()
    assert np.array_equal(record.predicted, record.unbounded)


def test_trees_are_tested_at_their_best_iteration(classes):
    """Early stopping looks ten iterations ahead; these are not part of the model."""
    plan = replace(PLAN, methods=("trees",), tuning_rows=60)
    rows = prepare(classes, make_shift(classes).folds[0], plan)
    (record,) = run_methods(classes, [rows], plan, quiet)
    trial = record.trials[record.chosen]

    def predicted(train, length, where):
        model = make_model(
            classes, plan, Recipe("trees", trial.settings, False, length), n_networks=1, seed=0
        )
        fit_models([Fit(model, rows.x, rows.y, rows=train)])
        return model.predict_proba(rows.x[where])

    test = rows.fold.test
    assert np.array_equal(record.predicted, predicted(rows.train, record.length, test))
    assert not np.allclose(record.predicted, predicted(rows.train, record.length + 10, test))
    best = predicted(rows.fit, trial.length, rows.validation)
    chosen = best[np.arange(len(best)), rows.y[rows.validation]]
    assert trial.validation["log_loss"] == pytest.approx(-np.log(chosen).mean())
