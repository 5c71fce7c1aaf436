"""Plans: methods, draws of settings, borders of their ranges."""

import numpy as np
import polars as pl
import pytest

from elliptica.compare import TableError, compare
from elliptica.compare.markdown import markdown
from elliptica.compare.plan import (
    METHODS,
    TREES,
    Plan,
    at_border,
    choose_methods,
    draw_settings,
    make_estimator,
)


def test_shared_settings_have_the_same_draws():
    plan = Plan(METHODS["classification"], trials=6)
    for trial in range(6):
        drawn = [draw_settings(method, trial, plan) for method in plan.methods]
        shared = [{k: d[k] for k in ("learning_rate", "weight_decay", "max_iter")} for d in drawn]
        assert all(each == shared[0] for each in shared)
    rates = {draw_settings("erm", trial, plan)["learning_rate"] for trial in range(6)}
    assert len(rates) == 6
    assert all(3e-4 <= rate <= 1e-2 for rate in rates)
    assert draw_settings("elliptic", 1, plan)["sigma"] != draw_settings("elliptic-weighted", 1, plan)["sigma"]
    other = Plan(METHODS["classification"], seed=1)
    assert draw_settings("erm", 1, plan) != draw_settings("erm", 1, other)
    assert draw_settings("erm", 0, plan) == draw_settings("erm", 0, other)


@pytest.mark.bad_input
def test_methods_and_plans_that_do_not_exist():
    assert choose_methods("classification", None, False) == METHODS["classification"]
    assert choose_methods("classification", ["elliptic"], False) == ("erm", "elliptic")
    with pytest.raises(TableError, match=r"no method 'c-mixup' for classification. There are erm, mixup"):
        choose_methods("classification", ["c-mixup"], False)
    for wrong in ({"repeats": 0}, {"trials": 0}, {"epochs": 1.5}, {"select": "best"}):
        with pytest.raises(TableError, match=next(iter(wrong))):
            Plan(("erm",), **wrong)


@pytest.mark.bad_input
def test_plans_that_make_no_sense():
    for wrong in ({"hidden": ()}, {"hidden": (8, 0)}, {"seed": -1}, {"seed": 0.5}):
        with pytest.raises(TableError, match=next(iter(wrong))):
            Plan(("erm",), **wrong)


@pytest.fixture(scope="module")
def short_search():
    draws = np.random.default_rng(1)
    frame = pl.DataFrame({"x": draws.normal(size=60), "y": draws.normal(size=60)})
    return compare(frame, "y", methods=["elliptic"], trees=True, repeats=3, trials=2, epochs=25, hidden=(4,))


def test_borders_by_hand():
    """A tenth of the way from 0.01 to 1 on a logarithmic scale ends at 0.01 * 100^0.1 = 0.0158."""
    plan = Plan(("erm", "elliptic"), epochs=80)
    for sigma, is_border in ((0.0157, True), (0.0159, False), (0.62, False), (0.64, True)):
        assert (at_border("elliptic", {"sigma": sigma}, plan) == {"sigma": (0.01, 1.0)}) == is_border
    assert at_border("erm", {"max_iter": 80}, plan) == {}  # the usual value
    assert at_border("erm", {"max_iter": 20}, plan) == {"max_iter": (20.0, 80)}
    assert at_border("erm", {"max_iter": 1}, Plan(("erm",), epochs=1)) == {}


def test_trees_get_what_networks_get(short_search):
    """The same splits, inputs and number of trials; and all training rows, in large tables as well."""
    for repeat in range(3):
        networks, trees = (
            next(r for r in short_search.records if (r.repeat, r.method) == (repeat, m))
            for m in ("erm", TREES)
        )
        assert networks.rows == trees.rows
        assert len(networks.trials) == len(trees.trials) == 2
    plan = Plan(("erm", TREES), trials=40)
    drawn = [draw_settings(TREES, trial, plan) for trial in range(40)]
    assert all(50 <= each["max_iter"] <= 500 for each in drawn)
    assert drawn[0]["max_iter"] == 100
    for task in ("classification", "regression"):
        assert make_estimator(TREES, task, drawn[1], plan, 10**6, 0).early_stopping is False
    assert "Boosted trees" in markdown(short_search)
    assert "same number of trials" in markdown(short_search)
