"""Networks side by side: trials of all methods and folds, ensembles, failures."""

from dataclasses import replace

import numpy as np
import pytest

from compare_cases import PLAN, prices, quiet, two_classes
from elliptica.estimators import fit as fit_module
from elliptica.estimators.fit import fit_together
from elliptica.tables import networks as networks_module
from elliptica.tables import protocol as protocol_module
from elliptica.tables.networks import run_networks
from elliptica.tables.plan import Plan
from elliptica.tables.protocol import prepare
from elliptica.tables.references import run_reference
from elliptica.tables.shift import make_shift


@pytest.fixture(scope="module")
def classes():
    return two_classes()


def test_all_methods_in_all_folds(classes):
    plan = replace(PLAN, methods=("erm", "elliptic", "groupdro", "jtt"))
    rows = [prepare(classes, fold, plan) for fold in make_shift(classes, folds=3).folds[:2]]
    records = run_networks(classes, rows, plan, quiet)
    assert [(r.fold, r.method) for r in records] == [(f, m) for f in (0, 1) for m in plan.methods]
    for record in records:
        assert record.predicted.shape == (50, 2)
        assert record.predicted.sum(1) == pytest.approx(1)
        assert [t.length > 0 for t in record.trials] == [True, True]
        assert record.length == record.trials[record.chosen].length
    alone = run_networks(classes, rows[1:], replace(plan, methods=("erm",)), quiet)[0]
    same = next(r for r in records if r.key == alone.key)
    assert alone.predicted == pytest.approx(same.predicted, abs=1e-4)  # others of a stack do not matter


def test_the_logarithm_wins_where_it_is_right():
    problem = prices()
    assert problem.log_target_candidate
    plan = Plan(("erm", "linear"), trials=4, epochs=30, networks=1, hidden=(16,), log_target=True)
    rows = prepare(problem, make_shift(problem).folds[0], plan)
    record = run_networks(problem, [rows], replace(plan, methods=("erm",)), quiet)[0]
    assert [t.log_target for t in record.trials] == [False, True, False, True]
    linear = run_reference(problem, rows, "linear", plan, quiet, 5)
    assert linear.trials[linear.chosen].log_target  # exactly linear there
    test = problem.target[rows.fold.test]
    inside = (test > problem.target[rows.train].min()) & (test < problem.target[rows.train].max())
    assert np.median(np.abs(linear.predicted / test - 1)[inside]) < 0.05


def test_a_diverged_trial_is_recorded_and_not_chosen(classes, monkeypatch):
    usual = networks_module.draw_settings

    def draw(method, number, plan):
        settings = usual(method, number, plan)
        return settings | ({"learning_rate": 1e30} if number == 0 or method == "elliptic" else {})

    monkeypatch.setattr(networks_module, "draw_settings", draw)
    rows = [prepare(classes, make_shift(classes).folds[0], PLAN)]
    erm, elliptic = run_networks(classes, rows, PLAN, quiet)
    assert (erm.chosen, erm.error) == (1, "")
    assert erm.trials[0].error
    assert not erm.trials[0].validation
    assert elliptic.chosen is None
    assert elliptic.error
    assert len(elliptic.predicted) == 0


def test_worse_trials_are_dropped_after_first_epochs(classes):
    plan = replace(PLAN, methods=("erm",), trials=6, epochs=12, first_epochs=2)
    rows = [prepare(classes, make_shift(classes).folds[0], plan)]
    record = run_networks(classes, rows, plan, quiet)[0]
    kept = [n for n, t in enumerate(record.trials) if not t.dropped]
    assert len(kept) == 2
    assert record.chosen in kept
    assert all(t.length <= 2 for t in record.trials if t.dropped)
    assert all(t.validation for t in record.trials)


def test_stacks_are_cut_to_fit_into_memory(classes, monkeypatch):
    rows = [prepare(classes, make_shift(classes).folds[0], PLAN)]
    whole = run_networks(classes, rows, PLAN, quiet)
    told = []
    monkeypatch.setattr(fit_module, "_STACK_BYTES", 1)  # one network at a time
    cut = run_networks(classes, rows, PLAN, lambda share, words: told.append(share))
    for a, b in zip(whole, cut, strict=True):
        assert a.predicted == pytest.approx(b.predicted, abs=1e-5)
        assert (a.chosen, a.length) == (b.chosen, b.length)
    assert told == sorted(told)


@pytest.mark.parametrize("method", ["erm", "trees", "linear"])
def test_large_tables_are_calibrated_with_the_models_that_are_tested(classes, method, monkeypatch):
    """Their validation rows are not trained on, so the temperature belongs to the ensemble itself."""
    seen = []
    monkeypatch.setattr(protocol_module, "_temperature", lambda p, y: (seen.append(p), 1.0)[1])
    plan = replace(PLAN, methods=("erm",), tuning_rows=40)
    fold = make_shift(classes).folds[0]
    fold = replace(fold, test=fold.validation)  # then predictions of both parts are of the same rows
    rows = prepare(classes, fold, plan)
    if method == "erm":
        (record,) = run_networks(classes, [rows], plan, quiet)
    else:
        record = run_reference(classes, rows, method, plan, quiet, 5)
    assert np.array_equal(seen[0], record.predicted)


def test_final_networks_see_all_training_rows_with_seeds_of_their_own(classes, monkeypatch):
    """And JTT counts the rows that ordinary training got wrong more often, not the others."""
    fits, first, usual, stage = [], [], fit_together, networks_module._Trainer.first_stage

    def trained(given, callback):
        fits.extend(given)
        return usual(given, callback)

    monkeypatch.setattr(networks_module, "fit_together", trained)
    monkeypatch.setattr(
        networks_module._Trainer, "first_stage", lambda *given: first.append(stage(*given)) or first[-1]
    )
    plan = replace(PLAN, methods=("erm", "jtt"), networks=3, epochs=60)
    rows = prepare(classes, make_shift(classes, folds=3).folds[0], plan)
    run_networks(classes, [rows], plan, quiet)
    trials = [fit for fit in fits if fit.validation is not None]
    final = [fit for fit in fits if fit.validation is None]
    assert all(np.array_equal(fit.rows, rows.fit) for fit in trials)
    assert all(np.array_equal(fit.rows, rows.train) for fit in final)
    assert [fit.estimator.n_networks for fit in final] == [3, 3]
    assert {fit.estimator.random_state for fit in final}.isdisjoint(f.estimator.random_state for f in trials)
    weights = [fit.sample_weight for fit in fits if fit.sample_weight is not None]
    assert len(weights) == plan.trials + 1
    for weight in weights:
        assert 0 < first[0].mean() < 0.5
        assert np.array_equal(weight > 1, first[0])
