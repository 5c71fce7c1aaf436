"""Boosted trees and linear models: the same rows, trials and rule of choice as networks."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from compare_cases import PLAN, quiet, two_classes
from elliptica.tables import references as references_module
from elliptica.tables.plan import Plan
from elliptica.tables.protocol import prepare
from elliptica.tables.references import make_reference, run_reference
from elliptica.tables.shift import make_shift
from table_cases import problem_of


@pytest.fixture(scope="module")
def classes():
    return two_classes()


def test_the_linear_model_may_leave_the_range_of_the_targets():
    """A line beyond the training range: clipped, the one model that is right would lose."""
    x = np.arange(200.0)
    problem = problem_of(pl.DataFrame({"t": x, "x": x, "y": x + 0.5}), time="t")
    plan = Plan(("linear",), trials=1)
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    record = run_reference(problem, rows, "linear", plan, quiet, 5)
    highest = problem.target[rows.train].max()
    assert plan.bounded
    assert record.predicted.min() > highest
    assert np.array_equal(record.predicted, record.unbounded)


@pytest.mark.parametrize("method", ["trees", "linear"])
def test_references_get_the_same_rows_and_trials(classes, method):
    rows = prepare(classes, make_shift(classes).folds[0], PLAN)
    record = run_reference(classes, rows, method, PLAN, quiet, 5)
    assert len(record.trials) == PLAN.trials
    assert record.rows == rows.counts
    assert record.predicted.sum(1) == pytest.approx(1)
    assert (record.length > 0) == (method == "trees")
    large = prepare(classes, rows.fold, replace(PLAN, tuning_rows=40))
    assert run_reference(classes, large, method, PLAN, quiet, 5).predicted.shape == (30, 2)


@pytest.mark.parametrize("method", ["trees", "linear"])
def test_the_tested_model_is_fitted_to_all_training_rows(classes, method, monkeypatch):
    """Trials leave the validation rows out; the model that is tested does not."""
    sizes, make = [], references_module.make_reference

    def watched(*given):
        model = make(*given)
        fit = model.fit
        monkeypatch.setattr(model, "fit", lambda x, y, **more: sizes.append(len(x)) or fit(x, y, **more))
        return model

    monkeypatch.setattr(references_module, "make_reference", watched)
    rows = prepare(classes, make_shift(classes).folds[0], PLAN)
    run_reference(classes, rows, method, PLAN, quiet, 5)
    assert sizes == [len(rows.fit)] * PLAN.trials + [len(rows.train)]


def test_trees_are_tested_at_their_best_iteration(classes):
    """Early stopping looks ten iterations ahead; these are not part of the model."""
    rows = prepare(classes, make_shift(classes).folds[0], replace(PLAN, tuning_rows=60))
    assert rows.stop is not None
    record = run_reference(classes, rows, "trees", PLAN, quiet, 5)
    settings = record.trials[record.chosen].settings
    x, y, test = rows.x, rows.y, rows.fold.test

    def predicted(train, length, where):
        model = make_reference("trees", "classification", settings, length, 0)
        return model.fit(x[train], y[train]).predict_proba(x[where])

    assert np.array_equal(record.predicted, predicted(rows.train, record.length, test))
    assert not np.allclose(record.predicted, predicted(rows.train, record.length + 10, test))
    trial = record.trials[record.chosen]
    best = predicted(rows.fit, trial.length, rows.validation)
    right = (best.argmax(1) == y[rows.validation]).mean()
    chosen = best[np.arange(len(best)), y[rows.validation]]
    assert trial.validation["accuracy"] == pytest.approx(right)
    assert trial.validation["log_loss"] == pytest.approx(-np.log(chosen).mean())
