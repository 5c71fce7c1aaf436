"""Networks side by side: trials of all methods and folds, ensembles, failures, deadlines."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from compare_cases import PLAN, prices, quiet, two_classes
from elliptica.estimators import EllipticRegressor
from elliptica.estimators.stacked import StackedJob, predict_stacked, train_stacked
from elliptica.tables import networks as networks_module
from elliptica.tables import protocol as protocol_module
from elliptica.tables.networks import run_networks
from elliptica.tables.plan import Plan
from elliptica.tables.protocol import TargetScale, prepare
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
    assert elliptic.error.startswith("Training failed with all of 2 settings. The first error was:")
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


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("method", ["erm", "elliptic", "mixup"])
def test_stacked_training_does_as_well_as_the_loop_of_the_estimators(method, seed):
    """The mean over 16 seeds agrees within five standard errors, on the same rows of a real table."""
    x, y = load_diabetes(return_X_y=True)
    train, test = np.arange(300), np.arange(300, len(y))
    scale = TargetScale.of(y[train], log=False)
    x = ((x - x[train].mean(0)) / x[train].std(0)).astype(np.float32)
    settings = {"learning_rate": 1e-3, "weight_decay": 1e-4, "max_iter": 15}
    seeds = range(seed, seed + 16)
    jobs = [StackedJob(train, 0, each, method, settings) for each in seeds]
    stacked = train_stacked(
        [x], [scale.learn(y)], jobs, loss="real", n_outputs=1, hidden=(64, 64), batch_size=32
    )
    outputs = predict_stacked(stacked, x[test])[..., 0].double().numpy()
    ours = [np.sqrt(np.mean((scale.read(each) - y[test]) ** 2)) for each in outputs]
    loop = [
        EllipticRegressor(method=method, hidden=(64, 64), batch_size=32, random_state=each, **settings)
        .fit(x[train], y[train])
        .predict(x[test])
        for each in seeds
    ]
    theirs = [np.sqrt(np.mean((each - y[test]) ** 2)) for each in loop]
    error = np.sqrt(np.var(ours, ddof=1) / 16 + np.var(theirs, ddof=1) / 16)
    assert abs(np.mean(ours) - np.mean(theirs)) < 5 * error + 0.1
    assert np.mean(ours) < 0.85 * y[test].std()  # and both have learnt something


def test_stacks_are_cut_to_fit_into_memory(classes, monkeypatch):
    rows = [prepare(classes, make_shift(classes).folds[0], PLAN)]
    whole = run_networks(classes, rows, PLAN, quiet)
    told = []
    monkeypatch.setattr(networks_module, "_STACK_BYTES", 1)  # one network at a time
    cut = run_networks(classes, rows, PLAN, lambda share, words: told.append(share), None)
    for a, b in zip(whole, cut, strict=True):
        assert a.predicted == pytest.approx(b.predicted, abs=1e-5)
        assert (a.chosen, a.length) == (b.chosen, b.length)
    assert told == sorted(told)


def test_no_setting_is_tried_after_the_deadline(classes):
    rows = prepare(classes, make_shift(classes).folds[0], PLAN)
    assert len(run_reference(classes, rows, "linear", PLAN, quiet, 5, deadline=0.0).trials) == 1
    records = run_networks(classes, [rows], replace(PLAN, epochs=10**6), quiet, 0.0)
    assert [record.method for record in records] == ["erm", "elliptic"]
    assert all("time was over" in record.error for record in records)


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
    jobs, first, train, stage = [], [], networks_module.train_stacked, networks_module._first_stage

    def trained(x, y, given, **options):
        jobs.extend(given)
        return train(x, y, given, **options)

    monkeypatch.setattr(networks_module, "train_stacked", trained)
    monkeypatch.setattr(networks_module, "_first_stage", lambda *a: first.append(stage(*a)) or first[-1])
    plan = replace(PLAN, methods=("erm", "jtt"), networks=3, epochs=60)
    rows = prepare(classes, make_shift(classes, folds=3).folds[0], plan)
    run_networks(classes, [rows], plan, quiet)
    trials = [job for job in jobs if job.validation is not None]
    final = [job for job in jobs if job.validation is None]
    assert all(np.array_equal(job.rows, rows.fit) for job in trials)
    assert all(np.array_equal(job.rows, rows.train) for job in final)
    for weighted in (False, True):  # ordinary training, and JTT
        own = [job for job in final if (job.weight is not None) == weighted]
        assert len({job.seed for job in own}) == len(own) == plan.networks
    for job in jobs:
        if job.weight is not None:
            wrong = first[0][0][job.rows]
            assert 0 < wrong.mean() < 0.5
            assert np.array_equal(job.weight > 1, wrong)
