"""Predicted times, and plans that fit a budget."""

from dataclasses import replace

import pytest
from elliptica.tables.cost import Speed, estimate, fit_budget, measure_speed

from compare_cases import PLAN, two_classes
from elliptica.tables import Options
from elliptica.tables import comparison as comparison_module
from elliptica.tables.comparison import Session
from elliptica.tables.shift import make_shift


@pytest.mark.slow
def test_a_budget_shrinks_and_grows_the_plan(flowers, tmp_path, steady, monkeypatch):
    frame = flowers.drop("height")
    plans = {}
    for budget in ("1s", "1h"):
        session = Session.open(frame, "kind", Options(budget=budget, jobs=1))
        plans[budget] = session.plan
    usual = Session.open(frame, "kind", Options(jobs=1)).plan
    assert plans["1s"].trials < usual.trials < plans["1h"].trials
    assert plans["1s"].epochs < usual.epochs
    first = Session.open(frame, "kind", Options(budget="9s", jobs=1, methods=["elliptic"]), out=tmp_path)
    first.run()
    assert first.result().scores
    first.close()
    monkeypatch.setattr(comparison_module, "measure_speed", lambda *_: Speed(1.0, 1.0, 1.0))
    again = Session.open(frame, "kind", Options(budget="9s", jobs=1, methods=["elliptic"]), out=tmp_path)
    assert again.plan == first.plan  # whatever the machine is doing now


def test_quick_is_smaller(flowers, steady):
    usual, quick = (Session.open(flowers, "kind", Options(quick=quick, jobs=1)) for quick in (False, True))
    assert quick.plan.trials < usual.plan.trials
    assert quick.estimate < usual.estimate


def test_estimates_follow_the_work():
    problem = two_classes()
    folds = make_shift(problem).folds
    whole = replace(PLAN, methods=("erm", "elliptic", "trees"))
    usual = estimate(problem, folds, whole, Speed(), 1)
    assert estimate(problem, folds[:2], whole, Speed(), 1) == pytest.approx(0.4 * usual)
    assert estimate(problem, folds, replace(whole, trials=4), Speed(), 1) > usual
    assert estimate(problem, folds, whole, Speed(), 2) < usual
    slow = Speed(10 * Speed.row, 10 * Speed.tree, 10 * Speed.tree_row)
    assert 9 * usual < estimate(problem, folds, whole, slow, 1) <= 10 * usual


@pytest.mark.parametrize("size", ["networks", "epochs", "first_epochs", "patience"])
def test_every_size_costs_time(size):
    """And twice as much of it costs twice the time of that part."""
    problem = two_classes()
    folds = make_shift(problem).folds
    plan = replace(PLAN, methods=("erm", "elliptic"), first_epochs=3)
    steps = [replace(plan, **{size: getattr(plan, size) + n}) for n in (0, 1, 2)]
    seconds = [estimate(problem, folds, step, Speed(), 1) for step in steps]
    assert seconds[0] < seconds[1] < seconds[2]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0])


def test_plans_within_a_budget():
    """The largest plan that fits is taken; a plan that the budget allows is not cut."""
    problem = two_classes()
    folds = make_shift(problem).folds
    plan = replace(PLAN, trials=8, networks=3, epochs=100, first_epochs=12)
    need = estimate(problem, folds, plan, Speed(), 1)
    sizes = []
    for share in (0.01, 0.5, 0.9, 2.0, 100.0):
        found = fit_budget(problem, folds, plan, Speed(), 1, share * need)
        sizes.append(estimate(problem, folds, found, Speed(), 1))
        assert found.trials >= 1
        assert share < 0.1 or sizes[-1] <= 0.75 * share * need
    assert sizes == sorted(sizes)
    assert sizes[3] == need
    assert sizes[4] > need


def test_speed_is_measured():
    speed = measure_speed(two_classes(), replace(PLAN, methods=("erm", "jtt", "groupdro", "trees")), 3)
    assert 0 < speed.row < 1e-2
    assert 0 < speed.tree_row < speed.tree < 10
